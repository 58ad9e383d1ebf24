"""Schedules of a given length: messages of a day with their recipients and bodies, and what of them is due when.

Everything is made by SQL, as acceptance and deferrals would have left it. A schedule is filled again for each shape;
the messages stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import asyncpg

from bench import dataset
from bench.dataset import Dataset
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules.retry import DELIVERY
from posthouse.rules.ticket import DeliveryTicket, unpack
from posthouse.store.postgres import Database
from posthouse.wire.stream import TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.clock import SettableClock

SHARDS: Final = 16
BODY_BYTES: Final = 1_000
PROVIDERS: Final = ("gmail.com", "outlook.com", "yahoo.com", "icloud.com", "web.de")
DOMAINS: Final = 2_000
# Destinations whose lanes have capacity even where all others are full: this many of a hundred recipients.
QUIET: Final = "quiet"
QUIET_PERCENT: Final = 2
TICKETS_BATCH_MAX: Final = 100_000
POSTPONED_BATCH: Final = 10_000
PATIENCE: Final = 10.0


class Shape(NamedTuple):
    """When the rows of a schedule are due: evenly from `first` to `last`, counted from now.

    They are due in the order in which they were accepted, give or take `scatter` of that time; or each has a `send_at`.
    """

    first: timedelta
    last: timedelta
    scatter: float
    has_send_at: bool = False

    @property
    def span(self) -> timedelta:
        return self.last - self.first


MIXED: Final = Shape(timedelta(minutes=-40), timedelta(minutes=60), DELIVERY.spread)
# Each row that is due lies on its own page.
SCATTERED: Final = MIXED._replace(scatter=0.5)
FOR_LATER: Final = SCATTERED._replace(has_send_at=True)
OVERDUE: Final = Shape(timedelta(minutes=-60), timedelta(0), DELIVERY.spread)

# Twelve recipients are in ten messages: nine have one, the tenth has three. Large accounts send most of it. `$1` is
# the number of recipients, `$2` the time at which the last message was accepted.
_DRAWN: Final = f"""
CREATE TEMPORARY TABLE drawn AS
SELECT number, least(3, recipients) AS recipients,
    ('{dataset.ACCOUNT_PREFIX}' || {dataset.NUMBER_MIN} + (random() * random() * {dataset.ACCOUNTS - 1})::integer)::uuid
        AS account_id,
    (lpad(to_hex((extract(epoch FROM created_at) * 1000)::bigint), 12, '0')
        || '7' || substr(chance, 1, 3) || '8' || substr(chance, 4, 13) || '00')::uuid AS id,
    created_at
FROM (
    SELECT number, md5('message ' || number) AS chance,
        CASE WHEN number % 10 = 9 THEN 3 ELSE 1 END AS recipients,
        $2::timestamptz - interval '24 hours' * (1 - number * 1.2 / $1) AS created_at
    FROM generate_series(0, ceil($1 / 1.2)::bigint - 1) number) numbered
"""

_MESSAGES: Final = """
INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, subject,
    recipient_count, credits_reserved, open_count, created_at)
SELECT account_id, id, account_id, id, 'api', 'orders@shop.example', 'orders@shop.example', 'Your order ' || number,
    recipients, recipients, recipients, created_at FROM drawn
"""

_RECIPIENTS: Final = f"""
INSERT INTO recipients (account_id, message_id, position, field, email)
SELECT account_id, id, position, 'to', 'person' || number || '.' || position || '@' || CASE
    WHEN chance < {QUIET_PERCENT / 100} THEN '{QUIET}' || (random() * 499)::integer || '.example'
    WHEN chance < 0.6 THEN (ARRAY{list(PROVIDERS)})[1 + (random() * random() * {len(PROVIDERS) - 1})::integer]
    ELSE 'mail' || (random() * {DOMAINS - 1})::integer || '.example' END
FROM (SELECT *, random() AS chance FROM drawn CROSS JOIN generate_series(0, recipients - 1) position) placed
"""

_BODIES: Final = f"INSERT INTO bodies SELECT account_id, id, convert_to(repeat('x', {BODY_BYTES}), 'UTF8') FROM drawn"

# Rows lie in the order of acceptance. They are due in that order too, give or take `$4` of the schedule's length: what
# was tried at the same time is tried again at about the same. Every hundredth is of a suspended account.
_SCHEDULE: Final = """
INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at, send_at, fence, attempt_count,
    held_since)
SELECT account_id, message_id, position, split_part(email, '@', 2), due_at, CASE WHEN $5 THEN due_at END, 1, 1,
    CASE WHEN random() < 0.01 THEN $1::timestamptz END
FROM (
    SELECT *, $1::timestamptz
        + $2::interval * mod((number / $3::float8 + $4 * (2 * random() - 1) + 1)::numeric, 1)::float8 AS due_at
    FROM (
        SELECT account_id, message_id, position, email, row_number() OVER (ORDER BY message_id, position) AS number
        FROM recipients LIMIT $3) ordered) timed
