"""Sessions that a browser keeps, login links and new recovery codes, over HTTP."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.cookies import Morsel, SimpleCookie
from typing import Any

import jwt
import pytest

from posthouse.rules import ids, totp
from tests.acceptance.test_sessions import Person, account, again, as_user, join, person
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import PASSWORD, Service, StartService, Tenant

NAME = "__Host-posthouse"
OWN = {"Sec-Fetch-Site": "same-origin"}


def cookie(answer: Answer) -> "Morsel[str]":
    morsel = SimpleCookie(answer.headers["Set-Cookie"])[NAME]
    assert (morsel["path"], morsel["samesite"], morsel["domain"]) == ("/", "strict", "")
    assert morsel["secure"]
    assert morsel["httponly"]
    return morsel


@dataclass
class Browser:
    """A page of the dashboard, and the browser's only cookie."""

    service: Service
    secret: str
    token: str

    @classmethod
    async def login(cls, user: Person) -> "Browser":
        answer = await user.login(remember=True)
        assert answer.status == 200, answer.raw
        return cls(user.service, cookie(answer).value, answer.body["token"])

    async def renew(
        self, body: object = None, *, service: Service | None = None, headers: Mapping[str, str] = OWN
    ) -> Answer:
        """Takes the new cookie as a browser does."""
        given = {**headers, **({"Cookie": f"{NAME}={self.secret}"} if self.secret else {})}
        answer = await (service or self.service).request(
            "POST", "/v1/auth/renew", headers=given, json={} if body is None else body
        )
        if answer.status == 200:
            self.secret, self.token = cookie(answer).value, answer.body["token"]
        return answer

    async def is_over(self) -> bool:
        return (await self.renew()).is_refusal(401, "unauthorized")


