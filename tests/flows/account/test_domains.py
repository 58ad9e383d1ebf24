"""Registration against a real database and a real name server: domains proved, their keys replaced, and refused."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest

from posthouse.flows.account.domains import DomainView, KeyStage
from posthouse.flows.operate.maintenance import Maintenance
from posthouse.mail import dkim
from posthouse.rules import limits
from posthouse.rules.credential import OPERATOR, SERVICE
from posthouse.rules.domain import RecordPurpose, RecordResult
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code
from posthouse.store.domains import dkim_purpose, ed25519_purpose
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.flows.account_flows import ADA, DAY, RETURN_PATH, AccountFlows, assert_refused
from tests.support.maintenance import new_maintenance
from tests.support.nameserver import SERVFAIL, SILENT

MOMENT: Final = timedelta(seconds=limits.DOMAIN_ASKED_SECONDS + 1)


def maintenance_of(flows: AccountFlows, sealer: Sealer | None = None) -> Maintenance:
    resolver = Resolver([flows.nameserver.endpoint], lookup_seconds_max=1.0)
    return new_maintenance(flows.database, flows.clock, resolver=resolver, sealer=sealer or flows.sealer)


async def verified(flows: AccountFlows, account_id: AccountId, name: str = "example.com") -> DomainView:
    """A domain whose records are published and were seen."""
    flows.publish(await flows.domains.add(account_id, name, ADA))
    return (await flows.domains.verify(account_id, name, OPERATOR)).view


def of(view: DomainView, stage: KeyStage) -> list[RecordPurpose]:
    return [line.record.purpose for line in view.lines if line.stage is stage]


async def test_a_domain_is_verified_once_both_its_records_are_published(flows: AccountFlows, acme: AccountId) -> None:
    view = await flows.domains.add(acme, "Example.com", ADA)
    assert view.domain.verified_at is None
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.judgement is not None
    assert checked.judgement.result is RecordResult.MISSING
    assert checked.domain.verified_at is None
    flows.publish(view)
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.judgement is not None
    assert checked.judgement.result is RecordResult.FOUND
    (listed,) = await flows.domains.all(acme)
    assert listed.domain == checked.domain
    assert listed.domain.verified_at is not None
    assert listed.records == view.records


async def test_the_ed25519_record_is_recommended_and_its_key_used_only_while_it_is_seen(flows: AccountFlows) -> None:
    acme = await flows.account()
    view = await flows.domains.add(acme, "example.com", ADA)
    flows.publish(view)
    assert view.records.ed25519 is not None
    name = view.records.ed25519.name
    value = flows.nameserver.zone.pop(name)
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.domain.verified_at is not None
    assert not checked.domain.ed25519_published
    assert checked.judgement is not None
    assert checked.judgement.ed25519 is not None
    assert "recommended" in checked.judgement.ed25519.advice
    flows.nameserver.zone[name] = value
    await flows.stamps(lambda: flows.domains.verify(acme, "example.com", OPERATOR))
    (listed,) = await flows.domains.all(acme)
    assert listed.domain.ed25519_published
    flows.nameserver.script[name] = SERVFAIL
    assert (await flows.domains.verify(acme, "example.com", OPERATOR)).domain.ed25519_published
    del flows.nameserver.script[name], flows.nameserver.zone[name]
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.domain.verified_at is not None
    assert not checked.domain.ed25519_published


async def test_an_operators_confirmation_needs_no_dns_and_is_not_lost_to_it(flows: AccountFlows) -> None:
    acme = await flows.account()
    view = await flows.domains.add(acme, "example.com", ADA)
    await flows.stamps(lambda: flows.domains.verify(acme, "example.com", OPERATOR, vouched=True))
    assert flows.nameserver.asked == []
    assert (await flows.domains.get(acme, "example.com")).domain.ed25519_published
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.domain.is_vouched_for
    assert checked.domain.ed25519_published, "missing records take nothing from a domain on the operator's word"
    flows.publish(view)
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.domain.verified_at is not None
    assert not checked.domain.is_vouched_for


@pytest.mark.rule("REG-08")
async def test_two_accounts_may_have_one_domain_with_separate_tokens_and_keys(flows: AccountFlows) -> None:
    both = [await flows.account(name) for name in ("one", "two")]
    records = [(await flows.domains.add(row, "example.com", ADA)).records for row in both]
    assert records[0].ownership.name == records[1].ownership.name
    assert records[0].ownership.value != records[1].ownership.value
    assert records[0].dkim.name != records[1].dkim.name
    flows.nameserver.zone[records[0].ownership.name] = [row.ownership.value for row in records]
    for record in records:
        flows.nameserver.zone[record.dkim.name] = [record.dkim.value]
    for account_id in both:
        checked = await flows.domains.verify(account_id, "example.com", ADA)
        assert checked.domain.verified_at is not None


async def test_domains_are_added_once_under_a_name_that_dns_allows(flows: AccountFlows, acme: AccountId) -> None:
    await flows.domains.add(acme, "example.com", ADA)
    await assert_refused(flows.domains.add(acme, "EXAMPLE.com.", ADA), Code.CONFLICT)
    await assert_refused(flows.domains.add(acme, "localhost", ADA), Code.INVALID_REQUEST)
    long = ".".join(["a" * 62] * 3 + ["b" * 50, "example"])
    await assert_refused(flows.domains.add(acme, long, ADA), Code.INVALID_REQUEST, "too long")
    await assert_refused(flows.domains.verify(acme, "other.example", OPERATOR), Code.NOT_FOUND, "add it")
    await assert_refused(flows.domains.verify(acme, "no domain\0", OPERATOR), Code.NOT_FOUND)


# What is only advice.


@pytest.mark.parametrize(
    ("dmarc", "result", "advice"),
    [
        ([], RecordResult.MISSING, "No DMARC record"),
        (["v=DMARC1; p=reject"], RecordResult.FOUND, ""),
        (["v=DMARC1; p=none", "v=DMARC1; p=reject"], RecordResult.MISSING, "several"),
        (["something else"], RecordResult.MISSING, "No DMARC record"),
    ],
)
async def test_dmarc_and_the_return_path_are_advice_and_prove_nothing(
    flows: AccountFlows, acme: AccountId, dmarc: list[str], result: RecordResult, advice: str
) -> None:
    view = await flows.domains.add(acme, "example.com", ADA)
    assert {line.record.purpose: line.record.name for line in view.lines} == {
        RecordPurpose.OWNERSHIP: "_posthouse.example.com",
        RecordPurpose.DKIM_RSA: f"{view.domain.selector}._domainkey.example.com",
        RecordPurpose.DKIM_ED25519: f"{view.domain.ed25519_selector}._domainkey.example.com",
        RecordPurpose.RETURN_PATH: RETURN_PATH,
        RecordPurpose.DMARC: "_dmarc.example.com",
    }
    assert all(line.advice and line.finding is None for line in view.lines)
    flows.publish(view)
    flows.nameserver.zone["_dmarc.example.com"] = dmarc
    flows.nameserver.zone[RETURN_PATH] = ["v=spf1 ip4:192.0.2.1 -all", "another"]
    checked = await flows.domains.verify(acme, "example.com", ADA)
    assert checked.domain.verified_at is not None
    lines = {line.record.purpose: line for line in checked.view.lines}
    found = lines[RecordPurpose.DMARC].finding
    assert found is not None
    assert found.result is result
    assert advice in lines[RecordPurpose.DMARC].advice
    path = lines[RecordPurpose.RETURN_PATH].finding
    assert path is not None
    assert (path.result, path.found) == (RecordResult.FOUND, ("v=spf1 ip4:192.0.2.1 -all",))


# How often DNS may be asked.


@pytest.mark.rule("REG-06")
async def test_a_domain_is_checked_once_in_a_while_and_then_again(flows: AccountFlows, acme: AccountId) -> None:
    await flows.domains.add(acme, "example.com", ADA)
    await flows.domains.verify(acme, "example.com", ADA)
    asked = len(flows.nameserver.asked)
    refusal = await assert_refused(flows.domains.verify(acme, "example.com", ADA), Code.RATE_LIMITED, "wait 5 s")
    assert refusal.retry_after_seconds == limits.DOMAIN_ASKED_SECONDS
    assert len(flows.nameserver.asked) == asked
    flows.clock.time += MOMENT
    await flows.domains.verify(acme, "example.com", ADA)
    assert len(flows.nameserver.asked) == 2 * asked
    await flows.domains.verify(acme, "example.com", OPERATOR)


async def test_an_account_has_few_of_its_domains_checked_at_once(flows: AccountFlows, acme: AccountId) -> None:
    await verified(flows, acme)
    await flows.change(
        """
        INSERT INTO domains (account_id, id, name, token, selector, dkim_public, dkim_sealed, created_at, asked_at)
        SELECT account_id, gen_random_uuid(), n || '.example', token, selector, dkim_public, dkim_sealed, created_at, $1
        FROM domains CROSS JOIN generate_series(1, $2) n
        """,
        flows.clock.time, limits.DOMAINS_ASKED_MAX,
    )  # fmt: skip
    asked = len(flows.nameserver.asked)
    await assert_refused(flows.domains.verify(acme, "example.com", ADA), Code.RATE_LIMITED, "domains of the account")
    assert len(flows.nameserver.asked) == asked
    flows.clock.time += MOMENT
    await flows.domains.verify(acme, "example.com", ADA)


async def test_name_servers_that_say_nothing_take_nothing_away(flows: AccountFlows, acme: AccountId) -> None:
    view = await verified(flows, acme)
    flows.nameserver.script |= {line.record.name: SILENT for line in view.lines}
    checked = await flows.domains.verify(acme, "example.com", ADA)
    assert checked.domain.verified_at is not None
    assert all(line.finding is not None and line.finding.result is RecordResult.UNKNOWN for line in checked.view.lines)
    assert all("did not answer in time" in line.advice for line in checked.view.lines)


# Keys replaced without a gap.


@pytest.mark.rule("REG-09", "REG-10", "REG-11")
async def test_new_keys_wait_until_their_record_is_seen_and_the_old_ones_sign_until_then(flows: AccountFlows) -> None:
    acme = await flows.account()
    old = (await verified(flows, acme)).domain
    rotated = await flows.domains.rotate(acme, "example.com", ADA)
    assert rotated.domain == replace(old, asked_at=rotated.domain.asked_at)
    assert of(rotated, KeyStage.PENDING) == [RecordPurpose.DKIM_RSA, RecordPurpose.DKIM_ED25519]
    await assert_refused(flows.domains.rotate(acme, "example.com", ADA), Code.CONFLICT, "wait for their records")
    checked = await flows.domains.verify(acme, "example.com", OPERATOR)
    assert checked.domain.selector == old.selector
    assert of(checked.view, KeyStage.PENDING), "their record is not there"
    pending = [line for line in checked.view.lines if line.stage is KeyStage.PENDING]
    assert all("No TXT record" in line.advice for line in pending)
    flows.publish(rotated)
    await flows.stamps(lambda: flows.domains.verify(acme, "example.com", ADA))
    view = await flows.domains.get(acme, "example.com")
    assert rotated.waiting is not None
    assert view.domain.selector == rotated.waiting.selector != old.selector
    assert view.domain.ed25519_published
    assert view.domain.verified_at == old.verified_at
    assert of(view, KeyStage.PENDING) == []
    previous = [line for line in view.lines if line.stage is KeyStage.PREVIOUS]
    assert [line.record.name for line in previous] == [
        f"{old.selector}._domainkey.example.com", f"{old.ed25519_selector}._domainkey.example.com",
    ]  # fmt: skip
    assert all("Leave it in DNS until 2026-11-22" in line.advice for line in previous)
    assert await flows.value("SELECT count(*) FROM domain_keys WHERE dkim_sealed IS NOT NULL") == 0
    assert await flows.actions(acme) == [
        ("account.created", "operator"),
        ("domain.added", ADA.name),
        ("domain.verified", "operator"),
        ("domain.rotation_started", ADA.name),
        ("domain.keys_switched", ADA.name),
    ]


@pytest.mark.rule("REG-09", "REG-10", "REG-11")
async def test_keys_that_signed_before_are_forgotten_after_a_week(flows: AccountFlows, acme: AccountId) -> None:
    await verified(flows, acme)
    flows.publish(await flows.domains.rotate(acme, "example.com", ADA))
    await flows.domains.verify(acme, "example.com", ADA)
    flows.clock.time += 6 * DAY
    await maintenance_of(flows).forget_expired()
    assert of(await flows.domains.get(acme, "example.com"), KeyStage.PREVIOUS)
    flows.clock.time += DAY
    assert not of(await flows.domains.get(acme, "example.com"), KeyStage.PREVIOUS), "shown no more"
    await maintenance_of(flows).forget_expired()
    assert await flows.value("SELECT count(*) FROM domain_keys") == 0


async def test_the_new_ed25519_key_rests_until_its_own_record_is_seen(flows: AccountFlows, acme: AccountId) -> None:
    await verified(flows, acme)
    rotated = await flows.domains.rotate(acme, "example.com", ADA)
    flows.publish(rotated)
    assert rotated.waiting is not None
    record = flows.nameserver.zone.pop(f"{rotated.waiting.ed25519_selector}._domainkey.example.com")
    row = (await flows.domains.verify(acme, "example.com", ADA)).domain
    assert row.selector == rotated.waiting.selector
    assert not row.ed25519_published
    flows.nameserver.zone[f"{rotated.waiting.ed25519_selector}._domainkey.example.com"] = record
    assert (await flows.domains.verify(acme, "example.com", OPERATOR)).domain.ed25519_published


async def test_new_keys_that_took_the_place_of_the_old_ones_in_dns_sign_at_once(flows: AccountFlows) -> None:
    """An owner who replaces the old record, rather than adding the new one, keeps the domain."""
    acme = await flows.account()
    old = (await verified(flows, acme)).domain
    rotated = await flows.domains.rotate(acme, "example.com", ADA)
    flows.publish(rotated)
    del flows.nameserver.zone[f"{old.selector}._domainkey.example.com"]
    row = (await flows.domains.verify(acme, "example.com", ADA)).domain
    assert (row.selector == old.selector, row.verified_at, row.missing_since) == (False, old.verified_at, None)


async def test_maintenance_sees_the_new_record_within_an_hour(flows: AccountFlows, acme: AccountId) -> None:
    await verified(flows, acme)
    rotated = await flows.domains.rotate(acme, "example.com", ADA)
    maintenance = maintenance_of(flows)
    assert await maintenance.recheck_domains() == (0, 0)
    flows.clock.time += timedelta(hours=1)
    assert await maintenance.recheck_domains() == (1, 0)
    assert await maintenance.recheck_domains() == (0, 0)
    flows.publish(rotated)
    flows.clock.time += timedelta(hours=1)
    assert await flows.stamps(maintenance.recheck_domains) == (1, 0)
    assert rotated.waiting is not None
    assert (await flows.domains.get(acme, "example.com")).domain.selector == rotated.waiting.selector
    assert (await flows.actions(acme))[-1] == ("domain.keys_switched", SERVICE.name)


async def test_a_vouched_domain_gets_new_keys_by_vouching_or_once_they_are_found(flows: AccountFlows) -> None:
    acme = await flows.account()
    await flows.domains.add(acme, "example.com", ADA)
    await flows.domains.verify(acme, "example.com", OPERATOR, vouched=True)
    by_word = await flows.domains.rotate(acme, "example.com", ADA)
    assert (await flows.domains.verify(acme, "example.com", ADA)).domain.selector == by_word.domain.selector
    row = (await flows.domains.verify(acme, "example.com", OPERATOR, vouched=True)).domain
    assert by_word.waiting is not None
    assert (row.selector, row.ed25519_published, row.is_vouched_for) == (by_word.waiting.selector, True, True)
    seen = await flows.domains.rotate(acme, "example.com", ADA)
    assert seen.waiting is not None
    flows.nameserver.zone[f"{seen.waiting.selector}._domainkey.example.com"] = [
        dkim.record_text(seen.waiting.dkim_public)
    ]
    flows.clock.time += timedelta(hours=1)
    assert await maintenance_of(flows).recheck_domains() == (1, 0)
    row = (await flows.domains.get(acme, "example.com")).domain
    assert (row.selector, row.ed25519_published, row.is_vouched_for) == (seen.waiting.selector, False, True)


async def test_keys_are_replaced_a_few_times_a_week_at_most(flows: AccountFlows, acme: AccountId) -> None:
    await verified(flows, acme)
    await flows.change(
        """
        INSERT INTO domain_keys (account_id, domain_id, selector, dkim_public, created_at, checked_at, retired_at)
        SELECT account_id, id, 'ph' || n, dkim_public, $1, $1, $1 FROM domains CROSS JOIN generate_series(1, $2) n
        """,
        flows.clock.time, limits.DOMAIN_KEYS_RETIRED_MAX,
    )  # fmt: skip
    await assert_refused(flows.domains.rotate(acme, "example.com", ADA), Code.CONFLICT, "10 times")


async def test_keys_that_sign_or_wait_are_sealed_again_when_the_seal_key_is_rotated(
    flows: AccountFlows, acme: AccountId
) -> None:
    domain_id = (await verified(flows, acme)).domain.id
    await flows.domains.rotate(acme, "example.com", ADA)
    before = await flows.value("SELECT ed25519_sealed FROM domains")
    maintenance = maintenance_of(flows, Sealer({"1": b"k" * 32, "2": b"n" * 32}, "2"))
    assert [await maintenance.reseal(), await maintenance.reseal()] == [4, 0]
    for table in ("domains", "domain_keys"):
        for kind, purpose in (("dkim", dkim_purpose), ("ed25519", ed25519_purpose)):
            sealed = await flows.value(f"SELECT {kind}_sealed FROM {table}")
            private = Sealer({"2": b"n" * 32}, "2").open(sealed, purpose(acme, domain_id))
            assert dkim.public_of(private) == await flows.value(f"SELECT {kind}_public FROM {table}")
    # One of a domain's two is enough to be found.
    await flows.change("UPDATE domains SET ed25519_sealed = $1", before)
    assert await maintenance.reseal() == 2


# Removing.


@pytest.mark.rule("REG-12", "REG-13")
async def test_a_removed_domain_is_gone_with_its_keys_and_comes_back_as_another(flows: AccountFlows) -> None:
    acme, other = await flows.account(), await flows.account("other")
    old = (await verified(flows, acme)).domain
    await verified(flows, other)
    await flows.domains.rotate(acme, "example.com", ADA)
    await flows.stamps(lambda: flows.domains.remove(acme, "EXAMPLE.com", ADA))
    await assert_refused(flows.domains.get(acme, "example.com"), Code.NOT_FOUND)
    await assert_refused(flows.domains.remove(acme, "example.com", ADA), Code.NOT_FOUND)
    assert await flows.value("SELECT count(*) FROM domain_keys") == 0
    assert (await flows.domains.get(other, "example.com")).domain.verified_at is not None
    again = (await flows.domains.add(acme, "example.com", ADA)).domain
    assert again.verified_at is None
    assert not {again.token, again.selector, again.dkim_public} & {old.token, old.selector, old.dkim_public}
    assert ("domain.removed", ADA.name) in await flows.actions(acme)


async def test_an_account_has_a_thousand_domains_at_most(flows: AccountFlows, acme: AccountId) -> None:
    await flows.domains.add(acme, "example.com", ADA)
    await flows.change(
        """
        INSERT INTO domains (account_id, id, name, token, selector, dkim_public, dkim_sealed, created_at)
        SELECT account_id, gen_random_uuid(), n || '.example', token, selector, dkim_public, dkim_sealed, created_at
        FROM domains CROSS JOIN generate_series(2, $1) n
        """,
        limits.DOMAINS_MAX,
    )
    await assert_refused(flows.domains.add(acme, "example.net", ADA), Code.CONFLICT, "remove one first")
    assert len(await flows.domains.all(acme)) == limits.DOMAINS_MAX


@pytest.mark.rule("REG-14")
async def test_an_account_adds_domains_at_a_rate_and_an_operator_at_any(flows: AccountFlows) -> None:
    acme, other = await flows.account(), await flows.account("Other")
    for number in range(limits.DOMAIN_KEYS_BURST):
        await flows.domains.add(acme, f"d{number}.example.com", ADA)
    refused = await assert_refused(flows.domains.add(acme, "more.example.com", ADA), Code.RATE_LIMITED, "a minute")
    assert refused.retry_after_seconds == 60 / limits.DOMAIN_KEYS_PER_MINUTE
    await assert_refused(flows.domains.rotate(acme, "d1.example.com", ADA), Code.RATE_LIMITED)
    # What is refused for another reason takes nothing from the rate.
    await assert_refused(flows.domains.add(acme, "d1.example.com", ADA), Code.CONFLICT)
    await flows.domains.add(acme, "more.example.com", OPERATOR)
    await flows.domains.add(other, "d1.example.com", ADA)
    flows.clock.time += timedelta(seconds=60 / limits.DOMAIN_KEYS_PER_MINUTE)
    await flows.domains.add(acme, "again.example.com", ADA)
