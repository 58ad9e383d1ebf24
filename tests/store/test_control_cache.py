"""The cache: it answers from memory, forgets changes quickly, and never relies on old reads for long."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from posthouse.entrypoints.workers import repeated
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.rules.limits import CONTROL_CACHE_SECONDS
from posthouse.rules.refusal import Refusal
from posthouse.store import accounts, control_cache, credentials
from posthouse.store.control_cache import (
    REMEMBERED_SECONDS_MAX,
    SPREAD_SECONDS,
    UNUSED_SECONDS_MAX,
    ControlCache,
)
from posthouse.store.domains import dkim_purpose, ed25519_purpose
from posthouse.store.postgres import Database
from tests.support.clock import SettableClock
from tests.support.eventually import eventually
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.operator_client import MadeAccount, Operator
from tests.support.tcp_proxy import DatabaseProxy


@pytest_asyncio.fixture
async def account(operator: Operator) -> MadeAccount:
    return await operator.create_account("acme")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


async def fresh_cache(database: Database, clock: SettableClock) -> ControlCache:
    """With entries that are valid for as long as the clock stands still."""
    made = ControlCache(database, clock.monotonic)
    await made.forget_changes()
    return made


@pytest_asyncio.fixture
async def cache(database: Database, clock: SettableClock) -> ControlCache:
    return await fresh_cache(database, clock)


async def test_a_revocation_is_seen_by_another_process_within_5_seconds(
    database_url: str, operator: Operator, account: MadeAccount
) -> None:
    async with open_database(database_url, timeout_factor=PATIENCE) as another:
        cache = ControlCache(another, time.monotonic)
        async with repeated(cache.forget_changes, pause_seconds=0.02):
            username = account.credential.username
            assert await eventually(lambda: cache.credential(username)) is not None
            await operator.revoke_credential(account.id, account.credential.id)
            await eventually(lambda: cache.credential(username), lambda seen: seen is None)


async def test_what_is_cached_is_used_without_a_query(
    cache: ControlCache, operator: Operator, account: MadeAccount, database: Database
) -> None:
    username = account.credential.username
    known = await cache.credential(username)
    await operator.revoke_credential(account.id, account.credential.id)
    assert await cache.credential(username) == known
    await cache.forget_changes()
    assert await cache.credential(username) is None


async def test_what_is_old_is_read_again_though_nothing_was_forgotten(
    cache: ControlCache, operator: Operator, account: MadeAccount, clock: SettableClock
) -> None:
    assert await cache.credential(account.credential.username) is not None
    await operator.revoke_credential(account.id, account.credential.id)
    clock.advance(seconds=CONTROL_CACHE_SECONDS)
    assert await cache.credential(account.credential.username) is None


async def revoke_unnoticed(database: Database, *made: MadeAccount) -> None:
    """Revoke their credentials as if nothing had changed: only a cache that reads them again notices."""
    async with database.transaction() as tx:
        await tx.execute("UPDATE accounts SET changed_at = now() - interval '1 hour'")
        for account in made:
            await tx.execute("UPDATE credentials SET revoked_at = now() WHERE account_id = $1", account.id)


async def are_cached(cache: ControlCache, *made: MadeAccount) -> list[bool]:
    return [await cache.credential(account.credential.username) is not None for account in made]


async def test_an_entry_is_read_again_after_a_minute(
    cache: ControlCache, account: MadeAccount, database: Database, clock: SettableClock
) -> None:
    assert await are_cached(cache, account) == [True]
    await revoke_unnoticed(database, account)
    seconds = 0
    while await are_cached(cache, account) == [True]:
        seconds += 1
        clock.advance(seconds=1)
        await cache.forget_changes()
    assert REMEMBERED_SECONDS_MAX - SPREAD_SECONDS < seconds <= REMEMBERED_SECONDS_MAX


async def test_a_full_cache_drops_its_oldest_entries(
    cache: ControlCache, operator: Operator, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_cache, "ENTRIES_MAX", 2)
    made = [await operator.create_account(f"account {number}") for number in range(3)]
    assert await are_cached(cache, *made) == [True, True, True]
    await revoke_unnoticed(database, *made)
    assert await are_cached(cache, *made) == [False, True, True]


async def test_a_change_drops_only_what_is_cached_of_its_account(
    cache: ControlCache, account: MadeAccount, operator: Operator, database: Database
) -> None:
    other = await operator.create_account("other")
    assert await are_cached(cache, account, other) == [True, True]
    await revoke_unnoticed(database, account, other)
    await operator.grant_credits(account.id, 1)
    await cache.forget_changes()
    assert await are_cached(cache, account, other) == [False, True]


async def test_an_unused_cache_reads_no_changes_and_trusts_nothing(
    database_url: str, operator: Operator, account: MadeAccount, clock: SettableClock
) -> None:
    username = account.credential.username
    async with DatabaseProxy(database_url) as relay, open_database(relay.url) as database:
        cache = await fresh_cache(database, clock)
        assert await cache.credential(username) is not None
        await relay.cut()
        clock.advance(seconds=UNUSED_SECONDS_MAX + 1)
        await cache.forget_changes()  # or it would fail
    async with open_database(database_url) as database:
        cache = await fresh_cache(database, clock)
        assert await cache.credential(username) is not None
        clock.advance(seconds=UNUSED_SECONDS_MAX + 1)
        await cache.forget_changes()
        await operator.revoke_credential(account.id, account.credential.id)
        assert await cache.credential(username) is None


async def test_the_unknown_is_never_remembered(cache: ControlCache, operator: Operator, account: MadeAccount) -> None:
    account_id = AccountId(account.id)
    assert not await cache.is_verified(account_id, "late.example.com")
    assert await cache.published_template(account_id, "late") is None
    assert await cache.credential("nobody") is None
    await operator.add_verified_domain(account.id, "late.example.com")
    made = await operator.create_credential(account.id, "late")
    assert await cache.is_verified(account_id, "late.example.com")
    assert await cache.credential(made.username) is not None


async def test_without_postgresql_nothing_is_used_longer_than_the_cache_may_be_old(
    database_url: str, account: MadeAccount, clock: SettableClock
) -> None:
    async with DatabaseProxy(database_url) as relay, open_database(relay.url) as database:
        cache = await fresh_cache(database, clock)
        known = await cache.credential(account.credential.username)
        assert known is not None
        await relay.cut()
        with pytest.raises(Refusal, match="service_unavailable: "):
            await cache.forget_changes()
        clock.advance(seconds=CONTROL_CACHE_SECONDS - 0.1)
        assert await cache.credential(account.credential.username) == known
        clock.advance(seconds=0.1)
        with pytest.raises(Refusal, match="service_unavailable: "):
            await cache.credential(account.credential.username)
        await relay.restore()
        assert await cache.credential(account.credential.username) == known


async def test_a_revocation_during_an_outage_is_known_after_it(
    database_url: str, operator: Operator, account: MadeAccount, clock: SettableClock
) -> None:
    async with DatabaseProxy(database_url) as relay, open_database(relay.url) as database:
        cache = await fresh_cache(database, clock)
        assert await cache.credential(account.credential.username) is not None
        await relay.cut()
        await operator.revoke_credential(account.id, account.credential.id)
        clock.advance(hours=1)
        await relay.restore()
        await cache.forget_changes()
        assert await cache.credential(account.credential.username) is None


async def test_a_change_that_is_committed_late_is_still_noticed(
    cache: ControlCache, database: Database, operator: Operator, account: MadeAccount
) -> None:
    """Stamped when its transaction began, seen three seconds later; others' changes come in between."""
    credential = account.credential
    other = await operator.create_account("other")
    async with database.transaction() as tx:
        stamped = datetime.now(UTC) - timedelta(seconds=3)
        await credentials.revoke_credential(tx, AccountId(account.id), CredentialId(credential.id), stamped)
        for _ in range(2):
            await operator.grant_credits(other.id, 1)
            await cache.forget_changes()
            assert await cache.credential(credential.username) is not None
    await cache.forget_changes()
    assert await cache.credential(credential.username) is None


