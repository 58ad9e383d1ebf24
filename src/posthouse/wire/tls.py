"""TLS for outgoing SMTP: when it is used, whether it must be verified, and what was negotiated."""

import asyncio
import enum
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Final


class TlsUse(enum.Enum):
    NONE = enum.auto()
    OPPORTUNISTIC = enum.auto()
    REQUIRED_VERIFIED = enum.auto()


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """Building a context costs 60 ms: share it per policy. The context itself sets whether it verifies."""

    use: TlsUse
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.use is not TlsUse.NONE and self.context is None:
            raise ValueError("a policy that uses TLS needs an SSLContext")
        if self.use is TlsUse.REQUIRED_VERIFIED and self.context is not None and not verifies(self.context):
            raise ValueError("this SSLContext does not verify certificate and name; use one that does")


CLEARTEXT: Final = TlsPolicy(TlsUse.NONE)


@dataclass(frozen=True, slots=True)
class TlsDetails:
    version: str
    cipher: str
    is_verified: bool


def verifying_context() -> ssl.SSLContext:
    """Trusts the machine's certificate authorities. Debian's Python leaves the oldest version of TLS to OpenSSL.

    Python 3.13 is stricter than older versions and than mail servers: it refuses certificates without an identifier of
    their authority's key, as many private authorities make them.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def verifies(context: ssl.SSLContext) -> bool:
    return context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname


# Asks a mail server for its greeting, to see whether port 25 can be reached from here.


SECONDS_MAX: Final = 10.0
LINE_BYTES_MAX: Final = 1024


async def greeting(host: str, port: int = 25, seconds_max: float = SECONDS_MAX) -> str:
    """The first line that the server sends; raises OSError (for instance TimeoutError) if it sends none."""
    async with asyncio.timeout(seconds_max):
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    if not line.startswith(b"220"):
        raise ConnectionError(f"it does not greet as a mail server does: {line[:60]!r}")
    return line.decode("ascii", "replace").strip()
