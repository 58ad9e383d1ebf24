"""Custom headers and tags: reserved names, allowed names, and what is written into the message."""

import pytest

from tests.support.service import Tenant

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


@pytest.mark.rule("HEAD-11", "SEND-16")
@pytest.mark.parametrize("headers", [[], "X: y", 7, {"X-Thing": 7}, {"X-Thing": ["y"]}, {"X-Thing": {}}])
async def test_headers_map_names_to_strings(regular: Tenant, headers: object) -> None:
    await regular.refuses(regular.mail(headers=headers), 400, "invalid_request", "headers")


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


@pytest.mark.rule("TAG-03")
@pytest.mark.parametrize("tag", ["", "t" * 129, "a\r\nBcc: eve@example.net", "a\nb", "a\0b", "a\tb", "a\x7fb", 7, None])
async def test_a_tag_is_1_to_128_printable_characters(regular: Tenant, tag: object) -> None:
    await regular.refuses(regular.mail(tags=["fine", tag]), 400, "invalid_request", "tags")
