"""Monitor: what an operator watches while mail is delivered. It changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from posthouse.clock import Clock
from posthouse.flows.shared.snapshot import snapshot
from posthouse.flows.shared.tickets import LEASE as TICKET_LEASE
from posthouse.mail.address import parse_mailbox
from posthouse.rules import ids
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import lane_by_name, lane_of
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.standing import Branch
from posthouse.rules.usage import hour_of
from posthouse.store import backlog, inbox, lane_reports, message_detail, operator_log, standings, usage
from posthouse.store.backlog import Backlog as Backlog
from posthouse.store.backlog import BoundedCount as BoundedCount
from posthouse.store.backlog import QueueShare as QueueShare
from posthouse.store.backlog import QueueShares as QueueShares
from posthouse.store.inbox import InboxMail as InboxMail
from posthouse.store.lane_reports import LaneReport as LaneReport
from posthouse.store.lane_reports import LaneState as LaneState
from posthouse.store.lane_reports import LaneTotals as LaneTotals
from posthouse.store.message_detail import DeliveryAttempt as DeliveryAttempt
from posthouse.store.message_detail import MessageReport as MessageReport
from posthouse.store.message_detail import RecipientTimeline as RecipientTimeline
from posthouse.store.message_detail import Timeline as Timeline
from posthouse.store.operator_log import OperatorLogEntry as OperatorLogEntry
from posthouse.store.postgres import Database
from posthouse.store.standings import StoredLesson as StoredLesson
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


class Monitor:
    def __init__(self, *, database: Database, clock: Clock, ticket_lease: timedelta = TICKET_LEASE) -> None:
        self._database = database
        self._clock = clock
        self._ticket_lease = ticket_lease

    async def timeline(self, given_id: str) -> Timeline:
        """The whole history of a message of any account."""
        message_id = ids.parse(ids.MESSAGE, given_id)
        if message_id is None:
            raise invalid(f"{given_id!r} is no message's id: an id is like em_01k… and has 29 characters.")
        async with snapshot(self._database) as connection:
            found = await message_detail.timeline_of_any(connection, MessageId(message_id), self._clock.now())
        if found is None:
            raise Refusal(
                Code.NOT_FOUND, f"No account has a message {given_id}; those older than the retention are gone."
            )
        return found

    async def lessons(self, timeline: Timeline) -> Mapping[int, StoredLesson]:
        """For each recipient that waits, by position, the lesson that stops its lane now."""
        found: dict[int, StoredLesson] = {}
        domain = parse_mailbox(timeline.sender).domain
        async with self._database.connection() as connection:
            for recipient in timeline.recipients:
                if recipient.final_at is None:
                    branch = Branch(timeline.account_id, recipient.email.rpartition("@")[2].lower())
                    lesson = await standings.stopping(
                        connection, _lanes_of(recipient), domain, branch, self._clock.now()
                    )
                    if lesson is not None:
                        found[recipient.position] = lesson
        return found

    async def queue(self) -> QueueView:
        """How much waits, and the state of the workers' lanes."""
        now = self._clock.now()
        async with snapshot(self._database) as connection:
            counted = await backlog.backlog(connection, now, now + self._ticket_lease)
            reports = await lane_reports.read(connection, now - lane_reports.SHOWN_FOR)
        return QueueView(now, counted, reports)

    async def waiting(self) -> WaitingView:
        """How much waits, and what the workers did."""
        now = self._clock.now()
        async with snapshot(self._database) as connection:
            counted = await backlog.backlog(connection, now, now + self._ticket_lease)
            totals = await lane_reports.totals(connection, now - lane_reports.SHOWN_FOR)
        return WaitingView(now, counted, totals)

    async def shares(self, count: int) -> QueueShares:
        """Where the mail that waits goes, and whose it is."""
        async with self._database.connection() as connection:
            return await backlog.shares(connection, count)

    async def usage(self) -> RecentUsage:
        since = hour_of(self._clock.now()) - timedelta(hours=1)
        async with self._database.connection() as connection:
            return RecentUsage(since, *await usage.of_all(connection, since))

    async def operator_log(self, count: int) -> Sequence[OperatorLogEntry]:
        """What operators changed, in the installation or in an account; the newest first."""
        async with self._database.connection() as connection:
            return await operator_log.newest(connection, count)

    async def inbox(self) -> Sequence[InboxMail]:
        """Mail to postmaster@ and abuse@, newest first."""
        async with self._database.connection() as connection:
            return await inbox.list_all(connection)

    async def inbox_mail(self, given_id: str) -> tuple[InboxMail, bytes]:
        """A mail, and its bytes as received."""
        mail_id = ids.parse(ids.INBOX_MAIL, given_id)
        found = None
        if mail_id is not None:
            async with self._database.connection() as connection:
                found = await inbox.find(connection, mail_id)
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"The inbox has no mail {given_id!r}: `inbox list` shows what it has.")
        return found


def _lanes_of(recipient: RecipientTimeline) -> set[str]:
    """Those that its mail may go in: known by the domain's name, or by the server of the last attempt."""
    domain = recipient.email.rpartition("@")[2].lower()
    exchanges = [attempt.exchange for attempt in recipient.attempts if attempt.exchange]
    by_exchange = {lane_of(domain, exchange) for exchange in exchanges[-1:]}
    return {domain, *by_exchange, *filter(None, [lane_by_name(domain)])}
