"""Days of the service in seconds: the steps of a seed, with every promise checked after each."""

import pytest

from tests.simulation.seeded_run import run_seed
from tests.support.bad_input import new_seed


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 20, None])
async def test_no_promise_is_broken_after_any_step_of_a_seed(database_url: str, seed: int | None) -> None:
    simulation, tally = await run_seed(database_url, seed or new_seed(), 40)
    assert simulation.carrier.log
    assert not tally.is_broken
