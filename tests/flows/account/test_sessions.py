"""Sessions on a real database: what a login leaves behind, what ends it, and what guessing costs."""

import asyncio
import base64
import statistics
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from argon2 import PasswordHasher

from posthouse.chance import SystemChance
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.account.passwords import PEER_FAILURES_PER_PERSON, Passwords
from posthouse.flows.account.sessions import NewSecret, Sessions
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.flows.shared.principal import LoginSession, Member
from posthouse.rules import ids, limits, token, totp
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, CredentialId, UserId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import accounts, credentials, sessions, users
from posthouse.store.control_cache import ControlCache
from posthouse.store.credentials import CredentialRow
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.store.sessions import SessionRow
from posthouse.store.users import UserRow
from posthouse.wire.dns import Resolver
from tests.support.clock import SettableClock

PEPPER: Final = b"pepper of the tests"
SECRET: Final = "token secret of the tests, thirty-two bytes"
EMAIL: Final = "ada@example.com"
PASSWORD: Final = "correct horse battery staple"
NEW: Final = "another horse, another battery"
HOME, AWAY = "192.0.2.1", "198.51.100.7"
# Not what passwords are kept with: no test but the one of timing is about the cost.
CHEAP: Final = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


@dataclass
class Desk:
    """A process's share of the dashboard, and one user with two accounts."""

    database: Database
    hasher: PasswordHasher = field(default_factory=lambda: CHEAP)
    sealer: Sealer = field(default_factory=lambda: Sealer({"1": b"k" * 32}, "1"))
    clock: SettableClock = field(default_factory=SettableClock)
    user_id: UserId = field(default_factory=lambda: UserId(uuid4()))
    accounts: list[AccountId] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = SystemChance()
        self.passwords = Passwords(
            database=self.database,
            clock=self.clock,
            chance=chance,
            sealer=self.sealer,
            pepper=PEPPER,
            hasher=self.hasher,
        )
        self.sessions = Sessions(
            database=self.database,
            clock=self.clock,
            chance=chance,
            passwords=self.passwords,
            sealer=self.sealer,
            pepper=PEPPER,
            token_secret=SECRET,
        )
        self.directory = ControlCache(self.database, self.clock.monotonic)
        self.admission = Admission(
            control_cache=self.directory,
            last_used=LastUsed(self.database),
            clock=self.clock,
            pepper=PEPPER,
            token_secret=SECRET,
        )

    async def furnish(self) -> None:
        now = self.clock.now()
        async with self.database.transaction() as tx:
            await users.insert(tx, UserRow(self.user_id, EMAIL, now, self.hasher.hash(PASSWORD)))
            for number, role in enumerate((Role.OWNER, Role.VIEWER)):
                account_id = AccountId(uuid4())
                await accounts.insert(tx, account_id, f"account {number}", now)
                row = CredentialRow(
                    account_id=account_id,
                    id=CredentialId(uuid4()),
                    username=f"smtp_{number}",
                    name="default",
                    is_default=True,
                    allowed_networks=(),
                    created_at=now,
                    revoked_at=None,
                )
                await credentials.insert_credential(tx, row, bytes(32), now)
                await users.join_account(tx, account_id, self.user_id, role, now + timedelta(seconds=number))
                self.accounts.append(account_id)
        await self.directory.forget_changes()

    async def login(self, password: str = PASSWORD, code: str | None = None, peer: str = HOME) -> LoginSession:
        return await self.sessions.login(EMAIL, password, code, peer)

    async def member(self, session: LoginSession) -> Member:
        """As a request with that token is seen, once every process has heard of what changed."""
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
async def desk(database: Database) -> Desk:
    made = Desk(database)
    await made.furnish()
    return made


def refused(code: Code, match: str = "") -> Any:
    return pytest.raises(Refusal, match=f"{code.value}: .*{match}")


def claims(session: LoginSession, desk: Desk) -> token.Claims:
    read = token.read(session.token, secret=SECRET, now=desk.clock.now())
    assert read is not None
    return read


# Sessions


async def test_a_login_is_in_the_account_that_was_joined_first(desk: Desk) -> None:
    session = await desk.login()
    said = claims(session, desk)
    assert (said.account_id, said.user_id, said.role) == (desk.accounts[0], desk.user_id, Role.OWNER)
    assert said.expires_at == session.expires_at
    member = await desk.member(session)
    assert (member.account_id, member.role, member.email) == (desk.accounts[0], Role.OWNER, EMAIL)
    assert member.session_id == said.session_id


