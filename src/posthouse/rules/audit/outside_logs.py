"""Outside logs: JSON lines from senders, receiving servers and webhook receivers, compared with our records.

A sender logs its requests and their answers, a receiving server the mail that arrived, a webhook receiver its calls.
A program that keeps such a log writes a line before it acts on the event: so after a crash the log may miss entries,
but never has too many.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from posthouse.mail import encoded_words
from posthouse.rules import event, ids, limits
from posthouse.rules.audit.message_record import (
    CANCELLED,
    AttemptRecord,
    MessageRecord,
    RecipientRecord,
    unproven_attempts,
)
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.ids import CredentialId, MessageId

LINE_BYTES_MAX: Final = 998
# How much a receiver's clock may differ from ours.
CLOCKS_SECONDS_MAX: Final = 30.0
KEY_LIFETIME: Final = timedelta(seconds=limits.IDEMPOTENCY_LIFETIME_SECONDS)


class OutsideLogError(ValueError):
    """A line that can't be parsed."""


@dataclass(frozen=True, slots=True)
class SenderLine:
    """`{"via", "outcome", "key"?, "id"?}`: a request, and whether it was accepted, refused, or not answered."""

    via: Literal["http", "smtp"]
    outcome: Literal["accepted", "refused", "unanswered"]
    key: str | None
    message_id: MessageId | None


@dataclass(frozen=True, slots=True)
class ArrivalLine:
    """`{"sender", "recipient", "message"?}`: a message accepted for a recipient; the message is base64."""

    sender: str
    recipient: str
    message: bytes | None


@dataclass(frozen=True, slots=True)
class WebhookLine:
    """`{"at", "signature", "body", "status"}`: a webhook call and its answer; the body is base64."""

    at: float
    signature: str
    body: bytes
    status: int


def parse_sender_line(line: str) -> SenderLine:
    given = _object(line)
    try:
        via, outcome = given["via"], given["outcome"]
        message_id = None if given.get("id") is None else ids.parse(ids.MESSAGE, given["id"])
    except (KeyError, TypeError) as error:
        raise OutsideLogError(f"a sender's line must have `via` and `outcome`: {error}") from None
    if via not in ("http", "smtp") or outcome not in ("accepted", "refused", "unanswered"):
        raise OutsideLogError("`via` must be http or smtp, and `outcome` accepted, refused or unanswered")
    if outcome == "accepted" and message_id is None:
        raise OutsideLogError("an accepted request must have the `id` of its message")
    return SenderLine(via, outcome, given.get("key"), None if message_id is None else MessageId(message_id))


