"""Preparation: everything in accepting a message that comes before the transaction, for intake and dry runs.

Checks what a message needs from its account, renders its template and writes its MIME; raises a Refusal if it can't.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from posthouse.flows.shared.large_mail import rendered, run_in_mail_process
from posthouse.mail import mime
from posthouse.mail.address import Mailbox
from posthouse.mail.header_writer import HeaderError
from posthouse.mail.mime import MailContent
from posthouse.rules import ids, limits, unsubscribe
from posthouse.rules.draft import Draft, DraftRecipient, too_large
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.template import RenderedTemplate
from posthouse.store.control_cache import ControlCache


@dataclass(slots=True, eq=True)
class UnverifiedSender(Refusal):
    """Judged from the cache: the domain may have been verified in the last seconds."""

    domain: str = ""


@dataclass(frozen=True, slots=True)
class Preparation:
    control_cache: ControlCache
    hostname: str
    simulator_domain: str
    offers_one_click: bool

    async def require(
        self,
        account_id: AccountId,
        senders: Sequence[Mailbox],
        recipients: Sequence[DraftRecipient],
        *,
        one_click: bool,
    ) -> None:
        """Raises if the account or this installation lacks something that the message needs."""
        verified = await self.control_cache.verified_domains(account_id)
        for sender in senders:
            if sender.domain not in verified:
                raise UnverifiedSender(
                    Code.FORBIDDEN,
                    f"The domain {sender.domain!r} is not a verified domain of this account: "
                    "register it and publish its DNS records, or send from one that is.",
                    domain=sender.domain,
                )
            if verified[sender.domain]:
                await self._require_own_recipients(account_id, sender.domain, recipients)
        if one_click and not self.offers_one_click:
            raise unsubscribe.not_offered()

    async def _require_own_recipients(
        self, account_id: AccountId, domain: str, recipients: Sequence[DraftRecipient]
    ) -> None:
        """A shared domain is for first steps: its reputation must not depend on mail to other people."""
        own = await self.control_cache.member_addresses(account_id)
        for recipient in recipients:
            if recipient.destination != self.simulator_domain and recipient.email.lower() not in own:
                raise Refusal(
                    Code.FORBIDDEN,
                    f"{domain!r} is shared by all accounts: mail from it may go only to members of this account and to "
                    f"{self.simulator_domain}, and {recipient.email[:100]!r} is neither. Register your own domain "
                    "with POST /v1/domains to send to others.",
                )

    async def content(self, account_id: AccountId, draft: Draft) -> MailContent:
        """What the mail says: the draft's own text, or its template's."""
        return draft.mail_content(await self._render(account_id, draft))

    async def write(self, account_id: AccountId, content: MailContent, message_id: MessageId, now: datetime) -> bytes:
        large = len(content.text or "") + len(content.html or "")
        for attachment in content.attachments:
            large += len(attachment.content)
        if large > limits.MIME_BYTES_MAX:
            raise too_large()

        write = partial(
            mime.write, content, date=now, message_id=self.message_id_text(message_id), boundary=message_id.hex
        )
        try:
            written = await run_in_mail_process(account_id, write) if large > limits.THREAD_BODY_BYTES_MIN else write()
        except HeaderError as error:
            raise invalid(f"The message {error}.") from error
        if len(written) > limits.MIME_BYTES_MAX:
            raise too_large()
        return written

    def message_id_text(self, message_id: MessageId) -> str:
        return f"{ids.text('', message_id)}@{self.hostname}"

    async def _render(self, account_id: AccountId, draft: Draft) -> RenderedTemplate | None:
        if draft.template is None:
            return None
        found = await self.control_cache.published_template(account_id, draft.template)
        if found is None:
            if (alias := await self.control_cache.renamed_template(account_id, draft.template)) is not None:
                raise invalid(f"`template`: {draft.template!r} was renamed: send with its new alias {alias!r}.")
            raise invalid(
                f"`template`: this account has no published template {draft.template!r}: "
                "create and publish it, or correct the alias."
            )
        if draft.subject is not None:
            # The template's subject isn't used, so its variables aren't needed.
            found = replace(found, subject=None)
        return await rendered(account_id, found, draft.variables)


def require_bound(domains: Sequence[str], sender: Mailbox) -> None:
    """Refuse a sender outside the domains to which the API key is bound."""
    if domains and sender.domain not in domains:
        raise Refusal(
            Code.FORBIDDEN,
            f"This API key may send only from {', '.join(domains)}, not from {sender.domain!r}: use another key.",
        )
