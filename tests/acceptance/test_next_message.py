"""Waiting for the next message to an address: content and links, for its own account, while a test suite waits."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio

from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import Answer
from tests.support.service import Service, StartService, Tenant

PATH = "/v1/messages/next"
HTML = '<p>Hello</p><a href="https://app.example.com/confirm?t=1&amp;u=2"><b>Confirm</b> now</a>'


class Suite:
    """A test suite of an account: it sends and waits with one test key."""

    def __init__(self, tenant: Tenant, key: str) -> None:
        self.tenant = tenant
        self.key = key

    async def sends(self, to: str, **fields: object) -> str:
        body = self.tenant.mail(to=to, **fields)
        message_id: str = (await self.tenant.accepts(body, authorization=self.key))["id"]
        return message_id

    async def waits(self, recipient: str, key: str | None = None, **query: object) -> Answer:
        given = {"recipient": recipient, **query}
        text = "&".join(f"{name}={quote(str(value))}" for name, value in given.items())
        return await self.tenant.service.request("GET", f"{PATH}?{text}", headers={"Authorization": key or self.key})


async def suite_of(tenant: Tenant) -> Suite:
    return Suite(tenant, await tenant.key("test", may_read=True))


@pytest_asyncio.fixture(loop_scope="session")
async def suite(service: Service) -> Suite:
    return await suite_of(await service.account())


@pytest.mark.rule("NXT-01")
async def test_a_message_that_is_there_is_answered_at_once(suite: Suite) -> None:
    file = {"filename": "terms.txt", "content": "dGVybXM=", "content_type": "text/plain"}
    sent = await suite.sends("ada@example.org", html=HTML, text="See https://example.com/terms.", attachments=[file])
    answer = await suite.waits("ada@example.org")
    assert answer.status == 200
    message = answer.body["message"]
    assert (message["id"], message["source"], message["to"]) == (sent, "test", ["ada@example.org"])
    assert (message["subject"], message["text"]) == ("Hello", "See https://example.com/terms.\n")
    assert message["html"] == f"{HTML}\n"
    assert {"name": "Subject", "value": "Hello"} in message["headers"]
    assert [(item["filename"], item["size"]) for item in message["attachments"]] == [("terms.txt", 5)]


@pytest.mark.rule("NXT-02")
async def test_the_links_of_html_and_text_are_listed_once(suite: Suite) -> None:
    await suite.sends(
        "ada@example.org", html=HTML, text="https://app.example.com/confirm?t=1&u=2 or (https://example.com/help)."
    )
    links = (await suite.waits("ada@example.org")).body["message"]["links"]
    assert links == [
        {"url": "https://app.example.com/confirm?t=1&u=2", "label": "Confirm now"},
        {"url": "https://example.com/help", "label": ""},
    ]


@pytest.mark.rule("NXT-03")
async def test_a_request_waits_until_the_message_is_accepted(suite: Suite) -> None:
    waiting = asyncio.ensure_future(suite.waits("late@example.org"))
    over = await suite.waits("late@example.org", wait=1)
    assert over.is_refusal(404, "not_found", "late@example.org")
    assert not waiting.done()
    sent = await suite.sends("Late@Example.org")
    async with asyncio.timeout(HANG_SECONDS):
        answer = await waiting
    assert (answer.status, answer.body["message"]["id"]) == (200, sent)


@pytest.mark.rule("NXT-04")
async def test_after_an_id_or_a_time_the_oldest_comes_first(suite: Suite) -> None:
    sent = [await suite.sends("ada@example.org", subject=f"Number {number}") for number in range(3)]
    found = []
    after: dict[str, Any] = {}
    for _ in sent:
        found.append((await suite.waits("ada@example.org", **after)).body["message"]["id"])
        after = {"after": found[-1]}
    assert found == sent
    assert (await suite.waits("ada@example.org", wait=0, **after)).status == 404
    before = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (await suite.waits("ada@example.org", after=before)).body["message"]["id"] == sent[0]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert (await suite.waits("ada@example.org", after=later, wait=0)).status == 404


@pytest.mark.rule("NXT-05")
async def test_where_mail_leaves_only_a_test_key_waits_and_only_for_test_mail(suite: Suite) -> None:
    await suite.tenant.accepts(suite.tenant.mail(to="live@example.org"))
    assert (await suite.waits("live@example.org", wait=0)).status == 404
    sent = await suite.sends("live@example.org")
    assert (await suite.waits("live@example.org")).body["message"]["id"] == sent
    tenant = suite.tenant
    for authorization in (await tenant.key(may_read=True), tenant.basic, await tenant.jwt("owner")):
        assert (await suite.waits("live@example.org", authorization)).is_refusal(403, "forbidden", "ph_test_")
    for authorization in (await tenant.key("test"), "Bearer ph_test_unknown"):
        assert (await suite.waits("live@example.org", authorization)).is_refusal(401, "unauthorized")
    assert (await tenant.service.request("GET", f"{PATH}?recipient=live@example.org")).status == 401


@pytest.mark.rule("NXT-05")
async def test_under_capture_live_credentials_wait_for_all_mail(start_service: StartService) -> None:
    service = await start_service(DELIVERY__OUTBOUND="capture")
    suite = await suite_of(await service.account())
    live = await suite.tenant.key(may_read=True)
    await suite.sends("ada@example.org", subject="Test")
    await suite.tenant.accepts(suite.tenant.mail(to="ada@example.org", subject="Live"))
    for authorization in (live, suite.tenant.basic, await suite.tenant.jwt("viewer")):
        first = (await suite.waits("ada@example.org", authorization)).body["message"]
        second = (await suite.waits("ada@example.org", authorization, after=first["id"])).body["message"]
        assert [(first["subject"], first["source"]), (second["subject"], second["source"])] == [
            ("Test", "test"),
            ("Live", "api"),
        ]
    assert (await suite.waits("ada@example.org", after=first["id"], wait=0)).status == 404


@pytest.mark.rule("NXT-06")
async def test_another_accounts_mail_is_never_answered(suite: Suite, service: Service) -> None:
    other = await suite_of(await service.account())
    theirs = await other.sends("shared@example.org")
    assert (await suite.waits("shared@example.org", wait=0)).status == 404
    waiting = asyncio.ensure_future(suite.waits("shared@example.org", wait=4))
    await other.sends("shared@example.org")
    assert (await waiting).status == 404
    # Their id is a place in time, and nothing more.
    own = await suite.sends("shared@example.org")
    assert (await suite.waits("shared@example.org", after=theirs)).body["message"]["id"] == own


@pytest.mark.rule("NXT-07")
async def test_a_wrong_parameter_is_named(suite: Suite) -> None:
    wrong = {
        "": "recipient",
        "recipient=": "recipient",
        "recipient=ada": "recipient",
        "recipient=a+b@example.org": "%2B",
    }
    wrong |= {
        f"recipient=a@example.org&after={given}": "after" for given in ("yesterday", "em_1", "2026-11-15T09:30:00")
    }
    wrong |= {f"recipient=a@example.org&wait={given}": "wait" for given in ("26", "-1", "1.5", "")}
    for query, named in wrong.items():
        answer = await suite.tenant.service.request("GET", f"{PATH}?{query}", headers={"Authorization": suite.key})
        assert answer.is_refusal(400, "invalid_request", named), query


@pytest.mark.rule("NXT-08")
async def test_an_account_waits_with_a_share_of_the_places(suite: Suite, service: Service) -> None:
    headers = {"Authorization": suite.key}
    url = f"{service.url}{PATH}?recipient=nothing@example.org&wait=20"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def status() -> int:
            async with client.get(url, headers=headers) as answer:
                assert answer.status != 429 or answer.headers["Retry-After"] == "1"
                return answer.status

        requests = [asyncio.ensure_future(status()) for _ in range(200)]
        # Those without a place are answered at once; the others wait.
        async with asyncio.timeout(HANG_SECONDS):
            assert {await request for request in islice(asyncio.as_completed(requests), 40)} == {429}
        other = await suite_of(await service.account())
        sent = await other.sends("ada@example.org")
        assert (await other.waits("ada@example.org")).body["message"]["id"] == sent
        for request in requests:
            request.cancel()
    # A client that leaves gives its place back.
    async with asyncio.timeout(HANG_SECONDS):
        while (await suite.waits("nothing@example.org", wait=0)).status == 429:
            pass


@pytest.mark.rule("NXT-09")
async def test_waiting_ends_when_the_process_stops(start_service: StartService) -> None:
    service = await start_service()
    suite = await suite_of(await service.account())
    waiting = asyncio.ensure_future(suite.waits("never@example.org"))
    # A second request that is answered shows that the first has arrived.
    assert (await suite.waits("other@example.org", wait=1)).status == 404
    service.process.terminate()
    async with asyncio.timeout(HANG_SECONDS):
        answer = await waiting
    assert (answer.status, answer.body["code"]) == (503, "service_unavailable")
    await service.ended()
