"""Why a recipient waits or how it ended, for an operator: with its lane's lesson and what an operator can do."""

from typing import NamedTuple

from posthouse.flows.operate.monitor import RecipientTimeline, StoredLesson, Timeline
from posthouse.rules import ids, lesson_text
from posthouse.rules.explanation import operators_step
from posthouse.rules.wait_reason import one_line, quoted


class RecipientExplanation(NamedTuple):
    """`now` is None once it is final; `lane` is the lesson that stops its lane, in words."""

    email: str
    status: str
    now: str | None
    reason: str
    cause: str | None
    why: str
    lane: str | None
    what_to_do: str
    operator: str | None


def explained(timeline: Timeline, recipient: RecipientTimeline, lesson: StoredLesson | None) -> RecipientExplanation:
    wait, waiting = timeline.wait(recipient), recipient.waiting
    why = timeline.explained(recipient)
    step = None
    if wait is not None:
        step = operators_step(
            wait.reason,
            None if waiting is None else waiting.held_by,
            account=ids.text(ids.ACCOUNT, timeline.account_id),
            message=ids.text(ids.MESSAGE, timeline.id),
            lane=lesson.lesson.place.lane if lesson else recipient.email.rpartition("@")[2].lower(),
        )
    return RecipientExplanation(
        email=one_line(recipient.email),
        status=recipient.status,
        now=None if wait is None else wait.text,
        reason=why.reason,
        cause=why.cause,
        why=f"{why.headline}{'' if wait else quoted(recipient.code, recipient.response)}",
        lane=None if lesson is None else f"{lesson.lesson.place.lane} {lesson_text.said(lesson.lesson)}",
        what_to_do=why.what_to_do,
        operator=" ".join(filter(None, (step, about_service(recipient)))) or None,
    )


def about_service(recipient: RecipientTimeline) -> str | None:
    """What the last reply says about this service."""
    replied = [attempt for attempt in recipient.attempts if attempt.code is not None]
    remark = replied[-1].explained_remark() if replied else None
    if remark is None:
        return None
    page = f" See {remark.page}" if remark.page else ""
    return f"About this service: {remark.headline} {remark.what_to_do}{page}"
