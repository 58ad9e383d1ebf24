"""Reports: bounces and complaints that arrive by mail. Only with our token are they noted and the address suppressed.

A complaint must also come from a feedback loop, and a bounce of mail that several recipients shared from the server
that took it; any other is noted, and suppresses nothing.

A recipient's result is the reply of the first server: a later report changes no status and makes no event but for the
account's endpoints. Mail to the operator is kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.inbound.complaint_check import ComplaintCheck
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.large_mail import in_turn
from posthouse.flows.shared.new_id import new_id
from posthouse.mail import parts, report
from posthouse.mail.envelope import MailReference, parse_feedback_token, parse_return_path
from posthouse.mail.report import Bounce, Complaint, NoReport
from posthouse.rules import reports as rules
from posthouse.rules.credential import peer_address, peer_network
from posthouse.rules.erasure import ERASED
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN
from posthouse.rules.reply_text import without_addresses
from posthouse.store import endpoint_events, inbox, reports
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.postgres import Connection, Database
from posthouse.store.reports import NewSuppression
from posthouse.store.suppressions import lift

log = structlog.get_logger(__name__)

SUBJECT_CHARACTERS_MAX: Final = 200
# A report is about a mail, or a few.
ORIGINS_MAX: Final = 20


class Received(NamedTuple):
    """The effect of a report: new lines in timelines, newly suppressed addresses, and why there is no effect."""

    noted: int
    suppressed: int
    reason: str = ""


class Reports:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        return_path_domain: str,
        keys: Sequence[bytes],
        complaint_check: ComplaintCheck,
        feedback_address: str = "",
        disk_space: DiskSpace | None = None,
    ) -> None:
        """`keys` are those that tokens may be signed with; providers complain to `feedback_address`."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._domain = return_path_domain
        self._keys = tuple(keys)
        self._complaint_check = complaint_check
        self._feedback_address = feedback_address.lower()
        self._disk_space = disk_space or DiskSpace()

    def origin(self, address: str) -> MailReference | None:
        """The mail that the address refers to, if it is a return path of ours."""
        return parse_return_path(address, self._domain, self._keys)

    async def receive(self, mail: bytes, origins: Sequence[MailReference], peer: str) -> Received:
        """Note what the mail reports about `origins`, whose return paths it was sent to by `peer`.

        Without any it was sent to the address for complaints, and is about the mail whose tokens it contains: these
        are in every mail that we send. Bounces come to the return path.
        """
        self._disk_space.require()
        if len(mail) >= THREAD_BODY_BYTES_MIN:
            read = await in_turn(peer_network(peer), partial(report.read, mail))
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
                    return Received(0, 0, "it holds no token of ours")
        async with self._database.transaction() as tx:
            received = await self._write(tx, read, named, peer, is_verified=is_verified)
            crash.point("feedback.before_commit")
        crash.point("feedback.after_commit")
        return received if is_verified else received._replace(reason="a complaint from no feedback loop")

    async def keep(self, mail: bytes, *, recipient: str, sender: str, peer: str) -> bool:
        """Keep a mail for the operator; whether there was room."""
        self._disk_space.require()
        now = self._clock.now()
        mail_id = new_id(self._chance, now)
        head = parts.parse_mail(mail[: parts.HEAD_BYTES_MAX]).outer
        subject = parts.decode_words(head.get("subject"))[:SUBJECT_CHARACTERS_MAX]
        async with self._database.transaction() as tx:
            is_kept = await inbox.keep(tx, mail_id, recipient, sender, peer, subject, mail, now)
        if not is_kept:
            # Only the operator can make room.
            log.warning("inbox_has_no_room", peer=peer, recipient=recipient)
        return is_kept

    def _signed(self, tokens: Sequence[str]) -> list[MailReference]:
        found = [self.origin(token) if "@" in token else parse_feedback_token(token, self._keys) for token in tokens]
        return [origin for origin in found if origin is not None]

    async def _complained_about(
        self, mail: bytes, complaint: Complaint, origins: Sequence[MailReference], peer: str
    ) -> tuple[list[MailReference], bool]:
        """The mails that a complaint is about, and whether it comes from a feedback loop.

        The envelope is not signed: of a signed complaint only the tokens within count. A report is about one mail, so
        tokens of several mails were planted there.
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
            # A report that is repeated must not suppress an address that the account has removed meanwhile.
            new_notes = await reports.note(tx, account_id, message_id, notes, now)
            noted += len(new_notes)
            for note in new_notes:
                if not note.suppress or note.position is None:
                    continue
                if recipients[note.position] == ERASED:
                    # Its hash is suppressed already; the account is checked as for any other.
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
    """Each once, the most precise for each message, in an order that is always the same, to avoid deadlocks."""
    precise = {origin.message_id for origin in origins if origin.position is not None}
    known = {origin for origin in origins if origin.position is not None or origin.message_id not in precise}
    in_order = sorted(known, key=lambda origin: (origin.message_id, origin.account_tail, origin.position or 0))
    return in_order[:ORIGINS_MAX]
