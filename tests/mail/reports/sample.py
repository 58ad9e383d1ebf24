"""Samples are text in the form that each server writes, about a message of ours."""

from typing import Final, NamedTuple

from posthouse.mail.report import Bounce, Complaint, FailedRecipient, NoReport

TOKEN: Final = "mfrggzdfmztwq2lknnwg23tpobyxe43uov3ho6dzpiydcmrt"
RETURN_PATH: Final = f"bounces+{TOKEN}@bounces.example.org"

ORIGINAL: Final = f"""\
Return-Path: <{RETURN_PATH}>
Received: by mail.example.org (Posthouse) with HTTP id em_01; Sun, 15 Nov 2026 06:00:00 +0000
From: Acme Support <support@acme.example.org>
To: bob@example.com
Subject: Your order is delayed: confirm your address
Date: Sun, 15 Nov 2026 06:00:00 +0000
Message-ID: <01@acme.example.org>
MIME-Version: 1.0
Content-Type: text/plain

550 5.1.1 is what a bounce would say. This is only a mail, about zed@example.net.
"""


class Sample(NamedTuple):
    name: str
    raw: str
    expected: Bounce | Complaint | NoReport


def bounce(*failures: FailedRecipient, tokens: tuple[str, ...] = (RETURN_PATH,)) -> Bounce:
    return Bounce(failures, tokens)


def dsn(
    header: str, words: str, *recipients: str, of_message: str = "Reporting-MTA: dns; mx.example.com",
    original: str = ORIGINAL, original_type: str = "message/rfc822",
) -> str:  # fmt: skip
    """A notification of RFC 3464; each server has its own `header`."""
    statuses = "\n\n".join((of_message, *(recipient.strip() for recipient in recipients)))
    return f"""\
{header.strip()}
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status;
\tboundary="=_6A0F/01"

This is a MIME-encapsulated message.

--=_6A0F/01
Content-Type: text/plain; charset=utf-8

{words.strip()}

--=_6A0F/01
Content-Type: message/delivery-status

{statuses}

--=_6A0F/01
Content-Type: {original_type}

{original}
--=_6A0F/01--
"""


def failed(status: str, diagnostic: str = "", to: str = "bob@example.com", kind: str = "rfc822; ") -> str:
    """What a notification usually says of a recipient."""
    fields = f"Final-Recipient: {kind}{to}\nAction: failed\nStatus: {status}"
    return f"{fields}\nDiagnostic-Code: {diagnostic}" if diagnostic else fields


def arf(
    header: str, words: str, fields: str, *, original: str = ORIGINAL, original_type: str = "message/rfc822"
) -> str:
    """A feedback report of RFC 5965."""
    return f"""\
{header.strip()}
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report;
  boundary="part1_13d.2e68ed54_boundary"

--part1_13d.2e68ed54_boundary
Content-Type: text/plain; charset="US-ASCII"
Content-Transfer-Encoding: 7bit

{words.strip()}

--part1_13d.2e68ed54_boundary
Content-Type: message/feedback-report

{fields.strip()}

--part1_13d.2e68ed54_boundary
Content-Type: {original_type}
Content-Disposition: inline

{original}
--part1_13d.2e68ed54_boundary--
"""
