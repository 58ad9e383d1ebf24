"""The steps of delivery without a network: accept mail, lease what is due, claim it, record the outcome."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import accounts, delivery_claims, delivery_outcomes, delivery_schedule
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent, RecordedOutcomes
from posthouse.store.postgres import Connection, Database
from tests.support.accept_flow import AcceptFlow, Sender, new_id, new_sender, open_accept_flow
from tests.support.clock import SettableClock
from tests.support.operator_client import Operator
from tests.support.service import service_settings

LEASE: Final = timedelta(seconds=60)
LONGEST_ATTEMPT: Final = timedelta(minutes=30)
WAIT: Final = timedelta(minutes=5)


@dataclass(slots=True)
class DeliverySteps:
    url: str
    accept_flow: AcceptFlow
    clock: SettableClock
    operator: Operator
    sender: Sender
    worker_id: UUID = field(default_factory=uuid4)

    @property
    def database(self) -> Database:
        return self.accept_flow.database

    async def accept(
        self,
        recipients: int | Sequence[str] = 1,
        *,
        sender: Sender | None = None,
        mode: Mode = Mode.LIVE,
        **fields: Any,
    ) -> MessageId:
        by = sender or self.sender
        accepted = await self.accept_flow.accept(by, str(uuid4()), by.draft(recipients, **fields), mode=mode)
        return accepted.message_id

    async def another_sender(self, name: str) -> Sender:
        made = await new_sender(self.operator, name)
        await self.accept_flow.control_cache.forget_changes()
        return made

    async def lease(self, limit: int = 1_000) -> list[DeliveryTicket]:
        async with self.database.transaction() as tx:
            now = self.clock.now()
            return await delivery_schedule.lease_due(tx, now, now + LEASE, limit)

    async def claim(self, tickets: Iterable[DeliveryTicket], worker_id: UUID | None = None) -> list[ClaimedRecipient]:
        async with self.database.transaction() as tx:
            now = self.clock.now()
            return await delivery_claims.claim(tx, worker_id or self.worker_id, tickets, now, now + LONGEST_ATTEMPT)

    async def suspend(self) -> None:
        """The sender's account, from now on."""
        async with self.database.transaction() as tx:
            await accounts.suspend(tx, AccountId(self.sender.account_id), "a test", self.clock.now())

    async def resume(self) -> None:
        async with self.database.transaction() as tx:
            await accounts.resume(tx, AccountId(self.sender.account_id), self.clock.now())

    async def renew(self, worker_id: UUID | None = None) -> None:
        async with self.database.transaction() as tx:
            await delivery_schedule.renew_worker(tx, worker_id or self.worker_id, self.clock.now() + LEASE)

    async def reclaim(self) -> int:
        async with self.database.transaction() as tx:
            return await delivery_schedule.reclaim_expired_workers(tx, self.clock.now())

    async def record(self, *outcomes: DeliveryOutcome) -> RecordedOutcomes:
        async with self.database.transaction() as tx:
            return await delivery_outcomes.record(tx, outcomes, self.clock.now())

    async def claimed(self, recipients: int | Sequence[str] = 1, **how: Any) -> list[ClaimedRecipient]:
        """A new message, all of it claimed."""
        message_id = await self.accept(recipients, **how)
        found = await self.claim(await self.lease())
        return sorted((row for row in found if row.message_id == message_id), key=lambda row: row.position)

    def outcome(self, claimed: ClaimedRecipient, result: DeliveryResult, **given: Any) -> DeliveryOutcome:
        return outcome(claimed, result, self.clock.now(), **given)

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        async with self.database.connection() as connection:
            return [tuple(row) for row in await connection.fetch(query, *arguments)]

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)


def outcome(
    claimed: ClaimedRecipient,
    result: DeliveryResult,
    now: datetime,
    **given: Any,
) -> DeliveryOutcome:
    """The outcome of a short reply."""
    about: dict[str, Any] = {
        "mx_host": "mx.example.org",
        "remote_ip": "192.0.2.1",
        "tls": "TLSv1.3",
        "stage": "dot",
        "code": {DeliveryResult.DELIVERED: 250, DeliveryResult.BOUNCED: 550}.get(result, 451),
        "response": f"it was {result}",
    }
    if result.is_final:
        body = f"{result} {claimed.email}".encode()
        about["event"] = NewEvent(new_id(now), f"email.{result}", body)
    else:
        about["next_at"] = now + WAIT
    return DeliveryOutcome(
        claimed.account_id, claimed.message_id, claimed.position, claimed.fence, result, **{**about, **given}
    )


@asynccontextmanager
async def open_delivery_steps(database_url: str, at: datetime | None = None) -> AsyncIterator[DeliverySteps]:
    """`at` is the clock's time at the beginning; without it, the real one."""
    clock = SettableClock(at)
    operator = await Operator.open(service_settings(database_url), clock)
    try:
        sender = await new_sender(operator, "acme")
        async with open_accept_flow(database_url, clock) as accept_flow:
            steps = DeliverySteps(database_url, accept_flow, clock, operator, sender)
            await steps.renew()
            yield steps
    finally:
        await operator.close()


async def record_on(connection: Connection, outcomes: Sequence[DeliveryOutcome], now: datetime) -> RecordedOutcomes:
    async with connection.transaction():
        return await delivery_outcomes.record(connection, outcomes, now)
