"""The message that the benchmarks send: text and HTML to a single recipient, 3 KB, or 4 KB where it is delivered."""

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
