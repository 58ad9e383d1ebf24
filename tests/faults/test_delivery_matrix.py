"""The fault matrix of delivery: what each fault of a destination or its DNS means for the recipient.

The rows of the table are sent in a round, each to its own domain and server; then the faults are
removed, and deferred mail is retried. The tests check what was seen after each round.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.ids import MessageId
from tests.support.bad_input import new_seed
from tests.support.certificates import Certificates
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DeliveryFlow, deadlines, open_delivery_flow
from tests.support.eventually import HANG_SECONDS
from tests.support.nameserver import REFUSED, SERVFAIL, SILENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOUND: Final = "127.0.0.1"
# Nothing listens there.
DEAD: Final = "127.0.0.250"
# The first wait is a minute, and up to a tenth longer.
FIRST_WAIT: Final = timedelta(seconds=66)


@dataclass(frozen=True, slots=True)
class Row:
    """What the servers do (the most preferred first), and what the first attempt comes to.

    `lines` is how often the message arrived by then, though we may not know of it.
    """

    name: str
    servers: tuple[str, ...]
    status: str
    code: int | None = None
    stage: str | None = None
    is_ambiguous: bool = False
    lines: int = 0
    tls: bool = False
    dns: str = ""


def deferred(behaviour: str, stage: str, code: int | None = None, *, is_ambiguous: bool = False, lines: int = 0) -> Row:
    return Row(behaviour, (behaviour,), "deferred", code, stage, is_ambiguous, lines)


def bounced(behaviour: str, stage: str, code: int) -> Row:
    return Row(behaviour, (behaviour,), "bounced", code, stage)


def delivered(*servers: str, tls: bool = False) -> Row:
    return Row(" then ".join(servers) or "a sound server", servers, "delivered", 250, "dot", lines=1, tls=tls)


def by_dns(dns: str, status: str, code: int | None = None) -> Row:
    return Row(dns, (), status, code, "dot" if status == "delivered" else None, lines=status == "delivered", dns=dns)


ROWS: Final = [
    # It asks to wait: all of it is read, and nothing is final.
    *[deferred(f"{code}-rcpt", "rcpt", code) for code in (450, 451, 452, 552)],
    *[deferred(f"{code}-{stage}", stage, code) for code in (421, 451) for stage in ("mail", "data", "dot")],
    deferred("421-rcpt", "rcpt", 421),
    deferred("421-connect", "greeting", 421),
    deferred("450-rcpt--no-pipelining", "rcpt", 450),
    deferred("452-data--chunking", "data", 452),
    # It refuses this message.
    *[bounced(f"{code}-{stage}", stage, code) for code in (550, 554) for stage in ("mail", "rcpt", "data", "dot")],
    bounced("552-mail", "mail", 552),
    bounced("552-dot", "dot", 552),
    bounced("551-rcpt", "rcpt", 551),
    bounced("550-rcpt--no-pipelining", "rcpt", 550),
    bounced("554-dot--chunking", "dot", 554),
    # It refuses us, or all clients: the next server is tried, and then the message is rescheduled.
    deferred("554-connect", "greeting", 554),
    deferred("502-ehlo--502-helo", "ehlo", 502),
    deferred("starttls--starttls-refused", "starttls", 454),
    deferred("530-mail", "mail", 530),
    *[
        delivered(behaviour, SOUND)
        for behaviour in ("554-connect", "502-ehlo--502-helo", "starttls-refused", "530-mail", "421-connect")
    ],
    *[delivered(behaviour, SOUND) for behaviour in ("421-ehlo", "drop-connect", "hang-connect", "hang-ehlo", DEAD)],
    Row("two that say no", ("554-connect", "521-connect"), "deferred", 521, "greeting"),
    Row("nothing listens", (DEAD,), "deferred", None, "connect"),
    # What was said about the message is the answer, however many servers there are.
    Row("the first server's 451 counts", ("451-mail", SOUND), "deferred", 451, "mail"),
    Row("the first server's 550 counts", ("550-mail", SOUND), "bounced", 550, "mail"),
    Row("a drop in MAIL counts", ("drop-mail", SOUND), "deferred", None, "mail"),
    delivered("502-ehlo"),
    # It falls silent: before the final dot that means a refusal, after it anything.
    *[deferred(f"{act}-{stage}", stage) for act in ("drop", "hang") for stage in ("mail", "rcpt", "data")],
    *[deferred(f"{act}-dot", "dot", is_ambiguous=True) for act in ("drop", "hang")],
    deferred("lose-dot", "dot", is_ambiguous=True, lines=1),
    deferred("lose-dot--chunking", "dot", is_ambiguous=True, lines=1),
    deferred("drop-connect", "greeting"),
    deferred("hang-connect", "greeting"),
    # It talks forever, or nonsense.
    *[deferred(f"{act}-connect", "greeting") for act in ("drip", "endless", "flood", "overlong", "garbage")],
    *[deferred(f"{act}-mail", "mail") for act in ("drip", "endless", "flood", "overlong", "garbage")],
    *[deferred(f"{act}-dot", "dot", is_ambiguous=True, lines=1) for act in ("drip", "endless", "flood", "overlong")],
    deferred("garbage-dot", "dot", is_ambiguous=True),
    # TLS where it is offered, and none where it breaks.
    *[delivered(behaviour, tls=True) for behaviour in ("starttls", "starttls-untrusted", "starttls-othername")],
    *[delivered(behaviour) for behaviour in ("starttls-broken", "starttls-hang", "starttls-injected", "starttls-half")],
    delivered("no-pipelining"),
    delivered("chunking"),
    # DNS
    *[by_dns(dns, "deferred") for dns in ("servfail", "no answer in time", "refused", "servfail for the server")],
    *[by_dns(dns, "bounced") for dns in ("no such name", "null mx", "a server that has no address")],
    *[by_dns(dns, "bounced") for dns in ("a server that does not exist", "neither server nor address")],
    by_dns("an address and no server", "delivered", 250),
]
NAMES: Final = [row.name for row in ROWS]
assert len(set(NAMES)) == len(NAMES)


@dataclass(frozen=True, slots=True)
class Seen:
    """A recipient after a round: its row, its attempts in their order, its events, and how often it arrived."""

    status: str
    billing: str
    attempt_count: int
    code: int | None
    response: str | None
    message: tuple[str, str]
    attempts: list[dict[str, Any]]
    events: list[tuple[str, dict[str, Any]]]
    lines: int


# What these do ends only when time is over.
ENDLESS: Final = ("hang", "drip", "endless", "flood", "overlong", "no answer in time")


@dataclass(slots=True)
class Matrix:
    """By row: the message, and what was seen after the first round and after the second; and a flow for more rounds."""

    flow: DeliveryFlow
    messages: dict[str, MessageId] = field(default_factory=dict)
    senders: dict[str, str] = field(default_factory=dict)
    first: dict[str, Seen] = field(default_factory=dict)
    second: dict[str, Seen] = field(default_factory=dict)
    suppressed: list[tuple[Any, ...]] = field(default_factory=list)


def domain_of(row: Row) -> str:
    return f"row{ROWS.index(row)}.example.org"


def set_up(flow: DeliveryFlow, row: Row, addresses: dict[str, str]) -> None:
    domain, names = domain_of(row), flow.nameserver
    host = f"mx0.{domain}"
    records = names.records
    records[domain, "MX"] = [f"{10 * number} mx{number}.{domain}." for number in range(max(1, len(row.servers)))]
    for number, behaviour in enumerate(row.servers):
        records[f"mx{number}.{domain}", "A"] = [addresses.get(f"{row.name} {number}", behaviour)]
    match row.dns:
        case "servfail":
            names.script[domain] = SERVFAIL
        case "no answer in time":
            names.script[domain] = SILENT
        case "refused":
            names.script[domain] = REFUSED
        case "servfail for the server":
            names.script[host] = SERVFAIL
        case "no such name":
            del records[domain, "MX"]
        case "null mx":
            records[domain, "MX"] = ["0 ."]
        case "a server that has no address":
            names.zone[host] = ["a text, and nothing else"]
        case "neither server nor address":
            del records[domain, "MX"]
            names.zone[domain] = ["a text, and nothing else"]
        case "an address and no server":
            del records[domain, "MX"]
            records[domain, "A"] = [SOUND]
        case _:
            assert row.dns in ("", "a server that does not exist"), row.dns


def put_right(flow: DeliveryFlow, rows: Sequence[Row]) -> None:
    flow.nameserver.script.clear()
    for row in rows:
        flow.serve(domain_of(row), host=f"mx0.{domain_of(row)}", address=SOUND)


def manners_of_rows() -> tuple[dict[str, str], dict[str, str]]:
    """An address for each server that misbehaves: what it does, and which recipient uses it."""
    behaviours: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for row in ROWS:
        for number, behaviour in enumerate(row.servers):
            if behaviour not in (SOUND, DEAD):
                address = f"127.0.1.{len(behaviours) + 1}"
                behaviours[address] = behaviour
                addresses[f"{row.name} {number}"] = address
    return behaviours, addresses


async def observe(flow: DeliveryFlow, message_id: MessageId) -> Seen:
    async with flow.steps.database.connection() as connection:
        recipient = await connection.fetchrow("SELECT * FROM recipients WHERE message_id = $1", message_id)
        attempts = await connection.fetch("SELECT * FROM attempts WHERE message_id = $1 ORDER BY fence", message_id)
        events = await connection.fetch("SELECT type, body FROM events WHERE message_id = $1", message_id)
    assert recipient is not None
    return Seen(
        recipient["status"],
        recipient["billing_status"],
        recipient["attempt_count"],
        recipient["last_smtp_code"],
        recipient["last_smtp_response"],
        await flow.message(message_id),
        [dict(row) for row in attempts],
        [(kind, json.loads(body)) for kind, body in events],
        sum(item.recipient == recipient["email"] for item in flow.receiver.accepted),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def matrix(new_database: Callable[[], str]) -> AsyncIterator[Matrix]:
    endless = [row for row in ROWS if any(word in row.name for word in ENDLESS)]
    async with opened(new_database(), HANG_SECONDS, HANG_SECONDS) as flow:
        matrix = Matrix(flow)
        # A slow machine must not miss what only ends a hang.
        await play(matrix, flow, [row for row in ROWS if row not in endless])
        async with opened(new_database(), 4.0, 12.0) as another:
            await play(matrix, another, endless)
        yield matrix


@asynccontextmanager
async def opened(url: str, wait_seconds: float, seconds: float) -> AsyncIterator[DeliveryFlow]:
    seed = new_seed()
    async with open_delivery_flow(
        url,
        behaviours=manners_of_rows()[0],
        certificates=Certificates.make(),
        seed=seed,
        deadlines=deadlines(wait_seconds, seconds, seconds),
        lookup_seconds_max=seconds,
    ) as flow:
        yield flow
        assert await database_faults(url) == {}, f"{seed=}"


async def play(matrix: Matrix, flow: DeliveryFlow, rows: Sequence[Row]) -> None:
    addresses = manners_of_rows()[1]
    messages = {}
    for row in rows:
        set_up(flow, row, addresses)
        messages[row.name] = await flow.steps.accept([f"ada@{domain_of(row)}"])
        matrix.senders[row.name] = flow.steps.sender.domain
    assert await flow.run_due() == len(rows)
    matrix.messages |= messages
    matrix.first |= {name: await observe(flow, message_id) for name, message_id in messages.items()}
    put_right(flow, rows)
    flow.clock.advance(FIRST_WAIT)
    await flow.run_due()
    matrix.second |= {name: await observe(flow, message_id) for name, message_id in messages.items()}
    matrix.suppressed += await flow.steps.fetch("SELECT email, reason, code FROM suppressions")


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
async def test_what_a_first_attempt_comes_to(matrix: Matrix, row: Row) -> None:
    seen = matrix.first[row.name]
    (attempt,) = seen.attempts
    recorded = (seen.status, seen.code, attempt["stage"], attempt["is_ambiguous"], seen.lines)
    assert recorded == (row.status, row.code, row.stage, row.is_ambiguous, row.lines), seen.response
    assert (attempt["outcome"], attempt["code"], attempt["response"]) == (row.status, row.code, seen.response)
    assert (seen.attempt_count, (attempt["tls"] or "").startswith("TLS")) == (1, row.tls)
    assert seen.response


MONEY: Final = {
    "delivered": ("settled", ("delivered", "settled")),
    "bounced": ("released", ("failed", "released")),
    "deferred": ("reserved", ("queued", "reserved")),
}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
async def test_credits_and_events_follow_only_from_final_results(matrix: Matrix, row: Row) -> None:
    for seen in (matrix.first[row.name], matrix.second[row.name]):
        assert (seen.billing, seen.message) == MONEY[seen.status]
        if seen.status == "deferred":
            assert seen.events == []
            continue
        ((kind, body),) = seen.events
        message_id = matrix.messages[row.name]
        data = {
            "email_id": ids.text(ids.MESSAGE, message_id),
            "recipient_id": ids.text(ids.RECIPIENT, ids.recipient_id(message_id, 0)),
            "to": f"ada@{domain_of(row)}",
            "from": f"news@{matrix.senders[row.name]}",
            "subject": "Hello",
            "smtp_code": seen.code,
            "smtp_response": seen.response,
        }
        assert (kind, body["type"]) == (f"email.{seen.status}", f"email.{seen.status}")
        assert body["data"] == {name: value for name, value in data.items() if value is not None}
        assert body.keys() == {"id", "type", "created_at", "data"}
        assert body["id"].startswith(ids.EVENT)


async def test_only_addresses_refused_as_unknown_get_no_more_mail(matrix: Matrix) -> None:
    unknown = {f"ada@{domain_of(row)}" for row in ROWS if row.name.startswith("550-rcpt")}
    assert set(matrix.suppressed) == {(email, "bounce", 550) for email in unknown}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
async def test_deferred_mail_arrives_once_the_fault_ends_and_final_stays_final(matrix: Matrix, row: Row) -> None:
    first, second = matrix.first[row.name], matrix.second[row.name]
    if row.status != "deferred":
        assert second == first
        return
    assert (second.status, second.attempt_count, second.code) == ("delivered", 2, 250)
    assert [item["outcome"] for item in second.attempts] == ["deferred", "delivered"]
    # One line, and another only where the first attempt may have arrived.
    assert second.lines == 1 + row.lines
    assert row.lines <= row.is_ambiguous


@pytest.mark.parametrize("row", [row for row in ROWS if row.servers[1:]], ids=lambda row: row.name)
async def test_the_attempt_names_the_last_server(matrix: Matrix, row: Row) -> None:
    (attempt,) = matrix.first[row.name].attempts
    last = 0 if "counts" in row.name else 1
    assert attempt["mx_host"] == f"mx{last}.{domain_of(row)}"
    assert (attempt["remote_ip"] == SOUND) is (row.servers[last] == SOUND)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.dns and row.status != "delivered"], ids=lambda row: row.name
)
async def test_where_dns_leads_nowhere_no_server_is_named(matrix: Matrix, row: Row) -> None:
    (attempt,) = matrix.first[row.name].attempts
    assert (attempt["mx_host"], attempt["remote_ip"], attempt["code"]) == (None, None, None)


# What takes more than one recipient, or more than two rounds.


async def test_greylisting_is_retried_without_an_event(matrix: Matrix) -> None:
    flow = matrix.flow
    flow.serve("waiting.example.org")
    message_id = await flow.steps.accept(["greylist@waiting.example.org"])
    for wait in (timedelta(0), FIRST_WAIT):
        flow.clock.advance(wait)
        await flow.run_due()
        seen = await observe(flow, message_id)
        assert (seen.status, seen.code, seen.events, seen.lines) == ("deferred", 450, [], 0)
    flow.clock.advance(minutes=5.5)
    await flow.run_due()
    seen = await observe(flow, message_id)
    assert (seen.status, seen.attempt_count, len(seen.events), seen.lines) == ("delivered", 3, 1, 1)


async def test_each_recipient_has_its_own_result(matrix: Matrix) -> None:
    flow = matrix.flow
    flow.serve("mixed.example.org")
    locals_ = ("ada", "452-rcpt", "550-rcpt", "greylist", "bob")
    message_id = await flow.steps.accept([f"{local}@mixed.example.org" for local in locals_])
    await flow.run_due()
    assert [(row[1], row[2], row[4]) for row in await flow.recipients(message_id)] == [
        ("delivered", "settled", 250),
        ("deferred", "reserved", 452),
        ("bounced", "released", 550),
        ("deferred", "reserved", 450),
        ("delivered", "settled", 250),
    ]
    assert await flow.message(message_id) == ("queued", "reserved")
    positions = "SELECT position, type FROM events WHERE message_id = $1 ORDER BY position"
    assert await flow.steps.fetch(positions, message_id) == [
        (0, "email.delivered"),
        (2, "email.bounced"),
        (4, "email.delivered"),
    ]
    # Those that are tried again don't bring the others another copy.
    flow.clock.advance(FIRST_WAIT)
    await flow.run_due()
    flow.clock.advance(minutes=5.5)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["delivered", "deferred", "bounced", "delivered", "delivered"]
    arrived = sorted(item.recipient for item in flow.receiver.accepted if item.recipient.endswith("@mixed.example.org"))
    assert arrived == [f"{local}@mixed.example.org" for local in ("ada", "bob", "greylist")]
