"""The clients: one for threads, one for asyncio, alike but for `await`. Both may be used by many callers at once."""

from __future__ import annotations

import asyncio
import base64
import random as chance
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from posthouse_sdk import calls, checks
from posthouse_sdk.calls import Attempt, Clock, DebugEvent, Outcome, Plan, Setup
from posthouse_sdk.errors import AttemptTimeoutError, ConnectionFailedError
from posthouse_sdk.models import Email
from posthouse_sdk.policy import RetryPolicy
from posthouse_sdk.results import Message, Sent
from posthouse_sdk.streams import AsyncHttpTransport, AsyncTransport
from posthouse_sdk.transport import HttpTransport, Transport
from posthouse_sdk.version import VERSION

ATTEMPT_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 60.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Bearer:
    """An API key (`ph_live_…`, `ph_test_…`; with the read scope if it is to read), or a token from a login."""

    token: str = field(repr=False)

    def __post_init__(self) -> None:
        checks.bearer_token(self.token)

    @property
    def authorization(self) -> str:
        return f"Bearer {self.token}"


@dataclass(frozen=True, slots=True)
class Basic:
    """The user name and password of an SMTP credential."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        checks.user_name(self.username)
        checks.password(self.password)

    @property
    def authorization(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def _setup(
    credential: str | Bearer | Basic,
    base_url: str,
    timeout: float,
    retry: RetryPolicy | None,
    user_agent_suffix: str,
    debug: Callable[[DebugEvent], None] | None,
    clock: Clock | None,
    random: Callable[[], float],
) -> Setup:
    known = Bearer(credential) if isinstance(credential, str) else credential
    suffix = checks.user_agent_suffix(user_agent_suffix)
    return Setup(
        base_url=checks.base_url(base_url),
        authorization=known.authorization,
        user_agent=f"posthouse-python/{VERSION} {suffix}".rstrip(),
        timeout=checks.seconds(timeout, "the time-out", may_be_zero=False),
        retry=retry or RetryPolicy(),
        clock=clock or SystemClock(),
        random=random,
        debug=debug,
    )


class Client:
    """Sends email and reports its status.

    `credential` is an API key or token, or `Basic(username, password)`. `timeout` is for an attempt as a whole, in
    seconds; `retry` says how often and how long a call is tried. `debug` is called after every attempt, with nothing
    secret in what it is given. `transport` replaces the HTTP client; `HttpTransport(proxy=…)` goes through a proxy.
    """

    def __init__(
        self,
        credential: str | Bearer | Basic,
        *,
        base_url: str,
        timeout: float = ATTEMPT_SECONDS,
        retry: RetryPolicy | None = None,
        user_agent_suffix: str = "",
        transport: Transport | None = None,
        debug: Callable[[DebugEvent], None] | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self._setup = _setup(credential, base_url, timeout, retry, user_agent_suffix, debug, clock, random)
        self._transport = transport or HttpTransport()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self._setup.base_url!r})"

    def send(self, email: Email, *, idempotency_key: str | None = None) -> Sent:
        """The email is accepted and queued. With the same key and email it is never sent twice, for 24 hours.

        Without a key a new one is made for this call, and used for all of its attempts.
        """
        return self._carry_out(calls.send(self._setup, email, idempotency_key))

    def get(self, message_id: str) -> Message:
        """The message as it is now."""
        return self._carry_out(calls.get(self._setup, message_id))

    def wait(self, message_id: str, *, timeout: float = WAIT_SECONDS) -> Message:
        """The message when all its recipients have their result; WaitTimeoutError if that takes too long."""
        return self._carry_out(calls.wait(self._setup, message_id, timeout))

    def _carry_out(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(step, Attempt):
                outcome = self._attempt(step)
            else:
                outcome = None
                self._sleep(step.seconds)

    def _attempt(self, step: Attempt) -> Outcome:
        try:
            return self._transport.exchange(step.request, step.timeout_seconds)
        except OSError as error:
            return _failure(error, step)


class AsyncClient:
    """The same for asyncio: as `Client`, with `await`. A call that is cancelled ends at once, with its connection.

    A send that is cancelled may or may not have been accepted: send it again with the same `idempotency_key` to know.
    """

    def __init__(
        self,
        credential: str | Bearer | Basic,
        *,
        base_url: str,
        timeout: float = ATTEMPT_SECONDS,
        retry: RetryPolicy | None = None,
        user_agent_suffix: str = "",
        transport: AsyncTransport | None = None,
        debug: Callable[[DebugEvent], None] | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self._setup = _setup(credential, base_url, timeout, retry, user_agent_suffix, debug, clock, random)
        self._transport = transport or AsyncHttpTransport()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self._setup.base_url!r})"

    async def send(self, email: Email, *, idempotency_key: str | None = None) -> Sent:
        """As `Client.send`."""
        return await self._carry_out(calls.send(self._setup, email, idempotency_key))

    async def get(self, message_id: str) -> Message:
        """As `Client.get`."""
        return await self._carry_out(calls.get(self._setup, message_id))

    async def wait(self, message_id: str, *, timeout: float = WAIT_SECONDS) -> Message:  # noqa: ASYNC109
        """As `Client.wait`."""
        return await self._carry_out(calls.wait(self._setup, message_id, timeout))

    async def _carry_out(self, plan: Plan[Result]) -> Result:
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(step, Attempt):
                outcome = await self._attempt(step)
            else:
                outcome = None
                await self._sleep(step.seconds)

    async def _attempt(self, step: Attempt) -> Outcome:
        try:
            return await self._transport.exchange(step.request, step.timeout_seconds)
        except OSError as error:
            return _failure(error, step)


def _failure(error: OSError, step: Attempt) -> AttemptTimeoutError | ConnectionFailedError:
    failure: AttemptTimeoutError | ConnectionFailedError
    if isinstance(error, TimeoutError):
        failure = AttemptTimeoutError(f"there was no whole answer within {step.timeout_seconds:g} s")
    else:
        failure = ConnectionFailedError(f"the service could not be reached: {error}")
    failure.__cause__ = error
    return failure
