"""The server's certificate: one context for all connections, renewed in place when its files change."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

# Renewals happen weeks ahead; this is only how long an operator waits to see it done.
LOOK_SECONDS: Final = 5.0

# For a key that is locked: without one, OpenSSL would ask at the terminal, and wait.
_NO_PASSWORD: Final = ""

# Times and sizes of both files.
_Signature = tuple[tuple[int, int], ...]


class TlsFiles:
    """Reads the files at once, and raises what is wrong with them; later a broken file is logged, and the old
    certificate goes on."""

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        self._certificate_file = certificate_file
        self._key_file = key_file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Resumption saves little here, and keys that live as long as the process would open what was recorded.
        self.context.num_tickets = 0
        self.context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        self._seen = self._signature()
        self.context.load_cert_chain(certificate_file, key_file, _NO_PASSWORD)

    def renew(self) -> bool:
        """Whether the files had changed and were read."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return False
            # A pair that doesn't fit would leave the context without a key: it is tried on another first.
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

    async def watch(self, seconds: float = LOOK_SECONDS) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.renew()

    def _signature(self) -> _Signature:
        found = [file.stat() for file in (self._certificate_file, self._key_file)]
        return tuple([(one.st_mtime_ns, one.st_size) for one in found])
