"""Commands about single messages: what became of one, told in order and in words."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from posthouse.entrypoints.cli import show
from posthouse.entrypoints.cli.desk import perform
from posthouse.entrypoints.cli.show import AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules import ids

if TYPE_CHECKING:
    from posthouse.flows.oversight import Attempt, RecipientTimeline, Report, Timeline

message = typer.Typer(no_args_is_help=True, help="Messages: what became of one.")

_STYLES: Final = {
    "delivered": "green",
    "partial": "yellow",
    "deferred": "yellow",
    "bounced": "red",
    "failed": "red",
}
_SOURCES: Final = {"api": "over HTTP", "smtp": "over SMTP", "test": "over HTTP with a test key: a rehearsal"}
_BILLING: Final = {
    "reserved": "its credit is reserved",
    "settled": "its credit is settled",
    "released": "its credit was given back",
}
# From MAIL on there was a conversation, and it either was encrypted or was not.
_TALKED: Final = frozenset({"mail", "rcpt", "data", "dot"})


class Line(NamedTuple):
    text: str
    style: str = ""


@message.command("show")
def show_(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id (em_…), of any account.")],
    as_json: AsJson = False,
) -> None:
    """Show one message's timeline: accepted, every attempt, what it waits for, how it ended."""
    found = perform(lambda desk: desk.oversight.timeline(message_id))
    if as_json:
        return show.write_json(plain(found))
    return _write(narrated(found))


def _write(lines: Sequence[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text, style=line.style))


def narrated(timeline: "Timeline") -> list[Line]:
    """The timeline as an operator reads it. What strangers wrote can't steer the terminal."""
    lines = [*_heading(timeline)]
    for recipient in timeline.recipients:
        lines += [Line(""), *_recipient(timeline, recipient)]
    if timeline.reports:
        lines += [Line(""), *map(_report, timeline.reports)]
    if timeline.is_shortened:
        lines += [Line(""), Line("Only the latest attempts are shown; there were more before them.")]
    return lines


def _heading(timeline: "Timeline") -> Iterator[Line]:
    charged = timeline.credits_reserved
    values = {
        "message": ids.text(ids.MESSAGE, timeline.id),
        "status": timeline.status,
        "account": f"{timeline.account_name} ({ids.text(ids.ACCOUNT, timeline.account_id)})",
        "accepted": (
            f"{show.text(timeline.created_at)} {_SOURCES.get(timeline.source, timeline.source)}, "
            f"request {ids.text(ids.REQUEST, timeline.request_id)}"
        ),
        "from": timeline.sender,
        "envelope": timeline.envelope_sender or "<>",
        "subject": timeline.subject,
        "template": timeline.template,
        "tags": ", ".join(timeline.tags),
        "recipients": str(timeline.recipient_count),
        "credits": f"{charged}, {timeline.billing_status}" if charged else "none: a test key's mail costs nothing",
    }
    if timeline.sender.endswith(f"<{timeline.envelope_sender}>") or timeline.sender == timeline.envelope_sender:
        del values["envelope"]
    width = max(map(len, values))
    for name, value in values.items():
        if value:
            yield Line(f"{name:<{width}}  {_one_line(value)}", _STYLES.get(value, "") if name == "status" else "")
    if timeline.suspended_at is not None:
        yield Line(
            f"The account is suspended since {show.text(timeline.suspended_at)}: "
            f"{_one_line(timeline.suspended_reason or '')}. Its mail is held.",
            "yellow",
        )


def _recipient(timeline: "Timeline", recipient: "RecipientTimeline") -> Iterator[Line]:
    recipient_id = ids.text(ids.RECIPIENT, ids.recipient_id(timeline.id, recipient.position))
    style = _STYLES.get(recipient.status, "")
    yield Line(f"{recipient.field} {_one_line(recipient.email)}: {recipient.status} ({recipient_id})", f"bold {style}")
    number = 0
    for attempt in recipient.attempts:
        number += attempt.outcome != "postponed"
        yield Line(f"  {show.text(attempt.started_at)}  {_attempt(recipient, attempt, number)}")
    if recipient.final_at is not None:
        yield Line(f"  {show.text(recipient.final_at)}  {_end(timeline, recipient)}", style)
    else:
        yield Line(f"  {show.text(timeline.read_at)}  now: {_waiting(timeline, recipient)}", style)
    for report in recipient.reports:
        yield _report(report)
    if recipient.suppression is not None:
        why = recipient.suppression
        said = _quoted(why.code, why.response)
        yield Line(f"  The address gets no mail of this account since {show.text(why.at)}, after a {why.reason}{said}")


