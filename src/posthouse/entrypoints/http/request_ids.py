"""Request ids: a new id for every request, and for every connection whose bytes are not HTTP."""

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.rules import ids
from posthouse.rules.ids import RequestId


class RequestIds:
    def __init__(self, clock: Clock, chance: Chance) -> None:
        self._clock = clock
        self._chance = chance

    def new(self) -> RequestId:
        return RequestId(ids.new_id(self._clock.now(), self._chance.bytes(ids.RANDOM_BYTES)))
