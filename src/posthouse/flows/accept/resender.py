"""Sends failed mail again: a few messages of each running resend at a time.

A step reads the next old messages, and accepts those to send again as new messages with the same bytes. The transaction
that accepts them also links old and new messages, and records the resend's progress: if a process dies in between,
nothing was sent, and another repeats the step. If two processes do the same step, only one can commit it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from posthouse.flows.accept.accept_transaction import AcceptTransaction
from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.accept.replay import AcceptedMessage
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.mail.address import AddressError, Mailbox, parse_mailbox
from posthouse.rules import ids, limits
from posthouse.rules import resend as rules
from posthouse.rules.draft import DraftRecipient
from posthouse.rules.ids import MessageId, RequestId
from posthouse.rules.message import Source, read_metadata
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.resend import Fate, ResendStatus
from posthouse.store import resends
from posthouse.store.acceptance import PreparedMessage
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Connection
from posthouse.store.resends import OldMessage, OldRecipient, ResendCounts, ResendRow, ResendStep, StepTakenError

log = structlog.get_logger(__name__)

# The limits of a step: old messages that are examined, those that are sent again, and their bytes. Their recipients
# are bounded as in any transaction. The pace is one step per second.
EXAMINED_MAX: Final = limits.RESEND_MESSAGES_MAX
RESENT_MAX: Final = limits.BATCH_EMAILS_PER_REQUEST
BYTES_MAX: Final = 8 * limits.MIB
RESENDS_A_RUN_MAX: Final = 20
# The wait if the refusal doesn't say when the account may send again.
WAIT: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class _Part:
    """Old messages in order, some of which will be sent again; `position` is how far they were examined."""

    messages: Sequence[OldMessage]
    chosen: dict[MessageId, Sequence[OldRecipient]]
    excluded: dict[MessageId, int]
    position: UUID
    is_last: bool


class Resender(Flow):
    def __init__(
        self,
        context: Context,
        *,
        control_cache: ControlCache,
        preparation: Preparation,
        transaction: AcceptTransaction,
        captured_by: str | None = None,
        disk_space: DiskSpace | None = None,
    ) -> None:
        """`captured_by` is the simulator's domain on an installation that captures all mail."""
        super().__init__(context)
        self._control_cache = control_cache
        self._preparation = preparation
        self._transaction = transaction
        self._captured_by = captured_by
        self._disk_space = disk_space or DiskSpace()
        self._is_idle = False

    def is_idle(self) -> bool:
        """Whether the last step found no running resend."""
        return self._is_idle

    async def step(self) -> int:
        """Work on each resend that is due; return how many there were."""
        async with self._database.connection() as connection:
            due = await resends.due(connection, self._clock.now(), RESENDS_A_RUN_MAX)
            self._is_idle = not due and not await resends.is_any_running(connection)
        if due:
            await self._control_cache.forget_changes()
        for resend in due:
            try:
                await self._advance(resend)
            except StepTakenError:
                log.debug("resend_step_taken", resend=ids.text(ids.RESEND, resend.id))
            except Refusal as refusal:
                # The account's row is locked, or there is no space; the other resends must not wait for that.
                log.debug("resend_step_refused", resend=ids.text(ids.RESEND, resend.id), cause=refusal.code.value)
        return len(due)

    async def _advance(self, resend: ResendRow) -> None:
        now = self._clock.now()
        if now > resend.created_at + rules.LIFETIME:
            over = ResendStep(resend.position, ResendCounts(), now, ResendStatus.STOPPED, resend.waiting_for)
            async with self._database.transaction() as tx:
                await resends.advance(tx, resend, over, now)
            return
        part = await self._next_part(resend)
        if resend.is_dry_run or not part.chosen:
            async with self._database.transaction() as tx:
                await resends.advance(tx, resend, self._counted(part), now)
            return
        await self._resend(resend, part)

    async def _next_part(self, resend: ResendRow) -> _Part:
        account_id = resend.account_id
        async with self._database.connection() as connection:
            examined = await resends.examine(connection, resend, ids.lowest_id(resend.until), EXAMINED_MAX)
            wanted = [row.id for row in examined if row.is_wanted and _has(row.metadata, resend)]
            read = await resends.old_messages(connection, account_id, wanted[:RESENT_MAX])
            messages = _within(read, BYTES_MAX, lambda old: old.mime_bytes or 0)
            recipients = await resends.old_recipients(connection, account_id, messages)
        messages = _within(messages, limits.GROUP_COMMIT_RECIPIENTS_MAX, lambda old: len(recipients.get(old.id, ())))
        is_last = False
        if len(messages) < len(read):
            position: UUID = messages[-1].id
        elif len(wanted) > RESENT_MAX:
            position = wanted[RESENT_MAX - 1]
        else:
            position = examined[-1].id if examined else resend.position
            is_last = len(examined) < EXAMINED_MAX
        chosen: dict[MessageId, Sequence[OldRecipient]] = {}
        excluded: dict[MessageId, int] = {}
        for old in messages:
            here = [row for row in recipients.get(old.id, ()) if _is_at(row, resend.destination)]
            fates = [(row, _fate(row)) for row in here]
            if again := [row for row, fate in fates if fate is Fate.RESENT]:
                chosen[old.id] = again
            excluded[old.id] = sum(fate is Fate.NEVER for _, fate in fates)
        return _Part(messages, chosen, excluded, position, is_last)

    async def _resend(self, resend: ResendRow, part: _Part) -> None:
        self._disk_space.require()
        account_id = resend.account_id
        stored = [old.id for old in part.messages if old.id in part.chosen and old.mime_bytes is not None]
        async with self._database.connection() as connection:
            bodies = await resends.bodies(connection, account_id, stored)
        entries: dict[MessageId, PreparedMessage] = {}
        refusals: dict[MessageId, Refusal] = {}
        for old in part.messages:
            if old.id in bodies:
                try:
                    entries[old.id] = await self._prepared(resend, old, part.chosen[old.id], bodies[old.id])
                except Refusal as refusal:
                    refusals[old.id] = refusal

        async def note(tx: Connection, answers: Sequence[AcceptedMessage | BaseException]) -> None:
            answered = dict(zip(entries, answers, strict=True)) | refusals
            accepted = [
                (old_id, answer.message_id)
                for old_id, answer in answered.items()
                if isinstance(answer, AcceptedMessage)
            ]
            await resends.mark(tx, account_id, accepted)
            await resends.advance(tx, resend, self._answered(resend, part, answered), self._clock.now())

        await self._transaction.accept_resent(list(entries.values()), note)

    async def _prepared(
        self, resend: ResendRow, old: OldMessage, recipients: Sequence[OldRecipient], mime: bytes
    ) -> PreparedMessage:
        """The old message as a new one for these recipients, with the same bytes."""
        sender = _mailbox(old.sender)
        addressed = [_addressed(recipient) for recipient in recipients]
        await self._preparation.require(resend.account_id, [sender], addressed, one_click=old.one_click)
        now = self._clock.now()
        return PreparedMessage(
            account_id=resend.account_id,
            credential_id=old.credential_id,
            key=None,
            body_hash=b"",
            message_id=ids.new_message_id(now, self._randomness.id_bytes()),
            request_id=RequestId(new_id(self._randomness, now)),
            source=Source.API,
            sender=old.sender,
            envelope_sender=old.envelope_sender,
            subject=old.subject,
            tags=tuple(old.tags or ()),
            template=old.template,
            recipients=addressed,
            credits=len(addressed),
            mime=mime,
            sender_domain=sender.domain,
            routed_to=self._captured_by,
            mailing_list=old.mailing_list,
            one_click=old.one_click,
            metadata=old.metadata,
        )

    def _counted(self, part: _Part) -> ResendStep:
        """The step of a dry run, or of a resend without anything to send."""
        with_body = [old for old in part.messages if old.id in part.chosen and old.mime_bytes is not None]
        counts = ResendCounts(
            matched=len(with_body),
            recipients=sum(len(part.chosen[old.id]) for old in with_body),
            without_body=sum(old.id in part.chosen and old.mime_bytes is None for old in part.messages),
            excluded=sum(part.excluded.values()),
        )
        status = ResendStatus.DONE if part.is_last else ResendStatus.RUNNING
        return ResendStep(part.position, counts, self._clock.now(), status)

    def _answered(
        self, resend: ResendRow, part: _Part, answered: dict[MessageId, AcceptedMessage | BaseException]
    ) -> ResendStep:
        """The step after some were accepted and some refused; it ends before those that may be sent only later."""
        matched = recipients = resent = without_body = excluded = refused = 0
        waits: Refusal | None = None
        position = resend.position
        for old in part.messages:
            answer = answered.get(old.id)
            if waits is None and isinstance(answer, Refusal) and answer.code in rules.WAITED_FOR:
                waits = answer
            if isinstance(answer, AcceptedMessage):
                matched, resent, recipients = matched + 1, resent + 1, recipients + len(part.chosen[old.id])
            if waits is not None:
                # It is read again. Messages that were accepted all the same are marked by then.
                continue
            position = old.id
            excluded += part.excluded[old.id]
            if isinstance(answer, BaseException):
                matched, refused, recipients = matched + 1, refused + 1, recipients + len(part.chosen[old.id])
            elif answer is None and old.id in part.chosen:
                without_body += 1
        counts = ResendCounts(matched, recipients, resent, without_body, excluded, refused)
        now = self._clock.now()
        if waits is not None:
            return ResendStep(position, counts, now + _wait(waits), waiting_for=waits.code.value)
        return ResendStep(part.position, counts, now, ResendStatus.DONE if part.is_last else ResendStatus.RUNNING)


