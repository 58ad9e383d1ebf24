"""Sessions on a real database: what a login leaves behind, what ends it, and what guessing costs."""

import asyncio
import base64
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import uuid4

import pytest
from argon2 import PasswordHasher, extract_parameters

from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.account.login_tokens import LoginLinks
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import NewSecret, Sessions
from posthouse.flows.shared.principal import LoginSession, Member
from posthouse.rules import ids, limits, token, totp
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.pepper import Pepper, Peppers
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import accounts, sessions, users
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.store.sessions import SessionRow
from posthouse.store.users import UserRow
from tests.support.clock import SettableClock
from tests.support.context import PEPPERS, context
from tests.support.faster import CHEAP_HASHER
from tests.support.maintenance import new_maintenance

SECRET: Final = "token secret of the tests, thirty-two bytes"
EMAIL: Final = "ada@example.com"
PASSWORD: Final = "correct horse battery staple"
NEW: Final = "another horse, another battery"
HOME, AWAY = "192.0.2.1", "198.51.100.7"
# Every account has one.
_CREDENTIAL: Final = """
INSERT INTO credentials (account_id, id, username, name, secret_hash, is_default, created_at)
VALUES ($1, $1, 'smtp_' || gen_random_uuid(), 'default', sha256(gen_random_uuid()::text::bytea), true, $2)
"""


