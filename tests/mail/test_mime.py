"""Another parser finds in our MIME messages what was given, complete and with nothing added."""

from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import Message
from email.utils import collapse_rfc2231_value, format_datetime, getaddresses, parsedate_to_datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from posthouse.mail.address import Mailbox
from posthouse.mail.header_writer import HeaderError
from posthouse.mail.mime import TAG_HEADER, Attachment, MailContent, write
from tests.support.bad_input import bad_input, inputs

DATE = datetime(2026, 11, 15, 9, 30, 5, tzinfo=UTC)
BOUNDARY = "01k9x2"
CONTENT = MailContent(
    sender=Mailbox("Acme Support", "support", "acme.example"),
    to=(Mailbox("", "ada", "example.com"),),
    cc=(),
    reply_to=None,
    subject="Your order",
    text="Hello\n",
    html=None,
    headers=(),
    tags=(),
    attachments=(),
)
PDF = Attachment("order.pdf", "application/pdf", b"%PDF-1.7\r\n\0\xff")
LOGO = Attachment("logo.png", "image/png", b"\x89PNG", "logo@acme")
INVITATION = Attachment("invite.ics", "text/calendar; method=REQUEST; charset=utf-8", b"BEGIN:VCALENDAR\r\n")


def written(mail: MailContent) -> bytes:
    return write(mail, date=DATE, message_id="01k9x2@mail.example", boundary=BOUNDARY)


def assert_fit_for_the_wire(raw: bytes) -> None:
    assert raw.isascii()
    assert b"\0" not in raw
    assert raw.endswith(b"\r\n")
    bare = raw.replace(b"\r\n", b"")
    assert b"\r" not in bare
    assert b"\n" not in bare
    assert max(map(len, raw.split(b"\r\n"))) <= 998


def decode(value: str) -> str:
    return str(make_header(decode_header(value.replace("\r\n", ""))))


Tree = tuple[str, list["Tree"]] | str


def tree(message: Message) -> Tree:
    if message.is_multipart():
        parts = message.get_payload()
        assert isinstance(parts, list)
        return message.get_content_type(), [tree(part) for part in parts if isinstance(part, Message)]
    return message.get_content_type()


def leaves(message: Message) -> list[Message]:
    return [part for part in message.walk() if not part.is_multipart()]


def content(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload


def expected_text(text: str) -> bytes:
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return (lines if lines.endswith("\n") else lines + "\n").replace("\n", "\r\n").encode()


def test_the_fields_are_in_order() -> None:
    mail = CONTENT._replace(
        cc=(Mailbox("Eve", "eve", "example.com"),),
        reply_to=Mailbox("", "help", "acme.example"),
        headers=(("X-Zulu", "1"), ("List-Unsubscribe", "<https://acme.example/u>")),
        tags=("order", "größe"),
    )
    assert written(mail) == (
        b"From: Acme Support <support@acme.example>\r\n"
        b"To: ada@example.com\r\n"
        b"Cc: Eve <eve@example.com>\r\n"
        b"Reply-To: help@acme.example\r\n"
        b"Subject: Your order\r\n"
        b"Date: Sun, 15 Nov 2026 09:30:05 +0000\r\n"
        b"Message-ID: <01k9x2@mail.example>\r\n"
        b"MIME-Version: 1.0\r\n"
        b"X-Zulu: 1\r\n"
        b"List-Unsubscribe: <https://acme.example/u>\r\n"
        b"X-Service-Tag: order\r\n"
        b"X-Service-Tag: =?utf-8?b?Z3LDtsOfZQ==?=\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: 7bit\r\n"
        b"\r\n"
        b"Hello\r\n"
    )


@settings(max_examples=inputs(200), deadline=None)
@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), st.integers(-720, 720))
def test_the_date_is_the_same_moment_in_utc(moment: datetime, offset_minutes: int) -> None:
    zone = timezone(timedelta(minutes=offset_minutes))
    date = moment.replace(microsecond=0, tzinfo=zone)
    field = write(CONTENT, date=date, message_id="a@b", boundary=BOUNDARY).split(b"\r\n")[3].decode()
    assert field == f"Date: {format_datetime(date.astimezone(UTC)).replace(', 0', ', ')}"
    assert parsedate_to_datetime(field.removeprefix("Date: ")) == date


