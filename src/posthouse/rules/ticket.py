"""Tickets: what the stream carries, and which part of it carries what.

A ticket says where to look and which fence to expect, and is worth nothing without the schedule: one
that is lost is written again, one too many finds its fence taken. The destination is with it, so that
a worker finds the lane before it claims anything. One byte tells the form and its version; whoever
meets a form it doesn't know drops the ticket, and the schedule brings it back.
"""

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, assert_never
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId

DESTINATION_CHARACTERS_MAX: Final = 253
FENCE_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DeliveryTicket:
    """One recipient is due; `destination` is the domain of its address."""

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    destination: str


@dataclass(frozen=True, slots=True)
class NotificationTicket:
    """One webhook delivery is due."""

    account_id: AccountId
    webhook_delivery_id: UUID
    fence: int


Ticket = DeliveryTicket | NotificationTicket

_DELIVERY_1: Final = 0x01
_NOTIFICATION_1: Final = 0x81
_delivery: Final = Struct(">B16s16sBI")
_notification: Final = Struct(">B16s16sI")


def encode(ticket: Ticket) -> bytes:
    match ticket:
        case DeliveryTicket():
            head = _delivery.pack(
                _DELIVERY_1, ticket.account_id.bytes, ticket.message_id.bytes, ticket.position, ticket.fence
            )
            return head + ticket.destination.encode("ascii")
        case NotificationTicket():
            return _notification.pack(
                _NOTIFICATION_1, ticket.account_id.bytes, ticket.webhook_delivery_id.bytes, ticket.fence
            )
        case _:
            assert_never(ticket)


def decode(data: bytes) -> Ticket | None:
    """The ticket, or None for what this version can't read."""
    form = data[0] if data else None
    if form == _DELIVERY_1 and _delivery.size < len(data) <= _delivery.size + DESTINATION_CHARACTERS_MAX:
        _, account_id, message_id, position, fence = _delivery.unpack_from(data)
        destination = data[_delivery.size :]
        if not destination.isascii() or fence > FENCE_MAX:
            return None
        return DeliveryTicket(
            AccountId(UUID(bytes=account_id)), MessageId(UUID(bytes=message_id)), position, fence, destination.decode()
        )
    if form == _NOTIFICATION_1 and len(data) == _notification.size:
        _, account_id, webhook_delivery_id, fence = _notification.unpack(data)
        if fence > FENCE_MAX:
            return None
        return NotificationTicket(AccountId(UUID(bytes=account_id)), UUID(bytes=webhook_delivery_id), fence)
    return None


def shard_of(destination: str, shards: int) -> int:
    """Which part of the stream carries this destination's mail: the same in every process, for ever."""
    return _shard(destination.lower().encode(), shards)


def account_shard_of(account_id: AccountId, shards: int) -> int:
    """Which part of the stream carries this account's webhook deliveries."""
    return _shard(account_id.bytes, shards)


def _shard(name: bytes, shards: int) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") % shards
