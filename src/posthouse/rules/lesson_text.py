"""A lesson and a standing in plain words, for operators."""

from datetime import datetime

from posthouse.rules.standing import LaneState, Lesson, LessonKind, Standing
from posthouse.rules.wait_reason import one_line, when


def said(lesson: Lesson) -> str:
    """What changed, and by which reply."""
    reply = f", after the reply: {one_line(lesson.refused.reply)}" if lesson.refused.reply else ""
    return f"{_change(lesson)}{reply}"


def _change(lesson: Lesson) -> str:
    before, after, until = lesson.before, lesson.after, lesson.until
    rest = "" if until is None else f" rests until {when(until)}"
    match lesson.kind:
        case LessonKind.SLOW:
            return f"{rest.strip()}, then {_rate(after)} instead of {_rate(before)}"
        case LessonKind.STILL_SLOW:
            return f"still refused:{rest}, {_rate(after)} as before"
        case LessonKind.RECOVERED:
            return f"mail is taken again, {_rate(after)}"
        case LessonKind.GREW:
            return f"{_rate(after)} instead of {_rate(before)}: it had more mail, and nothing was refused"
        case LessonKind.CEILING_FORGOTTEN:
            return "a day without a refusal: the ceiling is forgotten"
        case LessonKind.CONNECTIONS:
            return f"{after.connections_max} connections at most"
        case LessonKind.PER_CONNECTION:
            return f"{after.per_connection_max} mails over a connection at most"
        case LessonKind.RELAXED:
            return "a day without a refusal: " + "; ".join(bounds(after) or ["no bounds any more"])
        case LessonKind.BLOCK:
            return (
                f"our address is refused: one mail asks again at {when(until)}" if until else "our address is refused"
            )
        case LessonKind.UNDONE:
            return f"an operator undid a lesson: {_rate(after)}"
        case LessonKind.PINNED:
            return f"an operator pinned it at {_rate(after)}"
        case LessonKind.UNPINNED:
            return f"an operator let it learn again, from {_rate(after)}"


def bounds(standing: Standing) -> list[str]:
    """The learnt bounds of connections."""
    found = []
    if standing.connections_max is not None:
        found.append(f"{standing.connections_max} connections at most")
    if standing.per_connection_max is not None:
        found.append(f"{standing.per_connection_max} mails over a connection at most")
    return found


def described(standing: Standing, now: datetime) -> list[str]:
    """What holds for a lane, line by line."""
    lines = [f"{_rate(standing)}{', pinned by an operator' if standing.is_pinned else ''}"]
    if standing.ceiling is not None:
        lines.append(f"the destination refused more than about {standing.ceiling:.3g} mails a second")
    until = standing.paused_until
    if standing.state is LaneState.BLOCKED and until is not None:
        asks = f"one mail asks again at {when(until)}" if until > now else "one mail asks now"
        lines.append(f"blocked: our address is refused; {asks}")
    elif standing.state is LaneState.RESTING and until is not None:
        rests = f"rests until {when(until)}" if until > now else "its rest is over"
        lines.append(f"{rests}; then one connection, and one more for each mail taken")
    lines += bounds(standing)
    lines += [f"{cause} teaches nothing until {when(end)}" for cause, end in standing.ignored if end > now]
    return lines


def _rate(standing: Standing) -> str:
    return f"{standing.per_second:.3g} mails a second"
