"""DKIM: what is published belongs to what signs, and another program finds every signature right."""

import base64
import re
from datetime import UTC, datetime

import dkim as dkimpy
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
)
from hypothesis import example, given, settings
from hypothesis import strategies as some

from posthouse.mail import dkim
from posthouse.mail.dkim import KeyPair, KeyType, load_signing_key, relaxed_body, relaxed_field, signatures
from tests.support.bad_input import inputs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RSA_PAIR, ED25519_PAIR = dkim.new_key_pair(), dkim.new_ed25519_key_pair()
RSA = load_signing_key("example.com", "r1", RSA_PAIR.private_der)
ED25519 = load_signing_key("example.com", "e1", ED25519_PAIR.private_der)
ZONE = {
    b"r1._domainkey.example.com.": dkim.record_text(RSA_PAIR.public).encode(),
    b"e1._domainkey.example.com.": dkim.record_text(ED25519_PAIR.public, KeyType.ED25519).encode(),
}
CONTENT = (
    b"From: Ada <ada@example.com>\r\n"
    b"To: bob@example.net\r\n"
    b"Subject: Hello\r\n"
    b"Date: Sun, 1 Mar 2026 12:00:00 +0000\r\n"
    b"Message-ID: <1@example.com>\r\n"
    b"X-Note: not signed\r\n"
    b"List-Unsubscribe: <https://example.com/u>\r\n"
    b"Feedback-ID: campaign:account:transactional:posthouse\r\n"
    b"\r\n"
    b"Hello  Bob,\r\nhow are you?\r\n"
)


def published(name: bytes, timeout: int = 5) -> bytes | None:
    return ZONE.get(name)


def verdicts(message: bytes) -> list[bool]:
    """What dkimpy says of each signature, from the top."""
    results = []
    for index in range(message.count(b"DKIM-Signature:")):
        try:
            results.append(bool(dkimpy.DKIM(message).verify(idx=index, dnsfunc=published)))
        except dkimpy.DKIMException:
            results.append(False)
    return results


def signed(message: bytes) -> bytes:
    return signatures(message, [RSA, ED25519], NOW) + message


def tags(field: bytes) -> dict[str, str]:
    value = re.sub(r"\s", "", field.decode().partition(":")[2])
    return dict(part.split("=", 1) for part in value.split(";"))


def test_the_published_rsa_key_has_2048_bits() -> None:
    published = dkim.record_text(RSA_PAIR.public).partition("p=")[2]
    public = load_der_public_key(base64.b64decode(published, validate=True))
    assert isinstance(public, rsa.RSAPublicKey)
    assert public.key_size == 2048
    assert dkim.public_of(RSA_PAIR.private_der) == RSA_PAIR.public


def test_the_published_ed25519_key_is_the_bare_32_bytes() -> None:
    assert len(base64.b64decode(ED25519_PAIR.public, validate=True)) == 32
    assert dkim.public_of(ED25519_PAIR.private_der) == ED25519_PAIR.public


def test_a_key_pair_shows_its_public_half_only() -> None:
    pair = KeyPair(b"private bytes", "cHVibGlj")
    assert "private bytes" not in repr(pair)
    assert "private" not in repr(RSA)
    assert dkim.record_text(pair.public) == "v=DKIM1; k=rsa; p=cHVibGlj"
    assert dkim.record_text(pair.public, KeyType.ED25519) == "v=DKIM1; k=ed25519; p=cHVibGlj"


def test_a_key_of_another_type_raises() -> None:
    der = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TypeError, match="RSA or Ed25519"):
        load_signing_key("example.com", "s", der)


def test_a_signature_lists_the_signed_fields() -> None:
    assert tags(signatures(CONTENT, [ED25519], NOW)) | {"b": "", "bh": ""} == {
        "v": "1",
        "a": "ed25519-sha256",
        "c": "relaxed/relaxed",
        "d": "example.com",
        "s": "e1",
        "t": "1772366400",
        "h": "From:From:Sender:To:To:Cc:Subject:Subject:Date:Date:Reply-To:Message-ID:Message-ID:References:"
        "MIME-Version:Content-Type:Content-Transfer-Encoding:List-Unsubscribe:List-Unsubscribe:"
        "List-Unsubscribe-Post:Feedback-ID",
        "bh": "",
        "b": "",
    }


def test_each_key_signs_in_the_order_given_and_none_signs_nothing() -> None:
    fields = signatures(CONTENT, [ED25519, RSA], NOW)
    assert re.findall(rb"a=([a-z0-9-]+)", fields) == [b"ed25519-sha256", b"rsa-sha256"]
    assert signatures(CONTENT, [], NOW) == b""


def test_a_signature_is_a_folded_header_field() -> None:
    fields = signatures(CONTENT, [RSA, ED25519], NOW)
    assert fields.endswith(b"\r\n")
    lines = fields[:-2].split(b"\r\n")
    assert max(map(len, lines)) <= 78
    assert all(line.startswith((b"DKIM-Signature: ", b"\t")) and line.strip() for line in lines)


