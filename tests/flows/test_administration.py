"""Administration against a real database and a real name server: what an operator does, and is refused."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from argon2 import PasswordHasher

from posthouse.chance import SeededChance
from posthouse.flows.administration import Administration, DomainView
from posthouse.mail import dkim
from posthouse.rules import credential, ids
from posthouse.rules.credential import Mode, Role
from posthouse.rules.domain import Result
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.domains import dkim_purpose, ed25519_purpose
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.nameserver import SERVFAIL, Nameserver

PEPPER = b"pepper of the tests"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class SetClock:
    """A clock that stands until it is set; each reading is a millisecond on, so that ids sort."""

    def __init__(self, now: datetime = NOON) -> None:
        self.time = now

    def now(self) -> datetime:
        self.time += timedelta(milliseconds=1)
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


@dataclass
class Office:
    administration: Administration
    database: Database
    nameserver: Nameserver
    clock: SetClock = field(default_factory=SetClock)
    sealer: Sealer = field(default_factory=lambda: Sealer({"1": b"k" * 32}, "1"))

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def publish(self, view: DomainView) -> None:
        for record in view.records.all:
            self.nameserver.zone[record.name] = [record.value]

    async def stamps(self, act: Callable[[], Awaitable[object]]) -> object:
        """Performs the act and asserts that it moved the account's changed_at, so that caches forget it."""
        before = await self.value("SELECT max(changed_at) FROM accounts")
        self.clock.time += timedelta(minutes=1)
        answer = await act()
        assert await self.value("SELECT max(changed_at) FROM accounts") > before
        return answer


@pytest.fixture
async def office(database: Database) -> AsyncIterator[Office]:
    clock, sealer = SetClock(), Sealer({"1": b"k" * 32}, "1")
    async with Nameserver() as nameserver:
        administration = Administration(
            database=database,
            clock=clock,
            chance=SeededChance(7),
            sealer=sealer,
            pepper=PEPPER,
            resolver=Resolver([nameserver.endpoint], lookup_seconds_max=1.0),
        )
        yield Office(administration, database, nameserver, clock, sealer)


async def refused(act: Awaitable[object], code: Code, said: str = "") -> None:
    with pytest.raises(Refusal) as caught:
        await act
    assert caught.value.code is code
    assert said in caught.value.text


async def test_a_new_account_comes_with_a_working_default_credential(office: Office) -> None:
    made = await office.administration.create_account("Acme")
    row = made.credential.credential
    assert row.is_default
    stored = await office.value("SELECT secret_hash FROM credentials WHERE username = $1", row.username)
    assert credential.matches(made.credential.password, stored, PEPPER)
    assert made.credential.password not in repr(made)


async def test_an_account_is_found_by_name_or_id(office: Office) -> None:
    made = await office.administration.create_account("Acme")
    by_name = await office.administration.account("acme")
    by_id = await office.administration.account(ids.text(ids.ACCOUNT, made.account.id))
    assert by_name.account.id == by_id.account.id == made.account.id
    assert [row.name for row in await office.administration.list_accounts()] == ["Acme"]


@pytest.mark.parametrize("name", ["nobody", "ac_00000000000000000000000000", "ac_"])
async def test_an_unknown_account_is_not_found(office: Office, name: str) -> None:
    await refused(office.administration.account(name), Code.NOT_FOUND, "account list")


async def test_a_name_is_given_once_and_never_looks_like_an_id(office: Office) -> None:
    await office.administration.create_account("Acme")
    await refused(office.administration.create_account("ACME "), Code.CONFLICT, "already")
    await refused(office.administration.create_account("ac_me"), Code.INVALID_REQUEST, "can't begin with")
    await refused(office.administration.create_account("  "), Code.INVALID_REQUEST)


async def test_suspension_is_set_once_and_lifted_once(office: Office) -> None:
    await office.administration.create_account("Acme")
    await refused(office.administration.suspend("Acme", " "), Code.INVALID_REQUEST, "reason")
    await office.stamps(lambda: office.administration.suspend("Acme", "spam"))
    await refused(office.administration.suspend("Acme", "again"), Code.CONFLICT, "spam")
    row = (await office.administration.account("Acme")).account
    assert row.suspended_reason == "spam"
    await office.stamps(lambda: office.administration.resume("Acme"))
    await refused(office.administration.resume("Acme"), Code.CONFLICT)