@dataclass
class SessionFlow:
    """A process's share of the dashboard, and one user with two accounts."""

    database: Database
    hasher: PasswordHasher = field(default_factory=lambda: CHEAP_HASHER)
    sealer: Sealer = field(default_factory=lambda: Sealer({"1": b"k" * 32}, "1"))
    clock: SettableClock = field(default_factory=SettableClock)
    user_id: UserId = field(default_factory=lambda: UserId(uuid4()))
    accounts: list[AccountId] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    peppers: Peppers = PEPPERS

    def __post_init__(self) -> None:
        given = context(self.database, self.clock, sealer=self.sealer, peppers=self.peppers, token_secrets=[SECRET])
        self.passwords = Passwords(given, hasher=self.hasher, pause=self._pause)
        self.sessions = Sessions(given, passwords=self.passwords)
        self.login_links = LoginLinks(given, passwords=self.passwords, sessions=self.sessions)
        self.directory = ControlCache(self.database, self.clock.monotonic)
        self.admission = Admission(given, control_cache=self.directory, last_used=LastUsed(self.database))

    async def _pause(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def furnish(self) -> None:
        now = self.clock.now()
        async with self.database.transaction() as tx:
            await users.insert(tx, UserRow(self.user_id, EMAIL, now, self.hasher.hash(PASSWORD)))
            for number, role in enumerate((Role.OWNER, Role.VIEWER)):
                account_id = AccountId(uuid4())
                await accounts.insert(tx, account_id, f"account {number}", now)
                await tx.execute(_CREDENTIAL, account_id, now)
                await users.join_account(tx, account_id, self.user_id, role, now + timedelta(seconds=number))
                self.accounts.append(account_id)
        await self.directory.forget_changes()

    async def login(
        self, password: str = PASSWORD, code: str | None = None, peer: str = HOME, *, remember: bool = False
    ) -> LoginSession:
        return await self.sessions.login(EMAIL, password, code, peer, remember=remember)

    @staticmethod
    def secret(session: LoginSession) -> str:
        """What the browser's cookie holds."""
        assert session.renewal_secret is not None
        return session.renewal_secret.text

    async def member(self, session: LoginSession) -> Member:
        """As a request with that token is seen, once every process knows the change."""
        await self.directory.forget_changes()
        return await self.admission.member(f"Bearer {session.token}")

    async def is_good(self, session: LoginSession) -> bool:
        try:
            await self.member(session)
        except Refusal as refusal:
            if refusal.code is not Code.UNAUTHORIZED:
                raise
            return False
        return True

    async def confirmed(self, session: LoginSession) -> tuple[bytes, Sequence[str]]:
        """A second factor that counts: its secret, and its recovery codes. A step has passed since."""
        member = await self.member(session)
        begun = await self.sessions.begin_totp(member, PASSWORD, HOME)
        secret = decoded(begun)
        codes = await self.sessions.confirm_totp(member, self.code(secret))
        self.clock.advance(seconds=totp.STEP_SECONDS)
        return secret, codes

    def code(self, secret: bytes) -> str:
        return totp.code_of(secret, totp.step_at(self.clock.now()))

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def failures(self, beginning: str) -> int:
        query = "SELECT coalesce(sum(count), 0) FROM login_failures WHERE starts_with(subject, $1)"
        return int(await self.value(query, beginning))


def decoded(begun: NewSecret) -> bytes:
    return base64.b32decode(begun.text)


@pytest.fixture
async def flow(database: Database) -> SessionFlow:
    made = SessionFlow(database)
    await made.furnish()
    return made


def refused(code: Code, match: str = "") -> Any:
    return pytest.raises(Refusal, match=f"{code.value}: .*{match}")


def claims(session: LoginSession, flow: SessionFlow) -> token.Claims:
    read = token.read(session.token, secrets=[SECRET], now=flow.clock.now())
    assert read is not None
    return read


# Sessions


async def test_a_login_is_in_the_account_that_was_joined_first_until_its_token_ends(flow: SessionFlow) -> None:
    session = await flow.login()
    said = claims(session, flow)
    assert (said.account_id, said.user_id, said.role) == (flow.accounts[0], flow.user_id, Role.OWNER)
    assert said.expires_at == session.expires_at
    member = await flow.member(session)
    assert (member.account_id, member.role, member.email) == (flow.accounts[0], Role.OWNER, EMAIL)
    assert member.session_id == said.session_id
    flow.clock.advance(seconds=limits.JWT_LIFETIME_SECONDS - 1)
    assert await flow.is_good(session)
    flow.clock.advance(seconds=1)
    assert not await flow.is_good(session)


@pytest.mark.rule("SES-04")
async def test_a_switch_gives_a_token_of_the_same_session_that_ends_no_later(flow: SessionFlow) -> None:
    first = await flow.login()
    flow.clock.advance(hours=5)
    other = await flow.sessions.switch(await flow.member(first), ids.text(ids.ACCOUNT, flow.accounts[1]))
    assert other.expires_at == first.expires_at
    assert claims(other, flow).session_id == claims(first, flow).session_id
    assert (await flow.member(other)).role is Role.VIEWER
    back = await flow.sessions.switch(await flow.member(other), ids.text(ids.ACCOUNT, flow.accounts[0]))
    assert (await flow.member(back)).role is Role.OWNER
    await flow.sessions.logout(await flow.member(back))
    assert [await flow.is_good(row) for row in (first, other, back)] == [False, False, False]


async def test_an_operator_sees_and_ends_a_users_sessions(flow: SessionFlow) -> None:
    logins = [await flow.login() for _ in range(3)]
    found = await flow.sessions.live_of(EMAIL)
    assert len(found) == 3
    ended = claims(logins[0], flow).session_id
    assert await flow.sessions.end_of(EMAIL, ids.text(ids.SESSION, ended)) == 1
    with refused(Code.NOT_FOUND, "no session"):
        await flow.sessions.end_of(EMAIL, ids.text(ids.SESSION, ended))
    assert [await flow.is_good(row) for row in logins] == [False, True, True]
    assert await flow.sessions.end_of(EMAIL, None) == 2
    assert [await flow.is_good(row) for row in logins] == [False, False, False]
    assert await flow.sessions.live_of(EMAIL) == []
    # Two commands that changed something, in the log of either account.
    assert await flow.value("SELECT count(*) FROM audit_log WHERE action = 'user.sessions_ended'") == 4


async def test_an_ended_session_switches_to_no_account(flow: SessionFlow) -> None:
    session = await flow.login()
    # A process that doesn't know it yet still lets the member in.
    member = await flow.member(session)
    await flow.sessions.logout(member)
    for act in (flow.sessions.switch(member, ids.text(ids.ACCOUNT, flow.accounts[1])), flow.sessions.me(member)):
        with refused(Code.UNAUTHORIZED, "over"):
            await act
    await flow.sessions.logout(member)


async def test_another_users_session_makes_no_token_good(flow: SessionFlow) -> None:
    other = UserRow(UserId(uuid4()), "bob@example.com", flow.clock.now(), CHEAP_HASHER.hash(PASSWORD))
    async with flow.database.transaction() as tx:
        await users.insert(tx, other)
        await users.join_account(tx, flow.accounts[0], other.id, Role.MEMBER, flow.clock.now())
    said = claims(await flow.login(), flow)
    forged = token.issue(
        account_id=said.account_id,
        user_id=other.id,
        role=Role.MEMBER,
        session_id=said.session_id,
        expires_at=said.expires_at,
        token_id="t",
        secret=SECRET,
        now=flow.clock.now(),
    )
    assert not await flow.is_good(LoginSession(forged, said.expires_at))


@pytest.mark.rule("TEAM-03")
async def test_a_member_who_is_removed_keeps_other_accounts_and_without_any_is_notified(flow: SessionFlow) -> None:
    async def remove_from(account_id: AccountId) -> None:
        async with flow.database.transaction() as tx:
            await users.remove_member(tx, account_id, flow.user_id, flow.clock.now())

    first = await flow.login()
    other = await flow.sessions.switch(await flow.member(first), ids.text(ids.ACCOUNT, flow.accounts[1]))
    await remove_from(flow.accounts[0])
    assert (await flow.is_good(first), await flow.is_good(other)) == (False, True)
    await remove_from(flow.accounts[1])
    # Only with the right password.
    with refused(Code.UNAUTHORIZED, "invitation"):
        await flow.login()
    with refused(Code.UNAUTHORIZED, "password is wrong"):
        await flow.login("a wrong password")


@pytest.mark.rule("SES-07")
async def test_a_user_has_no_more_sessions_than_the_limit_and_live_ones_stay(flow: SessionFlow) -> None:
    oldest, ended = await flow.login(), await flow.login()
    flow.clock.advance(seconds=1)
    await flow.sessions.logout(await flow.member(ended))
    for _ in range(limits.SESSIONS_PER_USER_MAX - 1):
        flow.clock.advance(seconds=1)
        newest = await flow.login()
    # The one that was logged out made space.
    assert await flow.value("SELECT count(*) FROM sessions") == limits.SESSIONS_PER_USER_MAX
    assert await flow.is_good(oldest)
    flow.clock.advance(seconds=1)
    await flow.login()
    assert await flow.value("SELECT count(*) FROM sessions") == limits.SESSIONS_PER_USER_MAX
    assert (await flow.is_good(oldest), await flow.is_good(newest)) == (False, True)


async def test_maintenance_deletes_ended_sessions_and_seals_second_factors_again(flow: SessionFlow) -> None:
    old = await flow.login()
    secret, _ = await flow.confirmed(old)
    flow.clock.advance(hours=6)
    young = await flow.login(code=flow.code(secret))
    flow.clock.advance(hours=6)
    renewed = Sealer({"1": b"k" * 32, "2": b"n" * 32}, "2")
    maintenance = new_maintenance(flow.database, flow.clock, sealer=renewed)
    assert await maintenance.forget_sessions() == 1
    assert await flow.is_good(young)
    assert await maintenance.reseal() == 1
    assert await maintenance.reseal() == 0
    after = SessionFlow(flow.database, sealer=Sealer({"2": b"n" * 32}, "2"), clock=flow.clock, user_id=flow.user_id)
    assert await after.login(code=flow.code(secret))


# Passwords


@pytest.mark.rule("PASS-01")
async def test_a_new_password_ends_every_other_session(flow: SessionFlow) -> None:
    mine, other = await flow.login(), await flow.login(peer=AWAY)
    await flow.sessions.change_password(await flow.member(mine), PASSWORD, NEW, HOME)
    assert (await flow.is_good(mine), await flow.is_good(other)) == (True, False)
    with refused(Code.UNAUTHORIZED):
        await flow.login()
    await flow.login(NEW)
    # The failure was forgotten with the success after it.
    assert await flow.failures("person ") == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda flow, member, password, peer: flow.sessions.change_password(member, password, PASSWORD, peer),
        lambda flow, member, password, peer: flow.sessions.begin_totp(member, password, peer),
    ],
    ids=["change_password", "begin_totp"],
)
async def test_guessing_the_current_password_costs_as_much_as_guessing_at_a_login(
    flow: SessionFlow, act: Callable[[SessionFlow, Member, str, str], Awaitable[object]]
) -> None:
    member = await flow.member(await flow.login())
    for _ in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.FORBIDDEN, "password"):
            await act(flow, member, "a wrong password", HOME)
    for blocked in (act(flow, member, PASSWORD, HOME), flow.login()):
        with refused(Code.RATE_LIMITED):
            await blocked
    assert await flow.value("SELECT count(*) FROM second_factors") == 0
    await act(flow, member, PASSWORD, AWAY)
    flow.clock.advance(seconds=1)
    await act(flow, member, PASSWORD, HOME)
    assert await flow.failures("person ") == 0