async def test_a_token_ends_with_its_time(desk: Desk) -> None:
    session = await desk.login()
    desk.clock.advance(seconds=limits.JWT_LIFETIME_SECONDS - 1)
    assert await desk.is_good(session)
    desk.clock.advance(seconds=1)
    assert not await desk.is_good(session)


async def test_a_switch_gives_a_token_of_the_same_session_that_ends_no_later(desk: Desk) -> None:
    first = await desk.login()
    desk.clock.advance(hours=5)
    other = await desk.sessions.switch(await desk.member(first), ids.text(ids.ACCOUNT, desk.accounts[1]))
    assert other.expires_at == first.expires_at
    assert claims(other, desk).session_id == claims(first, desk).session_id
    assert (await desk.member(other)).role is Role.VIEWER
    back = await desk.sessions.switch(await desk.member(other), ids.text(ids.ACCOUNT, desk.accounts[0]))
    assert (await desk.member(back)).role is Role.OWNER
    await desk.sessions.logout(await desk.member(back))
    assert [await desk.is_good(one) for one in (first, other, back)] == [False, False, False]


async def test_nobody_switches_with_a_session_that_is_over(desk: Desk) -> None:
    session = await desk.login()
    # A process that has not heard of it yet still lets the member in.
    member = await desk.member(session)
    await desk.sessions.logout(member)
    for act in (desk.sessions.switch(member, ids.text(ids.ACCOUNT, desk.accounts[1])), desk.sessions.me(member)):
        with refused(Code.UNAUTHORIZED, "over"):
            await act
    await desk.sessions.logout(member)


async def test_a_session_of_somebody_else_makes_no_token_good(desk: Desk) -> None:
    other = UserRow(UserId(uuid4()), "bob@example.com", desk.clock.now(), CHEAP.hash(PASSWORD))
    async with desk.database.transaction() as tx:
        await users.insert(tx, other)
        await users.join_account(tx, desk.accounts[0], other.id, Role.MEMBER, desk.clock.now())
    said = claims(await desk.login(), desk)
    forged = token.issue(
        account_id=said.account_id,
        user_id=other.id,
        role=Role.MEMBER,
        session_id=said.session_id,
        expires_at=said.expires_at,
        token_id="t",
        secret=SECRET,
        now=desk.clock.now(),
    )
    assert not await desk.is_good(LoginSession(forged, said.expires_at))


async def test_a_member_who_is_removed_keeps_their_other_accounts(desk: Desk) -> None:
    first = await desk.login()
    other = await desk.sessions.switch(await desk.member(first), ids.text(ids.ACCOUNT, desk.accounts[1]))
    async with desk.database.transaction() as tx:
        await users.remove_member(tx, desk.accounts[0], desk.user_id, desk.clock.now())
    assert (await desk.is_good(first), await desk.is_good(other)) == (False, True)


async def test_a_user_of_no_account_is_told_so_only_with_the_right_password(desk: Desk) -> None:
    async with desk.database.transaction() as tx:
        for account_id in desk.accounts:
            await users.remove_member(tx, account_id, desk.user_id, desk.clock.now())
    with refused(Code.UNAUTHORIZED, "invitation"):
        await desk.login()
    with refused(Code.UNAUTHORIZED, "password is wrong"):
        await desk.login("a wrong password")


async def test_a_user_has_no_more_than_a_hundred_sessions_and_those_that_live_are_kept(desk: Desk) -> None:
    oldest, ended = await desk.login(), await desk.login()
    desk.clock.advance(seconds=1)
    await desk.sessions.logout(await desk.member(ended))
    for _ in range(limits.SESSIONS_PER_USER_MAX - 1):
        desk.clock.advance(seconds=1)
        newest = await desk.login()
    # The one that was logged out made room.
    assert await desk.value("SELECT count(*) FROM sessions") == limits.SESSIONS_PER_USER_MAX
    assert await desk.is_good(oldest)
    desk.clock.advance(seconds=1)
    await desk.login()
    assert await desk.value("SELECT count(*) FROM sessions") == limits.SESSIONS_PER_USER_MAX
    assert (await desk.is_good(oldest), await desk.is_good(newest)) == (False, True)


