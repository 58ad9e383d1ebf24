"""Work that repeats: a flow performs one step, this owns the looping, the pausing and the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import structlog

from posthouse.flows.delivery import Delivery
from posthouse.flows.dispatch import DISPATCHED_AT_ONCE_MAX, Dispatch
from posthouse.rules.refusal import Refusal
from posthouse.wire.stream import Kind, Leases, Stream

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


async def run_dispatch(dispatch: Dispatch, stop: asyncio.Event) -> None:
    """What is due gets its ticket, and what the dead had claimed is due again, until told to stop."""

    async def hand_out_what_is_due() -> None:
        while await dispatch.step() >= DISPATCHED_AT_ONCE_MAX:
            pass

    async with (
        repeated(hand_out_what_is_due, pause_seconds=DISPATCH_SECONDS),
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
    """Tickets of the shards held here are delivered until told to stop; then what waits is given back, what is
    being said to other servers is said to its end, and all of it is recorded, within DRAIN_SECONDS_MAX."""
    # Nothing may be claimed in the name of a worker whom the database doesn't know.
    while not stop.is_set() and not await _performed(delivery.renew):
        await _pause(stop, AFTER_FAILURE_SECONDS)
    async with (
        repeated(delivery.renew, pause_seconds=worker_lease.total_seconds() * RENEW_PART),
        repeated(delivery.heartbeat, pause_seconds=HEARTBEAT_SECONDS),
        repeated(delivery.report, pause_seconds=REPORT_SECONDS),
    ):
        await _fetch_until(stop, delivery, stream, leases, shards)
        await stream.fetch(Kind.DELIVER, frozenset(), 0, 0.0)  # gives back what came ahead of its time
        await delivery.drain(DRAIN_SECONDS_MAX)


async def _fetch_until(stop: asyncio.Event, delivery: Delivery, stream: Stream, leases: Leases, shards: int) -> None:
    share = 0

    async def fetch_and_offer() -> None:
        nonlocal share
        held = leases.held()
        if held and len(held) != share:
            share = len(held)
            delivery.share(share, shards)
        count = min(delivery.room, FETCHED_AT_ONCE_MAX)
        # Asked for none when there is no room: what came for a shard that moved is given back all the same.
        tickets = await stream.fetch(Kind.DELIVER, held, count, FETCH_SECONDS_MAX if count else FULL_SECONDS)
        still_held = frozenset[int]() if stop.is_set() else leases.held()
        for ticket in tickets:
            if ticket.shard not in still_held:
                await ticket.release()
        await delivery.offer([ticket for ticket in tickets if ticket.shard in still_held])

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
