"""The message that the benchmarks send: text and HTML to a single recipient, 3 KB, or 4 KB where it is delivered."""

import base64
import random
from datetime import UTC, datetime
from typing import Final

from posthouse.mail import mime
from posthouse.rules import ids
from posthouse.rules.draft import Draft, compose

SUBJECT: Final = "Your order 48213 is on its way"
SENDER_DOMAIN: Final = "mail0.example"
RECIPIENT: Final = "ada@customer.example"

_TEXT_LINE: Final = "Your parcel has left our warehouse and should reach you within two working days.\n"
_HTML_ROW: Final = (
    '<tr><td style="padding:4px 8px">Notebook, A5, dotted, 192 pages</td><td align="right">2</td>'
    '<td align="right">EUR 17.80</td></tr>\n'
)
_SYLLABLES: Final = "ba co di fe gu ha in jo ka lo mi no or pe qui ra st tu un ve wi xa yo ze ing er tion al ent is"
TEXT: Final = "Good morning,\n\n" + _TEXT_LINE * 12 + "\nThe shop\n"
LONG_TEXT: Final = TEXT + "A neighbour may accept it for you when you are not at home; we only ask to sign.\n" * 10
HTML: Final = (
    "<!doctype html><html><body>\n<h1>On its way</h1>\n<table>\n" + _HTML_ROW * 12 + "</table>\n</body></html>\n"
)


def fields(domain: str, *, to: str = RECIPIENT, text: str = TEXT) -> dict[str, str]:
    """The body of a request, sent from an address of `domain`."""
    return {
        "from": f"The shop <orders@{domain}>",
        "to": f"Ada Lovelace <{to}>",
        "subject": SUBJECT,
        "text": text,
        "html": HTML,
    }


def draft(domain: str, text: str = TEXT) -> Draft:
    given = fields(domain, text=text)
    return compose(
        sender=given["from"], to=[given["to"]], subject=given["subject"], text=given["text"], html=given["html"]
    )


def mail(domain: str = SENDER_DOMAIN, text: str = LONG_TEXT, host: str = "mail.example") -> bytes:
    """The message as our server at `host` writes it; the other servers get it so."""
    now = datetime.now(UTC)
    return mime.write(
        draft(domain, text).mail_content(None),
        date=now,
        message_id=f"{ids.text('', ids.new_message_id(now, bytes(10)))}@{host}",
        boundary="0" * 24,
    )


def newsletter(size: int) -> bytes:
    """An HTML message of this many bytes that repeats itself no more than real mail does: gzip makes a third of it."""
    randomness = random.Random(size)
    syllables = _SYLLABLES.split()
    vocabulary = ["".join(randomness.choices(syllables, k=randomness.randint(1, 4))) for _ in range(2_000)]
    frequencies = [1 / rank for rank in range(1, len(vocabulary) + 1)]

    def words(count: int) -> str:
        return " ".join(randomness.choices(vocabulary, frequencies, k=count))

    def row() -> str:
        padding = randomness.randint(2, 24)
        color = f"{randomness.randrange(1 << 24):06x}"
        style = f"padding:{padding}px;font-family:Arial,sans-serif;color:#{color}"
        link = f"https://click.example/c/{randomness.randrange(1 << 64):x}"
        return f'<tr><td style="{style}">{words(16)}. <a href="{link}">{words(3)}</a></td></tr>\r\n'

    return "".join(row() for _ in range(size // 150)).encode()[:size]


def attachment(size: int) -> bytes:
    """A message of nothing but base64, of this many bytes: hardly anything can be compressed."""
    return base64.encodebytes(random.Random(size).randbytes(size * 3 // 4)).replace(b"\n", b"\r\n")[:size]
