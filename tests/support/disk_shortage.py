"""A disk shortage from beginning to end, for customers, other mail servers and queued mail."""

import asyncio
import smtplib
from collections.abc import Awaitable, Callable
from typing import Final

from posthouse.rules import ids
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.inbound_reports import bounce
from tests.support.service import Tenant
from tests.support.service_processes import RETURN_PATH_DOMAIN, ServiceProcesses
from tests.support.smtp_listeners import HOST, SmtpListeners, queued_id, raw_mail, submit

DESTINATION: Final = "one.example.net"
ADA: Final = f"ada@{DESTINATION}"
NO_CAPACITY: Final = "452 4.3.1 The service's storage is nearly full: try again later."

Act = Callable[[], Awaitable[object]]


async def check_disk_shortage(
    processes: ServiceProcesses, listeners: SmtpListeners, use_up: Act, give_back: Act
) -> None:
    """`use_up` fills the disk, `give_back` undoes it. Delivery starts only during the shortage."""
    processes.destination(DESTINATION)
    part = await processes.start_http("submission", "inbound")
    await listeners.open(part, listeners.port, listeners.tls_port, listeners.inbound_port)
    tenant = await processes.service.account()
    await tenant.template("welcome", subject="Welcome", text="Good morning.")
    key = tenant.new_key()
    sent = await tenant.accepts(tenant.mail(to=[ADA]), key=key)

    async def send() -> Answer:
        return await tenant.send(tenant.mail(to=[ADA]))

    async def report() -> str:
        """The reply to another server that returns a message."""
        return await asyncio.to_thread(returned_bounce, listeners, processes.receiver.accepted[0].sender)

    async with listeners.session(tenant) as line:
        await use_up()
        await eventually(send, lambda answer: answer.status == 503)
        await _mail_is_refused_for_nothing(tenant)
        assert await submit(line, raw_mail(tenant, "Meanwhile"), [ADA], sender="news@example.com") == NO_CAPACITY
        replay = await tenant.send(tenant.mail(to=[ADA]), key=key)
        assert (replay.status, replay.body["id"]) == (202, sent["id"]), replay.raw
        assert replay.headers["Idempotent-Replayed"] == "true"

        processes.start("dispatch", "delivery")
        (message,) = await processes.wait_until_final(tenant, [sent["id"]])
        assert message["status"] == "delivered"
        assert await report() == NO_CAPACITY
        assert await asyncio.to_thread(returned_bounce, listeners, f"postmaster@{RETURN_PATH_DOMAIN}") == NO_CAPACITY
        assert (await send()).status == 503, "the shortage ended too early to show anything"

        await give_back()
        await eventually(send, lambda answer: answer.status == 202)
        reply = await eventually(
            lambda: submit(line, raw_mail(tenant, "Afterwards"), [ADA], sender="news@example.com"),
            lambda reply: reply.startswith("250 "),
        )
        assert queued_id(reply)
    assert await eventually(report, lambda reply: reply.startswith("250 "))
    assert await tenant.service.value("SELECT reason FROM suppressions WHERE account_id = $1", tenant.id) == "bounce"
    await processes.wait_until_all_final()
    assert await database_faults(processes.database_url) == {}
    log = part.log.read_text()
    assert 0 < log.index("storage_is_low") < log.index("storage_has_space"), "the log doesn't report the shortage"


async def _mail_is_refused_for_nothing(tenant: Tenant) -> None:
    refused = await tenant.refuses(tenant.mail(to=[ADA]), 503, "service_unavailable", "storage", "try again later")
    assert refused.headers["Retry-After"] == "30"
    in_test_mode = await tenant.send(authorization=await tenant.key("test"))
    assert in_test_mode.is_refusal(503, "service_unavailable")
    templates = await tenant.call("POST", "/v1/templates", {"alias": "other", "subject": "Other", "text": "No."})
    assert templates.is_refusal(503, "service_unavailable")
    headers = {"Authorization": await tenant.jwt(), "Content-Type": "text/csv"}
    imported = await tenant.service.request("POST", "/v1/suppressions/import", headers=headers, data=b"a@example.org\n")
    assert imported.is_refusal(503, "service_unavailable")
    assert (await tenant.call("POST", "/v1/keys", {"name": "x"})).is_refusal(503, "service_unavailable")
    rotated = await tenant.call("POST", f"/v1/credentials/{ids.text(ids.CREDENTIAL, tenant.credential_id)}/rotate", {})
    assert rotated.status == 200, rotated.raw
    assert (await tenant.call("GET", "/v1/templates/welcome")).status == 200
    assert (await tenant.call("DELETE", "/v1/templates/welcome")).status == 200


def returned_bounce(listeners: SmtpListeners, to: str) -> str:
    with smtplib.SMTP(HOST, listeners.inbound_port, timeout=HANG_SECONDS) as client:
        client.ehlo("mx.example.org")
        client.mail("")
        assert client.rcpt(to)[0] == 250
        code, text = client.data(bounce(ADA, to=to))
        return f"{code} {text.decode()}"
