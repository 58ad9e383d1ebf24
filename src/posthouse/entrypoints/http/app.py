"""The HTTP application: the router, the request middleware, and the flows that it opens and closes."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Lifespan

from posthouse.clock import Clock
from posthouse.entrypoints.http import api_reference, request_limits, responses
from posthouse.entrypoints.http.access_log import AccessLog
from posthouse.entrypoints.http.api_reference import OpenApiDocument
from posthouse.entrypoints.http.cached_read import CachedReads
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import RequestIds
from posthouse.entrypoints.http.request_limits import ConcurrencyLimit, UnauthenticatedLimit
from posthouse.entrypoints.http.request_middleware import RequestMiddleware
from posthouse.entrypoints.http.route_context import Access, FlowsByClass, OperationRoute
from posthouse.entrypoints.http.routes import (
    account,
    captured,
    credentials,
    dashboard,
    domains,
    dry_run,
    emails,
    endpoints,
    events,
    live,
    message_changes,
    message_detail,
    message_search,
    next_message,
    operator,
    operator_accounts,
    operator_lanes,
    operator_messages,
    service,
    sessions,
    suppressions,
    team,
    templates,
    unsubscribe,
    usage_and_ledger,
)
from posthouse.entrypoints.http.routes.service import ServiceInfo
from posthouse.entrypoints.http.send_email import SendEndpoint
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.intake import Intake
from posthouse.flows.account.live import Live, NextMessage
from posthouse.flows.shared.shares import FairShare
from posthouse.randomness import Randomness
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.traces import Tracer

_FAMILIES: Final = (
    emails,
    templates,
    sessions,
    team,
    account,
    usage_and_ledger,
    domains,
    credentials,
    message_search,
    live,
    next_message,  # must come before /v1/messages/{id}
    message_detail,
    message_changes,
    suppressions,
    dry_run,
    endpoints,
    events,
    unsubscribe,
    service,
    captured,
    operator,
    operator_accounts,
    operator_lanes,
    operator_messages,
    dashboard,
    api_reference,
)

# Who may call each operation.
OPERATIONS: Final[Mapping[str, Access]] = {
    route.unique_id: route.access
    for family in _FAMILIES
    for route in family.router.routes
    if isinstance(route, OperationRoute)
}

# For all clients of this process.
CONNECTIONS_MAX: Final = 8_000
# Clients of one address may always open this share of the connections, while any is free.
CONNECTIONS_PER_ADDRESS_DIVISOR: Final = 16


def create_app(
    open_flows: Callable[[], AbstractAsyncContextManager[tuple[FlowsByClass, Tracer | None]]],
    clock: Clock,
    randomness: Randomness,
    service_info: ServiceInfo,
    unauthenticated_rate: Rate = request_limits.UNAUTHENTICATED_RATE,
    *,
    names_proxies: bool = True,
    captures: bool = False,
    connections_max: int = CONNECTIONS_MAX,
    on_stop: Callable[[], None] = lambda: None,
    access_log: AccessLog | None = None,
) -> RequestMiddleware:
    """`on_stop` is called when the server begins to stop while requests or connections are open."""
    request_ids = RequestIds(clock, randomness)
    reader = BodyReader()
    send_endpoint = SendEndpoint(reader)
    concurrency = ConcurrencyLimit()

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with open_flows() as (flows, tracer):
            application.state.flows = flows
            application.state.tracer = tracer
            application.state.clock = clock
            application.state.service_info = service_info
            application.state.reader = reader
            application.state.concurrency_limit = concurrency
            application.state.cached_reads = CachedReads()
            send_endpoint.open(flows[Admission], flows[Intake], tracer)
            least = connections_max // CONNECTIONS_PER_ADDRESS_DIVISOR
            connections: FairShare[str] = FairShare(connections_max, least=least)

            def stop() -> None:
                on_stop()
                # Responses that wait for something to happen end.
                flows[NextMessage].close()
                flows[Live].close()

            yield {
                responses.REQUEST_IDS: request_ids,
                responses.CONNECTIONS: connections,
                responses.ON_STOP: stop,
            }
            await flows[Intake].drain()

    limit = UnauthenticatedLimit(clock, unauthenticated_rate)
    router = create_router(lifespan)
    return RequestMiddleware(
        router,
        send_endpoint,
        request_ids,
        limit,
        concurrency,
        names_proxies=names_proxies,
        captures=captures,
        access_log=access_log,
    )


def create_router(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    application = FastAPI(lifespan=lifespan, redirect_slashes=False, openapi_url=None, docs_url=None, redoc_url=None)
    for family in _FAMILIES:
        application.router.routes.extend(family.router.routes)
    application.add_exception_handler(HTTPException, _on_http_exception)
    application.add_exception_handler(RequestValidationError, _on_validation_error)
    application.add_exception_handler(Exception, _on_fault)
    document = OpenApiDocument(application)

    @application.get("/openapi.json", include_in_schema=False)
    async def openapi_json(request: Request) -> Response:
        return (await document.content()).response(request.headers, {"Cache-Control": "no-cache"})

    return application


async def _on_http_exception(request: Request, fault: Exception) -> Response:
    if isinstance(fault, HTTPException) and fault.status_code == 405:
        allowed = ", ".join(_methods_at(request))
        refusal = Refusal(
            Code.INVALID_REQUEST,
            f"{request.method} is not a method of this path; it takes {allowed}.",
            headers={"Allow": allowed},
        )
        return responses.error_response(request.scope, refusal, 405)
    return responses.error_response(
        request.scope,
        Refusal(Code.NOT_FOUND, "There is nothing at this path: see /docs for the API."),
    )


def _methods_at(request: Request) -> list[str]:
    """The methods of all routes at the path; the router names only those of the first match."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


async def _on_validation_error(request: Request, _: Exception) -> Response:
    return responses.error_response(request.scope, invalid("The request's parameters can't be read."))


async def _on_fault(_: Request, fault: Exception) -> Response:
    """Refusals too: the request middleware counts and answers them."""
    raise fault
