"""The letter that every phase sends: about 3 KB of text and HTML to one recipient."""

from typing import Final

SUBJECT: Final = "Your order 48213 is on its way"
_TEXT_LINE: Final = "Your parcel has left our warehouse and should reach you within two working days.\n"
_HTML_ROW: Final = (
    '<tr><td style="padding:4px 8px">Notebook, A5, dotted, 192 pages</td><td align="right">2</td>'
    '<td align="right">EUR 17.80</td></tr>\n'
)
TEXT: Final = "Good morning,\n\n" + _TEXT_LINE * 12 + "\nThe shop\n"
HTML: Final = (
    "<!doctype html><html><body>\n<h1>On its way</h1>\n<table>\n" + _HTML_ROW * 12 + "</table>\n</body></html>\n"
)


def fields(domain: str) -> dict[str, str]:
    """The body of a request, sent from an address of `domain`."""
    return {
        "from": f"The shop <orders@{domain}>",
        "to": "Ada Lovelace <ada@customer.example>",
        "subject": SUBJECT,
        "text": TEXT,
        "html": HTML,
    }
