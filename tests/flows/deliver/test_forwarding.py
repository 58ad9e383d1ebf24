"""Tickets of a lane in another worker's shard, with PostgreSQL and NATS: none is lost, none is sent twice."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pytest

from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.route import lane_of_relay
from posthouse.rules.ticket import shard_of
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.jetstream import JetStream
from tests.flows.deliver.pool_relay import use_relay
from tests.flows.moving_leases import MovedLeases
from tests.support.certificates import Certificates
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.eventually import eventually
from tests.support.nats import PrivateNats
from tests.support.smtp_receiver import SmtpReceiver

SHARDS: Final = 16
HOSTED: Final = "customer.example"
EVERY: Final = frozenset(range(SHARDS))
GOOGLE, DOMAIN = shard_of("google", SHARDS), shard_of(HOSTED, SHARDS)
RELAY_LANE: Final = lane_of_relay("ses")
RELAY: Final = shard_of(RELAY_LANE, SHARDS)
assert len({GOOGLE, DOMAIN, RELAY}) == 3
# One message at a time, so that the others wait.
NARROW: Final = LaneLimits(Limits(per_second=1.0, burst=1, connections_start=1, connections_max=1))
SETTINGS: Final = StreamSettings(request_seconds=0.5)


@dataclass
class Worker:
    """A delivery worker with its own connection to NATS, which takes what its shards have on demand."""

    delivery: Delivery
    stream: JetStream
    leases: MovedLeases

    async def work(self, seconds: float = 0.5) -> int:
        """How many messages of the stream there were."""
        self.delivery.note_shards()
        found = await self.stream.fetch(TicketKind.DELIVER, self.leases.held(), 100, seconds)
        await self.delivery.offer(found)
        await self.delivery.settle()
        return len(found)


@dataclass
class Pair:
    """Of the two workers, the first has the hosted domain's shard, and the second the provider's."""

    flow: DeliveryFlow
    dispatch: Dispatch
    first: Worker
    second: Worker

    async def send(self, *recipients: str) -> UUID:
        message_id: UUID = await self.flow.steps.accept(list(recipients))
        assert await self.dispatch.step() == len(recipients)
        return message_id

    async def work_until_empty(self) -> None:
        async def left() -> int:
            await self.first.work()
            await self.second.work()
            return await self.first.stream.backlog(TicketKind.DELIVER)

        await eventually(left, lambda messages: messages == 0)

    def arrived(self) -> Counter[str]:
        return Counter(mail.recipient for mail in self.flow.receiver.accepted)


@pytest.fixture
def nats() -> Iterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


@pytest.fixture
async def pair(
    database_url: str, nats: PrivateNats, certificates: Certificates, request: pytest.FixtureRequest
) -> AsyncIterator[Pair]:
    limits = getattr(request, "param", LaneLimits())
    async with open_delivery_flow(database_url, lane_limits=limits, certificates=certificates) as flow:
        flow.serve(HOSTED, host="aspmx.l.google.com")
        flow.serve("gmail.com", host="gmail-smtp-in.l.google.com")
        workers = []
        for held in (EVERY - {GOOGLE}, frozenset({GOOGLE})):
            stream = await JetStream.open([nats.url], SETTINGS)
            leases = MovedLeases(held, places=SHARDS)
            delivery = flow.another_worker(leases=leases, tickets=Tickets(stream, SHARDS))
            await delivery.renew()
            workers.append(Worker(delivery, stream, leases))
        first, second = workers
        await eventually(lambda: first.stream.is_ready and second.stream.is_ready)
        dispatch = Dispatch(database=flow.steps.database, clock=flow.clock, tickets=Tickets(first.stream, SHARDS))
        yield Pair(flow, dispatch, first, second)
        for worker in workers:
            await worker.delivery.drain(3)
            await worker.stream.close()


@pytest.fixture
async def relay(pair: Pair, certificates: Certificates) -> AsyncIterator[SmtpReceiver]:
    """No address of ours may send: all mail goes over the relay, whose lane is in a shard of the first worker."""
    async with SmtpReceiver("starttls--auth-plain", certificates=certificates) as receiver:
        await use_relay(pair.flow, receiver.port)
        for worker in (pair.first, pair.second):
            await worker.delivery.read_routes()
        yield receiver


async def test_a_hosted_domains_mail_is_sent_by_the_worker_that_has_its_lane(pair: Pair) -> None:
    message_id = await pair.send(f"ada@{HOSTED}", f"bob@{HOSTED}", "carol@gmail.com")
    await eventually(pair.first.work)
    assert pair.arrived() == {}
    await pair.work_until_empty()
    assert pair.arrived() == {f"ada@{HOSTED}": 1, f"bob@{HOSTED}": 1, "carol@gmail.com": 1}
    assert [row[3] for row in await pair.flow.recipients(message_id)] == [1, 1, 1]
    # Both recipients at the hosted domain went in one transaction, though they were forwarded.
    transactions = {mail.recipient: mail.transaction for mail in pair.flow.receiver.accepted}
    assert transactions[f"ada@{HOSTED}"] == transactions[f"bob@{HOSTED}"]


@pytest.mark.parametrize("pair", [NARROW], indirect=True)
async def test_a_lost_shards_mail_is_sent_by_its_new_holder_immediately(pair: Pair) -> None:
    message_ids = [await pair.send(f"r{number}@gmail.com") for number in range(4)]
    while await pair.second.work():
        pass
    assert len(pair.flow.receiver.accepted) == 1
    pair.second.leases.shards = frozenset()
    pair.first.leases.shards = EVERY

    async def arrived() -> int:
        pair.flow.clock.advance(seconds=1)
        await pair.second.work()
        await pair.first.work()
        return len(pair.flow.receiver.accepted)

    # Before the lease of any ticket ends.
    await eventually(arrived, lambda count: count == 4)
    assert pair.arrived() == {f"r{number}@gmail.com": 1 for number in range(4)}
    attempts = [row[3] for message_id in message_ids for row in await pair.flow.recipients(message_id)]
    assert attempts == [1] * 4


async def test_mail_for_a_relay_is_sent_by_the_worker_that_has_the_relays_lane(pair: Pair, relay: SmtpReceiver) -> None:
    """The hosted domain's is forwarded twice: to its provider's lane, and on to the relay's."""
    message_id = await pair.send("ada@gmail.com", f"bob@{HOSTED}")
    await eventually(pair.second.work)
    assert relay.accepted == []
    await pair.work_until_empty()
    assert Counter(mail.recipient for mail in relay.accepted) == {"ada@gmail.com": 1, f"bob@{HOSTED}": 1}
    assert pair.arrived() == {}
    assert [row[1:4] for row in await pair.flow.recipients(message_id)] == [("delivered", "settled", 1)] * 2
    found = await pair.flow.steps.fetch("SELECT relay, worker_id FROM attempts")
    assert found == [("ses", pair.first.delivery.worker_id)] * 2
