"""Sessions over HTTP: login, logout, passwords, and the second factor."""

import base64
import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import jwt
import pytest

from posthouse.rules import ids, totp
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, PASSWORD, Service, StartService, Tenant

NEW = "another horse, another battery"


@dataclass
class Person:
    """A user of a tenant, and their session."""

    service: Service
    email: str
    token: str = ""
    secret: bytes = b""

    async def login(self, password: str = PASSWORD, **fields: object) -> Answer:
        body = {"email": self.email, "password": password, **fields}
        return await self.service.request("POST", "/v1/auth/login", json=body)

    async def call(self, method: str, path: str, body: object = ABSENT, *, service: Service | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self.token}"}
        return await (service or self.service).request(method, f"/v1/auth/{path}", headers=headers, json=body)

    async def me(self) -> dict[str, Any]:
        answer = await self.call("GET", "me")
        assert answer.status == 200, answer.raw
        return answer.body

    async def has_ended(self, *services: Service) -> bool:
        """Waits until the token is refused in every process, also where it was cached."""
        headers = {"Authorization": f"Bearer {self.token}"}

        async def statuses() -> set[int]:
            asked = services or [self.service]
            return {(await process.request("GET", "/v1/templates", headers=headers)).status for process in asked}

        return bool(await eventually(statuses, lambda seen: seen == {401}))

    async def protect(self) -> list[str]:
        """Enables a second factor, which uses up the present code; returns the recovery codes."""
        self.secret = base64.b32decode((await self.call("POST", "totp", {"password": PASSWORD})).body["secret"])
        answer = await self.call("POST", "totp/confirm", {"code": self.code()})
        assert answer.status == 200, answer.raw
        codes: list[str] = answer.body["recovery_codes"]
        return codes

    def code(self, ahead: int = 0) -> str:
        return totp.code_of(self.secret, int(time.time()) // totp.STEP_SECONDS + ahead)

    async def let_time_pass(self) -> None:
        """As if the last code had been used an hour ago."""
        await self.service.sql(
            "UPDATE second_factors SET last_step = last_step - 120 WHERE user_id ="
            " (SELECT id FROM users WHERE email = $1)",
            self.email,
        )


async def person(tenant: Tenant, role: str = "owner") -> Person:
    made = Person(tenant.service, await tenant.user(role))
    return await again(made)


async def again(person: Person, password: str = PASSWORD, **fields: object) -> Person:
    """The same user in another session."""
    answer = await person.login(password, **fields)
    assert answer.status == 200, answer.raw
    return Person(person.service, person.email, answer.body["token"], person.secret)


async def join(person: Person, tenant: Tenant, role: str) -> None:
    await tenant.service.sql(
        "INSERT INTO memberships (account_id, user_id, role, created_at)"
        " SELECT $1, id, $3, now() FROM users WHERE email = $2",
        tenant.id,
        person.email,
        role,
    )


def account(tenant: Tenant) -> str:
    return ids.text(ids.ACCOUNT, tenant.id)


def claims(token: str) -> dict[str, Any]:
    read: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return read


@pytest.mark.rule("SES-02")
async def test_a_logout_ends_the_session_in_every_process_and_no_other(
    service: Service, another: Service, tenant: Tenant
) -> None:
    ada = await person(tenant)
    elsewhere = await again(ada)
    for process in (service, another):
        assert (await ada.call("GET", "me", service=process)).status == 200
    answer = await ada.call("POST", "logout")
    assert (answer.status, answer.body["logged_out"]) == (200, True)
    assert await ada.has_ended(service, another)
    await tenant.refuses(tenant.mail(), 401, "unauthorized", authorization=f"Bearer {ada.token}")
    assert (await ada.call("POST", "logout")).is_refusal(401, "unauthorized", "log in again")
    assert (await elsewhere.me())["user"]["email"] == ada.email


@pytest.mark.rule("SES-03")
async def test_me_returns_user_and_accounts(tenant: Tenant, other_tenant: Tenant) -> None:
    ada = await person(tenant, "admin")
    await join(ada, other_tenant, "viewer")
    me = await ada.me()
    said = claims(ada.token)
    assert me["user"] == {"id": said["sub"], "email": ada.email, "totp_enabled": False, "recovery_codes_left": 0}
    assert (me["account_id"], me["role"]) == (account(tenant), "admin")
    assert datetime.fromisoformat(me["expires_at"]).timestamp() == said["exp"]
    assert me["accounts"] == [
        {"id": account(tenant), "name": tenant.unique, "role": "admin"},
        {"id": account(other_tenant), "name": other_tenant.unique, "role": "viewer"},
    ]


@pytest.mark.rule("SES-05")
async def test_another_users_account_is_unknown_like_a_missing_account(tenant: Tenant, other_tenant: Tenant) -> None:
    ada = await person(tenant)
    never = ids.text(ids.ACCOUNT, UUID(int=7))
    answers = [
        await ada.call("POST", "switch", {"account_id": account_id})
        for account_id in (account(other_tenant), never, "ac_x", "", "\0", "us_x" * 1_000)
    ]
    for answer in answers:
        assert answer.is_refusal(404, "not_found", "GET /v1/auth/me")
    assert len({answer.error for answer in answers}) == 1
    for odd in ("{}", '{"account_id": 7}', f'{{"account_id": "{never}", "more": 1}}', "[]"):
        assert (await ada.call("POST", "switch", json.loads(odd))).is_refusal(400, "invalid_request")


@pytest.mark.rule("SES-09")
async def test_responses_with_private_data_are_not_cached(service: Service, tenant: Tenant) -> None:
    ada = await person(tenant)
    sent = await tenant.accepts(tenant.mail())
    answers = [
        await ada.call("GET", "me"),
        await ada.login("a wrong password"),
        await ada.login(more=1),
        await tenant.call("GET", "/v1/templates"),
        await service.request("GET", "/v1/templates"),
        await service.request("GET", "/v1/nothing"),
        await service.request("DELETE", "/v1/auth/login"),
        await tenant.get(sent["id"]),
        await tenant.get("unknown"),
    ]
    assert [answer.status for answer in answers] == [200, 401, 400, 200, 401, 404, 405, 200, 404]
    assert [answer.headers.getall("Cache-Control") for answer in answers] == [["no-store"]] * len(answers)  # type: ignore[attr-defined]


@pytest.mark.rule("SES-09")
async def test_no_response_is_taken_for_another_type(service: Service, tenant: Tenant) -> None:
    answers = [
        await tenant.send(),
        await tenant.send({}),
        await tenant.send(authorization="Bearer nothing"),
        await service.request("GET", "/healthz"),
        await service.request("GET", "/v1/templates"),
        await service.request("GET", "/nothing"),
        await service.request("GET", "/docs/nothing"),
    ]
    assert [answer.status for answer in answers] == [202, 400, 401, 200, 401, 404, 404]
    assert [answer.headers.getall("X-Content-Type-Options") for answer in answers] == [["nosniff"]] * len(answers)  # type: ignore[attr-defined]


@pytest.mark.rule("PASS-02")
async def test_changing_a_password_needs_the_old_and_a_long_new_password(tenant: Tenant) -> None:
    ada = await person(tenant)
    wrong = {"current_password": "a wrong password", "new_password": NEW}
    assert (await ada.call("POST", "password", wrong)).is_refusal(403, "forbidden", "current_password")
    for new in ("", "eleven char", "x" * 257):
        body = {"current_password": PASSWORD, "new_password": new}
        assert (await ada.call("POST", "password", body)).is_refusal(400, "invalid_request", "12 to 256")
    for odd in ({}, {"current_password": PASSWORD}, {"current_password": PASSWORD, "new_password": 7}):
        assert (await ada.call("POST", "password", odd)).is_refusal(400, "invalid_request")
    assert (await ada.login()).status == 200


@pytest.mark.rule("TOTP-01", "TOTP-02", "TOTP-03")
async def test_a_second_factor_is_required_once_confirmed(tenant: Tenant) -> None:
    ada = await person(tenant, "viewer")
    elsewhere = await again(ada)
    for odd in (ABSENT, {}, {"password": 7}, {"password": PASSWORD, "more": 1}):
        assert (await ada.call("POST", "totp", odd)).is_refusal(400, "invalid_request")
    begun = await ada.call("POST", "totp", {"password": PASSWORD})
    assert set(begun.body) == {"secret", "uri", "request_id"}
    uri = urlsplit(begun.body["uri"])
    assert (uri.scheme, uri.netloc, uri.path) == ("otpauth", "totp", f"/Posthouse:{ada.email}")
    assert parse_qs(uri.query)["secret"] == [begun.body["secret"]]
    for wrong in ("", "12345", "x" * 10_000):
        assert (await ada.call("POST", "totp/confirm", {"code": wrong})).is_refusal(403, "forbidden")
    for body in ({}, {"code": 287082}, {"code": None}):
        assert (await ada.call("POST", "totp/confirm", body)).is_refusal(400, "invalid_request")
    assert len(set(await ada.protect())) == 10
    assert await elsewhere.has_ended()
    asked = await ada.login()
    assert asked.is_refusal(401, "unauthorized", "send `code`")
    assert asked.headers["Second-Factor"] == "required"
    assert (await ada.login(code=7)).is_refusal(400, "invalid_request")
    user = (await ada.me())["user"]
    assert (user["totp_enabled"], user["recovery_codes_left"]) == (True, 10)


# Sessions of a user, and the account that a login opens.


async def as_user(service: Service, method: str, path: str, token: str, body: object = ABSENT) -> Answer:
    return await service.request(method, path, headers={"Authorization": f"Bearer {token}"}, json=body)


@pytest.mark.rule("SES-11")
async def test_a_user_sees_and_ends_their_sessions(tenant: Tenant) -> None:
    service, email = tenant.service, await tenant.user("viewer")
    login = {"email": email, "password": PASSWORD}
    first = await service.request("POST", "/v1/auth/login", json=login, headers={"User-Agent": "phone/1.0"})
    old, new = first.body["token"], (await service.login(email, PASSWORD)).body["token"]
    listed = (await as_user(service, "GET", "/v1/auth/sessions", new)).body["sessions"]
    assert [session["current"] for session in listed] == [True, False]
    assert set(listed[1]) == {"id", "created_at", "expires_at", "address", "user_agent", "current"}
    assert (listed[1]["user_agent"], listed[1]["address"]) == ("phone/1.0", "127.0.0.1")
    path = f"/v1/auth/sessions/{listed[1]['id']}"
    other = (await service.login(await tenant.user("viewer"), PASSWORD)).body["token"]
    assert (await as_user(service, "DELETE", path, other)).is_refusal(404, "not_found")
    assert (await as_user(service, "DELETE", path, new)).body["deleted"] is True

    async def read() -> Answer:
        return await as_user(service, "GET", "/v1/auth/me", old)

    assert (await eventually(read, lambda answer: answer.status != 200)).is_refusal(401, "unauthorized")
    assert (await as_user(service, "DELETE", path, new)).is_refusal(404, "not_found")
    assert (await as_user(service, "DELETE", "/v1/auth/sessions/x", new)).is_refusal(404, "not_found")
    assert len((await as_user(service, "GET", "/v1/auth/sessions", new)).body["sessions"]) == 1


@pytest.mark.rule("SES-10")
async def test_a_login_opens_the_account_that_was_used_last(tenant: Tenant, other_tenant: Tenant) -> None:
    service, email = tenant.service, await tenant.user("viewer")
    token = await service.operator.invite(other_tenant.id, email, "viewer")
    accepting = {"token": token, "password": PASSWORD}
    assert (await service.request("POST", "/v1/invitations/accept", json=accepting)).status == 200
    here, there = (ids.text(ids.ACCOUNT, account.id) for account in (tenant, other_tenant))

    async def opened() -> tuple[str, str]:
        session: str = (await service.login(email, PASSWORD)).body["token"]
        return (await as_user(service, "GET", "/v1/auth/me", session)).body["account_id"], session

    account, session = await opened()
    assert account == here
    assert (await as_user(service, "POST", "/v1/auth/switch", session, {"account_id": there})).status == 200
    assert (await opened())[0] == there


# Forgotten passwords.


async def forgot(service: Service, email: str) -> Answer:
    return await service.request("POST", "/v1/auth/forgot", json={"email": email})


async def reset(service: Service, token: str, password: str) -> Answer:
    return await service.request("POST", "/v1/auth/reset", json={"token": token, "password": password})


@pytest.mark.rule("PASS-03", "PASS-04")
async def test_a_forgotten_password_is_replaced_by_mail_within_an_hour(start_service: StartService) -> None:
    service = await start_service()
    tenant = await service.account()
    email = await tenant.user()
    session = (await service.login(email, PASSWORD)).body["token"]
    known, unknown = await forgot(service, email.upper()), await forgot(service, f"no-{email}")
    assert [answer.status for answer in (known, unknown)] == [200, 200]
    assert {name: value for name, value in known.body.items() if name != "request_id"} == {"requested": True}
    (token,) = await eventually(lambda: service.mailed_tokens(email), lambda tokens: bool(tokens))
    assert await service.mailed_tokens(f"no-{email}") == []
    assert (await reset(service, token, "short")).is_refusal(400, "invalid_request")
    assert (await reset(service, "x" * 43, "a new password, longer")).is_refusal(404, "not_found")
    assert (await reset(service, token, "a new password, longer")).body["reset"] is True
    assert (await reset(service, token, "another password, longer")).is_refusal(404, "not_found")
    assert (await service.login(email, PASSWORD)).status == 401
    assert (await service.login(email, "a new password, longer")).status == 200

    async def read() -> Answer:
        return await as_user(service, "GET", "/v1/auth/me", session)

    assert (await eventually(read, lambda answer: answer.status != 200)).is_refusal(401, "unauthorized")
    assert token not in service.log.read_text()
    await forgot(service, email)
    newer = await eventually(lambda: service.mailed_tokens(email), lambda tokens: len(tokens) == 2)
    await service.sql("UPDATE password_resets SET expires_at = expires_at - interval '1 hour'")
    assert (await reset(service, newer[0], "a new password, longer")).is_refusal(404, "not_found", "60 minutes")


@pytest.mark.rule("PASS-03")
async def test_requests_for_new_passwords_are_limited(start_service: StartService) -> None:
    service = await start_service()
    email = await (await service.account()).user()
    answers = [await forgot(service, email) for _ in range(12)]
    assert [answer.status for answer in answers[:10]] == [200] * 10
    assert answers[-1].is_refusal(429, "rate_limited")
    tokens = await eventually(lambda: service.mailed_tokens(email), lambda tokens: len(tokens) == 3)
    # The messages are made at the same time: any of the three may be the last.
    resets = [await reset(service, token, "a new password, longer") for token in tokens]
    (valid,) = [answer for answer in resets if answer.status == 200]
    for answer in resets:
        assert answer is valid or answer.is_refusal(404, "not_found", "replaced")


@pytest.mark.rule("PASS-06")
async def test_while_nothing_can_be_sent_no_one_is_promised_an_email(start_service: StartService) -> None:
    sender = await (await start_service()).account()
    service = await start_service(
        SERVICE__SENDER=f"no-reply@{sender.domain}", SERVICE__SENDER_ACCOUNT=ids.text(ids.ACCOUNT, sender.id)
    )
    email = await sender.user()
    await service.operator.suspend(sender.id)
    for address in (email, f"no-{email}"):
        answer = await forgot(service, address)
        assert answer.is_refusal(503, "service_unavailable", "can't send its own mail")
        assert answer.headers["retry-after"] == "60"
    await service.operator.resume(sender.id)
    assert [(await forgot(service, address)).status for address in (email, f"no-{email}")] == [200, 200]


# A second factor that the account requires.


@pytest.mark.rule("TOTP-10")
async def test_without_the_second_factor_that_an_account_requires_a_member_sets_it_up(tenant: Tenant) -> None:
    service = tenant.service
    owner, bob = await person(tenant), await person(tenant, "member")
    sent = await tenant.accepts()

    async def require(required: bool) -> Answer:
        return await as_user(service, "PUT", "/v1/account/second-factor", owner.token, {"required": required})

    assert (await require(True)).is_refusal(409, "conflict", "yourself")
    await owner.protect()
    assert (await require(True)).body["required"] is True

    async def read() -> Answer:
        return await as_user(service, "GET", "/v1/templates", bob.token)

    refused = await eventually(read, lambda answer: answer.status != 200)
    assert refused.is_refusal(403, "forbidden", "/v1/auth/totp")
    authorization = f"Bearer {bob.token}"
    assert (await tenant.send(authorization=authorization)).is_refusal(403, "forbidden", "second factor")
    assert (await tenant.get(sent["id"], authorization=authorization)).is_refusal(401, "unauthorized")
    assert (await as_user(service, "GET", "/v1/templates", owner.token)).status == 200
    assert (await tenant.send()).status == 202, "a key or password of the account is no member"
    assert (await bob.me())["totp_required"] is True
    assert (await bob.call("GET", "sessions")).status == 200
    await bob.protect()
    assert (await eventually(read, lambda answer: answer.status == 200)).status == 200
    assert (await tenant.send(authorization=authorization)).status == 202
    admin = await person(tenant, "admin")
    body = {"required": False}
    assert (await as_user(service, "PUT", "/v1/account/second-factor", admin.token, body)).status == 403
    assert (await require(False)).body["required"] is False

    async def read_keys() -> Answer:
        return await as_user(service, "GET", "/v1/keys", admin.token)

    await eventually(read_keys, lambda answer: answer.status == 200)


# Logins from new places


@pytest.mark.rule("SES-12")
async def test_the_place_of_a_login_is_noted(service: Service) -> None:
    email = await (await service.account()).user()
    places = "SELECT 1 FROM known_login_locations JOIN users ON id = user_id WHERE email = $1"
    assert await service.sql(places, email) == []
    assert (await service.login(email, PASSWORD)).status == 200
    await eventually(lambda: service.sql(places, email), lambda rows: len(rows) == 1)
