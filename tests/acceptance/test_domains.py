"""Sender domains: only those that the account has registered and verified, exactly as registered."""

import pytest

from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant


@pytest.mark.rule("DOM-01", "CODE-04")
async def test_an_unregistered_domain_is_forbidden(regular: Tenant, tenant: Tenant) -> None:
    for sender in ("news@unregistered.example", "Acme <news@unregistered.example>"):
        await tenant.refuses(tenant.mail(from_=sender), 403, "forbidden", "unregistered.example")
    body = tenant.mail(from_="news@unregistered.example")
    await tenant.refuses(body, 403, "forbidden", authorization=await tenant.key("test"))
    await tenant.refuses(tenant.mail(from_=f"news@{regular.domain}"), 403, "forbidden", regular.domain)


@pytest.mark.rule("DOM-02")
async def test_a_domain_can_send_only_once_it_is_verified(service: Service, tenant: Tenant) -> None:
    name = f"second.{tenant.domain}"
    await service.operator.add_domain(tenant.id, name)
    await tenant.refuses(tenant.mail(from_=f"news@{name}"), 403, "forbidden", name)
    await service.operator.verify_domain(tenant.id, name)

    async def send() -> Answer:
        return await tenant.send(tenant.mail(from_=f"news@{name}"))

    assert (await eventually(send, lambda answer: answer.status != 403)).is_accepted()


@pytest.mark.rule("DOM-03")
async def test_neither_a_subdomain_nor_the_parent_is_the_domain(tenant: Tenant) -> None:
    parent = tenant.domain.split(".", 1)[1]
    for domain in (f"mail.{tenant.domain}", parent, f"x{tenant.domain}", f"{tenant.domain}.example"):
        await tenant.refuses(tenant.mail(from_=f"news@{domain}"), 403, "forbidden", domain)


@pytest.mark.rule("DOM-04")
async def test_two_accounts_may_have_one_domain(service: Service) -> None:
    first = await service.account(domain="shared-by-two.example.com")
    second = await service.account(domain="shared-by-two.example.com")
    for tenant in (first, second):
        await tenant.accepts(tenant.mail(from_="news@shared-by-two.example.com"))


@pytest.mark.rule("DOM-05", "ADDR-02")
async def test_domains_are_compared_in_lower_case_and_as_a_labels(service: Service) -> None:
    tenant = await service.account(domain="bücher.{unique}.example.com")
    parent = f"{tenant.unique}.example.com"
    for domain in (
        f"bücher.{parent}",
        f"BÜCHER.{parent.upper()}",
        f"xn--bcher-kva.{parent}",
        f"Xn--Bcher-Kva.{parent}",
    ):
        sent = await tenant.accepts(tenant.mail(from_=f"news@{domain}"))
        assert sent["from"] == f"news@{domain}"
        stored = await tenant.stored(sent["id"])
        assert stored["From"].addresses[0].domain == f"xn--bcher-kva.{parent}"
    await tenant.refuses(tenant.mail(from_=f"news@bucher.{parent}"), 403, "forbidden")