async def test_limits_that_are_not_given_stay(office: Office) -> None:
    await office.administration.create_account("Acme")
    await office.stamps(lambda: office.administration.set_limits("Acme", rate_per_second=5, warmup=[1, 2]))
    await office.administration.set_limits("Acme", rate_burst=9)
    row = (await office.administration.account("Acme")).account
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (5, 9, (1, 2), False)
    row = await office.administration.set_limits("Acme", rate_per_second="default", warmup="exempt")
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (None, 9, None, True)
    row = await office.administration.set_limits("Acme", warmup="default")
    assert (row.warmup_limits, row.warmup_exempt) == (None, False)


@pytest.mark.parametrize(
    "limits", [{"rate_per_second": 0}, {"rate_burst": -1}, {"warmup": []}, {"warmup": [0]}, {"rate_burst": 10**10}]
)
async def test_impossible_limits_are_refused(office: Office, limits: dict[str, Any]) -> None:
    await office.administration.create_account("Acme")
    await refused(office.administration.set_limits("Acme", **limits), Code.INVALID_REQUEST)


async def test_grants_add_up_and_a_mistake_is_taken_back_but_never_below_zero(office: Office) -> None:
    await office.administration.create_account("Acme")
    await office.stamps(lambda: office.administration.grant_credits("Acme", 100, "start"))
    assert (await office.administration.grant_credits("Acme", -40, "typing error")).available == 60
    await refused(office.administration.grant_credits("Acme", -61, "too much"), Code.CONFLICT, "60")
    view = await office.administration.account("Acme")
    assert (view.account.available, view.granted) == (60, 60)


@pytest.mark.parametrize("amount", [0, 10**12 + 1, -(10**13)])
async def test_an_impossible_amount_is_refused(office: Office, amount: int) -> None:
    await office.administration.create_account("Acme")
    await refused(office.administration.grant_credits("Acme", amount, "why"), Code.INVALID_REQUEST)


async def test_a_domain_is_verified_once_both_its_records_are_published(office: Office) -> None:
    await office.administration.create_account("Acme")
    view = await office.administration.add_domain("Acme", "Example.com")
    assert view.domain.verified_at is None
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.judgement is not None
    assert checked.judgement.result is Result.MISSING
    assert checked.domain.verified_at is None
    await office.publish(view)
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.judgement is not None
    assert checked.judgement.result is Result.FOUND
    (listed,) = await office.administration.list_domains("Acme")
    assert listed.domain == checked.domain
    assert listed.domain.verified_at is not None
    assert listed.records == view.records


async def test_the_sealed_private_key_belongs_to_the_published_public_key(office: Office) -> None:
    await office.administration.create_account("Acme")
    row = (await office.administration.add_domain("Acme", "example.com")).domain
    private = office.sealer.open(row.dkim_sealed, dkim_purpose(row.account_id, row.id))
    assert dkim.public_of(private) == row.dkim_public
    assert row.ed25519_sealed is not None
    private = office.sealer.open(row.ed25519_sealed, ed25519_purpose(row.account_id, row.id))
    assert dkim.public_of(private) == row.ed25519_public


async def test_the_ed25519_record_is_recommended_and_its_key_used_only_while_it_is_seen(office: Office) -> None:
    await office.administration.create_account("Acme")
    view = await office.administration.add_domain("Acme", "example.com")
    await office.publish(view)
    assert view.records.ed25519 is not None
    name = view.records.ed25519.name
    value = office.nameserver.zone.pop(name)
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.domain.verified_at is not None
    assert not checked.domain.ed25519_published
    assert checked.judgement is not None
    assert checked.judgement.ed25519 is not None
    assert "recommended" in checked.judgement.ed25519.advice
    office.nameserver.zone[name] = value
    await office.stamps(lambda: office.administration.verify_domain("Acme", "example.com"))
    (listed,) = await office.administration.list_domains("Acme")
    assert listed.domain.ed25519_published
    office.nameserver.script[name] = SERVFAIL
    assert (await office.administration.verify_domain("Acme", "example.com")).domain.ed25519_published
    del office.nameserver.script[name], office.nameserver.zone[name]
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.domain.verified_at is not None
    assert not checked.domain.ed25519_published


