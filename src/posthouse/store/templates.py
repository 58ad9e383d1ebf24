"""Templates and their numbered, unchangeable versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId
from posthouse.rules.template import Engine, StoredVersion, Template
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class TemplateRow:
    alias: str
    name: str
    published_version: int | None
    latest_version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TemplateVersionRow:
    version: int
    content: Template
    created_at: datetime
    author: str


_COLUMNS: Final = "alias, name, published_version, latest_version, created_at, updated_at"

_INSERT: Final = statement(f"""
INSERT INTO templates (account_id, alias, name, latest_version, size_bytes, created_at, updated_at)
VALUES (:account_id, :alias, :name, 1, :size_bytes, :now, :now)
ON CONFLICT (account_id, alias) DO NOTHING RETURNING {_COLUMNS}
""")

_INSERT_VERSION: Final = statement("""
INSERT INTO template_versions (account_id, alias, version, subject, text, html, engine, size_bytes, created_at, author)
VALUES (:account_id, :alias, :version, :subject, :text, :html, :engine, :size_bytes, :now, :author)
""")

_NEXT_VERSION: Final = f"""
UPDATE templates SET latest_version = latest_version + 1, size_bytes = size_bytes + $4, updated_at = $3
WHERE account_id = $1 AND alias = $2 RETURNING {_COLUMNS}
"""

_PUBLISH: Final = statement(f"""
UPDATE templates SET published_version = :version, updated_at = :now
WHERE account_id = :account_id AND alias = :alias RETURNING {_COLUMNS}
""")

# The versions follow through their foreign key.
_RENAME: Final = statement(f"""
UPDATE templates SET alias = :new_alias, name = coalesce(:name, name), updated_at = :now,
    former_alias = CASE WHEN alias = :new_alias THEN former_alias ELSE alias END
WHERE account_id = :account_id AND alias = :alias RETURNING {_COLUMNS}
""")

_RENAMED: Final = """
SELECT alias FROM templates WHERE account_id = $1 AND former_alias = $2 ORDER BY updated_at DESC LIMIT 1
"""

_TEMPLATE: Final = f"SELECT {_COLUMNS} FROM templates WHERE account_id = $1 AND alias = $2"

_LIST: Final = statement(f"""
SELECT {_COLUMNS} FROM templates
WHERE account_id = :account_id AND (:before_at::timestamptz IS NULL OR (created_at, alias) < (:before_at,
    :before_alias))