async def test_no_session_begins_with_a_password_that_was_just_changed(flow: SessionFlow) -> None:
    now = flow.clock.now()
    async with flow.database.connection() as connection:
        user = await users.find_by_email(connection, EMAIL)
    assert user is not None
    row = SessionRow(ids.SessionId(uuid4()), flow.user_id, flow.accounts[0], now, now + timedelta(hours=1))

    async def begin() -> bool:
        async with flow.database.transaction() as tx:
            return await sessions.begin(tx, row, user.password_hash, 100)

    async with flow.database.transaction() as tx:
        assert await users.replace_password(tx, user, "another hash")
        late = asyncio.create_task(begin())
        done, _ = await asyncio.wait([late], timeout=0.3)
        assert not done, "it waits for the change"
    assert not await late


async def test_two_changes_of_one_password_at_once_are_one(flow: SessionFlow) -> None:
    change, members = flow.sessions.change_password, [await flow.member(await flow.login()) for _ in range(2)]
    changes = [change(member, PASSWORD, f"{NEW} {number}", HOME) for number, member in enumerate(members)]
    (fault,) = [end for end in await asyncio.gather(*changes, return_exceptions=True) if end is not None]
    assert isinstance(fault, Refusal)
    # The second finds another password, or a moment later that its own is no longer valid.
    assert fault.code in {Code.CONFLICT, Code.FORBIDDEN}


