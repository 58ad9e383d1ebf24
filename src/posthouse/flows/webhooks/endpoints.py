"""An account's webhook and its endpoints: their URLs and secrets, and the log of what was sent to them.

The webhook has the contract's format; it is named by no id here. Up to ten endpoints besides it have their own filters,
headers and secrets, and the operator may switch them off. A secret is returned once, when it is created. A ping or a
replay only adds a webhook delivery to the schedule; the webhook sender sends it.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.page import Page, id_position
from posthouse.flows.shared.shares import Rates
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules import credential, endpoint, event, ids, limits
from posthouse.rules.credential import Actor
from posthouse.rules.endpoint import EndpointState, Filters, PreviousSecret, WebhookFilters
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.search import time_bound
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import endpoint_events, endpoints, webhook_log
from posthouse.store.audit_log import Detail
from posthouse.store.endpoints import PING_COOLDOWN
from posthouse.store.endpoints import Endpoint as Endpoint
from posthouse.store.postgres import Connection
from posthouse.store.webhook_log import CHANGED_BATCH_MAX, LogStep
from posthouse.store.webhook_log import EndpointHealth as EndpointHealth
from posthouse.store.webhook_log import WebhookAttempt as WebhookAttempt
from posthouse.store.webhook_log import WebhookDelivery as WebhookDelivery

# What the webhook subscribes to. A test is sent on request, whatever is subscribed to.
SUBSCRIBABLE: Final = tuple([type_ for type_ in EventType if type_ is not EventType.TEST])
SEARCH_SECONDS_MAX: Final = 0.5
HEALTH_PERIOD: Final = timedelta(days=1)
# The last attempts of a delivery are made almost a day after it was created.
HEALTH_CREATED: Final = timedelta(days=2)
ANY_DELIVERY: Final = WebhookFilters()
# A client waits for the answer; its next request does the rest.
SWEEP_SECONDS_MAX: Final = 3.0
# How many deliveries one request adds, and how often an account may make it.
REPLAYED_MAX: Final = 10_000
REPLAY_SECONDS: Final = 5
REPLAY_RATE: Final = Rate(1 / REPLAY_SECONDS, 5)
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class EndpointWish:
    """What a client saves."""

    url: str
    types: Sequence[str] | None = None
    sender_domains: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    mode: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    enabled: bool = True

    def filters(self) -> Filters:
        return endpoint.filters(self.types, self.sender_domains, self.tags, self.mode)


@dataclass(frozen=True, slots=True)
class Saved:
    """`secret` is None unless the webhook is new."""

    endpoint: Endpoint
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many deliveries were added; `next_since` is where to continue, None if nothing remains."""

    count: int
    next_since: datetime | None


class _Key(NamedTuple):
    account_id: AccountId
    endpoint_id: UUID

    @classmethod
    def of(cls, account_id: AccountId, given: str | None) -> "_Key":
        """No id is the webhook's."""
        webhook_id = endpoints.webhook_id(account_id)
        if given is None:
            return cls(account_id, webhook_id)
        endpoint_id = ids.parse(ids.ENDPOINT, given)
        if endpoint_id is None or endpoint_id == webhook_id:
            raise Refusal(Code.NOT_FOUND, "This account has no endpoint with that id.")
        return cls(account_id, endpoint_id)

    @property
    def is_webhook(self) -> bool:
        return self.endpoint_id == endpoints.webhook_id(self.account_id)


