"""Where mail leaves from: real sockets on several loopback addresses, and a receiver that notes who came."""

from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.ids import AccountId
from tests.support.delivery_flow import DeliveryFlow


async def sent(flow: DeliveryFlow, to: str = "ada@example.org") -> tuple[str, str] | None:
    """The source and the greeting of a new message; None if it did not arrive."""
    await flow.delivery.read_routes()
    before = len(flow.receiver.accepted)
    await flow.steps.accept([to])
    await flow.run_due()
    arrived = flow.receiver.accepted[before:]
    return (arrived[0].source, arrived[0].greeting) if arrived else None


async def sources(flow: DeliveryFlow) -> list[str | None]:
    return [source for (source,) in await flow.steps.fetch("SELECT source_ip FROM attempts ORDER BY started_at")]


async def test_mail_leaves_from_an_address_of_its_pool_as_the_attempt_says(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    assert await sent(flow) == ("127.0.0.7", "mta7.example.com")
    await addresses.add_pool("own")
    await addresses.add("127.0.0.8", "mta8.example.com", "own")
    await addresses.set_account_pool(AccountId(flow.steps.sender.account_id), "own")
    assert await sent(flow) == ("127.0.0.8", "mta8.example.com")
    await addresses.set_account_pool(AccountId(flow.steps.sender.account_id), None)
    assert await sent(flow) == ("127.0.0.7", "mta7.example.com")
    assert await sources(flow) == ["127.0.0.7", "127.0.0.8", "127.0.0.7"]


async def test_a_resting_address_sends_nothing_until_it_is_added_again(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await addresses.rest("127.0.0.7")
    assert await sent(flow) is None
    assert await flow.steps.fetch("SELECT attempt_count, fence FROM delivery_schedule") == [(0, 1)]
    assert await sources(flow) == []
    await addresses.add("127.0.0.7")
    await flow.delivery.read_routes()
    flow.clock.advance(minutes=2)
    await flow.run_due()
    assert [mail.source for mail in flow.receiver.accepted] == ["127.0.0.7"]


async def test_overflow_takes_the_mail_of_a_pool_whose_addresses_rest(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.8", "mta8.example.com")
    await addresses.add_pool("own", overflow="default")
    await addresses.add("127.0.0.7", "mta7.example.com", "own")
    await addresses.set_account_pool(AccountId(flow.steps.sender.account_id), "own")
    assert await sent(flow) == ("127.0.0.7", "mta7.example.com")
    await addresses.rest("127.0.0.7")
    assert await sent(flow) == ("127.0.0.8", "mta8.example.com")


async def test_a_worker_uses_no_address_of_another_machine(flow: DeliveryFlow, addresses: SendingAddresses) -> None:
    await addresses.add("192.0.2.1", "elsewhere.example.com")
    await addresses.add("127.0.0.7", "mta7.example.com")
    assert await sent(flow) == ("127.0.0.7", "mta7.example.com")


async def test_a_pool_whose_last_address_is_retired_sends_as_the_machine_does(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await addresses.retire("127.0.0.7")
    assert await sent(flow) == ("127.0.0.1", "out.posthouse.test")


async def test_a_worker_reads_its_addresses_before_its_first_mail(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await flow.steps.accept(["ada@example.org"])
    await flow.run_due()
    assert [mail.source for mail in flow.receiver.accepted] == ["127.0.0.7"]


async def test_mail_does_not_ask_the_database_for_its_route(flow: DeliveryFlow, addresses: SendingAddresses) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await flow.delivery.read_routes()
    await flow.steps.accept(["ada@example.org"])
    async with flow.steps.database.transaction() as tx:
        await tx.execute("LOCK TABLE sending_addresses, pools IN ACCESS EXCLUSIVE MODE")
        await flow.run_due()
        assert [mail.source for mail in flow.receiver.accepted] == ["127.0.0.7"]


async def test_a_greylisted_message_is_retried_from_the_same_address(
    flow: DeliveryFlow, addresses: SendingAddresses
) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await flow.delivery.read_routes()
    await flow.steps.accept(["greylist@example.org"])
    await flow.run_due()
    assert await flow.steps.fetch("SELECT attempt_count, source_ip FROM delivery_schedule") == [(1, "127.0.0.7")]
    # Of four new addresses one would be preferred by now.
    for number in range(8, 16):
        await addresses.add(f"127.0.0.{number}", f"mta{number}.example.com")
    preferred = await sent(flow)
    assert preferred is not None
    assert preferred[0] != "127.0.0.7", "the test needs a sender that prefers another"
    for _ in range(2):
        flow.clock.advance(minutes=6)
        await flow.run_due()
    assert [mail.source for mail in flow.receiver.accepted if mail.recipient.startswith("greylist")] == ["127.0.0.7"]
