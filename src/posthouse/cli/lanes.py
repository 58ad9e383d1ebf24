"""Commands about lanes: pauses, and what they have learnt from the replies of their destinations."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, LimitGiven, Plain
from posthouse.flows.operate.lane_rows import listed
from posthouse.rules import ids, lesson_text
from posthouse.rules.standing import stored

if TYPE_CHECKING:
    from posthouse.flows.operate.lanes import StoredLesson
    from posthouse.rules.standing import Lesson

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
    rows = [row._asdict() for row in listed(perform(lambda services: services.lanes.all()))]
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
    perform(lambda services: services.lanes.pause(name, reason))
    done = f"{name} is paused in every worker within 5 seconds. `posthouse lane resume {name}` ends that."
    output.write_done(done, {"lane": name, "paused": True}, as_json=as_json)


@lane.command("resume")
def resume(name: LaneGiven, as_json: AsJson = False) -> None:
    """End a lane's pause: its mail is due within 5 seconds, at the rate that the lane has learnt."""
    count = perform(lambda services: services.lanes.resume(name))
    done = f"{name} goes on; {count:,} recipient{' is' if count == 1 else 's are'} due within 5 seconds."
    output.write_done(done, {"lane": name, "paused": False, "recipients": count}, as_json=as_json)


@lane.command("log")
def log(
    name: Annotated[str | None, typer.Argument(metavar="LANE", help="Of this lane alone.")] = None,
    limit: LimitGiven = 50,
    as_json: AsJson = False,
) -> None:
    """Show what lanes have learnt, newest first: each change, and the reply that caused it."""
    rows = [_plain(found) for found in perform(lambda services: services.lanes.log(name, limit))]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty="Nothing was learnt yet.")


@lane.command("delays")
def delays(as_json: AsJson = False) -> None:
    """Show providers that take mail much later than in the week before."""
    rows: list[Plain] = [
        {"provider": found.provider, "since": found.since, **found.delay._asdict()}
        for found in perform(lambda services: services.provider_delays.known())
    ]
    none = "There are none: all providers take mail about as soon as in the week before."
    output.write_page(rows, _DELAY_COLUMNS, as_json=as_json, empty=none)


@lane.command("explain")
def explain(name: LaneGiven, as_json: AsJson = False) -> None:
    """Show what holds for a lane, and why."""
    view = perform(lambda services: services.lanes.explain(name, 10))
    if as_json:
        return output.write_json(
            {
                "lane": view.lane,
                "begins_at": view.begins_at,
                "standings": [{"address": found.place.ip, **stored(found.standing)} for found in view.standings],
                "lessons": [_plain(found) for found in view.lessons],
            }
        )
    if not view.standings:
        return output.write_line(f"{view.lane} has learnt nothing: it begins at {view.begins_at:g} mails a second.")
    for found in view.standings:
        whose = f" from {found.place.ip}" if found.place.ip else ""
        whose = f" for mail of {found.place.domain}" if found.place.domain else whose
        if found.place.branch is not None:
            account_id, destination = found.place.branch
            whose = f" for mail of {ids.text(ids.ACCOUNT, account_id)} to {destination}"
        output.write_line(f"{view.lane}{whose}:")
        for line in lesson_text.described(found.standing, view.at):
            output.write_line(f"  {line}")
    output.write_line("")
    return output.write_page([_plain(found) for found in view.lessons], _COLUMNS, as_json=False)


@lane.command("undo")
def undo(
    lesson: Annotated[int, typer.Argument(metavar="LESSON", help="Its number, as `lane log` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Put a lane back to what it was before a lesson; what caused the lesson is ignored for 24 hours."""
    done = perform(lambda services: services.lanes.undo(lesson))
    _write(done, f"{done.place.lane} is as before lesson {lesson}, within 2 seconds.", as_json=as_json)


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
        done = perform(lambda services: services.lanes.unpin(name, address))
    else:
        done = perform(lambda services: services.lanes.pin(name, rate, address))
    _write(done, f"{done.place.lane}: {lesson_text.said(done)}.", as_json=as_json)


def _write(done: "Lesson", text: str, *, as_json: bool) -> None:
    output.write_done(text, {"lane": done.place.lane, "address": done.place.ip, **stored(done.after)}, as_json=as_json)


def _plain(found: "StoredLesson") -> Plain:
    lesson = found.lesson
    message_id = lesson.refused.message_id
    return {
        "id": found.id,
        "at": lesson.at,
        "lane": lesson.place.lane,
        "address": lesson.place.ip,
        "kind": lesson.kind,
        "scope": lesson.refused.scope,
        "until": lesson.until,
        "what": lesson_text.said(lesson),
        "message": None if message_id is None else ids.text(ids.MESSAGE, message_id),
        "reply": lesson.refused.reply,
        "before": stored(lesson.before),
        "after": stored(lesson.after),
    }
