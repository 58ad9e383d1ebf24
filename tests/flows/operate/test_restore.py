"""After a restore everything that was accepted before is held, and new mail flows; a promotion holds nothing.

Another timeline is a changed row here; `tests/restore/test_restore.py` restores a real cluster.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from posthouse import metrics
from posthouse.clock import DatabaseClock
from posthouse.compose.database import learn_time
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.queue_changes import Chosen, QueueChanges
from posthouse.flows.operate.restore import RestoreCheck, Restores
from posthouse.randomness import SeededRandomness
from posthouse.rules import ids
from posthouse.rules.queue_change import QueueChange
from posthouse.rules.refusal import Refusal
from posthouse.store import restore
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.wire.dns import Resolver
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

ANOTHER = "UPDATE restore_state SET trusted = '1/00000001', doubted = NULL RETURNING 1"
EARLIER = "UPDATE service_clock SET service_time = service_time - interval '1 minute' RETURNING 1"
# Long enough that no process is waited for; and everything accepted up to now came before.
LONG_DOUBTED = """
UPDATE restore_state SET doubted_at = doubted_at - interval '31 seconds', known_until = clock_timestamp() RETURNING 1
"""
SCHEDULE = "SELECT held_by, count(*) FROM delivery_schedule GROUP BY 1 ORDER BY 1"


@dataclass
class Site:
    flow: DeliveryFlow
    clock: DatabaseClock

    def process(self, *, holds: bool = True) -> RestoreCheck:
        """The note of a process that has just started."""
        given = context(self.flow.steps.database, self.clock, SeededRandomness(3))
        return RestoreCheck(given, clock=self.clock, holds=holds)

    @property
    def operator(self) -> Restores:
        return Restores(context(self.flow.steps.database, self.clock, SeededRandomness(4)), clock=self.clock)

    @property
    def changes(self) -> QueueChanges:
        resolver = Resolver([self.flow.nameserver.endpoint], lookup_seconds_max=4.0, monotonic=self.clock.monotonic)
        return QueueChanges(context(self.flow.steps.database, self.flow.clock, SeededRandomness(5)), resolver=resolver)

    async def sql(self, query: str, *arguments: object) -> list[tuple[object, ...]]:
        return await self.flow.steps.fetch(query, *arguments)

    async def connect(self) -> None:
        """As each new connection does."""
        async with self.flow.steps.database.connection() as connection:
            await restore.note_unknown(connection)

    async def restored(self) -> None:
        """What was accepted before is held."""
        await self.sql(ANOTHER)
        await self.connect()
        await self.sql(LONG_DOUBTED)
        await self.process().check()

    async def is_trusted(self) -> bool:
        async with self.flow.steps.database.connection() as connection:
            return await restore.is_trusted(connection)

    async def held_by_metrics(self) -> float:
        await Monitor(context(self.flow.steps.database, self.clock)).measure_queue()
        return metrics.HELD_AFTER_RESTORE.values[()]

    def arrived(self) -> list[str]:
        return sorted(mail.recipient for mail in self.flow.receiver.accepted)


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org", "example.net")
        clock = DatabaseClock()
        await learn_time(clock, flow.steps.database)
        await flow.delivery.renew()
        yield Site(flow, clock)


async def test_nothing_is_sent_on_another_timeline_before_it_is_judged(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org"])
    tickets = await site.flow.steps.lease()
    await site.sql(ANOTHER)
    with pytest.raises(Refusal, match="timeline"):
        await site.flow.steps.claim(tickets)
    await site.process().check()  # it doesn't know what was before
    with pytest.raises(Refusal, match="timeline"):
        await site.flow.steps.claim(tickets)
    assert await site.sql("SELECT count(*) FROM attempts") == [(0,)]


async def test_a_process_that_finds_its_note_trusts_a_promoted_server(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org"])
    witness = site.process()
    await witness.check()
    await site.sql(ANOTHER)
    await site.connect()
    await site.process().check()
    assert not await site.is_trusted()
    await witness.check()
    assert await site.is_trusted()
    await site.flow.run_due()
    assert site.arrived() == ["a@example.org"]


async def test_without_a_process_that_ran_before_everything_is_held_and_new_mail_flows(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org", "b@example.net"])
    old_tickets = await site.flow.steps.lease()
    await site.restored()
    assert await site.is_trusted()
    assert await site.sql(SCHEDULE) == [("restore", 2)]
    assert await site.held_by_metrics() == 2
    site.flow.clock.advance(seconds=60)
    await site.flow.steps.accept(["new@example.org"])
    await site.flow.run_due()
    assert site.arrived() == ["new@example.org"]
    # Tickets that were in the stream are void.
    assert await site.flow.steps.claim(old_tickets) == []
    held = await site.operator.held()
    assert (held.recipients, held.messages, held.operators) == (2, 1, 0)
    assert [name for name, _ in held.destinations] == ["example.net", "example.org"]
    assert [count for _, _, count in held.accounts] == [2]
    assert sum(held.ages) == 2
    assert held.restored_at is not None
    log = await Monitor(context(site.flow.steps.database, site.flow.clock)).operator_log(10)
    (entry,) = [found.entry for found in log if found.entry.action.startswith("restore.")]
    assert (entry.action, dict(entry.detail)) == ("restore.held", {"recipients": 2})


async def test_held_mail_is_released_by_choice_and_the_rest_cancelled(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org", "b@example.net", "c@example.net"])
    await site.restored()
    # Longer than mail lives: the time held does not count.
    site.flow.clock.advance(timedelta(days=5))
    changes = site.changes
    with pytest.raises(Refusal, match="which mail"):
        await changes.select(Chosen())
    # What operators release by `queue release` is what they held themselves.
    everything = await changes.select(Chosen(), or_all=True)
    assert await changes.apply(QueueChange.RELEASE, everything, "a test") == 0
    chosen = await changes.select(Chosen(destination="example.org"))
    assert await changes.apply(QueueChange.RELEASE_RESTORED, chosen, "a test") == 1
    await site.flow.delivery.renew()
    await site.flow.run_due()
    assert site.arrived() == ["a@example.org"]
    assert await site.held_by_metrics() == 2
    assert await changes.apply(QueueChange.CANCEL, everything, "a test") == 2
    assert await site.held_by_metrics() == 0
    assert await site.sql("SELECT count(*) FROM delivery_schedule") == [(0,)]


async def test_claims_of_workers_that_were_lost_are_held_and_their_outcomes_come_late(site: Site) -> None:
    (claimed,) = await site.flow.steps.claimed(["a@example.org"])
    await site.restored()
    assert await site.sql("SELECT held_by, worker_id FROM delivery_schedule") == [("restore", None)]
    recorded = await site.flow.steps.record(site.flow.steps.outcome(claimed, DeliveryResult.DELIVERED))
    assert len(recorded.late) == 1
    assert await site.sql("SELECT status FROM recipients") == [("queued",)]


async def test_what_an_operator_held_stays_held(site: Site) -> None:
    message = await site.flow.steps.accept(["a@example.org"])
    selection = await site.changes.select(Chosen(message=ids.text(ids.MESSAGE, message)))
    await site.changes.apply(QueueChange.HOLD, selection, "a test")
    await site.restored()
    assert await site.sql(SCHEDULE) == [("operator", 1)]
    assert (await site.operator.held()).operators == 1


async def test_a_note_that_is_missing_shows_a_restored_snapshot(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org"])
    running = site.process()
    await running.check()
    await site.sql(EARLIER)
    await running.check()
    assert await site.sql(SCHEDULE) == [("restore", 1)]
    assert await site.is_trusted()
    # Held once, by the first that notices.
    site.flow.clock.advance(seconds=60)
    await site.flow.steps.accept(["new@example.org"])
    await running.check()
    await site.process().check()
    assert await site.sql(SCHEDULE) == [("restore", 1), (None, 1)]


async def test_a_hold_that_is_cut_off_is_continued_by_any_process(site: Site) -> None:
    witness = site.process()
    await witness.check()
    await site.flow.steps.accept(["a@example.org"])
    async with site.flow.steps.database.transaction() as tx:
        await restore.distrust(tx)
    await witness.check()
    assert await site.sql(SCHEDULE) == [("restore", 1)]
    assert await site.is_trusted()


async def test_an_operator_begins_it_when_no_worker_runs(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org"])
    with pytest.raises(Refusal, match="stop them"):
        await site.operator.begin()
    await site.sql("DELETE FROM workers RETURNING 1")
    assert await site.operator.begin() == 1
    assert await site.sql(SCHEDULE) == [("restore", 1)]


async def test_switched_off_every_timeline_is_trusted(site: Site) -> None:
    await site.flow.steps.accept(["a@example.org"])
    await site.sql(ANOTHER)
    await site.process(holds=False).check()
    await site.flow.run_due()
    assert site.arrived() == ["a@example.org"]
