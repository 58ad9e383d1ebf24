"""Suppressions: every statement finds its rows by the account and the address, or by the index that is for it."""

import pytest

from posthouse.store import suppressions
from posthouse.store.postgres import Database
from tests.support import query_plans

STATEMENTS = query_plans.statements(suppressions)
# The index of each query; every other query finds its rows by the account and the address.
FOUND_BY = {
    "suppressions._NEWEST": ("account_id = ", "reason = ", "ROW("),
    "suppressions._NEWEST_OF_DOMAIN": ("account_id = ", "split_part(", "reason = ", "ROW("),
    "suppressions._BY_ADDRESS": ("account_id = ", "email >= ", "email < ", "email > "),
    "suppressions._FORGET_LIFTED": ("at < ",),
}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("analysed", ["", "suppressions"])
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(
    name: str, analysed: str, database: Database
) -> None:
    for scan in await query_plans.scans(database, STATEMENTS[name], analysed=analysed):
        condition = query_plans.condition(scan)
        if scan["Relation Name"] == "suppressions":
            keys = FOUND_BY.get(name, ("account_id = ", "email = "))
            assert all(key in condition for key in keys), scan
        elif scan["Node Type"] != "Tid Scan":
            assert any(key in condition for key in ("account_id = ", "at < ")), scan
