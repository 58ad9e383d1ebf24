"""The page of captured mail: who may see it, and which mail it shows.

An operator creates a link that works once and soon expires; it opens a session for one account. The page shows test
mail, and if no mail leaves, all mail of the account.
"""

import asyncio
from datetime import timedelta
from typing import Final, NamedTuple

from posthouse.flows.account.message_detail import Attachment, MessageDetail
from posthouse.flows.account.message_search import MessageListRow as MessageListRow
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.page import Page
from posthouse.mail import render
from posthouse.mail.render import RenderedMail, framed
from posthouse.rules import credential
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId
from posthouse.rules.message import Source
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.search import SearchFilters
from posthouse.store import messages
from posthouse.store.messages import StoredMessage

LINK_LIFETIME: Final = timedelta(minutes=10)
SESSION_LIFETIME: Final = timedelta(hours=8)
LISTED_MAX: Final = 50


class CapturedMessage(NamedTuple):
    message: StoredMessage
    content: RenderedMail


class CapturedMail(Flow):
    def __init__(
        self, context: Context, *, message_detail: MessageDetail, message_search: MessageSearch, captures: bool
    ) -> None:
        """`captures`: no mail leaves this service, so that all of it may be shown."""
        super().__init__(context)
        self._message_detail = message_detail
        self._message_search = message_search
        self._captures = captures

    async def new_link(self, account_id: AccountId, message_id: str | None = None) -> str:
        """The path of a link to the list, or to a message."""
        if message_id is not None:
            await self._require_shown(account_id, message_id)
        token = await self._add(account_id, LINK_LIFETIME, is_link=True)
        return f"/captured/open/{token}" + (f"?message={message_id}" if message_id else "")

    async def open_session(self, token: str) -> str | None:
        """The secret of a new session; None if the link was used, has expired or never existed."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            account_id = await messages.use_capture_link(tx, self._keys.peppers.hashes(token), now)
        return None if account_id is None else await self._add(account_id, SESSION_LIFETIME, is_link=False)

    async def account_of(self, secret: str) -> AccountId | None:
        async with self._database.connection() as connection:
            return await messages.capture_session_account(
                connection, self._keys.peppers.hashes(secret), self._clock.now()
            )

    async def page(self, account_id: AccountId, cursor: str | None) -> Page[MessageListRow]:
        filters = SearchFilters() if self._captures else SearchFilters(source=Source.TEST)
        return await self._message_search.page(account_id, filters, LISTED_MAX, cursor)

    async def message(self, account_id: AccountId, message_id: str) -> CapturedMessage:
        message = await self._message_detail.message(account_id, message_id, self._mode)
        return CapturedMessage(message, await self._message_detail.content(account_id, message_id))

    async def frame(self, account_id: AccountId, message_id: str) -> str:
        """The HTML for a sandboxed frame, with its own pictures in it."""
        shown = await self.message(account_id, message_id)
        raw = await self._message_detail.raw(account_id, message_id)
        return await asyncio.to_thread(lambda: framed(shown.content.html or "", render.inline_pictures(raw)))

    async def attachment(self, account_id: AccountId, message_id: str, part: int) -> Attachment:
        await self._message_detail.message(account_id, message_id, self._mode)
        return await self._message_detail.attachment(account_id, message_id, part)

    @property
    def _mode(self) -> Mode:
        """The kind of key to read as: a test key finds only test mail."""
        return Mode.LIVE if self._captures else Mode.TEST

    async def _require_shown(self, account_id: AccountId, message_id: str) -> None:
        message = await self._message_detail.message(account_id, message_id)
        if not self._captures and message.source != Source.TEST:
            raise Refusal(
                Code.FORBIDDEN,
                "This mail is live: it left, and its content is shown only to logins. Only mail of test keys can be "
                'opened, and all mail where delivery.outbound is "capture".',
            )

    async def _add(self, account_id: AccountId, lifetime: timedelta, *, is_link: bool) -> str:
        now = self._clock.now()
        secret = credential.new_mail_token(self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
        async with self._database.transaction() as tx:
            await messages.add_capture_secret(
                tx, self._keys.peppers.hash(secret), account_id, is_link=is_link, expires_at=now + lifetime, now=now
            )
        return secret
