"""The return path's service: takes what comes back to us and what is for the operator, and nothing else.

An address is taken when it is exactly one of ours: a return path that we signed, the address for complaints,
postmaster@ and abuse@. Whatever is written some other way is refused, so that nothing is ever passed on. Mail is
ours, and answered with 250, once it is stored.
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

# A report holds the mail that it is about, or its beginning.
MESSAGE_BYTES_MAX: Final = 2 * MIB
RECIPIENTS_MAX: Final = 20
ROLES: Final = ("postmaster", "abuse")

TAKEN: Final = ServerReply(250, "2.0.0", "Thank you; it has arrived.")
UNKNOWN: Final = ServerReply(550, "5.1.1", "There is no such address here.")
NO_RELAY: Final = ServerReply(550, "5.7.1", "Relaying denied: mail for that domain is not taken here.")
FULL: Final = ServerReply(452, "4.3.1", "The mailbox has no room left; try again later.")


class _Place(Enum):
    COMPLAINTS = auto()
    OPERATOR = auto()


class Inbound:
    def __init__(
        self, *, feedback: Reports, hostname: str, return_path_domain: str, feedback_address: str = ""
    ) -> None:
        self._feedback = feedback
        self._terms = Policy(
            hostname=hostname,
            needs_authentication=False,
            message_bytes_max=MESSAGE_BYTES_MAX,
            recipients_max=RECIPIENTS_MAX,
        )
        own = {hostname.lower(), return_path_domain.lower()}
        self._places = {f"{role}@{domain}": _Place.OPERATOR for role in ROLES for domain in own}
        # RFC 5321, 4.5.1: the one mailbox that needs no domain.
        self._places["postmaster"] = _Place.OPERATOR
        if feedback_address:
            self._places[feedback_address.lower()] = _Place.COMPLAINTS
            own.add(feedback_address.lower().rpartition("@")[2])
        self._own_domains = frozenset(own)

    @property
    def terms(self) -> Policy:
        return self._terms

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:  # noqa: ARG002
        raise Refusal(Code.UNAUTHORIZED, "Nobody logs in here: submit mail to the submission port.")

    def recipient(self, address: str, count: int) -> ServerReply | None:  # noqa: ARG002
        if self._place(address) is not None:
            return None
        local, _, domain = address.rpartition("@")
        # Routes that people used to write into the local part lead elsewhere as well.
        leads_on = not local or any(sign in local for sign in "@%!:")
        return UNKNOWN if domain.lower() in self._own_domains and not leads_on else NO_RELAY

    async def take(self, caller: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:  # noqa: ARG002
        try:
            return await self._take(envelope, content)
        except Refusal as refusal:
            log.warning("inbound_refused", peer=envelope.peer, code=refusal.code, cause=repr(refusal.__cause__))
            return ServerReply(*smtp_reply(refusal))
        except Exception:
            log.exception("inbound_failed", peer=envelope.peer)
            return FAULT

    async def _take(self, envelope: Envelope, content: bytes) -> ServerReply:
        places = {address: self._place(address) for address in envelope.recipients}
        origins = [place for place in places.values() if isinstance(place, MailReference)]
        # Reports first: when the rest has to come again, the same report twice is one.
        if origins or _Place.COMPLAINTS in places.values():
            received = await self._feedback.receive(content, origins)
            log.info("report_received", peer=envelope.peer, size=len(content), **received._asdict())
        for_operator = [address for address, place in places.items() if place is _Place.OPERATOR]
        return await self._keep(envelope, for_operator, content) if for_operator else TAKEN

    async def _keep(self, envelope: Envelope, recipients: Iterable[str], content: bytes) -> ServerReply:
        is_kept = await self._feedback.keep(
            content, recipient=", ".join(recipients), sender=envelope.sender, peer=envelope.peer
        )
        log.info("operator_mail_received", peer=envelope.peer, size=len(content), kept=is_kept)
        return TAKEN if is_kept else FULL

    def _place(self, address: str) -> MailReference | _Place | None:
        return self._places.get(address.lower()) or self._feedback.origin(address)
