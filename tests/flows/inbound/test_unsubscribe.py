"""Links to leave a list: each recipient's own, on real letters; and what is not sent to those who left."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.mail.envelope import parse_feedback_token, parse_return_path
from posthouse.rules.credential import Mode
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import KEY_BYTES, PATH
from tests.support.books import faults_in_the_books
from tests.support.receiver import Delivered
from tests.support.round_trip import IDENTITY, PATIENCE, WIDE, RoundTrip, on_the_road
from tests.support.service import eventually

KEY: Final = bytes(range(KEY_BYTES))
OFFERING: Final = replace(
    IDENTITY,
    public_url="https://mail.posthouse.test/base",
    unsubscribe_key=KEY,
    feedback_address="fbl@bounces.posthouse.test",
)
NEWS: Final[dict[str, Any]] = {"tags": ["list:news", "one-click-unsubscribe"]}
TWO: Final = ["ada@example.org", "Bob@example.org"]
LEFT: Final = ("bounced", "released", 0, None, "the address has left the list 'news'")


@pytest.fixture
async def road(database_url: str) -> AsyncIterator[RoundTrip]:
    # Only one at a time goes to the server that pushes back.
    limits = LaneLimits(WIDE.default, {"pushing.example.org": Limits(1e6, 1_000_000, 1, 1)})
    pushing = {"127.0.0.2": "421-dot"}
    async with on_the_road(database_url, identity=OFFERING, manners=pushing, lane_limits=limits) as road:
        road.serve("example.org", "example.net")
        road.serve("pushing.example.org", address="127.0.0.2")
        yield road
        assert await faults_in_the_books(database_url) == {}


def one_at_a_time(per_second: float) -> LaneLimits:
    return LaneLimits(Limits(per_second, burst=2, connections_start=1, connections_max=1))


def link_in(copy: Delivered) -> str:
    message = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    field = str(message["List-Unsubscribe"])
    assert len(message.get_all("List-Unsubscribe") or []) == 1
    assert message.get_all("List-Unsubscribe-Post") == ["List-Unsubscribe=One-Click"]
    assert field.startswith("<https://mail.posthouse.test/base/unsubscribe/")
    return urlsplit(field.strip("<>")).path.rpartition(PATH)[2]


def links(road: RoundTrip) -> dict[str, str]:
    return {copy.recipient: link_in(copy) for copy in road.receiver.accepted}


def unsubscribe(road: RoundTrip) -> Unsubscribe:
    return Unsubscribe(database=road.rounds.database, clock=road.clock, key=KEY)


async def ends(road: RoundTrip, recipients: list[str], **how: Any) -> list[tuple[Any, ...]]:
    """What becomes of one more mail: status, billing, attempts, code, response of each recipient."""
    message = await road.rounds.accept(recipients, **how)
    await road.round()
    return [row[1:] for row in await road.recipients(message)]


async def test_each_recipient_of_a_mail_gets_a_link_and_an_envelope_of_its_own(road: RoundTrip) -> None:
    message = await road.rounds.accept(TWO, **NEWS)
    await road.round()
    assert await road.message(message) == ("delivered", "settled")
    found = links(road)
    assert [unsubscribe(road).leaver(found[address])[1:] for address in TWO] == [
        ("news", "ada@example.org"),
        ("news", "bob@example.org"),
    ]
    keys = [IDENTITY.return_path_key]
    origins = [parse_return_path(one.sender, IDENTITY.return_path_domain, keys) for one in road.receiver.accepted]
    assert sorted(one.position for one in origins if one is not None and one.position is not None) == [0, 1]


async def test_a_mail_without_the_wish_or_without_a_public_address_is_as_it_ever_was(road: RoundTrip) -> None:
    await road.rounds.accept(TWO, tags=["list:news"])
    await road.round()
    assert len({copy.transaction for copy in road.receiver.accepted}) == 1
    assert not any(b"List-Unsubscribe" in copy.message for copy in road.receiver.accepted)


async def test_where_the_public_address_was_taken_away_mail_goes_without_links(database_url: str) -> None:
    async with on_the_road(database_url) as road:
        road.serve("example.org")
        await road.rounds.accept(TWO, **NEWS)
        await road.round()
        assert len({copy.transaction for copy in road.receiver.accepted}) == 1
        assert not any(b"List-Unsubscribe" in copy.message for copy in road.receiver.accepted)
        assert not any(b"CFBL" in copy.message for copy in road.receiver.accepted)


async def test_a_half_of_the_fields_that_the_customer_wrote_gives_way_to_ours(road: RoundTrip) -> None:
    """As it may come over SMTP, where nobody refuses it."""
    by = road.rounds.sender
    halves = (("X-A", "1"), ("list-unsubscribe-POST", f"no click {'at all ' * 20}"), ("X-B", "2"))
    await road.rounds.house.accept(by, "half", by.draft(["ada@example.org"], **NEWS)._replace(headers=halves))
    await road.round()
    assert links(road)
    (copy,) = road.receiver.accepted
    read = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    assert (read["X-A"], read["X-B"], read.get_content().strip()) == ("1", "2", "Good morning.")
    assert b"at all" not in copy.message


async def test_every_mail_says_where_complaints_go(road: RoundTrip) -> None:
    message = await road.rounds.accept(TWO)
    await road.round()
    for copy in road.receiver.accepted:
        read = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
        assert read.get_all("CFBL-Address") == ["fbl@bounces.posthouse.test; report=arf"]
        (token,) = read.get_all("CFBL-Feedback-ID") or []
        origin = parse_feedback_token(token, [IDENTITY.return_path_key])
        assert origin is not None
        assert origin.message_id == message
        signed = "".join(str(read["DKIM-Signature"]).split())
        assert ":CFBL-Address:CFBL-Feedback-ID;" in signed


async def test_who_has_left_gets_no_more_of_the_list_and_everything_else(road: RoundTrip) -> None:
    stranger = await road.rounds.another_sender("stranger")
    await road.rounds.accept(TWO, **NEWS)
    await road.round()
    left = await unsubscribe(road).leave(links(road)["ada@example.org"])
    assert left[1:] == ("news", "ada@example.org")
    before = road.receiver.connections, len(road.receiver.accepted)
    assert await ends(road, ["ADA@example.org"], **NEWS) == [LEFT]
    assert await ends(road, ["ada@example.org"], tags=["list:news"]) == [LEFT]
    assert await ends(road, ["ada@example.org"], mode=Mode.TEST, **NEWS) == [LEFT]
    assert (road.receiver.connections, len(road.receiver.accepted)) == before
    # Of a mail to both, only the other's leaves.
    both = await ends(road, TWO, **NEWS)
    assert (both[0], both[1][0]) == (LEFT, "delivered")
    for how in ({}, {"tags": ["list:offers"]}, {"sender": stranger, **NEWS}):
        assert [row[0] for row in await ends(road, ["ada@example.org"], **how)] == ["delivered"]
    events = await road.rounds.fetch("SELECT type, count(*) FROM events GROUP BY type ORDER BY type")
    assert events == [("email.bounced", 4), ("email.delivered", 6)]


async def test_leaving_twice_or_at_once_is_leaving(road: RoundTrip) -> None:
    await road.rounds.accept(["ada@example.org"], **NEWS)
    await road.round()
    link = links(road)["ada@example.org"]
    await asyncio.gather(*(unsubscribe(road).leave(link) for _ in range(5)))
    road.clock.advance(days=1)
    await unsubscribe(road).leave(link)
    assert await road.rounds.fetch("SELECT mailing_list, email, count(*) FROM unsubscriptions GROUP BY 1, 2") == [
        ("news", "ada@example.org", 1)
    ]


async def test_who_leaves_while_a_mail_waits_to_be_tried_again_does_not_get_it(road: RoundTrip) -> None:
    await road.rounds.accept(["greylist@example.org"], **NEWS)
    await road.round()
    assert await road.rounds.fetch("SELECT status FROM recipients") == [("deferred",)]
    account_id = road.rounds.sender.account_id
    async with road.rounds.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO unsubscriptions VALUES ($1, 'news', 'greylist@example.org', $2)", account_id, road.clock.now()
        )
    road.clock.advance(minutes=2)
    await road.round()
    assert await road.rounds.fetch("SELECT status, attempt_count FROM recipients") == [("bounced", 1)]


async def test_what_is_no_link_of_ours_leaves_nothing(road: RoundTrip) -> None:
    for token in ("", "x", "x" * 70, "x" * 10_000):
        with pytest.raises(Refusal) as caught:
            await unsubscribe(road).leave(token)
        assert caught.value.code is Code.NOT_FOUND
    assert await road.rounds.value("SELECT count(*) FROM unsubscriptions") == 0


async def test_one_recipient_that_is_refused_says_nothing_of_the_others(road: RoundTrip) -> None:
    found = await ends(road, ["550-rcpt@example.org", "450-rcpt@example.org", "ada@example.org"], **NEWS)
    assert [(row[0], row[2], row[3]) for row in found] == [
        ("bounced", 1, 550),
        ("deferred", 1, 450),
        ("delivered", 1, 250),
    ]


async def test_a_destination_that_is_not_there_is_not_there_for_any_of_them(road: RoundTrip) -> None:
    road.names.records["gone.example.org", "MX"] = ["0 ."]
    found = await ends(road, [f"r{number}@gone.example.org" for number in range(5)], **NEWS)
    assert {row[0] for row in found} == {"bounced"}
    road.serve("dead.example.org", address="127.0.0.250")
    found = await ends(road, [f"r{number}@dead.example.org" for number in range(5)], **NEWS)
    assert {(row[0], row[2]) for row in found} == {("deferred", 1)}


async def test_a_server_that_pushes_back_is_not_pressed_with_the_rest(road: RoundTrip) -> None:
    found = await ends(road, [f"r{number}@pushing.example.org" for number in range(5)], **NEWS)
    assert sorted((row[0], row[2]) for row in found) == [("deferred", 1), *[("queued", 0)] * 4]


async def test_what_became_of_a_letter_is_on_record_while_the_next_one_is_on_its_way(database_url: str) -> None:
    patience = replace(PATIENCE, dot_seconds=20.0, transaction_seconds_total=30.0)
    async with on_the_road(database_url, identity=OFFERING, deadlines=patience, lane_limits=one_at_a_time(1e6)) as road:
        road.serve("example.org")
        message = await road.rounds.accept(["ada@example.org", "hang-dot@example.org", "bob@example.org"], **NEWS)
        going = asyncio.create_task(road.round())

        async def seen() -> tuple[list[str], int]:
            return await road.statuses(message), await road.rounds.value("SELECT count(*) FROM attempts")

        # The second hangs, and the third isn't claimed before its turn.
        await eventually(seen, lambda found: found == (["delivered", "queued", "queued"], 2))
        await road.delivery.drain(0.3)
        await going
        assert await road.statuses(message) == ["delivered", "deferred", "queued"]
    assert await faults_in_the_books(database_url) == {}


async def test_a_slow_lane_is_kept_to_and_each_of_the_rest_is_claimed_once(database_url: str) -> None:
    async with on_the_road(database_url, identity=OFFERING, lane_limits=one_at_a_time(20.0)) as road:
        road.serve("example.org")
        message = await road.rounds.accept(5, **NEWS)
        await road.round()

        async def delivered() -> int:
            return (await road.statuses(message)).count("delivered")

        assert await delivered() == 2
        road.clock.advance(seconds=0.05)
        await eventually(delivered, lambda count: count == 3)
        road.clock.advance(seconds=0.1)
        await eventually(delivered, lambda count: count == 5)
        assert len(set(links(road).values())) == 5
        assert await road.rounds.fetch("SELECT fence, count(*) FROM attempts GROUP BY fence") == [(1, 5)]
    assert await faults_in_the_books(database_url) == {}
