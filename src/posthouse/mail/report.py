"""Mail to a return path: a bounce with its failed recipients, a complaint, or neither.

`read` parses the mail once (`parts`), and tries one kind of mail after the other: feedback reports (RFC 5965), delivery
status notifications (RFC 3464, 6522), receipts, automatic replies and other mail, and notices that are only text
(`bounce_text`). Each kind is a function below, and the first that applies counts.

The mail is untrusted and may be forged: all of it is bounded, every step is linear, nothing raises, and the caller
verifies the tokens, which only those to whom we sent the message know.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from posthouse.mail.bounce_text import (
    FINDINGS_MAX,
    Notice,
    address_of,
    diagnose,
    known_forms,
    notice_in,
    precision,
    quoted_refusals,
    text_about,
)
from posthouse.mail.envelope import LOCAL_PREFIX
from posthouse.mail.parts import HEAD_BYTES_MAX, MimePart, ParsedMail, decode_words, fields_of, parse_mail
from posthouse.mail.reply import printable

FAILURES_MAX: Final = 100
TOKENS_MAX: Final = 20
TEXT_CHARACTERS_MAX: Final = 500
_SUBJECT_CHARACTERS_MAX: Final = 500
# How many are read, even if none of them counts.
_RECIPIENTS_MAX: Final = 1_000
_DIAGNOSTIC_CHARACTERS_MAX: Final = 2_000
_KIND_CHARACTERS_MAX: Final = 20
_CANDIDATES_MAX: Final = 1_000


class FailedRecipient(NamedTuple):
    """`recipient` is the bare address, lower case, in A-labels; None if the report doesn't name it.

    `status` is the most precise status (RFC 3463) in the report; without it, only the failure is known. Not
    `is_permanent`: retries were used up, and a later message may succeed.
    """

    recipient: str | None
    status: str | None
    code: int | None
    is_permanent: bool
    text: str


class Bounce(NamedTuple):
    failures: tuple[FailedRecipient, ...]
    tokens: tuple[str, ...]


class Complaint(NamedTuple):
    """`kind` is the Feedback-Type as given: "not-spam" withdraws a complaint."""

    kind: str
    recipient: str | None
    tokens: tuple[str, ...]
    text: str


class NoReport(NamedTuple):
    reason: str


AUTOMATIC_REPLY: Final = NoReport("an automatic reply")
CHALLENGE: Final = NoReport("a challenge that wants an answer from a person")
DELAYED: Final = NoReport("delayed, not failed")
DELIVERED: Final = NoReport("a delivery receipt")
SEEN: Final = NoReport("a read receipt")
AUTHENTICATION: Final = NoReport("a report of failed authentication")
LIST_MAIL: Final = NoReport("mail of a list")
NOT_UNDERSTOOD: Final = NoReport("not understood")

_STATUS_PARTS: Final = ("message/delivery-status", "message/global-delivery-status")
_ORIGINAL_PARTS: Final = (
    "message/rfc822",
    "message/global",
    "message/rfc822-headers",
    "text/rfc822-headers",
    "message/global-headers",
)
_DISPOSITION_PARTS: Final = ("message/disposition-notification", "message/global-disposition-notification")
# Delivery time expired (RFC 3463), and Exchange Online's own number for it: not permanent despite the class.
_EXPIRED: Final = ("5.4.7", "5.4.300")

_TOKEN: Final = LOCAL_PREFIX.encode()
_is_token: Final = re.compile(re.escape(_TOKEN) + rb"([a-z2-7]{48})@([a-z0-9.-]{1,253})").match
_is_domain: Final = re.compile(rb"[a-z0-9.-]{1,253}\Z").match
_FEEDBACK_ID: Final = b"\ncfbl-feedback-id:"
_is_feedback_id: Final = re.compile(rb"[ \t\r]*+(?:\n[ \t]++)?([!-~]{1,256}+)[ \t\r]*+(?:\n|\Z)").match
_is_kind: Final = re.compile(r"[a-z0-9-]{1,32}\Z").match
_is_status: Final = re.compile(r"\s*+([245]\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])").match
_unescape_xtext: Final = re.compile(r"\+(2B|3D)").sub

_is_lasting: Final = re.compile(
    r"retry time|retry timeout|timed? ?out|connection refused|could ?n[o']t connect|unable to connect|expired|too long"
    r"|no route to host|network is unreachable|temporar|giving up after|for past|not respond"
    r"|(?:over|exceed).{0,20}quota|quota.{0,20}exceed|mailbox.{0,20}full",
    re.IGNORECASE,
).search
_is_daemon: Final = re.compile(
    r"(?:mailer[-_.]?daemon|mail[-_.]?daemon|postmaster|mdaemon|mail[-_.]?delivery|microsoftexchange[0-9a-f]{8,})",
    re.IGNORECASE,
).match
_is_daemon_name: Final = re.compile(r"mail (?:delivery|system|router|administrator)|mailer-daemon", re.I).search
_is_failure_subject: Final = re.compile(
    "undeliver|returned (?:e-?mail|message)|returned to sender|delivery (?:status )?notification|failure notice"
    "|deliver[a-z]{0,20} .{0,30}fail|fail[a-z]{0,20} .{0,30}deliver|mail failure|non-?delivery|not delivered"
    "|permanent(?:ly)? fail|(?:could not|couldn't|can't|cannot) be delivered|unable to deliver"
    "|message (?:rejected|blocked)|mail system error|unzustellbar|nicht zustellbar|nicht zugestellt"
    "|non remis|non distribu|échec de .{0,12}remise|non recapita|mancato recapito|no se (?:ha )?pud?o? ?entreg"
    "|no entregad|devuelto|não entregue|não pôde ser entregue|onbestelbaar|недоставлен|не доставлен"
    "|не может быть доставлен|退信|退回|配信不能|配信エラー|配信できません|iletilemedi",
    re.IGNORECASE,
).search
_is_delay: Final = re.compile(
    r"(?:delivery|message) .{0,60}\bdelayed\b|\(delay\)|delayed (?:mail|delivery)"
    r"|warning: could not send|has not yet been delivered|not been delivered yet"
    r"|this is a warning message only|do not need to resend|don't need to resend|will (?:be retried|keep trying|retry)"
    r"|still (?:being tried|trying)|delivery attempts will continue|verzögert|zustellung wird weiter",
    re.IGNORECASE,
).search
_is_reply_subject: Final = re.compile(
    r"\s*(?:\[?auto(?:matic|mated|matische|matisch|matisk)?[- ]?(?:re(?:ply|sponse|sponder)|antwort|antwoord|svar)"
    r"|auto: |out[- ]of[- ](?:the[- ])?office|ooo\b|away from|on vacation|vacation|abwesen|réponse automatique|absence"
    r"|absent|respuesta autom|fuera de|risposta automatica|fuori ufficio|resposta autom|ausência|afwezig|autosvar"
    r"|automaattinen|odpowiedź automatyczna|automatyczna odpowiedź|otomatik|автоответ|автоматический ответ"
    r"|自动回复|自動回覆|自動返信|不在|자동)",
    re.IGNORECASE,
).match
_is_challenge_subject: Final = re.compile(
    r"verify#|requires? (?:verification|confirmation|authentication)"
    r"|(?:confirm|verify) (?:that you|your (?:e-?mail|message|identity))|challenge|please authenticate"
    r"|waiting for (?:approval|confirmation)|awaiting (?:approval|authori[sz]ation)",
    re.IGNORECASE,
).search
_REPLY_FIELDS: Final = (
    "x-autoreply",
    "x-autoreply-from",
    "x-autorespond",
    "x-autoresponder",
    "x-auto-reply",
    "x-vacation",
)
_CHALLENGE_FIELDS: Final = ("x-boxtrapper", "x-spamarrest", "x-tmda-confirm", "x-ask-auth", "x-challenge")
_LIST_FIELDS: Final = ("list-id", "list-unsubscribe", "list-post", "x-mailman-version")

# The beginnings of actions (RFC 3464, 2.3.3), and the classes of statuses.
_ACTIONS: Final = (
    *(("fail", "failed"), ("error", "failed"), ("delayed", "delayed")),
    *(("delivered", "delivered"), ("relayed", "delivered"), ("expanded", "delivered")),
)
_CLASSES: Final = {"5": "failed", "4": "delayed", "2": "delivered"}


class _Mail(NamedTuple):
    """What the kinds of mail below look at. `notice` is its human-readable text, without the original message."""

    parsed: ParsedMail
    field_names: frozenset[str]
    subject: str
    is_from_daemon: bool
    has_failure_subject: bool
    notice: Notice


def read(raw: bytes) -> Bounce | Complaint | NoReport:
    """The report in the mail. Never raises, whatever the bytes are."""
    parsed = parse_mail(raw)
    subject = decode_words(parsed.outer.get("subject"))[:_SUBJECT_CHARACTERS_MAX]
    mail = _Mail(
        parsed,
        frozenset([name for name, _ in parsed.outer.fields]),
        subject,
        _is_from_daemon(parsed.outer),
        _is_failure_subject(subject) is not None,
        notice_in(parsed.text()),
    )
    status = parsed.leaf(*_STATUS_PARTS)
    return (
        _feedback_report(mail)
        or _complaint_to_microsoft(mail)
        or _status_notification(mail, status.decoded() if status else b"")
        or _disposition_notification(mail)
        or _failed_recipients_field(mail)
        or _other_mail(mail)
        # Gateways that flatten a notification keep its fields in the text.
        or _status_notification(mail, mail.notice.text.encode("utf-8", "replace"))
        or _delay_notice(mail)
        or _failure_notice(mail)
        or NOT_UNDERSTOOD
    )


def _is_from_daemon(outer: MimePart) -> bool:
    sender = decode_words(outer.get("from"))[:1_000]
    name, opening, address = sender.rpartition("<")
    # Only servers send mail without a sender.
    return (
        not address.strip(" <>")
        or _is_daemon(address.strip()) is not None
        or (opening != "" and _is_daemon_name(name) is not None)
    )


# Complaints


def _feedback_report(mail: _Mail) -> Complaint | NoReport | None:
    """RFC 5965."""
    if (part := mail.parsed.leaf("message/feedback-report")) is None:
        return None
    given = fields_of(part.decoded().split(b"\n"))
    fields = dict(reversed(given))
    kind = fields.get("feedback-type", "").partition(";")[0].strip().lower()
    if kind.startswith("auth-failure"):
        return AUTHENTICATION
    if not _is_kind(kind):
        # An unknown kind counts as "other" (RFC 5965, 3.1).
        kind = "other"
    recipient = address_of(fields.get("original-rcpt-to", "")) or address_of(fields.get("removal-recipient", ""))
    tokens = _complaint_tokens(mail.parsed, [value for name, value in given if name == "original-mail-from"])
    return Complaint(kind, recipient, tokens, _line(mail.parsed.text()))


def _complaint_to_microsoft(mail: _Mail) -> Complaint | None:
    """Outlook.com's older form: the original message, with a field that names the complainer."""
    if not mail.subject.lower().startswith("complaint about message from"):
        return None
    fields = chain.from_iterable(map(_attached_fields, mail.parsed.leaves))
    complainer = next((value for name, value in fields if name == "x-hmxmroriginalrecipient"), None)
    if complainer is None:
        return None
    return Complaint("abuse", address_of(complainer), _complaint_tokens(mail.parsed, ()), _line(mail.subject))