def parse_arrival_line(line: str) -> ArrivalLine:
    given = _object(line)
    try:
        message = given.get("message")
        content = None if message is None else base64.b64decode(message, validate=True)
        return ArrivalLine(given["sender"], given["recipient"].lower(), content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OutsideLogError(f"a server's line must have `sender` and `recipient`: {error}") from None


def parse_webhook_line(line: str) -> WebhookLine:
    given = _object(line)
    try:
        body = base64.b64decode(given["body"], validate=True)
        return WebhookLine(float(given["at"]), given["signature"], body, int(given["status"]))
    except (KeyError, TypeError, ValueError) as error:
        raise OutsideLogError(f"a webhook's line must have `at`, `signature`, `body` and `status`: {error}") from None


def _object(line: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise OutsideLogError(f"a line must be a JSON object: {error}") from None
    if not isinstance(given, dict):
        raise OutsideLogError("a line must be a JSON object")
    return given


def compare_key(
    key: str, answered: Sequence[MessageId], credentials: Mapping[MessageId, CredentialId]
) -> Iterator[AuditFinding]:
    """Compare the messages that a key was answered with: one for each credential, until the key has expired.

    `credentials` contains those messages that are on record; the others are lost in any case.
    """
    first: dict[CredentialId, MessageId] = {}
    for message_id in sorted(answered):
        credential_id = credentials.get(message_id)
        if credential_id is None:
            continue
        known = first.get(credential_id)
        if known is not None and ids.time_of(message_id) - ids.time_of(known) < KEY_LIFETIME:
            what = f"a second message was accepted for its key {key!r}"
            yield AuditFinding(Promise.IDEMPOTENT, FaultKind.DUPLICATED, ids.text(ids.MESSAGE, known), what)
        else:
            first[credential_id] = message_id


def compare_arrivals(
    record: MessageRecord, recipients: Sequence[RecipientRecord], arrivals: dict[int, int], tally: AuditTally
) -> None:
    """Compare how often the message arrived at each of these recipients with the record."""
    for recipient in recipients:
        attempts = record.attempts_of(recipient.position)
        count = arrivals.get(recipient.position, 0)
        tally.check(Promise.TRUE, 1, _status_findings(record, recipient.position, recipient.status, count, attempts))
        surplus = count - 1
        excused = unproven_attempts(attempts)
        findings = []
        if surplus > excused:
            what = f"recipient {recipient.position} got it {count} times, and {excused} attempts excuse a second"
            findings.append(AuditFinding(Promise.ONCE, FaultKind.DUPLICATED, record.name, what))
        tally.check(Promise.ONCE, 1, findings, explained=surplus if 0 < surplus <= excused else 0)


def _status_findings(
    record: MessageRecord, position: int, status: str, count: int, attempts: Sequence[AttemptRecord]
) -> Iterator[AuditFinding]:
    if status == "delivered" and count == 0:
        yield AuditFinding(
            Promise.TRUE, FaultKind.LOST, record.name, f"recipient {position} is delivered, and got nothing"
        )
    if status in ("bounced", "failed", CANCELLED) and count > unproven_attempts(attempts):
        what = f"recipient {position} is {status}, and got it {count} times"
        yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)


def compare_content(
    record: MessageRecord, position: int, content: bytes, stored: bytes | None, tally: AuditTally
) -> None:
    """Compare the received message with the stored one: no blind copy is named, and the bytes are the same."""
    blind = [recipient.email.lower() for recipient in record.recipients if recipient.field == "bcc"]
    tally.check(Promise.BLIND_COPIES, 1, _blind(record, content, blind, position))
    tally.check(Promise.BYTES, 1, _bytes(record, content, stored))


def _blind(record: MessageRecord, content: bytes, blind: Sequence[str], position: int) -> Iterator[AuditFinding]:
    head = content.partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ").replace(b"\r\n\t", b" ")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        written = encoded_words.decode(value.decode("utf-8", "replace")).lower()
        may_name = name.strip().lower() in _MAY_NAME_RECIPIENTS
        if name.strip().lower() in (b"bcc", b"resent-bcc"):
            yield AuditFinding(
                Promise.BLIND_COPIES, FaultKind.UNEXPECTED, record.name, f"it arrived with the field {name!r}"
            )
        for address in () if may_name else blind:
            if address in written:
                what = f"recipient {position} could read the blind copy's address {address} in {name!r}"
                yield AuditFinding(Promise.BLIND_COPIES, FaultKind.UNEXPECTED, record.name, what)


# Fields written by the sender, who may have put a blind copy's address there.
_MAY_NAME_RECIPIENTS: Final = frozenset({b"to", b"cc", b"from", b"sender", b"reply-to", b"subject"})


def _bytes(record: MessageRecord, content: bytes, stored: bytes | None) -> Iterator[AuditFinding]:
    def finding(fault: FaultKind, what: str) -> AuditFinding:
        return AuditFinding(Promise.BYTES, fault, record.name, what)

    lines = content.split(b"\r\n")
    if any(b"\n" in line or b"\r" in line for line in lines):
        yield finding(FaultKind.UNEXPECTED, "one of its lines ends without CRLF")
    if b"\0" in content:
        yield finding(FaultKind.UNEXPECTED, "it contains a NUL")
    if max(map(len, lines)) > LINE_BYTES_MAX:
        yield finding(FaultKind.UNEXPECTED, f"one of its lines is longer than {LINE_BYTES_MAX} bytes")
    if stored is None:
        if not record.forgets_content:
            yield finding(FaultKind.UNKNOWN, "its body is not stored any more")
    elif content.partition(b"\r\n\r\n")[2] != stored.partition(b"\r\n\r\n")[2]:
        yield finding(FaultKind.UNEXPECTED, "its body arrived with other bytes than were stored")


def compare_call(
    call: WebhookLine, stored: bytes | None, secret: str | None, secret_since: datetime | None = None
) -> Iterator[AuditFinding]:
    """Compare a call with its stored event. A signature from before `secret_since` can't be checked."""
    name = _event_name(call.body)
    if stored is None:
        yield AuditFinding(Promise.WEBHOOKS, FaultKind.UNKNOWN, name, "the event is not stored, or not any more")
    elif stored != call.body and b'"erased":true' not in stored:
        yield AuditFinding(Promise.EVENTS, FaultKind.UNEXPECTED, name, "it was sent with other bytes than are stored")
    moment = call.signature.partition(",")[0].removeprefix("t=")
    if not moment.isdecimal() or abs(int(moment) - call.at) > CLOCKS_SECONDS_MAX:
        yield AuditFinding(Promise.WEBHOOKS, FaultKind.UNEXPECTED, name, "the signature's time is not that of the call")
    elif secret is None:
        yield AuditFinding(Promise.WEBHOOKS, FaultKind.UNKNOWN, name, "the account has no secret any more")
    elif event.sign(secret, call.body, int(moment)) == call.signature:
        return
    elif secret_since is not None and int(moment) <= secret_since.timestamp():
        yield AuditFinding(Promise.WEBHOOKS, FaultKind.UNKNOWN, name, "it was signed before the secret was replaced")
    else:
        yield AuditFinding(Promise.WEBHOOKS, FaultKind.UNEXPECTED, name, "the signature is not of this body")


def event_id(body: bytes) -> UUID | None:
    try:
        return ids.parse(ids.EVENT, json.loads(body)["id"])
    except (ValueError, KeyError, TypeError):
        return None


def _event_name(body: bytes) -> str:
    found = event_id(body)
    return "an event" if found is None else ids.text(ids.EVENT, found)
