"""Keys replaced while mail is on its way: every message that arrives verifies, retries with the new keys."""

from collections.abc import AsyncIterator, Mapping

import dkim as dkimpy
import pytest

from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.smtp_conversation import Delivered


@pytest.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org", "example.net")
        yield flow


async def records(flow: DeliveryFlow) -> Mapping[bytes, bytes]:
    """What the domain's owner is to have in DNS, of the keys that sign and of those that did."""
    (view,) = await flow.steps.operator.domains.all(AccountId(flow.steps.sender.account_id))
    return {f"{line.record.name}.".encode(): line.record.value.encode() for line in view.lines}


def verdicts(delivered: Delivered, zone: Mapping[bytes, bytes]) -> list[bool]:
    count = delivered.message.count(b"DKIM-Signature:")
    verified = dkimpy.DKIM(delivered.message).verify
    return [bool(verified(idx=number, dnsfunc=lambda asked, **_: zone.get(asked))) for number in range(count)]


async def switched(flow: DeliveryFlow) -> tuple[str, str]:
    """Replaces the keys of the sender's domain as an operator; returns the selectors before and after."""
    sender, domains = flow.steps.sender, flow.steps.operator.domains
    before = await domains.rotate(AccountId(sender.account_id), sender.domain, OPERATOR)
    after = await domains.verify(AccountId(sender.account_id), sender.domain, OPERATOR, vouched=True)
    return before.domain.selector, after.domain.selector


async def test_a_retry_after_the_keys_were_replaced_is_signed_with_the_new_ones(flow: DeliveryFlow) -> None:
    message = await flow.steps.accept(["greylist@example.org", "ada@example.net"])
    await flow.run_due()
    assert await flow.statuses(message) == ["deferred", "delivered"]
    old, new = await switched(flow)
    for _ in range(2):
        flow.clock.advance(hours=1)
        await flow.run_due()
    assert await flow.statuses(message) == ["delivered"] * 2
    zone = await records(flow)
    by_recipient = {row.recipient: row for row in flow.receiver.accepted}
    assert f"s={new};".encode() in by_recipient["greylist@example.org"].message
    assert f"s={old};".encode() in by_recipient["ada@example.net"].message
    assert [verdicts(recipient, zone) for recipient in by_recipient.values()] == [[True, True]] * 2


async def test_mail_of_a_domain_that_was_removed_goes_out_unsigned(flow: DeliveryFlow) -> None:
    sender = flow.steps.sender
    message = await flow.steps.accept(["ada@example.org"])
    await flow.steps.operator.domains.remove(AccountId(sender.account_id), sender.domain, OPERATOR)
    await flow.run_due()
    assert await flow.statuses(message) == ["delivered"]
    (mail,) = flow.receiver.accepted
    assert b"DKIM-Signature" not in mail.message
