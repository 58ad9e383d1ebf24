"""Rate, then warm-up, then credits; a refusal leaves the account as it was."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import limits
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateReading
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.send_quota import Account, Charge, admit, release_quota

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TODAY = NOON.date()
LONG_AGO = datetime.min.replace(tzinfo=UTC)
FRESH = Account(
    id=AccountId(UUID(int=1)),
    suspended=False,
    available=1_000,
    rate=Rate(20, 40),
    full_at=LONG_AGO,
    warmup_limits=(200, 300),
    warmup_started_on=None,
    warmup_day=None,
    warmup_used=0,
)
EXEMPT = replace(FRESH, warmup_limits=None)
EMPTY_RATE = NOON + timedelta(seconds=2)
TEST_MAIL = Charge(recipients=50, credits=0)


def mail(recipients: int) -> Charge:
    return Charge(recipients, recipients)


def codes(account: Account, charges: Sequence[Charge], now: datetime = NOON) -> list[Code | None]:
    """The answer to each charge in turn; None means accepted."""
    answers: list[Code | None] = []
    for charge in charges:
        try:
            admit(account, charge, now)
            answers.append(None)
        except Refusal as refusal:
            answers.append(refusal.code)
    return answers


def refused(account: Account, charge: Charge, now: datetime = NOON) -> Refusal:
    before = replace(account)
    with pytest.raises(Refusal) as caught:
        admit(account, charge, now)
    assert account == before
    return caught.value


def test_an_accepted_message_takes_credits_rate_and_warm_up() -> None:
    account = replace(FRESH)
    reading = admit(account, mail(3), NOON)
    assert reading == RateReading(NOON + timedelta(milliseconds=50), remaining=39, reset_seconds=1)
    assert account == replace(
        FRESH,
        available=997,
        full_at=reading.full_at,
        recipients_full_at=NOON + timedelta(milliseconds=6),
        stored_on=TODAY,
        warmup_started_on=TODAY,
        warmup_day=TODAY,
        warmup_used=3,
    )


def test_ten_credits_allow_ten_of_sixty_four_messages() -> None:
    account = replace(EXEMPT, available=10, rate=Rate(20, 100))
    assert codes(account, [mail(1)] * 64).count(None) == 10


SINCE_FEBRUARY = replace(FRESH, warmup_started_on=date(2026, 2, 27))


@pytest.mark.parametrize(
    ("account", "charges", "answers"),
    [
        # A message never fits the warm-up partly.
        (
            replace(FRESH, warmup_started_on=TODAY, warmup_day=TODAY, warmup_used=190),
            [mail(11), mail(10), mail(1)],
            [Code.WARMUP_LIMITED, None, Code.WARMUP_LIMITED],
        ),
        # Days without mail count as days, and after the last one the warm-up is off.
        (replace(SINCE_FEBRUARY, warmup_limits=(1, 1, 5)), [mail(5), mail(1)], [None, Code.WARMUP_LIMITED]),
        (replace(SINCE_FEBRUARY, warmup_limits=(1, 1)), [mail(50), mail(50)], [None, None]),
        # The largest batch fits the smallest rate.
        (replace(FRESH, rate=Rate(1, 1)), [Charge(limits.BATCH_RECIPIENTS_MAX, 0)], [None]),
        (replace(FRESH, full_at=EMPTY_RATE), [TEST_MAIL], [Code.RATE_LIMITED]),
    ],
)
def test_what_fits_is_accepted(account: Account, charges: list[Charge], answers: list[Code | None]) -> None:
    assert codes(replace(account), charges) == answers


@pytest.mark.rule("ORDER-09", "ORDER-10")
@pytest.mark.parametrize(
    ("account", "code"),
    [
        (replace(FRESH, full_at=EMPTY_RATE, warmup_limits=(0,), available=0), Code.RATE_LIMITED),
        (replace(FRESH, warmup_limits=(0,), available=0), Code.WARMUP_LIMITED),
        (replace(FRESH, available=0), Code.INSUFFICIENT_CREDITS),
    ],
)
def test_rate_is_checked_before_warm_up_before_credits(account: Account, code: Code) -> None:
    assert refused(replace(account), mail(1)).code is code


def test_missing_credits_are_refused_without_a_retry_time() -> None:
    assert refused(replace(FRESH, available=2), mail(5)) == Refusal(
        Code.INSUFFICIENT_CREDITS,
        "This message needs 5 credits, 2 are available: add credits, or send to at most 2 recipients.",
        headers={"RateLimit-Limit": "40", "RateLimit-Remaining": "40", "RateLimit-Reset": "0"},
    )


def test_too_many_requests_get_a_retry_time() -> None:
    assert refused(replace(FRESH, full_at=EMPTY_RATE), mail(1)) == Refusal(
        Code.RATE_LIMITED,
        "This account may send 20 requests a second and 40 in a burst: try again in 1 s.",
        retry_after_seconds=1,
        headers={"RateLimit-Limit": "40", "RateLimit-Remaining": "0", "RateLimit-Reset": "2"},
    )


def test_a_used_up_warm_up_retries_at_midnight() -> None:
    account = replace(FRESH, warmup_started_on=TODAY, warmup_day=TODAY, warmup_used=190)
    assert refused(account, mail(20)) == Refusal(
        Code.WARMUP_LIMITED,
        "Day 1 of this account's warm-up allows 200 recipients, 10 are left today and this message has 20:"
        " send it after 00:00 UTC, or send to at most 10 recipients.",
        retry_after_seconds=12 * 3600,
        headers={"RateLimit-Limit": "40", "RateLimit-Remaining": "40", "RateLimit-Reset": "0"},
    )


def test_a_used_up_warm_up_retries_on_the_first_day_with_capacity() -> None:
    ahead = {TODAY + timedelta(days=1): 290}
    account = replace(FRESH, warmup_started_on=TODAY, warmup_day=TODAY, warmup_used=190, warmup_ahead=ahead)
    refusal = refused(account, mail(20))
    assert refusal.retry_after_seconds == (12 + 24) * 3600
    assert str(TODAY + timedelta(days=2)) in refusal.text
    refusal = refused(account, later(21, 1))
    assert refusal.retry_after_seconds == (12 + 24) * 3600
    assert f"such as {TODAY + timedelta(days=2)}" in refusal.text


def test_a_message_larger_than_every_listed_day_waits_for_the_end_of_the_warm_up() -> None:
    account = replace(FRESH, warmup_limits=(1, 1), warmup_started_on=TODAY)
    assert refused(account, mail(2)).retry_after_seconds == (12 + 24) * 3600
    # A warm-up that did not start has no end.
    assert refused(replace(account, warmup_started_on=None), mail(2)).retry_after_seconds == 12 * 3600


def test_a_cancelled_message_gives_back_a_later_day_and_not_today() -> None:
    account = replace(FRESH, warmup_started_on=TODAY)
    assert codes(account, [mail(200), later(300, 1)]) == [None, None]
    release_quota(account, 300, NOON + timedelta(days=1), NOON)
    release_quota(account, 200, None, NOON)
    release_quota(account, 200, NOON + timedelta(hours=1), NOON)
    assert (account.warmup_used, account.warmup_ahead) == (200, {TODAY + timedelta(days=1): 0})
    assert codes(account, [mail(1), later(300, 1)]) == [Code.WARMUP_LIMITED, None]


@pytest.mark.rule("WARM-04")
def test_the_next_day_starts_at_zero_with_the_next_limit() -> None:
    account = replace(FRESH, warmup_limits=(2, 3))
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    assert codes(account, [mail(2), mail(1)], midnight - timedelta(microseconds=1)) == [None, Code.WARMUP_LIMITED]
    assert codes(account, [mail(3), mail(1)], midnight) == [None, Code.WARMUP_LIMITED]
    assert account.warmup_started_on == TODAY


def test_an_exempt_account_has_no_warm_up_but_a_first_day() -> None:
    account = replace(EXEMPT)
    assert codes(account, [mail(50)] * 20) == [None] * 20
    assert (account.warmup_started_on, account.warmup_used) == (TODAY, 1_000)


def test_a_process_behind_midnight_does_not_reopen_the_day_before() -> None:
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    account = replace(FRESH, warmup_limits=(2, 3), rate=Rate(1_000, 1_000))
    assert codes(account, [mail(2)], midnight) == [None]
    assert codes(account, [mail(1)], midnight - timedelta(milliseconds=1)) == [Code.WARMUP_LIMITED]
    assert (account.warmup_day, account.warmup_used) == (midnight.date(), 2)


@pytest.mark.rule("CRED-03", "MONEY-07", "WARM-06")
def test_test_mail_needs_neither_credits_nor_warm_up_and_starts_none() -> None:
    account = replace(FRESH, available=0, warmup_limits=(0,))
    reading = admit(account, TEST_MAIL, NOON)
    assert account == replace(
        FRESH,
        available=0,
        warmup_limits=(0,),
        full_at=reading.full_at,
        recipients_full_at=NOON + timedelta(milliseconds=200),
        stored_on=TODAY,
    )


def test_recipients_have_a_rate_next_to_requests() -> None:
    account = replace(EXEMPT, available=10_000)
    answers = codes(account, [Charge(50, 50, is_request=False)] * 41)
    assert answers == [None] * 40 + [Code.RATE_LIMITED]
    wait = refused(account, Charge(50, 50, is_request=False))
    assert wait.retry_after_seconds == 1
    assert "500 recipients a second and 2,000 in a burst" in wait.text
    assert codes(account, [mail(50)] * 11, NOON + timedelta(seconds=1)) == [None] * 10 + [Code.RATE_LIMITED]


def test_a_recipient_of_test_mail_counts_twice() -> None:
    account = replace(EXEMPT)
    test_mail = Charge(50, 0, is_request=False)
    assert codes(account, [test_mail] * 21) == [None] * 20 + [Code.RATE_LIMITED]
    assert "250 recipients a second and 1,000 in a burst with a test key" in refused(account, test_mail).text


def test_stored_bytes_are_bounded_by_day_and_test_mail_has_a_tenth() -> None:
    account = replace(EXEMPT, stored_bytes_max=1_000 * limits.MIB)
    test_mail = Charge(1, 0, stored_bytes=60 * limits.MIB)
    assert codes(account, [test_mail] * 2) == [None, Code.RATE_LIMITED]
    assert codes(account, [Charge(1, 1, stored_bytes=501 * limits.MIB)] * 2) == [None, Code.RATE_LIMITED]
    assert refused(account, test_mail).retry_after_seconds == 12 * 3600
    assert codes(account, [test_mail], NOON + timedelta(days=1)) == [None]


def test_a_process_behind_midnight_stores_no_further_day() -> None:
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    account = replace(EXEMPT, stored_bytes_max=1_000 * limits.MIB)
    large = Charge(1, 1, stored_bytes=600 * limits.MIB)
    assert codes(account, [large], midnight) == [None]
    assert codes(account, [large], midnight - timedelta(milliseconds=1)) == [Code.RATE_LIMITED]


accounts = some.builds(
    replace,
    some.just(FRESH),
    available=some.integers(0, 200),
    rate=some.builds(Rate, some.integers(1, 50), some.integers(1, 50)),
    warmup_limits=some.none() | some.lists(some.integers(0, 200), max_size=3).map(tuple),
)
charges = some.builds(Charge, some.integers(1, 50), some.just(0)) | some.integers(1, 50).map(mail)
moments = some.integers(0, 3 * 86_400_000)


@given(accounts, some.lists(some.tuples(moments, charges), max_size=30))
def test_credits_balance_and_no_day_exceeds_its_limit(account: Account, requests: list[tuple[int, Charge]]) -> None:
    granted, spent = account.available, 0
    recipients_by_day: dict[date, int] = {}
    for milliseconds, charge in sorted(requests, key=lambda request: request[0]):
        now = NOON + timedelta(milliseconds=milliseconds)
        before = replace(account)
        try:
            admit(account, charge, now)
        except Refusal:
            assert account == before
            continue
        spent += charge.credits
        recipients_by_day[now.date()] = recipients_by_day.get(now.date(), 0) + charge.credits
        assert account.available == granted - spent >= 0
    if account.warmup_limits is not None and account.warmup_started_on is not None:
        for day, recipients in recipients_by_day.items():
            number = (day - account.warmup_started_on).days
            if 0 <= number < len(account.warmup_limits):
                assert recipients <= account.warmup_limits[number]


def later(recipients: int, days: int) -> Charge:
    return Charge(recipients, recipients, send_at=NOON + timedelta(days=days))


@pytest.mark.rule("LATER-03")
def test_mail_for_a_later_day_counts_for_that_day_of_the_warm_up() -> None:
    account = replace(FRESH, warmup_started_on=TODAY)
    assert codes(account, [mail(200), later(300, 1), later(1, 1), mail(1)]) == [
        None, None, Code.WARMUP_LIMITED, Code.WARMUP_LIMITED,
    ]  # fmt: skip
    assert account.warmup_used == 200
    assert account.warmup_ahead == {TODAY + timedelta(days=1): 300}
    # The warm-up is over on the third day.
    assert codes(account, [later(500, 2)]) == [None]


def test_when_its_day_comes_it_is_counted_already() -> None:
    account = replace(FRESH, warmup_started_on=TODAY)
    assert codes(account, [later(299, 1), later(7, 2)]) == [None, None]
    tomorrow = NOON + timedelta(days=1)
    assert codes(account, [mail(2), mail(1)], tomorrow) == [Code.WARMUP_LIMITED, None]
    assert (account.warmup_day, account.warmup_used) == (tomorrow.date(), 300)
    assert account.warmup_ahead == {TODAY + timedelta(days=2): 7}


def test_mail_for_later_today_counts_today() -> None:
    account = replace(FRESH)
    assert codes(account, [Charge(200, 200, send_at=NOON + timedelta(hours=6)), mail(1)]) == [None, Code.WARMUP_LIMITED]
    assert not account.warmup_ahead


def test_a_warm_up_does_not_start_with_mail_for_a_later_day() -> None:
    account = replace(FRESH)
    assert codes(account, [later(200, 5), later(1, 5)]) == [None, Code.WARMUP_LIMITED]
    assert account.warmup_started_on is None


def test_a_refusal_for_a_later_day_names_it() -> None:
    assert "2026-03-04" in refused(replace(FRESH), later(201, 3)).text
