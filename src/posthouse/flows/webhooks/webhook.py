"""An account's webhook endpoint, the log of its webhook deliveries, and the feed of its events.

A secret is returned once, when it is created. A ping or a replay only adds a webhook delivery to the schedule; the
webhook sender sends it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.page import Page, id_position
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.replay_sweep import SWEEP_SECONDS_MAX, Replayed, ReplaySweep, id_before
from posthouse.rules import credential, endpoint_state, event, ids, retry
from posthouse.rules.actor import Actor
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_filters import WebhookFilters
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import events, messages, webhook_log, webhooks
from posthouse.store.audit_log import Detail
from posthouse.store.events import EventRange
from posthouse.store.events import StoredEvent as StoredEvent
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.store.webhook_log import EndpointHealth as EndpointHealth
from posthouse.store.webhook_log import LogStep
from posthouse.store.webhook_log import WebhookAttempt as WebhookAttempt
from posthouse.store.webhooks import CHANGED_AT_ONCE_MAX, PING_COOLDOWN
from posthouse.store.webhooks import EndpointRow as EndpointRow
from posthouse.store.webhooks import WebhookDelivery as WebhookDelivery

# A test is sent on request, whatever is subscribed to.
SUBSCRIBABLE: Final = tuple([type_ for type_ in EventType if type_ is not EventType.TEST])
# What the feed can be asked for.
FEED_TYPES: Final = (*EventType, *FurtherType)
SEARCH_SECONDS_MAX: Final = 0.5
HEALTH_PERIOD: Final = timedelta(days=1)
# The last attempts of a delivery are made most of a day after it was created.
HEALTH_CREATED: Final = timedelta(days=2)
ANY_DELIVERY: Final = WebhookFilters()
# An event gets its id before it is committed. A reader of the feed would miss an event that appears behind a newer
# one, so an event is shown only when all events of its time are committed, however long a transaction takes.
SETTLED_AFTER: Final = timedelta(seconds=10)
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Saved:
    """`secret` is None unless the endpoint is new."""

    endpoint: EndpointRow
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class EventPage(Page[StoredEvent]):
    """`next_cursor` is where to read on, now or later; None only while there was nothing to read.

    `metadata` is that of the events' messages, if they have any.
    """

    has_more: bool
    metadata: Mapping[MessageId, Mapping[str, str]]


class WebhookEndpoint:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        sealer: Sealer,
        tickets: Tickets | None,
        check: Callable[[str], WebhookTarget],
        retries: Schedule = retry.WEBHOOK,
        failing_after: timedelta = endpoint_state.FAILING_AFTER,
    ) -> None:
        """`check` raises a Refusal for a URL that is not allowed. Without `tickets`, deliveries are due at once."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._audit_log = AuditLog(chance)
        self._sealer = sealer
        self._tickets = tickets
        self._check = check
        self._retries = retries
        self._failing_after = failing_after
        self._replays = ReplaySweep(database, clock)

    # The endpoint.

    async def get(self, account_id: AccountId) -> EndpointRow | None:
        async with self._database.connection() as connection:
            return await webhooks.find(connection, account_id)

    def state(self, endpoint: EndpointRow) -> EndpointState:
        now = self._clock.now()
        return endpoint_state.state_of(endpoint.answered_at, endpoint.failing_since, now, self._failing_after)

    async def save(
        self, account_id: AccountId, url: str, events: Sequence[str], actor: Actor, *, enabled: bool
    ) -> Saved:
        """No events means all of them. Pending deliveries go to the new URL, or are cancelled when it is disabled."""
        target = self._check(url)
        subscribed = _subscribed(events)
        secret, sealed = self._new_secret(account_id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            endpoint, is_new = await webhooks.save(tx, account_id, target.url, subscribed, enabled, sealed, now)
            detail: Detail = {"events": ", ".join(subscribed), "enabled": enabled}
            # The host alone: the rest of a URL may contain secrets.
            await self._audit_log.note(tx, account_id, actor, "webhook.saved", target.host, now, detail)
        if is_new:
            return Saved(endpoint, secret)
        if not endpoint.enabled:
            # The rest is cancelled when it is due.
            await self._swept(account_id, webhooks.cancel_pending)
        return Saved(endpoint, None)

    async def delete(self, account_id: AccountId, actor: Actor) -> None:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if not await webhooks.disable(tx, account_id, now):
                raise _no_endpoint()
            # Logged when sending stops, even if the deliveries are never all deleted.
            await self._audit_log.note(tx, account_id, actor, "webhook.deleted", "webhook", now)
        if not await self._swept(account_id, webhooks.forget):
            raise Refusal(
                Code.TEMPORARY_FAILURE,
                "Nothing is sent any more, but the log is so long that a part of it is still there: delete again.",
                1,
            )
        async with self._database.transaction() as tx:
            if not await webhooks.delete(tx, account_id, self._clock.now()):
                raise _no_endpoint()

    async def rotate_secret(self, account_id: AccountId, actor: Actor) -> str:
        """A new secret; the old one ends at once."""
        secret, sealed = self._new_secret(account_id)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if not await webhooks.rotate_secret(tx, account_id, sealed, now):
                raise _no_endpoint()
            await self._audit_log.note(tx, account_id, actor, "webhook.secret_rotated", "webhook", now)
        return secret

    # Webhook deliveries.

    async def ping(self, account_id: AccountId) -> WebhookDelivery:
        """A test event, sent once."""
        async with self._database.transaction() as tx:
            now = self._clock.now()
            event_id, delivery_id = new_id(self._chance, now), new_id(self._chance, now)
            body = event.test_body(event_id=event_id, created_at=now)
            if not await webhooks.mark_pinged(tx, account_id, now):
                endpoint = await self._enabled(tx, account_id)
                seconds = seconds_until_ping(endpoint.pinged_at, now)
                raise Refusal(
                    Code.RATE_LIMITED,
                    f"The last ping was less than {PING_COOLDOWN // _SECOND} s ago: try again in {seconds} s.",
                    seconds,
                )
            delivery = await webhooks.enter_ping(tx, account_id, event_id, delivery_id, body, now, self._next_at(now))
            if delivery is None:
                raise _disabled()
        self._publish(delivery)
        return delivery

    async def deliveries(
        self,
        account_id: AccountId,
        limit: int,
        cursor: str | None = None,
        message_id: str | None = None,
        filters: WebhookFilters = ANY_DELIVERY,
        endpoint_id: UUID | None = None,
    ) -> Page[WebhookDelivery]:
        """The newest first, of the webhook or of this endpoint. A message of another account has no deliveries.

        With filters a page may be short, or empty, and not be the last.
        """
        if cursor is not None:
            position = id_position(ids.WEBHOOK_DELIVERY, cursor)
            filters = replace(filters, before=min(filters.before, position))
        about = None if message_id is None else ids.parse(ids.MESSAGE, message_id)
        if message_id is not None and about is None:
            return Page([], None)
        async with self._database.connection() as connection:
            if about is not None:
                of_it = await webhook_log.of_message(
                    connection, account_id, MessageId(about), filters, limit + 1, endpoint_id
                )
                found = LogStep(of_it, None)
            else:
                found = await self._search(connection, account_id, filters, limit + 1, endpoint_id)
            shown = await webhook_log.by_ids(connection, account_id, found.ids[:limit], endpoint_id)
        position_after = found.ids[limit - 1] if len(found.ids) > limit else found.position
        return Page(shown, None if position_after is None else ids.text(ids.WEBHOOK_DELIVERY, position_after))

    async def _search(
        self,
        connection: Connection,
        account_id: AccountId,
        filters: WebhookFilters,
        limit: int,
        endpoint_id: UUID | None,
    ) -> LogStep:
        """Step by step, until there are enough or the client has waited long enough."""
        until = self._clock.monotonic() + SEARCH_SECONDS_MAX
        found: list[UUID] = []
        while True:
            step = await webhook_log.search(connection, account_id, filters, limit - len(found), endpoint_id)
            found.extend(step.ids)
            if step.position is None or len(found) == limit or self._clock.monotonic() >= until:
                return LogStep(found, step.position)
            filters = replace(filters, before=step.position)

    async def delivery(
        self, account_id: AccountId, given_id: str, endpoint_id: UUID | None = None
    ) -> tuple[WebhookDelivery, list[WebhookAttempt]]:
        """A delivery and every attempt of it, the oldest first; another account's is not found."""
        delivery_id = ids.parse(ids.WEBHOOK_DELIVERY, given_id)
        async with self._database.connection() as connection:
            found = delivery_id and await webhooks.find_delivery(connection, account_id, delivery_id, endpoint_id)
            if not found:
                raise _no_delivery()
            return found, await webhook_log.attempts_of(connection, found)

    async def health(self, account_id: AccountId, endpoint_id: UUID | None = None) -> EndpointHealth:
        """The calls of the last day."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            return await webhook_log.health(
                connection, account_id, now - HEALTH_PERIOD, now - HEALTH_CREATED, endpoint_id
            )

    async def replay(self, account_id: AccountId, given_id: str) -> WebhookDelivery:
        """Send the same event again, with all attempts; another account's is not found."""
        delivery_id = ids.parse(ids.WEBHOOK_DELIVERY, given_id)
        if delivery_id is None:
            raise _no_delivery()
        now = self._clock.now()
        async with self._database.transaction() as tx:
            original = await webhooks.find_delivery(tx, account_id, delivery_id)
            if original is None:
                raise _no_delivery()
            replay = await webhooks.enter_replay(
                tx, original, new_id(self._chance, now), self._retries.attempts_max, now, self._next_at(now)
            )
            if replay is None:
                await self._enabled(tx, account_id)
                raise Refusal(Code.CONFLICT, "The event of this delivery is no longer stored: it can't be sent again.")
        self._publish(replay)
        return replay

    async def count_failed(self, account_id: AccountId, since: str) -> int:
        """How many events `replay_failed` would send again, if there were no limit."""
        count, position = 0, id_before(since)
        before = ids.lowest_id(self._clock.now())
        async with self._database.connection() as connection:
            await self._enabled(connection, account_id)
            while True:
                failed, reached = await webhook_log.failed(connection, account_id, position, before)
                count += len(failed)
                if reached is None:
                    return count
                position = reached

    async def replay_failed(self, account_id: AccountId, since: str, actor: Actor) -> Replayed:
        """Send all events again whose last delivery failed and was created since then.

        A second request finds the replays of the first, pending or done, and adds nothing.
        """

        async def enter(tx: Connection, after: UUID, before: UUID) -> tuple[int, UUID | None]:
            await self._enabled(tx, account_id)
            failed, reached = await webhook_log.failed(tx, account_id, after, before)
            now = self._clock.now()
            replays = [(new_id(self._chance, now), original) for original in failed]
            # Without tickets: dispatch publishes them no faster than they are sent.
            return await webhook_log.enter_replays(tx, account_id, replays, self._retries.attempts_max, now), reached

        async def note(tx: Connection, count: int) -> None:
            detail: Detail = {"deliveries": count}
            await self._audit_log.note(tx, account_id, actor, "webhook.replayed", "webhook", self._clock.now(), detail)

        return await self._replays.run(account_id, since, enter, note)

    # The feed of events.

    async def events(
        self,
        account_id: AccountId,
        limit: int,
        *,
        after: str | None = None,
        event_type: str | None = None,
        message_id: str | None = None,
    ) -> EventPage:
        """The oldest first, after the cursor; only of a type or a message if given.

        Without a type they are those of the webhook. Further types are stored while an endpoint asks for them.
        """
        position = events.BEGINNING if after is None else id_position(ids.EVENT, after, "after")
        if event_type is not None and event_type not in FEED_TYPES:
            raise invalid(f"`type` is one of {', '.join(FEED_TYPES)}.")
        async with self._database.connection() as connection:
            before = await events.settled_before(connection, self._clock.now() - SETTLED_AFTER)
            if message_id is None:
                stretch = await events.read(connection, account_id, position, before, limit, event_type)
            else:
                of_it = await self._events_of(connection, account_id, message_id, event_type)
                found = [
                    stored for stored in of_it if position < stored.id < before and event_type in (None, stored.type)
                ]
                shown = found[:limit]
                stretch = EventRange(shown, shown[-1].id if shown else position, is_all=len(found) <= limit)
            about_mail = {stored.message_id for stored in stretch.events if stored.message_id is not None}
            metadata = await messages.metadata_of(connection, account_id, about_mail)
        is_at_beginning = stretch.read_to == events.BEGINNING
        return EventPage(
            stretch.events,
            None if is_at_beginning else ids.text(ids.EVENT, stretch.read_to),
            has_more=not stretch.is_all,
            metadata=metadata,
        )

    async def _events_of(
        self, connection: Connection, account_id: AccountId, message_id: str, event_type: str | None
    ) -> list[StoredEvent]:
        about = ids.parse(ids.MESSAGE, message_id)
        if about is None:
            return []
        if event_type in list(FurtherType):
            return await events.further_of_message(connection, account_id, MessageId(about), event_type)
        return await events.of_message(connection, account_id, MessageId(about))

    async def _swept(self, account_id: AccountId, sweep: Callable[[Connection, AccountId], Awaitable[int]]) -> bool:
        """Whether nothing remains; each part is a transaction of its own."""
        until = self._clock.monotonic() + SWEEP_SECONDS_MAX
        while True:
            async with self._database.transaction() as tx:
                count = await sweep(tx, account_id)
            if count < CHANGED_AT_ONCE_MAX:
                return True
            if self._clock.monotonic() >= until:
                return False

    async def _enabled(self, connection: Connection, account_id: AccountId) -> EndpointRow:
        endpoint = await webhooks.find(connection, account_id)
        if endpoint is None:
            raise _no_endpoint()
        if not endpoint.enabled:
            raise _disabled()
        return endpoint

    def _new_secret(self, account_id: AccountId) -> tuple[str, bytes]:
        """In clear and sealed: a prefix, then base 62 of 32 bytes, as in a password."""
        random = self._chance.bytes(credential.SECRET_RANDOM_BYTES)
        secret = event.SECRET_PREFIX + credential.new_smtp_password(random)
        return secret, self._sealer.seal(secret.encode(), webhooks.secret_purpose(account_id))

    def _next_at(self, now: datetime) -> datetime:
        return now if self._tickets is None else now + self._tickets.lease

    def _publish(self, delivery: WebhookDelivery) -> None:
        if self._tickets is not None:
            self._tickets.publish([WebhookTicket(delivery.account_id, delivery.id, fence=0)])


def _subscribed(given: Sequence[str]) -> list[EventType]:
    for name in given:
        if name == EventType.TEST:
            raise invalid(
                f"`events` must not name {EventType.TEST}: it is sent when you ping, whatever is subscribed to."
            )
        if name not in SUBSCRIBABLE:
            raise invalid(f"`events` names {name[:100]!r}, which is no event: it takes {', '.join(SUBSCRIBABLE)}.")
    return [type_ for type_ in SUBSCRIBABLE if type_ in given] or list(SUBSCRIBABLE)


def seconds_until_ping(pinged_at: datetime | None, now: datetime) -> int:
    """Whole seconds until a ping is allowed; another process's clock may be slightly ahead."""
    left = timedelta(0) if pinged_at is None else pinged_at + PING_COOLDOWN - now
    return max(1, -(-left // _SECOND))


def _no_endpoint() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no webhook: save one with PUT /v1/webhook.")


def _disabled() -> Refusal:
    return Refusal(Code.CONFLICT, "The webhook is disabled: enable it with PUT /v1/webhook first.")


def _no_delivery() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no webhook delivery with that id.")
