"""CSV files of messages, the ledger and the audit log: all of a list, no formulas, a few at a time."""

import asyncio
import csv
import io
import socket
from typing import Any

import pytest

from posthouse.flows.account import exports
from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import Answer
from tests.support.service import Tenant

PATHS = ("/v1/messages/export", "/v1/ledger/export", "/v1/audit-log/export")
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


class Unread:
    """A client that reads the head of its response and no more."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self.status = 0

    async def __aenter__(self) -> "Unread":
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", self._port))
        reader, self._writer = await asyncio.open_connection(sock=connection, limit=1024)
        request = f"GET {PATHS[0]} HTTP/1.1\r\nHost: x\r\nAuthorization: {self._token}\r\n\r\n"
        self._writer.write(request.encode())
        async with asyncio.timeout(HANG_SECONDS):
            self.status = int((await reader.readline()).split()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()


async def fill(tenant: Tenant) -> None:
    """With more than fits into the buffers of a connection."""
    subject = "x" * 500
    await tenant.accepts(tenant.mail(subject=subject))
    await tenant.service.sql(
        "INSERT INTO messages SELECT (m).* FROM (SELECT jsonb_populate_record(m, jsonb_build_object('id',"
        " overlay(m.id::text placing lpad(to_hex(n * 64), 12, '0') from 25 for 12))) AS m"
        " FROM messages m, generate_series(1, 12000) n WHERE account_id = $1) made",
        tenant.id,
    )
