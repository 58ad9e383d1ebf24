"""The form of a click: either of HTML's two, and nothing that anyone sends is a fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.entrypoints.http.unsubscribe_routes import says_one_click

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
def test_either_form_is_read(content_type: str, body: bytes) -> None:
    assert says_one_click(content_type, body)


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


@given(some.tuples(kinds, parameters, some.text(alphabet=[chr(code) for code in range(32, 256)], max_size=8)), bodies)
def test_whatever_comes_is_read_to_its_end(parts: tuple[str, str, str], body: bytes) -> None:
    assert says_one_click("".join(parts), body) in (True, False)
