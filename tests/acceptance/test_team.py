"""The team over HTTP: members and roles, invitations from link to login, and the audit log."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from posthouse.rules import ids, totp
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, PASSWORD, Service, StartService, Tenant

INVITATION_FIELDS = {"id", "email", "role", "invited_by", "created_at", "expires_at"}
ENTRY_FIELDS = {"id", "at", "actor", "action", "target", "detail"}
UNKNOWN_MEMBER = "us_01jbz3qk8e0000000000000000"
OTHER_PASSWORD = "their own password"


async def invited(tenant: Tenant, email: str, role: str = "member") -> Answer:
    answer = await tenant.call("POST", "/v1/invitations", {"email": email, "role": role})
    assert answer.status == 201, answer.raw
    return answer


async def mailed(tenant: Tenant, email: str, role: str = "member") -> str:
    """The token of a new invitation, from the mail to its address."""
    await invited(tenant, email, role)
    return await tenant.service.mailed_token(email)


async def accept(service: Service, token: str, password: str = PASSWORD, code: object = ABSENT) -> Answer:
    """Without a login."""
    body = {"token": token, "password": password} | ({} if code is ABSENT else {"code": code})
    return await service.request("POST", "/v1/invitations/accept", json=body)


async def members(tenant: Tenant) -> dict[str, Any]:
    answer = await tenant.call("GET", "/v1/members?limit=100")
    assert answer.status == 200, answer.raw
    return {member["email"]: member for member in answer.body["members"]}


async def member_id(tenant: Tenant, email: str) -> str:
    found: str = (await members(tenant))[email]["id"]
    return found


async def entries(tenant: Tenant, *, by: str | None = None) -> list[dict[str, Any]]:
    """Oldest first; only those of the given actor, if any."""
    answer = await tenant.call("GET", "/v1/audit-log?limit=100")
    assert answer.status == 200, answer.raw
    shown: list[dict[str, Any]] = answer.body["entries"][::-1]
    return [entry for entry in shown if by is None or entry["actor"]["name"] == by]


async def owner_of(tenant: Tenant) -> str:
    """The address of the account's owner."""
    await tenant.jwt()
    (email,) = [email for email, member in (await members(tenant)).items() if member["role"] == "owner"]
    return email


def address(tenant: Tenant, name: str) -> str:
    return f"{name}@{tenant.unique}.example.net"


# Members.


@pytest.mark.rule("TEAM-02")
async def test_another_role_holds_everywhere_within_seconds(tenant: Tenant) -> None:
    viewer = await tenant.user("viewer")
    token = (await tenant.service.login(viewer, PASSWORD)).body["token"]

    async def create_template() -> Answer:
        return await tenant.service.request(
            "POST",
            "/v1/templates",
            headers={"Authorization": f"Bearer {token}"},
            json={"alias": "made-by-a-member", "subject": "Hello", "text": "Good morning."},
        )

    assert (await create_template()).is_refusal(403, "forbidden")
    path = f"/v1/members/{await member_id(tenant, viewer)}"
    changed = await tenant.call("PUT", path, {"role": "member"})
    assert changed.status == 200
    assert changed.body["member"] == (await members(tenant))[viewer]
    assert changed.body["member"]["role"] == "member"
    assert (await eventually(create_template, lambda answer: answer.status != 403)).status == 201


@pytest.mark.rule("TEAM-05")
async def test_an_invalid_role_or_address_is_named(tenant: Tenant) -> None:
    path = f"/v1/members/{UNKNOWN_MEMBER}"
    for role in ("root", "Owner", "", "own\0er"):
        assert (await tenant.call("PUT", path, {"role": role})).is_refusal(400, "invalid_request", "`role`", "viewer")
        body = {"email": "eve@example.com", "role": role}
        assert (await tenant.call("POST", "/v1/invitations", body)).is_refusal(400, "invalid_request", "`role`")
    for email in ("eve", "", "Eve <eve@example.com>", "eve@example.com\0", "a@b@c", f"{'e' * 250}@example.com"):
        answer = await tenant.call("POST", "/v1/invitations", {"email": email, "role": "viewer"})
        assert answer.is_refusal(400, "invalid_request", "`email`")
    assert (await tenant.call("PUT", path, {})).is_refusal(400, "invalid_request", "`role` is required")
    assert (await tenant.call("GET", "/v1/invitations")).body["invitations"] == []


