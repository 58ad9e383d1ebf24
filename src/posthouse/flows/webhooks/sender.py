"""Notification: an event's ticket becomes a signed call of the customer's endpoint, and what came of it is on record.

Claim, call, record, as mail is delivered. The attempt is counted at the claim; the same stored bytes are signed
anew each time. Accounts are served side by side: each has so many calls under way and so many waiting, so that
one whose endpoint hangs delays nobody else and fills nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, assert_never
from uuid import UUID

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared import tickets
from posthouse.flows.shared.batching import Batcher, submit_until_taken, together_or_apart
from posthouse.flows.shared.tickets import InHand
from posthouse.flows.shared.worker_lease import SendPermit, WorkerLease
from posthouse.rules import event, ids, retry
from posthouse.rules.ids import AccountId
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import webhook_schedule
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer, SealError
from posthouse.store.webhook_schedule import ClaimedWebhook, WebhookOutcome, WebhookPostponement, WebhookResult
from posthouse.store.webhooks import secret_purpose
from posthouse.wire.stream import StreamMessage as Carried
from posthouse.wire.webhook_client import NoWebhookAnswer, WebhookAnswer, WebhookCallResult, WebhookClient

log = structlog.get_logger(__name__)

Item = tickets.Item[WebhookTicket]

CALLS_MAX: Final = 500
ACCOUNT_CALLS_MAX: Final = 10
ACCOUNT_WAITING_MAX: Final = 500
# However many accounts there are, this many wait in all.
WAITING_MAX: Final = 15_000
# What finds no place is put off, for as long as those before it should take.
PUT_OFF_SECONDS_MIN: Final = 1.0
PUT_OFF_SECONDS_MAX: Final = 600.0
# Longer than any attempt: whatever a living worker forgot is due again then.
CLAIM_LONGEST: Final = timedelta(minutes=5)
CALL_LONGEST_SECONDS: Final = 120.0
STORAGE_AWAY_SECONDS: Final = 2.0
LINGER_SECONDS: Final = 0.01
# A secret that can't be opened: a fault of ours, and no attempt of the customer's.
UNREADY: Final = timedelta(minutes=1)
STOPPED: Final = "the service was stopped while it waited for the answer"
FAULT_OF_OURS: Final = "the service failed"


@dataclass(slots=True)
class _Account:
    """What one account has waiting and under way."""

    waiting: deque[Item] = field(default_factory=deque)
    under_way: int = 0
    # What a call takes, as far as is known; a customer whose endpoint hangs is soon known for it.
    seconds: float = 0.1
    horizon: float = 0.0


class WebhookSender:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        caller: WebhookClient,
        sealer: Sealer,
        target_of: Callable[[str], WebhookTarget],
        retries: Schedule = retry.WEBHOOK,
        worker_lease: timedelta = WORKER_LEASE,
        renewals: Database | None = None,
        calls_max: int = CALLS_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`target_of` checks an endpoint's URL, as it was checked when it was saved; it raises what is wrong.

        `renewals` are connections for the lease alone, which must not wait for those that claim and record.
        """
        self._worker = WorkerLease(database=renewals or database, clock=clock, chance=chance, lease=worker_lease)
        self._hands = InHand(WebhookTicket, clock.monotonic)
        self._database = database
        self._clock = clock
        self._caller = caller
        self._sealer = sealer
        self._target_of = target_of
        self._retries = retries
        self._calls_max = calls_max
        self._waiting_max = waiting_max
        self._accounts: dict[AccountId, _Account] = {}
        # Accounts that could go on, had the process a call to spare; in the order in which they ran out.
        self._starved: dict[AccountId, None] = {}
        self._under_way = 0
        self._waiting = 0
        self._claiming: Batcher[WebhookTicket | None, ClaimedWebhook | None] = Batcher(
            self._claim_batch, linger_seconds=LINGER_SECONDS
        )
        self._recording: Batcher[WebhookOutcome, None] = Batcher(self._record_batch, linger_seconds=LINGER_SECONDS)
        self._known_claims: set[tuple[AccountId, UUID]] = set()
        # A claim whose commit was not heard of may hold calls that nobody here knows of.
        self._is_unsure = False
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that wait for an answer, and could do without it.
        self._calling: set[asyncio.Task[None]] = set()

    @property
    def worker_id(self) -> UUID:
        return self._worker.id

    @property
    def room(self) -> int:
        """How many more tickets this worker can take in hand."""
        return 0 if self._is_stopping else self._hands.room

    async def offer(self, carried: Iterable[Carried]) -> None:
        """Take tickets in hand, and make whatever calls may be made."""
        late: list[tuple[Item, float]] = []
        for item in await self._hands.take(carried):
            account = self._accounts.setdefault(item.ticket.account_id, _Account())
            # A full house is no reason to turn away whoever has nobody waiting in it.
            if len(account.waiting) >= ACCOUNT_WAITING_MAX or (account.waiting and self._waiting >= self._waiting_max):
                late.append((item, self._put_off_seconds(account)))
                continue
            crash.point("notification.offered")
            account.waiting.append(item)
            self._waiting += 1
            self._advance(item.ticket.account_id)
        if late:
            self._spawn(self._postpone(late))

    async def renew(self) -> None:
        await self._worker.renew()
        if self._is_unsure:
            await self._claiming.submit(None, 0)  # nothing new, but what is unknown is let go

    async def heartbeat(self) -> None:
        await self._hands.heartbeat()

    async def settle(self) -> None:
        """Return when everything in hand has come to its end."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self, seconds: float) -> None:
        """Give back what waits, let finish what is on its way, and wait no longer for answers than there is time.

        Nothing is left unrecorded but, if the database stays away, what the lease's end gives back.
        """
        self._is_stopping = True
        waiting = [item for account in self._accounts.values() for item in account.waiting]
        self._accounts.clear()
        await self._hands.give_back(waiting)
        await self._worker.end(self._tasks, self._calling, seconds)

    # Turns.

    def _advance(self, account_id: AccountId) -> None:
        account = self._accounts[account_id]
        while account.waiting and account.under_way < ACCOUNT_CALLS_MAX and not self._is_stopping:
            if self._under_way >= self._calls_max:
                self._starved.setdefault(account_id)
                return
            item = account.waiting.popleft()
            self._waiting -= 1
            account.under_way += 1
            self._under_way += 1
            self._spawn(self._notify(account_id, account, item))
        if not account.waiting and not account.under_way:
            self._accounts.pop(account_id, None)

    def _end_turn(self, account_id: AccountId, account: _Account, seconds: float) -> None:
        account.seconds += (seconds - account.seconds) / ACCOUNT_CALLS_MAX
        account.under_way -= 1
        self._under_way -= 1
        if self._is_stopping:
            return
        # Behind those who wait: or those who came first would hand all turns on to themselves.
        self._starved.setdefault(account_id)
        while self._starved and self._under_way < self._calls_max:
            starved = next(iter(self._starved))
            del self._starved[starved]
            if starved in self._accounts:
                self._advance(starved)

    def _put_off_seconds(self, account: _Account) -> float:
        """When there should be a place, after what waits and what was put off before."""
        now = self._clock.monotonic()
        interval = account.seconds / ACCOUNT_CALLS_MAX
        begin = now + max(len(account.waiting) * interval / 2, PUT_OFF_SECONDS_MIN)
        account.horizon = min(max(account.horizon + interval, begin), now + PUT_OFF_SECONDS_MAX)
        return account.horizon - now

    # From a turn to the ticket's end.

    async def _notify(self, account_id: AccountId, account: _Account, item: Item) -> None:
        began_at = self._clock.monotonic()
        result: WebhookOutcome | None = None
        try:
            leave = self._worker.leave(CALL_LONGEST_SECONDS)
            claimed = await self._claiming.submit(item.ticket, 0)
            if claimed is not None:
                result = await self._attempt(claimed, leave)
        except Refusal as refusal:
            # The database is away: the ticket comes again when it may be back.
            log.info("claim_refused", cause=repr(refusal.__cause__))
            await self._hands.give_back([item], STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # A fault of ours, which the next ticket may meet again: no sooner than the calendar says.
            log.exception(
                "call_failed", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, item.ticket.webhook_delivery_id)
            )
            await self._hands.done_with([item])
            return
        finally:
            self._end_turn(account_id, account, self._clock.monotonic() - began_at)
        if result is not None:
            await self._record(result)
        crash.point("notification.before_ack")
        await self._hands.done_with([item])
        crash.point("notification.acked")

    async def _attempt(self, claimed: ClaimedWebhook, leave: SendPermit) -> WebhookOutcome:
        if claimed.cancelled is not None:
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=claimed.cancelled)
        if claimed.is_over:
            error = f"It was sent {claimed.attempt_count} times, and not every time was an answer heard."
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=error)
        if claimed.url is None or claimed.secret_sealed is None or claimed.body is None:
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error="The event is no longer stored.")
        # Asked for no earlier: what comes to its end without an attempt was not counted and can't be uncounted.
        if self._is_stopping or not leave():
            return self._again(claimed, timedelta(0))
        try:
            secret = self._sealer.open(claimed.secret_sealed, secret_purpose(claimed.account_id)).decode()
        except SealError:
            log.exception("secret_not_opened", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, claimed.id))
            return self._again(claimed, UNREADY)
        return self._result(claimed, claimed.url, await self._answer(claimed.id, claimed.url, secret, claimed.body))

    async def _answer(self, delivery_id: UUID, url: str, secret: str, body: bytes) -> WebhookCallResult:
        began_at = self._clock.monotonic()
        task = asyncio.current_task()
        try:
            if task is not None:
                self._calling.add(task)
            target = self._target_of(url)
            signature = event.sign(secret, body, int(self._clock.now().timestamp()))
            crash.point("notification.before_post")
            answer = await self._caller.call(target, body, {event.SIGNATURE_HEADER: signature})
            crash.point("notification.after_post")
            return answer
        except Refusal as refusal:
            # It was fine when it was saved; what is allowed has changed since.
            return NoWebhookAnswer(refusal.text, 0)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            reason = STOPPED
        except Exception:
            log.exception("call_broke_off", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, delivery_id))
            reason = FAULT_OF_OURS
        finally:
            self._calling.discard(task)
        return NoWebhookAnswer(reason, round((self._clock.monotonic() - began_at) * 1000))

    def _result(self, claimed: ClaimedWebhook, url: str, answer: WebhookCallResult) -> WebhookOutcome:
        now = self._clock.now()
        next_at = None
        if claimed.attempt_count < claimed.max_attempts:
            next_at = retry.next_at(self._retries, attempts=claimed.attempt_count, started_at=now, now=now, random=0.5)
        missed = WebhookResult.FAILED if next_at is None else WebhookResult.DEFERRED
        match answer:
            case WebhookAnswer(status, body, truncated, duration_ms):
                is_taken = 200 <= status <= 299
                return WebhookOutcome(
                    *claimed.key,
                    WebhookResult.SUCCEEDED if is_taken else missed,
                    next_at=None if is_taken else next_at,
                    url=url,
                    http_status=status,
                    error=None if is_taken else f"The endpoint answered {status}; a 2xx is wanted.",
                    duration_ms=duration_ms,
                    response_body=body,
                    response_truncated=truncated,
                )
            case NoWebhookAnswer(reason, duration_ms):
                return WebhookOutcome(
                    *claimed.key, missed, next_at=next_at, url=url, error=reason, duration_ms=duration_ms
                )
            case _:
                assert_never(answer)

    def _again(self, claimed: ClaimedWebhook, wait: timedelta) -> WebhookOutcome:
        """Nothing was sent (the lease ended, the secret can't be opened): it was no attempt."""
        return WebhookOutcome(*claimed.key, WebhookResult.POSTPONED, next_at=self._clock.now() + wait)

    async def _postpone(self, late: list[tuple[Item, float]]) -> None:
        now = self._clock.now()
        postponements = [
            WebhookPostponement(
                item.ticket.account_id,
                item.ticket.webhook_delivery_id,
                item.ticket.fence,
                now + timedelta(seconds=seconds),
            )
            for item, seconds in late
        ]
        items = [item for item, _ in late]
        try:
            async with self._database.transaction() as tx:
                await webhook_schedule.postpone(tx, postponements)
        except Refusal:
            await self._hands.give_back(items, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # The calendar brings them back all the same.
            log.exception("not_postponed", webhook_deliveries=len(late))
        await self._hands.done_with(items)

    # What many calls share.

    async def _record(self, result: WebhookOutcome) -> None:
        try:
            await submit_until_taken(self._recording, result, STORAGE_AWAY_SECONDS / 2)
        except Exception:
            # Nobody will know: it counts as an attempt without a report, and is made again in time.
            log.exception("call_not_recorded", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, result.id))
        self._known_claims.discard(result.key[:2])

    async def _claim_batch(self, batch: Sequence[WebhookTicket | None]) -> list[ClaimedWebhook | BaseException | None]:
        return await together_or_apart(batch, self._claim)

    async def _claim(self, batch: Sequence[WebhookTicket | None]) -> list[ClaimedWebhook | BaseException | None]:
        was_unsure, self._is_unsure = self._is_unsure, True
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if was_unsure:
                await webhook_schedule.let_go(tx, self._worker.id, self._known_claims, now)
            wanted = [ticket for ticket in batch if ticket is not None]
            found = await webhook_schedule.claim(tx, self._worker.id, wanted, now, now + CLAIM_LONGEST)
            crash.point("notification.before_claim_commit")
        crash.point("notification.claimed")
        self._is_unsure = False
        self._known_claims.update(one.key[:2] for one in found)
        by_ticket = {WebhookTicket(one.account_id, one.id, one.fence - 1): one for one in found}
        return [None if ticket is None else by_ticket.get(ticket) for ticket in batch]

    async def _record_batch(self, batch: Sequence[WebhookOutcome]) -> list[BaseException | None]:
        return await together_or_apart(batch, self._write)

    async def _write(self, batch: Sequence[WebhookOutcome]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            recorded = await webhook_schedule.record(tx, batch, self._clock.now())
            crash.point("notification.before_commit")
        crash.point("notification.after_commit")
        for late in recorded.late:
            log.warning("call_came_late", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, late.id))
        return [None] * len(batch)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
