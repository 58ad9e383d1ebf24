"""External relays: mail services of others that take mail for us where none of our addresses may send it.

A relay has a lane of its own, for all destinations together, with the rate that the operator set. *Delivered* then
means that the relay took the mail.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Final

from posthouse.rules.lane import Limits

# A lane's name is a provider, which has no colon, or a domain, which has none either.
_LANE_PREFIX: Final = "relay:"
# TLS from the first byte; at any other port, STARTTLS (RFC 8314).
TLS_PORT: Final = 465


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay and our login there, which is sent over verified TLS only."""

    name: str
    host: str
    port: int
    username: str
    password: str = field(repr=False)
    per_second: float
    per_day: int | None = None

    @property
    def lane(self) -> str:
        return lane_of_relay(self.name)

    @property
    def limits(self) -> Limits:
        return Limits(per_second=self.per_second, burst=ceil(self.per_second))

    @property
    def is_tls_at_once(self) -> bool:
        return self.port == TLS_PORT


def lane_of_relay(name: str) -> str:
    return _LANE_PREFIX + name


def is_relay_lane(lane: str) -> bool:
    return lane.startswith(_LANE_PREFIX)
