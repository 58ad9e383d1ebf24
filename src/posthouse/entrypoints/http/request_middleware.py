"""Wraps every request: gives it an id, calls the endpoint, and turns every exception into a response."""

import asyncio
import time
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posthouse import metrics
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import AccessLog, route_of
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.request_head import RequestIds, check_given_once, network_of
from posthouse.entrypoints.http.request_limits import (
    WAITING_PATHS,
    ConcurrencyLimit,
    ResponseLimits,
    UnauthenticatedLimit,
)
from posthouse.entrypoints.refusals import http_status
from posthouse.flows.shared.shared_database import count_for
from posthouse.rules import ids
from posthouse.rules.refusal import Code, Refusal

log = structlog.get_logger(__name__)

# These responses carry secrets and personal data, which no cache may store.
_PRIVATE_PATHS: Final = ("/v1/", "/emails/")
_PRIVATE: Final = {b"cache-control": b"no-store"}
_CAPTURE: Final = {"posthouse-outbound": "capture"}
# Otherwise a client that retries immediately would be refused thousands of times a second, at the expense of others.
_TOO_MANY_SECONDS: Final = 0.25
_RATE_LIMITED: Final = http_status(Code.RATE_LIMITED)
# The time between two log lines that say why requests get a 503.
_UNAVAILABLE_SECONDS: Final = 1.0

_UNNAMED_PROXY_ADVICE: Final = (
    "X-Forwarded-For came from a proxy that is not in http.trusted_proxies: all of its clients count as one "
    "address for failed logins and allow-lists. Add the proxy there."
)


class RequestMiddleware:
    """POST /emails goes straight to its endpoint; every other request goes through the application's router."""

    def __init__(
        self,
        application: ASGIApp,
        send_endpoint: ASGIApp,
        request_ids: RequestIds,
        unauthenticated: UnauthenticatedLimit,
        concurrency: ConcurrencyLimit,
        *,
        names_proxies: bool = True,
        captures: bool = False,
        access_log: AccessLog | None = None,
    ) -> None:
        """Without trusted proxies, a forwarded request counts as the proxy's own, which is logged once.

        With `captures`, every response says that no mail leaves.
        """
        self._access_log = access_log
        self._application = application
        self._send_endpoint = send_endpoint
        self._request_ids = request_ids
        self._unauthenticated = unauthenticated
        self._concurrency = concurrency
        self._response_limits = ResponseLimits()
        self._expects_no_proxy = not names_proxies
        self._logs_unavailable_at = 0.0
        self._own_headers = responses.EVERY | _CAPTURE if captures else responses.EVERY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # A copy, because the server itself must still know that it sends no body.
            scope, send = {**scope, "method": "GET", responses.IS_HEAD: True}, _without_body(send)
        request_id = self._request_ids.new()
        request_id_text = ids.text(ids.REQUEST, request_id)
        scope[responses.REQUEST_ID] = request_id
        scope[responses.REQUEST_ID_TEXT] = request_id_text
        frame_headers = {"x-request-id": request_id_text, **self._own_headers}
        scope[responses.FRAME_HEADERS] = frame_headers
        scope[responses.STATUS] = 0
        is_private = scope["path"].startswith(_PRIVATE_PATHS)
        is_send = scope["path"] == "/emails" and scope["method"] == "POST"
        is_page = False
        began_at = time.perf_counter()
        if is_private and self._expects_no_proxy:
            self._report_proxy(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._concurrency.end(scope)
                if is_page and responses.IS_HEAD not in scope:
                    self._unauthenticated.note_page(scope, message["headers"])
                scope[responses.STATUS] = message["status"]
                own = {name.encode(): value.encode() for name, value in frame_headers.items()}
                if is_private:
                    own |= _PRIVATE
                message["headers"] = [*(header for header in message["headers"] if header[0] not in own), *own.items()]
            await send(message)

        try:
            check_given_once(scope, b"authorization", Code.UNAUTHORIZED)
            if is_send:
                await self._send_endpoint(scope, receive, send)
            else:
                is_page = self._unauthenticated.require(scope)
                if is_page:
                    await self._concurrency.begin(scope, network_of(scope))
                count_for(None)
                await self._application(scope, receive, self._response_limits.limited(scope, receive, send_with_id))
        except Disconnected:
            if is_send:
                metrics.ACCEPTS.count("http", "disconnected")
        except Refusal as first_refusal:
            refusal = self._unauthenticated.after(scope, first_refusal)
            if is_send:
                metrics.ACCEPTS.count("http", refusal.code.value)
            await self._refuse(scope, receive, send_with_id, refusal, is_send=is_send)
        except Exception as fault:
            log.exception("fault", request_id=request_id_text, route=route_of(scope), fault=type(fault).__name__)
            if is_send:
                metrics.ACCEPTS.count("http", Code.INTERNAL_ERROR.value)
            if not scope[responses.STATUS]:
                await self._refuse(scope, receive, send_with_id, responses.FAULT, is_send=is_send)
        finally:
            self._concurrency.end(scope)
            seconds = time.perf_counter() - began_at
            status: int = scope[responses.STATUS]
            _count(scope["path"], status, seconds, is_send=is_send)
            if self._access_log is not None:
                self._access_log(scope, status, seconds)

    def _report_proxy(self, scope: Scope) -> None:
        """Once, if the settings don't name the proxy that forwarded this request."""
        if any(name == b"x-forwarded-for" for name, _ in scope["headers"]):
            self._expects_no_proxy = False
            log.warning("unnamed_proxy", client=scope.get("client"), advice=_UNNAMED_PROXY_ADVICE)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal, *, is_send: bool) -> None:
        if refusal.code in {Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE}:
            self._log_unavailable(refusal)
        elif refusal.code is Code.RATE_LIMITED:
            self._concurrency.end(scope)
            await asyncio.sleep(_TOO_MANY_SECONDS)
        if is_send:
            await responses.send_refusal(scope, refusal)
        else:
            await responses.error_response(scope, refusal)(scope, receive, send)

    def _log_unavailable(self, refusal: Refusal) -> None:
        """Log at most once a second: each request has its line in the access log, and an overload has thousands."""
        now = time.monotonic()
        if now >= self._logs_unavailable_at:
            self._logs_unavailable_at = now + _UNAVAILABLE_SECONDS
            log.warning("unavailable", code=refusal.code.value, cause=repr(refusal.__cause__), reason=refusal.text)


def _count(path: str, status: int, seconds: float, *, is_send: bool) -> None:
    if is_send:
        area = "emails"
        if status != _RATE_LIMITED:  # which waits on purpose
            metrics.ACCEPT_SECONDS.observe(seconds, "http")
    elif path in WAITING_PATHS:
        area = "live"
    else:
        area = "v1" if path.startswith("/v1/") else "other"
        metrics.HTTP_SECONDS.observe(seconds, area)
    metrics.HTTP_REQUESTS.count(area, str(status))


def _without_body(send: Send) -> Send:
    """HEAD is answered as GET is: the same status and headers, and nothing after them."""

    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head
