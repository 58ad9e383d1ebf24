"""Accepting a message: from a valid draft to a committed row, or a refusal that costs nothing."""

from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import blake2b

from posthouse import crash
from posthouse.flows.accept.accept_transaction import AcceptTransaction
from posthouse.flows.accept.batch import BatchIntake, BatchResult, DraftBatch
from posthouse.flows.accept.preparation import Preparation, require_bound
from posthouse.flows.accept.replay import AcceptedMessage as AcceptedMessage
from posthouse.flows.accept.replay import RefusedRequests, durable_replay, in_progress
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.group_commit import GroupCommit
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.tickets import Tickets
from posthouse.mail.address import Mailbox
from posthouse.mail.submitted import SubmittedMail, is_slow_to_read, prepare
from posthouse.rules import ids, limits, message, send_quota, unsubscribe
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft, DraftRecipient, too_large
from posthouse.rules.ids import RequestId
from posthouse.rules.message import Fingerprint, Source, check_metadata, stored_metadata
from posthouse.rules.refusal import Refusal
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage
from posthouse.store.control_cache import ControlCache
from posthouse.traces import Span


class Intake(Flow):
    def __init__(
        self,
        context: Context,
        *,
        control_cache: ControlCache,
        defaults: Defaults,
        preparation: Preparation,
        tickets: Tickets | None = None,
        captures: bool = False,
        disk_space: DiskSpace | None = None,
    ) -> None:
        """Without tickets, mail is due immediately and dispatch finds it; without `disk_space` there is always space.

        With `captures`, all mail is routed to the simulator.
        """
        super().__init__(context)
        self._control_cache = control_cache
        self._defaults = defaults
        self._preparation = preparation
        self._captured_by = preparation.simulator_domain if captures else None
        self._disk_space = disk_space or DiskSpace()
        self._refused = RefusedRequests(context, control_cache=control_cache, defaults=defaults)
        self.fingerprint = Fingerprint(tuple([blake2b(key).digest() for key in context.keys.peppers.keys]))
        transaction = AcceptTransaction(context, defaults=defaults, tickets=tickets)
        self._group_commit: GroupCommit[PreparedMessage, AcceptedMessage] = GroupCommit(transaction.accept)
        # A batch of large messages takes longer than small ones should wait.
        self._large_group_commit: GroupCommit[PreparedMessage, AcceptedMessage] = GroupCommit(transaction.accept)
        self._being_accepted: set[IdempotencyKey] = set()
        self._batch_intake = BatchIntake(
            context,
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
            # Test and live keys of a credential share their scope. Test mail counts as a different body, so that it is
            # never taken for live mail.
            body_hash = message.fingerprint_of_test_mode(body_hash)
        # The first protection. Advisory locks are re-entrant within a session, so two requests of one batch
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

    async def accept_batch(
        self,
        principal: Principal,
        key_text: str,
        batch: DraftBatch,
        request_id: RequestId,
        span: Span | None = None,
    ) -> list[BatchResult]:
        """A result for each email; a Refusal if the request as a whole is refused."""

        async def prepare(principal: Principal, key: IdempotencyKey, draft: Draft, body_hash: bytes) -> PreparedMessage:
            entry = await self._prepare(principal, key, draft, body_hash, request_id, Source.API)
            return entry if span is None else entry._replace(trace=span.context.stored)

        return await self._batch_intake.accept(principal, key_text, batch, prepare)

    async def adopt(
        self,
        principal: Principal,
        raw: bytes,
        recipients: Sequence[Mailbox],
        envelope_sender: str,
        request_id: RequestId,
        span: Span | None = None,
    ) -> AcceptedMessage:
        """Accept a message that was written elsewhere, for the envelope's recipients; a RawError says why it can't be.

        There is no key: a client that gets no reply sends it again.
        """
        self._disk_space.require()
        now = self._clock.now()
        message_id = ids.new_message_id(now, self._randomness.id_bytes())

        message_id_text = self._preparation.message_id_text(message_id)
        read = partial(prepare, raw, date=now, message_id=message_id_text, hostname=self._preparation.hostname)
        is_slow = len(raw) > limits.THREAD_BODY_BYTES_MIN or is_slow_to_read(raw)
        submitted = await run_in_mail_process(principal.account_id, read) if is_slow else read()
        choice = unsubscribe.unsubscribe_option(
            submitted.tags, submitted.unsubscribe, has_own=submitted.has_own_unsubscribe
        )
        senders = [submitted.sender, *filter(None, [submitted.sender_field])]
        addressed = _addressed(recipients, submitted)

        async def require() -> None:
            await self._preparation.require(principal.account_id, senders, addressed, one_click=choice.one_click)
            check_metadata(submitted.metadata)
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
            metadata=stored_metadata(submitted.metadata),
            forgets_content=submitted.forgets_content,
        )
        return await self._submit(entry, span)

    async def require(self, principal: Principal, sender: Mailbox, recipients: int) -> float:
        """Raise the refusal that live mail from this sender would get now; else return the share of the rate left."""
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
        await self._group_commit.drain()
        await self._large_group_commit.drain()

    def _submit(self, entry: PreparedMessage, span: Span | None) -> Awaitable[AcceptedMessage]:
        size = len(entry.mime)
        group_commit = self._large_group_commit if size > limits.THREAD_BODY_BYTES_MIN else self._group_commit
        if span is not None:
            return _traced(span, group_commit, entry, size)
        return group_commit.submit(entry, entry.account_id, len(entry.recipients), size)

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
        message.check_send_time(draft.send_at, now)
        content = await self._preparation.content(principal.account_id, draft)
        message_id = ids.new_message_id(now, self._randomness.id_bytes())
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
            routed_to=self._preparation.simulator_domain if is_test else self._captured_by,
            mailing_list=draft.mailing_list,
            one_click=draft.one_click,
            metadata=stored_metadata(draft.metadata),
            send_at=draft.send_at,
            forgets_content=draft.forgets_content,
        )

    async def _recall(self, key: IdempotencyKey, body_hash: bytes) -> AcceptedMessage:
        """The refusal for a key with which another request of this process is being accepted."""
        async with self._database.connection() as connection:
            known = (await acceptance.recall(connection, [key])).get(key)
        if known is None or known.expires_at <= self._clock.now():
            raise in_progress()
        return await durable_replay(self._database, key, body_hash, known)


async def _traced(
    span: Span, group_commit: GroupCommit[PreparedMessage, AcceptedMessage], entry: PreparedMessage, size: int
) -> AcceptedMessage:
    """Accept it, with a span from the wait for the group commit to its end."""
    commit = span.child("commit")
    is_error = True
    try:
        traced = entry._replace(trace=span.context.stored)
        accepted = await group_commit.submit(traced, entry.account_id, len(entry.recipients), size)
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
