"""Days of the service in seconds: steps from a seed or from Hypothesis, with every promise checked after each."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from posthouse.rules.credential import Mode
from tests.simulation import invariants
from tests.simulation.seeded_run import DOMAINS, PATHS, POINTS, finish, run_seed, take_step, with_steps
from tests.simulation.simulated_service import ACCOUNTS, KINDS, SimulatedService, open_simulation
from tests.simulation.simulated_world import MAIL_BEHAVIOURS
from tools.private_postgres import PrivatePostgres

pytestmark = pytest.mark.long

STEPS = 40


@pytest.mark.parametrize("seed", [3, 20])
async def test_no_promise_is_broken_after_any_step_of_a_seed(database_url: str, seed: int) -> None:
    simulation, tally = await run_seed(database_url, seed, STEPS)
    assert simulation.carrier.log
    assert not tally.is_broken


async def test_all_mail_and_webhooks_become_final(database_url: str) -> None:
    """Ten attempts within 72 hours, seven calls within 18: then they are given up, and not before."""
    async with open_simulation(database_url, 1) as simulation:
        simulation.carrier.is_slow = simulation.caller.is_slow = False
        began = simulation.clock.now()
        await take_step(simulation, ("endpoint", (0, "/never")))
        await take_step(simulation, ("send", (0, ("never-1@one.example",))))
        await take_step(simulation, ("cycle", ()))
        while await simulation.open_count():
            await take_step(simulation, ("leap", ()))
        await invariants.require_idle(simulation)
        row = await simulation.observer.fetchrow("SELECT status, attempt_count, failed_at FROM recipients")
        assert (row["status"], row["attempt_count"]) == ("failed", 10)
        assert timedelta(hours=28) < row["failed_at"] - began < timedelta(hours=72)
        row = await simulation.observer.fetchrow(
            "SELECT status, attempt, last_attempt_at - created_at AS took FROM webhook_deliveries"
        )
        assert (row["status"], row["attempt"]) == ("failed", 7)
        assert timedelta(hours=17) < row["took"] < timedelta(hours=18)
        assert [call.status for calls in simulation.caller.by_event.values() for call in calls] == [500] * 7


async def test_mail_of_a_suspended_account_is_held_for_a_week_and_no_longer(database_url: str) -> None:
    async with open_simulation(database_url, 1) as simulation:
        simulation.carrier.is_slow = False
        began = simulation.clock.now()
        await take_step(simulation, ("send", (1, ("well-1@one.example",))))
        await take_step(simulation, ("suspend", (1,)))
        while await simulation.open_count():
            await take_step(simulation, ("cycle", ()))
            await take_step(simulation, ("leap", (12 * 3600,)))
            assert simulation.clock.now() - began < timedelta(days=8)
        await invariants.require_idle(simulation)
        row = await simulation.observer.fetchrow("SELECT status, attempt_count, failed_at FROM recipients")
        assert (row["status"], row["attempt_count"]) == ("failed", 0)
        assert row["failed_at"] - began > timedelta(days=7)
        assert not simulation.carrier.log


ACCOUNT = st.integers(0, len(ACCOUNTS) - 1)
PROCESS = st.integers(0, len(KINDS) - 1)
SHARE = st.sampled_from((0.0, 0.1, 0.5))
ADDRESS = st.builds("{}-{}@{}".format, st.sampled_from(MAIL_BEHAVIOURS), st.integers(0, 9), st.sampled_from(DOMAINS))


class Steps(RuleBasedStateMachine):
    """Hypothesis chooses the steps; at the end faults stop, all work is finished, and the audit runs."""

    new_database: ClassVar[Callable[[], str]]
    drop_database: ClassVar[Callable[[str], None]]

    def __init__(self) -> None:
        super().__init__()
        self._url = type(self).new_database()
        self._runner = asyncio.Runner()
        self._context = open_simulation(self._url, 1)
        self._simulation: SimulatedService = self._run(self._context.__aenter__())
        self._is_broken = False

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def _take(self, name: str, *given: Any) -> None:
        try:
            self._run(take_step(self._simulation, (name, given)))
        except BaseException:
            self._is_broken = True
            raise

    @rule(account=ACCOUNT, recipients=st.sets(ADDRESS, min_size=1, max_size=4), is_test=st.booleans())
    def send(self, account: int, recipients: set[str], is_test: bool) -> None:
        self._take("send", account, tuple(sorted(recipients)), Mode.TEST if is_test else Mode.LIVE)

    @rule(number=st.integers(0, 20))
    def send_again(self, number: int) -> None:
        self._take("send_again", number)

    @rule(which=st.integers(0, 3), count=st.sampled_from((1, 3, 200)))
    def work(self, which: int, count: int) -> None:
        self._take("work", which, count)

    @rule()
    def cycle(self) -> None:
        self._take("cycle")

    @rule(seconds=st.floats(0.1, 90), stalled=st.none() | PROCESS)
    def wait(self, seconds: float, stalled: int | None) -> None:
        self._take("wait", seconds, stalled)

    @rule(beyond=st.sampled_from((0, 30)))
    def leap(self, beyond: int) -> None:
        self._take("leap", beyond)

    @rule(seconds=st.sampled_from((-86_400, -3_600, 3_600, 86_400)))
    def jump(self, seconds: int) -> None:
        self._take("jump", seconds)

    @rule(point=st.sampled_from(POINTS), passes=st.integers(1, 3))
    def arm(self, point: str, passes: int) -> None:
        self._take("arm", point, passes)

    @rule(which=PROCESS, is_asked=st.booleans())
    def end(self, which: int, is_asked: bool) -> None:
        self._take("stop" if is_asked else "kill", which)

    @rule()
    def restart(self) -> None:
        self._take("restart")

    @rule()
    def wipe(self) -> None:
        self._take("wipe")

    @rule(lost=SHARE, twice=SHARE, late=SHARE, deaf=SHARE)
    def stream_faults(self, lost: float, twice: float, late: float, deaf: float) -> None:
        self._take("stream_faults", lost, twice, late, deaf)

    @rule(account=ACCOUNT, is_suspended=st.booleans())
    def suspension(self, account: int, is_suspended: bool) -> None:
        self._take("suspend" if is_suspended else "resume", account)

    @rule(account=ACCOUNT, path=st.sampled_from(PATHS), enabled=st.booleans())
    def endpoint(self, account: int, path: str, enabled: bool) -> None:
        self._take("endpoint", account, path, enabled)

    def teardown(self) -> None:
        try:
            if not self._is_broken:
                self._run(with_steps(self._simulation, finish(self._simulation)))
        finally:
            self._run(self._context.__aexit__(None, None, None))
            self._runner.close()
            type(self).drop_database(self._url.rpartition("/")[2])


def test_no_promise_is_broken_whatever_hypothesis_does(
    new_database: Callable[[], str], postgres: PrivatePostgres
) -> None:
    class StepsHere(Steps):
        pass

    StepsHere.new_database = staticmethod(new_database)
    StepsHere.drop_database = staticmethod(postgres.drop_database)
    run_state_machine_as_test(
        StepsHere,
        settings=settings(
            max_examples=2,
            stateful_step_count=15,
            deadline=None,
            # Shrinking the example takes minutes; the steps of this one are printed.
            phases=(Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
