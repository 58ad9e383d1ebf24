"""Leases on shards: held by one worker at a time, shared evenly, moved when a worker dies."""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import nats as nats_client
import pytest
from nats.js.errors import KeyNotFoundError

from posthouse.wire.stream import TicketKind
from posthouse.wire.stream.jetstream import JetStream
from posthouse.wire.stream.leases import BUCKET, LeaseSettings, ShardLeases, shares
from posthouse.wire.stream.memory import AllShards
from tests.support.eventually import eventually
from tests.support.nats import PrivateNats

SHARDS = 16
EVERY = frozenset(range(SHARDS))
LEASE_SECONDS = 1.0
SETTINGS = LeaseSettings(lease_seconds=LEASE_SECONDS)

ANOTHER_PROCESS = """
import asyncio, sys
from posthouse.wire.stream.leases import LeaseSettings, ShardLeases

async def hold(url: str, shards: int, lease_seconds: float) -> None:
    leases = await ShardLeases.open([url], "another", shards, LeaseSettings(lease_seconds=lease_seconds))
    await asyncio.Event().wait()

asyncio.run(hold(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
"""


@pytest.fixture
def nats() -> Iterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


class Fleet:
    """Workers in this process, watched all the time: no shard is ever claimed by two of them."""

    def __init__(self, server: PrivateNats) -> None:
        self._server = server
        self.workers: dict[str, ShardLeases] = {}
        self.shared: list[frozenset[int]] = []

    async def join(self, name: str, shards: int = SHARDS) -> ShardLeases:
        self.workers[name] = await ShardLeases.open([self._server.url], name, shards, SETTINGS)
        return self.workers[name]

    async def leave(self, name: str) -> None:
        await self.workers.pop(name).close()

    async def stored(self) -> set[str]:
        """The workers that the server knows, by their own keys or as holders."""
        client = await nats_client.connect(self._server.url)
        bucket = await client.jetstream().key_value(BUCKET)
        keys = await bucket.keys()
        holders = []
        for key in keys:
            if key.startswith("shard."):
                with suppress(KeyNotFoundError):  # it was released since
                    holders.append((await bucket.get(key)).value or b"")
        await client.close()
        known = {key.removeprefix("worker.") for key in keys if key.startswith("worker.")}
        return {name.partition("=")[0] for name in known | {holder.decode() for holder in holders}}

    async def watch(self) -> None:
        while True:
            held = [leases.held() for leases in self.workers.values()]
            if sum(map(len, held)) > len(frozenset().union(*held)):
                self.shared.append(frozenset().union(*held))
            await asyncio.sleep(0.005)  # a look at who holds what, again and again


@pytest.fixture
async def fleet(nats: PrivateNats) -> AsyncIterator[Fleet]:
    fleet = Fleet(nats)
    watching = asyncio.create_task(fleet.watch())
    yield fleet
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for name in list(fleet.workers):
        await fleet.leave(name)
    assert fleet.shared == []


# -- shares ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "shards"), [(1, 1), (1, 64), (2, 64), (3, 64), (5, 64), (64, 64), (7, 3), (40, 256)]
)
def test_shares_are_even_and_complete(workers: int, shards: int) -> None:
    shared = shares(tuple(f"worker-{number}" for number in range(workers)), shards)
    assert sorted(shard for own in shared.values() for shard in own) == list(range(shards))
    assert max(map(len, shared.values())) == math.ceil(shards / workers)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_few_shards_move_when_a_worker_joins(workers: int) -> None:
    names = tuple(f"worker-{number}" for number in range(workers + 1))
    before, after = shares(names[:-1], 256), shares(names, 256)
    moved = sum(len(before[name] - after[name]) for name in names[:-1])
    assert moved <= 1.5 * 256 / (workers + 1)


async def test_a_single_process_holds_every_shard() -> None:
    leases = AllShards(SHARDS)
    assert leases.held() == EVERY
    assert leases.held_since(3) == float("-inf")
    assert leases.places == 1
    await leases.close()
    assert leases.held() == frozenset()


# -- on a server -----------------------------------------------------------------------------------------


async def test_workers_of_another_kind_have_their_own_shards(nats: PrivateNats) -> None:
    """Neither of them would serve the shards that it believes to be the other's."""
    settings = [SETTINGS, LeaseSettings(lease_seconds=LEASE_SECONDS, bucket="OTHER")]
    workers = [await ShardLeases.open([nats.url], f"worker-{kind.bucket}", SHARDS, kind) for kind in settings]
    try:
        await eventually(lambda: all(worker.held() == EVERY for worker in workers))
    finally:
        for worker in workers:
            await worker.close()


