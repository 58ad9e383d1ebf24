"""Shared by all routes: the logged-in member, the request body, paging, and the JSON response."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.at_once import AtOnce
from posthouse.entrypoints.http.repeated_headers import check_content_type, check_idempotency_key
from posthouse.entrypoints.http.request_body import (
    NAME_CHARACTERS_SHOWN_MAX,
    BodyReader,
    parsed,
    require_none,
    suggestion,
    takes_none,
    validated,
)
from posthouse.entrypoints.http.responses import timestamp as timestamp
from posthouse.entrypoints.http.send_email import idempotency_key, peer_of
from posthouse.entrypoints.http.services import Services
from posthouse.flows.shared.page import Page
from posthouse.flows.shared.principal import Caller, Member
from posthouse.rules import role, scope
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal, invalid

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
# A declared parameter whose name ends so stands for all that begin alike.
NAMED: Final = "<name>"
_READING: Final = ("GET", "HEAD")
SMALL_BODY_BYTES_MAX: Final = 64 * 1024

Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")

PageSize = Annotated[
    str,
    Query(
        description="1 to 100.",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
    ),
]

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
MessageFilter = Annotated[
    str | None, Query(description="Only of this message; the list is empty if the account has no such message.")
]


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def key_of(request: Request) -> str:
    """The request's Idempotency-Key, which it must have."""
    check_idempotency_key(request.scope)
    return idempotency_key(dict(request.scope["headers"]))


async def member_of(request: Request) -> Member:
    """The logged-in member, whose role must permit the route's operation; roles are checked nowhere else.

    Everything but reading counts as a change, of which an account may make so many at a time.
    """
    member = await services_of(request).admission.member(request.headers.get("authorization"))
    await begin_work(request, member.account_id)
    operation = _require_allowed(request, member)
    await _note_visit(request, member, operation)
    await _check_request(request, member, operation)
    return member


async def caller_of(request: Request) -> Caller:
    """The logged-in member, or a program whose API key has the scope of the route's operation."""
    operation: str = request.scope["route"].operation_id
    caller = await services_of(request).admission.caller(
        request.headers.get("authorization"), peer_of(request.scope), scope.NEEDED[operation]
    )
    await begin_work(request, caller.account_id)
    if isinstance(caller, Member):
        _require_allowed(request, caller)
        await _note_visit(request, caller, operation)
    await _check_request(request, caller, operation)
    return caller


async def _check_request(request: Request, caller: Caller, operation: str) -> None:
    if request.method not in _READING:
        services_of(request).writes.require(caller.account_id, operation)
    if request.method == "POST":
        check_content_type(request.scope)
    await require_declared(request)


async def require_declared(request: Request) -> None:
    """Refuse what the route doesn't declare: a parameter, or a body where it takes none.

    It would otherwise be lost silently: a list whose filter is misspelt shows everything.
    """
    require_declared_parameters(request)
    if request.method in _READING or "requestBody" in _extra(request):
        return
    reader: BodyReader = request.app.state.reader
    is_here = responses.is_body_here(request.scope)
    try:
        body = await reader.read(request.receive, SMALL_BODY_BYTES_MAX, is_here=is_here)
    except Refusal as refusal:
        raise takes_none() if refusal.code is Code.PAYLOAD_TOO_LARGE else refusal from None
    require_none(body)


def require_declared_parameters(request: Request) -> None:
    if not request.scope["query_string"]:
        return
    declared = [field.alias for field in request.scope["route"].dependant.query_params]
    declared += [each["name"] for each in _extra(request).get("parameters", ()) if each["in"] == "query"]
    families = tuple(name.removesuffix(NAMED) for name in declared if name.endswith(NAMED))
    for given in request.query_params:
        if given not in declared and not (families and given.startswith(families)):
            name = given[:NAME_CHARACTERS_SHOWN_MAX]
            raise invalid(f"`{name}` is not a parameter of this request.{suggestion(name, declared)}")


def _extra(request: Request) -> Mapping[str, Any]:
    return request.scope["route"].openapi_extra or {}


async def begin_work(request: Request, account_id: AccountId) -> None:
    """Once the account is known: wait for its turn."""
    request.scope[ACCOUNT_ID] = account_id
    at_once: AtOnce = request.app.state.at_once
    await at_once.begin(request.scope, account_id)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def require_still_allowed(request: Request) -> None:
    """Raises once a new request like this would be refused, for a response that outlasts its admission."""
    _require_allowed(request, await services_of(request).admission.recall_member(request.headers.get("authorization")))


def _require_allowed(request: Request, member: Member) -> str:
    operation: str = request.scope["route"].operation_id
    if member.visits_until is not None and request.method not in _READING:
        raise Refusal(Code.FORBIDDEN, "A visit can change nothing: end it, and do this as an operator or a member.")
    role.require(member.role, operation)
    if member.lacks_second_factor:
        role.require_second_factor(operation)
    return operation


async def _note_visit(request: Request, member: Member, operation: str) -> None:
    """The account's log has it before an operator who visits sees what a message says."""
    if member.visits_until is not None and operation in role.CONTENT:
        flows = services_of(request).operator_flows(member.actor)
        await flows.message_lookup.note_content_read(member.account_id, request.path_params["id"])


async def body_of(request: Request, model: type[Body], bytes_max: int = SMALL_BODY_BYTES_MAX) -> Body:
    require_declared_parameters(request)
    reader: BodyReader = request.app.state.reader
    reader.check_headers(request.scope, bytes_max)
    return validated(model, parsed(await reader.read(request.receive, bytes_max)))


def page_size(given: str) -> int:
    if given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= PAGE_MAX:
        return int(given[:9])
    raise invalid(f"`limit` is a number from 1 to {PAGE_MAX}.")


def json_response(request: Request, content: Mapping[str, Any], status: int = 200) -> Response:
    body = {**content, "request_id": responses.request_id_text(request.scope)}
    return Response(responses.encoded(body), status_code=status, media_type="application/json")


def page_response(request: Request, name: str, page: Page[Item], shown: Callable[[Item], Any]) -> Response:
    return json_response(request, {name: [shown(item) for item in page.items], "next_cursor": page.next_cursor})
