"""Bounces without a status part, as servers wrote them before RFC 3464 and some still do.

The expected `text` is a phrase of the whole.
"""

# ruff: noqa: E501 (servers write long lines)

from typing import Final

from posthouse.mail.report import FailedRecipient
from tests.mail.reports.sample import ORIGINAL, Sample, bounce

_QMAIL: Final = """\
From: MAILER-DAEMON@mx.example.com
Subject: failure notice

Hi. This is the qmail-send program at mx.example.com.
I'm afraid I wasn't able to deliver your message to the following addresses.
This is a permanent error; I've given up. Sorry it didn't work out.
"""
_EXIM: Final = """\
From: Mail Delivery System <Mailer-Daemon@mx.example.com>
Subject: Mail delivery failed: returning message to sender
"""
_COPY: Final = f"------ This is a copy of the message, including all the headers. ------\n\n{ORIGINAL}"
_COPY_BELOW: Final = f"--- Below this line is a copy of the message.\n\n{ORIGINAL}"

NOTICES: Final = (
    Sample("Exim before 4.87", f"""\
X-Failed-Recipients: bob@example.com
Auto-Submitted: auto-replied
{_EXIM}
This message was created automatically by mail delivery software.

A message that you sent could not be delivered to one or more of its
recipients. This is a permanent error. The following address(es) failed:

  bob@example.com
    SMTP error from remote mail server after RCPT TO:<bob@example.com>:
    host mx.example.com [192.0.2.1]: 550 5.1.1 <bob@example.com>:
    Recipient address rejected: User unknown

{_COPY}""",
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Recipient address rejected: User unknown"))),
    Sample("Exim, two recipients, one tried for too long", f"""\
X-Failed-Recipients: bob@example.com,
  carol@example.net
{_EXIM}
This message was created automatically by mail delivery software.

The following address(es) failed:

  bob@example.com
    Unrouteable address

  carol@example.net
    retry timeout exceeded

{_COPY}""",
        bounce(
            FailedRecipient("bob@example.com", None, None, True, "Unrouteable address"),
            FailedRecipient("carol@example.net", None, None, False, "retry timeout exceeded"),
        )),
    Sample("two recipients in one paragraph, each with its own reason", f"""\
X-Failed-Recipients: bob@example.com, carol@example.net, dave@example.net
{_EXIM}
The following address(es) failed:

bob@example.com
  mailbox is full: retry timeout exceeded
carol@example.net
  550 5.1.1 no such user

dave@example.net
  Unrouteable address

{ORIGINAL}""", bounce(
            FailedRecipient("bob@example.com", None, None, False, "retry timeout exceeded"),
            FailedRecipient("carol@example.net", "5.1.1", 550, True, "no such user"),
            FailedRecipient("dave@example.net", None, None, True, "Unrouteable address"),
        )),
    Sample("Exim, mailbox full at the end of data", f"""\
X-Failed-Recipients: bob@example.com
{_EXIM}
A message that you sent could not be delivered:

  bob@example.com
    SMTP error from remote mail server after end of data:
    552 5.2.2 Mailbox size limit exceeded

{_COPY}""",
        bounce(FailedRecipient("bob@example.com", "5.2.2", 552, True, "Mailbox size limit exceeded"))),
    Sample("qmail, refused by the next server", f"""\
{_QMAIL}
<bob@example.com>:
192.0.2.1 does not like recipient.
Remote host said: 550 5.1.1 <bob@example.com>: User unknown
Giving up on 192.0.2.1.

{_COPY_BELOW}""",
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "does not like recipient"))),
    Sample("qmail, no mailbox here by that name", f"""\
{_QMAIL}
<bob@example.com>:
Sorry, no mailbox here by that name. (#5.1.1)

{_COPY_BELOW}""",
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, "no mailbox here by that name"))),
    Sample("qmail, too long in the queue", f"""\
{_QMAIL}
<bob@example.com>:
Sorry, I wasn't able to establish an SMTP connection. (#4.4.1)
I'm not going to try again; this message has been in the queue too long.

<carol@example.net>:
CNAME lookup failed temporarily. (#4.4.3)
I'm not going to try again; this message has been in the queue too long.

{_COPY_BELOW}""",
        bounce(
            FailedRecipient("bob@example.com", "4.4.1", None, False, "SMTP connection"),
            FailedRecipient("carol@example.net", "4.4.3", None, False, "CNAME lookup"),
        )),
    Sample("Yahoo, in its own words", f"""\
From: MAILER-DAEMON@yahoo.com
Subject: Failure Notice

Sorry, we were unable to deliver your message to the following address.

<bob@example.com>:
550: 5.1.1 <bob@example.com>: Recipient address rejected: example.com

{_COPY_BELOW}""",
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Recipient address rejected"))),
    Sample("Yahoo, mailbox over its limit", f"""\
From: MAILER-DAEMON@yahoo.com
Subject: Failure Notice

Message from yahoo.com.
Unable to deliver message to the following address(es).

<bob@example.com>:
552 1 Requested mail action aborted, mailbox not found or over quota

--- Original message follows.

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", None, 552, True, "over quota"))),
    Sample("Gmail before its notifications were formal", f"""\
From: Mail Delivery Subsystem <mailer-daemon@googlemail.com>
Subject: Delivery Status Notification (Failure)

Delivery to the following recipient failed permanently:

     bob@example.com

Technical details of permanent failure:
Google tried to deliver your message, but it was rejected by the server for the recipient domain example.com by mx.example.com. [192.0.2.1].

The error that the other server returned was:
550 5.1.1 <bob@example.com>: Recipient address rejected: User unknown in relay recipient table

----- Original message -----

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown in relay recipient table"))),
    Sample("Zoho", f"""\
From: mailer-daemon@mail.zoho.example.com
Subject: Undelivered Mail Returned to Sender

This message was created automatically by mail delivery software.
A message that you sent could not be delivered to one or more of its recipients. This is a permanent error.

bob@example.com, ERROR CODE :550 - 5.1.1 The email account that you tried to reach does not exist.

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "does not exist"))),
    Sample("Mail.ru, in Russian", f"""\
From: mailer-daemon@corp.mail.example.com
Subject: Mail failure.
X-Failed-Recipients: bob@example.com
Content-Type: text/plain; charset=utf-8

Это письмо создано автоматически сервером, отвечать на него не нужно.

К сожалению, Ваше письмо не может быть доставлено одному или нескольким получателям:

bob@example.com
Такого пользователя не существует (550 5.1.1 user not found)

{_COPY}""",
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Такого пользователя не существует"))),
    Sample("QQ, in Chinese and HTML", f"""\
From: PostMaster@qq.example.com
Subject: =?utf-8?b?5p2l6IeqcXEuZXhhbXBsZS5jb23nmoTpgIDkv6E=?=
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="NextPart_1"

--NextPart_1
Content-Type: text/html; charset="utf-8"

<html><head><style>p {{ color: red }}</style></head><body><p>您的邮件被退回</p><table><tr><td>收件人邮件地址（
&lt;bob@example.com&gt;）不存在，邮件无法送达。</td></tr><tr><td>host mx.example.com said:
550 5.1.1 Mailbox not found</td></tr></table></body></html>

--NextPart_1
Content-Type: message/rfc822

{ORIGINAL}
--NextPart_1--
""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "不存在"))),
    Sample("GroupWise", f"""\
From: Mail Delivery Subsystem <postmaster@example.com>
Subject: Message status - undeliverable
X-Mailer: Novell GroupWise Internet Agent 8.0.1
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="____GW____"

--____GW____
Content-Type: text/plain; charset=US-ASCII

The attached file had the following undeliverable recipient(s):
<bob@example.com>

Information about your message:
Transcript of session follows:
550 5.1.1 bob@example.com User unknown

--____GW____
Content-Type: message/rfc822

{ORIGINAL}
--____GW____--
""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("MailEnable", f"""\
From: "Mail Delivery Subsystem" <postmaster@example.com>
Subject: Message Delivery Failure

MailEnable: Message Delivery Failure.

Message could not be delivered to some recipients.
The following recipient(s) could not be reached:

\tRecipient: [SMTP:bob@example.com]
\tReason: Remote SMTP Server Returned: 550 5.1.1 <bob@example.com>: User unknown

Message headers follow:

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Remote SMTP Server Returned"))),
    Sample("GMX, the reason below the address", f"""\
From: MAILER-DAEMON@mail.gmx.example.com
Subject: Mail delivery failed: returning message to sender

This message was created automatically by mail delivery software.

A message that you sent could not be delivered to one or more of
its recipients. This is a permanent error. The following address
failed:

<bob@example.com>

Reason:
delivery retry timeout exceeded


--- The header of the original message is following. ---

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", None, None, False, "Reason: delivery retry timeout exceeded"))),
    Sample("MDaemon", f"""\
From: MDaemon at mx.example.com <MDaemon@mx.example.com>
Subject: Permanent Delivery Failure

The attached message had PERMANENT fatal delivery errors!

The following addresses did NOT receive a copy of your message:

> bob@example.com

--- Session Transcript ---
 Sun 2026-11-15 06:00:05: --> RCPT To:<bob@example.com>
 Sun 2026-11-15 06:00:05: <-- 550 5.1.1 <bob@example.com>, Recipient unknown
--- End Transcript ---

: Message contains [1] file attachments

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Recipient unknown"))),
    Sample("Exchange 5.5", f"""\
From: System Administrator <postmaster@example.com>
Subject: Undeliverable: Your order is delayed: confirm your address

Your message

  To:      bob@example.com
  Subject: Your order is delayed: confirm your address
  Sent:    Sun, 15 Nov 2026 06:00:00 -0000

did not reach the following recipient(s):

bob@example.com on Sun, 15 Nov 2026 06:00:05 -0000
    The recipient name is not recognized
    The MTS-ID of the original message is: c=us;a= ;p=example;l=0026
    MSEXCH:IMS:Example:SITE:MAIL 0 (000C05A6) Unknown Recipient

----- Original message -----

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", None, None, True, "The recipient name is not recognized"))),
    Sample("Sendmail of old", f"""\
From: Mail Delivery Subsystem <MAILER-DAEMON@mx.example.com>
Subject: Returned mail: User unknown

The original message was received at Sun, 15 Nov 2026 06:00:00 GMT

   ----- The following addresses had permanent fatal errors -----
<bob@example.com>

   ----- Transcript of session follows -----
... while talking to mx.example.com.:
>>> RCPT To:<bob@example.com>
<<< 550 5.1.1 <bob@example.com>... User unknown
550 <bob@example.com>... User unknown

   ----- Original message follows -----

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("Sendmail, given up after five days", f"""\
From: Mail Delivery Subsystem <MAILER-DAEMON@mx.example.com>
Subject: Returned mail: Cannot send message within 5 days

   ----- The following addresses had permanent fatal errors -----
<bob@example.com>

   ----- Transcript of session follows -----
<bob@example.com>... Deferred: Connection timed out with mx.example.com.
Message could not be delivered for 5 days
Message will be deleted from queue

   ----- Original message follows -----

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", None, None, False, "Connection timed out"))),
    Sample("Postfix of old", f"""\
From: MAILER-DAEMON@mx.example.com (Mail Delivery System)
Subject: Undelivered Mail Returned to Sender
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="A1.2/mx.example.com"

--A1.2/mx.example.com
Content-Description: Notification
Content-Type: text/plain

This is the Postfix program at host mx.example.com.

I'm sorry to have to inform you that the message returned
below could not be delivered to one or more destinations.

\t\t\tThe Postfix program

<bob@example.com>: host mx.example.com[192.0.2.1] said: 550 5.7.1 Service
    unavailable; client [192.0.2.7] blocked using bl.example.net

--A1.2/mx.example.com
Content-Type: message/rfc822

{ORIGINAL}
--A1.2/mx.example.com--
""", bounce(FailedRecipient("bob@example.com", "5.7.1", 550, True, "blocked using bl.example.net"))),
    Sample("Microsoft SMTPSVC without its status part", f"""\
From: postmaster@example.com
Subject: Delivery Status Notification (Failure)

This is an automatically generated Delivery Status Notification.

Delivery to the following recipients failed.

       bob@example.com

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", None, None, True, "bob@example.com"))),
    Sample("Exchange Online, its report stripped by a gateway", f"""\
From: postmaster@example.com
Subject: Undeliverable: Your order is delayed: confirm your address
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: quoted-printable

<html><body><p>Delivery has failed to these recipients or groups:</p><p><a href=3D=
"mailto:bob@example.com">bob@example.com</a><br>The email address you entered coul=
dn't be found.</p><p>Diagnostic information for administrators:</p><p>Generating=
 server: AM0.example.com</p><p>bob@example.com<br>Remote Server returned '550 5.1=
.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup'</p>
<p>Original message headers:</p><pre>{ORIGINAL.splitlines()[0].replace("=", "=3D").replace("<", "&lt;").replace(">", "&gt;")}</pre></body></html>
""", bounce(FailedRecipient("bob@example.com", "5.1.10", 550, True, "RESOLVER.ADR.RecipientNotFound"))),
    Sample("Barracuda, in its own words", f"""\
From: "Mail Delivery System" <MAILER-DAEMON@barracuda.example.com>
Subject: **Message you sent blocked by our bulk email filter**

Your message to: bob@example.com
was blocked by our Spam Firewall. The email you sent with the following subject has NOT BEEN DELIVERED:

Subject: Your order is delayed: confirm your address

Remote server replied: 554 5.7.1 Message blocked due to content

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.7.1", 554, True, "Message blocked due to content"))),
    Sample("Dovecot, a full mailbox in a disposition notification", f"""\
From: Mail Delivery Subsystem <postmaster@mx.example.com>
Subject: Automatically rejected mail
Auto-Submitted: auto-replied (rejected)
MIME-Version: 1.0
Content-Type: multipart/report; report-type=disposition-notification; boundary="1/mx"

--1/mx
Content-Type: text/plain; charset=utf-8

Your message to <bob@example.com> was automatically rejected:
Quota exceeded (mailbox for user is full)

--1/mx
Content-Type: message/disposition-notification

Reporting-UA: mx.example.com; Dovecot Mail Delivery Agent
Final-Recipient: rfc822; bob@example.com
Original-Message-ID: <01@acme.example.org>
Disposition: automatic-action/MDN-sent-automatically; deleted

--1/mx
Content-Type: message/rfc822

{ORIGINAL}
--1/mx--
""", bounce(FailedRecipient("bob@example.com", None, None, False, "Quota exceeded"))),
    Sample("no address is named", f"""\
From: <>
Subject: Mail System Error - Returned Mail

Your message was refused.
The server said: 550 5.7.1 Access denied

-----Original message-----

{ORIGINAL}""", bounce(FailedRecipient(None, "5.7.1", 550, True, "Access denied"))),
)  # fmt: skip
