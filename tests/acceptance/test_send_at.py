"""Mail for later: `send_at`, what the answers say of it, and mail that is cancelled or moved."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant, uuid
from tests.support.tenant_worker import TenantWorker


def ahead(**parts: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(**parts)


def shown(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def schedule(tenant: Tenant, message_id: str) -> list[Any]:
    rows = await tenant.service.sql("SELECT next_at, send_at FROM schedule WHERE message_id = $1", uuid(message_id))
    return [tuple(row) for row in rows]


@pytest.mark.rule("LATER-01", "LATER-02")
async def test_mail_for_later_is_accepted_and_due_at_its_time(tenant: Tenant) -> None:
    at = ahead(days=30, minutes=-1)
    sent = await tenant.accepts(tenant.mail(send_at=at.isoformat()))
    assert (sent["status"], sent["send_at"], sent["credits_reserved"]) == ("queued", shown(at), 1)
    message = (await tenant.get(sent["id"])).body
    assert (message["status"], message["send_at"]) == ("queued", shown(at))
    assert await schedule(tenant, sent["id"]) == [(at, at)]


@pytest.mark.rule("LATER-02")
async def test_without_send_at_nothing_is_said_of_it(tenant: Tenant) -> None:
    sent = await tenant.accepts()
    assert "send_at" not in sent
    assert "send_at" not in (await tenant.get(sent["id"])).body


@pytest.mark.rule("LATER-01")
@pytest.mark.parametrize(
    "given",
    ["tomorrow", "2030-01-01", "2030-01-01T09:00:00", "2020-01-01T09:00:00Z", "2099-01-01T09:00:00Z", 1893488400, ""],
)
async def test_a_wrong_time_is_refused(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(send_at=given), 400, "invalid_request", "send_at")


@pytest.mark.rule("LATER-01")
async def test_a_time_that_has_just_passed_is_now(tenant: Tenant) -> None:
    at = ahead(minutes=-1)
    sent = await tenant.accepts(tenant.mail(send_at=at.isoformat()))
    assert sent["send_at"] == shown(at)


@pytest.mark.rule("LATER-02")
async def test_a_retry_is_answered_as_the_first_request(service: Service) -> None:
    tenant = await service.account()
    body, key = tenant.mail(send_at=ahead(hours=1).isoformat()), tenant.new_key()
    first = await tenant.accepts(body, key=key)
    again = await tenant.accepts(body, key=key)
    assert again | {"request_id": ""} == first | {"request_id": ""}


@pytest.mark.rule("LATER-01")
async def test_emails_of_a_batch_have_their_times(tenant: Tenant) -> None:
    at = ahead(hours=3)
    body = {"defaults": tenant.mail(send_at=at.isoformat()), "emails": [{}, {"send_at": None}, {"send_at": "never"}]}
    headers = {"Authorization": tenant.basic, "Idempotency-Key": tenant.new_key()}
    answer = await tenant.service.request("POST", "/emails/batch", headers=headers, json=body)
    later, now, wrong = answer.body["results"]
    assert (later["send_at"], "send_at" in now, wrong["code"]) == (shown(at), False, "invalid_request")
    assert await schedule(tenant, later["id"]) == [(at, at)]


@pytest.mark.rule("LATER-03")
async def test_the_warm_up_counts_it_on_the_day_of_its_time(service: Service) -> None:
    tenant = await service.account(warmup=(2, 3))
    await tenant.accepts(tenant.mail(to=["a@example.org", "b@example.org"]))
    tomorrow = ahead(days=1).replace(hour=12).isoformat()
    three = ["a@example.org", "b@example.org", "c@example.org"]
    await tenant.refuses(tenant.mail(), 429, "warmup_limited")
    await tenant.accepts(tenant.mail(to=three, send_at=tomorrow))
    await tenant.refuses(tenant.mail(send_at=tomorrow), 429, "warmup_limited", tomorrow[:10])
    await tenant.accepts(tenant.mail(to=three, send_at=ahead(days=2).isoformat()))


# Cancel.


async def later(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(send_at=ahead(hours=1).isoformat(), **fields)))["id"]
    return message_id


@pytest.mark.rule("LATER-04")
async def test_a_cancelled_message_is_answered_as_get_shows_it(service: Service) -> None:
    tenant = await service.account(credits=10)
    message_id = await later(tenant, to=["ada@example.org", "bob@example.org"])
    answer = await tenant.cancel(message_id)
    assert answer.status == 200
    assert (answer.body["status"], answer.body["billing_status"]) == ("failed", "released")
    assert {row["status"] for row in answer.body["recipients"]} == {"cancelled"}
    assert answer.body | {"request_id": ""} == (await tenant.get(message_id)).body | {"request_id": ""}
    assert await tenant.available() == 10
    assert await schedule(tenant, message_id) == []


@pytest.mark.rule("LATER-04")
async def test_a_second_cancellation_is_answered_as_the_first(tenant: Tenant) -> None:
    message_id = await later(tenant)
    first, second = [await tenant.cancel(message_id) for _ in range(2)]
    assert (first.status, second.status) == (200, 200)
    assert first.body | {"request_id": ""} == second.body | {"request_id": ""}


@pytest.mark.rule("LATER-04")
async def test_a_cancelled_message_is_found_and_explained(tenant: Tenant) -> None:
    message_id = await later(tenant, subject="Taken back")
    await tenant.cancel(message_id)
    found = await tenant.call("GET", "/v1/messages?status=failed&subject=Taken")
    assert message_id in [row["id"] for row in found.body["messages"]]
    shown_ = (await tenant.call("GET", f"/v1/messages/{message_id}")).body["message"]["recipients"][0]
    assert (shown_["status"], shown_["waiting"], shown_["failed_at"]) == ("cancelled", None, None)
    assert "sender cancelled" in shown_["explanation"]["headline"]


@pytest.mark.rule("LATER-05")
async def test_what_was_tried_is_409_and_stays_as_it_is(tenant: Tenant) -> None:
    message_id = await later(tenant)
    worker = TenantWorker(tenant)
    (claimed,) = await worker.claim(message_id)
    for _ in range(2):
        answer = await tenant.cancel(message_id)
        assert (answer.status, answer.body["code"]) == (409, "conflict")
        await worker.record(claimed, DeliveryResult.DELIVERED)
    assert (await tenant.get(message_id)).body["status"] == "delivered"


@pytest.mark.rule("LATER-06")
async def test_the_webhook_hears_nothing_of_a_cancellation(tenant: Tenant) -> None:
    message_id = await later(tenant)
    await tenant.cancel(message_id)
    assert await tenant.service.value("SELECT count(*) FROM events WHERE message_id = $1", uuid(message_id)) == 0


@pytest.mark.rule("LATER-07")
async def test_only_who_may_send_may_cancel(tenant: Tenant) -> None:
    message_id = await later(tenant)
    reads = (await tenant.call("POST", "/v1/keys", {"name": "reader", "scopes": ["read"]})).body["secret"]
    for authorization, status in (
        (await tenant.jwt("viewer"), 403),
        (f"Bearer {reads}", 403),
        ("Bearer ph_live_unknown", 401),
    ):
        assert (await tenant.cancel(message_id, authorization=authorization)).status == status
    assert (await tenant.cancel(message_id, authorization=await tenant.key())).status == 200
    for authorization in (await tenant.jwt("member"), tenant.basic):
        assert (await tenant.cancel(await later(tenant), authorization=authorization)).status == 200


@pytest.mark.rule("LATER-07")
async def test_another_accounts_message_is_404_and_live_mail_to_a_test_key(tenant: Tenant, service: Service) -> None:
    message_id = await later(tenant)
    other = await service.account()
    for answer in (
        await other.cancel(message_id),
        await tenant.cancel(message_id, authorization=await tenant.key("test")),
        await tenant.cancel("em_00000000000000000000000000"),
        await tenant.cancel("nonsense"),
    ):
        assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert len(await schedule(tenant, message_id)) == 1


# Another time.


async def move(tenant: Tenant, message_id: str, body: object, authorization: str | None = None) -> Answer:
    headers = {"Authorization": authorization or tenant.basic}
    return await tenant.service.request("PATCH", f"/emails/{message_id}", headers=headers, json=body)


@pytest.mark.rule("LATER-08")
async def test_a_message_is_moved_to_another_time(tenant: Tenant) -> None:
    message_id = await later(tenant)
    at = ahead(days=3)
    answer = await move(tenant, message_id, {"send_at": at.isoformat()})
    assert (answer.status, answer.body["send_at"], answer.body["status"]) == (200, shown(at), "queued")
    assert answer.body | {"request_id": ""} == (await tenant.get(message_id)).body | {"request_id": ""}
    assert await schedule(tenant, message_id) == [(at, at)]


@pytest.mark.rule("LATER-08")
@pytest.mark.parametrize("body", [{}, {"send_at": None}, {"send_at": "soon"}, {"send_at": "2099-01-01T09:00:00Z"}, []])
async def test_a_wrong_time_moves_nothing(tenant: Tenant, body: object) -> None:
    message_id = await later(tenant)
    before = await schedule(tenant, message_id)
    answer = await move(tenant, message_id, body)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert await schedule(tenant, message_id) == before


@pytest.mark.rule("LATER-08")
async def test_only_mail_for_later_that_was_not_tried_is_moved(tenant: Tenant) -> None:
    tried, plain = await later(tenant), (await tenant.accepts())["id"]
    await TenantWorker(tenant).claim(tried)
    for message_id in (tried, plain):
        answer = await move(tenant, message_id, {"send_at": ahead(days=1).isoformat()})
        assert (answer.status, answer.body["code"]) == (409, "conflict")


@pytest.mark.rule("LATER-07")
async def test_only_who_may_send_may_move(tenant: Tenant, service: Service) -> None:
    message_id = await later(tenant)
    body = {"send_at": ahead(days=1).isoformat()}
    other = await service.account()
    assert (await move(tenant, message_id, body, await tenant.jwt("viewer"))).status == 403
    assert (await move(other, message_id, body)).status == 404
    assert (await move(tenant, message_id, body, await tenant.key("test"))).status == 404
    assert (await move(tenant, message_id, body, await tenant.key())).status == 200