async def test_upkeep_forgets_sessions_that_are_over_and_seals_second_factors_anew(desk: Desk) -> None:
    old = await desk.login()
    secret, _ = await desk.confirmed(old)
    desk.clock.advance(hours=6)
    young = await desk.login(code=desk.code(secret))
    desk.clock.advance(hours=6)
    renewed = Sealer({"1": b"k" * 32, "2": b"n" * 32}, "2")
    upkeep = Upkeep(
        database=desk.database,
        clock=desk.clock,
        chance=SystemChance(),
        resolver=Resolver(),
        sealer=renewed,
        retention=Retention(30, 3),
    )
    assert await upkeep.forget_sessions() == 1
    assert await desk.is_good(young)
    assert await upkeep.reseal() == 1
    assert await upkeep.reseal() == 0
    after = Desk(desk.database, sealer=Sealer({"2": b"n" * 32}, "2"), clock=desk.clock, user_id=desk.user_id)
    assert await after.login(code=desk.code(secret))


# Passwords


async def test_a_new_password_ends_every_other_session(desk: Desk) -> None:
    mine, other = await desk.login(), await desk.login(peer=AWAY)
    await desk.sessions.change_password(await desk.member(mine), PASSWORD, NEW, HOME)
    assert (await desk.is_good(mine), await desk.is_good(other)) == (True, False)
    with refused(Code.UNAUTHORIZED):
        await desk.login()
    await desk.login(NEW)
    # The failure was forgotten with the success after it.
    assert await desk.failures("person ") == 0


async def test_guessing_the_current_password_costs_as_much_as_guessing_at_a_login(desk: Desk) -> None:
    member = await desk.member(await desk.login())
    for _ in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.FORBIDDEN, "current_password"):
            await desk.sessions.change_password(member, "a wrong password", NEW, HOME)
    for act in (desk.sessions.change_password(member, PASSWORD, NEW, HOME), desk.login()):
        with refused(Code.RATE_LIMITED):
            await act
    await desk.login(peer=AWAY)


async def test_no_session_begins_with_a_password_that_was_just_changed(desk: Desk) -> None:
    now = desk.clock.now()
    async with desk.database.connection() as connection:
        user = await users.find_by_email(connection, EMAIL)
    assert user is not None
    row = SessionRow(ids.SessionId(uuid4()), desk.user_id, desk.accounts[0], now, now + timedelta(hours=1))

    async def begin() -> bool:
        async with desk.database.transaction() as tx:
            return await sessions.begin(tx, row, user.password_hash, 100)

    async with desk.database.transaction() as tx:
        assert await users.replace_password(tx, user, "another hash")
        late = asyncio.create_task(begin())
        done, _ = await asyncio.wait([late], timeout=0.3)
        assert not done, "it waits for the change"
    assert not await late


async def test_two_changes_of_one_password_at_once_are_one(desk: Desk) -> None:
    members = [await desk.member(await desk.login()) for _ in range(2)]
    ends = await asyncio.gather(
        *(desk.sessions.change_password(one, PASSWORD, f"{NEW} {number}", HOME) for number, one in enumerate(members)),
        return_exceptions=True,
    )
    faults = [end for end in ends if end is not None]
    assert len(faults) == 1
    assert isinstance(faults[0], Refusal)
    # Whoever comes second finds another password, or a moment later that theirs is no longer the one.
    assert faults[0].code in {Code.CONFLICT, Code.FORBIDDEN}


async def test_an_operator_sets_a_password_and_ends_all_sessions(desk: Desk) -> None:
    begun = [await desk.login() for _ in range(3)]
    assert await desk.sessions.reset_password("  ADA@example.com ", NEW) == 3
    assert [await desk.is_good(one) for one in begun] == [False] * 3
    await desk.login(NEW)
    with refused(Code.INVALID_REQUEST):
        await desk.sessions.reset_password(EMAIL, "short")
    for act in (
        desk.sessions.reset_password("nobody@example.com", NEW),
        desk.sessions.switch_off_totp("no@example.com"),
    ):
        with refused(Code.NOT_FOUND):
            await act


# The second factor


