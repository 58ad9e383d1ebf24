"""Delivery status notifications (RFC 3464) as the large providers and the common servers write them.

The expected `text` is a phrase of the whole.
"""

# ruff: noqa: E501 (servers write long lines)

from typing import Final

from posthouse.mail.report import FailedRecipient
from tests.mail.reports.sample import ORIGINAL, RETURN_PATH, TOKEN, Sample, bounce, dsn, failed

_POSTFIX: Final = """\
Date: Sun, 15 Nov 2026 06:00:05 +0000 (UTC)
From: MAILER-DAEMON@mx.example.com (Mail Delivery System)
Subject: Undelivered Mail Returned to Sender
Auto-Submitted: auto-replied
"""
_POSTFIX_WORDS: Final = """\
This is the mail system at host mx.example.com.

I'm sorry to have to inform you that your message could not
be delivered to one or more recipients. It's attached below.

                   The mail system
"""
_GMAIL: Final = """\
From: Mail Delivery Subsystem <mailer-daemon@googlemail.com>
Subject: Delivery Status Notification (Failure)
Auto-Submitted: auto-replied
X-Failed-Recipients: bob@example.com
"""
_MICROSOFT: Final = """\
From: Microsoft Outlook <MicrosoftExchange329e71ec88ae4615bbc36ab6ce41109e@example.com>
Subject: Undeliverable: Your order is delayed: confirm your address
Auto-Submitted: auto-replied
X-MS-Exchange-Message-Is-Ndr:
"""
_DAEMON: Final = """\
From: Mail Delivery Subsystem <MAILER-DAEMON@mx.example.com>
Subject: Returned mail: see transcript for details
"""


def postfix(*recipients: str, **how: str) -> str:
    return dsn(_POSTFIX, _POSTFIX_WORDS, *recipients, **how)