async def test_an_operator_sets_a_password_and_ends_all_sessions(flow: SessionFlow) -> None:
    begun = [await flow.login() for _ in range(3)]
    assert await flow.sessions.reset_password("  ADA@example.com ", NEW) == 3
    assert [await flow.is_good(row) for row in begun] == [False] * 3
    await flow.login(NEW)
    with refused(Code.INVALID_REQUEST):
        await flow.sessions.reset_password(EMAIL, "short")
    for act in (flow.sessions.reset_password("no@example.com", NEW), flow.sessions.switch_off_totp("no@example.com")):
        with refused(Code.NOT_FOUND):
            await act


# The second factor


async def test_wrong_codes_count_when_a_factor_is_confirmed(flow: SessionFlow) -> None:
    member = await flow.member(await flow.login())
    secret = decoded(await flow.sessions.begin_totp(member, PASSWORD, HOME))
    for _ in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.FORBIDDEN, "clock"):
            await flow.sessions.confirm_totp(member, "x")
    with refused(Code.RATE_LIMITED):
        await flow.sessions.confirm_totp(member, flow.code(secret))
    flow.clock.advance(minutes=1)
    await flow.sessions.confirm_totp(member, flow.code(secret))
    assert await flow.value("SELECT count(*) FROM login_failures WHERE subject LIKE 'code %'") == 0


