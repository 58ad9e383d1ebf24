"""Mail that is refused because of our address leaves over another, within bounds; on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from posthouse.flows.deliver.reroute import RerouteSettings
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.reroute import RerouteMode
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

FAR = ("127.0.1.1", "127.0.2.1", "127.0.3.1")
ATTEMPTS = "SELECT outcome, stage, source_ip FROM attempts WHERE message_id = $1 ORDER BY started_at, fence"
REROUTES = "SELECT from_ip, to_ip FROM reroutes ORDER BY id"
WAITS = """
SELECT extract(epoch FROM delivered_at - created_at)::float8 FROM recipients
JOIN messages ON messages.id = message_id WHERE delivered_at IS NOT NULL
"""


@dataclass
class PoolFlow:
    flow: DeliveryFlow
    addresses: SendingAddresses

    async def add(self, ips: tuple[str, ...], history: int = 20) -> list[str]:
        """These addresses, in the sender's order; each has brought this much mail to the lane before."""
        for ip in ips:
            await self.addresses.add(ip, f"mta-{ip.replace('.', '-')}.example.com", is_warm=True)
        ordered: list[str] = []
        while len(ordered) < len(ips):
            await self.flow.delivery.read_routes()
            await self.send(history)
            ordered.append(self.flow.receiver.accepted[-1].source)
            await self.addresses.rest(ordered[-1])
        for ip in ips:
            await self.addresses.add(ip)
        await self.flow.delivery.read_routes()
        self.flow.receiver.accepted.clear()
        return ordered

    async def send(self, count: int = 1, to: str = "ada@outlook.com") -> list[object]:
        found = await asyncio.gather(*[self.flow.steps.accept([to]) for _ in range(count)])
        await self.flow.run_due()
        return list(found)

    async def advance(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.flow.clock.advance(seconds=step)
            await self.flow.run_due()

    async def results(self, ids: list[object]) -> list[str]:
        return sorted([status for message_id in ids for status in await self.flow.statuses(message_id)])


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[PoolFlow]:
    async with open_delivery_flow(database_url, reroute=RerouteSettings(RerouteMode.POOL)) as flow:
        flow.serve("outlook.com")
        await flow.steps.fetch("UPDATE accounts SET tier = 'good'")
        yield PoolFlow(flow, SendingAddresses(context(flow.steps.database, flow.clock)))


async def test_a_refused_message_leaves_over_a_second_address_within_five_seconds(pool: PoolFlow) -> None:
    first, second, _ = await pool.add(FAR)
    pool.flow.receiver.blocked = {first}
    ids = await pool.send()
    assert await pool.results(ids) == ["queued"]
    await pool.advance(5)
    assert await pool.results(ids) == ["delivered"]
    assert await pool.flow.steps.fetch(ATTEMPTS, ids[0]) == [("postponed", "mail", first), ("delivered", "dot", second)]
    assert (await pool.flow.recipients(ids[0]))[0][3] == 1, "the refusal counted no attempt"
    assert await pool.flow.steps.fetch(REROUTES) == [(first, second)]


@pytest.mark.parametrize("tier", ["new", "watched"])
async def test_only_accounts_with_a_good_reputation_are_rerouted(pool: PoolFlow, tier: str) -> None:
    first, *_ = await pool.add(FAR)
    await pool.flow.steps.fetch("UPDATE accounts SET tier = $1", tier)
    pool.flow.receiver.blocked = {first}
    ids = await pool.send()
    await pool.advance(10)
    assert await pool.results(ids) == ["queued"]
    assert await pool.flow.steps.fetch(REROUTES) == []


async def test_a_second_address_that_is_blocked_too_ends_it_for_a_day(pool: PoolFlow) -> None:
    first, second, third = await pool.add(FAR)
    pool.flow.receiver.blocked = {first, second}
    ids = await pool.send()
    await pool.advance(10)
    assert await pool.flow.steps.fetch(REROUTES) == [(first, second)]
    assert [source for *_, source in await pool.flow.steps.fetch(ATTEMPTS, ids[0])] == [first, second]
    await pool.advance(60, step=5)
    assert await pool.results(ids) == ["queued"], "the third address has capacity, and is not tried"
    # New mail was not refused, and takes the third.
    new = await pool.send()
    assert await pool.results(new) == ["delivered"]
    assert [mail.source for mail in pool.flow.receiver.accepted] == [third]
    await pool.advance(4.2 * 3600, step=900)
    assert await pool.results(ids) == ["bounced"]
    assert len(await pool.flow.steps.fetch(REROUTES)) == 1


async def test_what_the_second_address_s_server_refuses_at_rcpt_is_never_sent_again(pool: PoolFlow) -> None:
    first, second, _ = await pool.add(FAR)
    pool.flow.receiver.blocked = {first}
    ids = await pool.send(to="554-rcpt@outlook.com")
    await pool.advance(5)
    assert await pool.results(ids) == ["bounced"]
    assert [source for *_, source in await pool.flow.steps.fetch(ATTEMPTS, ids[0])] == [first, second]
    assert (await pool.flow.recipients(ids[0]))[0][4] == 554
    commands = len(pool.flow.receiver.commands)
    pool.flow.receiver.blocked.clear()
    await pool.advance(5 * 3600, step=1_800)
    assert len(pool.flow.receiver.commands) == commands


async def test_under_load_a_block_of_one_of_three_addresses_bounces_nothing_and_delays_little(pool: PoolFlow) -> None:
    first, *others = await pool.add(FAR, history=200)
    flow = pool.flow
    ids = await pool.send(12)
    for second in range(25):
        if second == 5:
            flow.receiver.blocked = {first}
        flow.clock.advance(seconds=1)
        ids += await pool.send(12)
    await pool.advance(10)
    assert set(await pool.results(ids)) == {"delivered"}
    assert max(await flow.steps.fetch(WAITS)) <= (5,)
    rerouted: list[tuple[datetime, str]] = await flow.steps.fetch("SELECT at, to_ip FROM reroutes ORDER BY at")
    assert 1 <= len(rerouted) <= 20
    for address in others:
        taken = sum(mail.source == address for mail in flow.receiver.accepted) + 200
        assert sum(to_ip == address for _, to_ip in rerouted) <= 0.05 * taken
    assert max(at for at, _ in rerouted) - min(at for at, _ in rerouted) < timedelta(seconds=5)
