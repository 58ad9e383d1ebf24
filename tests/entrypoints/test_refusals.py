"""Each refusal code has its HTTP status and its SMTP reply."""

import pytest

from posthouse.entrypoints.refusals import REPLIES, http_status, smtp_reply
from posthouse.rules.disk_space import no_capacity
from posthouse.rules.refusal import Code, Refusal

EXPECTED = [
    (Code.INVALID_REQUEST, 400, "550 5.6.0"),
    (Code.UNAUTHORIZED, 401, "535 5.7.8"),
    (Code.INSUFFICIENT_CREDITS, 402, "450 4.7.1"),
    (Code.FORBIDDEN, 403, "550 5.7.1"),
    (Code.ACCOUNT_SUSPENDED, 403, "450 4.7.1"),
    (Code.NOT_FOUND, 404, "550 5.1.1"),
    (Code.CONFLICT, 409, "451 4.3.0"),
    (Code.IDEMPOTENCY_CONFLICT, 409, "451 4.3.0"),
    (Code.IDEMPOTENCY_IN_PROGRESS, 409, "451 4.3.0"),
    (Code.PAYLOAD_TOO_LARGE, 413, "552 5.3.4"),
    (Code.RATE_LIMITED, 429, "450 4.7.1"),
    (Code.WARMUP_LIMITED, 429, "451 4.7.1"),
    (Code.INTERNAL_ERROR, 500, "451 4.3.0"),
    (Code.SERVICE_UNAVAILABLE, 503, "451 4.3.0"),
    (Code.TEMPORARY_FAILURE, 503, "451 4.3.0"),
]


@pytest.mark.parametrize(("code", "http", "smtp"), EXPECTED)
def test_a_code_has_its_status_and_its_reply(code: Code, http: int, smtp: str) -> None:
    reply, status, text = smtp_reply(Refusal(code, "No."))
    assert (http_status(code), f"{reply} {status}", text) == (http, smtp, "No.")


def test_the_reply_for_a_full_disk_says_so() -> None:
    assert smtp_reply(no_capacity()) == (452, "4.3.1", "The service's storage is nearly full: try again later.")
    assert smtp_reply(no_capacity().copy())[:2] == (452, "4.3.1")
    assert http_status(no_capacity().code) == 503


def test_every_code_has_a_reply() -> None:
    assert set(REPLIES) == set(Code) == {code for code, _, _ in EXPECTED}


@pytest.mark.parametrize("code", list(Code))
def test_reply_and_enhanced_status_agree_and_our_faults_are_temporary(code: Code) -> None:
    http, (reply, status) = REPLIES[code]
    assert str(reply)[0] == status[0]
    assert http < 500 or reply < 500
