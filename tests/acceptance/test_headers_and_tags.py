"""Custom headers and tags: reserved names, allowed names, and what is written into the message."""

import pytest

from tests.support.service import Tenant

RESERVED = [
    "From", "To", "Cc", "Bcc", "Subject", "Reply-To", "Sender", "Date", "Message-ID", "MIME-Version",
    "Content-Type", "Content-Transfer-Encoding", "Content-ID", "Content-Anything", "Return-Path", "Received",
    "Received-SPF", "DKIM-Signature", "DomainKey-Signature", "ARC-Seal", "ARC-Message-Signature",
    "ARC-Authentication-Results", "Authentication-Results", "Resent-From", "Resent-Bcc", "Resent-Anything",
    "Delivered-To", "Errors-To", "Bounces-To", "X-Service-Tag", "CFBL-Address", "CFBL-Feedback-ID",
    "TLS-Required",
]  # fmt: skip
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
CONTROL_CHARACTERS = ["\r", "\n", "\r\n", "\r\nBcc: eve@example.net", "\r\n folded", "\0", "\x07", "\x7f", "\x85"]


@pytest.mark.rule("HEAD-01", "HEAD-03", "RESP-04", "HEAD-12")
async def test_custom_headers_are_written_once_as_given(regular: Tenant) -> None:
    sent = await regular.accepts(regular.mail(headers=ALLOWED))
    assert sent["headers"] == ALLOWED
    stored = await regular.stored(sent["id"])
    for name, value in ALLOWED.items():
        assert [str(found) for found in stored.get_all(name, [])] == [value], name


@pytest.mark.rule("HEAD-14")
@pytest.mark.parametrize(
    ("name", "field"), [("X-Service-Content", "`content`"), ("x-service-metadata-order", "`metadata`")]
)
async def test_what_is_a_header_over_smtp_only_names_its_field(regular: Tenant, name: str, field: str) -> None:
    await regular.refuses(regular.mail(headers={name: "forget"}), 400, "invalid_request", field)


@pytest.mark.rule("HEAD-02")
@pytest.mark.parametrize("spelling", [str, str.lower, str.upper], ids=["given", "lower", "upper"])
async def test_reserved_names_are_refused_in_any_spelling(regular: Tenant, spelling: type[str]) -> None:
    for name in RESERVED:
        given = spelling(name)
        await regular.refuses(regular.mail(headers={given: "x"}), 400, "invalid_request", given)


@pytest.mark.rule("HEAD-04")
async def test_a_name_in_two_spellings_is_refused(regular: Tenant) -> None:
    body = regular.mail(headers={"X-Thing": "1", "x-thing": "2"})
    answer = await regular.refuses(body, 400, "invalid_request", "headers")
    assert "x-thing" in answer.error.lower()


@pytest.mark.rule("HEAD-05")
async def test_fifty_headers_are_accepted_and_51_refused(regular: Tenant) -> None:
    headers = {f"X-Number-{number}": "x" for number in range(50)}
    await regular.accepts(regular.mail(headers=headers))
    await regular.refuses(regular.mail(headers=headers | {"X-More": "x"}), 400, "invalid_request", "50")


@pytest.mark.rule("HEAD-06")
@pytest.mark.parametrize("name", ["", "X Y", "X:Y", "X-Ünï", "X-\r\nBcc", "X-\0", "X-\t", "X-\x7f", "X" * 77])
async def test_a_name_is_visible_ascii_without_a_colon(regular: Tenant, name: str) -> None:
    await regular.refuses(regular.mail(headers={name: "x"}), 400, "invalid_request", "headers")


@pytest.mark.rule("HEAD-06")
@pytest.mark.parametrize("name", ["X" * 76, "X-!#$%&'*+.^_`|~", "X"])
async def test_any_other_name_is_accepted(regular: Tenant, name: str) -> None:
    sent = await regular.accepts(regular.mail(headers={name: "value"}))
    assert (await regular.stored(sent["id"]))[name] == "value"


