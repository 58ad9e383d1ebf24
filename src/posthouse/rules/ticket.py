"""Tickets: the content of the stream, and the shard of each ticket.

A ticket names a row of the schedule and the fence to expect there. A lost ticket is published again; a duplicate finds
that the fence has changed. It includes the destination, so that a worker finds the lane before it claims anything. The
first byte is the format and its version. A worker drops a format that it does not know, and the schedule publishes the
work again. Tickets for the same shard share a stream message, since a message costs the stream more than a ticket.
Tickets that a worker has forwarded to the shard of their lane are preceded by the lane's name. The tickets of each
sender are preceded by its domain, by our address if they have to leave from that of the previous attempt, by a mark if
they belong to a list, and by the time at which they bounce if a block of that address holds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from math import ceil
from struct import Struct
from typing import Final, assert_never
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId

DESTINATION_CHARACTERS_MAX: Final = 253
SOURCE_CHARACTERS_MAX: Final = 45
# The text for no source, and the mark that may follow it.
_NO_SOURCE: Final = "-"
_LIST: Final = "list"
# Seconds since 1970.
TIME_CHARACTERS_MAX: Final = 11
FENCE_MAX: Final = 2**31 - 1
# Of how many lanes the shard is remembered.
SHARDS_KNOWN_MAX: Final = 10_000
ORIGIN_BYTES_MAX: Final = (
    1 + DESTINATION_CHARACTERS_MAX + 1 + SOURCE_CHARACTERS_MAX + 1 + len(_LIST) + 1 + TIME_CHARACTERS_MAX
)


@dataclass(frozen=True, slots=True)
class DeliveryTicket:
    """One recipient is due; `destination` is the domain of its address.

    `lane` is known for a forwarded ticket; `sender` is the domain in From, `source_ip` our address that the message has
    to leave from again, if it can, `is_list` says that it belongs to a list. With `bounce_at` it is held by a block: it
    leaves only from that address, or over the relay whose lane is given there, and bounces at that time. It makes no
    difference which of two tickets for the same claim has these fields.
    """

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    destination: str
    sender: str | None = field(default=None, compare=False)
    source_ip: str | None = field(default=None, compare=False)
    is_list: bool = field(default=False, compare=False)
    bounce_at: datetime | None = field(default=None, compare=False)
    lane: str | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[AccountId, MessageId, int, int]:
        return self.account_id, self.message_id, self.position, self.fence


@dataclass(frozen=True, slots=True)
class WebhookTicket:
    """One webhook delivery is due."""

    account_id: AccountId
    webhook_delivery_id: UUID
    fence: int
    endpoint_id: UUID = field(compare=False)

    @property
    def key(self) -> tuple[AccountId, UUID, int]:
        return self.account_id, self.webhook_delivery_id, self.fence


Ticket = DeliveryTicket | WebhookTicket

_DELIVERY_1: Final = 0x01
_WEBHOOK_1: Final = 0x82
_SEVERAL_1: Final = 0x02
# The lane of the tickets that follow.
_LANE_1: Final = 0x03
# Their sender.
_SENDER_1: Final = 0x04
TOGETHER_MAX: Final = 16
_delivery: Final = Struct(">B16s16sBI")
_webhook: Final = Struct(">B16s16sI16s")


def encode(ticket: Ticket) -> bytes:
    match ticket:
        case DeliveryTicket():
            head = _delivery.pack(
                _DELIVERY_1, ticket.account_id.bytes, ticket.message_id.bytes, ticket.position, ticket.fence
            )
            return head + ticket.destination.encode("ascii")
        case WebhookTicket(account_id, delivery_id, fence, endpoint_id):
            return _webhook.pack(_WEBHOOK_1, account_id.bytes, delivery_id.bytes, fence, endpoint_id.bytes)
        case _:
            assert_never(ticket)


def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def decode(
    data: bytes,
    *,
    to_uuid: Callable[[bytes], UUID] = _uuid,
    sender: str | None = None,
    source: str | None = None,
    is_list: bool = False,
    bounce_at: datetime | None = None,
    lane: str | None = None,
) -> Ticket | None:
    """The ticket, or None for a format that this version can't read. The other parameters precede it."""
    format_byte = data[0] if data else None
    if format_byte == _DELIVERY_1 and _delivery.size < len(data) <= _delivery.size + DESTINATION_CHARACTERS_MAX:
        _, account_id, message_id, position, fence = _delivery.unpack_from(data)
        destination = data[_delivery.size :]
        if not destination.isascii() or fence > FENCE_MAX:
            return None
        return DeliveryTicket(
            AccountId(to_uuid(account_id)),
            MessageId(to_uuid(message_id)),
            position,
            fence,
            destination.decode(),
            sender,
            source,
            is_list,
            bounce_at,
            lane,
        )
    if format_byte == _WEBHOOK_1 and len(data) == _webhook.size:
        _, account_id, webhook_delivery_id, fence, endpoint_id = _webhook.unpack(data)
        if fence > FENCE_MAX:
            return None
        return WebhookTicket(AccountId(to_uuid(account_id)), to_uuid(webhook_delivery_id), fence, to_uuid(endpoint_id))
    return None


