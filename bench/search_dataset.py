"""An account's archive to search in: messages over thirty days, their recipients and their search index, by SQL.

What is written is what the list reads, as acceptance, delivery and maintenance would have left it; the terms are those
of `rules/search`, worked out for every value that occurs and joined to the messages in PostgreSQL.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from bench import dataset
from bench.dataset import Dataset, environment_of, with_connection
from bench.processes import posthouse_command
from posthouse.rules import ids, search
from posthouse.rules.search import SearchField
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from tools.private_postgres import PrivatePostgres

DAYS: Final = 30
RECIPIENTS: Final = 200_000
ORDERS: Final = 300_000
RARE_TAGS: Final = 2_000
RARE_SENDERS: Final = 200
# Of the newest messages.
QUEUED: Final = 2_000
EMAIL: Final = "owner@bench.example"
PASSWORD: Final = "correct horse battery staple"
DESCRIPTION: Final = "archive.json"

SENDERS: Final = ("orders", "billing", "hello", "no-reply", "alerts")
TEMPLATES: Final = tuple(
    f"{kind}-{part}" for kind in ("order", "invoice", "login", "digest") for part in ("a", "b", "c")
)
TAGS: Final = (
    *("order", "invoice", "receipt", "shipping", "login", "password", "welcome", "newsletter", "digest", "alert"),
    *("reminder", "trial", "refund", "support", "survey", "team", "billing", "renewal", "security", "beta"),
)
# The first are the most common by far, as words in subjects are.
SUBJECTS: Final = (
    "Your order {} has shipped",
    "Your order {} is confirmed",
    "Invoice {} from Acme",
    "Receipt for your payment {}",
    "Your login code is {}",
    "Reset your password {}",
    "Welcome to Acme, order {} is your first",
    "Your parcel {} will arrive tomorrow",
    "Reminder: invoice {} is due",
    "Refund for order {} is on its way",
    "New sign-in to your account {}",
    "Weekly digest {} for your team",
    "Ticket {} was answered",
    "How was your order {}?",
    "Subscription {} renews soon",
    "Alert {}: disk is almost full",
    "Backup {} finished",
    "Contract {} needs your signature",
    "Appointment {} was moved",
    "Gift card {} for Ångström & Søn",
)

MAIN: Final = UUID(f"{dataset.ACCOUNT_PREFIX}{dataset.NUMBER_MIN}")
CREDENTIALS: Final = tuple(UUID(f"{dataset.CREDENTIAL_PREFIX}{dataset.NUMBER_MIN + number}") for number in range(4))

_POOLS: Final = "recipient", "order", "subject", "sender", "tag", "template", "credential", "source", "status"
_POOL: Final = "CREATE TEMPORARY TABLE pool_{kind} (number integer, text text, terms bigint[])"

# Every message draws from pools by numbers; `skewed` ones favour the first. `$1` is the day's first millisecond, `$2`
# how many messages it has, `$3` the number of the first.
_DAY: Final = f"""
CREATE TEMPORARY TABLE day AS
SELECT n, account_id, (time || '7' || substr(chance, 1, 3) || '8' || substr(chance, 4, 13) || '00')::uuid AS id,
    created_at, is_second, recipient, second, order_number, subject, sender, tag, rare_tag, template, credential,
    CASE WHEN r < 0.0001 THEN 'test' WHEN r < 0.1 THEN 'smtp' ELSE 'api' END AS source,
    CASE WHEN s < 0.02 THEN 'failed' WHEN s < 0.025 AND is_second THEN 'partial' ELSE 'delivered' END AS status
