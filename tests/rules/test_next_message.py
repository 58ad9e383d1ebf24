"""The question for the next message: the defaults of its parameters, and who may ask."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX
from posthouse.rules.live import next_message_query, require_readable
from posthouse.rules.refusal import Code, Refusal

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def test_without_after_mail_of_the_last_five_minutes_counts() -> None:
    query = next_message_query("<Ada@Example.org>", None, None, NOW)
    assert query.email == "ada@example.org"
    assert query.after == ids.lowest_id(NOW - timedelta(minutes=5))
    assert query.seconds == NEXT_MESSAGE_SECONDS_MAX


def test_after_is_an_id_or_a_time() -> None:
    message_id = ids.new_message_id(NOW, bytes(10))
    assert next_message_query("a@b.example", ids.text(ids.MESSAGE, message_id), "0", NOW).after == message_id
    assert next_message_query("a@b.example", "2026-11-16T12:00:00Z", "25", NOW).after == ids.lowest_id(NOW)


@pytest.mark.parametrize(("mode", "captures"), [(Mode.TEST, False), (Mode.TEST, True), (Mode.LIVE, True)])
def test_test_mail_and_captured_mail_may_be_read(mode: Mode, captures: bool) -> None:
    require_readable(mode, captures=captures)


def test_live_mail_that_leaves_may_not_be_read() -> None:
    with pytest.raises(Refusal) as caught:
        require_readable(Mode.LIVE, captures=False)
    assert caught.value.code is Code.FORBIDDEN
