"""How much one customer's or one destination's trouble delays other mail, at any size.

Two experiments. In the first, part of the mail goes to one destination, which is alive or dead, and the rest to
many that are alive. In the second, two accounts share a slow lane: one has a backlog there, the other sends an
occasional message. The result is how long each message took from acceptance to delivery.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.rate_load import CONNECTIONS, SentRequests, post, request
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses

# The address of the dead destination; see `UnresponsiveServer`.
DEAD_ADDRESS: Final = "127.0.0.9"
ONE: Final = "one.example.net"
SLOW: Final = "slow.example.net"
# The names of destinations don't change within an experiment.
TTL_SECONDS: Final = 3600
POLL_SECONDS: Final = 0.5
SMALL_CONNECTIONS: Final = 4

MakeRequest = Callable[[Tenant, str], bytes]

_OPEN: Final = """
SELECT count(*) FROM recipients WHERE email LIKE $1 AND status IN ('queued', 'deferred')
"""
_RESULTS: Final = """
SELECT extract(epoch FROM m.created_at)::float8 AS at, r.status,
       extract(epoch FROM r.delivered_at - m.created_at)::float8 AS wait
FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
WHERE r.email LIKE $1 ORDER BY m.created_at
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """When a message was accepted, in seconds from the start of the experiment, and how long it then took."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class OthersMail:
    """The mail to the many destinations; `to_the_one` is how many messages went to the single one."""

    waits: list[Wait]
    accepted: SentRequests
    to_the_one: int

    def percentile(self, part: float) -> float:
        return percentile([wait.seconds for wait in self.waits], part)


@dataclass(frozen=True, slots=True)
class FairShares:
    """How long the small sender's messages took, and how much the lane delivered in all meanwhile."""

    waits: list[Wait]
    backlog_waits: list[Wait]
    backlog_posted_seconds: float
    lane_per_second: float

    def percentile(self, part: float) -> float:
        return percentile([wait.seconds for wait in self.waits], part)


class NotDeliveredError(AssertionError):
    """Mail that should have been delivered was not: there is nothing to measure."""


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest rank: always one of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]


def plain_request(tenant: Tenant, to: str) -> bytes:
    return request(tenant, to)


@dataclass(slots=True)
class Experiment:
    """On running processes. An address begins with the name of its role in the experiment, and a plus."""

    processes: ServiceProcesses
    senders: Sequence[Tenant]
    domains: Sequence[str] = ()
    request: MakeRequest = plain_request

    @classmethod
    async def prepared(
        cls, processes: ServiceProcesses, *, senders: int, domains: int = 0, request: MakeRequest = plain_request
    ) -> "Experiment":
        processes.nameserver.ttl = TTL_SECONDS
        processes.destination(SLOW)
        return cls(
            processes,
            [await processes.service.account(credits=10_000_000) for _ in range(senders)],
            [processes.destination(f"d{number}.example.net") for number in range(domains)],
            request,
        )

    async def capacity(self, messages: int, seconds_max: float) -> float:
        """Messages a second from the first POST to the last outcome on record, sent as fast as they are taken."""
        begin = time.time()
        await self._post(self._messages("fast", messages))
        waits = await self._all_delivered("fast", seconds_max, begin)
        return messages / max(wait.at + wait.seconds for wait in waits)

    async def warm(self, per_second: float, seconds_max: float) -> None:
        """One message to each destination, so that lookups and slow first requests are done."""
        await self._post(self._messages("warm", len(self.domains)), per_second)
        await self._all_delivered("warm", seconds_max)

    async def one_among_many(
        self, one_address: str, *, every: int, per_second: float, seconds: float, late_seconds_max: float
    ) -> OthersMail:
        """Every `every`-th message goes to the single destination, at `one_address`; the rest to all others."""
        self.processes.destination(ONE, one_address)
        messages = int(per_second * seconds)
        begin = time.time()
        sent = await self._post(self._mixed(messages, every), per_second)
        waits = await self._all_delivered("others", late_seconds_max, begin)
        return OthersMail(waits, sent, len(range(0, messages, every)))

    async def fair_turns(self, *, backlog: int, seconds: float, late_seconds_max: float) -> FairShares:
        """The small sender starts together with the backlog, so that its first messages meet all of it."""
        big, small = self.senders[:2]
        # A new worker claims nothing for some seconds.
        await self._post(self.request(sender, f"warm+0@{SLOW}") for sender in (big, small))
        await self._all_delivered("warm", late_seconds_max)
        flood = (self.request(big, f"backlog+{number}@{SLOW}") for number in range(backlog))
        trickle = (self.request(small, f"small+{number}@{SLOW}") for number in range(int(seconds)))
        begin = time.time()
        flooded, trickled = await asyncio.gather(
            self._post(flood), self._post(trickle, per_second=1.0, connections=SMALL_CONNECTIONS)
        )
        passed = time.time() - begin
        carried = await self._delivered("backlog", begin)
        waits = await self._all_delivered("small", late_seconds_max, begin)
        return FairShares(waits, carried, flooded.seconds, (len(carried) + trickled.answers.total()) / passed)

    def _messages(self, part: str, count: int) -> Iterator[bytes]:
        pairs = zip(itertools.cycle(self.senders), itertools.cycle(self.domains), range(count), strict=False)
        return (self.request(sender, f"{part}+{number}@{domain}") for sender, domain, number in pairs)

    def _mixed(self, count: int, every: int) -> Iterator[bytes]:
        domains = itertools.cycle(self.domains)
        for number in range(count):
            # A sender's turn takes one message to the single destination, and those to the others in between.
            sender = self.senders[number // every % len(self.senders)]
            to = f"others+{number}@{next(domains)}" if number % every else f"one+{number}@{ONE}"
            yield self.request(sender, to)

    async def _post(
        self, requests: Iterator[bytes], per_second: float | None = None, connections: int = CONNECTIONS
    ) -> SentRequests:
        sent = await post(self.processes.service.port, requests, per_second=per_second, connections=connections)
        if not sent.is_well:
            raise NotDeliveredError(f"not every request was answered with 202: {dict(sent.answers)}")
        return sent

    async def _all_delivered(self, part: str, seconds_max: float, begin: float = 0.0) -> list[Wait]:
        deadline = time.monotonic() + seconds_max
        while still_open := await self.processes.service.value(_OPEN, f"{part}+%"):
            self.processes.check()
            if time.monotonic() > deadline:
                raise NotDeliveredError(f"{still_open} messages ({part}) are open after {seconds_max:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        waits = await self._delivered(part, begin)
        number = await self.processes.service.value("SELECT count(*) FROM recipients WHERE email LIKE $1", f"{part}+%")
        if len(waits) != number:
            raise NotDeliveredError(f"{len(waits)} of {number} messages ({part}) were delivered")
        return waits

    async def _delivered(self, part: str, begin: float) -> list[Wait]:
        rows = await self.processes.service.sql(_RESULTS, f"{part}+%")
        return [Wait(row["at"] - begin, row["wait"]) for row in rows if row["status"] == "delivered"]
