"""Notices of a login from a new place: which logins cause them, how many, and what they say."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import pytest_asyncio

from posthouse.flows.accept.service_mailer import ServiceMailer
from posthouse.flows.account.login_notices import LoginNotices
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.rules.ids import UserId
from posthouse.rules.login import LOCATIONS_KEPT, NOTICES_A_DAY_MAX
from posthouse.store import users
from posthouse.store.users import UserRow
from tests.support.accept_flow import AcceptFlow, Sender, new_id, new_sender, open_accept_flow
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.operator_client import Operator

HOME, NEAR, AWAY = "192.0.2.1", "192.0.2.77", "198.51.100.7"
FIREFOX, CURL = "Mozilla/5.0 (X11; rv:133.0) Gecko/20100101 Firefox/133.0", "curl/8.10.1"
DAY = timedelta(days=1)


@dataclass
class NoticeFlow:
    accept_flow: AcceptFlow
    clock: SettableClock
    service: Sender
    user: UserRow
    notices: LoginNotices

    def with_mail(self, service_mail: ServiceMail) -> LoginNotices:
        return LoginNotices(context(self.accept_flow.database, self.clock), service_mail=service_mail)

    async def login(self, peer: str, user_agent: str = FIREFOX) -> None:
        self.notices.note_login(self.user.id, self.user.email, peer, user_agent)
        await self.notices.settle()

    async def texts(self) -> list[str]:
        async with self.accept_flow.database.connection() as connection:
            rows = await connection.fetch(
                "SELECT convert_from(mime, 'UTF8') AS mime FROM bodies WHERE account_id = $1 ORDER BY message_id",
                self.service.account_id,
            )
        return [row["mime"] for row in rows]

    async def places(self) -> int:
        async with self.accept_flow.database.connection() as connection:
            count: int = await connection.fetchval("SELECT count(*) FROM known_login_locations")
        return count


@pytest_asyncio.fixture
async def flow(database_url: str, operator: Operator) -> AsyncIterator[NoticeFlow]:
    clock = SettableClock()
    async with open_accept_flow(database_url, clock) as accept_flow:
        service = await new_sender(operator, "service")
        user = UserRow(UserId(new_id(clock.now())), "ada@example.com", clock.now(), "hash")
        async with accept_flow.database.transaction() as tx:
            assert await users.insert(tx, user)
        mailer = ServiceMailer(
            context(accept_flow.database, clock),
            intake=accept_flow.intake,
            sender=f"Posthouse <no-reply@{service.domain}>",
            account="service",
        )
        notices = LoginNotices(context(accept_flow.database, clock), service_mail=mailer)
        yield NoticeFlow(accept_flow, clock, service, user, notices)


@pytest.mark.rule("SES-12")
async def test_a_new_network_or_program_is_a_notice_and_a_known_one_is_not(flow: NoticeFlow) -> None:
    await flow.login(HOME)
    assert await flow.texts() == [], "the very first login"
    await flow.login(NEAR)
    await flow.login(HOME, FIREFOX.replace("133", "134"))
    assert await flow.texts() == []
    await flow.login(AWAY)
    (text,) = await flow.texts()
    assert f"Address: {AWAY}" in text
    assert "Program: Firefox" in text
    assert flow.clock.now().strftime("Time: %Y-%m-%d %H:%M UTC") in text
    assert "/v1/auth/sessions" in text
    assert "To: ada@example.com" in text
    await flow.login(HOME, CURL)
    assert len(await flow.texts()) == 2
    for peer, user_agent in ((HOME, FIREFOX), (AWAY, FIREFOX), (HOME, CURL)):
        flow.clock.advance(DAY * 30)
        await flow.login(peer, user_agent)
    assert len(await flow.texts()) == 2


async def test_a_user_gets_few_notices_a_day_however_many_places(flow: NoticeFlow) -> None:
    await flow.login(HOME)
    for number in range(LOCATIONS_KEPT * 2):
        await flow.login(f"203.0.{number}.1", f"program{number}/1")
        flow.clock.advance(seconds=1)
    assert len(await flow.texts()) == NOTICES_A_DAY_MAX
    assert await flow.places() == LOCATIONS_KEPT
    flow.clock.advance(DAY)
    await flow.login(AWAY)
    assert len(await flow.texts()) == NOTICES_A_DAY_MAX + 1


async def test_two_logins_at_once_from_a_new_place_are_one_notice(flow: NoticeFlow) -> None:
    await flow.login(HOME)
    await asyncio.gather(*(flow.login(AWAY) for _ in range(10)))
    assert len(await flow.texts()) == 1


async def test_without_a_sender_places_are_still_stored(flow: NoticeFlow) -> None:
    mailing, flow.notices = flow.notices, flow.with_mail(NoServiceMail())
    await flow.login(HOME)
    await flow.login(AWAY)
    flow.notices = mailing
    await flow.login(AWAY)
    assert (await flow.texts(), await flow.places()) == ([], 2)


async def test_many_notes_at_once_are_bounded_and_never_raise(flow: NoticeFlow) -> None:
    await flow.login(HOME)
    for number in range(300):
        flow.notices.note_login(flow.user.id, flow.user.email, f"203.0.{number % 200}.1", CURL)
    await flow.notices.settle()
    assert len(await flow.texts()) == NOTICES_A_DAY_MAX
    await flow.login(AWAY)
