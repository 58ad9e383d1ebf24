"""Roles and accounts under /v1: every operation of the OpenAPI document, called with every kind of credential.

Nothing here lists the operations. What an operation of a new path needs to be called with has to be said in `MAKERS`,
and it fails by its name until it is.
"""

import base64
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import pytest
import pytest_asyncio
from argon2 import PasswordHasher

from posthouse.rules import credential, ids, totp
from posthouse.rules.credential import Role, Scope
from tests.support import declared_access
from tests.support.declared_access import FOR_OPERATORS, FOR_PROGRAMS, NEEDED, SCOPES
from tests.support.operator_login import operator_login
from tests.support.service import ABSENT, PASSWORD, Service, Tenant
from tools.write_openapi import FILE, resolved

UNKNOWN: Final = UUID("0192f7e3-b9d0-7000-8000-000000000000")
ROLES: Final = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)
CHEAP_HASH: Final = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
STREAM: Final = "text/event-stream"
WEBHOOK: Final = "https://hooks.example.com/posthouse"
LONG_AGO: Final = "2020-01-01T00:00:00Z"
# They need an Idempotency-Key.
WITH_KEY: Final = frozenset({"createResend", "sendEmail", "sendEmailBatch"})


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    method: str
    path: str
    body: Mapping[str, Any] | None
    statuses: frozenset[int]
    query: tuple[str, ...]
    is_public: bool
    is_json: bool
    key_scopes: tuple[str, ...]

    @property
    def has_id(self) -> bool:
        return "{" in self.path


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    raw: bytes

    @property
    def content(self) -> dict[str, Any]:
        """Without the parts that differ each time."""
        body: dict[str, Any] = json.loads(self.raw)
        return {name: value for name, value in body.items() if name != "request_id"}


def _done(declaration: Mapping[str, Any]) -> list[Any]:
    return [response for status, response in declaration["responses"].items() if status.startswith("2")]


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, declaration in methods.items():
            parameters = [resolved(part, document) for part in declaration.get("parameters", ())]
            yield Operation(
                id=declaration["operationId"],
                method=method.upper(),
                path=path,
                body=declaration.get("requestBody", {}).get("content"),
                statuses=frozenset(int(status) for status in declaration["responses"]),
                query=tuple(part["name"] for part in parameters if part["in"] == "query"),
                is_public=declaration["security"] == [],
                is_json=any("application/json" in response["content"] for response in _done(declaration)),
                key_scopes=tuple(name for way in declaration["security"] for name in way.get("apiKey", ())),
            )


DOCUMENT: Final = json.loads(FILE.read_text())
EVERYTHING: Final = list(_operations(DOCUMENT))
# Those for programs and operators have their own tests.
OPERATIONS: Final = [
    operation
    for operation in EVERYTHING
    if operation.path.startswith("/v1/") and operation.id not in FOR_PROGRAMS | FOR_OPERATORS
]
GUARDED: Final = [operation for operation in OPERATIONS if operation.id not in declared_access.PUBLIC]
KEYS_SCOPES: Final = {*((given,) for given in Scope), *SCOPES.values()}
KEY_FOR_MAIL: Final = "an API key that may send and read"
SCOPED: Final = [operation for operation in GUARDED if operation.id in SCOPES]
# Routes that refuse what they do not declare; pages and probes take anything.
TAKEN: Final = ("/v1/", "/emails")
PUBLIC: Final = [operation for operation in OPERATIONS if operation.id in declared_access.PUBLIC]


