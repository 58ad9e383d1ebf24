"""The keyring against a real database: secrets made, replaced, revoked, and the record of their use."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.shared.principal import Principal
from posthouse.rules import ids, limits
from posthouse.rules.credential import OPERATOR, Mode, Scope
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.control_cache import ControlCache
from posthouse.store.credentials import LastUse
from posthouse.store.postgres import Database
from tests.flows.account_flows import ADA, DAY, NOON, AccountFlows, assert_refused
from tests.support.context import PEPPERS, context
from tests.support.fresh_database import open_database
from tests.support.service import basic

HOUR = timedelta(hours=1)
HERE = "192.0.2.7"


class FreshAdmission:
    """Admission that notices every change at once."""

    def __init__(self, flows: AccountFlows, uses: LastUsed) -> None:
        self._flows = flows
        self._last_used = uses

    def now(self) -> Admission:
        directory = ControlCache(self._flows.database, self._flows.clock.monotonic)
        given = context(self._flows.database, self._flows.clock, token_secrets=["x" * 32])
        return Admission(given, control_cache=directory, last_used=self._last_used)

    async def sender(self, authorization: str, peer: str = HERE) -> Principal:
        return await self.now().sender(authorization, peer)

    async def admits(self, authorization: str, peer: str = HERE) -> bool:
        try:
            await self.sender(authorization, peer)
        except Refusal:
            return False
        return True


@pytest.fixture
def uses(database: Database) -> LastUsed:
    return LastUsed(database)


@pytest.fixture
def admission(flows: AccountFlows, uses: LastUsed) -> FreshAdmission:
    return FreshAdmission(flows, uses)


def key_id(made: object) -> str:
    return ids.text(ids.API_KEY, made.key.id)  # type: ignore[attr-defined]


# Credentials.


async def test_a_credential_is_limited_to_networks_and_revoked_once(flows: AccountFlows, acme: AccountId) -> None:
    made = await flows.credentials.create_credential(acme, "web", ["192.0.2.0/24"], ADA)
    assert [str(network) for network in made.credential.allowed_networks] == ["192.0.2.0/24"]
    assert made.password not in repr(made)
    await flows.stamps(lambda: flows.credentials.revoke_credential(acme, made.credential.username, ADA))
    given = ids.text(ids.CREDENTIAL, made.credential.id)
    await assert_refused(flows.credentials.revoke_credential(acme, given, ADA), Code.CONFLICT)
    await assert_refused(flows.credentials.rotate_credential(acme, given, ADA), Code.CONFLICT, "is revoked")
    for unknown in ("smtp_nobody", "", "cr_", "smtp_\0", ids.text(ids.API_KEY, made.credential.id)):
        await assert_refused(flows.credentials.revoke_credential(acme, unknown, ADA), Code.NOT_FOUND)
    await assert_refused(flows.credentials.create_credential(acme, "x", ["everywhere"], ADA), Code.INVALID_REQUEST)
    assert await flows.actions(acme) == [
        ("account.created", "operator"),
        ("credential.created", ADA.name),
        ("credential.revoked", ADA.name),
    ]


@pytest.mark.rule("KEY-12")
async def test_another_credential_becomes_the_default_and_the_last_stays(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("Acme")
    acme, first = made.account.id, made.credential.credential
    await assert_refused(
        flows.credentials.revoke_credential(acme, first.username, ADA), Code.CONFLICT, "create another first"
    )
    second = (await flows.credentials.create_credential(acme, "second", (), ADA)).credential
    await flows.credentials.create_credential(acme, "third", (), ADA)
    revoked = await flows.credentials.revoke_credential(acme, first.username, ADA)
    assert not revoked.is_default
    defaults = [row.username for row in (await flows.credentials.credentials(acme, 10)).items if row.is_default]
    assert defaults == [second.username]


async def test_an_operator_may_revoke_the_last_and_the_next_is_the_default(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("Acme")
    acme, username = made.account.id, made.credential.credential.username
    await flows.credentials.revoke_credential(acme, username, OPERATOR, even_the_last=True)
    await assert_refused(flows.credentials.create_key(acme, ADA), Code.CONFLICT, "is revoked")
    assert (await flows.credentials.create_credential(acme, "next", (), ADA)).credential.is_default


async def test_two_simultaneous_revocations_leave_one_credential(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("Acme")
    acme, first = made.account.id, made.credential.credential.username
    second = (await flows.credentials.create_credential(acme, "second", (), ADA)).credential.username
    ends = await asyncio.gather(
        *[flows.credentials.revoke_credential(acme, row, ADA) for row in (first, second)], return_exceptions=True
    )
    assert sorted(isinstance(end, Refusal) for end in ends) == [False, True], ends
    query = "SELECT count(*) FROM credentials WHERE is_default AND revoked_at IS NULL"
    assert await flows.value(query) == 1


@pytest.mark.rule("KEY-09")
async def test_a_password_that_was_replaced_works_until_the_overlap_ends(
    flows: AccountFlows, admission: FreshAdmission
) -> None:
    made = await flows.accounts.create_account("Acme")
    acme, username, old = made.account.id, made.credential.credential.username, made.credential.password
    rotated = await flows.credentials.rotate_credential(acme, username, ADA, overlap_seconds=3600)
    assert rotated.credential.previous_until is not None
    assert await admission.admits(basic(username, old))
    assert await admission.admits(basic(username, rotated.password))
    assert not await admission.admits(basic(username, old + "x"))
    again = await flows.credentials.rotate_credential(acme, username, ADA, overlap_seconds=3600)
    assert not await admission.admits(basic(username, old)), "one before the last has ended"
    flows.clock.time += HOUR
    assert not await admission.admits(basic(username, rotated.password))
    assert await admission.admits(basic(username, again.password))
    last = await flows.credentials.rotate_credential(acme, username, ADA, overlap_seconds=0)
    assert not await admission.admits(basic(username, again.password))
    assert await admission.admits(basic(username, last.password))
    stored = await flows.value("SELECT secret_hash FROM credentials")
    assert PEPPERS.matches(last.password, stored)
    for overlap in (-1, limits.OVERLAP_SECONDS_MAX + 1):
        act = flows.credentials.rotate_credential(acme, username, ADA, overlap_seconds=overlap)
        await assert_refused(act, Code.INVALID_REQUEST, "overlap_seconds")


@pytest.mark.rule("KEY-13")
async def test_an_account_has_a_hundred_credentials_at_most(flows: AccountFlows, acme: AccountId) -> None:
    await flows.change(
        """
        INSERT INTO credentials (account_id, id, username, secret_hash, name, created_at)
        SELECT account_id, gen_random_uuid(), 'smtp_' || n, secret_hash, name, created_at
        FROM credentials CROSS JOIN generate_series(2, $1) n
        """,
        limits.CREDENTIALS_MAX,
    )
    await assert_refused(
        flows.credentials.create_credential(acme, "one more", (), ADA), Code.CONFLICT, "revoke one first"
    )
    await flows.credentials.revoke_credential(acme, "smtp_7", ADA)
    await flows.credentials.create_credential(acme, "one more", (), ADA)


# Keys.


@pytest.mark.rule("CRED-01")
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_key_says_its_mode_and_only_its_hash_is_stored(flows: AccountFlows, mode: Mode) -> None:
    acme = await flows.account()
    made = await flows.credentials.create_key(
        acme, ADA, mode=mode, scopes=[Scope.SEND, Scope.READ], expires_at=NOON + DAY
    )
    assert made.secret.startswith(f"ph_{mode}_")
    assert made.key.hint == f"ph_{mode}_…{made.secret[-4:]}"
    assert made.secret not in repr(made)
    stored = await flows.value("SELECT secret_hash FROM api_keys WHERE id = $1", made.key.id)
    assert PEPPERS.matches(made.secret, stored)
    (listed,) = (await flows.credentials.keys(acme, 10)).items
    assert listed == made.key


@pytest.mark.rule("KEY-04")
async def test_a_key_belongs_to_the_default_credential_unless_another_is_named(flows: AccountFlows) -> None:
    account = await flows.accounts.create_account("Acme")
    acme = account.account.id
    other = await flows.credentials.create_credential(acme, "web", (), ADA)
    first = await flows.credentials.create_key(acme, ADA)
    second = await flows.credentials.create_key(acme, ADA, given_credential=other.credential.username)
    assert first.key.credential_id == account.credential.credential.id
    assert second.key.credential_id == other.credential.id


@pytest.mark.rule("KEY-06")
async def test_a_key_is_revoked_once_and_must_be_able_to_live(flows: AccountFlows, acme: AccountId) -> None:
    made = await flows.credentials.create_key(acme, ADA)
    await flows.stamps(lambda: flows.credentials.revoke_key(acme, key_id(made), ADA))
    await assert_refused(flows.credentials.revoke_key(acme, key_id(made), ADA), Code.CONFLICT)
    await assert_refused(flows.credentials.revoke_key(acme, "ak_nothing", ADA), Code.NOT_FOUND)
    await assert_refused(
        flows.credentials.create_key(acme, ADA, expires_at=NOON - DAY), Code.INVALID_REQUEST, "would expire"
    )
    await assert_refused(
        flows.credentials.create_key(acme, ADA, expires_at=NOON + 4_000 * DAY), Code.INVALID_REQUEST, "ten"
    )
    await assert_refused(flows.credentials.create_key(acme, ADA, scopes=[]), Code.INVALID_REQUEST, "scopes")


@pytest.mark.rule("KEY-14")
async def test_one_accounts_credentials_and_keys_are_unknown_to_another(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("one")
    key = await flows.credentials.create_key(made.account.id, ADA)
    two = await flows.account("two")
    username = made.credential.credential.username
    assert (await flows.credentials.keys(two, 10)).items == []
    assert username not in [row.username for row in (await flows.credentials.credentials(two, 10)).items]
    await assert_refused(flows.credentials.revoke_credential(two, username, ADA), Code.NOT_FOUND)
    await assert_refused(flows.credentials.rotate_credential(two, username, ADA), Code.NOT_FOUND)
    await assert_refused(flows.credentials.revoke_key(two, key_id(key), ADA), Code.NOT_FOUND)
    await assert_refused(flows.credentials.rotate_key(two, key_id(key), ADA), Code.NOT_FOUND)
    await assert_refused(flows.credentials.create_key(two, ADA, given_credential=username), Code.NOT_FOUND)


@pytest.mark.rule("KEY-10")
async def test_a_key_that_was_replaced_works_until_the_overlap_ends(
    flows: AccountFlows, acme: AccountId, admission: FreshAdmission
) -> None:
    made = await flows.credentials.create_key(
        acme, ADA, name="shop", scopes=list(Scope), allowed_networks=["192.0.2.0/24"], expires_at=NOON + 10 * DAY
    )
    flows.clock.time = NOON + DAY
    rotated = await flows.credentials.rotate_key(acme, key_id(made), ADA, overlap_seconds=3600)
    assert rotated.previous is not None
    assert rotated.previous.replaced_by == rotated.key.id
    assert rotated.key.expires_at is not None
    assert abs(rotated.key.expires_at - (NOON + 11 * DAY)) < timedelta(seconds=1), "it lives as long, counted from now"
    for same in ("name", "mode", "may_read", "may_send", "credential_id", "allowed_networks"):
        assert getattr(rotated.key, same) == getattr(made.key, same)
    for secret in (made.secret, rotated.secret):
        assert await admission.admits(f"Bearer {secret}")
    await assert_refused(flows.credentials.rotate_key(acme, key_id(made), ADA), Code.CONFLICT, "was already rotated")
    flows.clock.time += HOUR
    assert not await admission.admits(f"Bearer {made.secret}")
    assert await admission.admits(f"Bearer {rotated.secret}")
    await flows.credentials.revoke_key(acme, key_id(rotated), ADA)
    await assert_refused(flows.credentials.rotate_key(acme, key_id(rotated), ADA), Code.CONFLICT, "is revoked")
    assert [action for action, _ in await flows.actions(acme)][1:] == ["key.created", "key.rotated", "key.revoked"]


@pytest.mark.rule("KEY-10")
async def test_rotating_never_lengthens_a_keys_life_and_an_expired_one_is_past_it(flows: AccountFlows) -> None:
    acme = await flows.account()
    made = await flows.credentials.create_key(acme, ADA, expires_at=NOON + HOUR)
    rotated = await flows.credentials.rotate_key(acme, key_id(made), ADA)
    assert rotated.previous is not None
    assert rotated.previous.expires_at == NOON + HOUR
    flows.clock.time = NOON + 2 * DAY
    await assert_refused(flows.credentials.rotate_key(acme, key_id(rotated), ADA), Code.CONFLICT, "has expired")


@pytest.mark.rule("KEY-05")
async def test_both_allow_lists_hold_the_keys_own_and_its_credentials(
    flows: AccountFlows, acme: AccountId, admission: FreshAdmission
) -> None:
    owner = await flows.credentials.create_credential(acme, "web", ["192.0.2.0/24"], ADA)
    made = await flows.credentials.create_key(
        acme, ADA, given_credential=owner.credential.username, allowed_networks=["192.0.2.7", "198.51.100.1"]
    )
    opened_from = [
        peer for peer in (HERE, "192.0.2.8", "198.51.100.1") if await admission.admits(f"Bearer {made.secret}", peer)
    ]
    assert opened_from == [HERE]


@pytest.mark.rule("KEY-05", "CRED-07")
async def test_an_allow_list_holds_wherever_its_password_is_used(
    flows: AccountFlows, acme: AccountId, admission: FreshAdmission
) -> None:
    made = await flows.credentials.create_credential(acme, "web", ["192.0.2.0/24"], ADA)
    login = made.credential.username, made.password
    session = await admission.now().password(*login, HERE)
    uses: list[tuple[Callable[[str], Awaitable[object]], Code]] = [
        (lambda peer: admission.now().sender(basic(*login), peer), Code.FORBIDDEN),
        (lambda peer: admission.now().reader(basic(*login), peer), Code.UNAUTHORIZED),
        (lambda peer: admission.now().password(*login, peer), Code.FORBIDDEN),
        (lambda peer: admission.now().recall(session, peer), Code.FORBIDDEN),
    ]
    for use, refusal in uses:
        await use(HERE)
        await assert_refused(use("198.51.100.1"), refusal, "may not be used from 198.51.100.1")


async def test_a_key_without_the_scope_to_send_is_forbidden_to_send(
    flows: AccountFlows, acme: AccountId, admission: FreshAdmission
) -> None:
    made = await flows.credentials.create_key(acme, ADA, scopes=[Scope.READ])
    await assert_refused(admission.sender(f"Bearer {made.secret}"), Code.FORBIDDEN, "send scope")


@pytest.mark.rule("KEY-13")
async def test_an_account_has_a_thousand_keys_at_most_and_each_can_be_rotated(flows: AccountFlows) -> None:
    acme = await flows.account()
    made = await flows.credentials.create_key(acme, ADA)
    await flows.change(
        """
        INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at)
        SELECT account_id, gen_random_uuid(), credential_id, n::text::bytea, hint, name, mode, created_at
        FROM api_keys CROSS JOIN generate_series(2, $1) n
        """,
        limits.KEYS_MAX,
    )
    await assert_refused(flows.credentials.create_key(acme, ADA), Code.CONFLICT, "revoke one first")
    rotated = await flows.credentials.rotate_key(acme, key_id(made), ADA)
    await assert_refused(flows.credentials.create_key(acme, ADA), Code.CONFLICT)
    await flows.credentials.revoke_key(acme, key_id(rotated), ADA)
    await flows.credentials.create_key(acme, ADA)


async def test_a_thousand_rotated_keys_that_still_work_are_enough(flows: AccountFlows, acme: AccountId) -> None:
    made = await flows.credentials.create_key(acme, ADA)
    await flows.change(
        """
        INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, replaced_by,
            expires_at)
        SELECT account_id, gen_random_uuid(), credential_id, n::text::bytea, hint, name, mode, created_at, id, $2
        FROM api_keys CROSS JOIN generate_series(1, $1) n
        """,
        limits.KEYS_MAX,
        flows.clock.now() + DAY,
    )
    await assert_refused(flows.credentials.rotate_key(acme, key_id(made), ADA), Code.CONFLICT, "revoke some")
    flows.clock.time += DAY
    await flows.credentials.rotate_key(acme, key_id(made), ADA)


async def test_pages_lead_from_the_newest_to_the_oldest(flows: AccountFlows, acme: AccountId) -> None:
    made = [ids.text(ids.API_KEY, (await flows.credentials.create_key(acme, ADA)).key.id) for _ in range(3)]
    first = await flows.credentials.keys(acme, 2)
    second = await flows.credentials.keys(acme, 2, first.next_cursor)
    listed = [ids.text(ids.API_KEY, row.id) for row in (*first.items, *second.items)]
    assert (listed, second.next_cursor) == (made[::-1], None)
    await assert_refused(flows.credentials.keys(acme, 2, "nonsense"), Code.INVALID_REQUEST, "cursor")
    await assert_refused(flows.credentials.credentials(acme, 2, first.next_cursor), Code.INVALID_REQUEST, "cursor")


# When they were last used.


@pytest.mark.rule("KEY-08", "KEY-17")
async def test_uses_are_written_together_and_change_no_cache(
    flows: AccountFlows, admission: FreshAdmission, uses: LastUsed
) -> None:
    account = await flows.accounts.create_account("Acme")
    acme, first = account.account.id, account.credential
    made = await flows.credentials.create_key(acme, ADA)
    changed_at = await flows.value("SELECT changed_at FROM accounts")
    await admission.sender(basic(first.credential.username, first.password))
    await admission.sender(f"Bearer {made.secret}")
    assert not await admission.admits(f"Bearer {made.secret}x")
    used_at = flows.clock.time
    assert await flows.value("SELECT count(last_used_at) FROM api_keys") == 0
    await uses.write()
    (key,) = (await flows.credentials.keys(acme, 10)).items
    (owner,) = (await flows.credentials.credentials(acme, 10)).items
    for at in (key.last_used_at, owner.last_used_at):
        assert at is not None
        assert timedelta(0) <= used_at - at < timedelta(seconds=1)
    assert await flows.value("SELECT changed_at FROM accounts") == changed_at


async def test_remembered_uses_are_bounded_and_stay_when_they_cannot_be_written(
    flows: AccountFlows, acme: AccountId, database_url: str
) -> None:
    owner = CredentialId(await flows.value("SELECT id FROM credentials"))
    async with open_database(database_url) as impatient:
        uses = LastUsed(impatient, remembered_max=2)
        for credential_id in (owner, *(CredentialId(ids.new_id(NOON, bytes(10))) for _ in range(4))):
            uses.note_credential(acme, credential_id, LastUse(NOON))
        async with flows.database.transaction() as tx:
            await tx.execute("SELECT 1 FROM credentials FOR UPDATE")
            await assert_refused(uses.write(), Code.TEMPORARY_FAILURE)
        await uses.write()
    assert await flows.value("SELECT last_used_at FROM credentials") == NOON


async def test_processes_that_write_the_same_uses_at_once_do_not_block_each_other(flows: AccountFlows) -> None:
    acme: AccountId = await flows.account()
    rows = [(await flows.credentials.create_key(acme, ADA)).key.id for _ in range(20)]
    several = [LastUsed(flows.database) for _ in range(4)]
    for number, uses in enumerate(several):
        for row in rows if number % 2 else reversed(rows):
            uses.note_key(acme, row, LastUse(NOON + number * HOUR))
    ends = await asyncio.gather(*[uses.write() for uses in several], return_exceptions=True)
    assert [end for end in ends if isinstance(end, Refusal | asyncpg.PostgresError)] == []
    assert await flows.value("SELECT count(DISTINCT last_used_at) FROM api_keys") == 1
