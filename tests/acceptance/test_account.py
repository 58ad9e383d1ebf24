"""The account over HTTP: credits, limits, daily usage, and a ledger that explains every credit."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.rules import ids
from posthouse.rules.usage import Step
from tests.support.accept_flow import SIMULATOR
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.eventually import eventually
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.service import Service, Tenant, uuid
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes

DAY = timedelta(days=1)
NO_MAIL = {"accepted": 0, "delivered": 0, "bounced": 0, "failed": 0, "open": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    database_url = await asyncio.to_thread(new_database)
    # After a third deferral a recipient waits longer than this test takes.
    waits = json.dumps([0.01, 0.01, 60.0])
    async with prepare_processes(
        database_url, tmp_path_factory.mktemp("account"), stream="memory", DELIVERY__RETRY_MINUTES=waits, **LONG_LEASE
    ) as processes:
        processes.destination("elsewhere.example.net")
        for domain, mx_host in (
            ("big.example.net", "gmail-smtp-in.l.google.com"),
            ("firm.example.net", "firm-example-net.mail.protection.outlook.com"),
        ):
            processes.nameserver.records[domain, "MX"] = [f"10 {mx_host}."]
            processes.nameserver.records[mx_host, "A"] = ["127.0.0.1"]
        await processes.start_http("dispatch", "delivery")
        yield processes


async def account_of(tenant: Tenant, role: str = "owner") -> dict[str, Any]:
    answer = await tenant.call("GET", "/v1/account", role=role)
    assert answer.status == 200, answer.raw
    account: dict[str, Any] = answer.body["account"]
    return account


async def usage_of(tenant: Tenant, query: str = "") -> dict[str, Any]:
    answer = await tenant.call("GET", f"/v1/usage{query}")
    assert answer.status == 200, answer.raw
    return answer.body


async def ledger_of(tenant: Tenant, query: str = "", limit: int = 100) -> list[dict[str, Any]]:
    """All pages."""
    entries: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = await tenant.call("GET", f"/v1/ledger?limit={limit}{query}{cursor}")
        assert answer.status == 200, answer.raw
        assert len(answer.body["entries"]) <= limit
        entries += answer.body["entries"]
        if answer.body["next_cursor"] is None:
            return entries
        cursor = f"&cursor={answer.body['next_cursor']}"


async def count(processes: ServiceProcesses) -> None:
    """A count as it will be in two minutes, so that the test need not wait."""
    async with open_database(processes.database_url, connections_max=2, timeout_factor=PATIENCE) as database:
        await UsageCounter(context(database, SettableClock(datetime.now(UTC) + timedelta(minutes=2)))).run()


@pytest.mark.rule("ACC-02", "ACC-03", "ACC-04", "ACC-05")
async def test_the_account_shows_its_credits_and_its_open_mail(service: Service) -> None:
    tenant = await service.account(credits=100)
    await tenant.accepts(tenant.mail(to=["a@example.org", "b@example.org"]))
    await tenant.accepts(authorization=await tenant.key("test"))
    shown = await account_of(tenant, "viewer")
    assert shown["id"] == ids.text(ids.ACCOUNT, tenant.id)
    assert (shown["name"], shown["role"]) == (tenant.unique, "viewer")
    created_at = datetime.fromisoformat(shown["created_at"])
    assert timedelta(0) < datetime.now(UTC) - created_at < timedelta(minutes=5)
    assert shown["credits"] == {"available": 98, "reserved": 2, "granted": 100, "is_more": False}
    assert shown["waiting"] == {"queued": 3, "deferred": 0, "held": 0, "is_more": False}
    assert shown["sending"] == {"suspended": False, "reason": None, "since": None}
    assert shown["reputation_warning"] is None
    await service.operator.suspend(tenant.id)
    sending = (await account_of(tenant))["sending"]
    assert (sending["suspended"], sending["reason"]) == (True, "acceptance tests")
    assert datetime.fromisoformat(sending["since"]) <= datetime.now(UTC)


@pytest.mark.rule("ACC-04")
async def test_open_mail_is_counted_up_to_a_limit(service: Service) -> None:
    tenant = await service.account(credits=100)
    sent = uuid((await tenant.accepts())["id"])
    # The schedule holds each recipient once; positions beyond the message's recipients count as well.
    await service.sql(
        "INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)"
        " SELECT $1, $2, place, 'example.org', now() + interval '1 day' FROM generate_series(1, 10000) place",
        tenant.id, sent,
    )  # fmt: skip
    shown = await account_of(tenant)
    assert (shown["waiting"]["is_more"], shown["credits"]["is_more"]) == (True, True)
    assert shown["waiting"]["queued"] >= 10_000
    await service.sql("DELETE FROM delivery_schedule WHERE account_id = $1 AND position > 0", tenant.id)


@pytest.mark.rule("ACC-08")
async def test_the_reputation_shows_its_numbers_and_marks(service: Service) -> None:
    tenant = await service.account(credits=1_000)
    message_id = uuid((await tenant.accepts(tenant.mail(to=[f"r{number}@example.org" for number in range(40)])))["id"])
    await service.sql(
        """UPDATE recipients SET status = 'bounced', billing_status = 'released', bounced_at = now()
        WHERE account_id = $1 AND message_id = $2""",
        tenant.id, message_id,
    )  # fmt: skip
    await service.sql(
        """INSERT INTO attempts (account_id, message_id, position, fence, worker_id, started_at, finished_at, outcome,
            stage, remote_ip, code, response)
        SELECT $1, $2, position, 1, $3, now(), now(), 'bounced', 'rcpt', '192.0.2.1', 550,
            CASE WHEN position < 10 THEN '5.1.1 unknown' ELSE '5.7.1 refused' END
        FROM recipients WHERE account_id = $1 AND message_id = $2""",
        tenant.id, message_id, uuid4(),
    )  # fmt: skip
    found = (await account_of(tenant, "viewer"))["reputation"]
    counted_at = datetime.fromisoformat(found.pop("counted_at"))
    assert counted_at - datetime.fromisoformat(found.pop("counted_since")) == DAY
    assert found == {
        "verdict": "well",
        "exempt": False,
        "results": 40,
        "results_min": 200,
        "bounces": {
            "count": 10,
            "percent": 25.0,
            "warn": {"percent": 5.0, "count": 0},
            "suspend": {"percent": 10.0, "count": 0},
        },
        "complaints": {
            "count": 0,
            "percent": 0.0,
            "warn": {"percent": 0.1, "count": 3},
            "suspend": {"percent": 0.5, "count": 10},
        },
    }


async def progress_of(tenant: Tenant, role: str = "owner") -> dict[str, Any]:
    answer = await tenant.call("GET", "/v1/progress", role=role)
    assert answer.status == 200, answer.raw
    assert [row["step"] for row in answer.body["steps"]] == list(Step)
    assert all(row["done"] is (row["at"] is not None) for row in answer.body["steps"])
    assert answer.body["is_complete"] is all(row["done"] for row in answer.body["steps"])
    return {row["step"]: row["at"] for row in answer.body["steps"] if row["done"]}


@pytest.mark.rule("PRG-01", "PRG-02")
async def test_first_steps_are_derived_from_what_is_stored(service: Service) -> None:
    tenant = await service.account(credits=100)
    await service.sql("UPDATE domains SET verified_at = NULL WHERE account_id = $1", tenant.id)
    await service.sql("DELETE FROM api_keys WHERE account_id = $1", tenant.id)
    assert "first_request" not in await progress_of(tenant)
    assert not {"domain_verified", "key_created", "webhook_saved", "test_mail"} & set(await progress_of(tenant))

    await service.sql("UPDATE domains SET verified_at = now() WHERE account_id = $1", tenant.id)
    await tenant.accepts(authorization=await tenant.key("test"))
    done = await progress_of(tenant)
    assert {"domain_verified", "key_created", "first_request"} <= set(done)
    assert "test_mail" not in done
    # Other live mail, as counted today, is not an email to oneself.
    await service.sql(
        "UPDATE messages SET source = 'api', credits_reserved = 1, billing_status = 'reserved' WHERE account_id = $1",
        tenant.id,
    )
    await service.sql("INSERT INTO usage_days (account_id, day, accepted) VALUES ($1, current_date, 1)", tenant.id)
    assert "test_mail" not in await progress_of(tenant)
    await service.sql("UPDATE usage_days SET day = day - 40 WHERE account_id = $1", tenant.id)
    assert "test_mail" in await progress_of(tenant)
    await service.sql("DELETE FROM usage_days WHERE account_id = $1", tenant.id)
    await service.sql(
        "UPDATE messages SET source = 'test', credits_reserved = 1, billing_status = 'reserved' WHERE account_id = $1",
        tenant.id,
    )
    done = await progress_of(tenant, "viewer")
    assert "test_mail" in done
    assert "first_request" not in done, "an email to oneself is not a program's"

    # The classic webhook has the account's id; other endpoints count as well.
    for endpoint_id in (tenant.id, uuid4()):
        await service.sql(
            """INSERT INTO endpoints (account_id, id, url, types, enabled, secret_sealed, created_at, updated_at)
            VALUES ($1, $2, 'https://hooks.example.com/', '{email.delivered}', true, '', now(), now())""",
            tenant.id,
            endpoint_id,
        )
        done = await progress_of(tenant)
        assert "webhook_saved" in done
        assert "webhook_answered" not in done
        await service.sql("UPDATE endpoints SET answered_at = now() WHERE account_id = $1", tenant.id)
        assert {"webhook_saved", "webhook_answered"} <= set(await progress_of(tenant))
        await service.sql("DELETE FROM endpoints WHERE account_id = $1", tenant.id)
        assert not {"webhook_saved", "webhook_answered"} & set(await progress_of(tenant))
    # The viewer and the owner are two members by now.
    assert "member_invited" in await progress_of(tenant)


@pytest.mark.rule("USE-06")
async def test_every_hour_until_now_has_a_row_newest_first(regular: Tenant) -> None:
    use = await usage_of(regular, "?by=hour&days=2")
    hours = [datetime.fromisoformat(row["hour"]) for row in use["hours"]]
    # An hour may have ended since.
    assert timedelta(0) <= datetime.now(UTC) - hours[0] < timedelta(hours=2)
    assert hours == [hours[0] - number * timedelta(hours=1) for number in range(len(hours))]
    assert hours[-1].date() == hours[0].date() - DAY
    assert hours[-1].hour == 0
    day = await usage_of(regular, "?by=hour&from=2026-02-27&to=2026-02-27")
    assert [row["hour"][:13] for row in day["hours"]] == [f"2026-02-27T{hour:02}" for hour in reversed(range(24))]
    assert day["hours"][0] | {"hour": ""} == {"hour": "", **NO_MAIL, "test": NO_MAIL}
    assert len((await usage_of(regular, "?by=hour&from=2026-02-01&to=2026-02-07"))["hours"]) == 7 * 24
    assert (await usage_of(regular, "?by=day"))["hours"] is None
    for query in ("by=hour&days=8", "by=hour&from=2026-02-01&to=2026-02-08", "by=minute", "by="):
        assert (await regular.call("GET", f"/v1/usage?{query}")).is_refusal(400, "invalid_request")


async def reasons_are_counted(tenant: Tenant, mixed: str, waiting: str) -> None:
    found = (await tenant.call("GET", "/v1/reasons?days=2")).body
    counted = {(row["provider"], row["result"]): row for row in found["reasons"]}
    message = (await tenant.call("GET", f"/v1/messages/{mixed}")).body["message"]
    attempts = [attempt for recipient in message["recipients"] for attempt in recipient["attempts"]]
    deferred = sum(attempt["outcome"] == "deferred" for attempt in attempts)
    assert deferred >= 1
    assert {key: row["count"] for key, row in counted.items()} == {
        ("microsoft", "bounced"): 1,
        ("other", "deferred"): deferred,
        ("none", "bounced"): 1,
        ("none", "failed"): 1,
    }
    assert {row["example_message_id"] for row in found["reasons"]} == {mixed}
    assert counted["other", "deferred"]["explanation"]["reason"] == "greylisted"
    assert counted["other", "deferred"]["code"].startswith("4")
    assert counted["none", "failed"]["code"] is None
    assert counted["none", "failed"]["explanation"]["reason"] == "simulated"
    assert (found["is_shortened"], found["counted_at"] is not None) == (False, True)
    assert [(row["provider"], row["count"], row["example_message_id"]) for row in found["waiting"]] == [
        ("other", 1, waiting)
    ]


@pytest.mark.rule("RSN-01", "RSN-04")
async def test_reasons_of_many_kinds_are_shortened(tenant: Tenant, service: Service) -> None:
    await service.sql(
        """INSERT INTO usage_reasons (account_id, day, provider, result, code, reason, count, example_id)
        SELECT $1, $2, 'other', 'bounced', '5.1.' || number, 'unknown_address', number, $3
        FROM generate_series(1, 201) number""",
        tenant.id, datetime.now(UTC).date(), uuid4(),
    )  # fmt: skip
    for role in ("viewer", "owner"):
        found = (await tenant.call("GET", "/v1/reasons", role=role)).body
        assert [row["count"] for row in found["reasons"]] == list(range(201, 1, -1))
        assert (found["is_shortened"], found["waiting"]) == (True, [])
    assert (await tenant.call("GET", "/v1/reasons?from=2026-02-27&to=2026-03-01")).body["reasons"] == []
    assert (await tenant.call("GET", "/v1/reasons?days=31")).is_refusal(400, "invalid_request", "days")


@pytest.mark.rule("USE-02", "USE-03", "USE-04", "USE-06", "USE-07", "USE-08", "USE-09", "LED-01", "LED-02", "LED-03")
@pytest.mark.rule("RSN-01", "RSN-02", "RSN-03")
async def test_mixed_outcomes_count_every_recipient_and_explain_every_credit(
    processes: ServiceProcesses,
) -> None:
    service = processes.service
    tenant = await service.account(credits=1_000)
    low = datetime.now(UTC) - timedelta(minutes=1)
    await service.sql(
        "INSERT INTO usage_counter_progress (counted_before, pass_before, recount_day, splits_since)"
        " VALUES ($1, $1, $2, $3)",
        low,
        low.date(),
        low.replace(hour=0, minute=0, second=0, microsecond=0),
    )
    assert {day["accepted"] for day in (await usage_of(tenant))["days"]} == {0}

    taken = await tenant.accepts(tenant.mail(to=[f"taken+{number}@big.example.net" for number in range(8)]))
    mixed = await tenant.accepts(
        tenant.mail(
            to=["taken+8@firm.example.net", "550-rcpt+9@firm.example.net", "greylist+10@elsewhere.example.net"],
            cc=[f"bounced@{SIMULATOR}", f"failed@{SIMULATOR}"],
            tags=["order"],
        )
    )
    simulated = await tenant.accepts(authorization=await tenant.key("test"))
    await processes.wait_until_final(tenant, [taken["id"], mixed["id"], simulated["id"]])
    waiting = await tenant.accepts(tenant.mail(to=["450-rcpt+11@elsewhere.example.net"]))
    await eventually(lambda: usage_of(tenant), lambda use: use["now"]["deferred"] == 1)
    await count(processes)
    use = await usage_of(tenant, "?days=2")
    assert use["now"] == {"queued": 0, "deferred": 1, "held": 0, "is_more": False}
    assert datetime.fromisoformat(use["counted_at"]) > low
    counts = {kind: sum(day[kind] for day in use["days"]) for kind in ("accepted", "delivered", "bounced", "failed")}
    assert counts == {"accepted": 14, "delivered": 10, "bounced": 2, "failed": 1}
    assert sum(day["open"] for day in use["days"]) == 1
    providers = {provider["provider"]: provider for provider in use["providers"]}
    assert {name: provider["results"] for name, provider in providers.items()} == {
        "google": 8,
        "microsoft": 2,
        "other": 1,
    }
    assert use["providers"][0]["provider"] == "google"
    for provider in providers.values():
        assert 0 < provider["p50_seconds"] <= provider["p95_seconds"] <= provider["p99_seconds"]
        assert provider["time_to_delivered"]["p50_seconds"] > 0
    outcomes = {name: (row["delivered"], row["bounced"], row["failed"]) for name, row in providers.items()}
    assert outcomes == {"google": (8, 0, 0), "microsoft": (1, 1, 0), "other": (1, 0, 0)}
    assert sum(day["test"]["delivered"] for day in use["days"]) == 1
    assert use["domains"] == [{"domain": tenant.domain, **counts, "open": 1}]
    assert use["tags"] == [{"tag": "order", "accepted": 5, "delivered": 2, "bounced": 2, "failed": 1, "open": 0}]
    assert use["split_from"] == str(low.date())
    hours = (await usage_of(tenant, "?days=2&by=hour"))["hours"]
    assert {kind: sum(hour[kind] for hour in hours) for kind in counts} == counts
    assert sum(hour["test"]["accepted"] for hour in hours) == 1
    await reasons_are_counted(tenant, mixed["id"], waiting["id"])

    for limit in (3, 100):
        entries = await ledger_of(tenant, limit=limit)
        assert sum(entry["amount"] for entry in entries) == await tenant.available()
        assert len({entry["id"] for entry in entries}) == len(entries) == 1 + 3 + 13
    credits_ = (await account_of(tenant))["credits"]
    settled = [entry for entry in entries if entry["kind"] == "settle"]
    assert credits_ == {"available": 988, "reserved": 1, "granted": 1_000, "is_more": False}
    assert credits_["granted"] - len(settled) - credits_["reserved"] == credits_["available"]

    order = [(entry["message_id"], entry["kind"]) for entry in entries]
    assert [message["id"] for message in (taken, mixed, waiting)] == sorted(
        message["id"] for message in (taken, mixed, waiting)
    )
    kinds = ["settle", "release", "settle", "release", "settle"]
    assert order == [
        (waiting["id"], "reserve"),
        *[(mixed["id"], kind) for kind in (*kinds, "reserve")],
        *[(taken["id"], kind) for kind in (*["settle"] * 8, "reserve")],
        (None, "grant"),
    ]
    message = (await tenant.get(mixed["id"])).body
    recipients = {recipient["id"]: recipient for recipient in message["recipients"]}
    for entry in entries[1:6]:
        recipient = recipients[entry["recipient_id"]]
        assert (entry["email"], entry["status"]) == (recipient["email"], recipient["status"])
        assert (entry["smtp_code"], entry["smtp_response"]) == (
            recipient["last_smtp_code"],
            recipient["last_smtp_response"],
        )
        assert entry["amount"] == (1 if recipient["status"] == "bounced" else 0)
    by_email = {entry["email"]: entry for entry in entries[1:6]}
    refused = by_email["550-rcpt+9@firm.example.net"]
    assert refused["why"].startswith("Returned: ")
    assert "550" in refused["why"]
    assert by_email[f"failed@{SIMULATOR}"]["why"].startswith("Spent: ")
    assert entries[0]["why"].startswith("Reserved: ")
    assert (entries[-1]["amount"], entries[-1]["why"]) == (1_000, "Granted: acceptance tests")


@pytest.mark.rule("LED-06")
async def test_invalid_ledger_filters_are_refused(regular: Tenant) -> None:
    for query in ("kind=gift", "from=soon", "to=2026-13-01", "limit=101", "cursor=em_01k6wq3v5e7m8x9c0b2d4f6h8000"):
        answer = await regular.call("GET", f"/v1/ledger?{query}")
        assert answer.is_refusal(400, "invalid_request", query.partition("=")[0])
