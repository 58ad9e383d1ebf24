"""HTTP: request ids, routes, methods, content types, JSON, and hostile input."""

import asyncio
import json
from importlib.metadata import version
from typing import Any

import pytest

from posthouse.compose.http import service_info
from posthouse.entrypoints.http.routes.service import SmtpSubmission
from posthouse.rules import ids
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.service import ABSENT, Service, Tenant, settings_for, settings_from

HOSTILE = {
    "deep lists": b"[" * 100_000,
    "deep closed lists": b"[" * 5_000 + b"]" * 5_000,
    "deep objects": b'{"a":' * 50_000,
    "deep field": b'{"to":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep variables": b'{"variables":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "huge integer": b'{"subject":' + b"9" * 100_000 + b"}",
    "huge exponent": b'{"subject": 1e999999}',
    "NUL byte": b'{"subject": "\x00"}',
    "NUL alone": b"\x00",
    "byte order mark": b"\xef\xbb\xbf{",
    "UTF-16": '{"subject": "x"}'.encode("utf-16"),
    "overlong UTF-8": b'{"subject": "\xc0\xaf"}',
    "huge exponent in a variable": b'{"variables": {"v": 1e999}}',
    "huge integer in a variable": b'{"variables": {"v": ' + b"9" * 5_000 + b"}}",
    "many fields": json.dumps({f"field{number}": number for number in range(20_000)}).encode(),
    "long field": b'{"' + b"x" * 1_000_000 + b'": 1}',
    "many recipients": json.dumps({"to": ["ada@example.org"] * 100_000}).encode(),
    "long address": json.dumps({"to": "a" * 1_000_000 + "@example.org"}).encode(),
    "dotted address": json.dumps({"to": "a@" + "a." * 200_000}).encode(),
    "bracketed address": json.dumps({"to": "<" * 200_000}).encode(),
}


def wrapped(tenant: Tenant, changes: bytes) -> bytes:
    return json.dumps(tenant.mail()).encode()[:-1] + b", " + changes + b"}"


@pytest.mark.rule("HTTP-01", "HTTP-12")
async def test_every_response_has_its_own_request_id(service: Service, regular: Tenant) -> None:
    sent = await regular.send()
    answers = [
        sent,
        await regular.get(sent.body["id"]),
        await regular.send(regular.mail(to=[])),
        await regular.get("em_unknown"),
        await service.request("GET", "/nowhere"),
        await service.request("PUT", "/emails", headers={"Authorization": regular.basic}),
        await service.request("POST", "/emails", json={}),
        await service.login("nobody@example.net", "wrong password"),
        await service.request("GET", "/v1/templates"),
        await regular.call("GET", "/v1/templates"),
        await service.request("GET", "/v1/nowhere", headers={"X-Request-ID": "mine\t'\"<script>"}),
    ]
    assert {answer.status for answer in answers} >= {202, 200, 400, 401, 404, 405}
    ids = [answer.headers["X-Request-ID"] for answer in answers]
    assert [answer.body["request_id"] for answer in answers] == ids
    assert len(set(ids)) == len(answers)
    assert "script" not in ids[-1]


@pytest.mark.rule("HTTP-02", "CODE-06", "ERR-01")
@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/email", "/Emails", "/emails/a/b", "/v1", "/v1/nowhere", "/%00", "/..%2f..%2fetc", "/emails%20"],
)
async def test_an_unknown_route_is_not_found(service: Service, path: str) -> None:
    answer = await service.request("GET", path)
    assert answer.is_refusal(404, "not_found")


@pytest.mark.rule("HTTP-03")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/emails", {"POST"}),
        ("PUT", "/emails", {"POST"}),
        ("DELETE", "/emails", {"POST"}),
        ("POST", "/emails/em_01", {"GET", "HEAD", "PATCH"}),
        ("DELETE", "/emails/em_01", {"GET", "HEAD", "PATCH"}),
        ("GET", "/v1/auth/login", {"POST"}),
        ("DELETE", "/v1/templates", {"GET", "POST", "HEAD"}),
        ("POST", "/v1/templates/welcome", {"GET", "PUT", "DELETE", "HEAD"}),
        ("GET", "/v1/templates/welcome/preview", {"POST"}),
    ],
)
async def test_a_wrong_method_gets_the_allowed_methods(
    service: Service, regular: Tenant, method: str, path: str, allowed: set[str]
) -> None:
    authorization = await regular.jwt() if path.startswith("/v1") else regular.basic
    answer = await service.request(method, path, headers={"Authorization": authorization})
    assert answer.is_refusal(405, "invalid_request")
    listed = {name.strip() for name in answer.headers["Allow"].split(",")}
    assert listed <= allowed
    assert listed >= allowed - {"HEAD"}


