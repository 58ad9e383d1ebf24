"""Submitted mail passes unchanged or is re-encoded; hidden fields are removed."""

# ruff: noqa: E501 (one case per line)

import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from email import message_from_bytes, message_from_string, policy
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses

import dkim as dkimpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from posthouse.mail import dkim
from posthouse.mail.address import Mailbox
from posthouse.mail.submitted import SubmittedMail, SubmittedMailError, is_slow_to_read, prepare
from tests.mail.submitted import AMENDED, REENCODED, REFUSED, UNTOUCHED, Mail
from tests.support.bad_input import bad_input, spoiled
from tests.support.processor_time import processor_seconds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADDED = {"date", "message-id", "mime-version"}
REMOVED = {"bcc", "resent-bcc", "return-path", "x-service-unsubscribe", "cfbl-address", "cfbl-feedback-id"}
ADDRESSES = {"from", "sender", "reply-to", "to", "cc"}
TYPED = {"content-type", "content-disposition"}


def taken(raw: bytes) -> SubmittedMail:
    return prepare(raw, date=NOW, message_id="ours@mx.example.com", hostname="mx.example.com")


def name_of(mail: Mail) -> str:
    return mail.name


def said(value: object) -> str:
    """A field's value as the standard library decodes it, without white space and quotes."""
    text = str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\r\n", "")
    text = re.sub(r"=\?[^?]+\?[bqBQ]\?[^?]*\?=", lambda word: str(make_header(decode_header(word[0]))), text)
    return re.sub(r'[\s"]', "", text)


def fields_said(part: Message) -> Counter[tuple[str, object]]:
    result: Counter[tuple[str, object]] = Counter()
    for name, value in part.raw_items():
        lowered = name.lower().rstrip(" \t")
        if lowered in TYPED:
            result[lowered, (part.get_content_type(), said(part.get_filename()), part.get_boundary())] += 1
        elif lowered == "content-transfer-encoding":
            continue
        elif lowered in ADDRESSES:
            result[lowered, tuple(address for _, address in getaddresses([str(value)]))] += 1
            result[lowered, said(value).replace("\\", "")] += 1
        else:
            result[lowered, said(value)] += 1
    return result


def parts_said(raw: bytes) -> list[tuple[Counter[tuple[str, object]], bytes | None]]:
    """What each part's header says, read as text, and its decoded body, read as bytes, except for a last line end."""
    texts = message_from_string(raw.decode("utf-8", "surrogateescape")).walk()
    return [
        (fields_said(text), None if part.is_multipart() else body_of(part))
        for text, part in zip(texts, message_from_bytes(raw).walk(), strict=True)
    ]


def body_of(part: Message) -> bytes:
    body = part.get_payload(decode=True)
    assert isinstance(body, bytes)
    # Readers disagree on whose the last line end is where a multipart has no end.
    return body.removesuffix(b"\r\n")


def check_limits(content: bytes) -> None:
    assert content.isascii()
    assert b"\0" not in content
    assert content.endswith(b"\r\n")
    assert content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n")
    assert max(map(len, content.split(b"\r\n"))) <= 998


def check_same(raw: bytes, content: bytes) -> None:
    """Another reader finds in both the same fields, except for those removed and added, and the same parts."""
    before, after = parts_said(raw), parts_said(content)
    (fields_before, body_before), (fields_after, body_after) = before[0], after[0]
    kept = {field for field in fields_before if field[0] not in REMOVED and field[0] != "authentication-results"}
    assert kept <= {*fields_after}
    assert {name for name, _ in {*fields_after} - kept} <= ADDED | {"content-type", "authentication-results"}
    assert REMOVED.isdisjoint({name for name, _ in fields_after})
    assert body_after == body_before
    assert len(before) == len(after)
    for (part_before, inner_before), (part_after, inner_after) in zip(before[1:], after[1:], strict=True):
        assert part_before - part_after == Counter()
        assert {name for name, _ in part_after - part_before} <= {"content-type"}
        assert inner_after == inner_before


