"""Mail as real programs submit it, and the result: unchanged, amended, or rewritten."""

# ruff: noqa: E501 (one message per line: what matters is which messages there are)

from typing import NamedTuple

DATED = "Date: Sun, 1 Mar 2026 12:00:00 +0000\nMessage-ID: <1@example.com>\nMIME-Version: 1.0\n"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Mail(NamedTuple):
    name: str
    raw: bytes


def mail(name: str, text: str | bytes) -> Mail:
    """Written with LF for readability, submitted with CRLF as the server passes it on."""
    raw = text.encode() if isinstance(text, str) else text
    return Mail(name, raw.replace(b"\n", b"\r\n"))


def _multipart(kind: str, boundary: str, *parts: str, preamble: str = "", closing: str = "--") -> str:
    inner = "".join([f"\n--{boundary}\n{part}" for part in parts])
    return f'Content-Type: multipart/{kind}; boundary="{boundary}"\n\n{preamble}{inner}\n--{boundary}{closing}\n'


# As it came, byte for byte.
UNTOUCHED = (
    mail("smtplib", f"From: ada@example.com\nTo: bob@example.net\nSubject: Hi\n{DATED}\nHello\n"),
    mail("python-emailmessage", f'Content-Type: text/plain; charset="utf-8"\nContent-Transfer-Encoding: 7bit\n{DATED}From: Ada <ada@example.com>\nTo: bob@example.net\n\nHello\n'),
    mail("outlook", f'From: "Ada Lovelace" <ada@example.com>\nTo: "\'Bob\'" <bob@example.net>, "Doe, Jane" <jane@example.org>\nSubject: RE: Offer\nThread-Index: AdnXx\nContent-Language: de\nX-Mailer: Microsoft Outlook 16.0\n{DATED}' + _multipart("alternative", "----=_NextPart_000_0001_01DA", 'Content-Type: text/plain;\n\tcharset="iso-8859-1"\nContent-Transfer-Encoding: quoted-printable\n\nGr=FC=DFe', 'Content-Type: text/html;\n\tcharset="iso-8859-1"\nContent-Transfer-Encoding: quoted-printable\n\n<p>Gr=FC=DFe</p>', preamble="This is a multipart message in MIME format.\n")),
    mail("outlook-365", f"Received: from AM0PR01.example.com ([fe80::1]) by AM0PR02.example.com\n ([fe80::2%3]) with mapi id 15.20; Sun, 1 Mar 2026\n 12:00:00 +0000\nFrom: Ada Lovelace <ada@example.com>\nTo: Bob <bob@example.net>\nSubject: =?iso-8859-1?Q?Gr=FC=DFe?=\nX-MS-Has-Attach:\nX-MS-TNEF-Correlator:\n{DATED}Content-Type: text/plain\n\nHello\n"),
    mail("apple-mail", 'From: Ada Lovelace <ada@example.com>\nContent-Type: text/plain;\n\tcharset=us-ascii\nContent-Transfer-Encoding: 7bit\nMime-Version: 1.0 (Mac OS X Mail 16.0 \\(3774.200.91.1.1\\))\nSubject: Hello\nMessage-Id: <A0@example.com>\nDate: Sun, 1 Mar 2026 13:00:00 +0100\nTo: Bob <bob@example.net>\nX-Mailer: Apple Mail (2.3774.200.91.1.1)\n\nHello\n'),
    mail("apple-pdf", f"From: Ada <ada@example.com>\n{DATED}" + _multipart("mixed", "Apple-Mail=_8A-1", "Content-Transfer-Encoding: 7bit\nContent-Type: text/plain;\n\tcharset=us-ascii\n\nSee below.\n", f"Content-Disposition: inline;\n\tfilename*=utf-8''%C3%9Cbung.png\nContent-Type: image/png;\n\tx-unix-mode=0644;\n\tname=\"=?utf-8?Q?=C3=9Cbung=2Epng?=\"\nContent-Transfer-Encoding: base64\n\n{PNG}\n")),
    mail("gmail", 'MIME-Version: 1.0\nDate: Sun, 1 Mar 2026 13:00:00 +0100\nMessage-ID: <CA+x@mail.gmail.example.com>\nSubject: =?UTF-8?B?R3LDvMOfZSBhdXMgWsO8cmljaA==?=\nFrom: =?UTF-8?Q?J=C3=BCrgen?= <j@example.com>\nTo: bob@example.net\n' + _multipart("alternative", "000000000000a1", 'Content-Type: text/plain; charset="UTF-8"\n\nHi', 'Content-Type: text/html; charset="UTF-8"\n\n<div dir="ltr">Hi</div>')),
    mail("thunderbird", "Message-ID: <u@example.com>\nDate: Sun, 1 Mar 2026 13:00:00 +0100\nMIME-Version: 1.0\nUser-Agent: Mozilla Thunderbird\nContent-Language: en-US\nTo: bob@example.net\nFrom: Ada Lovelace <ada@example.com>\nSubject: Test\nContent-Type: text/plain; charset=UTF-8; format=flowed\nContent-Transfer-Encoding: 7bit\n\nHello \nflowed\n"),
    mail("phpmailer", 'Date: Sun, 1 Mar 2026 12:00:00 +0000\nTo: Bob <bob@example.net>\nFrom: WordPress <wordpress@example.com>\nSubject: [Blog] New comment\nMessage-ID: <b1@example.com>\nX-Mailer: PHPMailer 6.9.1 (https://github.com/PHPMailer/PHPMailer)\nMIME-Version: 1.0\nContent-Type: multipart/alternative;\n boundary="b1=_abc"\nContent-Transfer-Encoding: 8bit\n\n--b1=_abc\nContent-Type: text/plain; charset=us-ascii\n\nHi\n\n--b1=_abc\nContent-Type: text/html; charset=us-ascii\n\n<p>Hi</p>\n\n--b1=_abc--\n'),
    mail("nodemailer", 'From: "Acme =?UTF-8?Q?Z=C3=BCrich?=" <no-reply@example.com>\nTo: bob@example.net\nSubject: Welcome\nMessage-ID: <6b@example.com>\nContent-Transfer-Encoding: quoted-printable\nDate: Sun, 01 Mar 2026 12:00:00 +0000\nMIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n<p>Gr=C3=BC=C3=9Fe</p>=\n'),
    mail("javamail", 'Date: Sun, 1 Mar 2026 12:00:00 +0000 (UTC)\nFrom: noreply@example.com\nTo: bob@example.net\nMessage-ID: <1804293.1.17@app-7c9>\nSubject: Report\nMIME-Version: 1.0\nContent-Type: multipart/mixed; \n\tboundary="----=_Part_0_1.17"\n\n------=_Part_0_1.17\nContent-Type: text/plain; charset=us-ascii\nContent-Transfer-Encoding: 7bit\n\nHi\n------=_Part_0_1.17\nContent-Type: application/pdf; name=r.pdf\nContent-Transfer-Encoding: base64\nContent-Disposition: attachment; filename=r.pdf\n\nJVBERi0=\n------=_Part_0_1.17--\n'),
    mail("mutt", 'Date: Sun, 1 Mar 2026 13:00:00 +0100\nFrom: Ada Lovelace <ada@example.com>\nTo: Bob <bob@example.net>\nSubject: Re: patch\nMessage-ID: <ZeX@example.com>\nMail-Followup-To: Bob <bob@example.net>, dev@lists.example.org\nReferences: <1@a> <2@b>\n <3@c>\nMIME-Version: 1.0\nContent-Type: text/plain; charset=us-ascii\nContent-Disposition: inline\nIn-Reply-To: <3@c>\n\n> quoted\nFrom the desk\n'),
    mail("mutt-signed", f"From: Ada <ada@example.com>\n{DATED}" + 'Content-Type: multipart/signed; micalg=pgp-sha256;\n\tprotocol="application/pgp-signature"; boundary="zYM0"\n\n\n--zYM0\nContent-Type: text/plain; charset=us-ascii\n\nHi\n\n--zYM0\nContent-Type: application/pgp-signature\n\n-----BEGIN PGP SIGNATURE-----\n=abcd\n-----END PGP SIGNATURE-----\n\n--zYM0--\n'),
    mail("comment-name", f"From: ada@example.com (Ada Lovelace)\n{DATED}\nHi\n"),
    mail("comment-everywhere", f"From: (x) Ada (y (z)) <ada@example.com> (w\\))\n{DATED}\nHi\n"),
    mail("name-is-address", f"From: ada@example.com <ada@example.com>\n{DATED}\nHi\n"),
    mail("folded-from", f'From: "Ada, Countess of\n\tLovelace"\n <ada@example.com>\n{DATED}\nHi\n'),
    mail("brackets-only", f"From: <ada@example.com>\nSender: <list@example.com>\n{DATED}\nHi\n"),
    mail("no-space", f"From:ada@example.com\nSubject:Hi\n{DATED}\nHi\n"),
    mail("upper-case", f"FROM: Ada <Ada@Example.COM>\nTO: BOB@EXAMPLE.NET\nSUBJECT: HI\n{DATED}\nHI\n"),
    mail("undisclosed", f"From: ada@example.com\nTo: undisclosed-recipients:;\n{DATED}\nHi\n"),
    mail("group", f"From: ada@example.com\nTo: Team: bob@example.net, Jane <jane@example.org>;\n{DATED}\nHi\n"),
    mail("dkim-signed", f"DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s;\n\th=from; bh=x=; b=abc\n def\nFrom: ada@example.com\n{DATED}\nHi\n"),
    mail("empty-body", f"From: ada@example.com\n{DATED}\n"),
    mail("others-authentication", f"Authentication-Results: mx.example.org; spf=pass\nFrom: ada@example.com\n{DATED}\nHi\n"),
    mail("bcc-in-body", f"From: ada@example.com\n{DATED}\nBcc: this is text\n"),
    mail("bcc-in-forwarded", f"From: ada@example.com\n{DATED}" + _multipart("mixed", "x", "Content-Type: message/rfc822\n\nFrom: a@example.com\nBcc: z@example.net\n\nOld mail")),
    mail("unclosed", f"From: ada@example.com\n{DATED}Content-Type: multipart/mixed; boundary=x\n\n--x\n\nHi\n"),
    mail("boundary-missing", f"From: ada@example.com\n{DATED}Content-Type: multipart/mixed\n\nHi\n"),
    mail("fifty-received", "Received: by a\n" * 50 + f"From: ada@example.com\n{DATED}\nHi\n"),
    mail("line-998", f"From: ada@example.com\n{DATED}\n{'x' * 998}\n"),
    mail("header-998", f"From: ada@example.com\nX-Note: {'x' * 990}\n{DATED}\nHi\n"),
    mail("calendar", f"From: ada@example.com\n{DATED}" + _multipart("alternative", "c", "Content-Type: text/plain\n\nInvitation", "Content-Type: text/calendar; method=REQUEST\n\nBEGIN:VCALENDAR\nEND:VCALENDAR")),
    mail("dots", f"From: Dr. A. B. Lovelace <ada@example.com>\n{DATED}\n.\n..\n...x\n"),
    mail("list", f"From: ada@example.com\nList-Unsubscribe: <https://example.com/u>, <mailto:u@example.com>\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\nX-Service-Tag: news\nX-Service-Tag: =?utf-8?q?Z=C3=BCrich?=\n{DATED}\nHi\n"),
)  # fmt: skip

