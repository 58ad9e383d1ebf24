"""Attachments: the media type of a file name, and what a browser is given to store.

A browser gets a name that is safe on any system, and a type that nothing executes. Names come from messages, which may
be hostile: a path, a name that reads backwards, a device, a second header field.
"""

import unicodedata
from typing import Final
from urllib.parse import quote

DEFAULT_TYPE: Final = "application/octet-stream"
# The same on every machine.
_TYPES_BY_EXTENSION: Final = {
    "7z": "application/x-7z-compressed",
    "aac": "audio/aac",
    "avif": "image/avif",
    "avi": "video/x-msvideo",
    "bmp": "image/bmp",
    "bz2": "application/x-bzip2",
    "css": "text/css",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
    "flac": "audio/flac",
    "gif": "image/gif",
    "gz": "application/gzip",
    "heic": "image/heic",
    "htm": "text/html",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "ics": "text/calendar",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "m4a": "audio/mp4",
    "md": "text/markdown",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "mpeg": "video/mpeg",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg",
    "p7s": "application/pkcs7-signature",
    "pdf": "application/pdf",
    "pkpass": "application/vnd.apple.pkpass",
    "png": "image/png",
    "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "rtf": "application/rtf",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "ttf": "font/ttf",
    "txt": "text/plain",
    "vcf": "text/vcard",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
}

NAME_CHARACTERS_MAX: Final = 150
EXTENSION_CHARACTERS_MAX: Final = 20

DOWNLOAD_TYPES: Final = (DEFAULT_TYPE, "application/pdf", "image/gif", "image/jpeg", "image/png", "image/webp")

# Windows allows none of these in a name.
_REPLACED: Final = str.maketrans(dict.fromkeys('<>:"|?*%;', "_"))
_DEVICES: Final = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)


def type_of_filename(filename: str) -> str:
    _, dot, extension = filename.rpartition(".")
    return _TYPES_BY_EXTENSION.get(extension.lower(), DEFAULT_TYPE) if dot else DEFAULT_TYPE


def download_type(given: str) -> str:
    """The type itself if it is on a short list: whatever else it claims to be is bytes."""
    return given if given in DOWNLOAD_TYPES else DEFAULT_TYPE


def download_name(given: str | None, otherwise: str) -> str:
    """A name without a path, without characters that can't be seen, and short; `otherwise` if nothing is left."""
    name = (given or "").replace("\\", "/").rpartition("/")[2]
    # Controls, formats (which turn the direction of text), surrogates and unassigned characters.
    name = "".join([character for character in name if not unicodedata.category(character).startswith("C")])
    name = name.translate(_REPLACED).strip(". \u00a0")
    if len(name) > NAME_CHARACTERS_MAX:
        stem, dot, extension = name.rpartition(".")
        extension = dot + extension if dot and len(extension) <= EXTENSION_CHARACTERS_MAX else ""
        name = (stem if extension else name)[: NAME_CHARACTERS_MAX - len(extension)] + extension
    if not name:
        return otherwise
    return f"_{name}" if name.partition(".")[0].strip().lower() in _DEVICES else name


def content_disposition(name: str) -> str:
    """The value of Content-Disposition (RFC 6266) for a safe name: in ASCII, and as it is."""
    plain = "".join([character if " " <= character <= "~" else "_" for character in name])
    plain = plain.replace("\\", "_").replace('"', "_")
    extended = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    return f'attachment; filename="{plain}"{extended}'
