"""The statements of the search index and of message search: their plans, made while the tables were empty."""

from uuid import uuid4

import pytest

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.store import message_search, search_index
from posthouse.store.message_search import IdRange
from posthouse.store.postgres import Database
from posthouse.store.search_index import IndexEntry
from tests.support.clock import SettableClock
from tests.support.query_plans import condition, scans, statements

READING = {
    name: text
    for name, text in statements(message_search, search_index).items()
    if "._" not in name and not any(word in text for word in ("search_index_progress", "pg_", "INSERT"))
}


@pytest.mark.parametrize("name", sorted(READING))
@pytest.mark.parametrize("analysed", ["", "messages, recipients, events, search_index, delivery_schedule, accounts"])
async def test_rows_are_found_by_their_account_and_their_place_in_time(
    name: str, analysed: str, database: Database
) -> None:
    found = await scans(database, READING[name], analysed=analysed)
    tables = [scan for scan in found if not scan["Relation Name"].startswith("accounts")]
    assert tables
    for scan in tables:
        assert "account_id" in condition(scan), scan
        key = "id" if scan["Relation Name"].startswith(("messages", "events")) else "message_id"
        assert f"{key} " in condition(scan).replace("account_id", ""), scan


async def test_entries_are_read_back_newest_first_and_only_by_their_account(database: Database) -> None:
    clock = SettableClock()
    ours, theirs = AccountId(uuid4()), AccountId(uuid4())
    made = []
    for _ in range(4):
        clock.advance(seconds=1)
        made.append(MessageId(lowest_id(clock.now())))
    everything = IdRange(made[0], lowest_id(clock.now().replace(year=clock.now().year + 1)))
    async with database.transaction() as tx:
        await search_index.enter(tx, [])
        await search_index.enter(tx, [IndexEntry(ours, 7, entry) for entry in made] + [IndexEntry(theirs, 7, made[0])])
        await search_index.enter(tx, [IndexEntry(ours, 8, made[2]), IndexEntry(ours, 7, made[1])])
        assert await message_search.with_term(tx, ours, everything, 3, 7) == [made[3], made[2], made[1]]
        assert await message_search.with_term(tx, theirs, everything, 3, 7) == [made[0]]
        assert await message_search.with_term(tx, ours, IdRange(made[1], made[3]), 3, 7) == [made[2], made[1]]
        lists = await message_search.with_each_term(tx, ours, everything, 2, [8, 9, 7])
        assert [list(entry) for entry in lists] == [[made[2]], [], [made[3], made[2]]]


async def test_new_entries_are_added_to_those_that_are_there(database: Database) -> None:
    account_id = AccountId(uuid4())
    message_id = MessageId(lowest_id(SettableClock().now()))
    first, second, third = (IndexEntry(account_id, term, message_id) for term in (-1, 2, 3))
    async with database.transaction() as tx:
        for entries in ([], [second, first, second], [second, third], [third]):
            await search_index.enter_new(tx, entries)
        found = await tx.fetch("SELECT account_id, term, message_id FROM search_index ORDER BY term")
    assert [IndexEntry(*row) for row in found] == [first, second, third]


async def test_how_far_it_has_come_is_one_row(database: Database) -> None:
    first, second, third = (lowest_id(SettableClock().now().replace(year=year)) for year in (2030, 2031, 2032))
    async with database.transaction() as tx:
        assert await search_index.progress(tx) is None
        await search_index.begin(tx, first)
        await search_index.begin(tx, second)
        assert await search_index.progress(tx) == search_index.IndexProgress(first, first)
        await search_index.messages_entered(tx, second)
        await search_index.events_entered(tx, third)
        assert await search_index.progress(tx) == search_index.IndexProgress(second, third)
