"""Suppressions over HTTP: lists, single addresses, import, export, and roles."""

import asyncio
import csv
import io
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.support.http_answer import Answer
from tests.support.service import Tenant

PATH = "/v1/suppressions"


async def add(tenant: Tenant, email: str, status: int = 201, **fields: Any) -> dict[str, Any]:
    answer = await tenant.call("POST", PATH, {"email": email, **fields})
    assert answer.status == status, answer.raw
    suppression: dict[str, Any] = answer.body["suppression"]
    return suppression


async def listed(tenant: Tenant, query: str = "") -> list[str]:
    answer = await tenant.call("GET", f"{PATH}?{query}")
    assert answer.status == 200, answer.raw
    return [row["email"] for row in answer.body["suppressions"]]


async def remove(tenant: Tenant, email: str, why: str | None = "a mistake") -> Answer:
    query = "" if why is None else f"?reason={quote(why)}"
    return await tenant.call("DELETE", f"{PATH}/{quote(email, safe='')}{query}")


async def bounced(tenant: Tenant, *emails: str, reason: str = "bounce") -> None:
    """As delivery would write it."""
    for email in emails:
        await tenant.service.sql(
            "INSERT INTO suppressions (account_id, email, reason, code, response, at) "
            "VALUES ($1, $2, $3, 550, 'x', now())",
            tenant.id,
            email,
            reason,
        )


async def bring_in(tenant: Tenant, content: Any, **headers: str) -> tuple[int, list[dict[str, Any]]]:
    given = {"Authorization": await tenant.jwt(), "Content-Type": "text/csv", **headers}
    async with tenant.service.client.post(tenant.service.url + PATH + "/import", headers=given, data=content) as answer:
        assert answer.headers["X-Request-ID"]
        if answer.status == 200:
            assert answer.headers["Content-Type"] == "application/x-ndjson"
            assert answer.headers["Cache-Control"] == "no-store"
        return answer.status, [json.loads(line) for line in (await answer.read()).splitlines()]


async def exported(tenant: Tenant) -> list[list[str]]:
    given = {"Authorization": await tenant.jwt()}
    async with tenant.service.client.get(tenant.service.url + PATH + "/export", headers=given) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        return list(csv.reader(io.StringIO((await answer.read()).decode(), newline="")))


async def log_of(tenant: Tenant) -> list[tuple[str, str, str, dict[str, Any]]]:
    rows = await tenant.service.sql(
        "SELECT actor, action, target, detail FROM audit_log WHERE account_id = $1 AND action LIKE 'suppression%' "
        "ORDER BY at, id",
        tenant.id,
    )
    return [(row["actor"], row["action"], row["target"], json.loads(row["detail"])) for row in rows]


@pytest.mark.rule("SUP-01")
async def test_addresses_are_listed_newest_first_with_their_fields(tenant: Tenant) -> None:
    assert await listed(tenant) == []
    for number in range(2):
        await add(tenant, f"r{number}@example.org")
    await bounced(tenant, "bounced@example.org")
    assert await listed(tenant) == ["bounced@example.org", "r1@example.org", "r0@example.org"]
    (newest, *_, oldest) = (await tenant.call("GET", PATH)).body["suppressions"]
    assert set(newest) == {"email", "reason", "note", "added_by", "smtp_code", "smtp_response", "at"}
    assert (newest["reason"], newest["smtp_code"], newest["added_by"]) == ("bounce", 550, None)
    assert (oldest["reason"], oldest["added_by"]) == (
        "manual",
        (await tenant.call("GET", "/v1/auth/me")).body["user"]["email"],
    )


@pytest.mark.rule("SUP-02")
async def test_suppressions_are_found_by_address_domain_prefix_and_reason(tenant: Tenant) -> None:
    for email in ("ada@example.org", "adam@example.net", "bob@example.org"):
        await add(tenant, email)
    await bounced(tenant, "adele@example.org")
    await bounced(tenant, "cyd@example.net", reason="complaint")
    assert await listed(tenant, "email=ADA@Example.org") == ["ada@example.org"]
    assert await listed(tenant, "email=nobody@example.org") == []
    assert await listed(tenant, "email=ada@example.org&reason=bounce") == []
    assert await listed(tenant, "search=Ad") == ["ada@example.org", "adam@example.net", "adele@example.org"]
    assert await listed(tenant, "search=ada@") == ["ada@example.org"]
    assert await listed(tenant, "search=@example.net") == ["cyd@example.net", "adam@example.net"]
    assert await listed(tenant, "search=@example.org&reason=bounce") == ["adele@example.org"]
    assert await listed(tenant, "reason=complaint") == ["cyd@example.net"]
    for query, named in {
        "reason=nonsense": "`reason`",
        "search=": "`search`",
        "search=@x": "`search`",
        "search=a&reason=manual": "`reason`",
        "email=a@example.org&search=a": "`search`",
        "email=nobody": "`email`",
    }.items():
        assert (await tenant.call("GET", f"{PATH}?{query}")).is_refusal(400, "invalid_request", named)


