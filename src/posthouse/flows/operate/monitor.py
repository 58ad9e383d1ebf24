"""Monitor: what an operator watches while mail is delivered. It only reads.

The figures for the metrics are measured repeatedly by one process, not by each.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from posthouse import metrics
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.tickets import LEASE as TICKET_LEASE
from posthouse.mail.address import parse_mailbox
from posthouse.rules import ids
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import lane_by_name, lane_of
from posthouse.rules.learned_limits import Branch
from posthouse.rules.limits import PARTITION_DAYS_AHEAD
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.usage import hour_of
from posthouse.store import (
    audit_log,
    backlog,
    delivery_schedule,
    lanes,
    learned_limits,
    message_detail,
    partitions,
    postmaster_mail,
    restore,
    search_index,
    usage,
)
from posthouse.store.audit_log import OperatorLogEntry as OperatorLogEntry
from posthouse.store.backlog import Backlog as Backlog
from posthouse.store.backlog import BoundedCount as BoundedCount
from posthouse.store.backlog import QueueShare as QueueShare
from posthouse.store.backlog import QueueShares as QueueShares
from posthouse.store.lanes import LaneReport as LaneReport
from posthouse.store.lanes import LaneTotals as LaneTotals
from posthouse.store.lanes import ReportedLane as ReportedLane
from posthouse.store.learned_limits import StoredLimitChange as StoredLimitChange
from posthouse.store.message_detail import DeliveryAttempt as DeliveryAttempt
from posthouse.store.message_detail import MessageReport as MessageReport
from posthouse.store.message_detail import RecipientTimeline as RecipientTimeline
from posthouse.store.message_detail import Timeline as Timeline
from posthouse.store.partitions import Partition, snapshot
from posthouse.store.postmaster_mail import PostmasterMessage as PostmasterMessage
from posthouse.store.usage import UsageCounts as UsageCounts


@dataclass(frozen=True, slots=True)
class QueueView:
    at: datetime
    backlog: Backlog
    reports: Sequence[LaneReport]


@dataclass(frozen=True, slots=True)
class WaitingView:
    at: datetime
    backlog: Backlog
    totals: LaneTotals


@dataclass(frozen=True, slots=True)
class RecentUsage:
    """Live mail of all accounts that was accepted in this hour and the one before, counted a minute late."""

    since: datetime
    counts: UsageCounts
    rows_read: int


class Monitor(Flow):
    def __init__(self, context: Context, *, ticket_lease: timedelta = TICKET_LEASE) -> None:
        super().__init__(context)
        self._ticket_lease = ticket_lease

    async def timeline(self, given_id: str) -> Timeline:
        """The full timeline of a message of any account."""
        message_id = ids.parse(ids.MESSAGE, given_id)
        if message_id is None:
            raise invalid(f"{given_id!r} is not a message's id: an id is like em_01k… and has 29 characters.")
        async with snapshot(self._database) as connection:
            found = await message_detail.timeline_of_any(connection, MessageId(message_id), self._clock.now())
        if found is None:
            raise Refusal(
                Code.NOT_FOUND, f"No account has a message {given_id}; messages older than the retention are gone."
            )
        return found

    async def limit_changes(self, timeline: Timeline) -> Mapping[int, StoredLimitChange]:
        """For each waiting recipient, by position, the limit change that stops its lane now."""
        found: dict[int, StoredLimitChange] = {}
        domain = parse_mailbox(timeline.sender).domain
        async with self._database.connection() as connection:
            for recipient in timeline.recipients:
                if recipient.final_at is None:
                    branch = Branch(timeline.account_id, recipient.email.rpartition("@")[2].lower())
                    limit_change = await learned_limits.stopping(
                        connection, _lanes_of(recipient), domain, branch, self._clock.now()
                    )
                    if limit_change is not None:
                        found[recipient.position] = limit_change
        return found

    async def queue(self) -> QueueView:
        """How much waits, and the state of the workers' lanes."""
        now = self._clock.now()
        async with snapshot(self._database) as connection:
            counted = await backlog.backlog(connection, now, now + self._ticket_lease)
            reports = await lanes.reports(connection, now - lanes.REPORTS_SHOWN_FOR)
        return QueueView(now, counted, reports)

    async def waiting(self) -> WaitingView:
        """How much waits, and what the workers did."""
        now = self._clock.now()
        async with snapshot(self._database) as connection:
            counted = await backlog.backlog(connection, now, now + self._ticket_lease)
            totals = await lanes.totals(connection, now - lanes.REPORTS_SHOWN_FOR)
        return WaitingView(now, counted, totals)

    async def shares(self, count: int) -> QueueShares:
        """Where the waiting mail goes, and whose it is."""
        async with self._database.connection() as connection:
            return await backlog.shares(connection, count)

    async def usage(self) -> RecentUsage:
        since = hour_of(self._clock.now()) - timedelta(hours=1)
        async with self._database.connection() as connection:
            return RecentUsage(since, *await usage.of_all(connection, since))

    async def operator_log(self, count: int) -> Sequence[OperatorLogEntry]:
        """What operators changed, in the installation or in an account; the newest first."""
        async with self._database.connection() as connection:
            return await audit_log.newest_operator_entries(connection, count)

    async def postmaster_mail(self) -> Sequence[PostmasterMessage]:
        """Mail to postmaster@ and abuse@, newest first."""
        async with self._database.connection() as connection:
            return await postmaster_mail.list_all(connection)

    async def postmaster_message(self, given_id: str) -> tuple[PostmasterMessage, bytes]:
        """A message, and its bytes as received."""
        mail_id = ids.parse(ids.POSTMASTER_MESSAGE, given_id)
        found = None
        if mail_id is not None:
            async with self._database.connection() as connection:
                found = await postmaster_mail.find(connection, mail_id)
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"There is no message {given_id!r}: see `posthouse postmaster-mail list`.")
        return found

    # Figures for the metrics.

    async def measure_queue(self) -> None:
        with _removed_on_failure(
            metrics.QUEUE,
            metrics.QUEUE_OLDEST,
            metrics.HELD_AFTER_RESTORE,
            metrics.WEBHOOK_QUEUE,
            metrics.WEBHOOK_QUEUE_OLDEST,
            metrics.WORKERS,
        ):
            async with self._database.connection() as connection:
                now = self._clock.now()
                mail = await backlog.backlog(connection, now, now + self._ticket_lease)
                webhooks, webhooks_oldest_due_at = await backlog.due_webhooks(connection, now)
                restored = await restore.count_held(connection, backlog.COUNTED_MAX)
                workers = await delivery_schedule.living_workers(connection, now)
            for state in ("due", "leased", "claimed", "later", "held"):
                metrics.QUEUE.set(getattr(mail, state).number, state)
            metrics.QUEUE_OLDEST.set((now - (mail.oldest_due_at or now)).total_seconds())
            metrics.HELD_AFTER_RESTORE.set(restored)
            metrics.WEBHOOK_QUEUE.set(webhooks.number)
            metrics.WEBHOOK_QUEUE_OLDEST.set((now - (webhooks_oldest_due_at or now)).total_seconds())
            metrics.WORKERS.set(workers)

    async def measure_storage(self) -> None:
        with _removed_on_failure(metrics.PARTITIONS, metrics.DAYS_AHEAD, metrics.SEARCH_LAG):
            async with self._database.connection() as connection:
                now = self._clock.now()
                attached = await partitions.attached(connection)
                progress = await search_index.progress(connection)
            metrics.PARTITIONS.replace(
                {(table,): sum(partition.table == table for partition in attached) for table in partitions.TABLES}
            )
            metrics.DAYS_AHEAD.set(_days_ahead(set(attached), now.date()))
            if progress is not None:
                behind = now - ids.time_of(min(progress.messages_to, progress.events_to))
                metrics.SEARCH_LAG.set(max(0.0, behind.total_seconds()))


@contextmanager
def _removed_on_failure(*figures: metrics.Gauge) -> Iterator[None]:
    """A figure that can't be measured is removed, so that no one mistakes an old one for a new one."""
    try:
        yield
    except BaseException:
        for figure in figures:
            figure.clear()
        raise


def _lanes_of(recipient: RecipientTimeline) -> set[str]:
    """The lanes that its mail may use: known by the domain's name, or by the server of the last attempt."""
    domain = recipient.email.rpartition("@")[2].lower()
    mx_hosts = [attempt.mx_host for attempt in recipient.attempts if attempt.mx_host]
    by_mx_host = {lane_of(domain, mx_host) for mx_host in mx_hosts[-1:]}
    return {domain, *by_mx_host, *filter(None, [lane_by_name(domain)])}


def _days_ahead(attached: set[Partition], today: date) -> int:
    """How many consecutive days after today every table has a partition for; -1 without today's."""
    ahead = -1
    while ahead <= PARTITION_DAYS_AHEAD and all(
        Partition(today + timedelta(days=ahead + 1), table) in attached for table in partitions.TABLES
    ):
        ahead += 1
    return ahead
