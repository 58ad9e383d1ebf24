"""The stream: both implementations keep the same promises; JetStream keeps them through faults as well."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import nats as nats_client
import pytest
from nats.js import JetStreamContext
from structlog.testing import capture_logs

from posthouse import metrics
from posthouse.wire.stream import Stream, StreamMessage, StreamSettings, TicketKind
from posthouse.wire.stream.jetstream import JetStream
from posthouse.wire.stream.memory import MemoryStream
from tests.support.clock import SettableClock
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nats import PrivateNats

OpenStream = Callable[[StreamSettings], Awaitable[Stream]]

SHARD = frozenset({7})
PATIENT = StreamSettings(ack_wait_seconds=600, request_seconds=0.2, confirm_seconds_max=1.0)
QUICK = replace(PATIENT, ack_wait_seconds=0.5)


@pytest.fixture
def nats() -> Iterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


@pytest.fixture(params=["memory", "jetstream"])
async def open_stream(request: pytest.FixtureRequest) -> AsyncIterator[OpenStream]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "jetstream":
            server = stack.enter_context(PrivateNats())

        async def open_one(settings: StreamSettings) -> Stream:
            if request.param == "memory":
                return MemoryStream(settings)
            return await opened(stack, server, settings)

        yield open_one


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


async def opened(
    stack: contextlib.AsyncExitStack, server: PrivateNats, settings: StreamSettings = PATIENT
) -> JetStream:
    stream = await JetStream.open([server.url], settings)
    stack.push_async_callback(stream.close)
    return stream


@pytest.fixture
async def any_stream(open_stream: OpenStream) -> Stream:
    return await open_stream(PATIENT)


@pytest.fixture
async def stream(nats: PrivateNats, stack: contextlib.AsyncExitStack) -> JetStream:
    return await opened(stack, nats)


async def fetched(
    stream: Stream,
    count: int,
    shards: frozenset[int] = SHARD,
    kind: TicketKind = TicketKind.DELIVER,
) -> list[StreamMessage]:
    """Exactly this many, however many fetches it takes."""
    deliveries: list[StreamMessage] = []

    async def fetch_more() -> int:
        deliveries.extend(await stream.fetch(kind, shards, count - len(deliveries), 0.5))
        return len(deliveries)

    await eventually(fetch_more, lambda number: number == count)
    return deliveries


async def one_fetched(stream: Stream) -> StreamMessage:
    """A ticket that was published just now."""
    stream.publish(TicketKind.DELIVER, 7, b"ticket")
    (delivery,) = await fetched(stream, 1)
    return delivery


async def is_quiet(stream: Stream) -> None:
    """Nothing is redelivered any more; on a slow machine a ticket may be, before its acknowledgement is there."""

    async def acknowledged() -> int:
        found = await stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.9)
        for delivery in found:
            await delivery.ack()
        return len(found)

    await eventually(acknowledged, lambda number: number == 0)


def payloads(deliveries: list[StreamMessage]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


# -- both ------------------------------------------------------------------------------------------------


async def test_a_ticket_is_fetched_by_its_shard(any_stream: Stream) -> None:
    delivery = await one_fetched(any_stream)
    assert (delivery.payload, delivery.shard) == (b"ticket", 7)
    await delivery.ack()
    assert await any_stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.2) == []


async def test_tickets_of_other_shards_and_kinds_are_not_fetched(any_stream: Stream) -> None:
    any_stream.publish(TicketKind.DELIVER, 1, b"other shard")
    any_stream.publish(TicketKind.NOTIFY, 7, b"other kind")
    assert await any_stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.3) == []
    assert payloads(await fetched(any_stream, 1, frozenset({1}))) == [b"other shard"]
    assert payloads(await fetched(any_stream, 1, kind=TicketKind.NOTIFY)) == [b"other kind"]


async def test_a_shard_keeps_its_order(any_stream: Stream) -> None:
    sent = [b"%d" % number for number in range(50)]
    for payload in sent:
        any_stream.publish(TicketKind.DELIVER, 7, payload)
    assert payloads(await fetched(any_stream, 50)) == sent


async def test_a_fetch_returns_no_more_than_requested(any_stream: Stream) -> None:
    for number in range(10):
        any_stream.publish(TicketKind.DELIVER, number % 3, b"%d" % number)
    seen: list[bytes] = []
    for _ in range(30):
        batch = await any_stream.fetch(TicketKind.DELIVER, frozenset({0, 1, 2}), 3, 0.3)
        assert len(batch) <= 3
        seen += payloads(batch)
        if len(seen) == 10:
            break
    assert sorted(seen) == [b"%d" % number for number in range(10)]


async def test_a_fetch_waits_for_a_ticket_and_no_longer(any_stream: Stream) -> None:
    await any_stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3)
    asyncio.get_running_loop().call_later(0.2, any_stream.publish, TicketKind.DELIVER, 7, b"late")
    async with asyncio.timeout(HANG_SECONDS):
        assert payloads(await any_stream.fetch(TicketKind.DELIVER, SHARD, 1, 10 * HANG_SECONDS)) == [b"late"]


async def test_a_fetch_without_tickets_ends(any_stream: Stream) -> None:
    began_at = time.monotonic()
    assert await any_stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3) == []
    assert time.monotonic() - began_at > 0.25


async def test_a_long_queue_does_not_hide_the_other_shards(any_stream: Stream) -> None:
    shards = frozenset(range(8))
    assert await any_stream.fetch(TicketKind.DELIVER, shards, 10, 0.3) == []
    for _ in range(500):
        any_stream.publish(TicketKind.DELIVER, 0, b"long")
    any_stream.publish(TicketKind.DELIVER, 1, b"short")
    await eventually(lambda: any_stream.counts.confirmed == 501)
    first: list[StreamMessage] = []
    for _ in range(10):
        first += await any_stream.fetch(TicketKind.DELIVER, shards, 10, 1)
    assert b"short" in payloads(first)


async def test_an_unacknowledged_ticket_is_redelivered(open_stream: OpenStream) -> None:
    stream = await open_stream(QUICK)
    published_at = time.monotonic()
    await one_fetched(stream)
    assert payloads(await fetched(stream, 1)) == [b"ticket"]
    assert time.monotonic() - published_at > 0.35


async def test_an_acknowledged_ticket_is_never_redelivered(open_stream: OpenStream) -> None:
    stream = await open_stream(QUICK)
    delivery = await one_fetched(stream)
    await delivery.ack()
    await delivery.ack()  # twice does no harm
    await is_quiet(stream)


async def test_work_in_progress_delays_redelivery(open_stream: OpenStream) -> None:
    stream = await open_stream(replace(PATIENT, ack_wait_seconds=2))
    delivery = await one_fetched(stream)
    working_at = time.monotonic()
    for _ in range(5):
        found = await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.5)
        # A machine that stood still since then shows nothing.
        assert found == [] or time.monotonic() - working_at > 1.5
        working_at = time.monotonic()
        await delivery.working()
    await delivery.ack()


@pytest.mark.parametrize("delay_seconds", [0.0, 0.5])
async def test_a_released_ticket_is_redelivered_after_its_delay(any_stream: Stream, delay_seconds: float) -> None:
    delivery = await one_fetched(any_stream)
    released_at = time.monotonic()
    await delivery.release(delay_seconds)
    assert payloads(await fetched(any_stream, 1)) == [b"ticket"]
    assert time.monotonic() - released_at >= 0.8 * delay_seconds


async def test_an_acknowledgement_after_redelivery_still_counts(open_stream: OpenStream) -> None:
    stream = await open_stream(QUICK)
    first = await one_fetched(stream)
    await fetched(stream, 1)
    await first.ack()
    await is_quiet(stream)


async def test_too_many_unacknowledged_tickets_stall_the_shard(open_stream: OpenStream) -> None:
    stream = await open_stream(replace(PATIENT, unacknowledged_max=5))
    for number in range(8):
        stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
    out = await fetched(stream, 5)
    assert await stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.4) == []
    await out[0].ack()
    await out[1].ack()
    assert payloads(await fetched(stream, 2)) == [b"5", b"6"]
    assert await stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.3) == []


async def test_surplus_tickets_are_dropped_and_counted(open_stream: OpenStream) -> None:
    stream = await open_stream(replace(PATIENT, waiting_max=5))
    for number in range(12):
        stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
    assert payloads(await fetched(stream, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    await eventually(lambda: stream.counts.confirmed == 5)
    assert stream.counts.dropped == 7


async def backlog_is(stream: Stream, expected: int, kind: TicketKind = TicketKind.DELIVER) -> None:
    await eventually(lambda: stream.backlog(kind), lambda found: found == expected, every=0.05)


async def test_the_backlog_counts_unacknowledged_tickets_of_a_kind(any_stream: Stream) -> None:
    assert await any_stream.backlog(TicketKind.DELIVER) == 0
    for number in range(10):
        any_stream.publish(TicketKind.DELIVER, number % 3, b"%d" % number)
        assert await any_stream.backlog(TicketKind.DELIVER) >= number + 1  # at once, or a publisher would run ahead
    any_stream.publish(TicketKind.NOTIFY, 0, b"other kind")
    await eventually(lambda: any_stream.counts.confirmed == 11)
    await backlog_is(any_stream, 10)
    out = await fetched(any_stream, 6, frozenset({0, 1, 2}))
    await out[0].release(0.1)
    for delivery in out[1:]:
        await delivery.ack()
    await backlog_is(any_stream, 5)
    await backlog_is(any_stream, 1, TicketKind.NOTIFY)


async def test_publishing_to_a_closed_stream_is_dropped_and_counted(any_stream: Stream) -> None:
    await any_stream.close()
    any_stream.publish(TicketKind.DELIVER, 7, b"ticket")
    assert any_stream.counts.dropped == 1
    assert await any_stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.1) == []


# -- memory only -----------------------------------------------------------------------------------------


async def test_the_memory_stream_uses_the_given_clock() -> None:
    clock = SettableClock()
    stream = MemoryStream(StreamSettings(ack_wait_seconds=900), monotonic=clock.monotonic)
    stream.publish(TicketKind.DELIVER, 7, b"ticket")
    (delivery,) = await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0)
    clock.advance(timedelta(seconds=899))
    await delivery.working()
    clock.advance(timedelta(seconds=899))
    assert await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0) == []
    clock.advance(timedelta(seconds=1))
    assert payloads(await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0)) == [b"ticket"]


async def test_the_memory_stream_has_space_after_acknowledgements() -> None:
    stream = MemoryStream(StreamSettings(waiting_max=2))
    for _ in range(3):
        stream.publish(TicketKind.DELIVER, 7, b"ticket")
    for delivery in await stream.fetch(TicketKind.DELIVER, SHARD, 5, 0):
        await delivery.ack()
    stream.publish(TicketKind.DELIVER, 7, b"another")
    assert payloads(await stream.fetch(TicketKind.DELIVER, SHARD, 5, 0)) == [b"another"]
    assert (stream.counts.confirmed, stream.counts.dropped) == (3, 1)


# -- JetStream and its faults ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def administrator(server: PrivateNats) -> AsyncIterator[JetStreamContext]:
    client = await nats_client.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def tickets_stored(server: PrivateNats) -> int:
    async with administrator(server) as jetstream:
        return (await jetstream.stream_info("DELIVER")).state.messages


async def none_stored(server: PrivateNats) -> None:
    await eventually(lambda: tickets_stored(server), lambda number: number == 0, every=0.05)


async def test_an_unreachable_server_at_the_start_is_waited_for(stack: contextlib.AsyncExitStack) -> None:
    server = PrivateNats()
    stack.callback(server.__exit__)
    with capture_logs() as said:
        stream = await opened(stack, server)
        for number in range(10):
            stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
        assert await stream.fetch(TicketKind.DELIVER, SHARD, 10, 1.5) == []
        assert metrics.STREAM_CONNECTED.values == {(): 0}
        server.start()
        assert len(await fetched(stream, 10)) == 10
        assert metrics.STREAM_CONNECTED.values == {(): 1}
    await eventually(lambda: stream.counts.confirmed == 10)
    assert stream.counts.dropped == 0
    assert [line["event"] for line in said] == ["stream_away", "stream_back"]


async def test_the_backlog_of_an_unreachable_server_is_the_last_known(
    nats: PrivateNats, stack: contextlib.AsyncExitStack
) -> None:
    stream, other = await opened(stack, nats), await opened(stack, nats)
    for _ in range(5):
        other.publish(TicketKind.DELIVER, 7, b"ticket")
    await eventually(lambda: other.counts.confirmed == 5)
    await eventually(lambda: stream.is_ready)
    await backlog_is(stream, 5)
    nats.freeze()
    await asyncio.sleep(1.0)  # longer than a count stays fresh
    assert await stream.backlog(TicketKind.DELIVER) == 5
    assert await stream.backlog(TicketKind.DELIVER) == 5
    nats.kill()
    await eventually(lambda: not stream.is_ready)
    await eventually(lambda: metrics.STREAM_CONNECTED.values == {(): 0})
    stream.publish(TicketKind.DELIVER, 7, b"ticket")
    assert await stream.backlog(TicketKind.DELIVER) == 6
    nats.wipe()
    nats.start()
    await backlog_is(stream, 1)


async def test_a_password_in_the_address_is_not_logged(stack: contextlib.AsyncExitStack) -> None:
    with capture_logs() as said:
        stream = await JetStream.open(["nats://user:planted-secret@127.0.0.1:1"])
        stack.push_async_callback(stream.close)
        await eventually(lambda: len(said) > 0)
    assert "planted-secret" not in repr(said)


async def test_confirmed_tickets_survive_a_kill(nats: PrivateNats, stream: JetStream) -> None:
    seen: set[bytes] = set()
    published = 0

    async def publish_all() -> None:
        nonlocal published
        for number in range(3_000):
            stream.publish(TicketKind.DELIVER, number % 4, b"%d" % number)
            published += 1
            if number % 20 == 0:
                await asyncio.sleep(0.005)  # a steady flow, so that both sides run

    publishing = asyncio.create_task(publish_all())
    for step in range(200):
        for delivery in await stream.fetch(TicketKind.DELIVER, frozenset(range(4)), 50, 0.3):
            seen.add(delivery.payload)
            await delivery.ack()
        if step == 5:
            nats.kill()
        if step == 7:
            nats.start()
        settled = stream.counts.confirmed + stream.counts.dropped == 3_000
        if step > 7 and publishing.done() and settled and len(seen) >= stream.counts.confirmed:
            break
    await publishing
    assert published == stream.counts.confirmed + stream.counts.dropped == 3_000
    assert stream.counts.confirmed > 0
    # What was sent and not confirmed when the server died may have arrived or not.
    assert stream.counts.confirmed <= len(seen) <= 3_000


async def test_data_wiped_during_a_restart_are_recreated(nats: PrivateNats, stream: JetStream) -> None:
    await one_fetched(stream)
    nats.kill()
    nats.wipe()
    nats.start()
    stream.publish(TicketKind.DELIVER, 7, b"after")
    assert payloads(await fetched(stream, 1)) == [b"after"]


async def test_data_wiped_under_a_running_server_are_recreated(nats: PrivateNats, stream: JetStream) -> None:
    for number in range(300):
        stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
    for delivery in await fetched(stream, 300):
        await delivery.ack()
    nats.wipe()
    await flows_again(stream)


async def test_a_consumer_that_outlived_its_stream_skips_nothing(nats: PrivateNats, stream: JetStream) -> None:
    for number in range(300):
        stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
    await eventually(lambda: stream.counts.confirmed == 300)
    nats.wipe()
    # Its consumer is made now, in a directory that the server thinks is there, and is found after the restart.
    for delivery in (await fetched(stream, 300))[:290]:
        await delivery.ack()
    nats.restart()
    await flows_again(stream)


async def test_a_silent_stream_is_recreated(nats: PrivateNats, stream: JetStream) -> None:
    await one_fetched(stream)
    nats.wipe()
    for _ in range(600):  # more than the server keeps in one file, and it can't open the next
        stream.publish(TicketKind.DELIVER, 3, bytes(16 * 1024))
    await flows_again(stream)
    await eventually(lambda: stream.counts.confirmed > 600)
    assert stream.counts.dropped == 0


async def test_a_server_that_dies_during_writes_is_noticed(nats: PrivateNats, stream: JetStream) -> None:
    await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3)
    nats.freeze()
    for _ in range(1_000):  # more than the sockets take in
        stream.publish(TicketKind.DELIVER, 3, bytes(16 * 1024))
    await asyncio.sleep(0.3)  # writes fill the sockets
    nats.kill()
    nats.start()
    await flows_again(stream)


async def test_deleted_streams_and_consumers_are_recreated(nats: PrivateNats, stream: JetStream) -> None:
    await one_fetched(stream)
    async with administrator(nats) as jetstream:
        await jetstream.delete_consumer("DELIVER", "deliver-7")
        await flows_again(stream)
        await jetstream.delete_stream("DELIVER")
        await flows_again(stream)


async def test_a_fetching_worker_notices_a_missing_stream(nats: PrivateNats, stream: JetStream) -> None:
    await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3)
    async with administrator(nats) as jetstream:
        await jetstream.delete_stream("DELIVER")
        await stream.fetch(TicketKind.DELIVER, SHARD, 1, 1.0)
        assert (await jetstream.stream_info("DELIVER")).config.name == "DELIVER"


async def flows_again(stream: Stream) -> None:
    """A ticket published from now on arrives; the schedule publishes lost tickets again."""

    async def comes_through() -> bool:
        stream.publish(TicketKind.DELIVER, 7, b"again")
        deliveries = await stream.fetch(TicketKind.DELIVER, SHARD, 10, 0.3)
        for delivery in deliveries:
            await delivery.ack()
        return b"again" in payloads(deliveries)

    await eventually(comes_through, or_say=lambda: stream.counts)


async def test_an_acknowledgement_during_an_outage_is_sent_later(nats: PrivateNats, stream: JetStream) -> None:
    delivery = await one_fetched(stream)
    nats.stop()
    await eventually(lambda: not stream.is_ready)
    await delivery.ack()
    nats.start()
    assert await tickets_stored(nats) == 1
    await eventually(lambda: stream.is_ready)
    await none_stored(nats)


async def test_an_old_acknowledgement_never_deletes_a_new_ticket(nats: PrivateNats, stream: JetStream) -> None:
    old = await one_fetched(stream)
    nats.kill()
    nats.wipe()
    nats.start()
    stream.publish(TicketKind.DELIVER, 7, b"new")
    (new,) = await fetched(stream, 1)
    await old.ack()
    await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.2)
    assert await tickets_stored(nats) == 1
    await new.ack()
    await none_stored(nats)


async def test_a_silent_server_blocks_nothing(nats: PrivateNats, stream: JetStream) -> None:
    await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3)
    nats.freeze()
    for number in range(5_000):
        stream.publish(TicketKind.DELIVER, 7, b"%d" % number)
    assert await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.3) == []
    nats.thaw()
    assert payloads(await fetched(stream, 1)) == [b"0"]


async def test_prefetched_tickets_move_with_their_shard(nats: PrivateNats, stack: contextlib.AsyncExitStack) -> None:
    old, new = await opened(stack, nats), await opened(stack, nats)
    for number in range(40):
        old.publish(TicketKind.DELIVER, number % 2, b"%d" % number)
    seen = await old.fetch(TicketKind.DELIVER, frozenset({0, 1}), 10, 2)
    seen += await old.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0.3)
    given_out = [delivery for delivery in seen if delivery.shard == 1]
    moved = await fetched(new, 20 - len(given_out), frozenset({1}))
    assert {delivery.shard for delivery in moved} == {1}
    assert len({*payloads(moved), *payloads(given_out)}) == 20


async def test_close_publishes_waiting_and_releases_prefetched_tickets(
    nats: PrivateNats, stack: contextlib.AsyncExitStack
) -> None:
    closing, staying = await opened(stack, nats), await opened(stack, nats)
    await eventually(lambda: closing.is_ready)
    for number in range(30):
        closing.publish(TicketKind.DELIVER, 7, b"%d" % number)
    (first,) = await closing.fetch(TicketKind.DELIVER, SHARD, 1, 2)
    await first.ack()
    await closing.fetch(TicketKind.DELIVER, frozenset(), 10, 0.1)
    await closing.fetch(TicketKind.DELIVER, SHARD, 10, 0)
    closing.publish(TicketKind.NOTIFY, 7, b"last")
    await closing.close()
    assert closing.counts.confirmed == 31
    assert len(await fetched(staying, 29)) == 29
    assert payloads(await fetched(staying, 1, kind=TicketKind.NOTIFY)) == [b"last"]


async def test_changed_settings_reach_existing_streams(nats: PrivateNats, stack: contextlib.AsyncExitStack) -> None:
    first = await opened(stack, nats)
    first.publish(TicketKind.DELIVER, 7, b"ticket")
    await eventually(lambda: first.counts.confirmed == 1)
    second = await opened(stack, nats, replace(PATIENT, ack_wait_seconds=60, stream_bytes_max=1024 * 1024))
    assert payloads(await fetched(second, 1)) == [b"ticket"]
    async with administrator(nats) as jetstream:
        assert (await jetstream.stream_info("DELIVER")).config.max_bytes == 1024 * 1024
        assert (await jetstream.consumer_info("DELIVER", "deliver-7")).config.ack_wait == 60


async def test_a_full_stream_drops_its_oldest_tickets(nats: PrivateNats, stack: contextlib.AsyncExitStack) -> None:
    stream = await opened(stack, nats, replace(PATIENT, stream_bytes_max=20_000))
    for number in range(100):
        stream.publish(TicketKind.DELIVER, 7, b"%03d" % number + bytes(500))
    await eventually(lambda: stream.counts.confirmed == 100)
    left = [delivery.payload[:3] for delivery in await stream.fetch(TicketKind.DELIVER, SHARD, 100, 2)]
    assert left
    assert left[0] > b"050"


async def test_two_loops_for_a_kind_raise(stream: JetStream) -> None:
    first = asyncio.create_task(stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.2))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two loops"):
        await stream.fetch(TicketKind.DELIVER, SHARD, 1, 0.2)
    await first