# Invitations.


@pytest.mark.rule("TEAM-13")
async def test_an_invitations_token_is_only_in_the_email(tenant: Tenant) -> None:
    email = address(tenant, "Eve")
    answer = await invited(tenant, email)
    assert set(answer.body) == {"invitation", "request_id"}
    invitation = answer.body["invitation"]
    assert set(invitation) == INVITATION_FIELDS
    assert (invitation["email"], invitation["role"]) == (email.lower(), "member")
    assert invitation["invited_by"] == await owner_of(tenant)
    (token,) = await tenant.service.mailed_tokens(email)
    assert token not in answer.raw.decode()
    for path in ("/v1/invitations", "/v1/audit-log"):
        assert token not in (await tenant.call("GET", path)).raw.decode()
    stored = await tenant.service.value("SELECT string_agg(row::text, '') FROM invitations row")
    assert token not in stored
    assert token not in tenant.service.log.read_text()


@pytest.mark.rule("TEAM-13")
async def test_an_invitation_is_a_link_where_the_service_knows_its_address(start_service: StartService) -> None:
    service = await start_service(HTTP__PUBLIC_URL="https://mail.example.com")
    tenant = await service.account()
    await invited(tenant, address(tenant, "eve"))
    ((body,),) = await service.sql("SELECT mime FROM bodies ORDER BY message_id DESC LIMIT 1")
    assert b"\r\nhttps://mail.example.com/invitation#" in body


@pytest.mark.rule("TEAM-14", "PASS-05")
async def test_without_a_sender_there_is_no_mail_and_the_setting_is_named(start_service: StartService) -> None:
    service = await start_service(SERVICE__SENDER="", SERVICE__SENDER_ACCOUNT="")
    tenant = await service.account()
    body = {"email": address(tenant, "eve"), "role": "owner"}
    answer = await tenant.call("POST", "/v1/invitations", body)
    assert answer.is_refusal(409, "conflict", "service.sender", "posthouse user invite")
    assert (await tenant.call("GET", "/v1/invitations")).body["invitations"] == []
    forgot = await service.request("POST", "/v1/auth/forgot", json={"email": await tenant.user()})
    assert forgot.is_refusal(409, "conflict", "service.sender")


@pytest.mark.rule("TEAM-15")
async def test_an_address_is_mailed_few_invitations(tenant: Tenant) -> None:
    body = {"email": address(tenant, "eve"), "role": "viewer"}
    answers = [await tenant.call("POST", "/v1/invitations", body) for _ in range(4)]
    assert [answer.status for answer in answers] == [201, 201, 201, 429]
    others = [
        await tenant.call("POST", "/v1/invitations", {**body, "email": address(tenant, f"e{n}")}) for n in range(17)
    ]
    assert [answer.status for answer in others] == [201] * 16 + [429]
    assert others[-1].is_refusal(429, "rate_limited", "invitations")


@pytest.mark.rule("TEAM-08")
async def test_open_invitations_are_listed_and_revoked(tenant: Tenant) -> None:
    made = [await invited(tenant, address(tenant, name)) for name in ("ada", "bob", "eve")]
    shown = [answer.body["invitation"] for answer in made][::-1]
    assert (await tenant.call("GET", "/v1/invitations")).body["invitations"] == shown
    path = f"/v1/invitations/{shown[0]['id']}"
    revoked = await tenant.call("DELETE", path)
    assert (revoked.status, revoked.body["deleted"]) == (200, True)
    assert (await tenant.call("DELETE", path)).is_refusal(404, "not_found")
    token = await tenant.service.mailed_token(address(tenant, "eve"))
    assert (await accept(tenant.service, token)).is_refusal(404, "not_found")
    assert (await tenant.call("GET", "/v1/invitations")).body["invitations"] == shown[1:]