@pytest.mark.parametrize("mail", UNTOUCHED, ids=name_of)
def test_mail_within_the_limits_passes_unchanged(mail: Mail) -> None:
    assert taken(mail.raw).content is mail.raw


@pytest.mark.parametrize("mail", AMENDED, ids=name_of)
def test_fields_are_removed_and_added_and_the_rest_stays(mail: Mail) -> None:
    content = taken(mail.raw).content
    check_limits(content)
    assert b"secret@" not in content
    assert b"boss@" not in content
    assert b"mx.example.com" not in content.lower().replace(b"<ours@mx.example.com>", b"")
    # The other reader ends a header at a line of white space, and knows no white space before a colon.
    check_same(re.sub(rb"\r\n[ \t]+(?=\r\n)|[ \t]+(?=:)", b"", mail.raw), content)
    after = message_from_bytes(content)
    assert all(len(after.get_all(name, [])) == 1 for name in ADDED)
    assert taken(content).content is content


@pytest.mark.parametrize("mail", REENCODED, ids=name_of)
def test_mail_beyond_the_limits_is_reencoded(mail: Mail) -> None:
    content = taken(mail.raw).content
    check_limits(content)
    assert content != mail.raw
    check_same(mail.raw, content)
    assert taken(content).content is content
    # Whatever holds the parts no longer says that there are 8-bit bytes inside.
    for part in message_from_bytes(content).walk():
        assert part.get("content-transfer-encoding", "7bit").lower() in ("7bit", "quoted-printable", "base64")


@pytest.mark.parametrize(("mail", "status", "reason"), REFUSED, ids=lambda given: getattr(given, "name", ""))
def test_unsafe_mail_is_refused(mail: Mail, status: str, reason: str) -> None:
    with pytest.raises(SubmittedMailError, match=re.escape(reason)) as refusal:
        taken(mail.raw)
    assert refusal.value.status == status
    assert str(refusal.value).isprintable()
    assert str(refusal.value).isascii()
    assert len(str(refusal.value)) < 300


def test_there_are_enough_sample_messages() -> None:
    messages = [*UNTOUCHED, *AMENDED, *REENCODED, *[mail for mail, _, _ in REFUSED]]
    assert len({mail.name for mail in messages}) == len(messages) >= 60


@pytest.mark.parametrize(
    ("field", "box", "text"),
    [
        ("ada@example.com", Mailbox("", "ada", "example.com"), "ada@example.com"),
        ("Ada <Ada@Example.COM>", Mailbox("Ada", "Ada", "example.com"), "Ada <Ada@example.com>"),
        ('"Ada, Countess" <ada@example.com>', Mailbox("Ada, Countess", "ada", "example.com"), '"Ada, Countess" <ada@example.com>'),
        ("ada@example.com (Ada L.)", Mailbox("Ada L.", "ada", "example.com"), "Ada L. <ada@example.com>"),
        ("=?UTF-8?Q?J=C3=BCr?=\r\n =?UTF-8?B?Z2Vu?= <j@example.com>", Mailbox("Jürgen", "j", "example.com"), "Jürgen <j@example.com>"),
        ('"=?utf-8?q?Z=C3=BCrich?=" <z@example.com>', Mailbox("Zürich", "z", "example.com"), "Zürich <z@example.com>"),
        ("Jürgen <j@example.com>", Mailbox("Jürgen", "j", "example.com"), "Jürgen <j@example.com>"),
        ("=?utf-8?q?a=40good.example?= <b@evil.example>", Mailbox("a@good.example", "b", "evil.example"), '"a@good.example" <b@evil.example>'),
        ('"a@good.example" <b@evil.example>', Mailbox("a@good.example", "b", "evil.example"), '"a@good.example" <b@evil.example>'),
        ("< ada@example.com >", Mailbox("", "ada", "example.com"), "ada@example.com"),
        ("Ada\r\n\t<ada@example.com>", Mailbox("Ada", "ada", "example.com"), "Ada <ada@example.com>"),
        ("=?no-such?q?x=01y?= <ada@example.com>", Mailbox("x y", "ada", "example.com"), "x y <ada@example.com>"),
        ("ada@xn--bcher-kva.example", Mailbox("", "ada", "xn--bcher-kva.example"), "ada@xn--bcher-kva.example"),
    ],
)  # fmt: skip
def test_the_sender_is_the_only_mailbox_of_from(field: str, box: Mailbox, text: str) -> None:
    submitted = taken(f"From: {field}\r\n\r\nHi\r\n".encode())
    assert submitted.sender == box
    assert submitted.sender_text == text
    assert submitted.sender_field is None


