"""Feedback: what comes back is read, believed only with our token, written down, and its address suppressed.

A recipient's result is what the first server said, and stays so: a report that comes later changes no status and
tells no event. Mail to the operator is kept.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.new_id import new_id
from posthouse.mail import parts, report
from posthouse.mail.envelope import MailReference, parse_feedback_token, parse_return_path
from posthouse.mail.report import Bounce, Complaint, NoReport
from posthouse.rules import reports as rules
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN
from posthouse.store import inbox, reports
from posthouse.store.postgres import Connection, Database
from posthouse.store.reports import NewSuppression

log = structlog.get_logger(__name__)

SUBJECT_CHARACTERS_MAX: Final = 200
# One report is about one mail, or a few; a mail has no more recipients here than this.
ORIGINS_MAX: Final = 20


class Received(NamedTuple):
    """What became of a report: how many lines were new, how many addresses get no more mail, and why nothing else."""

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
        storage: DiskSpace | None = None,
    ) -> None:
        """`keys` are those that tokens may be signed with."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._domain = return_path_domain
        self._keys = tuple(keys)
        self._storage = storage or DiskSpace()

    def origin(self, address: str) -> MailReference | None:
        """What the address stands for if it is a return path that we wrote."""
        return parse_return_path(address, self._domain, self._keys)

    async def receive(self, mail: bytes, origins: Sequence[MailReference]) -> Received:
        """What the mail reports about these, whose return paths it was sent to.

        Without any it was sent to the address for complaints, and the tokens inside it say what it is about: they
        stand in the mail that every recipient got, while bounces come back to the return path.
        """
        self._storage.require()
        if len(mail) >= THREAD_BODY_BYTES_MIN:
            read = await asyncio.to_thread(report.read, mail)
        else:
            read = report.read(mail)
        if isinstance(read, NoReport):
            return Received(0, 0, read.reason)
        if isinstance(read, Bounce) and not origins:
            return Received(0, 0, "a bounce that didn't come to a return path")
        named = _once(origins or self._signed(read.tokens))
        if not named:
            return Received(0, 0, "it holds no token of ours")
        async with self._database.transaction() as tx:
            received = await self._write(tx, read, named)
            crash.point("feedback.before_commit")
        crash.point("feedback.after_commit")
        return received

    async def keep(self, mail: bytes, *, recipient: str, sender: str, peer: str) -> bool:
        """Keep a mail for the operator; whether there was room."""
        self._storage.require()
        now = self._clock.now()
        mail_id = new_id(self._chance, now)
        head = parts.parse_mail(mail[: parts.HEAD_BYTES_MAX]).outer
        subject = parts.decode_words(head.get("subject"))[:SUBJECT_CHARACTERS_MAX]
        async with self._database.transaction() as tx:
            is_kept = await inbox.keep(tx, mail_id, recipient, sender, peer, subject, mail, now)
        if not is_kept:
            # Nobody else can make room.
            log.warning("inbox_has_no_room", peer=peer, recipient=recipient)
        return is_kept

    def _signed(self, tokens: Sequence[str]) -> list[MailReference]:
        found = [self.origin(token) if "@" in token else parse_feedback_token(token, self._keys) for token in tokens]
        return [origin for origin in found if origin is not None]

    async def _write(self, tx: Connection, read: Bounce | Complaint, origins: Sequence[MailReference]) -> Received:
        now = self._clock.now()
        noted = 0
        suppressions = []
        for origin in origins:
            message_id = MessageId(origin.message_id)
            addressed = await reports.lock(tx, message_id, origin.account_tail)
            if addressed is None:
                continue
            account_id, recipients, complainer = addressed
            notes = rules.report_notes(read, origin.position, recipients, complainer)
            noted += await reports.note(tx, account_id, message_id, notes, now)
            suppressions += [
                NewSuppression(account_id, recipients[note.position], note.kind, note.code, note.response)
                for note in notes
                if note.suppress and note.position is not None
            ]
        return Received(noted, await reports.suppress(tx, suppressions, now))


def _once(origins: Sequence[MailReference]) -> list[MailReference]:
    """Each once, without those that say less than another about the same message; in one order for everybody."""
    precise = {origin.message_id for origin in origins if origin.position is not None}
    known = {origin for origin in origins if origin.position is not None or origin.message_id not in precise}
    return sorted(known, key=lambda one: (one.message_id, one.account_tail, one.position or 0))[:ORIGINS_MAX]