async def test_what_was_read_before_a_change_is_not_cached_after_it(
    cache: ControlCache, database: Database, account: MadeAccount, clock: SettableClock
) -> None:
    """A row is read, changes, is forgotten, and only then would be remembered."""
    username = account.credential.username
    read, changed = asyncio.Event(), asyncio.Event()

    class Slow(ControlCache):
        async def _recall(self, key: object, load: Callable[..., object], *arguments: object) -> object:  # type: ignore[override]
            async def slowly(connection: object, *given: object) -> object:
                loaded = await load(connection, *given)  # type: ignore[misc]
                read.set()
                await changed.wait()
                return loaded

            return await super()._recall(key, slowly, *arguments)  # type: ignore[arg-type]

    slow = Slow(database, clock.monotonic)
    await slow.forget_changes()
    asking = asyncio.create_task(slow.credential(username))
    await read.wait()
    async with database.transaction() as tx:
        now = datetime.now(UTC)
        await credentials.revoke_credential(tx, AccountId(account.id), CredentialId(account.credential.id), now)
        await accounts.touch(tx, AccountId(account.id), now)
    clock.advance(seconds=1)
    await slow.forget_changes()
    changed.set()
    assert await asking is not None, "it was true when it was read"
    assert await slow.credential(username) is None


async def test_a_suspension_and_its_end_are_seen_at_the_next_look(
    cache: ControlCache, operator: Operator, account: MadeAccount
) -> None:
    account_id = AccountId(account.id)
    assert not await cache.is_suspended(account_id)
    await operator.suspend(account.id)
    assert not await cache.is_suspended(account_id), "it was remembered"
    await cache.forget_changes()
    assert await cache.is_suspended(account_id)
    await operator.resume(account.id)
    await cache.forget_changes()
    assert not await cache.is_suspended(account_id)


