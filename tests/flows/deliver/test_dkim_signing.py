"""DKIM signing: an independent verifier accepts every signature, with keys that were stored sealed."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import dkim as dkimpy
import pytest
import pytest_asyncio

from posthouse.flows.deliver import dkim_signing
from posthouse.flows.deliver.dkim_signing import GROUP_BYTES_MAX, DkimSigning
from posthouse.mail import dkim
from posthouse.rules.domain import DomainRecords, records
from posthouse.rules.ids import AccountId
from posthouse.store import accounts
from posthouse.store.control_cache import ControlCache
from posthouse.store.domains import DomainRow, dkim_purpose
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer, SealError
from tests.support.clock import SettableClock
from tests.support.eventually import HANG_SECONDS
from tests.support.operator_client import Operator
from tests.support.service import service_settings

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
MAIL: Final = (
    b"From: Ada <ada@example.com>\r\n"
    b"To: bob@example.net\r\n"
    b"Subject: Hello\r\n"
    b"Date: Sun, 1 Mar 2026 12:00:00 +0000\r\n"
    b"Message-ID: <1@example.com>\r\n"
    b"Feedback-ID: campaign:account:transactional:posthouse\r\n"
    b"\r\n"
    b"Hello Bob,\r\nhow are you?\r\n"
)


@dataclass
class SigningFlow:
    """Signing on a real database, for one account."""

    database: Database
    directory: ControlCache
    operator: Operator
    sealer: Sealer
    signing: DkimSigning
    account_id: AccountId

    async def sign(self, domain: str = "example.com", message: bytes = MAIL) -> bytes:
        keys = await self.signing.keys(self.account_id, domain)
        return await self.signing.sign(domain, keys, message, NOW)

    async def change(self, statement: str, *arguments: object) -> None:
        """As an administrator would, followed by the notification of the caches."""
        async with self.database.transaction() as tx:
            await tx.execute(statement, *arguments)
            await accounts.touch(tx, self.account_id, datetime.now(UTC))
        await self.directory.forget_changes()

    async def row(self, name: str = "example.com") -> DomainRow:
        async with self.database.connection() as connection:
            row = await connection.fetchrow("SELECT * FROM domains WHERE name = $1", name)
        assert row is not None
        return DomainRow(**row)

    async def records(self, name: str = "example.com") -> DomainRecords:
        row = await self.row(name)
        return records(name, row.token, row.selector, row.dkim_public, row.ed25519_selector, row.ed25519_public)

    async def verdicts(self, message: bytes, name: str = "example.com") -> list[bool]:
        """dkimpy's verdict on each signature, from the top, by the DNS records given to the owner."""
        zone = {f"{record.name}.".encode(): record.value.encode() for record in (await self.records(name)).all}
        results = []
        for index in range(message.count(b"DKIM-Signature:")):
            try:
                results.append(bool(dkimpy.DKIM(message).verify(idx=index, dnsfunc=lambda asked, **_: zone.get(asked))))
            except dkimpy.DKIMException:
                results.append(False)
        return results


@pytest_asyncio.fixture
async def signing_flow(database_url: str, database: Database) -> AsyncIterator[SigningFlow]:
    settings = service_settings(database_url)
    operator = await Operator.open(settings)
    directory = ControlCache(database, SettableClock().monotonic)
    await directory.forget_changes()
    sealer = Sealer(settings.secrets.seal_key_bytes, settings.secrets.seal_key_active)
    made = await operator.create_account("acme")
    await operator.add_verified_domain(made.id, "example.com")
    signing_flow = SigningFlow(
        database, directory, operator, sealer, DkimSigning(directory, sealer), AccountId(made.id)
    )
    yield signing_flow
    signing_flow.signing.close()
    await operator.close()


def algorithms(message: bytes) -> list[bytes]:
    return re.findall(rb"^DKIM-Signature: v=1; a=([a-z0-9-]+);", message, re.MULTILINE)


@pytest.mark.rule("DLV-05")
async def test_both_signatures_precede_the_message_and_verify(signing_flow: SigningFlow) -> None:
    signed = await signing_flow.sign()
    assert signed.endswith(MAIL)
    assert algorithms(signed) == [b"rsa-sha256", b"ed25519-sha256"]
    assert await signing_flow.verdicts(signed) == [True, True]
    assert await signing_flow.verdicts(signed.replace(b"campaign:", b"another:")) == [False, False]


async def test_a_key_whose_record_was_not_seen_does_not_sign(signing_flow: SigningFlow) -> None:
    await signing_flow.change("UPDATE domains SET ed25519_published = false")
    signed = await signing_flow.sign()
    assert algorithms(signed) == [b"rsa-sha256"]
    assert await signing_flow.verdicts(signed) == [True]