@pytest.mark.rule("TEAM-09", "DAY-07")
async def test_a_new_user_joins_with_their_own_password(tenant: Tenant) -> None:
    email = address(tenant, "eve")
    token = await mailed(tenant, email, "admin")
    for password in ("short", "x" * 257):
        assert (await accept(tenant.service, token, password)).is_refusal(400, "invalid_request", "12 to 256")
    assert (await accept(tenant.service, token, "lone \ud800 surrogate")).status == 400
    answer = await accept(tenant.service, token, OTHER_PASSWORD)
    assert answer.status == 200
    assert answer.body["account"] == {"id": ids.text(ids.ACCOUNT, tenant.id), "name": tenant.unique}
    assert (answer.body["email"], answer.body["role"]) == (email, "admin")
    assert OTHER_PASSWORD not in tenant.service.log.read_text()
    session = await tenant.service.login(email, OTHER_PASSWORD)
    headers = {"Authorization": f"Bearer {session.body['token']}"}
    assert (await tenant.service.request("GET", "/v1/members", headers=headers)).status == 200


@pytest.mark.rule("TEAM-10")
async def test_a_user_with_a_second_factor_joins_with_its_code(tenant: Tenant, other_tenant: Tenant) -> None:
    email = await other_tenant.user("viewer")
    session = (await tenant.service.login(email, PASSWORD)).body["token"]
    headers = {"Authorization": f"Bearer {session}"}
    begun = await tenant.service.request("POST", "/v1/auth/totp", headers=headers, json={"password": PASSWORD})
    secret = base64.b32decode(begun.body["secret"])
    code = totp.code_of(secret, totp.step_at(datetime.now(UTC)))
    confirmed = await tenant.service.request("POST", "/v1/auth/totp/confirm", headers=headers, json={"code": code})
    assert confirmed.status == 200, confirmed.raw
    token = await mailed(tenant, email)
    assert (await accept(tenant.service, token)).is_refusal(401, "unauthorized", "`code`")
    assert (await accept(tenant.service, token, code=code)).is_refusal(401, "unauthorized")
    answer = await accept(tenant.service, token, code=confirmed.body["recovery_codes"][0])
    assert answer.status == 200, answer.raw


@pytest.mark.rule("TEAM-11")
async def test_an_invitation_works_once_and_for_seven_days(tenant: Tenant) -> None:
    used, late, revoked = [await invited(tenant, address(tenant, name)) for name in ("eve", "late", "olga")]
    for answer in (used, late):
        moments = [datetime.fromisoformat(answer.body["invitation"][name]) for name in ("created_at", "expires_at")]
        assert (moments[1] - moments[0]).days == 7
    mailed_to = [await tenant.service.mailed_token(address(tenant, name)) for name in ("eve", "late", "olga")]
    assert (await accept(tenant.service, mailed_to[0])).status == 200
    await tenant.service.sql(
        "UPDATE invitations SET expires_at = now() WHERE account_id = $1 AND email = $2",
        tenant.id, address(tenant, "late"),
    )  # fmt: skip
    await tenant.call("DELETE", f"/v1/invitations/{revoked.body['invitation']['id']}")
    tokens = [*mailed_to, "x", "", "\0", "é" * 2_000]
    answers = [await accept(tenant.service, token) for token in tokens]
    assert all(answer.is_refusal(404, "not_found", "Ask an owner") for answer in answers)
    assert len({answer.error for answer in answers}) == 1
    assert (await accept(tenant.service, "lone \ud800 surrogate")).status == 400


# The audit log.


@pytest.mark.rule("LOG-01")
async def test_the_audit_log_shows_who_did_what(tenant: Tenant) -> None:
    owner = await owner_of(tenant)
    for name in ("ada", "bob", "eve"):
        await invited(tenant, address(tenant, name))
    shown = (await tenant.call("GET", "/v1/audit-log?limit=100")).body["entries"]
    assert [entry["target"] for entry in shown[:3]] == [address(tenant, name) for name in ("eve", "bob", "ada")]
    assert len({entry["id"] for entry in shown}) == len(shown)
    assert all(set(entry) == ENTRY_FIELDS for entry in shown)
    assert shown[0]["actor"] == {"name": owner, "user_id": await member_id(tenant, owner)}
    assert (shown[0]["action"], shown[0]["detail"]["role"]) == ("invitation.created", "member")