def _complaint_tokens(parsed: ParsedMail, senders: Iterable[str]) -> tuple[str, ...]:
    """Our tokens, in the fields where we or the provider wrote them; `senders` are those that it reports.

    A customer writes the rest of the original message, and could put tokens of another customer's mail there.
    """
    original = parsed.leaf(*_ORIGINAL_PARTS)
    fields = _attached_fields(original) if original else ()
    paths = [*senders, *(value for name, value in fields if name == "return-path")]
    feedback_ids = [f"{name}: {value}" for name, value in fields if name == "cfbl-feedback-id"]
    return _tokens_in(["".join([f"\n{line}" for line in (*paths, *feedback_ids)]).encode()])


def _attached_fields(leaf: MimePart) -> tuple[tuple[str, str], ...]:
    """The header of the message in this part."""
    return fields_of(leaf.decoded().lstrip(b"\n")[:HEAD_BYTES_MAX].partition(b"\n\n")[0].split(b"\n"))


# Notifications (RFC 3464)


def _status_notification(mail: _Mail, content: bytes) -> Bounce | NoReport | None:
    """The report in the fields of a delivery status, or None if they name no recipient."""
    failures: dict[str | int, FailedRecipient] = {}
    is_delayed = is_delivered = False
    for fields in islice(_recipients(content), _RECIPIENTS_MAX):
        match _action(fields):
            case "failed" if len(failures) < FAILURES_MAX:
                recipient = _recipient_of(fields)
                key = recipient or len(failures)
                if key not in failures:
                    failures[key] = _failed(recipient, _status_of(fields, "45"), _diagnostic_of(fields))
            case "delayed":
                is_delayed = True
            case "delivered":
                is_delivered = True
    for key, failed in islice(failures.items(), FINDINGS_MAX):
        if failed.recipient and not failed.text:
            # Older Exchange writes the reason only into the text; the status stays.
            failures[key] = failed._replace(text=_line(text_about(failed.recipient, mail.notice)))
    if failures:
        return _bounce(mail, failures.values())
    return DELAYED if is_delayed else DELIVERED if is_delivered else None


