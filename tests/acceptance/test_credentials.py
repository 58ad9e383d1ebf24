"""Credentials and keys over HTTP: created, listed, rotated with an overlap, revoked."""

from typing import Any

import pytest

from posthouse.rules.credential import Scope
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import Tenant, basic

CREDENTIAL_FIELDS = {
    "id", "username", "name", "is_default", "allowed_networks", "created_at", "last_used_at",
    "last_used_from", "previous_password_until", "revoked_at",
}  # fmt: skip
KEY_FIELDS = {
    "id", "hint", "name", "mode", "scopes", "credential_id", "allowed_networks", "created_at", "created_by",
    "last_used_at", "last_used_from", "expires_at", "replaced_by", "revoked_at",
}  # fmt: skip


async def new_credential(tenant: Tenant, **fields: object) -> dict[str, Any]:
    """The response body: the credential and its password."""
    answer = await tenant.call("POST", "/v1/credentials", {"name": "web", **fields})
    assert answer.status == 201, answer.raw
    assert set(answer.body["credential"]) == CREDENTIAL_FIELDS
    return answer.body


async def new_key(tenant: Tenant, **fields: object) -> dict[str, Any]:
    """The response body: the key and its secret."""
    answer = await tenant.call("POST", "/v1/keys", {"name": "shop", **fields})
    assert answer.status == 201, answer.raw
    assert set(answer.body["key"]) == KEY_FIELDS
    return answer.body


async def listed(tenant: Tenant, family: str) -> dict[str, dict[str, Any]]:
    answer = await tenant.call("GET", f"/v1/{family}?limit=100")
    assert answer.status == 200, answer.raw
    return {row["id"]: row for row in answer.body[family]}


async def status_of_sending(tenant: Tenant, authorization: str) -> int:
    return (await tenant.send(authorization=authorization)).status


@pytest.mark.rule("KEY-02", "KEY-07")
async def test_secrets_are_shown_once_and_work(tenant: Tenant) -> None:
    made, key = await new_credential(tenant, allowed_networks=["127.0.0.0/8"]), await new_key(tenant)
    assert await status_of_sending(tenant, basic(made["credential"]["username"], made["password"])) == 202
    assert await status_of_sending(tenant, f"Bearer {key['secret']}") == 202
    assert key["key"]["hint"] == f"ph_live_…{key['secret'][-4:]}"
    for family, shown in (("credentials", made["credential"]), ("keys", key["key"])):
        answer = await tenant.call("GET", f"/v1/{family}")
        assert (await listed(tenant, family))[shown["id"]] == shown
        for secret in (made["password"], key["secret"]):
            assert secret.encode() not in answer.raw
    assert made["credential"]["allowed_networks"] == ["127.0.0.0/8"]


@pytest.mark.rule("KEY-03")
async def test_a_key_may_do_what_its_scopes_permit(tenant: Tenant) -> None:
    sends, reads = await new_key(tenant, mode="test"), await new_key(tenant, scopes=["read", "read"])
    both = await new_key(tenant, scopes=["read", "send"])
    assert [key["key"]["scopes"] for key in (sends, reads, both)] == [["send"], ["read"], ["send", "read"]]
    assert [key["key"]["mode"] for key in (sends, reads)] == ["test", "live"]
    sent = await tenant.accepts(authorization=f"Bearer {both['secret']}")
    statuses = []
    for key in (sends, reads, both):
        headers = {"Authorization": f"Bearer {key['secret']}"}
        statuses.append((await tenant.service.request("GET", f"/emails/{sent['id']}", headers=headers)).status)
    assert statuses == [401, 200, 200]
    refused = await tenant.send(authorization=f"Bearer {reads['secret']}")
    assert refused.is_refusal(403, "forbidden", "send scope")
    for wrong in ([], ["write"], "send", [7]):
        answer = await tenant.call("POST", "/v1/keys", {"name": "x", "scopes": wrong})
        assert answer.is_refusal(400, "invalid_request", "scopes")
    assert (await tenant.call("POST", "/v1/keys", {"name": "x", "mode": "dry"})).is_refusal(400, "invalid_request")


@pytest.mark.rule("KEY-15")
async def test_changes_are_in_the_audit_log_without_secrets(tenant: Tenant) -> None:
    made, key = await new_credential(tenant), await new_key(tenant)
    secrets = [made["password"], key["secret"]]
    for family, made_id in (("credentials", made["credential"]["id"]), ("keys", key["key"]["id"])):
        rotated = await tenant.call("POST", f"/v1/{family}/{made_id}/rotate", {})
        secrets.append(rotated.body.get("password") or rotated.body["secret"])
        assert (await tenant.call("DELETE", f"/v1/{family}/{made_id}")).status == 200
    log = await tenant.call("GET", "/v1/audit-log?limit=100")
    actions = [entry["action"] for entry in log.body["entries"][::-1]]
    assert [action for action in actions if action.startswith(("credential.", "key."))] == [
        "credential.created", "key.created", "credential.rotated", "credential.revoked", "key.rotated", "key.revoked",
    ]  # fmt: skip
    assert not [secret for secret in secrets if secret.encode() in log.raw]


