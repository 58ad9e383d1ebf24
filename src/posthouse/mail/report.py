"""Mail to a return path: a bounce with its failed recipients, a complaint, or neither.

Distinguishes delivery status notifications (RFC 3464, 6522), plain-text notices (`bounce_text`) and feedback reports
(RFC 5965) from automatic replies, receipts, delays and ordinary mail. The mail is untrusted and may be forged: the
caller verifies the tokens, which only those to whom we sent the mail know.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from posthouse.mail import bounce_text
from posthouse.mail.bounce_text import address_of, diagnose, precision
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
    `is_permanent`: retries were used up, and a later mail may succeed.
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


def read(raw: bytes) -> Bounce | Complaint | NoReport:
    """The report in the mail. Never raises, whatever the bytes are."""
    mail = parse_mail(raw)
    subject = decode_words(mail.outer.get("subject"))[:_SUBJECT_CHARACTERS_MAX]
    if feedback := mail.leaf("message/feedback-report"):
        return _complaint(mail, fields_of(feedback.decoded().split(b"\n")))
    if complained := _complained_to_microsoft(mail, subject):
        return complained
    notice = bounce_text.notice_text(mail)
    if (status := mail.leaf(*_STATUS_PARTS)) and (notified := _notified(mail, status.decoded(), notice)):
        return notified
    if disposition := mail.leaf(*_DISPOSITION_PARTS):
        return _disposed(mail, disposition, notice)
    if not mail.outer.get("x-failed-recipients"):
        if reason := _other(mail.outer, subject):
            return reason
        if not bounce_text.is_notice(mail.outer, subject):
            # Not earlier: a bounce's subject quotes the original subject, which may be "confirm your address".
            if _is_challenge_subject(subject):
                return CHALLENGE
            return AUTOMATIC_REPLY if _is_automatic(mail.outer) else NOT_UNDERSTOOD
        # Gateways that flatten a notification keep its fields in the text.
        if notified := _notified(mail, notice.text.encode("utf-8", "replace"), notice):
            return notified
        if bounce_text.is_delay(subject, notice):
            return DELAYED
    failures = [_failed(found.recipient, None, found.text) for found in bounce_text.find(mail, subject, notice)]
    return Bounce(tuple(failures), _tokens(mail)) if failures else NOT_UNDERSTOOD


# Notifications (RFC 3464)


def _notified(mail: ParsedMail, content: bytes, notice: bounce_text.NoticeText) -> Bounce | NoReport | None:
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
    if failures:
        return Bounce(tuple(_with_notice_text(list(failures.values()), notice)), _tokens(mail))
    return DELAYED if is_delayed else DELIVERED if is_delivered else None


def _with_notice_text(failures: list[FailedRecipient], notice: bounce_text.NoticeText) -> list[FailedRecipient]:
    """Fills missing diagnostics from the human-readable text, as needed for older Exchange; the status stays."""
    for index, failed in enumerate(failures[: bounce_text.FINDINGS_MAX]):
        if failed.recipient and not failed.text:
            failures[index] = failed._replace(text=_line(bounce_text.text_about(failed.recipient, notice)))
    return failures


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
    action = fields.get("action", "").lower()
    if action.startswith(("fail", "error")):
        return "failed"
    if action.startswith("delayed"):
        return "delayed"
    if action.startswith(("delivered", "relayed", "expanded")):
        return "delivered"
    # Without an action known to RFC 3464, only a permanent status is a failure.
    status = _status_of(fields, "245") or " "
    return {"5": "failed", "4": "delayed", "2": "delivered"}.get(status[0], "")


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


def _disposed(mail: ParsedMail, disposition: MimePart, notice: bounce_text.NoticeText) -> Bounce | NoReport:
    """A read receipt, unless it is used as a bounce: Sieve's reject, and Dovecot's full mailbox."""
    fields = dict(reversed(fields_of(disposition.decoded().split(b"\n"))))
    if "automatically rejected" not in notice.text:
        return SEEN
    recipient = _recipient_of(fields)
    return Bounce((_failed(recipient, None, notice.text),), _tokens(mail))


# Complaints (RFC 5965)


def _complaint(mail: ParsedMail, given: tuple[tuple[str, str], ...]) -> Complaint | NoReport:
    fields = dict(reversed(given))
    kind = fields.get("feedback-type", "").partition(";")[0].strip().lower()
    if kind.startswith("auth-failure"):
        return AUTHENTICATION
    recipient = address_of(fields.get("original-rcpt-to", "")) or address_of(fields.get("removal-recipient", ""))
    # An unknown kind counts as "other" (RFC 5965, 3.1).
    return Complaint(kind if _is_kind(kind) else "other", recipient, _complaint_tokens(mail, given), _line(mail.text()))


def _complained_to_microsoft(mail: ParsedMail, subject: str) -> Complaint | None:
    """Outlook.com's older form: the original mail, with a field that names the complainer."""
    if not subject.lower().startswith("complaint about message from"):
        return None
    for leaf in mail.leaves:
        head = leaf.decoded().lstrip(b"\n")[:HEAD_BYTES_MAX].partition(b"\n\n")[0]
        for name, value in fields_of(head.split(b"\n")):
            if name == "x-hmxmroriginalrecipient":
                return Complaint("abuse", address_of(value), _complaint_tokens(mail), _line(subject))
    return None