@pytest.mark.rule("SUP-03")
async def test_an_address_is_added_once_and_keeps_its_reason(tenant: Tenant) -> None:
    first = await add(tenant, "Ada <Ada@Example.org>", note="asked on the phone")
    assert (first["email"], first["reason"], first["note"]) == ("ada@example.org", "manual", "asked on the phone")
    assert await add(tenant, "ada@example.org", 200, note="another") == first
    await bounced(tenant, "bob@example.org")
    assert (await add(tenant, "bob@example.org", 200))["reason"] == "bounce"
    assert [entry[1:3] for entry in await log_of(tenant)] == [("suppression.added", "ada@example.org")]
    for body, named in (
        ({"email": "nobody"}, "`email`"),
        ({"email": "ada@example.org", "note": "x" * 201}, "`note`"),
        ({"email": "ada@example.org", "note": "a\nb"}, "`note`"),
        ({}, "`email`"),
        ({"email": "ada@example.org", "reason": "bounce"}, "`reason`"),
    ):
        assert (await tenant.call("POST", PATH, body)).is_refusal(400, "invalid_request", named)


@pytest.mark.rule("SUP-05")
async def test_an_address_is_removed_with_a_reason_in_the_audit_log(tenant: Tenant) -> None:
    await add(tenant, "ada@example.org")
    await bounced(tenant, "o/o@example.org", reason="complaint")
    for why in (None, "", "x" * 201, "a\nb"):
        assert (await remove(tenant, "ada@example.org", why)).is_refusal(400, "invalid_request", "`reason`")
    for email in ("Ada@example.org", "o/o@example.org"):
        answer = await remove(tenant, email, "She asked for it.")
        assert (answer.status, answer.body["deleted"]) == (200, True)
        assert (await remove(tenant, email)).is_refusal(404, "not_found")
    for email in ("nobody", "a\0b@example.org", "é@example.org"):
        assert (await remove(tenant, email)).is_refusal(404, "not_found")
    assert await listed(tenant) == []
    _, manual, complaint = await log_of(tenant)
    assert manual[1:3] == ("suppression.removed", "ada@example.org")
    assert (manual[3]["reason"], manual[3]["was"], complaint[3]["was"]) == ("She asked for it.", "manual", "complaint")


@pytest.mark.rule("SUP-10")
async def test_a_file_of_another_service_is_imported_unchanged(tenant: Tenant) -> None:
    await bounced(tenant, "known@example.org")
    content = (
        '\ufeff"EmailAddress";"SuppressionReason"\r\n"Ada@Example.org";"HardBounce"\r\n'
        'known@example.org;SpamComplaint\r\n"bob@bücher.example";"two\r\nlines"\r\n'
    )
    status, (last,) = await bring_in(tenant, content.encode())
    assert status == 200
    assert (last["lines"], last["added"], last["known"], last["invalid"], last["done"]) == (3, 2, 1, 0, True)
    found = {row["email"]: row for row in (await tenant.call("GET", PATH)).body["suppressions"]}
    assert found["ada@example.org"]["note"] == "HardBounce"
    assert found["ada@example.org"]["reason"] == "manual"
    assert found["bob@xn--bcher-kva.example"]["note"] == "two  lines"
    assert found["known@example.org"]["reason"] == "bounce"


