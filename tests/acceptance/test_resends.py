"""Failed mail is sent again, as a client asks for it and sees it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from posthouse.rules import ids, limits
from posthouse.rules.credential import Scope
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant

UNKNOWN = ids.text(ids.MESSAGE, UUID(int=1))
SINCE = (datetime.now(UTC) - timedelta(days=1)).isoformat()


async def begin(tenant: Tenant, key: str | None = None, authorization: str | None = None, **body: Any) -> Answer:
    headers = {"Authorization": authorization or await tenant.jwt(), "Idempotency-Key": key or tenant.new_key()}
    given = {"since": SINCE, **body}
    return await tenant.service.request("POST", "/v1/resends", headers=headers, json=given)


@pytest.mark.rule("RSD-01", "RSD-02")
async def test_a_resend_is_begun_once_for_a_key_and_shown(service: Service) -> None:
    tenant = await service.account()
    first = await begin(tenant, "a key", tag="x", metadata={"a": "b"}, destination="Example.NET.", dry_run=True)
    assert first.status == 202, first.raw
    resend = first.body["resend"]
    assert (resend["status"], resend["dry_run"], resend["destination"]) == ("running", True, "example.net")
    assert (resend["tag"], resend["metadata"], resend["finished_at"]) == ("x", {"a": "b"}, None)
    again = await begin(tenant, "a key", tag="x", metadata={"a": "b"}, destination="Example.NET.", dry_run=True)
    assert again.body["resend"] == resend
    assert (await begin(tenant, "a key")).is_refusal(409, "idempotency_conflict")
    assert (await begin(tenant, "another")).is_refusal(409, "conflict", "running")
    shown = await tenant.call("GET", f"/v1/resends/{resend['id']}")
    assert shown.body["resend"] == resend


@pytest.mark.rule("RSD-05")
async def test_a_resend_is_stopped(service: Service) -> None:
    tenant = await service.account()
    resend = (await begin(tenant)).body["resend"]
    for _ in range(2):
        stopped = await tenant.call("POST", f"/v1/resends/{resend['id']}/stop")
        assert (stopped.status, stopped.body["resend"]["status"]) == (200, "stopped")
    assert (await begin(tenant)).status == 202
    entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    actions = [entry["action"] for entry in entries if entry["action"].startswith("resend.")]
    assert actions == ["resend.begun", "resend.stopped", "resend.begun"]


@pytest.mark.rule("RSD-01")
async def test_a_wrong_request_is_refused(tenant: Tenant) -> None:
    wrong: list[dict[str, Any]] = [
        *({"since": since} for since in ("yesterday", None, "2999-01-01T00:00:00Z")),
        {"until": "2020-01-01T00:00:00Z"}, {"tag": ""}, {"metadata": {"a b": "c"}}, {"destination": "no domain"},
        {"dry_run": "yes"}, {"unknown": 1}, {"since": None, "message_ids": []},
        {"since": None, "message_ids": ["em_1"]}, {"message_ids": [UNKNOWN]},
        {"since": None, "message_ids": [UNKNOWN], "tag": "x"},
        {"since": None, "message_ids": [UNKNOWN] * (limits.RESEND_MESSAGES_MAX + 1)},
    ]  # fmt: skip
    for body in wrong:
        assert (await begin(tenant, **body)).is_refusal(400, "invalid_request"), body
    answer = await tenant.call("POST", "/v1/resends", {"since": SINCE})
    assert answer.is_refusal(400, "invalid_request", "Idempotency-Key")


@pytest.mark.rule("RSD-06")
async def test_members_and_keys_for_messages_may_resend_and_no_one_sees_another_accounts(service: Service) -> None:
    tenant, other = await service.account(), await service.account()
    for authorization, status in (
        (await tenant.jwt("viewer"), 403),
        (await tenant.scoped_key(Scope.SEND, Scope.EVENTS), 401),
        (await tenant.scoped_key(Scope.MESSAGES), 401),
        (tenant.basic, 401),
    ):
        assert (await begin(tenant, authorization=authorization)).status == status
    key = await tenant.scoped_key(Scope.MESSAGES, Scope.SEND)
    resend = (await begin(tenant, authorization=key)).body["resend"]
    for given in (resend["id"], "rs_00000000000000000000000000", "nonsense"):
        for method, path in (("GET", f"/v1/resends/{given}"), ("POST", f"/v1/resends/{given}/stop")):
            assert (await other.call(method, path)).is_refusal(404, "not_found")
    viewer = {"Authorization": await tenant.jwt("viewer")}
    assert (await service.request("GET", f"/v1/resends/{resend['id']}", headers=viewer)).status == 200
    assert (await service.request("POST", f"/v1/resends/{resend['id']}/stop", headers=viewer)).status == 403


@pytest.mark.rule("RSD-07")
async def test_another_accounts_message_is_like_one_that_never_existed(service: Service) -> None:
    tenant, other = await service.account(), await service.account()
    theirs = (await other.accepts())["id"]
    answers = []
    for given in (theirs, UNKNOWN):
        begun = await begin(tenant, since=None, message_ids=[given], dry_run=True)
        assert begun.status == 202, begun.raw
        answers.append({name: begun.body["resend"][name] for name in ("status", "matched", "tag", "metadata")})
        stopped = await tenant.call("POST", f"/v1/resends/{begun.body['resend']['id']}/stop")
        assert stopped.body["resend"]["matched"] == 0
    assert answers[0] == answers[1]
