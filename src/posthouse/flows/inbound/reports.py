"""Reports: bounces and complaints that arrive by mail. Only those with our token are noted and suppress an address.

A complaint must also come from a feedback loop. A bounce of mail that was sent to several recipients at once must come
from the server that took it. Any other report is noted and suppresses nothing.

A recipient's result is the reply of the first server: a later report changes no status, and creates an event only for
the account's endpoints. Mail to the operator is stored.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.mail import dkim_check, parts, report
from posthouse.mail.dkim_check import Signature, SignedMail
from posthouse.mail.envelope import MailReference, parse_feedback_token, parse_return_path
from posthouse.mail.report import Bounce, Complaint, NoReport
from posthouse.rules import reports as rules
from posthouse.rules.credential import peer_address, peer_network
from posthouse.rules.delivery_reason import without_addresses
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.rules.erasure import ERASED
from posthouse.rules.feedback_loops import FeedbackLoops
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import endpoint_events, postmaster_mail, reports
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.postgres import Connection
from posthouse.store.reports import NewSuppression
from posthouse.store.suppressions import lift
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

SUBJECT_CHARACTERS_MAX: Final = 200
# A report is about one message, or a few.
ORIGINS_MAX: Final = 20
CHECK_SECONDS_MAX: Final = 15.0
# Each check takes a thread, and mail with a valid token but a forged signature costs its sender little.
CHECKS_MAX: Final = 2


class Received(NamedTuple):
    """The effect of a report: new lines in timelines, newly suppressed addresses, and why there is no effect."""

    noted: int
    suppressed: int
    reason: str = ""


class ComplaintCheck:
    """Whether a complaint comes from a feedback loop, by its DKIM signature or its peer's address."""

    def __init__(self, *, resolver: Resolver, loops: FeedbackLoops) -> None:
        self._resolver = resolver
        self._loops = loops
        self._slots = asyncio.Semaphore(CHECKS_MAX)

    def trusts_peer(self, peer: str) -> bool:
        return self._loops.trusts_peer(peer)

    async def is_signed(self, mail: bytes, is_ours: Callable[[str], bool]) -> bool:
        """Whether a provider on the list wrote it to one of our addresses, and signed it.

        A report to another sender, which that sender forwards to us, has a valid signature as well, so the To field
        counts and not the envelope.
        """
        signed = dkim_check.read(mail)
        if signed is None or not any(map(is_ours, signed.addressees)):
            return False
        chosen = [found for found in signed.signatures if self._loops.trusts(signed.author, found.domain)]
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                for signature in chosen:
                    if await self._is_valid(signed, signature):
                        return True
        except TimeoutError:
            raise _try_again("checking its signature took too long") from None
        return False

    async def _is_valid(self, mail: SignedMail, signature: Signature) -> bool:
        match await self._resolver.cached_texts(signature.record_name):
            case TxtValues((record,)):
                async with self._slots:
                    return await asyncio.to_thread(dkim_check.is_valid, mail, signature, record)
            case TxtValues() | NoTxtRecord():
                return False
            case TxtUnknown(reason):
                raise _try_again(reason)


