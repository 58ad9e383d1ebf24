"""Limits on requests and responses, so that no account or network takes the capacity of a process from others.

They limit the rate of requests without a credential, the requests that run at the same time, the memory of request
bodies, the work of accepting mail, and the memory of large responses.
"""

import time
from collections.abc import Hashable, Iterable, Mapping
from types import TracebackType
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from posthouse.clock import Clock
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.request_head import network_of
from posthouse.flows.shared.shares import UNLIMITED, FairShare, Rates, WaitedShare
from posthouse.rules import limits
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal

# Large responses are sent in pieces. Each further piece of a page counts as a request without a credential.
PIECE_BYTES: Final = 64 * 1024

UNAUTHENTICATED_RATE: Final = Rate(50, 200)
_NOT_PAGES: Final = ("/v1/", "/emails/", "/unsubscribe/", "/healthz")

CONCURRENCY_MAX: Final = 4
WAIT_SECONDS_MAX: Final = 5.0
# Their responses wait for something to happen.
WAITING_PATHS: Final = frozenset({"/v1/live", "/v1/messages/next"})
_HOLDER: Final = "posthouse.concurrency"
_TOO_MANY: Final = Refusal(
    Code.TEMPORARY_FAILURE, "Too many requests of this account at once: send fewer at a time.", 1
)

SENDING_BYTES_MAX: Final = 96 * 1024 * 1024
# An address may always have one response of this size, while there is memory.
ANSWER_BYTES: Final = 16 * 1024 * 1024

# The bound on all bodies that this process holds at a time, complete or not.
BODY_BYTES_MAX: Final = 512 * limits.MIB
# Processing a body may take this many times its size.
WEIGHT: Final = 3
# Smaller bodies are not counted: they take no more than the buffers of their connection, and connections are limited.
COUNTED_BYTES_MIN: Final = 16 * 1024
# A body of unknown size counts as this much until it grows larger.
UNKNOWN_BYTES: Final = limits.THREAD_BODY_BYTES_MIN

# A unit of work is a small message, this many bytes of a larger one, or this many recipients.
WORK_BYTES: Final = 8 * 1024
WORK_RECIPIENTS: Final = 10
WORK_MAX: Final = 160
# For a large message or a batch request: three of one account at a time, and one of another account next to them.
LARGE_WORK: Final = WORK_MAX // 4
WORK_SECONDS_MAX: Final = 4.0
# A request that would wait longer, estimated from the rate of turns, is refused immediately.
QUEUE_SECONDS_MAX: Final = 0.25
# For a request of an account that reached a limit within this time: four run at a time.
OVER_LIMIT_WORK: Final = WORK_MAX // 5
OVER_LIMIT_SECONDS: Final = 1.0
OVER_LIMIT_ACCOUNTS_MAX: Final = 10_000
_LIMIT_CODES: Final = frozenset(
    {Code.RATE_LIMITED, Code.WARMUP_LIMITED, Code.INSUFFICIENT_CREDITS, Code.ACCOUNT_SUSPENDED}
)


