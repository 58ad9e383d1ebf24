"""Settings: from the environment (`POSTHOUSE_…`) and one TOML file; the environment wins.

The file is the one that POSTHOUSE_CONFIG names, else `./posthouse.toml`, else
`/etc/posthouse/posthouse.toml`. `posthouse config init` writes it, with fresh secrets and every
setting explained: each description below is that file's text.
"""

import base64
import binascii
import json
import os
import secrets as system_secrets
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from posthouse.rules.limits import RATE_BURST, RATE_PER_SECOND, WARMUP_RECIPIENTS_BY_DAY

ENVIRONMENT_PREFIX: Final = "POSTHOUSE_"
FILE_VARIABLE: Final = "POSTHOUSE_CONFIG"
FILES: Final = (Path("posthouse.toml"), Path("/etc/posthouse/posthouse.toml"))
SECRET_CHARACTERS_MIN: Final = 32
# A phrase repeated to the required length is long without being hard to guess.
SECRET_DISTINCT_CHARACTERS_MIN: Final = 10
SEAL_KEY_BYTES: Final = 32
EXAMPLE_DATABASE_URL: Final = "postgresql://posthouse@127.0.0.1:5432/posthouse"
HIDDEN: Final = "(hidden)"

_MAKE_SECRETS: Final = "run `posthouse config init` to write a file with fresh secrets"

_HEAD: Final = f"""\
# Settings of Posthouse. Where the # of a line touches the name of a setting, the line shows the default:
# remove the # to change it. Each setting can also be given in the environment, as {ENVIRONMENT_PREFIX} and
# its name in capitals, which wins over this file. This file holds secrets: keep it readable by the service
# alone, and keep a copy of them in a safe place, for a backup of the database is useless without them.
"""


class ConfigError(Exception):
    """The settings can't be used; the text says which one, and what to do."""


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
        description="This service's name in the Message-IDs it makes; one under a domain of yours.",
    )
    resolvers: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Name servers for DNS look-ups, each an IP address with an optional port "
        '("192.0.2.53", "192.0.2.53:5353", "[2001:db8::53]:53"). Empty: those of the system.',
    )

    retention_days_messages: int = Field(
        30, ge=2, description="Days after which messages and their results are dropped."
    )
    retention_days_bodies: int = Field(
        3, ge=1, description="Days after which the bodies of messages whose results are all final are dropped."
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

    @field_validator("warmup_limits", "resolvers", mode="before")
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

    @model_validator(mode="after")
    def _has_active_key(self) -> "Settings":
        if self.seal_key_active not in self.seal_keys:
            raise ValueError(f"seal_key_active: {self.seal_key_active!r} is not among seal_keys: {_MAKE_SECRETS}")
        if self.pepper == self.jwt_secret:
            raise ValueError(f"pepper and jwt_secret must differ: {_MAKE_SECRETS}")
        return self

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


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """What an installation must have of its own; made once, by `posthouse config init`."""

    pepper: str
    jwt_secret: str
    seal_keys: Mapping[str, str]
    seal_key_active: str


def generated() -> Secrets:
    return Secrets(
        pepper=system_secrets.token_urlsafe(32),
        jwt_secret=system_secrets.token_urlsafe(32),
        seal_keys={"1": base64.b64encode(system_secrets.token_bytes(SEAL_KEY_BYTES)).decode()},
        seal_key_active="1",
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
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from None
    try:
        return Settings(**values)
    except ValidationError as error:
        where = f"{source} and the environment" if source else "the environment (no configuration file was found)"
        raise ConfigError(f"the settings in {where} can't be used: {_faults(error)}") from None


def commented_toml(secrets: Secrets, database_url: str = EXAMPLE_DATABASE_URL) -> str:
    """A whole configuration file: every setting with its meaning and default, and the given secrets."""
    given: dict[str, object] = {
        "database_url": database_url,
        "pepper": secrets.pepper,
        "jwt_secret": secrets.jwt_secret,
        "seal_keys": secrets.seal_keys,
        "seal_key_active": secrets.seal_key_active,
    }
    parts = [_HEAD]
    for name, field in Settings.model_fields.items():
        comment = textwrap.fill(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        if name in given:
            parts.append(f"{comment}\n{name} = {_toml(given[name])}\n")
        else:
            parts.append(f"{comment}\n#{name} = {_toml(field.default)}\n")
    return "\n".join(parts)


def shown(settings: Settings) -> dict[str, object]:
    """Every setting by name, secrets hidden."""
    return {name: _shown(name, getattr(settings, name)) for name in Settings.model_fields}


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


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=False)  # JSON's strings are TOML's basic strings
        case Mapping():
            return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        case tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")


def _shown(name: str, value: object) -> object:
    match value:
        case SecretStr():
            return HIDDEN
        case Mapping():
            return {key: _shown(name, item) for key, item in value.items()}
        case str() if name == "database_url":
            return _without_password(value)
        case _:
            return value


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{user}:{HIDDEN}@{host}" if colon else parts.netloc
    query = HIDDEN if "password" in parts.query.lower() else parts.query
    return urlunsplit(parts._replace(netloc=netloc, query=query))