@pytest.mark.rule("ATT-08")
def test_a_full_message_is_nested_as_clients_expect() -> None:
    mail = CONTENT._replace(html="<p>Hi", attachments=(PDF, INVITATION, LOGO))
    assert written(mail).partition(b"MIME-Version: 1.0\r\n")[2] == (
        b'Content-Type: multipart/mixed;\r\n boundary="=_m01k9x2"\r\n'
        b"\r\n--=_m01k9x2\r\n"
        b'Content-Type: multipart/alternative;\r\n boundary="=_a01k9x2"\r\n'
        b"\r\n--=_a01k9x2\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n\r\nHello\r\n"
        b"\r\n--=_a01k9x2\r\n"
        b'Content-Type: multipart/related; type="text/html";\r\n boundary="=_r01k9x2"\r\n'
        b"\r\n--=_r01k9x2\r\n"
        b"Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n\r\n<p>Hi\r\n"
        b"\r\n--=_r01k9x2\r\n"
        b"Content-Type: image/png\r\nContent-Transfer-Encoding: base64\r\nContent-ID: <logo@acme>\r\n"
        b'Content-Disposition: inline;\r\n filename="logo.png"\r\n\r\niVBORw==\r\n'
        b"\r\n--=_r01k9x2--\r\n"
        b"\r\n--=_a01k9x2\r\n"
        b"Content-Type: text/calendar; method=REQUEST; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: base64\r\n"
        b'Content-Disposition: inline;\r\n filename="invite.ics"\r\n\r\nQkVHSU46VkNBTEVOREFSDQo=\r\n'
        b"\r\n--=_a01k9x2--\r\n"
        b"\r\n--=_m01k9x2\r\n"
        b"Content-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n"
        b'Content-Disposition: attachment;\r\n filename="order.pdf"\r\n\r\nJVBERi0xLjcNCgD/\r\n'
        b"\r\n--=_m01k9x2--\r\n"
    )


PLAIN, HTML, CALENDAR, PNG, BYTES = ("text/plain", "text/html", "text/calendar", "image/png", "application/pdf")


@pytest.mark.rule("ATT-08", "ATT-10", "ATT-11", "MIME-03")
@pytest.mark.parametrize(
    ("text", "html", "attachments", "expected"),
    [
        ("t", None, (), PLAIN),
        (None, "h", (), HTML),
        ("t", "h", (), ("multipart/alternative", [PLAIN, HTML])),
        (None, None, (PDF,), ("multipart/mixed", [BYTES])),
        ("t", None, (PDF,), ("multipart/mixed", [PLAIN, BYTES])),
        (None, "h", (LOGO,), ("multipart/related", [HTML, PNG])),
        ("t", None, (LOGO,), ("multipart/mixed", [PLAIN, PNG])),
        ("t", "h", (LOGO,), ("multipart/alternative", [PLAIN, ("multipart/related", [HTML, PNG])])),
        ("t", None, (INVITATION,), ("multipart/alternative", [PLAIN, CALENDAR])),
        ("t", "h", (INVITATION,), ("multipart/alternative", [PLAIN, HTML, CALENDAR])),
        (None, None, (INVITATION,), ("multipart/mixed", [CALENDAR])),
        (
            "t",
            None,
            (INVITATION, INVITATION),
            ("multipart/mixed", [("multipart/alternative", [PLAIN, CALENDAR]), CALENDAR]),
        ),
        ("t", None, (INVITATION._replace(content_type="text/calendar"),), ("multipart/mixed", [PLAIN, CALENDAR])),
    ],
)
def test_the_tree_has_no_needless_level(
    text: str | None, html: str | None, attachments: tuple[Attachment, ...], expected: Tree
) -> None:
    raw = written(CONTENT._replace(text=text, html=html, attachments=attachments))
    assert_fit_for_the_wire(raw)
    assert tree(message_from_bytes(raw)) == expected