@pytest.mark.parametrize("how", ["UPDATE domains SET verified_at = NULL", "DELETE FROM domains"])
async def test_mail_from_a_domain_that_the_account_lost_is_unsigned(signing_flow: SigningFlow, how: str) -> None:
    assert await signing_flow.sign() != MAIL
    await signing_flow.change(how)
    assert await signing_flow.sign() == MAIL
    assert await signing_flow.sign("never-had.example.com") == MAIL


async def test_another_accounts_domain_signs_nothing(signing_flow: SigningFlow) -> None:
    other = await signing_flow.operator.create_account("other")
    assert await signing_flow.signing.keys(AccountId(other.id), "example.com") == ()
    assert await signing_flow.signing.sign("example.com", (), MAIL, NOW) == MAIL


async def test_a_new_key_signs_as_soon_as_the_caches_are_notified(signing_flow: SigningFlow) -> None:
    before = await signing_flow.sign()
    row, pair = await signing_flow.row(), dkim.new_key_pair()
    sealed = signing_flow.sealer.seal(pair.private_der, dkim_purpose(row.account_id, row.id))
    await signing_flow.change(
        "UPDATE domains SET selector = 'ph2', dkim_public = $1, dkim_sealed = $2", pair.public, sealed
    )
    after = await signing_flow.sign()
    assert b"s=ph2;" in after
    assert await signing_flow.verdicts(after) == [True, True]
    assert await signing_flow.verdicts(before) == [False, True], "its record is gone"


async def test_messages_are_signed_in_groups_and_each_caller_gets_its_own(signing_flow: SigningFlow) -> None:
    await signing_flow.operator.add_verified_domain(signing_flow.account_id, "example.net")
    messages = [MAIL.replace(b"Hello", b"Hello %d" % number) for number in range(5 * dkim_signing.GROUP_MAX)]
    names = ["example.com" if number % 3 else "example.net" for number in range(len(messages))]
    signed = await asyncio.gather(*map(signing_flow.sign, names, messages))
    for result, mail, name in zip(signed, messages, names, strict=True):
        assert result.endswith(mail)
        assert f"d={name};".encode() in result
    assert (
        await signing_flow.verdicts(signed[0], "example.net") == await signing_flow.verdicts(signed[-1]) == [True, True]
    )


async def test_a_large_message_is_signed_correctly_with_few_others(signing_flow: SigningFlow) -> None:
    large = MAIL + b"0123456789 \t abcdef\r\n" * 60_000
    assert len(large) > GROUP_BYTES_MAX
    signed = await asyncio.gather(*[signing_flow.sign(message=message) for message in (MAIL, large, large, MAIL)])
    for result in signed:
        assert await signing_flow.verdicts(result) == [True, True]


async def test_a_key_that_does_not_open_fails_its_own_message_only(signing_flow: SigningFlow) -> None:
    await signing_flow.operator.add_verified_domain(signing_flow.account_id, "broken.example.com")
    # A key that was sealed for another row.
    await signing_flow.change(
        "UPDATE domains SET dkim_sealed = $1 WHERE name = 'broken.example.com'", (await signing_flow.row()).dkim_sealed
    )
    names = ["broken.example.com" if number % 2 else "example.com" for number in range(40)]
    answers = await asyncio.gather(*map(signing_flow.sign, names), return_exceptions=True)
    for name, answer in zip(names, answers, strict=True):
        if name == "example.com":
            assert isinstance(answer, bytes)
        else:
            assert isinstance(answer, SealError)


async def test_a_cancelled_caller_stops_no_other(signing_flow: SigningFlow) -> None:
    waiting = [asyncio.create_task(signing_flow.sign()) for _ in range(50)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting[::2]:
        task.cancel()
    for task in waiting[1::2]:
        assert algorithms(await asyncio.wait_for(task, HANG_SECONDS)) == [b"rsa-sha256", b"ed25519-sha256"]


async def test_the_key_cache_is_bounded_and_drops_the_least_recently_used(signing_flow: SigningFlow) -> None:
    for name in ("two.example.com", "three.example.com"):
        await signing_flow.operator.add_verified_domain(signing_flow.account_id, name)
    small = DkimSigning(signing_flow.directory, signing_flow.sealer, keys_max=4)
    try:
        for name in ("example.com", "two.example.com", "example.com", "three.example.com"):
            signed = await small.sign(name, await small.keys(signing_flow.account_id, name), MAIL, NOW)
            assert await signing_flow.verdicts(signed, name) == [True, True]
        kept = [domain for domain, _, _ in small._signer._keys]
        assert kept == ["example.com", "example.com", "three.example.com", "three.example.com"]
    finally:
        small.close()


async def test_closing_ends_the_threads_and_cancels_waiting_messages(signing_flow: SigningFlow) -> None:
    await signing_flow.sign()  # the keys are cached from now on
    waiting = [asyncio.create_task(signing_flow.sign()) for _ in range(100)]
    await asyncio.sleep(0)
    signing_flow.signing.close()
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), HANG_SECONDS)
    assert any(isinstance(answer, bytes) for answer in answers)
    assert any(isinstance(answer, asyncio.CancelledError) for answer in answers)
