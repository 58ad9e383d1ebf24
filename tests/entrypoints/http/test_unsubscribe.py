"""Unsubscribe forms are read in both encodings, no input is a fault, and the page escapes stored text."""

from html.parser import HTMLParser
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.entrypoints.http.routes.unsubscribe import _question, is_one_click
from posthouse.rules.ids import AccountId
from posthouse.rules.unsubscribe import ListMember
from tests.support.bad_input import bad_input

ENCODED = "application/x-www-form-urlencoded"
PART = b'--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (ENCODED, b"List-Unsubscribe=One-Click"),
        (f"{ENCODED.upper()}; charset=UTF-8", b"a=b&List%2DUnsubscribe=One%2dClick&List-Unsubscribe=x"),
        ("multipart/form-data; boundary=b", PART + b"--b--\r\n"),
        ("Multipart/Form-Data; boundary=b", PART),
        ('multipart/form-data; boundary="b"', PART.replace(b"\r\n", b"\n") + b"--b--"),
        ("multipart/form-data; boundary=b", PART.replace(b"List", b"Other", 1) + PART),
    ],
)
def test_both_form_encodings_are_read(content_type: str, body: bytes) -> None:
    assert is_one_click(content_type, body)


pieces = some.sampled_from(
    [
        PART,
        b"--b",
        b"--b--",
        b"\r\n",
        b"Content-Type: multipart/mixed; boundary=c",
        b"--c",
        b"One-Click",
        b"List-",
        b"Content-Disposition: form-data; name",
        b'*0*="List-Unsubscribe"',
        b"=utf-8''%ff",
        b";",
        b"=",
        b'"',
        b"\x00",
        b"Content-Transfer-Encoding: base64\r\n",
        b"Content-Type: text/plain; charset=x",
    ]
)
bodies = some.lists(pieces | some.binary(max_size=8), max_size=12).map(b"".join)
kinds = some.sampled_from([ENCODED, "multipart/form-data"])
parameters = some.sampled_from(["", "; boundary=b", ";boundary", "; boundary*=utf-8''%ff", '; boundary="', ";;"])


@bad_input("Unsubscribe links and forms", 500)
@given(some.tuples(kinds, parameters, some.text(alphabet=[chr(code) for code in range(32, 256)], max_size=8)), bodies)
def test_any_form_is_read_without_a_fault(parts: tuple[str, str, str], body: bytes) -> None:
    assert is_one_click("".join(parts), body) in (True, False)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def page(email: str, mailing_list: str) -> Tags:
    return Tags(bytes(_question(ListMember(AccountId(UUID(int=1)), mailing_list, email)).body).decode())


hostile = some.lists(
    some.sampled_from(
        [
            "<script>", "</script>", "alert(1)", "<img src=x onerror=", "'", '"', "<", ">", "&", "&lt;", "&#60;",
            "<!--", "-->", "</p>", "</style>", "<svg/onload=", "javascript:", "{email}", "{", "}", "{0}", "\0", "%",
        ]
    )
    | some.text(max_size=8),
    max_size=8,
).map("".join)  # fmt: skip


@bad_input("Stored text in pages", 500)
@given(hostile, hostile)
def test_stored_text_is_never_a_tag_on_the_page(email: str, mailing_list: str) -> None:
    shown = page(email, mailing_list)
    assert shown.tags == page("a", "b").tags
    assert f"{email} gets mail from the list {mailing_list}." in shown.text
