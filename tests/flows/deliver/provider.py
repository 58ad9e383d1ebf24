"""Mailbox providers with hidden limits and a memory for lanes to learn from: on sockets, or as a carrier with a virtual
clock.

A provider remembers each source address and each DKIM domain. Its numbers are drawn from a seed, and no sender knows
them. `scale` divides volumes: a provider of scale 60 takes a sixtieth of the mail.
"""

import random
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from posthouse.mail.reply import Reply
from posthouse.rules.outcome import AttemptResult, NoReply, Replied, Stage
from posthouse.wire.carrier import CarrierRequest, CarrierResult

HOUR: Final = 3600.0
TAKEN: Final = Reply(250, "2.0.0", "OK")
# A DKIM domain may send this many times what one address may.
DOMAIN_FACTOR: Final = 4.0
# Bursts and counts of tries shrink less than rates do: otherwise they would be below one message.
SMALL: Final = 5.0

_signed_by: Final = re.compile(rb"^dkim-signature:.*?[;\s]d=([^;\s]+)", re.IGNORECASE | re.DOTALL | re.MULTILINE).search


@dataclass(slots=True)
class Connection:
    """One SMTP connection from a source address; `taken` counts its messages."""

    source: str
    taken: int = 0
    idle_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Mail:
    """What a provider sees of a message."""

    sender: str
    recipient: str
    dkim_domain: str | None = None


@dataclass(slots=True)
class Tally:
    """What a provider did, according to its own log."""

    taken: list[tuple[float, str]] = field(default_factory=list)
    refused: list[tuple[float, str, int, str]] = field(default_factory=list)
    # Times at which a sender that continued was punished.
    punished: int = 0


class Provider(ABC):
    """`at_mail` and `at_dot` give the refusal, or None when the message may continue."""

    name: str = ""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.random = random.Random(f"{self.name}/{seed}")
        self.scale = scale
        self.tally = Tally()

    def offer(self, connection: Connection, mail: Mail, now: float) -> tuple[Stage, Reply]:
        """A whole transaction of one recipient: where it ended, and how."""
        for stage, check in ((Stage.MAIL, self.at_mail), (Stage.DOT, self.at_dot)):
            refusal = check(connection, mail, now)
            if refusal is not None:
                return stage, self.refuse(mail, refusal, now)
        return Stage.DOT, self.take(connection, mail, now)

    def refuse(self, mail: Mail, refusal: Reply, now: float) -> Reply:
        self.tally.refused.append((now, mail.recipient, refusal.code, refusal.text))
        return refusal

    def take(self, connection: Connection, mail: Mail, now: float) -> Reply:
        connection.taken += 1
        self.tally.taken.append((now, mail.recipient))
        return TAKEN

    @property
    @abstractmethod
    def per_second_max(self) -> float:
        """The hidden limit of an address."""

    @abstractmethod
    def at_mail(self, connection: Connection, mail: Mail, now: float) -> Reply | None: ...

    def at_dot(self, connection: Connection, mail: Mail, now: float) -> Reply | None:  # noqa: ARG002
        return None


@dataclass(slots=True)
class Bucket:
    """Tokens that return at a rate; `trust` lowers it for a while."""

    per_second: float
    burst: float
    tokens: float
    at: float = 0.0
    until: float = float("-inf")
    knocks: int = 0
    trust: float = 1.0
    watched_until: float = float("-inf")

    def refill(self, now: float, factor: float = 1.0) -> None:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_second * factor)
        self.at = now


