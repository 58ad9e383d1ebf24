"""Crash points: places where a process can be made to die, so that tests cover each gap between two steps.

`POSTHOUSE_CRASH_AT=record.before_commit:3` ends the process, as `kill -9` would, when it reaches that point for the
third time. Unset, a point costs a comparison with None.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

ENVIRONMENT: Final = "POSTHOUSE_CRASH_AT"
PASSES_MAX: Final = 1_000_000

POINTS: Final = frozenset(
    {
        # A send request over HTTP.
        "accept.admitted",
        "accept.read",
        "accept.prepared",
        "accept.locked",
        "accept.decided",
        "accept.before_commit",
        "accept.after_commit",
        "accept.published",
        "accept.part_written",
        "accept.before_answer",
        "accept.answered",
        # A sender cancels a message.
        "cancel.before_commit",
        "cancel.after_commit",
        # A message is submitted over SMTP.
        "submission.authenticated",
        "submission.received",
        "submission.before_answer",
        # Due work gets its ticket.
        "dispatch.leased",
        "dispatch.before_publish",
        "dispatch.published",
        "dispatch.calls_leased",
        "dispatch.before_publish_of_calls",
        "dispatch.calls_published",
        "reclaim.before_commit",
        "reclaim.after_commit",
        # A worker's lease.
        "worker.before_renewal",
        "worker.renewed",
        "worker.before_retirement",
        "worker.retired",
        # Tickets become attempts.
        "delivery.offered",
        "claim.before",
        "claim.before_commit",
        "claim.after_commit",
        "postpone.before_commit",
        "postpone.after_commit",
        # Attempts become mail on the wire.
        "carry.before_signing",
        "carry.before_connecting",
        "carry.connected",
        "carry.before_dot",
        "carry.after_dot",
        "carry.answered",
        "carry.carried",
        # Results are recorded.
        "record.before",
        "record.before_commit",
        "record.after_commit",
        "record.published",
        # Mail that was refused because of our address leaves over another one, or was held for too long and bounces.
        "reroute.before_commit",
        "reroute.after_commit",
        "reroute.before_bounce",
        "delivery.before_ack",
        "delivery.acked",
        # Webhooks are sent.
        "notification.offered",
        "notification.before_claim_commit",
        "notification.claimed",
        "notification.before_post",
        "notification.after_post",
        "notification.before_commit",
        "notification.after_commit",
        "notification.before_ack",
        "notification.acked",
        # Bounces and complaints arrive.
        "feedback.before_commit",
        "feedback.after_commit",
        # An address is erased.
        "erase.before_commit",
        "erase.after_commit",
        "erase.before_events",
        "erase.before_end",
        "erase.ended",
        # Maintenance.
        "maintenance.before_partition",
        "maintenance.partition_made",
        "maintenance.before_detaching",
        "maintenance.detached",
        "maintenance.before_reducing",
        "maintenance.reduced",
        "maintenance.before_forgetting_final",
        "maintenance.forgotten_final",
        "maintenance.before_drop",
        "maintenance.dropped",
        "maintenance.before_forgetting",
        "maintenance.forgotten",
        "maintenance.before_forgetting_content",
        "maintenance.forgotten_content",
    }
)


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_armed: str | None = None
_passes_left = 0
_end: Callable[[], None] = _kill_process


class UnknownPoint(ValueError):  # noqa: N818 (reads as what it says)
    """The environment variable doesn't name a crash point."""


def arm(given: str | None, end: Callable[[], None] = _kill_process) -> None:
    """Read the variable's value: a point's name, and after a colon the number of the pass at which to die.

    `end` replaces the death of the process: a simulation ends only the simulated process.
    """
    global _armed, _passes_left, _end
    if not given:
        _armed = None
        return
    name, _, count = given.partition(":")
    if name not in POINTS:
        raise UnknownPoint(f"{ENVIRONMENT}: {name!r} is not a crash point. The points are {', '.join(sorted(POINTS))}.")
    if not (count or "1").isdecimal() or not 1 <= int(count or 1) <= PASSES_MAX:
        raise UnknownPoint(f"{ENVIRONMENT}: the part after the colon is a number from 1 to {PASSES_MAX}.")
    _armed, _passes_left, _end = name, int(count or 1), end


def point(name: str) -> None:
    """Die here, if this point is armed and this is the chosen pass."""
    if _armed is not None and _armed == name:
        _pass()


def _pass() -> None:
    global _passes_left
    _passes_left -= 1
    if _passes_left == 0:
        _end()