def test_header_values_are_returned() -> None:
    submitted = taken(
        b"From: ada@example.com\r\nSender: Bot <bot@example.org>\r\n"
        b"To: Bob <Bob@Example.NET>, \"Doe, Jane\" <jane@example.org>, (x) broken@, Team: zoe@example.net;\r\n"
        b"To: ada@xn--BCHER-kva.example\r\nCc: bob@example.net,\r\n carl@example.net\r\n"
        b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n\t=?utf-8?q?_aus?= Rom\r\n"
        b"X-Service-Tag: one\r\nX-Service-Tag:  =?utf-8?q?Z=C3=BCrich?= \r\nX-Service-Tag: \r\n"
        b"X-Service-Tag: " + b"x" * 200 + b"\r\nX-Service-Unsubscribe : one-click\r\nList-Unsubscribe: <mailto:u@example.com>\r\n"
        b"\r\nHi\r\n"
    )  # fmt: skip
    assert submitted.sender_field == Mailbox("Bot", "bot", "example.org")
    assert submitted.to == {"bob@example.net", "jane@example.org", "zoe@example.net", "ada@xn--bcher-kva.example"}
    assert submitted.cc == {"bob@example.net", "carl@example.net"}
    assert submitted.subject == "Grüße aus Rom"
    assert submitted.tags == ("one", "Zürich", "x" * 128)
    assert submitted.unsubscribe == "one-click"
    assert submitted.has_own_unsubscribe
    assert b"unsubscribe : one-click" not in submitted.content.lower()


@pytest.mark.rule("META-06")
def test_metadata_is_read_and_removed() -> None:
    submitted = taken(
        b"From: ada@example.com\r\nX-Service-Metadata-Order: 1001\r\nx-service-metadata-shop.a:\r\n =?utf-8?q?Z=C3=BCrich?=\r\n"
        b"X-Service-Metadata-long: " + b"x" * 600 + b"\r\nX-Service-Metadata: kept\r\n\r\nHi\r\n"
    )  # fmt: skip
    assert submitted.metadata == {"Order": "1001", "shop.a": "Z\u00fcrich", "long": "x" * 501}
    assert b"metadata-" not in submitted.content.lower()
    assert b"X-Service-Metadata: kept\r\n" in submitted.content
    assert taken(b"From: ada@example.com\r\n\r\n").metadata == {}


def test_the_field_that_forgets_content_is_read_and_removed() -> None:
    submitted = taken(
        b"From: ada@example.com\r\nx-service-content:\r\n FORGET \r\nX-Service-Contents: kept\r\n\r\nHi\r\n"
    )
    assert submitted.forgets_content
    assert b"forget" not in submitted.content.lower()
    assert b"X-Service-Contents: kept\r\n" in submitted.content
    assert not taken(b"From: ada@example.com\r\n\r\n").forgets_content


@pytest.mark.parametrize("value", [b"", b"keep", b"forget, forget", b"forget\r\nX-Service-Content: keep"])
def test_another_value_of_that_field_is_refused(value: bytes) -> None:
    with pytest.raises(SubmittedMailError, match="X-Service-Content"):
        taken(b"From: ada@example.com\r\nX-Service-Content: " + value + b"\r\n\r\n")