class Endpoints(Flow):
    def __init__(
        self,
        context: Context,
        *,
        tickets: Tickets | None,
        check: Callable[[str], WebhookTarget],
        failing_after: timedelta = endpoint.FAILING_AFTER,
        is_on: bool = True,
    ) -> None:
        """`check` raises a Refusal for a URL that is not allowed. Without `tickets`, deliveries are due now.

        Unless `is_on`, the operator has switched endpoints besides the webhook off.
        """
        super().__init__(context)
        self._tickets = tickets
        self._check = check
        self._failing_after = failing_after
        self._is_on = is_on
        # The webhook has its own, next to that of the endpoints.
        self._replay_rates: Rates[tuple[AccountId, bool]] = Rates()

    # The endpoints.

    async def all(self, account_id: AccountId) -> list[Endpoint]:
        """Those besides the webhook, the oldest first."""
        async with self._database.connection() as connection:
            return await endpoints.all_of(connection, account_id)

    async def webhook(self, account_id: AccountId) -> Endpoint | None:
        async with self._database.connection() as connection:
            return await endpoints.find(connection, *_Key.of(account_id, None))

    async def get(self, account_id: AccountId, given_id: str) -> Endpoint:
        """Another account's is not found."""
        async with self._database.connection() as connection:
            return await self._found(connection, _Key.of(account_id, given_id))

    def state(self, found: Endpoint) -> EndpointState:
        now = self._clock.now()
        return endpoint.state_of(found.answered_at, found.failing_since, now, self._failing_after)

    async def health(self, found: Endpoint) -> EndpointHealth:
        """The calls of the last day."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            return await webhook_log.health(
                connection, found.account_id, now - HEALTH_PERIOD, now - HEALTH_CREATED, found.id
            )

    async def save_webhook(
        self, account_id: AccountId, url: str, events: Sequence[str], actor: Actor, *, enabled: bool
    ) -> Saved:
        """No events means all of them. Pending deliveries go to the new URL, or are cancelled when it is disabled."""
        key, target, filters = _Key.of(account_id, None), self._check(url), Filters(_subscribed(events))
        secret, sealed = self._new_secret(key)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            saved, is_new = await endpoints.save(tx, *key, target.url, filters, enabled, sealed, now)
            detail: Detail = {"events": ", ".join(filters.types), "enabled": enabled}
            # Only the host: the rest of a URL may contain secrets.
            await self._audit_log.add_entry(tx, account_id, actor, "webhook.saved", target.host, now, detail)
        if not is_new:
            await self._cancel_if_disabled(saved)
        return Saved(saved, secret if is_new else None)

    async def create(self, account_id: AccountId, wish: EndpointWish, actor: Actor) -> tuple[Endpoint, str]:
        """The endpoint, and its secret, which is returned only once."""
        self._require_on()
        target, filters = self._check(wish.url), wish.filters()
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if await endpoints.count_for_one_more(tx, account_id, now) >= limits.ENDPOINTS_MAX:
                raise Refusal(
                    Code.CONFLICT, f"An account has at most {limits.ENDPOINTS_MAX} endpoints: delete one first."
                )
            key = _Key(account_id, new_id(self._randomness, now))
            secret, sealed = self._new_secret(key)
            made, _ = await endpoints.save(
                tx, *key, target.url, filters, wish.enabled, sealed, now, *self._sealed_headers(key, wish.headers or {})
            )
            await self._note(tx, key, actor, "created", now, _detail(made, target))
        return made, secret

    async def save(
        self, account_id: AccountId, given_id: str, wish: EndpointWish, actor: Actor, given: Collection[str]
    ) -> Endpoint:
        """Change the fields that are given; pending deliveries go to the new URL, or are cancelled when it is disabled.

        Fields that are left out stay: a client that doesn't know all fields must not clear the others, and headers
        are never shown, so no one could give them again.
        """
        self._require_on()
        filters, key = wish.filters(), _Key.of(account_id, given_id)
        target = self._check(wish.url) if "url" in given else None
        headers = None if wish.headers is None else self._sealed_headers(key, wish.headers)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            found = await self._found(tx, key, locked=True)
            target = target or self._check(found.url)
            changes = {field.name: getattr(filters, field.name) for field in fields(filters) if field.name in given}
            saved, _ = await endpoints.save(
                tx,
                *key,
                target.url,
                replace(found.filters, **changes),
                wish.enabled if "enabled" in given else found.enabled,
                found.secret_sealed,
                now,
                *(headers or (found.header_names, found.headers_sealed)),
            )
            await self._note(tx, key, actor, "saved", now, _detail(saved, target))
        await self._cancel_if_disabled(saved)
        return saved

    async def delete(self, account_id: AccountId, actor: Actor, given_id: str | None = None) -> None:
        """Pending deliveries are cancelled, now or when they are due. The webhook's log is deleted with it."""
        key = _Key.of(account_id, given_id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if not await endpoints.disable(tx, *key, now):
                raise _no_endpoint(key)
            # Logged when sending stops, even if the deliveries are never all deleted.
            await self._note(tx, key, actor, "deleted", now)
        is_over = await self._swept(key, webhook_log.forget if key.is_webhook else webhook_log.cancel_pending)
        if key.is_webhook and not is_over:
            raise Refusal(
                Code.TEMPORARY_FAILURE,
                "Nothing is sent any more, but the log is so long that part of it is still there: delete again.",
                1,
            )
        async with self._database.transaction() as tx:
            if not await endpoints.delete(tx, *key, self._clock.now()):
                raise _no_endpoint(key)

    async def rotate_secret(
        self, account_id: AccountId, actor: Actor, given_id: str | None = None
    ) -> tuple[str, datetime | None]:
        """A new secret, and until when the old one still signs; the webhook's ends immediately."""
        key = _Key.of(account_id, given_id)
        secret, sealed = self._new_secret(key)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            found = await self._found(tx, key, locked=True)
            if key.is_webhook:
                until = None
                await endpoints.rotate_secret(tx, *key, sealed, now)
            else:
                until = now + endpoint.PREVIOUS_VALID
                await endpoints.rotate_secret(tx, *key, sealed, now, self._previous_sealed(found, now, until), until)
            await self._note(tx, key, actor, "secret_rotated", now)
        return secret, until

    def _previous_sealed(self, found: Endpoint, now: datetime, until: datetime) -> bytes:
        """The earlier secrets that still sign, and the present one until then."""
        purpose = endpoints.secret_purpose(found.account_id, found.id)
        previous: list[PreviousSecret] = []
        # Each was promised a day, which the next rotation doesn't end.
        if found.previous_secret_sealed is not None:
            stored = endpoint.previous_secrets(self._keys.sealer.open(found.previous_secret_sealed, purpose).decode())
            previous = [each for each in stored if each.until > now]
        previous.append(PreviousSecret(self._keys.sealer.open(found.secret_sealed, purpose).decode(), until))
        if len(previous) > endpoint.PREVIOUS_MAX:
            raise Refusal(
                Code.CONFLICT,
                f"{endpoint.PREVIOUS_MAX} earlier secrets of this endpoint still sign: wait until the first of "
                "them ends, a day after it was replaced.",
            )
        return self._keys.sealer.seal(endpoint.previous_text(previous).encode(), purpose)

    # Webhook deliveries.

    async def ping(self, account_id: AccountId, given_id: str | None = None) -> WebhookDelivery:
        """A test event, sent once."""
        key = self._key_of(account_id, given_id)
        async with self._database.transaction() as tx:
            found = await self._enabled(tx, key)
            now = self._clock.now()
            if (pinged_at := await endpoints.mark_pinged(tx, *key, now)) is not None:
                # Another process's clock may be slightly ahead.
                seconds = max(1, -((now - pinged_at - PING_COOLDOWN) // _SECOND))
                when = (
                    f"The last ping was less than {PING_COOLDOWN // _SECOND} s ago"
                    if key.is_webhook
                    else "This account's endpoints were pinged a moment ago"
                )
                raise Refusal(Code.RATE_LIMITED, f"{when}: try again in {seconds} s.", seconds)
            event_id, delivery_id = new_id(self._randomness, now), new_id(self._randomness, now)
            body = event.test_body(event_id=event_id, created_at=now)
            tickets = await endpoint_events.enter_ping(tx, found, event_id, delivery_id, body, now, self._next_at(now))
            delivery = await self._delivery(tx, account_id, delivery_id, of_webhook=key.is_webhook)
        self._publish(tickets)
        return delivery

    async def deliveries(
        self,
        account_id: AccountId,
        limit: int,
        cursor: str | None = None,
        message_id: str | None = None,
        filters: WebhookFilters = ANY_DELIVERY,
        given_id: str | None = None,
    ) -> Page[WebhookDelivery]:
        """The newest first. A message of another account has none.

        With filters a page may be short, or empty, and not be the last.
        """
        key = _Key.of(account_id, given_id)
        if not key.is_webhook:
            async with self._database.connection() as connection:
                await self._found(connection, key)
        if cursor is not None:
            position = id_position(ids.WEBHOOK_DELIVERY, cursor)
            filters = replace(filters, before=min(filters.before, position))
        about = None if message_id is None else ids.parse(ids.MESSAGE, message_id)
        if message_id is not None and about is None:
            return Page([], None)
        async with self._database.connection() as connection:
            if about is not None:
                of_it = await webhook_log.of_message(
                    connection, account_id, MessageId(about), filters, limit + 1, key.endpoint_id
                )
                step = LogStep(of_it, None)
            else:
                step = await self._search(connection, key, filters, limit + 1)
            shown = await webhook_log.by_ids(connection, account_id, step.ids[:limit])
        position_after = step.ids[limit - 1] if len(step.ids) > limit else step.position
        return Page(shown, None if position_after is None else ids.text(ids.WEBHOOK_DELIVERY, position_after))

    async def _search(self, connection: Connection, key: _Key, filters: WebhookFilters, limit: int) -> LogStep:
        """Read step by step, until there are enough or the client has waited long enough."""
        until = self._clock.monotonic() + SEARCH_SECONDS_MAX
        found: list[UUID] = []
        while True:
            left = limit - len(found)
            step = await webhook_log.search(connection, key.account_id, filters, left, key.endpoint_id)
            found.extend(step.ids)
            if step.position is None or len(found) == limit or self._clock.monotonic() >= until:
                return LogStep(found, step.position)
            filters = replace(filters, before=step.position)

    async def delivery(
        self, account_id: AccountId, given_id: str, *, of_webhook: bool = False
    ) -> tuple[WebhookDelivery, list[WebhookAttempt]]:
        """A delivery and every attempt of it, the oldest first; another account's is not found."""
        async with self._database.connection() as connection:
            found = await self._delivery_of(connection, account_id, given_id, of_webhook=of_webhook)
            return found, await webhook_log.attempts_of(connection, found)

    async def replay(self, account_id: AccountId, given_id: str, *, of_webhook: bool = False) -> WebhookDelivery:
        """Send the same event again, with all attempts; another account's is not found."""
        if not of_webhook:
            self._require_on()
        now = self._clock.now()
        async with self._database.transaction() as tx:
            original = await self._delivery_of(tx, account_id, given_id, of_webhook=of_webhook)
            key = _Key(account_id, original.endpoint_id)
            found = await self._enabled(tx, key)
            if not original.is_stored:
                raise Refusal(Code.CONFLICT, "The event of this delivery is no longer stored: it can't be sent again.")
            replay_id = new_id(self._randomness, now)
            tickets = await endpoint_events.enter_replays(tx, found, [(replay_id, original)], now, self._next_at(now))
            replay = await self._delivery(tx, account_id, replay_id, of_webhook=of_webhook)
        self._publish(tickets)
        return replay

    async def count_failed(self, account_id: AccountId, since: str, given_id: str | None = None) -> int:
        """How many events `replay_failed` would send again, if there were no limit."""
        key = _Key.of(account_id, given_id)
        count, position = 0, _id_before(since)
        before = ids.lowest_id(self._clock.now())
        async with self._database.connection() as connection:
            await self._enabled(connection, key)
            while True:
                failed, reached = await webhook_log.failed(connection, *key, position, before)
                count += len(failed)
                if reached is None:
                    return count
                position = reached

    async def replay_failed(
        self, account_id: AccountId, since: str, actor: Actor, given_id: str | None = None
    ) -> Replayed:
        """Send all events again whose last delivery failed and was created since the given time.

        A second request finds the replays of the first, pending or done, and adds nothing. Each step is a transaction;
        the last one also logs the count.
        """
        key, position = self._key_of(account_id, given_id), _id_before(since)
        allowed = f"An account may replay all events once every {REPLAY_SECONDS} s"
        self._replay_rates.require((account_id, key.is_webhook), REPLAY_RATE, self._clock.now(), allowed)
        until = self._clock.monotonic() + SWEEP_SECONDS_MAX
        before = ids.lowest_id(self._clock.now())
        count = 0
        while True:
            async with self._database.transaction() as tx:
                if not await webhook_log.try_lock_replay(tx, account_id):
                    raise Refusal(
                        Code.CONFLICT, "Another request is replaying events for this account: try again later."
                    )
                found = await self._enabled(tx, key)
                failed, reached = await webhook_log.failed(tx, *key, position, before)
                now = self._clock.now()
                replays = [(new_id(self._randomness, now), original) for original in failed]
                # Without tickets: dispatch publishes them no faster than they are sent.
                count += len(await endpoint_events.enter_replays(tx, found, replays, now, now))
                is_over = reached is None or count >= REPLAYED_MAX or self._clock.monotonic() >= until
                if is_over and count:
                    await self._note(tx, key, actor, "replayed", now, {"deliveries": count})
            if is_over or reached is None:
                return Replayed(count, None if reached is None else ids.time_of(reached))
            position = reached

    async def _cancel_if_disabled(self, saved: Endpoint) -> None:
        """Those that are too many are cancelled when they are due."""
        if not saved.enabled:
            await self._swept(_Key(saved.account_id, saved.id), webhook_log.cancel_pending)

    async def _swept(self, key: _Key, sweep: Callable[[Connection, AccountId, UUID], Awaitable[int]]) -> bool:
        """Whether nothing remains; each part is a transaction of its own."""
        until = self._clock.monotonic() + SWEEP_SECONDS_MAX
        while True:
            async with self._database.transaction() as tx:
                count = await sweep(tx, *key)
            if count < CHANGED_BATCH_MAX:
                return True
            if self._clock.monotonic() >= until:
                return False

    def _key_of(self, account_id: AccountId, given: str | None) -> _Key:
        """For what endpoints that are switched off may not do."""
        if given is not None:
            self._require_on()
        return _Key.of(account_id, given)

    def _require_on(self) -> None:
        if not self._is_on:
            raise Refusal(Code.FORBIDDEN, "The operator of this service has switched endpoints off.")

    async def _found(self, connection: Connection, key: _Key, *, locked: bool = False) -> Endpoint:
        found = await (endpoints.lock if locked else endpoints.find)(connection, *key)
        if found is None:
            raise _no_endpoint(key)
        return found

    async def _enabled(self, connection: Connection, key: _Key) -> Endpoint:
        found = await self._found(connection, key)
        if not found.enabled:
            raise Refusal(
                Code.CONFLICT,
                "The webhook is disabled: enable it with PUT /v1/webhook first."
                if key.is_webhook
                else "The endpoint is disabled: enable it with PUT /v1/endpoints/{id} first.",
            )
        return found

    async def _delivery_of(
        self, connection: Connection, account_id: AccountId, given: str, *, of_webhook: bool
    ) -> WebhookDelivery:
        delivery_id = ids.parse(ids.WEBHOOK_DELIVERY, given)
        return await self._delivery(connection, account_id, delivery_id, of_webhook=of_webhook)

    async def _delivery(
        self, connection: Connection, account_id: AccountId, delivery_id: UUID | None, *, of_webhook: bool
    ) -> WebhookDelivery:
        found = delivery_id and await webhook_log.find_delivery(connection, account_id, delivery_id)
        if not found or found.is_of_webhook is not of_webhook:
            raise Refusal(
                Code.NOT_FOUND,
                "This account has no webhook delivery with that id."
                if of_webhook
                else "No endpoint of this account has a delivery with that id.",
            )
        return found

    def _new_secret(self, key: _Key) -> tuple[str, bytes]:
        """The secret in clear and sealed: a prefix, then 32 bytes; base 62 for the webhook, as in a password."""
        random = self._randomness.bytes(endpoint.SECRET_BYTES)
        secret = (
            event.SECRET_PREFIX + credential.new_smtp_password(random)
            if key.is_webhook
            else endpoint.new_secret(random)
        )
        return secret, self._keys.sealer.seal(secret.encode(), endpoints.secret_purpose(*key))

    def _sealed_headers(self, key: _Key, given: Mapping[str, str]) -> tuple[list[str], bytes | None]:
        """The names of the headers, and the sealed headers; None if there are none."""
        checked = endpoint.headers(given)
        if not checked:
            return [], None
        return list(checked), self._keys.sealer.seal(
            json.dumps(dict(checked)).encode(), endpoints.headers_purpose(*key)
        )

    async def _note(
        self, tx: Connection, key: _Key, actor: Actor, action: str, now: datetime, detail: Detail | None = None
    ) -> None:
        family = "webhook" if key.is_webhook else "endpoint"
        subject = "webhook" if key.is_webhook else ids.text(ids.ENDPOINT, key.endpoint_id)
        await self._audit_log.add_entry(tx, key.account_id, actor, f"{family}.{action}", subject, now, detail or {})

    def _next_at(self, now: datetime) -> datetime:
        return now if self._tickets is None else now + self._tickets.lease

    def _publish(self, tickets: Sequence[WebhookTicket]) -> None:
        if self._tickets is not None:
            self._tickets.publish(tickets)


def _subscribed(given: Sequence[str]) -> tuple[str, ...]:
    for name in given:
        if name == EventType.TEST:
            raise invalid(
                f"`events` must not contain {EventType.TEST}: it is sent when you ping, whatever is subscribed to."
            )
        if name not in SUBSCRIBABLE:
            raise invalid(f"`events`: {name[:100]!r} is not an event: it takes {', '.join(SUBSCRIBABLE)}.")
    return tuple(type_ for type_ in SUBSCRIBABLE if type_ in given) or SUBSCRIBABLE


def _id_before(since: str) -> UUID:
    """The last id before all those created since the given time."""
    return UUID(int=max(0, time_bound("since", since).int - 1))


def _detail(saved: Endpoint, target: WebhookTarget) -> Detail:
    # Only the host: the rest of a URL may contain secrets.
    return {"host": target.host, "types": ", ".join(saved.filters.types), "enabled": saved.enabled}


def _no_endpoint(key: _Key) -> Refusal:
    if key.is_webhook:
        return Refusal(Code.NOT_FOUND, "This account has no webhook: save one with PUT /v1/webhook.")
    return Refusal(Code.NOT_FOUND, "This account has no endpoint with that id.")
