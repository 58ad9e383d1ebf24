"""Commands about the queue: a live view of the schedule and of the lanes, and changes of waiting mail."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from posthouse.cli import output
from posthouse.cli.operator import DryRun, Yes, confirm, length, perform, text_of
from posthouse.cli.output import AsJson, Plain
from posthouse.flows.operate.lanes import LaneRow, Part, merged
from posthouse.mail.reply import printable
from posthouse.rules.queue_change import QueueChange, described
from posthouse.rules.refusal import Refusal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.compose.flows import Flows
    from posthouse.flows.operate.monitor import Backlog, BoundedCount, LaneReport, QueueView
    from posthouse.flows.operate.queue_changes import QueueCount, QueueSelection

queue = typer.Typer(no_args_is_help=True)

PAUSE_SECONDS: Final = 1.0
# Lines around the rows of lanes: totals, the table's head, and the hint below.
_FRAME_LINES: Final = 8
_REPLY_CHARACTERS: Final = 60


class Rates:
    """Mails delivered a second, from one report to the next."""

    def __init__(self) -> None:
        self._seen: dict[Part, tuple[LaneReport, float | None]] = {}

    def observe(self, reports: "Sequence[LaneReport]") -> Mapping[Part, float | None]:
        seen: dict[Part, tuple[LaneReport, float | None]] = {}
        for report in reports:
            part = report.worker_id, report.state.lane
            before, rate = self._seen.get(part, (report, None))
            passed = (report.reported_at - before.reported_at).total_seconds()
            # Workers report less often than this reads: until the next report the last rate stands.
            if passed > 0:
                rate = (report.state.delivered_total - before.state.delivered_total) / passed
            seen[part] = report, rate
        self._seen = seen
        return {part: rate for part, (_, rate) in seen.items()}


@queue.command("top")
def top(
    once: Annotated[bool, typer.Option("--once", help="Print the queue once, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the queue once, as JSON, for programs.")] = False,
) -> None:
    """Watch waiting mail, lane by lane, until Ctrl-C."""
    if as_json or once or not sys.stdout.isatty():
        view = perform(lambda flows: flows.monitor.queue())
        rows = merged(view.reports, {})
        return output.write_json(plain(view, rows)) if as_json else _print(view, rows)
    with suppress(KeyboardInterrupt):
        perform(_watch)
    return None


MessageGiven = Annotated[
    str | None, typer.Option("--message", metavar="ID", help="Of this message (em_…).", show_default=False)
]
OfAccount = Annotated[
    str | None, typer.Option("--account", help="Of this account, by its name or id.", show_default=False)
]
DestinationGiven = Annotated[
    str | None, typer.Option("--destination", metavar="DOMAIN", help="To this domain.", show_default=False)
]
LaneGiven = Annotated[
    str | None,
    typer.Option("--lane", metavar="LANE", help="In this lane: a provider, such as google, or a domain."),
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="30m|2h|7d", help="Accepted longer ago than this.", show_default=False),
]


def command_for(change: QueueChange) -> Callable[..., None]:
    """A command that changes the mail that its options name."""

    def command(
        message: MessageGiven = None,
        account: OfAccount = None,
        destination: DestinationGiven = None,
        lane: LaneGiven = None,
        older_than: OlderThan = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        given = Given(message, account, destination, lane, older_than)
        _change(change, given, dry_run=dry_run, yes=yes, as_json=as_json)

    return command


_HELP: Final = {
    QueueChange.RETRY: "Retry deferred mail now. A last attempt stays at its time.",
    QueueChange.HOLD: "Send nothing of this mail until it is released. The time does not count; mail accepted later is "
    "not held.",
    QueueChange.RELEASE: "Release held mail, each message at the time of its next attempt.",
    QueueChange.CANCEL: "End mail that is not final as failed, with its event; its credits are returned. It can't be "
    "undone.",
}
for _each, _about in _HELP.items():
    queue.command(_each.value, help=_about)(command_for(_each))


class Given(NamedTuple):
    message: str | None
    account: str | None
    destination: str | None
    lane: str | None
    older_than: str | None

    @property
    def described(self) -> str:
        return described(**self._asdict())


def _change(change: QueueChange, given: Given, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    age = None if given.older_than is None else length("--older-than", given.older_than)

    async def select(flows: "Flows") -> "tuple[QueueSelection, QueueCount]":
        from posthouse.flows.operate.queue_changes import Chosen

        account_id = None if given.account is None else await flows.accounts.account_id(given.account)
        chosen = Chosen(given.message, account_id, given.destination, given.lane, age)
        is_restored = change is QueueChange.RELEASE_RESTORED
        selection = await flows.queue_changes.select(chosen, or_all=is_restored)
        return selection, await flows.queue_changes.count(change, selection)

    selection, count = perform(select)
    text = reached(change, count)
    if not confirm(text, count.recipients, count._asdict(), dry_run=dry_run, yes=yes, as_json=as_json):
        return
    done = perform(lambda flows: flows.queue_changes.apply(change, selection, given.described))
    left = f" {count.being_tried:,} are being tried at this moment: repeat the command for those." * bool(
        count.being_tried
    )
    values = {"recipients": done, "being_tried": count.being_tried}
    output.write_done(
        f"{_recipients(done)} {'is' if done == 1 else 'are'} {_DONE[change]}{left}", values, as_json=as_json
    )


_WOULD: Final = {
    QueueChange.RETRY: "would be due now",
    QueueChange.HOLD: "would be held",
    QueueChange.RELEASE: "would be released",
    QueueChange.RELEASE_RESTORED: "would be released, and may come for the second time",
    QueueChange.CANCEL: "would be cancelled",
}
_DONE: Final = {
    QueueChange.RETRY: "due now; the next try is made as soon as the lane allows.",
    QueueChange.HOLD: "held until `posthouse queue release`.",
    QueueChange.RELEASE: "released.",
    QueueChange.RELEASE_RESTORED: "released.",
    QueueChange.CANCEL: "cancelled: failed, with an event, and the credit returned.",
}
_UNCHANGED: Final = {
    QueueChange.RETRY: "due already, held, or have a single try left",
    QueueChange.HOLD: "held already",
    QueueChange.RELEASE: "not held by an operator",
    QueueChange.RELEASE_RESTORED: "not held since a restore",
    QueueChange.CANCEL: "",
}


def reached(change: QueueChange, count: "QueueCount") -> str:
    """What a change would reach, in words."""
    text = (
        f"{_recipients(count.recipients)} {_WOULD[change]} ({count.messages:,} messages, {count.accounts:,} accounts)."
    )
    if count.unchanged:
        text += f" {count.unchanged:,} stay as they are: {_UNCHANGED[change]}."
    if count.being_tried:
        text += f" {count.being_tried:,} are being tried at this moment, and stay as they are."
    return text


def _recipients(count: int) -> str:
    return f"{count:,} recipient{'' if count == 1 else 's'}"


async def _watch(flows: "Flows") -> None:
    from rich.live import Live

    rates = Rates()
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                view = await flows.monitor.queue()
            except Refusal as refusal:
                # Keep watching, to show when it is over.
                live.update(f"posthouse: {text_of(refusal)}", refresh=True)
            else:
                rows = merged(view.reports, rates.observe(view.reports))
                live.update(render(view, rows[: max(1, live.console.height - _FRAME_LINES)]), refresh=True)
            await asyncio.sleep(PAUSE_SECONDS)


def _print(view: "QueueView", rows: "Sequence[LaneRow]") -> None:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if is_terminal else output.PIPE_WIDTH)
    console.print(render(view, rows, is_terminal=is_terminal))


def render(view: "QueueView", rows: "Sequence[LaneRow]", *, is_terminal: bool = True) -> "RenderableType":
    """In a terminal that is too narrow, only the replies are cut."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=is_terminal)
    for name in ("lane", "waiting", "in flight", "allowed", "delivered/s", "state"):
        is_number = name in ("waiting", "in flight", "allowed", "delivered/s")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    table.add_column("last reply", no_wrap=True, ratio=1)
    for row in rows:
        rate = "–" if row.per_second is None else f"{row.per_second:,.1f}"
        numbers = (f"{row.waiting:,}", f"{row.in_flight:,}", f"{row.connections:,}", rate)
        reply = printable(row.last_reply or "–")[:_REPLY_CHARACTERS]
        is_paused = _is_paused(row, view.at)
        texts = (row.lane, *numbers, state_of(row, view.at), reply)
        table.add_row(*map(Text, texts), style="yellow" if is_paused else "")
    hint = (
        "No worker has reported a lane in the last seconds: nothing waits, or no `posthouse run delivery` is running."
    )
    return Group(Text(totals_of(view.backlog, view.at)), table if rows else Text(f"\n{hint}"))