@pytest.mark.rule("MIME-01")
@pytest.mark.parametrize(
    ("text", "encoding"),
    {
        "": "7bit",
        "a\r\nb\nc\rd": "7bit",
        ".\n..\nFrom me\n": "7bit",
        "a" * 899: "7bit",
        "trailing space \t\n": "7bit",
        "a" * 901: "quoted-printable",
        "a café in the town " * 20: "quoted-printable",
        "nul \0": "quoted-printable",
        f"--=_m{BOUNDARY}\n": "quoted-printable",
        f"--=_a{BOUNDARY}--\n": "quoted-printable",
        "山田" * 200: "base64",
        "mostly plain text with one é \t \n and a tail \n" * 3 + "x" * 1_000: "quoted-printable",
    }.items(),
    ids=lambda value: ascii(value)[:20],
)
def test_text_has_the_simplest_possible_encoding(text: str, encoding: str) -> None:
    raw = written(CONTENT._replace(text=text, html=text, attachments=(PDF,)))
    assert_fit_for_the_wire(raw)
    plain, html, pdf = leaves(message_from_bytes(raw))
    assert plain["Content-Transfer-Encoding"] == html["Content-Transfer-Encoding"] == encoding
    assert content(plain) == content(html) == expected_text(text)
    assert content(pdf) == PDF.content


@pytest.mark.parametrize(
    "mail",
    [
        CONTENT._replace(subject="a\r\nBcc: x@y.example"),
        CONTENT._replace(sender=Mailbox("A\r\nBcc: x", "a", "b.example")),
        CONTENT._replace(to=(Mailbox("", "a\r\nBcc: x", "b.example"),)),
        CONTENT._replace(to=(Mailbox("", "a", "b.example>, <x@y.example"),)),
        CONTENT._replace(to=()),
        CONTENT._replace(reply_to=Mailbox("", "a", "b.example\n")),
        CONTENT._replace(headers=(("X-A", "a\nBcc: x"),)),
        CONTENT._replace(headers=(("X-A\r\nBcc", "x"),)),
        CONTENT._replace(headers=(("X-A: x\r\nBcc", "x"),)),
        CONTENT._replace(headers=(("References", "a\r\nBcc: x"),)),
        CONTENT._replace(headers=(("Bcc", "x@y.example"),)),
        CONTENT._replace(headers=(("resent-BCC", "x@y.example"),)),
        CONTENT._replace(tags=("a\rBcc: x",)),
        CONTENT._replace(attachments=(PDF._replace(filename='a"\r\nBcc: x'),)),
        CONTENT._replace(attachments=(PDF._replace(filename="a\0"),)),
        CONTENT._replace(attachments=(PDF._replace(content_type="a/b\r\nBcc: x"),)),
        CONTENT._replace(attachments=(PDF._replace(content_type="a/b; c=é"),)),
        CONTENT._replace(attachments=(PDF._replace(content_type="application"),)),
        CONTENT._replace(attachments=(PDF._replace(content_id="a>\r\nBcc: x"),)),
        CONTENT._replace(html="h", attachments=(PDF._replace(content_id="a b"),)),
        CONTENT._replace(text="\ud800"),
        CONTENT._replace(text=None),
    ],
)
def test_content_that_could_forge_a_field_is_refused(mail: MailContent) -> None:
    with pytest.raises(HeaderError):
        written(mail)


@pytest.mark.parametrize("message_id", ["", "a b", "a>b", "<a@b>", "a\r\nBcc: x", "é@b", "a" * 256])
def test_a_message_id_with_anything_odd_is_refused(message_id: str) -> None:
    with pytest.raises(HeaderError):
        write(CONTENT, date=DATE, message_id=message_id, boundary=BOUNDARY)


@pytest.mark.parametrize("boundary", ["", "a b", 'a"', "a\r\n", "é", "a" * 61])
def test_a_boundary_with_anything_odd_is_refused(boundary: str) -> None:
    with pytest.raises(HeaderError):
        write(CONTENT, date=DATE, message_id="a@b", boundary=boundary)


