"""Trying a message now: what happens to each recipient, and its entry in the audit log."""

import pytest

from posthouse.store.delivery_outcomes import DeliveryResult
from tests.acceptance.tenant_worker import TenantWorker
from tests.support.http_answer import Answer
from tests.support.service import Tenant


@pytest.mark.rule("MSR-01", "MSR-04")
async def test_deferred_recipients_are_due_at_once_which_is_in_the_audit_log(tenant: Tenant) -> None:
    body = tenant.mail(to=["ada@example.org", "bob@example.org"])
    message_id: str = (await tenant.accepts(body))["id"]
    await TenantWorker(tenant).deliver(message_id, DeliveryResult.DEFERRED)

    async def retry(role: str = "member", **body: object) -> Answer:
        return await tenant.call("POST", f"/v1/messages/{message_id}/retry", body, role=role)

    assert (await retry("viewer")).status == 403
    assert (await retry(recipient="eve@example.org")).is_refusal(400, "invalid_request")
    recipients = (await retry()).body["recipients"]
    assert [(found["email"], found["result"]) for found in recipients] == [
        ("ada@example.org", "now"), ("bob@example.org", "now"),
    ]  # fmt: skip
    assert set(recipients[0]) == {"id", "email", "result", "text"}
    shown = (await tenant.call("GET", f"/v1/messages/{message_id}")).body["message"]["recipients"]
    assert [recipient["waiting"]["reason"] for recipient in shown] == ["due", "due"]
    (entry,) = (await tenant.call("GET", "/v1/audit-log?action=message.retried")).body["entries"]
    assert (entry["target"], entry["detail"]) == (message_id, {"recipients": 2, "retries": 1})
