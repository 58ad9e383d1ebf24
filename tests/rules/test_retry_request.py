"""Which recipients a request for the next try now moves."""

from datetime import UTC, datetime

import pytest

from posthouse.rules import retry
from posthouse.rules.retry import RetryAnswer
from posthouse.rules.wait_reason import WaitExplanation, WaitReason

AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize("reason", list(WaitReason))
def test_what_was_deferred_is_moved_and_all_else_stays(reason: WaitReason) -> None:
    judged = retry.judge_request("deferred", WaitExplanation(reason, "why"), AT, attempts=1, attempts_max=10)
    is_movable = reason in (WaitReason.DEFERRED, WaitReason.GREYLISTED)
    assert judged.result == (RetryAnswer.NOW if is_movable else reason)
    assert (judged.text == "why") is not is_movable


def test_what_is_final_stays() -> None:
    judged = retry.judge_request("bounced", None, None, attempts=3, attempts_max=10)
    assert (judged.result, judged.text) == (RetryAnswer.FINAL, "it is final: bounced")


@pytest.mark.parametrize(("attempts", "result"), [(8, RetryAnswer.NOW), (9, RetryAnswer.LAST_ATTEMPT)])
def test_the_last_attempt_stays_at_its_time(attempts: int, result: RetryAnswer) -> None:
    wait = WaitExplanation(WaitReason.DEFERRED, "why")
    judged = retry.judge_request("deferred", wait, AT, attempts=attempts, attempts_max=10)
    assert judged.result is result
    assert ("2026-05-04 09:30:00 UTC" in judged.text) is (result is RetryAnswer.LAST_ATTEMPT)
