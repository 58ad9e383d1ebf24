"""The inbound service: accepts bounces, complaints and mail for the operator, and nothing else.

Only our own addresses are accepted: return paths that we signed, the address for complaints, postmaster@ and abuse@.
All other addresses are refused, so that nothing is ever relayed. The reply is 250 once the mail is stored.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

import structlog

from posthouse.entrypoints.refusals import smtp_reply
from posthouse.entrypoints.smtp.replies import FAULT, ServerReply
from posthouse.entrypoints.smtp.service import Envelope, Policy
from posthouse.flows.inbound.reports import Reports
from posthouse.flows.shared.principal import Principal
from posthouse.mail.envelope import MailReference
from posthouse.rules.limits import MIB
from posthouse.rules.refusal import Code, Refusal

log = structlog.get_logger(__name__)

# A report includes the message that it is about, or the beginning of it.
MESSAGE_BYTES_MAX: Final = 2 * MIB
RECIPIENTS_MAX: Final = 20
ROLES: Final = ("postmaster", "abuse")

ACCEPTED: Final = ServerReply(250, "2.0.0", "Thank you; the message was stored.")
UNKNOWN: Final = ServerReply(550, "5.1.1", "There is no such address here.")
NO_RELAY: Final = ServerReply(550, "5.7.1", "Relaying denied: mail for that domain is not accepted here.")
FULL: Final = ServerReply(452, "4.3.1", "The mailbox is full; try again later.")


class _Mailbox(Enum):
    COMPLAINTS = auto()
    OPERATOR = auto()


class Inbound:
    def __init__(self, *, reports: Reports, hostname: str, return_path_domain: str, feedback_address: str = "") -> None:
        self._reports = reports
        self._policy = Policy(
            hostname=hostname,
            needs_authentication=False,
            message_bytes_max=MESSAGE_BYTES_MAX,
            recipients_max=RECIPIENTS_MAX,
        )
        own = {hostname.lower(), return_path_domain.lower()}
        self._mailboxes = {f"{role}@{domain}": _Mailbox.OPERATOR for role in ROLES for domain in own}
        # RFC 5321, 4.5.1: the only mailbox without a domain.
        self._mailboxes["postmaster"] = _Mailbox.OPERATOR
        if feedback_address:
            self._mailboxes[feedback_address.lower()] = _Mailbox.COMPLAINTS
            own.add(feedback_address.lower().rpartition("@")[2])
        self._own_domains = frozenset(own)

    @property
    def policy(self) -> Policy:
        return self._policy

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:  # noqa: ARG002
        raise Refusal(Code.UNAUTHORIZED, "There is no login on this port: submit mail to the submission port.")

    def check_recipient(self, address: str, count: int) -> ServerReply | None:  # noqa: ARG002
        if self._mailbox(address) is not None:
            return None
        local, _, domain = address.rpartition("@")
        # Old routing characters in the local part ask for relaying too.
        is_routed = not local or any(sign in local for sign in "@%!:")
        return UNKNOWN if domain.lower() in self._own_domains and not is_routed else NO_RELAY

    async def accept(self, principal: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:  # noqa: ARG002
        try:
            return await self._accept(envelope, content)
        except Refusal as refusal:
            log.warning("inbound_refused", peer=envelope.peer, code=refusal.code, cause=repr(refusal.__cause__))
            return ServerReply(*smtp_reply(refusal))
        except Exception:
            log.exception("inbound_failed", peer=envelope.peer)
            return FAULT

    async def _accept(self, envelope: Envelope, content: bytes) -> ServerReply:
        mailboxes = {address: self._mailbox(address) for address in envelope.recipients}
        origins = [mailbox for mailbox in mailboxes.values() if isinstance(mailbox, MailReference)]
        # Reports first: if the client must send the message again, the repeated report is recognised.
        if origins or _Mailbox.COMPLAINTS in mailboxes.values():
            received = await self._reports.receive(content, origins, envelope.peer)
            log.info("report_received", peer=envelope.peer, size=len(content), **received._asdict())
        for_operator = [address for address, mailbox in mailboxes.items() if mailbox is _Mailbox.OPERATOR]
        return await self._keep(envelope, for_operator, content) if for_operator else ACCEPTED

    async def _keep(self, envelope: Envelope, recipients: Iterable[str], content: bytes) -> ServerReply:
        is_kept = await self._reports.keep(
            content, recipient=", ".join(recipients), sender=envelope.sender, peer=envelope.peer
        )
        log.info("operator_mail_received", peer=envelope.peer, size=len(content), kept=is_kept)
        return ACCEPTED if is_kept else FULL

    def _mailbox(self, address: str) -> MailReference | _Mailbox | None:
        return self._mailboxes.get(address.lower()) or self._reports.origin(address)
