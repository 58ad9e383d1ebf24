"""Alerts on a real database: mailed once to those who chose them, also after a crash, by one process of several."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from posthouse.flows.accept.service_mailer import ServiceMailer
from posthouse.flows.account.alerts import Alerts
from posthouse.flows.operate.alert_check import REFUSALS_A_RUN_MAX, AlertCheck, AlertRun
from posthouse.flows.shared.principal import Member
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.flows.webhooks.failing_notices import FailingNotices
from posthouse.rules.alert import AlertKind
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import users
from posthouse.store.users import UserRow
from tests.support.accept_flow import Sender, new_id
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps

URL = "https://hooks.example.com/x"


class Crash(Exception):  # noqa: N818
    """The process ends here."""


@dataclass
class InterruptedMail:
    """The real service mail, and a process that ends right after its mail was accepted, or a sender that refuses."""

    mail: ServiceMail
    crashes: int = 0
    refuses: bool = False
    asked: int = 0

    def require(self) -> None:
        self.mail.require()

    async def is_sent_by(self, account_id: AccountId) -> bool:
        return await self.mail.is_sent_by(account_id)

    async def check(self, *, is_invitation: bool = False) -> None:
        await self.mail.check(is_invitation=is_invitation)

    async def send(
        self, to: str, subject: str, text: str, *, key: str | None = None, inviter: AccountId | None = None
    ) -> None:
        self.asked += 1
        if self.refuses:
            raise Refusal(Code.SERVICE_UNAVAILABLE, "no")
        await self.mail.send(to, subject, text, key=key, inviter=inviter)
        if self.crashes:
            self.crashes -= 1
            raise Crash


@dataclass
class AlertFlow:
    steps: DeliverySteps
    service: Sender
    mail: InterruptedMail
    opened: int = 0
    members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alerts = Alerts(context(self.steps.database, self.steps.clock), service_mail=self.mail)

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    def check(self) -> AlertCheck:
        @asynccontextmanager
        async def open_mail() -> AsyncIterator[ServiceMail]:
            self.opened += 1
            yield self.mail

        return AlertCheck(
            context(self.steps.database, self.steps.clock), open_service_mail=open_mail, accounts_a_step=2
        )

    async def member(self, name: str, role: Role = Role.VIEWER, account_id: AccountId | None = None) -> Member:
        account_id = account_id or self.account_id
        now = self.steps.clock.now()
        user = UserRow(UserId(new_id(now)), f"{name}@example.com", now, "hash")
        async with self.steps.database.transaction() as tx:
            assert await users.insert(tx, user)
            await users.join_account(tx, account_id, user.id, role, now)
        return Member(account_id, user.id, role, user.email, SessionId(new_id(now)))

    async def choose(self, member: Member, **thresholds: float | None) -> None:
        await self.alerts.save(member, list(thresholds.items()))

    async def credits(self, available: int, account_id: AccountId | None = None) -> None:
        await self.steps.fetch(
            "UPDATE accounts SET available = $2 WHERE id = $1", account_id or self.account_id, available
        )

    async def run(self) -> AlertRun:
        self.steps.clock.advance(timedelta(minutes=1))
        return await self.check().run()

    async def mailed(self) -> list[tuple[str, str]]:
        """Addresses and subjects, in order."""
        rows = await self.steps.fetch(
            "SELECT r.email, m.subject FROM recipients r JOIN messages m ON m.id = r.message_id"
            " AND m.account_id = r.account_id WHERE r.account_id = $1 ORDER BY m.id",
            self.service.account_id,
        )
        return [(email.partition("@")[0], subject.partition(":")[0]) for email, subject in rows]


@pytest.fixture
async def flow(steps: DeliverySteps) -> AlertFlow:
    service = await steps.another_sender("service")
    mailer = ServiceMailer(
        context(steps.database, steps.clock),
        intake=steps.accept_flow.intake,
        sender=f"Posthouse <no-reply@{service.domain}>",
        account="service",
    )
    return AlertFlow(steps, service, InterruptedMail(mailer))


@pytest.mark.rule("ALT-04")
async def test_an_alert_is_mailed_once_raised_and_once_cleared(flow: AlertFlow) -> None:
    assert await flow.run() == AlertRun()
    ada, bob, other = [await flow.member(name) for name in ("ada", "bob", "other")]
    await flow.credits(5_000)
    await flow.choose(ada, credits_left=1_000)
    await flow.choose(bob, credits_left=100)
    await flow.choose(other, bounce_share=None)
    assert await flow.run() == AlertRun()
    assert flow.opened == 0, "nothing to mail"
    await flow.credits(900)
    assert await flow.run() == AlertRun(raised=1, mailed=1)
    await flow.credits(1_100)
    assert await flow.run() == AlertRun(), "not well away from the threshold"
    await flow.credits(50)
    assert await flow.run() == AlertRun(raised=1, mailed=1)
    await flow.credits(5_000)
    assert await flow.run() == AlertRun(cleared=2, mailed=2)
    assert await flow.run() == AlertRun()
    mailed = await flow.mailed()
    assert mailed[:2] == [("ada", "Alert"), ("bob", "Alert")]
    assert sorted(mailed[2:]) == [("ada", "Cleared"), ("bob", "Cleared")]


async def test_after_a_crash_the_email_is_neither_lost_nor_duplicated(flow: AlertFlow) -> None:
    for number in range(3):
        await flow.choose(await flow.member(f"m{number}"), credits_left=1_000)
    await flow.credits(10)
    flow.mail.crashes = 2
    for _ in range(2):
        with pytest.raises(Crash):
            await flow.run()
    assert await flow.run() == AlertRun(mailed=3)
    assert sorted(await flow.mailed()) == [(f"m{number}", "Alert") for number in range(3)]
    # Tried, of unknown fate, and too old for its idempotency key: not offered again.
    await flow.credits(5_000)
    flow.mail.crashes = 1
    with pytest.raises(Crash):
        await flow.run()
    flow.steps.clock.advance(timedelta(hours=24))
    assert (await flow.run()).mailed == 2
    assert len(await flow.mailed()) == 6


async def test_a_sender_that_refuses_is_tried_again_later(flow: AlertFlow) -> None:
    for number in range(REFUSALS_A_RUN_MAX + 2):
        await flow.choose(await flow.member(f"m{number}"), credits_left=1_000)
    await flow.credits(10)
    flow.mail.refuses = True
    assert await flow.run() == AlertRun(raised=REFUSALS_A_RUN_MAX + 2)
    assert flow.mail.asked == REFUSALS_A_RUN_MAX
    flow.steps.clock.advance(timedelta(hours=30))
    flow.mail.refuses = False
    assert (await flow.run()).mailed == REFUSALS_A_RUN_MAX + 2
    await flow.credits(5_000)
    flow.mail.refuses = True
    await flow.run()
    flow.steps.clock.advance(timedelta(days=4))
    flow.mail.refuses = False
    assert (await flow.run()).mailed == 0


async def test_of_several_processes_one_checks(flow: AlertFlow) -> None:
    for number in range(5):
        sender = await flow.steps.another_sender(f"more{number}")
        member = await flow.member(f"m{number}", account_id=AccountId(sender.account_id))
        await flow.choose(member, credits_left=1_000)
        await flow.credits(10, AccountId(sender.account_id))
    runs = await asyncio.gather(*(flow.check().run() for _ in range(4)))
    assert sum(run.raised for run in runs) == sum(run.mailed for run in runs) == 5
    assert len(await flow.mailed()) == 5


async def test_an_alert_that_is_raised_when_chosen_is_shown_and_not_sent(flow: AlertFlow) -> None:
    ada = await flow.member("ada")
    await flow.credits(10)
    await flow.choose(ada, credits_left=1_000)
    assert await flow.run() == AlertRun()
    (raised,) = [alert.raised for alert in await flow.alerts.alerts_of(ada) if alert.kind is AlertKind.CREDITS_LEFT]
    assert len(raised) == 1
    await flow.choose(ada, credits_left=5)
    assert [alert.raised for alert in await flow.alerts.alerts_of(ada) if alert.raised] == []
    await flow.credits(4)
    assert await flow.run() == AlertRun(raised=1, mailed=1)
    await flow.choose(ada, credits_left=5)
    await flow.credits(5_000)
    assert await flow.run() == AlertRun(cleared=1, mailed=1), "saved as it was, it stays raised"


@pytest.mark.rule("ALT-06")
async def test_a_choice_given_up_and_a_member_removed_end_state_and_notice(flow: AlertFlow) -> None:
    ada, bob = [await flow.member(name) for name in ("ada", "bob")]
    await flow.choose(ada, credits_left=1_000)
    await flow.choose(bob, credits_left=1_000)
    await flow.credits(10)
    flow.mail.refuses = True
    assert (await flow.run()).raised == 2
    await flow.choose(ada)
    async with flow.steps.database.transaction() as tx:
        await tx.execute("DELETE FROM memberships WHERE user_id = $1", bob.user_id)
    flow.mail.refuses = False
    assert await flow.run() == AlertRun()
    assert await flow.mailed() == []


@pytest.mark.rule("ALT-05", "HOOK-19")
async def test_owners_who_chose_the_webhook_alert_get_only_that_email(flow: AlertFlow) -> None:
    chose, silent, late = [await flow.member(name, Role.OWNER) for name in ("chose", "silent", "late")]
    await flow.choose(chose, webhook_failing=None)
    failing = """
        INSERT INTO endpoints (account_id, id, url, types, enabled, secret_sealed, created_at, updated_at,
            failing_since)
        VALUES ($1, $1, $2, '{email.failed}', true, '', $3, $3, $3)
    """
    await flow.steps.fetch(failing, flow.account_id, URL, flow.steps.clock.now() - timedelta(days=3))
    assert await flow.run() == AlertRun()
    notices = FailingNotices(context(flow.steps.database, flow.steps.clock), service_mail=flow.mail)
    await notices.send(flow.account_id, flow.account_id, URL)
    await flow.choose(late, webhook_failing=None)
    assert await flow.run() == AlertRun(raised=1, mailed=1)
    assert sorted(address for address, _ in await flow.mailed()) == ["chose", "late", "silent"]
    await flow.steps.fetch("UPDATE endpoints SET failing_since = NULL, failing_noted_at = NULL")
    assert await flow.run() == AlertRun(cleared=2, mailed=2)
    assert silent.email not in [address for address, _ in (await flow.mailed())[3:]]


# An alert of each kind.
TROUBLE = (
    """INSERT INTO usage_days (account_id, day, accepted, delivered, bounced)
       VALUES ($1, $2::date, 0, 1900, 100), ($1, $2::date - 3, 999999, 0, 0)""",
    """INSERT INTO suppressions (account_id, email, reason, at)
       SELECT $1, n || '@x.example', 'complaint', $2 FROM generate_series(1, 4) n""",
    """INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)
       VALUES ($1, $3, 0, 'x', $2::timestamptz + interval '1 day')""",
    "UPDATE domains SET verified_at = $2, checked_at = $2, missing_since = $2 WHERE account_id = $1",
    """INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, expires_at,
           replaced_by)
       SELECT account_id, gen_random_uuid(), id, gen_random_uuid()::text::bytea, 'ph_live_…abcd', given.name, 'live',
           $2, $2::timestamptz + interval '3 days', given.replaced_by
       FROM credentials, (VALUES ('ends soon', NULL), ('was rotated', gen_random_uuid())) given(name, replaced_by)
       WHERE account_id = $1 AND is_default""",
)


async def test_every_kind_is_read_for_its_own_account(flow: AlertFlow) -> None:
    ada = await flow.member("ada")
    other_sender = await flow.steps.another_sender("other")
    bob = await flow.member("bob", account_id=AccountId(other_sender.account_id))
    for member in (ada, bob):
        await flow.credits(10**6, member.account_id)
        await flow.choose(member, **dict.fromkeys(AlertKind, None))
    now = flow.steps.clock.now()
    account, waiting = flow.account_id, new_id(now - timedelta(hours=5))
    for statement in TROUBLE:
        await flow.steps.fetch(statement, account, now, *([waiting] if "$3" in statement else []))
    await flow.credits(900)
    run = await flow.run()
    found = {alert.kind: alert for alert in await flow.alerts.alerts_of(ada)}
    raised = {kind: [state.label for state in alert.raised] for kind, alert in found.items() if alert.raised}
    domains = [name for (name,) in await flow.steps.fetch("SELECT name FROM domains WHERE account_id = $1", account)]
    assert raised == {
        AlertKind.BOUNCE_SHARE: [""],
        AlertKind.COMPLAINT_SHARE: [""],
        AlertKind.OLDEST_WAITING: [""],
        AlertKind.CREDITS_LEFT: [""],
        AlertKind.DAYS_LEFT: [""],
        AlertKind.RECORDS_MISSING: domains,
        AlertKind.KEY_EXPIRING: ["ends soon (ph_live_…abcd)"],
    }
    assert run.raised == run.mailed == 6 + len(domains)
    assert [alert.raised for alert in await flow.alerts.alerts_of(bob) if alert.raised] == []
    assert {address for address, _ in await flow.mailed()} == {"ada"}
    # A domain that lost its records for too long is unverified, and not well again.
    await flow.steps.fetch("UPDATE domains SET verified_at = NULL, missing_since = NULL WHERE account_id = $1", account)
    assert (await flow.run()).cleared == 0
    await flow.steps.fetch("UPDATE domains SET verified_at = $2 WHERE account_id = $1", account, now)
    await flow.steps.fetch("UPDATE api_keys SET revoked_at = $2 WHERE account_id = $1", account, now)
    assert (await flow.run()).cleared == 1 + len(domains)


@pytest.mark.rule("ALT-02")
async def test_without_a_sender_no_alert_can_be_chosen(flow: AlertFlow) -> None:
    flow.mail.mail = NoServiceMail()
    ada = await flow.member("ada")
    with pytest.raises(Refusal) as refused:
        await flow.choose(ada, credits_left=1_000)
    assert refused.value.code is Code.CONFLICT
    await flow.choose(ada)