async def test_a_secret_counts_once_it_is_confirmed_and_ends_the_sessions_without_it(flow: SessionFlow) -> None:
    session = await flow.login()
    member = await flow.member(session)
    with refused(Code.CONFLICT, "begin one"):
        await flow.sessions.confirm_totp(member, "287082")
    given_up = decoded(await flow.sessions.begin_totp(member, PASSWORD, HOME))
    other = await flow.login()
    secret = decoded(await flow.sessions.begin_totp(member, PASSWORD, HOME))
    assert await flow.is_good(other)
    for wrong in (flow.code(given_up), "", "000 000 0", "x"):
        with refused(Code.FORBIDDEN, "clock"):
            await flow.sessions.confirm_totp(member, wrong)
    codes = await flow.sessions.confirm_totp(member, flow.code(secret))
    assert len(codes) == totp.RECOVERY_CODES
    assert (await flow.is_good(session), await flow.is_good(other)) == (True, False)
    begin, confirm = flow.sessions.begin_totp, flow.sessions.confirm_totp
    for act in (begin(member, PASSWORD, HOME), confirm(member, flow.code(secret))):
        with refused(Code.CONFLICT, "already"):
            await act
    with refused(Code.UNAUTHORIZED, "send `code`"):
        await flow.login()
    # The code that confirmed is used up; the one after it is good.
    with refused(Code.UNAUTHORIZED, "already used"):
        await flow.login(code=flow.code(secret))
    flow.clock.advance(seconds=totp.STEP_SECONDS)
    await flow.login(code=flow.code(secret))
    me = await flow.sessions.me(member)
    assert (me.has_second_factor, me.recovery_codes_left) == (True, 10)


@pytest.mark.rule("TOTP-04")
async def test_of_two_logins_with_one_code_at_once_one_is_let_in(flow: SessionFlow) -> None:
    secret, (recovery, *_) = await flow.confirmed(await flow.login())
    for code in (flow.code(secret), recovery):
        ends = await asyncio.gather(
            *(flow.login(code=code, peer=peer) for peer in (HOME, AWAY, "203.0.113.9")), return_exceptions=True
        )
        assert sum(isinstance(end, LoginSession) for end in ends) == 1
        assert {end.code for end in ends if isinstance(end, Refusal)} == {Code.UNAUTHORIZED}


@pytest.mark.rule("TOTP-03")
async def test_a_missing_or_wrong_code_is_noticed_and_counted_only_with_the_right_password(flow: SessionFlow) -> None:
    await flow.confirmed(await flow.login())
    for code in (None, "000000"):
        with refused(Code.UNAUTHORIZED, "password is wrong") as raised:
            await flow.login("a wrong password", code, AWAY)
        assert raised.value.headers == {}
    assert (await flow.failures("code "), await flow.failures("person ")) == (0, 2)
    with refused(Code.UNAUTHORIZED, "send `code`") as missing:
        await flow.login()
    with refused(Code.UNAUTHORIZED, "code is wrong") as wrong:
        await flow.login(code="000000")
    assert missing.value.headers == wrong.value.headers == {"Second-Factor": "required"}
    assert (await flow.failures("code "), await flow.failures("person ")) == (1, 4)


async def test_codes_that_are_guessed_from_many_places_are_counted_together(flow: SessionFlow) -> None:
    secret, _ = await flow.confirmed(await flow.login())
    for number in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.UNAUTHORIZED):
            await flow.login(code="000000", peer=f"203.0.113.{number}")
    with refused(Code.RATE_LIMITED):
        await flow.login(code=flow.code(secret), peer=AWAY)
    flow.clock.advance(seconds=totp.STEP_SECONDS)
    await flow.login(code=flow.code(secret), peer=AWAY)
    assert await flow.failures("code ") == 0


@pytest.mark.rule("TOTP-05")
async def test_a_recovery_code_is_valid_once_and_only_for_its_user(flow: SessionFlow) -> None:
    session = await flow.login()
    _, codes = await flow.confirmed(session)
    await flow.login(code=codes[3].upper().replace("-", " "))
    with refused(Code.UNAUTHORIZED):
        await flow.login(code=codes[3])
    await flow.login(code=codes[4])
    assert (await flow.sessions.me(await flow.member(session))).recovery_codes_left == 8
    assert not await flow.passwords.is_code(UserId(uuid4()), codes[5])
    await flow.login(code=codes[5])