NOTIFICATIONS: Final = (
    Sample("Postfix, user unknown at the next server", dsn(_POSTFIX, _POSTFIX_WORDS + """
<bob@example.com>: host mx.example.com[192.0.2.1] said: 550 5.1.1
    <bob@example.com>: Recipient address rejected: User unknown in virtual mailbox table (in reply to RCPT TO command)""", """
Final-Recipient: rfc822; bob@example.com
Original-Recipient: rfc822;bob@example.com
Action: failed
Status: 5.1.1
Remote-MTA: dns; mx.example.com
Diagnostic-Code: smtp; 550 5.1.1 <bob@example.com>: Recipient address rejected:
    User unknown in virtual mailbox table
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "550 5.1.1 <bob@example.com>: Recipient address rejected: User unknown in virtual mailbox table"))),
    Sample("Postfix, status hidden in the diagnostic", postfix(failed("5.0.0", "smtp; 550 #5.1.1 no such mailbox")),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "#5.1.1 no such mailbox"))),
    Sample("Postfix, local delivery", postfix("""
Final-Recipient: rfc822; bob@example.com
Original-Recipient: rfc822;bob@example.com
Action: failed
Status: 5.1.1
Diagnostic-Code: X-Postfix; unknown user: "bob"
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, 'unknown user: "bob"'))),
    Sample("Postfix, given up after five days", postfix(failed("4.4.1", "X-Postfix; connect to mx.example.com[192.0.2.1]:25: Connection timed out")),
        bounce(FailedRecipient("bob@example.com", "4.4.1", None, False, "Connection timed out"))),
    Sample("Postfix, the domain does not exist", postfix(failed("5.4.4", "X-Postfix; Host or domain name not found. Name service error\n    for name=nowhere.example.com type=AAAA: Host not found", to="bob@nowhere.example.com")),
        bounce(FailedRecipient("bob@nowhere.example.com", "5.4.4", None, True, "Host or domain name not found"))),
    Sample("Postfix, message too large, headers returned only", postfix(failed("5.3.4", "smtp; 552 5.3.4 Message size exceeds fixed limit"), original_type="text/rfc822-headers"),
        bounce(FailedRecipient("bob@example.com", "5.3.4", 552, True, "exceeds fixed limit"))),
    Sample("Postfix, an alias: what we wrote to counts", postfix("""
Final-Recipient: rfc822; robert@internal.example.net
Original-Recipient: rfc822;Bob@Example.COM
Action: failed
Status: 5.2.2
Diagnostic-Code: smtp; 552 5.2.2 Over quota
"""),
        bounce(FailedRecipient("bob@example.com", "5.2.2", 552, True, "Over quota"))),
    Sample("Postfix, three recipients: failed, delivered, given up", postfix(failed("5.1.1", "smtp; 550 5.1.1 unknown"), """
Final-Recipient: rfc822; eve@example.com
Action: delivered
Status: 2.0.0
""", failed("4.7.1", "smtp; 451 4.7.1 Greylisted", to="carol@example.com")),
        bounce(
            FailedRecipient("bob@example.com", "5.1.1", 550, True, "unknown"),
            FailedRecipient("carol@example.com", "4.7.1", 451, False, "Greylisted"),
        )),
    Sample("Postfix, SMTPUTF8", postfix("""
Final-Recipient: utf-8; bob@bücher.example
Action: failed
Status: 5.1.1
Diagnostic-Code: smtp; 550 5.1.1 unbekannt
""").replace("message/delivery-status", "message/global-delivery-status"),
        bounce(FailedRecipient("bob@xn--bcher-kva.example", "5.1.1", 550, True, "unbekannt"))),
    Sample("Gmail, no such account", dsn(_GMAIL, "** Address not found **\n\nYour message wasn't delivered to bob@example.com because the address couldn't be found.", """
Final-Recipient: rfc822; bob@example.com
Action: failed
Status: 5.1.1
Remote-MTA: dns; gmail-smtp-in.l.example.com. (192.0.2.26, the server for the domain example.com.)
Diagnostic-Code: smtp; 550-5.1.1 The email account that you tried to reach does not exist. Please try
 550-5.1.1 double-checking the recipient's email address for typos or
 550-5.1.1 unnecessary spaces. For more information, go to
 550 5.1.1  https://support.example.com/mail/?p=NoSuchUser a1-2si3 - gsmtp
Last-Attempt-Date: Sun, 15 Nov 2026 06:00:05 -0800 (PST)
""", of_message="Reporting-MTA: dns; googlemail.com\nReceived-From-MTA: dns; support@acme.example.org\nArrival-Date: Sun, 15 Nov 2026 06:00:04 -0800 (PST)"),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "550-5.1.1 The email account that you tried to reach does not exist"))),
    Sample("Gmail, the domain could not be found", dsn(_GMAIL, "** Address not found **", failed("4.0.0", "smtp; DNS Error: DNS type 'mx' lookup of example.com responded with code NXDOMAIN\n Domain name not found: example.com")),
        bounce(FailedRecipient("bob@example.com", "4.0.0", None, False, "NXDOMAIN"))),
    Sample("Gmail, over quota", dsn(_GMAIL, "** Recipient inbox full **", failed("5.2.2", "smtp; 552-5.2.2 The recipient's inbox is out of storage space and inactive. Please\n 552-5.2.2 direct the recipient to https://support.example.com/mail/?p=OverQuotaPerm")),
        bounce(FailedRecipient("bob@example.com", "5.2.2", 552, True, "out of storage space"))),
    Sample("Gmail, blocked as unsolicited", dsn(_GMAIL, "** Message blocked **", failed("5.7.1", "smtp; 550-5.7.1 [192.0.2.7      12] Our system has detected that this message is\n 550-5.7.1 likely unsolicited mail.")),
        bounce(FailedRecipient("bob@example.com", "5.7.1", 550, True, "likely unsolicited mail"))),
    Sample("Gmail, unauthenticated", dsn(_GMAIL, "** Message blocked **", failed("5.7.26", "smtp; 550-5.7.26 Your email has been blocked because the sender is unauthenticated.")),
        bounce(FailedRecipient("bob@example.com", "5.7.26", 550, True, "unauthenticated"))),
    Sample("Microsoft 365, no such recipient", dsn(_MICROSOFT, """
Your message to bob@example.com couldn't be delivered.
bob wasn't found at example.com.""", failed("5.1.10", "smtp;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient bob@example.com not found by SMTP address lookup", kind="rfc822;"), of_message="Reporting-MTA: dns;AM0PR01MB0001.eurprd01.prod.example.com\nReceived-From-MTA: dns;mail.example.org\nArrival-Date: Sun, 15 Nov 2026 06:00:04 +0000"),
        bounce(FailedRecipient("bob@example.com", "5.1.10", 550, True, "RESOLVER.ADR.RecipientNotFound"))),
    Sample("Microsoft 365, a tenant's rule", dsn(_MICROSOFT, "Your message to bob@example.com couldn't be delivered.", failed("5.7.133", "smtp;550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication required", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.7.133", 550, True, "authentication required"))),
    Sample("Microsoft 365, expired though its class is permanent", dsn(_MICROSOFT, "Delivery has failed to these recipients or groups:", failed("5.4.300", "smtp;550 5.4.300 Message expired -> 421 4.4.1 Connection timed out", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.4.300", 550, False, "Message expired"))),
    Sample("Exchange 2010, expired with a permanent code", dsn(_MICROSOFT, "Delivery has failed to these recipients or groups:", failed("4.4.7", "smtp;550 4.4.7 QUEUE.Expired; message expired", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "4.4.7", 550, False, "QUEUE.Expired"))),
    Sample("Exchange 2003, a status and no diagnostic", dsn("From: postmaster@example.com\nSubject: Delivery Status Notification (Failure)", """
This is an automatically generated Delivery Status Notification.

Delivery to the following recipients failed.

       bob@example.com
""", failed("5.1.1", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, "bob@example.com"))),
    Sample("Exchange 2007, the next server's words inside its own", dsn(_MICROSOFT, "Delivery has failed to these recipients or distribution lists:", """
Final-Recipient: rfc822;bob@example.com
Action: failed
Status: 5.0.0
Diagnostic-Code: smtp;554 5.0.0 <mx.example.net #5.1.1 smtp; 550 5.1.1 User unknown>
X-Display-Name: Bob
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("Outlook.com, blocked by reputation", postfix(failed("5.7.1", "smtp; 550 5.7.1 Unfortunately, messages from [192.0.2.7] weren't sent. Please contact\n    your Internet service provider since part of their network is on our block list (S3140).")),
        bounce(FailedRecipient("bob@example.com", "5.7.1", 550, True, "on our block list (S3140)"))),
    Sample("Outlook.com, mailbox unavailable", dsn(_DAEMON, "Delivery failed.", failed("5.5.0", "smtp;550 5.5.0 Requested action not taken: mailbox unavailable (S2017062302).")),
        bounce(FailedRecipient("bob@example.com", "5.5.0", 550, True, "mailbox unavailable"))),
    Sample("Yahoo through Postfix, the account is gone", postfix(failed("5.0.0", "smtp; 554 delivery error: dd This user doesn't have an example.com account\n    (bob@example.com) [0] - mta4001.mail.example.com")),
        bounce(FailedRecipient("bob@example.com", "5.0.0", 554, True, "doesn't have an example.com account"))),
    Sample("AOL, policy", postfix(failed("5.7.9", "smtp; 554 5.7.9 Message not accepted for policy reasons.")),
        bounce(FailedRecipient("bob@example.com", "5.7.9", 554, True, "policy reasons"))),
    Sample("Exim, as of 4.87", dsn("""\
X-Failed-Recipients: bob@example.com
Auto-Submitted: auto-replied
From: Mail Delivery System <Mailer-Daemon@mx.example.com>
Subject: Mail delivery failed: returning message to sender""", """
This message was created automatically by mail delivery software.

A message that you sent could not be delivered to one or more of its
recipients. This is a permanent error. The following address(es) failed:

  bob@example.com
    host mx.example.net [192.0.2.1]
    SMTP error from remote mail server after RCPT TO:<bob@example.com>:
    550 5.1.1 User unknown""", """
Action: failed
Final-Recipient: rfc822;bob@example.com
Status: 5.0.0
Remote-MTA: dns; mx.example.net
Diagnostic-Code: smtp; 550 5.1.1 User unknown
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("Sendmail, relaying denied", dsn(_DAEMON, """
The original message was received at Sun, 15 Nov 2026 06:00:00 GMT
from mail.example.org [192.0.2.7]

   ----- The following addresses had permanent fatal errors -----
<bob@example.com>
    (reason: 550 5.7.1 <bob@example.com>... Relaying denied)

   ----- Transcript of session follows -----
... while talking to mx.example.com.:
>>> DATA
<<< 550 5.7.1 <bob@example.com>... Relaying denied
550 5.1.1 <bob@example.com>... User unknown""", """
Final-Recipient: RFC822; bob@example.com
Action: failed
Status: 5.7.1
Remote-MTA: DNS; mx.example.com
Diagnostic-Code: SMTP; 550 5.7.1 <bob@example.com>... Relaying denied
Last-Attempt-Date: Sun, 15 Nov 2026 06:00:05 GMT
"""),
        bounce(FailedRecipient("bob@example.com", "5.7.1", 550, True, "Relaying denied"))),
    Sample("Sendmail, its own guess gives way to the server's word", dsn(_DAEMON, "The following addresses had permanent fatal errors", """
Final-Recipient: RFC822; bob@example.com
X-Actual-Recipient: RFC822; robert@internal.example.net
Action: failed
Status: 5.1.1
Diagnostic-Code: SMTP; 550 5.7.1 Message rejected by policy
"""),
        bounce(FailedRecipient("bob@example.com", "5.7.1", 550, True, "rejected by policy"))),
    Sample("Courier", dsn('From: "Courier mail server at mx.example.com" <@>\nSubject: NOTICE: mail delivery status.', """
This is a delivery status notification from mx.example.com,
running the Courier mail server.

UNDELIVERABLE MAIL

Your message to the following recipients cannot be delivered:

<bob@example.com>:
    mx.example.net [192.0.2.1]:
>>> RCPT TO:<bob@example.com>
<<< 550 5.1.1 User unknown""", """
Original-Recipient: rfc822; bob@example.com
Final-Recipient: rfc822; bob@example.com
Action: failed
Status: 5.0.0
Remote-MTA: dns; mx.example.net [192.0.2.1]
Diagnostic-Code: smtp; 550 5.1.1 User unknown
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("Domino", dsn("From: Mail Router <postmaster@example.com>\nSubject: DELIVERY FAILURE: User bob (bob@example.com) not listed in Domino Directory", """
Your message

  Subject: Your order is delayed

was not delivered to:

  bob@example.com

because:

  User bob (bob@example.com) not listed in Domino Directory""", failed("5.1.1", "X-Notes; User bob (bob@example.com) not listed in Domino Directory", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, "not listed in Domino Directory"))),
    Sample("Proofpoint, unknown user", dsn(_DAEMON, "Your message was not delivered.", """
Final-Recipient: RFC822; bob@example.com
Action: failed
Status: 5.1.1
Remote-MTA: DNS; mx0a-00000001.pphosted.example.com
Diagnostic-Code: SMTP; 550 5.1.1 <bob@example.com>: Recipient address rejected: User unknown
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "User unknown"))),
    Sample("Proofpoint, blocked address", dsn(_DAEMON, "Your message was not delivered.", failed("5.5.0", "SMTP; 554 Blocked - see https://ipcheck.proofpoint.example.com/?ip=192.0.2.7", kind="RFC822; ")),
        bounce(FailedRecipient("bob@example.com", "5.5.0", 554, True, "Blocked - see"))),
    Sample("Mimecast, rejected by its checks", postfix(failed("5.0.0", "smtp; 550 Rejected by header based Anti-Spoofing policy: support@acme.example.org - https://community.mimecast.example.com/docs/DOC-1369#550 [aBcDe]")),
        bounce(FailedRecipient("bob@example.com", "5.0.0", 550, True, "Anti-Spoofing policy"))),
    Sample("Barracuda, spam score", postfix(failed("5.0.0", "smtp; 550 permanent failure for one or more recipients (bob@example.com:blocked)")),
        bounce(FailedRecipient("bob@example.com", "5.0.0", 550, True, "bob@example.com:blocked"))),
    Sample("IronPort, the server's word in a list", dsn("From: Mail Delivery System <MAILER-DAEMON@esa1.example.com>\nSubject: Delivery Status Notification (Failure)", """
The following message to <bob@example.com> was undeliverable.
The reason for the problem:
5.1.0 - Unknown address error 550-'5.1.1 <bob@example.com>: unknown user'""", """
Final-Recipient: rfc822;bob@example.com
Action: failed
Status: 5.0.0 (permanent failure)
Remote-MTA: dns; [192.0.2.1]
Diagnostic-Code: smtp; 5.1.0 - Unknown address error 550-'5.1.1 <bob@example.com>: unknown user' (delivery attempts: 0)
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Unknown address error"))),
    Sample("IronPort, bounced by the system after its time", dsn("From: Mail Delivery System <MAILER-DAEMON@esa1.example.com>\nSubject: Delivery Status Notification (Failure)", "The following message was undeliverable.", failed("5.4.7", "smtp; 5.4.7 - Delivery expired (message too old) 'timeout' (delivery attempts: 12)", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.4.7", None, False, "Delivery expired"))),
    Sample("Amazon SES", dsn("From: MAILER-DAEMON@email-bounces.amazonses.example.com\nSubject: Delivery Status Notification (Failure)", """
An error occurred while trying to deliver the mail to the following recipients:
bob@example.com""", """
Action: failed
Final-Recipient: rfc822; bob@example.com
Diagnostic-Code: smtp; 550 5.1.1 user unknown
Status: 5.1.1
""", of_message="Reporting-MTA: dns; a8-50.smtp-out.amazonses.example.com"),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "user unknown"))),
    Sample("Amazon WorkMail", dsn("From: Amazon WorkMail <postmaster@amazonses.example.com>\nSubject: Undeliverable message", "Your message could not be delivered.", failed("5.1.1", "smtp; 550 5.1.1 RecipientNotFound", kind="rfc822;")),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "RecipientNotFound"))),
    Sample("Mail.ru through Postfix, rejected as spam", postfix(failed("5.0.0", "smtp; 550 spam message rejected. Please visit\n    http://help.mail.example.com/notspam-support/id?c=abc or report details")),
        bounce(FailedRecipient("bob@example.com", "5.0.0", 550, True, "spam message rejected"))),
    Sample("OpenSMTPD, a custom action", dsn("From: Mailer Daemon <MAILER-DAEMON@mx.example.com>\nSubject: Delivery status notification: error", "Hi!\n\nThis is the MAILER-DAEMON, please DO NOT REPLY to this email.", """
Final-Recipient: rfc822; bob@example.com
Action: error
Status: 5.0.0
Diagnostic-Code: smtp; 550 5.1.1 Invalid recipient
"""),
        bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "Invalid recipient"))),
    Sample("a server that forgot the blank lines and the action", dsn(_DAEMON, "Failed.", """
Final-Recipient: rfc822; bob@example.com
Status: 5.1.1
Diagnostic-Code: smtp; 550 5.1.1 nobody
Final-Recipient: rfc822; carol@example.com
Status: 5.2.1
Diagnostic-Code: smtp; 550 5.2.1 disabled
"""),
        bounce(
            FailedRecipient("bob@example.com", "5.1.1", 550, True, "nobody"),
            FailedRecipient("carol@example.com", "5.2.1", 550, True, "disabled"),
        )),
    Sample("the envelope's encoding of a plus left in", dsn(_DAEMON, "Failed.", """
Original-Recipient: rfc822;bob+2Borders@example.com
Final-Recipient: rfc822;bob@example.com
Action: failed
Status: 5.1.1
"""),
        bounce(FailedRecipient("bob+orders@example.com", "5.1.1", None, True, ""))),
    Sample("a recipient that is no address", dsn(_DAEMON, "Failed.", """
Original-Recipient: x-local; 4711
Final-Recipient: x-notes; CN=Bob/O=Example
Action: failed
Status: 5.1.1
Diagnostic-Code: X-Notes; no such person
"""),
        bounce(FailedRecipient(None, "5.1.1", None, True, "no such person"))),
    Sample("forwarded with a rewritten return path (SRS)", postfix(failed("5.1.1"), original=ORIGINAL.replace(RETURN_PATH, f"SRS0=aB1c=X5=bounces.example.org=bounces+{TOKEN}@forward.example.net")),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, ""))),
    Sample("everything in base 64, our address in capitals", postfix(failed("5.1.1"), original="""\
UmV0dXJuLVBhdGg6IDxCT1VOQ0VTK01GUkdHWkRGTVpUV1EyTEtOTldHMjNUUE9CWVhFNDNVT1Yz
SE82RFpQSVlEQ01SVEBCT1VOQ0VTLkVYQU1QTEUuT1JHPg0KQ0ZCTC1GZWVkYmFjay1JRDogQWJD
ZDoxMjMNCg0KaGkNCg==
""").replace("Content-Type: message/rfc822", "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64"),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, ""), tokens=(RETURN_PATH, "AbCd:123"))),
    Sample("a gateway flattened it", f"""\
From: MAILER-DAEMON@mx.example.com
Subject: Undelivered Mail Returned to Sender
Content-Type: text/plain

This is the mail system at host mx.example.com.

Reporting-MTA: dns; mx.example.com

Final-Recipient: rfc822; bob@example.com
Action: failed
Status: 5.1.1
Diagnostic-Code: smtp; 550 5.1.1 gone

{ORIGINAL}""", bounce(FailedRecipient("bob@example.com", "5.1.1", 550, True, "gone"))),
    Sample("a gateway changed the boundary in the header alone", postfix(failed("5.1.1")).replace('boundary="=_6A0F/01"', 'boundary="other"'),
        bounce(FailedRecipient("bob@example.com", "5.1.1", None, True, ""))),
)  # fmt: skip