@pytest.mark.rule("ATT-02")
@pytest.mark.parametrize(
    ("filename", "parameter"),
    {
        "order.pdf": b'\r\n filename="order.pdf"\r\n',
        "my order (2).pdf": b'\r\n filename="my order (2).pdf"\r\n',
        "größe.pdf": b"\r\n filename*=utf-8''gr%C3%B6%C3%9Fe.pdf\r\n",
        'a"b\\c;d.pdf': b"\r\n filename*=utf-8''a%22b%5Cc%3Bd.pdf\r\n",
        " a.pdf": b"\r\n filename*=utf-8''%20a.pdf\r\n",
        "100%.pdf": b"\r\n filename*=utf-8''100%25.pdf\r\n",
        "a" * 61: b"\r\n filename*0*=utf-8''" + b"a" * 53 + b";\r\n filename*1*=" + b"a" * 8 + b"\r\n",
    }.items(),
)
def test_a_filename_is_quoted_when_plain_and_extended_otherwise(filename: str, parameter: bytes) -> None:
    raw = written(CONTENT._replace(attachments=(PDF._replace(filename=filename),)))
    assert b"Content-Disposition: attachment;" + parameter in raw


visible = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029")
hostile = st.sampled_from(
    [
        "=?utf-8?q?a=0D=0ABcc:_x@y.example?=", "=?utf-8?b?DQpCY2M6IHg=?=", "Bcc: x@y.example", "a%0D%0ABcc: x",
        "\\r\\nBcc: x", '"; filename="evil.exe', "utf-8''evil%0D%0A", "--=_m" + BOUNDARY, "a" * 990, " leading",
        "trailing ", "a  b", "?=", "=?", "<x@y.example>,", "é" * 300,
    ]
)  # fmt: skip
plain_ascii = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=150)
phrases = hostile | plain_ascii | st.text(visible, max_size=80)
short_names = phrases.map(lambda text: text[:256])
mailbox_values = st.builds(
    Mailbox,
    st.just("") | short_names,
    st.sampled_from(["ada", "a.b+c", "x" * 64]),
    st.sampled_from(["example.com", "xn--mller-kva.example"]),
)
line_ends = st.sampled_from(["\r\n", "\n", "\r"])
bodies = st.one_of(
    st.lists(st.one_of(phrases, line_ends, st.sampled_from("\0\x0b\x0c\x1c\x85\u2028\t.")), max_size=12).map("".join),
    st.sampled_from([f"--=_a{BOUNDARY}\r\n\r\nBcc: x", f"\n--=_m{BOUNDARY}--\n", "x" * 2_000, "é" * 2_000]),
)
attachments = st.builds(
    Attachment,
    filename=phrases.map(lambda text: text[:255] or "a"),
    content_type=st.sampled_from(
        [
            "application/pdf", "image/png", "text/plain; charset=utf-8", 'a/b; c="d e"; f=g', "a/b;\tc=d",
            "text/calendar; method=REQUEST", "TEXT/Calendar;METHOD=CANCEL", "text/calendar",
        ]
    ),
    content=st.binary(max_size=300) | st.sampled_from([b"", b"\r\n", b"x" * 57, b"x" * 58, b"\0" * 5_000]),
    content_id=st.none() | st.from_regex(r"[A-Za-z0-9._@+-]{1,128}", fullmatch=True),
)  # fmt: skip
custom_fields = st.lists(
    st.tuples(st.from_regex(r"X-[A-Za-z0-9!#_-]{1,74}", fullmatch=True), phrases)
    | st.tuples(st.sampled_from(["References", "List-Unsubscribe"]), st.sampled_from(["<a@b>", "<a@b> " * 60])),
    max_size=3,
)
contents = st.builds(
    MailContent,
    sender=mailbox_values,
    to=st.lists(mailbox_values, min_size=1, max_size=4).map(tuple),
    cc=st.lists(mailbox_values, max_size=2).map(tuple),
    reply_to=st.none() | mailbox_values,
    subject=phrases,
    text=st.none() | bodies,
    html=st.none() | bodies,
    headers=custom_fields.map(tuple),
    tags=st.lists(short_names, max_size=3).map(tuple),
    attachments=st.lists(attachments, max_size=3).map(tuple),
).filter(lambda mail: mail.text is not None or mail.html is not None or mail.attachments)


def expected_fields(mail: MailContent) -> list[tuple[str, object]]:
    def boxes(given_boxes: tuple[Mailbox, ...]) -> list[tuple[str, str]]:
        return [(box.name, box.address) for box in given_boxes]

    return [
        ("From", boxes((mail.sender,))),
        ("To", boxes(mail.to)),
        *([("Cc", boxes(mail.cc))] if mail.cc else []),
        *([("Reply-To", boxes((mail.reply_to,)))] if mail.reply_to else []),
        ("Subject", mail.subject),
        ("Date", DATE),
        ("Message-ID", "<01k9x2@mail.example>"),
        ("MIME-Version", "1.0"),
        *((name, value.strip(" ") if not name.startswith("X-") else value) for name, value in mail.headers),
        *((TAG_HEADER, tag) for tag in mail.tags),
    ]


