"""The interface between the SMTP server and a service: authentication, recipients, acceptance of messages."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.flows.shared.principal import Principal
from posthouse.rules import limits


@dataclass(frozen=True, slots=True)
class Policy:
    """What a server announces, and what it requires of its clients.

    If authentication is required, it is offered, but only under TLS; otherwise it is not offered.
    """

    hostname: str
    needs_authentication: bool
    message_bytes_max: int = limits.MIME_BYTES_MAX
    recipients_max: int = limits.RECIPIENTS_MAX


class Envelope(NamedTuple):
    """Paths are as the client sent them, without brackets; `sender` is empty for `<>`."""

    sender: str
    recipients: tuple[str, ...]
    is_secure: bool
    peer: str
    client_name: str


class Service(Protocol):
    @property
    def policy(self) -> Policy: ...

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:
        """Raises a Refusal; cancelled when the client disconnects. Called only if authentication is required."""

    def check_recipient(self, address: str, count: int) -> ServerReply | None:
        """None to accept it. The path is well-formed; `count` recipients of the message are already accepted."""

    async def accept(self, principal: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:
        """The reply says whether we are now responsible for the message. Raises only a cancellation.

        Not cancelled when the client disconnects. The content is without dot-stuffing, and its lines end in CRLF.
        """