async def test_an_operators_word_holds_for_the_ed25519_record_too(office: Office) -> None:
    await office.administration.create_account("Acme")
    await office.administration.add_domain("Acme", "example.com")
    checked = await office.administration.verify_domain("Acme", "example.com", vouched=True)
    assert checked.domain.ed25519_published
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.domain.ed25519_published, "missing records take nothing from a domain on the operator's word"


async def test_missing_records_take_a_verified_domain_away_after_a_week_and_no_sooner(office: Office) -> None:
    await office.administration.create_account("Acme")
    view = await office.administration.add_domain("Acme", "example.com")
    await office.publish(view)
    await office.administration.verify_domain("Acme", "example.com")
    office.nameserver.zone.clear()
    for days, is_verified in ((1, True), (6, True), (8, False)):
        office.clock.time = NOON + days * DAY
        checked = await office.administration.verify_domain("Acme", "example.com")
        assert (checked.domain.verified_at is not None) is is_verified


async def test_a_name_server_that_fails_takes_nothing_away(office: Office) -> None:
    await office.administration.create_account("Acme")
    view = await office.administration.add_domain("Acme", "example.com")
    await office.publish(view)
    await office.administration.verify_domain("Acme", "example.com")
    office.nameserver.script[view.records.dkim.name] = SERVFAIL
    for days in (1, 9):
        office.clock.time = NOON + days * DAY
        checked = await office.administration.verify_domain("Acme", "example.com")
        assert checked.judgement is not None
        assert checked.judgement.result is Result.UNKNOWN
        assert checked.domain.verified_at is not None
        assert checked.domain.missing_since is None


async def test_an_operators_word_needs_no_dns_and_is_not_lost_to_it(office: Office) -> None:
    await office.administration.create_account("Acme")
    view = await office.administration.add_domain("Acme", "example.com")
    await office.stamps(lambda: office.administration.verify_domain("Acme", "example.com", vouched=True))
    assert office.nameserver.asked == []
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.domain.is_vouched_for
    await office.publish(view)
    checked = await office.administration.verify_domain("Acme", "example.com")
    assert checked.domain.verified_at is not None
    assert not checked.domain.is_vouched_for


async def test_two_accounts_may_hold_one_domain_with_tokens_and_keys_of_their_own(office: Office) -> None:
    records = []
    for name in ("one", "two"):
        await office.administration.create_account(name)
        records.append((await office.administration.add_domain(name, "example.com")).records)
    assert records[0].ownership.name == records[1].ownership.name
    assert records[0].ownership.value != records[1].ownership.value
    assert records[0].dkim.name != records[1].dkim.name
    office.nameserver.zone[records[0].ownership.name] = [one.ownership.value for one in records]
    for one in records:
        office.nameserver.zone[one.dkim.name] = [one.dkim.value]
    for name in ("one", "two"):
        assert (await office.administration.verify_domain(name, "example.com")).domain.verified_at is not None


async def test_domains_are_added_once_under_a_name_that_dns_can_hold(office: Office) -> None:
    await office.administration.create_account("Acme")
    await office.administration.add_domain("Acme", "example.com")
    await refused(office.administration.add_domain("Acme", "EXAMPLE.com."), Code.CONFLICT)
    await refused(office.administration.add_domain("Acme", "localhost"), Code.INVALID_REQUEST)
    long = ".".join(["a" * 62] * 3 + ["b" * 50, "example"])
    await refused(office.administration.add_domain("Acme", long), Code.INVALID_REQUEST, "too long")
    await refused(office.administration.verify_domain("Acme", "other.example"), Code.NOT_FOUND, "domain add")
    await refused(office.administration.add_domain("nobody", "example.com"), Code.NOT_FOUND)


