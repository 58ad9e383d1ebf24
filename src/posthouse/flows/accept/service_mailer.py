"""Accepts the service's own mail, through the same intake as all mail, for the account that the operator named.

That account pays, its domain must be verified, and its members can read the mail.
"""

from typing import Final

import structlog

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.accept.intake import Intake
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.principal import Principal
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.draft import compose
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import accounts, credentials
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 60
# RFC 3834: no absence notices in answer.
_HEADERS: Final = {"Auto-Submitted": "auto-generated"}


class ServiceMailer:
    def __init__(
        self, *, intake: Intake, database: Database, clock: Clock, chance: Chance, sender: str, account: str
    ) -> None:
        """`account` is the name or id of the account that sends; it may be made later."""
        self._intake = intake
        self._database = database
        self._clock = clock
        self._chance = chance
        self._sender = sender
        self._account = account

    def require(self) -> None:
        """There is a sender."""

    async def is_sent_by(self, account_id: AccountId) -> bool:
        return (await self._principal()).account_id == account_id

    async def send(self, to: str, subject: str, text: str, *, key: str | None = None) -> None:
        request_id = RequestId(new_id(self._chance, self._clock.now()))
        key = key or ids.text(ids.REQUEST, request_id)
        draft = compose(sender=self._sender, to=[to], subject=subject, text=text, headers=_HEADERS)
        try:
            principal = await self._principal()
            await self._intake.accept(principal, key, draft, self._intake.fingerprint(key.encode()), request_id)
        except Refusal as refusal:
            # The sending account's credits, rate or domain are nothing that the caller could mend.
            log.error("service_mail_refused", account=self._account, code=refusal.code.value, reason=refusal.text)
            raise Refusal(
                Code.SERVICE_UNAVAILABLE,
                "The service can't send its own mail at this moment: try again later, or ask its operator.",
                RETRY_SECONDS,
            ) from refusal

    async def _principal(self) -> Principal:
        account_id = ids.parse(ids.ACCOUNT, self._account)
        async with self._database.connection() as connection:
            if account_id is None:
                found = await accounts.find_by_name(connection, self._account)
            else:
                found = await accounts.find_by_id(connection, AccountId(account_id))
            credential = None if found is None else await credentials.default_credential(connection, found.id)
        if found is None or credential is None:
            raise Refusal(Code.NOT_FOUND, "service.sender_account names no account that can send: create it.")
        return Principal(found.id, credential.id, Mode.LIVE)
