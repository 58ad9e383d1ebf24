"""What a browser is given to store: a name that is safe on any system, and a type that nothing is run by.

Names come from mails, which are hostile: a path, a name that reads backwards, a device, a second header field.
"""

import unicodedata
from typing import Final
from urllib.parse import quote

NAME_CHARACTERS_MAX: Final = 150
EXTENSION_CHARACTERS_MAX: Final = 20

OTHER_TYPE: Final = "application/octet-stream"
TYPES: Final = (OTHER_TYPE, "application/pdf", "image/gif", "image/jpeg", "image/png", "image/webp")

# In a name, Windows takes none of these.
_REPLACED: Final = str.maketrans(dict.fromkeys('<>:"|?*%;', "_"))
_DEVICES: Final = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)


def content_type(given: str) -> str:
    """The type itself if it is on a short list: whatever else it says that it is, it is bytes."""
    return given if given in TYPES else OTHER_TYPE


def safe_name(given: str | None, otherwise: str) -> str:
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


def disposition(name: str) -> str:
    """The value of Content-Disposition (RFC 6266) for a safe name: in ASCII, and as it is."""
    plain = "".join([character if " " <= character <= "~" else "_" for character in name])
    plain = plain.replace("\\", "_").replace('"', "_")
    extended = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    return f'attachment; filename="{plain}"{extended}'
