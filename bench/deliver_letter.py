"""The letter of the delivery benchmark: the usual one, with more text, so that it comes to 4 KB as a mail."""

from datetime import UTC, datetime
from typing import Final

from bench import letter
from posthouse.mail import mime
from posthouse.rules import ids
from posthouse.rules.draft import compose

SENDER: Final = "orders@mail0.example"
RECIPIENT: Final = "ada@customer.example"

_MORE_TEXT: Final = "Whoever is at home when it comes may take it for you; a signature is all we ask.\n" * 10


def fields(domain: str, recipient: str) -> dict[str, str]:
    """The body of a request, sent from an address of `domain`."""
    usual = letter.fields(domain)
    return {**usual, "to": f"Ada Lovelace <{recipient}>", "text": usual["text"] + _MORE_TEXT}


def written() -> bytes:
    """The letter as our server writes it, which is what the other relays are given to carry."""
    given = fields(SENDER.partition("@")[2], RECIPIENT)
    draft = compose(
        sender=given["from"], to=[given["to"]], subject=given["subject"], text=given["text"], html=given["html"]
    )
    now = datetime.now(UTC)
    return mime.write(
        draft.mail_content(None),
        date=now,
        message_id=f"{ids.text('', ids.new_message_id(now, bytes(10)))}@mail.example",
        boundary="0" * 24,
    )
