"""The image's description and `compose.yaml` are valid, and fit the settings, the parts and each other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.cli.service import ServicePart
from posthouse.rules import limits
from tests.deploy.files import (
    DEPLOY,
    FILE_SUFFIX,
    SECRETS,
    Document,
    documents,
    image_environment,
    loaded,
    passes,
    secret_names,
)

PORTS = {"http": 8025, "submission": 2587, "submissions": 2465, "inbound": 2525, "monitoring": 9825}


def _compose() -> Document:
    (compose,) = documents(DEPLOY / "compose.yaml")
    return compose


def _parts(compose: Document) -> dict[str, Document]:
    """The services that run parts of Posthouse, by the part."""
    services: dict[str, Document] = compose["services"]
    return {service["command"][1]: service for service in services.values() if service.get("command", [""])[0] == "run"}


def test_the_containerfile_passes_its_linter() -> None:
    # Debian's packages are taken as they are today, for their security fixes.
    passes("hadolint", "--ignore", "DL3008", DEPLOY / "Containerfile")


def test_the_image_listens_on_the_ports_that_it_names() -> None:
    settings = image_environment()
    assert {name: value for name, value in settings.items() if name.endswith("PORT")} == {
        "POSTHOUSE_HTTP__PORT": str(PORTS["http"]),
        "POSTHOUSE_SUBMISSION__PORT": str(PORTS["submission"]),
        "POSTHOUSE_SUBMISSION__TLS_PORT": str(PORTS["submissions"]),
        "POSTHOUSE_INBOUND__PORT": str(PORTS["inbound"]),
        "POSTHOUSE_MONITORING__PORT": str(PORTS["monitoring"]),
    }
    (exposed,) = re.findall(r"^EXPOSE (.*)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert sorted(exposed.split()) == sorted(map(str, PORTS.values()))


def test_compose_follows_its_schema() -> None:
    passes("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_compose_runs_every_part_with_settings_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = _parts(_compose())
    assert set(parts) == {part.value for part in ServicePart}
    environment = {name: _interpolated(value) for name, value in parts["inbound"]["environment"].items()}
    settings = loaded(environment, tmp_path, monkeypatch)
    assert settings.service.hostname == settings.inbound.return_path_domain == "mail.example.com"
    assert len(settings.stream.addresses) == settings.stream.replicas == 3
    assert settings.database.url.endswith("@postgres:5432/posthouse")
    assert settings.http.port == PORTS["http"]


def _interpolated(value: str) -> str:
    """As compose does it, with nothing set but the name of the service."""
    value = value.replace("$MAIL_HOSTNAME", "mail.example.com")
    value = re.sub(r"\$\{MAIL_HOSTNAME[^}]*\}", "mail.example.com", value)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_compose_parts_have_the_same_settings() -> None:
    parts = _parts(_compose())
    settings = parts["delivery"]["environment"]
    own = {name: {*service["environment"].items()} - {*settings.items()} for name, service in parts.items()}
    certificate = {
        ("POSTHOUSE_SMTP__TLS_CERTIFICATE_FILE", "/tls/certificate.pem"),
        ("POSTHOUSE_SMTP__TLS_KEY_FILE", "/tls/key.pem"),
    }
    assert own == {name: certificate if name in ("submission", "inbound") else set() for name in parts}
    assert "POSTHOUSE_INBOUND__RETURN_PATH_DOMAIN" in settings, "delivery and inbound agree on it"


def test_compose_waits_as_long_as_a_process_may_take_to_stop() -> None:
    waits = {service["stop_grace_period"] for service in _parts(_compose()).values()}
    assert waits == {f"{limits.STOP_SECONDS_MAX}s"}


def test_compose_parts_have_no_privileges() -> None:
    for service in _parts(_compose()).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_compose_mounts_each_secret_that_a_setting_names(tmp_path: Path) -> None:
    compose = _compose()
    made = secret_names(tmp_path)
    assert {Path(secret["file"]).name for secret in compose["secrets"].values()} <= made
    for service in compose["services"].values():
        named = {value for name, value in service.get("environment", {}).items() if name.endswith(FILE_SUFFIX)}
        given = {str(SECRETS / secret) for secret in service.get("secrets", [])}
        assert {file for file in named if Path(file).is_relative_to(SECRETS)} == given
    assert not [name for service in _parts(compose).values() for name in service["environment"] if "PASSWORD" in name]


def test_compose_publishes_the_ports_of_the_image() -> None:
    published = {
        name: [port.rpartition(":")[2] for port in service["ports"]]
        for name, service in _parts(_compose()).items()
        if "ports" in service
    }
    assert published == {"submission": ["2587", "2465"], "inbound": ["2525"]}
    assert _compose()["services"]["caddy"]["environment"]["MAIL_UPSTREAM"] == f"http:{PORTS['http']}"


def test_compose_trusts_only_the_network_of_its_proxy() -> None:
    compose = _compose()
    http = compose["services"]["http"]
    subnet = compose["networks"]["front"]["ipam"]["config"][0]["subnet"]
    assert http["environment"]["POSTHOUSE_HTTP__TRUSTED_PROXIES"] == subnet
    members = [name for name, service in compose["services"].items() if "front" in service["networks"]]
    assert members == ["http", "caddy"]


def test_the_database_and_the_stream_have_no_outbound_network() -> None:
    compose = _compose()
    assert compose["networks"]["data"]["internal"] is True
    for name in ("postgres", "nats-1", "nats-2", "nats-3"):
        assert compose["services"][name]["networks"] == ["data"]
        assert "ports" not in compose["services"][name]


def test_nats_takes_its_configuration(tmp_path: Path) -> None:
    secret_names(tmp_path / "secrets")
    shutil.copy(DEPLOY / "nats.conf", tmp_path)
    nats = Path(sys.executable).with_name("nats-server")
    done = subprocess.run([nats, "-t", "-c", tmp_path / "nats.conf"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_fresh_secrets_are_private_and_stay(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    names = secret_names(directory)
    before = {name: (directory / name).read_text() for name in names}
    assert secret_names(directory) == names
    assert {name: (directory / name).read_text() for name in names} == before
    assert directory.stat().st_mode & 0o777 == 0o700
    # The containers' user reads them through their mounts.
    assert {(directory / name).stat().st_mode & 0o777 for name in names} == {0o444}
