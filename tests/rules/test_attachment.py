"""The name and the type under which a browser stores a file."""

import re
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules.attachment import (
    DEFAULT_TYPE,
    NAME_CHARACTERS_MAX,
    content_disposition,
    download_name,
    download_type,
)

NAMES = [
    ("terms.txt", "terms.txt"),
    (None, "part-1"),
    ("", "part-1"),
    ("...", "part-1"),
    ("../../etc/passwd", "passwd"),
    ("C:\\Windows\\system32\\evil.dll", "evil.dll"),
    ("a/b\\", "part-1"),
    ('x"; filename="y.html', "x__ filename=_y.html"),
    ("a\r\nSet-Cookie: b=c.txt", "aSet-Cookie_ b=c.txt"),
    ("a\0b\x7f.txt", "ab.txt"),
    ("invoice\u202efdp.exe", "invoicefdp.exe"),
    ("\ufeffa\u200b.txt", "a.txt"),
    ("CON", "_CON"),
    ("com1.txt", "_com1.txt"),
    ("nul .txt", "_nul .txt"),
    ("console.txt", "console.txt"),
    (".htaccess", "htaccess"),
    ("a.txt. . ", "a.txt"),
    ("50%25.txt", "50_25.txt"),
    ("<script>.html", "_script_.html"),
    ("Übersicht 2026.pdf", "Übersicht 2026.pdf"),
    ("x" * 400 + ".pdf", "x" * 146 + ".pdf"),
    ("x." + "y" * 400, "x." + "y" * 148),
]


@pytest.mark.rule("MSD-13")
@pytest.mark.parametrize(("given_name", "name"), NAMES)
def test_a_name_is_safe_on_any_system(given_name: str | None, name: str) -> None:
    assert download_name(given_name, "part-1") == name


def test_a_name_outside_ascii_is_written_both_ways() -> None:
    assert content_disposition("terms.txt") == 'attachment; filename="terms.txt"'
    expected = "attachment; filename=\"_bersicht.pdf\"; filename*=UTF-8''%C3%9Cbersicht.pdf"
    assert content_disposition("Übersicht.pdf") == expected


@given(st.text(max_size=300))
def test_whatever_the_name_the_header_has_one_name(given_name: str) -> None:
    name = download_name(given_name, "part-1")
    value = content_disposition(name)
    assert name
    assert len(name) <= NAME_CHARACTERS_MAX + 1
    assert re.fullmatch(r"attachment; filename=\"[ !#-\[\]-~]+\"(; filename\*=UTF-8''[A-Za-z0-9%_.~-]+)?", value)
    read = Message()
    read["Content-Disposition"] = value
    assert read.get_content_disposition() == "attachment"
    assert not re.search(r"[/\\\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069]", name)


@pytest.mark.parametrize(
    ("given_type", "sent"),
    [
        ("image/png", "image/png"),
        ("application/pdf", "application/pdf"),
        ("text/html", DEFAULT_TYPE),
        ("image/svg+xml", DEFAULT_TYPE),
        ("text/javascript", DEFAULT_TYPE),
        ("", DEFAULT_TYPE),
    ],
)
def test_a_type_that_could_run_is_bytes(given_type: str, sent: str) -> None:
    assert download_type(given_type) == sent
