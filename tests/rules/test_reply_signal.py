"""Reply signals: what real replies of large providers and common mail servers say about us."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from posthouse.mail.reply import TEXT_CHARACTERS_MAX, Reply, reply_of
from posthouse.rules.lane import PROVIDERS
from posthouse.rules.outcome import Stage
from posthouse.rules.reply_signal import (
    WAIT_SECONDS_MAX,
    Check,
    ReplySignalKind,
    Scope,
    reply_signal_named,
    reply_signal_of,
)
from tests.support.processor_time import processor_seconds


def real_replies() -> list[tuple[str, Stage, str, int | None, Reply]]:
    lines = (Path(__file__).parent / "reply_signals.txt").read_text().splitlines()
    rows = [line.split(" ", 4) for line in lines if line and not line.startswith("#")]
    replies = []
    for lane, stage, code, reply_signal, text in rows:
        name, _, wait = reply_signal.partition("@")
        reply = reply_of(int(code), text.replace("\\n", "\n").encode().split(b"\n"))
        replies.append((lane, Stage(stage), name, int(wait) if wait else None, reply))
    return replies


REPLIES: Final = real_replies()


def reply(code: int, text: str) -> Reply:
    return reply_of(code, text.encode().split(b"\n"))


@pytest.mark.parametrize(("lane", "stage", "name", "wait_seconds", "reply"), REPLIES)
def test_a_real_reply_has_its_reply_signal(
    lane: str, stage: Stage, name: str, wait_seconds: int | None, reply: Reply
) -> None:
    reply_signal = reply_signal_of(lane, stage, reply)
    assert (reply_signal.name if reply_signal else "-") == name
    assert (reply_signal.wait_seconds if reply_signal else None) == wait_seconds


def test_every_kind_scope_and_check_occurs_in_the_table() -> None:
    reply_signals = [reply_signal_named(name) for _, _, name, _, _ in REPLIES if name != "-"]
    assert {reply_signal.kind for reply_signal in reply_signals} == set(ReplySignalKind)
    assert {scope for reply_signal in reply_signals for scope in reply_signal.scopes} == set(Scope)
    assert {check for reply_signal in reply_signals for check in reply_signal.checks} == set(Check)


def test_the_lanes_of_the_table_are_lanes() -> None:
    assert {lane for lane, *_ in REPLIES if "." not in lane} <= set(PROVIDERS)


@pytest.mark.parametrize("name", ["slow:address+domain", "authentication:dkim+spf", "greylisted", "block:network"])
def test_a_reply_signal_is_found_by_its_name(name: str) -> None:
    assert reply_signal_named(name).name == name


@pytest.mark.parametrize(
    ("lane", "stage", "code", "text", "name"),
    [
        # A provider's words mean nothing from others.
        ("example.org", Stage.MAIL, 421, "RP-003", "theirs"),
        ("microsoft", Stage.MAIL, 421, "RP-003", "connections"),
        ("example.org", Stage.MAIL, 451, "4.9.9 OFR_999", None),
        ("example.org", Stage.DOT, 421, "4.7.28 from your DKIM domain", "slow:address+domain"),
        # What is refused for good has no wait.
        ("example.org", Stage.RCPT, 550, "blocklisted, try again in 5 minutes", "block:address"),
        # Only a refusal has a reply signal.
        *[("google", Stage.DOT, code, "2.0.0 too many connections, greylisted", None) for code in (250, 251, 354, 220)],
    ],
)
def test_what_a_reply_means_depends_on_who_says_it_and_when(
    lane: str, stage: Stage, code: int, text: str, name: str | None
) -> None:
    assert reply_signal_of(lane, stage, reply(code, text)) == (None if name is None else reply_signal_named(name))


def test_an_unclear_refusal_has_no_reply_signal() -> None:
    for stage in (Stage.GREETING, Stage.EHLO, Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.DOT):
        assert reply_signal_of("example.org", stage, reply(554, "go away")) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Try again in 5 minutes", 300),
        ("try again in about 5 minutes.", 300),
        ("please retry after 90 seconds", 90),
        ("please retry after 90 second(s)", 90),
        ("Please wait at least 10 min", 600),
        ("come back in 00:05:00", 300),
        ("retry in 300s", 300),
        ("retry in 5min", 300),
        ("Try again in 1 hour", 3_600),
        ("Try again in 24 hours", WAIT_SECONDS_MAX),
        ("Try again in 999999 hours", WAIT_SECONDS_MAX),
        ("Try again in 9999999 hours", None),
        ("Try again in 99:99:99", WAIT_SECONDS_MAX),
        ("Try again in five minutes", None),
        ("Try again in -5 minutes", None),
        ("Try again in ٥ minutes", None),
        ("Try again later; the limit is 100 messages in 1 hour", None),
        ("100 messages in 1 hour were too many, try again later", None),
        ("Try again in 5", None),
        ("Try again in", None),
    ],
)
def test_a_named_time_is_the_wait(text: str, seconds: int | None) -> None:
    reply_signal = reply_signal_of("example.org", Stage.RCPT, reply(450, f"4.7.1 slow down. {text}"))
    assert reply_signal is not None
    assert reply_signal.wait_seconds == seconds


@given(
    some.sampled_from(["google", "microsoft", "yahoo", "example.org"]),
    some.sampled_from(Stage),
    some.integers(400, 599),
    some.text(max_size=600),
)
@example("google", Stage.GREETING, 421, "")
def test_any_reply_is_read(lane: str, stage: Stage, code: int, text: str) -> None:
    reply_signal = reply_signal_of(lane, stage, reply(code, text))
    if reply_signal is not None:
        assert reply_signal_named(reply_signal.name).kind is reply_signal.kind
        assert reply_signal.wait_seconds is None or 0 <= reply_signal.wait_seconds <= WAIT_SECONDS_MAX


@pytest.mark.parametrize("piece", ["again in ", "network ", "1 ", "block", "recipient has exceeded ", "1:", "again 1"])
def test_a_hostile_reply_is_read_in_bounded_time(piece: str) -> None:
    hostile = Reply(450, "4.7.1", f"4.7.1 {piece * TEXT_CHARACTERS_MAX}"[:TEXT_CHARACTERS_MAX])
    assert processor_seconds(lambda: reply_signal_of("google", Stage.RCPT, hostile)) < 0.05
