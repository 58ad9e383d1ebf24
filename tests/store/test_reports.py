"""Statements about reports and reputation find rows by keys, however large the tables are."""

import pytest

from posthouse.store import reports, reputation
from posthouse.store.postgres import Database
from tests.support import query_plans

# Once an hour, maintenance goes through the accounts that are not good yet.
WALKS = "reputation._RAISE"
STATEMENTS = query_plans.statements(reputation, reports)
del STATEMENTS[WALKS]
# What a table's rows may be found by, besides the account and the message.
INDEXED = {"accounts": ("id = ", "uuid_send("), "suppressions": ("at >= ",), "removed_suppressions": ("at >= ",)}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    for scan in await query_plans.scans(database, STATEMENTS[name]):
        condition = query_plans.condition(scan)
        table = scan["Relation Name"]
        if table in INDEXED:
            assert any(key in condition for key in INDEXED[table]), scan
        else:
            assert "account_id = " in condition, scan
            assert "message_id" in condition or "id >= " in condition or "id = " in condition, scan