def test_metadata_is_given_once() -> None:
    with pytest.raises(SubmittedMailError, match="two fields X-Service-Metadata-a"):
        taken(b"From: ada@example.com\r\nX-Service-Metadata-a: 1\r\nX-Service-metadata-a: 1\r\n\r\n")


def test_texts_are_truncated_and_printable() -> None:
    submitted = taken(
        b"From: ada@example.com\r\nSubject: =?utf-8?q?a=09b=1Bc=E2=80=A8d?=\r\n " + b"word \r\n " * 400 + b"end\r\n"
        + b"X-Service-Tag: t\r\n" * 150 + b"\r\nHi\r\n"
    )  # fmt: skip
    assert submitted.subject.startswith("a b c d word word")
    assert len(submitted.subject) <= 998
    assert submitted.subject.isprintable()
    assert len(submitted.tags) == 100
    plain = taken(b"From: ada@example.com\r\n\r\n")
    assert (plain.subject, plain.tags, plain.to, plain.cc) == ("", (), frozenset(), frozenset())
    assert (plain.unsubscribe, plain.has_own_unsubscribe) == (None, False)


def test_list_unsubscribe_post_needs_list_unsubscribe() -> None:
    head = b"From: ada@example.com\r\n"
    where = b"List-Unsubscribe: <https://example.com/u>\r\n"
    how = b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    alone, together = taken(head + how + b"\r\nHi\r\n"), taken(head + how + where + b"\r\nHi\r\n")
    assert not alone.has_own_unsubscribe
    assert b"list-unsubscribe" not in alone.content.lower()
    assert together.has_own_unsubscribe
    assert together.content.startswith(head + how + where)


def test_a_long_address_list_is_read_partly_and_sent_whole() -> None:
    listed = b",\r\n ".join([b"r%d@example.net" % number for number in range(5_000)])
    head = b"From: ada@example.com\r\nDate: x\r\nMessage-ID: <x@x>\r\nMIME-Version: 1.0\r\n"
    raw = head + b"To: " + listed + b"\r\n\r\nHi\r\n"
    submitted = taken(raw)
    assert submitted.content is raw
    assert {f"r{number}@example.net" for number in range(500)} <= submitted.to
    assert "r4999@example.net" not in submitted.to


@pytest.mark.parametrize(
    "field", ["(x) other.example; spf=pass", "other.example" + "; x=(y)" * 500, "mx(x).example.org 1; none"]
)
def test_authentication_results_of_others_stay(field: str) -> None:
    assert field.encode() in taken(
        f"Authentication-Results: {field}\r\nFrom: a@example.com\r\n\r\nHi\r\n".encode().replace(b"; x=", b";\r\n x=")
    ).content.replace(b"\r\n x=", b" x=")


@pytest.mark.parametrize(
    "field",
    ["mx(x).example.com; spf=pass", "(x)" * 60 + "mx.example.com", "mx" + "(x)" * 60 + ".example.com", "(x", ""],
)
def test_authentication_results_in_our_name_are_removed(field: str) -> None:
    content = taken(f"Authentication-Results: {field}\r\nFrom: a@example.com\r\n\r\nHi\r\n".encode()).content
    assert b"authentication-results" not in content.lower()


def test_missing_fields_are_added_at_the_end_of_the_header() -> None:
    assert taken(b"From: ada@example.com\r\n\r\nHi\r\n").content == (
        b"From: ada@example.com\r\nDate: Sun, 1 Mar 2026 12:00:00 +0000\r\n"
        b"Message-ID: <ours@mx.example.com>\r\nMIME-Version: 1.0\r\n\r\nHi\r\n"
    )


