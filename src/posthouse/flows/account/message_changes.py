"""Changes of messages that have no final result: cancelled, retried now, sent at another time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse import crash, metrics
from posthouse.flows.account.message_detail import message_id_of, no_message
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.shared.account_limits import Defaults, spending, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import Caller, Principal
from posthouse.flows.shared.shares import Rates
from posthouse.mail.address import parse_mailbox
from posthouse.rules import ids, rate_limit, retry, search, send_quota
from posthouse.rules.credential import Actor, Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.message import MessageStatus, Source, check_send_time, parse_send_time
from posthouse.rules.rate_limit import RateWait
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.retry import RetryAnswer, RetryResult, Schedule
from posthouse.rules.search import SearchField, SearchFilters
from posthouse.store import acceptance, delivery_outcomes, message_changes, message_detail, messages, search_index
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.message_changes import LockedMessage
from posthouse.store.message_detail import RecipientTimeline, Timeline
from posthouse.store.messages import StoredMessage
from posthouse.store.partitions import snapshot
from posthouse.store.postgres import Connection
from posthouse.store.search_index import IndexEntry

# The limits of a request to cancel what matches: messages, and pages of the search, each of which may be empty.
MESSAGES_MAX: Final = 100
PAGES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class CancelledMessages:
    """Messages that were `tried` stay as they are. Without a `next_cursor`, there were no more."""

    cancelled: int
    tried: int
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class RetriedRecipient:
    id: UUID
    email: str
    result: RetryResult


class MessageChanges(Flow):
    """Mail that no worker has tried yet is cancelled by its sender, or moved to another time; deferred mail is retried.

    One transaction decides between the sender and the workers, by the locks of the schedule's rows: a cancelled
    recipient is final and has left the schedule, a moved one has another fence, so that no ticket finds it. Otherwise
    nothing is changed.
    """

    def __init__(
        self, context: Context, *, search: MessageSearch, defaults: Defaults, retries: Schedule = retry.DELIVERY
    ) -> None:
        super().__init__(context)
        self._search = search
        self._defaults = defaults
        self._retries = retries
        self._rates: Rates[AccountId] = Rates()

    async def cancel(self, principal: Principal, given_id: str) -> StoredMessage:
        """Cancel all recipients of the message, so that none of them gets it. A second call changes nothing."""
        message_id = message_id_of(given_id)
        await self._take_rate(principal.account_id)
        async with self._database.transaction() as tx:
            found = await self._locked(tx, principal, message_id)
            if not await message_changes.is_cancelled(tx, principal.account_id, message_id):
                _require_untried(found)
                await self._cancel(tx, principal.account_id, message_id, found)
            answer = await messages.message(tx, principal.account_id, message_id)
            crash.point("cancel.before_commit")
        crash.point("cancel.after_commit")
        if answer is None:
            raise no_message()
        return answer

    async def cancel_matching(
        self, caller: Caller, filters: SearchFilters, cursor: str | None, *, is_dry_run: bool
    ) -> CancelledMessages:
        """Cancel the waiting messages that match the filters, from the cursor on; a dry run only counts them.

        Each message has its own transaction: a request that is interrupted has cancelled some of them, and repeating it
        cancels the others.
        """
        if filters.tag is None and not filters.metadata:
            raise invalid("`tag` or `metadata` selects the messages: give one of them, or both.")
        counts = {True: 0, False: 0}
        pages = 0
        while pages == 0 or (cursor is not None and pages < PAGES_MAX and sum(counts.values()) < MESSAGES_MAX):
            capacity = MESSAGES_MAX - sum(counts.values())
            page = await self._search.page(caller.account_id, filters, capacity, cursor)
            for message in page.items:
                is_cancelled = await self._cancel_if_untried(caller.account_id, message.id, is_dry_run=is_dry_run)
                counts[is_cancelled] += 1
            pages, cursor = pages + 1, page.next_cursor
        if counts[True] and not is_dry_run:
            await self._note(caller, filters, counts[True])
        return CancelledMessages(counts[True], counts[False], cursor)

    async def move(self, principal: Principal, given_id: str, given_time: str) -> StoredMessage:
        """Send the message at another time."""
        message_id = message_id_of(given_id)
        send_at = parse_send_time(given_time)
        await self._take_rate(principal.account_id)
        async with self._database.transaction() as tx:
            found = await self._locked(tx, principal, message_id)
            _require_untried(found)
            if found.send_at is None:
                raise Refusal(Code.CONFLICT, "This message has no `send_at`: it is sent as soon as possible.")
            check_send_time(send_at, self._clock.now())
            await message_changes.move(tx, principal.account_id, message_id, send_at)
            if found.credits_reserved:
                await self._move_warmup(tx, principal, found.recipient_count, found.send_at, send_at)
            answer = await messages.message(tx, principal.account_id, message_id)
        if answer is None:
            raise no_message()
        return answer

    async def retry(
        self, account_id: AccountId, actor: Actor, given_id: str, email: str | None = None
    ) -> list[RetriedRecipient]:
        """Make the message's deferred recipients due now, or the one with this address; returns what happens to each.

        A request that moves nothing doesn't count.
        """
        message_id = message_id_of(given_id)
        async with snapshot(self._database) as connection:
            timeline = await message_detail.timeline(connection, account_id, message_id, self._clock.now())
        if timeline is None:
            raise no_message()
        chosen = [recipient for recipient in timeline.recipients if email is None or _is(recipient, email)]
        if not chosen:
            raise invalid("`recipient` is not a recipient of this message: leave it out, or name one.")
        results = {recipient.position: self._judge(timeline, recipient) for recipient in chosen}
        fences = {
            recipient.position: recipient.waiting.fence
            for recipient in chosen
            if results[recipient.position].result is RetryAnswer.NOW and recipient.waiting is not None
        }
        if fences:
            moved = await self._make_due(account_id, actor, message_id, fences)
            results |= dict.fromkeys(fences.keys() - moved, retry.taken_by_worker())
        return [
            RetriedRecipient(
                ids.recipient_id(message_id, recipient.position), recipient.email, results[recipient.position]
            )
            for recipient in chosen
        ]

    async def _cancel_if_untried(self, account_id: AccountId, message_id: MessageId, *, is_dry_run: bool) -> bool:
        """Cancel a message if none of its recipients was tried; returns whether it was cancelled, or would be."""
        async with self._database.transaction() as tx:
            found = await message_changes.lock(tx, account_id, message_id)
            if found is None or found.is_tried or found.is_restored:
                return False
            if not is_dry_run:
                await self._cancel(tx, account_id, message_id, found)
                crash.point("cancel.before_commit")
        return True

    async def _take_rate(self, account_id: AccountId) -> None:
        """An account may cancel or move messages at the rate at which it may send; each process counts separately."""
        async with self._database.connection() as connection:
            rate = working_copy(await acceptance.read(connection, account_id), self._defaults).rate
        self._rates.require(
            account_id,
            rate,
            self._clock.now(),
            f"This account may cancel or move {rate.per_second} messages a second, in bursts of up to {rate.burst}",
            otherwise=", or cancel many with POST /v1/messages/cancel",
            has_headers=True,
        )

    async def _move_warmup(
        self, tx: Connection, principal: Principal, recipients: int, before: datetime, after: datetime
    ) -> None:
        """The account's row is locked last, as in `delivery_outcomes`."""
        _, rows = await acceptance.lock(tx, [], [principal.account_id])
        account = working_copy(rows[principal.account_id], self._defaults)
        send_quota.move_quota(account, recipients, before, after, self._clock.now())
        await message_changes.set_warmup(tx, spending(account, 0))

    async def _locked(self, tx: Connection, principal: Principal, message_id: MessageId) -> LockedMessage:
        """As GET /emails/{id} finds it: a test key sees only test mail, a key bound to domains only theirs."""
        found = await message_changes.lock(tx, principal.account_id, message_id)
        if found is None or (principal.mode is Mode.TEST and found.source != Source.TEST):
            raise no_message()
        if principal.sender_domains and parse_mailbox(found.sender).domain not in principal.sender_domains:
            raise no_message()
        return found

    async def _cancel(self, tx: Connection, account_id: AccountId, message_id: MessageId, found: LockedMessage) -> None:
        outcomes = [
            DeliveryOutcome(account_id, message_id, row.position, row.fence, DeliveryResult.CANCELLED)
            for row in found.waiting
        ]
        now = self._clock.now()
        recorded = await delivery_outcomes.record(tx, outcomes, now)
        if found.credits_reserved and found.send_at is not None:
            _, rows = await acceptance.lock(tx, [], [account_id])
            account = working_copy(rows[account_id], self._defaults)
            send_quota.release_quota(account, found.recipient_count, found.send_at, now)
            await message_changes.set_warmup(tx, spending(account, 0))
        # Other results reach the search index through their events.
        term = search.term(SearchField.STATUS, MessageStatus.FAILED)
        await search_index.enter(tx, [IndexEntry(account_id, term, message_id)])
        metrics.CREDITS.count("released", by=recorded.released)

    async def _note(self, caller: Caller, filters: SearchFilters, cancelled: int) -> None:
        detail: dict[str, str | int] = {"cancelled": cancelled}
        if filters.tag is not None:
            detail["tag"] = filters.tag
        if filters.metadata:
            # Values may be personal data.
            detail["metadata"] = ", ".join([name for name, _ in filters.metadata])
        async with self._database.transaction() as tx:
            await self._audit_log.add_entry(
                tx,
                caller.account_id,
                caller.actor,
                "messages.cancelled",
                ids.text(ids.ACCOUNT, caller.account_id),
                self._clock.now(),
                detail,
            )

    def _judge(self, timeline: Timeline, recipient: RecipientTimeline) -> RetryResult:
        waiting = recipient.waiting
        return retry.judge_request(
            recipient.status,
            timeline.wait(recipient),
            None if waiting is None else waiting.next_at,
            0 if waiting is None else waiting.attempt_count,
            self._retries.attempts_max,
        )

    async def _make_due(
        self, account_id: AccountId, actor: Actor, message_id: MessageId, fences: Mapping[int, int]
    ) -> set[int]:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            moved = await message_changes.make_due(tx, account_id, message_id, list(fences.items()), now)
            if moved:
                count = await self._count_retry(tx, account_id, message_id)
                detail = {"recipients": len(moved), "retries": count}
                target = ids.text(ids.MESSAGE, message_id)
                await self._audit_log.add_entry(tx, account_id, actor, "message.retried", target, now, detail)
        return moved

    async def _count_retry(self, tx: Connection, account_id: AccountId, message_id: MessageId) -> int:
        """Raises, and so undoes the rest, if the message or the account was retried too often."""
        now = self._clock.now()
        taken = rate_limit.take_from_rate(
            retry.REQUEST_RATE, await message_changes.rate_full_at(tx, account_id, now), now
        )
        if isinstance(taken, RateWait):
            raise taken.refusal(
                f"An account may request {retry.REQUEST_RATE.burst} retries in a burst, and one a minute after that"
            )
        await message_changes.set_rate_full_at(tx, account_id, taken.full_at)
        count = await message_changes.count(tx, account_id, message_id, now)
        if count > retry.REQUESTS_PER_MESSAGE_MAX:
            raise Refusal(
                Code.CONFLICT,
                f"This message was retried {retry.REQUESTS_PER_MESSAGE_MAX} times on request: its next attempts are "
                "made at their time.",
            )
        return count


def _require_untried(found: LockedMessage) -> None:
    if found.is_tried:
        raise Refusal(
            Code.CONFLICT,
            "A recipient of this message was already tried, or has its result: GET /emails/{id} shows it.",
        )
    if found.is_restored:
        raise Refusal(
            Code.CONFLICT,
            "The service's database was restored, and this message may have been sent before: ask the operator.",
        )


def waiting(tag: str | None, metadata: dict[str, str] | None) -> SearchFilters:
    """Messages that are not final, with this tag and all of this metadata."""
    return SearchFilters(status=MessageStatus.QUEUED, tag=tag, metadata=tuple((metadata or {}).items()))


def _is(recipient: RecipientTimeline, email: str) -> bool:
    return recipient.email.lower() == email.strip().lower()