@pytest.mark.rule("TOTP-07")
async def test_a_second_factor_is_given_up_with_password_and_code(flow: SessionFlow) -> None:
    member = await flow.member(await flow.login())
    with refused(Code.CONFLICT):
        await flow.sessions.disable_totp(member, PASSWORD, "000000", HOME)
    secret, codes = await flow.confirmed(await flow.login())
    for password, code in (("a wrong password", flow.code(secret)), (PASSWORD, "000000")):
        with refused(Code.FORBIDDEN):
            await flow.sessions.disable_totp(member, password, code, HOME)
    await flow.sessions.disable_totp(member, PASSWORD, flow.code(secret), HOME)
    await flow.login()
    assert await flow.value("SELECT count(*) FROM recovery_codes") == 0
    # The old factor's code is worthless next to the new one.
    await flow.confirmed(await flow.login())
    with refused(Code.UNAUTHORIZED):
        await flow.login(code=codes[0])


@pytest.mark.rule("TOTP-09")
async def test_changes_of_a_person_and_of_an_operator_are_noted_in_each_of_the_accounts(flow: SessionFlow) -> None:
    session = await flow.login()
    with refused(Code.CONFLICT):
        await flow.sessions.switch_off_totp(EMAIL)
    await flow.confirmed(session)
    await flow.sessions.change_password(await flow.member(session), PASSWORD, NEW, HOME)
    await flow.sessions.switch_off_totp(EMAIL)
    await flow.login(NEW)
    async with flow.database.connection() as connection:
        rows = await connection.fetch("SELECT account_id, actor, action, target, detail FROM audit_log ORDER BY at")
    noted = [(row["actor"], row["action"], row["target"], row["detail"]) for row in rows[::2]]
    assert noted == [
        (EMAIL, "user.totp_enabled", EMAIL, "{}"),
        (EMAIL, "user.password_changed", EMAIL, "{}"),
        ("operator", "user.totp_disabled", EMAIL, "{}"),
    ]
    assert {row["account_id"] for row in rows} == set(flow.accounts)
    assert len(rows) == 6


@pytest.mark.rule("TOTP-08")
async def test_secrets_are_in_no_column_and_no_repr(flow: SessionFlow) -> None:
    member = await flow.member(session := await flow.login())
    begun = await flow.sessions.begin_totp(member, PASSWORD, HOME)
    secret = decoded(begun)
    codes = await flow.sessions.confirm_totp(member, flow.code(secret))
    kept = await flow.value("SELECT secret_sealed FROM second_factors")
    assert not [text for text in (secret, begun.text.encode()) if text in kept]
    hashes = await flow.value("SELECT array_agg(code_hash) FROM recovery_codes")
    assert {len(row) for row in hashes} == {32}
    assert not any(code.replace("-", "").encode() in row for row in hashes for code in codes)
    assert begun.text not in repr(begun)
    assert session.token not in repr(session)


# What a login takes


async def is_blocked(judge: Callable[[], Awaitable[object]]) -> bool:
    while True:
        try:
            await judge()
        except Refusal as refusal:
            # Many lock one row; who waits for too long is asked to try again, and did not count.
            if refusal.code is Code.TEMPORARY_FAILURE:
                continue
            if refusal.code is not Code.RATE_LIMITED:
                raise
            return (refusal.retry_after_seconds or 0) >= 1
        return False


async def rate_limited(flow: SessionFlow, email: str, password: str = "a wrong password", peer: str = HOME) -> bool:
    return await is_blocked(lambda: flow.passwords.recognised(email, password, peer))


@pytest.mark.rule("LOGIN-07")
async def test_failures_with_other_addresses_delay_a_network_and_refuse_nothing(flow: SessionFlow) -> None:
    """People behind one proxy share its address: whatever one of them does, the others can log in."""
    free = limits.LOGIN_NETWORK_FAILURES_FREE
    assert not any([await rate_limited(flow, f"unknown-{number}@example.com") for number in range(free)])
    assert flow.delays == []
    for number in range(20):
        assert not await rate_limited(flow, f"other-{number}@example.com")
        await flow.login()
    assert flow.delays == sorted(flow.delays)
    assert flow.delays[-1] == limits.LOGIN_DELAY_SECONDS_MAX
    await flow.login(peer=AWAY)
    assert len(flow.delays) == 19 + 20
    flow.clock.advance(minutes=16)
    await flow.login()
    assert len(flow.delays) == 19 + 20, "delays end some time after the last failure"


