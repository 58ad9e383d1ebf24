"""Mail that is refused because of our address leaves over the pool's relay; on real sockets."""

import pytest

from posthouse.flows.deliver.reroute import RerouteSettings
from posthouse.flows.operate.relays import Relays
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.randomness import SystemRandomness
from posthouse.rules.reroute import RerouteMode
from posthouse.store.seal import Sealer
from tests.support.certificates import NAME, Certificates
from tests.support.context import context
from tests.support.delivery_flow import open_delivery_flow
from tests.support.service import service_settings
from tests.support.smtp_receiver import SmtpReceiver

FIRST = "127.0.1.1"


@pytest.mark.parametrize("mode", RerouteMode)
async def test_a_refused_message_leaves_over_the_relay_only_where_the_operator_chose_it(
    database_url: str, mode: RerouteMode
) -> None:
    certificates = Certificates.make()
    secrets = service_settings(database_url).secrets
    sealer = Sealer(secrets.seal_key_bytes, secrets.seal_key_active)
    async with (
        open_delivery_flow(database_url, certificates=certificates, reroute=RerouteSettings(mode)) as flow,
        SmtpReceiver("starttls--auth-plain", certificates=certificates) as relay,
    ):
        flow.serve("outlook.com")
        flow.nameserver.records[NAME, "A"] = ["127.0.0.1"]
        database, randomness = flow.steps.database, SystemRandomness()
        addresses = SendingAddresses(context(database, flow.clock, randomness))
        await addresses.add(FIRST, "mta1.example.com", is_warm=True)
        relays = Relays(context(database, flow.clock, randomness, sealer=sealer))
        await relays.add("ses", NAME, port=relay.port, username="posthouse", password="secret", per_second=10.0)
        await relays.set_pool_relay("default", "ses")
        await flow.steps.fetch("UPDATE accounts SET tier = 'good'")
        await flow.delivery.read_routes()
        flow.receiver.blocked = {FIRST}
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
