"""The list of messages over HTTP: its fields, every filter, complete pages, only its own mail."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from posthouse.flows.operate.search_indexer import SETTLED_AFTER, SearchIndexer
from posthouse.rules import ids
from posthouse.store.postgres import Database
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.eventually import eventually
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant

FIELDS = {
    "id", "status", "source", "from", "to", "recipient_count", "subject", "tags", "template", "credential_id",
    "billing_status", "created_at",
}  # fmt: skip


class Reader:
    """Reads a tenant's list, and writes the search index on request."""

    def __init__(self, tenant: Tenant, database: Database) -> None:
        self.tenant = tenant
        self.database = database

    async def page(self, *, role: str = "viewer", **filters: Any) -> Answer:
        return await self.tenant.call("GET", f"/v1/messages?{urlencode(filters)}", role=role)

    async def all(self, **filters: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            answer = await self.page(**filters)
            assert answer.status == 200, answer.raw
            found += answer.body["messages"]
            if answer.body["next_cursor"] is None:
                return found
            filters["cursor"] = answer.body["next_cursor"]

    async def ids(self, **filters: Any) -> list[str]:
        return [message["id"] for message in await self.all(**filters)]

    async def index(self) -> None:
        """As maintenance will do within a minute; messages accepted later are not indexed."""

        async def is_indexed() -> bool:
            clock = SettableClock(datetime.now(UTC) + SETTLED_AFTER)
            await SearchIndexer(context(self.database, clock)).run()
            is_all: bool = await self.tenant.service.value(
                "SELECT count(DISTINCT message_id) = (SELECT count(*) FROM messages WHERE account_id = $1) "
                "FROM search_index WHERE account_id = $1",
                self.tenant.id,
            )
            return is_all

        # Not while another transaction is open.
        await eventually(is_indexed)


@pytest_asyncio.fixture(loop_scope="session")
async def reader(tenant: Tenant, service: Service) -> AsyncIterator[Reader]:
    async with open_database(service.database_url, connections_max=2, timeout_factor=PATIENCE) as database:
        yield Reader(tenant, database)


async def sent(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(**fields)))["id"]
    return message_id


@pytest.mark.rule("MSL-02")
async def test_each_message_is_listed_with_its_fields(reader: Reader) -> None:
    tenant = reader.tenant
    await tenant.template("welcome", subject="Welcome, {{name}}", text="Hello {{name}}")
    to = [f"r{number}@example.org" for number in range(4)]
    made = await sent(
        tenant, from_=f"Acme <news@{tenant.domain}>", to=to, subject="Hi", tags=["b", "a"], cc="carol@example.org"
    )
    (listed,) = await reader.all()
    assert listed.keys() == FIELDS
    shown = (await tenant.get(made)).body
    assert {name: listed[name] for name in FIELDS & shown.keys()} == {
        name: shown[name] for name in FIELDS & shown.keys()
    }
    assert (listed["from"], listed["to"], listed["recipient_count"]) == (f"Acme <news@{tenant.domain}>", to[:3], 5)
    assert (listed["tags"], listed["template"]) == (["b", "a"], None)
    assert ids.parse(ids.CREDENTIAL, listed["credential_id"]) is not None

    await sent(tenant, template="welcome", variables={"name": "Ada"}, text=None, subject=None)
    assert [(message["template"], message["subject"]) for message in await reader.all(template="welcome")] == [
        ("welcome", "Welcome, Ada")
    ]


@pytest.mark.rule("MSL-04", "MSL-05", "MSL-08")
async def test_each_filter_finds_messages_at_once_and_later(reader: Reader) -> None:
    tenant = reader.tenant
    await tenant.template("welcome", subject="Welcome", text="Hello")
    plain = await sent(tenant, subject="Nothing of note")
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
    for is_indexed in (False, True):
        if is_indexed:
            await reader.index()
        for name, values in asked.items():
            for value in values:
                assert await reader.ids(**{name: value}) == [made[name]], (name, value)
        assert await reader.ids(tag="Spring sale", subject="hello") == [made["tag"]]
        assert await reader.ids(tag="Spring sale", template="welcome") == []
        assert await reader.ids(subject="order 4712") == []
        assert await reader.ids(tag="spring sale") == []
        assert await reader.ids(subject="note nothing") == [plain]


@pytest.mark.rule("MSL-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"), ("limit", "101"), ("limit", "x"), ("status", "sent"), ("source", "fax"), ("recipient", "ada"),
        ("sender", ""), ("subject", "!"), ("subject", "one two three four five six"), ("tag", ""), ("tag", "x" * 129),
        ("template", ""), ("credential_id", "em_1"), ("after", "yesterday"), ("before", "2026-11-15T09:30:00"),
        ("cursor", "x"), ("cursor", "A" * 28), ("cursor", "\0"),
    ],
)  # fmt: skip
async def test_invalid_filters_are_refused_by_name(name: str, value: str, regular: Tenant) -> None:
    answer = await regular.call("GET", f"/v1/messages?{urlencode({name: value})}", role="viewer")
    assert answer.is_refusal(400, "invalid_request", f"`{name}`"), answer.raw


@pytest.mark.rule("MSL-10")
async def test_a_cursor_belongs_to_its_filters(reader: Reader) -> None:
    for _ in range(2):
        await sent(reader.tenant, tags=["t"])
    cursor = (await reader.page(limit=1, tag="t")).body["next_cursor"]
    for filters in ({}, {"tag": "u"}, {"tag": "t", "status": "queued"}):
        assert (await reader.page(cursor=cursor, **filters)).is_refusal(400, "invalid_request", "`cursor`")
    assert (await reader.page(limit=1, cursor=cursor, tag="t")).status == 200


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
