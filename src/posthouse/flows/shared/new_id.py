"""A new id, from the injected source of randomness."""

from datetime import datetime
from uuid import UUID

from posthouse.chance import Chance
from posthouse.rules import ids


def new_id(chance: Chance, now: datetime) -> UUID:
    return ids.new_id(now, chance.bytes(ids.RANDOM_BYTES))
