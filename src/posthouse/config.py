"""Settings: from the environment (`POSTHOUSE_…`) and one TOML file; the environment wins.

The file is the one that POSTHOUSE_CONFIG names, else `./posthouse.toml`, else
`/etc/posthouse/posthouse.toml`. `posthouse config init` writes it (`config_text`), with fresh secrets and
every setting explained: each description below is that file's text.
"""

import base64
import binascii
import json
import os
import re
import tomllib
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from posthouse.mail.address import AddressError, parse_domain, parse_mailbox
from posthouse.rules import retry
from posthouse.rules.lane import PROVIDERS, LaneLimits, Limits
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.limits import GIB, RATE_BURST, RATE_PER_SECOND, WARMUP_RECIPIENTS_BY_DAY

ENVIRONMENT_PREFIX: Final = "POSTHOUSE_"
FILE_VARIABLE: Final = "POSTHOUSE_CONFIG"
FILES: Final = (Path("posthouse.toml"), Path("/etc/posthouse/posthouse.toml"))
SECRET_CHARACTERS_MIN: Final = 32
# A phrase repeated to the required length is long without being hard to guess.
SECRET_DISTINCT_CHARACTERS_MIN: Final = 10
SEAL_KEY_BYTES: Final = 32
MEMORY: Final = "memory"
STREAM_SCHEMES: Final = ("nats", "tls")
SHARDS_MAX: Final = 256
# Tickets and attempts are counted in small numbers; nobody tries for longer than a month.
RETRIES_MAX: Final = 100
LIFETIME_HOURS_MAX: Final = 24 * 31

_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
# A header field carries it, with a token behind it.
_PUBLIC_URL: Final = re.compile(r"https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,100})?")
_MAKE_SECRETS: Final = "run `posthouse config init` to write a file with fresh secrets"


class ConfigError(Exception):
    """The settings can't be used; the text says which one, and what to do."""