async def test_a_secret_counts_once_it_is_confirmed(desk: Desk) -> None:
    session = await desk.login()
    member = await desk.member(session)
    with refused(Code.CONFLICT, "begin one"):
        await desk.sessions.confirm_totp(member, "287082")
    given_up = decoded(await desk.sessions.begin_totp(member, PASSWORD, HOME))
    await desk.login()
    secret = decoded(await desk.sessions.begin_totp(member, PASSWORD, HOME))
    for wrong in (desk.code(given_up), "", "000 000 0", "x"):
        with refused(Code.FORBIDDEN, "clock"):
            await desk.sessions.confirm_totp(member, wrong)
    codes = await desk.sessions.confirm_totp(member, desk.code(secret))
    assert len(codes) == totp.RECOVERY_CODES
    begin, confirm = desk.sessions.begin_totp, desk.sessions.confirm_totp
    for act in (begin(member, PASSWORD, HOME), confirm(member, desk.code(secret))):
        with refused(Code.CONFLICT, "already"):
            await act
    with refused(Code.UNAUTHORIZED, "send `code`"):
        await desk.login()
    # The code that confirmed is used up; the one after it is good.
    with refused(Code.UNAUTHORIZED, "used already"):
        await desk.login(code=desk.code(secret))
    desk.clock.advance(seconds=totp.STEP_SECONDS)
    await desk.login(code=desk.code(secret))
    me = await desk.sessions.me(member)
    assert (me.has_second_factor, me.recovery_codes_left) == (True, 10)


async def test_beginning_a_second_factor_takes_the_password_at_the_cost_of_a_login(desk: Desk) -> None:
    member = await desk.member(await desk.login())
    for _ in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.FORBIDDEN, "password"):
            await desk.sessions.begin_totp(member, "a wrong password", HOME)
    for act in (desk.sessions.begin_totp(member, PASSWORD, HOME), desk.login()):
        with refused(Code.RATE_LIMITED):
            await act
    assert await desk.value("SELECT count(*) FROM second_factors") == 0
    await desk.sessions.begin_totp(member, PASSWORD, AWAY)
    desk.clock.advance(seconds=1)
    await desk.sessions.begin_totp(member, PASSWORD, HOME)
    assert await desk.failures("person ") == 0


async def test_a_second_factor_ends_the_sessions_that_began_without_it(desk: Desk) -> None:
    mine, other = await desk.login(), await desk.login(peer=AWAY)
    secret = decoded(await desk.sessions.begin_totp(await desk.member(mine), PASSWORD, HOME))
    assert await desk.is_good(other)
    await desk.sessions.confirm_totp(await desk.member(mine), desk.code(secret))
    assert (await desk.is_good(mine), await desk.is_good(other)) == (True, False)


async def test_of_two_logins_with_one_code_at_once_one_is_let_in(desk: Desk) -> None:
    secret, (recovery, *_) = await desk.confirmed(await desk.login())
    for code in (desk.code(secret), recovery):
        ends = await asyncio.gather(
            *(desk.login(code=code, peer=peer) for peer in (HOME, AWAY, "203.0.113.9")), return_exceptions=True
        )
        assert sum(isinstance(end, LoginSession) for end in ends) == 1
        assert {end.code for end in ends if isinstance(end, Refusal)} == {Code.UNAUTHORIZED}


async def test_a_missing_or_wrong_code_counts_against_the_person_and_not_the_place(desk: Desk) -> None:
    await desk.confirmed(await desk.login())
    before = await desk.failures("peer ")
    with refused(Code.UNAUTHORIZED, "send `code`") as missing:
        await desk.login()
    with refused(Code.UNAUTHORIZED, "code is wrong") as wrong:
        await desk.login(code="000000")
    assert missing.value.headers == wrong.value.headers == {"Second-Factor": "required"}
    assert await desk.failures("peer ") == before
    assert await desk.failures("person ") == 2
    assert await desk.failures("code ") == 1


async def test_a_wrong_password_says_nothing_of_a_code(desk: Desk) -> None:
    await desk.confirmed(await desk.login())
    for code in (None, "000000"):
        with refused(Code.UNAUTHORIZED, "password is wrong") as raised:
            await desk.login("a wrong password", code)
        assert raised.value.headers == {}
    assert await desk.failures("code ") == 0


