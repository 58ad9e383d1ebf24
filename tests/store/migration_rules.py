"""The rules of migrations, read from their SQL: expand → migrate → contract, and no long lock.

They are written down in docs/internals/write-a-migration.md.
"""

import io
import re
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from alembic.migration import MigrationContext
from alembic.operations import Operations

# Tables that grow with the mail, and that accepting, delivery or webhooks write.
LARGE: Final = frozenset(
    [
        *(
            "attempts", "bodies", "webhook_schedule", "search_index", "endpoint_events", "events", "idempotency",
            "ledger",
        ),
        *(
            "messages", "recipients", "reports", "delivery_schedule", "suppressions", "unsubscriptions",
            "webhook_deliveries",
        ),
    ]
)  # fmt: skip
_TABLE: Final = r"(?:IF (?:NOT )?EXISTS )?(?:ONLY )?(?P<table>\w+)"
_CREATE: Final = re.compile(rf"CREATE (?:UNLOGGED )?TABLE {_TABLE}", re.IGNORECASE)
_ALTER: Final = re.compile(rf"ALTER TABLE {_TABLE} (?P<rest>.*)", re.IGNORECASE)
_INDEX: Final = re.compile(
    r"CREATE (?:UNIQUE )?INDEX (?P<concurrently>CONCURRENTLY )?.*? ON (?:ONLY )?(?P<table>\w+)", re.IGNORECASE
)
_WRITE: Final = re.compile(r"(?:UPDATE|DELETE FROM) (?:ONLY )?(?P<table>\w+)", re.IGNORECASE)
# The same value for all rows: the table is not rewritten.
_FIXED: Final = re.compile(r"DEFAULT (?:'[^']*'|-?[\d.]+|true|false|null|now\(\)|current_\w+)", re.IGNORECASE)
_CONTRACTS: Final = re.compile(
    r"\bDROP (?:COLUMN|TABLE|TYPE|VIEW)|\bRENAME\b|\bALTER (?:COLUMN )?\w+ (?:SET DATA )?TYPE\b|\bSET NOT NULL\b",
    re.IGNORECASE,
)
_CONSTRAINT: Final = re.compile(
    r"\bADD (?:CONSTRAINT|CHECK|FOREIGN KEY|UNIQUE|PRIMARY KEY)|\bREFERENCES\b", re.IGNORECASE
)


class Migration(NamedTuple):
    file: Path
    module: ModuleType
    statements: list[str]


def read(file: Path) -> Migration:
    """What the migration would execute."""
    specification = util.spec_from_file_location(f"migration_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = util.module_from_spec(specification)
    specification.loader.exec_module(module)
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    with Operations.context(MigrationContext.configure(dialect_name="postgresql", opts=options)):
        module.upgrade()
    return Migration(file, module, _statements(written.getvalue()))


def faults(migration: Migration) -> Iterator[str]:
    """Why processes of the version before would fail on the new tables, or wait for them."""
    new = {found["table"] for found in map(_CREATE.match, migration.statements) if found}
    for statement in migration.statements:
        for text in _of_statement(statement, new):
            yield f"{migration.file.name}: {text}: {statement[:120]}"
        if _CONTRACTS.search(statement) and not hasattr(migration.module, "CONTRACT"):
            why = "the version before may use it: CONTRACT must say why it doesn't"
            yield f"{migration.file.name}: {why}: {statement[:120]}"


def _of_statement(statement: str, new: set[str]) -> Iterator[str]:
    index, write, alter = _INDEX.match(statement), _WRITE.match(statement), _ALTER.match(statement)
    if index and index["table"] in LARGE - new and not index["concurrently"]:
        yield "an index of a large table is made CONCURRENTLY, with create_indexes"
    if re.match(r"ALTER TYPE\b", statement, re.IGNORECASE):
        yield "the version before passes rows of this type: another shape is a new type"
    if write and write["table"] in LARGE - new:
        yield "rows of a large table are changed in batches by maintenance, not by a migration"
    if alter and alter["table"] not in new:
        yield from _of_alter(alter["rest"], is_large=alter["table"] in LARGE)


def _of_alter(rest: str, *, is_large: bool) -> Iterator[str]:
    for added in re.split(r"\bADD COLUMN\b", rest, flags=re.IGNORECASE)[1:]:
        column = re.split(r", ADD\b", added, flags=re.IGNORECASE)[0]
        if re.search(r"\bDEFAULT\b", column, re.IGNORECASE):
            if not _FIXED.search(column):
                yield "a default that is computed for each row rewrites the table"
        elif re.search(r"\bNOT NULL\b", column, re.IGNORECASE):
            yield "the version before doesn't fill the column: give it a default"
        if is_large and re.search(r"\bCHECK\b", column, re.IGNORECASE):
            yield "a check of a new column reads the whole table: add it NOT VALID"
    if is_large and _CONSTRAINT.search(rest) and not re.search(r"\bNOT VALID\b", rest, re.IGNORECASE):
        yield "a constraint reads the whole table: add it NOT VALID, and validate it in the next migration"


def _statements(sql: str) -> list[str]:
    without_comments = re.sub(r"--[^\n]*", "", sql)
    return [" ".join(part.split()) for part in re.split(r";\s*\n", without_comments) if part.strip()]
