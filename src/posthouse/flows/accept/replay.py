"""The response to an accepted request, and the same response when its Idempotency-Key comes again."""

from collections.abc import Mapping
from typing import NamedTuple

from posthouse.flows.accept.preparation import UnverifiedSender
from posthouse.flows.shared.account_limits import Defaults, suspended
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.shares import Rates
from posthouse.rules import message
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, messages
from posthouse.store.acceptance import IdempotencyKey, RememberedKey
from posthouse.store.control_cache import ControlCache
from posthouse.store.messages import Receipt
from posthouse.store.postgres import Connection, Database


class AcceptedMessage(NamedTuple):
    message_id: MessageId
    subject: str
    recipient_count: int
    credits_reserved: int
    is_replay: bool
    rate_headers: Mapping[str, str]


async def replay(
    connection: Connection, key: IdempotencyKey, body_hash: bytes, known: RememberedKey
) -> AcceptedMessage:
    """The first response, if the body is the same."""
    check_same(body_hash, known)
    receipt = await messages.receipt(connection, key.account_id, known.message_id)
    if receipt is None:
        raise RuntimeError(f"the key of message {known.message_id} is remembered, but the message is not")
    return replayed(receipt)


def check_same(body_hash: bytes, known: RememberedKey) -> None:
    if not message.is_same_body(body_hash, known.body_hash):
        raise Refusal(
            Code.IDEMPOTENCY_CONFLICT,
            "This Idempotency-Key was used for another body in the last 24 hours: use a new key for a new message.",
        )


def replayed(receipt: Receipt) -> AcceptedMessage:
    return AcceptedMessage(
        message_id=receipt.message_id,
        subject=receipt.subject,
        recipient_count=receipt.recipient_count,
        credits_reserved=receipt.credits_reserved,
        is_replay=True,
        rate_headers={},
    )


async def durable_replay(
    database: Database, key: IdempotencyKey, body_hash: bytes, known: RememberedKey
) -> AcceptedMessage:
    """The first response, outside the group commit.

    A message whose commit stopped waiting for a standby can be read, but may still be lost. So this commits something
    too: a later commit reaches a standby only after the message did.
    """
    async with database.transaction() as tx:
        answer = await replay(tx, key, body_hash, known)
        await acceptance.write_ahead(tx)
    return answer


def in_progress() -> Refusal:
    return Refusal(
        Code.IDEMPOTENCY_IN_PROGRESS,
        "A request with this Idempotency-Key is being accepted now: repeat it in a second.",
        retry_after_seconds=1,
    )


# Requests that are refused before the transaction: a replay comes first, then a suspension, then the refusal.
#
# A refused request doesn't count against the account's stored rate. Repeated mail from an unverified domain is
# limited all the same, to the account's rate, counted separately in the memory of this process. It costs one query,
# whether it is answered with 403 or 429, because a used Idempotency-Key is answered in any case.


class RefusedRequests(Flow):
    def __init__(self, context: Context, *, control_cache: ControlCache, defaults: Defaults) -> None:
        super().__init__(context)
        self._control_cache = control_cache
        self._defaults = defaults
        self._rates: Rates[AccountId] = Rates()

    async def replay_or_raise(
        self, principal: Principal, key: IdempotencyKey | None, body_hash: bytes, refusal: Refusal
    ) -> AcceptedMessage | None:
        """The first response to the key, if it was used; otherwise raises the request's refusal.

        Returns None if the sender's domain was verified after it was cached: then the request must be prepared again.
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
        allowed = f"This account may send {rate.per_second} requests a second, in bursts of up to {rate.burst}"
        self._rates.require(account_id, rate, self._clock.now(), f"{refusal.text} {allowed}", has_headers=True)
        raise refusal
