"""Accepts the service's own mail, through the same intake as all mail, for the account named by the operator.

That account pays, its domain must be verified, and its members can read the mail.

Invitations are caused by tenants, and must not keep others from getting a new password: they belong to a list, which
other mail overtakes in the lanes; they leave a reserve of the account's rate, credits and warm-up; and their results
count for the account that invites.
"""

import asyncio
from typing import Final

import structlog

from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.principal import Principal
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft, compose
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import LIST_TAG_PREFIX
from posthouse.store import accounts, credentials, invitations

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 60
# Mail that no one would request again waits this long for the account's rate.
RATE_SECONDS_WAITED: Final = 30
# How much invitations leave of the account's credits and warm-up, and of its rate.
RESERVED_RECIPIENTS: Final = 20
RESERVED_RATE: Final = 0.5
INVITATION_TAG: Final = f"{LIST_TAG_PREFIX}invitations"
# RFC 3834: no automatic replies.
_HEADERS: Final = {"Auto-Submitted": "auto-generated"}


class ServiceMailer(Flow):
    def __init__(self, context: Context, *, intake: Intake, sender: str, account: str) -> None:
        """`account` is the name or id of the account that sends; it may be created later."""
        super().__init__(context)
        self._intake = intake
        self._sender = sender
        self._account = account

    def require(self) -> None:
        """Does nothing: there is a sender."""

    async def is_sent_by(self, account_id: AccountId) -> bool:
        return (await self._principal()).account_id == account_id

    async def check(self, *, is_invitation: bool = False) -> None:
        draft = compose(sender=self._sender, to=[self._sender], subject="check", text="check")
        try:
            rate_left = await self._intake.require(
                await self._principal(), draft.sender, RESERVED_RECIPIENTS if is_invitation else 1
            )
        except Refusal as refusal:
            if not is_invitation and _seconds_to_wait(refusal) <= RATE_SECONDS_WAITED:
                return
            raise self._unavailable(refusal) from refusal
        if is_invitation and rate_left < RESERVED_RATE:
            raise Refusal(Code.RATE_LIMITED, "Many invitations are being mailed at this moment: try again.", 1)

    async def send(
        self, to: str, subject: str, text: str, *, key: str | None = None, inviter: AccountId | None = None
    ) -> None:
        request_id = RequestId(new_id(self._randomness, self._clock.now()))
        key = key or ids.text(ids.REQUEST, request_id)
        tags = [] if inviter is None else [INVITATION_TAG]
        draft = compose(sender=self._sender, to=[to], subject=subject, text=text, headers=_HEADERS, tags=tags)
        try:
            principal = await self._principal()
            accepted = await self._accept(principal, key, draft, request_id, waits=inviter is None)
        except Refusal as refusal:
            raise self._unavailable(refusal) from refusal
        if inviter is not None:
            # A process that dies before this leaves one invitation uncounted.
            async with self._database.transaction() as tx:
                await invitations.note_mailed(tx, inviter, accepted.message_id, principal.account_id)

    async def _accept(
        self, principal: Principal, key: str, draft: Draft, request_id: RequestId, *, waits: bool
    ) -> AcceptedMessage:
        fingerprint = self._intake.fingerprint(key.encode())
        seconds_left = float(RATE_SECONDS_WAITED if waits else 0)
        while True:
            try:
                return await self._intake.accept(principal, key, draft, fingerprint, request_id)
            except Refusal as refusal:
                seconds = _seconds_to_wait(refusal)
                if seconds > seconds_left:
                    raise
            seconds_left -= seconds
            await asyncio.sleep(seconds)

    def _unavailable(self, refusal: Refusal) -> Refusal:
        # The caller can't fix the sending account's credits, rate or domain.
        log.error("service_mail_refused", account=self._account, code=refusal.code.value, reason=refusal.text)
        return Refusal(
            Code.SERVICE_UNAVAILABLE,
            "The service can't send its own mail now: try again later, or ask its operator.",
            RETRY_SECONDS,
        )

    async def _principal(self) -> Principal:
        account_id = ids.parse(ids.ACCOUNT, self._account)
        async with self._database.connection() as connection:
            if account_id is None:
                found = await accounts.find_by_name(connection, self._account)
            else:
                found = await accounts.find_by_id(connection, AccountId(account_id))
            credential = None if found is None else await credentials.default_credential(connection, found.id)
        if found is None or credential is None:
            raise Refusal(Code.NOT_FOUND, "service.sender_account doesn't name an account that can send: create it.")
        return Principal(found.id, credential.id, Mode.LIVE)


def _seconds_to_wait(refusal: Refusal) -> float:
    """The wait until the account's rate allows the mail; forever if it was refused for another reason."""
    is_rate = refusal.code is Code.RATE_LIMITED and refusal.retry_after_seconds is not None
    return float(refusal.retry_after_seconds or 0) if is_rate else float("inf")
