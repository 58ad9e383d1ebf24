"""Why a recipient is not final yet, in plain words; the same text for operators and customers."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from posthouse.mail.reply import printable
from posthouse.rules import message
from posthouse.rules.restore import RESTORE
from posthouse.rules.suppression import SuppressionReason

QUOTED_CHARACTERS_MAX: Final = 300

_is_greylisting: Final = re.compile(r"gr[ea]y-?list", re.IGNORECASE).search


class WaitReason(StrEnum):
    """What a recipient that is not final waits for."""

    SENDING = "sending"
    WORKER_LOST = "worker_lost"
    ACCOUNT_SUSPENDED = "account_suspended"
    PAUSED = "paused"
    SCHEDULED = "scheduled"
    SUPPRESSED = "suppressed"
    DUE = "due"
    ON_ITS_WAY = "on_its_way"
    GREYLISTED = "greylisted"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    LANE_FULL = "lane_full"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The latest started attempt. `fence` is that of its claim."""

    fence: int
    outcome: str | None
    mx_host: str | None
    code: int | None
    response: str | None


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The recipient's entry in the schedule. `held_by` is `operator`, `restore`, or the lane that is paused.

    `bounce_at` and the first reply are set if a block of our address holds it.
    """

    next_at: datetime
    fence: int
    is_claimed: bool
    is_worker_alive: bool
    attempt_count: int
    held_since: datetime | None
    held_by: str | None = None
    bounce_at: datetime | None = None
    first_code: int | None = None
    first_response: str | None = None
    send_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    reason: WaitReason
    text: str


def explain(
    state: ScheduleState | None,
    last: LastAttempt | None,
    *,
    is_suspended: bool,
    suppressed: tuple[str, datetime] | None,
    now: datetime,
) -> WaitExplanation:
    """Why the recipient is not final. `suppressed` is the address's suppression: its reason and time."""
    if state is None:
        return WaitExplanation(
            WaitReason.LOST,
            "not final, but missing from the schedule: it will not be sent. Please report this as a fault.",
        )
    next_at = when(state.next_at)
    if state.is_claimed:
        if state.is_worker_alive:
            return WaitExplanation(WaitReason.SENDING, "being sent by a worker")
        text = f"its worker was lost; it is due again as soon as that is noticed, {next_at} at the latest"
        return WaitExplanation(WaitReason.WORKER_LOST, text)
    if state.held_since is not None:
        held = f"held since {when(state.held_since)}, because"
        if state.held_by == "operator":
            return WaitExplanation(
                WaitReason.PAUSED, f"{held} the operator of this service holds it; it continues when it is released"
            )
        if state.held_by == RESTORE:
            text = (
                f"{held} the service's database was restored, and it may have been sent already; it continues when the "
                "operator of this service releases it"
            )
            return WaitExplanation(WaitReason.PAUSED, text)
        if state.held_by is not None:
            text = f"{held} the operator of this service paused the lane {one_line(state.held_by)}"
            return WaitExplanation(WaitReason.PAUSED, text)
        if is_suspended:
            text = f"{held} the account is suspended; checked again {next_at}"
            return WaitExplanation(WaitReason.ACCOUNT_SUSPENDED, text)
        return WaitExplanation(
            WaitReason.PAUSED, f"{held} its account, its lane or all outbound mail was paused; checked again {next_at}"
        )
    if message.is_ahead(state.send_at, now):
        return WaitExplanation(WaitReason.SCHEDULED, f"scheduled by its sender for {next_at}")
    if suppressed is not None:
        why, since = suppressed
        text = f"{suppressed_for(why, since)}; it bounces at the next try, {next_at}"
        return WaitExplanation(WaitReason.SUPPRESSED, text)
    if state.bounce_at is not None:
        return _blocked(state, state.bounce_at)
    if state.next_at <= now:
        return WaitExplanation(WaitReason.DUE, f"due since {next_at}; waiting for a free worker")
    # A deferral raises the fence by 1; a later postponement has raised it further.
    if last is not None and last.outcome == "deferred" and state.fence == last.fence + 1:
        return _deferred(last, next_at, state.attempt_count)
    if state.fence == 0:
        return WaitExplanation(
            WaitReason.ON_ITS_WAY, f"on its way to a worker; if none takes it, it is due again {next_at}"
        )
    text = f"postponed until {next_at} for a reason other than the destination: its lane is full or paused"
    return WaitExplanation(WaitReason.LANE_FULL, text)


def _blocked(state: ScheduleState, bounce_at: datetime) -> WaitExplanation:
    said = quoted(state.first_code, (state.first_response or "")[:QUOTED_CHARACTERS_MAX])
    text = (
        f"this service's address was refused{said}; next try at {when(state.next_at)} at the earliest, and if the "
        f"refusal lasts, it bounces at {when(bounce_at)}"
    )
    return WaitExplanation(WaitReason.BLOCKED, text)


def _deferred(last: LastAttempt, next_at: str, attempts: int) -> WaitExplanation:
    whose = f" by {one_line(last.mx_host)}" if last.mx_host else ""
    is_greylisted = last.code is not None and bool(_is_greylisting(last.response or ""))
    what = f"greylisted{whose}" if is_greylisted else f"deferred{whose}"
    tried = f"after {attempts} attempt{'' if attempts == 1 else 's'}"
    said = quoted(last.code, (last.response or "")[:QUOTED_CHARACTERS_MAX])
    text = f"{what}{said}; next try at {next_at}, {tried}"
    return WaitExplanation(WaitReason.GREYLISTED if is_greylisted else WaitReason.DEFERRED, text)


def suppressed_for(reason: str, since: datetime) -> str:
    why = {
        SuppressionReason.BOUNCE: "after a bounce",
        SuppressionReason.COMPLAINT: "after a complaint",
        SuppressionReason.MANUAL: "at the account's own request",
    }
    return f"the address has been suppressed since {when(since)}, {why[SuppressionReason(reason)]}"


def when(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def quoted(code: int | None, response: str | None) -> str:
    """A server's reply after a colon: `: 451 4.7.1 try later`."""
    words = ([] if code is None else [str(code)]) + ([one_line(response)] if response else [])
    return f": {' '.join(words)}" if words else ""


def one_line(text: str) -> str:
    """Untrusted text on a single line, without control characters."""
    return printable(" / ".join(text.split("\n")))
