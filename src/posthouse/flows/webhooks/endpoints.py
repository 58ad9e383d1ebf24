"""An account's endpoints beside its webhook: up to ten URLs, each with filters, headers and secrets of its own.

As with the webhook, a ping or a replay only adds webhook deliveries to the schedule; the webhook sender sends them.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from uuid import UUID

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.page import Page
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.replay_sweep import SWEEP_SECONDS_MAX, Replayed, ReplaySweep
from posthouse.flows.webhooks.webhook import (
    ANY_DELIVERY,
    EndpointHealth,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    seconds_until_ping,
)
from posthouse.rules import endpoint, endpoint_state, event, ids, limits
from posthouse.rules.actor import Actor
from posthouse.rules.endpoint import Filters, PreviousSecret
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.webhook_filters import WebhookFilters
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import endpoint_events, endpoints, webhook_log, webhooks
from posthouse.store.audit_log import Detail
from posthouse.store.endpoints import Endpoint as Endpoint
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.store.webhook_log import FailedDelivery


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


class Endpoints:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        sealer: Sealer,
        tickets: Tickets | None,
        check: Callable[[str], WebhookTarget],
        log: WebhookEndpoint,
        failing_after: timedelta = endpoint_state.FAILING_AFTER,
        is_on: bool = True,
    ) -> None:
        """`check` as for a webhook, and `log` reads deliveries; unless `is_on`, the operator switched endpoints off."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._audit_log = AuditLog(chance)
        self._sealer = sealer
        self._tickets = tickets
        self._check = check
        self._log = log
        self._failing_after = failing_after
        self._is_on = is_on
        self._replays = ReplaySweep(database, clock)

    # The endpoints.

    async def all(self, account_id: AccountId) -> list[Endpoint]:
        """The oldest first."""
        async with self._database.connection() as connection:
            return await endpoints.all_of(connection, account_id)

    async def get(self, account_id: AccountId, given_id: str) -> tuple[Endpoint, EndpointHealth]:
        """With the calls of the last day; another account's is not found."""
        async with self._database.connection() as connection:
            found = await self._found(connection, account_id, given_id)
        return found, await self._log.health(account_id, found.id)

    def state(self, found: Endpoint) -> EndpointState:
        now = self._clock.now()
        return endpoint_state.state_of(found.answered_at, found.failing_since, now, self._failing_after)

    async def create(self, account_id: AccountId, wish: EndpointWish, actor: Actor) -> tuple[Endpoint, str]:
        """The endpoint, and its secret, which is returned this once."""
        self._require_on()
        target, filters = self._check(wish.url), wish.filters()
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if await endpoints.count_for_one_more(tx, account_id, now) >= limits.ENDPOINTS_MAX:
                raise Refusal(
                    Code.CONFLICT, f"An account has at most {limits.ENDPOINTS_MAX} endpoints: delete one first."
                )
            if await endpoints.has_old_workers(tx, now):
                raise Refusal(Code.TEMPORARY_FAILURE, "The service is being upgraded: try again in a few minutes.", 60)
            endpoint_id = new_id(self._chance, now)
            names, sealed_headers = self._sealed_headers(account_id, endpoint_id, wish.headers or {})
            secret, sealed = self._new_secret(account_id, endpoint_id)
            made = await endpoints.add(
                tx,
                account_id,
                endpoint_id,
                target.url,
                filters,
                names,
                sealed_headers,
                wish.enabled,
                sealed,
                now,
            )
            await self._note(tx, made, actor, "endpoint.created", now, _detail(made, target))
        return made, secret

    async def save(
        self, account_id: AccountId, given_id: str, wish: EndpointWish, actor: Actor, given: Collection[str]
    ) -> Endpoint:
        """Change the fields that are given; pending deliveries go to the new URL, or are cancelled when it is disabled.

        What is left out stays: a client that knows fewer fields than there are must not clear the others, and no one
        can give headers again that are never shown.
        """
        self._require_on()
        filters, endpoint_id = wish.filters(), _id_of(given_id)
        target = self._check(wish.url) if "url" in given else None
        names, sealed_headers = (
            (None, None) if wish.headers is None else self._sealed_headers(account_id, endpoint_id, wish.headers)
        )
        async with self._database.transaction() as tx:
            now = self._clock.now()
            found = await endpoints.lock(tx, account_id, endpoint_id)
            if found is None:
                raise _no_endpoint()
            target = target or self._check(found.url)
            changes = {field.name: getattr(filters, field.name) for field in fields(filters) if field.name in given}
            saved = await endpoints.save(
                tx,
                account_id,
                endpoint_id,
                target.url,
                replace(found.filters, **changes),
                names,
                sealed_headers,
                wish.enabled if "enabled" in given else found.enabled,
                now,
            )
            await self._note(tx, saved, actor, "endpoint.saved", now, _detail(saved, target))
        if not saved.enabled:
            # The rest is cancelled when it is due.
            await self._cancel_pending(account_id, endpoint_id)
        return saved

    async def delete(self, account_id: AccountId, given_id: str, actor: Actor) -> None:
        """What is pending is cancelled: now, or when it is due."""
        async with self._database.transaction() as tx:
            now = self._clock.now()
            found = await self._found(tx, account_id, given_id)
            await endpoints.disable(tx, account_id, found.id, now)
        await self._cancel_pending(account_id, found.id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if not await endpoints.delete(tx, account_id, found.id):
                raise _no_endpoint()
            await self._note(tx, found, actor, "endpoint.deleted", now)

    async def rotate_secret(self, account_id: AccountId, given_id: str, actor: Actor) -> tuple[str, datetime]:
        """A new secret, and until when the old one signs as well."""
        endpoint_id = _id_of(given_id)
        secret, sealed = self._new_secret(account_id, endpoint_id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            until = now + endpoint.PREVIOUS_VALID
            found = await endpoints.lock(tx, account_id, endpoint_id)
            if found is None:
                raise _no_endpoint()
            purpose = endpoints.secret_purpose(account_id, endpoint_id)
            # Each was promised its day: it doesn't end with the next rotation.
            previous = [
                *self._previous(found, now),
                PreviousSecret(self._sealer.open(found.secret_sealed, purpose).decode(), until),
            ]
            if len(previous) > endpoint.PREVIOUS_MAX:
                raise Refusal(
                    Code.CONFLICT,
                    f"{endpoint.PREVIOUS_MAX} earlier secrets of this endpoint still sign: wait until the first of "
                    "them ends, a day after it was replaced.",
                )
            sealed_previous = self._sealer.seal(endpoint.previous_text(previous).encode(), purpose)
            await endpoints.rotate_secret(tx, account_id, endpoint_id, sealed, sealed_previous, until, now)
            await self._note(tx, found, actor, "endpoint.secret_rotated", now)
        return secret, until

    def _previous(self, found: Endpoint, now: datetime) -> list[PreviousSecret]:
        """The earlier secrets that still sign, each with its end."""
        if found.previous_secret_sealed is None or found.previous_until is None:
            return []
        purpose = endpoints.secret_purpose(found.account_id, found.id)
        stored = endpoint.previous_secrets(self._sealer.open(found.previous_secret_sealed, purpose).decode())
        known = [PreviousSecret(each.text, each.until or found.previous_until) for each in stored]
        return [each for each in known if each.until is not None and each.until > now]

    # Webhook deliveries.

    async def ping(self, account_id: AccountId, given_id: str) -> WebhookDelivery:
        """A test event, sent once."""
        self._require_on()
        async with self._database.transaction() as tx:
            found = await self._enabled(tx, account_id, given_id)
            now = self._clock.now()
            pinged_at = await endpoints.mark_pinged(tx, account_id, found.id, now)
            if pinged_at is not None:
                seconds = seconds_until_ping(pinged_at, now)
                raise Refusal(
                    Code.RATE_LIMITED,
                    f"The last ping of this account's endpoints was a moment ago: try again in {seconds} s.",
                    seconds,
                )
            event_id, delivery_id = new_id(self._chance, now), new_id(self._chance, now)
            body = event.test_body(event_id=event_id, created_at=now)
            tickets = await endpoint_events.enter_ping(tx, found, event_id, delivery_id, body, now, self._next_at(now))
            delivery = await webhooks.find_delivery(tx, account_id, delivery_id, found.id)
        if self._tickets is not None:
            self._tickets.publish(tickets)
        if delivery is None:
            raise _no_delivery()
        return delivery

    async def deliveries(
        self,
        account_id: AccountId,
        given_id: str,
        limit: int,
        cursor: str | None = None,
        filters: WebhookFilters = ANY_DELIVERY,
    ) -> Page[WebhookDelivery]:
        """The newest first. A page may be short, or empty, and not be the last."""
        async with self._database.connection() as connection:
            found = await self._found(connection, account_id, given_id)
        return await self._log.deliveries(account_id, limit, cursor, filters=filters, endpoint_id=found.id)

    async def delivery(self, account_id: AccountId, given_id: str) -> tuple[WebhookDelivery, list[WebhookAttempt]]:
        """A delivery and every attempt of it, the oldest first; another account's is not found."""
        async with self._database.connection() as connection:
            endpoint_id = await self._endpoint_of(connection, account_id, given_id)
        return await self._log.delivery(account_id, given_id, endpoint_id)

    async def replay_delivery(self, account_id: AccountId, given_id: str) -> WebhookDelivery:
        """Send the same event again, with all attempts."""
        self._require_on()
        now = self._clock.now()
        async with self._database.transaction() as tx:
            endpoint_id = await self._endpoint_of(tx, account_id, given_id)
            found = await self._enabled(tx, account_id, ids.text(ids.ENDPOINT, endpoint_id))
            original = await webhooks.find_delivery(tx, account_id, _delivery_id(given_id), endpoint_id)
            if original is None:
                raise _no_delivery()
            if original.request_body is None or b'"erased":true' in original.request_body:
                raise Refusal(Code.CONFLICT, "The event of this delivery is no longer stored: it can't be sent again.")
            replay_id = new_id(self._chance, now)
            sent_again = FailedDelivery(
                original.id, original.event_id, original.type, original.message_id, original.position
            )
            # Without a ticket: it is due, and dispatch publishes one.
            await endpoint_events.enter_replays(tx, found, [(replay_id, sent_again)], now)
            replay = await webhooks.find_delivery(tx, account_id, replay_id, endpoint_id)
        if replay is None:
            raise _no_delivery()
        return replay

    async def _endpoint_of(self, connection: Connection, account_id: AccountId, given_id: str) -> UUID:
        endpoint_id = await endpoints.of_delivery(connection, account_id, _delivery_id(given_id))
        if endpoint_id is None:
            raise _no_delivery()
        return endpoint_id

    async def replay(self, account_id: AccountId, given_id: str, since: str, actor: Actor) -> Replayed:
        """Send all events again whose last delivery to the endpoint failed and was created since then.

        A second request finds the replays of the first, pending or done, and adds nothing.
        """
        self._require_on()

        async def enter(tx: Connection, after: UUID, before: UUID) -> tuple[int, UUID | None]:
            found = await self._enabled(tx, account_id, given_id)
            failed, reached = await webhook_log.failed_of_endpoint(tx, account_id, found.id, after, before)
            now = self._clock.now()
            replays = [(new_id(self._chance, now), original) for original in failed]
            # Without tickets: dispatch publishes them no faster than they are sent.
            return await endpoint_events.enter_replays(tx, found, replays, now), reached

        async def note(tx: Connection, count: int) -> None:
            found = await self._enabled(tx, account_id, given_id)
            await self._note(tx, found, actor, "endpoint.replayed", self._clock.now(), {"deliveries": count})

        return await self._replays.run(account_id, since, enter, note)

    async def _cancel_pending(self, account_id: AccountId, endpoint_id: UUID) -> None:
        until = self._clock.monotonic() + SWEEP_SECONDS_MAX
        count = webhooks.CHANGED_AT_ONCE_MAX
        while count == webhooks.CHANGED_AT_ONCE_MAX and self._clock.monotonic() < until:
            async with self._database.transaction() as tx:
                count = await endpoints.cancel_pending(tx, account_id, endpoint_id)

    async def _found(self, connection: Connection, account_id: AccountId, given_id: str) -> Endpoint:
        found = await endpoints.find(connection, account_id, _id_of(given_id))
        if found is None:
            raise _no_endpoint()
        return found

    async def _enabled(self, connection: Connection, account_id: AccountId, given_id: str) -> Endpoint:
        found = await self._found(connection, account_id, given_id)
        if not found.enabled:
            raise Refusal(Code.CONFLICT, "The endpoint is disabled: enable it with PUT /v1/endpoints/{id} first.")
        return found

    def _require_on(self) -> None:
        if not self._is_on:
            raise Refusal(Code.FORBIDDEN, "The operator of this service has switched endpoints off.")

    def _new_secret(self, account_id: AccountId, endpoint_id: UUID) -> tuple[str, bytes]:
        secret = endpoint.new_secret(self._chance.bytes(endpoint.SECRET_BYTES))
        return secret, self._sealer.seal(secret.encode(), endpoints.secret_purpose(account_id, endpoint_id))

    def _sealed_headers(
        self, account_id: AccountId, endpoint_id: UUID, given: Mapping[str, str]
    ) -> tuple[list[str], bytes | None]:
        """Their names, and all of them sealed; none without any."""
        checked = endpoint.headers(given)
        if not checked:
            return [], None
        purpose = endpoints.headers_purpose(account_id, endpoint_id)
        return list(checked), self._sealer.seal(json.dumps(dict(checked)).encode(), purpose)

    async def _note(
        self,
        tx: Connection,
        of: Endpoint,
        actor: Actor,
        action: str,
        now: datetime,
        detail: Detail | None = None,
    ) -> None:
        subject = ids.text(ids.ENDPOINT, of.id)
        await self._audit_log.note(tx, of.account_id, actor, action, subject, now, detail or {})

    def _next_at(self, now: datetime) -> datetime:
        return now if self._tickets is None else now + self._tickets.lease


def _detail(saved: Endpoint, target: WebhookTarget) -> Detail:
    # The host alone: the rest of a URL may contain secrets.
    return {"host": target.host, "types": ", ".join(saved.filters.types), "enabled": saved.enabled}


def _id_of(given: str) -> UUID:
    endpoint_id = ids.parse(ids.ENDPOINT, given)
    if endpoint_id is None:
        raise _no_endpoint()
    return endpoint_id


def _delivery_id(given: str) -> UUID:
    delivery_id = ids.parse(ids.WEBHOOK_DELIVERY, given)
    if delivery_id is None:
        raise _no_delivery()
    return delivery_id


def _no_endpoint() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no endpoint with that id.")


def _no_delivery() -> Refusal:
    return Refusal(Code.NOT_FOUND, "No endpoint of this account has a delivery with that id.")
