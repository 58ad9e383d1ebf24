"""A worker for a test of the running service: claims a tenant's mail and records outcomes."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from posthouse.randomness import SystemRandomness
from posthouse.rules import ids
from posthouse.rules.ids import AccountId
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_outcomes, delivery_schedule
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.delivery_steps import outcome
from tests.support.service import Tenant, uuid

HOUR: Final = timedelta(hours=1)
TLS: Final = "TLSv1.3 TLS_AES_256_GCM_SHA384"


class TenantWorker:
    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.service = tenant.service
        self.account_id = AccountId(tenant.id)
        self.id = new_id()

    async def claim(self, message_id: str) -> list[ClaimedRecipient]:
        now = datetime.now(UTC)
        rows = await self.service.sql(
            "SELECT account_id, message_id, position, fence, destination FROM delivery_schedule"
            " WHERE account_id = $1 AND message_id = $2",
            self.account_id,
            uuid(message_id),
        )
        async with self.service.pool.acquire() as connection, connection.transaction():
            await delivery_schedule.renew_worker(connection, self.id, now + HOUR)
            tickets = [DeliveryTicket(*row) for row in rows]
            claimed = await delivery_claims.claim(connection, self.id, tickets, now, now + HOUR)
        return sorted(claimed, key=lambda claim: claim.position)

    async def record(self, claimed: ClaimedRecipient, result: DeliveryResult, **said: Any) -> None:
        now = datetime.now(UTC)
        recorded = outcome(claimed, result, now, **{"tls": TLS, **said})
        async with self.service.pool.acquire() as connection, connection.transaction():
            await delivery_outcomes.record(connection, [recorded], now)

    async def deliver(self, message_id: str, result: DeliveryResult = DeliveryResult.DELIVERED, **said: Any) -> None:
        for claimed in await self.claim(message_id):
            await self.record(claimed, result, **said)


def new_id() -> UUID:
    return ids.new_id(datetime.now(UTC), SystemRandomness().id_bytes())
