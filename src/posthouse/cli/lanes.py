"""Commands about lanes: pauses, and what they have learnt from the replies of their destinations."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, LimitGiven, Plain
from posthouse.flows.operate.lanes import listed
from posthouse.rules import ids, learned_limits
from posthouse.rules.learned_limits import stored

if TYPE_CHECKING:
    from posthouse.flows.operate.lanes import StoredLimitChange
    from posthouse.rules.learned_limits import LimitChange

lane = typer.Typer(no_args_is_help=True)

_LISTED: Final = ("lane", "state", "waiting", "in_flight", "per_second", "pinned", "since", "reason")
_COLUMNS: Final = ("id", "at", "lane", "address", "kind", "what", "message")
_DELAY_COLUMNS: Final = ("provider", "since", "p95_seconds", "week_p95_seconds")

LaneGiven = Annotated[str, typer.Argument(metavar="LANE", help="A provider's name, such as google, or a domain.")]
AddressGiven = Annotated[
    str, typer.Option("--address", metavar="IP", help="Our address that it holds for, if there are several.")
]


@lane.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show the lanes that have mail, have learnt something, or are paused: the busiest first."""
    rows = [row._asdict() for row in listed(perform(lambda flows: flows.lanes.all()))]
    hint = "No lane has mail, has learnt anything, or is paused."
    output.write_page(rows, _LISTED, as_json=as_json, empty=hint)


@lane.command("pause")
def pause(
    name: LaneGiven,
    reason: Annotated[str, typer.Option(help="Why, for the other operators.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Begin no session with a lane until it is resumed; its mail waits, and that time does not count.

    In force in every worker within 5 seconds, and kept over restarts. What is being sent is sent to its end.
    """
    perform(lambda flows: flows.lanes.pause(name, reason))
    done = f"{name} is paused in every worker within 5 seconds. `posthouse lane resume {name}` ends that."
    output.write_done(done, {"lane": name, "paused": True}, as_json=as_json)


@lane.command("resume")
def resume(name: LaneGiven, as_json: AsJson = False) -> None:
    """End a lane's pause: its mail is due within 5 seconds, at the rate that the lane has learnt."""
    count = perform(lambda flows: flows.lanes.resume(name))
    done = f"{name} is resumed; {count:,} recipient{' is' if count == 1 else 's are'} due within 5 seconds."
    output.write_done(done, {"lane": name, "paused": False, "recipients": count}, as_json=as_json)


@lane.command("log")
def log(
    name: Annotated[str | None, typer.Argument(metavar="LANE", help="Only of this lane.")] = None,
    limit: LimitGiven = 50,
    as_json: AsJson = False,
) -> None:
    """Show what lanes have learnt, newest first: each change, and the reply that caused it."""
    rows = [_plain(found) for found in perform(lambda flows: flows.lanes.log(name, limit))]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty="Nothing was learnt yet.")


@lane.command("delays")
def delays(as_json: AsJson = False) -> None:
    """Show providers that take mail much later than in the week before."""
    rows: list[Plain] = [
        {"provider": found.provider, "since": found.since, **found.delay._asdict()}
        for found in perform(lambda flows: flows.provider_delays.known())
    ]
    none = "There are none: all providers take mail about as soon as in the week before."
    output.write_page(rows, _DELAY_COLUMNS, as_json=as_json, empty=none)


@lane.command("explain")
def explain(name: LaneGiven, as_json: AsJson = False) -> None:
    """Show what holds for a lane, and why."""
    view = perform(lambda flows: flows.lanes.explain(name, 10))
    if as_json:
        return output.write_json(
            {
                "lane": view.lane,
                "begins_at": view.begins_at,
                "learned_limits": [
                    {"address": found.scope.ip, **stored(found.limits)} for found in view.learned_limits
                ],
                "limit_changes": [_plain(found) for found in view.limit_changes],
            }
        )
    if not view.learned_limits:
        return output.write_line(f"{view.lane} has learnt nothing: it begins at {view.begins_at:g} messages a second.")
    for found in view.learned_limits:
        whose = f" from {found.scope.ip}" if found.scope.ip else ""
        whose = f" for mail of {found.scope.domain}" if found.scope.domain else whose
        if found.scope.branch is not None:
            account_id, destination = found.scope.branch
            whose = f" for mail of {ids.text(ids.ACCOUNT, account_id)} to {destination}"
        output.write_line(f"{view.lane}{whose}:")
        for line in learned_limits.limits_text(found.limits, view.at):
            output.write_line(f"  {line}")
    output.write_line("")
    return output.write_page([_plain(found) for found in view.limit_changes], _COLUMNS, as_json=False)


@lane.command("undo")
def undo(
    limit_change: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The limit change's number, as `lane log` shows it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Put a lane back to what it was before a limit change; what caused the limit change is ignored for 24 hours."""
    done = perform(lambda flows: flows.lanes.undo(limit_change))
    _write(done, f"{done.scope.lane} is as before limit change {limit_change}, within 2 seconds.", as_json=as_json)


@lane.command("pin")
def pin(
    name: LaneGiven,
    rate: Annotated[float | None, typer.Option(help="Mails a second.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Let it learn again.")] = False,
    address: AddressGiven = "",
    as_json: AsJson = False,
) -> None:
    """Keep a lane at a rate: refusals make it rest, but change the rate no more."""
    if (rate is None) is not off:
        raise typer.BadParameter("give --rate or --off, one of them.")
    if rate is None:
        done = perform(lambda flows: flows.lanes.unpin(name, address))
    else:
        done = perform(lambda flows: flows.lanes.pin(name, rate, address))
    _write(done, f"{done.scope.lane}: {learned_limits.change_text(done)}.", as_json=as_json)


def _write(done: "LimitChange", text: str, *, as_json: bool) -> None:
    output.write_done(text, {"lane": done.scope.lane, "address": done.scope.ip, **stored(done.after)}, as_json=as_json)


def _plain(found: "StoredLimitChange") -> Plain:
    limit_change = found.change
    message_id = limit_change.refused.message_id
    return {
        "id": found.id,
        "at": limit_change.at,
        "lane": limit_change.scope.lane,
        "address": limit_change.scope.ip,
        "kind": limit_change.kind,
        "scope": limit_change.refused.scope,
        "until": limit_change.until,
        "what": learned_limits.change_text(limit_change),
        "message": None if message_id is None else ids.text(ids.MESSAGE, message_id),
        "reply": limit_change.refused.reply,
        "before": stored(limit_change.before),
        "after": stored(limit_change.after),
    }