# Fields taken out, added, or made plain; the body as it came.
AMENDED = (
    mail("cron", "From: root@example.com (Cron Daemon)\nTo: root@example.com\nSubject: Cron <root@db1> run-parts /etc/cron.daily\nContent-Type: text/plain; charset=UTF-8\nAuto-Submitted: auto-generated\nX-Cron-Env: <SHELL=/bin/sh>\n\ndone\n"),
    mail("mailx", "From: ada@example.com\nTo: bob@example.net\nSubject: hi\n\nhi\n"),
    mail("php-mail", "To: bob@example.net\nSubject: Contact\nX-PHP-Originating-Script: 33:form.php\nFrom: Webform <form@example.com>\nBcc: boss@example.org\n\nHi\n"),
    mail("bcc-folded", f"From: ada@example.com\nBcc: secret@example.org,\n\tother@example.org,\n  third@example.org\nSubject: x\n{DATED}\nHi\n"),
    mail("bcc-space", f"From: ada@example.com\nBcc : secret@example.org\nbCC\t: secret@example.org\n{DATED}\nHi\n"),
    mail("bcc-last", f"From: ada@example.com\n{DATED}Bcc: secret@example.org\n secret@example.org\n\nHi\n"),
    mail("bcc-blank-continuation", f"From: ada@example.com\nBcc: secret@example.org\n \n secret@example.org\n{DATED}\nHi\n"),
    mail("bcc-after-blank", f"From: ada@example.com\nSubject: x\n \t\nBcc: secret@example.org\n{DATED}\nHi\n"),
    mail("resent-bcc", f"Resent-From: ada@example.com\nResent-Bcc: secret@example.org\nFrom: ada@example.com\n{DATED}\nHi\n"),
    mail("return-path", f"Return-Path: <secret@example.org>\nFrom: ada@example.com\n{DATED}\nHi\n"),
    mail("our-authentication", f"Authentication-Results: (secret) MX.Example.com. 1; spf=pass\n smtp.mailfrom=secret\nFrom: ada@example.com\n{DATED}\nHi\n"),
    mail("our-authentication-quoted", f'Authentication-Results: "mx.example.com"; secret=pass\nFrom: ada@example.com\n{DATED}\nHi\n'),
    mail("one-click", f"From: ada@example.com\nX-Service-Unsubscribe: one-click\nX-Service-Tag: list:secret-free\n{DATED}\nHi\n"),
    mail("complaints-elsewhere", f"From: ada@example.com\nCFBL-Address: secret@example.org; report=arf\ncfbl-Feedback-ID : secret@1\n{DATED}\nHi\n"),
    mail("space-before-colon", f"From : Ada <ada@example.com>\nSubject\t: x\n{DATED}\nHi\n"),
    mail("header-only", "From: ada@example.com\nSubject: nothing else\n"),
    mail("no-final-line-end", f"From: ada@example.com\n{DATED}\nHi"),
)  # fmt: skip

