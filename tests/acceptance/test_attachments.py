"""Attachments: names, bytes, types, places in the message, and their metadata in the response."""

import base64
from typing import Any

import pytest

from tests.support.service import ABSENT, Tenant

PIXEL = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))


def attachment(**changes: object) -> dict[str, Any]:
    given = {"filename": "note.bin", "content": base64.b64encode(PIXEL).decode()} | changes
    return {name: value for name, value in given.items() if value is not ABSENT}


@pytest.mark.rule("ATT-01", "SEND-16")
@pytest.mark.parametrize("given", [{}, "x", 7, ["x"], [7], [None], [[]]])
async def test_attachments_are_a_list_of_objects(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(attachments=given), 400, "invalid_request", "attachments")


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
