"""`/v1/erasures`: who may erase an address, what the answer says, and what remains when it is done."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from posthouse.rules.erasure import ERASED
from tests.acceptance.account_webhook import log_of, saved
from tests.support import faster, preloaded
from tests.support.accept_flow import Sender
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import open_delivery_flow
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.secrets_left import copies_of, dump
from tests.support.server_process import environment
from tests.support.service import Tenant
from tests.support.service_processes import LONG_LEASE, Senders, ServiceProcesses, prepare_processes

EMAIL: Final = "quince.lovelace@one.example.net"
COLLEAGUE: Final = "ada.colleague@one.example.net"
ONE: Final = "one.example.net"
SECRET: Final = "plum4711code"
MESSAGES: Final = 1_000
DONE_SECONDS_MAX: Final = 3 * HANG_SECONDS


async def erase(tenant: Tenant, email: str = EMAIL) -> dict[str, Any]:
    answer = await tenant.call("POST", "/v1/erasures", {"email": email})
    assert answer.status == 202, answer.raw
    erasure: dict[str, Any] = answer.body["erasure"]
    return erasure


@pytest.mark.rule("ERS-01", "ERS-05", "ERS-06")
async def test_an_erasure_is_begun_once_and_its_answers_do_not_name_the_address(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    first, second = await erase(tenant), await erase(tenant, EMAIL.upper())
    other = await erase(other_tenant)
    assert first == second
    assert other["id"] != first["id"]
    assert (first["status"], first["cancelled"], first["messages"], first["finished_at"]) == ("running", 0, 0, None)
    shown = await tenant.call("GET", f"/v1/erasures/{first['id']}")
    assert shown.body["erasure"] == first
    assert b"quince" not in shown.raw
    assert (await tenant.call("GET", f"/v1/erasures/{other['id']}")).is_refusal(404, "not_found")
    log = await tenant.call("GET", "/v1/audit-log")
    assert next((entry["action"], entry["target"]) for entry in log.body["entries"]) == ("erasure.begun", first["id"])
    assert b"quince" not in log.raw


@pytest.mark.rule("ERS-01")
@pytest.mark.parametrize("given", ["", "nobody", "a@b@c", None, 1, "x" * 300 + "@example.net", "Ada <a@example.net>"])
async def test_what_is_no_address_is_refused(regular: Tenant, given: object) -> None:
    answer = await regular.call("POST", "/v1/erasures", {"email": given})
    assert answer.is_refusal(400, "invalid_request", "email")


@pytest.mark.long
@pytest.mark.rule("ERS-02", "ERS-03", "ERS-04", "ERS-05", "ERS-07")
async def test_an_erased_address_is_in_no_table_log_or_stream_and_gets_no_mail(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faster.SHORT_PAUSES, "1")
    database_url = await asyncio.to_thread(new_database)
    async with prepare_processes(database_url, tmp_path, **LONG_LEASE) as processes:
        processes.destination(ONE)
        await processes.start_http()
        for part in ("dispatch", "delivery", "maintenance"):
            processes.start(part)
        tenant = await processes.service.account()
        await saved(tenant)
        sent = [(await tenant.accepts(tenant.mail(to=EMAIL, subject=f"For {EMAIL}")))["id"] for _ in range(5)]
        await processes.wait_until_final(tenant, sent, DONE_SECONDS_MAX)
        later = await tenant.accepts(tenant.mail(to=EMAIL, send_at=_later()))
        arrived = len(processes.lines())
        assert (await tenant.call("POST", "/v1/suppressions", {"email": EMAIL})).status == 201
        await _name_the_address(tenant)
        await tenant.service.operator.create_user(tenant.id, COLLEAGUE, SECRET, "viewer")
        erasure, of_colleague = await erase(tenant), await erase(tenant, COLLEAGUE)
        refused = (await tenant.accepts(tenant.mail(to=EMAIL)))["id"]
        (message,) = await processes.wait_until_final(tenant, [refused], DONE_SECONDS_MAX)
        assert message["recipients"][0]["status"] == "bounced"

        await until_done(processes, tenant, erasure)
        assert len(processes.lines()) == arrived
        await nothing_is_left(processes, EMAIL)
        await until_done(processes, tenant, of_colleague)
        log = (await tenant.call("GET", "/v1/audit-log?limit=100")).body["entries"]
        assert ("member.created", COLLEAGUE) in {(entry["action"], entry["target"]) for entry in log}
        for message_id in sent:
            shown = (await tenant.get(message_id)).body
            assert [recipient["email"] for recipient in shown["recipients"]] == [ERASED]
            assert "subject" not in shown
        assert (await tenant.get(later["id"])).body["recipients"][0]["status"] == "cancelled"
        events = (await tenant.call("GET", "/v1/events")).body["events"]
        assert {(event["data"].get("to"), event["data"]["erased"]) for event in events} == {(None, True)}
        for delivery in await log_of(tenant):
            assert EMAIL not in delivery["request_body"]
            again = await tenant.call("POST", f"/v1/webhook/deliveries/{delivery['id']}/replay")
            assert again.is_refusal(409, "conflict")
        assert await database_faults(database_url) == {}

        assert (await tenant.call("DELETE", f"/v1/suppressions/{EMAIL}?reason=they+came+back")).status == 200
        back = (await tenant.accepts(tenant.mail(to=EMAIL)))["id"]
        (message,) = await processes.wait_until_final(tenant, [back], DONE_SECONDS_MAX)
        assert message["status"] == "delivered"


@pytest.mark.nightly
@pytest.mark.rule("ERS-02", "ERS-03")
async def test_an_address_with_1000_messages_over_30_days_is_erased_while_mail_flows(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url = await asyncio.to_thread(new_database)
    async with prepare_processes(database_url, tmp_path, RETENTION__MESSAGES_DAYS="60", **LONG_LEASE) as processes:
        processes.destination(ONE)
        await processes.start_http()
        tenant = await processes.service.account(credits=100_000)
        await saved(tenant)
        await _send_before(database_url, tenant)
        secret_mail = {"to": EMAIL, "subject": f"Code {SECRET}", "text": SECRET, "headers": {"X-Code": SECRET}}
        forgotten = await tenant.accepts(tenant.mail(**secret_mail, content="forget"))
        waiting = await tenant.accepts(tenant.mail(**secret_mail, send_at=_later()))
        await _name_the_address(tenant)
        dumped = await dump(database_url)
        assert copies_of(EMAIL, dumped)
        assert copies_of(SECRET, dumped)
        for part in ("dispatch", "delivery", "notification", "maintenance"):
            processes.start(part)
        await processes.wait_until_final(tenant, [forgotten["id"]], DONE_SECONDS_MAX)
        arrived = processes.copies()[EMAIL]
        senders = Senders(processes, tenant, [ONE], behaviours=["taken"], pause_seconds=0.5)
        async with senders.sending(1):
            erasure = await erase(tenant)
            while_it_runs = await tenant.accepts(tenant.mail(to=[EMAIL, f"other@{ONE}"], subject=EMAIL))
            shown = await until_done(processes, tenant, erasure)
        assert senders.answers[202] > 10
        # The mail for later; what is sent while it runs is cancelled, or refused as it is claimed.
        assert (shown["messages"], shown["cancelled"] in (1, 2)) == (MESSAGES + 3, True)
        await processes.wait_until_all_final(DONE_SECONDS_MAX)
        await nothing_is_left(processes, EMAIL, SECRET)
        assert processes.copies()[EMAIL] == arrived
        assert (await tenant.get(waiting["id"])).body["recipients"][0]["status"] == "cancelled"
        assert len((await tenant.get(while_it_runs["id"])).body["recipients"]) == 2
        # Idempotency keys end after a day.
        faults = await database_faults(database_url)
        assert [name for name in faults if not name.startswith("a message has one key")] == []
        audited = await asyncio.to_thread(
            preloaded.run,
            "audit",
            "--json",
            environment=environment(database_url, **processes.settings),
            directory=processes.directory,
        )
        assert audited.returncode == 0, audited.stdout + audited.stderr

        refused = (await tenant.accepts(tenant.mail(to=EMAIL)))["id"]
        (message,) = await processes.wait_until_final(tenant, [refused], DONE_SECONDS_MAX)
        assert message["recipients"][0]["status"] == "bounced"
        assert processes.copies()[EMAIL] == arrived


async def _send_before(database_url: str, tenant: Tenant) -> None:
    """Messages to the address, delivered in the 30 days until now; every second one has another recipient."""
    sender = Sender(tenant.id, tenant.credential_id, tenant.domain)
    async with open_delivery_flow(database_url, at=datetime.now(UTC) - timedelta(days=30, minutes=5)) as flow:
        flow.serve(ONE)
        await flow.pass_days(0)
        for day in range(30):
            for number in range(day, MESSAGES, 30):
                to = [EMAIL, *([f"other{number}@{ONE}"] if number % 2 else [])]
                secret = {"subject": f"{EMAIL} {SECRET}", "text": f"{EMAIL} {SECRET}", "headers": {"X-Code": SECRET}}
                draft = sender.draft(to, **secret, tags=[EMAIL, "kept"], metadata={"who": EMAIL, "code": SECRET})
                await flow.steps.accept_flow.accept(sender, f"before-{number}", draft)
            await flow.run_due()
            await flow.pass_days(1)
        # A machine that stands still makes copies.
        assert sum(mail.recipient == EMAIL for mail in flow.receiver.accepted) >= MESSAGES


async def _name_the_address(tenant: Tenant) -> None:
    """In texts outside its own mail: the suppression of another, and answers of the webhook's program."""
    noted = {"email": f"other@{tenant.unique}.example.org", "note": f"asked for by {EMAIL}"}
    assert (await tenant.call("POST", "/v1/suppressions", noted)).status == 201
    await tenant.service.value(
        """UPDATE webhook_deliveries SET response_body = $2,
               failed_attempts = jsonb_build_array(jsonb_build_object('body', encode($2, 'base64'), 'http_status', 500))
           WHERE account_id = $1""",
        tenant.id,
        f"no {EMAIL}".encode(),
    )