def posted(regular: Tenant, *headers: str, path: str = "/emails") -> bytes:
    """A whole request with these headers, of which each may be given twice."""
    body = json.dumps(regular.mail()).encode()
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.rule("HTTP-13")
@pytest.mark.parametrize("other", [0, 1], ids=["the same twice", "two different"])
@pytest.mark.parametrize("name", ["Idempotency-Key", "Content-Type"])
async def test_a_header_given_twice_is_refused(service: Service, regular: Tenant, name: str, other: int) -> None:
    values = {"Idempotency-Key": regular.new_key(), "Content-Type": "application/json"}
    second = (values[name], {"Idempotency-Key": "another", "Content-Type": "text/plain"}[name])[other]
    given = [f"{header}: {value}" for header, value in values.items()]
    before = await regular.state()
    for headers in ([*given, f"{name}: {second}"], [f"{name}: {second}", *given]):
        answer = await service.raw(posted(regular, f"Authorization: {regular.basic}", *headers))
        assert answer.is_refusal(400, "invalid_request", name)
    assert await regular.state() == before


@pytest.mark.rule("HTTP-13")
async def test_a_credential_or_a_type_given_twice_is_refused_on_every_route(service: Service, regular: Tenant) -> None:
    token = await regular.jwt()
    for path in ("/v1/templates", "/v1/webhook/ping", "/v1/test-email"):
        headers = (f"Authorization: {token}", *["Content-Type: application/json"] * 2)
        answer = await service.raw(posted(regular, *headers, path=path))
        assert answer.is_refusal(400, "invalid_request", "Content-Type")
    for request_line in ("POST /emails", "GET /emails/em_01", "GET /v1/account", "GET /healthz"):
        authorization = token if "/v1" in request_line else regular.basic
        for second in (authorization, "Basic eDp5"):
            lines = (
                f"{request_line} HTTP/1.1", "Host: localhost", f"Authorization: {authorization}",
                f"Authorization: {second}", f"Idempotency-Key: {regular.new_key()}", "Content-Type: application/json",
                "Content-Length: 2",
            )  # fmt: skip
            answer = await service.raw("\r\n".join((*lines, "", "{}")).encode())
            assert answer.is_refusal(401, "unauthorized", "Authorization")


@pytest.mark.rule("HTTP-14")
async def test_head_is_answered_as_get_without_a_body(service: Service, regular: Tenant) -> None:
    sent = await regular.accepts()
    token = await regular.jwt()
    kept = ("Content-Type", "Content-Length", "Cache-Control", "Allow")
    for path, authorization, status in [
        (f"/emails/{sent['id']}", regular.basic, 200),
        ("/emails/em_01", regular.basic, 404),
        ("/emails/em_01", "Basic eDp5", 401),
        ("/v1/account", token, 200),
        ("/v1/templates", token, 200),
        ("/healthz", "", 200),
        ("/openapi.json", "", 200),
        ("/docs", "", 200),
        ("/emails", regular.basic, 405),
        ("/nowhere", "", 404),
    ]:
        headers = {"Authorization": authorization} if authorization else {}
        answers = []
        for method in ("GET", "HEAD"):
            async with service.client.request(method, service.url + path, headers=headers) as response:
                answers.append((response.status, [response.headers.get(name) for name in kept]))
                body = await response.read()
        assert answers[0] == answers[1], path
        assert answers[1][0] == status, path
        assert body == b"", path