def _report(report: "Report") -> Line:
    about = _one_line(report.detail)
    if report.kind == "complaint":
        what = f"a complaint ({about})" + ("" if report.position is not None else " that names no recipient")
    elif report.position is not None:
        what = "a bounce"
    else:
        what = f"a bounce of {about or 'nobody'}, who is no recipient"
    said = _quoted(report.code, report.response or report.status)
    return Line(f"  {show.text(report.at)}  came back later: {what}{said}", "yellow")


def _attempt(recipient: "RecipientTimeline", attempt: "Attempt", number: int) -> str:
    whither = f" to {_one_line(attempt.exchange)}" if attempt.exchange else ""
    if attempt.address:
        whither += f" [{_one_line(attempt.address)}]"
        whither += f" over {attempt.tls}" if attempt.tls else " without TLS" if attempt.stage in _TALKED else ""
    if attempt.outcome is None:
        if is_under_way(recipient, attempt):
            return f"attempt {number}{whither} is under way"
        return (
            f"attempt {number}{whither} has no outcome: its worker was lost; the mail may have arrived, and the "
            "attempt counts"
        )
    said = _quoted(attempt.code, attempt.response) or f": {attempt.outcome}"
    doubt = " — ambiguous: it may have arrived all the same" if attempt.is_ambiguous else ""
    if attempt.outcome == "postponed":
        return f"claimed, then put off{whither}{said} (no attempt is counted)"
    waiting = recipient.waiting
    is_last = attempt is recipient.attempts[-1]
    then = ""
    if is_last and attempt.outcome == "deferred" and waiting is not None and waiting.held_since is None:
        then = f" — next try {show.text(waiting.next_at)}"
    return f"attempt {number}{whither}{said}{doubt}{then}"


def is_under_way(recipient: "RecipientTimeline", attempt: "Attempt") -> bool:
    """Whether whoever began the attempt still has the recipient to itself, and lives."""
    waiting = recipient.waiting
    return (
        attempt.outcome is None
        and waiting is not None
        and waiting.is_worker_alive
        and (waiting.worker_id, waiting.fence) == (attempt.worker_id, attempt.fence)
    )


def _end(timeline: "Timeline", recipient: "RecipientTimeline") -> str:
    told = recipient.event
    parts = [recipient.status]
    # What ended it without an attempt is nowhere else.
    if not recipient.attempts or recipient.attempts[-1].outcome != recipient.status:
        parts[0] += _quoted(recipient.code, recipient.response)
    if timeline.credits_reserved:
        parts.append(_BILLING.get(recipient.billing_status, recipient.billing_status))
    parts.append("no event is on record" if told is None else f"event {ids.text(ids.EVENT, told.id)} ({told.type})")
    return "; ".join(parts)


def _waiting(timeline: "Timeline", recipient: "RecipientTimeline") -> str:
    waiting = recipient.waiting
    if waiting is None:
        return "not final, yet the schedule doesn't have it: nobody will try it. Please report this as a fault."
    next_at = show.text(waiting.next_at)
    if waiting.worker_id is not None:
        if waiting.is_worker_alive:
            return "a worker has it"
        return f"its worker was lost; it is due again as soon as that is noticed, {next_at} at the latest"
    if waiting.held_since is not None:
        why = "the account is suspended" if timeline.suspended_at is not None else "its account or its lane was paused"
        return f"held since {show.text(waiting.held_since)}, because {why}; looked at again {next_at}"
    if waiting.next_at <= timeline.read_at:
        return f"due since {next_at}; it waits for a worker to be free"
    if waiting.fence == 0:
        return f"on its way to a worker; if none takes it, it is due again {next_at}"
    if recipient.status == "deferred":
        return f"it was deferred; the next try is {next_at}, after {_counted(waiting.attempt_count)}"
    return f"put off until {next_at} for a reason that isn't the destination's, such as a full lane"


