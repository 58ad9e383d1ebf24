"""Live hints: what a stream says to a page that is open, and how much of it is kept for a slow reader.

A hint names what is new; a page reads it with a GET. So a lost hint costs time, never truth.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.ids import MessageId
from posthouse.rules.refusal import Refusal

# Of one process.
STREAMS_MAX: Final = 2_000
STREAMS_PER_ACCOUNT_MAX: Final = 100
STREAMS_PER_USER_MAX: Final = 10
# Proxies close a connection that is silent for longer, mostly for a minute.
HEARTBEAT_SECONDS: Final = 15.0
# More that is new at once is a reason to read the whole list.
NAMED_AT_ONCE_MAX: Final = 500
QUEUED_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """`data` is JSON on a single line."""

    name: str
    data: bytes = b"{}"


READY: Final = LiveEvent("ready")
RESYNC: Final = LiveEvent("resync")


def accepted(message_ids: Sequence[MessageId]) -> LiveEvent:
    """These messages were accepted."""
    return _event("accepted", {"message_ids": [ids.text(ids.MESSAGE, message_id) for message_id in message_ids]})


def final(recipients: Sequence[tuple[MessageId, int]]) -> LiveEvent:
    """These recipients (their message and position) have their result."""
    listed = [
        {"recipient_id": _recipient(message_id, position), "message_id": ids.text(ids.MESSAGE, message_id)}
        for message_id, position in recipients
    ]
    return _event("final", {"recipients": listed})


def end(refusal: Refusal) -> LiveEvent:
    """The stream ends, for the same reason that a new request would be refused for."""
    return _event("end", {"error": refusal.text, "code": refusal.code.value})


def _recipient(message_id: MessageId, position: int) -> str:
    recipient_id: UUID = ids.recipient_id(message_id, position)
    return ids.text(ids.RECIPIENT, recipient_id)


def _event(name: str, content: dict[str, object]) -> LiveEvent:
    return LiveEvent(name, json.dumps(content, separators=(",", ":")).encode())
