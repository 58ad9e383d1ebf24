"""External relays: mail that no address of ours may send goes there, over real sockets and verified TLS."""

import base64
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from posthouse.flows.operate.relays import Relays
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.refusal import Refusal
from tests.flows.deliver.pool_relay import PASSWORD, relays_of, use_relay
from tests.support.certificates import NAME, Certificates
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.smtp_receiver import SmtpReceiver

LOGIN = base64.b64encode(f"\0posthouse\0{PASSWORD}".encode()).decode()
OFFERS = "starttls--auth-plain"


@pytest.fixture
async def flow(database_url: str, certificates: Certificates) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url, certificates=certificates) as flow:
        flow.serve("example.org", "example.net")
        yield flow


@pytest.fixture
async def relay(flow: DeliveryFlow, certificates: Certificates) -> AsyncIterator[SmtpReceiver]:
    """The relay of the pool `default`, which takes everything."""
    async with SmtpReceiver(OFFERS, certificates=certificates) as relay:
        await use_relay(flow, relay.port)
        yield relay


@pytest.fixture
def relays(flow: DeliveryFlow) -> Relays:
    return relays_of(flow)


async def attempts(flow: DeliveryFlow) -> list[tuple[object, ...]]:
    return await flow.steps.fetch("SELECT outcome, source_ip, relay, mx_host, stage FROM attempts ORDER BY started_at")


async def test_a_pool_without_addresses_sends_over_its_relay(flow: DeliveryFlow, relay: SmtpReceiver) -> None:
    message = await flow.steps.accept(["ada@example.org", "bob@example.net", "550-rcpt@example.net"])
    await flow.run_due()
    assert sorted(mail.recipient for mail in relay.accepted) == ["ada@example.org", "bob@example.net"]
    assert all(mail.tls for mail in relay.accepted)
    assert f"AUTH PLAIN {LOGIN}" in relay.commands
    assert flow.receiver.connections == 0
    assert await flow.statuses(message) == ["delivered", "delivered", "bounced"]
    expected = [("delivered", None, "ses", NAME, "dot")] * 2 + [("bounced", None, "ses", NAME, "rcpt")]
    assert Counter(await attempts(flow)) == Counter(expected)


async def test_addresses_that_may_send_come_before_the_relay(
    flow: DeliveryFlow, addresses: SendingAddresses, relay: SmtpReceiver
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await flow.delivery.read_routes()
    await flow.steps.accept(["ada@example.org"])
    await flow.run_due()
    assert [mail.source for mail in flow.receiver.accepted] == ["127.0.0.7"]
    await addresses.rest("127.0.0.7")
    await flow.delivery.read_routes()
    await flow.steps.accept(["ada@example.org"])
    await flow.run_due()
    assert [mail.recipient for mail in relay.accepted] == ["ada@example.org"]
    assert [row[1:3] for row in await attempts(flow)] == [("127.0.0.7", None), (None, "ses")]


@pytest.mark.parametrize(
    ("offers", "stage"),
    [
        ("auth-plain", "starttls"),
        ("starttls-untrusted--auth-plain", "starttls"),
        ("starttls-othername--auth-plain", "starttls"),
        ("starttls", "auth"),
        ("starttls--auth-refused", "auth"),
    ],
)
async def test_the_password_goes_over_verified_tls_only_and_without_a_login_nothing_is_lost(
    flow: DeliveryFlow, certificates: Certificates, offers: str, stage: str
) -> None:
    async with SmtpReceiver(offers, certificates=certificates) as relay:
        await use_relay(flow, relay.port)
        message = await flow.steps.accept(["ada@example.org"])
        await flow.run_due()
        assert relay.accepted == []
        assert (f"AUTH PLAIN {LOGIN}" in relay.commands) is (offers == "starttls--auth-refused")
    assert await flow.statuses(message) == ["deferred"]
    assert await attempts(flow) == [("deferred", None, "ses", NAME, stage)]


async def test_while_a_relay_is_down_its_mail_waits_and_then_arrives(
    flow: DeliveryFlow, certificates: Certificates
) -> None:
    async with SmtpReceiver(OFFERS, certificates=certificates) as relay:
        port = relay.port
    await use_relay(flow, port)
    messages = [await flow.steps.accept([f"ada{number}@example.org"]) for number in range(10)]
    for _ in range(20):
        await flow.run_due()
        flow.clock.advance(minutes=1)
    # The relay's lane pauses: few of them are tried.
    (tried,) = (await flow.steps.fetch("SELECT count(*) FROM attempts"))[0]
    assert tried < 20
    async with SmtpReceiver(OFFERS, port=port, certificates=certificates) as relay:
        for _ in range(30):
            flow.clock.advance(minutes=3)
            await flow.run_due()
        assert len(relay.accepted) == 10
    assert [await flow.statuses(message) for message in messages] == [["delivered"]] * 10


async def test_a_ticket_that_arrives_for_a_relay_of_another_pool_is_not_sent_there(
    flow: DeliveryFlow, relays: Relays, relay: SmtpReceiver
) -> None:
    await flow.steps.accept(["ada@example.org"])
    await flow.delivery.renew()
    await relays.set_pool_relay("default", None)
    await flow.delivery.read_routes()
    await flow.run_due()
    assert relay.accepted == []
    # Without relay and address, mail leaves from the machine's default address.
    assert len(flow.receiver.accepted) == 1


async def test_a_relay_in_use_can_t_be_removed_and_its_password_is_sealed(flow: DeliveryFlow, relays: Relays) -> None:
    await use_relay(flow, 587)
    with pytest.raises(Refusal, match="pool default uses"):
        await relays.remove("ses")
    (row,) = await relays.list_relays()
    assert PASSWORD.encode() not in row.password_sealed
    assert PASSWORD not in repr(row)
    await relays.set_pool_relay("default", None)
    await relays.remove("ses")
    assert await relays.list_relays() == []
    with pytest.raises(Refusal, match="no relay"):
        await relays.set_pool_relay("default", "ses")