def lifetime(body: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(body["expires_at"]) - datetime.now(UTC)


@pytest.mark.rule("SES-13", "LOGIN-03", "LOGIN-05")
async def test_a_login_with_remember_sets_a_cookie_and_another_none(tenant: Tenant) -> None:
    ada = await person(tenant)
    plain = await ada.login(remember=False)
    assert "Set-Cookie" not in plain.headers
    assert lifetime(plain.body) > timedelta(hours=11)
    kept = await ada.login(remember=True)
    assert set(kept.body) == {"token", "expires_at", "request_id"}
    assert timedelta(minutes=14) < lifetime(kept.body) <= timedelta(minutes=15)
    assert 6 * 86_400 < int(cookie(kept)["max-age"]) <= 7 * 86_400
    listed = await as_user(tenant.service, "GET", "/v1/auth/sessions", kept.body["token"])
    assert [session["current"] for session in listed.body["sessions"]] == [True, False, False]
    assert lifetime(listed.body["sessions"][0]) > timedelta(days=6)
    assert (await ada.login("a wrong password", remember=True)).is_refusal(401, "unauthorized")
    for odd in ("yes", 1, None):
        assert (await ada.login(remember=odd)).is_refusal(400, "invalid_request")


@pytest.mark.rule("SES-14", "SES-02", "SES-04")
async def test_a_remembered_session_is_renewed_until_logout(
    service: Service, another: Service, tenant: Tenant, other_tenant: Tenant
) -> None:
    ada = await person(tenant)
    await join(ada, other_tenant, "viewer")
    browser = await Browser.login(ada)
    seen = {browser.secret}
    for process in (service, another, service):
        answer = await browser.renew(service=process)
        assert answer.status == 200
        assert timedelta(minutes=14) < lifetime(answer.body) <= timedelta(minutes=15)
        me = (await as_user(service, "GET", "/v1/auth/me", browser.token)).body
        assert (me["account_id"], me["user"]["email"]) == (account(tenant), ada.email)
        seen.add(browser.secret)
    assert len(seen) == 4
    assert (await browser.renew({"account_id": account(other_tenant)})).status == 200
    assert (await as_user(service, "GET", "/v1/auth/me", browser.token)).body["role"] == "viewer"
    switched = await as_user(service, "POST", "/v1/auth/switch", browser.token, {"account_id": account(tenant)})
    assert lifetime(switched.body) <= timedelta(minutes=15)
    listed = (await as_user(service, "GET", "/v1/auth/sessions", browser.token)).body["sessions"]
    assert len(listed) == 2, "the login of `person`, and the remembered session once"
    out = await service.request(
        "POST", "/v1/auth/logout", headers={"Authorization": f"Bearer {browser.token}", "Cookie": f"{NAME}=x"}
    )
    assert (cookie(out).value, cookie(out)["max-age"]) == ("", "0")
    assert await browser.is_over()


@pytest.mark.rule("SES-14")
async def test_a_remembered_session_ends_with_endsession_password_and_reset(start_service: StartService) -> None:
    service = await start_service()
    ada = await person(await service.account())
    ended, others, last = [await Browser.login(ada) for _ in range(3)]
    sessions = (await ada.call("GET", "sessions")).body["sessions"]
    sid = jwt.decode(ended.token, options={"verify_signature": False})["sid"]
    assert sid in [session["id"] for session in sessions]
    assert (await ada.call("DELETE", f"sessions/{sid}")).status == 200
    assert await ended.is_over()
    new = "another horse, another battery"
    body = {"current_password": PASSWORD, "new_password": new}
    assert (await as_user(service, "POST", "/v1/auth/password", last.token, body)).status == 200
    assert await others.is_over()
    assert (await last.renew()).status == 200, "the session that changed the password continues"
    await service.request("POST", "/v1/auth/forgot", json={"email": ada.email})
    (token,) = await eventually(lambda: service.mailed_tokens(ada.email), lambda tokens: bool(tokens))
    reset = {"token": token, "password": PASSWORD}
    assert (await service.request("POST", "/v1/auth/reset", json=reset)).status == 200
    assert await last.is_over()


@pytest.mark.rule("SES-14", "SES-05", "SES-06")
async def test_a_removed_member_renews_nothing(tenant: Tenant, other_tenant: Tenant) -> None:
    ada, bob = await person(tenant), await person(tenant, "member")
    await join(bob, other_tenant, "viewer")
    browser = await Browser.login(bob)
    never = ids.text(ids.ACCOUNT, other_tenant.credential_id)
    for unknown in (never, "ac_x", "", "\0", "us_x" * 1_000):
        assert (await browser.renew({"account_id": unknown})).is_refusal(404, "not_found", "GET /v1/auth/me")
    user_id = (await bob.me())["user"]["id"]
    removed = await as_user(tenant.service, "DELETE", f"/v1/members/{user_id}", ada.token)
    assert removed.status == 200, removed.raw
    assert (await browser.renew({"account_id": account(tenant)})).is_refusal(404, "not_found")
    assert (await browser.renew()).status == 200, "another account is left"
    await tenant.service.sql(
        "DELETE FROM memberships WHERE user_id = (SELECT id FROM users WHERE email = $1)", bob.email
    )
    assert await browser.is_over()


@pytest.mark.rule("SES-15", "TOTP-08")
async def test_only_hashes_of_renewal_secrets_and_link_tokens_are_stored(service: Service, tenant: Tenant) -> None:
    ada = await person(tenant)
    browser = await Browser.login(ada)
    secrets = [browser.secret]
    await browser.renew()
    link = await service.operator.login_link(ada.email)
    secrets += [browser.secret, link]
    rows = await service.sql("SELECT s::text AS row FROM sessions s UNION ALL SELECT l::text FROM login_links l")
    said = service.log.read_text() + "".join(row["row"] for row in rows)
    assert [secret for secret in secrets if secret in said or secret.encode().hex() in said] == []


@pytest.mark.rule("SES-16")
async def test_a_session_is_renewed_only_by_our_own_pages(service: Service, tenant: Tenant) -> None:
    browser = await Browser.login(await person(tenant))
    host = f"127.0.0.1:{service.port}"
    refused = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://{host}.evil.example"},
        {"Origin": f"http://{host}@evil.example"},
        {"Accept": "*/*"},
    ]
    for headers in refused:
        assert (await browser.renew(headers=headers)).is_refusal(403, "forbidden", "own pages")
    assert (await browser.renew(headers={"Origin": f"http://{host}"})).status == 200
    kept, browser.secret = browser.secret, ""
    assert (await browser.renew()).is_refusal(401, "unauthorized", "log in")
    for odd in ("x", "x" * 5_000, "%00", '"'):
        browser.secret = odd
        assert await browser.is_over()
    headers = OWN | {"Cookie": f"{NAME}={kept}", "Content-Type": "text/plain"}
    answer = await service.request("POST", "/v1/auth/renew", headers=headers, data=b"{}")
    assert answer.is_refusal(400, "invalid_request", "application/json")
    # The secret is no token, and a token is no secret.
    assert (await as_user(service, "GET", "/v1/auth/me", kept)).is_refusal(401, "unauthorized")
    assert (await service.request("GET", "/v1/auth/me", headers={"Cookie": f"{NAME}={kept}"})).status == 401
    browser.secret = kept
    odd_bodies: list[object] = [[], "x", {"account_id": 7}, {"more": 1}]
    for body in odd_bodies:
        assert (await browser.renew(body)).is_refusal(400, "invalid_request")
    assert (await browser.renew()).status == 200


# Login links


async def by_link(service: Service, token: str, **fields: object) -> Answer:
    return await service.request("POST", "/v1/auth/link", json={"token": token, **fields})