async def test_codes_that_are_guessed_from_many_places_are_counted_together(desk: Desk) -> None:
    secret, _ = await desk.confirmed(await desk.login())
    for number in range(limits.LOGIN_FAILURES_FREE + 1):
        with refused(Code.UNAUTHORIZED):
            await desk.login(code="000000", peer=f"203.0.113.{number}")
    with refused(Code.RATE_LIMITED):
        await desk.login(code=desk.code(secret), peer=AWAY)
    desk.clock.advance(seconds=totp.STEP_SECONDS)
    await desk.login(code=desk.code(secret), peer=AWAY)
    assert await desk.failures("code ") == 0


async def test_a_recovery_code_is_good_once_and_for_its_user_alone(desk: Desk) -> None:
    session = await desk.login()
    _, codes = await desk.confirmed(session)
    await desk.login(code=codes[3].upper().replace("-", " "))
    with refused(Code.UNAUTHORIZED):
        await desk.login(code=codes[3])
    await desk.login(code=codes[4])
    assert (await desk.sessions.me(await desk.member(session))).recovery_codes_left == 8
    assert not await desk.passwords.is_code(UserId(uuid4()), codes[5])
    await desk.login(code=codes[5])


async def test_a_second_factor_is_given_up_with_password_and_code(desk: Desk) -> None:
    member = await desk.member(await desk.login())
    with refused(Code.CONFLICT):
        await desk.sessions.disable_totp(member, PASSWORD, "000000", HOME)
    secret, codes = await desk.confirmed(await desk.login())
    for password, code in (("a wrong password", desk.code(secret)), (PASSWORD, "000000")):
        with refused(Code.FORBIDDEN):
            await desk.sessions.disable_totp(member, password, code, HOME)
    await desk.sessions.disable_totp(member, PASSWORD, desk.code(secret), HOME)
    await desk.login()
    assert await desk.value("SELECT count(*) FROM recovery_codes") == 0
    # What was given up is worth nothing beside the next one.
    await desk.confirmed(await desk.login())
    with refused(Code.UNAUTHORIZED):
        await desk.login(code=codes[0])


async def test_an_operator_switches_a_second_factor_off(desk: Desk) -> None:
    with refused(Code.CONFLICT):
        await desk.sessions.switch_off_totp(EMAIL)
    await desk.confirmed(await desk.login())
    await desk.sessions.switch_off_totp(EMAIL)
    await desk.login()


async def test_what_a_person_changes_of_their_own_is_noted_in_each_of_their_accounts(desk: Desk) -> None:
    session = await desk.login()
    await desk.confirmed(session)
    await desk.sessions.change_password(await desk.member(session), PASSWORD, NEW, HOME)
    await desk.sessions.switch_off_totp(EMAIL)
    async with desk.database.connection() as connection:
        rows = await connection.fetch("SELECT account_id, actor, action, target, detail FROM audit_log ORDER BY at")
    noted = [(row["actor"], row["action"], row["target"], row["detail"]) for row in rows[::2]]
    assert noted == [
        (EMAIL, "user.totp_enabled", EMAIL, "{}"),
        (EMAIL, "user.password_changed", EMAIL, "{}"),
        ("operator", "user.totp_disabled", EMAIL, "{}"),
    ]
    assert {row["account_id"] for row in rows} == set(desk.accounts)
    assert len(rows) == 6


async def test_secrets_are_in_no_column_and_no_repr(desk: Desk) -> None:
    member = await desk.member(session := await desk.login())
    begun = await desk.sessions.begin_totp(member, PASSWORD, HOME)
    secret = decoded(begun)
    codes = await desk.sessions.confirm_totp(member, desk.code(secret))
    kept = await desk.value("SELECT secret_sealed FROM second_factors")
    assert secret not in kept
    assert begun.text.encode() not in kept
    hashes = await desk.value("SELECT array_agg(code_hash) FROM recovery_codes")
    assert {len(one) for one in hashes} == {32}
    assert not any(code.replace("-", "").encode() in one for one in hashes for code in codes)
    assert begun.text not in repr(begun)
    assert session.token not in repr(session)


# What a login takes


async def is_blocked(judging: Awaitable[object]) -> bool:
    (end,) = await asyncio.gather(judging, return_exceptions=True)
    if isinstance(end, BaseException) and not (isinstance(end, Refusal) and end.code is Code.RATE_LIMITED):
        raise end
    return isinstance(end, Refusal) and (end.retry_after_seconds or 0) >= 1


