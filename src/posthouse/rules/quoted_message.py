"""Messages as customers quote them: an id in a server's reply, in a header, or in a line of a log."""

import re
from typing import Final

from posthouse.rules import ids
from posthouse.rules.ids import MessageId

QUOTED_CHARACTERS_MAX: Final = 500

# `queued as em_01k…`, a recipient's `rc_01k…`, `Message-ID: <01k…@mail.example.com>`. A message's id is a recipient's
# without the number of the recipient.
_ID: Final = re.compile(r"(?<![0-9a-z])(?:em_|rc_)?([0-9a-z]{26})(?![0-9a-z])", re.IGNORECASE)


def message_id_in(text: str) -> MessageId | None:
    """The first id of a message in the text."""
    for found in _ID.finditer(text):
        value = ids.parse("", found[1].lower())
        if value is not None:
            return ids.message_of(value)
    return None
