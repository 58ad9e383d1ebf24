"""The settings as text: the file that `posthouse config init` writes, and the output of `posthouse config show`."""

import base64
import json
import secrets as system_secrets
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, SecretStr

from posthouse.config.installation import SEAL_KEY_BYTES
from posthouse.config.outgoing import MEMORY, stream_addresses
from posthouse.config.section import Section
from posthouse.config.settings import Settings, section_types, variable

EXAMPLE_DATABASE_URL: Final = "postgresql://posthouse@127.0.0.1:5432/posthouse"
HIDDEN: Final = "(hidden)"

_HEAD: Final = f"""\
# Settings of Posthouse, in sections. A line with a # directly before the name of a setting shows the default:
# remove the # to change it. Each setting can also be given in the environment, which wins over this file, by
# section and name: port under [http] is {variable("http", "port")}. This file contains secrets: let only the
# service read it, and keep a copy of them in a safe place. Without them, a backup of the database is useless.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """The secrets of an installation, generated once by `posthouse config init`."""

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


class Purpose(StrEnum):
    """What an installation is for, and the settings in its file besides the defaults."""

    LAPTOP = "laptop"
    SERVER = "server"
    FLEET = "fleet"


_PURPOSE_COMMENTS: Final = {
    Purpose.LAPTOP: "For a laptop: no mail leaves, and new accounts have no daily limit.",
    Purpose.SERVER: "For one server, behind a proxy on the same machine that terminates TLS. Check, in this "
    "order: service.hostname, http.public_url, smtp.tls_certificate_file, inbound.return_path_domain.",
    Purpose.FLEET: "For several machines: each has this same file. Check, in this order: stream.servers, "
    "service.hostname, http.public_url, http.trusted_proxies, smtp.tls_certificate_file, inbound.return_path_domain.",
}
_PRESETS: Final[Mapping[Purpose, Mapping[tuple[str, str], object]]] = {
    Purpose.LAPTOP: {("delivery", "outbound"): "capture", ("limits", "warmup_enabled"): False},
    Purpose.SERVER: {
        ("service", "hostname"): "mail.example.com",
        ("http", "trusted_proxies"): "127.0.0.1",
        ("http", "public_url"): "https://mail.example.com",
        ("submission", "host"): "0.0.0.0",  # noqa: S104 (customers reach it from anywhere)
        ("inbound", "host"): "0.0.0.0",  # noqa: S104
    },
    Purpose.FLEET: {
        ("service", "hostname"): "mail.example.com",
        ("http", "host"): "0.0.0.0",  # noqa: S104
        ("http", "public_url"): "https://mail.example.com",
        ("submission", "host"): "0.0.0.0",  # noqa: S104
        ("inbound", "host"): "0.0.0.0",  # noqa: S104
        ("stream", "servers"): "nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222",
        ("stream", "replicas"): 3,
    },
}


def commented_toml(secrets: Secrets, database_url: str = EXAMPLE_DATABASE_URL, purpose: Purpose | None = None) -> str:
    """A complete configuration file: every setting with its meaning and default, and the given secrets."""
    given: dict[tuple[str, str], object] = {
        **(_PRESETS[purpose] if purpose else {}),
        ("database", "url"): database_url,
        ("secrets", "pepper"): secrets.pepper,
        ("secrets", "jwt_secret"): secrets.jwt_secret,
        ("secrets", "seal_keys"): secrets.seal_keys,
        ("secrets", "seal_key_active"): secrets.seal_key_active,
    }
    parts = [_HEAD, *([_comment(_PURPOSE_COMMENTS[purpose]) + "\n"] if purpose else [])]
    for name, section in section_types().items():
        own = {setting: value for (of, setting), value in given.items() if of == name}
        parts += [f"{_comment(section.__doc__)}\n[{name}]\n", *_section_toml(section, own)]
    return "\n".join(parts)


def plain_toml(values: Mapping[str, Mapping[str, object]]) -> str:
    """A configuration file of only these settings, by section and name."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{name} = {toml_value(value)}\n" for name, value in own.items())
        for section, own in values.items()
    )


def shown(settings: Settings) -> dict[str, dict[str, object]]:
    """Every setting by section and name, secrets hidden."""
    return {
        section: {
            name: _shown((section, name), getattr(getattr(settings, section), name)) for name in kind.model_fields
        }
        for section, kind in section_types().items()
    }


def _section_toml(section: type[Section], given: Mapping[str, object]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        comment = _comment(field.description)
        if name in given:
            yield f"{comment}\n{name} = {toml_value(given[name])}\n"
        else:
            yield f"{comment}\n#{name} = {toml_value(field.default)}\n"


def _comment(text: str | None) -> str:
    return textwrap.fill(text or "", 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=False)  # JSON's strings are TOML's basic strings
        case Mapping() if not value:
            return "{}"
        case Mapping():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
        case tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")


def _shown(setting: tuple[str, str], value: object) -> object:
    match value:
        case SecretStr():
            return HIDDEN
        case Mapping():
            return {key: _shown(setting, item) for key, item in value.items()}
        case BaseModel():
            return value.model_dump(exclude_none=True)
        case str() if setting == ("database", "url"):
            return _without_password(value)
        case str() if setting == ("stream", "servers") and value != MEMORY:
            return ",".join(map(_without_user, stream_addresses(value)))
        case _:
            return value


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{user}:{HIDDEN}@{host}" if colon else parts.netloc
    query = HIDDEN if "password" in parts.query.lower() else parts.query
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def _without_user(url: str) -> str:
    """A NATS address without its user: everything before the @ may be a token."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{HIDDEN}@{host}" if at and user else host))