class Reports(Flow):
    def __init__(
        self,
        context: Context,
        *,
        return_path_domain: str,
        complaint_check: ComplaintCheck,
        feedback_address: str = "",
        disk_space: DiskSpace | None = None,
    ) -> None:
        """`keys` are those that tokens may be signed with; providers complain to `feedback_address`."""
        super().__init__(context)
        self._domain = return_path_domain
        self._complaint_check = complaint_check
        self._feedback_address = feedback_address.lower()
        self._disk_space = disk_space or DiskSpace()

    def origin(self, address: str) -> MailReference | None:
        """The message that the address refers to, if it is one of our return paths."""
        return parse_return_path(address, self._domain, self._keys.return_path)

    async def receive(self, mail: bytes, origins: Sequence[MailReference], peer: str) -> Received:
        """Note what the report says about `origins`, to whose return paths `peer` sent it.

        Without any, it was sent to the address for complaints, and is about the messages whose tokens it contains:
        every message that we send has one. Bounces come to the return path.
        """
        self._disk_space.require()
        if len(mail) >= THREAD_BODY_BYTES_MIN:
            read = await run_in_mail_process(peer_network(peer), partial(report.read, mail))
        else:
            read = report.read(mail)
        match read:
            case NoReport(reason):
                return Received(0, 0, reason)
            case Bounce():
                named, is_verified = _once(origins), True
                if not named:
                    return Received(0, 0, "a bounce that didn't come to a return path")
            case Complaint():
                named, is_verified = await self._complained_about(mail, read, origins, peer)
                if not named:
                    return Received(0, 0, "it contains none of our tokens")
        async with self._database.transaction() as tx:
            received = await self._write(tx, read, named, peer, is_verified=is_verified)
            crash.point("feedback.before_commit")
        crash.point("feedback.after_commit")
        return received if is_verified else received._replace(reason="a complaint that isn't from a feedback loop")

    async def keep(self, mail: bytes, *, recipient: str, sender: str, peer: str) -> bool:
        """Store a message for the operator; returns whether there was space."""
        self._disk_space.require()
        now = self._clock.now()
        mail_id = new_id(self._randomness, now)
        head = parts.parse_mail(mail[: parts.HEAD_BYTES_MAX]).outer
        subject = parts.decode_words(head.get("subject"))[:SUBJECT_CHARACTERS_MAX]
        async with self._database.transaction() as tx:
            is_kept = await postmaster_mail.keep(tx, mail_id, recipient, sender, peer, subject, mail, now)
        if not is_kept:
            # Only the operator can free space.
            log.warning("postmaster_mail_has_no_capacity", peer=peer, recipient=recipient)
        return is_kept

    def _signed(self, tokens: Sequence[str]) -> list[MailReference]:
        found = [
            self.origin(token) if "@" in token else parse_feedback_token(token, self._keys.return_path)
            for token in tokens
        ]
        return [origin for origin in found if origin is not None]

    async def _complained_about(
        self, mail: bytes, complaint: Complaint, origins: Sequence[MailReference], peer: str
    ) -> tuple[list[MailReference], bool]:
        """The messages that a complaint is about, and whether it comes from a feedback loop.

        The envelope is not signed, so for a signed complaint only the tokens inside count. A report is about one
        message, so tokens of several messages must have been planted there.
        """
        within = _once(self._signed(complaint.tokens))
        named = _once(origins) or within
        if self._complaint_check.trusts_peer(peer):
            return named, True
        is_single = len({origin.message_id for origin in within}) == 1
        if is_single and await self._complaint_check.is_signed(mail, self._is_ours):
            return within, True
        return named, False

    def _is_ours(self, address: str) -> bool:
        """Whether providers send complaints to this address."""
        is_feedback_address = bool(address) and address == self._feedback_address
        return is_feedback_address or self.origin(address) is not None

    async def _write(
        self,
        tx: Connection,
        read: Bounce | Complaint,
        origins: Sequence[MailReference],
        peer: str,
        *,
        is_verified: bool,
    ) -> Received:
        now = self._clock.now()
        noted = 0
        suppressions = []
        events: list[MailEvent] = []
        for origin in origins:
            message_id = MessageId(origin.message_id)
            addressed = await reports.lock(tx, message_id, origin.account_tail)
            if addressed is None:
                continue
            account_id, recipients, complainer = addressed
            notes = rules.report_notes(
                read,
                origin.position,
                recipients,
                complainer=complainer,
                unverified_peer=None if is_verified else peer,
                taken_by_peer=await reports.taken_by(tx, account_id, message_id, peer_address(peer))
                if isinstance(read, Bounce) and origin.position is None
                else (),
            )
            if ERASED in recipients.values():
                # The address must not come back.
                notes = [_without_addresses(note) for note in notes]
            # A repeated report must not suppress an address that the account has removed in the meantime.
            new_notes = await reports.add_reports(tx, account_id, message_id, notes, now)
            noted += len(new_notes)
            for note in new_notes:
                if not note.suppress or note.position is None:
                    continue
                if recipients[note.position] == ERASED:
                    # Its hash is already suppressed; the account is checked as for any other address.
                    await lift(tx, account_id, note.kind, now)
                    continue
                suppressions.append(
                    NewSuppression(account_id, recipients[note.position], note.kind, note.code, note.response)
                )
            events += endpoint_events.of_reports(account_id, message_id, new_notes, now)
        if events:
            await endpoint_events.enter_mail(tx, events, now, now)
        return Received(noted, await reports.suppress(tx, suppressions, now))


def _without_addresses(note: rules.ReportNote) -> rules.ReportNote:
    return replace(note, detail=without_addresses(note.detail), response=without_addresses(note.response))


def _once(origins: Sequence[MailReference]) -> list[MailReference]:
    """Each message once, with its most precise token, always in the same order, to avoid deadlocks."""
    precise = {origin.message_id for origin in origins if origin.position is not None}
    known = {origin for origin in origins if origin.position is not None or origin.message_id not in precise}
    in_order = sorted(known, key=lambda origin: (origin.message_id, origin.account_tail, origin.position or 0))
    return in_order[:ORIGINS_MAX]


def _try_again(reason: str) -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, f"The report can't be verified now ({reason}); send it again later.")
