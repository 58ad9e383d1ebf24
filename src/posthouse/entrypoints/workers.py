"""Work that repeats: a flow performs one step, this owns the looping, the pausing and the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import DISPATCHED_AT_ONCE_MIN, Dispatch
from posthouse.rules.refusal import Refusal
from posthouse.wire.stream import Leases, Stream, TicketKind
from posthouse.wire.stream import StreamMessage as Ticketed

if TYPE_CHECKING:
    from posthouse.flows.webhooks.sender import WebhookSender  # with it comes an HTTP client, which takes its time

log = structlog.get_logger(__name__)

AFTER_FAILURE_SECONDS: Final = 1.0

DISPATCH_SECONDS: Final = 1.0
RECLAIM_SECONDS: Final = 2.0

FETCHED_AT_ONCE_MAX: Final = 500
FETCH_SECONDS_MAX: Final = 0.5
FULL_SECONDS: Final = 0.02
# Of a worker's lease: several renewals may fail before it ends.
RENEW_PART: Final = 1 / 6
# Several times before a ticket that is held would come again.
HEARTBEAT_SECONDS: Final = 20.0
REPORT_SECONDS: Final = 2.0
DRAIN_SECONDS_MAX: Final = 15.0


async def repeat(step: Callable[[], Awaitable[object]], *, pause_seconds: float) -> None:
    """Perform the step again and again until cancelled; a step that fails is logged and tried again."""
    while True:
        await _performed(step)
        await asyncio.sleep(pause_seconds)


@asynccontextmanager
async def repeated(step: Callable[[], Awaitable[object]], *, pause_seconds: float) -> AsyncIterator[None]:
    """The step repeats beside whatever runs inside."""
    task = asyncio.create_task(repeat(step, pause_seconds=pause_seconds))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Working(Protocol):
    """A flow that works off tickets."""

    @property
    def room(self) -> int: ...

    async def offer(self, carried: Iterable[Ticketed]) -> None: ...

    async def renew(self) -> None: ...

    async def heartbeat(self) -> None: ...

    async def drain(self, seconds: float) -> None: ...


async def run_dispatch(dispatch: Dispatch, stop: asyncio.Event, *, with_webhooks: bool = True) -> None:
    """What is due gets its ticket, and what the dead had claimed is due again, until told to stop.

    Without calls, whoever is to be told of something is told later: by those who run with them.
    """

    async def hand_out_mail() -> None:
        while await dispatch.step() >= DISPATCHED_AT_ONCE_MIN:
            pass

    async def hand_out_calls() -> None:
        while with_webhooks and await dispatch.step_calls() >= DISPATCHED_AT_ONCE_MIN:
            pass

    async with (
        repeated(hand_out_mail, pause_seconds=DISPATCH_SECONDS),
        repeated(hand_out_calls, pause_seconds=DISPATCH_SECONDS),
        repeated(dispatch.reclaim, pause_seconds=RECLAIM_SECONDS),
    ):
        await stop.wait()


async def run_delivery(
    delivery: Delivery,
    stream: Stream,
    leases: Leases,
    *,
    shards: int,
    worker_lease: timedelta,
    stop: asyncio.Event,
) -> None:
    def share(held: int) -> None:
        delivery.share(held, shards)

    async with repeated(delivery.report, pause_seconds=REPORT_SECONDS):
        await _work(delivery, TicketKind.DELIVER, stream, leases, share, worker_lease, stop)


async def run_webhooks(
    sender: "WebhookSender", stream: Stream, leases: Leases, *, worker_lease: timedelta, stop: asyncio.Event
) -> None:
    await _work(sender, TicketKind.NOTIFY, stream, leases, lambda _: None, worker_lease, stop)


async def _work(
    working: Working,
    kind: TicketKind,
    stream: Stream,
    leases: Leases,
    share: Callable[[int], None],
    worker_lease: timedelta,
    stop: asyncio.Event,
) -> None:
    """Tickets of the shards held here are worked off until told to stop; then what waits is given back, what is
    being said to other servers is said to its end, and all of it is recorded, within DRAIN_SECONDS_MAX."""
    # Nothing may be claimed in the name of a worker whom the database doesn't know.
    while not stop.is_set() and not await _performed(working.renew):
        await _pause(stop, AFTER_FAILURE_SECONDS)
    async with (
        repeated(working.renew, pause_seconds=worker_lease.total_seconds() * RENEW_PART),
        repeated(working.heartbeat, pause_seconds=HEARTBEAT_SECONDS),
    ):
        await _fetch_until(stop, working, kind, stream, leases, share)
        await stream.fetch(kind, frozenset(), 0, 0.0)  # gives back what came ahead of its time
        # Others may have the shards while what is under way here comes to its end.
        await leases.close()
        await working.drain(DRAIN_SECONDS_MAX)


async def _fetch_until(
    stop: asyncio.Event,
    working: Working,
    kind: TicketKind,
    stream: Stream,
    leases: Leases,
    share: Callable[[int], None],
) -> None:
    shared = 0

    async def fetch_and_offer() -> None:
        nonlocal shared
        held = leases.held()
        if held and len(held) != shared:
            shared = len(held)
            share(shared)
        count = min(working.room, FETCHED_AT_ONCE_MAX)
        # Asked for none when there is no room: what came for a shard that moved is given back all the same.
        tickets = await stream.fetch(kind, held, count, FETCH_SECONDS_MAX if count else FULL_SECONDS)
        still_held = frozenset[int]() if stop.is_set() else leases.held()
        for ticket in tickets:
            if ticket.shard not in still_held:
                await ticket.release()
        await working.offer([ticket for ticket in tickets if ticket.shard in still_held])

    while not stop.is_set():
        if not await _performed(fetch_and_offer):
            await _pause(stop, AFTER_FAILURE_SECONDS)


async def _performed(step: Callable[[], Awaitable[object]]) -> bool:
    """Whether the step went well; if not, it is in the log."""
    try:
        await step()
    except Refusal as refusal:
        log.warning("step_refused", step=step.__qualname__, code=refusal.code.value, cause=repr(refusal.__cause__))
        return False
    except Exception:
        log.exception("step_failed", step=step.__qualname__)
        return False
    return True


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
