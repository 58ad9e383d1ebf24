"""An operation of the API is one typed function, and its documentation follows from the signature.

    router = Operations("Templates", Scope.TEMPLATES)

    @router.post("/v1/templates", Role.MEMBER, stores=True, status=201, errors=(409,))
    async def create_template(caller: Caller, templates: Templates, body: TemplateRequest) -> TemplateResponse:
        \"""Create a template with its first version.\"""

That is the operation `createTemplate`. The first line of the docstring is its summary, the rest its description. What
the function is given depends on the type of each parameter:

- `Caller` is a member who has at least the role, or a program whose key has the scopes; `Member` only a member;
  `Operator` is a logged-in operator; `Reader` and `Sender` may read mail and send it, with any credential. Without a
  caller and without scopes the operation is public; with scopes, the function admits its caller.
- A flow is the process's; what it changes for an operator is logged under the operator's name.
- `Request`, `Clock`, `Peer`, `CachedReads` and `IdempotencyKey` are what their names say.
- A subclass of `RequestModel` is the body.
- Everything else is a parameter of the path or the query, as in FastAPI. A `Converted` one is text in the request.

The returned model is written as JSON, with the request's id. A function may also return a response of Starlette's; then
`content` is its model or its media types.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any, Final, NewType, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

from fastapi import Query, Request, params
from pydantic import BaseModel
from starlette.responses import Response

from posthouse.clock import Clock
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.cached_read import CachedReads
from posthouse.entrypoints.http.openapi import IDEMPOTENCY_KEY, SECURITY, json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    PAGE_MAX,
    SMALL_BODY_BYTES_MAX,
    Access,
    OperationRoute,
    body_of,
    caller_of,
    flow_of,
    key_of,
    member_of,
    operator_of,
    page_size,
    reader_of,
    require_declared,
    sender_of,
)
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.entrypoints.http.shapes import RequestModel
from posthouse.flows.shared.principal import Caller, Member, Principal
from posthouse.rules.credential import Actor, Role, Scope

Function = TypeVar("Function", bound=Callable[..., Awaitable[object]])

# The client's address.
Peer = NewType("Peer", str)
# The header, which the operation then requires.
IdempotencyKey = NewType("IdempotencyKey", str)
Operator = Annotated[Actor, "logged in"]
Reader = Annotated[Principal, Scope.READ]
Sender = Annotated[Principal, Scope.SEND]

_CALLERS: Final[Mapping[Any, Callable[[Request], Awaitable[object]]]] = {
    Caller: caller_of,
    Member: member_of,
    Operator: operator_of,
    Reader: reader_of,
    Sender: sender_of,
}
_READERS: Final[Mapping[Any, Callable[[Request], object]]] = {
    Request: lambda request: request,
    Clock: lambda request: request.app.state.clock,
    Peer: lambda request: peer_of(request.scope),
    CachedReads: lambda request: request.app.state.cached_reads,
    IdempotencyKey: key_of,
}


@dataclass(frozen=True, slots=True)
class Converted:
    """A parameter that is text in the request; a value that can't be read is a refusal, after the caller is known."""

    read: Callable[[str], object]


PageSize = Annotated[
    int,
    Query(
        description="1 to 100.",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
    ),
    Converted(page_size),
]


class Declared(TypedDict, total=False):
    """What else an operation declares.

    `tag` and `scopes` are the operation's, where they are not the family's; a program's key needs the scopes. `stores`
    is refused while disk space is low; `is_own` concerns only the user, and is open also without the second factor that
    an account requires; `ends_impersonation` is the only change that an operator who impersonates a viewer can make;
    `read_action` is what the account's log says when they read it. `errors` are statuses besides those that follow from
    the signature; `example` is an answer, if that of the model doesn't fit; `extra` is merged into the document.
    """

    tag: str
    scopes: tuple[Scope, ...]
    stores: bool
    is_own: bool
    read_action: str
    ends_impersonation: bool
    status: int
    errors: Sequence[int]
    body_bytes_max: int
    content: type[BaseModel] | str | tuple[str, ...]
    example: Mapping[str, Any]
    extra: Mapping[str, Any]


