"""Accepting a message: from a valid draft to a committed row, or a refusal that costs nothing."""

from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import blake2b

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.accept.accept_transaction import AcceptTransaction
from posthouse.flows.accept.bulk import BulkIntake, BulkRequest, BulkResult
from posthouse.flows.accept.preparation import Preparation, require_bound
from posthouse.flows.accept.refused import RefusedRequests
from posthouse.flows.accept.replay import AcceptedMessage as AcceptedMessage
from posthouse.flows.accept.replay import durable_replay, in_progress
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.batching import Batcher
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.large_mail import in_turn
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.tickets import Tickets
from posthouse.mail.address import Mailbox
from posthouse.mail.submitted import SubmittedMail, is_slow_to_read, prepare
from posthouse.rules import fingerprint, ids, limits, metadata, send_quota, send_time, unsubscribe
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft, DraftRecipient, too_large
from posthouse.rules.fingerprint import Fingerprint
from posthouse.rules.ids import RequestId
from posthouse.rules.message import Source
from posthouse.rules.refusal import Refusal
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.traces import Span


class Intake:
    def __init__(
        self,
        *,
        database: Database,
        control_cache: ControlCache,
        clock: Clock,
        chance: Chance,
        defaults: Defaults,
        hostname: str,
        fingerprint_keys: Sequence[bytes],
        simulator_domain: str,
        tickets: Tickets | None = None,
        offers_one_click: bool = False,
        captures: bool = False,
        disk_space: DiskSpace | None = None,
    ) -> None:
        """Without tickets, mail is due at once, and dispatch finds it; without `disk_space` there is always room.

        With `captures`, all mail is routed to the simulator.
        """
        self._database = database
        self._control_cache = control_cache
        self._defaults = defaults
        self._clock = clock
        self._chance = chance
        self._hostname = hostname
        self._simulator_domain = simulator_domain
        self._captured_by = simulator_domain if captures else None
        self._disk_space = disk_space or DiskSpace()
        self._preparation = Preparation(
            control_cache=control_cache,
            hostname=hostname,
            offers_one_click=offers_one_click,
            simulator_domain=simulator_domain,
        )
        self._refused = RefusedRequests(database=database, control_cache=control_cache, clock=clock, defaults=defaults)
        self.fingerprint = Fingerprint(tuple([blake2b(key).digest() for key in fingerprint_keys]))
        transaction = AcceptTransaction(database=database, clock=clock, defaults=defaults, tickets=tickets)
        self._batcher: Batcher[PreparedMessage, AcceptedMessage] = Batcher(transaction.accept)
        # A batch of large mails takes longer than small mails should wait.
        self._large_batcher: Batcher[PreparedMessage, AcceptedMessage] = Batcher(transaction.accept)
        self._being_accepted: set[IdempotencyKey] = set()
        self._bulk_intake = BulkIntake(
            database=database,
            clock=clock,
            defaults=defaults,
            disk_space=self._disk_space,
            refused=self._refused,
            transaction=transaction,
            being_accepted=self._being_accepted,
        )

    async def accept(
        self,
        principal: Principal,
        key_text: str,
        draft: Draft,
        body_hash: bytes,
        request_id: RequestId,
        source: Source = Source.API,
        span: Span | None = None,
    ) -> AcceptedMessage:
        """Accept the draft once per key; `span` is the request's, if it is traced.

        A used key is answered before anything else is refused. Only a draft that would be refused reads its key
        here: all others read it in the transaction.
        """
        key = principal.key(key_text)
        if principal.mode is Mode.TEST:
            # Test and live keys of a credential share their scope. Test mail counts as another body, so that it is
            # never taken for the mail itself.
            body_hash = fingerprint.of_rehearsal(body_hash)
        # The first fence. Advisory locks are re-entrant within a session, so two requests of one batch
        # would both be granted the second.
        if key in self._being_accepted:
            return await self._recall(key, body_hash)
        self._being_accepted.add(key)
        try:
            try:
                self._disk_space.require()
                entry = await self._prepare(principal, key, draft, body_hash, request_id, source)
                crash.point("accept.prepared")
            except Refusal as refusal:
                answer = await self._refused.replay_or_raise(principal, key, body_hash, refusal)
                if answer is not None:
                    return answer
                entry = await self._prepare(principal, key, draft, body_hash, request_id, source)
            return await self._submit(entry, span)
        finally:
            self._being_accepted.discard(key)

    async def accept_bulk(
        self,
        principal: Principal,
        key_text: str,
        bulk: BulkRequest,
        request_id: RequestId,
        span: Span | None = None,
    ) -> list[BulkResult]:
        """A result for each of its emails; a Refusal if the request as a whole is refused."""

        async def prepare(principal: Principal, key: IdempotencyKey, draft: Draft, body_hash: bytes) -> PreparedMessage:
            entry = await self._prepare(principal, key, draft, body_hash, request_id, Source.API)
            return entry if span is None else entry._replace(trace=span.context.stored)

        return await self._bulk_intake.accept(principal, key_text, bulk, prepare)

    async def adopt(
        self,
        principal: Principal,
        raw: bytes,
        recipients: Sequence[Mailbox],
        envelope_sender: str,
        request_id: RequestId,
        span: Span | None = None,
    ) -> AcceptedMessage:
        """Accept a mail that was written elsewhere, for the envelope's recipients; a RawError says why it can't be.

        There is no key: a client that gets no answer sends it again.
        """
        self._disk_space.require()
        now = self._clock.now()
        message_id = ids.new_message_id(now, self._chance.bytes(ids.RANDOM_BYTES))

        message_id_text = self._preparation.message_id_text(message_id)
        read = partial(prepare, raw, date=now, message_id=message_id_text, hostname=self._hostname)
        is_slow = len(raw) > limits.THREAD_BODY_BYTES_MIN or is_slow_to_read(raw)
        submitted = await in_turn(principal.account_id, read) if is_slow else read()
        choice = unsubscribe.unsubscribe_option(
            submitted.tags, submitted.unsubscribe, has_own=submitted.has_own_unsubscribe
        )
        senders = [submitted.sender, *filter(None, [submitted.sender_field])]
        addressed = _addressed(recipients, submitted)

        async def require() -> None:
            await self._preparation.require(principal.account_id, senders, addressed, one_click=choice.one_click)
            metadata.check(submitted.metadata)
            if len(submitted.content) > limits.MIME_BYTES_MAX:
                raise too_large()

        try:
            await require()
        except Refusal as refusal:
            await self._refused.replay_or_raise(principal, None, b"", refusal)
            await require()
        entry = PreparedMessage(
            account_id=principal.account_id,
            credential_id=principal.credential_id,
            key=None,
            body_hash=b"",
            message_id=message_id,
            request_id=request_id,
            source=Source.SMTP,
            sender=submitted.sender_text,
            envelope_sender=envelope_sender,
            subject="" if submitted.forgets_content else submitted.subject,
            tags=submitted.tags,
            template=None,
            recipients=addressed,
            credits=len(addressed),
            mime=submitted.content,
            sender_domain=submitted.sender.domain,
            routed_to=self._captured_by,
            mailing_list=choice.mailing_list,
            one_click=choice.one_click,
            metadata=metadata.stored(submitted.metadata),
            forgets_content=submitted.forgets_content,
        )
        return await self._submit(entry, span)

    async def require(self, principal: Principal, sender: Mailbox, recipients: int) -> float:
        """Raises what would refuse live mail from this sender to so many recipients now; the share of the rate left."""
        self._disk_space.require()
        # Refreshes what the cache knows of the account's domains, which `require` goes by.
        await self._control_cache.is_verified(principal.account_id, sender.domain)
        await self._preparation.require(principal.account_id, [sender], [], one_click=False)
        async with self._database.connection() as connection:
            account = working_copy(await acceptance.read(connection, principal.account_id), self._defaults)
        if account.suspended:
            raise suspended()
        reading = send_quota.admit(account, send_quota.Charge(recipients, recipients), self._clock.now())
        return (reading.remaining + 1) / account.rate.burst

    async def drain(self) -> None:
        await self._batcher.drain()
        await self._large_batcher.drain()

    def _submit(self, entry: PreparedMessage, span: Span | None) -> Awaitable[AcceptedMessage]:
        size = len(entry.mime)
        batcher = self._large_batcher if size > limits.THREAD_BODY_BYTES_MIN else self._batcher
        if span is not None:
            return _traced(span, batcher, entry, size)
        return batcher.submit(entry, entry.account_id, len(entry.recipients), size)

    async def _prepare(
        self,
        principal: Principal,
        key: IdempotencyKey,
        draft: Draft,
        body_hash: bytes,
        request_id: RequestId,
        source: Source,
    ) -> PreparedMessage:
        require_bound(principal.sender_domains, draft.sender)
        await self._preparation.require(
            principal.account_id, [draft.sender], draft.recipients, one_click=draft.one_click
        )
        now = self._clock.now()
        send_time.check(draft.send_at, now)
        content = await self._preparation.content(principal.account_id, draft)
        message_id = ids.new_message_id(now, self._chance.bytes(ids.RANDOM_BYTES))
        written = await self._preparation.write(principal.account_id, content, message_id, now)
        # The source does not decide whether mail is only simulated: a member's test mail to themselves is delivered.
        is_test = principal.mode is Mode.TEST
        return PreparedMessage(
            account_id=principal.account_id,
            credential_id=principal.credential_id,
            key=key,
            body_hash=body_hash,
            message_id=message_id,
            request_id=request_id,
            source=Source.TEST if is_test else source,
            sender=draft.request_fields.sender,
            envelope_sender=draft.sender.address,
            subject="" if draft.forgets_content else content.subject,
            tags=draft.tags,
            template=draft.template,
            recipients=draft.recipients,
            credits=0 if is_test else len(draft.recipients),
            mime=written,
            sender_domain=draft.sender.domain,
            routed_to=self._simulator_domain if is_test else self._captured_by,
            mailing_list=draft.mailing_list,
            one_click=draft.one_click,
            metadata=metadata.stored(draft.metadata),
            send_at=draft.send_at,
            forgets_content=draft.forgets_content,
        )

    async def _recall(self, key: IdempotencyKey, body_hash: bytes) -> AcceptedMessage:
        """The answer to a key that another request of this process is being accepted with."""
        async with self._database.connection() as connection:
            known = (await acceptance.recall(connection, [key])).get(key)
        if known is None or known.expires_at <= self._clock.now():
            raise in_progress()
        return await durable_replay(self._database, key, body_hash, known)


async def _traced(
    span: Span, batcher: Batcher[PreparedMessage, AcceptedMessage], entry: PreparedMessage, size: int
) -> AcceptedMessage:
    """With a span from the wait for the shared transaction to its commit."""
    commit = span.child("commit")
    is_error = True
    try:
        traced = entry._replace(trace=span.context.stored)
        accepted = await batcher.submit(traced, entry.account_id, len(entry.recipients), size)
        is_error = False
        return accepted
    finally:
        commit.end(is_error=is_error)


def _addressed(recipients: Sequence[Mailbox], submitted: SubmittedMail) -> tuple[DraftRecipient, ...]:
    """The envelope's recipients, each once, in its first spelling; those not in the header are blind copies."""
    unique: dict[str, DraftRecipient] = {}
    for mailbox in recipients:
        key = mailbox.key
        field = "to" if key in submitted.to else "cc" if key in submitted.cc else "bcc"
        unique.setdefault(key, DraftRecipient(field, mailbox.address, mailbox.domain))
    return tuple(unique.values())
