"""The OpenAPI document: what the routes declare, and POST /emails, which is not a FastAPI route."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from posthouse.entrypoints.http.schemas.emails import SendRequest, SendResponse
from posthouse.entrypoints.http.schemas.events import Event
from posthouse.entrypoints.http.schemas.shapes import Error
from posthouse.entrypoints.refusals import REPLIES
from posthouse.rules import event, limits, retry, role, scope

API_VERSION: Final = "1.0.0"
_REFERENCE: Final = "#/components/schemas/{model}"
# Schemas have the names of their classes, except these enums of the rules.
_PUBLIC_NAMES: Final = {"SuppressionReason": "Reason"}

_DESCRIPTION: Final = f"""\
Send mail with `POST /emails` and read its status with `GET /emails/{{id}}`. Receive events with a webhook, or fetch
them with `GET /v1/events`.

Every response carries `X-Request-ID`; its value is `request_id` in the body. Every error is the object
`{{error, code, request_id}}`.

| Limit | Value |
|---|---|
| Unique recipients over `to`, `cc`, `bcc` | {limits.RECIPIENTS_MAX} |
| Subject | {limits.SUBJECT_CHARACTERS_MAX} characters |
| Assembled message | {limits.MIME_BYTES_MAX // limits.MIB} MiB |
| Request body | {limits.HTTP_BODY_BYTES_MAX // limits.MIB} MiB |
| Attachments | {limits.ATTACHMENTS_MAX} |
| Tags | {limits.TAGS_MAX}, each {limits.TAG_CHARACTERS_MAX} characters |
| Template variables | {limits.VARIABLES_MAX} |
| Custom headers | {limits.HEADERS_MAX}, {limits.HEADERS_BYTES_MAX // 1024} KiB in all |
| Idempotency-Key | 1 to {limits.IDEMPOTENCY_KEY_CHARACTERS_MAX} characters, valid 24 hours |
| Requests | {limits.RATE_PER_SECOND} a second per account, {limits.RATE_BURST} at once |
| Webhook attempts | {retry.WEBHOOK.attempts_max}: at once, then after 5 s, 5 min, 30 min, 2 h, 5 h and 10 h |
| Webhook answer | any 2xx within 5 s; redirects are not followed |
| Webhook log | 7 days, 2 KB of each body |
| Events | 30 days |
"""

_MEANING: Final = {
    400: "The request breaks a rule; `error` names the field and the correction.",
    401: "The credential is missing, malformed, unknown, revoked or expired.",
    402: "Fewer credits are available than the message has unique recipients.",
    403: "The credential is known, but may not do this.",
    404: "The account has nothing with that name or id.",
    409: "It conflicts with existing data, or with the first use of the Idempotency-Key.",
    413: "The body or the assembled message is too large.",
    429: "Too fast, or the day's warm-up volume is used up.",
    500: "A fault of the service.",
    503: "The service can't reach its storage, or is busy.",
}

_REQUEST_ID_HEADER: Final = {
    "X-Request-ID": {
        "description": "The id of this request; quote it when you ask for help.",
        "required": True,
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER_HEADER: Final = {
    "Retry-After": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}
}
_RATE_HEADERS: Final = {
    "RateLimit-Limit": {"description": "Requests that may be sent at once.", "schema": {"type": "integer"}},
    "RateLimit-Remaining": {"description": "How many of them remain.", "schema": {"type": "integer"}},
    "RateLimit-Reset": {"description": "Seconds until all of them are available again.", "schema": {"type": "integer"}},
}

IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "Chosen by the client, a new one for each message; a retry with the same key and body is safe.",
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_CHARACTERS_MAX},
}

_DECLARED_MODELS: set[type[BaseModel]] = {Error}


def _declare(model: type[BaseModel]) -> dict[str, Any]:
    _DECLARED_MODELS.add(model)
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}


def responses_with(
    success: int, model: type[BaseModel] | str | tuple[str, ...], *errors: int
) -> dict[int | str, dict[str, Any]]:
    """The declared responses of a route: its success, and the error object for each status in `errors`.

    `model` is a media type, or several, where the body is not JSON.
    """
    types = (model,) if isinstance(model, str) else model
    content = {key: {"schema": {"type": "string"}} for key in types} if isinstance(types, tuple) else _declare(types)
    declared: dict[int | str, dict[str, Any]] = {
        success: {"description": "Done.", "headers": _REQUEST_ID_HEADER, "content": content}
    }
    for status in errors:
        headers = _REQUEST_ID_HEADER | (_RETRY_AFTER_HEADER if status in {409, 429, 503} else {})
        declared[status] = {
            "description": _MEANING[status],
            "headers": headers,
            "content": _declare(Error),
        }
    return declared


def json_body(model: type[BaseModel], *, is_public: bool = False) -> dict[str, Any]:
    """The declared JSON body of a route; the route itself reads and validates it."""
    declared: dict[str, Any] = {"requestBody": {"required": True, "content": _declare(model)}}
    return declared | {"security": []} if is_public else declared


def _send_operation() -> dict[str, Any]:
    responses = responses_with(202, SendResponse, 400, 401, 402, 403, 409, 413, 429, 500, 503)
    responses[202]["description"] = "Accepted and stored; delivery follows."
    replayed = {
        "Idempotent-Replayed": {
            "description": "`true` when the key was used before: this is the first response again.",
            "schema": {"type": "string", "const": "true"},
        }
    }
    responses[202]["headers"] = _REQUEST_ID_HEADER | _RATE_HEADERS | replayed
    responses[429]["headers"] = _REQUEST_ID_HEADER | _RATE_HEADERS | _RETRY_AFTER_HEADER
    return {
        "operationId": "sendEmail",
        "summary": "Send a message",
        "tags": ["Email"],
        "parameters": [IDEMPOTENCY_KEY],
        **json_body(SendRequest),
        "responses": {str(status): response for status, response in responses.items()},
    }


def _event_operation() -> dict[str, Any]:
    """The request that a customer's own server receives."""
    signature = {
        "name": event.SIGNATURE_HEADER,
        "in": "header",
        "required": True,
        "description": "`t=<unix_seconds>,v1=<hex>`: the HMAC-SHA256 of `<t>.<raw body>` with the webhook's secret, "
        f"whole, as key. Refuse the event when `t` is more than {event.SIGNATURE_SECONDS_MAX} s from now.",
        "schema": {"type": "string"},
    }
    return {
        "operationId": "receiveEvent",
        "summary": "An event, sent to the account's webhook when a recipient's result is final",
        "tags": ["Webhooks"],
        "security": [],
        "parameters": [signature],
        "requestBody": {"required": True, "content": _declare(Event)},
        "responses": {"2XX": {"description": "Received. Any other status is retried."}},
    }


_UNDECLARED: Final = responses_with(200, Error, 400)[400]

_SECURITY: Final = {
    "smtpCredential": {"type": "http", "scheme": "basic", "description": "SMTP username and password."},
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ph_live_…` or `ph_test_…`."},
    "dashboard": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token of a login.",
    },
}


def openapi(application: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="Posthouse",
        version=API_VERSION,
        summary="Transactional email.",
        description=_DESCRIPTION,
        routes=application.routes,
    )
    document["paths"] = {"/emails": {"post": _send_operation()}} | document["paths"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            # FastAPI's own validation errors become the error object with 400, like all others.
            operation["responses"].pop("422", None)
            if path.startswith("/v1/"):
                # An unknown parameter, or a body where there is none.
                operation["responses"].setdefault("400", _UNDECLARED)
            for response in operation["responses"].values():
                if "application/json" in response["content"]:
                    response["content"].pop("text/plain", None)
            operation.setdefault("security", _security(path, operation["operationId"]))
    document["webhooks"] = {"event": {"post": _event_operation()}}
    document["components"] = {"schemas": _schemas(), "securitySchemes": _SECURITY}
    return document


def _security(path: str, operation_id: str) -> list[dict[str, list[str]]]:
    if not path.startswith("/v1/") or operation_id in role.FOR_READERS:
        return [{scheme: []} for scheme in _SECURITY]
    needed = scope.NEEDED.get(operation_id)
    return [{"dashboard": []}] if needed is None else [{"dashboard": []}, {"apiKey": [each.value for each in needed]}]


def _schemas() -> dict[str, Any]:
    _, definitions = models_json_schema(
        sorted([(model, "validation") for model in _DECLARED_MODELS], key=lambda pair: pair[0].__name__),
        ref_template=_REFERENCE,
    )
    # Pydantic joins module and class with "__" when two classes have the same name.
    if ambiguous := [name for name in definitions["$defs"] if "__" in name]:
        raise ValueError(f"several schemas have the same name: {ambiguous}")
    named = {_PUBLIC_NAMES.get(name, name): schema for name, schema in definitions["$defs"].items()}
    return {name: _with_public_names(schema) for name, schema in sorted(named.items())}


def _with_public_names(schema: Any) -> Any:
    if isinstance(schema, dict):
        renamed = {key: _with_public_names(value) for key, value in schema.items()}
        for own, public in _PUBLIC_NAMES.items():
            if renamed.get("title") == own:
                renamed["title"] = public
            if renamed.get("$ref") == _REFERENCE.format(model=own):
                renamed["$ref"] = _REFERENCE.format(model=public)
        return renamed
    if isinstance(schema, list):
        return [_with_public_names(item) for item in schema]
    return schema


# A status without a meaning fails at import.
assert set(_MEANING) == {reply.http for reply in REPLIES.values()}  # noqa: S101