async def test_failures_from_elsewhere_delay_a_user_and_refuse_nothing(flow: SessionFlow) -> None:
    for number in range(20):
        assert not await rate_limited(flow, EMAIL, peer=f"203.0.113.{number}")
    assert flow.delays[-1] == limits.LOGIN_DELAY_SECONDS_MAX
    flow.delays.clear()
    await flow.login()
    await flow.login()
    assert flow.delays == [limits.LOGIN_DELAY_SECONDS_MAX], "a right password ends the delay"


async def test_a_person_who_is_blocked_does_not_block_the_network(flow: SessionFlow) -> None:
    tries = [await rate_limited(flow, "unknown@example.com") for _ in range(30)]
    assert tries == [False] * (limits.LOGIN_FAILURES_FREE + 1) + [True] * (29 - limits.LOGIN_FAILURES_FREE)
    assert await flow.failures("person ") == limits.LOGIN_FAILURES_FREE + 1
    await flow.login()


async def test_of_many_tries_at_once_one_passes_when_the_wait_is_over(flow: SessionFlow) -> None:
    async def are_blocked(user_id: UserId) -> list[bool]:
        return await asyncio.gather(*(is_blocked(lambda: flow.passwords.is_code(user_id, "000000")) for _ in range(40)))

    # Without this, the first of them is done before the second has a connection.
    async with AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(flow.database.connection())
    user_id = UserId(uuid4())
    assert (await are_blocked(user_id)).count(False) == limits.LOGIN_FAILURES_FREE + 1
    flow.clock.advance(hours=1)
    assert (await are_blocked(user_id)).count(False) == 1
    logins = await asyncio.gather(*(rate_limited(flow, EMAIL) for _ in range(30)))
    assert logins.count(False) == limits.LOGIN_FAILURES_FREE + 1


async def test_tries_that_cross_on_their_way_do_not_block_each_other(flow: SessionFlow) -> None:
    """Clocks differ: the first to read its clock may be counted last."""
    await flow.login()
    behind = SessionFlow(flow.database, clock=SettableClock(flow.clock.now() - timedelta(seconds=1)))
    for process in (flow, behind):
        assert not await rate_limited(process, EMAIL)
    # A right password is forgiven as late as it was slow to check.
    assert not await rate_limited(flow, EMAIL, PASSWORD)
    assert not await rate_limited(behind, EMAIL)


async def test_failures_are_remembered_for_a_day(flow: SessionFlow) -> None:
    for hours in (0, 0, 20, 20):
        flow.clock.advance(hours=hours)
        assert not await rate_limited(flow, EMAIL)
    assert await flow.failures("person ") == 4
    flow.clock.advance(hours=25)
    assert not await rate_limited(flow, EMAIL)
    assert await flow.failures("person ") == 1


async def test_two_tabs_that_renew_while_the_pepper_is_replaced_get_the_same_next_secret(flow: SessionFlow) -> None:
    new = Pepper("2027", b"the pepper of 2027")
    known = replace(flow, peppers=Peppers(PEPPERS.active, (new,)))
    active = replace(flow, peppers=Peppers(new, (PEPPERS.active,)))
    secret = flow.secret(await flow.login(remember=True))
    given = [flow.secret(await flows.sessions.renew(secret, None)) for flows in (known, active, known)]
    assert len(set(given)) == 1
    assert flow.secret(await active.sessions.renew(given[0], None)) != given[0]


async def test_many_tabs_that_renew_at_once_get_the_same_next_secret(flow: SessionFlow) -> None:
    kept = await flow.login(remember=True)
    renewed = await asyncio.gather(*(flow.sessions.renew(flow.secret(kept), None) for _ in range(20)))
    assert len({flow.secret(session) for session in renewed} - {flow.secret(kept)}) == 1
    assert all([await flow.is_good(session) for session in renewed])
    assert len(await flow.sessions.live(await flow.member(kept))) == 1


