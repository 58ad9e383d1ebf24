"""The simulation itself is tested: it notices each fault that is planted in its surroundings or in the database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from posthouse.flows.deliver.delivery import Delivery
from posthouse.rules import retry
from posthouse.store.delivery_outcomes import DeliveryOutcome
from tests.simulation import invariants
from tests.simulation.invariants import Broken
from tests.simulation.seeded_run import Step, take_step
from tests.simulation.simulated_service import SimulatedService, open_simulation
from tests.simulation.simulated_world import Faults

pytestmark = pytest.mark.nightly

WELL = ("well-1@one.example", "well-2@two.example")
MIXED = ("well-1@one.example", "gone-2@two.example", "never-3@three.example")
ORDINARY: tuple[Step, ...] = (
    ("send", (0, MIXED)),
    ("cycle", ()),
    ("send", (0, WELL)),
    ("cycle", ()),
    ("leap", (600,)),
    ("leap", (600,)),
)


async def run_steps(
    url: str, *steps: Step, slow: bool = False, faults: Faults | None = None, **given: Any
) -> SimulatedService:
    """These steps; then all work is finished and checked."""
    async with open_simulation(url, 7, faults=faults, **given) as simulation:
        simulation.carrier.is_slow = simulation.caller.is_slow = slow
        for step in steps:
            await take_step(simulation, step)
        await simulation.run_until_idle()
        await invariants.require_idle(simulation)
        return simulation


async def test_where_nothing_is_planted_nothing_is_found(database_url: str) -> None:
    simulation = await run_steps(database_url, *ORDINARY)
    assert len(simulation.carrier.log) == 3
    assert simulation.caller.log


SURROUNDINGS = {
    "a server that takes mail and loses it": (Faults(loses_what_it_took=True), "got nothing"),
    "a server that refuses mail and takes it": (Faults(takes_what_it_refused=True), "got it"),
    "a carrier that sends twice": (Faults(sends_twice=True), "got it 2 times"),
    "a webhook client that invents successes": (Faults(invents_successes=True), "never answered with a 2xx"),
    "a webhook client that changes bodies": (Faults(changes_bodies=True), "other bytes than are stored"),
    "a signature of another time": (Faults(signs_with_an_old_time=True), "time is not that of the call"),
}


@pytest.mark.parametrize("fault", SURROUNDINGS)
async def test_misbehaving_surroundings_are_noticed(database_url: str, fault: str) -> None:
    faults, words = SURROUNDINGS[fault]
    with pytest.raises(Broken, match=words):
        await run_steps(database_url, *ORDINARY, faults=faults)


DATABASE_CHANGES = {
    "a lost row of the schedule": ("DELETE FROM delivery_schedule", "is in the schedule"),
    "a credit that is given back twice": ("UPDATE accounts SET available = available + 1", "available is"),
    "an event that was dropped": ("DELETE FROM events WHERE type = 'email.bounced'", "event"),
    "a webhook delivery that nothing will send": ("DELETE FROM webhook_schedule", "nothing is left to do"),
    "a recipient that is delivered without an attempt": (
        "UPDATE attempts SET outcome = 'deferred' WHERE outcome = 'delivered'",
        "has an attempt that delivered it",
    ),
    "mail that is never tried": ("UPDATE delivery_schedule SET next_at = '2100-01-01'", "not everything is final"),
    "an accepted message that is gone": (
        (
            "WITH gone AS (SELECT id FROM messages LIMIT 1), "
            + ", ".join(
                f"{table} AS (DELETE FROM {table} WHERE message_id IN (SELECT id FROM gone))"
                for table in ("recipients", "bodies", "delivery_schedule", "attempts", "idempotency", "events")
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


@pytest.mark.parametrize("fault", DATABASE_CHANGES)
async def test_a_change_of_the_database_is_noticed(database_url: str, fault: str) -> None:
    statement, words = DATABASE_CHANGES[fault]
    with pytest.raises(Broken, match=words):
        # An endpoint that never answers: its deliveries are pending, whichever of two tasks comes first.
        await run_steps(database_url, ("endpoint", (0, "/never")), *ORDINARY, ("sql", (statement,)))


async def test_a_retry_that_comes_too_early_is_noticed(database_url: str) -> None:
    hasty = replace(retry.DELIVERY, waits=(timedelta(seconds=30), *retry.DELIVERY.waits[1:]))
    with pytest.raises(Broken, match="was tried again"):
        await run_steps(database_url, ("send", (0, MIXED)), *[("cycle", ()), ("leap", ())] * 4, delivery_waits=hasty)


async def test_a_retry_too_many_is_noticed(database_url: str) -> None:
    stubborn = replace(retry.DELIVERY, waits=(*retry.DELIVERY.waits, timedelta(hours=1)))
    with pytest.raises(Broken, match="was tried 11 times"):
        await run_steps(database_url, ("send", (0, MIXED)), delivery_waits=stubborn)


async def test_a_webhook_call_that_comes_too_early_is_noticed(database_url: str) -> None:
    hasty = replace(retry.WEBHOOK, waits=(timedelta(seconds=2), *retry.WEBHOOK.waits[1:]))
    steps: list[Step] = [("endpoint", (0, "/never")), ("send", (0, WELL)), *[("cycle", ()), ("leap", ())] * 4]
    with pytest.raises(Broken, match="was sent again after"):
        await run_steps(database_url, *steps, webhook_waits=hasty)


# A worker is stopped for longer than its lease, before the dot of a slow server; another takes over.
STALLED: tuple[Step, ...] = (
    *[("send", (0, (f"well-{number}@one.example",))) for number in range(20)],
    ("cycle", ()),
    ("wait", (60.0, 2)),
    ("cycle", ()),
    ("wait", (300.0,)),
    ("cycle", ()),
)


async def test_the_lease_keeps_a_stopped_worker_from_sending(database_url: str) -> None:
    simulation = await run_steps(database_url, *STALLED, slow=True)
    assert simulation.carrier.withdrawn


async def test_a_lease_that_is_not_checked_before_the_dot_is_noticed(database_url: str) -> None:
    with pytest.raises(Broken, match="got it 2 times"):
        await run_steps(database_url, *STALLED, slow=True, faults=Faults(ignores_the_lease=True))


class Forgetful(Delivery):
    """Delivers mail and records nothing."""

    def __init__(self, *parts: Any, **given: Any) -> None:
        super().__init__(*parts, **given)
        self._claims.record = self._forget  # type: ignore[method-assign]

    async def _forget(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        self._claims.forget(outcomes)


async def test_an_outcome_that_is_not_recorded_is_noticed(database_url: str) -> None:
    with pytest.raises(Broken, match="an attempt has no recorded outcome, and no worker died"):
        await run_steps(database_url, ("send", (0, WELL)), ("cycle", ()), ("leap", (600,)), delivery_kind=Forgetful)