ORDER BY number
"""

# Like a deferral: the first of them is due first.
_PUT_BACK: Final = """
UPDATE delivery_schedule SET next_at = $1::timestamptz + $2::interval * number / $3, worker_id = NULL, attempt_count = 1
FROM unnest($4::uuid[], $5::uuid[], $6::smallint[]) WITH ORDINALITY asked(account_id, message_id, position, number)
WHERE delivery_schedule.account_id = asked.account_id AND delivery_schedule.message_id = asked.message_id
  AND delivery_schedule.position = asked.position
"""

_POSTPONE: Final = """
UPDATE delivery_schedule SET next_at = next_at + $1::interval, fence = fence + 1
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule WHERE next_at < $2 ORDER BY next_at LIMIT $3 FOR NO KEY UPDATE))
"""


@dataclass(slots=True)
class Backlog:
    """A database with a schedule of this many rows, and the flow that publishes them to a stream in memory."""

    rows: int
    admin: Any
    database: Database
    clock: SettableClock
    stream: MemoryStream
    dispatch: Dispatch
    worker_id: UUID

    async def fill(self, shape: Shape) -> None:
        """The schedule is new, and has the given shape; its statistics are those of a table in use."""
        await self.admin.execute("TRUNCATE delivery_schedule, attempts")
        await self.admin.execute("ALTER TABLE delivery_schedule RESET (autovacuum_enabled)")
        begin = self.clock.now() + shape.first
        await self.admin.execute(_SCHEDULE, begin, shape.span, self.rows, shape.scatter, shape.has_send_at)
        await self.admin.execute("VACUUM (ANALYZE) delivery_schedule")

    async def tickets(self) -> list[DeliveryTicket]:
        """What was published; the stream is empty afterwards."""
        found = []
        for carried in await self.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), TICKETS_BATCH_MAX, 0.0):
            found += [ticket for ticket in unpack(carried.payload) if isinstance(ticket, DeliveryTicket)]
            await carried.ack()
        return found

    async def put_back(self, tickets: Sequence[DeliveryTicket], begin: datetime, time: timedelta) -> None:
        """The tickets' rows are due from `begin` on, within that time."""
        keys = [[ticket.account_id for ticket in tickets], [ticket.message_id for ticket in tickets]]
        positions = [ticket.position for ticket in tickets]
        await self.admin.execute(_PUT_BACK, begin, time, max(1, len(tickets)), *keys, positions)

    async def pass_time(self, tickets: Sequence[DeliveryTicket], shape: Shape) -> None:
        """The tickets' rows are at the schedule's end, and the clock has advanced until as many as before are due."""
        passed = shape.span * len(tickets) / self.rows
        await self.put_back(tickets, self.clock.now() + shape.last, passed)
        self.clock.advance(passed)

    async def postpone_all(self, shape: Shape, turns: int) -> None:
        """Every row is postponed this many times by the schedule's whole length, and nothing is vacuumed."""
        await self.admin.execute("ALTER TABLE delivery_schedule SET (autovacuum_enabled = off)")
        for _ in range(turns):
            end = self.clock.now() + shape.last
            while await self.admin.execute(_POSTPONE, shape.span, end, POSTPONED_BATCH) != "UPDATE 0":
                pass
            self.clock.advance(shape.span)

    async def close(self) -> None:
        await self.database.close()
        await self.admin.close()


async def make(data: Dataset, rows: int, say: Callable[[str], None]) -> Backlog:
    """A separate database, copied from the dataset's, with messages for this many recipients; nothing is scheduled."""
    name = f"{dataset.DATABASE}_{rows}"
    data.cluster.create_database(name, dataset.DATABASE)
    url = data.cluster.url(name)
    admin = await asyncpg.connect(url, server_settings={"work_mem": "256MB"})
    clock = SettableClock()
    async with admin.transaction():
        # A statement that makes a table takes no parameters: these values are all ours.
        await admin.execute(_DRAWN.replace("$1", str(rows)).replace("$2", f"'{clock.now()}'"))
        for statement in (_MESSAGES, _RECIPIENTS, _BODIES, "DROP TABLE drawn"):
            await admin.execute(statement)
    await admin.execute("VACUUM (ANALYZE, FREEZE) messages, recipients, bodies, attempts")
    say(f"{rows:,} recipients with their messages are there")
    # What was just made is on the disk before anything counts, and a disk that is busy all the same ends no run.
    await admin.execute("CHECKPOINT")
    database = await Database.open(url, connections_max=1, timeout_factor=PATIENCE)
    stream = MemoryStream()
    dispatch = Dispatch(database=database, clock=clock, tickets=Tickets(stream, SHARDS))
    return Backlog(rows, admin, database, clock, stream, dispatch, uuid4())
