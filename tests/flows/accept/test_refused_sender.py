"""Mail from an unverified domain: refused within the account's rate, for one query, and charged for nothing."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from posthouse.flows.accept.replay import AcceptedMessage
from posthouse.mail.address import Mailbox
from posthouse.rules import ids
from posthouse.rules.draft import compose
from posthouse.rules.ids import RequestId
from posthouse.rules.refusal import Code, Refusal
from tests.support.accept_flow import SIMULATOR
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps

ELSEWHERE = "unverified.example.net"
RATE = (2, 5)
RAW = f"From: news@{ELSEWHERE}\r\nTo: ada@example.org\r\nSubject: Hello\r\n\r\nGood morning.\r\n".encode()


@pytest_asyncio.fixture
async def steps(database_url: str) -> AsyncIterator[DeliverySteps]:
    async with open_delivery_steps(database_url) as opened:
        await opened.operator.set_limits(opened.sender.account_id, rate=RATE, warmup=())
        yield opened


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many queries there were since the last call."""
    seen: list[str] = []
    execute = asyncpg.Connection._execute

    async def counted(self: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> object:
        seen.append(query)
        return await execute(self, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "_execute", counted)

    def taken() -> int:
        count = len(seen)
        seen.clear()
        return count

    return taken


async def send(steps: DeliverySteps, key: str, domain: str = ELSEWHERE) -> AcceptedMessage:
    draft = compose(sender=f"news@{domain}", to=["ada@example.org"], subject="Hello", text="Good morning.")
    return await steps.accept_flow.accept(steps.sender, key, draft)


async def refusal(steps: DeliverySteps, key: str = "key") -> Refusal:
    with pytest.raises(Refusal) as refused:
        await send(steps, key)
    return refused.value


async def many_refusals(steps: DeliverySteps) -> None:
    for number in range(10):
        await refusal(steps, f"bad{number}")


@pytest.mark.rule("RATE-06")
async def test_repeated_refusals_meet_the_rate_limit(steps: DeliverySteps) -> None:
    answers = [await refusal(steps, f"key{number}") for number in range(8)]
    assert [answer.code for answer in answers] == [Code.FORBIDDEN] * 5 + [Code.RATE_LIMITED] * 3
    limited = answers[-1]
    assert limited.retry_after_seconds == 1
    assert limited.headers == {"RateLimit-Limit": "5", "RateLimit-Remaining": "0", "RateLimit-Reset": "3"}
    assert ELSEWHERE in limited.text
    steps.clock.advance(seconds=1)
    codes = [(await refusal(steps)).code for _ in range(3)]
    assert codes == [Code.FORBIDDEN, Code.FORBIDDEN, Code.RATE_LIMITED]


async def test_a_refused_sender_costs_one_query(steps: DeliverySteps, queries: Callable[[], int]) -> None:
    await refusal(steps)
    queries()
    costs = []
    for number in range(8):
        await refusal(steps, f"key{number}")
        costs.append(queries())
    assert costs == [1] * 8


async def test_good_mail_of_the_account_has_its_whole_rate(steps: DeliverySteps) -> None:
    await many_refusals(steps)
    available = await steps.value("SELECT available FROM accounts WHERE id = $1", steps.sender.account_id)
    for number in range(RATE[1]):
        await send(steps, f"good{number}", steps.sender.domain)
    with pytest.raises(Refusal) as refused:
        await send(steps, "one too many", steps.sender.domain)
    assert refused.value.code is Code.RATE_LIMITED
    spent = await steps.value("SELECT $2 - available FROM accounts WHERE id = $1", steps.sender.account_id, available)
    assert spent == RATE[1]


async def test_the_limit_concerns_only_refused_mail_of_the_account(steps: DeliverySteps) -> None:
    first = await send(steps, "used", steps.sender.domain)
    await many_refusals(steps)
    # A replay wins over the domain and its limit.
    again = await send(steps, "used")
    assert (again.message_id, again.is_replay) == (first.message_id, True)
    # Other accounts are not limited.
    other = await steps.another_sender("other")
    draft = compose(sender=f"news@{ELSEWHERE}", to=["ada@example.org"], subject="Hello", text="Good morning.")
    with pytest.raises(Refusal) as refused:
        await steps.accept_flow.accept(other, "key", draft)
    assert refused.value.code is Code.FORBIDDEN
    # A domain verified this moment may send.
    await steps.operator.add_verified_domain(steps.sender.account_id, ELSEWHERE)
    assert not (await send(steps, "key")).is_replay


async def test_suspension_wins_over_the_limit(steps: DeliverySteps) -> None:
    await many_refusals(steps)
    await steps.operator.suspend(steps.sender.account_id)
    assert (await refusal(steps)).code is Code.ACCOUNT_SUSPENDED


async def test_submitted_mail_meets_the_same_limit(steps: DeliverySteps) -> None:
    codes = []
    for number in range(8):
        with pytest.raises(Refusal) as refused:
            await steps.accept_flow.intake.adopt(
                steps.sender.principal(),
                RAW,
                [Mailbox("", "ada", "example.org")],
                f"news@{ELSEWHERE}",
                RequestId(ids.new_id(steps.clock.now(), number.to_bytes(10, "big"))),
            )
        codes.append(refused.value.code)
    assert codes == [Code.FORBIDDEN] * 5 + [Code.RATE_LIMITED] * 3


async def test_submitted_mail_from_a_shared_domain_goes_to_members(steps: DeliverySteps) -> None:
    async with steps.database.connection() as connection:
        await connection.execute("UPDATE domains SET shared_from = gen_random_uuid()")
    raw = RAW.replace(ELSEWHERE.encode(), steps.sender.domain.encode())

    async def adopt(*envelope: str) -> None:
        await steps.accept_flow.intake.adopt(
            steps.sender.principal(),
            raw,
            [Mailbox("", *address.split("@")) for address in envelope],
            f"news@{steps.sender.domain}",
            RequestId(ids.new_id(steps.clock.now(), len(envelope).to_bytes(10, "big"))),
        )

    await adopt(f"delivered@{SIMULATOR}")
    # The envelope counts, not the header.
    with pytest.raises(Refusal, match=r"'bob@example\.org' is neither") as refused:
        await adopt(f"delivered@{SIMULATOR}", "bob@example.org")
    assert refused.value.code is Code.FORBIDDEN
