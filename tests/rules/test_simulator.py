"""The simulator: addresses that end as their name says."""

import pytest

from posthouse.rules.outcome import GivenUp, OutcomeKind, Replied, judge
from posthouse.rules.simulator import follow_up, simulate

DOMAIN = "simulator.invalid"


@pytest.mark.parametrize(
    ("email", "kind", "code"),
    [
        ("delivered@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("bounced@simulator.invalid", OutcomeKind.BOUNCED, 550),
        ("deferred@simulator.invalid", OutcomeKind.DEFERRED, 451),
        ("failed@simulator.invalid", OutcomeKind.FAILED, None),
        ("suppressed@simulator.invalid", OutcomeKind.BOUNCED, None),
        ("slow@simulator.invalid", OutcomeKind.DEFERRED, 451),
        ("complained@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("returned@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("unsubscribed@simulator.invalid", OutcomeKind.DELIVERED, 250),
        # Case and tags name test mode and don't change results.
        ("BOUNCED@Simulator.Invalid", OutcomeKind.BOUNCED, 550),
        ("bounced+42@simulator.invalid", OutcomeKind.BOUNCED, 550),
        ("Failed+a+b@simulator.invalid", OutcomeKind.FAILED, None),
        ("deferred+@simulator.invalid", OutcomeKind.DEFERRED, 451),
        # Any other address is delivered.
        ("ada@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("bounced-not@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("+bounced@simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("bounced@example.org", OutcomeKind.DELIVERED, 250),
        ("bounced@sub.simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("simulator.invalid", OutcomeKind.DELIVERED, 250),
        ("", OutcomeKind.DELIVERED, 250),
    ],
)
def test_the_address_selects_the_result(email: str, kind: OutcomeKind, code: int | None) -> None:
    verdict = judge(simulate(email, DOMAIN))
    assert (verdict.kind, verdict.code) == (kind, code)
    assert ("suppressed" if email.startswith("suppressed") else "simulator") in verdict.text
    assert not verdict.ambiguous
    assert not verdict.next_mx_host


@pytest.mark.parametrize("local", ["delivered", "bounced", "deferred", "failed", "slow", "suppressed", "ada"])
def test_no_simulated_result_suppresses_the_address(local: str) -> None:
    assert not judge(simulate(f"{local}@{DOMAIN}", DOMAIN)).suppress


def test_the_codes_are_those_of_real_servers() -> None:
    enhanced = {}
    for local in ("delivered", "bounced", "deferred", "ada"):
        result = simulate(f"{local}@{DOMAIN}", DOMAIN)
        assert isinstance(result, Replied)
        enhanced[local] = result.reply.enhanced
    assert enhanced == {"delivered": "2.0.0", "bounced": "5.2.1", "deferred": "4.7.1", "ada": "2.0.0"}
    assert isinstance(simulate(f"failed@{DOMAIN}", DOMAIN), GivenUp)


def test_the_reply_shows_a_mistyped_address() -> None:
    assert "bounced@" in judge(simulate(f"bounce@{DOMAIN}", DOMAIN)).text
    assert "bounced@" not in judge(simulate(f"delivered@{DOMAIN}", DOMAIN)).text


def test_the_operator_can_set_the_domain() -> None:
    assert judge(simulate("bounced@try.example.com", "try.example.com")).kind is OutcomeKind.BOUNCED


def test_a_slow_address_takes_the_second_attempt() -> None:
    kinds = [judge(simulate(f"slow+a@{DOMAIN}", DOMAIN, attempt)).kind for attempt in (1, 2, 3)]
    assert kinds == [OutcomeKind.DEFERRED, OutcomeKind.DELIVERED, OutcomeKind.DELIVERED]


def test_complaints_suppress_and_returned_mail_does_not() -> None:
    complained = follow_up(f"Complained+1@{DOMAIN}", 3, None, DOMAIN)
    returned = follow_up(f"returned@{DOMAIN}", 4, "news", DOMAIN)
    assert complained is not None
    assert complained.report is not None
    assert (complained.report.kind, complained.report.position, complained.report.suppress) == ("complaint", 3, True)
    assert returned is not None
    assert returned.report is not None
    assert (returned.report.kind, returned.report.code, returned.report.suppress) == ("bounce", 550, False)
    assert returned.left_list is None


@pytest.mark.parametrize(
    ("email", "mailing_list", "left"),
    [
        (f"unsubscribed@{DOMAIN}", "news", "news"),
        (f"unsubscribed@{DOMAIN}", None, None),
        ("unsubscribed@example.org", "news", None),
        ("complained@example.org", "news", None),
        (f"delivered@{DOMAIN}", "news", None),
    ],
)
def test_only_a_list_can_be_left(email: str, mailing_list: str | None, left: str | None) -> None:
    found = follow_up(email, 0, mailing_list, DOMAIN)
    assert (found and found.left_list) == left
