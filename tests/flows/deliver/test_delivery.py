"""Delivery from end to end in one process: due mail is sent, and its outcome recorded."""

from collections.abc import Sequence

from posthouse.flows.shared.claims import STORAGE_AWAY_SECONDS
from posthouse.flows.shared.tickets import HeldTickets, Tickets
from posthouse.rules import limits
from posthouse.rules.lane import LaneLimits
from posthouse.rules.ticket import DeliveryTicket, pack, shard_of
from posthouse.wire.stream import TicketKind
from tests.flows.moving_leases import MovedLeases
from tests.support.accept_flow import SIMULATOR
from tests.support.delivery_flow import SHARDS, DeliveryFlow
from tests.support.eventually import eventually
from tests.support.nameserver import SILENT


async def test_a_message_to_two_domains_arrives_once_at_each_recipient(flow: DeliveryFlow) -> None:
    message = await flow.steps.accept(["ada@example.org", "bob@example.org", "cy@example.net"])
    assert await flow.run_due() == 3
    assert await flow.statuses(message) == ["delivered"] * 3
    assert await flow.message(message) == ("delivered", "settled")
    accepted = sorted((mail.recipient, mail.transaction) for mail in flow.receiver.accepted)
    assert [recipient for recipient, _ in accepted] == ["ada@example.org", "bob@example.org", "cy@example.net"]
    # Two recipients of one domain share a transaction.
    assert accepted[0][1] == accepted[1][1]
    assert await flow.run_due() == 0


async def test_a_message_of_several_tickets_is_answered_with_the_last(flow: DeliveryFlow) -> None:
    """One of the two hangs for a while; until it ends, the stream keeps the message for both."""
    flow.nameserver.script["slow.example.org"] = SILENT
    await flow.steps.accept(["ada@example.org"])
    await flow.steps.accept(["bob@slow.example.org"])
    first_ticket, second_ticket = await flow.steps.lease()
    flow.stream.publish(TicketKind.DELIVER, 0, pack([first_ticket, second_ticket]))
    await flow.delivery.renew()
    (message,) = await flow.stream.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0)
    await flow.delivery.offer([message])

    async def accepted() -> int:
        return len(flow.receiver.accepted)

    await eventually(accepted, bool)
    assert await flow.stream.backlog(TicketKind.DELIVER) == 1
    await flow.delivery.settle()
    assert await flow.stream.backlog(TicketKind.DELIVER) == 0
    statuses = await flow.steps.fetch("SELECT status FROM recipients ORDER BY email")
    assert statuses == [("delivered",), ("deferred",)]


async def test_a_ticket_given_back_repeats_its_message_but_no_delivery(flow: DeliveryFlow) -> None:
    await flow.steps.accept(["ada@example.org"])
    await flow.steps.accept(["bob@example.net"])
    first_ticket, second_ticket = await flow.steps.lease()
    flow.stream.publish(TicketKind.DELIVER, 0, pack([first_ticket, second_ticket]))
    (message,) = await flow.stream.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0)
    held = HeldTickets(DeliveryTicket, flow.clock.monotonic)
    first, second = await held.take_tickets([message])
    await held.release_tickets([second])
    await held.acknowledge([first])
    await flow.delivery.renew()
    assert await flow.deliver_fetched() == 2
    assert await flow.deliver_fetched() == 0
    assert len(flow.receiver.accepted) == 2


async def test_no_transaction_records_more_recipients_than_it_may(flow: DeliveryFlow) -> None:
    for number in range(6):
        await flow.steps.accept([f"r{number}-{place}@{SIMULATOR}" for place in range(limits.RECIPIENTS_MAX)])
    assert await flow.run_due() == 300
    recorded = [count for (count,) in await flow.steps.fetch("SELECT count(*) FROM attempts GROUP BY xmin::text")]
    assert sum(recorded) == 300
    assert max(recorded) <= limits.GROUP_COMMIT_RECIPIENTS_MAX


async def test_an_account_with_few_recipients_does_not_wait_behind_accounts_with_many(flow: DeliveryFlow) -> None:
    many = [f"r{place}@{SIMULATOR}" for place in range(limits.RECIPIENTS_MAX)]
    for number in range(6):
        sender = await flow.steps.another_sender(f"large{number}")
        for _ in range(2):
            await flow.steps.accept(many, sender=sender)
    few = [await flow.steps.accept([f"ada@{SIMULATOR}"]) for _ in range(10)]
    await flow.delivery.renew()
    await flow.dispatch.step()
    await flow.dispatch.step()
    assert await flow.deliver_fetched() == 610
    # The transactions that recorded them, in their order.
    rows = await flow.steps.fetch("SELECT message_id, xmin::text::bigint FROM attempts")
    recorded = sorted({transaction for _, transaction in rows})
    last = max(recorded.index(transaction) for message_id, transaction in rows if message_id in few)
    assert last <= 2
    assert len(recorded) > 4


async def test_a_locked_row_delays_its_own_mail_and_no_other_of_the_batch(flow: DeliveryFlow) -> None:
    messages = [await flow.steps.accept([f"{name}@example.org"]) for name in ("ada", "bob", "cy")]
    await flow.delivery.renew()
    await flow.dispatch.step()
    async with flow.steps.database.transaction() as tx:
        await tx.execute("SELECT 1 FROM delivery_schedule WHERE message_id = $1 FOR UPDATE", messages[1])
        await flow.deliver_fetched()
        assert [await flow.statuses(message) for message in messages] == [["delivered"], ["queued"], ["delivered"]]
    # Its ticket was given back for a moment, and is still valid.
    flow.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    await flow.deliver_fetched()
    assert [await flow.statuses(message) for message in messages] == [["delivered"]] * 3
    assert [attempts for _, _, _, attempts, _, _ in await flow.recipients(messages[1])] == [1]
    assert len(flow.receiver.accepted) == 3


class UnforwardedTickets(Tickets):
    def forward(self, tickets: Sequence[DeliveryTicket], lane: str, shard: int) -> None:
        raise RuntimeError(f"{len(tickets)} tickets for shard {shard} of {lane} can't be published")


async def test_a_decision_that_fails_stops_no_other_mail(flow: DeliveryFlow) -> None:
    """The hosted domain's ticket can't be forwarded to the lane of its provider; the other domain's turn is next."""
    google = shard_of("google", SHARDS)
    own = next(name for name in map("{}.example.net".format, range(100)) if shard_of(name, SHARDS) != google)
    flow.serve("hosted.example", host="aspmx.l.google.com")
    flow.serve(own)
    worker = flow.another_worker(
        tickets=UnforwardedTickets(flow.stream, SHARDS),
        leases=MovedLeases(frozenset(range(SHARDS)) - {google}, places=SHARDS),
        limits=LaneLimits(),
    )
    await worker.renew()
    # In the first turn the names are looked up, each in its task; in the second they are known.
    for _ in range(2):
        await flow.steps.accept(["ada@hosted.example"])
        message_id = await flow.steps.accept([f"bob@{own}"])
        tickets = sorted(await flow.steps.lease(), key=lambda ticket: ticket.destination == own)
        flow.stream.publish(TicketKind.DELIVER, 0, pack(tickets))
        await worker.offer(await flow.stream.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0))
        await worker.settle()
        assert await flow.statuses(message_id) == ["delivered"]
    assert [mail.recipient for mail in flow.receiver.accepted] == [f"bob@{own}"] * 2
