"""Lanes: which lane, at which rate, and accounts in turn."""

from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import fsum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.ids import AccountId
from posthouse.rules.lane import (
    MAILBOX_DOMAINS,
    MISS_PAUSE_SECONDS_MAX,
    MISS_PAUSE_SECONDS_MIN,
    PAUSE_SECONDS_MAX,
    PROVIDERS,
    DeliveryFeedback,
    FairQueue,
    Lane,
    LaneLimits,
    Later,
    Limits,
    Slot,
    is_provider,
    lane_by_name,
    lane_of,
)
from posthouse.rules.learned_limits import (
    BLOCK_SECONDS_MAX,
    LaneScope,
    LaneState,
    LearnedLimits,
    LimitChangeKind,
    Refused,
)
from posthouse.rules.pace import Moment

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WIDE = Limits(per_second=1e6, burst=1_000_000)
ONE, TWO, THREE = (AccountId(UUID(int=number)) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("destination", "host", "lane"),
    [
        ("gmail.com", "gmail-smtp-in.l.google.com", "google"),
        ("customer.example", "aspmx2.googlemail.com", "google"),
        ("customer.example", "smtp.google.com", "google"),
        ("outlook.com", "outlook-com.olc.protection.outlook.com", "microsoft"),
        ("customer.example", "customer-example.mail.protection.outlook.com", "microsoft"),
        ("customer.example", "customer-example.o-v1.mx.microsoft", "microsoft"),
        ("yahoo.com", "mta5.am0.yahoodns.net", "yahoo"),
        ("aol.com", "mx-aol.mail.gm0.yahoodns.net", "yahoo"),
        ("icloud.com", "mx01.mail.icloud.com", "apple"),
        ("customer.example", "ASPMX.L.Google.COM.", "google"),
        ("example.com", "mx.example.com", "example.com"),
        ("Example.COM", "mx.example.com", "example.com"),
        ("example.com", "notgoogle.com", "example.com"),
        ("example.com", "google.com.example", "example.com"),
        ("example.com", "com", "example.com"),
        ("example.com", "", "example.com"),
    ],
)
def test_a_provider_is_known_by_its_mail_servers(destination: str, host: str, lane: str) -> None:
    assert lane_of(destination, host) == lane


def test_the_table_of_providers_is_sound() -> None:
    suffixes = Counter(suffix for provider in PROVIDERS.values() for suffix in provider)
    assert set(suffixes.values()) == {1}
    for suffix in suffixes:
        assert suffix == suffix.lower().strip(".")
        assert "." in suffix
    assert not any("." in provider for provider in PROVIDERS)


@pytest.mark.parametrize(
    ("destination", "lane"),
    [
        ("gmail.com", "google"),
        ("GMail.com", "google"),
        ("hotmail.co.uk", "microsoft"),
        ("live.nl", "microsoft"),
        ("yahoo.co.jp", "yahoo-japan"),
        ("yahoo.com.br", "yahoo"),
        ("icloud.com", "apple"),
        ("customer.example", None),
        ("hotmail.example", None),
        ("mail.gmail.com", None),
    ],
)
def test_large_mailbox_domains_are_known_by_name(destination: str, lane: str | None) -> None:
    assert lane_by_name(destination) == lane


def test_the_table_of_mailbox_domains_is_sound() -> None:
    assert set(MAILBOX_DOMAINS) <= set(PROVIDERS)
    domains = Counter(domain for provider in MAILBOX_DOMAINS.values() for domain in provider)
    assert set(domains.values()) == {1}
    assert all(domain == domain.lower().strip(".") and "." in domain for domain in domains)


def test_an_operator_sets_limits_for_one_lane_or_for_all() -> None:
    narrow = Limits(connections_max=5)
    limits = LaneLimits(default=WIDE, by_lane={"google": narrow})
    assert limits.limits_of("google") is narrow
    assert limits.limits_of("example.com") is WIDE
    assert LaneLimits().limits_of("example.com") == Limits(per_second_start=20.0)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 10])
@pytest.mark.parametrize(
    "whole", [Limits(100, 10, 2, 20), Limits(1_000, 1_001, 2, 23), Limits(0.3, 10, 10, 10), Limits(333.3, 29, 1, 11)]
)
def test_the_parts_of_a_lane_are_the_whole_together(whole: Limits, parts: int) -> None:
    divided = [whole.part(number, parts) for number in range(parts)]
    assert fsum(part.per_second for part in divided) == pytest.approx(whole.per_second, rel=1e-15)
    assert sum(part.burst for part in divided) == whole.burst
    assert sum(part.connections_max for part in divided) == whole.connections_max
    assert max(part.connections_max for part in divided) - min(part.connections_max for part in divided) <= 1


