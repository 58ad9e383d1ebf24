"""What stands behind an SMTP server: who may speak, which recipients there are, and what becomes of a message."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.flows.shared.principal import Principal
from posthouse.rules import limits


@dataclass(frozen=True, slots=True)
class Policy:
    """What a server says of itself, and asks of its clients.

    Where authentication is needed it is offered, under TLS alone; elsewhere it is not offered at all.
    """

    hostname: str
    needs_authentication: bool
    message_bytes_max: int = limits.MIME_BYTES_MAX
    recipients_max: int = limits.RECIPIENTS_MAX


class Envelope(NamedTuple):
    """Paths are as the client wrote them, without their brackets; `sender` is empty for `<>`."""

    sender: str
    recipients: tuple[str, ...]
    is_secure: bool
    peer: str
    client_name: str


class Service(Protocol):
    @property
    def terms(self) -> Policy: ...

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:
        """Raises a Refusal; cancelled when the client has gone. Never called where nobody authenticates."""

    def recipient(self, address: str, count: int) -> ServerReply | None:
        """None when it is taken. The path is well-formed; `count` recipients of this message were taken before."""

    async def take(self, caller: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:
        """Whether the message is ours now. Never raises but for a cancellation. Goes on when the client has gone.

        The content has its dots as they were written, lines that end in CRLF, and whatever else was sent.
        """
