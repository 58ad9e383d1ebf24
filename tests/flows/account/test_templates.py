"""Templates on a real database: how many versions and bytes an account stores."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import pytest

from posthouse.flows.account.templates import Templates
from posthouse.rules import limits
from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code
from posthouse.rules.template import Template
from posthouse.store import accounts
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from tests.flows.account_flows import assert_refused
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.operator_client import Operator
from tests.support.service import service_settings

SMALL: Final = Template("Hello", "Good morning.", None)
LARGE: Final = Template("Hello", "x" * limits.TEMPLATE_PART_CHARACTERS_MAX, "x" * limits.TEMPLATE_PART_CHARACTERS_MAX)


@pytest.fixture
def templates(database: Database) -> Templates:
    return Templates(context(database, SettableClock()))


@pytest.fixture
async def acme(database_url: str) -> AccountId:
    operator = await Operator.open(service_settings(database_url))
    try:
        return AccountId((await operator.create_account("Acme")).id)
    finally:
        await operator.close()


async def stored(database: Database, alias: str) -> list[int]:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT version FROM template_versions WHERE alias = $1 ORDER BY 1", alias)
    return [row["version"] for row in rows]


async def sizes(database: Database) -> tuple[int, int]:
    """Of all templates: as recorded, and as stored."""
    async with database.connection() as connection:
        recorded: int = await connection.fetchval("SELECT coalesce(sum(size_bytes), 0)::bigint FROM templates")
        held: int = await connection.fetchval(
            """
            SELECT coalesce(sum(coalesce(octet_length(subject), 0) + coalesce(octet_length(text), 0)
                + coalesce(octet_length(html), 0)), 0)::bigint FROM template_versions
            """
        )
    return recorded, held


async def pretend(database: Database, alias: str, version: int, size_bytes: int) -> None:
    """A version that takes this many bytes, according to the record."""
    async with database.transaction() as tx:
        await tx.execute(
            "UPDATE template_versions SET size_bytes = $3 WHERE alias = $1 AND version = $2", alias, version, size_bytes
        )
        await tx.execute(
            "UPDATE templates SET size_bytes = (SELECT sum(size_bytes) FROM template_versions WHERE alias = $1) "
            "WHERE alias = $1", alias,
        )  # fmt: skip


@pytest.mark.rule("TMPL-21")
async def test_the_oldest_unpublished_version_gives_way(
    database: Database, templates: Templates, acme: AccountId
) -> None:
    await templates.create(acme, "welcome", None, SMALL, OPERATOR, publish=True)
    for _ in range(limits.TEMPLATE_VERSIONS_MAX + 1):
        row = await templates.add_version(acme, "welcome", SMALL, OPERATOR, publish=False)
    assert row.latest_version == limits.TEMPLATE_VERSIONS_MAX + 2
    assert await stored(database, "welcome") == [1, *range(4, limits.TEMPLATE_VERSIONS_MAX + 3)]
    assert len(set(await sizes(database))) == 1
    await assert_refused(templates.publish(acme, "welcome", 2, OPERATOR), Code.NOT_FOUND, "no version 2")


async def test_old_versions_give_way_to_the_bytes_of_a_new_one(
    database: Database, templates: Templates, acme: AccountId
) -> None:
    await templates.create(acme, "welcome", None, SMALL, OPERATOR, publish=False)
    for _ in range(3):
        await templates.add_version(acme, "welcome", SMALL, OPERATOR, publish=False)
    await pretend(database, "welcome", 2, limits.TEMPLATES_BYTES_MAX - 100)
    await templates.add_version(acme, "welcome", LARGE, OPERATOR, publish=True)
    assert await stored(database, "welcome") == [3, 4, 5]
    assert len(set(await sizes(database))) == 1


@pytest.mark.rule("TMPL-22")
async def test_what_does_not_fit_next_to_other_templates_is_refused(
    database: Database, templates: Templates, acme: AccountId
) -> None:
    await templates.create(acme, "welcome", None, SMALL, OPERATOR, publish=True)
    await templates.create(acme, "other", None, SMALL, OPERATOR, publish=True)
    await pretend(database, "other", 1, limits.TEMPLATES_BYTES_MAX - 100)
    refused = templates.add_version(acme, "welcome", LARGE, OPERATOR, publish=True)
    await assert_refused(refused, Code.CONFLICT, "delete templates")
    new = templates.create(acme, "third", None, LARGE, OPERATOR, publish=True)
    await assert_refused(new, Code.CONFLICT, "delete templates")
    assert await stored(database, "welcome") == [1]
    await templates.delete(acme, "other", OPERATOR)
    await templates.create(acme, "third", None, LARGE, OPERATOR, publish=True)
    assert len(set(await sizes(database))) == 1


async def test_what_is_published_renamed_or_deleted_is_read_again_by_caches(
    templates: Templates, database: Database, acme: AccountId
) -> None:
    cache = ControlCache(database, SettableClock().monotonic)
    newer = Template("Hello", "Good evening.", None)
    await templates.create(acme, "hello", "Hello", SMALL, OPERATOR, publish=True)
    for change, alias, published in (
        (lambda: templates.add_version(acme, "hello", newer, OPERATOR, publish=True), "hello", newer),
        (lambda: templates.publish(acme, "hello", 1, OPERATOR), "hello", SMALL),
        (lambda: templates.rename(acme, "hello", "hi", None, OPERATOR), "hello", None),
        (lambda: templates.delete(acme, "hi", OPERATOR), "hi", None),
    ):
        # Caches read the changes of the last seconds more than once.
        async with database.transaction() as tx:
            await tx.execute("UPDATE accounts SET changed_at = now() - interval '1 hour'")
        await cache.forget_changes()
        assert await cache.published_template(acme, alias) is not None
        await change()
        await cache.forget_changes()
        assert await cache.published_template(acme, alias) == published


async def test_a_cached_template_is_the_accounts_own(templates: Templates, database: Database, acme: AccountId) -> None:
    other = AccountId(UUID(int=acme.int + 1))
    async with database.transaction() as tx:
        await accounts.insert(tx, other, "Other", datetime.now(UTC))
    cache = ControlCache(database, SettableClock().monotonic)
    await cache.forget_changes()
    await templates.create(acme, "hello", "Hello", SMALL, OPERATOR, publish=True)
    assert await cache.published_template(acme, "hello") == SMALL
    assert await cache.published_template(other, "hello") is None
    await templates.rename(acme, "hello", "hi", None, OPERATOR)
    assert await cache.renamed_template(acme, "hello") == "hi"
    assert await cache.renamed_template(other, "hello") is None
