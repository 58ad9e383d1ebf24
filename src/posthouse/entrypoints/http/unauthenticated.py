"""A rate limit per peer for requests without a valid credential: pages, unknown addresses, refused credentials.

A page counts as more than one request if it is large: writing it is the most of what it costs.
Requests with a valid credential are neither counted nor limited here, wherever they come from: many customers can
share an address. Logins have a limit of their own, and mailbox providers unsubscribe many users from few addresses.
"""

from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from posthouse.clock import Clock
from posthouse.entrypoints.http.peer import network_of
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal

RATE: Final = Rate(50, 200)
# Each further piece of an answer counts as a request.
PIECE_BYTES: Final = 64 * 1024

_NOT_PAGES: Final = ("/v1/", "/emails/", "/unsubscribe/", "/healthz")


class UnauthenticatedLimit:
    """Of one process."""

    def __init__(self, clock: Clock, rate: Rate = RATE) -> None:
        self._clock = clock
        self._rate = rate
        self._rates: MemoryRates[str] = MemoryRates()

    def require(self, scope: Scope) -> bool:
        """Whether it asks for a page; raises when the peer asked for too many. Other requests are not counted here."""
        if scope["path"].startswith(_NOT_PAGES):
            return False
        wait = self._take(scope)
        if wait is not None:
            raise self._too_many("", wait)
        return True

    def note_page(self, scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """A page is sent; `headers` are the response's."""
        size = next((int(value) for name, value in headers if name == b"content-length"), 0)
        if pieces := size // PIECE_BYTES:
            self._rates.charge(network_of(scope), self._rate, self._clock.now(), pieces)

    def after(self, scope: Scope, refusal: Refusal) -> Refusal:
        """What to answer instead of the refusal, whose credential was wrong if its code says so."""
        if refusal.code is not Code.UNAUTHORIZED:
            return refusal
        wait = self._take(scope)
        return refusal if wait is None else self._too_many(f"{refusal.text} ", wait)

    def _take(self, scope: Scope) -> RateWait | None:
        taken = self._rates.take(network_of(scope), self._rate, self._clock.now())
        return taken if isinstance(taken, RateWait) else None

    def _too_many(self, text: str, wait: RateWait) -> Refusal:
        rate = self._rate
        return Refusal(
            Code.RATE_LIMITED,
            f"{text}This address may send {rate.per_second} requests a second without a valid credential, and "
            f"{rate.burst} at once: try again in {wait.seconds} s.",
            retry_after_seconds=wait.seconds,
        )
