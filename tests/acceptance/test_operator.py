"""The operator's routes: who is let in, what they show, and what they change."""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import jwt
import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.credential import IMPERSONATION_MAX, SESSION_MAX
from posthouse.rules.usage import BOUNDS_SECONDS, hour_of
from tests.acceptance.test_tenancy import DOCUMENT
from tests.support.declared_access import FOR_OPERATORS
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.operator_login import add_second_factor, operator_login, set_operator
from tests.support.search_index import index_search
from tests.support.service import ABSENT, JWT_SECRET, PASSWORD, Service, Tenant

ROUTES: Final = [
    (declared["operationId"], method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, declared in methods.items()
    if path.startswith("/v1/operator/")
]
PLACES: Final = {"{lane}": "example.org", "{id}": "1", "{account}": "someone"}
CONTENT: Final = "What only the two should read."


async def call(
    service: Service, method: str, path: str, authorization: str | None, body: Mapping[str, Any] | None = None
) -> Answer:
    for name, value in PLACES.items():
        path = path.replace(name, value)
    headers = {} if authorization is None else {"Authorization": authorization}
    json_body: Any = ABSENT if method == "GET" else body or {}
    return await service.request(method, path, headers=headers, json=json_body)


async def get(service: Service, name: str, authorization: str) -> Any:
    answer = await call(service, "GET", f"/v1/operator/{name}", authorization)
    assert answer.status == 200, answer.raw
    return answer.body


async def change(service: Service, name: str, authorization: str, **body: Any) -> Any:
    answer = await call(service, "POST", f"/v1/operator/{name}", authorization, body)
    assert answer.status == 200, answer.raw
    return answer.body


@pytest.mark.rule("OPR-01")
def test_every_route_of_the_operator_is_in_the_table_of_roles() -> None:
    assert {operation for operation, _, _ in ROUTES} == FOR_OPERATORS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def not_let_in(regular: Tenant) -> list[tuple[str | None, int, str]]:
    """Credentials, each with the status and a word of its refusal."""
    service = regular.service
    unfit = []
    for is_protected in (False, True):
        email = await regular.user("owner")
        unfit.append(f"Bearer {(await service.login(email, PASSWORD)).body['token']}")
        await set_operator(service, email)
        if is_protected:
            await add_second_factor(service, email)
    older = (
        "UPDATE sessions SET created_at = sessions.created_at - $2::interval"
        " FROM users WHERE email = $1 AND user_id = users.id"
    )
    await service.sql(older, email, SESSION_MAX)
    return [
        (None, 401, ""),
        (regular.basic, 401, ""),
        (await regular.key("live", may_read=True), 401, ""),
        (await regular.key("test", may_read=True), 401, ""),
        (await regular.forged(secret="another secret, as long as one should be"), 401, ""),
        *[(await regular.jwt(role), 403, "") for role in ("viewer", "member", "admin", "owner")],
        (unfit[0], 403, "second factor"),
        (unfit[1], 401, "log in again"),
    ]


@pytest.mark.rule("OPR-01", "OPR-02")
@pytest.mark.parametrize(("operation", "method", "path"), ROUTES, ids=[route[0] for route in ROUTES])
async def test_only_an_operator_with_a_second_factor_and_a_login_of_today_is_let_in(
    regular: Tenant, not_let_in: list[tuple[str | None, int, str]], operation: str, method: str, path: str
) -> None:
    for authorization, status, words in not_let_in:
        answer = await call(regular.service, method, path, authorization)
        assert answer.is_refusal(status, "forbidden" if status == 403 else "unauthorized", words), authorization
    _, token = await operator_login(regular)
    assert (await call(regular.service, method, path, token)).status not in (401, 403)


@pytest.mark.rule("OPR-03")
async def test_a_withdrawn_flag_and_an_ended_session_count_at_once(tenant: Tenant) -> None:
    service = tenant.service
    email, token = await operator_login(tenant)
    await get(service, "overview", token)
    await set_operator(service, email, is_operator=False)
    assert (await call(service, "GET", "/v1/operator/overview", token)).status == 403
    await set_operator(service, email)
    await get(service, "overview", token)
    await service.request("POST", "/v1/auth/logout", headers={"Authorization": token})
    assert (await call(service, "GET", "/v1/operator/overview", token)).status == 401


@pytest.mark.rule("OPR-04")
async def test_the_overview_counts_the_queue_of_all_accounts(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    before = await get(service, "overview", token)
    for sender in (tenant, await service.account()):
        await sender.accepts(sender.mail(to=[f"r{number}@example.org" for number in range(5)]))
    after = await get(service, "overview", token)
    waiting = [sum(view[name]["count"] for name in ("due", "leased", "claimed", "later")) for view in (before, after)]
    assert waiting[1] - waiting[0] == 10
    assert after["oldest_due_at"]


@pytest.mark.rule("OPR-04")
async def test_the_overview_has_what_was_learned_and_accepted_lately(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    lane = f"{tenant.unique}.example.org"
    before = await get(service, "overview", token)
    counted = "INSERT INTO usage_hours (account_id, hour, accepted, delivered) VALUES ($1, $2, 7, 5)"
    await service.sql(counted, tenant.id, hour_of(datetime.now(UTC)))
    learned = '{"per_second": 2.5, "ceiling": 5, "state": "resting", "paused_until": "2999-01-01T00:00:00+00:00"}'
    await service.sql("INSERT INTO learned_limits VALUES ('', $1, $2, 1, now())", lane, learned)
    insert = (
        "INSERT INTO limit_changes (at, ip, lane, kind, scope, before, after, cause, reply)"
        " VALUES (now(), '', $1, 'slow', 'address', '{\"per_second\": 10}', $2, '421', 'too much mail')"
    )
    await service.sql(insert, lane, learned)
    after = await get(service, "overview", token)
    assert after["recent"]["accepted"] - before["recent"]["accepted"] == 7
    assert after["recent"]["delivered"] - before["recent"]["delivered"] == 5
    assert lane in {limit_change["lane"] for limit_change in after["limit_changes"]}
    (row,) = [row for row in after["lanes"] if row["lane"] == lane]
    assert (row["state"], row["per_second"], row["ceiling"]) == ("resting", 2.5, 5)
    assert row["rests_until"].startswith("2999-01-01")
    detail = await get(service, f"lanes/{lane}", token)
    assert detail["now"] == row
    assert [
        (limit_change["was_per_second"], limit_change["per_second"]) for limit_change in detail["limit_changes"]
    ] == [(10, 2.5)]


@pytest.mark.rule("OPR-04")
async def test_the_overview_has_the_time_to_delivery_by_provider(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    provider = f"{tenant.unique}.example"
    counts = [0] * (len(BOUNDS_SECONDS) + 1)
    counts[3] = 40
    added = "INSERT INTO provider_hours (provider, hour, delivered_counts) VALUES ($1, $2, $3)"
    hour = hour_of(datetime.now(UTC))
    await service.sql(added, provider, hour, counts)
    # What is older is not counted.
    await service.sql(added, provider, hour - timedelta(hours=2), counts)
    (row,) = [row for row in (await get(service, "overview", token))["latency"] if row["provider"] == provider]
    assert row["delivered"] == 40
    # Rounded.
    assert BOUNDS_SECONDS[2] < row["p50_seconds"] < row["p95_seconds"] < row["p99_seconds"] < BOUNDS_SECONDS[3] * 1.01


@pytest.mark.rule("OPR-09")
async def test_an_operator_knows_until_when_and_others_know_of_nothing(tenant: Tenant) -> None:
    service = tenant.service
    email, token = await operator_login(tenant)

    async def me() -> Any:
        return (await service.request("GET", "/v1/auth/me", headers={"Authorization": token})).body

    began = await service.value(
        "SELECT s.created_at FROM sessions s JOIN users u ON u.id = s.user_id WHERE u.email = $1", email
    )
    until = datetime.fromisoformat((await me())["operator"]["until"])
    assert abs(until - began - SESSION_MAX) < timedelta(milliseconds=1)
    await set_operator(service, email, is_operator=False)
    assert "operator" not in await me()


@pytest.mark.rule("OPR-05")
async def test_a_lane_is_paused_shown_and_resumed_and_the_log_names_the_operator(tenant: Tenant) -> None:
    service = tenant.service
    email, token = await operator_login(tenant)
    lane = f"{tenant.unique}.example.org"
    await change(service, f"lanes/{lane}/pause", token, reason="they asked for it")
    (shown,) = [row for row in (await get(service, "lanes", token))["lanes"] if row["lane"] == lane]
    assert (shown["state"], shown["reason"]) == ("paused", "they asked for it")
    assert (await get(service, f"lanes/{lane}", token))["lane"] == lane
    await change(service, f"lanes/{lane}/resume", token)
    assert all(row["lane"] != lane for row in (await get(service, "lanes", token))["lanes"])
    entries = [entry for entry in (await get(service, "log", token))["entries"] if entry["target"] == lane]
    assert [(entry["action"], entry["actor"]) for entry in entries] == [("lane.resumed", email), ("lane.paused", email)]


@pytest.mark.rule("OPR-05")
async def test_of_very_many_lanes_the_first_are_listed_and_others_found_by_name(tenant: Tenant) -> None:
    service = tenant.service
    _, token = await operator_login(tenant)
    insert = (
        "INSERT INTO learned_limits SELECT '', 'lane-' || n || $1::text, '{\"per_second\": 2.5}', 1, now()"
        " FROM generate_series(1, 101) n"
    )
    domain = f".{tenant.unique}.example.org"
    await service.sql(insert, domain)
    paused = f"zz{domain}"
    await change(service, f"lanes/{paused}/pause", token, reason="")
    try:
        found = await get(service, f"lanes?lane={domain.upper()}", token)
        assert (found["is_more"], len(found["lanes"])) == (True, 100)
        assert found["lanes"][0]["lane"] == paused
        (row,) = (await get(service, f"lanes?lane=lane-7{domain}", token))["lanes"]
        assert (row["lane"], row["per_second"], row["state"]) == (f"lane-7{domain}", 2.5, "open")
        assert (await get(service, "lanes?lane=there-is-none", token))["lanes"] == []
    finally:
        await service.sql("DELETE FROM learned_limits WHERE lane LIKE '%' || $1::text", domain)
        await change(service, f"lanes/{paused}/resume", token)


@pytest.mark.rule("OPR-06")
async def test_mail_is_counted_first_then_held_released_and_cancelled(tenant: Tenant) -> None:
    service = tenant.service
    _, token = await operator_login(tenant)
    sent = await tenant.accepts(tenant.mail(to=["a@example.org", "b@example.org"]))
    available = await tenant.available()

    async def change_queue(what: str, **given: Any) -> Any:
        return await change(service, "queue", token, change=what, message=sent["id"], **given)

    counted = await change_queue("hold")
    assert (counted["recipients"], counted["is_done"]) == (2, False)
    assert (await change_queue("release"))["recipients"] == 0
    assert (await change_queue("hold", dry_run=False))["recipients"] == 2
    assert (await change_queue("release", dry_run=False))["recipients"] == 2
    assert (await change_queue("cancel", dry_run=False))["recipients"] == 2
    message = (await tenant.get(sent["id"])).body
    assert (message["status"], message["billing_status"]) == ("failed", "released")
    assert await tenant.available() == available + 2
    refused = await call(service, "POST", "/v1/operator/queue", token, {"change": "cancel"})
    assert refused.is_refusal(400, "invalid_request", "Say which mail")


@pytest.mark.rule("OPR-06")
async def test_the_queue_is_shown_by_destination_and_account(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    domain = f"{tenant.unique}.example.org"
    # The largest are shown, and mail of other tests waits as well.
    to = [*[f"r{number}@{domain}" for number in range(49)], "c@example.org"]
    sent = [await tenant.accepts(tenant.mail(to=to)) for _ in range(2)]
    await change(service, "queue", token, change="hold", message=sent[0]["id"], destination=domain, dry_run=False)
    shown = await get(service, "queue", token)
    (destination,) = [share for share in shown["destinations"] if share["name"] == domain]
    assert (destination["id"], destination["waiting"], destination["held"]) == (None, 98, 49)
    account_id = ids.text(ids.ACCOUNT, tenant.id)
    (account,) = [share for share in shown["accounts"] if share["id"] == account_id]
    assert (account["name"], account["waiting"], account["held"]) == (tenant.unique, 100, 49)
    assert shown["is_more"] is False


@pytest.mark.rule("OPR-07")
async def test_accounts_that_stand_out_come_first(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    bad, small = await service.account(), await service.account()
    hour = hour_of(datetime.now(UTC))

    async def sent(account: Tenant, at: datetime, accepted: int, delivered: int, bounced: int) -> None:
        added = (
            "INSERT INTO {0} AS kept (account_id, {1}, accepted, delivered, bounced) VALUES ($1, $2, $3, $4, $5)"
            " ON CONFLICT (account_id, {1}) DO UPDATE SET accepted = kept.accepted + excluded.accepted,"
            " delivered = kept.delivered + excluded.delivered, bounced = kept.bounced + excluded.bounced"
        )
        for table, key, time in (("usage_hours", "hour", at), ("usage_days", "day", at.date())):
            await service.sql(added.format(table, key), account.id, time, accepted, delivered, bounced)

    # More than any other test's account has.
    await sent(tenant, hour, 10**9, 10**9, 0)
    await sent(bad, hour, 1_000, 10, 990)
    await sent(small, hour, 19, 0, 19)
    # What is older than a day is not counted.
    await sent(bad, hour - timedelta(hours=24), 10**10, 0, 0)

    async def first(by: str) -> list[Any]:
        return list((await get(service, f"accounts?by={by}", token))["accounts"])

    assert (await first("volume"))[0]["name"] == tenant.unique
    (worst, *_) = await first("reputation")
    assert (worst["name"], worst["accepted"], worst["delivered"], worst["bounced"]) == (bad.unique, 1_000, 10, 990)
    assert small.unique not in {account["name"] for account in await first("reputation")}
    assert small.unique in {account["name"] for account in await first("new")}
    refused = await call(service, "GET", "/v1/operator/accounts?by=luck", token)
    assert refused.is_refusal(400, "invalid_request", "`by` is one of name, volume, reputation, limits, new")


@pytest.mark.rule("OPR-07")
async def test_accounts_are_listed_suspended_and_resumed(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    names: list[str] = []
    cursor = ""
    while True:
        page = await get(service, f"accounts?limit=2&cursor={cursor}", token)
        names += [account["name"] for account in page["accounts"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert tenant.unique in names
    assert len(set(names)) == len(names)
    account = ids.text(ids.ACCOUNT, tenant.id)
    suspended = await change(service, f"accounts/{account}/suspend", token, reason="spam")
    assert (suspended["account"]["state"], suspended["account"]["suspended_reason"]) == ("suspended", "spam")
    assert (await tenant.send()).code == "account_suspended"
    again = await call(service, "POST", f"/v1/operator/accounts/{account}/suspend", token, {"reason": "spam"})
    assert again.is_refusal(409, "conflict")
    resumed = await change(service, f"accounts/{account}/resume", token)
    assert resumed["account"]["state"] == "active"
    await eventually(tenant.send, lambda answer: answer.status == 202)
    # Its owners read of the operator, not of the person.
    seen = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    actors = [entry["actor"]["name"] for entry in seen if entry["action"] in ("account.suspended", "account.resumed")]
    assert actors == ["operator", "operator"]
    assert email not in json.dumps(seen)
    logged = [entry for entry in (await get(service, "log", token))["entries"] if entry["target"] == tenant.unique]
    assert email in {entry["actor"] for entry in logged}


async def names_logged(service: Service, tenant: Tenant, authorization: str, action: str, email: str = "") -> list[str]:
    """Who did it, as the account's log has it; the operator's log names the person with this address."""
    entries = (await get(service, "log", authorization))["entries"]
    assert not email or email in {entry["actor"] for entry in entries if entry["action"] == action}
    seen = (await tenant.call("GET", f"/v1/audit-log?action={action}")).body["entries"]
    return [entry["actor"]["name"] for entry in seen]


@pytest.mark.rule("OPR-14")
async def test_limits_of_an_account_are_set_and_credits_granted(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    path = f"accounts/{ids.text(ids.ACCOUNT, tenant.id)}"
    before = (await get(service, path, token))["limits"]
    for given, shown in (
        ({"rate_per_second": 7, "warmup": [100, 200]}, {"rate_per_second": 7, "own_warmup": [100, 200]}),
        ({"warmup": "exempt"}, {"own_rate_per_second": 7, "own_warmup": "exempt", "warmup_limit": None}),
        ({"rate_per_second": "default", "warmup": "default"}, {"own_rate_per_second": None, "own_warmup": None}),
    ):
        await change(service, f"{path}/limits", token, **given)
        limits = (await get(service, path, token))["limits"]
        assert {name: limits[name] for name in shown} == shown
    assert (limits["rate_burst"], limits["own_rate_burst"]) == (before["rate_burst"], before["own_rate_burst"])
    wrong: dict[str, Any]
    for wrong in ({}, {"rate_burst": 0}, {"warmup": "none"}):
        refused = await call(service, "POST", f"/v1/operator/{path}/limits", token, wrong)
        assert refused.is_refusal(400, "invalid_request"), wrong
    assert await names_logged(service, tenant, token, "account.limits_set", email) == ["operator"] * 4

    available = await tenant.available()
    body = {"amount": 500, "reason": "a larger plan"}
    headers = {"Authorization": token, "Idempotency-Key": "plan"}
    for _ in range(2):
        granted = await service.request("POST", f"/v1/operator/{path}/credits", headers=headers, json=body)
        assert granted.body["account"]["available"] == available + 500 == await tenant.available()
    without = await call(service, "POST", f"/v1/operator/{path}/credits", token, body)
    assert without.is_refusal(400, "invalid_request", "Idempotency-Key")
    assert (await names_logged(service, tenant, token, "credits.granted", email))[0] == "operator"


@pytest.mark.rule("OPR-14")
async def test_an_account_is_shown_with_its_domains_users_messages_and_log(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    member = await tenant.user("member")
    sent = await tenant.accepts(tenant.mail(to=["a@example.org", "b@example.org"], subject="Your code is 4711"))
    log = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    shown = await get(service, f"accounts/{tenant.unique}", token)
    assert (shown["account"]["name"], shown["waiting"]) == (tenant.unique, 2)
    assert shown["granted"] >= shown["account"]["available"]
    assert (member, "member") in {(user["email"], user["role"]) for user in shown["users"]}
    assert tenant.domain in {domain["name"] for domain in shown["domains"]}
    assert [(message["id"], message["to"]) for message in shown["messages"]] == [
        (sent["id"], ["a@example.org", "b@example.org"])
    ]
    assert "4711" not in json.dumps(shown)
    assert member in {entry["target"] for entry in shown["log"]}
    assert shown["log"] == log[:20]
    assert len(shown["usage"]) == 30
    # Midnight may have passed.
    assert abs(date.fromisoformat(shown["usage"][0]["day"]) - datetime.now(UTC).date()) <= timedelta(days=1)
    unknown = await call(service, "GET", "/v1/operator/accounts/nobody", token)
    assert unknown.is_refusal(404, "not_found")


@pytest.mark.rule("OPR-15")
async def test_a_lane_is_pinned_and_unpinned_and_a_limit_change_undone_by_its_number(tenant: Tenant) -> None:
    service = tenant.service
    email, token = await operator_login(tenant)
    lane = f"{tenant.unique}.example.org"
    await change(service, f"lanes/{lane}/pin", token, per_second=0.5, address="192.0.2.7")
    detail = await get(service, f"lanes/{lane}", token)
    assert (detail["now"]["per_second"], detail["now"]["pinned"]) == (0.5, True)
    assert [(found["address"], found["domain"]) for found in detail["learned_limits"]] == [("192.0.2.7", None)]
    await change(service, f"lanes/{lane}/pin", token, per_second=None, address="192.0.2.7")
    assert (await get(service, f"lanes/{lane}", token))["now"]["pinned"] is False
    for wrong in ({}, {"per_second": 0}, {"per_second": 1e9}, {"per_second": 1, "address": "a.example"}):
        refused = await call(service, "POST", f"/v1/operator/lanes/{lane}/pin", token, wrong)
        assert refused.is_refusal(400, "invalid_request"), wrong
    entries = [entry for entry in (await get(service, "log", token))["entries"] if entry["target"].startswith(lane)]
    assert [(entry["action"], entry["actor"]) for entry in entries] == [
        ("lane.unpinned", email), ("lane.pinned", email),
    ]  # fmt: skip

    await change(service, f"lanes/{lane}/pin", token, per_second=0.5)
    pinned, *_ = (await get(service, f"lanes/{lane}", token))["limit_changes"]
    assert (pinned["kind"], pinned["per_second"], pinned["message"]) == ("pinned", 0.5, None)
    undone = await change(service, f"limit-changes/{pinned['id']}/undo", token)
    assert (undone["lane"], undone["state"]) == (lane, "open")
    for number in ("x", "0", str(2**63), "1" * 25, "0" * 19 + "1" * 20, "1" * 5_000):
        refused = await call(service, "POST", f"/v1/operator/limit-changes/{number}/undo", token)
        assert refused.is_refusal(400, "invalid_request"), number
    unknown = await call(service, "POST", f"/v1/operator/limit-changes/{2**63 - 1}/undo", token)
    assert unknown.is_refusal(404, "not_found")


@pytest.mark.rule("OPR-16")
async def test_failed_mail_of_an_account_is_counted_and_sent_again_by_an_operator(service: Service) -> None:
    tenant, other = await service.account(), await service.account()
    email, token = await operator_login(other)
    path = f"/v1/operator/accounts/{ids.text(ids.ACCOUNT, tenant.id)}/resends"
    given = {"since": (datetime.now(UTC) - timedelta(days=1)).isoformat()}

    async def begin(key: str, **body: Any) -> Answer:
        headers = {"Authorization": token, "Idempotency-Key": key}
        return await service.request("POST", path, headers=headers, json=given | body)

    assert (await call(service, "POST", path, token, given)).is_refusal(400, "invalid_request", "Idempotency-Key")
    counted = await begin("count", dry_run=True)
    assert (counted.status, counted.body["resend"]["dry_run"]) == (202, True)
    assert await names_logged(service, tenant, token, "resend.begun") == []
    resend = counted.body["resend"]["id"]
    assert (await call(service, "POST", f"{path}/{resend}/stop", token)).body["resend"]["status"] == "stopped"
    begun = await begin("begin")
    assert begun.status == 202, begun.raw
    assert (await begin("begin")).body["resend"] == begun.body["resend"]
    resend = begun.body["resend"]["id"]
    # The account sees it as its own; no other account has it.
    assert (await tenant.call("GET", f"/v1/resends/{resend}")).body["resend"]["id"] == resend
    assert (await call(service, "GET", f"{path}/{resend}", token)).body["resend"]["status"] == "running"
    elsewhere = f"/v1/operator/accounts/{ids.text(ids.ACCOUNT, other.id)}/resends/{resend}"
    assert (await call(service, "GET", elsewhere, token)).is_refusal(404, "not_found")
    assert (await call(service, "POST", f"{elsewhere}/stop", token)).is_refusal(404, "not_found")
    assert (await call(service, "POST", f"{path}/{resend}/stop", token)).body["resend"]["status"] == "stopped"
    assert await names_logged(service, tenant, token, "resend.begun", email) == ["operator"]


@pytest.mark.rule("OPR-17")
async def test_a_user_is_found_and_their_sessions_end(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    member = await tenant.user("member")
    sessions = [(await service.login(member, PASSWORD)).body["token"] for _ in range(3)]

    async def found(named: str) -> list[Any]:
        return list((await get(service, f"users?q={quote(named)}", token))["users"])

    async def status(number: int) -> int:
        headers = {"Authorization": f"Bearer {sessions[number]}"}
        return (await service.request("GET", "/v1/account", headers=headers)).status

    (user,) = await found(member.upper())
    assert (user["email"], user["operator_since"], user["has_second_factor"]) == (member, None, False)
    assert [(account["id"], account["role"]) for account in user["accounts"]] == [
        (ids.text(ids.ACCOUNT, tenant.id), "member")
    ]
    assert len(user["sessions"]) == 3
    assert [one["id"] for one in await found(user["id"])] == [user["id"]]
    assert await found("nobody@example.org") == []
    ended = await change(service, f"users/{user['id']}/end-sessions", token, session=user["sessions"][0]["id"])
    assert ended["ended"] == 1
    await eventually(lambda: status(2), lambda answer: answer == 401)
    assert await status(0) == 200
    assert (await change(service, f"users/{user['id']}/end-sessions", token))["ended"] == 2
    await eventually(lambda: status(0), lambda answer: answer == 401)
    # One of another user, or that has ended.
    for session in (user["sessions"][0]["id"], "se_01k6wq3v5e7m8x9c0b2d4f6h80"):
        path = f"/v1/operator/users/{user['id']}/end-sessions"
        assert (await call(service, "POST", path, token, {"session": session})).is_refusal(404, "not_found")
    assert await names_logged(service, tenant, token, "user.sessions_ended", email) == ["operator", "operator"]


@pytest.mark.rule("OPR-17")
async def test_without_a_name_the_operators_are_shown(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(tenant)
    member = await tenant.user("owner")
    shown = {user["email"]: user for user in (await get(service, "users", token))["users"]}
    assert shown[email]["operator_since"]
    assert shown[email]["has_second_factor"] is True
    assert member not in shown
    assert "password" not in json.dumps(shown)


@pytest.mark.rule("OPR-18")
async def test_postmaster_mail_is_read_and_a_message_removed(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(tenant)
    kept = (
        "INSERT INTO postmaster_mail (id, recipient, sender, peer, subject, mime, at)"
        " VALUES ($1, $2, '', '192.0.2.1', $3, $4, now())"
    )
    mail_id, source = uuid4(), b"Subject: <b>\xff\r\n\r\n" + b"x" * 300_000
    await service.sql(kept, mail_id, "abuse@example.org", "<b>", source)
    given = ids.text(ids.POSTMASTER_MESSAGE, mail_id)
    (mail,) = [mail for mail in (await get(service, "postmaster-mail", token))["messages"] if mail["id"] == given]
    assert (mail["recipient"], mail["subject"], mail["bytes"]) == ("abuse@example.org", "<b>", len(source))
    shown = await get(service, f"postmaster-mail/{given}", token)
    assert shown["source"].startswith("Subject: <b>\ufffd")
    assert (len(shown["source"].encode()) < 270_000, shown["is_shortened"]) == (True, True)
    assert (await call(service, "DELETE", f"/v1/operator/postmaster-mail/{given}", token)).status == 200
    for method in ("GET", "DELETE"):
        gone = await call(service, method, f"/v1/operator/postmaster-mail/{given}", token)
        assert gone.is_refusal(404, "not_found")
    entries = [entry for entry in (await get(service, "log", token))["entries"] if entry["target"] == given]
    assert [(entry["action"], entry["actor"]) for entry in entries] == [("postmaster_mail.removed", email)]


@pytest.mark.rule("OPR-08")
async def test_health_is_what_the_doctor_finds(tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    first = await get(tenant.service, "health", token)
    assert {check["severity"] for check in first["checks"]} <= {"ok", "warning", "critical"}
    assert all(check["advice"] and check["runbook"] for check in first["checks"] if not check["is_well"])
    # Checks ask other servers: two pages share one.
    assert (await get(tenant.service, "health", token))["checked_at"] == first["checked_at"]
    assert (await get(tenant.service, "addresses", token))["addresses"] == []


NO_CAPACITY: Final = (
    """
    CREATE FUNCTION test_no_space() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no space for %', NEW.action USING ERRCODE = 'disk_full'; END $$
    """,
    """
    CREATE TRIGGER test_no_space BEFORE INSERT ON audit_log FOR EACH ROW
    WHEN (NEW.action = 'message.content_read') EXECUTE FUNCTION test_no_space()
    """,
)


async def find(service: Service, quoted: str, authorization: str) -> list[Any]:
    return list((await get(service, f"messages?q={quote(quoted)}", authorization))["messages"])


@pytest.mark.rule("OPR-10")
async def test_a_message_is_found_by_what_its_sender_quotes(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    sent = await tenant.accepts(tenant.mail(to=["a@example.org", "b@example.org"], subject="Order 7"))
    bare = sent["id"].removeprefix("em_")
    for quoted in (sent["id"], f"250 2.0.0 queued as {sent['id']}", f"<{bare.upper()}@mail.example.com>"):
        (found,) = await find(service, quoted, token)
        assert (found["id"], found["account"]) == (sent["id"], tenant.unique)
        assert (found["status"], sorted(found["to"]), found["recipient_count"]) == (
            "queued",
            ["a@example.org", "b@example.org"],
            2,
        )
    assert await find(service, "em_01k6wq3v5e7m8x9c0b2d4f6h80", token) == []
    for wrong in ("", "where is my mail?", "@", "x" * 501):
        refused = await call(service, "GET", f"/v1/operator/messages?q={quote(wrong)}", token)
        assert refused.is_refusal(400, "invalid_request", "`q`"), wrong


@pytest.mark.rule("OPR-10")
async def test_mail_of_an_address_is_found_in_every_account(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(tenant)
    other, address = await service.account(), f"Ada@{tenant.unique}.example.org"
    ids_sent = [(await sender.accepts(sender.mail(to=address)))["id"] for sender in (tenant, other, tenant)]
    own = (await tenant.accepts(tenant.mail(to="someone@example.org")))["id"]
    await index_search(service)
    assert [found["id"] for found in await find(service, address.lower(), token)] == sorted(ids_sent, reverse=True)
    sender = tenant.mail()["from"]
    assert {found["id"] for found in await find(service, sender, token)} == {ids_sent[0], ids_sent[2], own}


@pytest.mark.rule("OPR-11")
async def test_an_operator_reads_why_a_message_waits(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    sent = await tenant.accepts(tenant.mail(to="a@example.org"))
    await change(service, "queue", token, change="hold", message=sent["id"], dry_run=False)
    found = await get(service, f"messages/{sent['id']}", token)
    assert (found["id"], found["account_id"]) == (sent["id"], ids.text(ids.ACCOUNT, tenant.id))
    (recipient,) = found["recipients"]
    assert (recipient["email"], recipient["attempts"]) == ("a@example.org", [])
    assert "operator" in recipient["now"]
    assert f"queue release --message {sent['id']}" in recipient["operator"]
    unknown = await call(service, "GET", "/v1/operator/messages/em_01k6wq3v5e7m8x9c0b2d4f6h80", token)
    assert unknown.is_refusal(404, "not_found")


@pytest.mark.rule("OPR-10", "OPR-11", "OPR-12")
async def test_the_customers_log_says_that_an_operator_read_the_content(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    sent = await tenant.accepts(tenant.mail(text=CONTENT, subject="Your code is 271828"))

    async def logged() -> list[Any]:
        entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
        return [entry for entry in entries if entry["action"] == "message.content_read"]

    # Looking for it and at its history shows no content, and is not in the log.
    shown = json.dumps([await find(service, sent["id"], token), await get(service, f"messages/{sent['id']}", token)])
    assert (sent["id"] in shown, CONTENT in shown, "271828" in shown) == (True, False, False)
    assert await logged() == []
    content = (await get(service, f"messages/{sent['id']}/content", token))["content"]
    assert (content["text"].strip(), content["subject"]) == (CONTENT, "Your code is 271828")
    (entry,) = await logged()
    assert (entry["actor"]["name"], entry["target"]) == ("operator", sent["id"])
    own = [entry for entry in (await get(service, "log", token))["entries"] if entry["target"] == sent["id"]]
    assert (email, "message.content_read") in {(entry["actor"], entry["action"]) for entry in own}


@pytest.mark.rule("OPR-12")
async def test_content_is_not_shown_if_the_log_can_not_be_written(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    sent = await tenant.accepts(tenant.mail(text=CONTENT))
    for statement in NO_CAPACITY:
        await service.sql(statement)
    try:
        impersonator = await impersonate(service, tenant, token)
        paths = [f"/v1/messages/{sent['id']}/{part}" for part in ("content", "raw", "attachments/0")]
        answers = [await call(service, "GET", path, impersonator) for path in paths]
        answers.append(await call(service, "GET", f"/v1/operator/messages/{sent['id']}/content", token))
    finally:
        await service.sql("DROP FUNCTION test_no_space CASCADE")
    assert [answer.status for answer in answers] == [503] * 4
    assert CONTENT.encode() not in b"".join(answer.raw for answer in answers)


WRITES: Final = [
    (declared["operationId"], method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, declared in methods.items()
    if method.upper() != "GET" and declared["security"] != []
]


async def impersonate(service: Service, tenant: Tenant, authorization: str) -> str:
    account = ids.text(ids.ACCOUNT, tenant.id)
    return f"Bearer {(await change(service, f'accounts/{account}/impersonation', authorization))['token']}"


async def actions(tenant: Tenant) -> list[str]:
    entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    return [entry["action"] for entry in entries if entry["actor"]["name"] == "operator"]


@pytest.mark.rule("OPR-13")
async def test_an_impersonation_reads_what_a_viewer_reads_and_is_seen(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    sent = await tenant.accepts(tenant.mail(text=CONTENT))
    assert "impersonated_until" not in (await tenant.call("GET", "/v1/account")).body["account"]
    began_at = datetime.now(UTC)
    impersonator = await impersonate(service, tenant, token)
    # Before anything was read.
    assert await actions(tenant) == ["account.impersonated", *(await actions(tenant))[1:]]
    assert email not in json.dumps((await tenant.call("GET", "/v1/audit-log")).body)
    until = datetime.fromisoformat((await tenant.call("GET", "/v1/account")).body["account"]["impersonated_until"])
    assert timedelta() < until - began_at <= IMPERSONATION_MAX + (datetime.now(UTC) - began_at)

    async def read(path: str) -> Answer:
        return await call(service, "GET", path, impersonator)

    me = (await read("/v1/auth/me")).body
    account = ids.text(ids.ACCOUNT, tenant.id)
    assert (me["account_id"], me["role"], [one["id"] for one in me["accounts"]]) == (account, "viewer", [account])
    assert me["impersonation"]["until"] == me["expires_at"]
    assert "operator" not in me
    assert [found["id"] for found in (await read("/v1/messages")).body["messages"]] == [sent["id"]]
    # Only owners read the log.
    assert (await read("/v1/audit-log")).is_refusal(403, "forbidden")
    before = await actions(tenant)
    assert CONTENT.encode() in (await read(f"/v1/messages/{sent['id']}/content")).raw
    async with service.client.get(
        f"{service.url}/v1/messages/{sent['id']}/raw", headers={"Authorization": impersonator}
    ) as answer:
        assert CONTENT.encode() in await answer.read()
    assert await actions(tenant) == ["message.content_read", "message.content_read", *before]
    for name in ("messages", "ledger"):
        export = service.client.get(f"{service.url}/v1/{name}/export", headers={"Authorization": impersonator})
        async with export as answer:
            assert answer.status == 200
    assert (await actions(tenant))[:2] == ["ledger.exported", "messages.exported"]


@pytest.mark.rule("OPR-13")
async def test_an_impersonation_can_change_nothing(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    impersonator = await impersonate(service, tenant, token)
    # The last of them ends it.
    last = sorted(WRITES, key=lambda write: write[0] == "logout")
    answers = {operation: await call(service, method, path, impersonator) for operation, method, path in last}
    assert {operation for operation, answer in answers.items() if answer.status not in (401, 403)} == {"logout"}
    # Those that a viewer may make are refused because an impersonation makes them.
    assert "A read-only impersonation can change nothing" in answers["saveAlerts"].raw.decode()
    assert {"sendEmail", "logout", "changePassword", "operatorSuspendAccount"} <= answers.keys()


@pytest.mark.rule("OPR-13")
async def test_an_impersonation_opens_no_operators_route_and_no_other_account(service: Service, tenant: Tenant) -> None:
    _, token = await operator_login(await service.account())
    impersonator = await impersonate(service, tenant, token)
    for _, method, path in ROUTES:
        assert (await call(service, method, path, impersonator)).status == 401, path
    other = await service.account()
    sent = await other.accepts(other.mail())
    assert (await call(service, "GET", f"/v1/messages/{sent['id']}", impersonator)).is_refusal(404, "not_found")
    assert (await call(service, "GET", f"/emails/{sent['id']}", impersonator)).status == 401


@pytest.mark.rule("OPR-13")
async def test_an_operator_ends_an_impersonation_and_stays_logged_in(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    other = await impersonate(service, await service.account(), token)
    impersonator = await impersonate(service, tenant, token)
    assert "impersonated_until" in (await tenant.call("GET", "/v1/account")).body["account"]
    ended = await service.request("POST", "/v1/auth/logout", headers={"Authorization": impersonator})
    assert ended.status == 200
    # The cookie in the browser is that of the operator's own login.
    assert "Set-Cookie" not in ended.headers
    for method, path in (("GET", "/v1/account"), ("GET", "/v1/live"), ("POST", "/v1/auth/logout")):
        assert (await service.request(method, path, headers={"Authorization": impersonator})).status == 401, path
    assert "impersonated_until" not in (await tenant.call("GET", "/v1/account")).body["account"]
    seen = [action for action in await actions(tenant) if "impersonat" in action]
    assert seen == ["account.impersonation_ended", "account.impersonated"]
    log = (await call(service, "GET", "/v1/operator/log", token)).body["entries"]
    assert (email, "account.impersonation_ended") in {(entry["actor"], entry["action"]) for entry in log}
    # Impersonations of other accounts, and the login, are not concerned.
    assert (await call(service, "GET", "/v1/account", other)).status == 200
    assert (await call(service, "GET", "/v1/operator/overview", token)).status == 200


@pytest.mark.rule("OPR-13")
async def test_an_impersonation_ends_with_the_operators_flag_login_and_time(service: Service, tenant: Tenant) -> None:
    email, token = await operator_login(await service.account())
    impersonator = await impersonate(service, tenant, token)
    assert (await call(service, "GET", "/v1/account", impersonator)).status == 200
    await set_operator(service, email, is_operator=False)
    assert (await call(service, "GET", "/v1/account", impersonator)).status == 403
    await set_operator(service, email)
    assert (await call(service, "GET", "/v1/account", impersonator)).status == 200
    claims = jwt.decode(impersonator.removeprefix("Bearer "), options={"verify_signature": False})
    # The token is issued after the impersonation began, perhaps in the next second.
    assert IMPERSONATION_MAX / 2 < timedelta(seconds=claims["exp"] - claims["iat"]) <= IMPERSONATION_MAX
    past = claims | {"iat": claims["iat"] - IMPERSONATION_MAX.total_seconds() - 10, "exp": claims["iat"] - 10}
    over = f"Bearer {jwt.encode(past, JWT_SECRET, 'HS256')}"
    assert (await call(service, "GET", "/v1/account", over)).status == 401
    stream = service.client.get(f"{service.url}/v1/live", headers={"Authorization": impersonator})
    async with stream as watching:
        await set_operator(service, email, is_operator=False)
        assert b"event: end" in await watching.read()
    await set_operator(service, email)
    await service.request("POST", "/v1/auth/logout", headers={"Authorization": token})
    assert (await call(service, "GET", "/v1/account", impersonator)).status == 401