FROM (
    SELECT n, md5('id ' || n) AS chance, random() AS r, random() AS s,
        lpad(to_hex($1 + (n - $3) * 86400000 / $2), 12, '0') AS time,
        to_timestamp(($1 + (n - $3) * 86400000 / $2) / 1000.0) AS created_at,
        CASE WHEN n % 20 <> 0 THEN '{MAIN}'::uuid
             ELSE ('{dataset.ACCOUNT_PREFIX}' || {dataset.NUMBER_MIN} + 1 + (n / 20) % 100)::uuid END AS account_id,
        n % 5 = 1 AS is_second,
        (random() * random() * {RECIPIENTS - 1})::integer AS recipient,
        (random() * {RECIPIENTS - 1})::integer AS second,
        (random() * {ORDERS - 1})::integer AS order_number,
        (random() * random() * random() * {len(SUBJECTS)})::integer % {len(SUBJECTS)} AS subject,
        CASE WHEN random() < 0.999 THEN (random() * random() * {len(SENDERS) - 1})::integer
             ELSE {len(SENDERS)} + (random() * {RARE_SENDERS - 1})::integer END AS sender,
        (random() * random() * {len(TAGS) - 1})::integer AS tag,
        CASE WHEN random() < 0.05 THEN {len(TAGS)} + (random() * {RARE_TAGS - 1})::integer END AS rare_tag,
        CASE WHEN random() < 0.5 THEN (random() * {len(TEMPLATES) - 1})::integer END AS template,
        CASE WHEN random() < 0.000005 THEN 3 ELSE (random() * random() * 2)::integer END AS credential
    FROM generate_series($3::bigint, $3::bigint + $2::bigint - 1) n) drawn
"""

_ENTRY: Final = """
CREATE TEMPORARY TABLE entry AS
SELECT day.*, recipients.text AS email, seconds.text AS second_email, senders.text AS sender_text,
    credentials.text::uuid AS credential_id, templates.text AS template_text,
    CASE WHEN rare_tag IS NULL THEN ARRAY[tags.text] ELSE ARRAY[tags.text, rare_tags.text] END AS tag_texts,
    replace(subjects.text, '{}', orders.text) AS subject_text, orders.text AS order_text,
    recipients.terms || CASE WHEN is_second AND seconds.number <> recipients.number THEN seconds.terms ELSE '{}' END
        || senders.terms || tags.terms || coalesce(rare_tags.terms, '{}') || coalesce(templates.terms, '{}')
        || credentials.terms || subjects.terms || orders.terms || sources.terms || statuses.terms AS terms
FROM day
JOIN pool_recipient recipients ON recipients.number = recipient
JOIN pool_recipient seconds ON seconds.number = second
JOIN pool_order orders ON orders.number = order_number
JOIN pool_subject subjects ON subjects.number = subject
JOIN pool_sender senders ON senders.number = sender
JOIN pool_tag tags ON tags.number = tag
LEFT JOIN pool_tag rare_tags ON rare_tags.number = rare_tag
LEFT JOIN pool_template templates ON templates.number = template
JOIN pool_credential credentials ON credentials.number = credential
JOIN pool_source sources ON sources.text = source
JOIN pool_status statuses ON statuses.text = status
"""

_MESSAGES: Final = """
INSERT INTO {name} (account_id, id, credential_id, request_id, source, status, billing_status, sender,
    envelope_sender, subject, tags, template, metadata, recipient_count, credits_reserved, open_count, delivered_count,
    released_count, created_at)
SELECT account_id, id, credential_id, id, source, status, CASE status WHEN 'failed' THEN 'released' ELSE 'settled' END,
    sender_text, sender_text, subject_text, tag_texts, template_text,
    json_build_object('campaign', tag_texts[1], 'order', order_text), size, size, 0,
    CASE status WHEN 'failed' THEN 0 WHEN 'partial' THEN 1 ELSE size END,
    CASE status WHEN 'failed' THEN size WHEN 'partial' THEN 1 ELSE 0 END, created_at
FROM (SELECT *, CASE WHEN is_second THEN 2 ELSE 1 END AS size FROM entry) entry
"""

_RECIPIENTS: Final = """
INSERT INTO {name} (account_id, message_id, position, field, email, status, billing_status, attempt_count,
    last_smtp_code, last_smtp_response, delivered_at, bounced_at)
SELECT account_id, id, position, 'to', CASE position WHEN 0 THEN email ELSE second_email END,
    result, CASE result WHEN 'delivered' THEN 'settled' ELSE 'released' END, 1,
    CASE result WHEN 'delivered' THEN 250 ELSE 550 END, 'as it was said by the server of the destination',
    CASE result WHEN 'delivered' THEN created_at END, CASE result WHEN 'bounced' THEN created_at END
