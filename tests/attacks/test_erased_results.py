"""An account erases each address that bounced or complained: it is suspended as soon as one that erases none."""

from collections.abc import AsyncIterator

import pytest_asyncio

from posthouse.rules.ids import AccountId
from posthouse.rules.reputation import WINDOW, ReputationFigures
from posthouse.store import reputation
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.accept_flow import Sender
from tests.support.delivery_steps import open_delivery_steps
from tests.support.inbound_reports import complaint
from tests.support.reputation_flow import ReputationFlow
from tests.support.secrets_left import copies_of, dump


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[ReputationFlow]:
    async with open_delivery_steps(database_url) as steps:
        yield ReputationFlow(steps)


async def figures(flow: ReputationFlow, sender: Sender) -> ReputationFigures:
    async with flow.steps.database.connection() as connection:
        return await reputation.figures(connection, AccountId(sender.account_id), flow.steps.clock.now() - WINDOW)


async def test_erasing_what_bounced_delays_no_suspension(flow: ReputationFlow, database_url: str) -> None:
    control, evader = flow.steps.sender, await flow.steps.another_sender("evader")
    bounced: list[ClaimedRecipient] = []
    for sender in (control, evader):
        bounced = (await flow.send(180, 19, sender=sender))[180:]
    await flow.erase(*bounced)
    found = await dump(database_url)
    assert not any(copies_of(row.email, found) for row in bounced)
    assert await figures(flow, evader) == await figures(flow, control) == (199, 19, 0)
    assert (await flow.run()).suspended == 0
    for sender in (control, evader):
        bounced = await flow.send(0, 1, sender=sender)
    await flow.erase(*bounced)
    assert await figures(flow, evader) == await figures(flow, control) == (200, 20, 0)
    assert (await flow.run()).suspended == 2


async def test_erasing_recipients_who_complain_delays_no_suspension(flow: ReputationFlow, database_url: str) -> None:
    control, evader = flow.steps.sender, await flow.steps.another_sender("evader")
    by_control, by_evader = [await flow.send(200, sender=sender) for sender in (control, evader)]
    # Some before they complain, some after.
    await flow.erase(*by_evader[:5])
    for delivered in (by_control, by_evader):
        await flow.come_back(complaint(), *delivered[:9])
    await flow.erase(*by_evader[5:9])
    assert await figures(flow, evader) == await figures(flow, control) == (200, 0, 9)
    assert (await flow.run()).suspended == 0
    await flow.erase(by_evader[9])
    for delivered in (by_control, by_evader):
        await flow.come_back(complaint(), delivered[9])
    assert await figures(flow, evader) == await figures(flow, control) == (200, 0, 10)
    assert (await flow.run()).suspended == 2
    found = await dump(database_url)
    assert not any(copies_of(row.email, found) for row in by_evader[:10])


async def test_an_erased_address_counts_once_however_often_it_bounced(flow: ReputationFlow) -> None:
    steps = flow.steps
    await flow.send(200)
    for _ in range(3):
        (claimed,) = await steps.claimed(["one@example.org"])
        await steps.record(flow.outcome(claimed, DeliveryResult.BOUNCED))
        await steps.fetch("DELETE FROM suppressions")
    await flow.erase(claimed)
    assert await figures(flow, steps.sender) == (203, 1, 0)