@pytest.mark.rule("SUP-11")
async def test_an_import_reports_progress_while_the_file_is_sent(tenant: Tenant) -> None:
    reported = asyncio.Event()
    sent = 0

    async def content() -> Any:
        nonlocal sent
        yield b"ada@example.org\nnonsense\n"
        while not reported.is_set():
            sent += 1
            yield b"early+%d@example.org\n" % sent
            await asyncio.sleep(0.05)  # a slow client: only then is a report due before the end
        # The rest is sent after the first progress report.
        yield b"x" * 2_000 + b"\n" + b"wrong\n" * 200 + b"cyd@example.org"

    given = {"Authorization": await tenant.jwt(), "Content-Type": "text/csv"}
    async with tenant.service.client.post(
        tenant.service.url + PATH + "/import", headers=given, data=content()
    ) as answer:
        first = json.loads(await answer.content.readline())
        assert first == {"lines": first["lines"], "added": first["lines"] - 1, "known": 0, "invalid": 1}
        assert 2 <= first["lines"] <= 2 + sent
        reported.set()
        last = json.loads((await answer.read()).splitlines()[-1])
    assert (last["lines"], last["added"], last["known"]) == (204 + sent, 2 + sent, 0)
    assert (last["invalid"], last["done"]) == (202, True)
    assert [number["line"] for number in last["errors"]] == [2, *range(3 + sent, 102 + sent)]
    assert "no @" in last["errors"][0]["error"]
    assert "1024 bytes" in last["errors"][1]["error"]
    assert last["request_id"] == answer.headers["X-Request-ID"]


@pytest.mark.rule("SUP-14")
async def test_files_are_limited(tenant: Tenant) -> None:
    authorization = await tenant.jwt()
    head = f"POST {PATH}/import HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n"
    answer = await tenant.service.raw(f"{head}Content-Type: text/csv\r\nContent-Length: 200000001\r\n\r\n".encode())
    assert answer.is_refusal(413, "payload_too_large", "200 MB")
    for media_type in ("application/json", "text/csv; charset=latin-1", "text/plain"):
        answer = await tenant.service.request(
            "POST", f"{PATH}/import", headers={"Authorization": authorization, "Content-Type": media_type}, data=b"a"
        )
        assert answer.is_refusal(400, "invalid_request", "text/csv")
    await add(tenant, "ada@example.org")
    await tenant.service.sql("UPDATE suppression_counts SET manual = 5000000 WHERE account_id = $1", tenant.id)
    answer = await tenant.call("POST", PATH, {"email": "bob@example.org"})
    assert answer.is_refusal(409, "conflict", "5,000,000")
    _, (last,) = await bring_in(tenant, b"bob@example.org")
    assert (last["done"], last["code"], last["added"]) == (False, "conflict", 0)


@pytest.mark.rule("SUP-15")
async def test_an_export_holds_no_formulas_and_can_be_imported(tenant: Tenant, other_tenant: Tenant) -> None:
    notes = {"=cmd@example.org": "=1+1", "+a@example.org": '"quoted", and', "'-b@example.org": "", "c@example.org": "ü"}
    for email, note in notes.items():
        await add(tenant, email, note=note)
    await bounced(tenant, "bounced@example.org")
    header, *rows = await exported(tenant)
    assert header == ["address", "reason", "note", "at"]
    assert [row[0] for row in rows] == [
        "''-b@example.org", "'+a@example.org", "'=cmd@example.org", "bounced@example.org", "c@example.org",
    ]  # fmt: skip
    assert not [cell for row in rows for cell in row if cell[:1] in tuple("=+-@")]
    given = {"Authorization": await tenant.jwt()}
    async with tenant.service.client.get(tenant.service.url + PATH + "/export", headers=given) as answer:
        content = await answer.read()
    await bring_in(other_tenant, content)
    found = (await other_tenant.call("GET", f"{PATH}?limit=100")).body["suppressions"]
    brought = {row["email"]: row["note"] or "" for row in found if row["email"] in notes}
    assert brought == notes


@pytest.mark.rule("SUP-15", "SUP-11", "DAY-06")
async def test_many_addresses_are_imported_and_exported(tenant: Tenant) -> None:
    lines = b"".join([b"r%06d@example.org\n" % number for number in range(100_000)])
    # Some clients send `Expect: 100-continue` before a large file.
    _, progress = await bring_in(tenant, io.BytesIO(lines), Expect="100-continue")
    assert (progress[-1]["added"], progress[-1]["done"]) == (100_000, True)
    assert len(await exported(tenant)) == 100_001
    with pytest.raises(aiohttp.ClientError):
        await _half_of_it(tenant)
    assert await listed(tenant, "email=r099999@example.org") == ["r099999@example.org"]


async def _half_of_it(tenant: Tenant) -> None:
    given = {"Authorization": await tenant.jwt()}
    async with tenant.service.client.get(tenant.service.url + PATH + "/export", headers=given) as answer:
        await answer.content.read(1_000)
        answer.close()
        await answer.content.read()
