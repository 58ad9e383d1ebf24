"""Trying a message now: what happens to each recipient, its limits, and its entry in the audit log."""

from typing import Any

import pytest

from posthouse.store.delivery_outcomes import DeliveryResult
from tests.acceptance.tenant_worker import TenantWorker
from tests.support.http_answer import Answer
from tests.support.service import Tenant


async def deferred(tenant: Tenant, *recipients: str) -> str:
    body = tenant.mail(to=list(recipients or ("ada@example.org",)))
    message_id: str = (await tenant.accepts(body))["id"]
    await TenantWorker(tenant).deliver(message_id, DeliveryResult.DEFERRED)
    return message_id


async def retry(tenant: Tenant, message_id: str, role: str = "member", **body: object) -> Answer:
    return await tenant.call("POST", f"/v1/messages/{message_id}/retry", body, role=role)


def results(answer: Answer) -> dict[str, str]:
    assert answer.status == 200, answer.raw
    return {recipient["email"]: recipient["result"] for recipient in answer.body["recipients"]}


async def waiting(tenant: Tenant, message_id: str) -> list[dict[str, Any]]:
    answer = await tenant.call("GET", f"/v1/messages/{message_id}")
    return [recipient["waiting"] for recipient in answer.body["message"]["recipients"]]


@pytest.mark.rule("MSR-01")
async def test_deferred_recipients_are_due_at_once(tenant: Tenant) -> None:
    message_id = await deferred(tenant, "ada@example.org", "bob@example.org")
    answer = await retry(tenant, message_id)
    assert results(answer) == {"ada@example.org": "now", "bob@example.org": "now"}
    assert set(answer.body["recipients"][0]) == {"id", "email", "result", "text"}
    assert [wait["reason"] for wait in await waiting(tenant, message_id)] == ["due", "due"]


@pytest.mark.rule("MSR-04")
async def test_a_retry_needs_a_member_and_is_in_the_audit_log(tenant: Tenant) -> None:
    message_id = await deferred(tenant)
    assert (await retry(tenant, message_id, role="viewer")).status == 403
    assert results(await retry(tenant, message_id)) == {"ada@example.org": "now"}
    entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    (entry,) = [entry for entry in entries if entry["action"] == "message.retried"]
    assert (entry["target"], entry["detail"]) == (message_id, {"recipients": 1, "retries": 1})
