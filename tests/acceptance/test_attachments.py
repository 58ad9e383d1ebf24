"""Attachments: names, bytes, types, places in the message, and their metadata in the response."""

import base64
from email.message import EmailMessage
from typing import Any

import pytest

from tests.support.service import ABSENT, Tenant

PIXEL = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))


def attachment(**changes: object) -> dict[str, Any]:
    given = {"filename": "note.bin", "content": base64.b64encode(PIXEL).decode()} | changes
    return {name: value for name, value in given.items() if value is not ABSENT}


def parts(message: EmailMessage) -> list[tuple[str, str | None]]:
    """Every part's type and the type of the part around it."""
    found = []

    def walk(part: Any, around: str | None) -> None:
        found.append((part.get_content_type(), around))
        if part.is_multipart():
            for inner in part.iter_parts():
                walk(inner, part.get_content_type())

    walk(message, None)
    return found


@pytest.mark.rule("ATT-01", "SEND-16")
@pytest.mark.parametrize("given", [{}, "x", 7, ["x"], [7], [None], [[]]])
async def test_attachments_are_a_list_of_objects(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(attachments=given), 400, "invalid_request", "attachments")


@pytest.mark.rule("ATT-07", "ATT-08", "ATT-12")
@pytest.mark.parametrize("content_id", ["logo", "Logo.1_2@example+x-y", "c" * 128])
async def test_with_html_a_content_id_makes_the_part_inline(regular: Tenant, content_id: str) -> None:
    inline = attachment(filename="logo.png", content_id=content_id)
    body = regular.mail(html=f'<img src="cid:{content_id}">', attachments=[inline, attachment()])
    sent = await regular.accepts(body)
    assert sent["attachments"][0]["content_id"] == content_id
    stored = await regular.stored(sent["id"])
    assert ("image/png", "multipart/related") in parts(stored)
    assert ("text/html", "multipart/related") in parts(stored)
    assert ("application/octet-stream", "multipart/mixed") in parts(stored)
    (image,) = [part for part in stored.walk() if part.get_content_type() == "image/png"]
    assert image["Content-ID"] == f"<{content_id}>"
    assert image.get_content_disposition() == "inline"
    assert image.get_payload(decode=True) == PIXEL


@pytest.mark.rule("ATT-10")
async def test_without_html_a_content_id_is_an_ordinary_attachment(regular: Tenant) -> None:
    sent = await regular.accepts(regular.mail(attachments=[attachment(content_id="logo")]))
    stored = await regular.stored(sent["id"])
    assert "multipart/related" not in [kind for kind, _ in parts(stored)]
    (part,) = stored.iter_attachments()
    assert part.get_content_disposition() == "attachment"


@pytest.mark.rule("ATT-11")
@pytest.mark.parametrize(
    "content_type", ["text/calendar; method=REQUEST", "text/calendar; charset=utf-8; METHOD=CANCEL"]
)
async def test_a_calendar_with_a_method_is_the_last_alternative(regular: Tenant, content_type: str) -> None:
    invitation = attachment(filename="invite.ics", content_type=content_type)
    sent = await regular.accepts(regular.mail(html="<p>Come.</p>", attachments=[invitation]))
    assert sent["attachments"][0]["content_type"] == content_type
    stored = await regular.stored(sent["id"])
    (alternative,) = [part for part in stored.walk() if part.get_content_type() == "multipart/alternative"]
    assert isinstance(alternative, EmailMessage)
    kinds = [part.get_content_type() for part in alternative.iter_parts()]
    assert kinds == ["text/plain", "text/html", "text/calendar"]
    last = list(alternative.iter_parts())[-1]
    assert last.get_payload(decode=True) == PIXEL


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
