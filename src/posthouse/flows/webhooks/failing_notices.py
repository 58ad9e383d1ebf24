"""The notice that an account's webhook endpoint fails: in the audit log, and by mail to its owners.

Once in each period of failure. It is marked before the mail is sent, so that no crash sends it twice.
"""

from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import structlog

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import endpoint_state, ids, service_text
from posthouse.rules.actor import SERVICE
from posthouse.rules.alert import AlertKind
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Refusal
from posthouse.store import accounts, alerts, endpoints, webhooks
from posthouse.store.postgres import Connection, Database

log = structlog.get_logger(__name__)

# Of more owners, those who joined first get the mail.
OWNERS_MAX: Final = 10


class FailingNotices:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        service_mail: ServiceMail,
        failing_after: timedelta = endpoint_state.FAILING_AFTER,
    ) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._service_mail = service_mail
        self._failing_after = failing_after

    async def send(self, account_id: AccountId, url: str, endpoint_id: UUID | None = None) -> None:
        """Unless it was sent since the endpoint began to fail, or it answers by now."""
        host = urlsplit(url).hostname or ""
        async with self._database.transaction() as tx:
            now = self._clock.now()
            since = await self._mark(tx, account_id, url, endpoint_id, now)
            if since is None:
                return
            # The host alone: the rest of a URL may contain secrets.
            detail = {"since": since.isoformat(timespec="seconds")}
            action = "webhook.failing" if endpoint_id is None else "endpoint.failing"
            await self._audit_log.note(tx, account_id, SERVICE, action, host, now, detail)
            account = await accounts.find_by_id(tx, account_id)
            # Those who chose the alert about it get that mail.
            owners = await alerts.owners_without(tx, account_id, AlertKind.WEBHOOK_FAILING, OWNERS_MAX)
        compose = service_text.webhook_failing if endpoint_id is None else service_text.endpoint_failing
        text = compose("" if account is None else account.name, host, since)
        try:
            # Mail of the account that sends it would be events for the endpoint that fails.
            if await self._service_mail.is_sent_by(account_id):
                return
            for owner in owners:
                await self._service_mail.send(owner, *text)
        except Refusal as refusal:
            # Without a sender, or while it can't send: the audit log has it.
            log.warning("owners_not_mailed", account=ids.text(ids.ACCOUNT, account_id), code=refusal.code.value)

    async def _mark(
        self, tx: Connection, account_id: AccountId, url: str, endpoint_id: UUID | None, now: datetime
    ) -> datetime | None:
        before = now - self._failing_after
        if endpoint_id is None:
            return await webhooks.mark_failing(tx, account_id, url, before, now)
        return await endpoints.mark_failing(tx, account_id, endpoint_id, url, before, now)