class Operations:
    """The operations of a family."""

    def __init__(self, tag: str, scope: Scope | None = None) -> None:
        self.routes: list[OperationRoute] = []
        self._tag = tag
        self._scopes = () if scope is None else (scope,)

    def get(
        self, path: str, needed: Role | None = None, **declared: Unpack[Declared]
    ) -> Callable[[Function], Function]:
        return self._operation("GET", path, needed, declared)

    def post(
        self, path: str, needed: Role | None = None, **declared: Unpack[Declared]
    ) -> Callable[[Function], Function]:
        return self._operation("POST", path, needed, declared)

    def put(
        self, path: str, needed: Role | None = None, **declared: Unpack[Declared]
    ) -> Callable[[Function], Function]:
        return self._operation("PUT", path, needed, declared)

    def patch(
        self, path: str, needed: Role | None = None, **declared: Unpack[Declared]
    ) -> Callable[[Function], Function]:
        return self._operation("PATCH", path, needed, declared)

    def delete(
        self, path: str, needed: Role | None = None, **declared: Unpack[Declared]
    ) -> Callable[[Function], Function]:
        return self._operation("DELETE", path, needed, declared)

    def _operation(
        self, method: str, path: str, needed: Role | None, declared: Declared
    ) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            given = _Given.of(function)
            operation_id = _camel_case(function.__name__)
            callers = set(given.callers.values())
            access = Access(
                needed,
                declared.get("scopes", self._scopes if callers & {Caller, Reader, Sender} else ()),
                Operator in callers,
                declared.get("stores", False),
                declared.get("is_own", False),
                declared.get("read_action", ""),
                declared.get("ends_impersonation", False),
            )
            _check(operation_id, access, callers)
            summary, _, description = cleandoc(function.__doc__ or "").partition("\n")
            status = declared.get("status", 200)
            body = {} if given.body is None else json_body(given.body[1])
            header = {"parameters": [IDEMPOTENCY_KEY]} if IdempotencyKey in given.read.values() else {}
            errors = {*given.errors(method, path, is_own=access.is_own), *declared.get("errors", ())}
            # Pages and probes take any parameter.
            is_strict = access.is_public and path.startswith("/v1/")
            body_bytes_max = declared.get("body_bytes_max", SMALL_BODY_BYTES_MAX)
            route = OperationRoute(
                path,
                _endpoint(function, given, status, body_bytes_max, is_strict=is_strict),
                methods=[method],
                operation_id=operation_id,
                summary=summary.rstrip("."),
                tags=[declared.get("tag", self._tag)],
                description=description.strip(),
                status_code=status,
                response_class=Response,
                openapi_extra={**body, **header, "security": security(access), **declared.get("extra", {})},
                responses=responses_with(status, declared.get("content", given.returned), *sorted(errors)),
            )
            route.access = access
            route.example = declared.get("example")
            route.flows = tuple(given.flows.values())
            self.routes.append(route)
            return function

        return add