def test_text_stays_legible_and_untyped_utf_8_gets_its_charset() -> None:
    content = taken(
        "From: ada@example.com\r\n\r\nViele Grüße an alle, die uns heute von überall her schreiben\r\n".encode()
    ).content
    assert content.endswith(
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        b"Viele Gr=C3=BC=C3=9Fe an alle, die uns heute von =C3=BCberall her schreiben\r\n"
    )


def test_a_signature_of_unchanged_mail_still_verifies() -> None:
    pair = dkim.new_ed25519_key_pair()
    key = dkim.load_signing_key("example.com", "e1", pair.private_der)
    record = dkim.record_text(pair.public, dkim.KeyType.ED25519).encode()
    for mail in UNTOUCHED:
        # That one's own signature is no real one.
        if mail.name == "dkim-signed":
            continue
        content = taken(dkim.signatures(mail.raw, [key], NOW) + mail.raw).content
        assert dkimpy.verify(content, dnsfunc=lambda *_, **__: record), mail.name


lines = some.lists(
    some.one_of(
        some.sampled_from(
            [
                b"From: ada@example.com", b"Bcc: secret@example.org", b" secret@example.org", b"Bcc : secret@example.org",
                b"Subject: Gr\xc3\xbc\xc3\x9fe", b"To: Zo\xc3\xab <z@example.net>", b"", b"", b" ", b"\t", b"--x", b"--x--", b"--y", b"--y--", b"--x ",
                b"Content-Type: multipart/mixed; boundary=x", b'Content-Type: multipart/alternative; boundary="y"',
                b"Content-Type: message/rfc822", b"Content-Type: text/plain; charset=utf-8", b"Content-Type: multipart/signed; boundary=x",
                b"Content-Type: application/pdf; name=\"\xc3\xbc\"", b"Content-Type: multipart/digest; boundary=y",
                b"Content-Transfer-Encoding: 8bit", b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: quoted-printable",
                b"Gr\xc3\xbc\xc3\x9fe", b"\xff\xfe", b"a\0b", b"=C3=BC=", b"QUJD", b"x" * 1_000, b"--x" * 400, b"y " * 600, b".", b"text: plain",
            ]
        ),
        some.binary(max_size=40).map(lambda line: line.replace(b"\r", b"").replace(b"\n", b"")),
    ),
    max_size=24,
)  # fmt: skip


@bad_input("Submitted mail", 300)
@given(lines, some.booleans())
@example(
    [
        b"Content-Type: multipart/mixed; boundary=x", b"", b"--x", b"Content-Type: multipart/mixed; boundary=y", b"",
        b"--y", b"", b"\xff", b"--x--",
    ],
    True,
)  # fmt: skip
def test_any_mail_is_refused_or_prepared_idempotently(given_lines: list[bytes], has_header: bool) -> None:
    head = b"From: ada@example.com\r\nSubject: x\r\n" if has_header else b""
    raw = head + b"".join([line + b"\r\n" for line in given_lines])
    try:
        submitted = taken(raw)
    except SubmittedMailError:
        return
    check_limits(submitted.content)
    assert REMOVED.isdisjoint({name.lower().strip() for name in message_from_bytes(submitted.content)})
    again = taken(submitted.content)
    assert again.content is submitted.content
    assert again.sender == submitted.sender
    # Where the other reader sees no defect, it reads the same from both.
    before, after = message_from_bytes(raw), message_from_bytes(submitted.content)
    if not any(part.defects for part in before.walk()):
        assert [body_of(part) for part in before.walk() if not part.is_multipart()] == [
            body_of(part) for part in after.walk() if not part.is_multipart()
        ]


PIECES = [
    b"\r\n", b"\r\n ", b"\r\n\r\n", b"\0", b"\xff", b"--", b"--x\r\n", b": ", b'"', b"=?", b"<", b",", b"(", b"Bcc: b@x.example\r\n",
]  # fmt: skip


