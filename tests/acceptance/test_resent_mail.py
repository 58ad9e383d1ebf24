"""Mail that failed at a dead destination is sent again by a process that is killed three times: each arrives once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from posthouse.rules import ids
from tests.support import faster
from tests.support.eventually import eventually
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes

pytestmark = pytest.mark.long

DEAD: Final = "dead.example.net"
# The receiver takes nothing at this address.
OUT_OF_ORDER: Final = "127.0.0.3"
SINCE: Final = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
BATCH: Final = 25
KILLS: Final = 3


async def send(tenant: Tenant, addresses: list[str]) -> None:
    for start in range(0, len(addresses), BATCH):
        sent = addresses[start : start + BATCH]
        await asyncio.gather(*[tenant.accepts(tenant.mail(to=address)) for address in sent])


async def begin(tenant: Tenant, key: str, *, dry_run: bool) -> dict[str, Any]:
    headers = {"Authorization": await tenant.jwt(), "Idempotency-Key": key}
    body = {"since": SINCE, "destination": DEAD, "dry_run": dry_run}
    answer = await tenant.service.request("POST", "/v1/resends", headers=headers, json=body)
    assert answer.status == 202, answer.raw
    resend: dict[str, Any] = answer.body["resend"]
    return resend


async def shown(tenant: Tenant, resend: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.call("GET", f"/v1/resends/{resend['id']}")).body["resend"]
    return found


async def check(url: str, directory: Path, messages: int) -> None:
    # A single attempt, which the destination puts off: it has failed at once.
    async with prepare_processes(
        url, directory, stream="memory", behaviours={OUT_OF_ORDER: "451-rcpt"}, DELIVERY__RETRY_MINUTES="[]"
    ) as processes:
        await processes.start_http()
        worker = processes.start("dispatch", "delivery")
        processes.destination(DEAD, OUT_OF_ORDER)
        tenant, other = await processes.service.account(credits=3 * messages), await processes.service.account()
        addresses = [f"r{number}@{DEAD}" for number in range(messages)]
        await send(tenant, addresses)
        await send(other, [f"other@{DEAD}"])
        await processes.wait_until_all_final()
        maintenance = processes.start("maintenance")
        counted = await begin(tenant, "count", dry_run=True)
        counted = await finished(tenant, counted)
        assert (counted["matched"], counted["resent"]) == (messages, 0)

        # Another worker does not remember where the destination was.
        worker.kill()
        processes.destination(DEAD)
        processes.start("dispatch", "delivery")
        first = await begin(tenant, "again", dry_run=False)
        assert (await begin(tenant, "again", dry_run=False))["id"] == first["id"]
        for number in range(1, KILLS + 1):

            async def is_under_way(number: int = number) -> bool:
                return int((await shown(tenant, first))["resent"]) >= number * messages // (KILLS + 2)

            await eventually(is_under_way, every=0.1, or_say=maintenance.said)
            maintenance.kill()
            maintenance = processes.start("maintenance")
        done = await finished(tenant, first)
        assert (done["matched"], done["resent"], done["refused"]) == (messages, messages, 0)
        assert (await begin(tenant, "again", dry_run=False))["id"] == first["id"]
        await processes.wait_until_all_final()
        await check_each_once(processes, tenant, other, addresses)


async def finished(tenant: Tenant, resend: dict[str, Any]) -> dict[str, Any]:
    return await eventually(lambda: shown(tenant, resend), lambda found: found["status"] == "done", every=0.5)


async def check_each_once(processes: ServiceProcesses, tenant: Tenant, other: Tenant, addresses: list[str]) -> None:
    rows = await processes.service.sql(
        "SELECT resent_from, status FROM messages WHERE account_id = $1 AND resent_from IS NOT NULL", tenant.id
    )
    assert {row["status"] for row in rows} == {"delivered"}
    assert len({row["resent_from"] for row in rows}) == len(rows) == len(addresses)
    assert processes.copies() == Counter(addresses)
    assert await processes.service.value("SELECT count(*) FROM messages WHERE account_id = $1", other.id) == 1
    assert await tenant.available() == len(addresses)
    assert await processes.broken_promises() == {}
    latest = "SELECT id FROM messages WHERE account_id = $1 ORDER BY id DESC LIMIT 1"
    newest = await processes.service.value(latest, tenant.id)
    shown_as = (await tenant.get(ids.text(ids.MESSAGE, newest))).body
    old = (await tenant.get(shown_as["resent_from"])).body
    assert (shown_as["subject"], shown_as["from"]) == (old["subject"], old["from"])
    assert "resent_from" not in old
    details = [(await tenant.call("GET", f"/v1/messages/{one['id']}")).body["message"] for one in (shown_as, old)]
    assert [detail.get("resent_from", "absent") for detail in details] == [old["id"], "absent"]


@pytest.mark.rule("RSD-03", "RSD-04")
async def test_mail_that_failed_at_a_dead_destination_is_sent_again_once(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faster.SHORT_PAUSES, "1")
    await check(await asyncio.to_thread(new_database), tmp_path, 150)


@pytest.mark.nightly
@pytest.mark.rule("RSD-03")
async def test_5_000_messages_that_failed_at_a_dead_destination_are_sent_again_once(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    await check(await asyncio.to_thread(new_database), tmp_path, 5_000)
