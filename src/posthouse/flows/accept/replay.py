"""The answer to an accepted request, and the same answer again when its Idempotency-Key comes again."""

from collections.abc import Mapping
from typing import NamedTuple

from posthouse.rules import fingerprint
from posthouse.rules.ids import MessageId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, messages
from posthouse.store.acceptance import IdempotencyKey, RememberedKey
from posthouse.store.messages import Receipt
from posthouse.store.postgres import Connection, Database


class AcceptedMessage(NamedTuple):
    message_id: MessageId
    subject: str
    recipient_count: int
    credits_reserved: int
    is_replay: bool
    rate_headers: Mapping[str, str]


async def replay(
    connection: Connection, key: IdempotencyKey, body_hash: bytes, known: RememberedKey
) -> AcceptedMessage:
    """The first answer, if the body is the same."""
    check_same(body_hash, known)
    receipt = await messages.receipt(connection, key.account_id, known.message_id)
    if receipt is None:
        raise RuntimeError(f"key of message {known.message_id} is remembered, the message is not")
    return replayed(receipt)


def check_same(body_hash: bytes, known: RememberedKey) -> None:
    if not fingerprint.is_same(body_hash, known.body_hash):
        raise Refusal(
            Code.IDEMPOTENCY_CONFLICT,
            "This Idempotency-Key was used for another body in the last 24 hours: use a new key for a new message.",
        )


def replayed(receipt: Receipt) -> AcceptedMessage:
    return AcceptedMessage(
        message_id=receipt.message_id,
        subject=receipt.subject,
        recipient_count=receipt.recipient_count,
        credits_reserved=receipt.credits_reserved,
        is_replay=True,
        rate_headers={},
    )


async def durable_replay(
    database: Database, key: IdempotencyKey, body_hash: bytes, known: RememberedKey
) -> AcceptedMessage:
    """The first answer, outside of the shared transaction.

    A message whose commit was given up while it waited for a standby can be read, and may still be lost. So this
    commits something too: a later commit reaches a standby only after the message did.
    """
    async with database.transaction() as tx:
        answer = await replay(tx, key, body_hash, known)
        await acceptance.write_ahead(tx)
    return answer


def in_progress() -> Refusal:
    return Refusal(
        Code.IDEMPOTENCY_IN_PROGRESS,
        "A request with this Idempotency-Key is being accepted right now: repeat it in a second.",
        retry_after_seconds=1,
    )
