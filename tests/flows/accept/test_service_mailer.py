"""The service's own mail: what invitations leave for it, and when it says that nothing can be sent."""

from dataclasses import dataclass
from typing import Any

import pytest

from posthouse.flows.accept.service_mailer import RESERVED_RECIPIENTS, ServiceMailer
from posthouse.rules import reputation as rules
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import reputation
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.reputation_flow import UNKNOWN

BURST = 40


@dataclass
class MailerFlow:
    steps: DeliverySteps
    mailer: ServiceMailer

    async def invite(self, to: str, inviter: AccountId) -> None:
        await self.mailer.send(to, "An invitation", "Come.", inviter=inviter)

    async def refused(self, *, is_invitation: bool = False) -> Code | None:
        try:
            await self.mailer.check(is_invitation=is_invitation)
        except Refusal as refusal:
            return refusal.code
        return None


@pytest.fixture
async def flow(steps: DeliverySteps) -> MailerFlow:
    await steps.operator.set_limits(steps.sender.account_id, rate=(1, BURST), warmup=())
    mailer = ServiceMailer(
        context(steps.database, steps.clock),
        intake=steps.accept_flow.intake,
        sender=steps.sender.draft(["x@example.org"]).sender.address,
        account="acme",
    )
    return MailerFlow(steps, mailer)


@pytest.mark.rule("TEAM-19")
async def test_invitations_leave_half_of_the_rate_to_other_mail(flow: MailerFlow) -> None:
    inviter = AccountId((await flow.steps.another_sender("beta")).account_id)
    invited = 0
    while await flow.refused(is_invitation=True) is None:
        await flow.invite(f"r{invited}@example.org", inviter)
        invited += 1
    assert invited == BURST // 2 + 1
    assert await flow.refused(is_invitation=True) is Code.RATE_LIMITED
    for number in range(BURST // 2 - 1):
        assert await flow.refused() is None
        await flow.mailer.send(f"u{number}@example.org", "A new password", "It is this.")
    # Its rate is used up: what can't wait for another request waits for the rate.
    assert await flow.refused() is None


@pytest.mark.parametrize("kind", ["credits", "warm-up"])
async def test_invitations_leave_credits_and_warm_up_to_other_mail(flow: MailerFlow, kind: str) -> None:
    account_id = flow.steps.sender.account_id
    left = RESERVED_RECIPIENTS - 1
    if kind == "credits":
        await flow.steps.fetch("UPDATE accounts SET available = $2 WHERE id = $1", account_id, left)
    else:
        await flow.steps.operator.set_limits(account_id, rate=(1, BURST), warmup=(left,))
    assert await flow.refused(is_invitation=True) is Code.SERVICE_UNAVAILABLE
    assert await flow.refused() is None


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE accounts SET suspended_at = now(), suspended_reason = 'why' WHERE name = 'acme'",
        "UPDATE accounts SET available = 0 WHERE name = 'acme'",
        "UPDATE domains SET verified_at = NULL",
        "UPDATE accounts SET name = 'another' WHERE name = 'acme'",
    ],
)
async def test_what_keeps_the_service_from_sending_is_known_before(flow: MailerFlow, spoil: str) -> None:
    assert await flow.refused() is None
    await flow.steps.fetch(spoil)
    await flow.steps.accept_flow.control_cache.forget_changes()
    flow.steps.accept_flow.control_cache.forget_domains(AccountId(flow.steps.sender.account_id))
    assert await flow.refused() is Code.SERVICE_UNAVAILABLE


async def test_the_result_of_an_invitation_counts_for_the_account_that_invites(flow: MailerFlow) -> None:
    steps = flow.steps
    inviter = AccountId((await steps.another_sender("beta")).account_id)
    results: list[tuple[str, Any]] = [
        ("gone@example.org", DeliveryResult.BOUNCED),
        ("ada@example.org", DeliveryResult.DELIVERED),
    ]
    for email, result in results:
        await flow.invite(email, inviter)
        (claimed,) = await steps.claim(await steps.lease())
        await steps.record(steps.outcome(claimed, result, **(UNKNOWN if result is DeliveryResult.BOUNCED else {})))
    since = steps.clock.now() - rules.WINDOW
    async with steps.database.connection() as connection:
        assert await reputation.invitation_figures(connection, inviter, since) == (2, 1, 0)
        assert await reputation.figures(connection, inviter, since) == (2, 1, 0)
        other = AccountId(steps.sender.account_id)
        assert await reputation.invitation_figures(connection, other, since) == (0, 0, 0)
    # In the lanes, other mail overtakes it.
    assert await steps.fetch("SELECT DISTINCT mailing_list FROM messages") == [("invitations",)]
