"""Mail that is refused because of our address leaves over the pool's relay; on real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from posthouse.flows.deliver.reroute import RerouteSettings
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.reroute import PER_MINUTE_MAX, RerouteMode
from tests.flows.deliver.pool_relay import use_relay
from tests.support.certificates import Certificates
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.smtp_receiver import SmtpReceiver

FIRST = "127.0.1.1"


@asynccontextmanager
async def blocked_address(
    database_url: str, mode: RerouteMode
) -> AsyncIterator[tuple[DeliveryFlow, SmtpReceiver, SendingAddresses]]:
    """The pool's only address, which outlook.com refuses, and its relay, which takes everything."""
    certificates = Certificates.make()
    async with (
        open_delivery_flow(database_url, certificates=certificates, reroute=RerouteSettings(mode)) as flow,
        SmtpReceiver("starttls--auth-plain", certificates=certificates) as relay,
    ):
        flow.serve("outlook.com")
        addresses = SendingAddresses(context(flow.steps.database, flow.clock))
        await addresses.add(FIRST, "mta1.example.com", is_warm=True)
        await flow.steps.fetch("UPDATE accounts SET tier = 'good'")
        await use_relay(flow, relay.port)
        flow.receiver.blocked = {FIRST}
        yield flow, relay, addresses


@pytest.mark.parametrize("mode", RerouteMode)
async def test_a_refused_message_leaves_over_the_relay_only_where_the_operator_chose_it(
    database_url: str, mode: RerouteMode
) -> None:
    async with blocked_address(database_url, mode) as (flow, relay, addresses):
        message_id = await flow.steps.accept(["ada@outlook.com"])
        await flow.run_due()
        for _ in range(5):
            flow.clock.advance(seconds=1)
            await flow.run_due()
        is_sent = mode in (RerouteMode.POOL, RerouteMode.RELAY)
        expected = "delivered" if is_sent else "bounced" if mode is RerouteMode.OFF else "queued"
        assert await flow.statuses(message_id) == [expected]
        assert [mail.recipient for mail in relay.accepted] == ["ada@outlook.com"] * is_sent
        assert await flow.steps.fetch("SELECT from_ip, to_ip FROM reroutes") == [(FIRST, "relay:ses")] * is_sent
        last = await flow.steps.fetch("SELECT relay FROM attempts ORDER BY started_at DESC LIMIT 1")
        assert last == [("ses" if is_sent else None,)]
        # What waits does not take the relay when its address is gone.
        await addresses.rest(FIRST)
        await flow.delivery.read_routes()
        for _ in range(26):
            flow.clock.advance(minutes=10)
            await flow.run_due()
        assert await flow.statuses(message_id) == ["delivered" if is_sent else "bounced"]
        assert len(relay.accepted) == is_sent


async def test_a_message_to_many_leaves_over_the_relay_only_within_the_bounds(database_url: str) -> None:
    async with blocked_address(database_url, RerouteMode.RELAY) as (flow, _, _):
        message_id = await flow.steps.accept([f"r{number}@outlook.com" for number in range(PER_MINUTE_MAX + 5)])
        # The first recipient has had two tries, before the last minute.
        await flow.steps.fetch(
            "INSERT INTO reroutes (at, lane, from_ip, to_ip, account_id, message_id, position)"
            " SELECT $1, 'microsoft', '127.0.9.9', 'relay:ses', $2, $3, 0 FROM generate_series(1, 2)",
            flow.clock.now() - timedelta(minutes=2), flow.steps.sender.account_id, message_id,
        )  # fmt: skip
        await flow.run_due()
        rerouted = await flow.steps.fetch("SELECT position FROM reroutes WHERE from_ip = $1 ORDER BY 1", FIRST)
        assert rerouted == [(position,) for position in range(1, PER_MINUTE_MAX + 1)]
