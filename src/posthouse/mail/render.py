"""A stored message for display: its header, text, HTML, and attachments.

Its content is untrusted, though it was checked when it was accepted. So it is parsed like incoming mail (`parts`):
bounded in depth and parts, linear, and without exceptions.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from posthouse.mail import parts
from posthouse.mail.address_fields import printable
from posthouse.mail.header_reader import FIELDS_MAX, HEADER_BYTES_MAX, scan_fields
from posthouse.mail.parts import VALUE_CHARACTERS_MAX, MimePart

PICTURE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# Of all pictures of a message together; and of their texts in the HTML.
PICTURE_BYTES_MAX: Final = 8 * 1024 * 1024
FRAME_CHARACTERS_MAX: Final = 16 * 1024 * 1024

# Void elements that load, navigate or say what the header of our response says, and scripts with their content.
_DROPPED: Final = frozenset({"script", "meta", "link", "base", "embed", "frame"})
_rename: Final = re.compile(
    r"<(/?)(?=(?:i?frame|frameset|object|embed|portal|fencedframe|applet|link|meta|base|script)\b)",
    re.IGNORECASE,
).sub
# Elements whose content is text up to their own end tag, whatever tags it seems to contain.
_TEXT_ELEMENTS: Final = frozenset({"script", "style", "title", "textarea", "xmp", "noembed", "noframes"})
# A tag, a comment, or something that ends like one; a "<" of a text is neither.
_markup: Final = re.compile(r"<(?:/?([a-z][^ \t\n\f\r/>]*+)|!--|[!?/])", re.IGNORECASE).search
_text_end: Final = re.compile(r"</(script|style|title|textarea|xmp|noembed|noframes)(?=[ \t\n\f\r/>])", re.IGNORECASE)
_comment_end: Final = re.compile(r"--!?>").search
# The end of a tag, or the beginning of a quoted value, which may contain ">".
_tag_end: Final = re.compile(r">|=[ \t\n\f\r]*+([\"'])").search
_replace_ids: Final = re.compile(r"\bcid:([^\s\"'<>()]{1,255})", re.IGNORECASE).sub

PARTS_MAX: Final = 200
NAME_CHARACTERS_MAX: Final = 255
# Fields that identify a message or control replies; the others are in the content.
NOTABLE_FIELDS: Final = frozenset(
    {
        "date", "from", "sender", "reply-to", "to", "cc", "message-id", "in-reply-to", "references", "auto-submitted",
        "precedence", "list-id", "list-unsubscribe", "list-unsubscribe-post", "feedback-id",
    }
)  # fmt: skip
_NOTABLE_FIELDS_MAX: Final = 50

_section: Final = re.compile(r"(filename|name)\*(?:(\d{1,3})(\*)?)?\Z").match


class Picture(NamedTuple):
    content_type: str
    content: bytes


class HeaderField(NamedTuple):
    """Decoded, on a single line."""

    name: str
    value: str


class AttachmentInfo(NamedTuple):
    """`part` counts the leaf parts, from 0; `size` is that of the decoded content."""

    part: int
    filename: str | None
    content_type: str
    size: int
    content_id: str | None
    is_inline: bool


class Attachment(NamedTuple):
    info: AttachmentInfo
    content: bytes


class RenderedMail(NamedTuple):
    """`is_shortened`: the message has more parts than were read."""

    subject: str
    headers: tuple[HeaderField, ...]
    text: str | None
    html: str | None
    attachments: tuple[AttachmentInfo, ...]
    is_shortened: bool


def framed(html: str, pictures: Mapping[str, Picture]) -> str:
    """The HTML prepared for a sandboxed frame, with the message's `pictures`, by their Content-ID.

    The sandbox and the policy of the response stop scripts, forms and most loads. Two things they don't stop: a nested
    frame and a hint in `<link>` still connect to a stranger's server. So scripts and void elements are left out, as a
    browser without scripts and network shows nothing of them. What else loads or navigates automatically is renamed to
    elements that mean nothing, and so is all that still looks like one of these tags, wherever it stands.
    """
    addresses = {content_id: _data_url(picture) for content_id, picture in pictures.items()}
    # A message may name a picture many thousand times.
    left = FRAME_CHARACTERS_MAX

    def shown(found: re.Match[str]) -> str:
        nonlocal left
        address = addresses.get(unquote(found[1]), "")
        if not address or len(address) > left:
            return found[0]
        left -= len(address)
        return address

    return _replace_ids(shown, _rename(r"<\1x-", _without_dropped(html)))


def _without_dropped(html: str) -> str:
    """Reads tags as a browser does. Where it is mistaken, mail looks different; renaming keeps it harmless."""
    kept: list[str] = []
    kept_to = position = 0
    while (found := _markup(html, position)) is not None:
        begin = found.start()
        if found[1] is None:
            position = _end_of_comment(html, begin, found[0])
            continue
        name = found[1].lower()
        position = _end_of_tag(html, found.end())
        if name in _TEXT_ELEMENTS and html[begin + 1] != "/":
            position = _text_element_end(html, name, position)
        if name in _DROPPED:
            kept.append(html[kept_to:begin])
            kept_to = position
    return "".join(kept) + html[kept_to:]


def _end_of_comment(html: str, begin: int, opening: str) -> int:
    """Of a real one, or of a declaration that browsers treat like one. "<!-->" is a whole comment."""
    if opening == "<!--":
        found = _comment_end(html, begin + 2)
        return len(html) if found is None else found.end()
    return html.find(">", begin) + 1 or len(html)


def _end_of_tag(html: str, position: int) -> int:
    while (found := _tag_end(html, position)) is not None:
        if found[1] is None:
            return found.end()
        position = html.find(found[1], found.end()) + 1
        if position == 0:
            break
    return len(html)


def _text_element_end(html: str, name: str, position: int) -> int:
    """Before the end tag of a style; after that of a script, which is left out with it."""
    for found in _text_end.finditer(html, position):
        if found[1].lower() == name:
            return _end_of_tag(html, found.end()) if name in _DROPPED else found.start()
    return len(html)


def render_mail(raw: bytes) -> RenderedMail:
    leaves = _leaves(raw)
    bodies, attachments = _divided(leaves[:PARTS_MAX])
    headers = header_fields(raw)
    return RenderedMail(
        subject=next((field.value for field in headers if field.name.lower() == "subject"), ""),
        headers=headers,
        text=_text(bodies["text/plain"]) if "text/plain" in bodies else None,
        html=_text(bodies["text/html"]) if "text/html" in bodies else None,
        attachments=tuple([_attached(number, leaf, leaf.decoded()) for number, leaf in attachments.items()]),
        is_shortened=len(leaves) > PARTS_MAX,
    )


def attachment(raw: bytes, number: int) -> Attachment | None:
    """The attachment whose `AttachmentInfo.part` is this number; None for a part that is shown as text or HTML."""
    _, attachments = _divided(_leaves(raw)[:PARTS_MAX])
    leaf = attachments.get(number)
    if leaf is None:
        return None
    content = leaf.decoded()
    return Attachment(_attached(number, leaf, content), content)


def inline_pictures(raw: bytes) -> dict[str, Picture]:
    """The pictures that HTML can show by their Content-ID, up to a total size."""
    found: dict[str, Picture] = {}
    left = PICTURE_BYTES_MAX
    for leaf in _leaves(raw)[:PARTS_MAX]:
        content_id = leaf.get("content-id").strip("<> \t")
        if content_id and leaf.type in PICTURE_TYPES and len(content := leaf.decoded()) <= left:
            left -= len(content)
            found[content_id] = Picture(leaf.type, content)
    return found


def header_fields(raw: bytes) -> tuple[HeaderField, ...]:
    """The fields in order; `raw` may be the beginning of a message."""
    head = raw[: HEADER_BYTES_MAX + 4].partition(b"\r\n\r\n")[0]
    # A CR at the cut would be matched against every folded line before it.
    head = head.removesuffix(b"\r") + b"\r\n"
    return tuple(
        HeaderField(name.decode("ascii"), _one_line(rest))
        for name, _, colon, rest in islice(scan_fields(head), FIELDS_MAX)
        if name and colon
    )


def notable_fields(raw: bytes) -> tuple[HeaderField, ...]:
    return tuple(
        islice((field for field in header_fields(raw) if field.name.lower() in NOTABLE_FIELDS), _NOTABLE_FIELDS_MAX)
    )


def _data_url(picture: Picture) -> str:
    return f"data:{picture.content_type};base64,{base64.b64encode(picture.content).decode()}"


def _one_line(rest: bytes) -> str:
    text = rest[: 4 * VALUE_CHARACTERS_MAX].replace(b"\r\n", b"").decode("utf-8", "replace").strip()
    return printable(parts.decode_words(text), VALUE_CHARACTERS_MAX)


def _leaves(raw: bytes) -> tuple[MimePart, ...]:
    """One more than is shown, so that more parts are noticed."""
    return parts.parse_mail(raw, bytes_max=len(raw), parts_max=PARTS_MAX + 1).leaves


def _text(leaf: MimePart) -> str:
    """The whole text, with "\\n" line ends."""
    return parts.decode(leaf.decoded().replace(b"\r\n", b"\n"), leaf.parameters.get("charset", ""))


def _is_attachment(leaf: MimePart) -> bool:
    return _disposition(leaf) == "attachment" or _filename(leaf) is not None


def _disposition(leaf: MimePart) -> str:
    return leaf.get("content-disposition").partition(";")[0].strip().lower()


def _divided(leaves: Sequence[MimePart]) -> tuple[dict[str, MimePart], dict[int, MimePart]]:
    """The first text and the first HTML, by their types; all others are attachments, by their numbers."""
    bodies: dict[str, MimePart] = {}
    attachments: dict[int, MimePart] = {}
    for number, leaf in enumerate(leaves):
        if leaf.type in ("text/plain", "text/html") and leaf.type not in bodies and not _is_attachment(leaf):
            bodies[leaf.type] = leaf
        else:
            attachments[number] = leaf
    return bodies, attachments


def _attached(number: int, leaf: MimePart, content: bytes) -> AttachmentInfo:
    content_id = printable(leaf.get("content-id").strip("<> \t"), NAME_CHARACTERS_MAX)
    disposition = _disposition(leaf)
    return AttachmentInfo(
        part=number,
        filename=_filename(leaf),
        content_type=printable(leaf.type, NAME_CHARACTERS_MAX),
        size=len(content),
        content_id=content_id or None,
        is_inline=disposition == "inline" or (disposition != "attachment" and bool(content_id)),
    )


def _filename(leaf: MimePart) -> str | None:
    """The name in the disposition, else the name that older programs write in the type."""
    for field in ("content-disposition", "content-type"):
        given = parts.parameters_of(leaf.get(field))
        name = _extended(given) or parts.decode_words(given.get("filename") or given.get("name") or "")
        if shown := printable(name, NAME_CHARACTERS_MAX).strip():
            return shown
    return None


def _extended(given: dict[str, str]) -> str:
    """RFC 2231: a single value, or numbered sections, each possibly encoded."""
    pieces = {}
    for name, value in given.items():
        if section := _section(name):
            is_encoded = section[2] is None or section[3] is not None
            pieces[int(section[2] or 0)] = value, is_encoded
    charset = ""
    raw = b""
    for number in sorted(pieces):
        value, is_encoded = pieces[number]
        if is_encoded and not raw and value.count("'") >= 2:
            charset, _, value = value.split("'", 2)
        raw += unquote_to_bytes(value) if is_encoded else value.encode("utf-8", "replace")
    return parts.decode(raw, charset)
