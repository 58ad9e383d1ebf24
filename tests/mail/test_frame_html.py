"""HTML for a sandboxed frame: what loads automatically is left out or renamed, the message's pictures are put in."""

import re

import pytest

from posthouse.mail.render import FRAME_CHARACTERS_MAX, Picture, framed
from tests.support.hostile_html import payloads

RENAMED = re.compile(
    r"<\s*/?\s*(?:i?frame|frameset|object|embed|portal|fencedframe|applet|link|meta|base|script)\b", re.IGNORECASE
)
PICTURE = Picture("image/png", b"\x89PNG")


@pytest.mark.parametrize("name", payloads(""))
def test_no_tag_that_loads_automatically_is_left(name: str) -> None:
    assert RENAMED.search(framed(payloads("http://trap.example")[name], {})) is None


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("<iframe src=x></iframe>", "<x-iframe src=x></x-iframe>"),
        ("<OBJECT\ndata=x>", "<x-OBJECT\ndata=x>"),
        ("<p>frame, link and base</p>", "<p>frame, link and base</p>"),
        ("<framework></framework>", "<framework></framework>"),
    ],
)
def test_only_those_tags_are_renamed(given: str, made: str) -> None:
    assert framed(given, {}) == made


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ('<script type="application/ld+json">{"a": "<p>"}</script>b', "b"),
        ("a<SCRIPT type='x>y'>x</ScRiPt\n>b", "ab"),
        ("a<script>b</script >c", "ac"),
        ("a<script>b</scripts>c</script/>d", "ad"),
        ("a<script>b<script>c</script>d", "ad"),
        ("a<script>b<p>c", "a"),
        ("a</script>b</meta>c", "abc"),
        ("<head><meta charset=utf-8 /><link rel=x href='a>b'><base href=x></head>", "<head></head>"),
        ("<!-- <p> <!--><meta name=x>a<!--b--!><meta name=x>c", "<!-- <p> <!-->a<!--b--!>c"),
        ("<!-->a<meta name=x>b", "<!-->ab"),
        ("<!doctype html><meta name=x>a", "<!doctype html>a"),
        (
            "<title><meta></title><style>a > b {}</style><meta name=x>c",
            "<title><x-meta></title><style>a > b {}</style>c",
        ),
        ("1 < 2 <meta name=x>3", "1 < 2 3"),
        # Only shown as they are written, so that nothing after them is lost.
        ("<!-- <script> --><p>a", "<!-- <x-script> --><p>a"),
        ('<p title="<script>">a</p>', '<p title="<x-script>">a</p>'),
        ("<p title = '<link>'>a</p>", "<p title = '<x-link>'>a</p>"),
        ("<style>p::after { content: '<script>' }</style>a", "<style>p::after { content: '<x-script>' }</style>a"),
        # Nothing that is left becomes a tag by what is left out.
        ("<scr<script></script>ipt>a</script>", "<scr<x-script>ipt>a"),
        ("<<meta>script>a", "<x-script>a"),
        ("<i<meta>frame src=x>", "<i<x-meta>frame src=x>"),
        ('<p a=b"<link>', '<p a=b"<x-link>'),
        ("<p a='<iframe>", "<p a='<x-iframe>"),
    ],
)
def test_scripts_and_void_elements_that_load_are_left_out(given: str, made: str) -> None:
    assert framed(given, {}) == made


def test_pictures_of_the_mail_are_shown() -> None:
    made = framed('<img src="cid:logo%40x"><img src=CID:none>', {"logo@x": PICTURE})
    assert made == '<img src="data:image/png;base64,iVBORw=="><img src=CID:none>'


def test_a_picture_named_very_often_is_not_put_in_very_often() -> None:
    made = framed("<img src=cid:a>" * 100_000, {"a": Picture("image/png", b"x" * 100_000)})
    assert len(made) < FRAME_CHARACTERS_MAX + 2_000_000
