"""Settings of delivery and webhooks: the stream between processes, the workers' leases, retries, and lanes."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from posthouse.config.section import Integers, Numbers, Section, Texts
from posthouse.mail.address import AddressError, parse_domain
from posthouse.rules import endpoint, retry
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.lane import PER_SECOND_START, PROVIDERS, LaneLimits, Limits
from posthouse.rules.reroute import HOLD_HOURS

MEMORY: Final = "memory"
STREAM_SCHEMES: Final = ("nats", "tls")
SHARDS_MAX: Final = 256
# Tickets and attempts are counted in small integers, and no message is tried for longer than a month.
RETRIES_MAX: Final = 100
LIFETIME_HOURS_MAX: Final = 24 * 31
FAILING_DAYS_MAX: Final = 31


class StreamSection(Section):
    """The stream between processes."""

    servers: str = Field(
        MEMORY,
        repr=False,
        description='What carries due mail to the processes that deliver it. "memory": one process does all the '
        "work, and only PostgreSQL is needed. Or the addresses of NATS servers with JetStream, separated by commas "
        '("nats://user:password@host:4222,nats://other:4222"): then each part of the service runs in its own '
        "process, on any number of machines. No mail is lost if the stream is lost.",
    )
    shards: int = Field(
        16,
        ge=1,
        le=SHARDS_MAX,
        description="Into how many parts destinations are divided, each delivered by one process at a time: more than "
        "you will have delivery processes. To change it, restart the processes one after the other.",
    )
    replicas: int = Field(
        1, ge=1, le=5, description="How many copies NATS keeps of its messages: 3 in a cluster of three servers."
    )

    @field_validator("servers")
    @classmethod
    def _are_stream_addresses(cls, given: str) -> str:
        addresses = stream_addresses(given)
        if given != MEMORY and not (addresses and all(map(_is_stream_address, addresses))):
            # The value is not repeated, because an address may contain a password.
            raise ValueError(f'is neither "{MEMORY}" nor addresses such as nats://127.0.0.1:4222, separated by commas')
        return given

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of NATS; empty if tickets stay in the memory of one process."""
        return () if self.servers == MEMORY else stream_addresses(self.servers)


class WorkersSection(Section):
    """Processes that deliver mail or send webhooks."""

    lease_seconds: float = Field(
        WORKER_LEASE.total_seconds(),
        ge=1,
        le=600,
        description="Seconds without a sign of life after which a delivery process is considered dead; others then "
        "deliver its mail.",
    )
    ticket_lease_seconds: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="Seconds after which mail that was dispatched, but that no process has begun to deliver, is "
        "dispatched again.",
    )

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)

    @property
    def ticket_lease(self) -> timedelta:
        return timedelta(seconds=self.ticket_lease_seconds)