class UnauthenticatedLimit:
    """A rate limit per peer for requests without a valid credential: pages, unknown paths, refused credentials.

    A large page counts as more than one request, because writing it is most of its cost. Requests with a valid
    credential are neither counted nor limited here, wherever they come from, since many customers can share an
    address. Logins have their own limit, and mailbox providers unsubscribe many users from few addresses.
    """

    def __init__(self, clock: Clock, rate: Rate = UNAUTHENTICATED_RATE) -> None:
        self._clock = clock
        self._rate = rate
        self._allowed = (
            f"This address may send {rate.per_second} requests a second without a valid credential, "
            f"and {rate.burst} in a burst"
        )
        self._rates: Rates[str] = Rates()

    def require(self, scope: Scope) -> bool:
        """Whether the request is for a page; raises if the peer requested too many. Others are not counted here."""
        if scope["path"].startswith(_NOT_PAGES):
            return False
        wait = self._take(scope)
        if wait is not None:
            raise wait.refusal(self._allowed)
        return True

    def note_page(self, scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Count the size of a page that is being sent; `headers` are the response's."""
        size = next((int(value) for name, value in headers if name == b"content-length"), 0)
        if pieces := size // PIECE_BYTES:
            self._rates.charge(network_of(scope), self._rate, self._clock.now(), pieces)

    def after(self, scope: Scope, refusal: Refusal) -> Refusal:
        """The refusal to answer with instead. A wrong credential is recognised from the refusal's code."""
        if refusal.code is not Code.UNAUTHORIZED:
            return refusal
        wait = self._take(scope)
        return refusal if wait is None else wait.refusal(f"{refusal.text} {self._allowed}")

    def _take(self, scope: Scope) -> RateWait | None:
        return self._rates.take_request(network_of(scope), self._rate, self._clock.now())


class ConcurrencyLimit:
    """Limits the requests that run at the same time, per account, or per network without a credential; others wait.

    All requests of a process share an event loop. Otherwise a request would wait behind as many others as one account
    has connections. Sending has its own limit (`InProgress`), and requests that wait for something don't count.
    """

    def __init__(self, concurrency_max: int = CONCURRENCY_MAX, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._share: WaitedShare[Hashable] = WaitedShare(
            UNLIMITED, holder_max=concurrency_max, wait_seconds_max=wait_seconds_max, refusal=_TOO_MANY
        )

    async def begin(self, scope: Scope, holder: Hashable) -> None:
        """Wait for the holder's turn; `end` ends it."""
        if _HOLDER in scope or scope["path"] in WAITING_PATHS:
            return
        if not self._share.acquire_units_now(holder):
            await self._share.acquire_units(holder)
        scope[_HOLDER] = holder

    def end(self, scope: Scope) -> None:
        """To be called when the response begins, or the request ends without one."""
        holder = scope.pop(_HOLDER, None)
        if holder is not None:
            self._share.release_units(holder)


class ResponseLimits:
    """Limits the memory of large responses: they are sent in pieces, and only a bounded number of bytes at a time.

    Bytes written to a connection stay in memory until the client reads them. A piece is written when the one before it
    has left, and a connection whose client reads too slowly is closed (`connection`). Each address has its share of
    the memory, so that slow clients take nothing from others.
    """

    def __init__(self) -> None:
        self._sending: FairShare[str] = FairShare(SENDING_BYTES_MAX, least=ANSWER_BYTES)

    def limited(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """A `send` for one response. A large one that finds no memory is refused before its first byte is sent."""
        network = network_of(scope)
        start: Message | None = None
        is_refused = False

        async def send_limited(message: Message) -> None:
            nonlocal start, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start":
                # Held back until the size of the body is known: it may still become a refusal.
                start = message
                return
            body = message.get("body", b"")
            is_large = len(body) > PIECE_BYTES
            is_counted = is_large and self._sending.take_units(network, len(body))
            if is_large and start is not None and not is_counted:
                is_refused = True
                await responses.error_response(scope, _no_capacity())(scope, receive, send)
                return
            if start is not None:
                await send(start)
                start = None
            try:
                await (_send_in_pieces(send, message, body) if is_large else send(message))
            finally:
                if is_counted:
                    self._sending.release_units(network, len(body))

        return send_limited


async def _send_in_pieces(send: Send, message: Message, body: bytes) -> None:
    for begin in range(0, len(body), PIECE_BYTES):
        is_last = begin + PIECE_BYTES >= len(body)
        more = message.get("more_body", False) if is_last else True
        await send({"type": "http.response.body", "body": body[begin : begin + PIECE_BYTES], "more_body": more})


def _no_capacity() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "Too many large responses are being sent: try again soon.", 5)


class InProgress:
    """Each account's share of the memory for request bodies, and of the work of accepting mail.

    Memory is taken when the credential is known, before the body is read; work is taken when the body is complete. A
    request that finds no capacity waits, and is refused when it would wait or has waited too long. So a slow sender
    takes only memory, and an account's mail waits behind a few requests of each other account, however many those
    send.

    The account's limits (rate, warm-up, credits) are checked at the end of the work, because a replay must not count
    against them. So only a few requests at a time run for an account that has just reached one.
    """

    def __init__(self) -> None:
        self.body_bytes: WaitedShare[AccountId] = WaitedShare(BODY_BYTES_MAX)
        self.work: WaitedShare[AccountId] = WaitedShare(
            WORK_MAX, wait_seconds_max=WORK_SECONDS_MAX, queue_seconds_max=QUEUE_SECONDS_MAX
        )
        self._over_limit_until: dict[AccountId, float] = {}

    def request(self, account_id: AccountId, headers: Mapping[bytes, bytes]) -> "RequestInProgress":
        """To be entered before the body is read, once the headers are checked."""
        length = headers.get(b"content-length", b"")
        return RequestInProgress(self, account_id, int(length) if length.isdigit() else UNKNOWN_BYTES)

    def met_limit(self, account_id: AccountId) -> None:
        if len(self._over_limit_until) >= OVER_LIMIT_ACCOUNTS_MAX:
            self._over_limit_until.clear()
        self._over_limit_until[account_id] = time.monotonic() + OVER_LIMIT_SECONDS

    def work_of(self, account_id: AccountId, body: bytes) -> int:
        if len(body) > limits.THREAD_BODY_BYTES_MIN:
            work = LARGE_WORK
        else:
            # Every address contains an @, which bounds the number of recipients before anything is parsed.
            work = 1 + max(len(body) // WORK_BYTES, body.count(b"@") // WORK_RECIPIENTS)
            work = min(work, LARGE_WORK)
        if self._over_limit_until and self._is_over_limit(account_id):
            return max(work, OVER_LIMIT_WORK)
        return work

    def _is_over_limit(self, account_id: AccountId) -> bool:
        until = self._over_limit_until.get(account_id, 0.0)
        if until > time.monotonic():
            return True
        self._over_limit_until.pop(account_id, None)
        return False


class RequestInProgress:
    """Returns what the request has taken when it ends."""

    __slots__ = ("_account_id", "_body_bytes", "_in_progress", "_taken_bytes", "_work")

    def __init__(self, in_progress: InProgress, account_id: AccountId, body_bytes: int) -> None:
        self._in_progress = in_progress
        self._account_id = account_id
        self._body_bytes = body_bytes
        self._taken_bytes = 0
        self._work = 0

    async def __aenter__(self) -> "RequestInProgress":
        if self._body_bytes > COUNTED_BYTES_MIN:
            taken = WEIGHT * self._body_bytes
            capacity = self._in_progress.body_bytes
            if not capacity.acquire_units_now(self._account_id, taken):
                await capacity.acquire_units(self._account_id, taken)
            self._taken_bytes = taken
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        in_progress = self._in_progress
        if fault is not None and isinstance(fault, Refusal) and fault.code in _LIMIT_CODES:
            in_progress.met_limit(self._account_id)
        if self._work:
            in_progress.work.release_units(self._account_id, self._work)
        if self._taken_bytes:
            in_progress.body_bytes.release_units(self._account_id, self._taken_bytes)

    async def grow(self, received_bytes: int, bytes_max: int) -> None:
        """While reading a body of unknown size: once it exceeds its counted size, take memory for the largest body."""
        if received_bytes > self._body_bytes:
            more = WEIGHT * bytes_max - self._taken_bytes
            await self._in_progress.body_bytes.acquire_units(self._account_id, more)
            self._taken_bytes += more
            self._body_bytes = bytes_max

    async def begin_work(self, body: bytes, work_min: int = 1) -> None:
        """Once the body is complete: count its actual size, and wait for a turn to process it."""
        size = len(body)
        if self._taken_bytes > WEIGHT * size:
            self._in_progress.body_bytes.release_units(self._account_id, self._taken_bytes - WEIGHT * size)
            self._taken_bytes = WEIGHT * size
        work = max(work_min, self._in_progress.work_of(self._account_id, body))
        capacity = self._in_progress.work
        if not capacity.acquire_units_now(self._account_id, work):
            await capacity.acquire_units(self._account_id, work)
        self._work = work

    def reduce_work(self) -> None:
        """The rest of the request takes turns on its own, so count it as little and let others begin."""
        self._in_progress.work.release_units(self._account_id, self._work - 1)
        self._work = 1