def pack(tickets: Sequence[Ticket], lane: str | None = None) -> bytes:
    """One stream message for 1 to TOGETHER_MAX tickets; with a lane, they are forwarded."""
    if not 1 <= len(tickets) <= TOGETHER_MAX:
        raise ValueError(f"a stream message has 1 to {TOGETHER_MAX} tickets, not {len(tickets)}")
    encoded: list[bytes] = []
    origin = b""
    for ticket in tickets:
        if isinstance(ticket, DeliveryTicket) and (own := _origin(ticket)) != origin:
            origin = own
            encoded.append(bytes([_SENDER_1]) + origin)
        encoded.append(encode(ticket))
    if lane is not None:
        encoded.insert(0, bytes([_LANE_1]) + lane.encode("ascii"))
    if len(encoded) == 1:
        return encoded[0]
    return bytes([_SEVERAL_1]) + b"".join([len(ticket).to_bytes(2, "big") + ticket for ticket in encoded])


def unpack(data: bytes, to_uuid: Callable[[bytes], UUID] = _uuid) -> list[Ticket]:
    """The tickets that this version can read, in their order."""
    if not data or data[0] != _SEVERAL_1:
        ticket = decode(data, to_uuid=to_uuid)
        return [] if ticket is None else [ticket]
    found: list[Ticket] = []
    lane: str | None = None
    sender: str | None = None
    source: str | None = None
    is_list = False
    bounce_at: datetime | None = None
    at, size = 1, len(data)
    while at < size and len(found) < TOGETHER_MAX:
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        entry = data[at + 2 : end] if end <= size else b""
        if entry[:1] == bytes([_LANE_1]):
            lane = _lane(entry) or lane
        elif entry[:1] == bytes([_SENDER_1]):
            sender, source, is_list, bounce_at = _parsed_origin(entry)
        elif ticket := decode(
            entry, to_uuid=to_uuid, sender=sender, source=source, is_list=is_list, bounce_at=bounce_at, lane=lane
        ):
            found.append(ticket)
        at = end
    return found


def _lane(entry: bytes) -> str | None:
    is_lane = 1 < len(entry) <= 1 + DESTINATION_CHARACTERS_MAX and entry.isascii()
    return entry[1:].decode() if is_lane else None


def _origin(ticket: DeliveryTicket) -> bytes:
    """The sender and, after spaces, our address, `list`, and the time."""
    if ticket.sender is None and ticket.bounce_at is None:
        return b""
    words = [ticket.sender or ""]
    if ticket.source_ip is not None or ticket.is_list or ticket.bounce_at is not None:
        words.append(ticket.source_ip or _NO_SOURCE)
    if ticket.is_list:
        words.append(_LIST)
    if ticket.bounce_at is not None:
        # Rounded up: not before the time itself.
        words.append(str(ceil(ticket.bounce_at.timestamp())))
    return " ".join(words).encode("ascii")


def _parsed_origin(entry: bytes) -> tuple[str | None, str | None, bool, datetime | None]:
    if not entry.isascii() or len(entry) > ORIGIN_BYTES_MAX:
        return None, None, False, None
    sender, _, rest = entry[1:].decode().partition(" ")
    source, *words = rest.split(" ")
    times = [int(word) for word in words if word.isdecimal() and len(word) <= TIME_CHARACTERS_MAX]
    bounce_at = datetime.fromtimestamp(times[0], UTC) if times else None
    return sender or None, None if source == _NO_SOURCE else source or None, _LIST in words, bounce_at


@lru_cache(SHARDS_KNOWN_MAX)
def shard_of(lane: str, shards: int) -> int:
    """The shard of the stream for this lane's mail, or for its first part: the same in every process and version."""
    return _shard(lane.lower().encode(), shards)


def message_number(message_id: MessageId, count: int) -> int:
    """A number below `count` for the message, the same in every process and version."""
    return _shard(message_id.bytes, count) if count > 1 else 0


def account_shard_of(account_id: AccountId, shards: int) -> int:
    """The shard of the stream for this account's webhook deliveries."""
    return _shard(account_id.bytes, shards)


def _shard(name: bytes, shards: int) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") % shards
