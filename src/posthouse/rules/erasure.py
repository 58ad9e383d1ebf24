"""Erasing an address: what replaces it, and the keyed hash that keeps suppressing it."""

import json
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

# Before every message and event.
START: Final = UUID(int=0)
# Replaces the address where a recipient must have one, and in the replies of servers.
ERASED: Final = "erased@erased.invalid"
# A finished erasure is listed for this long.
REMEMBERED: Final = timedelta(days=90)

_HEAD: Final = ("id", "type", "created_at")
_KEPT: Final = ("email_id", "recipient_id", "mode")


class ErasurePhase(StrEnum):
    MESSAGES = "messages"
    EVENTS = "events"
    OTHERS = "others"
    DONE = "done"


class ErasureKey(NamedTuple):
    """`prefix` precedes the hash and names the pepper that the key is derived from."""

    prefix: bytes
    key: bytes


def hash_of(email: str, key: ErasureKey) -> bytes:
    """The same hash that PostgreSQL computes in `store/erasures`."""
    return key.prefix + sha256(key.key + sha256(key.key + email.lower().encode()).digest()).digest()


def hashes_of(email: str, keys: Sequence[ErasureKey]) -> list[bytes]:
    """Every hash under which the address may be stored; the active pepper's comes first."""
    return [hash_of(email, key) for key in keys]


def pattern(email: str) -> str:
    """A PostgreSQL regular expression that finds the address in a text, but not inside a longer address."""
    literal = "".join(character if character.isalnum() else f"\\{character}" for character in email)
    return rf"(?<![A-Za-z0-9._+-]){literal}(?![A-Za-z0-9-]|\.[A-Za-z0-9])"


def is_in(body: bytes, email: str) -> bool:
    """Whether an event's body contains the address."""
    lowered = body.decode("utf-8", "replace").lower()
    return email in lowered or json.dumps(email)[1:-1] in lowered


def blanked(body: bytes) -> bytes:
    """An event's body without personal data; such an event is not sent again on request."""
    given = json.loads(body)
    data = {name: given["data"][name] for name in _KEPT if name in given["data"]}
    whole = {**{name: given[name] for name in _HEAD}, "data": {**data, "erased": True}}
    return json.dumps(whole, separators=(",", ":")).encode()