@bad_input("Submitted mail", 500)
@given(spoiled([mail.raw for mail in (*UNTOUCHED, *AMENDED)], PIECES))
def test_damaged_mail_of_real_programs_is_refused_or_valid(raw: bytes) -> None:
    """As the server passes it on: without a line end that is not CRLF."""
    whole = b"\r\n".join([line.replace(b"\r", b"").replace(b"\n", b"") for line in raw.split(b"\r\n")])
    try:
        submitted = taken(whole)
    except SubmittedMailError:
        return
    check_limits(submitted.content)
    assert REMOVED.isdisjoint({name.lower().strip() for name in message_from_bytes(submitted.content)})


senders = some.lists(
    some.sampled_from(
        ["ada@good.example", "bob@evil.example", "<", ">", "<ada@good.example>", "<bob@evil.example>", " ", " ", "\t", ",", ":", ";", '"', "\\",
         "(", ")", "Ada", '"Ada"', '"a@b.example"', "(Ada)", "@", "=?utf-8?q?Ada_=3Cb=40evil.example=3E?=", "[", "]", "é", "\r\n "]
    ),
    min_size=1,
    max_size=9,
).map("".join)  # fmt: skip


@bad_input("Submitted mail", 400)
@given(senders)
@example('"Ada" <ada@good.example>(<bob@evil.example>)')
def test_another_parser_finds_the_same_sender(field: str) -> None:
    raw = f"From: {field}\r\n\r\nHi\r\n".encode()
    try:
        submitted = taken(raw)
    except SubmittedMailError:
        return
    for read in (submitted.content, raw):
        field_read = message_from_bytes(read, policy=policy.default)["From"]
        assert {address.addr_spec.lower() for address in field_read.addresses} == {submitted.sender.key}
    # A sender whose name is its own address counts twice there.
    written = str(message_from_bytes(submitted.content)["From"]).replace("\r\n", "")
    assert {address.lower() for _, address in getaddresses([written])} == {submitted.sender.key}


