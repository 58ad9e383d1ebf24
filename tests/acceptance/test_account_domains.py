"""An account's domains over HTTP: added, verified in a scripted DNS, keys rotated, removed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support import server_process
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.nameserver import SERVFAIL, Nameserver
from tests.support.service import Service, Tenant

SUMMARY_FIELDS = {
    "id", "name", "verified", "vouched", "shared", "verified_at", "checked_at", "missing_since", "created_at",
    "dns_host", "findings",
}  # fmt: skip
RECORD_FIELDS = {"purpose", "state", "type", "name", "value", "required", "result", "found", "checked_at", "advice"}
PURPOSES = ["ownership", "dkim_rsa", "dkim_ed25519", "return_path", "dmarc"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def names() -> AsyncIterator[Nameserver]:
    async with Nameserver() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def registrar(
    service: Service, names: Nameserver, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """A process that asks the scripted name server."""
    log = tmp_path_factory.mktemp("registrar") / "server.log"
    running = await server_process.start_service(
        service.database_url,
        log,
        SERVICE__RESOLVERS=f"127.0.0.1:{names.port}",
        INBOUND__RETURN_PATH_DOMAIN="bounces.posthouse.example",
    )
    yield running
    await running.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def owner(registrar: Service) -> Tenant:
    """An account of this test, without a domain."""
    return await registrar.account(domain=None)


async def added(tenant: Tenant, name: str) -> dict[str, Any]:
    return domain_of(await tenant.call("POST", "/v1/domains", {"name": name}), 201)


async def verify(tenant: Tenant, name: str) -> Answer:
    """As if the last check were long ago."""
    await tenant.service.sql("UPDATE domains SET asked_at = NULL WHERE account_id = $1", tenant.id)
    return await tenant.call("POST", f"/v1/domains/{name}/verify")


def domain_of(answer: Answer, status: int = 200) -> dict[str, Any]:
    assert answer.status == status, answer.raw
    domain: dict[str, Any] = answer.body["domain"]
    assert set(domain) == SUMMARY_FIELDS | {"rotating", "records"}
    assert all(set(record) == RECORD_FIELDS for record in domain["records"])
    return domain


def publish(names: Nameserver, domain: dict[str, Any]) -> None:
    for record in domain["records"]:
        if record["value"]:
            names.zone[record["name"]] = [record["value"]]


def records(domain: dict[str, Any], state: str = "active") -> dict[str, dict[str, Any]]:
    return {record["purpose"]: record for record in domain["records"] if record["state"] == state}


@pytest.mark.rule("REG-02", "REG-03")
async def test_a_domain_is_added_with_the_records_to_publish(owner: Tenant) -> None:
    name = f"BÜCHER.{owner.unique}.example.org"
    domain = await added(owner, name)
    plain = f"xn--bcher-kva.{owner.unique}.example.org"
    assert (domain["name"], domain["verified"], domain["rotating"]) == (plain, False, False)
    assert [record["purpose"] for record in domain["records"]] == PURPOSES
    shown = records(domain)
    assert [purpose for purpose, record in shown.items() if record["required"]] == ["ownership", "dkim_rsa"]
    assert shown["ownership"]["name"] == f"_posthouse.{plain}"
    assert shown["ownership"]["value"].startswith("posthouse-verification=")
    assert shown["dkim_rsa"]["value"].startswith("v=DKIM1; k=rsa; p=")
    assert shown["dkim_ed25519"]["value"].startswith("v=DKIM1; k=ed25519; p=")
    assert (shown["return_path"]["name"], shown["return_path"]["value"]) == ("bounces.posthouse.example", None)
    assert shown["dmarc"]["name"] == f"_dmarc.{plain}"
    for record in domain["records"]:
        assert (record["type"], record["state"]) == ("TXT", "active")
        assert (record["result"], record["found"], record["checked_at"]) == (None, None, None)
        assert record["advice"]
    again = await owner.call("POST", "/v1/domains", {"name": f"{plain}."})
    assert again.is_refusal(409, "conflict", "already")


@pytest.mark.rule("REG-04", "REG-05")
async def test_a_check_shows_the_result_and_advice_of_each_record(owner: Tenant, names: Nameserver) -> None:
    name = f"{owner.unique}.example.org"
    domain = await added(owner, name)
    nothing = records(domain_of(await verify(owner, name)))
    assert {record["result"] for record in nothing.values()} == {"missing"}
    assert nothing["dkim_rsa"]["found"] == []
    assert f"No TXT record was found at {nothing['dkim_rsa']['name']}" in nothing["dkim_rsa"]["advice"]
    publish(names, domain)
    shown = records(domain)
    names.zone[shown["ownership"]["name"]] = ["posthouse-verification=anothers", "\x1b[2J" + "x" * 1_010]
    names.zone[shown["dkim_rsa"]["name"]] = [shown["dkim_rsa"]["value"], shown["dkim_ed25519"]["value"]]
    names.script[shown["dkim_ed25519"]["name"]] = SERVFAIL
    names.zone["bounces.posthouse.example"] = ["v=spf1 ip4:192.0.2.10 -all"]
    wrong = domain_of(await verify(owner, name))
    assert not wrong["verified"]
    found = records(wrong)
    assert {purpose: record["result"] for purpose, record in found.items()} == {
        "ownership": "missing",
        "dkim_rsa": "missing",
        "dkim_ed25519": "unknown",
        "return_path": "found",
        "dmarc": "found",
    }
    assert "posthouse-verification=anothers" in found["ownership"]["found"]
    assert all(len(value) <= 1_000 for value in found["ownership"]["found"])
    assert "another value" in found["ownership"]["advice"]
    assert "several DKIM keys" in found["dkim_rsa"]["advice"]
    assert "no usable answer" in found["dkim_ed25519"]["advice"]
    assert found["return_path"]["found"] == ["v=spf1 ip4:192.0.2.10 -all"]
    publish(names, domain)
    del names.zone[f"_dmarc.{name}"]
    right = domain_of(await verify(owner, name))
    assert right["verified"]
    assert (right["vouched"], right["missing_since"]) == (False, None)
    assert records(right)["dkim_rsa"]["advice"] == ""

    async def send() -> Answer:
        return await owner.send(owner.mail(from_=f"news@{name}"))

    assert (await eventually(send, lambda answer: answer.status != 403)).is_accepted()


@pytest.mark.rule("REG-15")
async def test_the_findings_of_the_last_check_stay(owner: Tenant, names: Nameserver) -> None:
    name = f"{owner.unique}.example.org"
    domain = await added(owner, name)
    assert domain["findings"] == []
    publish(names, domain)
    shown = records(domain)
    hostile = ["<script>alert(1)</script>\0\u202e", *[f"{number} <b>" for number in range(6)], "x" * 600]
    names.zone[shown["dmarc"]["name"]] = ["v=DMARC1; p=none", *hostile]
    names.zone[shown["dkim_ed25519"]["name"]] = hostile
    checked = domain_of(await verify(owner, name))
    stored = domain_of(await owner.call("GET", f"/v1/domains/{name}", role="viewer"))
    for fresh, kept in zip(checked["records"], stored["records"], strict=True):
        assert {**fresh, "found": kept["found"]} == kept
        assert kept["found"] == [value.replace("\0", "")[:500] for value in fresh["found"][:5]]
        assert kept["checked_at"] == checked["checked_at"]
    assert len(records(stored)["dkim_ed25519"]["found"]) == 5
    # The return path belongs to the installation: other tests of this file may have published it.
    results = {"ownership": "found", "dkim_rsa": "found", "dkim_ed25519": "missing", "dmarc": "found"}
    results["return_path"] = records(stored)["return_path"]["result"]
    (listed,) = (await owner.call("GET", "/v1/domains")).body["domains"]
    assert set(listed) == SUMMARY_FIELDS
    assert {finding["purpose"]: finding["result"] for finding in listed["findings"]} == results
    assert stored["findings"] == listed["findings"]
    # Keys that replace those that were checked have not been found yet.
    rotated = domain_of(await owner.call("POST", f"/v1/domains/{name}/rotate"))
    assert {record["result"] for record in records(rotated, "pending").values()} == {None}
    assert {purpose: record["result"] for purpose, record in records(rotated).items()} == results


@pytest.mark.rule("REG-16")
async def test_the_dns_host_is_guessed_from_the_name_servers(owner: Tenant, names: Nameserver) -> None:
    zone = f"{owner.unique}.example.org"
    names.records[zone, "NS"] = ["ada.ns.cloudflare.com.", "bob.ns.cloudflare.com."]
    for name in (zone, f"mail.{zone}"):
        assert (await added(owner, name))["dns_host"] is None
        assert domain_of(await verify(owner, name))["dns_host"] == "Cloudflare"
    assert {domain["dns_host"] for domain in (await owner.call("GET", "/v1/domains")).body["domains"]} == {"Cloudflare"}
    names.records[zone, "NS"] = ["ns1.unknown-host.example."]
    assert domain_of(await verify(owner, zone))["dns_host"] == "unknown-host.example"
    names.script[zone] = SERVFAIL
    assert domain_of(await verify(owner, zone))["dns_host"] == "unknown-host.example", "the last that DNS said"
