"""The API reference: the OpenAPI document, and the page at /docs.

The document is made from the routes' declarations and the webhook. The page is Swagger UI, without third-party hosts.
"""

import asyncio
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from posthouse.entrypoints.http import openapi, responses
from posthouse.entrypoints.http.route_context import OperationRoute
from posthouse.entrypoints.http.routes.events import Event
from posthouse.entrypoints.http.static_content import StaticContent
from posthouse.rules import event

router = APIRouter(include_in_schema=False)

API_VERSION: Final = "1.0.0"
# Schemas are named after their classes, except these enums of the rules.
_PUBLIC_NAMES: Final = {"SuppressionReason": "Reason"}
_SHARED_PARAMETERS: Final = ("cursor", "limit")

_DOCUMENT_DESCRIPTION: Final = """\
Send mail with `POST /emails` and read its status with `GET /emails/{id}`. Receive events with a webhook, or fetch
them with `GET /v1/events`. Every response carries `X-Request-ID`; its value is `request_id` in the body. Every error is
the object `{error, code, request_id}`.
"""

# The page loads only files from this service, and the data: images in the style sheet.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}

# Relative addresses also work behind a proxy that adds a path prefix. Keys and passwords typed into the page are
# forgotten when it is closed, and no external validator is called.
_START: Final = b"""\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  persistAuthorization: false,
  validatorUrl: null,
});
"""

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Posthouse API reference</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{swagger-ui.css}">
</head>
<body>
<noscript>This page needs JavaScript; it shows <a href="openapi.json">openapi.json</a>.</noscript>
<div id="reference"></div>
<script src="{swagger-ui-bundle.js}"></script>
<script src="{start.js}"></script>
</body>
</html>
"""

_MEDIA_TYPES: Final = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
}

# The first requests wait for one thread, which reads and compresses megabytes.
_LOADING: Final = Lock()


def _event_operation() -> dict[str, Any]:
    """The request that a customer's own server receives."""
    signature = {
        "name": event.SIGNATURE_HEADER,
        "in": "header",
        "required": True,
        "description": "`t=<unix_seconds>,v1=<hex>`: the HMAC-SHA256 of `<t>.<raw body>` with the webhook's secret, "
        f"in full, as key. Refuse the event when `t` is more than {event.SIGNATURE_SECONDS_MAX} s from now.",
        "schema": {"type": "string"},
    }
    return {
        "operationId": "receiveEvent",
        "summary": "An event, sent to the account's webhook when a recipient's result is final",
        "tags": ["Webhooks"],
        "security": [],
        "parameters": [signature],
        "requestBody": {"required": True, "content": openapi.json_of(Event)},
        "responses": {"2XX": {"description": "Received. Any other status is retried."}},
    }


class OpenApiDocument:
    """The OpenAPI document, created when it is first requested, because it takes as long as the rest of a start."""

    def __init__(self, application: FastAPI) -> None:
        self._application = application
        self._made: asyncio.Future[StaticContent] | None = None

    async def content(self) -> StaticContent:
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        # Other requests may wait for it, too.
        return await asyncio.shield(self._made)

    def _make(self) -> StaticContent:
        return StaticContent.of(responses.encoded(document(self._application)), "application/json")


def document(application: FastAPI) -> dict[str, Any]:
    content = get_openapi(
        title="Posthouse",
        version=API_VERSION,
        summary="Transactional email.",
        description=_DOCUMENT_DESCRIPTION,
        routes=application.routes,
    )
    for path, operations in content["paths"].items():
        for operation in operations.values():
            # FastAPI's own validation errors become the error object with 400, like all others.
            operation["responses"].pop("422", None)
            if path.startswith("/v1/"):
                # For an unknown parameter, or a body that isn't expected.
                operation["responses"].setdefault("400", openapi.error_response(400))
            for status, response in operation["responses"].items():
                if "application/json" in response["content"]:
                    response["content"].pop("text/plain", None)
                code = int(status)
                if code in openapi.ERRORS and response == openapi.error_response(code):
                    operation["responses"][status] = {"$ref": f"#/components/responses/{openapi.ERRORS[code][0]}"}
    for route in application.routes:
        if isinstance(route, OperationRoute) and route.example is not None:
            # Not in `openapi_extra`, of which FastAPI drops what is null.
            for method in route.methods or ():
                answer = content["paths"][route.path][method.lower()]["responses"]["200"]
                answer["content"]["application/json"]["example"] = route.example
    shared = _shared_parameters(content["paths"])
    content["webhooks"] = {"event": {"post": _event_operation()}}
    content["components"] = {
        "schemas": _schemas(),
        "responses": {name: openapi.error_response(status) for status, (name, _) in openapi.ERRORS.items()},
        "parameters": shared,
        "headers": openapi.HEADERS,
        "securitySchemes": openapi.SECURITY,
    }
    return content


def _shared_parameters(paths: dict[str, Any]) -> dict[str, Any]:
    """The usual form of parameters that many operations have, which then refer to it."""
    declared = [
        operation["parameters"]
        for operations in paths.values()
        for operation in operations.values()
        if "parameters" in operation
    ]
    shared = {}
    for name in _SHARED_PARAMETERS:
        forms = [part for parameters in declared for part in parameters if part.get("name") == name]
        usual, component = max(forms, key=forms.count), name.title()
        shared[component] = usual
        for parameters in declared:
            parameters[:] = [
                {"$ref": f"#/components/parameters/{component}"} if part == usual else part for part in parameters
            ]
    return shared


def _schemas() -> dict[str, Any]:
    _, definitions = models_json_schema(
        sorted([(model, "validation") for model in openapi.DECLARED_MODELS], key=lambda pair: pair[0].__name__),
        ref_template=openapi.REFERENCE,
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
            if renamed.get("$ref") == openapi.REFERENCE.format(model=own):
                renamed["$ref"] = openapi.REFERENCE.format(model=public)
        return renamed
    if isinstance(schema, list):
        return [_with_public_names(item) for item in schema]
    return schema


@cache
def _contents() -> dict[str, StaticContent]:
    """The page, named "", and its assets. Their names contain a hash of their content, so browsers may cache them."""
    # Imported at the first request, so that commands that serve nothing start faster.
    import fastapi_swagger.resources as swagger_ui  # type: ignore[import-untyped]

    contents, page = {}, _PAGE
    for name, media_type in _MEDIA_TYPES.items():
        content = _START if name == "start.js" else files(swagger_ui).joinpath(name).read_bytes()
        contents[name] = StaticContent.of(content, media_type)
        page = page.replace(f"{{{name}}}", f"docs/{name}?v={contents[name].version}")
    contents[""] = StaticContent.of(page.encode(), "text/html")
    return contents


def _load() -> None:
    with _LOADING:
        _contents()


async def _content(name: str) -> StaticContent:
    if not _contents.cache_info().currsize:
        await asyncio.to_thread(_load)
    return _contents()[name]


@router.get("/docs")
async def docs(request: Request) -> Response:
    return (await _content("")).response(request.headers, {**_HEADERS, "Cache-Control": "no-cache"})


@router.get("/docs/{name}")
async def docs_asset(request: Request, name: str) -> Response:
    if name not in _MEDIA_TYPES:
        raise HTTPException(404)
    asset = await _content(name)
    is_current = request.query_params.get("v") == asset.version
    cached = "public, max-age=31536000, immutable" if is_current else "no-cache"
    return asset.response(request.headers, {**_HEADERS, "Cache-Control": cached})