def test_parts_start_with_what_the_whole_starts_with_and_one_connection_at_least() -> None:
    assert [Limits(400, 10, 3, 20).part(number, 2).connections_start for number in (0, 1)] == [2, 1]
    assert [Limits(800, 10, 2, 20).part(number, 4).connections_start for number in range(4)] == [1] * 4


def test_more_parts_than_connections_are_a_fault() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Limits(1_000, 1_000, 2, 2).part(2, 3)


@pytest.mark.parametrize(
    "limits",
    [{"per_second": 0}, {"burst": 0}, {"connections_start": 0}, {"connections_start": 3, "connections_max": 2}],
)
def test_a_lane_without_capacity_is_a_fault(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Limits(**limits)


def moment(seconds: float, random: float = 0.0) -> Moment:
    return Moment(seconds, START + timedelta(seconds=seconds), random)


def taken(lane: Lane, now: float = 0.0) -> list[Slot]:
    """Every slot that the lane gives now."""
    slots = []
    while isinstance(slot := lane.take_slot(now), Slot):
        slots.append(slot)
    return slots


def waits(lane: Lane, now: float) -> float:
    """How long until it gives a slot."""
    later = lane.take_slot(now)
    assert isinstance(later, Later)
    assert later.seconds is not None
    return later.seconds


def serve_one(lane: Lane, served: DeliveryFeedback, now: float) -> None:
    slot = lane.take_slot(now)
    assert isinstance(slot, Slot)
    lane.release_slot(slot, served, moment(now))


def serve_full_rounds(lane: Lane, messages: int, now: float = 0.0) -> None:
    slots = deque(taken(lane, now))
    for _ in range(messages):
        lane.release_slot(slots.popleft(), DeliveryFeedback.WELL, moment(now))
        slots.extend(taken(lane, now))
    for slot in slots:
        lane.release_slot(slot, DeliveryFeedback.OTHERWISE, moment(now))


def test_a_lane_starts_with_two_connections() -> None:
    lane = Lane(WIDE)
    assert len(taken(lane)) == lane.in_use == lane.connections == 2
    assert lane.take_slot(0.0) == Later(None)


def test_a_lane_grows_by_one_connection_a_round_up_to_twenty() -> None:
    lane = Lane(WIDE)
    serve_full_rounds(lane, 3)
    assert lane.connections == 3
    serve_full_rounds(lane, 230)
    assert lane.connections == 20
    serve_full_rounds(lane, 1_000)
    assert lane.connections == 20


def test_a_lane_taken_over_has_used_up_its_burst_and_keeps_its_rate() -> None:
    lane = Lane(Limits(per_second=10, burst=10, connections_start=100, connections_max=100))
    lane.use_up_burst(50.0)
    assert waits(lane, 50.0) == pytest.approx(0.1)
    # Long after, the burst is full as usual; and one that was used up later stays so.
    assert [len(taken(lane, now)) for now in (50.35, 51.0, 60.0)] == [3, 7, 10]
    lane.use_up_burst(50.0)
    assert taken(lane, 60.0) == []


def test_an_idle_lane_does_not_grow_and_other_failures_change_nothing() -> None:
    idle, failing = Lane(WIDE), Lane(WIDE)
    for _ in range(100):
        serve_one(idle, DeliveryFeedback.WELL, 0.0)
        for slot in taken(failing):
            failing.release_slot(slot, DeliveryFeedback.OTHERWISE, moment(0.0))
    assert (idle.connections, failing.connections) == (2, 2)


def test_a_push_back_halves_and_simultaneous_pushes_count_once() -> None:
    lane = Lane(WIDE)
    serve_full_rounds(lane, 300)
    together = taken(lane)
    for slot in together:
        lane.release_slot(slot, DeliveryFeedback.PUSHED_BACK, moment(0.0))
    assert (lane.connections, lane.in_use) == (10, 0)
    for left in (5, 2, 1):
        (slot, *others) = taken(lane)
        lane.release_slot(slot, DeliveryFeedback.PUSHED_BACK, moment(0.0))
        for other in others:
            lane.release_slot(other, DeliveryFeedback.OTHERWISE, moment(0.0))
        assert lane.connections == left


def test_while_too_many_slots_are_in_use_none_is_given() -> None:
    lane = Lane(WIDE)
    serve_full_rounds(lane, 300)
    first, *rest = taken(lane)
    lane.release_slot(first, DeliveryFeedback.PUSHED_BACK, moment(0.0))
    assert (lane.connections, lane.in_use) == (10, 19)
    for slot in rest[:9]:
        assert lane.take_slot(0.0) == Later(None)
        lane.release_slot(slot, DeliveryFeedback.OTHERWISE, moment(0.0))
    assert lane.take_slot(0.0) == Later(None)
    lane.release_slot(rest[9], DeliveryFeedback.OTHERWISE, moment(0.0))
    assert isinstance(lane.take_slot(0.0), Slot)


def test_the_pause_doubles_when_even_one_connection_is_too_many() -> None:
    lane = Lane(Limits(per_second=1e6, burst=1_000_000, connections_start=1, connections_max=1))
    now, pauses = 0.0, []
    for _ in range(8):
        serve_one(lane, DeliveryFeedback.PUSHED_BACK, now)
        pauses.append(waits(lane, now))
        assert isinstance(lane.take_slot(now + pauses[-1] / 2), Later)
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
    for served, pause in ((DeliveryFeedback.WELL, None), (DeliveryFeedback.PUSHED_BACK, 1.0)):
        serve_one(lane, served, now)
        assert pause is None or lane.take_slot(now) == Later(pause)


def test_the_rate_allows_a_burst_and_then_one_message_per_interval() -> None:
    lane = Lane(Limits(per_second=10, burst=3, connections_start=20))
    assert len(taken(lane, 100.0)) == 3
    assert [waits(lane, now) for now in (100.0, 100.05)] == pytest.approx([0.1, 0.05])
    assert [len(taken(lane, now)) for now in (100.1, 200.0)] == [1, 3]


def test_a_refused_message_uses_up_no_rate() -> None:
    lane = Lane(Limits(per_second=1, burst=4, connections_start=2))
    slots = taken(lane)
    assert [lane.take_slot(0.0) for _ in range(5)] == [Later(None)] * 5
    for slot in slots:
        lane.release_slot(slot, DeliveryFeedback.OTHERWISE, moment(0.0))
    assert len(taken(lane)) == 2


def test_giving_back_a_slot_that_was_not_taken_is_a_fault() -> None:
    with pytest.raises(ValueError, match="was not taken"):
        Lane(WIDE).release_slot(Slot(0), DeliveryFeedback.WELL, moment(0.0))


@given(
    some.lists(some.tuples(some.sampled_from(DeliveryFeedback), some.integers(0, 19), some.floats(0, 5)), max_size=200)
)
def test_a_lane_always_has_between_one_and_twenty_connections(steps: list[tuple[DeliveryFeedback, int, float]]) -> None:
    lane, now = Lane(Limits(per_second=50, burst=50)), 0.0
    slots: list[Slot] = []
    for served, index, seconds in steps:
        now += seconds
        slots += taken(lane, now)
        assert lane.in_use == len(slots) <= 20
        if slots:
            lane.release_slot(slots.pop(index % len(slots)), served, moment(now))
        assert 1 <= lane.connections <= 20
        if not slots:
            # Whatever happened, it resumes after the longest pause.
            now += BLOCK_SECONDS_MAX
            serve_one(lane, DeliveryFeedback.OTHERWISE, now)


def test_a_provider_is_distinguished_from_a_domain() -> None:
    assert [is_provider(name) for name in ("google", "google.com", "example.com")] == [True, False, False]


def test_two_misses_in_a_row_are_a_pause_and_one_is_not() -> None:
    lane = Lane(WIDE)
    serve_one(lane, DeliveryFeedback.UNREACHABLE, 100.0)
    assert (lane.pause_left(100.0), lane.connections) == (0.0, 2)
    serve_one(lane, DeliveryFeedback.UNREACHABLE, 100.0)
    assert lane.take_slot(100.0) == Later(MISS_PAUSE_SECONDS_MIN)
    assert lane.pause_left(100.0) == MISS_PAUSE_SECONDS_MIN
    assert lane.pause_left(110.0) == MISS_PAUSE_SECONDS_MIN - 10
    assert lane.pause_left(100.0 + MISS_PAUSE_SECONDS_MIN) == lane.pause_left(1_000.0) == 0.0


@pytest.mark.parametrize("between", [DeliveryFeedback.WELL, DeliveryFeedback.OTHERWISE])
def test_misses_with_an_answer_between_them_are_no_pause(between: DeliveryFeedback) -> None:
    lane = Lane(WIDE)
    for _ in range(10):
        serve_one(lane, DeliveryFeedback.UNREACHABLE, 0.0)
        serve_one(lane, between, 0.0)
    assert lane.pause_left(0.0) == 0.0


def test_after_a_pause_one_message_probes_and_each_miss_doubles_the_next() -> None:
    lane, now, pauses = Lane(Limits(per_second=1e6, burst=1_000_000, connections_start=20)), 0.0, []
    serve_one(lane, DeliveryFeedback.UNREACHABLE, now)
    for _ in range(8):
        serve_one(lane, DeliveryFeedback.UNREACHABLE, now)
        pauses.append(lane.pause_left(now))
        now += pauses[-1]
        slots = taken(lane, now)
        assert len(slots) == 1
        lane.release_slot(slots[0], DeliveryFeedback.OTHERWISE, moment(now))
        # An inconclusive attempt does not change the pause.
        serve_one(lane, DeliveryFeedback.UNREACHABLE, now)
    assert pauses == [15, 30, 60, 120, 240, 480, MISS_PAUSE_SECONDS_MAX, MISS_PAUSE_SECONDS_MAX]
    now += MISS_PAUSE_SECONDS_MAX
    serve_one(lane, DeliveryFeedback.WELL, now)
    serve_one(lane, DeliveryFeedback.UNREACHABLE, now)
    assert lane.pause_left(now) == 0.0
    serve_one(lane, DeliveryFeedback.UNREACHABLE, now)
    assert lane.pause_left(now) == MISS_PAUSE_SECONDS_MIN


def test_simultaneous_misses_are_one_pause() -> None:
    lane = Lane(replace(WIDE, connections_start=20))
    for slot in taken(lane):
        lane.release_slot(slot, DeliveryFeedback.UNREACHABLE, moment(0.0))
    assert (lane.pause_left(0.0), lane.connections) == (MISS_PAUSE_SECONDS_MIN, 1)


def test_new_limits_count_immediately_and_regained_capacity_is_grown_into() -> None:
    lane = Lane(Limits(per_second=100, burst=100, connections_start=10, connections_max=20))
    lane.limit(Limits(per_second=25, burst=25, connections_start=2, connections_max=5))
    assert (lane.connections, lane.per_second) == (5, 25)
    assert len(taken(lane)) == 5
    lane.limit(Limits(per_second=100, burst=100, connections_start=10, connections_max=20))
    assert (lane.connections, lane.in_use, lane.per_second) == (5, 5, 100)
    lane.release_slot(Slot(0), DeliveryFeedback.WELL, moment(0.0))
    serve_full_rounds(lane, 5)
    assert lane.connections == 6


def test_slots_in_use_beyond_a_new_limit_are_waited_for() -> None:
    lane = Lane(Limits(per_second=1e6, burst=1_000_000, connections_start=4, connections_max=4))
    slots = taken(lane)
    lane.limit(Limits(per_second=1e6, burst=1_000_000, connections_start=1, connections_max=1))
    for slot in slots[:3]:
        assert lane.take_slot(0.0) == Later(None)
        lane.release_slot(slot, DeliveryFeedback.WELL, moment(0.0))
    assert lane.take_slot(0.0) == Later(None)
    lane.release_slot(slots[3], DeliveryFeedback.WELL, moment(0.0))
    assert isinstance(lane.take_slot(0.0), Slot)


def drained(turns: FairQueue[str]) -> list[str]:
    return [turns.pop() for _ in range(len(turns))]


def test_accounts_take_turns_and_each_keeps_its_order() -> None:
    turns: FairQueue[str] = FairQueue(100, 100)
    for account, item in [(ONE, "1a"), (ONE, "1b"), (ONE, "1c"), (TWO, "2a"), (THREE, "3a"), (TWO, "2b")]:
        assert turns.push(account, item)
    assert drained(turns) == ["1a", "2a", "3a", "1b", "2b", "1c"]


def test_a_list_does_not_delay_its_own_accounts_other_mail_nor_wait_for_all_of_it() -> None:
    turns: FairQueue[str] = FairQueue(100, 100)
    for number in range(4):
        turns.push(ONE, f"list {number}", is_list=True)
    for account, item in ((TWO, "theirs"), (ONE, "reset"), (ONE, "notice")):
        turns.push(account, item)
    assert turns.waiting(ONE) == 6
    assert drained(turns) == ["reset", "theirs", "list 0", "notice", "list 1", "list 2", "list 3"]
    assert not list(turns.accounts())


def test_a_backlog_delays_a_newcomer_by_one_message_per_account() -> None:
    turns: FairQueue[str] = FairQueue(10_000, 5_000)
    for number in range(5_000):
        turns.push(ONE, f"batch {number}")
    turns.pop()
    turns.push(TWO, "password reset")
    assert [turns.pop(), turns.pop()] == ["batch 1", "password reset"]


def test_nothing_is_taken_beyond_the_bounds() -> None:
    turns: FairQueue[str] = FairQueue(items_max=5, account_items_max=3)
    assert [turns.push(ONE, "a") for _ in range(5)] == [True, True, True, False, False]
    assert [turns.push(TWO, "b") for _ in range(3)] == [True, True, False]
    assert (len(turns), turns.waiting(ONE), turns.waiting(TWO), turns.waiting(THREE)) == (5, 3, 2, 0)
    turns.pop()
    assert turns.push(THREE, "c")


def test_when_nothing_waits_there_is_no_turn() -> None:
    turns: FairQueue[str] = FairQueue(1, 1)
    turns.push(ONE, "a")
    turns.pop()
    assert (len(turns), turns.waiting(ONE)) == (0, 0)
    with pytest.raises(IndexError):
        turns.pop()


@given(some.lists(some.integers(1, 4) | some.none(), max_size=200))
def test_turns_are_fair_in_any_order_of_pushes_and_pops(steps: list[int | None]) -> None:
    turns: FairQueue[tuple[int, int]] = FairQueue(30, 10)
    waiting: dict[int, deque[int]] = {}
    since_turn: Counter[int] = Counter()
    for serial, account in enumerate(steps):
        if account is not None:
            queue = waiting.setdefault(account, deque())
            has_capacity = sum(map(len, waiting.values())) < 30 and len(queue) < 10
            assert turns.push(AccountId(UUID(int=account)), (account, serial)) == has_capacity
            if has_capacity:
                queue.append(serial)
        elif len(turns):
            served, item = turns.pop()
            assert waiting[served].popleft() == item
            for other, queue in waiting.items():
                since_turn[other] = 0 if other == served or not queue else since_turn[other] + 1
            # Four accounts: an account with mail waits for the three others at most.
            assert max(since_turn.values()) <= 3


def test_a_turn_in_which_nothing_was_sent_costs_no_rate() -> None:
    lane = Lane(Limits(per_second=1.0, burst=2))
    for _ in range(10):
        serve_one(lane, DeliveryFeedback.NOT_SENT, 0.0)
    for _ in range(2):
        serve_one(lane, DeliveryFeedback.WELL, 0.0)
    assert isinstance(lane.take_slot(0.0), Later)


@pytest.mark.parametrize(
    ("served", "answers"),
    [
        ([], False),
        ([DeliveryFeedback.WELL], True),
        ([DeliveryFeedback.PUSHED_BACK], True),
        ([DeliveryFeedback.WELL, DeliveryFeedback.OTHERWISE, DeliveryFeedback.NOT_SENT], True),
        ([DeliveryFeedback.WELL, DeliveryFeedback.UNREACHABLE], False),
        ([DeliveryFeedback.OTHERWISE, DeliveryFeedback.NOT_SENT], False),
    ],
)
def test_a_lane_answers_if_its_servers_replied_last_time(served: list[DeliveryFeedback], answers: bool) -> None:
    lane = Lane(WIDE)
    for how in served:
        serve_one(lane, how, 0.0)
    assert lane.answers is answers


# What a lane learns

TOO_FAST = Refused("421 4.7.28", "4.7.28 too much mail", "address")
GOOGLE = LaneScope("", "google")
BUSY = Limits(per_second=100.0, burst=100, connections_start=20, per_second_start=20.0)


def serve_for(lane: Lane, begin: float, seconds: float, *, per_second: float = 1.0) -> list[LimitChangeKind]:
    """Messages that are accepted one after another, at this rate or the lane's if that is lower."""
    kinds, now = [], begin
    while now <= begin + seconds:
        slot = lane.take_slot(now)
        if isinstance(slot, Later):
            assert slot.seconds is not None
            now += slot.seconds
            continue
        limit_change = lane.release_slot(slot, DeliveryFeedback.WELL, moment(now))
        kinds += [] if limit_change is None else [limit_change.kind]
        now += 1 / per_second
    return kinds


def refuse_one(lane: Lane, served: DeliveryFeedback, now: float, refused: Refused = TOO_FAST) -> LimitChangeKind | None:
    slot = lane.take_slot(now)
    assert isinstance(slot, Slot)
    limit_change = lane.release_slot(slot, served, moment(now), refused)
    return None if limit_change is None else limit_change.kind


@pytest.mark.parametrize(
    ("limits", "per_second", "burst"),
    [
        (Limits(per_second_start=20.0), 20.0, 20),
        (Limits(per_second=5.0, burst=5, per_second_start=20.0), 5.0, 5),
        (Limits(per_second=50.0, burst=10), 50.0, 10),
    ],
)
def test_a_lane_begins_at_its_start_or_at_the_operators_rate(limits: Limits, per_second: float, burst: int) -> None:
    lane = Lane(replace(limits, connections_start=100, connections_max=100))
    assert lane.per_second == per_second
    assert len(taken(lane)) == burst


def test_a_lane_that_wanted_more_for_a_clean_minute_grows_and_one_that_did_not_stays() -> None:
    lane = Lane(BUSY, GOOGLE)
    assert serve_for(lane, 0.0, 59.0, per_second=1000.0) == []
    assert lane.per_second == 20.0
    assert serve_for(lane, 59.0, 2.0, per_second=1000.0) == [LimitChangeKind.GREW]
    assert lane.per_second == pytest.approx(22.0)
    lane = Lane(BUSY, GOOGLE)
    assert serve_for(lane, 0.0, 600.0, per_second=10.0) == []


def test_a_refusal_makes_the_lane_rest_and_then_each_accepted_message_adds_a_connection() -> None:
    lane = Lane(BUSY, GOOGLE)
    serve_for(lane, 0.0, 59.0, per_second=8.0)
    assert refuse_one(lane, DeliveryFeedback.SLOW, 60.0) is LimitChangeKind.SLOW
    assert lane.per_second == pytest.approx(4.0, rel=0.05)
    assert lane.pause_left(60.0) == pytest.approx(600.0)
    counts = []
    for now in (660.0, 661.0, 662.0, 663.0):
        counts.append(lane.connections)
        serve_one(lane, DeliveryFeedback.WELL, now)
    assert counts == [1, 2, 3, 4]
    assert lane.learned.state is LaneState.OPEN


def test_messages_refused_together_are_one_limit_change() -> None:
    lane = Lane(BUSY, GOOGLE)
    together = taken(lane)
    limit_changes = [lane.release_slot(slot, DeliveryFeedback.SLOW, moment(0.0), TOO_FAST) for slot in together]
    assert [limit_change is not None for limit_change in limit_changes] == [True] + [False] * 19
    assert lane.per_second == 2.5


def test_a_message_sent_before_the_rest_does_not_end_it() -> None:
    lane = Lane(BUSY, GOOGLE)
    first, second, *_ = taken(lane)
    lane.release_slot(first, DeliveryFeedback.SLOW, moment(0.0), TOO_FAST)
    assert lane.release_slot(second, DeliveryFeedback.WELL, moment(1.0)) is None
    assert (lane.learned.state, lane.connections) == (LaneState.RESTING, 1)


def test_after_a_rest_growth_takes_a_clean_rest_from_its_end() -> None:
    lane = Lane(BUSY, GOOGLE)
    refuse_one(lane, DeliveryFeedback.SLOW, 0.0)
    assert serve_for(lane, 600.0, 590.0, per_second=1000.0) == [LimitChangeKind.RECOVERED]
    assert serve_for(lane, 1190.0, 20.0, per_second=1000.0) == [LimitChangeKind.GREW]
    assert lane.per_second == pytest.approx(3.0)


def test_a_blocked_lane_sends_one_message_an_hour_later() -> None:
    lane = Lane(BUSY, GOOGLE)
    assert refuse_one(lane, DeliveryFeedback.BLOCKED, 0.0) is LimitChangeKind.BLOCK
    assert lane.pause_left(0.0) == 3600.0
    (slot,) = taken(lane, 3600.0)
    lane.release_slot(slot, DeliveryFeedback.BLOCKED, moment(3600.0), TOO_FAST)
    assert lane.pause_left(3600.0) == 7200.0
    assert refuse_one(lane, DeliveryFeedback.WELL, 10_800.0) is LimitChangeKind.RECOVERED


def test_connections_are_bounded_by_those_that_were_open_and_divided_among_parts() -> None:
    lane = Lane(BUSY, GOOGLE)
    slots = taken(lane)
    for slot in slots[:5]:
        lane.release_slot(slot, DeliveryFeedback.CONNECTIONS, moment(0.0), TOO_FAST)
    assert (lane.connections, lane.learned.connections_max) == (15, 15)
    lane.limit(BUSY.part(0, 3))
    assert lane.connections == 5


def test_messages_per_connection_are_bounded_by_what_it_accepted() -> None:
    lane = Lane(BUSY, GOOGLE)
    assert lane.per_connection_max == 100
    kind = refuse_one(lane, DeliveryFeedback.PER_CONNECTION, 0.0, replace(TOO_FAST, taken_before=20))
    assert (kind, lane.per_connection_max) == (LimitChangeKind.PER_CONNECTION, 20)


@pytest.mark.parametrize("served", [DeliveryFeedback.CONNECTIONS, DeliveryFeedback.PER_CONNECTION])
def test_a_lane_of_which_even_one_connection_or_message_is_refused_pauses(served: DeliveryFeedback) -> None:
    lane = Lane(Limits(connections_max=1, connections_start=1), GOOGLE)
    now = 0.0
    for pause in (1.0, 2.0, 4.0):
        refuse_one(lane, served, now, TOO_FAST)
        assert lane.pause_left(now) == pause
        now += pause


def test_a_part_of_a_lane_learns_for_the_whole_and_goes_at_its_share() -> None:
    lane = Lane(BUSY.part(0, 4), GOOGLE)
    assert lane.per_second == 5.0
    serve_for(lane, 0.0, 59.0, per_second=2.0)
    refuse_one(lane, DeliveryFeedback.SLOW, 60.0)
    assert lane.learned.ceiling == pytest.approx(8.0, rel=0.1)
    assert lane.per_second == pytest.approx(1.0, rel=0.1)


def test_what_another_process_learned_is_adopted() -> None:
    lane = Lane(BUSY, GOOGLE)
    resting = LearnedLimits(2.0, 4.0, LaneState.RESTING, START + timedelta(seconds=600), rest_seconds=600.0)
    slot = lane.take_slot(0.0)
    assert isinstance(slot, Slot)
    lane.adopt(resting, moment(100.0))
    assert (lane.per_second, lane.pause_left(100.0)) == (2.0, 500.0)
    # Its refusal is that which the other process knows.
    assert lane.release_slot(slot, DeliveryFeedback.SLOW, moment(101.0), TOO_FAST) is None
    assert len(taken(lane, 600.0)) == 1


def test_a_restarted_process_continues_the_rest() -> None:
    resting = LearnedLimits(2.0, 4.0, LaneState.RESTING, START + timedelta(seconds=600), rest_seconds=600.0)
    lane = Lane(BUSY, GOOGLE)
    lane.adopt(resting, moment(0.0))
    assert lane.take_slot(0.0) == Later(600.0)
    assert refuse_one(lane, DeliveryFeedback.SLOW, 600.0) is LimitChangeKind.STILL_SLOW


def test_an_undone_rest_ends_immediately() -> None:
    lane = Lane(BUSY, GOOGLE)
    before = lane.learned
    refuse_one(lane, DeliveryFeedback.SLOW, 0.0)
    lane.adopt(before, moment(10.0))
    assert (lane.per_second, lane.pause_left(10.0)) == (20.0, 0.0)


def test_an_adopted_growth_changes_neither_connections_nor_pauses() -> None:
    lane = Lane(BUSY, GOOGLE)
    serve_one(lane, DeliveryFeedback.UNREACHABLE, 0.0)
    serve_one(lane, DeliveryFeedback.UNREACHABLE, 0.0)
    lane.adopt(LearnedLimits(30.0), moment(1.0))
    assert (lane.per_second, lane.pause_left(1.0)) == (30.0, MISS_PAUSE_SECONDS_MIN - 1)