@pytest.mark.rule("SES-17")
async def test_a_link_logs_in_once_and_is_in_the_audit_log(service: Service, tenant: Tenant) -> None:
    ada = await person(tenant, "viewer")
    token = await service.operator.login_link(ada.email.upper())
    answer = await by_link(service, token, remember=True)
    assert answer.status == 200
    assert set(answer.body) == {"token", "expires_at", "request_id"}
    browser = Browser(service, cookie(answer).value, answer.body["token"])
    assert (await browser.renew()).status == 200
    me = await as_user(service, "GET", "/v1/auth/me", browser.token)
    assert (me.body["user"]["email"], me.body["role"]) == (ada.email, "viewer")
    assert (await by_link(service, token)).is_refusal(401, "unauthorized", "10 minutes")
    plain = await by_link(service, await service.operator.login_link(ada.email))
    assert "Set-Cookie" not in plain.headers
    assert lifetime(plain.body) > timedelta(hours=11)
    noted = await service.sql(
        "SELECT actor, target FROM audit_log WHERE account_id = $1 AND action = 'user.login_link_made'", tenant.id
    )
    assert [tuple(row) for row in noted] == [("operator", ada.email)] * 2
    for odd in ("", "x", "x" * 43, "\0"):
        assert (await by_link(service, odd)).is_refusal(401, "unauthorized")
    for body in ({}, {"token": 7}, {"token": "x", "more": 1}, {"token": "x", "remember": 1}):
        assert (await service.request("POST", "/v1/auth/link", json=body)).is_refusal(400, "invalid_request")


@pytest.mark.rule("SES-17")
async def test_a_link_ends_after_10_minutes_with_the_password_and_the_sessions(
    service: Service, tenant: Tenant
) -> None:
    ada = await person(tenant)
    old = await service.operator.login_link(ada.email)
    # A second more: the clocks of the two processes may differ a little.
    await service.sql("UPDATE login_links SET expires_at = expires_at - interval '10 min 1 s'")
    assert (await by_link(service, old)).is_refusal(401, "unauthorized")
    token = await service.operator.login_link(ada.email)
    body = {"current_password": PASSWORD, "new_password": "another horse, another battery"}
    assert (await ada.call("POST", "password", body)).status == 200
    assert (await by_link(service, token)).is_refusal(401, "unauthorized")
    token = await service.operator.login_link(ada.email)
    await service.operator.end_sessions(ada.email)
    assert (await by_link(service, token)).is_refusal(401, "unauthorized")


@pytest.mark.rule("SES-17", "TOTP-06")
async def test_a_link_replaces_the_password_but_never_the_code(service: Service, tenant: Tenant) -> None:
    ada = await person(tenant)
    codes = await ada.protect()
    token = await service.operator.login_link(ada.email)
    for missing in ({}, {"code": ""}, {"code": "000000"}):
        answer = await by_link(service, token, **missing)
        assert answer.is_refusal(401, "unauthorized", "code")
        assert answer.headers["Second-Factor"] == "required"
    assert (await by_link(service, token, code=codes[0])).status == 200

    async def guess() -> Answer:
        return await by_link(service, await service.operator.login_link(ada.email), code="000000")

    assert (await eventually(guess, lambda seen: seen.status == 429)).is_refusal(429, "rate_limited")


# Recovery codes


@pytest.mark.rule("TOTP-11", "TOTP-09")
async def test_new_recovery_codes_replace_all_others(service: Service, tenant: Tenant) -> None:
    ada = await person(tenant, "viewer")
    body = {"password": PASSWORD, "code": "000000"}
    assert (await ada.call("POST", "recovery-codes", body)).is_refusal(409, "conflict", "/v1/auth/totp")
    old = await ada.protect()
    assert (await ada.call("POST", "recovery-codes", body)).is_refusal(403, "forbidden", "code")
    wrong = {"password": "a wrong password", "code": old[0]}
    assert (await ada.call("POST", "recovery-codes", wrong)).is_refusal(403, "forbidden", "password")
    for odd in ({}, {"password": PASSWORD}, {"password": PASSWORD, "code": 7}):
        assert (await ada.call("POST", "recovery-codes", odd)).is_refusal(400, "invalid_request")
    answer = await ada.call("POST", "recovery-codes", {"password": PASSWORD, "code": old[0]})
    assert answer.status == 200, answer.raw
    new = answer.body["recovery_codes"]
    assert len(set(new) - set(old)) == totp.RECOVERY_CODES
    assert (await ada.me())["user"]["recovery_codes_left"] == totp.RECOVERY_CODES
    assert (await ada.login(code=old[1])).is_refusal(401, "unauthorized")
    await again(ada, code=new[0])
    noted = await service.sql(
        "SELECT to_jsonb(audit_log)::text AS entry FROM audit_log WHERE account_id = $1", tenant.id
    )
    assert sum(json.loads(row["entry"])["action"] == "user.recovery_codes_renewed" for row in noted) == 1
    assert not any(code in row["entry"] for row in noted for code in new)