class _Buckets(Provider):
    """A rate for each source address and, higher, for each DKIM domain."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__(seed, scale)
        rate = self.random.uniform(2, 20)
        self.per_second = rate / scale
        self.burst = max(3.0, rate * self.random.uniform(5, 30) / (scale if scale == 1 else scale / SMALL))
        self._buckets: dict[str, Bucket] = {}

    @property
    def per_second_max(self) -> float:
        return self.per_second

    def bucket(self, key: str, factor: float = 1.0) -> Bucket:
        if key not in self._buckets:
            self._buckets[key] = Bucket(self.per_second * factor, self.burst * factor, self.burst * factor)
        return self._buckets[key]

    @abstractmethod
    def spend(self, bucket: Bucket, now: float, whose: str) -> Reply | None: ...

    def at_mail(self, connection: Connection, mail: Mail, now: float) -> Reply | None:  # noqa: ARG002
        return self.spend(self.bucket(connection.source), now, f"IP address {connection.source}")

    def at_dot(self, connection: Connection, mail: Mail, now: float) -> Reply | None:  # noqa: ARG002
        if mail.dkim_domain is None:
            return None
        bucket = self.bucket(f"@{mail.dkim_domain}", DOMAIN_FACTOR)
        return self.spend(bucket, now, f"DKIM domain [{mail.dkim_domain}]")


class Google(_Buckets):
    """Over its rate 4.7.28 for ten minutes, restarted by each attempt; trust falls, and slowly returns."""

    name = "google"
    REST: Final = 600.0
    WATCHED: Final = 1800.0

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__(seed, scale)
        self.watched_factor = self.random.uniform(0.4, 0.9)
        self.trust_kept = self.random.uniform(0.85, 0.98)

    def spend(self, bucket: Bucket, now: float, whose: str) -> Reply | None:
        bucket.trust = min(1.0, bucket.trust + (now - bucket.at) * 0.1 / HOUR)
        bucket.refill(now, bucket.trust * (self.watched_factor if now < bucket.watched_until else 1.0))
        is_resting = now < bucket.until
        if not is_resting and bucket.tokens >= 1:
            bucket.tokens -= 1
            return None
        if not is_resting:
            bucket.trust = max(0.2, bucket.trust * self.trust_kept)
            bucket.watched_until = now + self.REST + self.WATCHED
        else:
            self.tally.punished += 1
        bucket.until = now + self.REST
        text = (
            f"4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your {whose}. "
            "To protect our users from spam, mail sent from your IP address has been temporarily rate limited. "
            "https://support.google.com/mail/?p=UnsolicitedRateLimitError - gsmtp"
        )
        return Reply(421, "4.7.28", text)


class Microsoft(Provider):
    """A budget for each window; over it 4.7.650 for a while; a sender that keeps trying is blocked for hours."""

    name = "microsoft"

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__(seed, scale)
        self.window = self.random.choice([60.0, 300.0, 900.0])
        self.budget = max(2.0, self.random.uniform(2, 20) * self.window / scale)
        self.limited_for = self.random.uniform(300, 1800)
        knocks = self.random.randint(100, 1000)
        self.knocks_max = knocks if scale == 1 else max(5, int(knocks / scale * 2))
        self.blocked_for = self.random.uniform(6, 24) * HOUR
        self._sources: dict[str, _Window] = defaultdict(_Window)

    @property
    def per_second_max(self) -> float:
        return self.budget / self.window

    def at_mail(self, connection: Connection, mail: Mail, now: float) -> Reply | None:  # noqa: ARG002
        source = self._sources[connection.source]
        if now < source.blocked_until:
            return self._blocked(connection.source)
        if now < source.limited_until:
            source.knocks += 1
            if source.knocks > self.knocks_max:
                source.blocked_until = now + self.blocked_for
                self.tally.punished += 1
            return self._limited(connection.source)
        if now - source.began_at >= self.window:
            source.began_at, source.used = now, 0
        source.used += 1
        if source.used <= self.budget:
            return None
        source.limited_until, source.knocks = now + self.limited_for, 0
        return self._limited(connection.source)

    def _limited(self, source: str) -> Reply:
        text = (
            f"4.7.650 The mail server [{source}] has been temporarily rate limited due to IP reputation. "
            "For e-mail delivery information, see https://postmaster.live.com (S775)"
        )
        return Reply(451, "4.7.650", text)

    def _blocked(self, source: str) -> Reply:
        text = (
            f"5.7.1 Unfortunately, messages from [{source}] weren't sent. Please contact your Internet service "
            "provider since part of their network is on our block list (S3150). You can also refer your provider to "
            "http://mail.live.com/mail/troubleshooting.aspx#errors."
        )
        return Reply(550, "5.7.1", text)


@dataclass(slots=True)
class _Window:
    began_at: float = float("-inf")
    used: int = 0
    knocks: int = 0
    limited_until: float = float("-inf")
    blocked_until: float = float("-inf")


class Yahoo(_Buckets):
    """Twenty messages per connection; over its rate TSS04 for a while, and four hours for a sender that continues."""

    name = "yahoo"
    PER_CONNECTION: Final = 20

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__(seed, scale)
        self.limited_for = self.random.uniform(600, 3600)
        knocks = self.random.randint(100, 1000)
        self.knocks_max = knocks if scale == 1 else max(5, int(knocks / scale * 2))

    def at_mail(self, connection: Connection, mail: Mail, now: float) -> Reply | None:
        if connection.taken >= self.PER_CONNECTION:
            text = "Max message per connection reached, closing transmission channel"
            return Reply(421, None, text)
        return super().at_mail(connection, mail, now)

    def spend(self, bucket: Bucket, now: float, whose: str) -> Reply | None:  # noqa: ARG002
        bucket.refill(now)
        if now < bucket.until:
            bucket.knocks += 1
            if bucket.knocks == self.knocks_max:
                bucket.until = now + 4 * HOUR
                self.tally.punished += 1
            return self._limited()
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return None
        bucket.until, bucket.knocks = now + self.limited_for, 0
        return self._limited()

    def _limited(self) -> Reply:
        text = (
            "4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - "
            "4.16.55.1; see https://postmaster.yahooinc.com/error-codes"
        )
        return Reply(421, "4.7.0", text)


class Polite(_Buckets):
    """Over its rate 421, and no more than that."""

    name = "polite"

    def spend(self, bucket: Bucket, now: float, whose: str) -> Reply | None:  # noqa: ARG002
        bucket.refill(now)
        if bucket.tokens < 1:
            return Reply(421, "4.7.0", "4.7.0 Too much mail from your address, please slow down")
        bucket.tokens -= 1
        return None


def dkim_domain_of(content: bytes) -> str | None:
    """The domain of the first DKIM signature."""
    found = _signed_by(content.partition(b"\r\n\r\n")[0])
    return found[1].decode("ascii", "replace").lower() if found else None


@dataclass(slots=True)
class ProviderCarrier:
    """A carrier to providers by destination, with connections that are cached and reused as on sockets.

    `now` are the virtual clock's seconds.
    """

    providers: Mapping[str, Provider]
    now: Callable[[], float]
    source: str = "192.0.2.1"
    idle_seconds_max: float = 30.0
    _idle: dict[str, list[Connection]] = field(default_factory=lambda: defaultdict(list))

    async def carry(self, destination: str, request: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        provider, now = self.providers[destination], self.now()
        connection = self._connection(destination, now)
        taken_before = connection.taken
        dkim_domain = dkim_domain_of(request.message.content)
        results: list[AttemptResult] = []
        if not before_dot():
            return CarrierResult((NoReply(Stage.DATA, "withdrawn"),) * len(request.recipients))
        for recipient in request.recipients:
            stage, reply = provider.offer(connection, Mail(request.sender, recipient, dkim_domain), now)
            results.append(Replied(stage, reply))
        is_closed = any(isinstance(result, Replied) and result.reply.code == 421 for result in results)
        if not is_closed and connection.taken < request.per_connection_max:
            connection.idle_since = now
            self._idle[destination].append(connection)
        return CarrierResult(tuple(results), f"mx.{destination}", "192.0.2.25", taken_before=taken_before)

    def _connection(self, destination: str, now: float) -> Connection:
        idle = self._idle[destination]
        while idle:
            connection = idle.pop()
            if now - connection.idle_since <= self.idle_seconds_max:
                return connection
        return Connection(self.source)
