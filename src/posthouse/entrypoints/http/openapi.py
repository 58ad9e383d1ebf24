"""What an operation declares for the OpenAPI document: its body, its responses, its errors."""

from typing import Any, Final

from pydantic import BaseModel

from posthouse.entrypoints.http.shapes import Error
from posthouse.entrypoints.refusals import REPLIES
from posthouse.rules import limits

REFERENCE: Final = "#/components/schemas/{model}"

# For each error status, the name of its shared response and what it means.
ERRORS: Final = {
    400: ("BadRequest", "The request breaks a rule; `error` names the field and the correction."),
    401: ("Unauthorized", "The credential is missing, malformed, unknown, revoked or expired."),
    402: ("PaymentRequired", "Fewer credits are available than the message has unique recipients."),
    403: ("Forbidden", "The credential is known, but may not do this."),
    404: ("NotFound", "The account has nothing with that name or id."),
    409: ("Conflict", "It conflicts with existing data, or with the first use of the Idempotency-Key."),
    413: ("PayloadTooLarge", "The body or the assembled message is too large."),
    429: ("TooManyRequests", "Too many requests, or the day's warm-up volume is used up."),
    500: ("InternalError", "The service failed."),
    503: ("Unavailable", "The service can't reach its storage, or is busy."),
}

HEADERS: Final = {
    "X-Request-ID": {
        "description": "The id of this request; quote it when you ask for help.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}},
    "RateLimit-Limit": {"description": "How many requests may be sent in a burst.", "schema": {"type": "integer"}},
    "RateLimit-Remaining": {"description": "How many of them remain.", "schema": {"type": "integer"}},
    "RateLimit-Reset": {"description": "Seconds until all of them are available again.", "schema": {"type": "integer"}},
}


def _shared_headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


REQUEST_ID_HEADER: Final = _shared_headers("X-Request-ID")
RETRY_AFTER_HEADER: Final = _shared_headers("Retry-After")
RATE_HEADERS: Final = _shared_headers("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")

IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "Chosen by the client, a new one for each message. A retry with the same key and body is safe.",
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_CHARACTERS_MAX},
}

SECURITY: Final = {
    "smtpCredential": {"type": "http", "scheme": "basic", "description": "SMTP username and password."},
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ph_live_…` or `ph_test_…`."},
    "dashboard": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token of a login.",
    },
}

DECLARED_MODELS: set[type[BaseModel]] = {Error}


def json_of(model: type[BaseModel]) -> dict[str, Any]:
    DECLARED_MODELS.add(model)
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}}


def responses_with(
    success: int, model: type[BaseModel] | str | tuple[str, ...], *errors: int
) -> dict[int | str, dict[str, Any]]:
    """The declared responses of a route: the success, and the error object for each status in `errors`.

    `model` is a media type, or several, if the body is not JSON.
    """
    types = (model,) if isinstance(model, str) else model
    content = {key: {"schema": {"type": "string"}} for key in types} if isinstance(types, tuple) else json_of(types)
    declared: dict[int | str, dict[str, Any]] = {
        success: {"description": "Done.", "headers": dict(REQUEST_ID_HEADER), "content": content}
    }
    return declared | {status: error_response(status) for status in errors}


def error_response(status: int) -> dict[str, Any]:
    headers = REQUEST_ID_HEADER | (RETRY_AFTER_HEADER if status in {409, 429, 503} else {})
    return {"description": ERRORS[status][1], "headers": headers, "content": json_of(Error)}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The declared JSON body of a route; the route itself reads and validates it."""
    return {"requestBody": {"required": True, "content": json_of(model)}}


# A status without a description fails at import.
assert set(ERRORS) == {reply.http for reply in REPLIES.values()}  # noqa: S101