async def test_a_credential_is_limited_to_networks_and_revoked_once(office: Office) -> None:
    await office.administration.create_account("Acme")
    made = await office.administration.create_credential("Acme", "web", ["192.0.2.0/24"])
    assert [str(network) for network in made.credential.allowed_networks] == ["192.0.2.0/24"]
    await office.stamps(lambda: office.administration.revoke_credential("Acme", made.credential.username))
    await refused(
        office.administration.revoke_credential("Acme", ids.text(ids.CREDENTIAL, made.credential.id)),
        Code.CONFLICT,
    )
    await refused(office.administration.revoke_credential("Acme", "smtp_nobody"), Code.NOT_FOUND)
    await refused(office.administration.create_credential("Acme", "x", ["everywhere"]), Code.INVALID_REQUEST)


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_key_says_its_mode_and_only_its_hash_is_stored(office: Office, mode: Mode) -> None:
    await office.administration.create_account("Acme")
    made = await office.administration.create_key("Acme", mode=mode, may_read=True, expires_at=NOON + DAY)
    assert made.secret.startswith(f"ph_{mode}_")
    assert made.key.hint == f"ph_{mode}_…{made.secret[-4:]}"
    assert made.secret not in repr(made)
    stored = await office.value("SELECT secret_hash FROM api_keys WHERE id = $1", made.key.id)
    assert credential.matches(made.secret, stored, PEPPER)
    (listed,) = (await office.administration.account("Acme")).keys
    assert listed == made.key


async def test_a_key_belongs_to_the_default_credential_unless_another_is_named(office: Office) -> None:
    account = await office.administration.create_account("Acme")
    other = await office.administration.create_credential("Acme", "web")
    first = await office.administration.create_key("Acme")
    second = await office.administration.create_key("Acme", given_credential=other.credential.username)
    assert first.key.credential_id == account.credential.credential.id
    assert second.key.credential_id == other.credential.id


async def test_a_key_is_revoked_once_and_none_is_made_under_a_revoked_credential(office: Office) -> None:
    account = await office.administration.create_account("Acme")
    made = await office.administration.create_key("Acme")
    key_id = ids.text(ids.API_KEY, made.key.id)
    await office.stamps(lambda: office.administration.revoke_key("Acme", key_id))
    await refused(office.administration.revoke_key("Acme", key_id), Code.CONFLICT)
    await refused(office.administration.revoke_key("Acme", "ak_nothing"), Code.NOT_FOUND)
    await office.administration.revoke_credential("Acme", account.credential.credential.username)
    await refused(office.administration.create_key("Acme"), Code.CONFLICT, "is revoked")
    await refused(office.administration.create_key("Acme", expires_at=NOON - DAY), Code.INVALID_REQUEST, "expired")


async def test_one_accounts_credentials_and_keys_are_unknown_to_another(office: Office) -> None:
    one = await office.administration.create_account("one")
    key = await office.administration.create_key("one")
    await office.administration.create_account("two")
    username = one.credential.credential.username
    await refused(office.administration.revoke_credential("two", username), Code.NOT_FOUND)
    await refused(office.administration.revoke_key("two", ids.text(ids.API_KEY, key.key.id)), Code.NOT_FOUND)
    await refused(office.administration.create_key("two", given_credential=username), Code.NOT_FOUND)


async def test_a_user_logs_in_with_an_argon2id_hash_and_their_address_in_lower_case(office: Office) -> None:
    await office.administration.create_account("Acme")
    await office.stamps(
        lambda: office.administration.create_user("Acme", "Ada@Example.com", "correct horse battery", Role.ADMIN)
    )
    stored = await office.value("SELECT password_hash FROM users WHERE email = 'ada@example.com'")
    assert stored.startswith("$argon2id$")
    assert PasswordHasher().verify(stored, "correct horse battery")
    (member,) = (await office.administration.account("Acme")).members
    assert (member.email, member.role) == ("ada@example.com", Role.ADMIN)


async def test_a_user_that_can_not_be_made_is_explained(office: Office) -> None:
    await office.administration.create_account("Acme")
    create = office.administration.create_user
    await create("Acme", "ada@example.com", "correct horse battery", Role.OWNER)
    await refused(create("Acme", "ADA@example.com", "correct horse battery", Role.OWNER), Code.CONFLICT)
    await refused(create("Acme", "bob@example.com", "short", Role.OWNER), Code.INVALID_REQUEST, "12 to 256")
    await refused(create("Acme", "bob", "correct horse battery", Role.OWNER), Code.INVALID_REQUEST)
    await refused(create("nobody", "bob@example.com", "correct horse battery", Role.OWNER), Code.NOT_FOUND)