def _recipients(content: bytes) -> Iterator[dict[str, str]]:
    """The fields of each recipient; usually separated by blank lines."""
    lines: list[bytes] = []
    has_recipient = False
    for line in (*content.replace(b"\r\n", b"\n").split(b"\n"), b""):
        is_recipient = line[:16].lower() == b"final-recipient:"
        if lines and (not line.strip() or (is_recipient and has_recipient)):
            if has_recipient or any(given[:7].lower() == b"action:" for given in lines):
                # The first of two fields with the same name counts.
                yield dict(reversed(fields_of(lines)))
            lines, has_recipient = [], False
        if line.strip():
            lines.append(line)
            has_recipient = has_recipient or is_recipient


def _action(fields: dict[str, str]) -> str:
    given = fields.get("action", "").lower()
    # Without an action known to RFC 3464, only a permanent status is a failure.
    status = _status_of(fields, "245") or ""
    of_class = _CLASSES.get(status[:1], "")
    return next((action for beginning, action in _ACTIONS if given.startswith(beginning)), of_class)


def _status_of(fields: dict[str, str], classes: str) -> str | None:
    status = _is_status(fields.get("status", ""))
    return status[1] if status and status[1][0] in classes else None


def _diagnostic_of(fields: dict[str, str]) -> str:
    text = decode_words(fields.get("diagnostic-code", "")[:_DIAGNOSTIC_CHARACTERS_MAX])
    kind, semicolon, rest = text.partition(";")
    return rest.strip() if semicolon and len(kind) <= _KIND_CHARACTERS_MAX and " " not in kind.strip() else text


