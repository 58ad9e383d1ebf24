"""Repeated work: a flow performs a step; this module owns the loop, the pauses and the shutdown."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from posthouse import metrics
from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import DISPATCH_BATCH_MIN, Dispatch
from posthouse.rules import limits
from posthouse.rules.refusal import Refusal
from posthouse.wire.stream import Leases, Stream, StreamMessage, TicketKind

if TYPE_CHECKING:
    from posthouse.flows.webhooks.sender import WebhookSender  # its import of an HTTP client is slow

log = structlog.get_logger(__name__)

AFTER_FAILURE_SECONDS: Final = 1.0

DISPATCH_SECONDS: Final = 1.0
# The pause after a step that found nothing to do.
DISPATCH_IDLE_SECONDS: Final = 2.0
RECLAIM_SECONDS: Final = 2.0

FETCHED_BATCH_MAX: Final = 500
FETCH_SECONDS_MAX: Final = 0.5
FULL_SECONDS: Final = 0.02
# A fraction of a worker's lease, so that several renewals may fail before it ends.
RENEW_PART: Final = 1 / 6
# How often a worker looks for tickets in hand whose acknowledgement timer must be extended. Several extensions may be
# missed before the stream sends a ticket again.
HEARTBEAT_SECONDS: Final = 1.0
REPORT_SECONDS: Final = 2.0
ROUTES_SECONDS: Final = 2.0
# All workers know what a lane learned within two of these intervals.
LEARNED_LIMITS_SECONDS: Final = 1.0
# While there is no mail. A report is shown for ten seconds; operators' changes are known within five.
REPORT_IDLE_SECONDS: Final = 6.0
ROUTES_IDLE_SECONDS: Final = 4.0
LEARNED_LIMITS_IDLE_SECONDS: Final = 2.0


async def repeat(
    step: Callable[[], Awaitable[object]],
    *,
    pause_seconds: float,
    idle_seconds: float = 0.0,
    is_idle: Callable[[], bool] = lambda: False,
) -> None:
    """Perform the step until cancelled; a step that fails is logged and tried again.

    While it `is_idle`, the pause is longer, and ends soon after that changes.
    """
    while True:
        await _performed(step)
        await asyncio.sleep(pause_seconds)
        paused = pause_seconds
        while is_idle() and paused < idle_seconds:
            await asyncio.sleep(min(pause_seconds, idle_seconds - paused))
            paused += pause_seconds


@asynccontextmanager
async def repeated(
    step: Callable[[], Awaitable[object]],
    *,
    pause_seconds: float,
    idle_seconds: float = 0.0,
    is_idle: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Repeat the step while the body of the `async with` runs."""
    task = asyncio.create_task(repeat(step, pause_seconds=pause_seconds, idle_seconds=idle_seconds, is_idle=is_idle))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TicketWorker(Protocol):
    """A flow that processes tickets."""

    @property
    def capacity(self) -> int: ...

    async def offer(self, carried: Iterable[StreamMessage]) -> None: ...

    async def renew(self) -> None: ...

    async def heartbeat(self) -> None: ...

    async def drain(self, seconds: float) -> None: ...


async def run_dispatch(dispatch: Dispatch, stop: asyncio.Event, *, with_webhooks: bool = True) -> None:
    """Until `stop`, publish tickets for due work, and reclaim the claims of dead workers.

    Without webhooks, their tickets are left to a process that handles them.
    """

    async def dispatch_mail() -> None:
        while await dispatch.step() >= DISPATCH_BATCH_MIN:
            pass

    async def dispatch_webhooks() -> None:
        while with_webhooks and await dispatch.step_calls() >= DISPATCH_BATCH_MIN:
            pass

    async with (
        repeated(
            dispatch_mail,
            pause_seconds=DISPATCH_SECONDS,
            idle_seconds=DISPATCH_IDLE_SECONDS,
            is_idle=lambda: dispatch.is_idle(TicketKind.DELIVER),
        ),
        repeated(
            dispatch_webhooks,
            pause_seconds=DISPATCH_SECONDS,
            idle_seconds=DISPATCH_IDLE_SECONDS,
            is_idle=lambda: dispatch.is_idle(TicketKind.NOTIFY),
        ),
        repeated(dispatch.reclaim, pause_seconds=RECLAIM_SECONDS),
    ):
        await stop.wait()


