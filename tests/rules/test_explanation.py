"""Explanations: real replies of large providers and common mail servers, and our own texts."""

import re
from pathlib import Path
from typing import Final, get_args

import pytest

from posthouse.mail.reply import reply_of
from posthouse.rules import outcome, simulator
from posthouse.rules.delivery_reason import DeliveryReason as R
from posthouse.rules.delivery_reason import reason_of
from posthouse.rules.explanation import (
    Cause,
    ReplySignalExplanation,
    explain,
    explain_reason,
    explain_reply_signal,
    explain_unfinished,
    explain_wait,
)
from posthouse.rules.outcome import (
    AttemptResult,
    Forbidden,
    GivenUp,
    LookupFailure,
    NoReply,
    Stage,
    StillBlocked,
    Suppressed,
    Unresolved,
    judge,
)
from posthouse.rules.reply_signal import Check, ReplySignal, ReplySignalKind, Scope, reply_signal_named
from posthouse.rules.wait_reason import WaitReason


def real_replies() -> list[tuple[int, R, str]]:
    lines = (Path(__file__).parent / "replies.txt").read_text().splitlines()
    rows = [line.split(" ", 2) for line in lines if line and not line.startswith("#")]
    return [(int(code), R(reason), text.replace("\\n", "\n")) for code, reason, text in rows]


REPLIES: Final = real_replies()

OWN: Final[list[tuple[AttemptResult, R, Cause | None]]] = [
    (Suppressed(), R.SUPPRESSED, Cause.RECIPIENT),
    (Suppressed("news"), R.UNSUBSCRIBED, Cause.RECIPIENT),
    (Unresolved(LookupFailure.NO_SUCH_NAME), R.UNKNOWN_DOMAIN, Cause.RECIPIENT),
    (Unresolved(LookupFailure.NULL_MX), R.NO_MAIL_ACCEPTED, Cause.RECIPIENT),
    (Unresolved(LookupFailure.NO_ADDRESS), R.NO_MAIL_ACCEPTED, Cause.RECIPIENT),
    (Unresolved(LookupFailure.NO_ANSWER, "the name servers did not answer in time"), R.DNS_FAILED, Cause.PROVIDER),
    (
        Unresolved(LookupFailure.NO_ANSWER, "no name server is configured on this machine; set `resolvers`"),
        R.RESOLVER,
        Cause.SERVICE,
    ),
    (Forbidden(), R.NO_MAIL_ACCEPTED, Cause.RECIPIENT),
    (NoReply(Stage.CONNECT, "no connection: Connection refused"), R.UNREACHABLE, Cause.PROVIDER),
    (NoReply(Stage.CONNECT, "no connection in time"), R.TIMED_OUT, Cause.PROVIDER),
    (NoReply(Stage.RCPT, "no answer in time"), R.TIMED_OUT, Cause.PROVIDER),
    (NoReply(Stage.DATA, "the connection broke: Connection reset by peer"), R.UNREACHABLE, Cause.PROVIDER),
    (NoReply(Stage.DOT, "the server closed the connection"), R.AMBIGUOUS, Cause.PROVIDER),
    (NoReply(Stage.STARTTLS, "the TLS handshake failed: wrong version number"), R.TLS_FAILED, Cause.PROVIDER),
    (NoReply(Stage.STARTTLS, "the server's certificate is not valid: self-signed"), R.TLS_FAILED, Cause.PROVIDER),
    (NoReply(Stage.STARTTLS, "the server does not offer STARTTLS"), R.TLS_FAILED, Cause.PROVIDER),
    (NoReply(Stage.EHLO, "the server sent a line that is no reply: hello"), R.PROTOCOL_ERROR, Cause.PROVIDER),
    (NoReply(Stage.DATA, "the service was stopped"), R.INTERRUPTED, Cause.SERVICE),
    (GivenUp("it was held for 7 days because the account was suspended"), R.ACCOUNT_SUSPENDED, Cause.SENDER),
    (GivenUp("it was tried 10 times, and not every time brought an answer"), R.EXPIRED, Cause.PROVIDER),
    (GivenUp("the message is no longer stored"), R.NOT_STORED, Cause.SERVICE),
    (StillBlocked(550, "5.7.1 part of their network is on our block list (S3150)"), R.BLOCKLISTED, Cause.SERVICE),
    (simulator.simulate("bounced@simulator.invalid", "simulator.invalid"), R.SIMULATED, None),
    (simulator.simulate("deferred@simulator.invalid", "simulator.invalid"), R.SIMULATED, None),
    (simulator.simulate("failed@simulator.invalid", "simulator.invalid"), R.SIMULATED, None),
    (simulator.simulate("ada@simulator.invalid", "simulator.invalid"), R.DELIVERED, None),
]


@pytest.mark.parametrize(("code", "reason", "text"), REPLIES)
def test_a_real_reply_has_its_reason(code: int, reason: R, text: str) -> None:
    reply = reply_of(code, text.encode().split(b"\n"))
    assert reason_of("bounced" if code >= 500 else "deferred", reply.code, reply.text) is reason


@pytest.mark.parametrize(("result", "reason", "cause"), OWN)
def test_what_we_say_ourselves_has_its_reason(result: AttemptResult, reason: R, cause: Cause | None) -> None:
    verdict = judge(result)
    explained = explain(verdict.kind, verdict.code, verdict.text)
    assert (explained.reason, explained.cause) == (reason, cause)


