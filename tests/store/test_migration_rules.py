"""Migrations let the previous version keep running, and lock no large table for long."""

from pathlib import Path

import pytest

from posthouse.store.schema import DIRECTORY
from tests.store.migration_rules import faults, read

# The baseline makes the tables.
CHECKED_FROM = "0002"
FILES = sorted((DIRECTORY / "versions").glob("[0-9]*.py"))

HEAD = 'from alembic import op\n\nrevision = "0002"\ndown_revision = "0001"\n'


def test_the_previous_version_keeps_running_and_no_large_table_is_locked_for_long() -> None:
    checked = [file for file in FILES if file.name >= CHECKED_FROM]
    assert [fault for file in checked for fault in faults(read(file))] == []


def test_migrations_are_numbered_one_after_the_other_and_each_follows_the_one_before() -> None:
    numbers = [file.name[:4] for file in FILES]
    modules = [read(file).module for file in FILES if file.name >= CHECKED_FROM]
    assert numbers == [f"{number:04}" for number in range(1, len(FILES) + 1)]
    assert [module.revision for module in modules] == numbers[1:]
    assert [module.down_revision for module in modules] == numbers[:-1]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE INDEX x ON messages (subject)", "CONCURRENTLY"),
        ("CREATE UNIQUE INDEX x ON delivery_schedule (next_at)", "CONCURRENTLY"),
        ("ALTER TABLE messages ADD COLUMN x uuid DEFAULT gen_random_uuid()", "rewrites the table"),
        ("ALTER TABLE accounts ADD COLUMN x timestamptz NOT NULL DEFAULT clock_timestamp()", "rewrites the table"),
        ("ALTER TABLE delivery_schedule ADD COLUMN x text NOT NULL", "give it a default"),
        ("ALTER TABLE delivery_schedule ADD COLUMN y text, ADD COLUMN x text NOT NULL", "give it a default"),
        ("ALTER TABLE attempts ADD COLUMN x integer CHECK (x > 0)", "NOT VALID"),
        ("ALTER TABLE ledger ADD CONSTRAINT x CHECK (amount > 0)", "NOT VALID"),
        ("ALTER TABLE recipients ADD COLUMN x uuid REFERENCES accounts", "NOT VALID"),
        ("UPDATE webhook_schedule SET due_at = next_at", "in batches"),
        ("DELETE FROM suppressions WHERE reason = 'x'", "in batches"),
        ("ALTER TABLE accounts DROP COLUMN tier", "CONTRACT"),
        ("ALTER TABLE accounts RENAME COLUMN tier TO level", "CONTRACT"),
        ("ALTER TABLE accounts ALTER COLUMN tier TYPE integer", "CONTRACT"),
        ("ALTER TABLE accounts ALTER COLUMN pool SET NOT NULL", "CONTRACT"),
        ("DROP TABLE listings", "CONTRACT"),
        ("DROP TYPE accepted_message", "CONTRACT"),
        ("ALTER TYPE accepted_message ADD ATTRIBUTE x text", "a new type"),
    ],
)
def test_a_migration_that_breaks_a_rule_is_found(statement: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "0002_wrong.py"
    file.write_text(f"{HEAD}\n\ndef upgrade() -> None:\n    op.execute({statement!r})\n")
    (fault,) = faults(read(file))
    assert why in fault


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x (id uuid PRIMARY KEY, name text NOT NULL CHECK (name <> ''))",
        "CREATE TYPE x AS (id uuid, name text)",
        "ALTER TABLE messages ADD COLUMN x text",
        "ALTER TABLE delivery_schedule ADD COLUMN x interval NOT NULL DEFAULT '0'",
        "ALTER TABLE webhook_schedule ADD COLUMN x timestamptz NOT NULL DEFAULT now()",
        "ALTER TABLE ledger ADD CONSTRAINT x CHECK (amount > 0) NOT VALID",
        "ALTER TABLE ledger VALIDATE CONSTRAINT x",
        "CREATE INDEX CONCURRENTLY x ON messages (subject)",
    ],
)
def test_a_migration_that_keeps_the_rules_is_fine(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "0002_right.py"
    file.write_text(f"{HEAD}\n\ndef upgrade() -> None:\n    op.execute({statement!r})\n")
    assert list(faults(read(file))) == []


def test_a_contraction_says_why_the_version_before_does_not_need_it(tmp_path: Path) -> None:
    file = tmp_path / "0002_contracts.py"
    reason = 'CONTRACT = "0.2.0 reads and writes it no more"'
    file.write_text(
        f'{HEAD}{reason}\n\n\ndef upgrade() -> None:\n    op.execute("ALTER TABLE accounts DROP COLUMN tier")\n'
    )
    assert list(faults(read(file))) == []
