"""The notice that an account's webhook or endpoint fails: in the audit log, and by mail to its owners.

It is sent once in each period of failure, and marked before it is sent, so that a crash can't send it twice.
"""

from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import structlog

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import endpoint, ids, service_text
from posthouse.rules.alert import AlertKind
from posthouse.rules.credential import SERVICE
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Refusal
from posthouse.store import accounts, alerts, endpoints

log = structlog.get_logger(__name__)

# If there are more owners, those who joined first get the message.
OWNERS_MAX: Final = 10


class FailingNotices(Flow):
    def __init__(
        self,
        context: Context,
        *,
        service_mail: ServiceMail,
        failing_after: timedelta = endpoint.FAILING_AFTER,
    ) -> None:
        super().__init__(context)
        self._service_mail = service_mail
        self._failing_after = failing_after

    async def send(self, account_id: AccountId, endpoint_id: UUID, url: str) -> None:
        """Send it, unless it was sent since the endpoint began to fail, or the endpoint answers by now."""
        host = urlsplit(url).hostname or ""
        is_webhook = endpoint_id == endpoints.webhook_id(account_id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            since = await endpoints.mark_failing(tx, account_id, endpoint_id, url, now - self._failing_after, now)
            if since is None:
                return
            # Only the host: the rest of a URL may contain secrets.
            detail = {"since": since.isoformat(timespec="seconds")}
            action = "webhook.failing" if is_webhook else "endpoint.failing"
            await self._audit_log.add_entry(tx, account_id, SERVICE, action, host, now, detail)
            account = await accounts.find_by_id(tx, account_id)
            # Members who chose the alert about it get the alert's message.
            owners = await alerts.owners_without(tx, account_id, AlertKind.WEBHOOK_FAILING, OWNERS_MAX)
        name = "" if account is None else account.name
        text = service_text.endpoint_failing(name, host, since, is_webhook=is_webhook)
        try:
            # Mail of the account that sends it would create events for the endpoint that fails.
            if await self._service_mail.is_sent_by(account_id):
                return
            for owner in owners:
                await self._service_mail.send(owner, *text)
        except Refusal as refusal:
            # Without a sender, or while it can't send, the notice is only in the audit log.
            log.warning("owners_not_mailed", account=ids.text(ids.ACCOUNT, account_id), code=refusal.code.value)
