"""Authentication: Basic, API keys, tokens, login, roles, networks, and storage of secrets."""

import time
from datetime import datetime

import jwt
import pytest

from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, JWT_SECRET, PASSWORD, PEPPER, Service, Tenant, basic


@pytest.mark.rule("AUTH-01", "AUTH-02", "AUTH-03", "GET-08")
async def test_every_kind_of_credential_sends_and_reads(tenant: Tenant) -> None:
    for authorization in (tenant.basic, await tenant.key(may_read=True), await tenant.jwt()):
        sent = await tenant.accepts(authorization=authorization)
        assert (await tenant.get(sent["id"], authorization=authorization)).status == 200


@pytest.mark.rule("AUTH-04", "CODE-02", "GET-06")
async def test_no_credential_is_unauthorized(service: Service, regular: Tenant) -> None:
    headers = {"Idempotency-Key": "x"}
    answer = await service.request("POST", "/emails", headers=headers, json=regular.mail())
    assert answer.is_refusal(401, "unauthorized", "Authorization")
    sent = await regular.accepts()
    answer = await service.request("GET", f"/emails/{sent['id']}")
    assert answer.is_refusal(401, "unauthorized", "Authorization")
    assert (await service.request("GET", "/v1/templates")).is_refusal(401, "unauthorized")


@pytest.mark.rule("AUTH-06", "GET-06")
async def test_an_unknown_credential_is_unauthorized(regular: Tenant) -> None:
    key = await regular.key()
    other = "A" if key[-1] != "A" else "B"
    wrong = [
        "Basic !!!",
        "Bearer x.y.z",
        basic("smtp_nobody", regular.password),
        basic(regular.username, "wrong"),
        basic(regular.username, regular.password + "x"),
        basic(regular.username, regular.password[:-1]),
        basic(regular.username, regular.password.swapcase()),
        basic(regular.username.upper(), regular.password + " "),
        key[:-1] + other,
        key.swapcase().replace("bEARER PH_LIVE_", "Bearer ph_live_"),
        "Bearer ph_test_" + key.removeprefix("Bearer ph_live_"),
    ]
    for authorization in wrong:
        await regular.refuses(regular.mail(), 401, "unauthorized", authorization=authorization)
        assert (await regular.get("em_x", authorization=authorization)).is_refusal(401, "unauthorized")


@pytest.mark.rule("AUTH-07", "CRED-06", "KEY-11")
async def test_a_revocation_holds_within_five_seconds_in_every_process(
    service: Service, another: Service, tenant: Tenant
) -> None:
    second = await tenant.credential()
    its_basic = basic(second.username, second.password)
    its_key = await tenant.key(credential_id=second.id)
    key = await service.operator.create_key(tenant.id, tenant.credential_id)
    cases = [(its_basic, service), (its_basic, another), (its_key, service), (its_key, another)]
    cases += [(f"Bearer {key.secret}", service), (f"Bearer {key.secret}", another)]
    for authorization, process in cases:
        await tenant.accepts(authorization=authorization, service=process)
    await service.operator.revoke_credential(tenant.id, second.id)
    await service.operator.revoke_key(tenant.id, key.id)

    async def statuses() -> set[int]:
        return {(await tenant.send(authorization=a, service=p)).status for a, p in cases}

    await eventually(statuses, lambda seen: seen == {401})
    await tenant.refuses(tenant.mail(), 401, "unauthorized", authorization=its_basic)
    await tenant.accepts(service=another)


@pytest.mark.rule("LOGIN-01", "LOGIN-03")
async def test_a_login_gives_a_token_of_twelve_hours(service: Service, tenant: Tenant) -> None:
    for role in ("owner", "viewer"):
        address = await tenant.user(role)
        began_at = int(time.time())
        answer = await service.login(address.upper(), PASSWORD)
        assert answer.status == 200
        assert set(answer.body) == {"token", "expires_at", "request_id"}
        claims = jwt.decode(answer.body["token"], options={"verify_signature": False})
        assert set(claims) == {"iss", "aud", "sub", "account_id", "role", "iat", "exp", "jti", "sid"}
        assert claims["role"] == role
        assert claims["exp"] - claims["iat"] == 12 * 3600
        assert began_at <= claims["iat"] <= time.time()
        expires_at = datetime.fromisoformat(answer.body["expires_at"])
        assert expires_at.timestamp() == claims["exp"]


@pytest.mark.rule("LOGIN-02")
async def test_a_refused_login_does_not_reveal_what_was_wrong(service: Service, tenant: Tenant) -> None:
    wrong = await service.login(await tenant.user(), "another password")
    unknown = await service.login(f"nobody@{tenant.unique}.example.net", PASSWORD)
    for answer in (wrong, unknown):
        assert answer.is_refusal(401, "unauthorized")
    assert wrong.error == unknown.error


