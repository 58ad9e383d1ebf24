"""The API reference at /docs: Swagger UI with our OpenAPI document, without any third-party host."""

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

# The page loads only what this service serves, and the data: images inside the style sheet.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
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

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    compressed: bytes
    version: str


@cache
def _asset(name: str) -> _Asset:
    # Imported at the first request: commands that serve nothing start faster.
    import fastapi_swagger.resources as swagger_ui  # type: ignore[import-untyped]

    content = _START if name == "start.js" else files(swagger_ui).joinpath(name).read_bytes()
    return _Asset(content, gzip.compress(content, mtime=0), sha256(content).hexdigest()[:16])


@cache
def _page() -> str:
    """Each asset's address contains a hash of its content, so that browsers may cache it without limit."""
    page = _PAGE
    for name in _MEDIA_TYPES:
        page = page.replace(f"{{{name}}}", f"docs/{name}?v={_asset(name).version}")
    return page


# Not coroutines: the first call reads and compresses megabytes, which belongs in a thread.
@router.get("/docs")
def docs() -> Response:
    return Response(_page(), headers={**_HEADERS, "Cache-Control": "no-cache"}, media_type="text/html")


@router.get("/docs/{name}")
def docs_asset(request: Request, name: str) -> Response:
    if name not in _MEDIA_TYPES:
        raise HTTPException(404)
    asset = _asset(name)
    is_current = request.query_params.get("v") == asset.version
    headers = {
        **_HEADERS,
        "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache",
        "Vary": "Accept-Encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            asset.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=_MEDIA_TYPES[name]
        )
    return Response(asset.content, headers=headers, media_type=_MEDIA_TYPES[name])
