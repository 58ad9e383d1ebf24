"""The notice that a webhook endpoint fails: once in each period, to the owners by mail and in the audit log."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from posthouse.flows.accept.service_mailer import ServiceMailer
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.flows.webhooks.failing_notices import FailingNotices
from posthouse.rules.credential import Role
from posthouse.rules.endpoint import FAILING_AFTER
from posthouse.rules.ids import AccountId, UserId
from posthouse.store import users
from posthouse.store.users import UserRow
from tests.support.accept_flow import Sender, new_id
from tests.support.context import context
from tests.support.delivery_steps import open_delivery_steps
from tests.support.webhook_flow import NAME, WebhookFlow, open_webhook_flow

FAILS = "/status/500"
TEAM = {"olga": Role.OWNER, "otto": Role.OWNER, "adam": Role.ADMIN, "mia": Role.MEMBER, "vera": Role.VIEWER}


@dataclass
class NoticeFlow:
    webhooks: WebhookFlow
    service: Sender

    def use(self, service_mail: ServiceMail) -> None:
        steps = self.webhooks.steps
        notices = FailingNotices(context(steps.database, steps.clock), service_mail=service_mail)
        self.webhooks.notification = self.webhooks.another_worker(notices=notices)

    async def fail(self, sender: Sender | None = None) -> None:
        """One more event, which the endpoint fails to take."""
        await self.webhooks.add_event(sender=sender)
        await self.webhooks.run_due()

    async def mailed(self) -> list[str]:
        rows = await self.webhooks.steps.fetch(
            "SELECT email FROM recipients WHERE account_id = $1 ORDER BY email", self.service.account_id
        )
        return [email for (email,) in rows]

    async def noted(self, sender: Sender | None = None) -> list[tuple[str, str]]:
        return await self.webhooks.steps.fetch(
            "SELECT actor, target FROM audit_log WHERE account_id = $1 AND action = 'webhook.failing'",
            sender.account_id if sender else self.webhooks.account_id,
        )


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[NoticeFlow]:
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps, seconds_max=10.0) as webhook_flow:
        service = await steps.another_sender("service")
        for account_id in (webhook_flow.account_id, AccountId(service.account_id)):
            async with steps.database.transaction() as tx:
                now = steps.clock.now()
                for name, role in TEAM.items():
                    user = UserRow(UserId(new_id(now)), f"{name}-{account_id.hex[-4:]}@example.com", now, "hash")
                    assert await users.insert(tx, user)
                    await users.join_account(tx, account_id, user.id, role, now)
        made = NoticeFlow(webhook_flow, service)
        made.use(
            ServiceMailer(
                context(steps.database, steps.clock),
                intake=steps.accept_flow.intake,
                sender=f"Posthouse <no-reply@{service.domain}>",
                account="service",
            )
        )
        yield made


@pytest.mark.rule("ALT-05", "HOOK-19")
async def test_owners_get_one_email_in_each_period_of_failure(flow: NoticeFlow) -> None:
    webhook_flow = flow.webhooks
    end = f"-{webhook_flow.account_id.hex[-4:]}@example.com"
    await webhook_flow.subscribe(FAILS)
    await flow.fail()
    webhook_flow.clock.advance(FAILING_AFTER / 2)
    await flow.fail()
    assert (await flow.mailed(), await flow.noted()) == ([], [])
    webhook_flow.clock.advance(FAILING_AFTER / 2)
    await flow.fail()
    assert await flow.mailed() == [f"olga{end}", f"otto{end}"]
    assert await flow.noted() == [("posthouse", NAME)]
    webhook_flow.clock.advance(FAILING_AFTER)
    await flow.fail()
    assert len(await flow.mailed()) == 2

    await webhook_flow.steps.fetch("UPDATE endpoints SET url = $1", webhook_flow.url())
    await flow.fail()
    await webhook_flow.steps.fetch("UPDATE endpoints SET url = $1", webhook_flow.url(FAILS))
    await flow.fail()
    webhook_flow.clock.advance(FAILING_AFTER)
    await flow.fail()
    assert len(await flow.mailed()) == 4
    assert len(await flow.noted()) == 2


async def test_without_a_sender_only_the_audit_log_has_it(flow: NoticeFlow) -> None:
    flow.use(NoServiceMail())
    await flow.webhooks.subscribe(FAILS, is_answering=False)
    await flow.fail()
    flow.webhooks.clock.advance(FAILING_AFTER)
    await flow.fail()
    assert (await flow.mailed(), await flow.noted()) == ([], [("posthouse", NAME)])


async def test_the_account_that_sends_the_mail_gets_none_about_itself(flow: NoticeFlow) -> None:
    await flow.webhooks.subscribe(FAILS, sender=flow.service)
    await flow.fail(flow.service)
    flow.webhooks.clock.advance(FAILING_AFTER)
    await flow.fail(flow.service)
    assert set(await flow.mailed()) == {"r0@example.org"}, "the recipient of the events' own mail"
    assert await flow.noted(flow.service) == [("posthouse", NAME)]


async def test_a_failure_long_ago_without_calls_since_is_no_notice(flow: NoticeFlow) -> None:
    await flow.webhooks.subscribe(FAILS)
    await flow.fail()
    await flow.webhooks.steps.fetch("UPDATE endpoints SET url = $1", flow.webhooks.url())
    flow.webhooks.clock.advance(FAILING_AFTER)
    await flow.fail()
    assert (await flow.mailed(), await flow.noted()) == ([], [])