@pytest.mark.rule("HTTP-04", "HTTP-09", "CODE-01")
@pytest.mark.parametrize(
    "content_type",
    [ABSENT, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/xml", "application/jsonp", "json", "application/json, text/plain"],
)  # fmt: skip
async def test_a_content_type_other_than_json_is_refused(
    service: Service, regular: Tenant, content_type: object
) -> None:
    headers = {"Authorization": regular.basic, "Idempotency-Key": regular.new_key()}
    if content_type is not ABSENT:
        headers["Content-Type"] = str(content_type)
    data = json.dumps(regular.mail()).encode()
    before = await regular.state()
    answer = await service.request("POST", "/emails", headers=headers, data=data)
    assert answer.is_refusal(400, "invalid_request", "Content-Type", "application/json")
    assert await regular.state() == before


@pytest.mark.rule("HTTP-04")
@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
async def test_json_is_accepted_with_parameters(regular: Tenant, content_type: str) -> None:
    await regular.accepts(headers={"Content-Type": content_type})


@pytest.mark.rule("HTTP-05")
@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"{", b"{}}", b"[]", b'"text"', b"7", b"null", b"true", b"{'to': 1}", b'{"to": "a@b.example",}',
     b'{"subject": "\xff"}', b"to=ada@example.org", b'{"a": 1} {"b": 2}', b'{"subject": "a\nb"}', b"// no\n{}"],
)  # fmt: skip
async def test_a_body_that_is_not_a_json_object_is_refused(regular: Tenant, data: bytes) -> None:
    await regular.refuses(ABSENT, 400, "invalid_request", data=data)


@pytest.mark.rule("HTTP-07")
@pytest.mark.parametrize("surrogate", ["\\ud800", "\\udfff", "a\\ud83d b", "\\udc8c\\ud83d"])
@pytest.mark.parametrize(
    "field",
    ['"subject": "{0}"', '"text": "{0}"', '"html": "{0}"', '"to": "{0} <ada@example.org>"', '"tags": ["{0}"]',
     '"headers": {{"X-Thing": "{0}"}}', '"headers": {{"{0}": "x"}}', '"{0}": 1',
     '"attachments": [{{"filename": "{0}", "content": "aGVsbG8="}}]'],
)  # fmt: skip
async def test_a_lone_surrogate_is_refused(regular: Tenant, field: str, surrogate: str) -> None:
    data = wrapped(regular, field.format(surrogate).encode())
    await regular.refuses(ABSENT, 400, "invalid_request", data=data)


@pytest.mark.rule("HTTP-08")
async def test_the_last_of_two_equal_keys_counts(regular: Tenant) -> None:
    # A pair of surrogates is a character.
    sent = await regular.accepts(data=wrapped(regular, b'"subject": "first", "subject": "last \\ud83d\\udc8c"'))
    assert sent["subject"] == "last 💌"
    assert str((await regular.stored(sent["id"]))["Subject"]) == "last 💌"


