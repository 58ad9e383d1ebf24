"""The service's own mail: invitations, password resets, and notices.

The token in such mail proves that its reader has the address. So it is only sent by email, and without a sender there
is none: an operator's command shows the link instead.
"""

from typing import Final, Protocol

from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal

_NO_SENDER: Final = (
    "This installation sends no mail of its own: its operator can set service.sender and service.sender_account, "
    "create the link with `posthouse user invite`, or set a password with `posthouse user password`."
)


class ServiceMail(Protocol):
    def require(self) -> None:
        """Raises if the installation sends no mail of its own."""

    async def is_sent_by(self, account_id: AccountId) -> bool:
        """Whether this account sends it; raises as `send` does."""

    async def check(self, *, is_invitation: bool = False) -> None:
        """Raises if nothing can be accepted now. Invitations leave a reserve for mail that can't wait."""

    async def send(
        self, to: str, subject: str, text: str, *, key: str | None = None, inviter: AccountId | None = None
    ) -> None:
        """Raises if the mail can't be accepted now. With a key, it is accepted once, however often it is sent.

        An invitation counts for the reputation of the account that invites, and other mail overtakes it.
        """


class NoServiceMail:
    """For an installation without a sender."""

    def require(self) -> None:
        raise Refusal(Code.CONFLICT, _NO_SENDER)

    async def is_sent_by(self, account_id: AccountId) -> bool:  # noqa: ARG002
        self.require()
        return False

    async def check(self, *, is_invitation: bool = False) -> None:  # noqa: ARG002
        self.require()

    async def send(
        self,
        to: str,  # noqa: ARG002
        subject: str,  # noqa: ARG002
        text: str,  # noqa: ARG002
        *,
        key: str | None = None,  # noqa: ARG002
        inviter: AccountId | None = None,  # noqa: ARG002
    ) -> None:
        self.require()
