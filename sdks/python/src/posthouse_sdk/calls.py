"""The three calls as plans: which attempts to make and how long to pause, without saying how either is done.

A plan is a generator. It yields an Attempt and is sent its answer or its error; it yields a Pause and is sent nothing;
it returns the result or raises. The clients carry plans out, one with threads in mind, one with asyncio, so that the
rules of retrying and waiting are written once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from posthouse_sdk import checks
from posthouse_sdk.errors import ApiError, ConnectionFailedError, PosthouseError, WaitTimeoutError
from posthouse_sdk.models import Email
from posthouse_sdk.policy import RetryPolicy, poll_seconds, retry_after_seconds
from posthouse_sdk.results import Message, Sent
from posthouse_sdk.transport import ANSWER_BYTES_MAX, Answer, Request

# Less than this is no time at all.
SECONDS_MIN: Final = 0.001

Result = TypeVar("Result")


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        ...


@dataclass(frozen=True, slots=True)
class DebugEvent:
    """One attempt. `status` is None if there was no answer, `wait` is None if no attempt follows; times in seconds."""

    method: str
    url: str
    status: int | None
    attempt: int
    duration: float
    wait: float | None


@dataclass(frozen=True, slots=True)
class Setup:
    """What all calls of a client share."""

    base_url: str
    authorization: str = field(repr=False)
    user_agent: str
    timeout: float
    retry: RetryPolicy
    clock: Clock = field(repr=False)
    random: Callable[[], float] = field(repr=False)
    debug: Callable[[DebugEvent], None] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    request: Request
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Attempt | Pause
Outcome = Answer | PosthouseError | None
Plan = Generator[Step, Outcome, Result]


def send(setup: Setup, email: Email, idempotency_key: str | None) -> Plan[Sent]:
    key = str(uuid.uuid4()) if idempotency_key is None else checks.idempotency_key(idempotency_key)
    body = json.dumps(email.to_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    answer = yield from _exchange(setup, "POST", f"{setup.base_url}/emails", headers, body, 202)
    replayed = answer.headers.get("idempotent-replayed", "").lower() == "true"
    return Sent.from_json(_object(answer) or {}, replayed=replayed)


def get(setup: Setup, message_id: str) -> Plan[Message]:
    url = f"{setup.base_url}/emails/{checks.message_id(message_id)}"
    answer = yield from _exchange(setup, "GET", url, {}, None, 200)
    return Message.from_json(_object(answer) or {})


def wait(setup: Setup, message_id: str, timeout: float) -> Plan[Message]:
    checks.seconds(timeout, "a wait's time-out")
    end = setup.clock.monotonic() + timeout
    poll = 0
    while True:
        message = yield from get(setup, message_id)
        if message.is_final:
            return message
        left = end - setup.clock.monotonic()
        if left < SECONDS_MIN:
            raise WaitTimeoutError(f"the message {message.id} was still queued after {timeout:g} s", message)
        poll += 1
        yield Pause(min(poll_seconds(poll, setup.random()), left))


def _exchange(
    setup: Setup, method: str, url: str, headers: Mapping[str, str], body: bytes | None, success: int
) -> Plan[Answer]:
    """The first answer that is a success, after as many attempts as the policy has."""
    common = {"Authorization": setup.authorization, "Accept": "application/json", "User-Agent": setup.user_agent}
    request = Request(method, url, {**common, **headers}, body)
    end = setup.clock.monotonic() + setup.retry.total_seconds_max
    attempt = 0
    while True:
        attempt += 1
        began = setup.clock.monotonic()
        outcome = yield Attempt(request, max(SECONDS_MIN, min(setup.timeout, end - began)))
        ended = setup.clock.monotonic()
        verdict = _verdict(outcome, success, setup.clock.now())
        wait = None if isinstance(verdict, Answer) else _wait(setup, verdict, attempt, end - ended)
        if setup.debug is not None:
            status = outcome.status if isinstance(outcome, Answer) else None
            setup.debug(DebugEvent(method, url, status, attempt, ended - began, wait))
        if isinstance(verdict, Answer):
            return verdict
        if wait is None:
            raise verdict
        yield Pause(wait)


def _wait(setup: Setup, error: PosthouseError, attempt: int, left: float) -> float | None:
    """How long to wait before the next attempt; None if there is none."""
    if not error.is_retryable or attempt >= setup.retry.attempts_max:
        return None
    wait = setup.retry.wait_seconds(attempt, setup.random(), error.retry_after)
    return wait if wait < left else None


def _verdict(outcome: Outcome, success: int, now: float) -> Answer | PosthouseError:
    """The answer, if it is the success that was asked for; the error that it stands for otherwise."""
    if not isinstance(outcome, Answer):
        return outcome or ConnectionFailedError("the transport returned no answer")
    fields = _object(outcome)
    if outcome.status == success and fields is not None and _text(fields, "id") and _text(fields, "status"):
        return outcome
    details = fields if fields is not None and outcome.status >= 400 else {}
    return ApiError(
        _text(details, "error") or _what_came(outcome, success),
        status=outcome.status,
        code=_text(details, "code"),
        request_id=_text(details, "request_id") or outcome.headers.get("x-request-id"),
        retry_after=retry_after_seconds(outcome.headers.get("retry-after"), now),
    )


def _what_came(answer: Answer, success: int) -> str:
    if len(answer.body) > ANSWER_BYTES_MAX:
        return f"the answer is longer than {ANSWER_BYTES_MAX} bytes"
    if 300 <= answer.status < 400:
        return "the service answered with a redirect, which is not followed: check the base URL"
    if answer.status == success:
        return "the answer is not the JSON that was expected: check the base URL"
    return f"the service answered with status {answer.status}"


def _object(answer: Answer) -> dict[str, Any] | None:
    if len(answer.body) > ANSWER_BYTES_MAX:
        return None
    try:
        value = json.loads(answer.body.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None