def read_field(name: str, raw_value: object) -> object:
    value = str(raw_value).replace("\r\n", "")
    if name in ("From", "To", "Cc", "Reply-To"):
        return [(decode(phrase), address) for phrase, address in getaddresses([value])]
    return parsedate_to_datetime(value) if name == "Date" else decode(value)


def read_filename(part: Message) -> str | None:
    value = part.get_param("filename", None, "Content-Disposition")
    return None if value is None else collapse_rfc2231_value(value)


def expected_leaves(mail: MailContent) -> list[tuple[str, bytes, str | None, str | None]]:
    """Type, content, filename and Content-ID of every leaf, in the order of the tree."""

    def leaf(attachment: Attachment) -> tuple[str, bytes, str | None, str | None]:
        kind = attachment.content_type.partition(";")[0].lower()
        identity = None if attachment.content_id is None else f"<{attachment.content_id}>"
        return kind, attachment.content, attachment.filename, identity

    has_body = mail.text is not None or mail.html is not None
    rest = list(mail.attachments)
    methods = [part for part in rest if "method=" in part.content_type.lower()]
    invitations = methods[:1] if has_body else []
    rest = [part for part in rest if not any(part is other for other in invitations)]
    inline = [part for part in rest if part.content_id is not None and mail.html is not None]
    rest = [part for part in rest if not any(part is other for other in inline)]
    return [
        *([(PLAIN, expected_text(mail.text), None, None)] if mail.text is not None else []),
        *([(HTML, expected_text(mail.html), None, None)] if mail.html is not None else []),
        *map(leaf, [*inline, *invitations, *rest]),
    ]


@pytest.mark.rule("MIME-03")
@bad_input("MIME writer", 1_200)
@given(contents)
@example(CONTENT._replace(subject="=?utf-8?q?a=0D=0ABcc:_x@y.example?=", tags=("=?utf-8?b?DQpCY2M6IHg=?=",)))
def test_another_parser_finds_exactly_the_given_content(mail: MailContent) -> None:
    raw = written(mail)
    assert_fit_for_the_wire(raw)
    message = message_from_bytes(raw)
    fields = [(name, read_field(name, value)) for name, value in message.items() if not name.startswith("Content-")]
    assert fields == expected_fields(mail)
    assert not any(part.defects for part in message.walk())
    found = [
        (part.get_content_type(), content(part), read_filename(part), part["Content-ID"]) for part in leaves(message)
    ]
    assert found == expected_leaves(mail)
    for part in message.walk():
        allowed = {"content-type", "content-transfer-encoding", "content-disposition", "content-id"}
        assert part is message or {name.lower() for name in part.keys()} <= allowed  # noqa: SIM118


@bad_input("MIME writer", 400)
@given(contents)
def test_the_modern_parser_agrees_and_finds_no_bcc(mail: MailContent) -> None:
    message = message_from_bytes(written(mail), policy=policy.SMTP)
    assert message["Subject"] == mail.subject
    assert message.get_all(TAG_HEADER, []) == list(mail.tags)
    assert [address.addr_spec for address in message["To"].addresses] == [box.address for box in mail.to]
    assert "bcc" not in {name.lower() for part in message.walk() for name in part.keys()}  # noqa: SIM118
    assert [content(part) for part in leaves(message)] == [leaf[1] for leaf in expected_leaves(mail)]


text_of_any_kind = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)


@pytest.mark.rule("MIME-01")
@bad_input("MIME writer", 1_200)
@given(text_of_any_kind | st.text(st.sampled_from("a \t\r\n=.é中\0"), max_size=400), st.booleans())
def test_any_text_arrives_with_only_its_line_ends_changed(text: str, in_a_multipart: bool) -> None:
    raw = written(CONTENT._replace(text=text, html="<p>" if in_a_multipart else None))
    assert_fit_for_the_wire(raw)
    assert content(leaves(message_from_bytes(raw))[0]) == expected_text(text)
