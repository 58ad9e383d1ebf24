"""An account's webhook endpoint, the log of its webhook deliveries, and the feed of its events.

A secret is returned once, when it is created. A ping or a replay only adds a webhook delivery to the schedule; the
webhook sender sends it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.page import Page, id_position, page_of
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules import credential, endpoint_state, event, ids, retry
from posthouse.rules.actor import Actor
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import events, webhooks
from posthouse.store.audit_log import Detail
from posthouse.store.events import EventRange, StoredEvent
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.store.webhooks import CHANGED_AT_ONCE_MAX, PING_COOLDOWN
from posthouse.store.webhooks import EndpointRow as EndpointRow
from posthouse.store.webhooks import WebhookDelivery as WebhookDelivery

# A test is sent on request, whatever is subscribed to.
SUBSCRIBABLE: Final = tuple([type_ for type_ in EventType if type_ is not EventType.TEST])
# A client waits for the answer; the rest is done by its next request.
SWEEP_SECONDS_MAX: Final = 3.0
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
    """`next_cursor` is where to read on, now or later; None only while there was nothing to read."""

    has_more: bool


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
                seconds = _seconds_until(endpoint.pinged_at, now)
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
        self, account_id: AccountId, limit: int, cursor: str | None = None, message_id: str | None = None
    ) -> Page[WebhookDelivery]:
        """The newest first. A message of another account has no deliveries."""
        before = None if cursor is None else id_position(ids.WEBHOOK_DELIVERY, cursor)
        about = None if message_id is None else ids.parse(ids.MESSAGE, message_id)
        if message_id is not None and about is None:
            return Page([], None)
        async with self._database.connection() as connection:
            found = await webhooks.list_deliveries(
                connection,
                account_id,
                limit + 1,
                before=before,
                message_id=None if about is None else MessageId(about),
            )
        return page_of(found, limit, lambda row: ids.text(ids.WEBHOOK_DELIVERY, row.id))

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
        """The oldest first, after the cursor; only of a type or a message if given."""
        position = events.BEGINNING if after is None else id_position(ids.EVENT, after, "after")
        if event_type is not None and event_type not in list(EventType):
            raise invalid(f"`type` is one of {', '.join(EventType)}.")
        async with self._database.connection() as connection:
            before = await events.settled_before(connection, self._clock.now() - SETTLED_AFTER)
            if message_id is None:
                stretch = await events.read(connection, account_id, position, before, limit, event_type)
            else:
                about = ids.parse(ids.MESSAGE, message_id)
                of_it = [] if about is None else await events.of_message(connection, account_id, MessageId(about))
                found = [
                    stored for stored in of_it if position < stored.id < before and event_type in (None, stored.type)
                ]
                shown = found[:limit]
                stretch = EventRange(shown, shown[-1].id if shown else position, is_all=len(found) <= limit)
        is_at_beginning = stretch.read_to == events.BEGINNING
        return EventPage(
            stretch.events,
            None if is_at_beginning else ids.text(ids.EVENT, stretch.read_to),
            has_more=not stretch.is_all,
        )

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


def _seconds_until(pinged_at: datetime | None, now: datetime) -> int:
    """Whole seconds until a ping is allowed; another process's clock may be slightly ahead."""
    left = timedelta(0) if pinged_at is None else pinged_at + PING_COOLDOWN - now
    return max(1, -(-left // _SECOND))


def _no_endpoint() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no webhook: save one with PUT /v1/webhook.")


def _disabled() -> Refusal:
    return Refusal(Code.CONFLICT, "The webhook is disabled: enable it with PUT /v1/webhook first.")


def _no_delivery() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no webhook delivery with that id.")