def _counted(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _quoted(code: int | None, response: str | None) -> str:
    """What a server said, after a colon: `: 451 4.7.1 try later`."""
    words = ([] if code is None else [str(code)]) + ([_one_line(response)] if response else [])
    return f": {' '.join(words)}" if words else ""


def _one_line(text: str) -> str:
    return printable(" / ".join(text.split("\n")).encode("utf-8", "replace"))


def plain(timeline: "Timeline") -> Plain:
    """The same for programs, with every id as the service writes it."""
    return {
        "id": ids.text(ids.MESSAGE, timeline.id),
        "account_id": ids.text(ids.ACCOUNT, timeline.account_id),
        "account": timeline.account_name,
        "account_suspended_at": timeline.suspended_at,
        "account_suspended_reason": timeline.suspended_reason,
        "request_id": ids.text(ids.REQUEST, timeline.request_id),
        "source": timeline.source,
        "status": timeline.status,
        "billing_status": timeline.billing_status,
        "from": timeline.sender,
        "envelope_sender": timeline.envelope_sender,
        "subject": timeline.subject,
        "tags": timeline.tags,
        "template": timeline.template,
        "recipient_count": timeline.recipient_count,
        "credits_reserved": timeline.credits_reserved,
        "created_at": timeline.created_at,
        "recipients": [_plain_recipient(timeline, recipient) for recipient in timeline.recipients],
        "reports": [_plain_report(report) for report in timeline.reports],
        "is_shortened": timeline.is_shortened,
        "read_at": timeline.read_at,
    }


def _plain_recipient(timeline: "Timeline", recipient: "RecipientTimeline") -> Plain:
    told, waiting, suppression = recipient.event, recipient.waiting, recipient.suppression
    return {
        "id": ids.text(ids.RECIPIENT, ids.recipient_id(timeline.id, recipient.position)),
        "field": recipient.field,
        "email": recipient.email,
        "status": recipient.status,
        "billing_status": recipient.billing_status,
        "attempt_count": recipient.attempt_count if waiting is None else waiting.attempt_count,
        "last_smtp_code": recipient.code,
        "last_smtp_response": recipient.response,
        "final_at": recipient.final_at,
        "attempts": [
            {
                "started_at": attempt.started_at,
                "finished_at": attempt.finished_at,
                "outcome": attempt.outcome,
                "is_under_way": is_under_way(recipient, attempt),
                "is_ambiguous": attempt.is_ambiguous,
                "exchange": attempt.exchange,
                "address": attempt.address,
                "tls": attempt.tls,
                "stage": attempt.stage,
                "code": attempt.code,
                "response": attempt.response,
                "worker": str(attempt.worker_id),
            }
            for attempt in recipient.attempts
        ],
        "waiting": waiting
        and {
            "next_at": waiting.next_at,
            "because": _waiting(timeline, recipient),
            "is_claimed": waiting.worker_id is not None,
            "is_worker_alive": waiting.is_worker_alive,
            "held_since": waiting.held_since,
            "held_seconds": waiting.held.total_seconds(),
        },
        "suppression": suppression
        and {
            "reason": suppression.reason,
            "at": suppression.at,
            "code": suppression.code,
            "response": suppression.response,
        },
        "event": told and {"id": ids.text(ids.EVENT, told.id), "type": told.type, "created_at": told.created_at},
        "reports": [_plain_report(report) for report in recipient.reports],
    }


def _plain_report(report: "Report") -> Plain:
    return {
        "kind": report.kind,
        "detail": report.detail,
        "status": report.status,
        "code": report.code,
        "response": report.response,
        "suppressed": report.suppressed,
        "at": report.at,
    }
