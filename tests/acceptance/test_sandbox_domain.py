"""The sandbox domain: a new account's first mail needs no DNS, and goes only to its members and the simulator."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.operator_client import Operator
from tests.support.service import SENDER_DOMAIN, Service, Tenant, settings_for, settings_from

SIMULATED = "delivered@simulator.invalid"
FROM = f"hello@{SENDER_DOMAIN}"


@pytest_asyncio.fixture(loop_scope="session")
async def newcomer(service: Service) -> AsyncIterator[Tenant]:
    """An account without its own domain, of an operator who shares one."""
    settings = settings_from(settings_for(service.database_url, SERVICE__SANDBOX_DOMAIN=SENDER_DOMAIN))
    operator = await Operator.open(settings)
    yield await replace(service, operator=operator).account(domain=None)
    await operator.close()


@pytest.mark.rule("REG-17")
async def test_a_new_account_has_the_domain_and_cannot_change_it(newcomer: Tenant, tenant: Tenant) -> None:
    (listed,) = (await newcomer.call("GET", "/v1/domains")).body["domains"]
    assert (listed["name"], listed["verified"], listed["shared"]) == (SENDER_DOMAIN, True, True)
    path = f"/v1/domains/{SENDER_DOMAIN}"
    assert (await newcomer.call("GET", path)).body["domain"]["records"] == []
    for method, action in [("POST", "/verify"), ("POST", "/rotate"), ("DELETE", "")]:
        answer = await newcomer.call(method, path + action)
        assert answer.is_refusal(403, "forbidden", SENDER_DOMAIN)
    steps = (await newcomer.call("GET", "/v1/progress")).body["steps"]
    assert {step["step"]: step["done"] for step in steps}["domain_verified"] is False
    # Accounts of an operator who shares none don't have it.
    assert not any(domain["shared"] for domain in (await tenant.call("GET", "/v1/domains")).body["domains"])


@pytest.mark.rule("REG-18")
async def test_mail_from_it_goes_to_members_and_the_simulator(newcomer: Tenant, other_tenant: Tenant) -> None:
    member, outsider = await newcomer.user("viewer"), await other_tenant.user()
    await newcomer.accepts(newcomer.mail(from_=FROM, to=[member.upper(), SIMULATED]))
    test_key = await newcomer.key("test")
    for fields in ({"to": outsider}, {"to": member, "cc": outsider}, {"to": SIMULATED, "bcc": [member, outsider]}):
        body = newcomer.mail(from_=FROM, **fields)
        await newcomer.refuses(body, 403, "forbidden", outsider)
        await newcomer.refuses(body, 403, "forbidden", outsider, authorization=test_key)
    tried = await newcomer.call("POST", "/v1/emails/dry-run", newcomer.mail(from_=FROM, to=outsider))
    assert (tried.body["would_accept"], tried.body["refusal"]["code"]) == (False, "forbidden")


@pytest.mark.rule("REG-18")
async def test_a_removed_member_gets_no_mail_from_it(newcomer: Tenant) -> None:
    member = await newcomer.user("viewer")
    await newcomer.accepts(newcomer.mail(from_=FROM, to=member))
    members = (await newcomer.call("GET", "/v1/members")).body["members"]
    member_id = next(found["id"] for found in members if found["email"] == member)
    assert (await newcomer.call("DELETE", f"/v1/members/{member_id}")).status == 200

    async def send() -> Answer:
        return await newcomer.send(newcomer.mail(from_=FROM, to=member))

    assert (await eventually(send, lambda answer: answer.status != 202)).is_refusal(403, "forbidden", member)


@pytest.mark.rule("REG-19")
async def test_the_first_mail_to_oneself_needs_no_domain(newcomer: Tenant) -> None:
    sent = await newcomer.call("POST", "/v1/test-email", {})
    assert (sent.status, sent.body["from"]) == (202, f"test@{SENDER_DOMAIN}")
    own = f"{newcomer.unique}.example.com"
    await newcomer.service.operator.add_verified_domain(newcomer.id, own)
    sent = await newcomer.call("POST", "/v1/test-email", {})
    assert (sent.status, sent.body["from"]) == (202, f"test@{own}")
