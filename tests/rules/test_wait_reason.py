"""What a recipient waits for: one reason, in words that say who made it wait and until when."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.wait_reason import LastAttempt, ScheduleState, WaitReason, explain

NOW = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
AT = "2026-05-04 09:35:00 UTC"
EARLIER = NOW - timedelta(hours=1)
SINCE = "2026-05-04 08:30:00 UTC"

NEW = ScheduleState(LATER, 0, is_claimed=False, is_worker_alive=False, attempt_count=0, held_since=None)
CLAIMED = replace(NEW, fence=1, is_claimed=True, is_worker_alive=True, attempt_count=1)
DEFERRED = replace(NEW, fence=2, attempt_count=1)
GREYLISTED = LastAttempt(1, "deferred", "mx1.example.org", 451, "4.7.1 Grey-listed\ntry later")
BUSY = replace(GREYLISTED, response="4.3.2 busy")
NOWHERE = replace(GREYLISTED, mx_host=None, code=None, response="DNS gave no usable answer: greylisted.example")


@pytest.mark.parametrize(
    ("place", "last", "reason", "words"),
    [
        (None, None, WaitReason.LOST, "Please report this as a fault."),
        (NEW, None, WaitReason.ON_ITS_WAY, f"on its way to a worker; if none takes it, it is due again {AT}"),
        (replace(NEW, next_at=EARLIER), None, WaitReason.DUE, f"due since {SINCE}; waiting for a free worker"),
        (CLAIMED, None, WaitReason.SENDING, "being sent by a worker"),
        (replace(CLAIMED, is_worker_alive=False), None, WaitReason.WORKER_LOST, "its worker was lost; it is due again"),
        (
            DEFERRED,
            GREYLISTED,
            WaitReason.GREYLISTED,
            f"greylisted by mx1.example.org: 451 4.7.1 Grey-listed / try later; next try at {AT}, after 1 attempt",
        ),
        (
            replace(DEFERRED, fence=6, attempt_count=3),
            replace(BUSY, fence=5),
            WaitReason.DEFERRED,
            f"deferred by mx1.example.org: 451 4.3.2 busy; next try at {AT}, after 3 attempts",
        ),
        (
            DEFERRED,
            NOWHERE,
            WaitReason.DEFERRED,
            "deferred: DNS gave no usable answer: greylisted.example; next try at",
        ),
        (
            replace(DEFERRED, fence=3),
            BUSY,
            WaitReason.LANE_FULL,
            f"postponed until {AT} for a reason other than the dest",
        ),
        (replace(NEW, fence=1), None, WaitReason.LANE_FULL, "its lane is full or paused"),
        (DEFERRED, replace(BUSY, outcome="postponed"), WaitReason.LANE_FULL, "its lane is full or paused"),
        (
            replace(NEW, held_since=EARLIER),
            None,
            WaitReason.PAUSED,
            f"held since {SINCE}, because its account, its lane or all outbound mail",
        ),
    ],
)
def test_each_state_has_its_text(
    place: ScheduleState | None, last: LastAttempt | None, reason: WaitReason, words: str
) -> None:
    wait = explain(place, last, is_suspended=False, suppressed=None, now=NOW)
    assert wait.reason is reason
    assert words in wait.text


def test_a_recipient_of_a_suspended_account_is_held() -> None:
    wait = explain(replace(NEW, held_since=EARLIER), None, is_suspended=True, suppressed=None, now=NOW)
    assert wait.reason is WaitReason.ACCOUNT_SUSPENDED
    assert wait.text == f"held since {SINCE}, because the account is suspended; checked again {AT}"


def test_a_suppressed_address_is_shown_before_its_next_try() -> None:
    wait = explain(DEFERRED, BUSY, is_suspended=False, suppressed=("complaint", EARLIER), now=NOW)
    assert wait.reason is WaitReason.SUPPRESSED
    assert wait.text.startswith(f"the address has been suppressed since {SINCE}, after a complaint;")
    sent = explain(CLAIMED, BUSY, is_suspended=False, suppressed=("complaint", EARLIER), now=NOW)
    assert sent.reason is WaitReason.SENDING


def test_a_servers_reply_is_short_and_printable() -> None:
    last = replace(BUSY, mx_host="mx\x1b[0m", response="\x1b[2J" + "a" * 2_000)
    wait = explain(DEFERRED, last, is_suspended=False, suppressed=None, now=NOW)
    assert wait.text.isprintable()
    assert len(wait.text) < 500
