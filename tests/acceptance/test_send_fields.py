"""The fields of a send request: which are required, their values, and the refusals that name them."""

import pytest

from tests.support.service import ABSENT, Tenant

ATTACHMENT = {"filename": "note.txt", "content": "aGVsbG8="}


@pytest.mark.rule("SEND-01")
@pytest.mark.parametrize("given", [ABSENT, None, "", [], ["news@example.com"], 7, {"email": "news@example.com"}])
async def test_from_is_a_single_address(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(from_=given), 400, "invalid_request", "from")


@pytest.mark.rule("SEND-02", "ERR-02")
@pytest.mark.parametrize("given", [ABSENT, None, "", [], [""], [None], 7, {}, [["ada@example.org"]], True])
async def test_to_is_an_address_or_a_list_with_at_least_one(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(to=given), 400, "invalid_request", "to")


@pytest.mark.rule("SEND-02")
async def test_to_takes_one_address_or_a_list(regular: Tenant) -> None:
    assert (await regular.accepts(regular.mail(to="ada@example.org")))["recipient_count"] == 1
    two = await regular.accepts(regular.mail(to=["ada@example.org", "bob@example.org"]))
    assert two["recipient_count"] == 2


@pytest.mark.rule("SEND-03")
@pytest.mark.parametrize("field", ["cc", "bcc"])
async def test_cc_and_bcc_take_one_address_or_a_list(regular: Tenant, field: str) -> None:
    single = await regular.accepts(regular.mail(**{field: "bob@example.org"}))
    assert (single["recipient_count"], single[field]) == (2, ["bob@example.org"])
    two = await regular.accepts(regular.mail(**{field: ["bob@example.org", "eve@example.org"]}))
    assert (two["recipient_count"], two[field]) == (3, ["bob@example.org", "eve@example.org"])


@pytest.mark.rule("SEND-03")
@pytest.mark.parametrize("field", ["cc", "bcc"])
@pytest.mark.parametrize("given", [7, {}, [7], [None], "no address"])
async def test_cc_and_bcc_take_nothing_else(regular: Tenant, field: str, given: object) -> None:
    await regular.refuses(regular.mail(**{field: given}), 400, "invalid_request", field)


@pytest.mark.rule("SEND-04")
async def test_bcc_is_a_recipient_but_is_not_written(regular: Tenant) -> None:
    body = regular.mail(cc="bob@example.org", bcc=["Hidden <secret@example.org>", "second@example.org"])
    sent = await regular.accepts(body)
    raw = (await regular.mime(sent["id"])).lower()
    assert b"bob@example.org" in raw
    for hidden in (b"\r\nbcc:", b"hidden", b"secret@example.org", b"second@example.org"):
        assert hidden not in raw
    read = (await regular.get(sent["id"])).body
    assert "secret@example.org" in [recipient["email"] for recipient in read["recipients"]]


@pytest.mark.rule("SEND-05")
@pytest.mark.parametrize("given", [["help@example.net"], [], 7, {}, "a@example.net, b@example.net", ""])
async def test_reply_to_is_nothing_but_one_address(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(reply_to=given), 400, "invalid_request", "reply_to")


@pytest.mark.rule("SEND-08", "SEND-16")
@pytest.mark.parametrize("field", ["text", "html", "subject", "template"])
@pytest.mark.parametrize("given", [7, True, ["x"], {"x": "y"}])
async def test_texts_are_strings(regular: Tenant, field: str, given: object) -> None:
    await regular.refuses(regular.mail(**{field: given}), 400, "invalid_request", field)


@pytest.mark.rule("SEND-09")
@pytest.mark.parametrize(
    "content",
    [{"text": "Good morning."}, {"html": "<p>Good morning.</p>"}, {"attachments": [ATTACHMENT]}],
    ids=["text", "html", "attachments"],
)
async def test_one_kind_of_content_suffices(regular: Tenant, content: dict[str, object]) -> None:
    await regular.accepts(regular.mail(text=ABSENT) | content)


@pytest.mark.rule("SEND-09")
async def test_a_template_suffices_as_content(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="Hello", text="Good morning.")
    await regular.accepts(regular.mail(text=ABSENT, template=alias))


@pytest.mark.rule("SEND-09", "SEND-14")
@pytest.mark.parametrize(
    "content", [{}, {"text": ""}, {"html": ""}, {"attachments": []}, {"text": None, "html": "", "template": None}]
)
async def test_a_message_without_content_is_refused(regular: Tenant, content: dict[str, object]) -> None:
    await regular.refuses(regular.mail(text=ABSENT) | content, 400, "invalid_request", "text", "html")


@pytest.mark.rule("SEND-11", "SEND-16")
@pytest.mark.parametrize("variables", [[], "x", 7, {"name": []}, {"name": {}}, {"name": ["x"]}])
async def test_variables_are_plain_values_by_name(regular: Tenant, variables: object) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="Hello", text="Good morning.")
    body = regular.mail(text=ABSENT, template=alias, variables=variables)
    await regular.refuses(body, 400, "invalid_request", "variables")


@pytest.mark.rule("SEND-13", "ERR-02")
@pytest.mark.parametrize("name", ["replyTo", "From", "body", "send_at", "x" * 60])
async def test_an_unknown_field_is_named(regular: Tenant, name: str) -> None:
    await regular.refuses(regular.mail() | {name: "x"}, 400, "invalid_request", name)


@pytest.mark.rule("SEND-13")
async def test_an_unknown_field_of_an_attachment_is_named(regular: Tenant) -> None:
    body = regular.mail(attachments=[ATTACHMENT | {"contentType": "text/plain"}])
    await regular.refuses(body, 400, "invalid_request", "contentType")


@pytest.mark.rule("SEND-14")
@pytest.mark.parametrize(
    "empty",
    [
        {"cc": None},
        {"cc": []},
        {"bcc": None},
        {"bcc": []},
        {"reply_to": None},
        {"html": None},
        {"html": ""},
        {"template": None},
        {"variables": None},
        {"headers": None},
        {"tags": None},
        {"tags": []},
        {"attachments": None},
        {"attachments": []},
    ],
    ids=str,
)
async def test_an_empty_optional_field_counts_as_absent(regular: Tenant, empty: dict[str, object]) -> None:
    sent = await regular.accepts(regular.mail() | empty)
    assert sent["recipient_count"] == 1
    stored = await regular.stored(sent["id"])
    assert stored.get_content_type() == "text/plain"
    assert stored["Cc"] is stored["Reply-To"] is stored["X-Service-Tag"] is None


@pytest.mark.rule("SEND-14")
async def test_an_empty_text_next_to_html_counts_as_absent(regular: Tenant) -> None:
    sent = await regular.accepts(regular.mail(text="", html="<p>Good morning.</p>"))
    assert (await regular.stored(sent["id"])).get_content_type() == "text/html"


@pytest.mark.rule("SEND-16")
@pytest.mark.parametrize(
    ("field", "given"), [("headers", []), ("headers", "X: y"), ("tags", 7), ("tags", {}), ("attachments", {})]
)
async def test_a_field_of_a_wrong_type_is_named(regular: Tenant, field: str, given: object) -> None:
    await regular.refuses(regular.mail(**{field: given}), 400, "invalid_request", field)
