"""A header field carries its value exactly, inside the line limits, and never a second field."""

import re
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.utils import getaddresses
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from posthouse.mail.address import Mailbox
from posthouse.mail.header_writer import HeaderError, is_structured, mailboxes, structured, unstructured
from tests.support.bad_input import bad_input, inputs

CONTROLS = [*"\r\n\0\t\x0b\x0c\x1b\x7f\x85\x9f\u2028\u2029\ud800\udfff"]
INJECTION = "=?utf-8?q?a=0D=0ABcc:_x@y.example?="

visible = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029")
ascii_words = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=400)
values = st.one_of(
    ascii_words,
    st.text(visible, max_size=200),
    st.text(st.sampled_from("ab é中💌=?_ "), max_size=300),
    st.lists(st.text(st.sampled_from("ab="), min_size=1, max_size=120), max_size=9).map(" ".join),
    st.integers(900, 1_010).map(lambda length: "a" * length),
)
field_names = st.from_regex(r"X-[!-9;-~]{1,74}", fullmatch=True)


def body_of(field: bytes, name: str) -> str:
    """The unfolded value, after the checks that hold for every field."""
    assert field.endswith(b"\r\n")
    text = field.decode("ascii")
    assert text.startswith(f"{name}:")
    assert text.replace("\r\n", "").isprintable()
    first, *continued = text[:-2].split("\r\n")
    assert all(len(line) <= 998 for line in (first, *continued))
    assert all(line[0] == " " and line.strip() for line in continued)
    for word in re.findall(r"=\?utf-8\?[bq]\?[^? ]*\?=", text[len(name) :]):
        assert len(word) <= 75
        assert decode(word)
    return "".join([first, *continued]).removeprefix(f"{name}:").removeprefix(" ")


def decode(value: str) -> str:
    return str(make_header(decode_header(value)))


@pytest.mark.parametrize(
    ("value", "field"),
    {
        "": b"Subject: \r\n",
        "Hello": b"Subject: Hello\r\n",
        "two  spaces": b"Subject: two  spaces\r\n",
        "50 % = 1/2 ?": b"Subject: 50 % = 1/2 ?\r\n",
        "a" * 69: b"Subject: " + b"a" * 69 + b"\r\n",
        "a" * 68 + " b": b"Subject: " + b"a" * 68 + b"\r\n b\r\n",
        "a" * 900: b"Subject: " + b"a" * 900 + b"\r\n",
        " Hello": b"Subject: =?utf-8?q?_Hello?=\r\n",
        "Hello ": b"Subject: =?utf-8?q?Hello_?=\r\n",
        " ": b"Subject: =?utf-8?q?_?=\r\n",
        "Grüezi miteinander": b"Subject: =?utf-8?q?Gr=C3=BCezi_miteinander?=\r\n",
        "山田": b"Subject: =?utf-8?b?5bGx55Sw?=\r\n",
        "=?": b"Subject: =?utf-8?b?PT8=?=\r\n",
    }.items(),
)
def test_a_value_stays_plain_if_that_is_exact(value: str, field: bytes) -> None:
    assert unstructured("Subject", value) == field


@pytest.mark.parametrize("value", ["", "Hello"])
def test_a_name_that_looks_like_an_encoded_word_changes_nothing(value: str) -> None:
    assert unstructured("X-=?", value) == f"X-=?: {value}\r\n".encode()


def test_long_text_is_folded_at_spaces_within_78_characters() -> None:
    value = " ".join(["word"] * 60)
    field = unstructured("Subject", value)
    assert body_of(field, "Subject") == value
    assert max(map(len, field.split(b"\r\n"))) <= 78


@pytest.mark.rule("HEAD-13")
def test_a_literal_encoded_word_is_shown_and_not_decoded() -> None:
    field = unstructured("Subject", INJECTION)
    assert b"=0D=0A" not in field
    assert decode(body_of(field, "Subject")) == INJECTION


@pytest.mark.rule("HEAD-10")
@bad_input("MIME writer", 1_200)
@given(st.sampled_from(["Subject", "X-Service-Tag"]) | field_names, values)
@example("X-=?", "")
@example("X", "é" * 499)
@example("X" * 76, "💌" * 200)
@example("X", "  a" * 300)
def test_a_reader_gets_back_exactly_the_value_that_was_given(name: str, value: str) -> None:
    field = unstructured(name, value)
    assert decode(body_of(field, name)) == value
    if b"=?utf-8?" in field and len(name) <= 50:
        assert max(map(len, field.split(b"\r\n"))) <= 76
    message = message_from_bytes(field + b"\r\n", policy=policy.SMTP)
    assert message.items() == [(name, value)]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
@pytest.mark.parametrize("pattern", ["{}", "a{}", "{}Bcc: x@y.example", "a{} b", "é{}Bcc: x", "=?{}?="])
def test_every_writer_refuses_control_characters(pattern: str, control: str) -> None:
    value = pattern.format(control)
    for write in (partial(unstructured, "Subject"), partial(structured, "References")):
        with pytest.raises(HeaderError):
            write(value)
    for box in (Mailbox(value, "ada", "example.com"), Mailbox("", value, "example.com"), Mailbox("Ada", "ada", value)):
        with pytest.raises(HeaderError):
            mailboxes("To", [box, Mailbox("", "eve", "example.com")])


@pytest.mark.rule("HEAD-06")
@pytest.mark.parametrize("name", ["", "A B", "A:B", "A\r\nBcc", "A\n", "Ä", "A\0", "A\x7f", "A" * 77], ids=ascii)
def test_a_field_name_is_printable_ascii_without_space_or_colon(name: str) -> None:
    for write in (unstructured, structured, lambda name, _: mailboxes(name, [Mailbox("", "ada", "example.com")])):
        with pytest.raises(HeaderError):
            write(name, "value")


