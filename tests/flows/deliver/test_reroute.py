"""Mail that is refused because of our address: held, tried again, or bounced; on real sockets."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.ids import MESSAGE
from posthouse.rules.ids import text as id_text
from posthouse.rules.lane import LaneLimits, Limits
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

ONE_AT_A_TIME = LaneLimits(Limits(per_second=1e6, burst=1_000, connections_start=1, connections_max=1))
ATTEMPTS = "SELECT outcome, stage, code, source_ip, reply_signal FROM attempts ORDER BY started_at, fence"


async def refused(flow: DeliveryFlow, source: str = "127.0.0.1", *, to: Sequence[str] = ("ada@outlook.com",)) -> Any:
    """A message that was refused because of the address."""
    flow.receiver.blocked.add(source)
    message_id = await flow.steps.accept(to)
    await flow.run_due()
    return message_id


async def pass_hours(flow: DeliveryFlow, hours: float, *, step_minutes: float = 15.0) -> None:
    end = flow.clock.now() + timedelta(hours=hours)
    while (rest := end - flow.clock.now()) > timedelta(0):
        flow.clock.advance(min(rest, timedelta(minutes=step_minutes)))
        await flow.run_due()


async def test_a_refused_address_bounces_nothing_and_the_mail_is_sent_when_the_block_ends(flow: DeliveryFlow) -> None:
    message_id = await refused(flow)
    timeline = await Monitor(context(flow.steps.database, flow.clock)).timeline(id_text(MESSAGE, message_id))
    wait = timeline.wait(timeline.recipients[0])
    assert wait is not None
    assert (wait.reason, "(S3150)" in wait.text, "it bounces at 2" in wait.text) == ("blocked", True, True)
    assert timeline.explained(timeline.recipients[0]).reason == "blocklisted"
    # No attempt is counted, there is no event, and the customer sees it queued.
    assert await flow.recipients(message_id) == [(0, "queued", "reserved", 0, None, None)]
    assert await flow.steps.fetch(ATTEMPTS) == [("postponed", "mail", 550, None, "block:address")]
    assert await flow.steps.value("SELECT count(*) FROM events") == 0
    commands = len(flow.receiver.commands)
    await pass_hours(flow, 0.9)
    assert len(flow.receiver.commands) == commands, "nothing asks before the lane's time"
    flow.receiver.blocked.clear()
    await pass_hours(flow, 0.5)
    assert await flow.statuses(message_id) == ["delivered"]
    assert [mail.recipient for mail in flow.receiver.accepted] == ["ada@outlook.com"]
    assert (await flow.recipients(message_id))[0][3] == 1
    assert await flow.steps.value("SELECT count(*) FROM events") == 1


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_a_lasting_block_bounces_the_mail_after_four_hours_with_the_first_reply(
    flow: DeliveryFlow, is_suspended: bool
) -> None:
    message_id = await refused(flow)
    began_at = flow.clock.now()
    if is_suspended:
        await flow.steps.suspend()
    await pass_hours(flow, 3.9)
    assert await flow.statuses(message_id) == ["queued"]
    await pass_hours(flow, 0.2, step_minutes=5)
    ((_, status, billing, attempts, code, response),) = await flow.recipients(message_id)
    assert (status, billing, attempts, code) == ("bounced", "released", 0, 550)
    assert "(S3150)" in response
    bounced_at = await flow.steps.value("SELECT bounced_at FROM recipients WHERE message_id = $1", message_id)
    assert timedelta(hours=4) <= bounced_at - began_at <= timedelta(hours=4, minutes=5)
    assert await flow.steps.value("SELECT count(*) FROM events WHERE type = 'email.bounced'") == 1
    assert await flow.steps.value("SELECT count(*) FROM suppressions") == 0
    # It was asked after one hour and after three.
    assert [row[0] for row in await flow.steps.fetch(ATTEMPTS)] == ["postponed"] * (1 if is_suspended else 3)


async def test_the_first_reply_counts_whatever_came_after_it(flow: DeliveryFlow) -> None:
    message_id = await refused(flow)
    flow.receiver.blocked.clear()
    flow.serve("outlook.com", address="127.0.0.3")  # no server
    await pass_hours(flow, 4.2)
    ((_, status, _, attempts, code, response),) = await flow.recipients(message_id)
    assert (status, code) == ("bounced", 550)
    assert "(S3150)" in response
    assert attempts > 0, "no connection is an attempt like any other"


async def test_every_recipient_of_a_refused_message_is_held(flow: DeliveryFlow) -> None:
    message_id = await refused(flow, to=["ada@outlook.com", "bob@outlook.com", "eve@simulator.invalid"])
    assert await flow.statuses(message_id) == ["queued", "queued", "delivered"]
    assert await flow.steps.value("SELECT count(DISTINCT next_at) FROM delivery_schedule") == 2, "not due together"
    await pass_hours(flow, 4.2)
    assert await flow.statuses(message_id) == ["bounced", "bounced", "delivered"]
    assert await flow.message(message_id) == ("partial", "settled")


async def test_mail_that_waits_behind_a_refused_one_takes_another_address(database_url: str) -> None:
    """And so does new mail at a worker that starts during the block."""
    async with open_delivery_flow(database_url, lane_limits=ONE_AT_A_TIME) as flow:
        flow.serve("outlook.com")
        addresses = SendingAddresses(context(flow.steps.database, flow.clock))
        for number in (7, 8):
            await addresses.add(f"127.0.0.{number}", f"mta{number}.example.com", is_warm=True)
        await flow.delivery.read_routes()
        first = await sources(flow, "ada@outlook.com")
        flow.receiver.blocked |= first
        message_ids = [await flow.steps.accept([f"r{number}@outlook.com"]) for number in range(4)]
        await flow.run_due()
        statuses = sorted([(await flow.statuses(message_id))[0] for message_id in message_ids])
        assert statuses == ["delivered"] * 3 + ["queued"]
        assert {mail.source for mail in flow.receiver.accepted[1:]} == {"127.0.0.7", "127.0.0.8"} - first
        started = flow.another_worker()
        await started.synchronize_learned_limits()
        await started.read_routes()
        await started.renew()
        flow.delivery = started
        assert await sources(flow, "eve@outlook.com") == {"127.0.0.7", "127.0.0.8"} - first


async def sources(flow: DeliveryFlow, to: str) -> set[str]:
    """From which of our addresses a new message comes immediately."""
    before = len(flow.receiver.accepted)
    await flow.steps.accept([to])
    await flow.run_due()
    return {mail.source for mail in flow.receiver.accepted[before:] if mail.source}


async def held_at(flow: DeliveryFlow, addresses: SendingAddresses) -> tuple[Any, str]:
    """A message that was refused, and at which of two addresses."""
    for number in (7, 8):
        await addresses.add(f"127.0.0.{number}", f"mta{number}.example.com")
    await flow.delivery.read_routes()
    flow.receiver.blocked.add("127.0.0.7")
    held = await refused(flow, "127.0.0.8")
    ((_, _, _, source, _),) = await flow.steps.fetch(ATTEMPTS)
    return held, source


async def test_a_held_message_waits_for_its_address_and_new_mail_takes_another(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    held, source = await held_at(flow, addresses)
    flow.receiver.blocked = {source}
    new = await flow.steps.accept(["bob@outlook.com"])
    await pass_hours(flow, 0.5)
    assert (await flow.statuses(held), await flow.statuses(new)) == (["queued"], ["delivered"])
    assert {mail.source for mail in flow.receiver.accepted} == {"127.0.0.7", "127.0.0.8"} - {source}
    flow.receiver.blocked.clear()
    await pass_hours(flow, 1)
    assert await flow.statuses(held) == ["delivered"]
    assert flow.receiver.accepted[-1].source == source


async def test_mail_whose_address_is_gone_bounces_in_time(flow: DeliveryFlow, addresses: SendingAddresses) -> None:
    held, source = await held_at(flow, addresses)
    await addresses.retire(source)
    await flow.delivery.read_routes()
    flow.receiver.blocked.clear()
    await pass_hours(flow, 4.2)
    assert await flow.statuses(held) == ["bounced"]
    assert flow.receiver.accepted == []


async def test_a_block_warns_once_with_the_page_for_its_removal(flow: DeliveryFlow) -> None:
    with capture_logs() as logs:
        await flow.steps.accept(["ben@outlook.com"])
        await refused(flow)
        await pass_hours(flow, 4.2)
    (warning,) = [entry for entry in logs if entry["event"] == "address_blocked"]
    assert (warning["lane"], warning["address"]) == ("microsoft", None)
    assert "(S3150)" in warning["reply"]
    assert warning["page"] == "https://go.microsoft.com/fwlink/?LinkID=614866"
