"""The sandbox domain: shared with new accounts, for mail to its own members and the simulator."""

from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.operate.sandbox_domain import SandboxDomain
from posthouse.mail.address import parse_mailbox
from posthouse.rules.credential import OPERATOR
from posthouse.rules.draft import DraftRecipient
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code
from posthouse.store.control_cache import ControlCache
from tests.flows.account_flows import AccountFlows, assert_refused
from tests.support.context import context

NAME = "sandbox.example.org"
SIMULATOR = "simulator.invalid"


def sandbox(flows: AccountFlows, name: str = NAME, account: str = "Operations") -> SandboxDomain:
    return SandboxDomain(context(flows.database, flows.clock, sealer=flows.sealer), name=name, account=account)


async def shared(flows: AccountFlows) -> tuple[AccountId, AccountId]:
    """The operator's account, which has the domain, and another."""
    owner, acme = await flows.account("Operations"), await flows.account("Acme")
    await flows.domains.add(owner, NAME, OPERATOR)
    await flows.domains.verify(owner, NAME, OPERATOR, vouched=True)
    assert await sandbox(flows).run() == 1
    return owner, acme


async def test_an_account_without_a_domain_gets_a_verified_row_once(flows: AccountFlows) -> None:
    owner, acme = await shared(flows)
    assert await sandbox(flows).run() == 0
    view = await flows.domains.get(acme, NAME)
    assert (view.domain.is_shared, view.domain.verified_at is not None, list(view.lines)) == (True, True, [])
    assert not (await flows.domains.get(owner, NAME)).domain.is_shared
    for act in (flows.domains.verify, flows.domains.rotate, flows.domains.remove):
        await assert_refused(act(acme, NAME, OPERATOR), Code.FORBIDDEN, "add your own domain")
    # What is no longer shared stays on record, unverified, until it is shared again.
    assert await sandbox(flows, name="").run() == 1
    assert (await flows.domains.get(acme, NAME)).domain.verified_at is None
    assert list(await flows.domains.all(acme)) == []
    assert await sandbox(flows).run() == 1
    assert (await flows.domains.get(acme, NAME)).domain.verified_at is not None


async def test_nothing_is_shared_before_the_domain_is_verified(flows: AccountFlows) -> None:
    owner, acme = await flows.account("Operations"), await flows.account("Acme")
    await flows.domains.add(owner, NAME, OPERATOR)
    assert await sandbox(flows).run() == 0
    assert await sandbox(flows, account="Unknown").run() == 0
    async with flows.database.connection() as connection:
        assert not await sandbox(flows).is_verified(connection)
    await flows.domains.verify(owner, NAME, OPERATOR, vouched=True)
    async with flows.database.transaction() as tx:
        assert await sandbox(flows).is_verified(tx)
        await sandbox(flows).share(tx, acme, flows.clock.now())
    assert (await flows.domains.get(acme, NAME)).domain.is_shared


async def test_an_account_with_a_verified_domain_gets_none_later(flows: AccountFlows) -> None:
    owner, acme = await flows.account("Operations"), await flows.account("Acme")
    for account, name in [(owner, NAME), (acme, "acme.example.org")]:
        await flows.domains.add(account, name, OPERATOR)
        await flows.domains.verify(account, name, OPERATOR, vouched=True)
    assert await sandbox(flows).run() == 0


async def test_shared_mail_is_signed_with_the_operators_keys(flows: AccountFlows) -> None:
    owner, acme = await shared(flows)
    cache = ControlCache(flows.database, flows.clock.monotonic)
    assert await cache.signing_keys(acme, NAME) == await cache.signing_keys(owner, NAME) != ()


async def test_shared_mail_goes_to_members_and_the_simulator(flows: AccountFlows) -> None:
    owner, acme = await shared(flows)
    await flows.change(
        "WITH made AS (INSERT INTO users (id, email, created_at, password_hash)"
        " VALUES (gen_random_uuid(), 'ada@example.com', now(), '') RETURNING id)"
        " INSERT INTO memberships (account_id, user_id, role, created_at) SELECT $1, id, 'owner', now() FROM made",
        acme,
    )
    preparation = Preparation(
        control_cache=ControlCache(flows.database, flows.clock.monotonic),
        hostname="mail.example.org",
        offers_one_click=False,
        simulator_domain=SIMULATOR,
    )
    sender = [parse_mailbox(f"hello@{NAME}")]
    ada = DraftRecipient("to", "Ada@Example.com", "example.com")
    simulated = DraftRecipient("to", f"bounced@{SIMULATOR}", SIMULATOR)
    bob = DraftRecipient("bcc", "bob@example.com", "example.com")
    await preparation.require(acme, sender, [ada, simulated], one_click=False)
    await preparation.require(owner, sender, [bob], one_click=False)
    await assert_refused(
        preparation.require(acme, sender, [ada, bob], one_click=False), Code.FORBIDDEN, "'bob@example.com'"
    )