async def rate_limited(desk: Desk, email: str, password: str = "a wrong password") -> bool:
    return await is_blocked(desk.passwords.recognised(email, password, HOME))


async def test_a_place_that_is_blocked_leaves_nothing_of_the_addresses_that_it_tries(desk: Desk) -> None:
    free = PEER_FAILURES_PER_PERSON * (limits.LOGIN_FAILURES_FREE + 1)
    assert not any([await rate_limited(desk, f"nobody-{number}@example.com") for number in range(free)])
    assert all([await rate_limited(desk, f"somebody-{number}@example.com") for number in range(20)])
    assert await desk.value("SELECT count(*) FROM login_failures") == free + 1
    assert await desk.failures("peer ") == free


async def test_a_person_who_is_blocked_does_not_block_the_place(desk: Desk) -> None:
    tries = [await rate_limited(desk, "nobody@example.com") for _ in range(30)]
    assert tries == [False] * (limits.LOGIN_FAILURES_FREE + 1) + [True] * (29 - limits.LOGIN_FAILURES_FREE)
    assert await desk.failures("peer ") == await desk.failures("person ") == limits.LOGIN_FAILURES_FREE + 1


async def test_of_many_tries_at_once_one_passes_when_the_wait_is_over(desk: Desk) -> None:
    async def are_blocked(user_id: UserId) -> list[bool]:
        return await asyncio.gather(*(is_blocked(desk.passwords.is_code(user_id, "000000")) for _ in range(40)))

    # Without this, the first of them is done before the second has a connection.
    async with AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(desk.database.connection())
    user_id = UserId(uuid4())
    assert (await are_blocked(user_id)).count(False) == limits.LOGIN_FAILURES_FREE + 1
    desk.clock.advance(hours=1)
    assert (await are_blocked(user_id)).count(False) == 1
    logins = await asyncio.gather(*(rate_limited(desk, EMAIL) for _ in range(40)))
    assert logins.count(False) == limits.LOGIN_FAILURES_FREE + 1


async def test_tries_that_cross_on_their_way_do_not_block_each_other(desk: Desk) -> None:
    """Clocks differ, and whoever looked at theirs first may be counted last."""
    await desk.login()
    behind = Desk(desk.database, clock=SettableClock(desk.clock.now() - timedelta(seconds=1)))
    for one in (desk, behind):
        assert not await rate_limited(one, EMAIL)
    # A right password is forgiven as late as it was slow to check.
    assert not await rate_limited(desk, EMAIL, PASSWORD)
    assert not await rate_limited(behind, EMAIL)


async def test_failures_are_remembered_for_a_day(desk: Desk) -> None:
    for hours in (0, 0, 20, 20):
        desk.clock.advance(hours=hours)
        assert not await rate_limited(desk, EMAIL)
    assert await desk.failures("person ") == 4
    desk.clock.advance(hours=25)
    assert not await rate_limited(desk, EMAIL)
    assert await desk.failures("person ") == 1


@pytest.mark.slow
@pytest.mark.alone
async def test_the_time_that_a_login_takes_does_not_tell_whether_there_is_a_user(database: Database) -> None:
    """Medians of 200 of each, one by one in turn, in the processor's time, whatever else it does meanwhile.

    The hash costs a tenth of what it does in earnest, so that what else may differ weighs ten times as much.
    """
    desk = Desk(database, hasher=PasswordHasher(time_cost=1, memory_cost=16_384, parallelism=1))
    await desk.furnish()
    taken: dict[str, list[float]] = {EMAIL: [], "nobody@example.com": []}
    for number in range(201):
        for email, seconds in taken.items():
            # From a new place each time, so that nothing waits; the first pays for what is made once.
            peer = f"10.{len(email)}.{number // 200}.{number % 200}"
            started = time.process_time()
            with refused(Code.UNAUTHORIZED, "password is wrong"):
                await desk.sessions.login(email, "a wrong password", None, peer)
            if number:
                seconds.append(time.process_time() - started)
    known, unknown = (statistics.median(seconds) for seconds in taken.values())
    said = f"known {known * 1000:.2f} ms, unknown {unknown * 1000:.2f} ms"
    print(said)
    assert abs(known - unknown) < 0.05 * min(known, unknown), said
