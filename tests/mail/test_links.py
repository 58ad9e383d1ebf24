"""The links of a message: what counts as a link, in which order, and that hostile HTML costs little."""

import pytest

from posthouse.mail.links import LINKS_MAX, links_of
from tests.support.processor_time import processor_seconds


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ('<a href="https://a.example/">x</a>', ["https://a.example/"]),
        ("<A HREF='https://a.example/?a=1&amp;b=2'>x</A>", ["https://a.example/?a=1&b=2"]),
        ("<a class=button href=https://a.example/x>x</a>", ["https://a.example/x"]),
        ('<a title="a > b" href="https://a.example/">x</a>', ["https://a.example/"]),
        ('<a\n  href = "https://a.example/very\n/long"\n>x</a>', ["https://a.example/very/long"]),
        ('<map><area href="https://a.example/"></map>', ["https://a.example/"]),
        ('<a href="myapp://confirm/1">x</a>', ["myapp://confirm/1"]),
        ('<a href="mailto:a@b.example">x</a>', ["mailto:a@b.example"]),
        ('<!-- <a href="https://old.example/">x</a> --><a href="https://a.example/">x</a>', ["https://a.example/"]),
        ('<a href="https://a.example/">x</a><a href="https://a.example/">y</a>', ["https://a.example/"]),
        ('<a href="/relative">x</a><a href="#top">x</a><a href="">x</a><a>x</a>', []),
        ('<a href="javascript:alert(1)">x</a><a href="JaVa\nScript:alert(1)">x</a>', []),
        ('<a href="data:text/html,x">x</a><a href="cid:logo">x</a><abbr href="https://a.example/">x</abbr>', []),
        ('<a href="https://a.example/\x07">x</a><a href="', []),
    ],
)  # fmt: skip
def test_absolute_addresses_of_links_are_found(given: str, urls: list[str]) -> None:
    assert [link.url for link in links_of(given, None)] == urls


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("See https://a.example/x.", "https://a.example/x"),
        ("(https://a.example/x)", "https://a.example/x"),
        ("https://a.example/x_(y)", "https://a.example/x_(y)"),
        ("<https://a.example/x>", "https://a.example/x"),
        ('"https://a.example/x", he said', "https://a.example/x"),
        ("HTTPS://a.example/x?a=1#b!", "HTTPS://a.example/x?a=1#b"),
    ],
)
def test_the_punctuation_around_an_address_is_not_its_part(given: str, url: str) -> None:
    assert [link.url for link in links_of(None, given)] == [url]


def test_a_label_is_the_text_between_the_tags() -> None:
    given = '<a href="https://a.example/"><img src="x.png"> <b>Confirm</b>\n your &lt;address&gt;</a>'
    assert [link.label for link in links_of(given, None)] == ["Confirm your <address>"]


def test_a_limited_number_of_links_is_listed() -> None:
    given = "".join(f'<a href="https://a.example/{number}">x</a>' for number in range(3 * LINKS_MAX))
    assert len(links_of(given, None)) == LINKS_MAX


@pytest.mark.parametrize(
    "piece",
    ["<a ", "<a href=", '<a href="', "<a href='\"", "<!--", '<a x="', "https://", "<a " + "x " * 60, "</a", "<"],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    given = piece * (1_000_000 // len(piece))
    assert processor_seconds(lambda: links_of(given, given), enough=5.0) < 5.0
