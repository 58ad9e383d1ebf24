"""The warm-up of new addresses through the flows: quotas of hours and days, and where the rest goes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from posthouse.flows.deliver.address_quotas import AddressQuotas, WarmingSince
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.address_warm_up import Volumes
from posthouse.rules.ids import AccountId
from posthouse.rules.learned_limits import LaneScope
from tests.flows.deliver.pool_relay import use_relay
from tests.support.certificates import Certificates
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.smtp_receiver import SmtpReceiver

# 24 messages on the first day, 2 in an hour.
SMALL = Volumes(first_of_providers=240, first=24, warm=6_000)
NEW, KNOWN, OTHER = "127.0.0.7", "127.0.0.8", "127.0.0.9"


@pytest.fixture
async def flow(database_url: str, certificates: Certificates) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url, certificates=certificates, warm_up_volumes=SMALL) as flow:
        flow.serve("example.org")
        to_the_hour(flow)
        yield flow


@pytest.fixture
async def warming(flow: DeliveryFlow, addresses: SendingAddresses) -> DeliveryFlow:
    """With one new address."""
    await addresses.add(NEW, "mta7.example.com")
    return flow


def to_the_hour(flow: DeliveryFlow) -> None:
    """A minute after the next UTC midnight, so that a test has a whole day before it."""
    now = flow.clock.now()
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC)
    flow.clock.advance(seconds=86_400 - (now - midnight).total_seconds() + 60)


async def accept(flow: DeliveryFlow, count: int) -> None:
    for number in range(count):
        await flow.steps.accept([f"ada{number}@example.org"])


async def run(flow: DeliveryFlow, minutes: int = 0) -> Counter[str]:
    """Delivers what is due every ten minutes, for this many minutes; returns what arrived from each address."""
    before = len(flow.receiver.accepted)
    await flow.delivery.read_routes()
    await flow.run_due()
    for _ in range(minutes // 10):
        flow.clock.advance(minutes=10)
        await flow.run_due()
    await flow.delivery.synchronize_learned_limits()
    return Counter(mail.source for mail in flow.receiver.accepted[before:])


async def test_a_new_address_sends_a_twelfth_of_its_quota_in_an_hour_and_the_rest_waits(warming: DeliveryFlow) -> None:
    await accept(warming, 5)
    assert await run(warming) == {NEW: 2}
    assert await run(warming, 50) == {}
    # Nothing was tried, and no attempt counts.
    assert (await warming.steps.fetch("SELECT count(*) FROM attempts"))[0][0] == 2
    assert await run(warming, 20) == {NEW: 2}
    assert await run(warming, 60) == {NEW: 1}


async def test_an_older_address_and_one_that_is_warm_are_not_bounded(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add(NEW, "mta7.example.com", is_warm=True)
    await accept(flow, 30)
    assert await run(flow) == {NEW: 30}
    assert await flow.steps.fetch("SELECT * FROM address_quotas") == []


async def test_a_known_address_of_the_pool_takes_the_rest(warming: DeliveryFlow, addresses: SendingAddresses) -> None:
    await addresses.add(KNOWN, "mta8.example.com", is_warm=True)
    await accept(warming, 10)
    sent = await run(warming)
    assert sum(sent.values()) == 10
    assert sent[NEW] <= 2


async def test_the_overflow_takes_the_rest_then_the_relay(
    flow: DeliveryFlow, addresses: SendingAddresses, certificates: Certificates
) -> None:
    async with SmtpReceiver("starttls--auth-plain", certificates=certificates) as relay:
        await addresses.add_pool("spare")
        await addresses.add(OTHER, "mta9.example.com", "spare")
        await addresses.add_pool("own", overflow="spare")
        await addresses.add(NEW, "mta7.example.com", "own")
        await addresses.set_account_pool(AccountId(flow.steps.sender.account_id), "own")
        await use_relay(flow, relay.port, "own", per_day=5)
        await accept(flow, 10)
        assert await run(flow) == {NEW: 2, OTHER: 2}
        assert len(relay.accepted) == 5
        # The tenth waits for the next hour.
        assert await run(flow, 70) == {NEW: 1}


async def test_list_mail_waits_first(warming: DeliveryFlow) -> None:
    warming.delivery._address_quotas._volumes = Volumes(first=120, warm=6_000)
    await accept(warming, 12)
    await warming.steps.fetch("UPDATE delivery_schedule SET is_list = true RETURNING 1")
    assert await run(warming) == {NEW: 7}
    for name in ("grace", "linus", "ken", "dennis"):
        await warming.steps.accept([f"{name}@example.org"])
    assert await run(warming) == {NEW: 3}
    assert {mail.recipient.partition("@")[0] for mail in warming.receiver.accepted[7:]} <= {
        "grace", "linus", "ken", "dennis",
    }  # fmt: skip


async def test_a_restart_forgets_nothing(warming: DeliveryFlow) -> None:
    await accept(warming, 3)
    assert await run(warming) == {NEW: 2}
    warming.delivery = warming.another_worker()
    await accept(warming, 3)
    assert await run(warming) == {}


async def test_what_a_stopped_worker_did_not_use_is_given_back(warming: DeliveryFlow) -> None:
    await accept(warming, 1)
    await run(warming)
    await warming.delivery.drain(1)
    assert await warming.steps.fetch("SELECT granted, granted_this_hour, accepted FROM address_quotas") == [(1, 1, 1)]


async def test_more_recipients_of_a_message_than_the_hour_allows_go_in_parts(warming: DeliveryFlow) -> None:
    await warming.steps.accept([f"ada{number}@example.org" for number in range(5)])
    assert await run(warming) == {NEW: 2}
    assert await run(warming, 70) == {NEW: 2}


async def test_a_message_that_is_not_sent_uses_nothing(warming: DeliveryFlow) -> None:
    await warming.steps.accept(["gone@example.org"])
    await warming.steps.fetch(
        "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, 'gone@example.org', 'manual', now()) "
        "RETURNING 1",
        warming.steps.sender.account_id,
    )
    assert await run(warming) == {}
    await accept(warming, 3)
    assert await run(warming) == {NEW: 2}


async def test_a_refusal_because_of_us_makes_the_next_day_smaller(warming: DeliveryFlow) -> None:
    await accept(warming, 2)
    await run(warming)
    await warming.steps.fetch("UPDATE address_quotas SET slowed = 5 RETURNING 1")
    warming.clock.advance(hours=24)
    await accept(warming, 5)
    assert await run(warming) == {NEW: 1}
    (warm_up,) = (await warming.steps.fetch("SELECT warm_up ->> 'change' FROM address_quotas"))[0]
    assert warm_up == "slowed"


async def test_workers_that_ask_at_once_are_given_no_more_than_the_hour_allows(flow: DeliveryFlow) -> None:
    scope = LaneScope(NEW, "example.org")
    since = WarmingSince(flow.clock.now())
    workers = [
        AddressQuotas(context(flow.steps.database, flow.clock), bound_of=lambda _: since, volumes=SMALL)
        for _ in range(6)
    ]
    for expected in (2, 0):
        await asyncio.gather(*[worker.reserve(scope, 5) for worker in workers])
        assert sum(worker.take_permits(scope, 5, is_list=False) for worker in workers) == expected
    flow.clock.advance(hours=1)
    await asyncio.gather(*[worker.reserve(scope, 5) for worker in workers])
    assert sum(worker.take_permits(scope, 5, is_list=False) for worker in workers) == 2


async def test_a_complaint_about_mail_from_the_address_makes_the_next_day_smaller(warming: DeliveryFlow) -> None:
    warming.serve("gmail.com", host="gmail-smtp-in.l.google.com")
    message = await warming.steps.accept(["ada@gmail.com"])
    assert await run(warming) == {NEW: 1}
    await warming.steps.fetch(
        "INSERT INTO reports (account_id, message_id, id, position, kind, detail, suppressed, shared, at) "
        "VALUES ($1, $2, gen_random_uuid(), 0, 'complaint', 'abuse', false, false, $3) RETURNING 1",
        warming.steps.sender.account_id,
        message,
        warming.clock.now(),
    )
    warming.clock.advance(hours=24)
    await warming.steps.accept(["grace@gmail.com"])
    await run(warming)
    changes = await warming.steps.fetch("SELECT warm_up ->> 'change' FROM address_quotas WHERE lane = 'google'")
    assert changes == [("complaints",)]