async def test_a_domain_signs_with_its_rsa_key_and_a_published_ed25519_key(
    cache: ControlCache, operator: Operator, account: MadeAccount, database: Database
) -> None:
    account_id = AccountId(account.id)
    await operator.add_domain(account.id, "example.com")
    assert await cache.signing_keys(account_id, "example.com") == (), "it is not verified"
    await operator.verify_domain(account.id, "example.com")
    async with database.transaction() as tx:
        row = await tx.fetchrow("SELECT * FROM domains")
    assert row is not None
    rsa, ed25519 = await cache.signing_keys(account_id, "example.com")
    first = row["selector"], row["dkim_sealed"], dkim_purpose(account_id, row["id"])
    assert (rsa.selector, rsa.sealed, rsa.purpose) == first
    second = row["ed25519_selector"], row["ed25519_sealed"], ed25519_purpose(account_id, row["id"])
    assert (ed25519.selector, ed25519.sealed, ed25519.purpose) == second
    assert "sealed" not in repr(rsa)
    async with database.transaction() as tx:
        await tx.execute("UPDATE domains SET ed25519_published = false")
        await accounts.touch(tx, account_id, datetime.now(UTC))
    assert await cache.signing_keys(account_id, "example.com") == (rsa, ed25519), "it was remembered"
    await cache.forget_changes()
    assert await cache.signing_keys(account_id, "example.com") == (rsa,)


async def test_keys_are_the_accounts_own(cache: ControlCache, operator: Operator, account: MadeAccount) -> None:
    other = await operator.create_account("other")
    await operator.add_verified_domain(account.id, "example.com")
    assert await cache.signing_keys(AccountId(other.id), "example.com") == ()
    assert await cache.signing_keys(AccountId(account.id), "mail.example.com") == ()
