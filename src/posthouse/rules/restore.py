"""Whether PostgreSQL still has all that the service committed, or was restored to an earlier moment.

Every recovery of a cluster begins a new timeline, both a promotion after a failure and a restore. A process that ran
before knows which service time it had noted in the database: if that note is there, nothing was lost. Without such a
process, a new timeline is assumed to be that of a restore.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

# The value of `held_by` in the schedule.
RESTORE: Final = "restore"
# Each process notes service time every five seconds, so the newest mail may be this much younger than the last note.
NOTED_WITHIN: Final = timedelta(seconds=10)
# How long processes that ran before a promotion have to confirm that nothing is missing; each looks every five seconds.
CONFIRMATION_MAX: Final = timedelta(seconds=30)


class Continuity(StrEnum):
    TRUSTED = "trusted"
    PROMOTED = "promoted"
    RESTORED = "restored"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NotedTime:
    """Service time in the database, as a process noted it; `acceptances` as in `rules.service_time`."""

    service_time: datetime
    acceptances: int


@dataclass(frozen=True, slots=True)
class TimelineFound:
    """`doubted_for` is None if the timeline is trusted; `is_being_held`: it was found to be a restored database's.

    `has_target`: a setting says where the recovery ends.
    """

    noted: NotedTime | None
    doubted_for: timedelta | None
    is_being_held: bool = False
    has_target: bool = False


def judge(remembered: NotedTime | None, found: TimelineFound) -> Continuity:
    """`remembered` is what this process noted, and PostgreSQL committed."""
    if found.is_being_held or (remembered is not None and _is_missing(remembered, found.noted)):
        return Continuity.RESTORED
    if found.doubted_for is None:
        return Continuity.TRUSTED
    if found.has_target:
        return Continuity.RESTORED
    if remembered is not None:
        return Continuity.PROMOTED
    return Continuity.RESTORED if found.doubted_for >= CONFIRMATION_MAX else Continuity.UNKNOWN


def _is_missing(remembered: NotedTime, noted: NotedTime | None) -> bool:
    if noted is None or noted.acceptances < remembered.acceptances:
        return True
    # An operator's acceptance may set service time back.
    return noted.acceptances == remembered.acceptances and noted.service_time < remembered.service_time
