"""Delivery from end to end in one process: what is due goes out, and what comes of it is on record."""

from collections.abc import AsyncIterator

import pytest

from tests.support.round_trip import RoundTrip, on_the_road


@pytest.fixture
async def road(database_url: str) -> AsyncIterator[RoundTrip]:
    async with on_the_road(database_url) as road:
        road.serve("example.org", "example.net")
        yield road


async def test_a_mail_to_two_domains_arrives_once_at_each_recipient(road: RoundTrip) -> None:
    message = await road.rounds.accept(["ada@example.org", "bob@example.org", "cy@example.net"])
    assert await road.round() == 3
    assert await road.statuses(message) == ["delivered"] * 3
    assert await road.message(message) == ("delivered", "settled")
    accepted = sorted((one.recipient, one.transaction) for one in road.receiver.accepted)
    assert [recipient for recipient, _ in accepted] == ["ada@example.org", "bob@example.org", "cy@example.net"]
    # Two recipients of one domain share a transaction.
    assert accepted[0][1] == accepted[1][1]
    assert await road.round() == 0
