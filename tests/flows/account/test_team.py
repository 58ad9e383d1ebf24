"""The team on a real database: races that must end well, tokens that must not be found, time that passes."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.team import Joined, MemberRow, NewInvitation, Team
from posthouse.randomness import SystemRandomness
from posthouse.rules import ids, limits
from posthouse.rules.credential import OPERATOR, Actor, Role
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import accounts, users
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from tests.flows.account_flows import assert_refused as refused
from tests.support.accept_flow import new_id
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.faster import CHEAP_HASHER
from tests.support.locks import lock_waits
from tests.support.maintenance import new_maintenance

PASSWORD: Final = "correct horse battery"
PEER: Final = "192.0.2.7"
SEALER: Final = Sealer({"1": bytes(32)}, "1")


@dataclass
class TeamFlow:
    database: Database
    clock: SettableClock = field(default_factory=SettableClock)

    def __post_init__(self) -> None:
        randomness = SystemRandomness()
        passwords = Passwords(context(self.database, self.clock, randomness, sealer=SEALER), hasher=CHEAP_HASHER)
        self.team = Team(
            context(self.database, self.clock, randomness), passwords=passwords, public_url="https://mail.example.com"
        )

    async def account(self, name: str = "Acme") -> AccountId:
        account_id = AccountId(new_id(self.clock.now()))
        async with self.database.transaction() as tx:
            await accounts.insert(tx, account_id, name, self.clock.now())
        return account_id

    async def user(self, account_id: AccountId, name: str, role: Role = Role.OWNER) -> MemberRow:
        self.clock.advance(milliseconds=1)
        return await self.team.create_user(account_id, f"{name}@example.com", PASSWORD, role, OPERATOR)

    async def crowd(self, account_id: AccountId, count: int) -> None:
        """This many more viewers, all at once."""
        await self.fetch(
            "WITH made AS (INSERT INTO users (id, email, password_hash, created_at)"
            "  SELECT gen_random_uuid(), 'v' || n || '@example.com', '-', $2 FROM generate_series(1, $3::integer) n"
            "  RETURNING id)"
            " INSERT INTO memberships (account_id, user_id, role, created_at) SELECT $1, id, 'viewer', $2 FROM made",
            account_id, self.clock.now(), count,
        )  # fmt: skip

    async def accept(self, made: NewInvitation, password: str = PASSWORD) -> Joined:
        return await self.team.accept(made.token, password, None, PEER)

    async def roles(self, account_id: AccountId) -> dict[str, Role]:
        page = await self.team.members(account_id, 100)
        return {member.email.partition("@")[0]: member.role for member in page.items}

    async def actions(self, account_id: AccountId) -> list[str]:
        return [entry.action for entry in (await self.team.log(account_id, 100)).items]

    async def fetch(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetch(query, *arguments)

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def changed_at(self, account_id: AccountId) -> Any:
        return await self.value("SELECT changed_at FROM accounts WHERE id = $1", account_id)


@pytest.fixture
def flow(database: Database) -> TeamFlow:
    return TeamFlow(database)


@pytest.fixture
async def acme(flow: TeamFlow) -> AccountId:
    return await flow.account()


def given(member: MemberRow) -> str:
    return ids.text(ids.USER, member.user_id)


def acting(member: MemberRow) -> Actor:
    return Actor(member.user_id, member.email)


async def outcomes(*acts: Awaitable[object]) -> list[Code | None]:
    """The refusal of each of the acts, all begun at once, or None."""
    ends = await asyncio.gather(*acts, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, Refusal):
            raise end
    return [end.code if isinstance(end, Refusal) else None for end in ends]


# Users that an operator makes.


@pytest.mark.rule("LOGIN-06")
async def test_a_user_has_an_argon2id_hash_and_their_address_in_lower_case(flow: TeamFlow, acme: AccountId) -> None:
    before = await flow.changed_at(acme)
    flow.clock.advance(minutes=1)
    await flow.team.create_user(acme, "Ada@Example.com", PASSWORD, Role.ADMIN, OPERATOR)
    stored = await flow.value("SELECT password_hash FROM users WHERE email = 'ada@example.com'")
    assert stored.startswith("$argon2id$")
    assert CHEAP_HASHER.verify(stored, PASSWORD)
    assert await flow.roles(acme) == {"ada": Role.ADMIN}
    assert await flow.changed_at(acme) > before
    (entry,) = (await flow.team.log(acme, 10)).items
    assert (entry.actor, entry.action, entry.target) == (OPERATOR, "member.created", "ada@example.com")


async def test_a_user_that_can_not_be_made_is_explained(flow: TeamFlow, acme: AccountId) -> None:
    create = flow.team.create_user
    await create(acme, "ada@example.com", PASSWORD, Role.OWNER, OPERATOR)
    await refused(create(acme, "ADA@example.com", PASSWORD, Role.OWNER, OPERATOR), Code.CONFLICT, "invite them")
    await refused(create(acme, "bob@example.com", "short", Role.OWNER, OPERATOR), Code.INVALID_REQUEST, "12 to 256")
    await refused(create(acme, "bob", PASSWORD, Role.OWNER, OPERATOR), Code.INVALID_REQUEST)
    assert await flow.actions(acme) == ["member.created"]


# Members.


@pytest.mark.rule("TEAM-04")
async def test_two_owners_who_remove_each_other_at_once_leave_one(flow: TeamFlow) -> None:
    for number in range(5):
        account_id = await flow.account(f"account {number}")
        ada, bob = [await flow.user(account_id, f"{name}{number}") for name in ("ada", "bob")]
        codes = await outcomes(
            flow.team.remove(account_id, given(ada), acting(bob)), flow.team.remove(account_id, given(bob), acting(ada))
        )
        assert codes.count(None) == 1
        assert list((await flow.roles(account_id)).values()) == [Role.OWNER]


@pytest.mark.rule("TEAM-04")
async def test_of_owners_who_all_step_down_at_once_one_stays(flow: TeamFlow, acme: AccountId) -> None:
    owners = [await flow.user(acme, name) for name in ("ada", "bob", "eve")]
    codes = await outcomes(*[flow.team.change_role(acme, given(row), Role.VIEWER, acting(row)) for row in owners])
    assert sorted(codes, key=str) == [None, None, Code.CONFLICT]
    assert list((await flow.roles(acme)).values()).count(Role.OWNER) == 1


async def test_a_member_who_lost_the_role_changes_nothing_with_an_old_token(flow: TeamFlow, acme: AccountId) -> None:
    ada, bob = [await flow.user(acme, name) for name in ("ada", "bob")]
    await flow.team.remove(acme, given(bob), acting(ada))
    team, late = flow.team, acting(bob)
    await refused(team.remove(acme, given(ada), late), Code.FORBIDDEN, "no longer an owner")
    await refused(team.change_role(acme, given(ada), Role.VIEWER, late), Code.FORBIDDEN)
    await refused(team.invite(acme, "bob@example.com", Role.OWNER, late), Code.FORBIDDEN)
    made = await team.invite(acme, "eve@example.com", Role.VIEWER, acting(ada))
    invitation_id = ids.text(ids.INVITATION, made.invitation.id)
    await refused(team.revoke_invitation(acme, invitation_id, late), Code.FORBIDDEN)


async def test_a_change_invalidates_caches_and_no_change_is_not_recorded(flow: TeamFlow, acme: AccountId) -> None:
    ada, bob = [await flow.user(acme, name) for name in ("ada", "bob")]
    invited = await flow.team.invite(acme, "eve@example.com", Role.VIEWER, acting(ada))
    changes: list[Any] = [
        lambda: flow.team.change_role(acme, given(bob), Role.VIEWER, acting(ada)),
        lambda: flow.team.remove(acme, given(bob), acting(ada)),
        lambda: flow.accept(invited),
    ]
    for change in changes:
        before = await flow.changed_at(acme)
        flow.clock.advance(seconds=1)
        await change()
        assert await flow.changed_at(acme) > before
    before = await flow.actions(acme)
    await flow.team.change_role(acme, given(ada), Role.OWNER, acting(ada))
    assert await flow.actions(acme) == before


@pytest.mark.rule("TEAM-01")
async def test_members_are_listed_page_by_page_those_who_joined_last_first(flow: TeamFlow, acme: AccountId) -> None:
    for name in ("ada", "bob", "eve"):
        await flow.user(acme, name)
    await flow.crowd(acme, 2)
    await flow.fetch("UPDATE memberships SET created_at = created_at - interval '1 day' WHERE role = 'viewer'")
    seen: list[str] = []
    cursor = None
    while True:
        page = await flow.team.members(acme, 2, cursor)
        seen += [member.email.partition("@")[0] for member in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen[:3] == ["eve", "bob", "ada"]
    assert sorted(seen[3:]) == ["v1", "v2"]


async def test_a_cursor_that_was_never_given_is_refused(flow: TeamFlow, acme: AccountId) -> None:
    for read in (flow.team.members, flow.team.invitations, flow.team.log):
        for cursor in ("", "x", "1.us_", ".us_00000000000000000000000000", "f" * 40 + ".", "1\0"):
            await refused(read(acme, 10, cursor), Code.INVALID_REQUEST, "`cursor`")


# Invitations.


async def test_a_token_is_shown_once_and_stored_nowhere(flow: TeamFlow, acme: AccountId) -> None:
    made = await flow.team.invite(acme, "eve@example.com", Role.MEMBER, OPERATOR)
    assert made.token not in repr(made)
    assert made.link == f"https://mail.example.com/invitation#{made.token}"
    for table in ("invitations", "audit_log"):
        written = await flow.value(f"SELECT string_agg(row::text, ' ') FROM {table} row")
        assert made.token not in written
        assert made.token.encode().hex() not in written


async def test_a_token_that_is_used_twice_at_once_makes_one_member(flow: TeamFlow, acme: AccountId) -> None:
    made = await flow.team.invite(acme, "eve@example.com", Role.MEMBER, OPERATOR)
    codes = await outcomes(*[flow.accept(made) for _ in range(4)])
    assert codes.count(None) == 1
    assert set(codes) <= {None, Code.NOT_FOUND, Code.CONFLICT, Code.UNAUTHORIZED}
    assert await flow.roles(acme) == {"eve": Role.MEMBER}
    assert (await flow.actions(acme)).count("member.joined") == 1
    await refused(flow.accept(made), Code.NOT_FOUND, "then log in")


async def test_one_address_invited_to_two_accounts_becomes_one_user(flow: TeamFlow) -> None:
    acme, bolt = await flow.account("acme"), await flow.account("bolt")
    invited = [await flow.team.invite(to, "eve@example.com", Role.MEMBER, OPERATOR) for to in (acme, bolt)]
    codes = await outcomes(*[flow.accept(made) for made in invited])
    # The second finds a user who was not there when it checked, and must try again.
    for made, code in zip(invited, codes, strict=True):
        if code is not None:
            await flow.accept(made)
    assert await flow.value("SELECT count(*) FROM users") == 1
    assert await flow.roles(acme) == await flow.roles(bolt) == {"eve": Role.MEMBER}


async def test_a_user_of_another_account_joins_with_their_password_and_no_other(flow: TeamFlow) -> None:
    acme, bolt = await flow.account("acme"), await flow.account("bolt")
    await flow.user(acme, "eve")
    made = await flow.team.invite(bolt, "eve@example.com", Role.VIEWER, OPERATOR)
    await refused(flow.accept(made, "another password"), Code.UNAUTHORIZED)
    assert await flow.roles(bolt) == {}
    joined = await flow.accept(made)
    assert (joined.account.name, joined.member.role) == ("bolt", Role.VIEWER)
    assert await flow.roles(acme) == {"eve": Role.OWNER}


async def test_guessing_at_an_invitation_counts_as_guessing_at_the_login(flow: TeamFlow) -> None:
    acme, bolt = await flow.account("acme"), await flow.account("bolt")
    await flow.user(acme, "eve")
    made = await flow.team.invite(bolt, "eve@example.com", Role.VIEWER, OPERATOR)
    for _ in range(limits.LOGIN_FAILURES_FREE + 1):
        await refused(flow.accept(made, "another password"), Code.UNAUTHORIZED)
    await refused(flow.accept(made), Code.RATE_LIMITED)
    flow.clock.advance(seconds=1)
    await flow.accept(made)


@pytest.mark.rule("TEAM-07")
async def test_a_new_invitation_replaces_the_one_before(flow: TeamFlow, acme: AccountId) -> None:
    first = await flow.team.invite(acme, "eve@example.com", Role.OWNER, OPERATOR)
    second = await flow.team.invite(acme, "EVE@example.com", Role.VIEWER, OPERATOR)
    page = await flow.team.invitations(acme, 10)
    assert [row.id for row in page.items] == [second.invitation.id]
    await refused(flow.accept(first), Code.NOT_FOUND)
    assert (await flow.accept(second)).member.role is Role.VIEWER


async def test_an_invitation_ends_after_seven_days_and_is_swept_away(flow: TeamFlow, acme: AccountId) -> None:
    made = await flow.team.invite(acme, "eve@example.com", Role.OWNER, OPERATOR)
    flow.clock.advance(days=7)
    await refused(flow.accept(made), Code.NOT_FOUND, "7 days")
    assert (await flow.team.invitations(acme, 10)).items == []
    invitation_id = ids.text(ids.INVITATION, made.invitation.id)
    await refused(flow.team.revoke_invitation(acme, invitation_id, OPERATOR), Code.NOT_FOUND)
    assert await flow.value("SELECT count(*) FROM invitations") == 1
    await new_maintenance(flow.database, flow.clock).forget_expired()
    assert await flow.value("SELECT count(*) FROM invitations") == 0


@pytest.mark.rule("TEAM-12")
async def test_an_owners_invitation_ends_with_the_owner_and_an_operators_stays_valid(flow: TeamFlow) -> None:
    account_id = await flow.account()
    ada, bob = [await flow.user(account_id, name) for name in ("ada", "bob")]
    by_ada, by_bob, by_operator = [
        await flow.team.invite(account_id, f"{name}@example.com", Role.OWNER, inviter)
        for name, inviter in (("eve", acting(ada)), ("mallory", acting(bob)), ("olga", OPERATOR))
    ]
    await flow.team.change_role(account_id, given(bob), Role.ADMIN, acting(ada))
    await refused(flow.accept(by_bob), Code.CONFLICT, "ask an owner for a new invitation")
    await flow.team.remove(account_id, given(bob), acting(ada))
    await refused(flow.accept(by_bob), Code.CONFLICT)
    assert await flow.value("SELECT count(*) FROM users WHERE email LIKE 'mallory@%'") == 0
    await flow.accept(by_ada)
    await flow.accept(by_operator)
    assert set(await flow.roles(account_id)) == {"ada", "eve", "olga"}


async def test_an_owner_who_steps_down_while_an_invitation_is_accepted_invites_no_one(flow: TeamFlow) -> None:
    account_id = await flow.account()
    bob = await flow.user(account_id, "bob")
    by_bob = await flow.team.invite(account_id, "eve@example.com", Role.OWNER, acting(bob))
    async with flow.database.transaction() as tx:
        await accounts.lock(tx, account_id)
        accepted = asyncio.ensure_future(flow.accept(by_bob))
        await lock_waits(tx, unless=accepted)
        await users.change_role(tx, account_id, bob.user_id, Role.ADMIN, flow.clock.now())
    await refused(accepted, Code.CONFLICT, "ask an owner for a new invitation")
    assert set(await flow.roles(account_id)) == {"bob"}


@pytest.mark.rule("TEAM-07")
async def test_a_removed_member_does_not_come_back_through_an_invitation(flow: TeamFlow, acme: AccountId) -> None:
    ada = await flow.user(acme, "ada")
    used = await flow.team.invite(acme, "eve@example.com", Role.OWNER, acting(ada))
    eve = (await flow.accept(used)).member
    await refused(flow.team.invite(acme, "eve@example.com", Role.OWNER, acting(ada)), Code.CONFLICT, "already")
    await flow.team.remove(acme, given(eve), acting(ada))
    await refused(flow.accept(used), Code.NOT_FOUND)
    # One that was made while an operator added them directly is void as well.
    left = await flow.team.invite(acme, "olga@example.com", Role.OWNER, acting(ada))
    olga = await flow.user(acme, "olga")
    await flow.team.remove(acme, given(olga), acting(ada))
    await refused(flow.accept(left), Code.NOT_FOUND)


async def test_no_race_makes_more_members_than_there_may_be(flow: TeamFlow, acme: AccountId) -> None:
    await flow.crowd(acme, limits.MEMBERS_MAX - 1)
    invited = [await flow.team.invite(acme, f"{name}@example.com", Role.MEMBER, OPERATOR) for name in ("ada", "bob")]
    codes = await outcomes(
        *[flow.accept(made) for made in invited],
        flow.team.create_user(acme, "eve@example.com", PASSWORD, Role.OWNER, OPERATOR),
    )
    assert sorted(codes, key=str) == [None, Code.CONFLICT, Code.CONFLICT]
    assert await flow.value("SELECT count(*) FROM memberships") == limits.MEMBERS_MAX


@pytest.mark.rule("TEAM-07")
async def test_no_race_makes_more_invitations_than_there_may_be(flow: TeamFlow, acme: AccountId) -> None:
    for number in range(limits.INVITATIONS_MAX - 1):
        await flow.team.invite(acme, f"r{number}@example.com", Role.VIEWER, OPERATOR)
    invite = flow.team.invite
    codes = await outcomes(*[invite(acme, f"{n}@example.com", Role.VIEWER, OPERATOR) for n in ("a", "b", "c")])
    assert codes.count(Code.CONFLICT) == 2
    assert await flow.value("SELECT count(*) FROM invitations") == limits.INVITATIONS_MAX
    # Someone who has one may have another in its place.
    await invite(acme, "r1@example.com", Role.MEMBER, OPERATOR)
    # Those that are over are not counted.
    flow.clock.advance(days=8)
    await invite(acme, "late@example.com", Role.MEMBER, OPERATOR)


# The log.


async def test_the_log_is_read_page_by_page_and_only_of_one_account(flow: TeamFlow) -> None:
    acme, bolt = await flow.account("acme"), await flow.account("bolt")
    for name in ("ada", "bob", "eve"):
        await flow.user(acme, name)
    await flow.user(bolt, "olga")
    first = await flow.team.log(acme, 2)
    second = await flow.team.log(acme, 2, first.next_cursor)
    assert [entry.target for entry in first.items] == ["eve@example.com", "bob@example.com"]
    assert [entry.target for entry in second.items] == ["ada@example.com"]
    assert second.next_cursor is None
    cursor = ids.text(ids.AUDIT_ENTRY, UUID(int=2**128 - 1))
    assert [entry.target for entry in (await flow.team.log(bolt, 2, cursor)).items] == ["olga@example.com"]


async def test_entries_are_kept_for_400_days(flow: TeamFlow, acme: AccountId) -> None:
    await flow.user(acme, "ada")
    await flow.user(acme, "bob")
    flow.clock.advance(timedelta(days=400, milliseconds=-1))
    await new_maintenance(flow.database, flow.clock).forget_expired()
    assert len(await flow.actions(acme)) == 2
    flow.clock.advance(timedelta(milliseconds=1))
    await new_maintenance(flow.database, flow.clock).forget_expired()
    assert [entry.target for entry in (await flow.team.log(acme, 9)).items] == ["bob@example.com"]
