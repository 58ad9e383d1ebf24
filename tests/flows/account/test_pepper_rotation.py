"""The pepper is replaced: secrets from before stay valid, and get a hash of the new one when they are used."""

import pytest

from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.operate.secrets import Secrets, SecretUse
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.pepper import Pepper, Peppers
from posthouse.rules.refusal import Refusal
from posthouse.store.control_cache import ControlCache
from tests.flows.account_flows import AccountFlows
from tests.support.context import PEPPERS, context
from tests.support.service import basic

OLD = PEPPERS.active
NEW = Pepper("2027", b"the pepper of 2027")
ROTATING = Peppers(NEW, (OLD,))
HERE = "192.0.2.7"
JWT_SECRET = "j" * 32


def admission(flows: AccountFlows, peppers: Peppers, uses: LastUsed | None = None) -> Admission:
    return Admission(
        context(flows.database, flows.clock, peppers=peppers, token_secrets=[JWT_SECRET]),
        control_cache=ControlCache(flows.database, flows.clock.monotonic),
        last_used=uses or LastUsed(flows.database),
    )


async def pepper_uses(flows: AccountFlows, peppers: Peppers) -> dict[str, SecretUse]:
    given = context(flows.database, flows.clock, peppers=peppers, token_secrets=[JWT_SECRET], sealer=flows.sealer)
    secrets = Secrets(given, other_jwt_secrets=["before"])
    found, _ = await secrets.all_now()
    return {use.id: use for use in found if use.kind == "pepper"}


async def test_a_password_and_a_key_get_a_hash_of_the_new_pepper_when_they_are_used(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("acme")
    username, password = made.credential.credential.username, made.credential.password
    key = await flows.credentials.create_key(made.account.id, OPERATOR)
    given = (basic(username, password), f"Bearer {key.secret}")
    uses = LastUsed(flows.database)
    rotating = admission(flows, ROTATING, uses)
    principals = [await rotating.sender(authorization, HERE) for authorization in given]
    assert (await pepper_uses(flows, ROTATING))["first"].uses == {"API keys": 1, "SMTP passwords": 1}
    await uses.write()
    found = await pepper_uses(flows, ROTATING)
    assert (found["2027"].uses, found["first"].uses) == ({"API keys": 1, "SMTP passwords": 1}, {})
    after = admission(flows, Peppers(NEW))
    assert [await after.sender(authorization, HERE) for authorization in given] == principals
    for authorization in given:
        with pytest.raises(Refusal):
            await admission(flows, PEPPERS).sender(authorization, HERE)


async def test_an_smtp_session_continues_when_its_passwords_hash_is_replaced(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("acme")
    uses = LastUsed(flows.database)
    rotating = admission(flows, ROTATING, uses)
    principal = await rotating.password(made.credential.credential.username, made.credential.password, HERE)
    await uses.write()
    await admission(flows, ROTATING).recall(principal, HERE)


async def test_a_password_that_was_changed_meanwhile_stays_changed(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("acme")
    username = made.credential.credential.username
    uses = LastUsed(flows.database)
    await admission(flows, ROTATING, uses).sender(basic(username, made.credential.password), HERE)
    changed = await flows.credentials.rotate_credential(made.account.id, username, OPERATOR, overlap_seconds=0)
    await uses.write()
    await admission(flows, ROTATING).sender(basic(username, changed.password), HERE)
    with pytest.raises(Refusal):
        await admission(flows, ROTATING).sender(basic(username, made.credential.password), HERE)


async def test_an_old_pepper_may_be_removed_when_nothing_uses_it_and_links_have_ended(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("acme")
    assert (await pepper_uses(flows, PEPPERS))["first"].is_active
    now = flows.clock.now()
    old = (await pepper_uses(flows, ROTATING))["first"]
    assert not old.may_be_removed(now)
    assert old.needed_until is not None
    assert 29 <= (old.needed_until - now).days <= 30
    await flows.credentials.revoke_credential(
        AccountId(made.account.id),
        ids.text(ids.CREDENTIAL, made.credential.credential.id),
        OPERATOR,
        even_the_last=True,
    )
    old = (await pepper_uses(flows, ROTATING))["first"]
    assert old.needed_until is not None
    assert not old.may_be_removed(now)
    assert old.may_be_removed(old.needed_until)


async def test_a_pepper_that_is_missing_in_the_settings_is_named(flows: AccountFlows) -> None:
    await flows.accounts.create_account("acme")
    missing = (await pepper_uses(flows, Peppers(NEW)))["first"]
    assert (missing.is_known, missing.uses) == (False, {"SMTP passwords": 1})
