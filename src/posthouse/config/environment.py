"""Settings from environment variables: `POSTHOUSE_HTTP__PORT` is `port` under `[http]`.

A variable that names no setting is a fault, so that a misspelt variable is not ignored.
"""

from collections.abc import Mapping
from typing import Final

from posthouse.config.secret_files import FILE_SUFFIX
from posthouse.config.section import Fault, did_you_mean, is_secret
from posthouse.config.settings import DELIMITER, ENVIRONMENT_PREFIX, section_types, variable

FILE_VARIABLE: Final = "POSTHOUSE_CONFIG"
# Variables that commands, client libraries and tests read; they are not settings.
OTHER_VARIABLES: Final = frozenset(
    {
        FILE_VARIABLE,
        "POSTHOUSE_CRASH_AT",
        "POSTHOUSE_URL",
        "POSTHOUSE_API_KEY",
        "POSTHOUSE_FROM",
        "POSTHOUSE_USERNAME",
        "POSTHOUSE_PASSWORD",
        "POSTHOUSE_PASSWORD_FILE",
        "POSTHOUSE_TOKEN",
        "POSTHOUSE_TOKEN_FILE",
        "POSTHOUSE_WEBHOOK_SECRET",
        "POSTHOUSE_WEBHOOK_SECRET_FILE",
    }
)
_LINK_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")

Setting = tuple[str, str]


class Variables:
    """The settings in the environment, by section and name, and the variables that name none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.names: dict[Setting, str] = {}
        self.values: dict[str, dict[str, object]] = {}
        self.faults: list[Fault] = []
        known = setting_variables()
        for name, value in environment.items():
            upper = name.upper()
            if not upper.startswith(ENVIRONMENT_PREFIX) or upper in OTHER_VARIABLES:
                continue
            if upper in known:
                section, setting = known[upper]
                self.names[section, setting] = name
                self.values.setdefault(section, {})[setting] = value
            else:
                self.faults.append(Fault("the environment", f"{name} {_unknown(upper, known)}"))


def setting_variables() -> dict[str, Setting]:
    """Every variable of a setting, with those that name a secret's file."""
    known = {}
    for section, kind in section_types().items():
        for name, field in kind.model_fields.items():
            known[variable(section, name)] = section, name
            if is_secret(field):
                known[variable(section, name + FILE_SUFFIX)] = section, name + FILE_SUFFIX
    return known


def _unknown(name: str, known: Mapping[str, Setting]) -> str:
    section = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    if section in section_types():
        example = variable(section, next(iter(section_types()[section].model_fields)))
        return f"names a section: set its settings separately, such as {example}"
    meant = did_you_mean(name, [*known, *OTHER_VARIABLES], prefix=ENVIRONMENT_PREFIX)
    return f"is not a setting: {meant or 'correct its name or unset it'}"


def without_service_links(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the Service addresses that Kubernetes sets: POSTHOUSE_HTTP_PORT is also one for `posthouse-http`."""
    return {name: value for name, value in environment.items() if not _is_service_link(name, value)}


def _is_service_link(name: str, value: str) -> bool:
    if DELIMITER in name:
        return False
    port, _, protocol = name.partition("_PORT_")[2].partition("_")
    return (
        name.endswith(("_SERVICE_HOST", "_SERVICE_PORT"))
        or "_SERVICE_PORT_" in name
        or (name.endswith("_PORT") and value.partition("://")[0].upper() in _LINK_PROTOCOLS)
        or (port.isdecimal() and protocol.partition("_")[0] in _LINK_PROTOCOLS)
    )
