"""Settings of the installation: its name and addresses, its secrets, and its logs."""

import base64
import binascii
import json
import re
from ipaddress import ip_address
from typing import Final, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from posthouse.config.section import Section, Texts
from posthouse.mail.address import AddressError, parse_domain, parse_mailbox
from posthouse.rules.pepper import FIRST, Pepper, Peppers, is_id

SECRET_CHARACTERS_MIN: Final = 32
# A phrase repeated to the required length is long without being hard to guess.
SECRET_DISTINCT_CHARACTERS_MIN: Final = 10
SEAL_KEY_BYTES: Final = 32

# This never advises to create new ones, because data stored under the old ones would become unreadable.
_RANDOM: Final = "`openssl rand -base64 32` prints a new one"
_RESTORE_PEPPER: Final = (
    "restore it from your copy of the settings. With another pepper, every stored password and API key is invalid; "
    f"only for a database without accounts, {_RANDOM}"
)
_REPLACE_JWT_SECRET: Final = (
    f"restore it from your copy of the settings, or replace it, which logs all users out: {_RANDOM}"
)
_RESTORE_SEAL_KEY: Final = (
    "restore it from your copy of the settings. Without it, what it sealed can't be read (DKIM keys, webhook secrets)"
)

_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class ServiceSection(Section):
    """The service as a whole."""

    hostname: str = Field(
        "localhost.localdomain",
        description="This service's name in the Message-IDs and Received lines it writes, and its greeting (EHLO) "
        "to other mail servers: a name under your domain that resolves to the address from which mail is sent, and "
        "whose address resolves back to it.",
    )
    own_addresses: Texts = Field(
        (),
        description="Public addresses of this installation, to which no mail is sent: mail to a domain whose mail "
        "servers are these addresses would loop.",
    )
    own_domains: Texts = Field(
        (), description="Domains of this installation, which no webhook may call; the hostname always counts."
    )
    sender: str = Field(
        "",
        description="The address from which invitations, password resets and notices are sent, such as "
        "Posthouse <no-reply@mail.example.com>: under a verified domain of sender_account. Empty: none is sent, "
        "and only operators can create invitations and resets, with commands.",
    )
    sender_account: str = Field(
        "",
        description="The account, by name or id, that sends the service's own mail and pays for it. Its members can "
        "read that mail with its links: use your own account.",
    )
    sandbox_domain: str = Field(
        "",
        description="A verified domain of sender_account from which all accounts may send their first mail, only to "
        "their own members and the simulator, signed with that account's keys. Empty: accounts need a domain of their "
        "own.",
    )
    resolvers: Texts = Field(
        (),
        description="Name servers for DNS queries, each an IP address with an optional port "
        '("192.0.2.53", "192.0.2.53:5353", "[2001:db8::53]:53"). Empty: those of the system.',
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severity that is logged: debug, info, warning or error."
    )

    @field_validator("hostname")
    @classmethod
    def _is_host(cls, given: str) -> str:
        if len(given) > 253 or not _HOST_NAME.fullmatch(given):
            raise ValueError("is not a host name: write one such as mail.example.com")
        return given

    @field_validator("sender")
    @classmethod
    def _is_mailbox(cls, given: str) -> str:
        try:
            if given:
                parse_mailbox(given)
        except AddressError as error:
            raise ValueError(str(error)) from None
        return given

    @model_validator(mode="after")
    def _has_sender_and_account(self) -> Self:
        if bool(self.sender) is not bool(self.sender_account):
            raise ValueError("sender and sender_account belong together: set both, or neither")
        return self

    @field_validator("sandbox_domain")
    @classmethod
    def _is_domain(cls, given: str) -> str:
        try:
            return parse_domain(given) if given else ""
        except AddressError as error:
            raise ValueError(f"{error}: write a domain such as sandbox.example.com") from None

    @model_validator(mode="after")
    def _has_sandbox_and_account(self) -> Self:
        if self.sandbox_domain and not self.sender_account:
            raise ValueError("sandbox_domain is a domain of sender_account: set sender and sender_account as well")
        return self

    @field_validator("own_addresses")
    @classmethod
    def _are_addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:
            try:
                ip_address(address)
            except ValueError:
                raise ValueError(f"holds {address!r}, which is not an IP address, such as 192.0.2.1") from None
        return given

    @field_validator("resolvers")
    @classmethod
    def _are_endpoints(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:
            endpoint(address)
        return given

    @property
    def resolver_endpoints(self) -> tuple[tuple[str, int], ...]:
        return tuple(endpoint(address) for address in self.resolvers)


class SecretsSection(Section):
    """Secrets of this installation."""

    pepper: SecretStr = Field(
        repr=False,
        description="Keys the hashes under which SMTP passwords and API keys are stored; at least "
        f"{SECRET_CHARACTERS_MIN} characters. Without it, every password and key is invalid: to replace it, follow "
        "the how-to.",
    )
    pepper_id: str = Field(
        FIRST,
        description="The name of the pepper, stored with the hashes that it creates: 1 to 32 of a-z, 0-9 and hyphen. A "
        "pepper keeps its name.",
    )
    other_peppers: dict[str, SecretStr] = Field(
        {},
        repr=False,
        description="Peppers that create no hashes but recognise their own: old ones, and the next one before it is "
        "used; id to pepper. In the environment: id:pepper,id:pepper.",
    )
    jwt_secret: SecretStr = Field(
        repr=False,
        description=f"Signs dashboard tokens; at least {SECRET_CHARACTERS_MIN} characters. Without it, all users are "
        "logged out: to replace it, follow the how-to.",
    )
    other_jwt_secrets: dict[str, SecretStr] = Field(
        {},
        repr=False,
        description="Secrets that sign no tokens but whose tokens are valid: the next one and the previous one; a name "
        "of your choice to secret. In the environment: name:secret,name:secret.",
    )
    seal_keys: dict[str, SecretStr] = Field(
        repr=False,
        description="Keys that seal stored secrets (DKIM private keys): id to 32 bytes in base64. To "
        "rotate, add a key and make it active; maintenance then reseals everything. In the environment: "
        "id:base64,id:base64.",
    )
    seal_key_active: str = Field(description="The id of the key that seals new secrets.")

    @field_validator("pepper", "jwt_secret")
    @classmethod
    def _is_strong(cls, given: SecretStr, info: ValidationInfo) -> SecretStr:
        advice = _RESTORE_PEPPER if info.field_name == "pepper" else _REPLACE_JWT_SECRET
        _check_strength(given, advice)
        return given

    @field_validator("pepper_id")
    @classmethod
    def _is_pepper_id(cls, given: str) -> str:
        if not is_id(given):
            raise ValueError("is not 1 to 32 of a-z, 0-9 and hyphen")
        return given

    @field_validator("other_peppers", "other_jwt_secrets")
    @classmethod
    def _are_strong(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, secret in given.items():
            if not is_id(name):
                raise ValueError(f"has the name {name!r}, which is not 1 to 32 of a-z, 0-9 and hyphen")
            try:
                _check_strength(secret, _RANDOM)
            except ValueError as error:
                raise ValueError(f"has one named {name!r} that {error}") from None
        return given

    @field_validator("seal_keys", "other_peppers", "other_jwt_secrets", mode="before")
    @classmethod
    def _split_keys(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        if given.lstrip().startswith("{"):
            return json.loads(given)
        parts = given.replace("\n", ",").split(",")
        return dict(part.strip().partition(":")[::2] for part in parts if part.strip())

    @field_validator("seal_keys")
    @classmethod
    def _are_keys(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for key_id, key in given.items():
            if not 1 <= len(key_id.encode()) <= 255:
                raise ValueError("has a key id that is not 1 to 255 bytes long")
            if _decoded_key(key) is None:
                raise ValueError(
                    f"has a key {key_id!r} that is not {SEAL_KEY_BYTES} bytes in base64: {_RESTORE_SEAL_KEY}"
                )
        return given

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.seal_key_active not in self.seal_keys:
            known = ", ".join(map(repr, self.seal_keys)) or "none"
            raise ValueError(
                f"seal_key_active: {self.seal_key_active!r} is not among seal_keys ({known}): name one of them, or put "
                "that key back"
            )
        if self.pepper == self.jwt_secret:
            raise ValueError(f"pepper and jwt_secret must differ: keep the pepper, and replace jwt_secret: {_RANDOM}")
        if self.pepper_id in self.other_peppers:
            raise ValueError(f"pepper_id: {self.pepper_id!r} is among other_peppers, too: each pepper has its own id")
        return self

    @property
    def peppers(self) -> Peppers:
        others = [Pepper(key, given.get_secret_value().encode()) for key, given in self.other_peppers.items()]
        return Peppers(Pepper(self.pepper_id, self.pepper.get_secret_value().encode()), tuple(others))

    @property
    def jwt_secrets(self) -> tuple[str, ...]:
        """The first secret signs; all of them verify."""
        return tuple([given.get_secret_value() for given in (self.jwt_secret, *self.other_jwt_secrets.values())])

    @property
    def seal_key_bytes(self) -> dict[str, bytes]:
        decoded = {key_id: _decoded_key(key) for key_id, key in self.seal_keys.items()}
        return {key_id: key for key_id, key in decoded.items() if key is not None}


def _check_strength(given: SecretStr, advice: str) -> None:
    secret = given.get_secret_value()
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise ValueError(f"needs at least {SECRET_CHARACTERS_MIN} characters, but has {len(secret)}: {advice}")
    if len(set(secret)) < SECRET_DISTINCT_CHARACTERS_MIN:
        raise ValueError(f"is too regular to be a secret: {advice}")


def endpoint(given: str) -> tuple[str, int]:
    """An IP address and a port from `ip`, `ip:port`, `[ip]` or `[ip]:port`; the default port is 53."""
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
