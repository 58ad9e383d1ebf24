"""Unsubscribe links: each recipient's own, on real mail; and what is not sent to those who unsubscribed."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from posthouse.flows.deliver.outgoing_mail import Identity
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.mail.envelope import parse_feedback_token, parse_return_path
from posthouse.rules.credential import Mode
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import KEY_BYTES, PATH
from tests.support.context import context
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DEADLINES, IDENTITY, WIDE, DeliveryFlow, open_delivery_flow
from tests.support.eventually import eventually
from tests.support.smtp_conversation import Delivered

KEY: Final = bytes(range(KEY_BYTES))
OFFERING: Final = replace(
    IDENTITY,
    public_url="https://mail.posthouse.test/base",
    unsubscribe_key=KEY,
    feedback_address="fbl@bounces.posthouse.test",
)
NEWS: Final[dict[str, Any]] = {"tags": ["list:news", "one-click-unsubscribe"]}
TWO: Final = ["ada@example.org", "Bob@example.org"]
LEFT: Final = ("bounced", "released", 0, None, "the address is unsubscribed from the list 'news'")


@pytest.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    # Only one at a time goes to the server that pushes back.
    limits = LaneLimits(WIDE.default, {"pushing.example.org": Limits(1e6, 1_000_000, 1, 1)})
    pushing = {"127.0.0.2": "421-dot"}
    async with open_delivery_flow(database_url, identity=OFFERING, behaviours=pushing, lane_limits=limits) as flow:
        flow.serve("example.org", "example.net")
        flow.serve("pushing.example.org", address="127.0.0.2")
        yield flow
        assert await database_faults(database_url) == {}


def one_at_a_time(per_second: float) -> LaneLimits:
    return LaneLimits(Limits(per_second, burst=2, connections_start=1, connections_max=1))


def link_in(copy: Delivered) -> str:
    message = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    field = str(message["List-Unsubscribe"])
    assert len(message.get_all("List-Unsubscribe") or []) == 1
    assert message.get_all("List-Unsubscribe-Post") == ["List-Unsubscribe=One-Click"]
    assert field.startswith("<https://mail.posthouse.test/base/unsubscribe/")
    return urlsplit(field.strip("<>")).path.rpartition(PATH)[2]


def links(flow: DeliveryFlow) -> dict[str, str]:
    return {copy.recipient: link_in(copy) for copy in flow.receiver.accepted}


def unsubscribe(flow: DeliveryFlow) -> Unsubscribe:
    return Unsubscribe(context(flow.steps.database, flow.clock, unsubscribe=[KEY]))


async def ends(flow: DeliveryFlow, recipients: list[str], **how: Any) -> list[tuple[Any, ...]]:
    """What happens to one more message: status, billing, attempts, code, response of each recipient."""
    message = await flow.steps.accept(recipients, **how)
    await flow.run_due()
    return [row[1:] for row in await flow.recipients(message)]


async def test_each_recipient_of_a_message_gets_its_own_link_and_envelope(flow: DeliveryFlow) -> None:
    message = await flow.steps.accept(TWO, **NEWS)
    await flow.run_due()
    assert await flow.message(message) == ("delivered", "settled")
    found = links(flow)
    assert [unsubscribe(flow).member(found[address])[1:] for address in TWO] == [
        ("news", "ada@example.org"),
        ("news", "bob@example.org"),
    ]
    keys = [IDENTITY.return_path_key]
    origins = [parse_return_path(row.sender, IDENTITY.return_path_domain, keys) for row in flow.receiver.accepted]
    assert sorted(row.position for row in origins if row is not None and row.position is not None) == [0, 1]


@pytest.mark.parametrize(("identity", "how"), [(OFFERING, {"tags": ["list:news"]}), (IDENTITY, NEWS)])
async def test_without_the_option_or_a_public_address_mail_goes_in_one_copy_without_links(
    database_url: str, identity: Identity, how: dict[str, Any]
) -> None:
    async with open_delivery_flow(database_url, identity=identity) as flow:
        flow.serve("example.org")
        await flow.steps.accept(TWO, **how)
        await flow.run_due()
        assert len({copy.transaction for copy in flow.receiver.accepted}) == 1
        for copy in flow.receiver.accepted:
            assert b"\nList-Unsubscribe" not in copy.message
            assert (b"CFBL" in copy.message) is (identity is OFFERING)


@pytest.mark.rule("UNSUB-05")
async def test_a_half_of_the_fields_that_the_customer_wrote_gives_way_to_ours(flow: DeliveryFlow) -> None:
    """As it may come over SMTP, where it is not refused."""
    by = flow.steps.sender
    halves = (("X-A", "1"), ("list-unsubscribe-POST", f"no click {'at all ' * 20}"), ("X-B", "2"))
    await flow.steps.accept_flow.accept(by, "half", by.draft(["ada@example.org"], **NEWS)._replace(headers=halves))
    await flow.run_due()
    assert links(flow)
    (copy,) = flow.receiver.accepted
    read = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    assert (read["X-A"], read["X-B"], read.get_content().strip()) == ("1", "2", "Good morning.")
    assert b"at all" not in copy.message


async def test_every_mail_says_where_complaints_go(flow: DeliveryFlow) -> None:
    message = await flow.steps.accept(TWO)
    await flow.run_due()
    for copy in flow.receiver.accepted:
        read = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
        assert read.get_all("CFBL-Address") == ["fbl@bounces.posthouse.test; report=arf"]
        (token,) = read.get_all("CFBL-Feedback-ID") or []
        origin = parse_feedback_token(token, [IDENTITY.return_path_key])
        assert origin is not None
        assert origin.message_id == message
        signed = "".join(str(read["DKIM-Signature"]).split())
        assert ":CFBL-Address:CFBL-Feedback-ID;" in signed


@pytest.mark.rule("UNSUB-09", "UNSUB-10")
async def test_an_unsubscribed_recipient_gets_no_more_of_the_list_but_everything_else(flow: DeliveryFlow) -> None:
    other_sender = await flow.steps.another_sender("other")
    await flow.steps.accept(TWO, **NEWS)
    await flow.run_due()
    left = await unsubscribe(flow).unsubscribe(links(flow)["ada@example.org"])
    assert left[1:] == ("news", "ada@example.org")
    before = flow.receiver.connections, len(flow.receiver.accepted)
    assert await ends(flow, ["ADA@example.org"], **NEWS) == [LEFT]
    assert await ends(flow, ["ada@example.org"], tags=["list:news"]) == [LEFT]
    assert await ends(flow, ["ada@example.org"], mode=Mode.TEST, **NEWS) == [LEFT]
    assert (flow.receiver.connections, len(flow.receiver.accepted)) == before
    # Of a message to both, only the other's copy is sent.
    both = await ends(flow, TWO, **NEWS)
    assert (both[0], both[1][0]) == (LEFT, "delivered")
    for how in ({}, {"tags": ["list:offers"]}, {"sender": other_sender, **NEWS}):
        assert [row[0] for row in await ends(flow, ["ada@example.org"], **how)] == ["delivered"]
    events = await flow.steps.fetch("SELECT type, count(*) FROM events GROUP BY type ORDER BY type")
    assert events == [("email.bounced", 4), ("email.delivered", 6)]


async def test_unsubscribing_twice_or_simultaneously_is_unsubscribing(flow: DeliveryFlow) -> None:
    await flow.steps.accept(["ada@example.org"], **NEWS)
    await flow.run_due()
    link = links(flow)["ada@example.org"]
    await asyncio.gather(*(unsubscribe(flow).unsubscribe(link) for _ in range(5)))
    flow.clock.advance(days=1)
    await unsubscribe(flow).unsubscribe(link)
    assert await flow.steps.fetch("SELECT mailing_list, email, count(*) FROM unsubscriptions GROUP BY 1, 2") == [
        ("news", "ada@example.org", 1)
    ]


async def test_a_recipient_who_unsubscribes_before_a_retry_does_not_get_it(flow: DeliveryFlow) -> None:
    await flow.steps.accept(["greylist@example.org"], **NEWS)
    await flow.run_due()
    assert await flow.steps.fetch("SELECT status FROM recipients") == [("deferred",)]
    account_id = flow.steps.sender.account_id
    async with flow.steps.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO unsubscriptions VALUES ($1, 'news', 'greylist@example.org', $2)", account_id, flow.clock.now()
        )
    flow.clock.advance(minutes=2)
    await flow.run_due()
    assert await flow.steps.fetch("SELECT status, attempt_count FROM recipients") == [("bounced", 1)]


async def test_what_is_not_our_link_unsubscribes_no_address(flow: DeliveryFlow) -> None:
    for token in ("", "x", "x" * 70, "x" * 10_000):
        with pytest.raises(Refusal) as caught:
            await unsubscribe(flow).unsubscribe(token)
        assert caught.value.code is Code.NOT_FOUND
    assert await flow.steps.value("SELECT count(*) FROM unsubscriptions") == 0


async def test_one_recipient_that_is_refused_says_nothing_of_the_others(flow: DeliveryFlow) -> None:
    found = await ends(flow, ["550-rcpt@example.org", "450-rcpt@example.org", "ada@example.org"], **NEWS)
    assert [(row[0], row[2], row[3]) for row in found] == [
        ("bounced", 1, 550),
        ("deferred", 1, 450),
        ("delivered", 1, 250),
    ]


async def test_an_unreachable_destination_defers_all_of_them(flow: DeliveryFlow) -> None:
    flow.nameserver.records["gone.example.org", "MX"] = ["0 ."]
    found = await ends(flow, [f"r{number}@gone.example.org" for number in range(5)], **NEWS)
    assert {row[0] for row in found} == {"bounced"}
    flow.serve("dead.example.org", address="127.0.0.250")
    found = await ends(flow, [f"r{number}@dead.example.org" for number in range(5)], **NEWS)
    assert {(row[0], row[2]) for row in found} == {("deferred", 1)}


async def test_a_server_that_defers_one_is_not_sent_the_rest(flow: DeliveryFlow) -> None:
    found = await ends(flow, [f"r{number}@pushing.example.org" for number in range(5)], **NEWS)
    assert sorted((row[0], row[2]) for row in found) == [("deferred", 1), *[("queued", 0)] * 4]


async def test_a_messages_result_is_recorded_while_the_next_one_is_sent(database_url: str) -> None:
    patient = replace(DEADLINES, dot_seconds=20.0, transaction_seconds_total=30.0)
    limits = one_at_a_time(1e6)
    async with open_delivery_flow(database_url, identity=OFFERING, deadlines=patient, lane_limits=limits) as flow:
        flow.serve("example.org")
        message = await flow.steps.accept(["ada@example.org", "hang-dot@example.org", "bob@example.org"], **NEWS)
        going = asyncio.create_task(flow.run_due())

        async def seen() -> tuple[list[str], int]:
            return await flow.statuses(message), await flow.steps.value("SELECT count(*) FROM attempts")

        # The second hangs, and the third isn't claimed before its turn.
        await eventually(seen, lambda found: found == (["delivered", "queued", "queued"], 2))
        await flow.delivery.drain(0.3)
        await going
        assert await flow.statuses(message) == ["delivered", "deferred", "queued"]
    assert await database_faults(database_url) == {}


async def test_a_slow_lane_stays_within_its_rate_and_each_of_the_rest_is_claimed_once(database_url: str) -> None:
    async with open_delivery_flow(database_url, identity=OFFERING, lane_limits=one_at_a_time(20.0)) as flow:
        flow.serve("example.org")
        message = await flow.steps.accept(5, **NEWS)
        await flow.run_due()

        async def delivered() -> int:
            return (await flow.statuses(message)).count("delivered")

        assert await delivered() == 2
        flow.clock.advance(seconds=0.05)
        await eventually(delivered, lambda count: count == 3)
        flow.clock.advance(seconds=0.1)
        await eventually(delivered, lambda count: count == 5)
        assert len(set(links(flow).values())) == 5
        assert await flow.steps.fetch("SELECT fence, count(*) FROM attempts GROUP BY fence") == [(1, 5)]
    assert await database_faults(database_url) == {}
