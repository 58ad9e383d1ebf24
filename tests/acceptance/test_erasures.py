"""`/v1/erasures`: who may erase an address, what the answer says, and what is left when it is done."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from posthouse.rules.credential import Scope
from posthouse.rules.erasure import ERASED
from tests.support.account_webhook import log_of, saved
from tests.support.database_checks import database_faults
from tests.support.eventually import eventually
from tests.support.secrets_left import copies_of, dump
from tests.support.service import Tenant
from tests.support.service_processes import prepare_processes

EMAIL: Final = "quince.lovelace@one.example.net"
ONE: Final = "one.example.net"
DONE_SECONDS_MAX: Final = 300.0


async def erase(tenant: Tenant, email: str = EMAIL) -> dict[str, Any]:
    answer = await tenant.call("POST", "/v1/erasures", {"email": email})
    assert answer.status == 202, answer.raw
    erasure: dict[str, Any] = answer.body["erasure"]
    return erasure


@pytest.mark.rule("ERS-01", "ERS-05", "ERS-06")
async def test_an_erasure_is_begun_once_and_its_answers_do_not_name_the_address(
    tenant: Tenant, stranger: Tenant
) -> None:
    first, second = await erase(tenant), await erase(tenant, EMAIL.upper())
    other = await erase(stranger)
    assert first == second
    assert other["id"] != first["id"]
    assert (first["status"], first["cancelled"], first["messages"], first["finished_at"]) == ("running", 0, 0, None)
    shown = await tenant.call("GET", f"/v1/erasures/{first['id']}")
    assert shown.body["erasure"] == first
    assert b"quince" not in shown.raw
    assert (await tenant.call("GET", f"/v1/erasures/{other['id']}")).is_refusal(404, "not_found")
    log = await tenant.call("GET", "/v1/audit-log")
    assert next((entry["action"], entry["target"]) for entry in log.body["entries"]) == ("erasure.begun", first["id"])
    assert b"quince" not in log.raw


@pytest.mark.rule("ERS-01")
@pytest.mark.parametrize("given", ["", "nobody", "a@b@c", None, 1, "x" * 300 + "@example.net"])
async def test_what_is_no_address_is_refused(regular: Tenant, given: object) -> None:
    answer = await regular.call("POST", "/v1/erasures", {"email": given})
    assert answer.is_refusal(400, "invalid_request", "email")


@pytest.mark.rule("ERS-06")
async def test_members_and_keys_with_the_scope_may_erase(tenant: Tenant) -> None:
    assert (await tenant.call("POST", "/v1/erasures", {"email": EMAIL}, role="viewer")).status == 403
    assert (await tenant.call("POST", "/v1/erasures", {"email": EMAIL}, role="member")).status == 202
    for scope, status in ((Scope.SUPPRESSIONS, 202), (Scope.MESSAGES, 401)):
        answer = await tenant.service.request(
            "POST", "/v1/erasures", headers={"Authorization": await tenant.scoped_key(scope)}, json={"email": EMAIL}
        )
        assert answer.status == status, answer.raw


@pytest.mark.rule("ERS-02", "ERS-03", "ERS-04", "ERS-05", "ERS-07")
async def test_an_erased_address_is_in_no_table_and_gets_no_mail(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url = await asyncio.to_thread(new_database)
    async with prepare_processes(database_url, tmp_path) as processes:
        processes.destination(ONE)
        await processes.start_http()
        for part in ("dispatch", "delivery", "upkeep"):
            processes.start(part)
        tenant = await processes.service.account()
        await saved(tenant)
        sent = [(await tenant.accepts(tenant.mail(to=EMAIL, subject=f"For {EMAIL}")))["id"] for _ in range(5)]
        await processes.wait_until_final(tenant, sent, DONE_SECONDS_MAX)
        later = await tenant.accepts(tenant.mail(to=EMAIL, send_at="2026-12-01T00:00:00Z"))
        arrived = len(processes.lines())
        assert (await tenant.call("POST", "/v1/suppressions", {"email": EMAIL})).status == 201
        erasure = await erase(tenant)
        refused = (await tenant.accepts(tenant.mail(to=EMAIL)))["id"]
        (message,) = await processes.wait_until_final(tenant, [refused], DONE_SECONDS_MAX)
        assert message["recipients"][0]["status"] == "bounced"

        async def done() -> bool:
            processes.check()
            shown = await tenant.call("GET", f"/v1/erasures/{erasure['id']}")
            return bool(shown.body["erasure"]["status"] == "done")

        await eventually(done, within=DONE_SECONDS_MAX)
        left = "SELECT count(*) FROM contents_to_forget"
        await eventually(lambda: processes.service.value(left), lambda number: number == 0, within=DONE_SECONDS_MAX)
        assert len(processes.lines()) == arrived
        assert copies_of(EMAIL, await dump(database_url)) == []
        for message_id in sent:
            shown = (await tenant.get(message_id)).body
            assert [recipient["email"] for recipient in shown["recipients"]] == [ERASED]
            assert "subject" not in shown
        assert (await tenant.get(later["id"])).body["recipients"][0]["status"] == "cancelled"
        events = (await tenant.call("GET", "/v1/events")).body["events"]
        assert {(event["data"].get("to"), event["data"]["erased"]) for event in events} == {(None, True)}
        for delivery in await log_of(tenant):
            assert EMAIL not in delivery["request_body"]
            again = await tenant.call("POST", f"/v1/webhook/deliveries/{delivery['id']}/replay")
            assert again.is_refusal(409, "conflict")
        assert await database_faults(database_url) == {}

        assert (await tenant.call("DELETE", f"/v1/suppressions/{EMAIL}?reason=they+came+back")).status == 200
        back = (await tenant.accepts(tenant.mail(to=EMAIL)))["id"]
        (message,) = await processes.wait_until_final(tenant, [back], DONE_SECONDS_MAX)
        assert message["status"] == "delivered"
