"""The simulation is itself tried: each fault that is planted, in a twin or in the database, is noticed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from posthouse.flows.deliver.delivery import Delivery
from posthouse.rules import retry
from posthouse.store.delivery_outcomes import Outcome
from tests.simulation import invariants
from tests.simulation.invariants import Broken
from tests.simulation.seeded_run import Step, take_step
from tests.simulation.simulated_service import SimulatedService, open_simulation
from tests.simulation.simulated_world import Faults

pytestmark = pytest.mark.rare

WELL = ("well-1@one.example", "well-2@two.example")
MIXED = ("well-1@one.example", "gone-2@two.example", "never-3@three.example")
ORDINARY: tuple[Step, ...] = (
    ("send", (0, MIXED)),
    ("round", ()),
    ("send", (0, WELL)),
    ("round", ()),
    ("leap", (600,)),
    ("leap", (600,)),
)


async def lived(
    url: str, *steps: Step, slow: bool = False, faults: Faults | None = None, **given: Any
) -> SimulatedService:
    """These steps, and then whatever is left to do."""
    async with open_simulation(url, 7, faults=faults, **given) as place:
        place.carrier.is_slow = place.caller.is_slow = slow
        for step in steps:
            await take_step(place, step)
        await place.come_to_rest()
        await invariants.require_rest(place)
        return place


async def test_where_nothing_is_planted_nothing_is_found(database_url: str) -> None:
    place = await lived(database_url, *ORDINARY)
    assert len(place.carrier.log) == 3
    assert place.caller.log


TWINS = {
    "a server that takes mail and loses it": (Faults(loses_what_it_took=True), "got nothing"),
    "a server that refuses mail and takes it": (Faults(takes_what_it_refused=True), "got it"),
    "a carrier that sends twice": (Faults(sends_twice=True), "got it 2 times"),
    "a caller that says yes for a receiver that heard nothing": (Faults(invents_successes=True), "never said yes"),
    "a caller that changes what it tells": (Faults(changes_bodies=True), "other bytes than are stored"),
    "a signature of another time": (Faults(signs_with_an_old_time=True), "time is not that of the call"),
}


@pytest.mark.parametrize("fault", TWINS)
async def test_a_twin_that_misbehaves_is_noticed(database_url: str, fault: str) -> None:
    faults, words = TWINS[fault]
    with pytest.raises(Broken, match=words):
        await lived(database_url, *ORDINARY, faults=faults)


MEDDLED = {
    "a calendar's row that is gone": ("DELETE FROM schedule", "is in the calendar"),
    "a credit that is given back twice": ("UPDATE accounts SET available = available + 1", "available is"),
    "an event that was dropped": ("DELETE FROM events WHERE type = 'email.bounced'", "event"),
    "a webhook delivery that nothing will send": ("DELETE FROM calls", "nothing is left to do"),
    "a recipient that is delivered without an attempt": (
        "UPDATE attempts SET outcome = 'deferred' WHERE outcome = 'delivered'",
        "has an attempt that delivered it",
    ),
    "mail that nobody will ever try": (
        "UPDATE schedule SET next_at = '2100-01-01'",
        "not everything has come to its end",
    ),
    "a message that is gone, though it was answered for": (
        (
            "WITH gone AS (SELECT id FROM messages LIMIT 1), "
            + ", ".join(
                f"{table} AS (DELETE FROM {table} WHERE message_id IN (SELECT id FROM gone))"
                for table in ("recipients", "bodies", "schedule", "attempts", "idempotency", "events")
            )
            + ", grant_back AS (UPDATE accounts SET available = available + (SELECT sum(CASE kind WHEN 'reserve'"
            " THEN amount WHEN 'release' THEN -amount ELSE 0 END) FROM ledger WHERE account_id = accounts.id"
            " AND message_id IN (SELECT id FROM gone)) WHERE id IN (SELECT account_id FROM messages WHERE id IN"
            " (SELECT id FROM gone)))"
            ", ledger AS (DELETE FROM ledger WHERE message_id IN (SELECT id FROM gone))"
            " DELETE FROM messages WHERE id IN (SELECT id FROM gone)"
        ),
        "is not on record|not there",
    ),
}


@pytest.mark.parametrize("fault", MEDDLED)
async def test_what_somebody_does_to_the_database_is_noticed(database_url: str, fault: str) -> None:
    statement, words = MEDDLED[fault]
    with pytest.raises(Broken, match=words):
        await lived(database_url, *ORDINARY, ("sql", (statement,)))


async def test_a_retry_that_comes_too_early_is_noticed(database_url: str) -> None:
    hasty = replace(retry.DELIVERY, waits=(timedelta(seconds=50), *retry.DELIVERY.waits[1:]))
    with pytest.raises(Broken, match="was tried again"):
        await lived(database_url, ("send", (0, MIXED)), *[("round", ()), ("leap", ())] * 4, delivery_waits=hasty)


async def test_a_retry_too_many_is_noticed(database_url: str) -> None:
    stubborn = replace(retry.DELIVERY, waits=(*retry.DELIVERY.waits, timedelta(hours=1)))
    with pytest.raises(Broken, match="was tried 11 times"):
        await lived(database_url, ("send", (0, MIXED)), delivery_waits=stubborn)


async def test_a_webhook_call_that_comes_too_early_is_noticed(database_url: str) -> None:
    hasty = replace(retry.WEBHOOK, waits=(timedelta(seconds=4), *retry.WEBHOOK.waits[1:]))
    steps: list[Step] = [("endpoint", (0, "/never")), ("send", (0, WELL)), *[("round", ()), ("leap", ())] * 4]
    with pytest.raises(Broken, match="was told again after"):
        await lived(database_url, *steps, webhook_waits=hasty)


# A worker is stopped for longer than its lease while a slow server has not yet had the dot; another takes over.
STALLED: tuple[Step, ...] = (
    *[("send", (0, (f"well-{number}@one.example",))) for number in range(20)],
    ("round", ()),
    ("wait", (60.0, 2)),
    ("round", ()),
    ("wait", (300.0,)),
    ("round", ()),
)


async def test_the_lease_is_what_keeps_a_stopped_worker_from_sending(database_url: str) -> None:
    place = await lived(database_url, *STALLED, slow=True)
    assert place.carrier.withdrawn


async def test_a_lease_that_nobody_asks_for_before_the_dot_is_noticed(database_url: str) -> None:
    with pytest.raises(Broken, match="got it 2 times"):
        await lived(database_url, *STALLED, slow=True, faults=Faults(ignores_the_lease=True))


class Forgetful(Delivery):
    """Carries mail and tells nobody."""

    async def _record(self, outcomes: Sequence[Outcome]) -> None:
        self._claims.forget(outcomes)


async def test_an_outcome_that_is_not_recorded_is_noticed(database_url: str) -> None:
    with pytest.raises(Broken, match="nobody told what came of an attempt, and nobody died"):
        await lived(database_url, ("send", (0, WELL)), ("round", ()), ("leap", (600,)), delivery_kind=Forgetful)
