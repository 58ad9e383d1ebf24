"""Which signatures of received mail prove enough, and that no message costs more time than its size justifies."""

import time
from typing import Any

import pytest
from hypothesis import given

from posthouse.mail import dkim_check
from posthouse.mail.dkim_check import SignedMail
from tests.support.bad_input import bad_input, spoiled
from tests.support.feedback_loop import FeedbackLoop
from tests.support.inbound_reports import complaint

LOOP = FeedbackLoop("fbl.example")
AUTHOR, US = "reports@fbl.example", "complaints@example.com"
MAIL = complaint("CFBL-Feedback-ID: abc", author=AUTHOR, to=US)
FORMS = [(head, body) for head in (b"simple", b"relaxed") for body in (b"simple", b"relaxed")]


def is_valid(raw: bytes, record: str | None = None) -> bool:
    mail = dkim_check.read(raw)
    if mail is None:
        return False
    return any(dkim_check.is_valid(mail, found, record or LOOP.record) for found in mail.signatures)


def read(raw: bytes) -> SignedMail:
    mail = dkim_check.read(raw)
    assert mail is not None
    return mail


@pytest.mark.parametrize("canonical", FORMS)
def test_a_signature_in_every_form_is_valid(canonical: tuple[bytes, bytes]) -> None:
    odd = MAIL.replace(b"Good morning.", b"Good  \t morning. \r\n \t\r\n\t.")
    for raw in (MAIL, odd, odd + b"\r\n\r\n"):
        assert is_valid(LOOP.signed(raw, canonical=canonical))


def test_the_author_the_addressees_and_the_signers_are_read() -> None:
    raw = LOOP.signed(MAIL.replace(f"To: <{US}>".encode(), f"To: Us <{US}>, other@example.net".encode()))
    mail = read(raw)
    assert mail.author.key == AUTHOR
    assert mail.addressees == {US, "other@example.net"}
    assert [(found.record_name, found.is_body_relaxed) for found in mail.signatures] == [
        ("s1._domainkey.fbl.example", False)
    ]


def test_a_second_signature_is_found_behind_a_broken_signature() -> None:
    raw = LOOP.signed(LOOP.signed(MAIL)).replace(b"b=", b"b=x", 1)
    assert is_valid(raw)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Good morning.", b"Good evening."),
        (b"CFBL-Feedback-ID: abc", b"CFBL-Feedback-ID: abd"),
        (b"From: <reports@", b"From: <report@"),
        (b"To: <complaints@", b"To: <complain@"),
        (b"Subject: FW: Hello", b"Subject: FW: Hallo"),
        (b"--b--", b"--b--\r\nmore"),
    ],
)
def test_an_altered_message_is_not_valid(old: bytes, new: bytes) -> None:
    raw = LOOP.signed(MAIL)
    assert raw.count(old) == 1
    assert not is_valid(raw.replace(old, new))


@pytest.mark.parametrize("name", [b"From", b"To"])
def test_a_message_with_two_authors_or_two_to_fields_is_not_valid(name: bytes) -> None:
    raw = LOOP.signed(MAIL)
    for added in (name + b": <complaints@example.com>\r\n", name + b" : <complaints@example.com>\r\n"):
        assert not is_valid(added + raw)
        head, end, body = raw.partition(b"\r\n\r\n")
        assert not is_valid(head + b"\r\n" + added + end[2:] + body)


@pytest.mark.parametrize(
    "how", [{"with_length": True}, {"algorithm": b"rsa-sha1"}, {"fields": ("From", "Subject")}], ids=str
)
def test_a_signature_that_proves_too_little_is_not_read(how: dict[str, Any]) -> None:
    assert dkim_check.read(LOOP.signed(MAIL, **how)) is None


def test_bare_line_ends_are_not_valid() -> None:
    raw = LOOP.signed(MAIL)
    for sign in (b"\r", b"\n"):
        assert not is_valid(raw.replace(b"Good morning.", b"Good" + sign + b"morning."))
        assert not is_valid(LOOP.signed(MAIL.replace(b"Good morning.", b"Good" + sign + b"morning.")))