FROM (
    SELECT *, CASE WHEN status = 'failed' OR (status = 'partial' AND position = 1) THEN 'bounced' ELSE 'delivered' END
        AS result
    FROM entry CROSS JOIN generate_series(0, CASE WHEN is_second THEN 1 ELSE 0 END) position) entry
"""

_SEARCH_INDEX: Final = """
INSERT INTO {name} (account_id, term, message_id)
SELECT account_id, term, id FROM entry CROSS JOIN unnest(terms) term
"""

_FILLED: Final = {
    "messages": (_MESSAGES, "account_id, id"),
    "recipients": (_RECIPIENTS, "account_id, message_id, position"),
    "search_index": (_SEARCH_INDEX, "account_id, term, message_id"),
}

# The newest are not final yet.
_QUEUE: Final = f"""
WITH newest AS (SELECT account_id, id FROM messages WHERE account_id = '{MAIN}' ORDER BY id DESC LIMIT {QUEUED}),
opened AS (
    UPDATE messages SET status = 'queued', billing_status = 'reserved', open_count = recipient_count,
        delivered_count = 0, released_count = 0
    FROM newest WHERE messages.account_id = newest.account_id AND messages.id = newest.id),
struck AS (
    DELETE FROM search_index USING newest
    WHERE search_index.account_id = newest.account_id AND message_id = newest.id AND term = ANY($1::bigint[]))
INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)
SELECT account_id, id, 0, 'example.net', now() + interval '1 day' FROM newest
"""

_PROGRESS: Final = """
INSERT INTO search_index_progress (messages_to, events_to) VALUES ($1, $1)
ON CONFLICT (singleton) DO UPDATE SET messages_to = excluded.messages_to, events_to = excluded.events_to
"""

_FILL_SETTINGS: Final = {"work_mem": "512MB", "maintenance_work_mem": "512MB", "synchronous_commit": "off"}

# All but the rows of the search index, which are not read: its key has all columns.
_READ: Final = """
SELECT sum(pg_prewarm(oid::regclass)) FROM pg_class
WHERE relkind IN ('r', 'i') AND (relname ~ '^(messages|recipients)_2' OR relname ~ '^catalogue_2.*_pkey$')
"""

# Each the next after one of these ids.
_SOME: Final = f"""
SELECT message.id FROM unnest($1::uuid[]) asked(id) CROSS JOIN LATERAL (
    SELECT id FROM messages WHERE account_id = '{MAIN}' AND messages.id >= asked.id ORDER BY id LIMIT 1) message
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """A dataset with messages: all were accepted before `end`, over the days before it."""

    data: Dataset
    rows: int
    start: datetime
    end: datetime


def open_archive(cluster: PrivatePostgres, workplace: Path, rows: int, say: Callable[[str], None]) -> Archive:
    """The archive in the cluster, which is made if there is none yet."""
    file = cluster.directory / DESCRIPTION
    if not file.exists():
        data = dataset.make(cluster, workplace)
        make_user(data)
        start, end = with_connection(data.url, lambda connection: _fill(connection, rows, say), **_FILL_SETTINGS)
        file.write_text(json.dumps({"rows": rows, "start": start.isoformat(), "end": end.isoformat()}))
    known = json.loads(file.read_text())
    start, end = (datetime.fromisoformat(known[name]) for name in ("start", "end"))
    return Archive(Dataset(cluster, environment_of(cluster), (), workplace), known["rows"], start, end)


def warm(archive: Archive) -> int:
    """PostgreSQL reads all that a list reads, as it has in a service that has run for long; returns the bytes."""

    async def read(connection: Any) -> int:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
        return 8192 * int(await connection.fetchval(_READ) or 0)

    return with_connection(archive.data.url, read)


def messages_after(archive: Archive, times: Sequence[datetime]) -> list[str]:
    """The ids of the large account's messages that were accepted next after these times."""
    lowest = [ids.lowest_id(at) for at in times]
    rows: list[Any] = with_connection(
        archive.data.url, lambda connection: connection.fetch(_SOME, lowest), enable_seqscan="off"
    )
    return [ids.text(ids.MESSAGE, row["id"]) for row in rows]