def _recipient_of(fields: dict[str, str]) -> str | None:
    """The address that we sent to, rather than an address that it was forwarded to."""
    given = (fields.get(name, "") for name in ("original-recipient", "final-recipient", "x-actual-recipient"))
    return next(filter(None, map(_typed_address, given)), None)


def _typed_address(given: str) -> str | None:
    kind, semicolon, address = given.partition(";")
    if not semicolon:
        kind, address = "rfc822", given
    if kind.strip().lower() not in ("rfc822", "utf-8", "smtp"):
        return None
    # Some servers don't decode xtext (RFC 3461, 4).
    return address_of(_unescape_xtext(lambda found: chr(int(found[1], 16)), address))


# Receipts, automatic replies, and other mail


def _disposition_notification(mail: _Mail) -> Bounce | NoReport | None:
    """A read receipt, unless it is used as a bounce: Sieve's reject, and Dovecot's full mailbox."""
    if (disposition := mail.parsed.leaf(*_DISPOSITION_PARTS)) is None:
        return None
    if "automatically rejected" not in mail.notice.text:
        return SEEN
    recipient = _recipient_of(dict(reversed(fields_of(disposition.decoded().split(b"\n")))))
    return _bounce(mail, [_failed(recipient, None, mail.notice.text)])


def _other_mail(mail: _Mail) -> NoReport | None:
    """Why it is no bounce, unless its header looks like a notice of failed delivery."""
    if _is_reply_subject(mail.subject) or not mail.field_names.isdisjoint(_REPLY_FIELDS):
        return AUTOMATIC_REPLY
    if not mail.field_names.isdisjoint(_CHALLENGE_FIELDS):
        return CHALLENGE
    if not mail.field_names.isdisjoint(_LIST_FIELDS):
        return LIST_MAIL
    if mail.is_from_daemon or mail.has_failure_subject:
        return None
    # Not earlier: a bounce's subject quotes the original subject, which may be "confirm your address".
    if _is_challenge_subject(mail.subject):
        return CHALLENGE
    is_automatic = mail.parsed.outer.get("auto-submitted").lower() not in ("", "no")
    is_bulk = mail.parsed.outer.get("precedence").lower() in ("auto_reply", "bulk", "junk")
    return AUTOMATIC_REPLY if is_automatic or is_bulk else NOT_UNDERSTOOD


