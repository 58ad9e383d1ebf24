"""TLS of outgoing SMTP: when it is used, whether it must be verified, and what was agreed."""

import enum
import ssl
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


def verifies(context: ssl.SSLContext) -> bool:
    return context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