@dataclass(frozen=True, slots=True)
class _Given:
    """The parameters of a function, by where they come from."""

    callers: Mapping[str, Any]
    # What is read from the request in other ways.
    read: Mapping[str, Any]
    flows: Mapping[str, type]
    body: tuple[str, type[RequestModel]] | None
    converted: Mapping[str, Callable[[str], object]]
    # As FastAPI is to see them.
    parameters: Sequence[Parameter]
    returned: Any

    @classmethod
    def of(cls, function: Callable[..., object]) -> "_Given":
        hints = get_type_hints(function, include_extras=True)
        returned = hints.pop("return")
        bodies = [(name, hint) for name, hint in hints.items() if _is_model(hint)]
        callers = {name: hint for name, hint in hints.items() if hint in _CALLERS}
        read = {name: hint for name, hint in hints.items() if hint in _READERS}
        flows = {name: hint for name, hint in hints.items() if _is_flow(hint)}
        elsewhere = {*callers, *read, *flows, *(name for name, _ in bodies)}
        parameters, converted = [], {}
        for name, parameter in signature(function).parameters.items():
            if name in elsewhere:
                continue
            hint, default = hints[name], parameter.default
            metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            if found := [each for each in metadata if isinstance(each, Converted)]:
                converted[name] = found[0].read
                hint = Annotated[(str, *(each for each in metadata if not isinstance(each, Converted)))]
                default = default if default is Parameter.empty else str(default)
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint, default=default))
        body = bodies[0] if bodies else None
        return cls(callers, read, flows, body, converted, parameters, returned)

    def errors(self, method: str, path: str, *, is_own: bool) -> set[int]:
        """The error statuses that follow from the signature."""
        found = {500, 503}
        if self.callers:
            # Every member may read what is their own, and every credential may read.
            may_all = (is_own and method == "GET") or Reader in self.callers.values()
            found |= {401} if may_all else {401, 403}
            # Operators have no rate limit.
            found |= set() if method == "GET" or Operator in self.callers.values() else {429}
        if self.body is not None:
            found |= {400, 413}
        if "{" in path:
            found |= {404}
        if any(
            isinstance(each, params.Query) for parameter in self.parameters for each in get_args(parameter.annotation)
        ):
            found |= {400}
        return found


def _endpoint(
    function: Callable[..., Awaitable[object]], given: _Given, status: int, body_bytes_max: int, *, is_strict: bool
) -> Callable[..., Awaitable[Response]]:
    async def endpoint(request: Request, **arguments: Any) -> Response:
        for name, kind in given.callers.items():
            arguments[name] = await _CALLERS[kind](request)
        if is_strict:
            await require_declared(request)
        for name, convert in given.converted.items():
            arguments[name] = convert(arguments[name])
        for name, kind in given.read.items():
            arguments[name] = _READERS[kind](request)
        for name, flow in given.flows.items():
            arguments[name] = flow_of(request, flow)
        if given.body is not None:
            name, model = given.body
            arguments[name] = await body_of(request, model, body_bytes_max)
        found = await function(**arguments)
        return found if isinstance(found, Response) else model_response(request, found, status)

    request = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    endpoint.__signature__ = Signature([request, *given.parameters])  # type: ignore[attr-defined]
    return endpoint


def model_response(
    request: Request, content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The model as JSON, and the request's id as its last field."""
    if not isinstance(content, BaseModel):
        raise TypeError(f"an operation returned {type(content).__name__}, not a model or a response")
    written = content.__pydantic_serializer__.to_json(content, by_alias=True)
    separator = b"" if written == b"{}" else b","
    body = b'%b%b"request_id":"%b"}' % (written[:-1], separator, responses.request_id_text(request.scope).encode())
    return Response(body, status, headers, "application/json")


def security(access: Access) -> list[dict[str, list[str]]]:
    """The credentials that the document declares."""
    if access.is_public:
        return []
    if access.role is None and not access.is_for_operators:
        return [{scheme: []} for scheme in SECURITY]
    key = [{"apiKey": [scope.value for scope in access.scopes]}] if access.scopes else []
    return [{"dashboard": []}, *key]


def _is_flow(hint: object) -> bool:
    return isinstance(hint, type) and hint not in _CALLERS and hint.__module__.startswith("posthouse.flows.")


def _is_model(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, RequestModel)


def _check(operation_id: str, access: Access, callers: set[Any]) -> None:
    if (access.role is not None) is not bool(callers & {Caller, Member}):
        raise ValueError(f"{operation_id}: a role is for a Caller or a Member, who need one")
    if callers and bool(access.scopes) is not bool(callers & {Caller, Reader, Sender}):
        raise ValueError(f"{operation_id}: scopes are for a Caller, a Reader or a Sender, who need one")


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
