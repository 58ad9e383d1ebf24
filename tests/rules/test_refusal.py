"""A refusal is an answer that can be raised and compared."""

import pytest

from posthouse.rules.refusal import Code, Refusal, invalid


def test_the_codes_are_those_of_the_contract() -> None:
    assert [str(code) for code in Code] == [
        "invalid_request", "unauthorized", "forbidden", "not_found", "conflict", "insufficient_credits",
        "rate_limited", "warmup_limited", "account_suspended", "payload_too_large", "service_unavailable",
        "temporary_failure", "internal_error", "idempotency_conflict", "idempotency_in_progress",
    ]  # fmt: skip


def test_a_refusal_is_raised_and_caught_with_its_fields() -> None:
    with pytest.raises(Refusal) as caught:
        raise Refusal(Code.RATE_LIMITED, "Too fast.", retry_after_seconds=1, headers={"X": "1"})
    refusal = caught.value
    assert (refusal.code, refusal.text) == (Code.RATE_LIMITED, "Too fast.")
    assert (refusal.retry_after_seconds, refusal.headers) == (1, {"X": "1"})
    assert str(refusal) == "rate_limited: Too fast."


def test_two_refusals_with_the_same_fields_are_equal() -> None:
    assert invalid("No.") == Refusal(Code.INVALID_REQUEST, "No.")
    assert invalid("No.") != invalid("Never.")


def test_headers_are_not_shared_between_refusals() -> None:
    item, other = invalid("No."), invalid("No.")
    item.headers["Retry-After"] = "1"
    assert other.headers == {}