async def run_delivery(
    delivery: Delivery,
    stream: Stream,
    leases: Leases,
    *,
    worker_lease: timedelta,
    stop: asyncio.Event,
) -> None:
    """`leases` are those that the delivery flow uses."""
    async with (
        repeated(
            delivery.report, pause_seconds=REPORT_SECONDS, idle_seconds=REPORT_IDLE_SECONDS, is_idle=delivery.is_idle
        ),
        repeated(
            delivery.read_routes,
            pause_seconds=ROUTES_SECONDS,
            idle_seconds=ROUTES_IDLE_SECONDS,
            is_idle=delivery.is_idle,
        ),
        repeated(
            delivery.synchronize_learned_limits,
            pause_seconds=LEARNED_LIMITS_SECONDS,
            idle_seconds=LEARNED_LIMITS_IDLE_SECONDS,
            is_idle=delivery.is_idle,
        ),
    ):
        await _work(delivery, TicketKind.DELIVER, stream, leases, delivery.note_shards, worker_lease, stop)


async def run_webhooks(
    sender: "WebhookSender", stream: Stream, leases: Leases, *, worker_lease: timedelta, stop: asyncio.Event
) -> None:
    await _work(sender, TicketKind.NOTIFY, stream, leases, lambda: None, worker_lease, stop)


async def _work(
    worker: TicketWorker,
    kind: TicketKind,
    stream: Stream,
    leases: Leases,
    note_shards: Callable[[], None],
    worker_lease: timedelta,
    stop: asyncio.Event,
) -> None:
    """Process tickets of the shards held here until `stop`. Then release tickets that wait, finish open conversations
    with other servers, and record the results, within limits.DRAIN_SECONDS_MAX."""
    # Nothing may be claimed for a worker that the database doesn't know.
    while not stop.is_set() and not await _performed(worker.renew):
        await _pause(stop, AFTER_FAILURE_SECONDS)
    async with (
        repeated(worker.renew, pause_seconds=worker_lease.total_seconds() * RENEW_PART),
        repeated(worker.heartbeat, pause_seconds=HEARTBEAT_SECONDS),
    ):
        await _fetch_until(stop, worker, kind, stream, leases, note_shards)
        await stream.fetch(kind, frozenset(), 0, 0.0)  # releases prefetched tickets
        # Other workers may take over the shards while work here finishes.
        await leases.close()
        note_shards()
        await worker.drain(limits.DRAIN_SECONDS_MAX)


async def _fetch_until(
    stop: asyncio.Event,
    worker: TicketWorker,
    kind: TicketKind,
    stream: Stream,
    leases: Leases,
    note_shards: Callable[[], None],
) -> None:
    async def fetch_and_offer() -> None:
        held = leases.held()
        note_shards()
        count = min(worker.capacity, FETCHED_BATCH_MAX)
        # Fetches none when there is no space; tickets of a shard that moved are still released.
        tickets = await stream.fetch(kind, held, count, FETCH_SECONDS_MAX if count else FULL_SECONDS)
        still_held = frozenset[int]() if stop.is_set() else leases.held()
        for ticket in tickets:
            if ticket.shard not in still_held:
                await ticket.release()
        await worker.offer([ticket for ticket in tickets if ticket.shard in still_held])

    while not stop.is_set():
        if not await _performed(fetch_and_offer):
            await _pause(stop, AFTER_FAILURE_SECONDS)


async def _performed(step: Callable[[], Awaitable[object]]) -> bool:
    """Perform the step; returns whether it succeeded. A failure is logged."""
    try:
        await step()
    except Refusal as refusal:
        metrics.STEP_FAILURES.count(step_name(step))
        log.warning("step_refused", step=step_name(step), code=refusal.code.value, cause=repr(refusal.__cause__))
        return False
    except Exception:
        metrics.STEP_FAILURES.count(step_name(step))
        log.exception("step_failed", step=step_name(step))
        return False
    return True


def step_name(step: Callable[[], Awaitable[object]]) -> str:
    """The step's name: `search_indexer` for `SearchIndexer.run`, `delivery_report` for `Delivery.report`."""
    words = step.__qualname__.rpartition("<locals>.")[2].removesuffix(".run").replace(".", "_")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).lower()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
