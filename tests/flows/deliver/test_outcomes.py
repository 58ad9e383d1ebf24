"""Outcomes: what the replies to a message mean for its lane."""

from uuid import UUID

import pytest

from posthouse.flows.deliver.outcomes import served
from posthouse.mail.reply import reply_of
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.learned_limits import Refused
from posthouse.rules.outcome import AttemptResult, NoReply, Replied, Stage
from posthouse.wire.carrier import CarrierResult

MESSAGE = MessageId(UUID(int=7))


def replied(stage: Stage, code: int, text: str) -> Replied:
    return Replied(stage, reply_of(code, [text.encode()]))


DELIVERED = replied(Stage.DOT, 250, "2.0.0 OK")
SLOW = replied(Stage.MAIL, 451, "4.7.650 The mail server [192.0.2.1] has been temporarily rate limited (S775)")
BLOCKED = replied(Stage.MAIL, 550, "5.7.1 part of their network is on our block list (S3150)")
DOMAIN_BLOCKED = replied(Stage.DOT, 550, "5.7.1 very low reputation of the sending domain")
DOMAIN_SLOW = replied(Stage.DOT, 421, "4.7.28 an unusual rate of unsolicited mail from your DKIM domain")
RECIPIENT_SLOW = replied(Stage.RCPT, 450, "4.2.1 The user is receiving mail too quickly")
CONNECTIONS = replied(Stage.GREETING, 451, "4.3.2 Too many open connections")
PER_CONNECTION = replied(Stage.MAIL, 421, "Max message per connection reached, closing transmission channel")
GREYLISTED = replied(Stage.RCPT, 450, "4.2.0 Greylisted")
UNKNOWN = replied(Stage.RCPT, 550, "5.1.1 User unknown")
BUSY = replied(Stage.GREETING, 421, "4.3.2 shutting down")
SILENT = NoReply(Stage.CONNECT, "no connection in time")
LISTED = replied(Stage.GREETING, 554, "5.7.1 blocked using zen.spamhaus.org")
SERVERS = {
    "google": "aspmx.l.google.com",
    "microsoft": "example-org.mail.protection.outlook.com",
    "yahoo": "mta5.am0.yahoodns.net",
}


@pytest.mark.parametrize(
    ("lane", "results", "expected"),
    [
        ("google", [DELIVERED], DeliveryFeedback.WELL),
        ("google", [GREYLISTED], DeliveryFeedback.WELL),
        ("google", [UNKNOWN], DeliveryFeedback.WELL),
        ("microsoft", [SLOW], DeliveryFeedback.SLOW),
        ("microsoft", [BLOCKED], DeliveryFeedback.BLOCKED),
        ("example.org", [CONNECTIONS], DeliveryFeedback.CONNECTIONS),
        ("yahoo", [PER_CONNECTION], DeliveryFeedback.PER_CONNECTION),
        ("example.org", [BUSY], DeliveryFeedback.PUSHED_BACK),
        ("google", [DELIVERED, SLOW], DeliveryFeedback.SLOW),
        # One sender's or one recipient's trouble is not everyone's.
        ("google", [DOMAIN_SLOW], DeliveryFeedback.WELL),
        ("google", [DOMAIN_BLOCKED], DeliveryFeedback.WELL),
        ("google", [RECIPIENT_SLOW], DeliveryFeedback.WELL),
        ("example.org", [SILENT], DeliveryFeedback.UNREACHABLE),
        ("google", [SILENT], DeliveryFeedback.OTHERWISE),
    ],
)
def test_replies_say_how_the_lane_was_served(
    lane: str, results: list[AttemptResult], expected: DeliveryFeedback
) -> None:
    how, _ = served(lane, "example.org", CarrierResult(tuple(results), SERVERS.get(lane)), MESSAGE)
    assert how is expected


@pytest.mark.parametrize(
    ("destination", "mx_host", "expected"),
    [
        ("example.org", "aspmx.l.google.com", DeliveryFeedback.BLOCKED),
        ("gmail.com", "mx.gmail.test", DeliveryFeedback.BLOCKED),
        # After the lane was looked up, the domain's owner named another server.
        ("example.org", "mx.example.org", DeliveryFeedback.OTHERWISE),
        ("example.org", "google.com.example.org", DeliveryFeedback.OTHERWISE),
    ],
)
def test_only_a_provider_s_own_servers_speak_for_its_lane(
    destination: str, mx_host: str, expected: DeliveryFeedback
) -> None:
    how, _ = served("google", destination, CarrierResult((LISTED,), mx_host), MESSAGE)
    assert how is expected


@pytest.mark.parametrize(
    ("stage", "text", "expected"),
    [
        (Stage.GREETING, "5.7.1 blocked using zen.spamhaus.org", DeliveryFeedback.BLOCKED),
        (Stage.MAIL, "5.7.1 blocked using zen.spamhaus.org", DeliveryFeedback.BLOCKED),
        (Stage.RCPT, "5.7.606 Access denied, banned sending IP", DeliveryFeedback.BLOCKED),
        (Stage.RCPT, "5.7.1 blocked using zen.spamhaus.org", DeliveryFeedback.WELL),
        (Stage.DOT, "blocked using zen.spamhaus.org", DeliveryFeedback.WELL),
        (Stage.DOT, "5.7.1 Too many connections, S3150", DeliveryFeedback.WELL),
        (Stage.DOT, "5.7.999 S3150", DeliveryFeedback.WELL),
    ],
)
def test_a_hosted_domain_s_own_words_do_not_stop_a_provider_s_lane(
    stage: Stage, text: str, expected: DeliveryFeedback
) -> None:
    carried = CarrierResult((replied(stage, 550, text),), SERVERS["microsoft"])
    how, _ = served("microsoft", "example.org", carried, MESSAGE)
    assert how is expected


def test_a_domain_s_own_words_stop_its_own_lane() -> None:
    result = replied(Stage.DOT, 550, "5.7.1 blocked using zen.spamhaus.org")
    how, _ = served("example.org", "example.org", CarrierResult((result,), "aspmx.l.google.com"), MESSAGE)
    assert how is DeliveryFeedback.BLOCKED


def test_the_reply_that_refused_us_is_stored_word_for_word_with_its_cause() -> None:
    carried = CarrierResult((DELIVERED, SLOW), SERVERS["microsoft"], taken_before=7)
    how, refused = served("microsoft", "example.org", carried, MESSAGE)
    assert how is DeliveryFeedback.SLOW
    assert refused == Refused(
        "451 4.7.650",
        "451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited (S775)",
        "address",
        MESSAGE,
        taken_before=7,
    )
