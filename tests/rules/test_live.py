"""What a stream of hints says: ids, on one line each."""

import json
from uuid import UUID

from posthouse.rules import ids, live
from posthouse.rules.ids import MessageId
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
