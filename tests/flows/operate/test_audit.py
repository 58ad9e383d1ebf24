"""The audit finds each breach that was planted, names its promise, and finds nothing where there is none."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from posthouse.flows.operate.audit import Audit, OutsideLogs
from posthouse.rules import event, ids
from posthouse.rules.audit.outside_logs import OutsideLogError
from posthouse.rules.audit.promises import AuditTally, FaultKind, Promise
from posthouse.rules.ids import AccountId
from posthouse.store.endpoints import secret_purpose
from posthouse.store.seal import Sealer
from tests.flows.audit import audit_of
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.kept_databases import Databases, kept_rows
from tests.support.smtp_conversation import Delivered

RECIPIENTS = "SELECT email FROM recipients WHERE message_id = $1 ORDER BY position"
SECRET = f"{event.SECRET_PREFIX}of-the-tests"
_ENDPOINT = """
INSERT INTO endpoints (account_id, id, url, types, enabled, secret_sealed, created_at, updated_at)
VALUES ($1, $1, 'https://hooks.example.com/', '{email.delivered}', true, $2, now(), now())
"""
_REPEATED = """
INSERT INTO attempts
SELECT account_id, message_id, position, fence + 1, worker_id, started_at{} FROM attempts WHERE outcome = 'delivered'
"""
_REPORTED = ", finished_at, outcome, is_ambiguous, mx_host, remote_ip, tls, stage, code, response"


@dataclass(slots=True)
class Audited:
    """A service that delivered, bounced and deferred mail, and its audit."""

    delivery_flow: DeliveryFlow
    flow: Audit
    messages: list[str]

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.delivery_flow.steps.sender.account_id)

    async def sql(self, statement: str, *arguments: object) -> list[Any]:
        return await self.delivery_flow.steps.fetch(statement, *arguments)

    async def audit(self, **logs: list[dict[str, Any]]) -> AuditTally:
        written = {name: [json.dumps(line) for line in lines] for name, lines in logs.items()}
        return await self.flow.audit(OutsideLogs(**written), lambda _: None)

    @property
    def arrivals(self) -> list[dict[str, Any]]:
        return [_arrival(row) for row in self.delivery_flow.receiver.accepted]


def _arrival(mail: Delivered, **changes: Any) -> dict[str, Any]:
    line = {"sender": mail.sender, "recipient": mail.recipient, "message": base64.b64encode(mail.message).decode()}
    return line | changes


def _accepted(key: str, message_id: str) -> dict[str, Any]:
    return {"via": "http", "outcome": "accepted", "key": key, "id": message_id}


def found(tally: AuditTally) -> set[tuple[int, str]]:
    return {(row.promise.value, row.fault.value) for row in tally.findings}


@asynccontextmanager
async def open_audited(database_url: str) -> AsyncIterator[Audited]:
    async with open_delivery_flow(database_url) as delivery_flow:
        delivery_flow.serve("example.org", "example.net")
        sent = [
            await delivery_flow.steps.accept(["ada@example.org", "bob@example.net"]),
            await delivery_flow.steps.accept(["550-rcpt@example.org"]),
            await delivery_flow.steps.accept(["450-rcpt@example.org", "cy@example.org"]),
        ]
        await delivery_flow.run_due()
        sealer = Sealer({"1": bytes(32)}, "1")
        messages = [ids.text(ids.MESSAGE, sent_id) for sent_id in sent]
        audited = Audited(delivery_flow, audit_of(delivery_flow, sealer), messages)
        sealed = sealer.seal(SECRET.encode(), secret_purpose(audited.account_id, audited.account_id))
        await audited.sql(_ENDPOINT, audited.account_id, sealed)
        yield audited


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(databases: Databases) -> AsyncIterator[tuple[Audited, Callable[[], Awaitable[None]]]]:
    url = databases.make()
    async with open_audited(url) as audited, kept_rows(url) as restore:
        yield audited, restore
    databases.release(url)


@pytest.fixture
async def audited(shared: tuple[Audited, Callable[[], Awaitable[None]]]) -> AsyncIterator[Audited]:
    """For a test that changes nothing but rows."""
    audited, restore = shared
    yield audited
    await restore()


@pytest.fixture
async def own_audited(database_url: str) -> AsyncIterator[Audited]:
    async with open_audited(database_url) as audited:
        yield audited


async def test_an_intact_service_passes_with_every_outside_log(audited: Audited) -> None:
    keys = await audited.sql("SELECT key, message_id FROM idempotency")
    requests = [_accepted(key, ids.text(ids.MESSAGE, message_id)) for key, message_id in keys]
    tally = await audited.audit(sender=requests, receiver=audited.arrivals, webhooks=[])
    assert tally.findings == []
    assert not tally.is_broken
    checked = {promise for promise, count in tally.counts.items() if count.checked}
    assert checked == set(Promise) - {Promise.WEBHOOKS}
    assert tally.counts[Promise.DURABLE].ok == tally.counts[Promise.DURABLE].checked >= 5


async def test_what_ends_without_an_attempt_for_a_reason_of_ours_is_no_breach(own_audited: Audited) -> None:
    flow = own_audited.delivery_flow
    await flow.steps.accept(["550-rcpt-unknown@example.org", "dee@example.org"])
    suppressed = "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, $2, 'complaint', $3)"
    await own_audited.sql(suppressed, own_audited.account_id, "dee@example.org", flow.clock.now())
    await flow.run_due()
    flow.clock.advance(days=4)
    await flow.run_due()
    ended = await own_audited.sql(
        "SELECT status FROM recipients r WHERE status IN ('bounced', 'failed') AND NOT EXISTS ("
        " SELECT FROM attempts a WHERE a.message_id = r.message_id AND a.position = r.position"
        " AND a.outcome = r.status) ORDER BY status"
    )
    assert ended == [("bounced",), ("failed",)]
    assert (await own_audited.audit(receiver=own_audited.arrivals)).findings == []


LOST, DUPLICATED, UNEXPECTED = FaultKind.LOST, FaultKind.DUPLICATED, FaultKind.UNEXPECTED
DELIVERED = "(SELECT message_id FROM recipients WHERE email = 'ada@example.org')"
CANCELLED = (
    "UPDATE recipients SET status = 'cancelled', billing_status = 'released', delivered_at = NULL, cancelled_at = now()"
)
PLANTED = {
    "a deleted schedule row": ("DELETE FROM delivery_schedule", 1, LOST),
    "a schedule row of one who is final": (
        """INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)
           SELECT account_id, message_id, position, 'example.org', now() FROM recipients
           WHERE email = 'ada@example.org'""",
        1, UNEXPECTED,
    ),
    "a deleted recipient": ("DELETE FROM recipients WHERE email = 'cy@example.org'", 1, LOST),
    "a body gone too soon": ("DELETE FROM bodies", 1, LOST),
    "a message that says something else than its recipients": (
        "UPDATE messages SET status = 'failed' WHERE status = 'delivered'", 1, UNEXPECTED,
    ),
    "a key without its message": (
        f"UPDATE idempotency SET message_id = '01890000-0000-7000-8000-000000000000' WHERE message_id = {DELIVERED}",
        2, LOST,
    ),
    "a delivery that no attempt made": (f"DELETE FROM attempts WHERE message_id = {DELIVERED}", 3, UNEXPECTED),
    "a delivery that no server confirmed": (
        f"UPDATE attempts SET code = NULL WHERE message_id = {DELIVERED}", 3, UNEXPECTED,
    ),
    "a bounce that was not permanent": ("UPDATE attempts SET code = 450 WHERE outcome = 'bounced'", 3, UNEXPECTED),
    "a try before its time": (
        "UPDATE messages SET send_at = created_at + interval '1 hour' WHERE status = 'delivered'", 3, UNEXPECTED,
    ),
    "a cancelled recipient who was tried": (f"{CANCELLED} WHERE email = 'ada@example.org'", 3, UNEXPECTED),
    "an event of one who was cancelled": (f"{CANCELLED} WHERE email = 'ada@example.org'", 6, UNEXPECTED),
    "a repeated send": (_REPEATED.format(_REPORTED), 4, DUPLICATED),
    "a release of one who was delivered to": (
        "UPDATE ledger SET kind = 'release' WHERE kind = 'settle'", 5, UNEXPECTED,
    ),
    "a close that is missing": ("DELETE FROM ledger WHERE kind = 'release'", 5, UNEXPECTED),
    "credits from nowhere": ("UPDATE accounts SET available = available + 1", 5, UNEXPECTED),
    "an event that was never made": ("DELETE FROM events WHERE type = 'email.bounced'", 6, LOST),
    "an event of another kind": ("UPDATE events SET type = 'email.failed' WHERE type = 'email.bounced'", 6, UNEXPECTED),
    "an event that was made twice": (
        """INSERT INTO events SELECT account_id, overlay(id::text placing 'ffffffffffff' from 25)::uuid, message_id,
           position, type, created_at, body FROM events WHERE type = 'email.bounced'""",
        6, DUPLICATED,
    ),
    "an event for one who is not final": (
        """INSERT INTO events SELECT e.account_id, overlay(e.id::text placing 'ffffffffffff' from 25)::uuid,
           r.message_id, r.position, e.type, e.created_at, e.body FROM events e, recipients r
           WHERE e.type = 'email.bounced' AND r.status = 'deferred'""",
        6, UNEXPECTED,
    ),
    "a webhook delivery that nothing will send": (
        """INSERT INTO webhook_deliveries (account_id, id, event_id, endpoint_id, type, message_id, position, url,
           max_attempts, created_at, next_attempt_at) SELECT account_id, id, id, account_id, type, message_id,
           position, 'https://x', 7, now(), now() FROM events""",
        7, LOST,
    ),
    "a message of a credential that the account doesn't have": (
        "UPDATE messages SET credential_id = account_id", 10, UNEXPECTED,
    ),
    "a try after the address was suppressed": (
        """INSERT INTO suppressions (account_id, email, reason, at)
           SELECT account_id, 'ada@example.org', 'complaint', created_at - interval '1 hour' FROM messages LIMIT 1""",
        12, UNEXPECTED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("breach", PLANTED)
async def test_a_planted_breach_is_found(audited: Audited, breach: str) -> None:
    statement, promise, fault = PLANTED[breach]
    await audited.sql(statement)
    tally = await audited.audit()
    assert (promise, fault.value) in found(tally)
    assert tally.is_broken


def _without_one(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines[1:]


def _with_one_twice(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*lines, lines[0]]


def _changed(**changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda lines: [lines[0] | changes, *lines[1:]]


def _rewritten(old: bytes, new: bytes) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        message = base64.b64decode(lines[0]["message"])
        assert old in message
        return [lines[0] | {"message": base64.b64encode(message.replace(old, new, 1)).decode()}, *lines[1:]]

    return change


HEARD = {
    "a message that never arrived": (_without_one, 3, LOST),
    "a message that arrived twice": (_with_one_twice, 4, DUPLICATED),
    "a message to another recipient": (_changed(recipient="eve@example.org"), 3, UNEXPECTED),
    "a message without a sender of ours": (_changed(sender="bounces+x@bounces.posthouse.test"), 11, UNEXPECTED),
    "a Bcc field": (_rewritten(b"\r\nSubject:", b"\r\nBcc: someone@example.org\r\nSubject:"), 8, UNEXPECTED),
    "a bare line feed": (_rewritten(b"Good morning.", b"Good\nmorning."), 9, UNEXPECTED),
    "a NUL": (_rewritten(b"Good morning.", b"Good\0morning."), 9, UNEXPECTED),
    "a line that is too long": (_rewritten(b"Good morning.", b"x" * 999), 9, UNEXPECTED),
    "other bytes than were stored": (_rewritten(b"Good morning.", b"Good evening."), 9, UNEXPECTED),
}


@pytest.mark.parametrize("breach", HEARD)
async def test_what_a_receiving_server_saw_is_held_against_the_record(audited: Audited, breach: str) -> None:
    change, promise, fault = HEARD[breach]
    tally = await audited.audit(receiver=change(audited.arrivals))
    assert (promise, fault.value) in found(tally)
    assert tally.is_broken


async def test_a_cancelled_message_that_arrived_is_found(audited: Audited) -> None:
    await audited.sql(f"{CANCELLED} WHERE email = 'ada@example.org'")
    await audited.sql("DELETE FROM attempts")
    tally = await audited.audit(receiver=audited.arrivals)
    assert "recipient 0 is cancelled, and got it 1 times" in [row.what for row in tally.findings]


async def test_mail_that_the_simulator_took_is_in_no_outside_log(audited: Audited) -> None:
    await audited.sql("UPDATE attempts SET mx_host = NULL, remote_ip = NULL WHERE outcome = 'delivered'")
    assert not (await audited.audit(receiver=[])).is_broken


@pytest.mark.parametrize(
    "statements",
    [
        [_REPEATED.format("")],
        # It was taken for dead a minute after it began, and another sent the message while it waited for its answer.
        [
            "UPDATE attempts SET finished_at = started_at + interval '2 minutes' WHERE outcome = 'delivered'",
            _REPEATED.format(" + interval '1 minute'" + _REPORTED),
        ],
    ],
    ids=["an orphan", "a late report"],
)
async def test_a_copy_that_an_orphan_or_a_late_report_excuses_is_explained(
    audited: Audited, statements: list[str]
) -> None:
    for statement in statements:
        await audited.sql(statement)
    tally = await audited.audit(receiver=_with_one_twice(audited.arrivals))
    assert not tally.is_broken
    assert tally.counts[Promise.ONCE].explained == 1


async def test_a_blind_copy_that_others_can_read_of_is_found(own_audited: Audited) -> None:
    flow = own_audited.delivery_flow
    sent = await flow.steps.accept(["ada@example.org"], bcc=["secret@example.net"])
    await flow.run_due()
    lines = own_audited.arrivals
    assert not (await own_audited.audit(receiver=lines)).is_broken
    leaked = [row for row in flow.receiver.accepted if row.recipient == "secret@example.net"][-1]
    message = b"X-Envelope-To: =?utf-8?q?secret=40example=2Enet?=\r\n" + leaked.message
    lines[-1] = _arrival(leaked, message=base64.b64encode(message).decode())
    tally = await own_audited.audit(receiver=lines)
    assert {row.where for row in tally.findings if row.promise is Promise.BLIND_COPIES} == {ids.text(ids.MESSAGE, sent)}


async def test_accepted_mail_that_is_not_on_record_and_two_messages_for_one_key_are_found(audited: Audited) -> None:
    lost = _accepted("k", "em_01k00000000000000000000000")
    assert (1, "lost") in found(await audited.audit(sender=[lost]))
    lines = [_accepted("k", message_id) for message_id in audited.messages[:2]]
    assert (2, "duplicated") in found(await audited.audit(sender=lines))


async def test_one_key_under_several_credentials_is_no_duplicate(audited: Audited) -> None:
    another_credential = """
        INSERT INTO credentials (account_id, id, username, name, secret_hash, is_default, created_at)
        SELECT account_id, $2, username || $3, name || $3, secret_hash, false, created_at FROM credentials
        WHERE account_id = $1 AND is_default
    """
    for number, credential_id in enumerate([uuid4(), uuid4()], 1):
        await audited.sql(another_credential, audited.account_id, credential_id, f"-{number}")
        message_id = ids.parse(ids.MESSAGE, audited.messages[number])
        for table, column in (("messages", "id"), ("idempotency", "message_id")):
            await audited.sql(f"UPDATE {table} SET credential_id = $2 WHERE {column} = $1", message_id, credential_id)
    await audited.sql("UPDATE idempotency SET key = 'order-1'")
    lines = [_accepted("order-1", message_id) for message_id in audited.messages]
    tally = await audited.audit(sender=lines)
    assert tally.findings == []
    assert tally.counts[Promise.IDEMPOTENT].checked >= 3


async def test_a_key_used_again_after_a_day_is_no_duplicate(own_audited: Audited) -> None:
    own_audited.delivery_flow.clock.advance(hours=25)
    later = ids.text(ids.MESSAGE, await own_audited.delivery_flow.steps.accept(["late@example.org"]))
    lines = [_accepted("k", message_id) for message_id in (own_audited.messages[0], later)]
    assert (2, "duplicated") not in found(await own_audited.audit(sender=lines))


async def test_mail_with_an_empty_sender_is_found_at_its_recipient(audited: Audited) -> None:
    message_id = ids.parse(ids.MESSAGE, audited.messages[0])
    before = audited.arrivals
    await audited.sql("UPDATE messages SET envelope_sender = '' WHERE id = $1", message_id)
    named = [email for (email,) in await audited.sql(RECIPIENTS, message_id)]
    lines = [line | {"sender": ""} if line["recipient"] in named else line for line in before]
    tally = await audited.audit(receiver=lines)
    assert tally.findings == []
    lost = [line for line in lines if line["recipient"] != named[0]]
    assert (3, "lost") in found(await audited.audit(receiver=lost))
    stray = [*lines, lines[0] | {"sender": "", "recipient": "eve@example.org"}]
    tally = await audited.audit(receiver=stray)
    assert (found(tally), tally.is_broken) == ({(11, "unknown")}, False)


async def test_a_call_signed_before_the_secret_was_rotated_is_no_breach(audited: Audited) -> None:
    ((body,),) = await audited.sql("SELECT body FROM events WHERE type = 'email.bounced'")
    rotated_at = 1_800_000_000.0
    noted = """
        INSERT INTO audit_log (account_id, id, at, actor, action, target, detail)
        VALUES ($1, $2, to_timestamp($3), 'ada@example.org', 'webhook.secret_rotated', 'webhook', '{}')
    """
    await audited.sql(noted, audited.account_id, uuid4(), rotated_at)
    tally = await audited.audit(webhooks=[_call(body, at=rotated_at - 60, secret="whsec_of_before")])
    assert (found(tally), tally.is_broken) == ({(7, "unknown")}, False)
    tally = await audited.audit(webhooks=[_call(body, at=rotated_at + 60, secret="whsec_of_before")])
    assert tally.counts[Promise.WEBHOOKS].is_broken
    tally = await audited.audit(webhooks=[_call(body, at=rotated_at + 60)])
    assert tally.findings == []


def _call(body: bytes, *, at: float = 1_800_000_000.0, secret: str = SECRET, status: int = 200) -> dict[str, Any]:
    signature = event.sign(secret, body, int(at))
    return {"at": at, "signature": signature, "body": base64.b64encode(body).decode(), "status": status}


async def test_what_a_webhooks_receiver_heard_is_held_against_the_events(audited: Audited) -> None:
    ((body,),) = await audited.sql("SELECT body FROM events WHERE type = 'email.bounced'")
    assert not (await audited.audit(webhooks=[_call(body)])).is_broken
    late = {**_call(body), "at": 1_800_000_100.0}
    for line, promise in (
        (_call(body + b" "), Promise.EVENTS),
        (_call(body, secret="whsec_another"), Promise.WEBHOOKS),
        (late, Promise.WEBHOOKS),
        ({**_call(body), "body": base64.b64encode(b"no event").decode()}, Promise.WEBHOOKS),
    ):
        tally = await audited.audit(webhooks=[line])
        assert tally.counts[promise].is_broken


async def test_a_line_that_cant_be_read_is_named(audited: Audited) -> None:
    with pytest.raises(OutsideLogError, match="line 2: "):
        await audited.flow.audit(OutsideLogs(receiver=["", "[]"]), lambda _: None)