# Notices that are only text


def _failed_recipients_field(mail: _Mail) -> Bounce | NoReport | None:
    """Exim names the addresses in the header."""
    if not (given := mail.parsed.outer.get("x-failed-recipients")):
        return None
    failures = _failures(mail, map(address_of, given.split(",")[:FINDINGS_MAX]))
    return _bounce(mail, failures) if failures else NOT_UNDERSTOOD


def _delay_notice(mail: _Mail) -> NoReport | None:
    # A failure notice's subject quotes the original subject, which may mention a delay.
    is_delay = (_is_delay(mail.subject) and not mail.has_failure_subject) or _is_delay(mail.notice.text)
    return DELAYED if is_delay else None


def _failure_notice(mail: _Mail) -> Bounce | None:
    failures = _failures(mail, known_forms(mail.parsed.outer, mail.notice))
    if not mail.is_from_daemon:
        # Any mail can have the subject "delivery failed": then only a quoted refusal counts.
        failures = [failed for failed in failures if failed.code or failed.status]
    return _bounce(mail, failures) if failures else None


def _failures(mail: _Mail, addresses: Iterable[str | None]) -> list[FailedRecipient]:
    """These addresses with the text about each; without any, those of refusals that the text quotes."""
    texts: dict[str | None, str] = {
        address: text_about(address, mail.notice) for address in dict.fromkeys(addresses) if address
    }
    if not texts:
        texts = quoted_refusals(mail.notice, is_certain=mail.is_from_daemon and mail.has_failure_subject)
    return [_failed(address, None, text) for address, text in texts.items()]


# Shared by all kinds


def _bounce(mail: _Mail, failures: Iterable[FailedRecipient]) -> Bounce:
    """With our tokens in the mail's body; its own header only repeats the envelope."""
    encoded = (b"\n" + leaf.decoded() for leaf in mail.parsed.leaves if leaf.is_encoded)
    return Bounce(tuple(failures), _tokens_in(chain([b"\n" + mail.parsed.outer.content], encoded)))


def _failed(recipient: str | None, given_status: str | None, text: str) -> FailedRecipient:
    code, status = diagnose(text)
    if precision(status) < precision(given_status):
        status = given_status
    if precision(status) > 1 and status is not None:
        is_permanent = status[0] == "5" and status not in _EXPIRED
    elif code is not None:
        is_permanent = code >= 500
    elif status is not None:
        is_permanent = status[0] == "5"
    else:
        is_permanent = _is_lasting(text) is None
    return FailedRecipient(recipient, status, code, is_permanent, _line(text))


def _tokens_in(contents: Iterable[bytes]) -> tuple[str, ...]:
    """Our return paths and feedback ids, each once."""
    found: dict[str, None] = {}
    for token in chain.from_iterable(map(_all_tokens_in, contents)):
        found.setdefault(token)
        if len(found) == TOKENS_MAX:
            break
    return tuple(found)


def _all_tokens_in(content: bytes) -> Iterator[str]:
    lowered = content.lower()
    for position in _positions(lowered, _TOKEN):
        if match := _is_token(lowered, position):
            domain = _rewritten_domain(lowered, position) or match[2]
            yield f"{LOCAL_PREFIX}{match[1].decode()}@{domain.decode().rstrip('.')}"
    for position in _positions(lowered, _FEEDBACK_ID):
        # Unlike an address, its case is kept.
        if match := _is_feedback_id(content, position + len(_FEEDBACK_ID)):
            yield match[1].decode()


def _positions(content: bytes, wanted: bytes) -> Iterator[int]:
    position = -1
    for _ in range(_CANDIDATES_MAX):
        position = content.find(wanted, position + 1)
        if position < 0:
            return
        yield position


def _rewritten_domain(content: bytes, position: int) -> bytes | None:
    """Our domain, if a forwarder wrote it in front of our local part: SRS0=hash=day=domain=local@forwarder."""
    before = content[max(0, position - 255) : position]
    if not before.endswith(b"="):
        return None
    domain = before[:-1].rpartition(b"=")[2]
    return domain if b"." in domain and _is_domain(domain) else None


def _line(text: str) -> str:
    return " ".join(printable(text[: 4 * TEXT_CHARACTERS_MAX]).split())[:TEXT_CHARACTERS_MAX]