@pytest.mark.rule("LOGIN-04", "CODE-11")
async def test_repeated_failures_make_that_user_wait_whoever_else_logs_in(service: Service, tenant: Tenant) -> None:
    address, other = await tenant.user(), await tenant.user()

    async def fail() -> Answer:
        assert (await service.login(other, PASSWORD)).status == 200
        return await service.login(address, "a wrong password")

    answer = await eventually(fail, lambda seen: seen.status == 429)
    assert answer.is_refusal(429, "rate_limited")
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.rule("LOGIN-02", "LOGIN-05", "CODE-13")
async def test_a_malformed_or_odd_login_is_refused(service: Service) -> None:
    bodies: list[object] = [{}, {"email": "a@example.net"}, {"password": "x"}, [], "x"]
    bodies += [{"email": email, "password": "x"} for email in (7, None, ["a@example.net"])]
    bodies += [{"email": "a@example.net", "password": given} for given in (None, ["x"])]
    bodies += [{"email": "a@example.net", "password": "x", "more": 1}]
    for body in bodies:
        answer = await service.request("POST", "/v1/auth/login", json=body)
        assert answer.is_refusal(400, "invalid_request"), body
    for email, password in (("a\0@example.net", "x"), ("\0", "\0"), ("", ""), ("a" * 1_000, "p" * 1_000)):
        assert (await service.login(email, password)).status in {400, 401}, email[:20]
    # A login that is too long is refused before it is read.
    assert (await service.login("a@example.net", "p" * 100_000)).is_refusal(413, "payload_too_large")


@pytest.mark.rule("CRED-04", "CODE-06")
async def test_a_test_key_reads_only_test_messages(tenant: Tenant) -> None:
    reading = await tenant.key(mode="test", may_read=True)
    of_test = await tenant.accepts(authorization=reading)
    live = await tenant.accepts()
    assert (await tenant.get(of_test["id"], authorization=reading)).body["source"] == "test"
    assert (await tenant.get(of_test["id"])).status == 200, "a live credential reads both"
    hidden = await tenant.get(live["id"], authorization=reading)
    unknown = await tenant.get("em_01k00000000000000000000000", authorization=reading)
    assert hidden.is_refusal(404, "not_found")
    assert hidden.error == unknown.error


@pytest.mark.rule("CRED-05", "CODE-04")
async def test_a_viewers_token_reads_and_does_not_send(tenant: Tenant) -> None:
    for role in ("owner", "admin", "member"):
        sent = await tenant.accepts(authorization=await tenant.jwt(role))
    viewer = await tenant.jwt("viewer")
    await tenant.refuses(tenant.mail(), 403, "forbidden", authorization=viewer)
    assert (await tenant.get(sent["id"], authorization=viewer)).status == 200


@pytest.mark.rule("CRED-07")
async def test_a_forwarded_address_is_ignored(tenant: Tenant) -> None:
    far = await tenant.credential(["203.0.113.0/24"])
    for header in ("X-Forwarded-For", "X-Real-IP", "Forwarded"):
        value = "for=203.0.113.7" if header == "Forwarded" else "203.0.113.7"
        await tenant.refuses(
            tenant.mail(),
            403,
            "forbidden",
            authorization=basic(far.username, far.password),
            headers={header: value},
        )


@pytest.mark.rule("ERR-03")
async def test_secrets_appear_in_no_error_and_no_log(service: Service, tenant: Tenant) -> None:
    key, token = await tenant.key(), await tenant.jwt()
    secrets = [
        tenant.password,
        key.removeprefix("Bearer "),
        token.removeprefix("Bearer "),
        token.split(".")[2],
        PASSWORD,
        PEPPER,
        JWT_SECRET,
        tenant.basic.removeprefix("Basic "),
        "ph_live_planted0123456789",
        "a planted password",
    ]
    answers = [
        await tenant.send(authorization=authorization, key=ABSENT)
        for authorization in (tenant.basic, key, token, f"Weird {tenant.password}", f"Basic {tenant.password}")
    ]
    answers += [
        await tenant.send(authorization="Bearer ph_live_planted0123456789"),
        await tenant.send(authorization=basic(tenant.username, "a planted password")),
        await tenant.send(tenant.mail(to=[])),
        await tenant.get("em_x", authorization=key),
        await service.login(await tenant.user(), "a planted password"),
        await service.request("POST", "/v1/auth/login", json={"email": ["x"], "password": PASSWORD}),
        await service.request("POST", "/v1/auth/login", headers={"Content-Type": "text/plain"}, data=PASSWORD.encode()),
    ]
    await tenant.accepts(authorization=key)
    for answer in answers:
        assert answer.status >= 400
        assert [secret for secret in secrets if secret in answer.raw.decode()] == []
    log = service.log.read_text()
    assert [secret for secret in secrets if secret in log] == []
