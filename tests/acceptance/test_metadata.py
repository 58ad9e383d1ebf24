"""Metadata: what is taken over HTTP and SMTP, where it is shown, and where it never is."""

from typing import Any

import pytest

from tests.acceptance.account_webhook import add_event, log_of, saved
from tests.support.http_answer import Answer
from tests.support.service import Tenant

PAIRS = {"order": "1001", "Shop.north": "Zürich 💌", "empty": ""}


async def sent(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(**fields)))["id"]
    return message_id


async def listed(tenant: Tenant, query: str) -> list[str]:
    answer = await tenant.call("GET", f"/v1/messages?{query}")
    assert answer.status == 200, answer.raw
    return [message["id"] for message in answer.body["messages"]]


@pytest.mark.rule("META-01")
async def test_metadata_of_another_kind_is_refused(regular: Tenant) -> None:
    for given in ({"a b": "x"}, {"a": 1}, {"a": None}, {"a": ["x"]}, ["a"], "a=b"):
        await regular.refuses(regular.mail(metadata=given), 400, "invalid_request", "metadata")


@pytest.mark.rule("META-02", "META-03")
async def test_metadata_is_shown_and_never_in_the_mail(tenant: Tenant) -> None:
    made = await sent(tenant, metadata=PAIRS)
    mime = await tenant.mime(made)
    assert b"1001" not in mime
    assert b"Shop.north" not in mime
    shown = [
        (await tenant.get(made)).body,
        (await tenant.call("GET", f"/v1/messages/{made}")).body["message"],
        (await tenant.call("GET", "/v1/messages")).body["messages"][0],
    ]
    assert [list(message["metadata"].items()) for message in shown] == [list(PAIRS.items())] * 3


@pytest.mark.rule("META-03")
async def test_without_metadata_nothing_is_shown(tenant: Tenant) -> None:
    absent: list[dict[str, object]] = [{}, {"metadata": None}, {"metadata": {}}]
    for given in absent:
        answer = await tenant.send(tenant.mail(**given))
        assert answer.is_accepted()
        assert "metadata" not in answer.body
        made = answer.body["id"]
        shown: list[Answer] = [
            await tenant.get(made),
            await tenant.call("GET", f"/v1/messages/{made}"),
            await tenant.call("GET", "/v1/messages?limit=1"),
        ]
        assert [b"metadata" in answer.raw for answer in shown] == [False] * 3
    assert await tenant.service.value("SELECT count(metadata) FROM messages WHERE account_id = $1", tenant.id) == 0


@pytest.mark.rule("META-02", "META-04")
async def test_the_feed_has_metadata_and_the_webhook_has_none(tenant: Tenant) -> None:
    await saved(tenant)
    with_pairs, without = await sent(tenant, metadata=PAIRS), await sent(tenant)
    for message_id in (with_pairs, without):
        await add_event(tenant, message_id)
    answer = await tenant.call("GET", "/v1/events")
    found: dict[str, dict[str, Any]] = {event["data"]["email_id"]: event["data"] for event in answer.body["events"]}
    assert found[with_pairs]["metadata"] == PAIRS
    assert "metadata" not in found[without]
    for delivery in await log_of(tenant):
        assert "metadata" not in delivery["request_body"]
        assert "1001" not in delivery["request_body"]


@pytest.mark.rule("META-05")
async def test_the_list_is_filtered_by_pairs(tenant: Tenant, other_tenant: Tenant) -> None:
    first = await sent(tenant, metadata={"order": "1001", "shop": "north"})
    second = await sent(tenant, metadata={"order": "1001", "shop": "south & west"})
    await sent(tenant, metadata={"shop": "1001"})
    await sent(other_tenant, metadata={"order": "1001"})
    assert await listed(tenant, "metadata.order=1001") == [second, first]
    assert await listed(tenant, "metadata.order=1001&metadata.shop=south%20%26%20west") == [second]
    assert await listed(tenant, "metadata.order=1001&metadata.order=1002") == []
    assert await listed(tenant, "metadata.Order=1001") == []
    assert await listed(tenant, "metadata.order=1001&status=failed") == []
    page = await tenant.call("GET", "/v1/messages?metadata.order=1001&limit=1")
    assert await listed(tenant, f"metadata.order=1001&cursor={page.body['next_cursor']}") == [first]
    many = "&".join(f"metadata.n{number}=x" for number in range(21))
    for query in ("metadata.=x", "metadata.a%20b=x", f"metadata.a={'x' * 501}", "metadata.a=%00", many):
        for path in ("/v1/messages", "/v1/messages/export"):
            assert (await tenant.call("GET", f"{path}?{query}")).is_refusal(400, "invalid_request", "metadata")


@pytest.mark.rule("META-07")
async def test_other_metadata_is_another_body(tenant: Tenant) -> None:
    made = await tenant.accepts(tenant.mail(metadata={"a": "1", "b": "2"}), key="meta")
    again = await tenant.send(tenant.mail(metadata={"b": "2", "a": "1"}), key="meta")
    assert again.body["id"] == made["id"]
    for other in ({"a": "1"}, {"a": "1", "b": "3"}):
        answer = await tenant.send(tenant.mail(metadata=other), key="meta")
        assert answer.is_refusal(409, "idempotency_conflict")
