"""Authentication: Basic, API keys, tokens, login, roles, networks, and storage of secrets."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import jwt
import pytest

from posthouse.rules import limits
from tests.support import faster
from tests.support.eventually import eventually, used_in_time
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, JWT_SECRET, PASSWORD, PEPPER, Service, StartService, Tenant, basic, person_at

LOGIN = "/v1/auth/login"


@pytest.mark.rule("AUTH-01")
async def test_smtp_credentials_send_and_read(tenant: Tenant) -> None:
    sent = await tenant.accepts(authorization=tenant.basic)
    assert (await tenant.get(sent["id"], authorization=tenant.basic)).status == 200


@pytest.mark.rule("AUTH-02")
async def test_an_api_key_sends(tenant: Tenant) -> None:
    await tenant.accepts(authorization=await tenant.key())


@pytest.mark.rule("AUTH-03")
async def test_a_token_sends_and_reads(tenant: Tenant) -> None:
    sent = await tenant.accepts(authorization=await tenant.jwt())
    assert (await tenant.get(sent["id"], authorization=await tenant.jwt())).status == 200


@pytest.mark.rule("AUTH-04", "CODE-02", "GET-06")
async def test_no_credential_is_unauthorized(service: Service, regular: Tenant) -> None:
    headers = {"Idempotency-Key": "x"}
    answer = await service.request("POST", "/emails", headers=headers, json=regular.mail())
    assert answer.is_refusal(401, "unauthorized", "Authorization")
    sent = await regular.accepts()
    answer = await service.request("GET", f"/emails/{sent['id']}")
    assert answer.is_refusal(401, "unauthorized", "Authorization")
    assert (await service.request("GET", "/v1/templates")).is_refusal(401, "unauthorized")


MALFORMED = [
    "Basic",
    "Basic ",
    "Basic !!!",
    "Basic " + base64.b64encode(b"no colon").decode(),
    "Basic " + base64.b64encode(b":").decode(),
    "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
    "Basic " + base64.b64encode(b"user\0:pass").decode(),
    "Basic " + "A" * 20_000,
    "Bearer",
    "Bearer ",
    "Bearer a b",
    "Bearer ph_live_",
    "Bearer ph_live_tooshort",
    "Bearer x.y.z",
    "Bearer ..",
    "Digest username=x",
    "nonsense",
    "smtp_user:password",
]


@pytest.mark.rule("AUTH-05")
@pytest.mark.parametrize("authorization", MALFORMED)
async def test_a_malformed_credential_is_unauthorized(regular: Tenant, authorization: str) -> None:
    await regular.refuses(regular.mail(), 401, "unauthorized", authorization=authorization)
    assert (await regular.get("em_x", authorization=authorization)).is_refusal(401, "unauthorized")


@pytest.mark.rule("AUTH-06", "GET-06")
async def test_an_unknown_credential_is_unauthorized(regular: Tenant) -> None:
    key = await regular.key()
    other = "A" if key[-1] != "A" else "B"
    wrong = [
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


@pytest.mark.rule("AUTH-12")
async def test_the_scheme_is_accepted_in_any_case(regular: Tenant) -> None:
    for authorization in (
        regular.basic.replace("Basic", "basic"),
        (await regular.key()).replace("Bearer", "BEARER"),
        (await regular.jwt()).replace("Bearer", "bearer"),
    ):
        await regular.accepts(authorization=authorization)


@pytest.mark.rule("AUTH-07", "CRED-06")
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


@pytest.mark.rule("AUTH-08")
async def test_an_expired_api_key_is_unauthorized(service: Service, tenant: Tenant) -> None:
    old, young = [await service.operator.create_key(tenant.id, tenant.credential_id) for _ in range(2)]
    now = datetime.now(UTC)
    for key, left in ((old, timedelta(seconds=-1)), (young, timedelta(hours=1))):
        await service.sql("UPDATE api_keys SET expires_at = $2 WHERE id = $1", key.id, now + left)
    await tenant.refuses(tenant.mail(), 401, "unauthorized", authorization=f"Bearer {old.secret}")
    await tenant.accepts(authorization=f"Bearer {young.secret}")


@pytest.mark.rule("AUTH-08")
async def test_an_api_key_expires_while_it_is_cached(service: Service, tenant: Tenant) -> None:
    async def used(seconds: float) -> str | None:
        key = await service.operator.create_key(tenant.id, tenant.credential_id)
        soon = datetime.now(UTC) + timedelta(seconds=seconds)
        await service.sql("UPDATE api_keys SET expires_at = $2 WHERE id = $1", key.id, soon)
        authorization = f"Bearer {key.secret}"
        return authorization if (await tenant.send(authorization=authorization)).is_accepted() else None

    authorization = await used_in_time(used)
    await eventually(lambda: tenant.send(authorization=authorization), lambda answer: answer.status == 401)


@pytest.mark.rule("AUTH-08")
async def test_an_expired_token_is_unauthorized(regular: Tenant) -> None:
    now = int(time.time())
    expired = await regular.forged(iat=now - 13 * 3600, exp=now - 3600)
    await regular.refuses(regular.mail(), 401, "unauthorized", authorization=expired)
    answer = await regular.service.request("GET", "/v1/templates", headers={"Authorization": expired})
    assert answer.is_refusal(401, "unauthorized")
    # The same token with valid times is accepted, so the time was the reason of the refusal.
    await regular.accepts(authorization=await regular.forged(exp=now + 3600))


def unsigned(token: str, header: dict[str, object]) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"Bearer {encoded}.{token.split('.')[1]}."


@pytest.mark.rule("AUTH-09")
async def test_a_token_of_another_key_or_algorithm_is_unauthorized(regular: Tenant) -> None:
    real = await regular.jwt()
    algorithm = jwt.get_unverified_header(real.removeprefix("Bearer "))["alg"]
    claims = jwt.decode(real.removeprefix("Bearer "), options={"verify_signature": False})
    other_algorithm = "HS512" if algorithm != "HS512" else "HS256"
    forgeries = [
        await regular.forged(secret="another secret of thirty-two bytes or more, far too long"),
        await regular.forged(secret=PEPPER),
        await regular.forged(secret=JWT_SECRET + JWT_SECRET, algorithm=other_algorithm),
        await regular.forged(algorithm="HS384", secret=JWT_SECRET),
        unsigned(real, {"alg": "none", "typ": "JWT"}),
        unsigned(real, {"alg": "None", "typ": "JWT"}),
        unsigned(real, {"alg": "RS256", "typ": "JWT"}),
        f"{real[:-4]}AAAA",
        "Bearer " + jwt.encode(claims, JWT_SECRET, algorithm, headers={"crit": ["x"], "x": 1}),
    ]
    for forgery in forgeries:
        await regular.refuses(regular.mail(), 401, "unauthorized", authorization=forgery)


@pytest.mark.rule("AUTH-09")
async def test_a_key_named_in_the_tokens_header_is_not_used(regular: Tenant) -> None:
    real = (await regular.jwt()).removeprefix("Bearer ")
    algorithm = jwt.get_unverified_header(real)["alg"]
    claims = jwt.decode(real, options={"verify_signature": False})
    other = "a secret of the forger's own, of thirty-two bytes or more"
    for header in ({"jku": "https://example.com/keys"}, {"kid": "../../dev/null"}, {"jwk": {"kty": "oct", "k": "eA"}}):
        token = jwt.encode(claims, other, algorithm, headers=header)
        await regular.refuses(regular.mail(), 401, "unauthorized", authorization=f"Bearer {token}")


@pytest.mark.rule("AUTH-10")
@pytest.mark.parametrize(
    "claims",
    [{"iss": "another"}, {"aud": "another"}, {"iss": ABSENT}, {"aud": ABSENT}, {"exp": ABSENT}, {"sub": ABSENT},
     {"account_id": ABSENT}, {"sub": "us_nobody"}, {"account_id": "ac_nothing"}, {"account_id": 7}, {"sub": 7},
     {"exp": "soon"}, {"iat": 99999999999}],
    ids=lambda claims: ",".join(claims),
)  # fmt: skip
async def test_a_token_with_other_claims_is_unauthorized(regular: Tenant, claims: dict[str, Any]) -> None:
    await regular.refuses(regular.mail(), 401, "unauthorized", authorization=await regular.forged(**claims))


@pytest.mark.rule("AUTH-10")
async def test_a_token_for_another_users_account_is_unauthorized(regular: Tenant, other_tenant: Tenant) -> None:
    mine = (await regular.jwt()).removeprefix("Bearer ")
    theirs = (await other_tenant.jwt()).removeprefix("Bearer ")
    their_account = jwt.decode(theirs, options={"verify_signature": False})["account_id"]
    assert their_account != jwt.decode(mine, options={"verify_signature": False})["account_id"]
    forged = await regular.forged(account_id=their_account)
    await other_tenant.refuses(other_tenant.mail(), 401, "unauthorized", authorization=forged)


@pytest.mark.rule("AUTH-11", "CODE-02")
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/templates"), ("POST", "/v1/templates"), ("GET", "/v1/templates/x"), ("DELETE", "/v1/templates/x"),
     ("POST", "/v1/templates/x/versions"), ("POST", "/v1/templates/x/publish"), ("POST", "/v1/templates/x/preview")],
)  # fmt: skip
async def test_under_v1_only_a_token_is_accepted(regular: Tenant, method: str, path: str) -> None:
    for authorization in (regular.basic, await regular.key(may_read=True), await regular.key("test")):
        answer = await regular.service.request(
            method, path, headers={"Authorization": authorization}, json={} if method == "POST" else ABSENT
        )
        assert answer.is_refusal(401, "unauthorized")


@pytest.mark.rule("LOGIN-01", "LOGIN-03")
async def test_a_login_gives_a_token_of_twelve_hours(service: Service, tenant: Tenant) -> None:
    for role in ("owner", "viewer"):
        address = await tenant.user(role)
        began_at = int(time.time())
        answer = await service.login(address, PASSWORD)
        assert answer.status == 200
        assert set(answer.body) == {"token", "expires_at", "request_id"}
        claims = jwt.decode(answer.body["token"], options={"verify_signature": False})
        assert set(claims) == {"iss", "aud", "sub", "account_id", "role", "iat", "exp", "jti", "sid"}
        assert claims["role"] == role
        assert claims["exp"] - claims["iat"] == 12 * 3600
        assert began_at <= claims["iat"] <= time.time()
        expires_at = datetime.fromisoformat(answer.body["expires_at"])
        assert expires_at.timestamp() == claims["exp"]


@pytest.mark.rule("LOGIN-03")
async def test_two_logins_give_two_tokens(service: Service, tenant: Tenant) -> None:
    address = await tenant.user()
    tokens = [(await service.login(address, PASSWORD)).body["token"] for _ in range(2)]
    first, second = (jwt.decode(token, options={"verify_signature": False}) for token in tokens)
    assert first["jti"] != second["jti"]
    assert (first["sub"], first["account_id"]) == (second["sub"], second["account_id"])


@pytest.mark.rule("LOGIN-01")
async def test_the_email_is_accepted_in_any_case(service: Service, tenant: Tenant) -> None:
    address = await tenant.user()
    assert (await service.login(address.upper(), PASSWORD)).status == 200


@pytest.mark.rule("LOGIN-02")
async def test_a_refused_login_does_not_reveal_what_was_wrong(service: Service, tenant: Tenant) -> None:
    wrong = await service.login(await tenant.user(), "another password")
    unknown = await service.login(f"nobody@{tenant.unique}.example.net", PASSWORD)
    for answer in (wrong, unknown):
        assert answer.is_refusal(401, "unauthorized")
    assert wrong.error == unknown.error


@pytest.mark.rule("LOGIN-04", "CODE-11")
async def test_repeated_failures_make_that_user_wait(service: Service, tenant: Tenant) -> None:
    address, other = await tenant.user(), await tenant.user()
    answer = await eventually(lambda: service.login(address, "a wrong password"), lambda seen: seen.status == 429)
    assert answer.is_refusal(429, "rate_limited")
    assert int(answer.headers["Retry-After"]) >= 1
    # The wait doubles with each failure: after a dozen it is long enough for the logins that follow.
    more = "UPDATE login_failures SET count = 12, blocked_until = now() WHERE subject = $1"
    await service.sql(more, person_at(address))
    assert (await service.login(address, "a wrong password")).status == 401
    refused = await service.login(address, PASSWORD)
    assert refused.is_refusal(429, "rate_limited")
    assert int(refused.headers["Retry-After"]) > 60
    assert (await service.login(other, PASSWORD)).status == 200


@pytest.mark.rule("LOGIN-05")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"email": "a@example.net"},
        {"password": "x"},
        {"email": 7, "password": "x"},
        {"email": "a@example.net", "password": None},
        {"email": "a@example.net", "password": ["x"]},
        {"email": "a@example.net", "password": "x", "more": 1},
        [],
        "x",
    ],
    ids=str,
)
async def test_a_malformed_login_is_refused(service: Service, body: object) -> None:
    answer = await service.request("POST", LOGIN, json=body)
    assert answer.is_refusal(400, "invalid_request")


@pytest.mark.rule("LOGIN-02", "CODE-13")
@pytest.mark.parametrize(
    ("email", "password"),
    [("a\0@example.net", "x"), ("\0", "\0"), ("", ""), ("a" * 100_000, "x"), ("a@example.net", "p" * 100_000)],
    ids=["NUL", "NULs", "empty", "long email", "long password"],
)
async def test_odd_strings_are_refused_as_logins(service: Service, email: str, password: str) -> None:
    answer = await service.login(email, password)
    # A login that is too long is refused before it is read.
    assert (answer.status, answer.code) in {
        (400, "invalid_request"),
        (401, "unauthorized"),
        (413, "payload_too_large"),
    }


@pytest.mark.rule("LOGIN-06")
async def test_passwords_are_stored_as_argon2id(service: Service, tenant: Tenant) -> None:
    address = await tenant.user()
    kept = await service.value("SELECT password_hash FROM users WHERE email = $1", address)
    assert kept.startswith("$argon2id$")


@pytest.mark.rule("CRED-01")
async def test_secrets_are_stored_only_as_keyed_hashes(service: Service, tenant: Tenant) -> None:
    key = await service.operator.create_key(tenant.id, tenant.credential_id)

    def expected(secret: str) -> bytes:
        return hmac.digest(PEPPER.encode(), secret.encode(), hashlib.sha256)

    kept = await service.value("SELECT secret_hash FROM credentials WHERE id = $1", tenant.credential_id)
    assert kept == expected(tenant.password)
    assert await service.value("SELECT secret_hash FROM api_keys WHERE id = $1", key.id) == expected(key.secret)
    for table in ("credentials", "api_keys"):
        rows = await service.sql(f"SELECT t::text AS row FROM {table} t WHERE account_id = $1", tenant.id)
        assert rows
        assert not any(tenant.password in row["row"] or key.secret in row["row"] for row in rows)


@pytest.mark.rule("CRED-02")
async def test_api_keys_have_the_documented_form(tenant: Tenant) -> None:
    for mode in ("live", "test"):
        keys = {(await tenant.key(mode)).removeprefix("Bearer ") for _ in range(3)}
        assert len(keys) == 3
        assert all(re.fullmatch(rf"ph_{mode}_[0-9A-Za-z]{{43}}", key) for key in keys)


@pytest.mark.rule("CRED-03", "MONEY-07")
async def test_a_test_keys_message_costs_nothing(service: Service) -> None:
    poor = await service.account(credits=0)
    key = await poor.key("test", may_read=True)
    body = poor.mail(to=["ada@example.org", "bob@example.org"])
    sent = await poor.accepts(body, authorization=key)
    assert (sent["source"], sent["recipient_count"], sent["credits_reserved"]) == ("api", 2, 0)
    read = (await poor.get(sent["id"], authorization=key)).body
    assert (read["source"], read["recipient_count"], read["credits_reserved"]) == ("test", 2, 0)
    counts = await poor.counts()
    assert (counts["messages"], counts["recipients"], counts["reserved"]) == (1, 2, 0)
    assert await poor.available() == 0
    await poor.refuses(body, 402, "insufficient_credits")


@pytest.mark.rule("CRED-04", "CODE-02")
async def test_an_api_key_reads_only_with_the_read_scope(tenant: Tenant) -> None:
    blind, reading = await tenant.key(), await tenant.key(may_read=True)
    for key in (blind, reading):
        sent = await tenant.accepts(authorization=key)
    assert (await tenant.get(sent["id"], authorization=blind)).is_refusal(401, "unauthorized", "read")
    assert (await tenant.get(sent["id"], authorization=reading)).status == 200


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


@pytest.mark.rule("CRED-05")
async def test_a_role_written_into_a_token_is_ignored(tenant: Tenant) -> None:
    """The signature is valid, but the role is read from the account."""
    claims = jwt.decode((await tenant.jwt("viewer")).removeprefix("Bearer "), options={"verify_signature": False})
    raised = await tenant.forged(sub=claims["sub"], role="owner")
    answer = await tenant.send(authorization=raised)
    assert (answer.status, answer.code) in {(403, "forbidden"), (401, "unauthorized")}


@pytest.mark.rule("CRED-05", "CRED-06")
async def test_a_user_who_loses_a_role_loses_it_within_five_seconds(service: Service, tenant: Tenant) -> None:
    token = await tenant.jwt("member")
    await tenant.accepts(authorization=token)

    async def send() -> Answer:
        return await tenant.send(authorization=token)

    await service.sql("UPDATE memberships SET role = 'viewer' WHERE account_id = $1 AND role = 'member'", tenant.id)
    await tenant.set()
    demoted = await eventually(send, lambda answer: answer.status != 202)
    assert demoted.is_refusal(403, "forbidden")
    await service.sql("DELETE FROM memberships WHERE account_id = $1 AND role = 'viewer'", tenant.id)
    await tenant.set()
    removed = await eventually(send, lambda answer: answer.status != 403)
    assert removed.is_refusal(401, "unauthorized")


@pytest.mark.rule("CRED-07", "CODE-04")
async def test_a_client_outside_the_allowed_networks_is_refused(tenant: Tenant) -> None:
    sent = await tenant.accepts()
    far = await tenant.credential(["203.0.113.0/24", "2001:db8::/32"])
    near = await tenant.credential(["203.0.113.0/24", "127.0.0.0/8"])
    for credential, is_near in ((far, False), (near, True)):
        for authorization in (
            basic(credential.username, credential.password),
            await tenant.key(may_read=True, credential_id=credential.id),
        ):
            if is_near:
                await tenant.accepts(authorization=authorization)
                assert (await tenant.get(sent["id"], authorization=authorization)).status == 200
            else:
                await tenant.refuses(tenant.mail(), 403, "forbidden", authorization=authorization)
                answer = await tenant.get(sent["id"], authorization=authorization)
                assert answer.is_refusal(401, "unauthorized")


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


@pytest.mark.rule("CRED-08", "MONEY-01")
async def test_the_simulator_domain_is_accepted_at_the_usual_price(tenant: Tenant) -> None:
    to = [f"{name}@simulator.invalid" for name in ("delivered", "bounced", "failed", "deferred")]
    for authorization in (tenant.basic, await tenant.key(), await tenant.jwt()):
        sent = await tenant.accepts(tenant.mail(to=to), authorization=authorization)
        assert sent["credits_reserved"] == 4
    assert await tenant.available() == 1_000 - 12
    free = await tenant.accepts(tenant.mail(to=to), authorization=await tenant.key("test"))
    assert free["credits_reserved"] == 0


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
        await service.request("POST", LOGIN, json={"email": ["x"], "password": PASSWORD}),
        await service.request("POST", LOGIN, headers={"Content-Type": "text/plain"}, data=PASSWORD.encode()),
    ]
    await tenant.accepts(authorization=key)
    for answer in answers:
        assert answer.status >= 400
        assert [secret for secret in secrets if secret in answer.raw.decode()] == []
    log = service.log.read_text()
    assert [secret for secret in secrets if secret in log] == []


@pytest.mark.rule("LOGIN-04")
async def test_a_successful_login_does_not_excuse_guessing(service: Service, tenant: Tenant) -> None:
    address, other = await tenant.user(), await tenant.user()

    async def fail() -> Answer:
        assert (await service.login(other, PASSWORD)).status == 200
        return await service.login(address, "a wrong password")

    answer = await eventually(fail, lambda seen: seen.status == 429)
    assert answer.is_refusal(429, "rate_limited")


@pytest.mark.rule("LOGIN-07")
async def test_failures_with_other_addresses_lock_no_one_out(start_service: StartService) -> None:
    service = await start_service()
    address = await (await service.account()).user()
    for number in range(limits.LOGIN_NETWORK_FAILURES_FREE + 3):
        assert (await service.login(f"unknown-{number}@example.com", "a wrong password")).status == 401
        if number % 10 == 0:
            assert (await service.login(address, PASSWORD)).status == 200
    assert (await service.login(address, PASSWORD)).status == 200


@pytest.mark.rule("LOGIN-08")
async def test_one_network_can_not_take_all_places_for_passwords(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faster.REAL_HASHES, "1")
    service = await start_service()
    address = await (await service.account()).user()
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))

    async def guess(number: int) -> Answer:
        return await service.login(f"unknown-{number}@example.com", "a wrong password")

    async with aiohttp.ClientSession(connector=elsewhere) as client:
        guesses = [asyncio.create_task(guess(number)) for number in range(120)]
        await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        body = {"email": address, "password": PASSWORD}
        async with client.post(f"{service.url}/v1/auth/login", json=body) as response:
            assert response.status == 200
        answers = await asyncio.gather(*guesses)
    assert {answer.status for answer in answers} == {401, 503}
    busy = next(answer for answer in answers if answer.status == 503)
    assert busy.is_refusal(503, "temporary_failure", "try again")
