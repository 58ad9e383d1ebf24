"""An address is erased while mail flows: no table contains it, it gets no mail, and totals stay."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest_asyncio

from posthouse.flows.account.erasures import ErasureRow, Erasures
from posthouse.flows.operate.erasing import Erasing
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.flows.shared.principal import Program
from posthouse.rules import ids
from posthouse.rules.endpoint import Filters
from posthouse.rules.erasure import ERASED, ErasureKey, ErasurePhase
from posthouse.rules.ids import AccountId, ApiKeyId
from posthouse.store import endpoints
from tests.support.accept_flow import Sender, new_sender
from tests.support.context import context
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.maintenance import new_maintenance
from tests.support.operator_client import Operator
from tests.support.secrets_left import copies_of, dump
from tests.support.webhook_steps import URL

KEYS: Final = (ErasureKey(b"second:", b"k" * 32), ErasureKey(b"", b"o" * 32))
LOCAL: Final = "quince.lovelace"
DOMAIN: Final = "example.net"
EMAIL: Final = f"{LOCAL}@{DOMAIN}"
SPELLINGS: Final = (EMAIL, f"Quince.Lovelace@{DOMAIN}", f"Quince <{EMAIL}>")


@dataclass(frozen=True, slots=True)
class ErasureFlow:
    flow: DeliveryFlow
    sender: Sender
    erasures: Erasures
    erasing: Erasing
    indexer: SearchIndexer
    usage_counter: UsageCounter

    async def sends(self, key: str, to: Sequence[str], **fields: Any) -> Any:
        accepted = await self.flow.steps.accept_flow.accept(self.sender, key, self.sender.draft(list(to), **fields))
        return accepted.message_id

    async def begin(self) -> ErasureRow:
        return await self.erasures.begin(self.caller, EMAIL)

    @property
    def caller(self) -> Program:
        return Program(AccountId(self.sender.account_id), ApiKeyId(uuid4()))

    async def shown(self, erasure: ErasureRow) -> ErasureRow:
        return await self.erasures.erasure(AccountId(self.sender.account_id), ids.text(ids.ERASURE, erasure.id))

    async def index(self) -> None:
        await self.indexer.run()

    async def finish(self, erasure: ErasureRow) -> ErasureRow:
        """Steps, by the clock, until it is done."""
        for _ in range(200):
            await self.erasing.step()
            shown = await self.shown(erasure)
            if shown.phase is ErasurePhase.DONE:
                await new_maintenance(self.flow.steps.database, self.flow.clock).forget_contents()
                return shown
            self.flow.clock.advance(seconds=30)
            await self.index()
            await self.flow.run_due()
        raise AssertionError(f"the erasure does not end: {shown}")


@pytest_asyncio.fixture
async def erasure_flow(database_url: str, operator: Operator) -> AsyncIterator[ErasureFlow]:
    async with open_delivery_flow(database_url, keys_derived={"erasure": KEYS}) as flow:
        flow.serve(DOMAIN, "example.org")
        database, clock = flow.steps.database, flow.clock
        sender = await new_sender(operator, "erasing")
        await flow.steps.accept_flow.control_cache.forget_changes()
        async with database.transaction() as tx:
            account_id, delivered = AccountId(sender.account_id), Filters(("email.delivered",))
            await endpoints.save(tx, account_id, uuid4(), URL, delivered, True, b"sealed", clock.now())
        yield ErasureFlow(
            flow,
            sender,
            Erasures(context(database, clock, erasure=KEYS)),
            Erasing(context(database, clock)),
            SearchIndexer(context(database, clock)),
            UsageCounter(context(database, clock), window_longest=timedelta(hours=6)),
        )


async def check(erasure_flow: ErasureFlow, database_url: str, messages: int, days: int) -> None:
    flow = erasure_flow.flow
    for day in range(days):
        for number in range(messages // days):
            key = f"{day}-{number}"
            fields = {"subject": f"Dear {EMAIL}", "metadata": {"who": EMAIL}, "tags": [EMAIL, "kept"]}
            other = f"other{day}-{number}@example.org"
            to = [SPELLINGS[number % 3], *([other] if number % 2 else [])]
            await erasure_flow.sends(key, to, **fields)
        await erasure_flow.sends(f"{day}-others", [f"others{day}@example.org"])
        await flow.run_due()
        await flow.pass_days(1)
        await erasure_flow.index()
        await erasure_flow.usage_counter.run()
    tags = "SELECT value, sum(accepted)::int FROM usage_splits WHERE kind = 'tag' GROUP BY 1 ORDER BY 1"
    assert await flow.steps.fetch(tags) == [("kept", messages + messages // 2), (EMAIL, messages + messages // 2)]
    sums = await flow.steps.fetch("SELECT count(*), sum(credits_reserved), sum(delivered_count) FROM messages")
    ledger = await flow.steps.fetch("SELECT kind, sum(amount) FROM ledger GROUP BY kind ORDER BY kind")
    arrived = sum(EMAIL in mail.recipient.lower() for mail in flow.receiver.accepted)
    assert arrived >= messages // days * days
    assert copies_of(EMAIL, await dump(database_url))

    erasure = await erasure_flow.begin()
    assert (await erasure_flow.begin()).id == erasure.id
    await erasure_flow.sends("while", [EMAIL, "while@example.org"])
    done = await erasure_flow.finish(erasure)
    assert done.email is None
    assert done.erased == messages // days * days + 1
    assert sum(EMAIL in mail.recipient.lower() for mail in flow.receiver.accepted) == arrived

    found = await dump(database_url)
    lines = [line[:300] for line in found.splitlines() if copies_of(EMAIL, line)]
    assert lines == []
    assert ERASED.encode() in found
    assert await flow.steps.fetch(tags) == [("kept", messages + messages // 2)]
    after = await flow.steps.fetch("SELECT count(*), sum(credits_reserved), sum(delivered_count) FROM messages")
    assert after[0][0] == sums[0][0] + 1
    assert after[0][2] == sums[0][2] + 1
    assert dict(await flow.steps.fetch("SELECT kind, sum(amount) FROM ledger GROUP BY kind"))["settle"] == (
        dict(ledger)["settle"] + 1
    )
    assert await database_faults(database_url) == {}

    later = await erasure_flow.sends("later", [SPELLINGS[1]])
    await flow.run_due()
    assert await flow.statuses(later) == ["bounced"]
    assert sum(EMAIL in mail.recipient.lower() for mail in flow.receiver.accepted) == arrived


async def test_an_address_is_erased_from_all_tables_and_gets_no_mail(
    erasure_flow: ErasureFlow, database_url: str
) -> None:
    await check(erasure_flow, database_url, messages=12, days=3)


async def test_mail_that_was_tried_is_not_cancelled_but_erased_after_its_end(erasure_flow: ErasureFlow) -> None:
    flow, erasing = erasure_flow.flow, erasure_flow.erasing
    tried = await erasure_flow.sends("tried", ["greylist@example.org"])
    await flow.run_due()
    assert await flow.statuses(tried) == ["deferred"]
    erasure = await erasure_flow.erasures.begin(erasure_flow.caller, "greylist@example.org")
    for _ in range(5):
        await erasure_flow.index()
        await erasing.step()
        flow.clock.advance(seconds=30)
    assert (await erasure_flow.shown(erasure)).phase is ErasurePhase.MESSAGES
    done = await erasure_flow.finish(erasure)
    assert (done.cancelled, done.erased) == (0, 1)
    assert await flow.statuses(tried) == ["bounced"]