class LaneSettings(BaseModel):
    """What one lane has instead of the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    per_second: float | None = Field(None, gt=0, allow_inf_nan=False)
    burst: int | None = Field(None, ge=1)
    connections_max: int | None = Field(None, ge=1)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    database_url: str = Field(
        repr=False,
        description="PostgreSQL 15 or newer: postgresql://user:password@host:port/database. A host that "
        "starts with a slash (…/database?host=/run/postgresql) is a directory of Unix sockets.",
    )
    database_pool_max: int = Field(10, ge=1, le=1000, description="Connections that one process opens at most.")
    database_patience: float = Field(
        1.0,
        ge=1,
        le=60,
        description="How many times longer than usual to wait for PostgreSQL before a client is told to try again. "
        "With 1 every answer comes within five seconds, even when PostgreSQL hangs.",
    )
    allow_unsafe_database: bool = Field(
        False,
        description="For development only: start although PostgreSQL runs with fsync or full_page_writes "
        "off, so that an accepted mail may be lost in a crash.",
    )

    pepper: SecretStr = Field(
        description="Keys the hashes under which SMTP passwords and API keys are stored; at least "
        f"{SECRET_CHARACTERS_MIN} characters. Changing it makes every password and key invalid.",
    )
    jwt_secret: SecretStr = Field(
        description=f"Signs dashboard tokens; at least {SECRET_CHARACTERS_MIN} characters. Changing it logs "
        "everybody out.",
    )
    seal_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(
        description="Keys that seal stored secrets (DKIM private keys): id to 32 bytes in base64. To "
        "rotate, add a key and make it active; upkeep then renews what the old ones sealed. In the environment: "
        "id:base64,id:base64.",
    )
    seal_key_active: str = Field(description="The id of the key that seals from now on.")

    http_host: str = Field("127.0.0.1", description="Address that the HTTP API listens on.")
    http_port: int = Field(8025, ge=0, le=65535, description="Port that the HTTP API listens on.")
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks, separated by commas, of the proxies whose X-Forwarded-For is "
        "believed. Empty: none, the caller is the peer of the connection.",
    )

    public_url: str = Field(
        "",
        description="Where people reach the HTTP API from outside, such as https://mail.example.com: links by which "
        "they leave a mailing list begin with it. Empty: nobody can offer such links.",
    )

    tls_certificate_file: str = Field(
        "",
        description="The certificate that customers and other mail servers see over SMTP, with its chain (PEM). "
        "Read anew when it changes. Without one, mail is not taken from customers over SMTP.",
    )
    tls_key_file: str = Field("", description="The certificate's private key (PEM).")
    submission_host: str = Field("127.0.0.1", description="Address that customers hand in mail at, over SMTP.")
    submission_port: int = Field(
        587, ge=0, le=65535, description="Port for customers over SMTP, who begin TLS with STARTTLS; 0: none."
    )
    submission_tls_port: int = Field(
        465, ge=0, le=65535, description="Port for customers over SMTP within TLS from the start; 0: none."
    )
    inbound_host: str = Field(
        "127.0.0.1",
        description="Address that bounces and complaints come to, over SMTP. The return path's domain needs an MX "
        "record that leads here.",
    )
    inbound_port: int = Field(25, ge=1, le=65535, description="Port that bounces and complaints come to.")
    smtp_connections_max: int = Field(
        2_000, ge=1, le=100_000, description="Connections that one SMTP server of ours takes at a time."
    )
    smtp_connections_per_address_max: int = Field(
        50, ge=1, description="Connections that it takes from one address (one network of IPv6) at a time."
    )
    feedback_address: str = Field(
        "",
        description="The address, under the return path's domain or the hostname, that mailbox providers send "
        "complaints to (feedback loops). Empty: none.",
    )

    rate_per_second: int = Field(
        RATE_PER_SECOND,
        ge=1,
        le=10**6,
        description="Requests a second that one account may send, unless it has its own.",
    )
    rate_burst: int = Field(
        RATE_BURST, ge=1, le=10**9, description="Requests that an idle account may send at once, unless it has its own."
    )
    warmup_enabled: bool = Field(
        True, description="Whether new accounts are held to a growing number of recipients a day."
    )
    warmup_limits: Annotated[tuple[int, ...], NoDecode] = Field(
        WARMUP_RECIPIENTS_BY_DAY,
        description="Recipients a UTC day on an account's first, second, … day; unlimited afterwards.",
    )

    hostname: str = Field(
        "localhost.localdomain",
        description="This service's name in the Message-IDs and Received lines it writes, and its greeting (EHLO) "
        "to other mail servers: one under a domain of yours, which leads to the address that mail leaves from, "
        "and back.",
    )
    resolvers: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Name servers for DNS look-ups, each an IP address with an optional port "
        '("192.0.2.53", "192.0.2.53:5353", "[2001:db8::53]:53"). Empty: those of the system.',
    )

    stream: str = Field(
        MEMORY,
        repr=False,
        description='What carries mail that is due to the processes that deliver it. "memory": one process does it '
        "all, and PostgreSQL alone is needed. Or the addresses of NATS servers with JetStream, separated by commas "
        '("nats://user:password@host:4222,nats://other:4222"): then each part of the service is a process of its '
        "own, on as many machines as you like. Nothing is lost with the stream.",
    )
    stream_shards: int = Field(
        16,
        ge=1,
        le=SHARDS_MAX,
        description="Into how many parts destinations are divided, each delivered by one process at a time: more than "
        "you will have processes that deliver. Must be the same everywhere: stop all of them to change it.",
    )
    stream_replicas: int = Field(
        1, ge=1, le=5, description="Copies that NATS keeps of what is under way: 3 in a cluster of three servers."
    )

    return_path_domain: str = Field(
        "", description="The domain that bounces come back to (bounces+…@domain). Empty: the hostname."
    )
    smtp_port: int = Field(
        25, ge=1, le=65535, description="The port that mail servers are called on; another than 25 is for tests."
    )
    allow_loopback_destinations: bool = Field(
        False,
        description="For tests only: deliver also to mail servers on this machine's loopback addresses, which are "
        "otherwise refused like all addresses that are not public.",
    )
    own_addresses: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Public addresses of this installation, to which no mail is sent: a domain whose mail servers "
        "lead back here would go round in a circle.",
    )
    own_domains: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Domains of this installation, which no webhook may lead to; the hostname is always one.",
    )
    webhook_ports: Annotated[tuple[int, ...], NoDecode] = Field(
        (443,), description="Ports that a webhook's URL may name; 443 is every URL's own."
    )
    allow_loopback_webhooks: bool = Field(
        False,
        description="For tests only: call webhooks on this machine's loopback addresses, which are otherwise refused "
        "like all addresses that are not public.",
    )
    webhook_authority_file: str = Field(
        "", description="For tests only: a PEM file of one more authority that webhooks' certificates may come from."
    )
    simulator_domain: str = Field(
        "simulator.invalid",
        description="A domain whose mail is never sent but ends as its address says: delivered@, bounced@, failed@ or "
        "deferred@. Mail of test keys goes there too.",
    )
    dkim_enabled: bool = Field(
        True, description="Whether mail is signed with its domain's DKIM key; switch it off only to measure its cost."
    )
    delivery_sessions_max: int = Field(
        500, ge=1, le=10_000, description="SMTP conversations that one process has at a time."
    )
    lane_per_second: float = Field(
        Limits().per_second,
        gt=0,
        allow_inf_nan=False,
        description="Mails a second to one lane, by all processes together. A lane is a mailbox provider with all the "
        "domains it hosts, or else a domain.",
    )
    lane_burst: int = Field(Limits().burst, ge=1, description="Mails that a lane gets at once after a rest.")
    lane_connections_max: int = Field(
        Limits().connections_max,
        ge=1,
        description="Connections to one lane at a time, by all processes together. It begins with two and feels its "
        "way.",
    )
    lanes: Annotated[dict[str, LaneSettings], NoDecode] = Field(
        {},
        description="Other limits for some lanes, each a provider's name or a domain: "
        "{ google = { per_second = 50, connections_max = 10 } }, or a table [lanes.google] at the end of this file; "
        f"in the environment as JSON. Without a burst of its own, a lane with its own rate gets a second's worth at "
        f"once. The providers: {', '.join(PROVIDERS)}.",
    )
    delivery_retry_minutes: Annotated[tuple[float, ...], NoDecode] = Field(
        tuple(int(wait / timedelta(minutes=1)) for wait in retry.DELIVERY.waits),
        description="Minutes to wait before the second, third, … attempt at a recipient, each give or take a tenth; "
        "after the last one it has failed. Empty: a single attempt.",
    )
    delivery_lifetime_hours: float = Field(
        int((retry.DELIVERY.lifetime or timedelta(0)) / timedelta(hours=1)),
        gt=0,
        le=LIFETIME_HOURS_MAX,
        description="Hours after which a message that could not be delivered is not tried again, whatever attempts "
        "are left.",
    )

    worker_lease_seconds: float = Field(
        WORKER_LEASE.total_seconds(),
        ge=1,
        le=600,
        description="Seconds after which a process that delivers, and is heard of no more, is taken for dead: what it "
        "was delivering is then delivered by others.",
    )
    ticket_lease_seconds: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="Seconds after which mail that was handed out and nobody began to deliver is handed out again.",
    )

    retention_days_messages: int = Field(
        30, ge=2, description="Days after which messages and their results are dropped."
    )
    retention_days_bodies: int = Field(
        3, ge=1, description="Days after which the bodies of messages whose results are all final are dropped."
    )
    retention_days_webhooks: int = Field(
        7, ge=1, description="Days after which the log of what was sent to webhooks is dropped."
    )
    storage_directory: str = Field(
        "",
        description="The directory of PostgreSQL's data, or any other on the same volume, when PostgreSQL is on this "
        "machine: while that volume has too little room left, nothing more is taken in. Empty: it is not looked at.",
    )
    storage_free_bytes_min: int = Field(
        2 * GIB,
        ge=1,
        description="Free bytes of that volume at which mail is refused for the time being (503, and 452 over SMTP); "
        "at a quarter more it is taken again. The rest of the service goes on with what is left.",
    )
    storage_bytes_max: int = Field(
        0,
        ge=0,
        description="Size of the database, in bytes, at which mail is refused likewise, for a PostgreSQL on another "
        "machine; at a twentieth less it is taken again. 0: it is not looked at.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severity that is logged: debug, info, warning or error."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # What the file says is passed to the constructor, so the environment comes first.
        return env_settings, init_settings

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, given: str) -> str:
        if urlsplit(given).scheme not in ("postgresql", "postgres"):
            raise ValueError("must begin with postgresql://")
        return given

    @field_validator("pepper", "jwt_secret")
    @classmethod
    def _is_strong(cls, given: SecretStr) -> SecretStr:
        secret = given.get_secret_value()
        if len(secret) < SECRET_CHARACTERS_MIN:
            raise ValueError(f"needs at least {SECRET_CHARACTERS_MIN} characters: {_MAKE_SECRETS}")
        if len(set(secret)) < SECRET_DISTINCT_CHARACTERS_MIN:
            raise ValueError(f"is too regular to be a secret: {_MAKE_SECRETS}")
        return given

    @field_validator("seal_keys", mode="before")
    @classmethod
    def _split_keys(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        if given.lstrip().startswith("{"):
            return json.loads(given)
        return dict(part.strip().partition(":")[::2] for part in given.split(",") if part.strip())

    @field_validator("seal_keys")
    @classmethod
    def _are_keys(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for key_id, key in given.items():
            if not 1 <= len(key_id.encode()) <= 255:
                raise ValueError("has a key id that is not 1 to 255 bytes long")
            if _decoded_key(key) is None:
                raise ValueError(f"has a key {key_id!r} that is not {SEAL_KEY_BYTES} bytes in base64: {_MAKE_SECRETS}")
        return given

    @field_validator(
        "warmup_limits",
        "resolvers",
        "own_addresses",
        "own_domains",
        "webhook_ports",
        "delivery_retry_minutes",
        mode="before",
    )
    @classmethod
    def _split_list(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        if given.lstrip().startswith("["):
            return json.loads(given)
        return [part.strip() for part in given.split(",") if part.strip()]

    @field_validator("warmup_limits")
    @classmethod
    def _are_positive(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        if any(limit < 1 for limit in given):
            raise ValueError("holds a number below 1; set warmup_enabled to false to have no limits")
        return given

    @field_validator("resolvers")
    @classmethod
    def _are_endpoints(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:
            endpoint(address)
        return given

    @field_validator("own_addresses")
    @classmethod
    def _are_addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:
            try:
                ip_address(address)
            except ValueError:
                raise ValueError(f"holds {address!r}, which is no IP address, such as 192.0.2.1") from None
        return given

    @field_validator("public_url")
    @classmethod
    def _is_base(cls, given: str) -> str:
        if given and not _PUBLIC_URL.fullmatch(given):
            raise ValueError("is not the beginning of a URL: write one such as https://mail.example.com")
        return given.rstrip("/")

    @field_validator("feedback_address")
    @classmethod
    def _is_mailbox(cls, given: str) -> str:
        try:
            return parse_mailbox(given).key if given else ""
        except AddressError as error:
            raise ValueError(str(error)) from None

    @field_validator("hostname")
    @classmethod
    def _is_host(cls, given: str) -> str:
        if not _is_host_name(given):
            raise ValueError("is not a host name: write one such as mail.example.com")
        return given

    @field_validator("return_path_domain", "simulator_domain")
    @classmethod
    def _is_domain(cls, given: str, info: ValidationInfo) -> str:
        if not given and info.field_name == "return_path_domain":
            return given
        try:
            return parse_domain(given)
        except AddressError as error:
            raise ValueError(str(error)) from None

    @field_validator("stream")
    @classmethod
    def _are_stream_addresses(cls, given: str) -> str:
        addresses = stream_addresses(given)
        if given != MEMORY and not (addresses and all(map(_is_stream_address, addresses))):
            # Not repeated: an address may hold a password.
            raise ValueError(f'is neither "{MEMORY}" nor addresses such as nats://127.0.0.1:4222, separated by commas')
        return given

    @field_validator("lanes", mode="before")
    @classmethod
    def _read_lanes(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError:
            raise ValueError('is not JSON: write it like {"google": {"per_second": 50}}') from None

    @field_validator("lanes")
    @classmethod
    def _are_lanes(cls, given: dict[str, LaneSettings]) -> dict[str, LaneSettings]:
        unknown = [name for name in given if name not in PROVIDERS and not _is_domain_name(name)]
        if unknown:
            raise ValueError(
                f"has {unknown[0]!r}, which is neither a domain nor a provider: write one of {', '.join(PROVIDERS)}"
            )
        return {name.lower(): limits for name, limits in given.items()}

    @field_validator("delivery_retry_minutes")
    @classmethod
    def _are_waits(cls, given: tuple[float, ...]) -> tuple[float, ...]:
        if len(given) > RETRIES_MAX or not all(0 <= minutes <= LIFETIME_HOURS_MAX * 60 for minutes in given):
            raise ValueError(
                f"holds more than {RETRIES_MAX} waits, or one below 0 or above a month: write minutes such as 1, 5, 15"
            )
        return given

    @model_validator(mode="after")
    def _has_active_key(self) -> "Settings":
        if self.seal_key_active not in self.seal_keys:
            raise ValueError(f"seal_key_active: {self.seal_key_active!r} is not among seal_keys: {_MAKE_SECRETS}")
        if self.pepper == self.jwt_secret:
            raise ValueError(f"pepper and jwt_secret must differ: {_MAKE_SECRETS}")
        if bool(self.tls_certificate_file) is not bool(self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file belong together: set both, or neither")
        return self

    @property
    def webhook_authority_pem(self) -> str:
        return Path(self.webhook_authority_file).read_text() if self.webhook_authority_file else ""

    @property
    def pepper_bytes(self) -> bytes:
        return self.pepper.get_secret_value().encode()

    @property
    def seal_key_bytes(self) -> dict[str, bytes]:
        decoded = {key_id: _decoded_key(key) for key_id, key in self.seal_keys.items()}
        return {key_id: key for key_id, key in decoded.items() if key is not None}

    @property
    def resolver_endpoints(self) -> tuple[tuple[str, int], ...]:
        return tuple(endpoint(address) for address in self.resolvers)

    @property
    def stream_servers(self) -> tuple[str, ...]:
        """The addresses of NATS; none when tickets stay in the memory of one process."""
        return () if self.stream == MEMORY else stream_addresses(self.stream)

    @property
    def return_path(self) -> str:
        return self.return_path_domain or self.hostname

    @property
    def lane_limits(self) -> LaneLimits:
        default = _limits(self.lane_per_second, self.lane_burst, self.lane_connections_max)
        return LaneLimits(
            default,
            {
                name: _limits(
                    own.per_second or default.per_second,
                    own.burst or (max(1, int(own.per_second)) if own.per_second else default.burst),
                    own.connections_max or default.connections_max,
                )
                for name, own in self.lanes.items()
            },
        )

    @property
    def worker_lease(self) -> timedelta:
        return timedelta(seconds=self.worker_lease_seconds)

    @property
    def ticket_lease(self) -> timedelta:
        return timedelta(seconds=self.ticket_lease_seconds)

    @property
    def delivery_schedule(self) -> retry.Schedule:
        return retry.Schedule(
            waits=tuple(timedelta(minutes=minutes) for minutes in self.delivery_retry_minutes),
            spread=retry.DELIVERY.spread,
            lifetime=timedelta(hours=self.delivery_lifetime_hours),
        )


def config_file() -> Path | None:
    """The file that `load` reads; None when there is none, which is fine if the environment has it all."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigError(
                f"{FILE_VARIABLE} names {named}, which is not a file: correct it, or write one with "
                f"`posthouse config init --file {named}`"
            )
        return Path(named)
    return next((path for path in FILES if path.is_file()), None)


