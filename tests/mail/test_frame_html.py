"""HTML for a sandboxed frame: what loads automatically is renamed, the message's own pictures are put in."""

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
        ("<LINK\nrel=x>", "<x-LINK\nrel=x>"),
        ("<p>frame, link and base</p>", "<p>frame, link and base</p>"),
        ("<framework></framework>", "<framework></framework>"),
    ],
)
def test_only_those_tags_are_renamed(given: str, made: str) -> None:
    assert framed(given, {}) == made


def test_pictures_of_the_mail_are_shown() -> None:
    made = framed('<img src="cid:logo%40x"><img src=CID:none>', {"logo@x": PICTURE})
    assert made == '<img src="data:image/png;base64,iVBORw=="><img src=CID:none>'


def test_a_picture_named_very_often_is_not_put_in_very_often() -> None:
    made = framed("<img src=cid:a>" * 100_000, {"a": Picture("image/png", b"x" * 100_000)})
    assert len(made) < FRAME_CHARACTERS_MAX + 2_000_000
