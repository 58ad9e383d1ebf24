"""Mail that no worker has tried yet is cancelled by its sender, or moved to another time.

One transaction decides between the sender and the workers, by the locks of the schedule's rows: a cancelled recipient
is final and has left the schedule, a moved one has another fence, so that no ticket finds it. Otherwise nothing is
changed.
"""

from datetime import datetime

from posthouse import crash, metrics
from posthouse.clock import Clock
from posthouse.flows.account.message_detail import message_id_of, no_message
from posthouse.flows.shared.account_limits import Defaults, spending, working_copy
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.flows.shared.principal import Principal
from posthouse.mail.address import parse_mailbox
from posthouse.rules import search, send_quota, send_time
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.message import MessageStatus, Source
from posthouse.rules.rate_limit import RateWait
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.search import SearchField
from posthouse.store import acceptance, delivery_outcomes, messages, search_index, unsent_mail
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.messages import StoredMessage
from posthouse.store.postgres import Connection, Database
from posthouse.store.search_index import IndexEntry
from posthouse.store.unsent_mail import LockedMessage


class UnsentMail:
    def __init__(self, *, database: Database, clock: Clock, defaults: Defaults) -> None:
        self._database = database
        self._clock = clock
        self._defaults = defaults
        self._rates: MemoryRates[AccountId] = MemoryRates()

    async def cancel(self, principal: Principal, given_id: str) -> StoredMessage:
        """Cancel all recipients of the message: then none of them gets it. A second time changes nothing."""
        message_id = message_id_of(given_id)
        await self._take_rate(principal.account_id)
        async with self._database.transaction() as tx:
            found = await self._locked(tx, principal, message_id)
            if not await unsent_mail.is_cancelled(tx, principal.account_id, message_id):
                _require_untried(found)
                await self._cancel(tx, principal.account_id, message_id, found)
            answer = await messages.message(tx, principal.account_id, message_id)
            crash.point("cancel.before_commit")
        crash.point("cancel.after_commit")
        if answer is None:
            raise no_message()
        return answer

    async def cancel_found(self, account_id: AccountId, message_id: MessageId, *, is_dry_run: bool) -> bool:
        """Cancel a message of the account, if none of its recipients was tried; whether it was, or would be."""
        async with self._database.transaction() as tx:
            found = await unsent_mail.lock(tx, account_id, message_id)
            if found is None or found.is_tried or found.is_restored:
                return False
            if not is_dry_run:
                await self._cancel(tx, account_id, message_id, found)
                crash.point("cancel.before_commit")
        return True

    async def move(self, principal: Principal, given_id: str, given_time: str) -> StoredMessage:
        """Send the message at another time than it was accepted for."""
        message_id = message_id_of(given_id)
        send_at = send_time.parse(given_time)
        await self._take_rate(principal.account_id)
        async with self._database.transaction() as tx:
            found = await self._locked(tx, principal, message_id)
            _require_untried(found)
            if found.send_at is None:
                raise Refusal(Code.CONFLICT, "This message has no `send_at`: it is sent as soon as possible.")
            send_time.check(send_at, self._clock.now())
            await unsent_mail.move(tx, principal.account_id, message_id, send_at)
            if found.credits_reserved:
                await self._move_warmup(tx, principal, found.recipient_count, found.send_at, send_at)
            answer = await messages.message(tx, principal.account_id, message_id)
        if answer is None:
            raise no_message()
        return answer

    async def _take_rate(self, account_id: AccountId) -> None:
        """As many as an account may send it may take back or move; each process counts them apart."""
        async with self._database.connection() as connection:
            rate = working_copy(await acceptance.read(connection, account_id), self._defaults).rate
        now = self._clock.now()
        taken = self._rates.take(account_id, rate, now)
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"This account may cancel or move {rate.per_second} messages a second and {rate.burst} at once: try "
                f"again in {taken.seconds} s, or cancel many with POST /v1/messages/cancel.",
                retry_after_seconds=taken.seconds,
                headers=send_quota.rate_headers(rate, self._rates.reading(account_id, rate, now)),
            )

    async def _move_warmup(
        self, tx: Connection, principal: Principal, recipients: int, before: datetime, after: datetime
    ) -> None:
        """The account's row is locked last, as in `delivery_outcomes`."""
        _, rows = await acceptance.lock(tx, [], [principal.account_id])
        account = working_copy(rows[principal.account_id], self._defaults)
        send_quota.move(account, recipients, before, after, self._clock.now())
        await unsent_mail.set_warmup(tx, spending(account, 0))

    async def _locked(self, tx: Connection, principal: Principal, message_id: MessageId) -> LockedMessage:
        """As GET /emails/{id} finds it: a test key knows test mail alone, a bound one its domains'."""
        found = await unsent_mail.lock(tx, principal.account_id, message_id)
        if found is None or (principal.mode is Mode.TEST and found.source != Source.TEST):
            raise no_message()
        if principal.sender_domains and parse_mailbox(found.sender).domain not in principal.sender_domains:
            raise no_message()
        return found

    async def _cancel(self, tx: Connection, account_id: AccountId, message_id: MessageId, found: LockedMessage) -> None:
        outcomes = [
            DeliveryOutcome(account_id, message_id, row.position, row.fence, DeliveryResult.CANCELLED)
            for row in found.waiting
        ]
        now = self._clock.now()
        recorded = await delivery_outcomes.record(tx, outcomes, now)
        if found.credits_reserved and found.send_at is not None:
            _, rows = await acceptance.lock(tx, [], [account_id])
            account = working_copy(rows[account_id], self._defaults)
            send_quota.give_back(account, found.recipient_count, found.send_at, now)
            await unsent_mail.set_warmup(tx, spending(account, 0))
        # The search index learns other results from their events.
        term = search.term(SearchField.STATUS, MessageStatus.FAILED)
        await search_index.enter(tx, [IndexEntry(account_id, term, message_id)])
        metrics.CREDITS.count("released", by=recorded.released)


def _require_untried(found: LockedMessage) -> None:
    if found.is_tried:
        raise Refusal(
            Code.CONFLICT,
            "A recipient of this message was tried already, or has its result: GET /emails/{id} shows it.",
        )
    if found.is_restored:
        raise Refusal(
            Code.CONFLICT,
            "The service's database was restored, and this message may have been sent before: ask the operator.",
        )
