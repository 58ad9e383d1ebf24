"""Words of a server's reply."""

import pytest

from posthouse.rules.delivery_reason import ADDRESS, without_addresses


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (
            "5.7.1 blocked, see https://example.net/a?ip=192.0.2.1",
            "5.7.1 blocked, see https://example.net/a?ip=192.0.2.1",
        ),
        ("5.1.1 <Ada@example.net>: unknown\n5.1.1 try later", f"5.1.1 {ADDRESS} unknown\n5.1.1 try later"),
        ("see https://example.net/?to=ada%40example.net now", f"see {ADDRESS} now"),
        ("", ""),
    ],
)
def test_what_is_stored_about_a_server_names_no_recipient(reply: str, kept: str) -> None:
    assert without_addresses(reply) == kept