def load(file: Path | None = None) -> Settings:
    """The settings, or a ConfigError that names every fault."""
    source = file or config_file()
    values: dict[str, Any] = {}
    if source is not None:
        try:
            values = tomllib.loads(source.read_text())
        except OSError as error:
            raise ConfigError(f"{source} can't be read: {error.strerror}") from None
        # The reader says most of what is wrong with an error of its own, but not that a number is too long.
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from None
    try:
        return Settings(**values)
    except ValidationError as error:
        where = f"{source} and the environment" if source else "the environment (no configuration file was found)"
        raise ConfigError(f"the settings in {where} can't be used: {_faults(error)}") from None


def default_of(name: str) -> object:
    """A setting's default; None where it must be given."""
    field = Settings.model_fields[name]
    return None if field.is_required() else field.default


def endpoint(given: str) -> tuple[str, int]:
    """An IP address and a port from `ip`, `ip:port`, `[ip]` or `[ip]:port`; the port is 53 unless told."""
    if given.startswith("["):
        address, _, rest = given[1:].partition("]")
        port = rest.removeprefix(":")
    elif given.count(":") == 1:
        address, _, port = given.partition(":")
    else:
        address, port = given, ""
    try:
        ip_address(address)
        number = int(port or 53)
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise ValueError(f"holds {given!r}, which is not an IP address with an optional port")
    return address, number