# RFC 6376, 3.4.5 and 3.4.4.
@pytest.mark.parametrize(
    ("body", "relaxed"),
    [
        (b" C \r\nD \t E\r\n\r\n\r\n", b" C\r\nD E\r\n"),
        (b"", b""),
        (b"\r\n", b""),
        (b"\r\n\r\n", b""),
        (b" \t\r\n \r\n", b""),
        (b"a", b"a\r\n"),
        (b"a\r\n", b"a\r\n"),
        (b"\r\na\r\n", b"\r\na\r\n"),
        (b"a" + b" " * 1_001 + b"b\t\t\t\t\t\r\n", b"a b\r\n"),
    ],
)
def test_a_relaxed_body_has_no_extra_white_space(body: bytes, relaxed: bytes) -> None:
    assert relaxed_body(body) == relaxed


def test_a_relaxed_field_has_no_extra_white_space() -> None:
    assert relaxed_field(b"b", b" Y\t\tZ  ") == b"b:Y Z"
    assert relaxed_field(b"b", b" \t ") == b"b:"


def test_an_empty_body_has_the_hash_of_the_rfc() -> None:
    empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
    for body in (b"", b"\r\n", b"\r\n\r\n"):
        assert tags(signatures(b"From: a@example.com\r\n\r\n" + body, [ED25519], NOW))["bh"] == empty


SIGNED_NAMES = [*dkim.OVERSIGNED, *dkim.SIGNED_WHERE_PRESENT]
spellings = some.sampled_from([spell(name) for name in SIGNED_NAMES for spell in (str, str.lower, str.upper)])
names = spellings | some.sampled_from(["X-Note", "Received", "In-Reply-To", "FromX", "X-From"])
words = some.text("abcXYZ019.:;=<>@-\x21", min_size=1, max_size=12)
gaps = some.sampled_from([" ", "  ", "\t", " \t ", "\r\n ", "\r\n\t", "  \r\n  ", "\t\r\n\t\t"])
values = some.lists(some.tuples(gaps, words), max_size=6).map(lambda parts: "".join(map("".join, parts)))
ends = some.sampled_from(["", " ", "\t ", "\r\n "])
fields = some.builds(lambda name, value, end: f"{name}:{value}{end}\r\n", names, values, ends)
heads = some.builds(
    lambda sender, others, place: "".join([*others[:place], f"From:{sender} a@example.com\r\n", *others[place:]]),
    gaps,
    some.lists(fields, max_size=14),
    some.integers(0, 14),
)
body_lines = (
    some.text("ab.= \t-", max_size=12) | some.text("é中 \t", max_size=6) | some.sampled_from(["", " ", "\t", "."])
)
bodies = some.lists(body_lines, max_size=10).map(lambda lines: "".join(f"{line}\r\n" for line in lines))
messages = some.builds(lambda head, body: f"{head}\r\n{body}".encode(), heads, bodies)


@settings(max_examples=inputs(300), deadline=None)
@given(messages)
@example(CONTENT)
@example(b"From: a@example.com\r\n\r\n")
@example(b"From: a@example.com\r\n\r\n\r\n\r\n\r\n")
@example(b"From: a@example.com\r\nFrom: b@example.com\r\nSubject: 1\r\nSubject: 2\r\nSubject: 3\r\n\r\nx\r\n")
def test_dkimpy_verifies_both_signatures(message: bytes) -> None:
    assert verdicts(signed(message)) == [True, True]


SIGNED_VALUE = re.compile(
    rf"^(?:{'|'.join(SIGNED_NAMES)}):((?:\r\n[ \t]|[^\r\n])*)".encode(), re.MULTILINE | re.IGNORECASE
)


@settings(max_examples=inputs(60), deadline=None)
@given(messages, some.data())
def test_a_changed_signed_byte_breaks_both(message: bytes, data: some.DataObject) -> None:
    spans = [(message.index(b"\r\n\r\n") + 4, len(message))]
    spans += [match.span(1) for match in SIGNED_VALUE.finditer(message, 0, spans[0][0])]
    places = [at for start, end in spans for at in range(start, end) if message[at] not in b" \t\r\n"]
    at = data.draw(some.sampled_from(places))
    changed = b"#" if message[at] != ord("#") else b"+"
    fields = signatures(message, [RSA, ED25519], NOW)
    assert verdicts(fields + message[:at] + changed + message[at + 1 :]) == [False, False]


@pytest.mark.parametrize(
    "change",
    [
        lambda mail: b"Received: from here\r\n" + mail,
        lambda mail: mail + b"\r\n\r\n",
        lambda mail: mail.replace(b"Hello  Bob,", b"Hello Bob, \t"),
        lambda mail: mail.replace(b"Subject: Hello", b"SUBJECT:\r\n\tHello "),
        lambda mail: mail.replace(b"X-Note: not signed", b"X-Note: changed"),
    ],
)
def test_changes_by_relays_break_nothing(change: object) -> None:
    assert callable(change)
    assert change(CONTENT) != CONTENT
    assert verdicts(signatures(CONTENT, [RSA, ED25519], NOW) + change(CONTENT)) == [True, True]


def test_white_space_before_the_colon_is_ignored() -> None:
    # dkimpy can't read such a field, but Ed25519 signs the same thing the same way.
    spaced = CONTENT.replace(b"Subject: Hello", b"subject \t : Hello")
    assert signatures(spaced, [ED25519], NOW) == signatures(CONTENT, [ED25519], NOW)


def test_a_missing_last_line_end_is_signed_as_sent() -> None:
    assert verdicts(signatures(CONTENT.removesuffix(b"\r\n"), [RSA, ED25519], NOW) + CONTENT) == [True, True]