@pytest.mark.rule("LOG-02")
async def test_changes_by_members_are_in_the_audit_log(tenant: Tenant) -> None:
    owner, eve = await owner_of(tenant), address(tenant, "eve")
    await invited(tenant, address(tenant, "bob"))
    token = await mailed(tenant, eve, "viewer")
    bob = (await tenant.call("GET", "/v1/invitations")).body["invitations"][1]["id"]
    await tenant.call("DELETE", f"/v1/invitations/{bob}")
    await accept(tenant.service, token)
    path = f"/v1/members/{await member_id(tenant, eve)}"
    await tenant.call("PUT", path, {"role": "member"})
    await tenant.call("DELETE", path)
    content = {"subject": "Hello", "text": "Good morning."}
    await tenant.template("welcome", **content)
    await tenant.call("POST", "/v1/templates/welcome/versions", content)
    await tenant.call("POST", "/v1/templates/welcome/publish", {"version": 2})
    await tenant.call("DELETE", "/v1/templates/welcome")
    await tenant.call("PUT", "/v1/webhook", {"url": "https://hooks.example.com/inbox"})
    await tenant.call("POST", "/v1/webhook/rotate-secret")
    await tenant.call("POST", "/v1/webhook/ping")
    await tenant.call("DELETE", "/v1/webhook")
    actions = [(entry["action"], entry["target"]) for entry in await entries(tenant, by=owner)]
    assert actions == [
        ("invitation.created", address(tenant, "bob")),
        ("invitation.created", eve),
        ("invitation.revoked", address(tenant, "bob")),
        ("member.role_changed", eve),
        ("member.removed", eve),
        ("template.created", "welcome"),
        ("template.version_added", "welcome"),
        ("template.published", "welcome"),
        ("template.deleted", "welcome"),
        ("webhook.saved", "hooks.example.com"),
        ("webhook.secret_rotated", "webhook"),
        ("webhook.deleted", "webhook"),
    ]
    assert [(entry["action"], entry["target"]) for entry in await entries(tenant, by=eve)] == [("member.joined", eve)]


@pytest.mark.rule("LOG-04")
async def test_neither_refusals_nor_secrets_are_in_the_audit_log(tenant: Tenant) -> None:
    token = await mailed(tenant, address(tenant, "eve"))
    await accept(tenant.service, token, OTHER_PASSWORD)
    url = "https://hooks.example.com/inbox?token=hunter2"
    secret = (await tenant.call("PUT", "/v1/webhook", {"url": url})).body["secret"]
    rotated = (await tenant.call("POST", "/v1/webhook/rotate-secret")).body["secret"]
    before = await entries(tenant)
    written = json.dumps(before)
    assert all(secret_text not in written for secret_text in (token, OTHER_PASSWORD, "hunter2", secret, rotated))
    owner = await member_id(tenant, await owner_of(tenant))
    refused = [
        await tenant.call("DELETE", f"/v1/members/{owner}"),
        await tenant.call("PUT", f"/v1/members/{UNKNOWN_MEMBER}", {"role": "owner"}),
        await tenant.call("POST", "/v1/invitations", {"email": address(tenant, "eve"), "role": "owner"}),
        await tenant.call("DELETE", "/v1/templates/unknown"),
        await tenant.call("PUT", "/v1/webhook", {"url": "http://127.0.0.1/"}),
    ]
    assert all(answer.status >= 400 for answer in refused)
    assert await entries(tenant) == before


