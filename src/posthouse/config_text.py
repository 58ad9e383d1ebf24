"""The settings as text: the file that `posthouse config init` writes, and what `posthouse config show` tells."""

import base64
import json
import secrets as system_secrets
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, SecretStr

from posthouse.config import ENVIRONMENT_PREFIX, MEMORY, SEAL_KEY_BYTES, Settings, stream_addresses

EXAMPLE_DATABASE_URL: Final = "postgresql://posthouse@127.0.0.1:5432/posthouse"
HIDDEN: Final = "(hidden)"

_HEAD: Final = f"""\
# Settings of Posthouse. Where the # of a line touches the name of a setting, the line shows the default:
# remove the # to change it. Each setting can also be given in the environment, as {ENVIRONMENT_PREFIX} and
# its name in capitals, which wins over this file. This file holds secrets: keep it readable by the service
# alone, and keep a copy of them in a safe place, for a backup of the database is useless without them.
"""


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
        comment = textwrap.fill(
            field.description or "", 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        if name in given:
            parts.append(f"{comment}\n{name} = {_toml(given[name])}\n")
        else:
            parts.append(f"{comment}\n#{name} = {_toml(field.default)}\n")
    return "\n".join(parts)


def shown(settings: Settings) -> dict[str, object]:
    """Every setting by name, secrets hidden."""
    return {name: _shown(name, getattr(settings, name)) for name in Settings.model_fields}


def _toml(value: object) -> str:
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
        case BaseModel():
            return value.model_dump(exclude_none=True)
        case str() if name == "database_url":
            return _without_password(value)
        case str() if name == "stream" and value != MEMORY:
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
    """A NATS address without who calls: what stands before the @ may be a token, all of it."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{HIDDEN}@{host}" if at and user else host))
