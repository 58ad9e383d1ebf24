"""Mail to a return path that is neither a bounce nor a complaint."""

# ruff: noqa: E501 (servers write long lines)

from typing import Final

from posthouse.mail.report import AUTOMATIC_REPLY, CHALLENGE, DELAYED, DELIVERED, LIST_MAIL, NOT_UNDERSTOOD, SEEN
from tests.mail.reports.sample import ORIGINAL, Sample, dsn

_WARNING: Final = (
    "From: MAILER-DAEMON@mx.example.com (Mail Delivery System)\nSubject: Delayed Mail (still being retried)"
)

NEITHER: Final = (
    Sample("Exchange, automatic reply", """\
From: Bob <bob@example.com>
Subject: Automatic reply: Undeliverable: your order
Auto-Submitted: auto-generated
X-Auto-Response-Suppress: All

I am out of the office. The error 550 5.1.1 bob@example.com will be there when I am back.
""", AUTOMATIC_REPLY),
    Sample("Gmail, vacation", "From: Bob <bob@example.com>\nSubject: Out of office Re: Your order\nPrecedence: bulk\nX-Autoreply: yes\nAuto-Submitted: auto-replied\n\nAway.\n", AUTOMATIC_REPLY),
    Sample("Unix vacation", "From: bob@example.com\nSubject: Re: Your order\nAuto-Submitted: auto-replied (vacation)\nPrecedence: bulk\n\nGone fishing.\n", AUTOMATIC_REPLY),
    Sample("Outlook, German", "From: Bob <bob@example.com>\nSubject: Abwesenheitsnotiz: Ihre Bestellung\n\nIch bin nicht im Haus. Fehler 550 5.1.1.\n", AUTOMATIC_REPLY),
    Sample("Outlook, French", "From: Bob <bob@example.com>\nSubject: =?iso-8859-1?Q?R=E9ponse_automatique_=3A_Votre_commande?=\n\nJe suis absent.\n", AUTOMATIC_REPLY),
    Sample("Outlook, Spanish", "From: Bob <bob@example.com>\nSubject: =?utf-8?b?UmVzcHVlc3RhIGF1dG9tw6F0aWNhOiBTdSBwZWRpZG8=?=\n\nEstoy fuera.\n", AUTOMATIC_REPLY),
    Sample("QQ, Chinese", "From: Bob <bob@example.com>\nSubject: =?gb18030?B?19S2r7vYuLQ6IE9yZGVy?=\n\nhello\n", AUTOMATIC_REPLY),
    Sample("Yandex, Russian", "From: Bob <bob@example.com>\nSubject: Автоответ: Ваш заказ\n\nЯ в отпуске.\n", AUTOMATIC_REPLY),
    Sample("a postmaster on vacation", "From: postmaster@example.com\nSubject: Out of Office: Mail delivery failed\n\nbob@example.com 550 5.1.1 user unknown\n", AUTOMATIC_REPLY),
    Sample("a help desk's receipt", "From: Help Desk <help@example.com>\nSubject: [#4711] We got your message\nAuto-Submitted: auto-generated\n\nTicket 550 5.1.1 was opened.\n", AUTOMATIC_REPLY),
    Sample("a read receipt", """\
From: Bob <bob@example.com>
Subject: Read: Your order is delayed: confirm your address
MIME-Version: 1.0
Content-Type: multipart/report; report-type=disposition-notification; boundary=b

--b
Content-Type: text/plain

Your message was read on Sunday.

--b
Content-Type: message/disposition-notification

Final-Recipient: rfc822;bob@example.com
Disposition: manual-action/MDN-sent-manually; displayed

--b--
""", SEEN),
    Sample("deleted without being read", "From: Bob <bob@example.com>\nSubject: Not read: Your order\nContent-Type: multipart/report; report-type=disposition-notification; boundary=b\n\n"
        "--b\n\nYour message was deleted without being read.\n--b\nContent-Type: message/disposition-notification\n\n"
        "Final-Recipient: rfc822;bob@example.com\nDisposition: automatic-action/MDN-sent-automatically; deleted\n--b--\n", SEEN),
    Sample("Postfix, delayed", dsn(_WARNING, "THIS IS A WARNING ONLY. YOU DO NOT NEED TO RESEND YOUR MESSAGE.", """
Final-Recipient: rfc822; bob@example.com
Action: delayed
Status: 4.4.1
Diagnostic-Code: X-Postfix; connect to mx.example.com[192.0.2.1]:25: Connection refused
Will-Retry-Until: Fri, 20 Nov 2026 06:00:05 +0000 (UTC)
"""), DELAYED),
    Sample("Gmail, delayed, with the field of its failures", dsn("From: Mail Delivery Subsystem <mailer-daemon@googlemail.com>\nSubject: Delivery Status Notification (Delay)\nX-Failed-Recipients: bob@example.com", "** Delivery incomplete **", """
Final-Recipient: rfc822; bob@example.com
Action: delayed
Status: 4.4.1
Diagnostic-Code: smtp; 550 5.1.1 quoted for no reason
"""), DELAYED),
    Sample("Exim, delayed", f"""\
From: Mail Delivery System <Mailer-Daemon@mx.example.com>
Subject: Warning: message 1kABCD-0001-Xy delayed 24 hours
Auto-Submitted: auto-replied

This message was created automatically by mail delivery software.
A message that you sent has not yet been delivered to one or more of its
recipients after more than 24 hours on the queue on mx.example.com.

The address to which the message has not yet been delivered is:

  bob@example.com
    host mx.example.net [192.0.2.1]: 451 4.7.1 Greylisted

No action is required on your part. Delivery attempts will continue for
some time, and this warning may be repeated at intervals.

{ORIGINAL}""", DELAYED),
    Sample("Sendmail, delayed", f"""\
From: Mail Delivery Subsystem <MAILER-DAEMON@mx.example.com>
Subject: Warning: could not send message for past 4 hours

    **********************************************
    **      THIS IS A WARNING MESSAGE ONLY      **
    **  YOU DO NOT NEED TO RESEND YOUR MESSAGE  **
    **********************************************

   ----- The following addresses had transient non-fatal errors -----
<bob@example.com>

   ----- Transcript of session follows -----
<bob@example.com>... Deferred: Connection timed out with mx.example.com.
Will keep trying until message is 5 days old

{ORIGINAL}""", DELAYED),
    Sample("delivered, as asked for", dsn("From: MAILER-DAEMON@mx.example.com\nSubject: Successful Mail Delivery Report", "Your message was successfully delivered.", """
Final-Recipient: rfc822; bob@example.com
Action: delivered
Status: 2.0.0
"""), DELIVERED),
    Sample("relayed to where no receipts are written", dsn("From: postmaster@example.com\nSubject: Relayed: Your order", "Delivery to these recipients is complete, but no notification was sent.", """
Final-Recipient: rfc822;bob@example.com
Action: relayed
"""), DELIVERED),
    Sample("expanded to a list's members", dsn("From: postmaster@example.com\nSubject: Expanded: Your order", "Your message went to a list.", """
Final-Recipient: rfc822;staff@example.com
Action: expanded (to 12 members)
Status: 2.0.0
"""), DELIVERED),
    Sample("BoxTrapper, a challenge", "From: bob@example.com\nSubject: Your email requires verification verify#a1b2c3\nX-Boxtrapper: x\n\nReply to this message. 550 5.1.1\n", CHALLENGE),
    Sample("a challenge by its subject alone", "From: Spam Guard <guard@example.com>\nSubject: Please confirm your message to bob@example.com\n\nClick here.\n", CHALLENGE),
    Sample("a newsletter", "From: News <news@example.com>\nSubject: Why was my mail returned to sender? Delivery failed and other stories\nList-Unsubscribe: <https://example.com/u>\n\n"
        "550 5.1.1 means, that ada@example.com, bob@example.com, and others are unknown.\n", LIST_MAIL),
    Sample("a list's moderation notice", "From: list-owner@lists.example.com\nSubject: Your message to List awaits moderator approval\nList-Id: <list.lists.example.com>\nPrecedence: list\nX-Mailman-Version: 2.1.39\n\nbob@example.com\n", LIST_MAIL),
    Sample("spam", "From: Winner <win@example.net>\nSubject: You won 550 dollars\n\nWrite, claim@example.net, to get them.\n", NOT_UNDERSTOOD),
    Sample("spam that says it is a parcel", "From: Parcel <parcel@example.net>\nSubject: Delivery failed: your parcel is waiting\n\nWrite to, claim@example.net, at once.\nFee: 5 dollars.\n", NOT_UNDERSTOOD),
    Sample("a postmaster's own mail", "From: postmaster@example.com\nSubject: Your monthly quota report\n\nYour mail was used for 500 MB, ask admin@example.com, if in doubt. Version 5.2 is out.\n", NOT_UNDERSTOOD),
    Sample("a person's answer", "From: Bob <bob@example.com>\nSubject: Re: Your order\n\nThanks, but my colleague carol@example.com got: 550 5.1.1 unknown. Delivery has failed?\n", NOT_UNDERSTOOD),
    Sample("a forwarded bounce", "From: Bob <bob@example.com>\nSubject: Fwd: what is this?\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=outer\n\n--outer\n\nSee below.\n--outer\nContent-Type: message/rfc822\n\n"
        + dsn("From: MAILER-DAEMON@mx.example.com\nSubject: Undelivered", "Failed.", "Final-Recipient: rfc822; bob@example.com\nAction: failed\nStatus: 5.1.1")
        + "\n--outer--\n", NOT_UNDERSTOOD),
    Sample("nothing at all", "", NOT_UNDERSTOOD),
    Sample("a notification that says nothing", dsn("From: Bob <bob@example.com>\nSubject: hello", "Hello.", "X-Nothing: here"), NOT_UNDERSTOOD),
)  # fmt: skip