@pytest.mark.rule("HEAD-07")
@pytest.mark.parametrize("unit", ["v", "é", "word "])
async def test_a_value_has_at_most_998_bytes(regular: Tenant, unit: str) -> None:
    length = len(unit.encode())
    value = (unit * 998)[: 998 // length * (len(unit))].rstrip()
    value += "v" * (998 - len(value.encode()))
    sent = await regular.accepts(regular.mail(headers={"X-Long": value}))
    assert all(len(line) <= 998 for line in (await regular.mime(sent["id"])).split(b"\r\n"))
    assert str((await regular.stored(sent["id"]))["X-Long"]) == value
    await regular.refuses(regular.mail(headers={"X-Long": value + "v"}), 400, "invalid_request", "X-Long")


@pytest.mark.rule("HEAD-08")
async def test_all_headers_together_have_at_most_16_kib(regular: Tenant) -> None:
    name_bytes = len("X-Number-00")
    fitting = {f"X-Number-{number:02}": "v" * 900 for number in range(17)}
    assert 17 * (name_bytes + 900) < 16 * 1024
    await regular.accepts(regular.mail(headers=fitting))
    too_many = {f"X-Number-{number:02}": "v" * 990 for number in range(17)}
    assert 17 * 990 > 16 * 1024
    await regular.refuses(regular.mail(headers=too_many), 400, "invalid_request", "headers")


@pytest.mark.rule("HEAD-09")
@pytest.mark.parametrize("given", CONTROL_CHARACTERS, ids=repr)
async def test_control_characters_in_a_value_are_refused(regular: Tenant, given: str) -> None:
    body = regular.mail(headers={"X-Thing": f"a{given}b"})
    await regular.refuses(body, 400, "invalid_request", "X-Thing")


@pytest.mark.rule("HEAD-10")
async def test_non_ascii_text_is_encoded_in_an_unstructured_header(regular: Tenant) -> None:
    value = "Grüße aus Łódź 💌 " * 8
    sent = await regular.accepts(regular.mail(headers={"X-Greeting": value.strip()}))
    assert str((await regular.stored(sent["id"]))["X-Greeting"]) == value.strip()
    assert (await regular.mime(sent["id"])).isascii()


@pytest.mark.rule("HEAD-10")
@pytest.mark.parametrize("name", ["References", "In-Reply-To", "List-Unsubscribe", "list-unsubscribe-post"])
async def test_non_ascii_text_is_refused_in_a_structured_header(regular: Tenant, name: str) -> None:
    body = regular.mail(headers={name: "<grüße@example.com>"})
    await regular.refuses(body, 400, "invalid_request", name)


@pytest.mark.rule("HEAD-11", "SEND-16")
@pytest.mark.parametrize("headers", [[], "X: y", 7, {"X-Thing": 7}, {"X-Thing": ["y"]}, {"X-Thing": {}}])
async def test_headers_map_names_to_strings(regular: Tenant, headers: object) -> None:
    await regular.refuses(regular.mail(headers=headers), 400, "invalid_request", "headers")


@pytest.mark.rule("HEAD-12")
@pytest.mark.parametrize(
    ("name", "value"),
    [("feedback-id", "a:b:c:d"), ("LIST-UNSUBSCRIBE", "<https://example.com/leave>")],
)
async def test_a_customers_own_header_is_the_only_one(regular: Tenant, name: str, value: str) -> None:
    sent = await regular.accepts(regular.mail(headers={name: value}))
    assert [str(found) for found in (await regular.stored(sent["id"])).get_all(name, [])] == [value]


@pytest.mark.rule("HEAD-13", "MIME-02")
@pytest.mark.parametrize(
    "words",
    ["=?utf-8?q?a=0D=0ABcc:_eve@example.net?=", "=?utf-8?b?YQ0KQmNjOiBldmVAZXhhbXBsZS5uZXQ=?="],
)
async def test_encoded_words_add_no_header(regular: Tenant, words: str) -> None:
    body = regular.mail(subject=words, headers={"X-Thing": words}, to=f'"{words}" <ada@example.org>')
    sent = await regular.accepts(body)
    head = (await regular.mime(sent["id"])).split(b"\r\n\r\n")[0]
    names = [line.split(b":")[0].lower() for line in head.split(b"\r\n") if line[:1] not in b" \t"]
    assert b"bcc" not in names
    assert names.count(b"subject") == names.count(b"x-thing") == names.count(b"to") == 1


@pytest.mark.rule("TAG-01", "TAG-04", "RESP-04")
@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("welcome", ["welcome"]),
        (["welcome"], ["welcome"]),
        (["b", "a", "c"], ["b", "a", "c"]),
        (["t" * 128], ["t" * 128]),
        (["two words, one tag"], ["two words, one tag"]),
        (["größe"], ["größe"]),
    ],
)
async def test_one_header_per_tag_in_order(regular: Tenant, given: object, echoed: list[str]) -> None:
    sent = await regular.accepts(regular.mail(tags=given))
    assert sent["tags"] == echoed
    stored = await regular.stored(sent["id"])
    assert [str(tag) for tag in stored.get_all("X-Service-Tag", [])] == echoed


@pytest.mark.rule("TAG-02")
async def test_twenty_tags_are_accepted_and_21_refused(regular: Tenant) -> None:
    tags = [f"tag-{number}" for number in range(20)]
    sent = await regular.accepts(regular.mail(tags=tags))
    assert (await regular.stored(sent["id"])).get_all("X-Service-Tag") == tags
    await regular.refuses(regular.mail(tags=[*tags, "more"]), 400, "invalid_request", "tags", "20")


@pytest.mark.rule("TAG-03")
@pytest.mark.parametrize("tag", ["", "t" * 129, "a\r\nBcc: eve@example.net", "a\nb", "a\0b", "a\tb", "a\x7fb", 7, None])
async def test_a_tag_is_1_to_128_printable_characters(regular: Tenant, tag: object) -> None:
    await regular.refuses(regular.mail(tags=["fine", tag]), 400, "invalid_request", "tags")