@pytest.mark.rule("HEAD-10")
@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (True, "References in-reply-to LIST-UNSUBSCRIBE List-Whatever Feedback-ID Auto-Submitted X-Priority"),
        (False, "X-Campaign Comments Listing"),
    ],
)
def test_structured_fields_are_known_by_name(expected: bool, names: str) -> None:
    assert {name: is_structured(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


@pytest.mark.parametrize(
    ("value", "field"),
    {
        "<a@b.example>": b"References: <a@b.example>\r\n",
        " <a@b.example> ": b"References: <a@b.example>\r\n",
        "": b"References: \r\n",
        "a" * 996: b"References:\r\n " + b"a" * 996 + b"\r\n",
        "=?utf-8?q?Caf=C3=A9?= <a>": b"References: =?utf-8?q?Caf=C3=A9?= <a>\r\n",
        "<https://x.example/?a=?b>": b"References: <https://x.example/?a=?b>\r\n",
    }.items(),
)
def test_a_structured_value_is_sent_unchanged(value: str, field: bytes) -> None:
    assert structured("References", value) == field


@pytest.mark.parametrize(
    "value",
    [
        *("é", "a" * 998, "a " * 10 + "a" * 998, INJECTION),
        "=?utf-8?B?DQpCY2M6IHhAeS5leGFtcGxl?=",
        "=?utf-8?b?DQo?=",
        "=?utf-7?q?+AA0ACg-Bcc:?=",
        "=?utf-8*en?q?=0D=0A?=",
        "=?utf-8?q?a b=0D=0A?=",
        "=?utf-8?q?a?b=0D=0A?=",
        "=?utf-8?q?=FF?=",
        "a =?utf-8?q?ok?= =?x?q?=0A?=",
    ],
    ids=lambda value: value[:24],
)
def test_an_unsafe_structured_value_is_refused(value: str) -> None:
    with pytest.raises(HeaderError):
        structured("References", value)


@bad_input("MIME writer", 500)
@given(st.lists(st.text(st.sampled_from("<ab@.>=?;,"), max_size=120), max_size=12).map(" ".join))
def test_a_structured_value_is_folded_without_any_other_change(value: str) -> None:
    try:
        field = structured("References", value)
    except HeaderError:
        assert "=?" in value or len(value) > 900
        return
    assert body_of(field, "References").strip(" ") == value.strip(" ")


@pytest.mark.parametrize(
    ("name", "written"),
    {
        "": "ada@example.com",
        "Ada": "Ada <ada@example.com>",
        "Ada Lovelace": "Ada Lovelace <ada@example.com>",
        "Acme Inc.": '"Acme Inc." <ada@example.com>',
        "Lovelace, Ada": '"Lovelace, Ada" <ada@example.com>',
        'Ada "A" \\': '"Ada \\"A\\" \\\\" <ada@example.com>',
        "x@y.example, z": '"x@y.example, z" <ada@example.com>',
        "two  spaces": "=?utf-8?q?two__spaces?= <ada@example.com>",
        "=?": "=?utf-8?b?PT8=?= <ada@example.com>",
        "Åse": "=?utf-8?q?=C3=85se?= <ada@example.com>",
        '"Å" <eve@example.com>,': "=?utf-8?b?IsOFIiA8ZXZlQGV4YW1wbGUuY29tPiw=?= <ada@example.com>",
    }.items(),
)
def test_a_display_name_is_atoms_or_quoted_or_encoded(name: str, written: str) -> None:
    assert mailboxes("To", [Mailbox(name, "ada", "example.com")]) == f"To: {written}\r\n".encode()


def test_a_list_without_mailboxes_is_refused() -> None:
    with pytest.raises(HeaderError):
        mailboxes("To", [])


@pytest.mark.parametrize("address", ["a b", "a<b", "a>b", "a,b", 'a"b', "a(b", "é"])
def test_an_unchecked_address_is_refused(address: str) -> None:
    for box in (Mailbox("", address, "example.com"), Mailbox("Ada", "ada", address)):
        with pytest.raises(HeaderError):
            mailboxes("To", [box])


display_names = st.one_of(
    st.just(""),
    st.text(st.sampled_from('ab .,"\\<>@:;()[]=?é中💌'), max_size=80),
    st.text(visible, max_size=120),
    st.text(st.sampled_from("abc "), min_size=50, max_size=256),
)
boxes = st.builds(
    Mailbox,
    display_names,
    st.sampled_from(["ada", "a.b+c", "!#$%&'*+/=?^_`{|}~-", "x" * 64]),
    st.sampled_from(["example.com", "xn--mller-kva.example", "b." * 90 + "cc"]),
)


@settings(max_examples=inputs(500), deadline=None)
@given(st.sampled_from(["From", "To", "Reply-To"]), st.lists(boxes, min_size=1, max_size=5))
def test_a_reader_finds_exactly_the_mailboxes_that_were_given(name: str, given_boxes: list[Mailbox]) -> None:
    field = mailboxes(name, given_boxes)
    found = getaddresses([body_of(field, name)])
    assert [(decode(phrase), address) for phrase, address in found] == [(box.name, box.address) for box in given_boxes]
    message = message_from_bytes(field + b"\r\n", policy=policy.SMTP)
    assert [address.addr_spec for address in message[name].addresses] == [box.address for box in given_boxes]
    assert message.keys() == [name]