@pytest.mark.rule("KEY-15")
async def test_a_key_names_who_created_it_as_long_as_the_log_knows(tenant: Tenant) -> None:
    async def me(role: str) -> str:
        return str((await tenant.call("GET", "/v1/auth/me", role=role)).body["user"]["email"])

    owner, admin = await me("owner"), await me("admin")
    first = (await new_key(tenant))["key"]
    rotated = await tenant.call("POST", f"/v1/keys/{first['id']}/rotate", {}, role="admin")
    assert (first["created_by"], rotated.body["key"]["created_by"]) == (owner, admin)
    assert rotated.body["previous"]["created_by"] == owner
    keys = await listed(tenant, "keys")
    assert [keys[key]["created_by"] for key in (first["id"], rotated.body["key"]["id"])] == [owner, admin]
    await tenant.service.sql("DELETE FROM audit_log WHERE account_id = $1", tenant.id)
    assert {key["created_by"] for key in (await listed(tenant, "keys")).values()} == {None}
    assert (await tenant.call("DELETE", f"/v1/keys/{first['id']}")).body["key"]["created_by"] is None


async def feed(tenant: Tenant, authorization: str) -> Answer:
    return await tenant.service.request("GET", "/v1/events", headers={"Authorization": authorization})


@pytest.mark.rule("SCOPE-01")
async def test_a_key_for_mail_is_refused_with_the_scope_that_it_lacks(tenant: Tenant) -> None:
    message = (await tenant.accepts())["id"]
    for path, words in (
        ("/v1/events", "scope `events`"),
        (f"/v1/messages/{message}", "scope `messages`"),
        ("/v1/webhook", "POST /v1/auth/login gives one"),
    ):
        answer = await tenant.service.request("GET", path, headers={"Authorization": await tenant.key(may_read=True)})
        assert answer.is_refusal(401, "unauthorized", words)
    refused = await feed(tenant, await tenant.scoped_key(Scope.TEMPLATES))
    assert refused.is_refusal(401, "unauthorized", "`events`")


@pytest.mark.rule("SCOPE-01")
async def test_a_program_key_does_not_send_or_read_mail(tenant: Tenant) -> None:
    key = await tenant.scoped_key(*[scope for scope in Scope if scope not in (Scope.SEND, Scope.READ)])
    await tenant.refuses(tenant.mail(), 403, "forbidden", "send scope", authorization=key)
    sent = await tenant.accepts()
    assert (await tenant.get(sent["id"], authorization=key)).is_refusal(401, "unauthorized", "read scope")


@pytest.mark.rule("SCOPE-04")
async def test_a_test_key_has_no_scope_for_the_account(tenant: Tenant) -> None:
    for scope in ("events", "messages", "templates", "suppressions", "domains", "endpoints"):
        body = {"name": "x", "mode": "test", "scopes": ["send", scope]}
        assert (await tenant.call("POST", "/v1/keys", body)).is_refusal(400, "invalid_request", "scopes", scope)


@pytest.mark.rule("SCOPE-05")
async def test_a_bound_key_sends_only_from_its_domains(tenant: Tenant) -> None:
    other = f"xn--bcher-kva.{tenant.unique}.example.com"
    await tenant.service.operator.add_verified_domain(tenant.id, other)
    made = await tenant.call(
        "POST", "/v1/keys", {"name": "x", "scopes": ["send", "read"], "sender_domains": [other.upper() + "."]}
    )
    assert made.status == 201, made.raw
    assert made.body["key"]["sender_domains"] == [other]
    assert (await listed(tenant, "keys"))[made.body["key"]["id"]]["sender_domains"] == [other]
    key = f"Bearer {made.body['secret']}"
    await tenant.refuses(tenant.mail(), 403, "forbidden", tenant.domain, authorization=key)
    spelled = other.replace("xn--bcher-kva", "Bücher")
    mine = await tenant.accepts(tenant.mail(from_=f"Shop <a@{spelled}>"), authorization=key)
    emails = [tenant.mail(), tenant.mail(from_=f"a@{other}")]
    headers = {"Authorization": key, "Idempotency-Key": tenant.new_key()}
    together = await tenant.service.request("POST", "/emails/batch", headers=headers, json={"emails": emails})
    assert together.status == 200, together.raw
    assert [result.get("code") for result in together.body["results"]] == ["forbidden", None]
    theirs = await tenant.accepts()
    assert (await tenant.get(mine["id"], authorization=key)).status == 200
    unknown = await tenant.get("em_01jbz3qk8e0000000000000000", authorization=key)
    hidden = await tenant.get(theirs["id"], authorization=key)
    assert hidden.is_refusal(404, "not_found")
    assert hidden.body["error"] == unknown.body["error"]
    rotated = await tenant.call("POST", f"/v1/keys/{made.body['key']['id']}/rotate", {})
    assert rotated.body["key"]["sender_domains"] == [other]
    await tenant.refuses(tenant.mail(), 403, "forbidden", authorization=f"Bearer {rotated.body['secret']}")


