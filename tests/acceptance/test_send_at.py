"""Mail for later: `send_at`, what the answers say of it, and mail that is cancelled or moved."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from posthouse.rules.credential import Scope
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.acceptance.tenant_worker import TenantWorker
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant, uuid


def ahead(**parts: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(**parts)


def shown(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def schedule(tenant: Tenant, message_id: str) -> list[Any]:
    rows = await tenant.service.sql(
        "SELECT next_at, send_at FROM delivery_schedule WHERE message_id = $1", uuid(message_id)
    )
    return [tuple(row) for row in rows]


@pytest.mark.rule("LATER-01", "LATER-02")
async def test_mail_for_later_is_accepted_and_due_at_its_time(tenant: Tenant) -> None:
    at = ahead(days=30, minutes=-1)
    sent = await tenant.accepts(tenant.mail(send_at=at.isoformat()))
    assert (sent["status"], sent["send_at"], sent["credits_reserved"]) == ("queued", shown(at), 1)
    message = (await tenant.get(sent["id"])).body
    assert (message["status"], message["send_at"]) == ("queued", shown(at))
    assert await schedule(tenant, sent["id"]) == [(at, at)]
    now = await tenant.accepts()
    assert "send_at" not in now.keys() | (await tenant.get(now["id"])).body.keys()


@pytest.mark.rule("LATER-01")
async def test_emails_of_a_batch_have_their_times(tenant: Tenant) -> None:
    at = ahead(hours=3)
    body = {"defaults": tenant.mail(send_at=at.isoformat()), "emails": [{}, {"send_at": None}, {"send_at": "never"}]}
    headers = {"Authorization": tenant.basic, "Idempotency-Key": tenant.new_key()}
    answer = await tenant.service.request("POST", "/emails/batch", headers=headers, json=body)
    later, now, wrong = answer.body["results"]
    assert (later["send_at"], "send_at" in now, wrong["code"]) == (shown(at), False, "invalid_request")
    assert await schedule(tenant, later["id"]) == [(at, at)]


# Cancel.


async def later(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(send_at=ahead(hours=1).isoformat(), **fields)))["id"]
    return message_id


@pytest.mark.rule("LATER-04")
async def test_a_cancelled_message_is_answered_as_get_shows_it(service: Service) -> None:
    tenant = await service.account(credits=10)
    message_id = await later(tenant, to=["ada@example.org", "bob@example.org"])
    for _ in range(2):
        answer = await tenant.cancel(message_id)
        assert answer.status == 200
        assert (answer.body["status"], answer.body["billing_status"]) == ("failed", "released")
        assert {row["status"] for row in answer.body["recipients"]} == {"cancelled"}
        assert answer.body | {"request_id": ""} == (await tenant.get(message_id)).body | {"request_id": ""}
    assert await tenant.available() == 10
    assert await schedule(tenant, message_id) == []


@pytest.mark.rule("LATER-04")
async def test_a_cancelled_message_is_found_and_explained(tenant: Tenant) -> None:
    message_id = await later(tenant, subject="Taken back")
    await tenant.cancel(message_id)
    found = await tenant.call("GET", "/v1/messages?status=failed&subject=Taken")
    assert message_id in [row["id"] for row in found.body["messages"]]
    shown_ = (await tenant.call("GET", f"/v1/messages/{message_id}")).body["message"]["recipients"][0]
    assert (shown_["status"], shown_["waiting"], shown_["failed_at"]) == ("cancelled", None, None)
    assert "sender cancelled" in shown_["explanation"]["headline"]


async def move(tenant: Tenant, message_id: str, body: object, authorization: str | None = None) -> Answer:
    headers = {"Authorization": authorization or tenant.basic}
    return await tenant.service.request("PATCH", f"/emails/{message_id}", headers=headers, json=body)


@pytest.mark.rule("LATER-07")
async def test_who_may_send_may_cancel_and_move_mail_of_their_own_account_and_domain(
    tenant: Tenant, service: Service
) -> None:
    message_id, other, domain = await later(tenant), await service.account(), f"other.{tenant.unique}.example.com"
    await service.operator.add_verified_domain(tenant.id, domain)
    bound = await tenant.scoped_key(Scope.SEND, Scope.READ, sender_domains=(domain,))
    before, body = await schedule(tenant, message_id), {"send_at": ahead(days=1).isoformat()}
    for authorization, status in (
        (await tenant.jwt("viewer"), 403),
        (await tenant.scoped_key(Scope.READ), 403),
        ("Bearer ph_live_unknown", 401),
        (other.basic, 404),
        (await tenant.key("test"), 404),
        (bound, 404),
    ):
        for answer in (
            await tenant.cancel(message_id, authorization=authorization),
            await move(tenant, message_id, body, authorization),
        ):
            assert answer.status == status, authorization
            if status == 404:
                unknown = await tenant.cancel("em_01jbz3qk8e0000000000000000", authorization=authorization)
                assert answer.body["error"] == unknown.body["error"]
    assert (await tenant.cancel("nonsense")).is_refusal(404, "not_found")
    assert await schedule(tenant, message_id) == before
    for authorization in (await tenant.key(), await tenant.jwt("member"), tenant.basic):
        mine = await later(tenant)
        assert (await move(tenant, mine, body, authorization)).status == 200
        assert (await tenant.cancel(mine, authorization=authorization)).status == 200
    mine = await later(tenant, from_=f"Shop <a@{domain}>")
    assert (await move(tenant, mine, body, bound)).status == 200
    assert (await tenant.cancel(mine, authorization=bound)).status == 200


# Many.


async def cancel_many(tenant: Tenant, authorization: str | None = None, **body: Any) -> Answer:
    headers = {"Authorization": authorization or await tenant.jwt()}
    return await tenant.service.request("POST", "/v1/messages/cancel", headers=headers, json=body)


@pytest.mark.rule("LATER-09")
async def test_all_messages_with_a_tag_or_with_metadata_are_cancelled(service: Service) -> None:
    tenant = await service.account(credits=20)
    tagged = [await later(tenant, tags=["reminder"]) for _ in range(3)]
    ordered = [await later(tenant, metadata={"order": "1001", "kind": kind}) for kind in "ab"]
    others = [await later(tenant), await later(tenant, tags=["other"], metadata={"order": "1002"})]
    wrong: list[dict[str, Any]] = [
        {}, {"metadata": {}}, {"tag": ""}, {"tag": 7}, {"metadata": {"a b": "c"}}, {"tag": "x", "cursor": "y"},
    ]  # fmt: skip
    for body in wrong:
        assert (await cancel_many(tenant, **body)).is_refusal(400, "invalid_request"), body
    for is_dry_run in (True, False):
        answer = await cancel_many(tenant, tag="reminder", dry_run=is_dry_run)
        assert answer.status == 200, answer.raw
        assert answer.body | {"request_id": ""} == {
            "cancelled": 3,
            "tried": 0,
            "next_cursor": None,
            "request_id": "",
        }
        assert await tenant.available() == (13 if is_dry_run else 16)
    assert (await cancel_many(tenant, metadata={"order": "1001", "kind": "b"})).body["cancelled"] == 1
    assert (await cancel_many(tenant, metadata={"order": "1001"}, tag="reminder")).body["cancelled"] == 0
    assert (await cancel_many(tenant, tag="reminder")).body["cancelled"] == 0
    for message_id in (*tagged, ordered[1]):
        assert (await tenant.get(message_id)).body["recipients"][0]["status"] == "cancelled"
        assert await schedule(tenant, message_id) == []
    for message_id in (*others, ordered[0]):
        assert (await tenant.get(message_id)).body["status"] == "queued"
    entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    noted = [entry["detail"] for entry in entries if entry["action"] == "messages.cancelled"]
    assert noted == [{"cancelled": 1, "metadata": "order, kind"}, {"cancelled": 3, "tag": "reminder"}]


@pytest.mark.rule("LATER-09")
async def test_of_many_what_was_tried_stays_and_is_counted(tenant: Tenant) -> None:
    tried, waiting = [await later(tenant, tags=["half"], to=["ada@example.org", "bob@example.org"]) for _ in range(2)]
    worker = TenantWorker(tenant)
    claimed, _ = await worker.claim(tried)
    await worker.record(claimed, DeliveryResult.DEFERRED)
    for is_dry_run in (True, False):
        answer = await cancel_many(tenant, tag="half", dry_run=is_dry_run)
        assert (answer.body["cancelled"], answer.body["tried"]) == (1, 1)
    assert (await tenant.get(tried)).body["status"] == "queued"
    assert (await tenant.get(waiting)).body["status"] == "failed"


@pytest.mark.rule("LATER-09")
async def test_more_than_a_request_cancels_is_continued_by_its_cursor(service: Service) -> None:
    tenant = await service.account(credits=1_000)
    emails = [tenant.mail(tags=["many"], send_at=ahead(hours=1).isoformat())] * 230
    headers = {"Authorization": tenant.basic, "Idempotency-Key": tenant.new_key()}
    sent = await tenant.service.request("POST", "/emails/batch", headers=headers, json={"emails": emails})
    assert sent.status == 200
    cursor, cancelled = None, 0
    for _ in range(10):
        answer = await cancel_many(tenant, tag="many", cursor=cursor)
        assert answer.status == 200, answer.raw
        assert answer.body["cancelled"] <= 100
        cancelled, cursor = cancelled + answer.body["cancelled"], answer.body["next_cursor"]
        if cursor is None:
            break
    assert (cursor, cancelled, await tenant.available()) == (None, 230, 1_000)


@pytest.mark.rule("LATER-09")
async def test_many_need_the_role_of_a_member_or_the_scope_of_messages(tenant: Tenant, service: Service) -> None:
    message_id = await later(tenant, tags=["mine"])
    other = await service.account()
    assert (await cancel_many(other, tag="mine")).body["cancelled"] == 0
    for authorization, status in (
        (await tenant.jwt("viewer"), 403),
        (await tenant.scoped_key(Scope.SEND, Scope.EVENTS), 401),
        (await tenant.key(), 401),
        (tenant.basic, 401),
    ):
        assert (await cancel_many(tenant, authorization, tag="mine")).status == status
    assert len(await schedule(tenant, message_id)) == 1
    key = await tenant.scoped_key(Scope.MESSAGES)
    assert (await cancel_many(tenant, key, tag="mine")).body["cancelled"] == 1


# Another time.


@pytest.mark.rule("LATER-08")
async def test_a_message_is_moved_to_another_time(tenant: Tenant) -> None:
    message_id = await later(tenant)
    before = await schedule(tenant, message_id)
    wrong: list[object] = [{}, {"send_at": None}, {"send_at": "soon"}, {"send_at": "2099-01-01T09:00:00Z"}, []]
    for body in wrong:
        assert (await move(tenant, message_id, body)).is_refusal(400, "invalid_request"), body
    assert await schedule(tenant, message_id) == before
    plain = (await tenant.accepts())["id"]
    assert (await move(tenant, plain, {"send_at": ahead(days=1).isoformat()})).is_refusal(409, "conflict")
    at = ahead(days=3)
    answer = await move(tenant, message_id, {"send_at": at.isoformat()})
    assert (answer.status, answer.body["send_at"], answer.body["status"]) == (200, shown(at), "queued")
    assert answer.body | {"request_id": ""} == (await tenant.get(message_id)).body | {"request_id": ""}
    assert await schedule(tenant, message_id) == [(at, at)]