def _limits(per_second: float, burst: int, connections_max: int) -> Limits:
    connections_start = min(Limits().connections_start, connections_max)
    return Limits(per_second, burst, connections_start, connections_max)


def stream_addresses(given: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.split(",") if part.strip())


def _is_stream_address(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return parts.scheme in STREAM_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_host_name(given: str) -> bool:
    return len(given) <= 253 and _HOST_NAME.fullmatch(given) is not None


def _is_domain_name(given: str) -> bool:
    """As destinations are known: in A-labels, with a dot."""
    try:
        return parse_domain(given) == given.lower()
    except AddressError:
        return False


def _decoded_key(key: SecretStr) -> bytes | None:
    try:
        decoded = base64.b64decode(key.get_secret_value(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded if len(decoded) == SEAL_KEY_BYTES else None


def _faults(error: ValidationError) -> str:
    """Every fault in one line. Values are not repeated: they may be secrets."""
    missing, told = [], []
    for detail in error.errors(include_input=False, include_url=False):
        name = ".".join(map(str, detail["loc"]))
        said = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case "missing" if name == "database_url":
                told.append(f"database_url is missing: set it, or {ENVIRONMENT_PREFIX}DATABASE_URL")
            case "missing":
                missing.append(name)
            case "extra_forbidden":
                told.append(f"{name} is not a setting: correct its name or remove it")
            case _:
                told.append(f"{name} {said[0].lower()}{said[1:]}" if name else said)
    if missing:
        told.append(f"missing are {', '.join(missing)}: {_MAKE_SECRETS}")
    return "; ".join(told)