@pytest.mark.rule("LOG-05")
async def test_the_audit_log_is_filtered(tenant: Tenant) -> None:
    owner = await owner_of(tenant)
    for name in ("ada", "bob"):
        await invited(tenant, address(tenant, name))
    await tenant.call("POST", "/v1/domains", {"name": f"{tenant.unique}.example.org"})
    whole = (await tenant.call("GET", "/v1/audit-log?limit=100")).body["entries"]
    owner_id = await member_id(tenant, owner)
    middle = next(entry["at"] for entry in whole if entry["target"] == address(tenant, "bob"))
    wanted: dict[str, Callable[[dict[str, Any]], bool]] = {
        "action=invitation.created": lambda entry: entry["action"] == "invitation.created",
        "action=invitation": lambda entry: entry["action"].startswith("invitation."),
        "action=domain.added": lambda entry: entry["action"] == "domain.added",
        "action=invit": lambda _: False,
        f"actor={owner.upper()}": lambda entry: entry["actor"]["name"] == owner,
        f"actor={owner_id}": lambda entry: entry["actor"]["user_id"] == owner_id,
        "actor=operator": lambda entry: entry["actor"]["name"] == "operator",
        f"actor=operator&since={middle}": lambda _: False,
        f"since={middle}": lambda entry: entry["at"] >= middle,
        f"until={middle}": lambda entry: entry["at"] < middle,
    }
    for query, is_wanted in wanted.items():
        found = (await tenant.call("GET", f"/v1/audit-log?limit=100&{query}")).body["entries"]
        assert found == [entry for entry in whole if is_wanted(entry)], query
    first = await tenant.call("GET", "/v1/audit-log?limit=1&action=invitation")
    rest = await tenant.call("GET", f"/v1/audit-log?limit=1&action=invitation&cursor={first.body['next_cursor']}")
    pages = [first.body["entries"][0]["target"], rest.body["entries"][0]["target"]]
    assert (pages, rest.body["next_cursor"]) == ([address(tenant, name) for name in ("bob", "ada")], None)
    for query in ("action=A", "action=a.b.c", "action=", "actor=", "actor=%00", "since=now", "until=2026"):
        answer = await tenant.call("GET", f"/v1/audit-log?{query}")
        assert answer.is_refusal(400, "invalid_request", query.partition("=")[0])


@pytest.mark.rule("TEAM-16")
async def test_members_show_second_factor_and_last_seen(tenant: Tenant, start_service: StartService) -> None:
    viewer = await tenant.user("viewer")
    owner = await owner_of(tenant)
    process = await start_service()
    headers = {"Authorization": await tenant.jwt("owner")}
    before = await members(tenant)
    assert (before[viewer]["second_factor"], before[viewer]["last_seen_at"]) == (False, None)
    assert (await process.request("GET", "/v1/account", headers=headers)).status == 200
    await process.stop()  # it also writes at its end
    await tenant.service.sql(
        "INSERT INTO second_factors (user_id, secret_sealed, created_at, confirmed_at)"
        " SELECT id, 'sealed', now(), now() FROM users WHERE email = $1",
        viewer,
    )
    after = await members(tenant)
    assert after[viewer]["second_factor"] is True
    assert (after[viewer]["last_seen_at"], after[owner]["second_factor"]) == (None, False)
    assert datetime.fromisoformat(after[owner]["last_seen_at"]) <= datetime.now(UTC)


@pytest.mark.rule("TEAM-17")
async def test_owners_rename_their_account(tenant: Tenant, service: Service) -> None:
    other = await service.account()
    theirs = (await other.call("GET", "/v1/account")).body["account"]["name"]
    for role in ("viewer", "member", "admin"):
        assert (await tenant.call("PUT", "/v1/account", {"name": "x"}, role=role)).is_refusal(403, "forbidden")
    for body in ({}, {"name": ""}, {"name": "a\nb"}, {"name": "x" * 201}, {"name": 7}):
        assert (await tenant.call("PUT", "/v1/account", body)).is_refusal(400, "invalid_request", "name")
    # Whether another account has the name is not said.
    for name in (theirs, " Acme & <Sons> "):
        answer = await tenant.call("PUT", "/v1/account", {"name": name})
        assert (answer.status, answer.body["name"]) == (200, name.strip())
    shown = (await tenant.call("GET", "/v1/account", role="viewer")).body["account"]["name"]
    listed = (await tenant.call("GET", "/v1/auth/me")).body["accounts"]
    assert [shown] == [account["name"] for account in listed] == ["Acme & <Sons>"]
    assert (await other.call("GET", "/v1/account")).body["account"]["name"] == theirs
    (latest,) = (await tenant.call("GET", "/v1/audit-log?action=account.renamed&limit=1")).body["entries"]
    assert latest["target"] == "Acme & <Sons>"