@pytest.mark.rule("HTTP-09", "HTTP-10", "CODE-13")
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_json_is_refused_in_time(service: Service, regular: Tenant, name: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        await regular.refuses(ABSENT, 400, "invalid_request", data=HOSTILE[name])
    assert (await service.request("GET", "/healthz")).status == 200


@pytest.mark.rule("HTTP-10", "CODE-13")
@pytest.mark.parametrize("path", ["/v1/auth/login", "/v1/templates"])
async def test_hostile_json_is_refused_under_v1_too(regular: Tenant, path: str) -> None:
    headers = {"Authorization": await regular.jwt(), "Content-Type": "application/json"}
    for name, data in HOSTILE.items():
        async with asyncio.timeout(HANG_SECONDS):
            answer = await regular.service.request("POST", path, headers=headers, data=data)
        # A body over the endpoint's limit is refused before it is parsed.
        assert (answer.status, answer.code) in {(400, "invalid_request"), (413, "payload_too_large")}, name


@pytest.mark.rule("HTTP-11", "ERR-01")
@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nContent-Length: 600",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: 0x10",
        "Content-Length : 5",
        "Bad Header Name: x\r\nContent-Length: 5",
    ],
)
async def test_contradictory_framing_makes_no_message(service: Service, regular: Tenant, framing: str) -> None:
    body = json.dumps(regular.mail()).encode()
    head = (
        f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {regular.basic}\r\n"
        f"Idempotency-Key: {regular.new_key()}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    )
    before = await regular.state()
    answer = await service.raw(head.encode() + body)
    assert answer.status == 400
    assert await regular.state() == before
    await regular.accepts()


@pytest.mark.rule("HTTP-11", "ORDER-01")
async def test_an_unread_refused_body_is_not_read_as_the_next_request(service: Service, regular: Tenant) -> None:
    hidden = f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {regular.basic}\r\n".encode()
    refused = (
        "POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic eDp5\r\nIdempotency-Key: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(hidden)}\r\n\r\n"
    ).encode() + hidden
    following = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = await service.raw_answers(refused + following, 2)
    assert [answer.status for answer in answers] == [401, 404]


@pytest.mark.rule("ERR-01", "ERR-02")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"from": 1}, "from"),
        ({"to": ["no address"]}, "to"),
        ({"cc": ["bob@example.org", "cy@example.org", "no address at all"]}, "cc[2]"),
        ({"subject": "s" * 501}, "subject"),
        ({"attachments": [{"filename": "a"}]}, "content"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_an_error_is_three_strings_and_names_the_field(
    regular: Tenant, changes: dict[str, object], field: str
) -> None:
    answer = await regular.refuses(regular.mail() | changes, 400, "invalid_request", field)
    assert set(answer.body) == {"error", "code", "request_id"}


@pytest.mark.rule("HTTP-18")
async def test_pages_probes_and_links_take_parameters_that_others_add(service: Service, regular: Tenant) -> None:
    sent = await regular.accepts()
    for path, status in (
        (f"/emails/{sent['id']}", 200),
        ("/healthz", 200),
        ("/unsubscribe/unknown", 404),
    ):
        answer = await service.request("GET", f"{path}?utm_source=x", headers={"Authorization": regular.basic})
        assert answer.status == status, path
    for path in ("/docs", "/openapi.json"):
        async with service.client.get(f"{service.url}{path}?utm_source=x") as page:
            assert page.status == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    clicked = await service.request(
        "POST", "/unsubscribe/unknown?utm_source=x", headers=form, data=b"List-Unsubscribe=One-Click"
    )
    assert clicked.status == 404


@pytest.mark.rule("HTTP-18")
async def test_a_known_parameter_that_was_misspelt_is_suggested(regular: Tenant) -> None:
    for given, meant in (("statu=failed", "`status`"), ("Tag=x", "`tag`"), ("metadata=x", "`metadata.<name>`")):
        answer = await regular.call("GET", f"/v1/messages?{given}")
        assert answer.is_refusal(400, "invalid_request", meant)
    assert (await regular.call("GET", "/v1/messages?metadata.order=1&metadata.shop=2&limit=1")).status == 200
    assert (await regular.call("GET", "/v1/account?x=1")).is_refusal(400, "invalid_request", "`x`", "none")


@pytest.mark.rule("HTTP-15")
async def test_anyone_may_ask_what_is_set_up(service: Service) -> None:
    answer = await service.request("GET", "/v1/service")
    assert answer.status == 200
    assert answer.body["service"] == {
        "name": "Posthouse",
        "version": version("posthouse"),
        "docs_url": "/docs",
        "sends_own_mail": True,
        "submission": None,
        "captures": False,
        "simulator_domain": "simulator.invalid",
    }
    assert (await service.request("POST", "/v1/service")).status == 405


@pytest.mark.rule("HTTP-15")
def test_what_is_set_up_follows_the_settings() -> None:
    environment = settings_for(
        "postgresql://127.0.0.1/none",
        HTTP__PUBLIC_URL="https://mail.example.com",
        SERVICE__HOSTNAME="mx.example.com",
        SERVICE__SENDER="",
        SERVICE__SENDER_ACCOUNT="",
        SMTP__TLS_CERTIFICATE_FILE="/certificate.pem",
        SMTP__TLS_KEY_FILE="/key.pem",
        SUBMISSION__TLS_PORT="0",
        DELIVERY__OUTBOUND="capture",
    )
    info = service_info(settings_from(environment))
    assert (info.docs_url, info.sends_own_mail, info.captures) == ("https://mail.example.com/docs", False, True)
    assert info.submission == SmtpSubmission(host="mx.example.com", starttls_port=587, tls_port=None)


@pytest.mark.rule("HTTP-16")
async def test_every_line_of_the_log_is_json_and_each_request_is_one(tenant: Tenant) -> None:
    accepted = await tenant.accepts()
    service = tenant.service

    def lines() -> list[dict[str, Any]]:
        # Before its first line, a process says in words what it starts.
        written = [line for line in service.log.read_text().splitlines() if not line.startswith("posthouse: ")]
        return [json.loads(line) for line in written]

    def of_request() -> list[dict[str, Any]]:
        return [line for line in lines() if line.get("request_id") == accepted["request_id"]]

    (line,) = await eventually(of_request)
    assert (line["event"], line["route"], line["status"]) == ("request", "/emails", 202)
    assert (line["account"], line["message"]) == (ids.text(ids.ACCOUNT, tenant.id), accepted["id"])
    assert any(line.get("logger") == "uvicorn.error" for line in lines())
