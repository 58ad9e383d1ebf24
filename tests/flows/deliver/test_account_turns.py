"""Mail that is not sent uses up neither a lane's rate nor its turns."""

import pytest

from posthouse.rules.lane import LaneLimits, Limits
from tests.support.delivery_flow import open_delivery_flow

BURST = 5
# A lane that may send a burst, and then nothing for hours.
LIMITS = LaneLimits(Limits(per_second=1 / 36_000, burst=BURST, connections_start=1, connections_max=1))


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "suppressed"])
async def test_mail_that_is_not_sent_takes_no_rate_of_its_lane(database_url: str, is_held: bool) -> None:
    async with open_delivery_flow(database_url, lane_limits=LIMITS) as flow:
        flow.serve("example.org")
        other = await flow.steps.another_sender("other")
        for _ in range(3 * BURST):
            await flow.steps.accept(["ada@example.org"], sender=other)
        if is_held:
            await flow.steps.operator.suspend(other.account_id)
        else:
            manual = (
                "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, 'ada@example.org', 'manual', $2)"
            )
            await flow.steps.fetch(manual, other.account_id, flow.clock.now())
        theirs = [await flow.steps.accept(["bob@example.org"]) for _ in range(BURST)]
        await flow.run_due()
        assert [await flow.statuses(message_id) for message_id in theirs] == [["delivered"]] * BURST
        assert {mail.recipient for mail in flow.receiver.accepted} == {"bob@example.org"}
