"""Requests that are refused before the transaction: a replay comes first, then a suspension, then the refusal.

A refused request uses up nothing of the account's stored rate. Repeated mail from an unverified domain meets a limit
all the same: the account's rate, counted apart in the memory of this process. It costs one query, whether it is
answered with 403 or 429, because a used Idempotency-Key is answered in any case.
"""

from posthouse.clock import Clock
from posthouse.flows.accept.preparation import UnverifiedSender
from posthouse.flows.accept.replay import AcceptedMessage, durable_replay
from posthouse.flows.shared.account_limits import Defaults, suspended
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.flows.shared.principal import Principal
from posthouse.rules import send_quota
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database


class RefusedRequests:
    def __init__(self, *, database: Database, control_cache: ControlCache, clock: Clock, defaults: Defaults) -> None:
        self._database = database
        self._control_cache = control_cache
        self._clock = clock
        self._defaults = defaults
        self._rates: MemoryRates[AccountId] = MemoryRates()

    async def replay_or_raise(
        self, principal: Principal, key: IdempotencyKey | None, body_hash: bytes, refusal: Refusal
    ) -> AcceptedMessage | None:
        """The first answer to the key, if it was used; else raises what the request is refused for.

        Returns None when the sender's domain was verified after it was cached: the request is to be prepared again.
        """
        domain = refusal.domain if isinstance(refusal, UnverifiedSender) else None
        account_id = principal.account_id
        async with self._database.connection() as connection:
            found = await acceptance.read_refused(connection, account_id, key, domain)
        if key is not None and found.remembered is not None and found.remembered.expires_at > self._clock.now():
            return await durable_replay(self._database, key, body_hash, found.remembered)
        if found.is_suspended:
            raise suspended()
        if domain is None:
            raise refusal
        if found.is_verified:
            self._control_cache.forget_domains(account_id)
            return None
        rate = Rate(
            found.rate_per_second or self._defaults.rate.per_second, found.rate_burst or self._defaults.rate.burst
        )
        self._limit(account_id, rate, refusal)
        raise refusal

    def _limit(self, account_id: AccountId, rate: Rate, refusal: Refusal) -> None:
        now = self._clock.now()
        taken = self._rates.take(account_id, rate, now)
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"{refusal.text} This account may send {rate.per_second} requests a second and {rate.burst} at once: "
                f"try again in {taken.seconds} s.",
                retry_after_seconds=taken.seconds,
                headers=send_quota.rate_headers(rate, self._rates.reading(account_id, rate, now)),
            )
