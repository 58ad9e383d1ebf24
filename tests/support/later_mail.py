"""Scheduled mail, as its senders know it, compared with the receiving server's log and the attempts on record."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support.service import Service, uuid

UNTRIED: Final = """
SELECT count(*) FROM unnest($1::uuid[]) asked(id)
WHERE NOT EXISTS (SELECT FROM attempts WHERE message_id = asked.id)
"""


@dataclass(frozen=True, slots=True)
class LaterCounts:
    """`early` and `cancelled_arrived` are recipients in the receiver's log: before `send_at`, and of cancelled mail.

    `refused_untried` are messages whose cancellation was refused, and which were never tried.
    """

    messages: int
    early: int
    cancelled: int
    cancelled_arrived: int
    refused: int
    refused_untried: int

    @property
    def is_broken(self) -> bool:
        return bool(self.early or self.cancelled_arrived or self.refused_untried)


@dataclass(slots=True)
class LaterMail:
    """Every recipient has its own address. `cancelled` were answered with 200, `refused` with 409."""

    send_at: dict[str, datetime] = field(default_factory=dict)
    addresses: dict[str, list[str]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def note(self, message_id: str, send_at: datetime, addresses: list[str]) -> None:
        self.send_at[message_id] = send_at
        self.addresses[message_id] = addresses

    async def compare(self, log: Path, service: Service) -> LaterCounts:
        early, arrived = self.arrivals(log)
        untried = await service.value(UNTRIED, [uuid(message_id) for message_id in self.refused])
        return LaterCounts(len(self.send_at), early, len(self.cancelled), arrived, len(self.refused), untried)

    def arrivals(self, log: Path) -> tuple[int, int]:
        """Recipients in the log before `send_at`, and those of cancelled mail."""
        message_of = {address: message_id for message_id, all_of_it in self.addresses.items() for address in all_of_it}
        early = arrived = 0
        with log.open() as lines:
            for line in map(json.loads, lines):
                message_id = message_of.get(line["recipient"])
                if message_id is None:
                    continue
                early += datetime.fromtimestamp(line["time"], UTC) < self.send_at[message_id]
                arrived += message_id in self.cancelled
        return early, arrived
