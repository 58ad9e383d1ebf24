"""Addresses of a send request: their forms, what is refused, and when two are the same."""

import pytest

from tests.support.service import Tenant

FIELDS = ["from", "to", "cc", "bcc", "reply_to"]
REFUSED_FORMS = {
    "non-ASCII local part": "ädä@example.org",
    "quoted local part": '"ada lovelace"@example.org',
    "address literal": "ada@[192.0.2.1]",
    "IPv6 literal": "ada@[IPv6:2001:db8::1]",
    "comment": "ada@example.org (Ada)",
    "comment inside": "ada(comment)@example.org",
    "group": "friends: ada@example.org, bob@example.org;",
    "single label": "ada@localhost",
    "comma list": "ada@example.org, bob@example.org",
    "comma list of mailboxes": "Ada <ada@example.org>, Bob <bob@example.org>",
}
NO_ADDRESSES = [
    "ada",
    "@example.org",
    "ada@",
    "ada@@example.org",
    "ada@example.org@example.net",
    "a da@example.org",
    "ada@exam ple.org",
    ".ada@example.org",
    "ada.@example.org",
    "a..da@example.org",
    "ada@example..org",
    "ada@.example.org",
    "ada@-example.org",
    "Ada <ada@example.org",
    "Ada ada@example.org>",
    "<>",
    "Ada <>",
    "ada@example.org>",
    "ada@example_.org",
    "<ada@example.org> trailing",
]


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


@pytest.mark.rule("ADDR-02")
@pytest.mark.parametrize(
    ("given", "bare"),
    [
        ("ada@bücher.example", "ada@xn--bcher-kva.example"),
        ("Ada <ada@BÜCHER.example>", "ada@xn--bcher-kva.example"),
        ("ada@例え.example", "ada@xn--r8jz45g.example"),
        ("ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
    ],
)
async def test_an_internationalised_domain_becomes_its_a_label(regular: Tenant, given: str, bare: str) -> None:
    sent = await regular.accepts(regular.mail(to=given))
    assert sent["to"] == [given]
    read = (await regular.get(sent["id"])).body
    assert [recipient["email"] for recipient in read["recipients"]] == [bare]
    assert bare.encode() in await regular.mime(sent["id"])


@pytest.mark.rule("ADDR-03")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("form", REFUSED_FORMS)
async def test_refused_forms_are_refused_in_every_field(regular: Tenant, field: str, form: str) -> None:
    await regular.refuses(filled(regular, field, REFUSED_FORMS[form]), 400, "invalid_request", field)


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


@pytest.mark.rule("ADDR-05", "MONEY-01")
@pytest.mark.parametrize(
    "recipients",
    [
        {"to": ["ada@example.org", "ada@example.org"]},
        {"to": ["ada@example.org", "ADA@EXAMPLE.ORG", "Ada <ada@Example.org>"]},
        {"to": "ada@example.org", "cc": "Ada <ada@example.org>", "bcc": ["ada@example.org"]},
        {"to": ["ada@bücher.example", "ada@xn--bcher-kva.example", "Ada@XN--BCHER-KVA.example"]},
    ],
)
async def test_recipients_are_unique_by_address_only(tenant: Tenant, recipients: dict[str, object]) -> None:
    sent = await tenant.accepts(tenant.mail(**recipients))
    assert (sent["recipient_count"], sent["credits_reserved"]) == (1, 1)
    counts = await tenant.counts()
    assert (counts["recipients"], counts["delivery_schedule"], counts["reserved"]) == (1, 1, 1)
    assert await tenant.available() == 999


@pytest.mark.rule("ADDR-05")
async def test_addresses_that_differ_by_more_than_case_are_different(regular: Tenant) -> None:
    to = ["ada@example.org", "ada+1@example.org", "a.da@example.org", "ada@mail.example.org"]
    assert (await regular.accepts(regular.mail(to=to)))["recipient_count"] == 4


@pytest.mark.rule("ADDR-06")
async def test_the_first_spelling_is_used(regular: Tenant) -> None:
    sent = await regular.accepts(regular.mail(to=["AdA@example.org", "ada@example.org"], cc="ADA@example.org"))
    read = (await regular.get(sent["id"])).body
    assert [recipient["email"] for recipient in read["recipients"]] == ["AdA@example.org"]


@pytest.mark.rule("ADDR-07")
async def test_fifty_unique_recipients_are_accepted_over_all_three_fields(regular: Tenant) -> None:
    many = [f"r{number}@example.org" for number in range(50)]
    body = regular.mail(to=many[:20], cc=many[20:40] + many[:5], bcc=[*many[40:], "R0@EXAMPLE.ORG"])
    sent = await regular.accepts(body)
    assert (sent["recipient_count"], sent["credits_reserved"]) == (50, 50)
    assert len((await regular.get(sent["id"])).body["recipients"]) == 50


@pytest.mark.rule("ADDR-07")
async def test_fifty_one_unique_recipients_are_refused(regular: Tenant) -> None:
    many = [f"r{number}@example.org" for number in range(51)]
    body = regular.mail(to=many[:20], cc=many[20:40], bcc=many[40:])
    await regular.refuses(body, 400, "invalid_request", "50")
    await regular.refuses(regular.mail(to=many), 400, "invalid_request", "50")


@pytest.mark.rule("ADDR-08")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "given",
    [
        "Ada\r\nBcc: eve@example.net <ada@example.org>",
        "Ada\n <ada@example.org>",
        "Ada\0 <ada@example.org>",
        "Ada\x1b[31m <ada@example.org>",
        "ada@example.org\r\n",
        "ada\0@example.org",
        "ada@example.org\r\nRCPT TO:<eve@example.net>",
    ],
    ids=repr,
)
async def test_control_characters_are_refused(regular: Tenant, field: str, given: str) -> None:
    await regular.refuses(filled(regular, field, given), 400, "invalid_request", field)


@pytest.mark.rule("ADDR-09")
@pytest.mark.parametrize("given", NO_ADDRESSES)
async def test_invalid_addresses_are_refused(regular: Tenant, given: str) -> None:
    await regular.refuses(regular.mail(to=["bob@example.org", given]), 400, "invalid_request", "to")


@pytest.mark.rule("ADDR-10")
async def test_the_lengths_of_rfc_5321_hold(regular: Tenant) -> None:
    await regular.accepts(regular.mail(to="l" * 64 + "@example.org"))
    await regular.refuses(regular.mail(to="l" * 65 + "@example.org"), 400, "invalid_request", "to")
    domain = ".".join(["d" * 60] * 4)
    await regular.refuses(regular.mail(to=f"{'l' * 20}@{domain}"), 400, "invalid_request", "to")
