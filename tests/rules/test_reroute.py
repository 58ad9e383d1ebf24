"""Reroute: which refusals are about our address and not the message, and how long the refused mail is held."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.mail.reply import reply_of
from posthouse.rules.outcome import NoReply, Replied, Stage
from posthouse.rules.reply_signal import reply_signal_of
from posthouse.rules.reroute import (
    HourCount,
    Rerouted,
    ended_until,
    hold,
    is_block,
    is_far,
    is_within_bounds,
    second_address,
    second_try,
    would_bounce,
)

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
S3150 = (
    "5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent, part of their network is on our block list (S3150)"
)
S3140 = "5.7.1 part of their network is on our block list (S3140)"
YAHOO = (
    "5.7.9 Message temporarily deferred. All messages from 192.0.2.1 will be permanently deferred; retrying will NOT"
)
LISTED = "5.7.1 Service unavailable; client host [192.0.2.1] blocked using zen.spamhaus.org"
DOMAIN = "5.7.1 very low reputation of the sending domain"
UNKNOWN = "5.1.1 User unknown"
SLOW = "4.7.650 has been temporarily rate limited due to IP reputation (S775)"
SENDER = "5.1.8 Access denied, bad outbound sender"


@pytest.mark.parametrize(
    ("lane", "stage", "code", "text", "expected"),
    [
        ("microsoft", Stage.MAIL, 550, S3150, True),
        ("microsoft", Stage.MAIL, 550, S3140, True),
        ("microsoft", Stage.EHLO, 550, S3150, True),
        ("yahoo", Stage.GREETING, 421, YAHOO, True),
        ("yahoo", Stage.MAIL, 553, f"{YAHOO} [TSS09]", True),
        ("example.org", Stage.GREETING, 554, LISTED, True),
        ("example.org", Stage.MAIL, 550, LISTED, True),
        # The recipient was already decided.
        ("microsoft", Stage.RCPT, 550, S3150, False),
        ("microsoft", Stage.DATA, 550, S3150, False),
        ("microsoft", Stage.DOT, 550, S3150, False),
        ("example.org", Stage.RCPT, 554, LISTED, False),
        # It is about something other than our address.
        ("google", Stage.MAIL, 550, DOMAIN, False),
        ("microsoft", Stage.MAIL, 451, SLOW, False),
        ("microsoft", Stage.MAIL, 550, SENDER, False),
        ("example.org", Stage.MAIL, 550, UNKNOWN, False),
        ("example.org", Stage.MAIL, 550, "5.7.1 refused", False),
        ("example.org", Stage.MAIL, 250, "2.0.0 OK", False),
    ],
)
def test_a_block_is_of_our_address_and_before_any_recipient(
    lane: str, stage: Stage, code: int, text: str, expected: bool
) -> None:
    result = Replied(stage, reply_of(code, [text.encode()]))
    assert is_block(result, reply_signal_of(lane, stage, result.reply)) is expected


def test_silence_is_no_block() -> None:
    assert not is_block(NoReply(Stage.MAIL, "cut off"), None)
    assert not is_block(None, None)


@pytest.mark.parametrize(
    ("stage", "code", "expected"),
    [
        (Stage.MAIL, 550, True),
        (Stage.MAIL, 421, False),
        # Another server may take it, and it is tried again.
        (Stage.GREETING, 554, False),
        (Stage.EHLO, 550, False),
    ],
)
def test_only_what_would_bounce_is_held(stage: Stage, code: int, expected: bool) -> None:
    assert would_bounce(Replied(stage, reply_of(code, [b"no"]))) is expected


@pytest.mark.parametrize(
    ("pause_seconds", "random", "earlier", "minutes", "bounce_minutes"),
    [
        (3600.0, 0.0, None, 60, 240),
        (7200.0, 0.0, None, 120, 240),
        (3600.0, 0.5, None, 63, 240),
        # Never later than its bounce.
        (86_400.0, 0.9, None, 240, 240),
        (7200.0, 0.0, 30, 30, 30),
        # Its lane doesn't pause: the operator wanted this reply ignored.
        (0.0, 0.0, None, 60, 240),
    ],
)
def test_a_hold_ends_with_its_lane_s_pause_or_when_it_bounces(
    pause_seconds: float, random: float, earlier: int | None, minutes: int, bounce_minutes: int
) -> None:
    held = hold(
        now=NOW,
        random=random,
        hours=4.0,
        pause_seconds=pause_seconds,
        bounce_at=None if earlier is None else NOW + timedelta(minutes=earlier),
        source="192.0.2.1",
    )
    assert held.next_at == NOW + timedelta(minutes=minutes)
    assert held.bounce_at == NOW + timedelta(minutes=bounce_minutes)
    assert held.source_ip == "192.0.2.1"


# A second address


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ("192.0.2.1", "192.0.2.77", False),
        ("192.0.2.1", "192.0.3.1", True),
        ("192.0.2.1", "2001:db8::1", True),
        ("2001:db8::1", "2001:db8:0:7::1", False),
        ("2001:db8::1", "2001:db8:1::1", True),
    ],
)
def test_an_address_is_far_outside_the_other_s_network(first: str, other: str, expected: bool) -> None:
    assert is_far(first, other) is expected


FIRST, NEAR, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "198.51.100.1", "203.0.113.1"


@pytest.mark.parametrize(
    ("others", "rerouted", "expected"),
    [
        ([(SECOND, 20)], Rerouted(0, {}, 0), SECOND),
        ([(SECOND, 20)], Rerouted(19, {}, 1), SECOND),
        # Twice for a recipient, twenty a minute, a twentieth of the address's mail.
        ([(SECOND, 1000)], Rerouted(0, {}, 2), None),
        ([(SECOND, 1000)], Rerouted(20, {}, 0), None),
        ([(SECOND, 19)], Rerouted(0, {}, 0), None),
        ([(SECOND, 100)], Rerouted(0, {SECOND: 4}, 0), SECOND),
        ([(SECOND, 100)], Rerouted(0, {SECOND: 5}, 0), None),
        ([(SECOND, 100), (THIRD, 20)], Rerouted(0, {SECOND: 5}, 0), THIRD),
        # A block of the network would meet it too.
        ([(NEAR, 1000)], Rerouted(0, {}, 0), None),
        ([(NEAR, 1000), (THIRD, 20)], Rerouted(0, {}, 0), THIRD),
        ([], Rerouted(0, {}, 0), None),
    ],
)
def test_a_second_address_takes_little_and_is_far(
    others: list[tuple[str, int]], rerouted: Rerouted, expected: str | None
) -> None:
    assert second_address(FIRST, others, rerouted) == expected


@pytest.mark.parametrize(("minute", "tries", "expected"), [(0, 0, True), (19, 1, True), (20, 0, False), (0, 2, False)])
def test_a_reroute_over_a_relay_has_the_bounds_of_a_minute_and_of_a_recipient(
    minute: int, tries: int, expected: bool
) -> None:
    assert is_within_bounds(Rerouted(minute, {}, tries)) is expected


def test_a_second_try_follows_within_five_seconds_and_never_after_the_end() -> None:
    for random in (0.0, 0.5, 0.999):
        again = second_try(now=NOW, random=random, hours=4.0, bounce_at=None, source=SECOND)
        assert timedelta(0) < again.next_at - NOW < timedelta(seconds=5)
        assert (again.bounce_at, again.source_ip) == (NOW + timedelta(hours=4), SECOND)
    soon = NOW + timedelta(seconds=1)
    assert second_try(now=NOW, random=0.9, hours=4.0, bounce_at=soon, source=SECOND).next_at == soon


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([], None),
        ([(FIRST, 0)], None),
        # The same address again is no second one.
        ([(FIRST, 0), (FIRST, 30)], None),
        ([(FIRST, 0), (SECOND, 60)], 60),
        ([(SECOND, 60), (FIRST, 0)], 60),
        ([(FIRST, 0), (SECOND, 61)], None),
        ([(FIRST, 0), (SECOND, 30), (THIRD, 80)], 80),
    ],
)
def test_a_second_block_within_the_hour_ends_it_for_a_day(blocks: list[tuple[str, int]], expected: int | None) -> None:
    found = ended_until([(address, NOW + timedelta(minutes=minute)) for address, minute in blocks])
    assert found == (None if expected is None else NOW + timedelta(minutes=expected, hours=24))


def test_an_hour_s_count_forgets_what_is_older() -> None:
    count = HourCount()
    for minute in range(120):
        count.add(2, minute * 60.0)
    assert count.total(119 * 60.0) == 2 * 61
    assert count.total(150 * 60.0) == 2 * 30
    assert count.total(1e6) == 0