def test_every_kind_of_result_is_in_the_table() -> None:
    assert {type(result) for result, _, _ in OWN} | {outcome.Replied} == set(get_args(AttemptResult))


@pytest.mark.parametrize("reason", R)
def test_every_reason_has_a_headline_and_what_to_do(reason: R) -> None:
    explained = explain_reason(reason)
    assert re.fullmatch(r"(?:The|This) .*\.", explained.headline)
    assert explained.what_to_do.endswith(".")


@pytest.mark.rule("WHY-02")
@pytest.mark.parametrize("code", [None, 250, 421, 450, 451, 550, 552, 554, 599])
@pytest.mark.parametrize("result", ["delivered", "bounced", "deferred", "failed", "postponed"])
def test_a_reply_is_never_part_of_its_explanation(code: int | None, result: str) -> None:
    hostile = "5.1.1 <script>alert(1)</script> user unknown spam greylisted evil.example"
    explained = explain(result, code, hostile)
    assert not re.search("script|evil", explained.headline + explained.what_to_do)


def test_an_address_in_a_reply_says_nothing() -> None:
    assert reason_of("bounced", 550, "<spam@virus.example> is not welcome") is R.REFUSED


@pytest.mark.parametrize("text", ["", "\n\n", "5.", "5.7", "x" * 5_000, "5.999.999 x", "…", "\N{BOM}5.1.1 nul"])
def test_an_odd_reply_has_a_reason(text: str) -> None:
    assert explain("bounced", 550, text).cause is not None


def test_a_deferral_says_that_it_is_tried_again() -> None:
    explained = explain("deferred", 452, "4.2.2 mailbox full")
    assert explained.headline == "The mailbox is full."
    assert explained.what_to_do.startswith("Nothing for now: it is tried again automatically. If that doesn't ")


def test_a_deferral_without_end_says_that_it_was_given_up() -> None:
    headline = explain("failed", 451, "4.7.1 greylisted").headline
    assert headline.startswith("Gave up after repeated tries: the provider asks unknown senders")


@pytest.mark.parametrize("waiting_for", WaitReason)
def test_every_wait_is_explained(waiting_for: WaitReason) -> None:
    assert explain_wait(waiting_for, None, None).what_to_do


def test_a_recipient_that_is_due_again_keeps_its_reason() -> None:
    assert explain_wait(WaitReason.DUE, 451, "4.7.1 greylisted").reason is R.GREYLISTED
    assert explain_wait(WaitReason.DUE, None, None).reason is R.WAITING


def test_an_attempt_without_an_outcome_is_under_way_or_lost() -> None:
    assert explain_unfinished(is_under_way=True).reason is R.SENDING
    assert explain_unfinished(is_under_way=False).reason is R.WORKER_LOST


OURS: Final = {
    ReplySignalKind.SLOW, ReplySignalKind.CONNECTIONS, ReplySignalKind.PER_CONNECTION, ReplySignalKind.BLOCK,
    ReplySignalKind.AUTHENTICATION,
}  # fmt: skip


@pytest.mark.parametrize("kind", ReplySignalKind)
def test_a_reply_signal_about_this_service_is_explained(kind: ReplySignalKind) -> None:
    checks = frozenset({Check.SPF}) if kind is ReplySignalKind.AUTHENTICATION else frozenset()
    assert (explain_reply_signal("google", "no", ReplySignal(kind, checks=checks)) is not None) == (kind in OURS)


def of_signal(lane: str, text: str, reply_signal: ReplySignal) -> ReplySignalExplanation:
    explained = explain_reply_signal(lane, text, reply_signal)
    assert explained is not None
    return explained


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("kind", [ReplySignalKind.SLOW, ReplySignalKind.BLOCK])
def test_every_scope_has_words(kind: ReplySignalKind, scope: Scope) -> None:
    explained = of_signal("example.org", "no", ReplySignal(kind, frozenset({scope})))
    assert re.fullmatch(r"The provider .*\.", explained.headline)
    assert explained.page is None


@pytest.mark.parametrize("check", Check)
def test_every_check_has_words(check: Check) -> None:
    explained = of_signal("google", "no", ReplySignal(ReplySignalKind.AUTHENTICATION, checks=frozenset({check})))
    assert explained.what_to_do.endswith(".")
    assert explained.page == "https://support.google.com/a/answer/81126"


def test_several_scopes_are_named_together() -> None:
    assert of_signal("google", "4.7.28", reply_signal_named("slow:address+domain")).headline == (
        "The provider wants a lower rate of mail from this service's IP address and from the sender's domain."
    )


@pytest.mark.parametrize(
    ("lane", "text", "page"),
    [
        ("microsoft", "5.7.1 on our block list (S3150)", "https://go.microsoft.com/fwlink/?LinkID=614866"),
        ("microsoft", "5.7.606 Access denied, banned sending IP", "https://sender.office.com/"),
        ("yahoo", "[TSS09] permanently deferred", "https://senders.yahooinc.com/smtp-error-codes/"),
        ("yahoo", "[BL21] in Spamhaus's list", "https://check.spamhaus.org/"),
        ("example.org", "blocked using bl.spamcop.net", "https://www.spamcop.net/bl.shtml"),
        ("example.org", "blocked", None),
        ("example.org", "blocked, see https://evil.example/", None),
    ],
)
def test_a_block_has_the_page_of_who_can_lift_it(lane: str, text: str, page: str | None) -> None:
    assert of_signal(lane, text, reply_signal_named("block:address")).page == page
