"""The API reference at /docs: Swagger UI with our OpenAPI document, without any third-party host."""

import asyncio
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from posthouse.entrypoints.http.static_content import StaticContent

# The page loads only what this service serves, and the data: images inside the style sheet.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
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

# The first requests wait for a single thread to read and compress megabytes.
_LOADING: Final = Lock()

router = APIRouter(include_in_schema=False)


@cache
def _contents() -> dict[str, StaticContent]:
    """The page, named "", and its assets. Their addresses hold a hash of their content: browsers may keep them."""
    # Imported at the first request: commands that serve nothing start faster.
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
