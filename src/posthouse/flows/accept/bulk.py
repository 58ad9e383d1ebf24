"""Bulk requests: many emails, each accepted or refused by itself, or all or none.

A bulk request has one Idempotency-Key; each of its messages is remembered by that key and its index. So the same
request again has the same ids, and only what was refused is tried again.

Its emails are prepared and written in pieces, for which accounts take turns. So its other requests, and those of other
accounts, wait for a piece and not for the whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.clock import Clock
from posthouse.flows.accept.accept_transaction import AcceptTransaction, Bulk, NotAllAcceptedError
from posthouse.flows.accept.preparation import UnverifiedSender
from posthouse.flows.accept.refused import RefusedRequests
from posthouse.flows.accept.replay import AcceptedMessage, check_same, in_progress, replayed
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.turns import Turns
from posthouse.rules import fingerprint, limits, send_quota
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, messages
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage
from posthouse.store.postgres import Database

# Of a piece, unless all emails are one.
PIECE_EMAILS_MAX: Final = 50
PIECE_BYTES_MAX: Final = 8 * limits.MIB
# While one piece is prepared, another is written. Requests in progress are bounded where they are read.
PIECES_AT_ONCE_MAX: Final = 2
PIECES_WAITING_MAX: Final = 100
FAULT: Final = "The service failed on this email; it has been logged. Repeat the request to try it again."
# An email takes a millisecond to prepare: after this many, other requests have their turn.
EMAILS_A_TURN: Final = 2

log = structlog.get_logger(__name__)

Prepare = Callable[[Principal, IdempotencyKey, Draft, bytes], Awaitable[PreparedMessage]]


class BulkRequest(NamedTuple):
    """`drafts` has a Refusal for each email that is no valid send request."""

    emails: int
    drafts: Iterable[Draft | Refusal]
    body_hash: bytes
    is_all: bool


class AcceptedEmail(NamedTuple):
    draft: Draft
    answer: AcceptedMessage


# Of one email.
BulkResult = AcceptedEmail | Refusal


class BulkIntake:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        defaults: Defaults,
        disk_space: DiskSpace,
        refused: RefusedRequests,
        transaction: AcceptTransaction,
        being_accepted: set[IdempotencyKey],
    ) -> None:
        """`being_accepted` are the keys of all requests of this process."""
        self._turns: Turns[AccountId] = Turns(
            at_once_max=PIECES_AT_ONCE_MAX, in_progress_max=PIECES_WAITING_MAX, work="Many emails are being accepted"
        )
        self._database = database
        self._clock = clock
        self._defaults = defaults
        self._disk_space = disk_space
        self._refused = refused
        self._transaction = transaction
        self._being_accepted = being_accepted

    async def accept(
        self, principal: Principal, key_text: str, request: BulkRequest, prepare: Prepare
    ) -> list[BulkResult]:
        """A result for each email, in their order; a Refusal if the request as a whole is refused."""
        key = principal.key(key_text)
        body_hash = request.body_hash
        if principal.mode is Mode.TEST:
            body_hash = fingerprint.of_rehearsal(body_hash)
        if key in self._being_accepted:
            raise in_progress()
        self._being_accepted.add(key)
        try:
            known = await self._recall(principal, key, request.emails, body_hash)
            if len(known) < request.emails:
                self._disk_space.require()
            bulk = Bulk(key, body_hash, request.is_all)
            one = _BulkAcceptance(principal, bulk, known, prepare, self._refused, self._transaction, self._turns)
            return await one.results(request.drafts)
        finally:
            self._being_accepted.discard(key)

    async def _recall(
        self, principal: Principal, key: IdempotencyKey, count: int, body_hash: bytes
    ) -> dict[int, AcceptedMessage]:
        """The answers that were given before, by index. The rate is read first: preparing a bulk request takes long."""
        indexes = {_item_key(key, index): index for index in range(count)}
        async with self._database.transaction() as tx:
            remembered = await acceptance.recall(tx, [key, *indexes])
            now = self._clock.now()
            valid = {found: known for found, known in remembered.items() if known.expires_at > now}
            if key not in valid:
                account = working_copy(await acceptance.read(tx, principal.account_id), self._defaults)
                if account.suspended:
                    raise suspended()
                send_quota.check_rate(account, now)
                credits_ = 0 if principal.mode is Mode.TEST else 1
                send_quota.check_recipients(account, send_quota.Charge(1, credits_), now)
                return {}
            check_same(body_hash, valid.pop(key))
            ids = {known.message_id: indexes[found] for found, known in valid.items()}
            receipts = await messages.receipts(tx, principal.account_id, list(ids))
            # As in `durable_replay`.
            await acceptance.write_ahead(tx)
        return {ids[message_id]: replayed(receipt) for message_id, receipt in receipts.items()}


class _BulkAcceptance:
    """The acceptance of one bulk request, in pieces."""

    def __init__(
        self,
        principal: Principal,
        bulk: Bulk,
        known: Mapping[int, AcceptedMessage],
        prepare: Prepare,
        refused: RefusedRequests,
        transaction: AcceptTransaction,
        turns: Turns[AccountId],
    ) -> None:
        self._principal = principal
        self._bulk = bulk
        self._known = known
        self._prepare = prepare
        self._refused = refused
        self._transaction = transaction
        self._turns = turns
        self._unverified: dict[str, Refusal] = {}
        self._results: dict[int, BulkResult] = {}
        self._piece: dict[int, tuple[Draft, PreparedMessage]] = {}
        self._piece_recipients = 0
        self._piece_bytes = 0
        self._bytes = 0

    async def results(self, drafts: Iterable[Draft | Refusal]) -> list[BulkResult]:
        emails = enumerate(drafts)
        has_more = True
        while has_more:
            async with self._turns.turn(self._principal.account_id):
                has_more = await self._prepare_piece(emails)
                await self._write_piece()
        return [self._results[index] for index in sorted(self._results)]

    async def _prepare_piece(self, emails: Iterator[tuple[int, Draft | Refusal]]) -> bool:
        """Whether there may be more emails after it."""
        for index, draft in emails:
            if index % EMAILS_A_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(draft, Refusal):
                self._refuse(index, draft)
            elif index in self._known:
                self._results[index] = AcceptedEmail(draft, self._known[index])
            else:
                await self._add(index, draft)
            if self._is_piece_full:
                return True
        return False

    @property
    def _is_piece_full(self) -> bool:
        return not self._bulk.is_all and (
            len(self._piece) >= PIECE_EMAILS_MAX
            # Another email may have as many recipients as an email can have.
            or self._piece_recipients > limits.BATCH_RECIPIENTS_MAX - limits.RECIPIENTS_MAX
            or self._piece_bytes >= PIECE_BYTES_MAX
        )

    async def _add(self, index: int, draft: Draft) -> None:
        try:
            entry = await self._prepared(index, draft)
            self._check_size(entry)
        except Refusal as refusal:
            self._refuse(index, refusal)
            return
        crash.point("accept.prepared")
        self._piece[index] = draft, entry
        self._piece_recipients += len(entry.recipients)
        self._piece_bytes += len(entry.mime)

    async def _prepared(self, index: int, draft: Draft) -> PreparedMessage:
        # No further email is assembled once they are too large together.
        if self._bytes > self._bytes_max:
            raise self._too_large()
        key = _item_key(self._bulk.key, index)
        domain = draft.sender.domain
        if domain in self._unverified:
            raise self._unverified[domain].copy()
        try:
            return await self._prepare(self._principal, key, draft, self._bulk.body_hash)
        except UnverifiedSender as unverified:
            try:
                await self._refused.replay_or_raise(self._principal, None, b"", unverified)
            except Refusal as refusal:
                self._unverified[domain] = refusal
                raise
            return await self._prepare(self._principal, key, draft, self._bulk.body_hash)

    @property
    def _bytes_max(self) -> int:
        return limits.BULK_ALL_BYTES_MAX if self._bulk.is_all else limits.BULK_BYTES_MAX

    def _check_size(self, entry: PreparedMessage) -> None:
        self._bytes += len(entry.mime)
        if self._bytes > self._bytes_max:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        size = f"{self._bytes_max // limits.MIB} MiB"
        if self._bulk.is_all:
            text = f"With `all`, the messages of a request are at most {size} together: send fewer, or leave `all` out."
        else:
            text = f"The messages of a request are at most {size} together: repeat the request to send the others."
        return Refusal(Code.PAYLOAD_TOO_LARGE, text)

    async def _write_piece(self) -> None:
        piece, self._piece = self._piece, {}
        self._piece_recipients = self._piece_bytes = 0
        if not piece:
            return
        try:
            answers = await self._transaction.accept_piece([entry for _, entry in piece.values()], self._bulk)
        except NotAllAcceptedError as error:
            answers = error.answers
        accepted = 0
        for (index, (draft, _)), answer in zip(piece.items(), answers, strict=True):
            if isinstance(answer, Refusal):
                self._refuse(index, answer)
            elif isinstance(answer, BaseException):
                log.error("email_not_accepted", index=index, exc_info=answer)
                self._refuse(index, Refusal(Code.INTERNAL_ERROR, FAULT))
            else:
                self._results[index] = AcceptedEmail(draft, answer)
                accepted += not answer.is_replay
        self._bulk = self._bulk._replace(accepted_count=self._bulk.accepted_count + accepted)
        crash.point("accept.part_written")

    def _refuse(self, index: int, refusal: Refusal) -> None:
        if self._bulk.is_all:
            named = refusal.copy()
            named.text = f"`emails[{index}]`: {refusal.text} Nothing was accepted, because the request wants `all`."
            raise named
        self._results[index] = refusal


def _item_key(key: IdempotencyKey, index: int) -> IdempotencyKey:
    """A key that no client can give: white space around theirs is removed."""
    return key._replace(text=f" {index} {key.text}")
