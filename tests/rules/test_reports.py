"""What follows from a report: which recipient it is about, and when an address gets no more mail."""

from typing import Any

import pytest

from posthouse.mail.report import Bounce, Complaint, FailedRecipient
from posthouse.rules.reports import ReportNote, report_notes

ADA, BOB = "Ada@example.org", "bob@example.org"
TWO = {0: ADA, 1: BOB}
FOUR = {**TWO, 2: "eve@example.net", 3: "Mia@Example.ORG"}


def failed(recipient: str | None = "ada@example.org", status: str | None = "5.1.1", **given: Any) -> FailedRecipient:
    return FailedRecipient(
        **{"recipient": recipient, "status": status, "code": 550, "is_permanent": True, "text": "no", **given}
    )


def bounced(*failures: FailedRecipient) -> Bounce:
    return Bounce(failures, ())


def complained(kind: str = "abuse", recipient: str | None = None) -> Complaint:
    return Complaint(kind, recipient, (), "stop it")


def shown(found: list[ReportNote]) -> list[tuple[int | None, bool]]:
    return [(note.position, note.suppress) for note in found]


@pytest.mark.parametrize(
    ("status", "is_permanent", "suppresses"),
    [
        ("5.1.1", True, True),
        ("5.1.10", True, True),
        ("5.1.6", True, True),
        ("5.1.1", False, False),
        ("5.1.8", True, False),
        ("5.2.2", True, False),
        ("5.7.1", True, False),
        ("4.4.7", False, False),
        (None, True, False),
    ],
)
def test_only_a_permanently_unknown_address_is_suppressed(
    status: str | None, is_permanent: bool, suppresses: bool
) -> None:
    failure = bounced(failed(status=status, is_permanent=is_permanent))
    for position in (0, None):
        assert shown(report_notes(failure, position, TWO, taken_by_peer=TWO)) == [(0, suppresses)]


@pytest.mark.parametrize(
    ("failures", "suppresses"),
    [
        # The token's position overrides the named address.
        ([failed("forwarded@elsewhere.example")], True),
        ([failed(None)], True),
        # Of several failures the recipient's own counts, and a forwarding address is not unknown.
        ([failed("x@example.net", "5.2.2"), failed("bob@example.org")], True),
        ([failed("x@example.net"), failed("y@example.net")], False),
    ],
)
def test_a_recipients_own_token_says_whose_bounce_it_is(failures: list[FailedRecipient], suppresses: bool) -> None:
    assert shown(report_notes(bounced(*failures), 1, TWO)) == [(1, suppresses)]


def test_without_a_position_the_address_is_matched_in_any_case() -> None:
    failures = bounced(*[failed(f"{name}@example.org") for name in ("bob", "ada", "eve")])
    found = report_notes(failures, None, TWO, taken_by_peer=TWO)
    assert shown(found) == [(1, True), (0, True), (None, False)]
    assert found[-1].detail == "eve@example.org"


def test_a_shared_token_covers_only_recipients_of_an_envelope() -> None:
    ada, eve, mia = (failed(FOUR[position].lower()) for position in (0, 2, 3))

    def of(*failures: FailedRecipient, position: int | None = None) -> list[tuple[int | None, bool]]:
        return shown(report_notes(bounced(*failures), position, FOUR, taken_by_peer=FOUR))

    assert of(ada, mia) == [(0, True), (3, True)]
    assert of(ada, failed("x@elsewhere.example")) == [(0, True), (None, False)]
    # Envelopes go to one domain, and Eve had her own.
    assert of(ada, eve) == [(0, False), (2, False)]
    assert of(eve) == [(2, False)]
    assert of(eve, position=2) == [(2, True)]