def _complaint_tokens(mail: ParsedMail, reported: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    """Our tokens, in the fields where we or the provider wrote them.

    A customer writes the rest of the original mail, and could put tokens of another customer's mail there.
    """
    fields = [value for name, value in reported if name == "original-mail-from"]
    feedback_ids = []
    if original := next((leaf for leaf in mail.leaves if leaf.type in _ORIGINAL_PARTS), None):
        head = original.decoded().lstrip(b"\n")[:HEAD_BYTES_MAX].partition(b"\n\n")[0]
        found = fields_of(head.split(b"\n"))
        fields += [value for name, value in found if name == "return-path"]
        feedback_ids = [f"cfbl-feedback-id: {value}" for name, value in found if name == "cfbl-feedback-id"]
    content = "".join([f"\n{line}" for line in (*fields, *feedback_ids)]).encode()
    return tuple(islice(dict.fromkeys(_tokens_in(content)), TOKENS_MAX))


# Neither


def _other(outer: MimePart, subject: str) -> NoReport | None:
    """The reason if the header shows clearly that it is no bounce."""
    names = {name for name, _ in outer.fields}
    if _is_reply_subject(subject) or not names.isdisjoint(_REPLY_FIELDS):
        return AUTOMATIC_REPLY
    if not names.isdisjoint(_CHALLENGE_FIELDS):
        return CHALLENGE
    return None if names.isdisjoint(_LIST_FIELDS) else LIST_MAIL


def _is_automatic(outer: MimePart) -> bool:
    submitted = outer.get("auto-submitted").lower()
    precedence = outer.get("precedence").lower()
    return submitted not in ("", "no") or precedence in ("auto_reply", "bulk", "junk")


# Shared by all reports


def _tokens(mail: ParsedMail) -> tuple[str, ...]:
    """Our return paths and feedback ids in the mail's body; its own header only repeats the envelope."""
    found: dict[str, None] = {}
    for content in (b"\n" + mail.outer.content, *(b"\n" + leaf.decoded() for leaf in mail.leaves if leaf.is_encoded)):
        for token in _tokens_in(content):
            found.setdefault(token)
            if len(found) == TOKENS_MAX:
                return tuple(found)
    return tuple(found)


def _tokens_in(content: bytes) -> Iterator[str]:
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
    return " ".join(printable(text[: 4 * TEXT_CHARACTERS_MAX].encode("utf-8", "replace")).split())[:TEXT_CHARACTERS_MAX]