@pytest.mark.rule("SCOPE-05")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sender_domains": ["no domain"]}, "`sender_domains`"),
        ({"sender_domains": ["not-ours.example"]}, "`sender_domains`"),
        ({"sender_domains": [f"d{number}.example" for number in range(21)]}, "sender_domains"),
        ({"sender_domains": ["shop.example"], "scopes": ["send", "messages"]}, "sender_domains"),
        ({"sender_domains": "shop.example"}, "sender_domains"),
        ({"sender_domains": [7]}, "sender_domains"),
    ],
)
async def test_a_wrong_binding_is_refused(regular: Tenant, fields: dict[str, object], named: str) -> None:
    answer = await regular.call("POST", "/v1/keys", {"name": "x", **fields})
    assert answer.is_refusal(400, "invalid_request", named)


@pytest.mark.rule("ERR-02")
@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/keys", {"name": "x", "allowed_networks": ["nowhere"]}, "allowed_networks"),
        ("POST", "/v1/keys", {"name": "x", "allowed_networks": ["192.0.2.1/24"]}, "allowed_networks"),
        ("POST", "/v1/credentials", {"name": "x", "allowed_networks": ["::/8"] * 200}, "allowed_networks"),
        ("POST", "/v1/keys", {"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ("POST", "/v1/keys", {"name": "x", "expires_at": "2999-01-01T00:00:00Z"}, "expires_at"),
        ("POST", "/v1/domains", {"name": "no domain"}, "name"),
        ("POST", "/v1/domains", {"name": ".".join(["a" * 60] * 4)}, "name"),
        ("POST", "/v1/auth/reset", {"token": "x", "password": "short"}, "password"),
        ("POST", "/v1/auth/password", {"current_password": "x", "new_password": "short"}, "new_password"),
        ("POST", "/v1/invitations", {"email": "nobody", "role": "viewer"}, "email"),
        ("POST", "/v1/invitations", {"email": "A <a@example.org>", "role": "viewer"}, "email"),
        ("POST", "/v1/erasures", {"email": "Ada <ada@example.com>"}, "email"),
    ],
)
async def test_every_refused_field_is_named(
    regular: Tenant, method: str, path: str, body: dict[str, object], field: str
) -> None:
    answer = await regular.call(method, path, body)
    assert answer.is_refusal(400, "invalid_request", f"`{field}`")


@pytest.mark.rule("SCOPE-06")
async def test_networks_expiry_and_revocation_hold_for_programs(tenant: Tenant) -> None:
    elsewhere = await new_key(tenant, scopes=["events"], allowed_networks=["192.0.2.0/24"])
    assert (await feed(tenant, f"Bearer {elsewhere['secret']}")).is_refusal(401, "unauthorized", "127.0.0.1")
    key = await new_key(tenant, scopes=["events"])
    authorization = f"Bearer {key['secret']}"
    assert (await feed(tenant, authorization)).status == 200
    rotated = await tenant.call("POST", f"/v1/keys/{key['key']['id']}/rotate", {"overlap_seconds": 3600})
    assert rotated.body["key"]["scopes"] == ["events"]
    assert (await feed(tenant, f"Bearer {rotated.body['secret']}")).status == 200
    await tenant.call("DELETE", f"/v1/keys/{key['key']['id']}")

    async def status() -> int:
        return (await feed(tenant, authorization)).status

    await eventually(status, lambda found: found == 401)


@pytest.mark.rule("SCOPE-07")
async def test_the_log_names_the_key_that_changed_something(tenant: Tenant) -> None:
    key = await new_key(tenant, scopes=["suppressions"])
    answer = await tenant.service.request(
        "POST",
        "/v1/suppressions",
        headers={"Authorization": f"Bearer {key['secret']}"},
        json={"email": "grace@example.org"},
    )
    assert answer.status == 201, answer.raw
    log = await tenant.call("GET", "/v1/audit-log?action=suppression.added")
    assert log.body["entries"][0]["actor"] == {"name": key["key"]["id"], "user_id": None}
