"""The pages of captured mail as HTML. Everything that comes from a mail is escaped; its own HTML is in a frame."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from posthouse.flows.account.captured_mail import CapturedMessage, MessageListRow
from posthouse.flows.shared.page import Page
from posthouse.mail.links import Link, links_of
from posthouse.mail.render import AttachmentInfo
from posthouse.rules import ids

STYLE: Final = b"""\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .5rem; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; }
iframe { background: white; border: 1px solid #888; height: 70vh; width: 100%; }
pre { border: 1px solid #8884; overflow: auto; padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; overflow-wrap: anywhere; }
.warning { border-left: .3rem solid #c60; padding-left: .6rem; }
"""

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex, nofollow">{refresh}
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/captured/style.css">
</head>
<body>
{body}
</body>
</html>
"""


def page(title: str, body: str, refresh: str = "") -> str:
    """`title` is a text and `body` is HTML; `refresh` is an own path to go to at once."""
    go = f'\n<meta http-equiv="refresh" content="0; url={escape(refresh)}">' if refresh else ""
    return _PAGE.format(title=escape(title), body=body, refresh=go)


def opened(path: str) -> str:
    """A page that leads on. A redirect would not do: a link from another site gets no strict cookie on its way."""
    return page("Captured mail", f'<p><a href="{escape(path)}">Captured mail</a></p>', refresh=path)


def notice(title: str, text: str) -> str:
    return page(title, f"<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>")


def listed(found: Page[MessageListRow]) -> str:
    rows = "\n".join(
        f"<tr><td>{_time(row)}</td><td>{escape(row.sender)}</td><td>{escape(_recipients(row))}</td>"
        f'<td><a href="/captured/{ids.text(ids.MESSAGE, row.id)}">{escape(row.subject or "(no subject)")}</a></td>'
        f"<td>{escape(row.source)}</td><td>{escape(row.status)}</td></tr>"
        for row in found.items
    )
    heads = _row(("Time (UTC)", "From", "To", "Subject", "Source", "Status"), "th")
    body = f"<h1>Captured mail</h1>\n<table>\n{heads}\n{rows}\n</table>"
    if not found.items:
        body = "<h1>Captured mail</h1>\n<p>There is none yet. Send a mail, and load this page again.</p>"
    if found.next_cursor is not None:
        body += f'\n<p><a href="/captured?cursor={quote(found.next_cursor)}">Older mail</a></p>'
    return page("Captured mail", body)


def shown(captured: CapturedMessage, *, has_remote_pictures: bool) -> str:
    message, content = captured
    path = f"/captured/{ids.text(ids.MESSAGE, message.id)}"
    facts = {
        "From": message.sender,
        "To": ", ".join(recipient.email for recipient in message.recipients),
        "Accepted": f"{message.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "Status": f"{message.status}, source {message.source}",
        "Id": ids.text(ids.MESSAGE, message.id),
    }
    sections = [
        '<p><a href="/captured">All captured mail</a></p>',
        f"<h1>{escape(content.subject or '(no subject)')}</h1>",
        _table(facts.items()),
        _html(path, has_remote_pictures=has_remote_pictures) if content.html is not None else "",
        f"<h2>Text</h2>\n<pre>{escape(content.text)}</pre>" if content.text is not None else "",
        _links(links_of(content.html, content.text)),
        _attachments(path, content.attachments),
        f"<h2>Headers</h2>\n{_table(content.headers)}",
        "<p>Parts after the first 200 are left out.</p>" if content.is_shortened else "",
    ]
    return page(content.subject or "Captured mail", "\n".join(section for section in sections if section))


def _html(path: str, *, has_remote_pictures: bool) -> str:
    """The frame is inert: it takes no click and no focus, so that a link in it leads nowhere."""
    if has_remote_pictures:
        source = f"{path}/html?pictures=remote"
        note = f'<p class="warning">Remote pictures are loaded. <a href="{path}">Without them</a></p>'
    else:
        source = f"{path}/html"
        note = (
            f'<p><a href="{path}?pictures=remote">Load remote pictures</a> (their servers see your address and that '
            "you read this mail)</p>"
        )
    return f'<h2>HTML</h2>\n{note}\n<iframe sandbox="" inert title="The HTML of this mail" src="{source}"></iframe>'


def _links(links: Sequence[Link]) -> str:
    if not links:
        return ""
    items = "\n".join(f"<li>{_link(link)}</li>" for link in links)
    return f"<h2>Links</h2>\n<ul>\n{items}\n</ul>"


def _link(link: Link) -> str:
    """Only addresses of the web can be followed."""
    url = escape(link.url)
    label = f"{escape(link.label)}: " if link.label else ""
    if not link.url.lower().startswith(("https://", "http://")):
        return f"{label}{url}"
    return f'{label}<a href="{url}" target="_blank" rel="noopener noreferrer nofollow">{url}</a>'


def _attachments(path: str, attachments: Sequence[AttachmentInfo]) -> str:
    if not attachments:
        return ""
    items = "\n".join(
        f'<li><a href="{path}/attachments/{item.part}" download>{escape(item.filename or f"part {item.part}")}</a> '
        f"({escape(item.content_type)}, {item.size:,} bytes)</li>"
        for item in attachments
    )
    return f"<h2>Attachments</h2>\n<ul>\n{items}\n</ul>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>\n{lines}\n</table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _time(row: MessageListRow) -> str:
    return f"{row.created_at:%Y-%m-%d %H:%M:%S}"


def _recipients(row: MessageListRow) -> str:
    more = row.recipient_count - len(row.recipients)
    return ", ".join(row.recipients) + (f" and {more} more" if more > 0 else "")
