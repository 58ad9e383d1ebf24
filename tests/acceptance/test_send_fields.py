"""The fields of a send request: their JSON types, what is echoed and stored of them, and refusals that name them.

What each value may be is shown in tests/rules/test_draft.py, what is written of it in tests/mail/test_mime.py.
"""

import base64
from typing import Any

import pytest

from tests.support.service import ABSENT, Tenant

ATTACHMENT = {"filename": "note.txt", "content": "aGVsbG8="}
PIXEL = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))
ALLOWED = {
    "List-Unsubscribe": "<https://example.com/u/1>, <mailto:leave@example.com>",
    "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    "List-Id": "News <news.example.com>",
    "References": "<one@example.com> <two@example.com>",
    "In-Reply-To": "<one@example.com>",
    "Auto-Submitted": "auto-generated",
    "Feedback-ID": "campaign:customer:mail:example",
    "X-Entity-Ref-ID": "123",
    "X-Priority": "1",
    "Precedence": "batch",
    "Importance": "high",
}
# For each field, what it is not.
WRONG: dict[str, list[object]] = {
    "from": [ABSENT, None, "", [], ["news@example.com"], 7, {"email": "news@example.com"}],
    "to": [ABSENT, None, "", [], [""], [None], 7, {}, [["ada@example.org"]], True],
    "cc": [7, {}, [7], [None], "no address"],
    "bcc": [7, {}, [7], [None], "no address"],
    "reply_to": [["help@example.net"], [], 7, {}, "a@example.net, b@example.net", ""],
    "subject": [7, True, ["x"], {"x": "y"}],
    "text": [7, True, ["x"], {"x": "y"}],
    "html": [7, True, ["x"], {"x": "y"}],
    "template": [7, True, ["x"], {"x": "y"}],
    "headers": [[], "X: y", 7, {"X-Thing": 7}, {"X-Thing": ["y"]}, {"X-Thing": {}}],
    "tags": [7, {}, *(["fine", tag] for tag in ("", "t" * 129, "a\r\nBcc: eve@x.example", "a\0b", "a\x7fb", 7, None))],
    "attachments": [{}, "x", 7, ["x"], [7], [None], [[]]],
    # Of no field.
    "replyTo": ["x"],
    "From": ["x"],
    "body": ["x"],
    "x" * 60: ["x"],
}


@pytest.mark.rule("SEND-01", "SEND-02", "SEND-03", "SEND-05", "SEND-08", "SEND-13", "SEND-16", "ERR-02")
@pytest.mark.rule("HEAD-11", "TAG-03", "ATT-01")
@pytest.mark.parametrize("field", WRONG)
async def test_a_field_of_another_form_is_refused_and_named(regular: Tenant, field: str) -> None:
    for given in WRONG[field]:
        mail = {name: value for name, value in (regular.mail() | {field: given}).items() if value is not ABSENT}
        await regular.refuses(mail, 400, "invalid_request", field)


@pytest.mark.rule("SEND-13", "HEAD-14")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"attachments": [ATTACHMENT | {"contentType": "text/plain"}]}, "contentType"),
        ({"headers": {"X-Service-Content": "forget"}}, "`content`"),
        ({"headers": {"x-service-metadata-order": "1"}}, "`metadata`"),
    ],
)
async def test_a_name_with_another_spelling_elsewhere_is_named(
    regular: Tenant, fields: dict[str, object], named: str
) -> None:
    await regular.refuses(regular.mail(**fields), 400, "invalid_request", named)


@pytest.mark.rule("SEND-02", "SEND-03")
async def test_recipients_are_one_address_or_a_list(regular: Tenant) -> None:
    for field in ("to", "cc", "bcc"):
        for given in ("bob@example.org", ["bob@example.org"], ["bob@example.org", "eve@example.org"]):
            sent = await regular.accepts(regular.mail(**{field: given}))
            echoed = [given] if isinstance(given, str) else given
            assert (sent["recipient_count"], sent[field]) == (len(echoed) + (field != "to"), echoed)


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