_U = "From: ada@example.com\n" + DATED
# Rewritten, wholly or in part.
REENCODED = (
    mail("utf8-subject", f"From: Jürgen Müller <j@example.com>\nSubject: Grüße aus Zürich 💌 {'sehr lang ' * 30}\n{DATED}\nHi\n"),
    mail("utf8-mixed-words", f"From: ada@example.com\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= aus Zürich\n{DATED}\nHi\n"),
    mail("utf8-addresses", f'From: "Müller, Jürgen" (Büro) <j@example.com>\nTo: Zoë <zoe@example.net>, "Bob" <bob@example.org>, plain@example.net, (Büro) b@example.org\nCc: Grüppe: x@example.net;\nReply-To: 山田 太郎 <y@example.com>\n{DATED}\nHi\n'),
    mail("utf8-body-no-type", "From: ada@example.com\nSubject: x\n\nGrüße\nzweite Zeile \n"),
    mail("wordpress", f"{_U}Content-Type: text/html; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n<p>Grüße</p>\n"),
    mail("chinese", f"{_U}Content-Type: text/plain; charset=utf-8\n\n{'这是一封邮件。' * 40}\n"),
    mail("latin1-body", f"{_U}Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: 8bit\n\n".encode() + b"Gr\xfc\xdfe\n"),
    mail("minified-html", f"{_U}Content-Type: text/html; charset=us-ascii\nContent-Transfer-Encoding: 7bit\n\n<p>{'no line end ' * 300}</p>\n"),
    mail("alternative-8bit", f"{_U}Content-Transfer-Encoding: 8bit\n" + _multipart("alternative", "b", "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\nGrüße", "Content-Type: text/html; charset=us-ascii\nContent-Transfer-Encoding: 7bit\n\n<p>Hi</p>", preamble="Dies ist für alte Programme.\n")),
    mail("nested", f"{_U}" + _multipart("mixed", "o", "Content-Transfer-Encoding: 8bit\n" + _multipart("related", "o-i", "Content-Type: text/html; charset=utf-8\n\nÜ <img>", f"Content-Type: image/png\nContent-Transfer-Encoding: base64\n\n{PNG}"), 'Content-Type: application/pdf; name="Übung mit langem Namen, der gefaltet werden muss, und mehr.pdf"\nContent-Disposition: attachment; filename="Übung.pdf"; size=4\nContent-Transfer-Encoding: base64\n\nJVBERi0=')),
    mail("binary", f"{_U}".encode() + b"Content-Type: application/octet-stream\nContent-Transfer-Encoding: binary\n\n" + bytes(b for b in range(256) if b not in (10, 13)) + b"\n"),
    mail("nul-in-text", f"{_U}\na\0b\n"),
    mail("base64-one-line", f"{_U}Content-Type: image/png\nContent-Transfer-Encoding: base64\n\n{'QUJDREVG' * 400}\n"),
    mail("qp-long", f"{_U}Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n{'Gr=C3=BC=C3=9Fe ' * 200}\nshort=\n er\n"),
    mail("qp-raw-8bit", f"{_U}Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: Quoted-Printable\n\nGrüße =3D Gr=C3=BC=C3=9Fe\n"),
    mail("forwarded-8bit", f"{_U}Content-Transfer-Encoding: 8bit\n" + _multipart("mixed", "f", "Content-Type: text/plain\n\nsee", "Content-Type: message/rfc822\nContent-Transfer-Encoding: 8bit\n\nFrom: Zoë <z@example.org>\nSubject: Grüße\nBcc: kept@example.org\nContent-Type: text/plain; charset=utf-8\n\nGrüße")),
    mail("digest", f"{_U}" + _multipart("digest", "d", "\nFrom: z@example.org\nSubject: Grüße\n\nGrüße", "\nFrom: y@example.org\nSubject: Hi\n\nHi")),
    mail("signed-next-to-8bit", f"{_U}" + _multipart("mixed", "l", _multipart("signed", "s", "Content-Type: text/plain\n\nsigned", "Content-Type: application/pgp-signature\n\nsig"), "Content-Type: text/plain; charset=utf-8\n\nFußzeile")),
    mail("signed-with-utf8-subject", f"{_U}Subject: Grüße\n" + _multipart("signed", "s", "Content-Type: text/plain\n\nsigned", "Content-Type: application/pgp-signature\n\nsig")),
    mail("unclosed-8bit", f"{_U}Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/plain; charset=utf-8\n\nGrüße\n"),
    mail("inner-unclosed-8bit", f"{_U}Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: multipart/alternative; boundary=y\n\n--y\n\nGrüße\n--x\n\nHi\n--x--\nEpilog für niemand\n"),
    mail("long-to", f"From: ada@example.com\nTo: {','.join([f'recipient{n}@department{n}.example.net' for n in range(60)])}\n{DATED}\nHi\n"),
    mail("long-references", f"From: ada@example.com\nReferences: {' '.join([f'<{n}@mail.example.com>' for n in range(90)])}\n{DATED}\nHi\n"),
    mail("break-makes-delimiter", f"{_U}Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/plain\n\n" + "a" * 75 + "--x" * 400 + "\n--x--\n"),
    mail("padded-delimiter", f"{_U}Content-Type: multipart/mixed; boundary=x\n\n--x{' ' * 1200}\n\nHi\n--x--{' ' * 1200}\n"),
    mail("header-less-part", f"{_U}Content-Type: multipart/mixed; boundary=x\n\n--x\n\nGrüße\n--x\n--x\nContent-Type: text/plain\n--x--\n"),
    mail("tabs-and-dots", f"{_U}Content-Type: text/plain; charset=utf-8\n\n.\n.ü\n\tTab\t\nend \n\n\n"),
)  # fmt: skip

