"""Feedback reports (RFC 5965), as the providers send them."""

# ruff: noqa: E501 (a sample's header reads better unbroken)

from typing import Final

from posthouse.mail.report import AUTHENTICATION, Complaint
from tests.mail.reports.sample import ORIGINAL, RETURN_PATH, Sample, arf

_WORDS: Final = "This is an email abuse report for an email message received from IP 192.0.2.7."


def complaint(
    kind: str, recipient: str | None, text: str = _WORDS, tokens: tuple[str, ...] = (RETURN_PATH,)
) -> Complaint:
    return Complaint(kind, recipient, tokens, text)


COMPLAINTS: Final = (
    Sample("Yahoo", arf("From: Yahoo! Mail AntiSpam Feedback <feedback@arf.mail.example.com>\nSubject: FW: Your order is delayed", _WORDS, f"""
Feedback-Type: abuse
User-Agent: Yahoo!-Mail-Feedback/2.0
Version: 0.1
Original-Mail-From: <{RETURN_PATH}>
Original-Rcpt-To: bob@example.com
Received-Date: Sun, 15 Nov 2026 06:00:05 PST
Reported-Domain: acme.example.org
Authentication-Results: dkim=pass
"""), complaint("abuse", "bob@example.com")),
    Sample("AOL, who complained is hidden", arf("From: <scomp@aol.example.com>\nSubject: Email Feedback Report for IP 192.0.2.7", _WORDS, """
Feedback-Type: abuse
User-Agent: AOL SComp
Version: 0.1
Received-Date: Sun, 15 Nov 2026 06:00:05 -0500 (EST)
Source-IP: 192.0.2.7
Reported-Domain: acme.example.org
Redacted-Address: redacted
""", original=ORIGINAL.replace("bob@example.com", "undisclosed-recipients:;")), complaint("abuse", None)),
    Sample("AOL, asked to be taken off", arf("From: <scomp@aol.example.com>\nSubject: Email Feedback Report", _WORDS,
        "Feedback-Type: opt-out\nUser-Agent: SomeGenerator/1.0\nVersion: 1\nRemoval-Recipient: <Bob@Example.com>"), complaint("opt-out", "bob@example.com")),
    Sample("Mail.ru", arf("From: fbl@corp.mail.example.com\nSubject: Abuse report", _WORDS,
        f"Feedback-Type: abuse\nUser-Agent: Mail.Ru-FBL/0.1\nVersion: 0.1\nOriginal-Mail-From: {RETURN_PATH}\n"
        "Original-Rcpt-To: <bob@example.com>", original_type="text/rfc822-headers"), complaint("abuse", "bob@example.com")),
    Sample("Comcast by Validity, several recipients", arf("From: feedback@comcast.example.com\nSubject: Comcast Abuse Report", _WORDS,
        "Feedback-Type: Abuse\nUser-Agent: ReturnPathFBL/1.0\nVersion: 1\nOriginal-Rcpt-To: bob@example.com\n"
        "Original-Rcpt-To: carol@example.com\nIncidents: 2"), complaint("abuse", "bob@example.com")),
    Sample("fraud", arf("From: fbl@example.com\nSubject: fraud", _WORDS, "Feedback-Type: fraud\nUser-Agent: X/1\nVersion: 1"), complaint("fraud", None)),
    Sample("virus", arf("From: fbl@example.com\nSubject: virus", _WORDS, "Feedback-Type: virus\nUser-Agent: X/1\nVersion: 1"), complaint("virus", None)),
    Sample("taken out of the spam folder", arf("From: fbl@example.com\nSubject: not spam", _WORDS,
        "Feedback-Type: not-spam\nUser-Agent: X/1\nVersion: 1\nOriginal-Rcpt-To: bob@example.com"), complaint("not-spam", "bob@example.com")),
    Sample("an unknown kind", arf("From: fbl@example.com\nSubject: x", _WORDS, "Feedback-Type: \u00fc\u00fc!\nUser-Agent: X/1\nVersion: 1"), complaint("other", None)),
    Sample("by address, RFC 9477", arf("From: fbl@example.com\nSubject: FW: Your order is delayed", _WORDS, "Feedback-Type: abuse\nUser-Agent: CFBL/1\nVersion: 1",
        original=f"CFBL-Address: fbl@example.org; report=arf\nCFBL-Feedback-ID:\n 111:222:XyZ\n{ORIGINAL}"), complaint("abuse", None, tokens=(RETURN_PATH, "111:222:XyZ"))),
    Sample("Outlook.com's older form", f"""\
From: staff@hotmail.example.com
Subject: complaint about message from 192.0.2.7
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="b1"

--b1
Content-Type: message/rfc822
Content-Disposition: inline

X-HmXmrOriginalRecipient: <bob@example.com>
{ORIGINAL}
--b1--
""", complaint("abuse", "bob@example.com", "complaint about message from 192.0.2.7")),
    Sample("Outlook.com's older form, the mail itself", f"""\
From: staff@hotmail.example.com
Subject: complaint about message from 192.0.2.7
MIME-Version: 1.0
Content-Type: message/rfc822

X-HmXmrOriginalRecipient: bob@example.com
{ORIGINAL}""", complaint("abuse", "bob@example.com", "complaint about message from 192.0.2.7")),
    Sample("a report of failed authentication (RFC 6591)", arf("From: dmarc@example.com\nSubject: FW: Your order is delayed",
        "This is an authentication failure report.", "Feedback-Type: auth-failure\nUser-Agent: OpenDMARC/1\nVersion: 1\nAuth-Failure: dmarc"), AUTHENTICATION),
)  # fmt: skip