def test_a_shared_token_counts_only_from_the_server_that_took_the_mail() -> None:
    failures = bounced(failed("ada@example.org"), failed("bob@example.org"))
    assert shown(report_notes(failures, None, TWO)) == [(0, False), (1, False)]
    assert shown(report_notes(failures, None, TWO, taken_by_peer={1})) == [(0, False), (1, True)]
    # A recipient's own token, and the only recipient of a message, are recognised without it.
    assert shown(report_notes(failures, 1, TWO)) == [(1, True)]
    assert shown(report_notes(bounced(failed()), None, {0: ADA})) == [(0, True)]


def test_only_the_first_complaint_by_a_shared_token_counts() -> None:
    (first,) = report_notes(complained(recipient="bob@example.org"), None, FOUR)
    assert (first.position, first.suppress, first.is_shared) == (1, True, True)
    (later,) = report_notes(complained(recipient="ada@example.org"), None, FOUR, complainer=1)
    assert (later.position, later.suppress, later.is_shared) == (0, False, True)
    (again,) = report_notes(complained(recipient="bob@example.org"), None, FOUR, complainer=1)
    assert again == first
    # A recipient with their own token is believed in any case.
    (own,) = report_notes(complained(recipient="bob@example.org"), 0, FOUR, complainer=1)
    assert (own.position, own.suppress, own.is_shared) == (0, True, False)


def test_an_unnamed_report_is_about_the_only_recipient() -> None:
    assert shown(report_notes(complained(), None, {0: ADA})) == [(0, True)]
    assert shown(report_notes(bounced(failed(None)), None, {0: ADA})) == [(0, True)]
    assert shown(report_notes(complained(), None, TWO)) == [(None, False)]
    assert shown(report_notes(complained(recipient="eve@example.org"), None, {0: ADA})) == [(None, False)]


@pytest.mark.parametrize("kind", ["abuse", "fraud", "virus", "other", "opt-out"])
def test_every_complaint_suppresses(kind: str) -> None:
    assert shown(report_notes(complained(kind), 1, TWO)) == [(1, True)]


def test_an_unverified_complaint_is_noted_and_suppresses_nothing() -> None:
    for position in (1, None):
        (note,) = report_notes(complained(recipient="bob@example.org"), position, TWO, unverified_peer="192.0.2.1")
        assert (note.position, note.suppress, note.detail) == (1, False, "abuse, unverified, from 192.0.2.1")
    (verified,) = report_notes(complained(recipient="bob@example.org"), 1, TWO)
    assert verified.duplicate_key != note.duplicate_key


def test_not_spam_is_no_complaint() -> None:
    (note,) = report_notes(complained("not-spam"), 1, TWO)
    assert not note.suppress
    assert note.duplicate_key != report_notes(complained("abuse"), 1, TWO)[0].duplicate_key


def test_an_unknown_position_is_ignored() -> None:
    assert report_notes(complained(), 2, TWO) == []


def test_duplicate_reports_have_the_same_key() -> None:
    def duplicate_key(failure: FailedRecipient, position: int | None = 0) -> object:
        return report_notes(bounced(failure), position, TWO)[0].duplicate_key

    assert duplicate_key(failed(text="a")) == duplicate_key(failed("other@example.net", text="b"))
    assert duplicate_key(failed()) != duplicate_key(failed(status="5.2.2"))
    assert duplicate_key(failed("eve@example.org"), None) != duplicate_key(failed("eva@example.org"), None)


def test_a_recipient_has_few_reports_that_suppress() -> None:
    complaints = [report_notes(complained(kind), 0, TWO)[0] for kind in ("abuse", "fraud", "made-up-1", "made-up-2")]
    bounces = [report_notes(bounced(failed(status=status)), 0, TWO)[0] for status in ("5.1.1", "5.1.2", "5.1.10")]
    assert {note.suppress for note in complaints + bounces} == {True}
    assert len({note.duplicate_key for note in complaints}) == len({note.duplicate_key for note in bounces}) == 1
    # Reports that suppress nothing have other keys.
    assert report_notes(bounced(failed(is_permanent=False)), 0, TWO)[0].duplicate_key != bounces[0].duplicate_key
    assert report_notes(bounced(failed()), None, TWO)[0].duplicate_key != bounces[0].duplicate_key