def make_user(data: Dataset) -> None:
    subprocess.run(
        posthouse_command("user", "create", "shop0.example", EMAIL, "--password-stdin"),
        env=data.environment,
        cwd=data.workplace,
        input=f"{PASSWORD}\n",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def pools() -> dict[str, list[tuple[str, list[int]]]]:
    """Every value that occurs, with the terms that it is found by."""

    def of(field: SearchField, values: Sequence[str]) -> list[tuple[str, list[int]]]:
        return [(value, [search.term(field, value)]) for value in values]

    senders = [f"{name}@shop0.example" for name in (*SENDERS, *(f"rare{number}" for number in range(RARE_SENDERS)))]
    return {
        "recipient": of(SearchField.RECIPIENT, [recipient(number) for number in range(RECIPIENTS)]),
        "order": [
            (text, [search.term(SearchField.WORD, text), search.metadata_term("order", text)])
            for text in [order(number) for number in range(ORDERS)]
        ],
        "subject": [
            (text, [search.term(SearchField.WORD, word) for word in search.words(text.replace("{}", " "))])
            for text in SUBJECTS
        ],
        "sender": of(SearchField.SENDER, senders),
        "tag": [
            *((text, [search.term(SearchField.TAG, text), search.metadata_term("campaign", text)]) for text in TAGS),
            *of(SearchField.TAG, [rare_tag(number) for number in range(RARE_TAGS)]),
        ],
        "template": of(SearchField.TEMPLATE, TEMPLATES),
        "credential": [(str(uuid), [search.term(SearchField.CREDENTIAL, uuid.hex)]) for uuid in CREDENTIALS],
        "source": of(SearchField.SOURCE, ("api", "smtp", "test")),
        "status": of(SearchField.STATUS, ("delivered", "partial", "failed")),
    }


def recipient(number: int) -> str:
    return f"person{number}@mail{number % 500}.example"


def order(number: int) -> str:
    return str(1_000_000 + number)


def rare_tag(number: int) -> str:
    return f"campaign-{number}"


async def _fill(connection: Any, rows: int, say: Callable[[str], None]) -> tuple[datetime, datetime]:
    await _load_pools(connection)
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(DAYS, 0, -1)]
    there = set(await partitions.attached(connection))
    for number, day in enumerate(days):
        first, after = rows * number // DAYS, rows * (number + 1) // DAYS
        async with connection.transaction():
            await _fill_day(connection, day, first, after - first, there)
        say(f"{day}: {after:,} of {rows:,} messages")
    finals = [search.term(SearchField.STATUS, status) for status in ("delivered", "partial", "failed")]
    await connection.execute(_QUEUE, finals)
    start, end = (datetime.combine(day, time(), UTC) for day in (days[0], today))
    await connection.execute(_PROGRESS, ids.lowest_id(end))
    say("vacuuming …")
    await connection.execute("VACUUM (ANALYZE, FREEZE) messages, recipients, search_index, delivery_schedule")
    await connection.execute("CHECKPOINT")
    return start, end


async def _load_pools(connection: Any) -> None:
    made = pools()
    for kind in _POOLS:
        await connection.execute(_POOL.format(kind=kind))
        records = [(number, text, terms) for number, (text, terms) in enumerate(made[kind])]
        await connection.copy_records_to_table(f"pool_{kind}", records=records)
        await connection.execute(f"ANALYZE pool_{kind}")


async def _fill_day(connection: Any, day: date, first: int, count: int, there: set[Partition]) -> None:
    """What is filled gets its key afterwards, and its place last: that takes a third of the time."""
    for table in partitions.TABLES:
        if Partition(day, table) in there:
            await connection.execute(f"DROP TABLE {Partition(day, table).name}")
        if table not in _FILLED:
            await partitions.create(connection, Partition(day, table))
    low, high = (ids.lowest_id(bound) for bound in partitions.bounds(day))
    begin = int(datetime.combine(day, time(), UTC).timestamp() * 1000)
    # A statement that makes a table takes no parameters: these numbers are all ours.
    await connection.execute(
        _DAY.replace("$1", f"{begin}::bigint").replace("$2", f"{count}::bigint").replace("$3", f"{first}")
    )
    await connection.execute(_ENTRY)
    for table, (statement, key) in _FILLED.items():
        name = Partition(day, table).name
        await connection.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        await connection.execute(statement.format(name=name))
        await connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")
        await connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')")
    await connection.execute("DROP TABLE day, entry")
