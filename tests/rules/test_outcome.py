"""What an attempt came to: the whole table, and what follows for the recipient."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.mail.reply import Reply
from posthouse.rules.message import RecipientStatus
from posthouse.rules.outcome import (
    AttemptResult,
    DeliveryVerdict,
    Forbidden,
    GivenUp,
    LookupFailure,
    NoReply,
    OutcomeKind,
    RecipientUpdate,
    Replied,
    Stage,
    Suppressed,
    Unresolved,
    judge,
    recipient_update,
)
from posthouse.rules.retry import Schedule

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLY = (Stage.CONNECT, Stage.GREETING, Stage.EHLO, Stage.STARTTLS)


def replied(stage: Stage, code: int, enhanced: str | None = None) -> DeliveryVerdict:
    return judge(Replied(stage, Reply(code, enhanced, "as the server said")))


def in_words(verdict: DeliveryVerdict) -> str:
    """The verdict as the tables below write it."""
    words: list[str] = [verdict.kind]
    if verdict.next_mx_host:
        words.append("next")
    if verdict.ambiguous:
        words.append("ambiguous")
    if verdict.suppress:
        words.append("suppress")
    return " ".join(words)


@pytest.mark.parametrize(
    ("code", "mail", "rcpt", "data", "dot"),
    [
        *[(code, "deferred", "deferred", "deferred", "deferred") for code in (421, 450, 451, 452, 454)],
        *[(code, "bounced", "bounced", "bounced", "bounced") for code in (500, 502, 521, 550, 554, 599)],
        (530, "deferred next", "bounced", "bounced", "bounced"),
        (552, "bounced", "deferred", "bounced", "bounced"),
    ],
)
def test_a_reply_is_judged_by_its_stage(code: int, mail: str, rcpt: str, data: str, dot: str) -> None:
    # Before the envelope, another server may take it.
    assert [in_words(replied(stage, code)) for stage in EARLY] == ["deferred next"] * 4
    stages = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.DOT)
    assert [in_words(replied(stage, code)) for stage in stages] == [mail, rcpt, data, dot]


@pytest.mark.parametrize("code", [200, 250, 251, 299])
def test_only_success_after_the_final_dot_is_a_delivery(code: int) -> None:
    assert replied(Stage.DOT, code) == DeliveryVerdict(OutcomeKind.DELIVERED, code, "as the server said")
    for stage in Stage:
        assert (replied(stage, code).kind is OutcomeKind.DELIVERED) == (stage is Stage.DOT)


def test_an_invalid_reply_defers_and_is_ambiguous_after_the_dot() -> None:
    assert in_words(replied(Stage.DATA, 250)) == "deferred"
    assert in_words(replied(Stage.RCPT, 354)) == "deferred"
    assert in_words(replied(Stage.GREETING, 354)) == "deferred next"
    assert in_words(replied(Stage.DOT, 354)) == "deferred ambiguous"


@pytest.mark.parametrize(
    ("stage", "verdict", "text"),
    [
        (Stage.CONNECT, "deferred next", "timed out (while connecting)"),
        (Stage.GREETING, "deferred next", "timed out (before the greeting)"),
        (Stage.EHLO, "deferred next", "timed out (during EHLO)"),
        (Stage.STARTTLS, "deferred next", "timed out (during STARTTLS)"),
        (Stage.MAIL, "deferred", "timed out (during MAIL)"),
        (Stage.RCPT, "deferred", "timed out (during RCPT)"),
        (Stage.DATA, "deferred", "timed out (during DATA)"),
        (Stage.DOT, "deferred ambiguous", "timed out (after the message was sent; it may have arrived)"),
    ],
)
def test_a_lost_session_is_retried_and_ambiguous_after_the_dot(stage: Stage, verdict: str, text: str) -> None:
    result = judge(NoReply(stage, "timed out"))
    assert in_words(result) == verdict
    assert (result.code, result.text) == (None, text)


@pytest.mark.parametrize(
    ("attempt_result", "verdict", "text"),
    [
        (Unresolved(LookupFailure.NULL_MX), "bounced", "the domain does not accept mail (null MX)"),
        (Unresolved(LookupFailure.NO_SUCH_NAME), "bounced", "the domain does not exist"),
        (Unresolved(LookupFailure.NO_ADDRESS), "bounced", "the domain has no mail server and no address"),
        (Unresolved(LookupFailure.NO_ANSWER, "SERVFAIL"), "deferred", "DNS gave no usable answer: SERVFAIL"),
        (Forbidden(), "bounced", "the domain's mail servers have no public address"),
        (
            Suppressed(),
            "bounced",
            "the address is suppressed: earlier mail to it bounced or was complained about, or the account blocks it",
        ),
        (Suppressed("news"), "bounced", "the address is unsubscribed from the list 'news'"),
        (GivenUp("it was tried 10 times"), "failed", "it was tried 10 times"),
    ],
)
def test_a_result_before_a_connection_has_no_code(attempt_result: AttemptResult, verdict: str, text: str) -> None:
    result = judge(attempt_result)
    assert in_words(result) == verdict
    assert (result.code, result.text) == (None, text)


@pytest.mark.parametrize("enhanced", ["5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"])
def test_an_unknown_address_is_suppressed_when_rcpt_says_so(enhanced: str) -> None:
    assert [in_words(replied(Stage.RCPT, code, enhanced)) for code in (550, 553)] == ["bounced suppress"] * 2
    for stage in (Stage.MAIL, Stage.DATA, Stage.DOT):
        assert in_words(replied(stage, 550, enhanced)) == "bounced"
    assert {in_words(replied(stage, 550, enhanced)) for stage in EARLY} == {"deferred next"}


@pytest.mark.parametrize(
    "enhanced",
    [
        None, "5.0.0", "5.1.0", "5.1.4", "5.1.5", "5.1.7", "5.1.8", "5.1.9", "5.1.11", "5.2.1", "5.2.2", "5.7.1",
        "5.7.26",
    ],
)  # fmt: skip
def test_no_other_rejection_suppresses(enhanced: str | None) -> None:
    assert in_words(replied(Stage.RCPT, 550, enhanced)) == "bounced"


def test_a_full_mailbox_is_retried_not_bounced() -> None:
    assert in_words(replied(Stage.RCPT, 552, "5.2.2")) == "deferred"
    # Whatever status comes with it.
    assert in_words(replied(Stage.RCPT, 552, "5.1.1")) == "deferred"
    assert replied(Stage.RCPT, 552).code == 552


def consequence(
    kind: OutcomeKind, attempts: int, age: timedelta = timedelta(0), held: timedelta = timedelta(0)
) -> RecipientUpdate:
    verdict = DeliveryVerdict(kind, None, "text")
    return recipient_update(verdict, attempts=attempts, accepted_at=NOON - age, now=NOON, random=0.5, held=held)


@pytest.mark.parametrize("attempts", [1, 10, 11])
@pytest.mark.parametrize("kind", [OutcomeKind.DELIVERED, OutcomeKind.BOUNCED, OutcomeKind.FAILED])
def test_a_final_verdict_needs_no_further_attempt(attempts: int, kind: OutcomeKind) -> None:
    assert consequence(kind, attempts, timedelta(days=30)) == RecipientUpdate(RecipientStatus(kind.value))


def test_a_deferred_recipient_is_retried_until_attempts_run_out() -> None:
    first, last = timedelta(minutes=1), timedelta(hours=16)
    assert consequence(OutcomeKind.DEFERRED, 1) == RecipientUpdate(RecipientStatus.DEFERRED, NOON + first)
    assert consequence(OutcomeKind.DEFERRED, 9) == RecipientUpdate(RecipientStatus.DEFERRED, NOON + last)
    assert consequence(OutcomeKind.DEFERRED, 10) == RecipientUpdate(RecipientStatus.FAILED)
    # Attempts that a crash left behind count too.
    assert consequence(OutcomeKind.DEFERRED, 12) == RecipientUpdate(RecipientStatus.FAILED)


def test_a_deferred_recipient_fails_after_72_hours() -> None:
    again = RecipientUpdate(RecipientStatus.DEFERRED, NOON + timedelta(hours=16))
    assert consequence(OutcomeKind.DEFERRED, 9, timedelta(hours=56)) == again
    assert consequence(OutcomeKind.DEFERRED, 9, timedelta(hours=57)) == RecipientUpdate(RecipientStatus.FAILED)
    assert consequence(OutcomeKind.DEFERRED, 9, timedelta(hours=57), held=timedelta(hours=1)) == again


def test_a_given_up_recipient_is_final_without_attempts() -> None:
    verdict = judge(GivenUp("it was held for 7 days", is_released=True))
    assert verdict.is_released
    assert not judge(GivenUp("it was tried 10 times")).is_released
    given_up = recipient_update(verdict, attempts=0, accepted_at=NOON, now=NOON, random=0.5)
    assert given_up == RecipientUpdate(RecipientStatus.FAILED)


def test_an_operator_can_set_another_schedule() -> None:
    verdict = DeliveryVerdict(OutcomeKind.DEFERRED, 451, "later")
    schedule = Schedule((timedelta(hours=2),))

    def after(attempts: int) -> RecipientUpdate:
        return recipient_update(verdict, attempts=attempts, accepted_at=NOON, now=NOON, random=0.0, schedule=schedule)

    assert after(1) == RecipientUpdate(RecipientStatus.DEFERRED, NOON + timedelta(hours=2))
    assert after(2) == RecipientUpdate(RecipientStatus.FAILED)
