"""Words of a server's reply: in one form, so that tables of phrases can be compared with them.

A reply is untrusted. Only its beginning is read, and a comparison takes time in proportion to it.
"""

import re
from typing import Final

# What matters stands at the beginning of a reply; the rest is links and identifiers.
CHARACTERS_MAX: Final = 400

# In place of an address.
ADDRESS: Final = "[address]"

_WORD: Final = re.compile(r"\S+")

Phrase = tuple[str, ...]


def phrase_of(words: str) -> Phrase:
    """A phrase of a table; "…" stands for any words between."""
    return tuple(words.split(" … "))


def has(text: str, phrase: Phrase) -> bool:
    place = 0
    for part in phrase:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def normal(response: str) -> str:
    """In lower case on one line, without addresses and the status codes that each line of a reply repeats."""
    lines = [_without_status(line) for line in response[:CHARACTERS_MAX].lower().split("\n")]
    return " ".join([word for line in lines for word in line.split() if "@" not in word])


def without_addresses(response: str) -> str:
    """For what is kept about a server and not about a message: it must not name recipients."""
    return _WORD.sub(lambda word: ADDRESS if "@" in word[0] or "%40" in word[0] else word[0], response)


def _without_status(line: str) -> str:
    first, _, rest = line.partition(" ")
    return rest if first.count(".") == 2 and first.replace(".", "").isdigit() else line
