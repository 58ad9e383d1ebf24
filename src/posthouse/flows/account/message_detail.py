"""A message's status and timeline, and its content while that is stored."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.flows.shared.shares import TURN_SECONDS_MAX, FairShare, WaitedShare, busy
from posthouse.mail import render
from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.render import Attachment as Attachment
from posthouse.mail.render import AttachmentInfo as AttachmentInfo
from posthouse.mail.render import HeaderField as HeaderField
from posthouse.mail.render import RenderedMail as RenderedMail
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN
from posthouse.rules.message import Source, forgotten_content
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import message_detail, messages
from posthouse.store.message_detail import DeliveryAttempt as DeliveryAttempt
from posthouse.store.message_detail import MessageReport as MessageReport
from posthouse.store.message_detail import RecipientTimeline as RecipientTimeline
from posthouse.store.message_detail import Timeline as Timeline
from posthouse.store.message_detail import WebhookDeliverySummary as WebhookDeliverySummary
from posthouse.store.messages import StoredMessage as StoredMessage
from posthouse.store.messages import StoredRecipient as StoredRecipient
from posthouse.store.partitions import snapshot

# The notable header fields are taken from this much of a header.
HEAD_BYTES_MAX: Final = 64 * 1024
# A large message is in memory several times over while it is read and parsed. Accounts take turns.
CONCURRENT_LARGE_MAX: Final = 2
LARGE_IN_PROGRESS_MAX: Final = 40
_BUSY: Final = busy("Many large messages are being read")


@dataclass(frozen=True, slots=True)
class Detail:
    """`headers` are the notable ones; None if the content is no longer stored."""

    timeline: Timeline
    headers: tuple[HeaderField, ...] | None


class MessageDetail(Flow):
    def __init__(self, context: Context, *, bodies_days: int) -> None:
        """`bodies_days` is how long content is stored after the day on which its message was accepted."""
        super().__init__(context)
        self._bodies_days = bodies_days
        self._large_in_progress: FairShare[AccountId] = FairShare(LARGE_IN_PROGRESS_MAX)
        self._large_turns: WaitedShare[AccountId] = WaitedShare(
            CONCURRENT_LARGE_MAX, holder_max=CONCURRENT_LARGE_MAX, wait_seconds_max=TURN_SECONDS_MAX, refusal=_BUSY
        )

    async def message(
        self, account_id: AccountId, given_id: str, mode: Mode = Mode.LIVE, domains: Sequence[str] = ()
    ) -> StoredMessage:
        """The account's message; another account's is not found, exactly like an unknown id.

        The same holds for live mail with a test key, which may be stored where customers' data must not be seen; and
        for mail from another domain with a key that is bound to `domains`.
        """
        message_id = message_id_of(given_id)
        async with self._database.connection() as connection:
            found = await messages.message(connection, account_id, message_id)
        if found is None or (mode is Mode.TEST and found.source != Source.TEST):
            raise no_message()
        if domains and _domain_of(found.sender) not in domains:
            raise no_message()
        return found

    async def detail(self, account_id: AccountId, given_id: str) -> Detail:
        """Its whole timeline, from one snapshot."""
        message_id = message_id_of(given_id)
        async with snapshot(self._database) as connection:
            found = await message_detail.timeline(connection, account_id, message_id, self._clock.now())
            if found is None:
                raise no_message()
            head = None
            if not found.forgets_content:
                head = await messages.body_beginning(connection, account_id, message_id, HEAD_BYTES_MAX)
        return Detail(found, None if head is None else render.notable_fields(head))

    async def content(self, account_id: AccountId, given_id: str) -> RenderedMail:
        """Its content, part by part."""
        message_id = message_id_of(given_id)
        size = await self._size(account_id, message_id)
        if size < THREAD_BODY_BYTES_MIN:
            return render.render_mail(await self._body(account_id, message_id))
        async with self._large_turn(account_id):
            body = await self._body(account_id, message_id)
            return await run_in_mail_process(account_id, partial(render.render_mail, body))

    async def attachment(self, account_id: AccountId, given_id: str, part: int) -> Attachment:
        """The attachment that the content lists with this `part`."""
        message_id = message_id_of(given_id)
        size = await self._size(account_id, message_id)
        if size < THREAD_BODY_BYTES_MIN:
            found = render.attachment(await self._body(account_id, message_id), part)
        else:
            async with self._large_turn(account_id):
                body = await self._body(account_id, message_id)
                found = await run_in_mail_process(account_id, partial(render.attachment, body, part))
        if found is None:
            raise Refusal(Code.NOT_FOUND, "This message has no such attachment: its content lists its attachments.")
        return found

    async def raw(self, account_id: AccountId, given_id: str) -> bytes:
        """Its bytes as they were stored."""
        message_id = message_id_of(given_id)
        if await self._size(account_id, message_id) < THREAD_BODY_BYTES_MIN:
            return await self._body(account_id, message_id)
        async with self._large_turn(account_id):
            return await self._body(account_id, message_id)

    @asynccontextmanager
    async def _large_turn(self, account_id: AccountId) -> AsyncIterator[None]:
        with self._large_in_progress.taking(account_id, _BUSY):
            async with self._large_turns.turn(account_id):
                yield

    async def _size(self, account_id: AccountId, message_id: MessageId) -> int:
        async with self._database.connection() as connection:
            found = await messages.body_length(connection, account_id, message_id)
        if found is None:
            raise no_message()
        if found.is_forgotten:
            raise forgotten_content()
        if found.bytes is None:
            raise self._dropped(found.created_at)
        return found.bytes

    async def _body(self, account_id: AccountId, message_id: MessageId) -> bytes:
        async with self._database.connection() as connection:
            mime = await messages.whole_body(connection, account_id, message_id)
        if mime is None:
            raise self._dropped(ids.time_of(message_id))
        return mime

    def _dropped(self, created_at: datetime) -> Refusal:
        last = created_at.date() + timedelta(days=self._bodies_days)
        days = "1 day" if self._bodies_days == 1 else f"{self._bodies_days} days"
        return Refusal(
            Code.NOT_FOUND,
            f"The content of this message is no longer stored: it was kept until {last:%Y-%m-%d}, {days} after the day "
            "on which the message was accepted. Its timeline is still at GET /v1/messages/{id}.",
        )


def _domain_of(sender: str) -> str | None:
    """As an A-label; None for a text that can't be read."""
    try:
        return parse_mailbox(sender).domain
    except AddressError:
        return None


def message_id_of(given: str) -> MessageId:
    message_id = ids.parse(ids.MESSAGE, given)
    if message_id is None:
        raise no_message()
    return MessageId(message_id)


def no_message() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no message with that id.")