async def test_starting_and_stopping_workers_share_evenly(fleet: Fleet) -> None:
    first = await fleet.join("first")
    await eventually(lambda: first.held() == EVERY)
    second = await fleet.join("second")
    await eventually(lambda: len(first.held()) == len(second.held()) == SHARDS // 2)
    third = await fleet.join("third")
    await eventually(lambda: len(third.held()) > 0 and first.held() | second.held() | third.held() == EVERY)
    assert max(len(leases.held()) for leases in fleet.workers.values()) == math.ceil(SHARDS / 3)
    await fleet.leave("third")
    assert third.held() == frozenset()
    # One that leaves in good order is not waited for: nothing of it has to expire.
    assert await fleet.stored() == {"first", "second"}
    await eventually(lambda: first.held() | second.held() == EVERY)


async def test_a_lease_says_since_when_it_is_held(fleet: Fleet) -> None:
    began_at = time.monotonic()
    first = await fleet.join("first")
    await eventually(lambda: first.held() == EVERY)
    since = {first.held_since(shard) for shard in EVERY}
    assert began_at <= min(since) <= max(since) <= time.monotonic()
    second = await fleet.join("second")
    await eventually(lambda: len(second.held()) == SHARDS // 2)
    # A renewal changes nothing, and the new holder began after the old one had stopped.
    assert all(first.held_since(shard) in since for shard in first.held())
    assert min(second.held_since(shard) for shard in second.held()) > max(since)


async def test_the_number_of_shards_changes_while_workers_are_replaced_one_by_one(fleet: Fleet) -> None:
    many = frozenset(range(2 * SHARDS))

    def are_agreed(places: int) -> bool:
        held = [worker.held() for worker in fleet.workers.values()]
        return (
            {worker.places for worker in fleet.workers.values()} == {places}
            and frozenset().union(*held) == frozenset(range(places))
            and max(map(len, held)) == math.ceil(places / len(held))
        )

    for name in ("first", "second"):
        await fleet.join(name)
    await eventually(lambda: are_agreed(SHARDS))
    # More of them: as soon as one worker may publish to them.
    await fleet.join("third", len(many))
    await eventually(lambda: are_agreed(len(many)))
    await fleet.leave("first")
    await fleet.leave("second")
    await fleet.join("fourth", len(many))
    await eventually(lambda: are_agreed(len(many)))
    # Fewer: when the last worker that may publish to the others has gone.
    await fleet.join("fifth")
    await fleet.leave("third")
    await eventually(lambda: are_agreed(len(many)))
    await fleet.leave("fourth")
    await eventually(lambda: are_agreed(SHARDS))


async def test_a_shard_beyond_the_number_is_held_while_it_has_tickets(nats: PrivateNats) -> None:
    settings = LeaseSettings(lease_seconds=LEASE_SECONDS, kind=TicketKind.DELIVER)
    stream = await JetStream.open([nats.url])
    workers = [await ShardLeases.open([nats.url], name, SHARDS, settings) for name in ("first", "second")]

    def held() -> list[int]:
        return sorted(shard for worker in workers for shard in worker.held())

    try:
        await eventually(lambda: held() == sorted(EVERY))
        stream.publish(TicketKind.DELIVER, 20, b"left behind")
        await eventually(lambda: held() == [*sorted(EVERY), 20])
        (ticket,) = await stream.fetch(TicketKind.DELIVER, frozenset({20}), 1, 5.0)
        assert ticket.payload == b"left behind"
        await ticket.ack()
        await eventually(lambda: held() == sorted(EVERY))
    finally:
        for worker in workers:
            await worker.close()
        await stream.close()


async def test_the_shards_of_a_killed_worker_move(fleet: Fleet, nats: PrivateNats) -> None:
    survivor = await fleet.join("survivor")
    await eventually(lambda: survivor.held() == EVERY)
    another = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ANOTHER_PROCESS, nats.url, str(SHARDS), str(LEASE_SECONDS)
    )
    try:
        await eventually(lambda: len(survivor.held()) == SHARDS // 2)
    finally:
        another.kill()
        await another.wait()
    await eventually(lambda: survivor.held() == EVERY)


async def test_a_disconnected_holder_stops_before_its_lease_ends(fleet: Fleet, nats: PrivateNats) -> None:
    first = await fleet.join("first")
    second = await fleet.join("second")
    await eventually(lambda: len(first.held()) == len(second.held()) == SHARDS // 2)
    nats.freeze()
    await eventually(lambda: not first.held() and not second.held())
    nats.thaw()
    await eventually(lambda: first.held() | second.held() == EVERY)


async def test_leases_survive_a_quick_restart_of_the_server(fleet: Fleet, nats: PrivateNats) -> None:
    first = await fleet.join("first")
    second = await fleet.join("second")
    await eventually(lambda: len(first.held()) == len(second.held()) == SHARDS // 2)
    nats.kill()
    nats.start()
    await eventually(lambda: len(first.held()) == len(second.held()) == SHARDS // 2)


async def test_wiped_leases_are_not_taken_while_an_old_holder_lives(fleet: Fleet, nats: PrivateNats) -> None:
    first = await fleet.join("first")
    await eventually(lambda: first.held() == EVERY)
    nats.kill()
    nats.wipe()
    nats.start()
    second = await fleet.join("second")
    await eventually(lambda: len(first.held()) == len(second.held()) == SHARDS // 2)


async def test_a_deleted_bucket_is_recreated(fleet: Fleet, nats: PrivateNats) -> None:
    first = await fleet.join("first")
    await eventually(lambda: first.held() == EVERY)
    client = await nats_client.connect(nats.url)
    await client.jetstream().delete_key_value("SHARDS")
    await client.close()
    await eventually(lambda: first.held() == frozenset())
    await eventually(lambda: first.held() == EVERY)


async def test_an_unreachable_server_grants_nothing_and_blocks_nothing() -> None:
    leases = await ShardLeases.open(["nats://127.0.0.1:1"], "lonely", SHARDS, SETTINGS)
    await asyncio.sleep(0.2)  # time for a lease that must not come
    assert leases.held() == frozenset()
    await leases.close()
