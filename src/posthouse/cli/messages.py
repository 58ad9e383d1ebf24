"""Commands about messages: a list, the timeline of a message in words, and its content in the browser."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform, perform_for, settings
from posthouse.cli.output import AccountGiven, AsJson, Plain
from posthouse.rules import ids, learned_limits
from posthouse.rules.message import MessageStatus, Source
from posthouse.rules.wait_reason import one_line, quoted, suppressed_for

if TYPE_CHECKING:
    from posthouse.compose.flows import Flows
    from posthouse.flows.account.message_search import MessageListRow
    from posthouse.flows.operate.monitor import (
        DeliveryAttempt,
        MessageReport,
        RecipientTimeline,
        StoredLimitChange,
        Timeline,
    )
    from posthouse.rules.ids import AccountId

message = typer.Typer(no_args_is_help=True)

# Of a page of the search, whose work is bounded.
PAGE: Final = 100
_LISTED: Final = ("id", "created_at", "status", "source", "from", "to", "subject")
_STYLES: Final = {
    "delivered": "green",
    "partial": "yellow",
    "deferred": "yellow",
    "bounced": "red",
    "failed": "red",
}
_SOURCES: Final = {"api": "over HTTP", "smtp": "over SMTP", "test": "over HTTP with a test key: no mail is sent"}
# A test mail of a member to their own address is sent, at the usual price.
_TEST_MAIL: Final = "over HTTP, a test mail to its sender"
_BILLING: Final = {
    "reserved": "its credit is reserved",
    "settled": "its credit is settled",
    "released": "its credit was given back",
}
# From MAIL on there was an SMTP session, encrypted or not.
_IN_SESSION: Final = frozenset({"mail", "rcpt", "data", "dot"})


class TimelineLine(NamedTuple):
    text: str
    style: str = ""


@message.command("list")
def list_(
    account: AccountGiven,
    to: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only to this address.")] = None,
    sender: Annotated[str | None, typer.Option("--from", metavar="ADDRESS", help="Only from this address.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="WORDS", help="Only with all these words.")] = None,
    status: Annotated[MessageStatus | None, typer.Option(help="Only with this status.")] = None,
    source: Annotated[Source | None, typer.Option(help="Only submitted in this way.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show an account's messages, newest first."""
    from posthouse.rules.search import SearchFilters

    filters = SearchFilters(status=status, recipient=to, sender=sender, subject=subject, source=source)

    async def find(flows: "Flows", account_id: "AccountId") -> "list[MessageListRow]":
        found: list[MessageListRow] = []
        cursor = None
        # A page may be short, or empty, and not be the last.
        while len(found) <= limit:
            page = await flows.message_search.page(account_id, filters, min(PAGE, limit + 1 - len(found)), cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    found = perform_for(account, find)
    rows = [listed(row) for row in found[:limit]]
    if as_json:
        return output.write_json(rows)
    if not rows:
        return output.write_line("There is no such message.")
    output.write_table(rows, _LISTED)
    if len(found) > limit:
        output.write_line("There are more: ask with --to, --from, --subject or a higher --limit.")
    return None


@message.command("open")
def open_(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id (em_…), of any account.")],
    print_: Annotated[bool, typer.Option("--print", help="Print the link, and open no browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open a test mail or captured mail in the browser: HTML, text, headers, attachments and links.

    The link works once, for 10 minutes.
    """
    from posthouse.compose.links import service_url

    async def link(flows: "Flows") -> str:
        account_id = (await flows.monitor.timeline(message_id)).account_id
        return await flows.captured_mail.new_link(account_id, message_id)

    url = service_url(settings()) + perform(link)
    if as_json:
        return output.write_json({"url": url})
    if print_:
        return output.write_line(url)
    import webbrowser

    if not webbrowser.open(url):
        output.write_line(f"No browser can be opened here. Open this link, once, within 10 minutes: {url}")
    return None


def _timeline(message_id: str) -> "tuple[Timeline, Mapping[int, StoredLimitChange]]":
    """With the limit changes that its recipients wait for."""

    async def find(flows: "Flows") -> "tuple[Timeline, Mapping[int, StoredLimitChange]]":
        timeline = await flows.monitor.timeline(message_id)
        return timeline, await flows.monitor.limit_changes(timeline)

    return perform(find)


@message.command("show")
def show_(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id (em_…), of any account.")],
    as_json: AsJson = False,
) -> None:
    """Show a message's timeline: accepted, every attempt, what it waits for, how it ended."""
    found, limit_changes = _timeline(message_id)
    if as_json:
        return output.write_json(plain(found))
    return _write(timeline_lines(found, limit_changes))


@message.command("explain")
def explain(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id (em_…), of any account.")],
    as_json: AsJson = False,
) -> None:
    """Say why each recipient waits, or how it ended, and what to do about it."""
    from posthouse.flows.operate.message_lookup import explained

    found, limit_changes = _timeline(message_id)
    rows = [explained(found, each, limit_changes.get(each.position))._asdict() for each in found.recipients]
    if as_json:
        return output.write_json(rows)
    for row in rows:
        output.write_line(f"{row['email']}: {row['status']}")
        for name in ("now", "why", "lane", "what_to_do", "operator"):
            if row[name]:
                output.write_line(f"  {_LABELS[name]}{row[name]}")
    return None


_LABELS: Final = {
    "now": "Now: ",
    "why": "Why: ",
    "lane": "The lane ",
    "what_to_do": "The sender: ",
    "operator": "The operator: ",
}


def listed(row: "MessageListRow") -> Plain:
    more = row.recipient_count - len(row.recipients)
    return {
        "id": ids.text(ids.MESSAGE, row.id),
        "created_at": row.created_at,
        "status": row.status,
        "source": row.source,
        "from": row.sender,
        "to": ", ".join(row.recipients) + (f" and {more} more" if more > 0 else ""),
        "subject": row.subject,
    }


def _source(timeline: "Timeline") -> str:
    if timeline.source == "test" and timeline.credits_reserved:
        return _TEST_MAIL
    return _SOURCES.get(timeline.source, timeline.source)


def _write(lines: Sequence[TimelineLine]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text, style=line.style))


def timeline_lines(
    timeline: "Timeline", limit_changes: "Mapping[int, StoredLimitChange] | None" = None
) -> list[TimelineLine]:
    """The timeline as an operator reads it. Untrusted text can't send control codes to the terminal.

    `limit_changes` are those that recipients wait for, by position.
    """
    lines = [*_heading(timeline)]
    for recipient in timeline.recipients:
        lines += [TimelineLine(""), *_recipient(timeline, recipient)]
        if limit_changes and recipient.position in limit_changes:
            lines.append(_limit_change(limit_changes[recipient.position]))
    if timeline.reports:
        lines += [TimelineLine(""), *map(_report, timeline.reports)]
    if timeline.is_shortened:
        lines += [TimelineLine(""), TimelineLine("Only the latest attempts are shown; there were more before them.")]
    return lines


def _heading(timeline: "Timeline") -> Iterator[TimelineLine]:
    charged = timeline.credits_reserved
    values = {
        "message": ids.text(ids.MESSAGE, timeline.id),
        "status": timeline.status,
        "account": f"{timeline.account_name} ({ids.text(ids.ACCOUNT, timeline.account_id)})",
        "accepted": (
            f"{output.text(timeline.created_at)} {_source(timeline)}, "
            f"request {ids.text(ids.REQUEST, timeline.request_id)}"
        ),
        "from": timeline.sender,
        "envelope": timeline.envelope_sender or "<>",
        "subject": timeline.subject,
        "content": "forgotten: no one can read it" if timeline.forgets_content else "",
        "template": timeline.template,
        "tags": ", ".join(timeline.tags),
        "metadata": ", ".join([f"{name}={value}" for name, value in timeline.metadata.items()]),
        "recipients": str(timeline.recipient_count),
        "credits": f"{charged}, {timeline.billing_status}" if charged else "none: a test key's mail costs nothing",
    }
    if timeline.sender.endswith(f"<{timeline.envelope_sender}>") or timeline.sender == timeline.envelope_sender:
        del values["envelope"]
    width = max(map(len, values))
    for name, value in values.items():
        if value:
            yield TimelineLine(
                f"{name:<{width}}  {one_line(value)}", _STYLES.get(value, "") if name == "status" else ""
            )
    if timeline.suspended_at is not None:
        yield TimelineLine(
            f"The account is suspended since {output.text(timeline.suspended_at)}: "
            f"{one_line(timeline.suspended_reason or '')}. Its mail is held.",
            "yellow",
        )


def _recipient(timeline: "Timeline", recipient: "RecipientTimeline") -> Iterator[TimelineLine]:
    recipient_id = ids.text(ids.RECIPIENT, ids.recipient_id(timeline.id, recipient.position))
    style = _STYLES.get(recipient.status, "")
    yield TimelineLine(
        f"{recipient.field} {one_line(recipient.email)}: {recipient.status} ({recipient_id})", f"bold {style}"
    )
    number = 0
    for attempt in recipient.attempts:
        number += attempt.outcome != "postponed"
        yield TimelineLine(f"  {output.text(attempt.started_at)}  {_attempt(recipient, attempt, number)}")
    yield from _about_us(recipient)
    if recipient.final_at is not None:
        yield TimelineLine(f"  {output.text(recipient.final_at)}  {_end(timeline, recipient)}", style)
    else:
        yield TimelineLine(f"  {output.text(timeline.read_at)}  now: {_waiting(timeline, recipient)}", style)
    explained = timeline.explained(recipient)
    if explained.cause is not None:
        yield TimelineLine(f"  {explained.headline} {explained.what_to_do} (cause: {explained.cause})")
    for report in recipient.reports:
        yield _report(report)
    if recipient.suppression is not None:
        why = recipient.suppression
        answer = quoted(why.code, why.response)
        what = suppressed_for(why.reason, why.at)
        yield TimelineLine(f"  {what[0].upper()}{what[1:]}{answer}")


def _limit_change(found: "StoredLimitChange") -> TimelineLine:
    limit_change = found.change
    domain = f" for mail of {limit_change.scope.domain}" if limit_change.scope.domain else ""
    if limit_change.scope.branch is not None:
        domain = f" for this account's mail to {limit_change.scope.branch.destination}"
    said = learned_limits.change_text(limit_change)
    return TimelineLine(f"  The lane {limit_change.scope.lane}{domain} {said} (limit change {found.id})", "yellow")


def _about_us(recipient: "RecipientTimeline") -> Iterator[TimelineLine]:
    from posthouse.flows.operate.message_lookup import about_service

    about = about_service(recipient)
    if about is not None:
        yield TimelineLine(f"  {about}", "yellow")


def _report(report: "MessageReport") -> TimelineLine:
    about = one_line(report.detail)
    if report.kind == "complaint":
        what = f"a complaint ({about})" + ("" if report.position is not None else " that names no recipient")
    elif report.position is not None:
        what = "a bounce"
    else:
        what = f"a bounce of {about or 'an unnamed address'}, which is no recipient"
    answer = quoted(report.code, report.response or report.status)
    return TimelineLine(f"  {output.text(report.at)}  came back later: {what}{answer}", "yellow")


def _attempt(recipient: "RecipientTimeline", attempt: "DeliveryAttempt", number: int) -> str:
    destination = f" to {one_line(attempt.mx_host)}" if attempt.mx_host else ""
    if attempt.remote_ip:
        destination += f" [{one_line(attempt.remote_ip)}]"
        destination += f" from {attempt.source_ip}" if attempt.source_ip else ""
        destination += f" (the relay {attempt.relay})" if attempt.relay else ""
        destination += f" over {attempt.tls}" if attempt.tls else " without TLS" if attempt.stage in _IN_SESSION else ""
    if attempt.outcome is None:
        if recipient.is_under_way(attempt):
            return f"attempt {number}{destination} is under way"
        return (
            f"attempt {number}{destination} has no outcome: its worker was lost; the mail may have arrived, and the "
            "attempt counts"
        )
    answer = quoted(attempt.code, attempt.response) or f": {attempt.outcome}"
    doubt = " — ambiguous: it may have arrived nevertheless" if attempt.is_ambiguous else ""
    if attempt.relay and attempt.outcome == "delivered":
        doubt = " — the relay took it; whether it arrived is the relay's to say"
    if attempt.outcome == "postponed":
        reason = quoted(attempt.code, attempt.response)
        return f"claimed, then postponed{destination}{reason} (no attempt is counted)"
    waiting = recipient.waiting
    is_last = attempt is recipient.attempts[-1]
    then = ""
    if is_last and attempt.outcome == "deferred" and waiting is not None and waiting.held_since is None:
        then = f" — next try {output.text(waiting.next_at)}"
    return f"attempt {number}{destination}{answer}{doubt}{then}"


def _end(timeline: "Timeline", recipient: "RecipientTimeline") -> str:
    event = recipient.event
    parts = [recipient.status]
    # A result without an attempt is recorded nowhere else.
    if not recipient.attempts or recipient.attempts[-1].outcome != recipient.status:
        parts[0] += quoted(recipient.code, recipient.response)
    if timeline.credits_reserved:
        parts.append(_BILLING.get(recipient.billing_status, recipient.billing_status))
    parts.append("no event is on record" if event is None else f"event {ids.text(ids.EVENT, event.id)} ({event.type})")
    return "; ".join(parts)


def _waiting(timeline: "Timeline", recipient: "RecipientTimeline") -> str:
    wait = timeline.wait(recipient)
    return "" if wait is None else wait.text


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
        "metadata": timeline.metadata,
        "template": timeline.template,
        "recipient_count": timeline.recipient_count,
        "credits_reserved": timeline.credits_reserved,
        "created_at": timeline.created_at,
        "recipients": [_plain_recipient(timeline, recipient) for recipient in timeline.recipients],
        "reports": [_plain_report(report) for report in timeline.reports],
        "is_shortened": timeline.is_shortened,
        "read_at": timeline.read_at,
    }


def _plain_reply_signal(attempt: "DeliveryAttempt") -> Plain | None:
    reply_signal, explained = attempt.reply_signal(), attempt.explained_reply_signal()
    if reply_signal is None:
        return None
    return {"name": reply_signal.name, "explanation": explained and asdict(explained)}


def _plain_recipient(timeline: "Timeline", recipient: "RecipientTimeline") -> Plain:
    event, waiting, suppression = recipient.event, recipient.waiting, recipient.suppression
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
                "is_under_way": recipient.is_under_way(attempt),
                "is_ambiguous": attempt.is_ambiguous,
                "mx_host": attempt.mx_host,
                "remote_ip": attempt.remote_ip,
                "tls": attempt.tls,
                "stage": attempt.stage,
                "code": attempt.code,
                "response": attempt.response,
                "source_ip": attempt.source_ip,
                "relay": attempt.relay,
                "worker": str(attempt.worker_id),
                "explanation": asdict(recipient.explained(attempt)),
                "reply_signal": _plain_reply_signal(attempt),
            }
            for attempt in recipient.attempts
        ],
        "explanation": asdict(timeline.explained(recipient)),
        "waiting": waiting
        and {
            "next_at": waiting.next_at,
            "because": _waiting(timeline, recipient),
            "is_claimed": waiting.worker_id is not None,
            "is_worker_alive": waiting.is_worker_alive,
            "held_since": waiting.held_since,
            "held_by": waiting.held_by,
            "held_seconds": waiting.held.total_seconds(),
            "bounce_at": waiting.bounce_at,
        },
        "suppression": suppression
        and {
            "reason": suppression.reason,
            "at": suppression.at,
            "code": suppression.code,
            "response": suppression.response,
        },
        "event": event and {"id": ids.text(ids.EVENT, event.id), "type": event.type, "created_at": event.created_at},
        "reports": [_plain_report(report) for report in recipient.reports],
    }


def _plain_report(report: "MessageReport") -> Plain:
    return {
        "kind": report.kind,
        "detail": report.detail,
        "status": report.status,
        "code": report.code,
        "response": report.response,
        "suppressed": report.suppressed,
        "at": report.at,
    }