def totals_of(backlog: "Backlog", now: datetime) -> str:
    """The schedule's totals in one line, with the age of the oldest due mail."""
    counts = {
        "due now": backlog.due,
        "handed out": backlog.leased,
        "being tried": backlog.claimed,
        "later": backlog.later,
        "held": backlog.held,
    }
    oldest = backlog.oldest_due_at
    age = "–" if oldest is None else f"{max(0.0, (now - oldest).total_seconds()):,.0f} s"
    texts = "   ".join(f"{name} {counted(count)}" for name, count in counts.items())
    return f"{now:%Y-%m-%d %H:%M:%S} UTC   {texts}   oldest due {age}"


def counted(count: "BoundedCount") -> str:
    return f"{count.number:,}{'+' if count.is_more else ''}"


def state_of(row: LaneRow, now: datetime) -> str:
    if row.paused_until is not None and _is_paused(row, now):
        seconds = (row.paused_until - now).total_seconds()
        return f"paused until {row.paused_until:%H:%M:%S} ({seconds:,.0f} s)"
    if row.waiting and row.in_flight >= row.connections:
        return "full"
    return "busy" if row.waiting or row.in_flight else "idle"


def _is_paused(row: LaneRow, now: datetime) -> bool:
    return row.paused_until is not None and row.paused_until > now


def plain(view: "QueueView", rows: Sequence[LaneRow]) -> Plain:
    backlog = asdict(view.backlog)
    oldest_due_at = backlog.pop("oldest_due_at")
    lanes = [{**asdict(row), "state": state_of(row, view.at)} for row in rows]
    for lane in lanes:
        del lane["per_second"]  # needs two reports
    counts = {name: {"count": count.number, "is_more": count.is_more} for name, count in backlog.items()}
    return {"at": view.at, **counts, "oldest_due_at": oldest_due_at, "lanes": lanes}
