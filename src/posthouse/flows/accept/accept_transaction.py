"""The transaction that accepts messages: keys, quotas and rows of many at once, each with its own answer."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse import crash, metrics
from posthouse.flows.accept.replay import AcceptedMessage, check_same, in_progress, replay
from posthouse.flows.shared.account_limits import Defaults, spending, suspended, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules import ids, message, rate_limit, send_quota
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.limits import BATCH_EMAILS_PER_REQUEST
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage, RememberedKey, Spending
from posthouse.store.postgres import Connection

# The quota decisions of one group commit, made in order on working copies of the accounts.


class GroupQuota:
    def __init__(self, working: dict[AccountId, send_quota.Account], now: datetime) -> None:
        self._accounts = working
        self._now = now
        self._spent: dict[AccountId, int] = {}
        self.entries: list[PreparedMessage] = []

    def admit(self, entry: PreparedMessage, *, is_request: bool = True) -> AcceptedMessage:
        """Charge the account for the message, or raise why it may not be sent."""
        account = self._accounts[entry.account_id]
        if account.suspended:
            raise suspended()
        count = len(entry.recipients)
        charge = send_quota.Charge(count, entry.credits, is_request, entry.send_at, len(entry.mime))
        reading = send_quota.admit(account, charge, self._now)
        self._spent[account.id] = self._spent.get(account.id, 0) + entry.credits
        self.entries.append(entry)
        return AcceptedMessage(
            message_id=entry.message_id,
            subject=entry.subject,
            recipient_count=count,
            credits_reserved=entry.credits,
            is_replay=False,
            rate_headers=rate_limit.rate_headers(account.rate, reading),
        )

    def spendings(self) -> list[Spending]:
        return [spending(self._accounts[account_id], spent) for account_id, spent in self._spent.items()]


# The time to retry a failed batch in parts. The batch has already waited for its locks once, so a part waits only as
# long as other batches take.
APART_SECONDS_MAX: Final = 3.0
APART_LOCK_MILLISECONDS_MAX: Final = 250
# The search index and the usage counter read messages in the order of their ids, and miss a message written later.
WAITED_MAX: Final = timedelta(seconds=20)


class Batch(NamedTuple):
    """What the transactions of one batch request share; each writes only messages of this request."""

    key: IdempotencyKey
    body_hash: bytes
    # All of its messages are accepted, or none.
    is_all: bool
    # How many messages its earlier transactions accepted.
    accepted_count: int = 0


# Called in the transaction to write whatever else follows from its answers.
Note = Callable[[Connection, "Sequence[AcceptedMessage | BaseException]"], Awaitable[None]]


class NotAllAcceptedError(Exception):
    """At least one message of an all-or-nothing batch request was refused; nothing was written."""

    def __init__(self, answers: "Sequence[AcceptedMessage | BaseException]") -> None:
        super().__init__()
        self.answers = answers


class AcceptTransaction(Flow):
    def __init__(self, context: Context, *, defaults: Defaults, tickets: Tickets | None) -> None:
        super().__init__(context)
        self._defaults = defaults
        self._tickets = tickets

    async def accept(self, entries: Sequence[PreparedMessage]) -> Sequence[AcceptedMessage | BaseException]:
        """One transaction for many; if that fails, smaller ones, so that no message fails because of another."""
        try:
            return await self._together(entries)
        except Refusal as refusal:
            if refusal.code is not Code.TEMPORARY_FAILURE:
                raise
            # Another transaction holds an account's row: the other accounts needn't wait for it.
            groups = _by_account(entries)
        except Exception as fault:
            if len(entries) == 1:
                return [fault]
            groups = [[entry] for entry in entries]
        answers = await self._apart(groups)
        return [answers[entry.message_id] for entry in entries]

    async def accept_piece(
        self, entries: Sequence[PreparedMessage], batch: Batch
    ) -> Sequence[AcceptedMessage | BaseException]:
        """Messages of a batch request, in one transaction; its key is remembered with the first of them.

        If that fails, one by one, so that none fails because of another; unless all or none are wanted.
        """
        try:
            return await self._together(entries, batch=batch)
        except (Refusal, NotAllAcceptedError):
            raise
        except Exception:
            if batch.is_all or len(entries) == 1:
                raise
        answers: list[AcceptedMessage | BaseException] = []
        for entry in entries:
            before = sum(isinstance(answer, AcceptedMessage) for answer in answers)
            try:
                answers += await self._together(
                    [entry], batch=batch._replace(accepted_count=batch.accepted_count + before)
                )
            except Refusal:
                raise
            except Exception as fault:
                answers.append(fault)
        return answers

    async def accept_resent(self, entries: Sequence[PreparedMessage], note: Note) -> None:
        """Old messages of an account that are sent again; they count as one request of its rate."""
        await self._together(entries, note=note)

    async def _apart(
        self, groups: Sequence[Sequence[PreparedMessage]]
    ) -> dict[MessageId, AcceptedMessage | BaseException]:
        give_up_at = self._clock.monotonic() + APART_SECONDS_MAX
        answers: dict[MessageId, AcceptedMessage | BaseException] = {}
        for group in groups:
            try:
                if self._clock.monotonic() > give_up_at:
                    raise _waited_too_long()
                results = await self._together(group, lock_milliseconds=APART_LOCK_MILLISECONDS_MAX)
            except Refusal as refusal:
                results = [refusal.copy() for _ in group]
            except Exception as fault:
                if len(group) > 1:
                    answers |= await self._apart([[entry] for entry in group])
                    continue
                results = [fault]
            answers |= {entry.message_id: result for entry, result in zip(group, results, strict=True)}
        return answers

    async def _together(
        self,
        entries: Sequence[PreparedMessage],
        lock_milliseconds: int | None = None,
        batch: Batch | None = None,
        note: Note | None = None,
    ) -> list[AcceptedMessage | BaseException]:
        keys = [entry.key for entry in entries if entry.key is not None]
        locks = keys
        if batch is not None:
            keys.append(batch.key)
            # Its messages' keys come only with this request: locked one by one, two equal requests would each get some.
            locks = [batch.key]
        began_at = self._clock.monotonic()
        async with self._database.transaction() as tx:
            if lock_milliseconds is not None:
                await acceptance.limit_waiting(tx, lock_milliseconds)
            granted, rows = await acceptance.lock(tx, locks, sorted({entry.account_id for entry in entries}))
            crash.point("accept.locked")
            remembered = await acceptance.recall(tx, keys) if keys else {}
            now = self._clock.now()
            if batch is not None:
                _check_batch(batch, granted, remembered, now)
            quota = GroupQuota({row.id: working_copy(row, self._defaults) for row in rows.values()}, now)
            oldest = ids.lowest_id(now - WAITED_MAX)
            answers: list[AcceptedMessage | BaseException] = []
            for entry in entries:
                try:
                    if entry.key is not None:
                        known = remembered.get(entry.key)
                        if known is not None and known.expires_at > now:
                            answers.append(await replay(tx, entry.key, entry.body_hash, known))
                            continue
                        if batch is None and not granted[entry.key]:
                            raise in_progress()
                    if entry.message_id.int < oldest.int:
                        raise _waited_too_long()
                    is_request = not quota.entries if note else batch is None or _is_request(batch, quota)
                    answers.append(quota.admit(entry, is_request=is_request))
                except Refusal as refusal:
                    answers.append(refusal)
            if batch is not None and batch.is_all and any(isinstance(answer, Refusal) for answer in answers):
                raise NotAllAcceptedError(answers)
            expired = [key for key, known in remembered.items() if known.expires_at <= now]
            if expired:
                await acceptance.forget(tx, expired)
            crash.point("accept.decided")
            if quota.entries:
                due_at = now if self._tickets is None else now + self._tickets.lease
                await acceptance.write(tx, quota.entries, quota.spendings(), now, due_at)
                if batch is not None and (batch.key not in remembered or batch.key in expired):
                    await acceptance.remember(tx, batch.key, batch.body_hash, quota.entries[0].message_id, now)
            if note is not None:
                await note(tx, answers)
            crash.point("accept.before_commit")
        crash.point("accept.after_commit")
        metrics.ACCEPT_BATCH.observe(len(entries))
        metrics.ACCEPT_BATCH_SECONDS.observe(self._clock.monotonic() - began_at)
        metrics.CREDITS.count("reserved", by=sum([entry.credits for entry in quota.entries]))
        if self._tickets is not None:
            due = [entry for entry in quota.entries if not message.is_ahead(entry.send_at, now)]
            self._tickets.publish(_tickets(due))
            crash.point("accept.published")
        return answers


def _check_batch(
    batch: Batch,
    granted: Mapping[IdempotencyKey, bool],
    remembered: Mapping[IdempotencyKey, RememberedKey],
    now: datetime,
) -> None:
    if not granted[batch.key]:
        raise in_progress()
    known = remembered.get(batch.key)
    if known is not None and known.expires_at > now:
        check_same(batch.body_hash, known)


def _is_request(batch: Batch, quota: GroupQuota) -> bool:
    """Whether the next message counts as a request of the rate: only the first of each group does."""
    return (batch.accepted_count + len(quota.entries)) % BATCH_EMAILS_PER_REQUEST == 0


def _tickets(entries: Sequence[PreparedMessage]) -> Iterator[DeliveryTicket]:
    for entry in entries:
        for position, recipient in enumerate(entry.recipients):
            destination = entry.routed_to or recipient.destination
            yield DeliveryTicket(
                entry.account_id,
                entry.message_id,
                position,
                0,
                destination,
                entry.sender_domain,
                is_list=entry.is_list,
            )


def _by_account(entries: Sequence[PreparedMessage]) -> list[list[PreparedMessage]]:
    groups: dict[AccountId, list[PreparedMessage]] = {}
    for entry in entries:
        groups.setdefault(entry.account_id, []).append(entry)
    return list(groups.values())


def _waited_too_long() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "The service was busy: try again.", 1)
