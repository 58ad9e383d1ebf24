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


@pytest.mark.rule("ATT-01")
async def test_twenty_attachments_are_accepted_and_21_refused(regular: Tenant) -> None:
    many = [attachment(filename=f"{number}.bin") for number in range(20)]
    assert len((await regular.accepts(regular.mail(attachments=many)))["attachments"]) == 20
    await regular.refuses(regular.mail(attachments=[*many, attachment()]), 400, "invalid_request", "attachments", "20")


@pytest.mark.rule("ATT-01", "SEND-16")
@pytest.mark.parametrize("given", [{}, "x", 7, ["x"], [7], [None], [[]]])
async def test_attachments_are_a_list_of_objects(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(attachments=given), 400, "invalid_request", "attachments")


@pytest.mark.rule("ATT-02")
@pytest.mark.parametrize(
    "filename",
    [ABSENT, None, "", 7, "a/b.txt", "/etc/passwd", "a\\b.txt", ".", "..", "a\0.txt", "a\r\nX: y", "a\x7f", "f" * 256],
    ids=repr,
)
async def test_a_filename_is_a_name_without_a_path(regular: Tenant, filename: object) -> None:
    body = regular.mail(attachments=[attachment(filename=filename)])
    await regular.refuses(body, 400, "invalid_request", "attachments", "filename")


@pytest.mark.rule("ATT-02", "ATT-13")
@pytest.mark.parametrize(
    "filename", ["f" * 251 + ".txt", "résumé 2026.pdf", "履歴書.pdf", 'a b; c="d".txt', "...", ".env", "it's 100%.txt"]
)
async def test_other_filenames_are_unchanged(regular: Tenant, filename: str) -> None:
    sent = await regular.accepts(regular.mail(attachments=[attachment(filename=filename)]))
    assert sent["attachments"][0]["filename"] == filename
    (part,) = (await regular.stored(sent["id"])).iter_attachments()
    assert part.get_filename() == filename
    assert part.get_payload(decode=True) == PIXEL


@pytest.mark.rule("ATT-03")
@pytest.mark.parametrize(
    "content",
    [ABSENT, None, 7, "a", "aGVsbG8", "aGVsbG8==", "aGVs*G8=", "_-8=", "aGVsbG8=aGVsbG8=", "=", "aGVsbG8=\u00a0", "é"],
    ids=repr,
)
async def test_content_is_strict_base64(regular: Tenant, content: object) -> None:
    body = regular.mail(attachments=[attachment(content=content)])
    await regular.refuses(body, 400, "invalid_request", "attachments", "content")


@pytest.mark.rule("ATT-03", "ATT-12")
@pytest.mark.parametrize("content", ["aGVsbG8=", "aGVs\r\nbG8=\r\n", " aGVs bG8=\t\n", "aGVs\fbG8="])
async def test_white_space_in_base64_is_tolerated(regular: Tenant, content: str) -> None:
    sent = await regular.accepts(regular.mail(attachments=[attachment(content=content)]))
    assert sent["attachments"][0]["size"] == 5
    (part,) = (await regular.stored(sent["id"])).iter_attachments()
    assert part.get_payload(decode=True) == b"hello"


@pytest.mark.rule("ATT-04")
@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("a.pdf", "application/pdf"),
        ("a.PNG", "image/png"),
        ("a.jpg", "image/jpeg"),
        ("a.txt", "text/plain"),
        ("a.csv", "text/csv"),
        ("a.html", "text/html"),
        ("a.ics", "text/calendar"),
        ("a.zip", "application/zip"),
        ("a.json", "application/json"),
        ("a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.unknown-extension", "application/octet-stream"),
        ("README", "application/octet-stream"),
        (".env", "application/octet-stream"),
    ],
)
async def test_the_extension_decides_the_type_when_none_is_given(regular: Tenant, filename: str, expected: str) -> None:
    sent = await regular.accepts(regular.mail(attachments=[attachment(filename=filename)]))
    assert sent["attachments"][0]["content_type"].split(";")[0] == expected
    (part,) = (await regular.stored(sent["id"])).iter_attachments()
    assert part.get_content_type() == expected


@pytest.mark.rule("ATT-05")
@pytest.mark.parametrize(
    "content_type",
    ["application/pdf", "Image/PNG", "text/plain; charset=utf-8", 'text/plain; charset="utf-8"; format=flowed',
     "application/vnd.example+json; profile=a", "text/plain; x=" + "v" * 240],
)  # fmt: skip
async def test_a_type_with_parameters_is_accepted(regular: Tenant, content_type: str) -> None:
    sent = await regular.accepts(regular.mail(attachments=[attachment(content_type=content_type)]))
    assert sent["attachments"][0]["content_type"] == content_type
    (part,) = (await regular.stored(sent["id"])).iter_attachments()
    assert part.get_content_type() == content_type.split(";")[0].lower()
    assert part.get_payload(decode=True) == PIXEL


@pytest.mark.rule("ATT-05", "ATT-06")
@pytest.mark.parametrize(
    "content_type",
    ["pdf", "text/", "/plain", "text/plain; charset", "text/plain; charset=", "te xt/plain", "text/plain\r\nX: y",
     "text/plain; a=b\0", "text/plän", "text/plain; x=" + "v" * 242, 7, "text/plain/more", "text/plain,text/html",
     "multipart/mixed", "multipart/mixed; boundary=x", "MULTIPART/related", "message/rfc822", "Message/Partial"],
)  # fmt: skip
async def test_other_types_are_refused(regular: Tenant, content_type: object) -> None:
    body = regular.mail(attachments=[attachment(content_type=content_type)])
    await regular.refuses(body, 400, "invalid_request", "attachments", "content_type")


@pytest.mark.rule("ATT-07")
@pytest.mark.parametrize("content_id", ["", "a b", "<logo>", "logo\r\nX: y", "lögo", "c" * 129, "a/b", 7])
async def test_a_content_id_is_a_plain_word(regular: Tenant, content_id: object) -> None:
    body = regular.mail(html="<p>", attachments=[attachment(content_id=content_id)])
    await regular.refuses(body, 400, "invalid_request", "attachments", "content_id")


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


@pytest.mark.rule("ATT-09")
async def test_a_repeated_content_id_is_refused(regular: Tenant) -> None:
    twice = [attachment(content_id="logo"), attachment(content_id="logo")]
    await regular.refuses(
        regular.mail(html="<p>", attachments=twice), 400, "invalid_request", "attachments", "content_id"
    )


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
