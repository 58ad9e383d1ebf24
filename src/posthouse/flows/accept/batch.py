"""Batch requests: many emails, each accepted or refused on its own, or all or none of them.

A batch request has one Idempotency-Key; each of its messages is remembered by that key and its index. So the same
request returns the same ids again, and only refused emails are tried again.

Its emails are prepared and written in pieces, for which accounts take turns. So the account's other requests, and those
of other accounts, wait for a piece and not for the whole batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.flows.accept.accept_transaction import AcceptTransaction, Batch, NotAllAcceptedError
from posthouse.flows.accept.preparation import UnverifiedSender
from posthouse.flows.accept.replay import AcceptedMessage, RefusedRequests, check_same, in_progress, replayed
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.shares import TURN_SECONDS_MAX, WaitedShare, busy
from posthouse.rules import limits, message, send_quota
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, messages
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage

# The limits of a piece, unless all emails are one piece.
PIECE_EMAILS_MAX: Final = 50
PIECE_BYTES_MAX: Final = 8 * limits.MIB
# While one piece is prepared, another is written. Requests, and so pieces that wait, are bounded where they are read.
CONCURRENT_PIECES_MAX: Final = 2
FAULT: Final = "The service failed on this email, and the failure was logged. Repeat the request to try it again."
# An email takes a millisecond to prepare: after this many, other requests get their turn.
EMAILS_A_TURN: Final = 2

log = structlog.get_logger(__name__)

Prepare = Callable[[Principal, IdempotencyKey, Draft, bytes], Awaitable[PreparedMessage]]


class DraftBatch(NamedTuple):
    """`drafts` contains a Refusal for each email that is not a valid send request."""

    emails: int
    drafts: Iterable[Draft | Refusal]
    body_hash: bytes
    is_all: bool


class AcceptedEmail(NamedTuple):
    draft: Draft
    answer: AcceptedMessage


# The work of one email.
BatchResult = AcceptedEmail | Refusal


class BatchIntake(Flow):
    def __init__(
        self,
        context: Context,
        *,
        defaults: Defaults,
        disk_space: DiskSpace,
        refused: RefusedRequests,
        transaction: AcceptTransaction,
        being_accepted: set[IdempotencyKey],
    ) -> None:
        """`being_accepted` contains the keys of all requests that this process is accepting."""
        super().__init__(context)
        self._piece_turns: WaitedShare[AccountId] = WaitedShare(
            CONCURRENT_PIECES_MAX,
            holder_max=CONCURRENT_PIECES_MAX,
            wait_seconds_max=TURN_SECONDS_MAX,
            refusal=busy("Many emails are being accepted"),
        )
        self._defaults = defaults
        self._disk_space = disk_space
        self._refused = refused
        self._transaction = transaction
        self._being_accepted = being_accepted

    async def accept(
        self, principal: Principal, key_text: str, request: DraftBatch, prepare: Prepare
    ) -> list[BatchResult]:
        """A result for each email, in the same order; a Refusal if the request as a whole is refused."""
        key = principal.key(key_text)
        body_hash = request.body_hash
        if principal.mode is Mode.TEST:
            body_hash = message.fingerprint_of_test_mode(body_hash)
        if key in self._being_accepted:
            raise in_progress()
        self._being_accepted.add(key)
        try:
            known = await self._recall(principal, key, request.emails, body_hash)
            if len(known) < request.emails:
                self._disk_space.require()
            batch = Batch(key, body_hash, request.is_all)
            one = _BatchAcceptance(
                principal, batch, known, prepare, self._refused, self._transaction, self._piece_turns
            )
            return await one.results(request.drafts)
        finally:
            self._being_accepted.discard(key)

    async def _recall(
        self, principal: Principal, key: IdempotencyKey, count: int, body_hash: bytes
    ) -> dict[int, AcceptedMessage]:
        """The results that were returned before, by index.

        The rate is read first: preparing a batch request takes long.
        """
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


class _BatchAcceptance:
    """The acceptance of one batch request, in pieces."""

    def __init__(
        self,
        principal: Principal,
        batch: Batch,
        known: Mapping[int, AcceptedMessage],
        prepare: Prepare,
        refused: RefusedRequests,
        transaction: AcceptTransaction,
        piece_turns: WaitedShare[AccountId],
    ) -> None:
        self._principal = principal
        self._batch = batch
        self._known = known
        self._prepare = prepare
        self._refused = refused
        self._transaction = transaction
        self._piece_turns = piece_turns
        self._unverified: dict[str, Refusal] = {}
        self._results: dict[int, BatchResult] = {}
        self._piece: dict[int, tuple[Draft, PreparedMessage]] = {}
        self._piece_recipients = 0
        self._piece_bytes = 0
        self._bytes = 0

    async def results(self, drafts: Iterable[Draft | Refusal]) -> list[BatchResult]:
        emails = enumerate(drafts)
        has_more = True
        while has_more:
            async with self._piece_turns.turn(self._principal.account_id):
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
        return not self._batch.is_all and (
            len(self._piece) >= PIECE_EMAILS_MAX
            # Another email may have as many recipients as an email can have.
            or self._piece_recipients > limits.GROUP_COMMIT_RECIPIENTS_MAX - limits.RECIPIENTS_MAX
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
        key = _item_key(self._batch.key, index)
        domain = draft.sender.domain
        if domain in self._unverified:
            raise self._unverified[domain].copy()
        try:
            return await self._prepare(self._principal, key, draft, self._batch.body_hash)
        except UnverifiedSender as unverified:
            try:
                await self._refused.replay_or_raise(self._principal, None, b"", unverified)
            except Refusal as refusal:
                self._unverified[domain] = refusal
                raise
            return await self._prepare(self._principal, key, draft, self._batch.body_hash)

    @property
    def _bytes_max(self) -> int:
        return limits.BATCH_ALL_BYTES_MAX if self._batch.is_all else limits.BATCH_BYTES_MAX

    def _check_size(self, entry: PreparedMessage) -> None:
        self._bytes += len(entry.mime)
        if self._bytes > self._bytes_max:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        size = f"{self._bytes_max // limits.MIB} MiB"
        if self._batch.is_all:
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
            answers = await self._transaction.accept_piece([entry for _, entry in piece.values()], self._batch)
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
        self._batch = self._batch._replace(accepted_count=self._batch.accepted_count + accepted)
        crash.point("accept.part_written")

    def _refuse(self, index: int, refusal: Refusal) -> None:
        if self._batch.is_all:
            named = refusal.copy()
            named.text = f"`emails[{index}]`: {refusal.text} Nothing was accepted, because the request wants `all`."
            raise named
        self._results[index] = refusal


def _item_key(key: IdempotencyKey, index: int) -> IdempotencyKey:
    """A key that no client can give, because white space around theirs is removed."""
    return key._replace(text=f" {index} {key.text}")
