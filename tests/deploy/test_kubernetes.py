"""The kustomization is valid, has every part, and fits the settings, the image and the rule on public addresses."""

from functools import cache
from pathlib import Path

import pytest

from posthouse.cli.service import ServicePart
from posthouse.rules import limits
from posthouse.rules.public_address import ALLOCATED_6, FORBIDDEN, FORBIDDEN_6
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

DIRECTORY = DEPLOY / "kubernetes"
KUSTOMIZATION = DIRECTORY / "kustomization.yaml"
PARTS = [part.value for part in ServicePart]


@cache
def _resources(kind: str) -> dict[str, Document]:
    files = [DIRECTORY / name for name in documents(KUSTOMIZATION)[0]["resources"]]
    found = [document for file in files for document in documents(file) if document["kind"] == kind]
    return {document["metadata"]["name"]: document for document in found}


def _labels(part: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "posthouse", "app.kubernetes.io/component": part}


def _pod(document: Document) -> Document:
    pod: Document = document["spec"]["template"]["spec"]
    return pod


def _settings() -> dict[str, str]:
    lines = (DIRECTORY / "settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_every_manifest_is_valid() -> None:
    passes("kubernetes-validate", "--strict", *(DIRECTORY / name for name in documents(KUSTOMIZATION)[0]["resources"]))


def test_the_kustomization_lists_every_manifest() -> None:
    files = {file.name for file in DIRECTORY.glob("*.yaml")} - {KUSTOMIZATION.name}
    assert set(documents(KUSTOMIZATION)[0]["resources"]) == files


def test_each_part_has_a_deployment_and_a_disruption_budget() -> None:
    deployments, budgets = _resources("Deployment"), _resources("PodDisruptionBudget")
    assert sorted(deployments) == sorted(budgets) == sorted(PARTS)
    for part in PARTS:
        spec = deployments[part]["spec"]
        assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"] == _labels(part)
        assert budgets[part]["spec"]["selector"]["matchLabels"] == _labels(part)
        assert _pod(deployments[part])["containers"][0]["args"] == ["run", part]


def test_kubernetes_waits_as_long_as_a_part_may_take_to_stop_and_the_proxy_to_notice() -> None:
    stop = limits.STOP_SECONDS_MAX
    for part, deployment in _resources("Deployment").items():
        (container,) = _pod(deployment)["containers"]
        first = int(container["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in container else 0
        assert stop + first <= _pod(deployment)["terminationGracePeriodSeconds"] <= stop + 5, part


def test_pods_have_no_privileges_and_a_read_only_root() -> None:
    for document in [*_resources("Deployment").values(), *_resources("Job").values()]:
        pod = _pod(document)
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_each_part_is_probed_where_it_answers() -> None:
    for part, deployment in _resources("Deployment").items():
        (container,) = _pod(deployment)["containers"]
        ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        assert ports["monitoring"] == image_environment()["POSTHOUSE_MONITORING__PORT"], part
        for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
            assert container[probe]["httpGet"] == {"path": path, "port": "monitoring"}, part


def test_ports_are_those_of_the_image_and_services_find_them() -> None:
    image = image_environment()
    deployments, services = _resources("Deployment"), _resources("Service")
    ports = {
        part: {
            port["name"]: str(port["containerPort"])
            for port in _pod(deployments[part])["containers"][0]["ports"]
            if port["name"] != "monitoring"
        }
        for part in services
    }
    assert ports == {
        "http": {"http": image["POSTHOUSE_HTTP__PORT"]},
        "submission": {
            "submission": image["POSTHOUSE_SUBMISSION__PORT"],
            "submissions": image["POSTHOUSE_SUBMISSION__TLS_PORT"],
        },
        "inbound": {"inbound": image["POSTHOUSE_INBOUND__PORT"]},
    }
    for part, service in services.items():
        assert service["spec"]["selector"] == _labels(part)
        assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports[part])


def test_a_part_takes_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(_settings(), tmp_path, monkeypatch)
    assert settings.service.hostname == "mail.example.com"
    assert len(settings.stream.addresses) == settings.stream.replicas == 3


def test_each_secret_that_a_setting_names_is_mounted(tmp_path: Path) -> None:
    settings = _settings()
    (generator,) = documents(KUSTOMIZATION)[0]["secretGenerator"]
    mounted = {Path(file).name for file in generator["files"]}
    named = {Path(value) for name, value in settings.items() if name.endswith(FILE_SUFFIX)}
    assert {file.name for file in named if file.is_relative_to(SECRETS)} == mounted
    assert mounted <= secret_names(tmp_path)


@pytest.mark.parametrize("part", ["notification", "delivery"])
def test_what_calls_out_reaches_only_public_addresses(part: str) -> None:
    policy = _resources("NetworkPolicy")[part]["spec"]
    assert policy["podSelector"]["matchLabels"] == _labels(part)
    (rule,) = policy["egress"]
    blocks = {entry["ipBlock"]["cidr"]: entry["ipBlock"]["except"] for entry in rule["to"]}
    assert blocks == {"0.0.0.0/0": list(map(str, FORBIDDEN)), str(ALLOCATED_6): list(map(str, FORBIDDEN_6))}


def test_nothing_is_open_by_default() -> None:
    policies = _resources("NetworkPolicy")
    assert policies["nothing-by-default"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    parts = {"http", "submission", "inbound", "delivery", "notification"}
    assert set(policies) == parts | {"nothing-by-default", "names-and-data", "monitoring"}
