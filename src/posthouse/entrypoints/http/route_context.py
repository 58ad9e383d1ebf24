"""Shared by all routes: the logged-in member, the request body, paging, and the JSON response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.request_body import (
    NAME_CHARACTERS_SHOWN_MAX,
    BodyReader,
    parsed,
    require_none,
    suggestion,
    takes_none,
    validated,
)
from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.http.request_limits import ConcurrencyLimit
from posthouse.entrypoints.http.send_email import idempotency_key, peer_of
from posthouse.flows.accept.admission import Admission
from posthouse.flows.account.write_rate_limit import WriteRateLimit
from posthouse.flows.operate.message_lookup import MessageLookup
from posthouse.flows.operate.operators import Operators
from posthouse.flows.shared.context import Flow
from posthouse.flows.shared.principal import Caller, Member, Principal
from posthouse.flows.shared.shared_database import count_for
from posthouse.rules import credential
from posthouse.rules.credential import Actor, Role, Scope
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal, invalid

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
# A declared parameter whose name ends like this stands for all names with the same beginning.
NAMED: Final = "<name>"
_READING: Final = ("GET", "HEAD")
SMALL_BODY_BYTES_MAX: Final = 64 * 1024

Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")
FlowT = TypeVar("FlowT")
# In the scope of a request: the operator who makes it.
_OPERATOR: Final = "posthouse.operator"

Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page.")]
GivenMessageId = Annotated[str, Path(alias="id", description="The id from the send response.")]
MessageFilter = Annotated[
    str | None, Query(description="Only of this message; the list is empty if the account has no such message.")
]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call an operation, and what else is checked first; `operation.Declared` explains the fields.

    Without a role, scopes or operators, it is public. With scopes but no role, it takes any credential that has them.
    """

    role: Role | None = None
    scopes: tuple[Scope, ...] = ()
    is_for_operators: bool = False
    stores: bool = False
    is_own: bool = False
    read_action: str = ""
    ends_impersonation: bool = False

    @property
    def is_public(self) -> bool:
        return self.role is None and not self.scopes and not self.is_for_operators


class OperationRoute(APIRoute):
    access: Access
    # Which the operation is given.
    flows: Sequence[type]
    example: Mapping[str, Any] | None


def access_of(request: Request) -> Access:
    route: OperationRoute = request.scope["route"]
    return route.access


class FlowsByClass(Protocol):
    """The flows of the process, which `compose.flows` builds."""

    def __getitem__(self, kind: type[FlowT]) -> FlowT: ...


def flow_of(request: Request, kind: type[FlowT]) -> FlowT:
    """The flow of this class; once an operator is admitted, what it changes is logged as that operator's."""
    flows: FlowsByClass = request.app.state.flows
    flow = flows[kind]
    actor: Actor | None = request.scope.get(_OPERATOR)
    return flow.by(actor) if actor is not None and isinstance(flow, Flow) else flow


def key_of(request: Request) -> str:
    """The request's Idempotency-Key, which is required."""
    check_given_once(request.scope, b"idempotency-key")
    return idempotency_key(dict(request.scope["headers"]))


async def member_of(request: Request) -> Member:
    """The logged-in member, whose role must permit the route's operation; roles are checked only here.

    Everything but reading counts as a change, and changes have a rate limit for each account.
    """
    member = await flow_of(request, Admission).member(request.headers.get("authorization"))
    await begin_work(request, member.account_id)
    await _check_member(request, member)
    await _check_request(request, member)
    return member


async def caller_of(request: Request) -> Caller:
    """The logged-in member, or a program whose API key has the scopes of the route's operation."""
    caller = await flow_of(request, Admission).caller(
        request.headers.get("authorization"), peer_of(request.scope), access_of(request).scopes
    )
    await begin_work(request, caller.account_id)
    if isinstance(caller, Member):
        await _check_member(request, caller)
    await _check_request(request, caller)
    return caller


async def operator_of(request: Request) -> Actor:
    """The logged-in operator; everyone else is refused."""
    actor = await flow_of(request, Operators).admit(request.headers.get("authorization"))
    await require_declared(request)
    request.scope[_OPERATOR] = actor
    return actor


async def reader_of(request: Request) -> Principal:
    """Whoever may read mail, with any credential."""
    admission = flow_of(request, Admission)
    principal = await admission.reader(request.headers.get("authorization"), peer_of(request.scope))
    await begin_work(request, principal.account_id)
    return principal


async def sender_of(request: Request) -> Principal:
    """Whoever may send mail, and so change what is not sent yet."""
    admission = flow_of(request, Admission)
    principal = await admission.sender(request.headers.get("authorization"), peer_of(request.scope))
    count_for(principal.account_id)
    await begin_work(request, principal.account_id)
    await require_declared(request)
    return principal


async def _check_request(request: Request, caller: Caller) -> None:
    if request.method not in _READING:
        flow_of(request, WriteRateLimit).require(caller.account_id, stores=access_of(request).stores)
    if request.method == "POST":
        check_given_once(request.scope, b"content-type")
    await require_declared(request)


async def require_declared(request: Request) -> None:
    """Refuse what the route doesn't declare: a parameter, or a body if it takes none.

    Otherwise it would be ignored silently: a list with a misspelt filter would show everything.
    """
    require_declared_parameters(request)
    if request.method in _READING or "requestBody" in _extra(request):
        return
    reader: BodyReader = request.app.state.reader
    is_here = responses.IS_BODY_HERE in request.scope
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
    """Wait for the account's turn, once it is known."""
    request.scope[ACCOUNT_ID] = account_id
    concurrency: ConcurrencyLimit = request.app.state.concurrency_limit
    await concurrency.begin(request.scope, account_id)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def require_still_allowed(request: Request) -> None:
    """Raises once a new request like this one would be refused; for a response that outlives its admission."""
    _require_allowed(request, await flow_of(request, Admission).recall_member(request.headers.get("authorization")))


def _require_allowed(request: Request, member: Member) -> None:
    access = access_of(request)
    if member.impersonated_until is not None and request.method not in _READING and not access.ends_impersonation:
        raise Refusal(Code.FORBIDDEN, "A read-only impersonation can change nothing: end it first.")
    if access.role is None:
        raise LookupError(f"{request.url.path} is for members, and names no role")
    credential.require_role(member.role, access.role)
    if member.lacks_second_factor and not access.is_own:
        raise Refusal(Code.FORBIDDEN, credential.SECOND_FACTOR_REQUIRED)


async def _check_member(request: Request, member: Member) -> None:
    """Also logs it in the account's log before an operator who impersonates a viewer sees content or takes a file."""
    _require_allowed(request, member)
    action = access_of(request).read_action
    if member.impersonated_until is not None and action:
        message_lookup = flow_of(request, MessageLookup).by(member.actor)
        await message_lookup.note_read(member.account_id, action, request.path_params.get("id"))


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
