"""The server's certificate: a context shared by all connections, reloaded when the files change."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

# Renewals happen weeks before expiry; this is only how long an operator waits to see the result.
CHECK_SECONDS: Final = 5.0

# For an encrypted key: without a password OpenSSL would prompt at the terminal and wait.
_NO_PASSWORD: Final = ""

# Times and sizes of both files.
_Signature = tuple[tuple[int, int], ...]


class TlsFiles:
    """Raises at once if the files are invalid; later an invalid file is logged, and the old certificate stays."""

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        self._certificate_file = certificate_file
        self._key_file = key_file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Resumption saves little here, and ticket keys that live as long as the process weaken forward secrecy.
        self.context.num_tickets = 0
        self.context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        self._seen = self._signature()
        self.context.load_cert_chain(certificate_file, key_file, _NO_PASSWORD)

    def renew(self) -> bool:
        """Reloads changed files; returns whether it did."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return False
            # A mismatched pair would leave the context without a key, so it is tried on another context first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self._certificate_file, self._key_file, _NO_PASSWORD
            )
            self.context.load_cert_chain(self._certificate_file, self._key_file, _NO_PASSWORD)
        except OSError as error:
            log.warning("certificate_unreadable", file=str(self._certificate_file), error=str(error))
            return False
        self._seen = signature
        log.info("certificate_renewed", file=str(self._certificate_file))
        return True

    async def watch(self, seconds: float = CHECK_SECONDS) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.renew()

    def _signature(self) -> _Signature:
        files = [file.stat() for file in (self._certificate_file, self._key_file)]
        return tuple([(file.st_mtime_ns, file.st_size) for file in files])
