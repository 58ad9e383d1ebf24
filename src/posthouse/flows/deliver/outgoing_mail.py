"""Outgoing mail: builds what is sent from a claimed message, with trace fields, signatures and return path."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from posthouse.clock import Clock
from posthouse.flows.deliver.dkim_signing import DkimSigning
from posthouse.mail import header_reader, trace
from posthouse.mail.address import parse_mailbox
from posthouse.mail.envelope import MailReference, feedback_token, return_path
from posthouse.rules import ids, unsubscribe
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import PER_CONNECTION_MAX
from posthouse.rules.message import Source
from posthouse.rules.route import Relay, Route
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import messages
from posthouse.store.control_cache import SealedKey
from posthouse.store.delivery_claims import ClaimedMessage, ClaimedRecipient
from posthouse.store.postgres import Database
from posthouse.wire.carrier import CarrierRequest, LaneConnections
from posthouse.wire.dialogue import SmtpContent

SENDERS_PARSED_MAX: Final = 10_000
# Recipients of one message at several destinations are sent to at about the same time, and get the same bytes.
CACHED_MAX: Final = 500

Selectors = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """How this installation names itself in mail.

    Without a public URL, mail gets no unsubscribe links; without a feedback address, no field that says where
    complaints go.
    """

    hostname: str
    return_path_domain: str
    return_path_key: bytes = field(repr=False)
    public_url: str = ""
    unsubscribe_key: bytes = field(default=b"", repr=False)
    feedback_address: str = ""


class OutgoingMail:
    """Without `signing`, mail is sent unsigned."""

    def __init__(self, *, database: Database, clock: Clock, signing: DkimSigning | None, identity: Identity) -> None:
        self._database = database
        self._clock = clock
        self._signing = signing
        self._identity = identity
        # The keys are part of it: a retry after they were replaced must not be sent with the old signatures.
        self._cache: OrderedDict[tuple[MessageId, Selectors], asyncio.Future[SmtpContent]] = OrderedDict()

    async def request(
        self,
        claimed: Sequence[ClaimedRecipient],
        routes: tuple[Route, ...] = (),
        *,
        connections: LaneConnections | None = None,
        per_connection_max: int = PER_CONNECTION_MAX,
        relay: Relay | None = None,
    ) -> CarrierRequest:
        """What the carrier sends: one message for recipients of one destination."""
        first = claimed[0]
        if self.is_personal(first.message):
            content = await self._personal(first)
        else:
            content = await self._content(first.account_id, first.message)
        sender = self._sender(first.account_id, first.message, first.position if len(claimed) == 1 else None)
        return CarrierRequest(
            sender,
            tuple([recipient.email for recipient in claimed]),
            content,
            is_first_attempt=first.attempt_count == 1,
            routes=routes,
            connections=connections,
            per_connection_max=per_connection_max,
            relay=relay,
        )

    def is_personal(self, message: ClaimedMessage) -> bool:
        """Whether each recipient gets its own content (an unsubscribe link), and so its own transaction."""
        return message.one_click and bool(self._identity.public_url)

    def _sender(self, account_id: AccountId, message: ClaimedMessage, position: int | None) -> str:
        # A bounce or an automatic reply must not cause bounces.
        if not message.envelope_sender:
            return ""
        identity = self._identity
        origin = MailReference.of(account_id, message.id, position)
        return return_path(origin, identity.return_path_domain, identity.return_path_key)

    async def _personal(self, claimed: ClaimedRecipient) -> SmtpContent:
        message, identity = claimed.message, self._identity
        if message.mailing_list is None:
            raise RuntimeError("an unsubscribe link was requested for mail without a list")
        member = ListMember(claimed.account_id, message.mailing_list, claimed.email)
        link = f"{identity.public_url}{unsubscribe.PATH}{unsubscribe.token(member, identity.unsubscribe_key)}"
        keys = await self._keys(claimed.account_id, message)
        return await self._written(claimed.account_id, message, keys, trace.unsubscribe(link))

    async def _keys(self, account_id: AccountId, message: ClaimedMessage) -> tuple[SealedKey, ...]:
        if self._signing is None:
            return ()
        return await self._signing.keys(account_id, domain_of(message.sender))

    async def _content(self, account_id: AccountId, message: ClaimedMessage) -> SmtpContent:
        keys = await self._keys(account_id, message)
        if message.mime is None:
            # A body that was too large to be read with its claim is also too large to cache.
            return await self._written(account_id, message, keys)
        cache_key = message.id, tuple([key.selector for key in keys])
        kept = self._cache.get(cache_key)
        if kept is not None:
            return await asyncio.shield(kept)
        writing = self._cache[cache_key] = asyncio.get_running_loop().create_future()
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        try:
            content = await self._written(account_id, message, keys)
        except BaseException as fault:
            self._cache.pop(cache_key, None)
            writing.set_exception(
                fault if isinstance(fault, Exception) else RuntimeError("stopped while it was being prepared")
            )
            writing.exception()  # retrieved, so that asyncio logs nothing when no other task waited for it
            raise
        writing.set_result(content)
        return content

    async def _written(
        self,
        account_id: AccountId,
        message: ClaimedMessage,
        keys: tuple[SealedKey, ...],
        unsubscribe_field: bytes = b"",
    ) -> SmtpContent:
        """`unsubscribe_field` is the header field with the recipient's unsubscribe link."""
        mime = message.mime or await self._body(account_id, message.id)
        domain = domain_of(message.sender)
        head = trace.received(
            hostname=self._identity.hostname,
            protocol="ESMTP" if message.source == Source.SMTP else "HTTP",
            id_text=ids.text(ids.MESSAGE, message.id),
            at=message.created_at,
        )
        if not trace.has_field(mime, trace.FEEDBACK_ID):
            head += trace.feedback_id(domain=domain, account=ids.text(ids.ACCOUNT, account_id), source=message.source)
        if unsubscribe_field:
            head += unsubscribe_field + trace.unsubscribe_post()
            if trace.has_field(mime, trace.UNSUBSCRIBE_POST):
                mime = _without(mime, trace.UNSUBSCRIBE_POST)
        address = self._identity.feedback_address
        if address and not trace.has_field(mime, trace.COMPLAINTS):
            origin = MailReference.of(account_id, message.id, None)
            head += trace.complaints(address=address, token=feedback_token(origin, self._identity.return_path_key))
        content = head + mime
        if self._signing is not None:
            content = await self._signing.sign(domain, keys, content, self._clock.now())
        return SmtpContent(content)

    async def _body(self, account_id: AccountId, message_id: MessageId) -> bytes:
        async with self._database.connection() as connection:
            body = await messages.whole_body(connection, account_id, message_id)
        if body is None:
            raise RuntimeError("the body was dropped while its message was open")
        return body


def _without(mime: bytes, field: bytes) -> bytes:
    """Remove the customer's own field, which could contradict the one that belongs to our link."""
    end = mime.find(b"\r\n\r\n") + 2
    kept = [line for line in header_reader.scan_fields(mime[:end]) if line[0].lower() != field.lower()]
    return b"".join([*map(b"".join, kept), mime[end:]])


@lru_cache(SENDERS_PARSED_MAX)
def domain_of(sender: str) -> str:
    return parse_mailbox(sender).domain