async def until_done(processes: ServiceProcesses, tenant: Tenant, erasure: dict[str, Any]) -> dict[str, Any]:
    """The erasure, once it is done and the content of its mail is forgotten."""

    async def shown() -> dict[str, Any]:
        processes.check()
        found: dict[str, Any] = (await tenant.call("GET", f"/v1/erasures/{erasure['id']}")).body["erasure"]
        return found

    done = await eventually(shown, lambda found: found["status"] == "done", within=DONE_SECONDS_MAX)
    left = "SELECT count(*) FROM bodies_to_delete"
    await eventually(lambda: processes.service.value(left), lambda number: number == 0, within=DONE_SECONDS_MAX)
    return done


async def nothing_is_left(processes: ServiceProcesses, *secrets: str) -> None:
    """Neither in the database, nor in the logs of the processes, nor in the stream's data."""
    dumped = await dump(processes.database_url)
    assert [line[:300] for line in dumped.splitlines() if any(copies_of(secret, line) for secret in secrets)] == []
    assert processes.nats is not None
    for directory in (processes.directory, Path(processes.nats.data)):
        # The receiver's own log is outside of the service.
        files = [path for path in directory.rglob("*") if path.is_file() and path != processes.log]
        assert files
        assert [path for path in files if any(copies_of(secret, path.read_bytes()) for secret in secrets)] == []


def _later() -> str:
    return (datetime.now(UTC) + timedelta(days=10)).isoformat()
