"""The codes of refusals, and how they are shown."""

from posthouse.rules.refusal import Code, invalid


def test_the_codes_are_those_of_the_contract() -> None:
    assert [str(code) for code in Code] == [
        "invalid_request", "unauthorized", "forbidden", "not_found", "conflict", "insufficient_credits",
        "rate_limited", "warmup_limited", "account_suspended", "payload_too_large", "service_unavailable",
        "temporary_failure", "internal_error", "idempotency_conflict", "idempotency_in_progress",
    ]  # fmt: skip


def test_a_refusal_shows_its_code_and_text() -> None:
    assert str(invalid("Too fast.")) == "invalid_request: Too fast."