# Each with the status of its refusal, and a word of the sentence that says why.
REFUSED = (
    (mail("no-from", f"To: a@example.com\n{DATED}\nHi\n"), "550 5.6.0", "0 From"),
    (mail("two-from", f"From: a@example.com\nFrom: b@example.com\n{DATED}\nHi\n"), "550 5.6.0", "2 From"),
    (mail("two-from-space", f"From: a@example.com\nfrom : b@example.com\n{DATED}\nHi\n"), "550 5.6.0", "2 From"),
    (mail("two-mailboxes", f"From: a@example.com, b@example.com\n{DATED}\nHi\n"), "550 5.6.0", "more than one mailbox"),
    (mail("good-then-evil", f"From: a@good.example <b@evil.example>\n{DATED}\nHi\n"), "550 5.6.0", "double quotes"),
    (mail("evil-then-good", f"From: <b@evil.example> a@good.example\n{DATED}\nHi\n"), "550 5.6.0", "one mailbox"),
    (mail("two-brackets", f"From: <a@good.example> <b@evil.example>\n{DATED}\nHi\n"), "550 5.6.0", "one mailbox"),
    (mail("bracket-in-bracket", f"From: <<a@good.example>b@evil.example>\n{DATED}\nHi\n"), "550 5.6.0", "one"),
    (mail("group-from", f"From: Team: a@example.com;\n{DATED}\nHi\n"), "550 5.6.0", "group"),
    (mail("empty-from", f"From: \n{DATED}\nHi\n"), "550 5.6.0", "@"),
    (mail("null-from", f"From: <>\n{DATED}\nHi\n"), "550 5.6.0", "empty"),
    (mail("route", f"From: <@a.example:b@example.com>\n{DATED}\nHi\n"), "550 5.6.0", "group"),
    (mail("literal", f"From: a@[192.0.2.1]\n{DATED}\nHi\n"), "550 5.6.0", "literal"),
    (mail("quoted-local", f'From: "a b"@example.com\n{DATED}\nHi\n'), "550 5.6.0", "quoted local"),
    (mail("unbalanced-quote", f'From: "Ada <a@good.example>\n{DATED}\nHi\n'), "550 5.6.0", "unmatched quote"),
    (mail("unbalanced-comment", f"From: (Ada <a@good.example>\n{DATED}\nHi\n"), "550 5.6.0", "comment"),
    (mail("unclosed-bracket", f'From: "A" <a@good.example\n{DATED}\nHi\n'), "550 5.6.0", "close the bracket"),
    (mail("unclosed-bracket-comment", f"From: A <a@good.example (x)\n{DATED}\nHi\n"), "550 5.6.0", "close the bracket"),
    (mail("long-from", f"From: {'(a) ' * 600} <a@example.com>\n{DATED}\nHi\n"), "550 5.6.0", "From field is longer than 2048"),
    (mail("long-sender", f"From: a@example.com\nSender: {'(a) ' * 600} <a@example.com>\n{DATED}\nHi\n"), "550 5.6.0", "Sender field is longer than 2048"),
    (mail("comment-in-address", f"From: a(x)@good.example\n{DATED}\nHi\n"), "550 5.6.0", "comment"),
    (mail("utf8-address", f"From: jürgen@example.com\n{DATED}\nHi\n"), "550 5.6.0", "ASCII"),
    (mail("utf8-domain", f"From: Ada <ada@bücher.example>\n{DATED}\nHi\n"), "550 5.6.0", "ASCII"),
    (mail("utf8-address-to", f"From: a@example.com\nTo: Bob <bob@bücher.example>\n{DATED}\nHi\n"), "550 5.6.0", "ASCII"),
    (mail("word-is-address", f"From: =?utf-8?q?a=40good.example?=\n{DATED}\nHi\n"), "550 5.6.0", "@"),
    (mail("word-in-address", f"From: =?utf-8?q?b=40evil.example=2C?=a@good.example\n{DATED}\nHi\n"), "550 5.6.0", "encoded word"),
    (mail("word-hides-break", f"From: =?utf-8?q?Ada=0D=0ABcc:_x=40y.example?= <a@example.com>\n{DATED}\nHi\n"), "550 5.6.0", "line break"),
    (mail("subject-hides-bcc", f"From: a@example.com\nSubject: =?utf-8?b?YQ0KQmNjOiB4QHkuZXhhbXBsZQ==?=\n{DATED}\nHi\n"), "550 5.6.0", "line break"),
    (mail("quoted-word-hides-break", f'From: "=?utf-8?q?a=0Ab c?=" <a@example.com>\n{DATED}\nHi\n'), "550 5.6.0", "line break"),
    (mail("utf7-hides-break", f"From: a@example.com\nSubject: =?utf-7?q?a+AA0ACg-b?=\n{DATED}\nHi\n"), "550 5.6.0", "line break"),
    (mail("word-hides-nul", f"From: =?x?q?a=00?= <a@example.com>\n{DATED}\nHi\n"), "550 5.6.0", "NUL"),
    (mail("nul-in-header", f"From: a@example.com\nSubject: a\0b\n{DATED}\nHi\n"), "550 5.6.0", "NUL"),
    (mail("vertical-tab", f"From: a@example.com\nSubject: a\vBcc: x\n{DATED}\nHi\n"), "550 5.6.0", "control"),
    (mail("latin1-subject", b"From: a@example.com\nSubject: Gr\xfc\xdfe\n\nHi\n"), "550 5.6.0", "UTF-8"),
    (mail("latin1-from", b"From: J\xfcrgen <a@example.com>\n\nHi\n"), "550 5.6.0", "UTF-8"),
    (mail("utf8-references", f"From: a@example.com\nReferences: <ü@x>\n{DATED}\nHi\n"), "550 5.6.0", "ASCII"),
    (mail("two-senders", f"From: a@example.com\nSender: a@example.com\nSender: b@example.com\n{DATED}\nHi\n"), "550 5.6.0", "2 Sender"),
    (mail("sender-list", f"From: a@example.com\nSender: a@example.com, b@example.com\n{DATED}\nHi\n"), "550 5.6.0", "Sender"),
    (mail("mbox-line", f"From a@example.com Sun Mar  1 12:00:00 2026\nFrom: a@example.com\n{DATED}\nHi\n"), "550 5.6.0", "field 1"),
    (mail("no-field", f"From: a@example.com\nthis is no field\n{DATED}\nHi\n"), "550 5.6.0", "field 2"),
    (mail("no-name", f"From: a@example.com\n: x\n{DATED}\nHi\n"), "550 5.6.0", "field 2"),
    (mail("odd-name", f"From: a@example.com\nSub ject: x\n{DATED}\nHi\n"), "550 5.6.0", "field 2"),
    (mail("utf8-name", f"From: a@example.com\nBetrüff: x\n{DATED}\nHi\n"), "550 5.6.0", "field 2"),
    (mail("begins-folded", f" From: a@example.com\n{DATED}\nHi\n"), "550 5.6.0", "field 1"),
    (mail("begins-empty", f"\nFrom: a@example.com\n{DATED}\nHi\n"), "550 5.6.0", "empty line"),
    (mail("nothing", ""), "550 5.6.0", "empty line"),
    (mail("body-only", "Hello Bob,\nhow are you?\n"), "550 5.6.0", "field 1"),
    (mail("loop", "Received: by a\n" * 51 + f"From: a@example.com\n{DATED}\nHi\n"), "554 5.4.6", "loop"),
    (mail("many-fields", "From: a@example.com\n" + "X: y\n" * 1_000 + "\nHi\n"), "550 5.6.0", "1000 fields"),
    (mail("large-header", "From: a@example.com\n" + f"X: {'y' * 900}\n" * 300 + "\nHi\n"), "550 5.6.0", "256 KB"),
    (mail("large-utf8-header", f"{_U}To: {'ü <a@example.com>, ' * 4_000}\n\nHi\n"), "550 5.6.0", "64 KB"),
    (mail("large-utf8-headers", _U + _multipart("mixed", "x", *[f"Subject: {'ü' * 400}\n\nHi"] * 100)), "550 5.6.0", "64 KB"),
    (mail("many-part-fields-8bit", _U + _multipart("mixed", "x", *["X: y\n" * 950 + "\nü"] * 11)), "550 5.6.0", "10000 header fields"),
    (mail("unfoldable", f"From: a@example.com\nX-Note: {'y' * 1_000}\n{DATED}\nHi\n"), "550 5.6.0", "fold"),
    (mail("signed-8bit", f"{_U}" + _multipart("signed", "s", "Content-Type: text/plain; charset=utf-8\n\nGrüße", "\nsig")), "554 5.6.0", "signed"),
    (mail("encrypted-long", f"{_U}" + _multipart("mixed", "m", _multipart("encrypted", "s", f"\n{'x' * 999}"))), "554 5.6.0", "encrypted"),
    (mail("no-boundary-8bit", f"{_U}Content-Type: multipart/mixed\n\nGrüße\n"), "550 5.6.0", "boundary"),
    (mail("boundary-unused-8bit", f"{_U}Content-Type: multipart/mixed; boundary=x\n\nGrüße\n"), "550 5.6.0", "boundary"),
    (mail("same-boundary-8bit", f"{_U}" + _multipart("mixed", "x", "Content-Type: multipart/mixed; boundary=x\n\nGrüße")), "550 5.6.0", "boundary"),
    (mail("base64-8bit", f"{_U}Content-Transfer-Encoding: base64\n\nGrüße\n"), "550 5.6.0", "base64"),
    (mail("base64-long-text", f"{_U}Content-Transfer-Encoding: base64\n\n{'not it! ' * 200}\n"), "550 5.6.0", "base64"),
    (mail("unknown-encoding-8bit", f"{_U}Content-Transfer-Encoding: x-uuencode\n\nGrüße\n"), "550 5.6.0", "Content-Transfer-Encoding"),
    (mail("two-encodings-8bit", f"{_U}Content-Transfer-Encoding: 8bit\nContent-Transfer-Encoding: base64\n\nGrüße\n"), "550 5.6.0", "Content-Transfer-Encoding"),
    (mail("part-no-field-8bit", f"{_U}" + _multipart("mixed", "x", "no field\n\nGrüße")), "550 5.6.0", "no header field"),
    (mail("partial-8bit", f"{_U}Content-Type: message/partial; id=x\n\nGrüße\n"), "550 5.6.0", "message/partial"),
    (mail("deep-8bit", _U + "Content-Type: message/rfc822\n\n" * 60 + "\nGrüße\n"), "550 5.6.0", "deeper"),
    (mail("many-parts-8bit", f"{_U}" + _multipart("mixed", "x", *["\nü"] * 1_001)), "550 5.6.0", "parts"),
)  # fmt: skip
