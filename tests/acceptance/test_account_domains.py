"""An account's domains over HTTP: added, verified in a scripted DNS, keys rotated, removed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from posthouse.rules import limits
from tests.support import server_process
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.nameserver import SERVFAIL, Nameserver
from tests.support.service import ABSENT, Service, Tenant

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


@pytest.mark.rule("REG-01")
async def test_viewers_read_and_only_admins_change_domains(owner: Tenant) -> None:
    name = f"{owner.unique}.example.org"
    await added(owner, name)
    for path in ("/v1/domains", f"/v1/domains/{name}"):
        assert (await owner.call("GET", path, role="viewer")).status == 200
        assert (await owner.service.request("GET", path, headers={"Authorization": owner.basic})).status == 401
    for method, path, body in (
        ("POST", "/v1/domains", {"name": "example.net"}),
        ("POST", f"/v1/domains/{name}/verify", ABSENT),
        ("POST", f"/v1/domains/{name}/rotate", ABSENT),
        ("DELETE", f"/v1/domains/{name}", ABSENT),
    ):
        assert (await owner.call(method, path, body, role="member")).is_refusal(403, "forbidden", "an admin")
    assert (await owner.call("DELETE", f"/v1/domains/{name}", role="admin")).status == 200


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


@pytest.mark.rule("REG-02")
@pytest.mark.parametrize("body", [{"name": "localhost"}, {"name": ""}, {"name": "a b.example"}, {"name": 7}, {}, []])
async def test_an_invalid_domain_is_refused(owner: Tenant, body: object) -> None:
    assert (await owner.call("POST", "/v1/domains", body)).is_refusal(400, "invalid_request")


@pytest.mark.rule("REG-02")
async def test_an_account_has_a_thousand_domains_at_most(owner: Tenant) -> None:
    await added(owner, f"{owner.unique}.example.org")
    await owner.service.sql(
        """
        INSERT INTO domains (account_id, id, name, token, selector, dkim_public, dkim_sealed, created_at)
        SELECT account_id, gen_random_uuid(), n || '.example', token, selector, dkim_public, dkim_sealed, created_at
        FROM domains CROSS JOIN generate_series(2, $2) n WHERE account_id = $1
        """,
        owner.id, limits.DOMAINS_MAX,
    )  # fmt: skip
    more = await owner.call("POST", "/v1/domains", {"name": "one-more.example"})
    assert more.is_refusal(409, "conflict", "remove one first")


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


@pytest.mark.rule("REG-06")
async def test_a_domain_is_checked_at_most_every_five_seconds(owner: Tenant, names: Nameserver) -> None:
    name = f"{owner.unique}.example.org"
    await added(owner, name)
    both = await asyncio.gather(*[owner.call("POST", f"/v1/domains/{name}/verify") for _ in range(2)])
    assert sorted(answer.status for answer in both) == [200, 429]
    asked = len(names.asked)
    soon = await owner.call("POST", f"/v1/domains/{name}/verify")
    assert soon.is_refusal(429, "rate_limited", name)
    assert int(soon.headers["Retry-After"]) == limits.DOMAIN_ASKED_SECONDS
    assert len(names.asked) == asked


@pytest.mark.rule("REG-07")
async def test_domains_are_listed_newest_first_in_pages(owner: Tenant) -> None:
    made = [(await added(owner, f"{number}.{owner.unique}.example.org"))["name"] for number in range(3)]
    whole = await owner.call("GET", "/v1/domains", role="viewer")
    assert [domain["name"] for domain in whole.body["domains"]] == made[::-1]
    assert all(set(domain) == SUMMARY_FIELDS for domain in whole.body["domains"])
    assert whole.body["next_cursor"] is None
    first = await owner.call("GET", "/v1/domains?limit=2")
    rest = await owner.call("GET", f"/v1/domains?limit=2&cursor={first.body['next_cursor']}")
    assert first.body["domains"] + rest.body["domains"] == whole.body["domains"]
    for query in ("limit=0", "limit=101", "limit=x", "cursor=x", "cursor="):
        answer = await owner.call("GET", f"/v1/domains?{query}")
        assert answer.is_refusal(400, "invalid_request", query.partition("=")[0])
    found = domain_of(await owner.call("GET", f"/v1/domains/{made[0].upper()}", role="viewer"))
    assert found["name"] == made[0]


@pytest.mark.rule("REG-08")
async def test_another_accounts_domain_is_unknown_and_untouched(registrar: Service, owner: Tenant) -> None:
    other = await registrar.account(domain="held-by-another.example.com")
    for method, path in (("GET", ""), ("POST", "/verify"), ("POST", "/rotate"), ("DELETE", "")):
        texts = []
        for name in ("held-by-another.example.com", "held-by-nobody.example.com"):
            answer = await owner.call(method, f"/v1/domains/{name}{path}")
            assert answer.is_refusal(404, "not_found")
            texts.append(answer.error.replace(name, "…"))
        assert texts[0] == texts[1]
    for impossible in ("localhost", "a%00b.example", "%20"):
        assert (await owner.call("GET", f"/v1/domains/{impossible}")).is_refusal(404, "not_found")
    mine = await added(owner, "held-by-another.example.com")
    theirs = domain_of(await other.call("GET", "/v1/domains/held-by-another.example.com"))
    assert {record["value"] for record in mine["records"][:3]}.isdisjoint(
        record["value"] for record in theirs["records"][:3]
    )
    assert (await owner.call("DELETE", "/v1/domains/held-by-another.example.com")).status == 200
    assert domain_of(await other.call("GET", "/v1/domains/held-by-another.example.com")) == theirs


@pytest.mark.rule("REG-09", "REG-10", "REG-11", "REG-13")
async def test_new_keys_sign_once_found_and_old_records_stay_for_a_week(owner: Tenant, names: Nameserver) -> None:
    name = f"{owner.unique}.example.org"
    publish(names, await added(owner, name))
    old = domain_of(await verify(owner, name))
    rotated = domain_of(await owner.call("POST", f"/v1/domains/{name}/rotate"))
    assert rotated["rotating"]
    assert {purpose: record["name"] for purpose, record in records(rotated).items()} == {
        purpose: record["name"] for purpose, record in records(old).items()
    }
    pending = records(rotated, "pending")
    assert set(pending) == {"dkim_rsa", "dkim_ed25519"}
    again = await owner.call("POST", f"/v1/domains/{name}/rotate")
    assert again.is_refusal(409, "conflict", "publish those")
    waiting = domain_of(await verify(owner, name))
    assert waiting["verified"]
    assert records(waiting, "pending")["dkim_rsa"]["result"] == "missing"
    names.zone[pending["dkim_rsa"]["name"]] = [pending["dkim_rsa"]["value"]]
    switched = domain_of(await verify(owner, name))
    assert (switched["rotating"], switched["verified"], records(switched, "pending")) == (False, True, {})
    assert records(switched)["dkim_rsa"]["name"] == pending["dkim_rsa"]["name"]
    previous = records(switched, "previous")
    assert {purpose: record["name"] for purpose, record in previous.items()} == {
        purpose: records(old)[purpose]["name"] for purpose in ("dkim_rsa", "dkim_ed25519")
    }
    assert all(record["advice"].startswith("Leave it in DNS until ") for record in previous.values())
    (stored,) = await owner.service.sql(
        "SELECT selector, ed25519_published FROM domains WHERE account_id = $1", owner.id
    )
    assert pending["dkim_rsa"]["name"].startswith(f"{stored['selector']}.")
    assert not stored["ed25519_published"], "its own record was not seen"
    await owner.service.sql(
        "UPDATE domain_keys SET retired_at = retired_at - interval '7 days 1 s' WHERE account_id = $1", owner.id
    )
    assert records(domain_of(await owner.call("GET", f"/v1/domains/{name}")), "previous") == {}
    log = await owner.call("GET", "/v1/audit-log?limit=100")
    actions = [entry["action"] for entry in log.body["entries"][::-1] if entry["target"] == name]
    assert actions == ["domain.added", "domain.verified", "domain.rotation_started", "domain.keys_switched"]


@pytest.mark.rule("REG-12", "REG-13")
async def test_a_removed_domain_cannot_send_and_returns_as_a_new_domain(owner: Tenant, names: Nameserver) -> None:
    name = f"{owner.unique}.example.org"
    old = await added(owner, name)
    publish(names, old)
    assert domain_of(await verify(owner, name))["verified"]

    async def send() -> Answer:
        return await owner.send(owner.mail(from_=f"news@{name}"))

    assert (await eventually(send, lambda answer: answer.status != 403)).is_accepted()
    removed = await owner.call("DELETE", f"/v1/domains/{name}")
    assert (removed.status, removed.body["deleted"]) == (200, True)
    assert (await owner.call("DELETE", f"/v1/domains/{name}")).is_refusal(404, "not_found")
    assert (await eventually(send, lambda answer: answer.status != 202)).is_refusal(403, "forbidden", name)
    new = await added(owner, name)
    assert not new["verified"]
    assert not {record["value"] for record in new["records"][:3]} & {record["value"] for record in old["records"][:3]}
    log = await owner.call("GET", "/v1/audit-log?limit=100")
    actions = [entry["action"] for entry in log.body["entries"][::-1] if entry["target"] == name]
    assert actions == ["domain.added", "domain.verified", "domain.removed", "domain.added"]


@pytest.mark.rule("REG-14")
async def test_an_account_adds_domains_at_a_rate(owner: Tenant, registrar: Service) -> None:
    answers = [
        await owner.call("POST", "/v1/domains", {"name": f"r{number}.example.com"})
        for number in range(limits.DOMAIN_KEYS_BURST)
    ]
    assert {answer.status for answer in answers} == {201}

    async def another() -> Answer:
        return await owner.call("POST", "/v1/domains", {"name": f"more-{owner.new_key()}.example.com"})

    refused = await eventually(another, lambda answer: answer.status == 429)
    assert refused.is_refusal(429, "rate_limited", "a minute")
    other = await registrar.account(domain=None)
    assert (await other.call("POST", "/v1/domains", {"name": "r1.example.com"})).status == 201


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
