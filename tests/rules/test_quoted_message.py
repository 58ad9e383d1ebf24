"""The id of a message in what a customer quotes."""

from uuid import UUID

import pytest

from posthouse.flows.operate.message_lookup import message_id_in
from posthouse.rules import ids

MESSAGE = ids.message_of(UUID("01999999-9999-7999-8999-999999999999"))
TEXT = ids.text("", MESSAGE)
RECIPIENT = ids.text(ids.RECIPIENT, ids.recipient_id(MESSAGE, 3))


@pytest.mark.parametrize(
    "quoted",
    [
        f"em_{TEXT}",
        f"  EM_{TEXT.upper()} ",
        f"250 2.0.0 queued as em_{TEXT}",
        f"Message-ID: <{TEXT}@mail.example.com>",
        f"with ESMTPSA id em_{TEXT}; Wed, 18 Nov 2026",
        RECIPIENT,
        f"https://mail.example.com/dashboard/ac_/messages/em_{TEXT}",
        # Another system's id of the same length before it.
        f"uuuuuuuuuuuuuuuuuuuuuuuuuu em_{TEXT}",
    ],
)
def test_an_id_is_found_wherever_it_is(quoted: str) -> None:
    assert message_id_in(quoted) == MESSAGE


@pytest.mark.parametrize(
    "quoted", ["", "where is my mail?", "ada@example.com", f"em_{TEXT[:-1]}", f"x{TEXT}", f"{TEXT}0"]
)
def test_what_has_no_id_is_none(quoted: str) -> None:
    assert message_id_in(quoted) is None