MIB: int = 1024 * 1024
HEAD = b"From: a@example.com\r\n"
MULTIPART = HEAD + b"Content-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\n\r\n\xff\r\n"
NESTED = HEAD + b"".join(
    [b"Content-Type: multipart/mixed; boundary=B%d\r\n\r\n--B%d\r\n" % (level, level) for level in range(48)]
)
NASTY = {
    "no line end": (HEAD + b"\r\n", b"x", 10 * MIB),
    "no line end in the header": (HEAD, b"x", 10 * MIB),
    "no line end in quoted-printable": (HEAD + b"Content-Transfer-Encoding: quoted-printable\r\n\r\n", b"=", 2 * MIB),
    "no line end in base64": (HEAD + b"Content-Transfer-Encoding: base64\r\n\r\n", b"QUJD", MIB // 2),
    "almost delimiters": (MULTIPART, b"--Bx\r\n", 10 * MIB // 6),
    "delimiters": (MULTIPART, b"--B\r\n", 2 * MIB // 5),
    "delimiters deep inside": (NESTED + b"\r\n\xff", b"\r\n--B47\r\n\r\nx", 10 * MIB // 12),
    "a padded line deep inside": (NESTED + b"\r\n\xff\r\n--B47", b" ", 10 * MIB),
    "white space": (HEAD + b"X: y", b" ", 250_000),
    "lines of white space": (HEAD + b"X: y\r\n", b" \r\n", 80_000),
    "encoded words that never end": (HEAD + b"Subject: ", b"=?a?q?", 40_000),
    "comments that never end": (HEAD + b"To: ", b"(", 250_000),
    "names that never end": (b"From: ", b'"a" ', 60_000),
    "escapes": (HEAD + b'To: "', b"\\", 250_000),
    "recipients": (HEAD + b"To: ", b"a@xn--bcher-kva.example,", 4_000),
    "a file name": (HEAD + b"Content-Type: text/plain; name=", b"\xc3\xa9", 60_000),
}


@pytest.mark.parametrize("name", NASTY)
def test_malicious_mail_takes_linear_time(name: str) -> None:
    head, unit, count = NASTY[name]
    raw = head + unit * count + b"\r\n\r\nHi\r\n"

    def read() -> None:
        with suppress(SubmittedMailError):
            check_limits(taken(raw).content)

    # Some hundred milliseconds; what grows faster than the message would take minutes.
    assert processor_seconds(read, enough=5) < 5


# What costs most for its size: where it begins, what is repeated, and what ends it.
LABORIOUS = {
    "quoted names": (HEAD + b"To: ", b'"" ', b""),
    "comments": (HEAD + b"Cc: ", b"(a)\r\n ", b""),
    "nested comments": (HEAD + b"To: ", b"(\r\n ", b""),
    "recipients": (HEAD + b"To: ", b"a@xn--bcher-kva.example,\r\n ", b"a@example.com"),
    "many recipient fields": (HEAD, b"To: " + b'"" ' * 90 + b"\r\n", b"X: y"),
    "a sender's comments": (b"From: ", b"(a)", b" a@example.com"),
    "8-bit names": (HEAD + b"Resent-To: ", b"\xc3\xa9 <a@b.example>, ", b"a@example.com"),
    "8-bit names in many fields": (HEAD, b"Reply-To: " + b"\xc3\xa9<a@b.example>," * 18 + b"\r\n", b"X: y"),
    "8-bit comments": (HEAD + b"Resent-To: ", b"(\xc3\xa9) ", b"a@example.com"),
    "encoded words": (HEAD + b"Subject: ", b"=?u?q??==?v?q??=\r\n ", b"end"),
    "8-bit encoded words": (HEAD + b"Subject: ", b"=?u?q?\xc3\xa9?=", b"end"),
    "tags": (HEAD, b"X-Service-Tag: " + b"=?u?q??=" * 31 + b"\r\n", b"X: y"),
    "results in nobody's name": (HEAD, b"Authentication-Results: " + b"(a)" * 80 + b"\r\n", b"X: y"),
    "parameters": (HEAD + b"Content-Type: text/plain", b";\r\n ", b"a=\xc3\xa9"),
    "8-bit file names": (HEAD, b'Content-Disposition: a; filename="' + b"\xc3\xa9" * 120 + b'"\r\n', b"X: y"),
    "8-bit fields of parts": (MULTIPART, b"--B\r\nTo: " + b"\xc3\xa9<a@b.example>," * 18 + b"\r\n\r\nx\r\n", b""),
    "fields of parts": (MULTIPART, b"--B\r\n" + b"A:\r\n" * 900 + b"\r\nx\r\n", b""),
    "8-bit quoted-printable": (HEAD + b"Content-Transfer-Encoding: quoted-printable\r\n\r\n", b"\xff\r\n", b""),
}  # fmt: skip


@pytest.mark.parametrize("name", LABORIOUS)
def test_the_event_loop_reads_no_slow_mail(name: str) -> None:
    head, unit, tail = LABORIOUS[name]
    # A quick machine needs a quarter of this.
    for size, seconds in ((8 * 1024, 0.2), (250 * 1024, 1.0)):
        raw = head + unit * ((size - len(head) - 30) // len(unit)) + tail + b"\r\n\r\nHi\r\n"
        assert is_slow_to_read(raw) == (size > 8 * 1024)

        def read(raw: bytes = raw) -> None:
            with suppress(SubmittedMailError):
                taken(raw)

        assert processor_seconds(read, enough=seconds) <= seconds


def test_plain_mail_is_never_slow_to_read() -> None:
    body = b"\r\n" + b"x" * 76 + b"\r\n"
    assert not is_slow_to_read(HEAD + body * 3_000)
    assert is_slow_to_read(HEAD + body * 3_000 + b"\xff\r\n")
    assert is_slow_to_read(HEAD + body * 300 + b"x" * 999 + b"\r\n")
