"""What a stream of hints says: ids, on one line each."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from posthouse.rules import ids, live
from posthouse.rules.credential import Mode
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX
from posthouse.rules.live import next_message_query, require_readable
from posthouse.rules.refusal import Code, Refusal

MESSAGE = MessageId(UUID("0192f7e3-b9d0-7000-8000-000000000000"))


def test_hints_have_only_ids() -> None:
    message_id, recipient_id = ids.text(ids.MESSAGE, MESSAGE), ids.text(ids.RECIPIENT, ids.recipient_id(MESSAGE, 0))
    assert json.loads(live.accepted([MESSAGE]).data) == {"message_ids": [message_id]}
    listed = [{"recipient_id": recipient_id, "message_id": message_id}]
    assert json.loads(live.final([(MESSAGE, 0)]).data) == {"recipients": listed}


def test_an_end_has_the_refusals_words_on_one_line() -> None:
    event = live.end(Refusal(Code.UNAUTHORIZED, "The token\nis over."))
    assert json.loads(event.data) == {"error": "The token\nis over.", "code": "unauthorized"}
    assert b"\n" not in event.data


# The next message


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
    with pytest.raises(Refusal, match="forbidden: "):
        require_readable(Mode.LIVE, captures=False)