ORDER BY created_at DESC, alias DESC LIMIT :limit
""")

_VERSION: Final = """
SELECT version, subject, text, html, engine, created_at, author FROM template_versions
WHERE account_id = $1 AND alias = $2 AND version = $3
"""

_VERSIONS: Final = """
SELECT version, subject, text, html, engine, created_at, author FROM template_versions
WHERE account_id = $1 AND alias = $2 ORDER BY version DESC LIMIT $3
"""

_STORED: Final = """
SELECT version, size_bytes FROM template_versions WHERE account_id = $1 AND alias = $2 ORDER BY version LIMIT $3
"""

_DELETE_VERSIONS: Final = """
DELETE FROM template_versions WHERE account_id = $1 AND alias = $2 AND version = ANY($3::integer[])
"""
_SHRINK: Final = "UPDATE templates SET size_bytes = size_bytes - $3 WHERE account_id = $1 AND alias = $2"

_BYTES: Final = "SELECT coalesce(sum(size_bytes), 0)::bigint FROM templates WHERE account_id = $1"

_COUNT: Final = "SELECT count(*) FROM (SELECT FROM templates WHERE account_id = $1 LIMIT $2) counted"

_DELETE: Final = "DELETE FROM templates WHERE account_id = $1 AND alias = $2 RETURNING 1"


def _version(row: Row) -> TemplateVersionRow:
    content = Template(row["subject"], row["text"], row["html"], Engine(row["engine"]))
    return TemplateVersionRow(row["version"], content, row["created_at"], row["author"])


async def insert(
    tx: Connection, account_id: AccountId, alias: str, name: str, content: Template, now: datetime
) -> TemplateRow | None:
    """A template whose first version is still to be inserted, or None if the alias is taken."""
    row = await tx.fetchrow(
        *_INSERT.bind(account_id=account_id, alias=alias, name=name, size_bytes=content.size_bytes, now=now)
    )
    return None if row is None else TemplateRow(*row)


async def insert_version(
    tx: Connection, account_id: AccountId, alias: str, version: int, content: Template, author: str, now: datetime
) -> None:
    await tx.execute(
        *_INSERT_VERSION.bind_row(content, account_id=account_id, alias=alias, version=version, now=now, author=author)
    )


async def take_next_version(
    tx: Connection, account_id: AccountId, alias: str, content: Template, now: datetime
) -> TemplateRow | None:
    """Reserve the number and the bytes of a further version; the template, or None if there is none."""
    row = await tx.fetchrow(_NEXT_VERSION, account_id, alias, now, content.size_bytes)
    return None if row is None else TemplateRow(*row)


async def publish(tx: Connection, account_id: AccountId, alias: str, version: int, now: datetime) -> TemplateRow | None:
    row = await tx.fetchrow(*_PUBLISH.bind(account_id=account_id, alias=alias, version=version, now=now))
    return None if row is None else TemplateRow(*row)


async def rename(
    tx: Connection, account_id: AccountId, alias: str, new_alias: str, name: str | None, now: datetime
) -> TemplateRow | None:
    """None if there is no template; the new alias must be free."""
    row = await tx.fetchrow(*_RENAME.bind(account_id=account_id, alias=alias, new_alias=new_alias, name=name, now=now))
    return None if row is None else TemplateRow(*row)


async def renamed(connection: Connection, account_id: AccountId, former_alias: str) -> str | None:
    """The alias of the template that had this alias before its last rename."""
    alias: str | None = await connection.fetchval(_RENAMED, account_id, former_alias)
    return alias


async def template(connection: Connection, account_id: AccountId, alias: str) -> TemplateRow | None:
    row = await connection.fetchrow(_TEMPLATE, account_id, alias)
    return None if row is None else TemplateRow(*row)


async def templates(
    connection: Connection, account_id: AccountId, before: tuple[datetime, str] | None, count: int
) -> list[TemplateRow]:
    """The newest first; `before` is the end of the previous page."""
    created_at, alias = before or (None, None)
    return [
        TemplateRow(*row)
        for row in await connection.fetch(
            *_LIST.bind(account_id=account_id, before_at=created_at, before_alias=alias, limit=count)
        )
    ]


async def version(connection: Connection, account_id: AccountId, alias: str, number: int) -> TemplateVersionRow | None:
    row = await connection.fetchrow(_VERSION, account_id, alias, number)
    return None if row is None else _version(row)


async def versions(connection: Connection, account_id: AccountId, alias: str, count: int) -> list[TemplateVersionRow]:
    return [_version(row) for row in await connection.fetch(_VERSIONS, account_id, alias, count)]


async def stored_versions(
    connection: Connection, account_id: AccountId, alias: str, count_max: int
) -> list[StoredVersion]:
    """The oldest first."""
    return [StoredVersion(*row) for row in await connection.fetch(_STORED, account_id, alias, count_max)]


async def delete_versions(tx: Connection, account_id: AccountId, alias: str, versions: Sequence[StoredVersion]) -> None:
    await tx.execute(_DELETE_VERSIONS, account_id, alias, [row.version for row in versions])
    await tx.execute(_SHRINK, account_id, alias, sum(row.size_bytes for row in versions))


async def stored_bytes(connection: Connection, account_id: AccountId) -> int:
    """The bytes of all versions of all templates of the account."""
    found: int = await connection.fetchval(_BYTES, account_id)
    return found


async def count(connection: Connection, account_id: AccountId, count_max: int) -> int:
    """How many the account has, counted up to `count_max`."""
    number: int = await connection.fetchval(_COUNT, account_id, count_max)
    return number


async def delete(tx: Connection, account_id: AccountId, alias: str) -> bool:
    return await tx.fetchval(_DELETE, account_id, alias) is not None
