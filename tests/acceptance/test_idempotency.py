"""Idempotency keys: the response to a retry, which requests are equal, the scope and the lifetime of a key."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules import ids
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.store.acceptance import IdempotencyKey
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.locks import lock_waits, locked_account
from tests.support.service import ABSENT, Service, Tenant, basic


@pytest.mark.rule("IDEM-01", "IDEM-02", "CODE-01")
async def test_a_key_is_required_and_has_1_to_255_characters(regular: Tenant) -> None:
    await regular.refuses(regular.mail(), 400, "invalid_request", "Idempotency-Key", key=ABSENT)
    await regular.refuses(regular.mail(), 400, "invalid_request", "Idempotency-Key", key="")
    await regular.refuses(regular.mail(), 400, "invalid_request", "Idempotency-Key", "255", key="k" * 256)
    await regular.accepts(key="k" * 255)
    await regular.accepts(key="k")
    await regular.accepts(key="a key; with, \"punctuation\" = {and} 'quotes' \\ %00")


@pytest.mark.rule("IDEM-03")
async def test_a_retry_gets_the_first_response_again(tenant: Tenant) -> None:
    body = tenant.mail(
        to="Ada <ada@example.org>",
        cc=["bob@example.org"],
        bcc="cy@example.org",
        reply_to="help@example.net",
        headers={"X-Thing": "1"},
        tags=["a", "b"],
        attachments=[{"filename": "note.txt", "content": "aGVsbG8=", "content_id": "note"}],
    )
    key = tenant.new_key()
    first = await tenant.send(body, key=key)
    assert first.is_accepted()
    assert "Idempotent-Replayed" not in first.headers
    for _ in range(2):
        again = await tenant.send(body, key=key)
        assert again.is_accepted()
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.body["request_id"] == again.headers["X-Request-ID"] != first.body["request_id"]
        assert again.body | {"request_id": ""} == first.body | {"request_id": ""}
    counts = await tenant.counts()
    assert (counts["messages"], counts["recipients"], counts["reserved"], counts["keys"]) == (1, 3, 3, 1)


@pytest.mark.rule("IDEM-03", "TMPL-15")
async def test_a_retry_of_a_template_gets_the_subject_that_was_sent(tenant: Tenant) -> None:
    await tenant.template("welcome", subject="Hello {{ name }}", text="Good morning.")
    body = tenant.mail(subject=ABSENT, text=ABSENT, template="welcome", variables={"name": "Ada"})
    key = tenant.new_key()
    first = await tenant.accepts(body, key=key)
    again = await tenant.accepts(body, key=key)
    assert first["subject"] == again["subject"] == "Hello Ada"


@pytest.mark.rule("IDEM-04")
async def test_order_and_white_space_do_not_matter(tenant: Tenant) -> None:
    body = tenant.mail(headers={"X-One": "1", "X-Two": "2"}, subject="Grüße")
    turned = dict(reversed(body.items())) | {"headers": {"X-Two": "2", "X-One": "1"}}
    key = tenant.new_key()
    first = await tenant.accepts(data=json.dumps(body, separators=(",", ":")).encode(), key=key)
    others = [
        json.dumps(body, indent=4).encode(),
        json.dumps(turned).encode(),
        json.dumps(body, ensure_ascii=False).encode(),
        b"\r\n\t " + json.dumps(turned).encode() + b"\n",
    ]
    for data in others:
        assert (await tenant.accepts(data=data, key=key))["id"] == first["id"]


@pytest.mark.rule("IDEM-05", "CODE-08")
@pytest.mark.parametrize(
    "change",
    [{"subject": "Other"}, {"to": ["ada@example.org", "bob@example.org"]}, {"text": "Good morning. "}, {"tags": "x"}],
    ids=lambda change: next(iter(change)),
)
async def test_another_body_under_a_used_key_is_a_conflict(tenant: Tenant, change: dict[str, object]) -> None:
    key = tenant.new_key()
    first = await tenant.accepts(key=key)
    await tenant.refuses(tenant.mail(**change), 409, "idempotency_conflict", key=key)
    assert (await tenant.counts())["messages"] == 1
    assert (await tenant.accepts(key=key))["id"] == first["id"]


@pytest.mark.rule("IDEM-06", "CODE-09")
async def test_a_key_that_this_process_is_accepting_is_in_progress(tenant: Tenant) -> None:
    key = tenant.new_key()
    await tenant.accepts()
    async with locked_account(tenant) as connection:
        first = asyncio.ensure_future(tenant.send(key=key))
        await lock_waits(connection)
        answer = await tenant.send(key=key)
    assert answer.is_refusal(409, "idempotency_in_progress")
    assert answer.headers["Retry-After"] == "1"
    accepted = await first
    assert accepted.is_accepted()
    assert (await tenant.accepts(key=key))["id"] == accepted.body["id"]
    assert (await tenant.counts())["messages"] == 2


@pytest.mark.rule("IDEM-06", "CODE-09")
async def test_a_key_that_another_process_is_accepting_is_in_progress(service: Service, tenant: Tenant) -> None:
    key = tenant.new_key()
    lock_number = IdempotencyKey(AccountId(tenant.id), CredentialId(tenant.credential_id), key).lock_number
    async with service.pool.acquire() as connection, connection.transaction():
        # The lock that the other process holds from its first statement to its commit.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_number)
        answer = await tenant.send(key=key)
        assert answer.is_refusal(409, "idempotency_in_progress")
        assert answer.headers["Retry-After"] == "1"
    await tenant.accepts(key=key)
    assert (await tenant.counts())["messages"] == 1


@pytest.mark.rule("IDEM-07")
async def test_an_error_frees_the_key(service: Service) -> None:
    tenant = await service.account(credits=0)
    key = tenant.new_key()
    await tenant.refuses(tenant.mail(), 402, "insufficient_credits", key=key)
    await tenant.refuses(tenant.mail(subject="Other"), 402, "insufficient_credits", key=key)
    await service.operator.grant_credits(tenant.id, 1)
    sent = await tenant.send(key=key)
    assert sent.is_accepted()
    assert "Idempotent-Replayed" not in sent.headers


@pytest.mark.rule("IDEM-08")
async def test_two_credentials_do_not_share_keys(service: Service, tenant: Tenant) -> None:
    second = await tenant.credential()
    other = await service.account()
    key = "a key that three credentials happen to choose"
    sent = [
        await tenant.accepts(key=key),
        await tenant.accepts(key=key, authorization=basic(second.username, second.password)),
        await other.accepts(key=key),
    ]
    assert len({message["id"] for message in sent}) == 3
    assert (await tenant.counts())["messages"] == 2


@pytest.mark.rule("IDEM-09")
async def test_api_keys_and_tokens_share_the_scope_of_their_credential(tenant: Tenant) -> None:
    second = await tenant.credential()
    key = tenant.new_key()
    first = await tenant.accepts(key=key)
    for authorization in (await tenant.key(), await tenant.key(may_read=True), await tenant.jwt()):
        again = await tenant.send(key=key, authorization=authorization)
        assert again.is_accepted()
        assert (again.body["id"], again.headers["Idempotent-Replayed"]) == (first["id"], "true")
    of_second = await tenant.accepts(key=key, authorization=await tenant.key(credential_id=second.id))
    assert of_second["id"] != first["id"]
    again = await tenant.send(key=key, authorization=basic(second.username, second.password))
    assert again.body["id"] == of_second["id"]


@pytest.mark.rule("IDEM-09")
async def test_a_tokens_scope_stays_when_the_default_credential_is_revoked(service: Service, tenant: Tenant) -> None:
    second = await tenant.credential()
    token, key, of_second = await tenant.jwt(), tenant.new_key(), tenant.new_key()
    first = await tenant.accepts(key=key, authorization=token)
    other = await tenant.accepts(key=of_second, authorization=basic(second.username, second.password))
    await service.operator.revoke_credential(tenant.id, tenant.credential_id)
    default = "SELECT id FROM credentials WHERE account_id = $1 AND is_default"
    assert await service.value(default, tenant.id) == second.id

    async def by_token(text: str) -> Answer:
        return await tenant.send(key=text, authorization=token)

    async def uses_the_new_default() -> bool:
        sent = await by_token(tenant.new_key())
        used = "SELECT credential_id FROM messages WHERE account_id = $1 AND id = $2"
        message_id = ids.parse(ids.MESSAGE, sent.body["id"])
        return bool(await service.value(used, tenant.id, message_id) == second.id)

    await eventually(uses_the_new_default, bool)
    again = await by_token(key)
    assert (again.body["id"], again.headers["Idempotent-Replayed"]) == (first["id"], "true")
    new = await by_token(of_second)
    assert new.is_accepted()
    assert new.body["id"] != other["id"]


@pytest.mark.rule("IDEM-10")
async def test_a_key_lives_for_24_hours(service: Service, tenant: Tenant) -> None:
    key, began_at = tenant.new_key(), datetime.now(UTC)
    first = await tenant.accepts(key=key)
    life = await service.value("SELECT expires_at FROM idempotency WHERE account_id = $1", tenant.id)
    assert began_at <= life - timedelta(hours=24) <= datetime.now(UTC)

    async def left(seconds: float) -> None:
        await service.sql(
            "UPDATE idempotency SET expires_at = now() + $2 * interval '1 second' WHERE account_id = $1",
            tenant.id,
            seconds,
        )

    await left(3_600)
    assert (await tenant.accepts(key=key))["id"] == first["id"]
    assert (await tenant.send(tenant.mail(subject="Other"), key=key)).is_refusal(409, "idempotency_conflict")
    await left(-1)
    second = await tenant.send(tenant.mail(subject="Other"), key=key)
    assert second.is_accepted()
    assert second.body["id"] != first["id"]
    assert "Idempotent-Replayed" not in second.headers
    again = await tenant.send(tenant.mail(subject="Other"), key=key)
    assert again.body["id"] == second.body["id"]
    assert (await tenant.counts())["messages"] == 2


@pytest.mark.rule("IDEM-11", "MONEY-01")
async def test_a_replay_costs_nothing(service: Service) -> None:
    tenant = await service.account(credits=2, rate=(1, 2), warmup=(2,))
    key = tenant.new_key()
    body = tenant.mail(to=["ada@example.org", "bob@example.org"])
    first = await tenant.accepts(body, key=key)
    before = await tenant.state()
    assert (before["available"], before["warmup_used"]) == (0, 2)
    answers = await asyncio.gather(*[tenant.send(body, key=key) for _ in range(20)])
    assert Counter((answer.status, answer.code) for answer in answers) == {(202, None): 20}
    assert {answer.body["id"] for answer in answers} == {first["id"]}
    assert await tenant.state() == before
