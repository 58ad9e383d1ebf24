"""Mail to a return path is classified, however malformed; hostile mail is read quickly."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.parts import READ_BYTES_MAX
from posthouse.mail.report import (
    FAILURES_MAX,
    NOT_UNDERSTOOD,
    TEXT_CHARACTERS_MAX,
    TOKENS_MAX,
    Bounce,
    Complaint,
    FailedRecipient,
    NoReport,
    read,
)
from tests.mail.reports.complaints import COMPLAINTS
from tests.mail.reports.neither import NEITHER
from tests.mail.reports.notices import NOTICES
from tests.mail.reports.notifications import NOTIFICATIONS
from tests.mail.reports.sample import ORIGINAL, RETURN_PATH, TOKEN, Sample, dsn, failed
from tests.support.bad_input import bad_input, spoiled
from tests.support.processor_time import processor_seconds

SAMPLES: Final = (*NOTIFICATIONS, *NOTICES, *COMPLAINTS, *NEITHER)
HEADER: Final = "From: MAILER-DAEMON@mx.example.com\nSubject: Undelivered Mail Returned to Sender"
# A quick machine needs a fiftieth of this; what grows with the square of its length takes seconds.
SECONDS_PER_100_KB: Final = 0.25


def on_the_wire(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("utf-8", "surrogateescape")


def failed_fields(address: str) -> str:
    return failed("5.1.1", to=address)


def names(samples: tuple[Sample, ...]) -> list[str]:
    return [sample.name for sample in samples]


@pytest.mark.parametrize("sample", [*NOTIFICATIONS, *NOTICES], ids=names((*NOTIFICATIONS, *NOTICES)))
def test_a_bounce_names_failed_recipients_and_reasons(sample: Sample) -> None:
    result = read(on_the_wire(sample.raw))
    assert isinstance(result, Bounce), result
    assert isinstance(sample.expected, Bounce)
    for found, expected in zip(result.failures, sample.expected.failures, strict=True):
        assert found._replace(text="") == expected._replace(text="")
        assert expected.text in found.text
    assert result.tokens == sample.expected.tokens


@pytest.mark.parametrize("sample", [*COMPLAINTS, *NEITHER], ids=names((*COMPLAINTS, *NEITHER)))
def test_a_complaint_has_its_kind_and_complainer_and_other_mail_its_reason(sample: Sample) -> None:
    assert read(on_the_wire(sample.raw)) == sample.expected


def test_there_are_enough_samples_and_each_has_its_own_name() -> None:
    assert len({sample.name for sample in SAMPLES}) == len(SAMPLES)
    assert len(NOTIFICATIONS) + len(NOTICES) + len(COMPLAINTS) >= 60
    assert len(NEITHER) >= 15


def test_line_ends_make_no_difference() -> None:
    for sample in SAMPLES:
        assert read(sample.raw.encode()) == read(on_the_wire(sample.raw)), sample.name


def test_the_envelope_of_the_report_itself_is_no_token() -> None:
    raw = dsn(f"{HEADER}\nTo: {RETURN_PATH}", "Failed.", failed_fields("bob@example.com"), original="Subject: hi\n")
    assert read(on_the_wire(raw)) == Bounce((FailedRecipient("bob@example.com", "5.1.1", None, True, ""),), ())


def test_tokens_are_found_once_each_and_bounded() -> None:
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    paths = [f"bounces+{digits[index]}{TOKEN[1:]}@bounces.example.org" for index in range(32)]
    original = "".join([f"X-Path: {path}\nX-Again: {path.upper()}\n" for path in paths])
    result = read(on_the_wire(dsn(HEADER, "Failed.", failed_fields("bob@example.com"), original=original)))
    assert isinstance(result, Bounce)
    assert result.tokens == tuple(paths[:TOKENS_MAX])


@pytest.mark.parametrize(
    ("status", "diagnostic", "expected"),
    [
        ("5.0.0", "smtp; 550 5.1.1 unknown", ("5.1.1", 550, True)),
        ("5.1.0", "smtp; 550 5.1.1 unknown", ("5.1.1", 550, True)),
        ("5.1.1", "smtp; 550 unknown", ("5.1.1", 550, True)),
        ("5.1.1", "smtp; 550 5.0.0 unknown", ("5.1.1", 550, True)),
        ("5.1.1", "smtp; 550 5.7.1 policy", ("5.7.1", 550, True)),
        ("5.0.0", "smtp; 421 busy", ("5.0.0", 421, False)),
        ("5.4.7", "smtp; 451 4.7.1 greylisted", ("4.7.1", 451, False)),
        ("4.4.7", "x; too old", ("4.4.7", None, False)),
        ("", "smtp; 550 nobody", (None, 550, True)),
        ("", "", (None, None, True)),
        ("nonsense", "smtp; connection timed out", (None, None, False)),
        ("5.1.1 (bad destination mailbox address)", "", ("5.1.1", None, True)),
        ("5.0.0", "smtp; 550 host 192.5.1.1 at 5.1.1.7 says no to version 4.2.1", ("5.0.0", 550, True)),
        ("5.0.0", "smtp; 550 the 587 mails in 500 MB", ("5.0.0", 550, True)),
        ("2.0.0", "smtp; 550 5.2.1 disabled", ("5.2.1", 550, True)),
        ("2.0.0", "", (None, None, True)),
    ],
)
def test_the_most_precise_status_counts(
    status: str, diagnostic: str, expected: tuple[str | None, int | None, bool]
) -> None:
    result = read(on_the_wire(dsn(HEADER, "Failed.", f"{failed(status)}\nDiagnostic-Code: {diagnostic}")))
    assert isinstance(result, Bounce)
    (found,) = result.failures
    assert (found.status, found.code, found.is_permanent) == expected


def test_a_diagnostic_is_a_single_printable_line() -> None:
    words = "=?utf-8?q?550_5=2E1=2E1_a=0D=0ABcc:_x=00y?= " + "z" * 3_000
    result = read(on_the_wire(dsn(HEADER, "Failed.", failed("5.1.1", f"smtp; {words}"))))
    assert isinstance(result, Bounce)
    (found,) = result.failures
    assert found.text.startswith("550 5.1.1 a Bcc: x\ufffdy zzz")
    assert found.text.isprintable()
    assert len(found.text) == TEXT_CHARACTERS_MAX


def test_of_ten_thousand_recipients_a_hundred_are_returned() -> None:
    raw = dsn(HEADER, "Failed.", *(failed_fields(f"bob{index}@example.com") for index in range(10_000)))
    result = read(on_the_wire(raw))
    assert isinstance(result, Bounce)
    assert [failed.recipient for failed in result.failures] == [f"bob{n}@example.com" for n in range(FAILURES_MAX)]


def test_a_truncated_notification_is_read_as_far_as_it_goes() -> None:
    whole = on_the_wire(dsn(HEADER, "Failed.", failed_fields("bob@example.com")))
    result = read(whole[: whole.index(b"Received: by")])
    assert result == Bounce((FailedRecipient("bob@example.com", "5.1.1", None, True, ""),), (RETURN_PATH,))


def test_the_report_of_a_large_message_is_read_and_its_attachments_are_not() -> None:
    original = ORIGINAL + "x" * 70 * 1024 + "\n" * READ_BYTES_MAX + RETURN_PATH.replace(TOKEN, TOKEN[::-1])
    result = read(on_the_wire(dsn(HEADER, "Failed.", failed_fields("bob@example.com"), original=original)))
    assert result == Bounce((FailedRecipient("bob@example.com", "5.1.1", None, True, ""),), (RETURN_PATH,))


def _nested(kind: str, depth: int) -> str:
    if kind == "rfc822":
        return "Content-Type: message/rfc822\n\n" * depth + ORIGINAL
    opened = "".join([f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(depth)])
    return opened + "\nhello\n" + "".join([f"--b{n}--\n" for n in reversed(range(depth))])


def _hostile() -> dict[str, str]:
    plain = f"{HEADER}\nContent-Type: text/plain; charset=%s\n\nYour message could not be delivered\n%s"
    report = f"{HEADER}\nContent-Type: multipart/report; boundary=b\n\n%s"
    openings = (
        "A message that you sent could not be delivered\nThe following addresses had\nYour message to:\n"
        "This Message was undeliverable due to the following reason:\nDelivery to the following recipients failed\n"
        "Hi. This is the\n\nMessage not delivered to the following\nHere is your list of failed recipients\n"
    )
    return {
        "nested messages": _nested("rfc822", 1_000),
        "nested parts": _nested("multipart", 1_000),
        "a giant field": "Subject: " + "a" * 200_000,
        "many folds": "Subject: a\n" + " a\n" * 60_000,
        "many fields": "a:\n" * 60_000,
        "many parts": report % ("--b\n\nx\n" * 20_000),
        "many boundaries of others": report % ("--bb\n" * 30_000),
        "many parameters": f"{HEADER}\nContent-Type: text/plain" + ";a=b" * 30_000 + "\n\nx",
        "quotes": f'{HEADER}\nContent-Type: text/plain; a="' + '"; a="' * 30_000,
        "encoded words": f"{HEADER}=?a?q?" + "=?a?q?=" * 20_000 + "\n\nx",
        "no character set": plain % ("undefined", "\udcff\udcfe" * 1_000),
        "a slow character set": plain % ("punycode", "a" * 100_000),
        "a character set that breaks": plain % ("idna", "xn--" * 1_000),
        "NUL": plain % ("us-ascii\0", "\0" * 100_000),
        "brackets": plain % ("utf-8", openings + ("<" * 190 + "\n") * 500),
        "angles and commas": plain % ("utf-8", openings + ("," * 90 + "@" * 90 + "\n") * 500),
        "long words": plain % ("utf-8", openings + ("a" * 190 + "\n") * 500),
        "addresses": plain % ("utf-8", openings + ("a@b.cc " * 27 + "\n") * 500),
        "words before signs": plain % ("utf-8", openings + ("a@" * 95 + "\n") * 500),
        "blanks": plain % ("utf-8", openings + " " * 100_000),
        "short lines": plain % ("utf-8", openings + "a\n" * 50_000),
        "paragraphs": plain % ("utf-8", openings + "550 \n\n" * 20_000),
        "numbers": plain % ("utf-8", openings + "5.5.5.5.5" * 12_000),
        "codes": plain % ("utf-8", openings + "550 5" * 20_000),
        "HTML": f"{HEADER}\nContent-Type: text/html\n\n" + "<br" * 20_000 + "<style" * 5_000 + "&#" + "9" * 5_000 + ";",
        "failed recipients": f"{HEADER}\nX-Failed-Recipients: {'a@b.cc,' * 600}\n\n" + "a@b.cc a@b.cd\n\n" * 6_000,
        "failed recipients on one line each": f"{HEADER}\nX-Failed-Recipients: "
        + ",".join([f"a{n}@b.cc" for n in range(100)])
        + "\n\n"
        + (",".join([f"a{n}@b.cc" for n in range(100)]) + "\n" + "x 550\n" * 200) * 3,
        "failed recipients without a reason": dsn(
            HEADER,
            (",".join([f"a{n}@b.cc" for n in range(100)]) + "\n" + "x\n" * 100 + "\n") * 7,
            *(failed_fields(f"a{n}@b.cc") for n in range(100)),
        ),
        "one recipient a thousand times": dsn(
            HEADER, "a@b.cc\n\n" * 900, *([failed_fields("a@b.cc")] * 1_000), original="\n" * 20_000
        ),
        "long diagnostics": dsn(
            HEADER, "x", *(f"{failed_fields(f'a{n}@b.cc')}\nDiagnostic-Code: {'5.5.5-550 ' * 400}" for n in range(100))
        ),
        "tokens that are none": plain % ("utf-8", "=bounces+" * 12_000),
        "feedback ids that are none": plain % ("utf-8", "CFBL-Feedback-ID:\n" * 6_000),
        "status fields": report % ("--b\nContent-Type: message/delivery-status\n\n" + "final-recipient:a\n" * 6_000),
        "status actions": report % ("--b\nContent-Type: message/delivery-status\n\n" + "action:delayed\n\n" * 7_000),
        "base 64": f"{HEADER}\nContent-Transfer-Encoding: base64\n\n" + "A=" * 60_000,
        "quoted-printable": f"{HEADER}\nContent-Transfer-Encoding: quoted-printable\n\n" + "=" * 100_000,
    }


HOSTILE: Final = _hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_mail_is_read_quickly(name: str) -> None:
    raw = on_the_wire(HOSTILE[name])
    allowed = SECONDS_PER_100_KB * max(1, len(raw) / 100_000)
    assert processor_seconds(lambda: read(raw), enough=allowed) <= allowed


def check(result: Bounce | Complaint | NoReport) -> None:
    match result:
        case Bounce(failures, tokens):
            assert 1 <= len(failures) <= FAILURES_MAX
            for failed in failures:
                assert failed.text.isprintable()
                assert len(failed.text) <= TEXT_CHARACTERS_MAX
                assert failed.recipient is None or failed.recipient == failed.recipient.lower()
        case Complaint(kind, _, tokens, text):
            assert kind
            assert text.isprintable()
            assert len(text) <= TEXT_CHARACTERS_MAX
        case NoReport(reason):
            assert reason
            return
    assert len(tokens) <= TOKENS_MAX


@bad_input("Returned reports", 200)
@given(some.binary(max_size=2_000))
def test_any_bytes_are_read(raw: bytes) -> None:
    check(read(raw))


PIECES = [b"\0", b"\r\n", b"\xff", b"--", b"=?", b'"', b"<", b";", b": "]


@bad_input("Returned reports", 500)
@given(spoiled([on_the_wire(sample.raw) for sample in SAMPLES], PIECES))
def test_damaged_samples_are_read(raw: bytes) -> None:
    check(read(raw))


def test_empty_mail_is_no_report() -> None:
    assert [read(raw) for raw in (b"", b"\r\n", b"\n\n\n", b":", b"--", b" ")] == [NOT_UNDERSTOOD] * 6
