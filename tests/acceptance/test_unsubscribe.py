"""One-click unsubscribe: the link in a delivered message, its effect over HTTP, and its scope."""

import asyncio
import email
import email.policy
import re
from collections.abc import AsyncIterator, Callable
from email.message import EmailMessage
from typing import Any, Final

import aiohttp
import dkim
import pytest
import pytest_asyncio

from posthouse.rules.ids import AccountId
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, run_processes
from tests.support.smtp_conversation import Delivered

PUBLIC_URL: Final = "https://mail.posthouse.example"
FEEDBACK_ADDRESS: Final = "fbl@bounces.posthouse.example"
TAGS: Final = ["list:news", "one-click-unsubscribe"]
HEADER: Final = "X-Service-Unsubscribe"
PAIR: Final = {"List-Unsubscribe": "One-Click"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    database_url = await asyncio.to_thread(new_database)
    settings: dict[str, Any] = {"HTTP__PUBLIC_URL": f"{PUBLIC_URL}/", "INBOUND__FEEDBACK_ADDRESS": FEEDBACK_ADDRESS}
    async with run_processes(
        database_url, tmp_path_factory.mktemp("lists"), stream="memory", **settings, **LONG_LEASE
    ) as processes:
        processes.destination("one.example.net")
        yield processes


@pytest_asyncio.fixture(loop_scope="session")
async def sender(processes: ServiceProcesses) -> Tenant:
    return await processes.service.account()


async def final(processes: ServiceProcesses, sender: Tenant, *to: str, **fields: object) -> dict[str, Any]:
    sent = await sender.accepts(sender.mail(to=list(to), **fields))
    (message,) = await processes.wait_until_final(sender, [sent["id"]])
    return message


def copies(processes: ServiceProcesses, address: str) -> list[Delivered]:
    return [copy for copy in processes.receiver.accepted if copy.recipient == address]


def parsed(copy: Delivered) -> EmailMessage:
    message = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    return message


def link_of(copy: Delivered) -> str:
    """The path of its only link, which is at the installation's public address."""
    message = parsed(copy)
    (field,) = message.get_all("List-Unsubscribe") or []
    assert message.get_all("List-Unsubscribe-Post") == ["List-Unsubscribe=One-Click"]
    found = re.fullmatch(rf"<{PUBLIC_URL}(/unsubscribe/[A-Za-z0-9_-]+)>", field)
    assert found, field
    return found[1]


async def ask(service: Service, method: str, path: str, **how: Any) -> Answer:
    """Like a mail client: without a credential, and with a response that is not JSON."""
    async with service.client.request(method, service.url + path, allow_redirects=False, **how) as response:
        answer = Answer(response.status, response.headers.copy(), await response.read())
    assert answer.headers["X-Request-ID"]
    return answer


async def unsubscribed(processes: ServiceProcesses, sender: Tenant) -> list[tuple[str, str]]:
    rows = await processes.service.sql(
        "SELECT mailing_list, email FROM unsubscriptions WHERE account_id = $1 ORDER BY 1, 2", sender.id
    )
    return [tuple(row) for row in rows]


@pytest.mark.rule("UNSUB-01", "UNSUB-04")
async def test_each_recipient_gets_its_own_link_and_the_signature_covers_it(
    processes: ServiceProcesses, sender: Tenant
) -> None:
    to = ["a1@one.example.net", "a2@one.example.net"]
    asking = {HEADER.lower(): "one-click", "X-Note": "kept"}
    sent = await sender.accepts(sender.mail(to=to, headers=asking, tags="list:news"))
    assert sent["headers"] == asking
    await processes.wait_until_final(sender, [sent["id"]])
    found = [copy for address in to for copy in copies(processes, address)]
    assert len(found) == len({link_of(copy) for copy in found}) == 2
    views = await processes.service.operator.domains.all(AccountId(sender.id))
    zone = {f"{record.name}.".encode(): record.value.encode() for view in views for record in view.records.all}

    def published(name: bytes, timeout: int = 5) -> bytes | None:
        return zone.get(name)

    for copy in found:
        message = parsed(copy)
        assert (message["X-Note"], message[HEADER]) == ("kept", None)
        assert message["CFBL-Address"] == f"{FEEDBACK_ADDRESS}; report=arf"
        for number, signature in enumerate(message.get_all("DKIM-Signature") or []):
            signed = re.sub(r"\s", "", str(signature)).lower().partition(";h=")[2].partition(";")[0].split(":")
            assert {"list-unsubscribe", "list-unsubscribe-post", "cfbl-address", "cfbl-feedback-id"} <= set(signed)
            assert dkim.DKIM(copy.message).verify(idx=number, dnsfunc=published)


@pytest.mark.rule("UNSUB-06", "UNSUB-07")
async def test_a_page_asks_first_and_every_form_is_accepted_twice(processes: ServiceProcesses, sender: Tenant) -> None:
    await final(processes, sender, "c1@one.example.net", tags=TAGS)
    link = link_of(copies(processes, "c1@one.example.net")[0])
    page = await ask(processes.service, "GET", link)
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert (page.headers["X-Robots-Tag"], page.headers["Cache-Control"]) == ("noindex, nofollow", "no-store")
    assert b'<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">' in page.raw
    assert b"<script" not in page.raw
    assert (await ask(processes.service, "HEAD", link)).status == 200
    assert await unsubscribed(processes, sender) == []
    for form in (PAIR, {**PAIR, "utm": "x"}, aiohttp.FormData(PAIR, default_to_multipart=True)):
        answer = await ask(processes.service, "POST", link, data=form)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert await unsubscribed(processes, sender) == [("news", "c1@one.example.net")]
    assert (await final(processes, sender, "C1@one.example.net", tags=TAGS))["status"] == "failed"


@pytest.mark.rule("UNSUB-08")
async def test_a_wrong_body_or_link_unsubscribes_nothing(processes: ServiceProcesses, sender: Tenant) -> None:
    await final(processes, sender, "d1@one.example.net", tags=TAGS)
    link = link_of(copies(processes, "d1@one.example.net")[0])
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    request = processes.service.request
    for headers, body in (
        (form, b""),
        (form, b"List-Unsubscribe=Two-Clicks"),
        (form, b"list-unsubscribe=One-Click"),
        (form, b"&".join([b"a=b"] * 1_000)),
        ({}, b"List-Unsubscribe=One-Click"),
        ({"Content-Type": "application/json"}, b'{"List-Unsubscribe": "One-Click"}'),
        ({"Content-Type": "text/plain"}, b"List-Unsubscribe=One-Click"),
        ({"Content-Type": "multipart/form-data"}, b"List-Unsubscribe=One-Click"),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b\r\n\r\nOne-Click\r\n--b--\r\n"),
    ):
        refused = await request("POST", link, headers=headers, data=body)
        assert refused.is_refusal(400, "invalid_request", "List-Unsubscribe=One-Click"), body
    large = await request("POST", link, headers=form, data=b"List-Unsubscribe=One-Click&a=" + b"x" * 5_000)
    assert large.is_refusal(413, "payload_too_large")
    altered = link[:-5] + ("A" if link[-5] != "A" else "B") + link[-4:]
    good = b"List-Unsubscribe=One-Click"
    for wrong in (altered, link[:-1], link + "A", link.swapcase(), "/unsubscribe/x", "/unsubscribe/" + "x" * 5_000):
        assert (await request("POST", wrong, headers=form, data=good)).is_refusal(404, "not_found")
        assert (await request("GET", wrong)).is_refusal(404, "not_found")
    for wrong in (altered, link[:-1], "/unsubscribe/x"):
        page = await ask(processes.service, "GET", wrong, headers={"Accept": "text/html,*/*;q=0.8"})
        assert (page.status, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8"), wrong
        assert b"This link doesn" in page.raw
        assert b"<form" not in page.raw
    assert await unsubscribed(processes, sender) == []