def each(operations: list[Operation]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operation", operations, ids=[operation.id for operation in operations])


# The objects of a path's operations: how to create them in an account, and an id that doesn't exist.


@dataclass(frozen=True, slots=True)
class Maker:
    make: Callable[[Tenant], Awaitable[str]]
    unknown: str


_numbers: Final = itertools.count(1)


async def _user(tenant: Tenant, given: Role) -> tuple[UUID, str]:
    """With PASSWORD, hashed cheaply, since there are many."""
    email = f"u{next(_numbers)}@{tenant.unique}.example.net"
    user_id: UUID = await tenant.service.value(
        "WITH made AS (INSERT INTO users (id, email, password_hash, created_at)"
        "   VALUES (gen_random_uuid(), $2, $3, now()) RETURNING id)"
        " INSERT INTO memberships (account_id, user_id, role, created_at) SELECT $1, id, $4, now() FROM made"
        " RETURNING user_id",
        tenant.id, email, CHEAP_HASH, given,
    )  # fmt: skip
    return user_id, email


async def _member(tenant: Tenant) -> str:
    user_id, _ = await _user(tenant, Role.VIEWER)
    return ids.text(ids.USER, user_id)


async def _invitation(tenant: Tenant) -> str:
    body = {"email": f"guest{next(_numbers)}@{tenant.unique}.example.net", "role": "viewer"}
    made = await tenant.call("POST", "/v1/invitations", body)
    invitation_id: str = made.body["invitation"]["id"]
    return invitation_id


async def _session(tenant: Tenant) -> str:
    _, email = await _user(tenant, Role.VIEWER)
    return await _own_session(tenant.service, f"Bearer {(await tenant.service.login(email, PASSWORD)).body['token']}")


async def _own_session(service: Service, authorization: str) -> str:
    listed = await service.request("GET", "/v1/auth/sessions", headers={"Authorization": authorization})
    session_id: str = listed.body["sessions"][0]["id"]
    return session_id


async def _domain(tenant: Tenant) -> str:
    name = f"d{next(_numbers)}.{tenant.unique}.example.com"
    await tenant.service.operator.add_verified_domain(tenant.id, name)
    return name


async def _credential(tenant: Tenant) -> str:
    return ids.text(ids.CREDENTIAL, (await tenant.credential()).id)


async def _key(tenant: Tenant) -> str:
    made = await tenant.service.operator.create_key(tenant.id, tenant.credential_id)
    return ids.text(ids.API_KEY, made.id)


async def _message(tenant: Tenant) -> str:
    message_id: str = (await tenant.accepts())["id"]
    return message_id


async def _message_with_attachment(tenant: Tenant) -> str:
    file = {"filename": "terms.txt", "content": "dGVybXM="}
    message_id: str = (await tenant.accepts(tenant.mail(attachments=[file])))["id"]
    return message_id


async def _suppression(tenant: Tenant) -> str:
    email = f"s{next(_numbers)}@{tenant.unique}.example.org"
    assert (await tenant.call("POST", "/v1/suppressions", {"email": email})).status == 201
    return email


async def _template(tenant: Tenant) -> str:
    alias = f"of-{tenant.unique}-{next(_numbers)}"
    await tenant.template(alias, subject="Hello", text="Good morning.")
    return alias


async def _webhook_delivery(tenant: Tenant) -> str:
    await _pinged_long_ago(tenant)
    ping = await tenant.call("POST", "/v1/webhook/ping")
    delivery_id: str = ping.body["delivery"]["id"]
    return delivery_id


async def _endpoint(tenant: Tenant) -> str:
    """The account has ten at most, and pings rarely."""
    await tenant.service.sql("DELETE FROM endpoints WHERE account_id = $1", tenant.id)
    made = await tenant.call("POST", "/v1/endpoints", {"url": WEBHOOK})
    endpoint_id: str = made.body["endpoint"]["id"]
    return endpoint_id


async def _endpoint_delivery(tenant: Tenant) -> str:
    answer = await tenant.call("POST", f"/v1/endpoints/{await _endpoint(tenant)}/ping")
    delivery_id: str = answer.body["delivery"]["id"]
    return delivery_id


async def _resend(tenant: Tenant) -> str:
    await _stop_resends(tenant)
    key = {"Idempotency-Key": tenant.new_key()}
    made = await tenant.call("POST", "/v1/resends", {"since": LONG_AGO}, **key)
    resend_id: str = made.body["resend"]["id"]
    return resend_id


async def _erasure(tenant: Tenant) -> str:
    made = await tenant.call("POST", "/v1/erasures", {"email": f"new{next(_numbers)}@{tenant.unique}.example.org"})
    assert made.status == 202, made.raw
    erasure_id: str = made.body["erasure"]["id"]
    return erasure_id


async def _stop_resends(tenant: Tenant) -> None:
    """An account has one at a time."""
    query = "UPDATE resends SET status = 'stopped', finished_at = now() WHERE account_id = $1 AND status = 'running'"
    await tenant.service.sql(query, tenant.id)


MAKERS: Final = {
    "/v1/members/{id}": Maker(_member, ids.text(ids.USER, UNKNOWN)),
    "/v1/invitations/{id}": Maker(_invitation, ids.text(ids.INVITATION, UNKNOWN)),
    "/v1/auth/sessions/{id}": Maker(_session, ids.text(ids.SESSION, UNKNOWN)),
    "/v1/domains/{name}": Maker(_domain, "missing_id.example.com"),
    "/v1/credentials/{id}": Maker(_credential, ids.text(ids.CREDENTIAL, UNKNOWN)),
    "/v1/keys/{id}": Maker(_key, ids.text(ids.API_KEY, UNKNOWN)),
    "/v1/messages/{id}": Maker(_message, ids.text(ids.MESSAGE, UNKNOWN)),
    "/v1/messages/{id}/attachments/{part}": Maker(_message_with_attachment, ids.text(ids.MESSAGE, UNKNOWN)),
    "/v1/erasures/{id}": Maker(_erasure, ids.text(ids.ERASURE, UNKNOWN)),
    "/v1/resends/{id}": Maker(_resend, ids.text(ids.RESEND, UNKNOWN)),
    "/v1/suppressions/{email}": Maker(_suppression, "nobody@example.org"),
    "/v1/templates/{alias}": Maker(_template, "missing_id"),
    "/v1/endpoints/{id}": Maker(_endpoint, ids.text(ids.ENDPOINT, UNKNOWN)),
    "/v1/endpoints/deliveries/{id}": Maker(_endpoint_delivery, ids.text(ids.WEBHOOK_DELIVERY, UNKNOWN)),
    "/v1/webhook/deliveries/{id}": Maker(_webhook_delivery, ids.text(ids.WEBHOOK_DELIVERY, UNKNOWN)),
}


async def _account(tenant: Tenant) -> str:
    return ids.text(ids.ACCOUNT, tenant.id)


async def _request(tenant: Tenant) -> str:
    request_id: str = (await tenant.accepts())["request_id"]
    return request_id


# The objects named by `_id` fields of bodies and queries.
NAMED: Final = {
    "account_id": Maker(_account, ids.text(ids.ACCOUNT, UNKNOWN)),
    "credential_id": MAKERS["/v1/credentials/{id}"],
    "message_id": MAKERS["/v1/messages/{id}"],
    "request_id": Maker(_request, ids.text(ids.REQUEST, UNKNOWN)),
}


def named(operation: Operation, name: str) -> Maker:
    if name not in NAMED:
        pytest.fail(f"{operation.id}: say in NAMED how what `{name}` names is made")
    return NAMED[name]


def maker_of(operation: Operation) -> Maker:
    if operation.path in MAKERS:
        return MAKERS[operation.path]
    resource = operation.path.partition("}")[0] + "}"
    if resource not in MAKERS or operation.path.count("{") != 1:
        pytest.fail(f"{operation.id}: say in MAKERS how one of {operation.path} is made")
    return MAKERS[resource]


# What some operations need in addition: an existing object, or another body than the document's example.


async def _pinged_long_ago(tenant: Tenant) -> None:
    await _webhook(tenant)
    await tenant.service.sql("UPDATE endpoints SET pinged_at = NULL WHERE account_id = $1", tenant.id)


async def _webhook(tenant: Tenant) -> None:
    assert (await tenant.call("PUT", "/v1/webhook", {"url": WEBHOOK})).status == 200


PREPARED: Final[Mapping[str, Callable[[Tenant], Awaitable[None]]]] = {
    "createResend": _stop_resends,
    "pingWebhook": _pinged_long_ago,
    "rotateWebhookSecret": _webhook,
    "deleteWebhook": _webhook,
}

BODIES: Final[Mapping[str, Callable[[Tenant], object]]] = {
    "createResend": lambda _: {"since": LONG_AGO},
    "renameTemplate": lambda tenant: {"alias": tenant.new_key()},
    "addDomain": lambda tenant: {"name": f"new{next(_numbers)}.{tenant.unique}.example.com"},
    "createTemplate": lambda _: {"alias": f"new{next(_numbers)}", "subject": "Hello", "text": "Good morning."},
    "inviteMember": lambda tenant: {
        "email": f"guest{next(_numbers)}@{tenant.unique}.example.net",
        "role": "viewer",
    },
    "requireSecondFactor": lambda _: {"required": False},
    "saveWebhook": lambda _: {"url": WEBHOOK},
    "switchAccount": lambda tenant: {"account_id": ids.text(ids.ACCOUNT, tenant.id)},
    "sendTestEmail": lambda tenant: {"from": f"news@{tenant.domain}"},
    "dryRunEmail": lambda tenant: tenant.mail(),
    "createErasure": lambda tenant: {"email": f"new{next(_numbers)}@{tenant.unique}.example.org"},
    "addSuppression": lambda tenant: {"email": f"new{next(_numbers)}@{tenant.unique}.example.org"},
}
# Required query parameters.
QUERIES: Final = {"removeSuppression": "?reason=they+asked+for+it"}


# Operations that change the caller's session, password or second factor are called by a separate user, prepared for
# them.


async def _begin_totp(service: Service, authorization: str) -> str:
    """The present code."""
    begun = await service.request(
        "POST", "/v1/auth/totp", headers={"Authorization": authorization}, json={"password": PASSWORD}
    )
    secret = base64.b32decode(begun.body["secret"])
    return totp.code_of(secret, totp.step_at(datetime.now(UTC)))


async def _own_password(_service: Service, _authorization: str) -> object:
    return {"password": PASSWORD}


async def _confirmation(service: Service, authorization: str) -> object:
    return {"code": await _begin_totp(service, authorization)}


async def _disabling(service: Service, authorization: str) -> object:
    confirmation = await _confirmation(service, authorization)
    answer = await service.request(
        "POST", "/v1/auth/totp/confirm", headers={"Authorization": authorization}, json=confirmation
    )
    return {"password": PASSWORD, "code": answer.body["recovery_codes"][0]}


async def _new_password(_service: Service, _authorization: str) -> object:
    return {"current_password": PASSWORD, "new_password": f"not {PASSWORD}"}


async def _nothing(_service: Service, _authorization: str) -> object:
    return ABSENT


PERSONAL: Final[Mapping[str, Callable[[Service, str], Awaitable[object]]]] = {
    "logout": _nothing,
    "endSession": _nothing,
    "changePassword": _new_password,
    "beginTotp": _own_password,
    "confirmTotp": _confirmation,
    "disableTotp": _disabling,
    "renewRecoveryCodes": _disabling,
}
# Without a login; all others are for a token that doesn't exist.
PUBLIC_STATUSES: Final = {
    "login": 200,
    "forgotPassword": 200,
    "getService": 200,
    "renewSession": 403,
    "loginByLink": 401,
}


@dataclass(slots=True)
class Setup:
    """An account with an object of every kind, its members and its credentials; and another account."""

    here: Tenant
    there: Tenant
    outsiders: Mapping[str, str | None]
    # API keys of either account, by their scopes.
    keys: Mapping[tuple[Scope, ...], str]
    their_keys: Mapping[tuple[Scope, ...], str]
    operator: str
    made: list[str] = field(default_factory=list)

    async def ask(
        self, operation: Operation, path: str, authorization: str | None, body: object = ABSENT, data: bytes = b""
    ) -> Reply:
        headers = {} if authorization is None else {"Authorization": authorization}
        if body is not ABSENT:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        elif data:
            headers["Content-Type"] = next(iter(operation.body or ["text/plain"]))
        if operation.id in WITH_KEY:
            headers["Idempotency-Key"] = self.here.new_key()
        service = self.here.service
        async with service.client.request(operation.method, service.url + path, headers=headers, data=data) as answer:
            # For a stream, only its first piece: it doesn't end on its own.
            is_stream = answer.content_type == STREAM
            reply = Reply(answer.status, await (answer.content.readany() if is_stream else answer.read()))
            assert answer.headers["X-Request-ID"], f"{operation.id}: no request id on {reply.status}"
        assert reply.status in operation.statuses, f"{operation.id} answered {reply.status}: {reply.raw[:300]!r}"
        if reply.status >= 400:
            assert set(json.loads(reply.raw)) == {"error", "code", "request_id"}, operation.id
        return reply

    async def valid_call(self, operation: Operation, of: Tenant, authorization: str | None) -> Reply:
        """A valid call of the operation, about an object of that account."""
        path = operation.path
        if operation.has_id:
            path = with_id(operation, await maker_of(operation).make(of))
        if operation.id in PREPARED:
            await PREPARED[operation.id](of)
        return await self.ask(operation, path, authorization, **right_body(operation, of))


def with_id(operation: Operation, given: str) -> str:
    before, _, after = operation.path.partition("{")
    # The text is part 0 of a message.
    rest = after.partition("}")[2].replace("{part}", "1")
    return before + quote(given, safe="") + rest + QUERIES.get(operation.id, "")


def right_body(operation: Operation, of: Tenant) -> dict[str, Any]:
    if operation.id in BODIES:
        return {"body": BODIES[operation.id](of)}
    if operation.body is None:
        return {}
    ((media_type, declaration),) = operation.body.items()
    if media_type != "application/json":
        return {"data": declaration["example"].encode()}
    examples = _schema(declaration).get("examples")
    assert examples, f"{operation.id}: the document has no example of its body"
    return {"body": examples[0]}


def id_fields(operation: Operation) -> list[str]:
    """The fields of its body that name an object."""
    schema = _schema((operation.body or {}).get("application/json", {}))
    return [name for name in schema.get("properties", {}) if name.endswith("_id")]


def _schema(declaration: Mapping[str, Any]) -> Mapping[str, Any]:
    reference: str = declaration.get("schema", {}).get("$ref", "")
    found: Mapping[str, Any] = DOCUMENT["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def setup(service: Service) -> Setup:
    here, there = await service.account(credits=100_000), await service.account(credits=100_000)
    outsiders = {
        "nobody": None,
        KEY_FOR_MAIL: await here.key(may_read=True),
        "an SMTP password": here.basic,
        "a token that is none": "Bearer eyJhbGciOiJub25lIn0.e30.",
    }
    keys, their_keys = [
        {scopes: await tenant.scoped_key(*scopes) for scopes in KEYS_SCOPES} for tenant in (here, there)
    ]
    _, operator = await operator_login(here)
    setup = Setup(here, there, outsiders, keys, their_keys, operator)
    # Two, so that every list has a second page.
    for maker in [*MAKERS.values(), *MAKERS.values()]:
        setup.made.append(await maker.make(here))
    return setup


# The table, the document and the service agree.


@pytest.mark.rule("ROLE-04")
async def test_the_service_serves_the_document_under_test(service: Service) -> None:
    async with service.client.get(f"{service.url}/openapi.json") as answer:
        assert await answer.json() == DOCUMENT


@pytest.mark.rule("ROLE-04")
def test_every_operation_has_its_role_or_is_public() -> None:
    elsewhere = {operation.id for operation in EVERYTHING} - {operation.id for operation in OPERATIONS}
    public = declared_access.PUBLIC | FOR_PROGRAMS | FOR_OPERATORS
    assert {operation.id for operation in OPERATIONS} == set(NEEDED) | (public - elsewhere)


@pytest.mark.rule("ROLE-04")
@each(OPERATIONS)
def test_the_document_declares_the_statuses_of_the_role_table(operation: Operation) -> None:
    if operation.id in declared_access.PUBLIC:
        assert operation.is_public
        return
    assert not operation.is_public
    assert 401 in operation.statuses
    assert 403 in operation.statuses or NEEDED[operation.id] is Role.VIEWER
    assert 404 in operation.statuses or not operation.has_id
    if operation.has_id:
        maker_of(operation)


# Roles.


@pytest.mark.rule("ROLE-01", "AUTH-11", "HOOK-01")
@each(GUARDED)
async def test_without_a_login_everything_is_refused(setup: Setup, operation: Operation) -> None:
    path = with_id(operation, maker_of(operation).unknown) if operation.has_id else operation.path
    for who, authorization in setup.outsiders.items():
        if who == KEY_FOR_MAIL and set(SCOPES.get(operation.id, Scope)) <= credential.FOR_MAIL:
            continue
        for sent in (right_body(operation, setup.here), {"data": b"\0 not what was asked for"}):
            reply = await setup.ask(operation, path, authorization, **sent)
            assert (reply.status, reply.content.get("code")) == (401, "unauthorized"), who


@pytest.mark.rule("ROLE-01")
@each(PUBLIC)
async def test_public_operations_need_no_login(setup: Setup, operation: Operation) -> None:
    body = right_body(operation, setup.here)
    if operation.id == "login":
        body = {"body": {"email": (await _user(setup.here, Role.VIEWER))[1], "password": PASSWORD}}
    tokens = [*setup.outsiders.values(), *[await setup.here.jwt(member_role) for member_role in ROLES]]
    statuses = {(await setup.ask(operation, operation.path, token, **body)).status for token in tokens}
    assert statuses == {PUBLIC_STATUSES.get(operation.id, 404)}


@pytest.mark.rule("DAY-07")
@pytest.mark.rule("ROLE-02", "EXP-05", "HOOK-02", "KEY-01", "REG-01", "SUP-07", "TMPL-10", "TRY-05")
@each(GUARDED)
async def test_each_role_may_do_what_the_table_permits(setup: Setup, operation: Operation) -> None:
    unknown = with_id(operation, maker_of(operation).unknown) if operation.has_id else operation.path
    for member_role in ROLES:
        if not credential.role_includes(member_role, NEEDED[operation.id]):
            token = await setup.here.jwt(member_role)
            for sent in (right_body(operation, setup.here), {"data": b"\0 not what was asked for"}):
                reply = await setup.ask(operation, unknown, token, **sent)
                assert (reply.status, reply.content.get("code")) == (403, "forbidden"), member_role
            continue
        if operation.id in PERSONAL:
            _, email = await _user(setup.here, member_role)
            token = f"Bearer {(await setup.here.service.login(email, PASSWORD)).body['token']}"
            body = await PERSONAL[operation.id](setup.here.service, token)
            path = operation.path
            if operation.has_id:
                path = with_id(operation, await _own_session(setup.here.service, token))
            reply = await setup.ask(operation, path, token, body)
        else:
            reply = await setup.valid_call(operation, setup.here, await setup.here.jwt(member_role))
        assert 200 <= reply.status < 300, f"{operation.id} as {member_role}: {reply.status} {reply.raw[:300]!r}"


# Scopes.


@pytest.mark.rule("SCOPE-03")
def test_every_operation_of_the_scope_table_exists_and_names_its_scope() -> None:
    assert {operation.id for operation in EVERYTHING} >= set(SCOPES)
    assert {operation.id for operation in EVERYTHING if operation.key_scopes} == {item.id for item in SCOPED}
    for operation in SCOPED:
        assert operation.key_scopes == tuple(needed.value for needed in SCOPES[operation.id])
        assert operation.id in NEEDED


@pytest.mark.rule("SCOPE-01", "KEY-01", "MSD-01", "MSL-03", "REG-01", "SUP-07")
@each(GUARDED)
async def test_a_key_opens_only_the_operations_of_its_scopes(setup: Setup, operation: Operation) -> None:
    unknown = with_id(operation, maker_of(operation).unknown) if operation.has_id else operation.path
    for given, key in setup.keys.items():
        needed = SCOPES.get(operation.id)
        if needed is not None and set(needed) <= set(given):
            reply = await setup.valid_call(operation, setup.here, key)
            assert 200 <= reply.status < 300, f"{operation.id} with {given}: {reply.status} {reply.raw[:300]!r}"
            continue
        for sent in (right_body(operation, setup.here), {"data": b"\0 not what was asked for"}):
            reply = await setup.ask(operation, unknown, key, **sent)
            assert (reply.status, reply.content.get("code")) == (401, "unauthorized"), given


# What is not declared.


async def own_token(setup: Setup, operation: Operation) -> str | None:
    if operation.is_public:
        return None
    return setup.operator if operation.id in FOR_OPERATORS else await setup.here.jwt("owner")


def unknown_path(operation: Operation) -> str:
    if not operation.has_id:
        return operation.path
    made = maker_of(operation).unknown if operation in GUARDED else ids.text(ids.MESSAGE, UUID(int=1))
    return re.sub(r"\{\w+\}", quote(made, safe=""), operation.path) + QUERIES.get(operation.id, "")


@pytest.mark.rule("HTTP-18")
@each([item for item in EVERYTHING if item.path.startswith(TAKEN)])
async def test_an_unknown_parameter_is_refused_and_named(setup: Setup, operation: Operation) -> None:
    path = unknown_path(operation)
    path += f"{'&' if '?' in path else '?'}statu=failed"
    token = await own_token(setup, operation)
    body: dict[str, Any] = {} if operation.body is None else {"body": {}}
    reply = await setup.ask(operation, path, token, **body)
    if operation.id == "getEmail":  # by contract only 200, 401 and 404
        assert reply.status == 404
        return
    assert (reply.status, reply.content["code"]) == (400, "invalid_request"), reply.raw
    assert "`statu`" in reply.content["error"] or operation.id == "sendEmail"
    if token is not None:
        assert (await setup.ask(operation, path, None, **body)).status == 401


@pytest.mark.rule("HTTP-19")
@each([item for item in EVERYTHING if item.method != "GET" and item.body is None and item.path.startswith(TAKEN)])
async def test_a_body_where_there_is_none_is_refused(setup: Setup, operation: Operation) -> None:
    path, token = unknown_path(operation), await own_token(setup, operation)
    before = await everything_of(setup.here)
    for data in (b'{"dry_run": true}', b"dry_run=true", b" " * 100_000):
        reply = await setup.ask(operation, path, token, data=data)
        assert (reply.status, reply.content["code"]) == (400, "invalid_request"), reply.raw
        assert "body" in reply.content["error"]
    assert await everything_of(setup.here) == before
    if operation.has_id:
        assert b"body" not in (await setup.ask(operation, path, token, data=b" { }\n")).raw


# Accounts.


async def their_logins(setup: Setup, operation: Operation) -> list[str]:
    """Of an owner of the other account, and of its program if the operation has a scope."""
    keys = [setup.their_keys[SCOPES[operation.id]]] if operation.id in SCOPES else []
    return [await setup.there.jwt("owner"), *keys]


@pytest.mark.rule("ROLE-03", "SCOPE-02", "END-15", "HOOK-14", "KEY-14", "MSD-02", "REG-08", "SUP-08")
@each([operation for operation in GUARDED if operation.has_id])
async def test_another_accounts_objects_are_unknown_like_missing_objects(setup: Setup, operation: Operation) -> None:
    maker = maker_of(operation)
    theirs = await maker.make(setup.here)
    before = await everything_of(setup.here)
    for authorization in await their_logins(setup, operation):
        replies = []
        for given in (theirs, maker.unknown):
            path, body = with_id(operation, given), right_body(operation, setup.there)
            reply = await setup.ask(operation, path, authorization, **body)
            assert (reply.status, reply.content.get("code")) == (404, "not_found"), reply.raw
            replies.append(json.dumps(reply.content).replace(given, "<id>"))
        assert replies[0] == replies[1]
    assert await everything_of(setup.here) == before


@pytest.mark.rule("ROLE-03")
@each([operation for operation in GUARDED if id_fields(operation)])
async def test_an_id_of_another_account_in_a_body_is_unknown(setup: Setup, operation: Operation) -> None:
    for name in id_fields(operation):
        maker = named(operation, name)
        replies = []
        for given in (await maker.make(setup.here), maker.unknown):
            body = {**right_body(operation, setup.there)["body"], name: given}
            reply = await setup.ask(operation, operation.path, await setup.there.jwt("owner"), body)
            assert (reply.status, reply.content.get("code")) == (404, "not_found"), reply.raw
            replies.append(json.dumps(reply.content).replace(given, "<id>"))
        assert replies[0] == replies[1]


@pytest.mark.rule("ROLE-03")
@each([operation for operation in GUARDED if any(name.endswith("_id") for name in operation.query)])
async def test_an_id_of_another_account_in_a_query_finds_nothing(setup: Setup, operation: Operation) -> None:
    token = await setup.there.jwt("owner")
    for name in [name for name in operation.query if name.endswith("_id")]:
        maker = named(operation, name)
        replies = [
            await setup.ask(operation, f"{operation.path}?{name}={given}", token)
            for given in (await maker.make(setup.here), maker.unknown)
        ]
        assert [reply.status for reply in replies] == [200, 200]
        shown = [reply.content if operation.is_json else reply.raw for reply in replies]
        assert shown[0] == shown[1]


@pytest.mark.rule("ROLE-03", "SCOPE-02", "MSL-03")
@each([operation for operation in GUARDED if operation.method == "GET" and not operation.has_id])
async def test_no_response_shows_another_accounts_data(setup: Setup, operation: Operation) -> None:
    for authorization in await their_logins(setup, operation):
        shown = (await setup.ask(operation, operation.path, authorization)).raw.decode()
        assert [made_id for made_id in setup.made if made_id in shown] == []
    # A cursor of another account's list does not continue in it either.
    if not operation.is_json:
        return  # a file continues from its list's cursor
    for parameter in {"cursor", "after"} & set(operation.query):
        theirs = await setup.ask(operation, f"{operation.path}?limit=1", await setup.here.jwt("owner"))
        cursor = theirs.content["next_cursor"]
        if cursor is None or (parameter == "after" and "cursor" in operation.query):
            continue
        token = await setup.there.jwt("owner")
        reply = await setup.ask(operation, f"{operation.path}?{parameter}={quote(cursor)}", token)
        assert reply.status in (200, 400)
        assert [made_id for made_id in setup.made if made_id in reply.raw.decode()] == []


# Pages.

LISTS: Final = [
    operation
    for operation in GUARDED
    if operation.method == "GET" and "limit" in operation.query and {"cursor", "after"} & set(operation.query)
]


def place_of(operation: Operation) -> str:
    """The parameter that continues a list."""
    return "cursor" if "cursor" in operation.query else "after"


async def path_of(setup: Setup, operation: Operation) -> str:
    return with_id(operation, await maker_of(operation).make(setup.here)) if operation.has_id else operation.path


@pytest.mark.rule("ROLE-04", "HOOK-11")
@each(LISTS)
async def test_a_wrong_page_is_refused_and_named(setup: Setup, operation: Operation) -> None:
    path, token = await path_of(setup, operation), await setup.here.jwt("owner")
    for value in ("0", "101", "-1", "x", "", "1e1", "99999999999999999999", "%D9%A3"):
        reply = await setup.ask(operation, f"{path}?limit={value}", token)
        assert (reply.status, reply.content["code"]) == (400, "invalid_request"), value
        assert "limit" in reply.content["error"]
    for value in ("nonsense", "%00", ""):
        reply = await setup.ask(operation, f"{path}?{place_of(operation)}={value}", token)
        assert (reply.status, reply.content["code"]) == (400, "invalid_request"), value
        assert place_of(operation) in reply.content["error"]


@pytest.mark.rule("ROLE-04", "HOOK-11", "TEAM-01", "MSL-01", "REG-07", "TMPL-05")
@each(LISTS)
async def test_pages_continue_where_the_one_before_ended(setup: Setup, operation: Operation) -> None:
    path, token = await path_of(setup, operation), await setup.here.jwt("owner")
    content = (await setup.ask(operation, f"{path}?limit=3", token)).content
    (name,) = [field for field, value in content.items() if isinstance(value, list)]
    found: list[Any] = []
    query = ""
    while len(found) < len(content[name]):
        page = (await setup.ask(operation, f"{path}?limit=1{query}", token)).content
        assert len(page[name]) == 1
        found += page[name]
        query = f"&{place_of(operation)}={quote(page['next_cursor'] or '')}"
    assert found == content[name]


async def everything_of(tenant: Tenant) -> list[tuple[Any, ...]]:
    """All rows of the account, as a text per table."""
    # The last use of a credential is written a minute later, which can be at any point of the test.
    tables = await tenant.service.sql(
        """
        SELECT table_name, format($text$
            SELECT %1$L, md5(string_agg(kept::text, ',' ORDER BY kept::text))
            FROM (
                SELECT to_jsonb(whole_row) - '{last_used_at,last_used_from,last_seen_at}'::text[] AS kept
                FROM %1$I whole_row WHERE account_id = $1) rows$text$, table_name)
        FROM information_schema.columns JOIN information_schema.tables USING (table_name)
        WHERE column_name = 'account_id' AND table_type = 'BASE TABLE' AND tables.table_schema = 'public'
          AND table_name !~ '_[0-9]{8}$' ORDER BY table_name
        """
    )
    assert len(tables) > 20
    found = await tenant.service.sql(" UNION ALL ".join(query for _, query in tables), tenant.id)
    return sorted(map(tuple, found))
