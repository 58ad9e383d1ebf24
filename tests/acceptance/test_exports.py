"""CSV files of messages, the ledger and the audit log: all of a list, no formulas, a few at a time."""

import asyncio
import csv
import io
from typing import Any

import pytest

from posthouse.flows.account import exports
from tests.support.http_answer import Answer
from tests.support.service import Tenant

MANY = exports.PAGE_ROWS + 30


async def file_of(tenant: Tenant, path: str, role: str = "owner") -> Answer:
    service = tenant.service
    async with service.client.get(service.url + path, headers={"Authorization": await tenant.jwt(role)}) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def rows_of(tenant: Tenant, path: str, role: str = "owner") -> list[dict[str, str]]:
    answer = await file_of(tenant, path, role)
    assert answer.status == 200, answer.raw
    return list(csv.DictReader(io.StringIO(answer.raw.decode(), newline="")))


async def listed(tenant: Tenant, path: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await tenant.call("GET", f"{path}?limit=100{cursor}")).body
        found += page[name]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def send_many(tenant: Tenant) -> None:
    await asyncio.gather(*[tenant.accepts(tenant.mail(subject=f"Number {number}")) for number in range(MANY)])


@pytest.mark.rule("EXP-01")
async def test_a_file_has_all_rows_of_its_list_in_its_order(tenant: Tenant) -> None:
    await send_many(tenant)
    messages = await rows_of(tenant, "/v1/messages/export", "viewer")
    expected = await listed(tenant, "/v1/messages", "messages")
    assert [row["id"] for row in messages] == [message["id"] for message in expected]
    assert len(messages) == MANY
    first = expected[0]
    assert messages[0] == {
        "id": first["id"],
        "created_at": first["created_at"],
        "status": "queued",
        "source": "api",
        "from": first["from"],
        "to": "ada@example.org",
        "recipient_count": "1",
        "subject": first["subject"],
        "tags": "",
        "template": "",
        "credential_id": first["credential_id"],
        "billing_status": "reserved",
    }
    ledger = await rows_of(tenant, "/v1/ledger/export", "viewer")
    entries = await listed(tenant, "/v1/ledger", "entries")
    assert [(row["id"], row["amount"]) for row in ledger] == [(entry["id"], str(entry["amount"])) for entry in entries]
    log = await rows_of(tenant, "/v1/audit-log/export")
    assert [row["id"] for row in log] == [entry["id"] for entry in await listed(tenant, "/v1/audit-log", "entries")]


@pytest.mark.rule("EXP-01")
async def test_a_file_is_filtered_as_its_list_is(tenant: Tenant) -> None:
    wanted = (await tenant.accepts(tenant.mail(tags=["shipping", "x"])))["id"]
    await tenant.accepts()
    (row,) = await rows_of(tenant, "/v1/messages/export?tag=shipping")
    assert (row["id"], row["tags"]) == (wanted, "shipping, x")
    (reserve,) = await rows_of(tenant, f"/v1/ledger/export?message_id={wanted}")
    assert (reserve["message_id"], reserve["kind"], reserve["amount"]) == (wanted, "reserve", "-1")
    wrong = await file_of(tenant, "/v1/messages/export?status=lost")
    assert (wrong.status, wrong.body["code"]) == (400, "invalid_request")
    assert (await file_of(tenant, "/v1/ledger/export?cursor=x")).status == 400


@pytest.mark.rule("EXP-01")
async def test_the_logs_file_has_the_filters_of_the_log(tenant: Tenant) -> None:
    for name in ("First Ltd", "Second Ltd"):
        assert (await tenant.call("PUT", "/v1/account", {"name": name})).status == 200
    newest, before = (await tenant.call("GET", "/v1/audit-log?action=account.renamed")).body["entries"]

    async def ids_of(filters: str) -> list[str]:
        return [row["id"] for row in await rows_of(tenant, f"/v1/audit-log/export?{filters}")]

    assert await ids_of("action=account.renamed") == [newest["id"], before["id"]]
    assert await ids_of(f"action=account&actor={newest['actor']['user_id']}") == [newest["id"], before["id"]]
    assert await ids_of(f"action=account.renamed&since={newest['at']}") == [newest["id"]]
    assert await ids_of(f"action=account.renamed&until={newest['at']}") == [before["id"]]
    assert await ids_of("action=template") == []
    wrong = await file_of(tenant, "/v1/audit-log/export?since=yesterday")
    assert (wrong.status, wrong.body["code"]) == (400, "invalid_request")


@pytest.mark.rule("EXP-02")
async def test_no_cell_is_a_formula(tenant: Tenant) -> None:
    for formula in ("=cmd|' /C calc'!A1", "+1+1", "-2", "@SUM(A1)", "\uff1d1+1"):
        await tenant.accepts(tenant.mail(subject=formula, tags=[formula]))
        newest = (await rows_of(tenant, "/v1/messages/export"))[0]
        assert (newest["subject"], newest["tags"]) == (f"'{formula}", f"'{formula}")
    # To a spreadsheet that separates cells by semicolons, or drops blanks.
    for hidden, shown in (("x;=1+cmd|' /C calc'!A0;y", "x;'=1+cmd|' /C calc'!A0;y"), (" =1+1", "' =1+1")):
        await tenant.accepts(tenant.mail(subject=hidden))
        assert (await rows_of(tenant, "/v1/messages/export"))[0]["subject"] == shown
    answer = await file_of(tenant, "/v1/messages/export")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="messages.csv"'
    assert answer.headers["Cache-Control"] == "no-store"