@pytest.mark.rule("SEND-09", "SEND-11", "SEND-14", "SEND-16")
async def test_one_kind_of_content_is_needed_and_suffices(regular: Tenant) -> None:
    bare = regular.mail(text=ABSENT)
    alias = regular.new_key()
    await regular.template(alias, subject="Hello", text="Good morning.")
    contents: list[dict[str, Any]] = [
        {"text": "x"}, {"html": "<p>x</p>"}, {"attachments": [ATTACHMENT]}, {"template": alias},
    ]  # fmt: skip
    for content in contents:
        await regular.accepts(bare | content)
    nothing: list[dict[str, Any]] = [
        {}, {"text": ""}, {"html": ""}, {"attachments": []}, {"text": None, "html": "", "template": None},
    ]  # fmt: skip
    for content in nothing:
        await regular.refuses(bare | content, 400, "invalid_request", "text", "html")
    wrong: list[object] = [[], "x", 7, {"name": []}, {"name": {}}, {"name": ["x"]}]
    for variables in wrong:
        await regular.refuses(bare | {"template": alias, "variables": variables}, 400, "invalid_request", "variables")


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


# Addresses.


@pytest.mark.rule("ADDR-01")
@pytest.mark.parametrize("field", ["from", "to", "cc", "bcc", "reply_to"])
async def test_every_field_takes_an_address_with_or_without_a_name(regular: Tenant, field: str) -> None:
    address = f"ada.l+x@{regular.domain}"
    for name in ("", "Ada", "Lovelace, Ada", "Ada Łukasiewicz"):
        given = f'"{name}" <{address}>' if "," in name else f"{name} <{address}>" if name else address
        sent = await regular.accepts(regular.mail() | {field: given})
        assert sent[field] == ([given] if field in {"to", "cc", "bcc"} else given)
        if field != "bcc":
            (found,) = (await regular.stored(sent["id"]))[field.replace("_", "-")].addresses
            assert (found.addr_spec, found.display_name) == (address, name)


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


# Headers, tags and attachments.


@pytest.mark.rule("HEAD-01", "HEAD-03", "RESP-04", "HEAD-12")
async def test_custom_headers_are_written_once_as_given(regular: Tenant) -> None:
    sent = await regular.accepts(regular.mail(headers=ALLOWED))
    assert sent["headers"] == ALLOWED
    stored = await regular.stored(sent["id"])
    for name, value in ALLOWED.items():
        assert [str(found) for found in stored.get_all(name, [])] == [value], name


@pytest.mark.rule("TAG-01", "TAG-04", "RESP-04")
async def test_one_header_per_tag_in_order(regular: Tenant) -> None:
    for given in ("welcome", ["b", "a", "c"], ["t" * 128], ["two words, one tag"], ["größe"]):
        sent = await regular.accepts(regular.mail(tags=given))
        assert sent["tags"] == ([given] if isinstance(given, str) else given)
        stored = await regular.stored(sent["id"])
        assert [str(tag) for tag in stored.get_all("X-Service-Tag", [])] == sent["tags"]


def attachment(**changes: object) -> dict[str, Any]:
    return {"filename": "note.bin", "content": base64.b64encode(PIXEL).decode()} | changes


@pytest.mark.rule("ATT-12", "ATT-13")
async def test_the_response_has_name_type_and_decoded_size(regular: Tenant) -> None:
    given = [attachment(filename="a.pdf"), attachment(filename="b", content=""), attachment(content_id="x")]
    given[1]["content"] = base64.b64encode(b"y").decode()
    sent = await regular.accepts(regular.mail(attachments=given))
    first, second, third = sent["attachments"]
    assert (first["filename"], first["content_type"], first["size"]) == ("a.pdf", "application/pdf", len(PIXEL))
    assert first.get("content_id") is None
    assert (second["filename"], second["size"]) == ("b", 1)
    assert third["content_id"] == "x"
    stored = await regular.stored(sent["id"])
    assert [part.get_payload(decode=True) for part in stored.iter_attachments()] == [PIXEL, b"y", PIXEL]
