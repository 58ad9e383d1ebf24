"""A mail's HTML, made ready for a sandboxed frame.

The sandbox and the policy of the response stop scripts, forms and most loads. Two things they don't stop: a nested
frame and a hint in `<link>` still connect to a stranger's server. So the tags that load or navigate by themselves are
renamed to elements that mean nothing.
"""

import base64
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

PICTURE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# Of a mail's pictures, all together; and of their texts in the HTML.
PICTURE_BYTES_MAX: Final = 8 * 1024 * 1024
FRAME_CHARACTERS_MAX: Final = 16 * 1024 * 1024

_rename: Final = re.compile(
    r"<(/?)(?=(?:i?frame|frameset|object|embed|portal|fencedframe|applet|link|meta|base|script)\b)",
    re.IGNORECASE,
).sub
_replace_ids: Final = re.compile(r"\bcid:([^\s\"'<>()]{1,255})", re.IGNORECASE).sub


class Picture(NamedTuple):
    content_type: str
    content: bytes


def framed(html: str, pictures: Mapping[str, Picture]) -> str:
    """`pictures` are those of the mail, by their Content-ID."""
    addresses = {content_id: _data_url(picture) for content_id, picture in pictures.items()}
    # A mail may name a picture many thousand times.
    left = FRAME_CHARACTERS_MAX

    def shown(found: re.Match[str]) -> str:
        nonlocal left
        address = addresses.get(unquote(found[1]), "")
        if not address or len(address) > left:
            return found[0]
        left -= len(address)
        return address

    return _replace_ids(shown, _rename(r"<\1x-", html))


def _data_url(picture: Picture) -> str:
    return f"data:{picture.content_type};base64,{base64.b64encode(picture.content).decode()}"
