"""The OpenAPI document declares the contract, and the committed copy equals the served document."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI, Request
from starlette.routing import Route

from posthouse.entrypoints.http import api_reference
from posthouse.entrypoints.http.app import create_router
from posthouse.entrypoints.refusals import REPLIES
from posthouse.mail.address import GIVEN_CHARACTERS_MAX
from posthouse.rules import limits
from posthouse.rules.attachment import DOWNLOAD_TYPES
from posthouse.rules.refusal import Code
from tools.write_openapi import FILE, document, resolved, written

DOCUMENT = json.loads(FILE.read_text())
ERROR = "#/components/schemas/Error"


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def responses() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, operation in operations():
        for status, response in operation["responses"].items():
            yield name, status, resolved(response)


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def schema_of(response: dict[str, Any]) -> str:
    reference: str = response["content"]["application/json"]["schema"]["$ref"]
    return reference


def model(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return found


def test_the_committed_document_is_the_one_that_is_served() -> None:
    assert FILE.read_text(encoding="utf-8") == written(document()), "docs/reference/openapi.json is old: `make openapi`"


async def test_it_is_made_once_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], api_reference.document

    def noted(application: FastAPI) -> dict[str, Any]:
        made.append(application)
        return make(application)

    monkeypatch.setattr(api_reference, "document", noted)
    router = create_router()
    (route,) = [route for route in router.routes if isinstance(route, Route) and route.path == "/openapi.json"]
    assert made == []

    answers = await asyncio.gather(*[route.endpoint(Request({"type": "http", "headers": []})) for _ in range(5)])
    assert [json.loads(answer.body) for answer in answers] == [DOCUMENT] * 5
    assert made == [router]


def test_it_is_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")


@pytest.mark.parametrize(
    ("operation", "statuses"),
    [
        ("POST /emails", {202, 400, 401, 402, 403, 409, 413, 429, 500, 503}),
        # The contract's three, and the failures of any server.
        ("GET /emails/{id}", {200, 401, 404, 500, 503}),
    ],
)
def test_the_email_operations_have_the_statuses_of_the_contract(operation: str, statuses: set[int]) -> None:
    assert {int(status) for status in dict(operations())[operation]["responses"]} == statuses


def test_no_operation_responds_with_422() -> None:
    assert [name for name, status, _ in responses() if status == "422"] == []
    assert not {"HTTPValidationError", "ValidationError"} & set(DOCUMENT["components"]["schemas"])


def test_every_error_is_the_error_object() -> None:
    assert {schema_of(response) for _, status, response in responses() if int(status) >= 400} == {ERROR}
    assert set(model("Error")["required"]) == set(model("Error")["properties"]) == {"error", "code", "request_id"}
    assert set(model("Code")["enum"]) == {code.value for code in Code}


def test_every_declared_error_status_belongs_to_a_code() -> None:
    known = {reply.http for reply in REPLIES.values()}
    assert {int(status) for _, status, _ in responses() if int(status) >= 400} <= known


def test_every_response_carries_the_request_id() -> None:
    assert [(name, status) for name, status, response in responses() if "X-Request-ID" not in response["headers"]] == []


def test_every_body_is_json_except_pages_files_and_streams() -> None:
    other = {
        (name, status): tuple(response["content"])
        for name, status, response in responses()
        if tuple(response["content"]) != ("application/json",)
    }
    assert other == {
        ("GET /unsubscribe/{token}", "200"): ("text/html",),
        ("POST /unsubscribe/{token}", "200"): ("text/plain",),
        ("POST /v1/suppressions/import", "200"): ("application/x-ndjson",),
        ("GET /v1/suppressions/export", "200"): ("text/csv",),
        ("GET /v1/messages/{id}/raw", "200"): ("message/rfc822",),
        ("GET /v1/messages/{id}/attachments/{part}", "200"): DOWNLOAD_TYPES,
        ("GET /v1/messages/export", "200"): ("text/csv",),
        ("GET /v1/ledger/export", "200"): ("text/csv",),
        ("GET /v1/audit-log/export", "200"): ("text/csv",),
        ("GET /v1/live", "200"): ("text/event-stream",),
    }


def test_every_operation_has_an_id_a_summary_and_a_tag() -> None:
    for name, operation in operations():
        assert operation["operationId"], name
        assert operation["summary"], name
        assert len(operation["tags"]) == 1, name
    names = [operation["operationId"] for _, operation in operations()]
    assert len(set(names)) == len(names)


def test_every_reference_has_a_target() -> None:
    for reference in references(DOCUMENT):
        kind, _, name = reference.removeprefix("#/components/").partition("/")
        assert name in DOCUMENT["components"][kind], reference


@pytest.mark.parametrize("kind", ["schemas", "responses", "headers", "parameters"])
def test_every_component_is_used(kind: str) -> None:
    used = {reference for reference in references(DOCUMENT) if f"/{kind}/" in reference}
    assert {f"#/components/{kind}/{name}" for name in DOCUMENT["components"][kind]} == used


def test_every_schema_is_json_schema() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}), name


def test_limits_that_a_schema_can_express_are_in_the_schema() -> None:
    send = model("SendRequest")["properties"]
    assert send["attachments"]["maxItems"] == limits.ATTACHMENTS_MAX
    assert send["variables"]["maxProperties"] == limits.VARIABLES_MAX
    assert send["headers"]["maxProperties"] == limits.HEADERS_MAX
    assert send["subject"]["maxLength"] == limits.SUBJECT_CHARACTERS_MAX
    assert send["tags"]["maxItems"] == limits.TAGS_MAX
    tag, tags, _ = send["tags"]["anyOf"]
    for schema in (tag, tags["items"]):
        assert (schema["minLength"], schema["maxLength"]) == (1, limits.TAG_CHARACTERS_MAX)
    assert (send["to"]["minItems"], send["to"]["maxItems"]) == (1, limits.RECIPIENTS_GIVEN_MAX)
    assert send["cc"]["maxItems"] == send["bcc"]["maxItems"] == limits.RECIPIENTS_GIVEN_MAX
    addresses = [send["from"], send["reply_to"], send["to"]["anyOf"][0], send["bcc"]["anyOf"][1]["items"]]
    assert {schema["maxLength"] for schema in addresses} == {GIVEN_CHARACTERS_MAX}
    assert send["headers"]["propertyNames"]["maxLength"] == limits.HEADER_NAME_CHARACTERS_MAX
    assert send["headers"]["anyOf"][0]["additionalProperties"]["maxLength"] == limits.HEADER_VALUE_BYTES_MAX
    assert send["template"]["pattern"] == model("TemplateRequest")["properties"]["alias"]["pattern"]
    attachment = model("Attachment")["properties"]
    assert attachment["filename"]["maxLength"] == limits.FILENAME_CHARACTERS_MAX
    assert attachment["content_type"]["maxLength"] == limits.CONTENT_TYPE_CHARACTERS_MAX
    assert attachment["content_id"]["maxLength"] == limits.CONTENT_ID_CHARACTERS_MAX
    for name in ("TemplateRequest", "TemplateVersionRequest"):
        parts = model(name)["properties"]
        assert parts["subject"]["maxLength"] == limits.SUBJECT_CHARACTERS_MAX
        assert parts["text"]["maxLength"] == parts["html"]["maxLength"] == limits.TEMPLATE_PART_CHARACTERS_MAX
    assert model("PreviewRequest")["properties"]["variables"]["maxProperties"] == limits.VARIABLES_MAX
    key = DOCUMENT["paths"]["/emails"]["post"]["parameters"][0]
    assert (key["name"], key["required"]) == ("Idempotency-Key", True)
    assert key["schema"] == {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_CHARACTERS_MAX}


def test_the_examples_are_valid() -> None:
    whole = {"components": DOCUMENT["components"]}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if examples := schema.get("examples"):
            validator = jsonschema_rs.Draft202012Validator({**schema, **whole})
            for example in examples:
                assert validator.is_valid(example), f"{name}: {json.dumps(example)}"


def test_dashboard_takes_its_token_and_emails_take_any_credential() -> None:
    schemes = {name: [next(iter(scheme)) for scheme in operation["security"]] for name, operation in operations()}
    assert schemes["POST /emails"] == schemes["GET /emails/{id}"] == ["smtpCredential", "apiKey", "dashboard"]
    assert schemes["POST /v1/auth/login"] == schemes["GET /healthz"] == []
    assert schemes["POST /unsubscribe/{token}"] == schemes["GET /unsubscribe/{token}"] == []
    assert {tuple(allowed) for name, allowed in schemes.items() if "/v1/templates" in name} == {("dashboard", "apiKey")}
    assert {tuple(allowed) for name, allowed in schemes.items() if "/v1/members" in name} == {("dashboard",)}