def _within(messages: Sequence[OldMessage], most: int, size: Callable[[OldMessage], int]) -> Sequence[OldMessage]:
    """The first of them, until they are together larger than a step may be; at least one."""
    total = 0
    for number, old in enumerate(messages):
        total += size(old)
        if number and total > most:
            return messages[:number]
    return messages


def _has(stored: str | None, resend: ResendRow) -> bool:
    return not resend.metadata or resend.metadata.items() <= read_metadata(stored).items()


def _is_at(recipient: OldRecipient, destination: str | None) -> bool:
    return destination is None or recipient.email.rpartition("@")[2].lower() == destination


def _fate(recipient: OldRecipient) -> Fate:
    return rules.fate(
        recipient.status,
        recipient.last_smtp_code,
        recipient.last_smtp_response,
        is_suppressed=recipient.is_suppressed,
    )


def _mailbox(text: str) -> Mailbox:
    try:
        return parse_mailbox(text)
    except AddressError as error:
        raise invalid(f"An address of the old message {error}.") from error


def _addressed(recipient: OldRecipient) -> DraftRecipient:
    return DraftRecipient(recipient.field, recipient.email, _mailbox(recipient.email).domain)


def _wait(refusal: Refusal) -> timedelta:
    if refusal.code is Code.RATE_LIMITED and refusal.retry_after_seconds is not None:
        return timedelta(seconds=refusal.retry_after_seconds)
    return WAIT
