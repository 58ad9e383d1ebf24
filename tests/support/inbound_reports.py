"""Bounces and complaints as other mail servers write them."""

from typing import Final

BOUNCE: Final = """\
From: Mail Delivery System <MAILER-DAEMON@mx.example.org>
To: <{to}>
Subject: Undelivered Mail Returned to Sender
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="b"

--b
Content-Type: text/plain

I'm sorry to have to inform you that your message could not be delivered.

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.org

{failures}
--b
Content-Type: message/rfc822

{original}
--b--
"""

FAILURE: Final = """\
Final-Recipient: rfc822; {recipient}
Action: failed
Status: {status}
Diagnostic-Code: smtp; {diagnostic}
"""

COMPLAINT: Final = """\
From: <{author}>
To: <{to}>
Subject: FW: Hello
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary="b"

--b
Content-Type: text/plain

This is an email abuse report.

--b
Content-Type: message/feedback-report

Feedback-Type: {kind}
User-Agent: Provider/1.0
Version: 1
{recipient}
--b
Content-Type: message/rfc822

{original}
--b--
"""

ORIGINAL: Final = """\
{head}From: news@acme.example.com
Subject: Hello

Good morning.
"""

VACATION: Final = b"""\
From: ada@example.org\r
Subject: Out of office: Hello\r
Auto-Submitted: auto-replied\r
\r
550 5.1.1 ada@example.org is on holiday, and her user is unknown until Monday.\r
"""


def bounce(*recipients: str, status: str = "5.1.1", code: int = 550, to: str = "", original: str = "") -> bytes:
    failures = "\n".join(
        FAILURE.format(recipient=recipient, status=status, diagnostic=f"{code} {status} said the server")
        for recipient in recipients
    )
    return _wired(BOUNCE.format(to=to, failures=failures, original=ORIGINAL.format(head=original)))


def complaint(
    *fields: str,
    kind: str = "abuse",
    recipient: str | None = None,
    author: str = "feedback@provider.example",
    to: str = "complaints@example.com",
) -> bytes:
    """About a message with these header fields."""
    named = f"Original-Rcpt-To: <{recipient}>\n" if recipient else ""
    head = "".join(f"{field}\n" for field in fields)
    original = ORIGINAL.format(head=head)
    return _wired(COMPLAINT.format(kind=kind, recipient=named, original=original, author=author, to=to))


def _wired(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()
