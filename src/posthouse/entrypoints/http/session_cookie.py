"""The cookie of a kept session, which opens nothing but its renewal, and only for a page of our own origin."""

from typing import Final
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from posthouse.flows.shared.principal import RenewalSecret
from posthouse.rules.refusal import Code, Refusal

# By this prefix browsers take it only with Secure, for the whole host, and from no other host; also at http://127.0.0.1.
NAME: Final = "__Host-posthouse"
_OTHER_ORIGIN: Final = "A session is renewed by the dashboard's own pages alone: log in with POST /v1/auth/login."


def put(response: Response, secret: RenewalSecret) -> None:
    _put(response, secret.text, int(secret.lifetime.total_seconds()))


def remove(request: Request, response: Response) -> None:
    if NAME in request.cookies:
        _put(response, "", 0)


def _put(response: Response, text: str, seconds: int) -> None:
    response.set_cookie(NAME, text, max_age=seconds, path="/", secure=True, httponly=True, samesite="strict")


def secret_of(request: Request) -> str:
    _require_same_origin(request)
    secret = request.cookies.get(NAME, "")
    if not secret:
        raise Refusal(Code.UNAUTHORIZED, "There is no kept session in this browser: log in.")
    return secret


def _require_same_origin(request: Request) -> None:
    """A page can set neither header. Browsers that don't send the first send the second with each POST."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        host = request.headers.get("host", "")
        is_own = bool(host) and _host_of(request.headers.get("origin", "")) == host.lower()
    if not is_own:
        raise Refusal(Code.FORBIDDEN, _OTHER_ORIGIN)


def _host_of(origin: str) -> str:
    """Without the scheme: a proxy in front of us may be the end of TLS."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
