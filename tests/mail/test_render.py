"""Stored mail for display: our own mail is read back, and no stored bytes raise."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.mail.header_reader import HEADER_BYTES_MAX
from posthouse.mail.mime import Attachment
from posthouse.mail.render import PARTS_MAX, AttachmentInfo, HeaderField, header_fields, notable_fields, render_mail
from tests.mail.submitted import UNTOUCHED
from tests.mail.test_mime import CONTENT, INVITATION, LOGO, PDF, written
from tests.support.bad_input import bad_input
from tests.support.processor_time import processor_seconds

BOTH = CONTENT._replace(subject="Grüße, Zoë", text="Grüße\n", html="<p>Grüße 🎉</p>")


def crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def test_our_own_mail_is_read_back_part_by_part() -> None:
    shown = render_mail(written(BOTH._replace(attachments=(LOGO, PDF))))
    assert (shown.subject, shown.text, shown.html) == ("Grüße, Zoë", "Grüße\n", "<p>Grüße 🎉</p>\n")
    assert shown.attachments == (
        AttachmentInfo(2, "logo.png", "image/png", len(LOGO.content), "logo@acme", is_inline=True),
        AttachmentInfo(3, "order.pdf", "application/pdf", len(PDF.content), None, is_inline=False),
    )
    assert not shown.is_shortened


def test_a_missing_part_is_null() -> None:
    assert render_mail(written(CONTENT)).html is None
    assert render_mail(written(CONTENT._replace(text=None, html="<p>Hi</p>"))).text is None
    files = render_mail(written(CONTENT._replace(text=None, attachments=(PDF,))))
    assert (files.text, files.html) == (None, None)


@pytest.mark.parametrize(
    "name", ["Übung.pdf", "a" * 200 + ".pdf", "日本語の長い名前" * 10 + ".pdf", 'a "b" c.pdf', "x'y'z"]
)
def test_a_file_keeps_its_name(name: str) -> None:
    (attached,) = render_mail(written(CONTENT._replace(attachments=(PDF._replace(filename=name),)))).attachments
    assert attached.filename == name


def test_an_invitation_is_attached_though_it_is_text() -> None:
    shown = render_mail(written(CONTENT._replace(attachments=(INVITATION,))))
    assert shown.text == CONTENT.text
    assert "text/calendar" in {attachment.content_type for attachment in shown.attachments}


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="=?utf-8?Q?=C3=9Cbung=2Epng?="', "Übung.png"),
        ("attachment; filename*=iso-8859-1'de'%DCbung.png", "Übung.png"),
        ("attachment; filename*0=long; filename*1=er; filename*2*=%2Epng", "longer.png"),
        ("attachment; filename*1*=b; filename*0*=utf-8''a", "ab"),
        ("attachment; filename*=utf-8''%00%0a..%2Fevil%FF", "../evil\N{REPLACEMENT CHARACTER}"),
        ("attachment; filename=", None),
        ("attachment; filename*999999=x; filename*a=y", None),
        ("attachment", None),
        ("inline; filename=a.txt", "a.txt"),
    ],
)
def test_file_names_are_read_in_every_encoding(disposition: str, name: str | None) -> None:
    raw = crlf(f"From: a@example.com\nContent-Type: text/plain\nContent-Disposition: {disposition}\n\nHello")
    (attached,) = render_mail(raw).attachments
    assert attached.filename == name


def test_the_header_is_decoded_and_keeps_its_order() -> None:
    raw = crlf("From: =?utf-8?Q?J=C3=BCrgen?= <j@example.com>\nX-Note: a\n b\nMessage-ID: <1@x>\nbroken\n\nX-No: y")
    assert header_fields(raw) == (
        HeaderField("From", "Jürgen <j@example.com>"),
        HeaderField("X-Note", "a b"),
        HeaderField("Message-ID", "<1@x>"),
    )
    assert [field.name for field in notable_fields(raw)] == ["From", "Message-ID"]


@pytest.mark.rule("MSD-09")
def test_omitted_parts_are_reported() -> None:
    files = "".join([f"--x\nContent-Disposition: attachment; filename={n}\n\nfile\n" for n in range(PARTS_MAX + 5)])
    shown = render_mail(crlf(f"Content-Type: multipart/mixed; boundary=x\n\n{files}--x--\n"))
    assert len(shown.attachments) == PARTS_MAX
    assert shown.is_shortened


@pytest.mark.rule("MSD-09")
def test_parts_nested_too_deep_are_a_single_part() -> None:
    raw = "Content-Type: text/plain\n\nthe end\n"
    for depth in range(100):
        raw = f'Content-Type: multipart/mixed; boundary="b{depth}"\n\n--b{depth}\n{raw}\n--b{depth}--\n'
    shown = render_mail(crlf(raw))
    assert [attachment.content_type for attachment in shown.attachments] == ["multipart/mixed"]


def test_an_attached_message_is_a_single_attachment() -> None:
    inner = "Content-Type: message/rfc822\n\nSubject: inner\nContent-Type: text/html\n\n<b>inner</b>\n"
    shown = render_mail(
        crlf(f"Subject: outer\nContent-Type: multipart/mixed; boundary=x\n\n--x\n\nHi\n--x\n{inner}--x--")
    )
    assert (shown.subject, shown.text, shown.html) == ("outer", "Hi", None)
    assert [attachment.content_type for attachment in shown.attachments] == ["message/rfc822"]


@pytest.mark.parametrize("mail", UNTOUCHED, ids=[mail.name for mail in UNTOUCHED])
def test_mail_of_real_programs_is_read(mail: tuple[str, bytes]) -> None:
    shown = render_mail(mail[1])
    assert shown.headers
    assert shown.text is not None or shown.html is not None or shown.attachments


@bad_input("Submitted mail", 300)
@given(st.binary(max_size=2_000))
def test_no_bytes_raise(raw: bytes) -> None:
    render_mail(raw)
    render_mail(b"Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n" + raw.replace(b"b", b"\r\n--a\r\n"))
    render_mail(b"Subject: =?utf-7?Q?" + raw + b"?=\r\nContent-Disposition: a; filename*0*=" + raw + b"\r\n\r\n" + raw)


@pytest.mark.parametrize(
    "charset", ["utf-8", "iso-2022-jp", "utf-7", "unicode_escape", "idna", "hex", "\N{SNOWMAN}", ""]
)
def test_every_charset_becomes_encodable_text(charset: str) -> None:
    encoded = base64.b64encode(b"+2AA- \xff\xfe\x1b$B\0" + bytes(range(256))).decode()
    shown = render_mail(
        crlf(f"Content-Type: text/html; charset={charset}\nContent-Transfer-Encoding: base64\n\n{encoded}")
    )
    assert shown.html is not None
    shown.html.encode()


def test_ten_megabytes_of_files_are_read_quickly() -> None:
    large = Attachment("large.bin", "application/octet-stream", bytes(7 * 1024 * 1024))
    (attached,) = render_mail(written(CONTENT._replace(attachments=(large,)))).attachments
    assert attached.size == len(large.content)


def test_a_header_cut_inside_a_line_end_is_read_quickly() -> None:
    folded = b"Subject: a\r\n" + b"\tb\r\n" * (HEADER_BYTES_MAX // 4)
    begun = HEADER_BYTES_MAX + 4 - folded[: HEADER_BYTES_MAX + 4].rindex(b"\r") - 1
    raw = b"X" * begun + folded
    assert raw[: HEADER_BYTES_MAX + 4].endswith(b"\r")
    assert processor_seconds(lambda: header_fields(raw), enough=1.0) < 5.0