def test_other_short_revoked_and_test_keys_are_not_valid() -> None:
    raw = LOOP.signed(MAIL)
    short = FeedbackLoop("fbl.example", bits=1024)
    assert is_valid(short.signed(MAIL), short.record)
    assert not is_valid(raw, short.record)
    for record in (
        LOOP.record.replace("v=DKIM1", "v=DKIM1; t=y"),
        LOOP.record.replace("v=DKIM1", "v=DKIM1; t=s : Y"),
        LOOP.record.replace("k=rsa", "k=ed25519"),
        LOOP.record.replace("v=DKIM1", "v=DKIM2"),
        "v=DKIM1; k=rsa; p=",
        "v=DKIM1; p=!!!",
        "p=AAAA",
        "=",
        "\u00fc",
        "",
        LOOP.record + " " * 1_000,
    ):
        assert not is_valid(raw, record or " ")


def test_a_message_without_a_readable_signature_has_none() -> None:
    head, end, body = MAIL.partition(b"\r\n\r\n")
    for field in (b"", b"DKIM-Signature: \r\n", b"DKIM-Signature: a=rsa-sha256; a=rsa-sha256\r\n", b"\xff: x\r\n"):
        assert dkim_check.read(field + MAIL) is None
    for raw in (b"", b"\r\n", b"\r\n\r\n", head, b"x" * 100_000, end + body):
        assert dkim_check.read(raw) is None


@pytest.mark.parametrize(
    "hostile",
    [b" " * 500_000, b" \t" * 250_000 + b"x", b"\r\n" * 250_000, b" \r\n" * 150_000, b"x " * 250_000],
    ids=["blanks", "tabs", "lines", "blank lines", "words"],
)
@pytest.mark.parametrize("canonical", FORMS[2:])
def test_no_body_takes_longer_than_its_size(canonical: tuple[bytes, bytes], hostile: bytes) -> None:
    # Blank lines at the end would not count.
    raw = LOOP.signed(MAIL, canonical=canonical) + hostile + b".\r\n"
    started = time.process_time()
    assert not is_valid(raw)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("canonical", FORMS[2:])
def test_a_forged_signature_costs_little_whatever_the_body_is(canonical: tuple[bytes, bytes]) -> None:
    raw = FeedbackLoop("fbl.example", bits=1024).signed(MAIL, canonical=canonical) + b"a b\r\n" * 400_000
    started = time.process_time()
    assert not is_valid(raw)
    assert time.process_time() - started < 0.25


@pytest.mark.parametrize(
    "hostile",
    [
        b"b=" + b" \r\n " * 20_000 + b";", b"b=" + b"\r\n \t \t" * 500 + b";", b"h=" + b"from:" * 10_000 + b"to",
        b"h=" + b"from:to" + b" : to" * 700, b"x=" + b"1" * 3_000, b"t=" + b"9" * 3_000,
        b"b=" + (b"a" * 10 + b"\r\n" + b" " * 30) * 90,
    ],
    ids=ascii,
)  # fmt: skip
def test_no_signature_field_takes_longer_than_its_size(hostile: bytes) -> None:
    field = b"DKIM-Signature: v=1; a=rsa-sha256; d=fbl.example; s=s1; h=from:to; bh=aaaa; b=aaaa; c=relaxed/relaxed; "
    name = hostile[:2]
    field = b"; ".join(tag for tag in field.split(b"; ") if not tag.startswith(name)) + hostile + b"\r\n"
    started = time.process_time()
    assert not is_valid(field * 5 + MAIL)
    assert time.process_time() - started < 2


SAMPLES = [LOOP.signed(MAIL, canonical=canonical) for canonical in FORMS]
PIECES = [b"\0", b"\r\n", b"\xff", b" ", b"\t", b";", b"=", b":", b"From: ", b"To: ", b"l=1; ", b"DKIM-Signature: "]


@bad_input("Returned reports", 500)
@given(spoiled(SAMPLES, PIECES))
def test_damaged_signed_mail_is_valid_only_with_its_author_and_body(raw: bytes) -> None:
    if is_valid(raw):
        # White space and the case of names may change in a relaxed form; what is read from it may not.
        assert read(raw).author.key == AUTHOR
        assert read(raw).addressees == {US}
        assert raw.partition(b"\r\n\r\n")[2].split() == MAIL.partition(b"\r\n\r\n")[2].split()