async def test_a_secret_that_was_replaced_long_ago_ends_the_session(flow: SessionFlow) -> None:
    kept, other = await flow.login(remember=True), await flow.login(remember=True)
    renewed = await flow.sessions.renew(flow.secret(kept), None)
    flow.clock.advance(seconds=limits.RENEWAL_GRACE_SECONDS + 1)
    for secret in (flow.secret(kept), flow.secret(renewed)):
        with refused(Code.UNAUTHORIZED, "log in again"):
            await flow.sessions.renew(secret, None)
    assert not await flow.is_good(renewed)
    assert await flow.is_good(other)


async def test_a_remembered_session_ends_when_idle_or_old(flow: SessionFlow) -> None:
    idle, used = await flow.login(remember=True), await flow.login(remember=True)
    for _ in range(4):
        flow.clock.advance(days=6)
        used = await flow.sessions.renew(flow.secret(used), None)
    with refused(Code.UNAUTHORIZED, "log in again"):
        await flow.sessions.renew(flow.secret(idle), None)
    flow.clock.advance(days=6, seconds=-1)
    last = await flow.sessions.renew(flow.secret(used), None)
    assert last.expires_at - flow.clock.now() <= timedelta(seconds=1)
    flow.clock.advance(seconds=2)
    with refused(Code.UNAUTHORIZED, "log in again"):
        await flow.sessions.renew(flow.secret(last), None)
    assert (await new_maintenance(flow.database, flow.clock).run()).sessions_forgotten == 2


async def test_of_many_simultaneous_logins_with_a_link_one_passes(flow: SessionFlow) -> None:
    link = (await flow.login_links.new_link(EMAIL)).partition("#link=")[2]

    async def passes() -> bool:
        try:
            await flow.login_links.login(link, None, HOME, "", remember=False)
        except Refusal as refusal:
            return refusal.code is not Code.UNAUTHORIZED
        return True

    assert (await asyncio.gather(*(passes() for _ in range(20)))).count(True) == 1
    flow.clock.advance(minutes=1)
    late = (await flow.login_links.new_link(EMAIL)).partition("#link=")[2]
    flow.clock.advance(seconds=limits.LOGIN_LINK_SECONDS)
    with refused(Code.UNAUTHORIZED, "10 minutes"):
        await flow.login_links.login(late, None, HOME, "", remember=False)


async def test_a_login_of_nobody_costs_the_same_hash_as_a_users(database: Database) -> None:
    costs = []

    class NotingHasher(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 (the library's name)
            costs.append(extract_parameters(str(hash)))
            return super().verify(hash, password)

    flow = SessionFlow(database, hasher=NotingHasher(time_cost=1, memory_cost=64, parallelism=1))
    await flow.furnish()
    for email in (EMAIL, "nobody@example.com"):
        with refused(Code.UNAUTHORIZED, "password is wrong"):
            await flow.sessions.login(email, "a wrong password", None, "192.0.2.1")
    known, unknown = costs
    assert known == unknown


@pytest.mark.nightly
async def test_the_time_that_a_login_takes_does_not_show_whether_there_is_a_user(database: Database) -> None:
    """Medians of 200 of each, one by one in turn, in the processor's time, whatever else it does meanwhile.

    The hash costs a tenth of what it does in production, so that what else may differ weighs ten times as much.
    """
    flow = SessionFlow(database, hasher=PasswordHasher(time_cost=1, memory_cost=16_384, parallelism=1))
    await flow.furnish()
    taken: dict[str, list[float]] = {EMAIL: [], "nobody@example.com": []}
    for number in range(201):
        for email, seconds in taken.items():
            # From a new place each time, so that nothing waits; the first pays for what is made once.
            peer = f"10.{len(email)}.{number // 200}.{number % 200}"
            started = time.process_time()
            with refused(Code.UNAUTHORIZED, "password is wrong"):
                await flow.sessions.login(email, "a wrong password", None, peer)
            if number:
                seconds.append(time.process_time() - started)
    known, unknown = (statistics.median(seconds) for seconds in taken.values())
    said = f"known {known * 1000:.2f} ms, unknown {unknown * 1000:.2f} ms"
    print(said)
    assert abs(known - unknown) < 0.05 * min(known, unknown), said
