"""The list of messages over HTTP: its fields, every filter, complete pages, only its own mail."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from posthouse.rules import ids
from tests.support.http_answer import Answer
from tests.support.service import Tenant

FIELDS = {
    "id", "status", "state", "source", "from", "to", "recipient_count", "subject", "tags", "template", "credential_id",
    "billing_status", "created_at",
}  # fmt: skip


async def listed(tenant: Tenant, **filters: Any) -> list[dict[str, Any]]:
    answer = await page(tenant, **filters)
    assert answer.status == 200, answer.raw
    found: list[dict[str, Any]] = answer.body["messages"]
    return found


async def page(tenant: Tenant, **filters: Any) -> Answer:
    return await tenant.call("GET", f"/v1/messages?{urlencode(filters)}", role="viewer")


async def sent(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(**fields)))["id"]
    return message_id


@pytest.mark.rule("MSL-02")
async def test_each_message_is_listed_with_its_fields(tenant: Tenant) -> None:
    await tenant.template("welcome", subject="Welcome, {{name}}", text="Hello {{name}}")
    to = [f"r{number}@example.org" for number in range(4)]
    made = await sent(
        tenant, from_=f"Acme <news@{tenant.domain}>", to=to, subject="Hi", tags=["b", "a"], cc="carol@example.org"
    )
    (row,) = await listed(tenant)
    assert row.keys() == FIELDS
    shown = (await tenant.get(made)).body
    assert {name: row[name] for name in FIELDS & shown.keys()} == {name: shown[name] for name in FIELDS & shown.keys()}
    assert (row["from"], row["to"], row["recipient_count"]) == (
        f"Acme <news@{tenant.domain}>",
        to[:3],
        5,
    )
    assert (row["tags"], row["template"]) == (["b", "a"], None)
    assert ids.parse(ids.CREDENTIAL, row["credential_id"]) is not None

    await sent(tenant, template="welcome", variables={"name": "Ada"}, text=None, subject=None)
    assert [(message["template"], message["subject"]) for message in await listed(tenant, template="welcome")] == [
        ("welcome", "Welcome, Ada")
    ]


async def bounced(tenant: Tenant, *replies: tuple[int | None, str]) -> str:
    """A message of which each recipient got one of these replies."""
    made = await sent(tenant, to=[f"r{number}@example.org" for number in range(len(replies))])
    message_id = ids.parse(ids.MESSAGE, made)
    await tenant.service.sql("DELETE FROM delivery_schedule WHERE message_id = $1", message_id)
    await tenant.service.sql(
        "UPDATE messages SET status = 'failed', billing_status = 'released', open_count = 0, "
        "released_count = recipient_count WHERE id = $1",
        message_id,
    )
    for position, (code, response) in enumerate(replies):
        await tenant.service.sql(
            "UPDATE recipients SET status = 'bounced', bounced_at = now(), billing_status = 'released', "
            "last_smtp_code = $3, last_smtp_response = $4 WHERE message_id = $1 AND position = $2",
            message_id,
            position,
            code,
            response,
        )
    return made


@pytest.mark.rule("MSL-06", "MSD-01")
async def test_the_state_says_more_than_the_status(tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    suppressed = (None, "the address is suppressed: earlier mail to it bounced")
    unsubscribed = (None, "the address is unsubscribed from the list 'news'")
    unknown = (550, "5.1.1 the address is suppressed")
    made = {
        "queued": await sent(tenant),
        "scheduled": await sent(tenant, send_at=later),
        "cancelled": await sent(tenant, send_at=later),
        "suppressed": await bounced(tenant, suppressed, unsubscribed),
        "bounced": await bounced(tenant, unknown, unknown),
        "failed": await bounced(tenant, suppressed, unknown),
    }
    assert (await tenant.cancel(made["cancelled"])).status == 200
    assert {row["state"]: row["id"] for row in await listed(tenant)} == made
    for state, message_id in made.items():
        shown = await tenant.call("GET", f"/v1/messages/{message_id}", role="viewer")
        assert shown.body["message"]["state"] == state
        assert ("send_at" in shown.body["message"]) is (state in ("scheduled", "cancelled"))
        if state not in ("queued", "failed"):
            assert [row["id"] for row in await listed(tenant, state=state)] == [message_id]
    assert (await page(tenant, state="failed")).is_refusal(400, "invalid_request")


@pytest.mark.rule("MSL-04", "MSL-05", "MSL-08", "MSL-10")
async def test_each_filter_finds_its_message(tenant: Tenant) -> None:
    await tenant.template("welcome", subject="Welcome", text="Hello")
    other = await tenant.credential()
    made = {
        "recipient": await sent(tenant, to=["x@example.org"], bcc="Grace@Example.org"),
        "sender": await sent(tenant, from_=f"Billing <Billing@{tenant.domain}>"),
        "subject": await sent(tenant, subject="Re: Your ORDER #4711 (urgent)"),
        "tag": await sent(tenant, tags=["Spring sale", "x"]),
        "template": await sent(tenant, template="welcome", subject=None, text=None),
        "source": (await tenant.accepts(authorization=await tenant.key("test")))["id"],
        "credential_id": (await tenant.accepts(authorization=await tenant.key(credential_id=other.id)))["id"],
    }
    asked = {
        "recipient": ["grace@example.org", "GRACE@example.org", "Grace <grace@example.org>"],
        "sender": [f"billing@{tenant.domain}", f"BILLING@{tenant.domain}"],
        "subject": ["4711", "order 4711", "urgent Order"],
        "tag": ["Spring sale"],
        "template": ["welcome"],
        "source": ["test"],
        "credential_id": [ids.text(ids.CREDENTIAL, other.id)],
    }

    async def found(**filters: str) -> list[str]:
        return [message["id"] for message in await listed(tenant, **filters)]

    for name, values in asked.items():
        for value in values:
            assert await found(**{name: value}) == [made[name]], (name, value)
    assert await found(tag="Spring sale", template="welcome") == []
    assert await found(status="delivered") == []
    at = ids.time_of(ids.parse(ids.MESSAGE, made["tag"])).isoformat()  # type: ignore[arg-type]
    assert made["tag"] in await found(after=at, status="queued")
    assert made["tag"] not in await found(before=at)
    cursor = (await page(tenant, limit=1, status="queued")).body["next_cursor"]
    assert (await page(tenant, cursor=cursor, status="failed")).is_refusal(400, "invalid_request", "`cursor`")
    assert (await page(tenant, subject="!")).is_refusal(400, "invalid_request", "`subject`")


@pytest.mark.rule("MSL-11")
async def test_a_request_finds_the_message_that_it_sent(tenant: Tenant, other_tenant: Tenant) -> None:
    others = [await tenant.accepts() for _ in range(3)]
    for accepted in others:
        request_id = accepted["request_id"]
        page = (await tenant.call("GET", f"/v1/messages?request_id={request_id}")).body
        assert ([message["id"] for message in page["messages"]], page["next_cursor"]) == ([accepted["id"]], None)
        both = await tenant.call("GET", f"/v1/messages?request_id={request_id}&status=queued&recipient=ada@example.org")
        assert [message["id"] for message in both.body["messages"]] == [accepted["id"]]
        for more in ("&status=failed", "&before=2020-01-01T00:00:00Z"):
            none = await tenant.call("GET", f"/v1/messages?request_id={request_id}{more}")
            assert (none.body["messages"], none.body["next_cursor"]) == ([], None)
        assert (await other_tenant.call("GET", f"/v1/messages?request_id={request_id}")).body["messages"] == []
    for unknown in ("rq_" + "0" * 26, "rq_" + "7" + "z" * 25):
        assert (await tenant.call("GET", f"/v1/messages?request_id={unknown}")).body["messages"] == []
    wrong = await tenant.call("GET", f"/v1/messages?request_id={others[0]['id']}")
    assert (wrong.status, "request_id" in wrong.body["error"]) == (400, True)