class DeliverySection(Section):
    """Delivery to other mail servers."""

    outbound: Literal["deliver", "capture"] = Field(
        "deliver",
        description='"capture": no mail leaves, with any key, over HTTP and over SMTP. All of it is routed to the '
        "simulator and can be read, at the usual price: for development and staging. Captured mail is never sent; "
        'mail accepted before is held until "deliver" is set again. Must be the same in all processes.',
    )
    sessions_max: int = Field(500, ge=1, le=10_000, description="SMTP sessions that a process has open at a time.")
    retry_minutes: Numbers = Field(
        tuple(int(wait / timedelta(minutes=1)) for wait in retry.DELIVERY.waits),
        description="Minutes to wait before the second, third, … attempt for a recipient, each give or take a tenth; "
        "after the last attempt it has failed. Empty: only one attempt.",
    )
    lifetime_hours: float = Field(
        int((retry.DELIVERY.lifetime or timedelta(0)) / timedelta(hours=1)),
        gt=0,
        le=LIFETIME_HOURS_MAX,
        description="Hours after which a message that could not be delivered is not tried again, however many "
        "attempts remain.",
    )
    dkim_enabled: bool = Field(
        True, description="Whether mail is signed with its domain's DKIM key; switch this off only to measure its cost."
    )
    simulator_domain: str = Field(
        "simulator.invalid",
        description="A domain whose mail is never sent, but gets the result that its address names: delivered@, "
        "bounced@, failed@ or deferred@. Mail from test keys goes there too.",
    )
    blocklists: Texts = Field(
        (),
        description="DNS lists of addresses that send spam, such as zen.spamhaus.org: maintenance queries hourly "
        "whether they list a sending address (`posthouse address`), and doctor when it runs. Most refuse public "
        "resolvers; read their terms. Empty: none is queried.",
    )
    reroute: Literal["wait", "pool", "relay", "off"] = Field(
        "wait",
        description="What happens to mail that would bounce because a server refuses the sending address itself, "
        'before it accepted a recipient. "wait": it waits until the server accepts mail from there again. "pool": a '
        "little of it leaves immediately from another address of its pool, or else over the pool's relay, and the rest "
        'waits; first read the how-to and what providers write about this. "relay": only over the relay. "off": it '
        "bounces immediately.",
    )
    reroute_hours: float = Field(
        HOLD_HOURS,
        gt=0,
        le=LIFETIME_HOURS_MAX,
        description="Hours after which mail that waits for this reason bounces, with the server's first reply.",
    )
    port: int = Field(25, ge=1, le=65535, description="The port of other mail servers; any but 25 is for tests.")
    allow_loopback: bool = Field(
        False,
        description="For tests only: deliver also to mail servers on this machine's loopback addresses, which are "
        "otherwise refused like all addresses that are not public.",
    )

    @field_validator("retry_minutes")
    @classmethod
    def _are_waits(cls, given: tuple[float, ...]) -> tuple[float, ...]:
        if len(given) > RETRIES_MAX or not all(0 <= minutes <= LIFETIME_HOURS_MAX * 60 for minutes in given):
            raise ValueError(
                f"holds more than {RETRIES_MAX} waits, or a wait below 0 or above a month: write minutes such as "
                "1, 5, 15"
            )
        return given

    @field_validator("blocklists")
    @classmethod
    def _are_domains(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(parse_domain(name) for name in given)
        except AddressError as error:
            raise ValueError(f"holds a name that {error}") from None

    @field_validator("simulator_domain")
    @classmethod
    def _is_domain(cls, given: str) -> str:
        try:
            return parse_domain(given)
        except AddressError as error:
            raise ValueError(str(error)) from None

    @property
    def captures(self) -> bool:
        return self.outbound == "capture"

    @property
    def retry_schedule(self) -> retry.Schedule:
        return retry.Schedule(
            waits=tuple(timedelta(minutes=minutes) for minutes in self.retry_minutes),
            spread=retry.DELIVERY.spread,
            lifetime=timedelta(hours=self.lifetime_hours),
        )


class LaneSettings(Section):
    """Limits of a lane; an absent limit has its default."""

    per_second: float | None = Field(None, gt=0, allow_inf_nan=False)
    burst: int | None = Field(None, ge=1)
    connections_max: int | None = Field(None, ge=1)


class LanesSection(Section):
    """Limits towards other mail servers. A lane is a mailbox provider with all its domains, or a single domain."""

    per_second: float = Field(
        Limits().per_second,
        gt=0,
        allow_inf_nan=False,
        description="The most messages per second to a lane, from all processes together. A lane starts with 20 per "
        "second and learns from the replies how many its destination accepts; a rate given here replaces the 20.",
    )
    burst: int = Field(Limits().burst, ge=1, description="How many messages an idle lane may get in a burst.")
    connections_max: int = Field(
        Limits().connections_max,
        ge=1,
        description="The most connections to a lane at a time, from all processes together. A lane starts with two, "
        "and gets more as deliveries succeed.",
    )
    by_name: dict[str, LaneSettings] = Field(
        {},
        description="Other limits for some lanes, each a provider's name or a domain: "
        "{ google = { per_second = 50, connections_max = 10 } }, or a table [lanes.by_name.google]; "
        f"in the environment as JSON. For a lane with its own rate but without its own burst, the burst is half a "
        f"second's worth. The providers: {', '.join(PROVIDERS)}.",
    )

    @field_validator("by_name", mode="before")
    @classmethod
    def _read_lanes(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError:
            raise ValueError('is not JSON: write it like {"google": {"per_second": 50}}') from None

    @field_validator("by_name")
    @classmethod
    def _are_lanes(cls, given: dict[str, LaneSettings]) -> dict[str, LaneSettings]:
        unknown = [name for name in given if name not in PROVIDERS and not _is_domain_name(name)]
        if unknown:
            raise ValueError(
                f"has {unknown[0]!r}, which is neither a domain nor a provider: write one of {', '.join(PROVIDERS)}"
            )
        return {name.lower(): limits for name, limits in given.items()}

    @property
    def limits(self) -> LaneLimits:
        # Without a configured rate, a lane learns what its destination accepts.
        per_second_start = None if "per_second" in self.model_fields_set else PER_SECOND_START
        default = _limits(self.per_second, self.burst, self.connections_max, per_second_start)
        return LaneLimits(
            default,
            {
                name: _limits(
                    own.per_second or default.per_second,
                    own.burst or (max(1, int(own.per_second / 2)) if own.per_second else default.burst),
                    own.connections_max or default.connections_max,
                    None if own.per_second else per_second_start,
                )
                for name, own in self.by_name.items()
            },
        )


class WebhooksSection(Section):
    """Webhooks."""

    ports: Integers = Field(
        (),
        description="Ports that a webhook's URL may use; without a port, a URL means 443. Empty: any port except those "
        "of well-known services that are not HTTPS, such as 22 and 25.",
    )
    failing_days: float = Field(
        endpoint.FAILING_AFTER / timedelta(days=1),
        gt=0,
        le=FAILING_DAYS_MAX,
        description="Days after which an endpoint that has answered no call with a 2xx counts as failing: it gets one "
        "call at a time, like a new endpoint, until it answers.",
    )
    endpoints: bool = Field(
        True,
        description="Whether accounts may have up to ten endpoints besides their webhook. Off: none can be created or "
        "changed, and calls that are due for existing ones fail; they can be sent again later.",
    )
    allow_loopback: bool = Field(
        False,
        description="For tests only: call webhooks on this machine's loopback addresses, which are otherwise refused "
        "like all addresses that are not public.",
    )
    authority_file: str = Field(
        "", description="For tests only: a PEM file of another authority that may issue webhooks' certificates."
    )

    @property
    def failing_after(self) -> timedelta:
        return timedelta(days=self.failing_days)

    @property
    def authority_pem(self) -> str:
        return Path(self.authority_file).read_text() if self.authority_file else ""


def stream_addresses(given: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.split(",") if part.strip())


def _is_stream_address(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return parts.scheme in STREAM_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_domain_name(given: str) -> bool:
    """The name in the form of destinations: in A-labels, with a dot."""
    try:
        return parse_domain(given) == given.lower()
    except AddressError:
        return False


def _limits(per_second: float, burst: int, connections_max: int, per_second_start: float | None) -> Limits:
    connections_start = min(Limits().connections_start, connections_max)
    return Limits(per_second, burst, connections_start, connections_max, per_second_start)
