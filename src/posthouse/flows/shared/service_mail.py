"""The service's own mail: invitations, password resets, and notices.

The token in such a mail proves that its reader has the address. So it goes by mail alone, and without a sender there is
none: an operator's command shows the link instead.
"""

from typing import Final, Protocol

from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal

_NO_SENDER: Final = (
    "This installation sends no mail of its own: its operator can set service.sender and service.sender_account, or "
    "make the link with `posthouse user invite`, or set a password with `posthouse user password`."
)


class ServiceMail(Protocol):
    def require(self) -> None:
        """Raises when the installation sends no mail of its own."""

    async def is_sent_by(self, account_id: AccountId) -> bool:
        """Whether this account sends it; raises as `send` does."""

    async def send(self, to: str, subject: str, text: str, *, key: str | None = None) -> None:
        """Raises when the mail can't be accepted now. With a key, it is accepted once, however often it is sent."""


class NoServiceMail:
    """Of an installation without a sender."""

    def require(self) -> None:
        raise Refusal(Code.CONFLICT, _NO_SENDER)

    async def is_sent_by(self, account_id: AccountId) -> bool:  # noqa: ARG002
        self.require()
        return False

    async def send(self, to: str, subject: str, text: str, *, key: str | None = None) -> None:  # noqa: ARG002
        self.require()
