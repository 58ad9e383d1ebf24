"""Mail that is not sent uses up neither a lane's rate nor its turns."""

from collections.abc import AsyncIterator

import pytest

from posthouse.rules.lane import LaneLimits, Limits
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

BURST = 5


@pytest.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    """A lane that may send a burst, and then nothing for hours."""
    limits = Limits(per_second=1 / 36_000, burst=BURST, connections_start=1, connections_max=1)
    async with open_delivery_flow(database_url, lane_limits=LaneLimits(limits)) as flow:
        flow.serve("example.org")
        yield flow


async def test_held_mail_takes_no_rate_of_its_lane(flow: DeliveryFlow) -> None:
    held = await flow.steps.another_sender("held")
    for _ in range(3 * BURST):
        await flow.steps.accept(["ada@example.org"], sender=held)
    await flow.steps.operator.suspend(held.account_id)
    theirs = [await flow.steps.accept(["bob@example.org"]) for _ in range(BURST)]
    await flow.run_due()
    assert [await flow.statuses(message_id) for message_id in theirs] == [["delivered"]] * BURST
    assert {mail.recipient for mail in flow.receiver.accepted} == {"bob@example.org"}


async def test_suppressed_mail_takes_no_rate_of_its_lane(flow: DeliveryFlow) -> None:
    other = await flow.steps.another_sender("other")
    for _ in range(3 * BURST):
        await flow.steps.accept(["ada@example.org"], sender=other)
    await flow.steps.fetch(
        "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, 'ada@example.org', 'manual', $2)",
        other.account_id,
        flow.clock.now(),
    )
    theirs = [await flow.steps.accept(["bob@example.org"]) for _ in range(BURST)]
    await flow.run_due()
    assert [await flow.statuses(message_id) for message_id in theirs] == [["delivered"]] * BURST
