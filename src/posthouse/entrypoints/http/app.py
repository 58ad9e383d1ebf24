"""The HTTP application: the router, the frame around it, and the services that it opens and closes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Lifespan

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.entrypoints.http import docs_page, openapi, responses, unauthenticated
from posthouse.entrypoints.http.access_log import AccessLog
from posthouse.entrypoints.http.at_once import AtOnce
from posthouse.entrypoints.http.frame import Frame
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_ids import RequestIds
from posthouse.entrypoints.http.routes import (
    account,
    alerts,
    captured,
    credentials,
    dashboard,
    domains,
    dry_run,
    email_batch,
    emails,
    endpoints,
    erasures,
    events,
    health,
    live,
    message_cancellation,
    message_detail,
    message_retry,
    message_search,
    next_message,
    operator,
    operator_accounts,
    operator_inbox,
    operator_messages,
    operator_users,
    resends,
    service,
    sessions,
    suppressions,
    team,
    templates,
    unsubscribe,
    webhooks,
)
from posthouse.entrypoints.http.send_email import SendEndpoint
from posthouse.entrypoints.http.services import Services
from posthouse.entrypoints.http.static_content import StaticContent
from posthouse.entrypoints.http.unauthenticated import UnauthenticatedLimit
from posthouse.rules.fair_share import FairShare
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal, invalid

_FAMILIES: Final = (
    emails,
    email_batch,
    templates,
    sessions,
    team,
    account,
    alerts,
    domains,
    credentials,
    message_search,
    live,
    next_message,  # before /v1/messages/{id}
    message_detail,
    message_retry,
    message_cancellation,
    erasures,
    resends,
    suppressions,
    dry_run,
    webhooks,
    endpoints,
    events,
    unsubscribe,
    health,
    service,
    captured,
    operator,
    operator_accounts,
    operator_inbox,
    operator_messages,
    operator_users,
    dashboard,
    docs_page,
)

# Of all clients of this process.
CONNECTIONS_MAX: Final = 8_000
# Clients behind one address may have this part of them in any case, while any is free.
CONNECTIONS_PART_LEAST: Final = 16


def create_app(
    open_services: Callable[[], AbstractAsyncContextManager[Services]],
    clock: Clock,
    chance: Chance,
    unauthenticated_rate: Rate = unauthenticated.RATE,
    *,
    names_proxies: bool = True,
    captures: bool = False,
    connections_max: int = CONNECTIONS_MAX,
    on_stop: Callable[[], None] = lambda: None,
    access_log: AccessLog | None = None,
) -> Frame:
    """`on_stop` is called when the server begins to stop with requests or connections under way."""
    request_ids = RequestIds(clock, chance)
    reader = BodyReader()
    send_endpoint = SendEndpoint(reader)
    at_once = AtOnce()

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with open_services() as services:
            application.state.services = services
            application.state.reader = reader
            application.state.at_once = at_once
            application.state.kept_reads = operator.KeptReads()
            send_endpoint.services = services
            least = connections_max // CONNECTIONS_PART_LEAST
            connections: FairShare[str] = FairShare(connections_max, least=least)

            def stop() -> None:
                on_stop()
                services.stop_waiting()

            yield {
                responses.REQUEST_IDS: request_ids,
                responses.CONNECTIONS: connections,
                responses.ON_STOP: stop,
            }
            await services.intake.drain()

    limit = UnauthenticatedLimit(clock, unauthenticated_rate)
    router = create_router(send_endpoint, lifespan)
    return Frame(
        router,
        send_endpoint,
        request_ids,
        limit,
        at_once,
        names_proxies=names_proxies,
        captures=captures,
        access_log=access_log,
    )


def create_router(send_endpoint: SendEndpoint, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    application = FastAPI(lifespan=lifespan, redirect_slashes=False, openapi_url=None, docs_url=None, redoc_url=None)
    for family in _FAMILIES:
        application.router.routes.extend(family.router.routes)
    # The frame calls the endpoint directly; this route only makes other methods a 405.
    application.router.routes.append(Route("/emails", send_endpoint, methods=["POST"], include_in_schema=False))
    application.add_exception_handler(HTTPException, _on_http_exception)
    application.add_exception_handler(RequestValidationError, _on_validation_error)
    application.add_exception_handler(Exception, _on_fault)
    document = _Document(application)

    @application.get("/openapi.json", include_in_schema=False)
    async def openapi_json(request: Request) -> Response:
        return (await document.content()).response(request.headers, {"Cache-Control": "no-cache"})

    return application


class _Document:
    """The OpenAPI document, made when it is first asked for: it takes as long as the rest of a start."""

    def __init__(self, application: FastAPI) -> None:
        self._application = application
        self._made: asyncio.Future[StaticContent] | None = None

    async def content(self) -> StaticContent:
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        # Others may wait for it, too.
        return await asyncio.shield(self._made)

    def _make(self) -> StaticContent:
        return StaticContent.of(responses.encoded(openapi.openapi(self._application)), "application/json")


async def _on_http_exception(request: Request, fault: Exception) -> Response:
    if isinstance(fault, HTTPException) and fault.status_code == 405:
        allowed = ", ".join(_methods_at(request))
        refusal = Refusal(
            Code.INVALID_REQUEST,
            f"{request.method} is not a method of this address; it takes {allowed}.",
            headers={"Allow": allowed},
        )
        return responses.error_response(request.scope, refusal, 405)
    return responses.error_response(
        request.scope,
        Refusal(Code.NOT_FOUND, "There is nothing at this address: see /docs for what there is."),
    )


def _methods_at(request: Request) -> list[str]:
    """Of all routes at the address; the router names only those of the first match."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


async def _on_validation_error(request: Request, _: Exception) -> Response:
    return responses.error_response(request.scope, invalid("The request's parameters can't be read."))


async def _on_fault(_: Request, fault: Exception) -> Response:
    """Refusals too: the frame counts and answers them."""
    raise fault
