"""A verified header is remembered only as long as its credential is unchanged."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.flows.accept.admission import HEADERS_MAX, Admission, VerifiedHeaders
from posthouse.flows.accept.last_used import LastUsed
from posthouse.rules.credential import OPERATOR
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from tests.flows.account_flows import AccountFlows, open_account_flows
from tests.support.context import context
from tests.support.service import basic

HERE = "192.0.2.7"
ELSEWHERE = "198.51.100.7"


class Sender:
    """An account that sends with its password, through the admission of one process."""

    def __init__(self, flows: AccountFlows, username: str, password: str) -> None:
        self.flows = flows
        self.username = username
        self.header = basic(username, password)
        self.cache = ControlCache(flows.database, flows.clock.monotonic)
        given = context(flows.database, flows.clock, token_secrets=["x" * 32])
        self.admission = Admission(given, control_cache=self.cache, last_used=LastUsed(flows.database))

    async def code(self, header: str | None = None, peer: str = HERE) -> Code | None:
        try:
            await self.admission.sender(header or self.header, peer)
        except Refusal as refusal:
            return refusal.code
        return None


@pytest.fixture
async def flows(database: Database) -> AsyncIterator[AccountFlows]:
    async with open_account_flows(database) as opened:
        # Changes are read by the database's time.
        opened.clock.time = datetime.now(UTC)
        yield opened


@pytest.fixture
async def sender(flows: AccountFlows) -> Sender:
    """Admitted twice: verified, and known."""
    made = await flows.accounts.create_account("acme")
    sender = Sender(flows, made.credential.credential.username, made.credential.password)
    await sender.cache.forget_changes()
    assert [await sender.code(), await sender.code()] == [None, None]
    return sender


async def verified_headers(sender: Sender) -> VerifiedHeaders:
    verified = VerifiedHeaders(sender.cache, b"key")
    found = await sender.cache.credential(sender.username)
    assert found is not None
    verified.add(sender.header, sender.username, found)
    assert verified.credential(sender.header) is found
    return verified


async def test_only_the_same_header_is_known(sender: Sender) -> None:
    verified = await verified_headers(sender)
    others = (None, "", sender.header[:-1], sender.header + " ", sender.header.lower(), "x" * 100_000, "\ud800")
    assert [verified.credential(other) for other in others] == [None] * len(others)
    assert await sender.code(sender.header[:-4] + "AAAA") is Code.UNAUTHORIZED


async def test_a_revoked_credential_is_refused_when_the_change_is_read(sender: Sender) -> None:
    account_id = (await sender.admission.sender(sender.header, HERE)).account_id
    verified = await verified_headers(sender)
    await sender.flows.credentials.revoke_credential(account_id, sender.username, OPERATOR, even_the_last=True)
    await sender.cache.forget_changes()
    assert verified.credential(sender.header) is None
    assert await sender.code() is Code.UNAUTHORIZED


@pytest.mark.parametrize("overlap_seconds", [0, 2])
async def test_a_previous_password_is_refused_when_its_overlap_ends(sender: Sender, overlap_seconds: int) -> None:
    account_id = (await sender.admission.sender(sender.header, HERE)).account_id
    changed = await sender.flows.credentials.rotate_credential(
        account_id, sender.username, OPERATOR, overlap_seconds=overlap_seconds
    )
    await sender.cache.forget_changes()
    if overlap_seconds:
        assert [await sender.code(), await sender.code()] == [None, None]
    # The credential is still cached: it does not change at that time.
    sender.flows.clock.time += timedelta(seconds=overlap_seconds)
    assert await sender.code() is Code.UNAUTHORIZED
    assert await sender.code(basic(sender.username, changed.password)) is None


async def test_nothing_is_known_when_changes_can_not_be_read(sender: Sender) -> None:
    verified = await verified_headers(sender)
    sender.flows.clock.time += timedelta(seconds=60)
    assert verified.credential(sender.header) is None


async def test_an_allow_list_holds_for_a_known_header(flows: AccountFlows) -> None:
    account_id = await flows.account()
    made = await flows.credentials.create_credential(account_id, "web", ["192.0.2.0/24"], OPERATOR)
    sender = Sender(flows, made.credential.username, made.password)
    await sender.cache.forget_changes()
    assert [await sender.code(), await sender.code()] == [None, None]
    assert await sender.code(peer=ELSEWHERE) is Code.FORBIDDEN


async def test_the_number_of_known_headers_is_bounded(sender: Sender) -> None:
    verified = await verified_headers(sender)
    found = await sender.cache.credential(sender.username)
    assert found is not None
    for number in range(HEADERS_MAX):
        verified.add(f"Basic {number}", sender.username, found)
    assert verified.credential(sender.header) is None
    assert verified.credential(f"Basic {HEADERS_MAX - 1}") is found
