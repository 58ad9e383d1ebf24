"""Addresses of a send request: their forms, what is refused, and when two are the same."""

import pytest

from tests.support.service import Tenant

FIELDS = ["from", "to", "cc", "bcc", "reply_to"]


def filled(tenant: Tenant, field: str, address: str) -> dict[str, object]:
    return tenant.mail() | {field: address}


@pytest.mark.rule("ADDR-01")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("form", ["{0}", "Ada <{0}>", '"Lovelace, Ada" <{0}>', "<{0}>", "Ada Łukasiewicz <{0}>"])
async def test_every_field_takes_an_address_with_or_without_a_name(regular: Tenant, field: str, form: str) -> None:
    address = f"ada.l+x@{regular.domain}"
    sent = await regular.accepts(filled(regular, field, form.format(address)))
    given = sent[field]
    assert given == ([form.format(address)] if field in {"to", "cc", "bcc"} else form.format(address))
    if field != "bcc":
        header = (await regular.stored(sent["id"]))[field.replace("_", "-")]
        assert header.addresses[0].addr_spec == address
    if "Łukasiewicz" in form and field != "bcc":
        assert header.addresses[0].display_name == "Ada Łukasiewicz"
    if "," in form and field != "bcc":
        assert header.addresses[0].display_name == "Lovelace, Ada"


@pytest.mark.rule("ADDR-04")
async def test_addresses_are_echoed_as_given_and_read_back_bare(regular: Tenant) -> None:
    body = regular.mail(
        from_=f"Acme Support <Help@{regular.domain.upper()}>",
        to=["Ada <Ada@Example.ORG>", "bob@example.org"],
        cc=["Cy <cy@example.org>"],
        bcc=["Di <di@example.org>"],
    )
    sent = await regular.accepts(body)
    assert {field: sent[field] for field in ("from", "to", "cc", "bcc")} == {
        field: body[field] for field in ("from", "to", "cc", "bcc")
    }
    read = (await regular.get(sent["id"])).body
    assert read["from"] == body["from"]
    emails = [recipient["email"] for recipient in read["recipients"]]
    assert emails == ["Ada@example.org", "bob@example.org", "cy@example.org", "di@example.org"]
