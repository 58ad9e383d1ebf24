"""Bad input to all of the account's API, by the OpenAPI document: for every role, a declared status and never a 500.

The document says what there is, so that a new route is tested as soon as it exists. First each
operation is given what its schema allows, by each role, and what it doesn't; then odd values, one at a time, in each parameter and each field
of its body.
"""

# ruff: noqa: E501 (a table of values reads better unbroken)

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import hypothesis
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.transport.requests import ManagedCookiesSession

from posthouse.rules.credential import Role, role_includes
from tests.faults import corpus
from tests.faults.http_probe import HttpProbe, Tally
from tests.faults.schema_checks import CHECKS, QUIET, collected
from tests.support.bad_input import IS_REPEATED, TRIED, inputs
from tests.support.database_checks import database_faults
from tests.support.declared_access import FOR_OPERATORS, FOR_PROGRAMS, NEEDED, PUBLIC
from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import Answer, check_every_answer
from tests.support.nameserver import Nameserver
from tests.support.operator_login import operator_login
from tests.support.server_process import ServerProcess
from tests.support.service import ABSENT, Service, Tenant
from tools.write_openapi import FILE

pytestmark = [
    pytest.mark.fuzz("The account's API"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestWarning"),
]

DOCUMENT: Final = json.loads(FILE.read_text())
# An owner meets every rule; the others, mostly, that they may not: they make every fourth valid request too, before the
# owner does, who may delete what it is about.
EXAMPLES: Final = inputs(4)
OWNER: Final = (Role.OWNER,)
EVERY_ROLE: Final = (*(role for role in Role if role is not Role.OWNER), Role.OWNER)
JSON: Final = "application/json"
# What takes a password or makes a key is slow on purpose: a part of the odd values is enough there.
SLOW: Final = frozenset(
    {"login", "acceptInvitation", "changePassword", "disableTotp", "addDomain", "rotateDomainKeys", "verifyDomain"}
)
SLOW_EVERY: Final = 12
# CI tries a part of the odd values of each operation; `make nightly` and `make fuzz` try all.
EVERY: Final = 20 if IS_REPEATED else 1
# Each field gets another third of the odd values, so that each value is tried in many fields.
SHARE: Final = 3
# The session that asks ends with it.
LAST: Final = ("deleteWebhook", "logout")

ODD_LITERALS: Final = (
    b"NaN", b"Infinity", b"-0", b"1e400", b"9" * 5_000, b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\xff"',
    b"[" * 5_000 + b"]" * 5_000, b'{"a":1,"a":2}',
)  # fmt: skip
ODD_BODIES: Final = (
    b"", b" ", b"null", b"[]", b"1", b'"a"', b"{", b"{}", b'{"a"', b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"\\ud800":1}',
    b'{"\x00":1}', b"[" * 50_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"unknown":1}', b"x" * 2 * corpus.MIB,
)  # fmt: skip
ODD_QUERY_VALUES: Final = (
    "", "%00", "a%00b", "%ff", "%ed%a0%80", "%F0%9F%92%8C", "-1", "0", "101", "9" * 5_000, "1.5", "NaN", "1e2", "%D9%A1",
    "x" * 5_000, "'", "%25", "%5c", "null", "true", "[]", "%0d%0aX:%20y", "2026-02-30", "9999-12-31", "0001-01-01",
    "2026-01-01T00:00:00Z", "em_", "em_" + "z" * 26, "ev_" + "0" * 26, "AAAA", "eyJhIjoxfQ", "e30=", "a&b", "%", "*",
)  # fmt: skip
ODD_HEADERS: Final[tuple[str | bytes, ...]] = (
    "", " ", "a\tb", "x" * 255, "x" * 256, "x" * 5_000, b"\xff", b"\xc3\xa9", "%00", "a,b", '"a"',
)  # fmt: skip
ODD_CSV: Final = (
    b"", b"\r\n", b"\x00", b"\xff\xfe", b"\xef\xbb\xbfemail\r\na@example.com", b"email\r\n" + b"," * 10_000, b'"', b'"a',
    b'email,reason\r\n"a@example.com\r\n', b"email\r\n" + b"x" * 300_000, b"email\n" + b"\n" * 10_000, b"=cmd()|' '!A1",
    "email\r\nñ@ñ.example".encode(), "email\r\na@example.com".encode("utf-16"), b"a@example.com;b@example.com", b"email",
    b"email,email\r\na@example.com,b@example.com", b"reason\r\nx", b"email\r\na@example.com\r\nA@EXAMPLE.com\r\n@\r\n,,,",
    b"email\r\n" + b'"' + b"\r\n" * 70_000, b"email\r\na\x00@example.com", b"email\r\na@example.com\r\r\r", b"<html></html>",
    b"email,reason\r\na@example.com," + b"r" * 5_000, b"email,reason\r\na@example.com,\xed\xa0\x80",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    method: str
    path: str
    declared: dict[str, Any]

    @property
    def statuses(self) -> set[int]:
        return {int(status) for status in self.declared["responses"]}

    @property
    def parameters(self) -> list[dict[str, Any]]:
        return [resolved(parameter) for parameter in self.declared.get("parameters", ())]

    @property
    def media_types(self) -> set[str]:
        return set(self.declared.get("requestBody", {}).get("content", ()))

    @property
    def schema(self) -> dict[str, Any]:
        return resolved(self.declared["requestBody"]["content"][JSON]["schema"])


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        _, _, kind, name = part["$ref"].split("/")
        part = DOCUMENT["components"][kind][name]
    return part


def is_stream(declared: dict[str, Any]) -> bool:
    """It doesn't end on its own, and takes no parameter."""
    return "text/event-stream" in declared["responses"].get("200", {}).get("content", ())


def operations() -> list[Operation]:
    found = [
        Operation(declared["operationId"], method.upper(), path, declared)
        for path, methods in DOCUMENT["paths"].items()
        for method, declared in methods.items()
        if path.startswith("/v1/") and not is_stream(declared)
    ]
    return sorted(
        found, key=lambda operation: (operation.id in LAST, operation.id == "logout", operation.method == "DELETE")
    )


@dataclass(slots=True)
class Bench:
    """A server, an account with something of each kind, a token of each role, and the requests made."""

    server: ServerProcess
    service: Service
    tenant: Tenant
    tokens: dict[Role, str]
    # A test key.
    reader: str
    operator: str
    # One connection for generated requests; the cookies of a login would log in each request after it.
    session: ManagedCookiesSession = field(default_factory=ManagedCookiesSession)
    tally: Tally = field(default_factory=Tally)
    succeeded: set[str] = field(default_factory=set)

    def headers(self, operation: Operation, role: Role = Role.OWNER) -> dict[str, str]:
        if operation.id in PUBLIC:
            return {}
        if operation.id in FOR_OPERATORS and role is Role.OWNER:
            return {"Authorization": self.operator}
        return {"Authorization": self.reader if operation.id in FOR_PROGRAMS else self.tokens[role]}

    def existing(self, operation: Operation) -> dict[str, str]:
        """What of the account's a path leads to: the newest that its collection lists."""
        if operation.id in FOR_OPERATORS:
            return {}  # the account under test is not to be suspended
        collection, _, rest = operation.path.partition("/{")
        if not rest:
            return {}
        name = rest.partition("}")[0]
        probe = HttpProbe(self.server.port, Tally())
        answer = probe._exchange("GET", collection, {"Authorization": self.tokens[Role.OWNER]}, None, False)
        probe.close()
        listed = next((value for value in answer.body.values() if isinstance(value, list)), [])
        # Without the session that asks.
        listed = [item for item in listed if not item.get("current")]
        return {name: str(listed[0][name]), "part": "1"} if listed else {}

    def check(self, operation: Operation, role: Role, name: str, answer: Answer) -> None:
        self.tally.inputs[operation.id] += 1
        self.tally.statuses[answer.status] += 1
        assert answer.headers.get("X-Request-ID"), f"{name}: no X-Request-ID"
        assert answer.status != 500, f"{name}: {answer.raw[:300]!r}"
        if answer.status >= 400 or JSON in answer.headers.get("Content-Type", ""):
            check_every_answer(operation.method, operation.path, answer)
        else:
            self.succeeded.add(operation.id)
        if answer.status < 300:
            self.succeeded.add(operation.id)
        if operation.id in NEEDED and not role_includes(role, NEEDED[operation.id]):
            assert answer.status in {403, 404, 405}, f"{name}: {answer.status} for a {role}"


class Names:
    """A name server that knows no name, on its own thread: the tests here have no event loop for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server = Nameserver()

    def __enter__(self) -> Nameserver:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self.server.__aenter__(), self._loop).result(HANG_SECONDS)

    def __exit__(self, *failure: object) -> None:
        asyncio.run_coroutine_threadsafe(self.server.__aexit__(*failure), self._loop).result(HANG_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_SECONDS)
        self._loop.close()


@pytest.fixture(scope="module")
def bench(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Names() as names:
        settings = {"SERVICE__RESOLVERS": f"127.0.0.1:{names.port}"}
        server = ServerProcess(new_database(), tmp_path_factory.mktemp("account") / "server.log", settings)
        asyncio.run(server.start())
        try:
            loop = asyncio.new_event_loop()
            made = loop.run_until_complete(prepared(server))
            yield made
            made.session.close()
            loop.run_until_complete(made.service.close())
            loop.close()
            TRIED["The account's API"] += made.tally.inputs.total()
        finally:
            server.kill()


async def prepared(server: ServerProcess) -> Bench:
    service = await server.open_client()
    await service.prepare_sender()
    tenant = await service.account(credits=100_000)
    tokens = {role: await tenant.jwt(role.value) for role in Role}
    await tenant.user("viewer")
    await tenant.template("t", subject="Hello {{a}}", text="{{a}}", html="<p>{{a}}</p>")
    await tenant.accepts()
    await tenant.key()
    reader = await tenant.key("test", may_read=True)
    made: list[tuple[str, str, object]] = [
        ("PUT", "/v1/webhook", {"url": "https://hooks.example.com/"}),
        ("POST", "/v1/webhook/ping", ABSENT),
        ("POST", "/v1/suppressions", {"email": "gone@example.org"}),
        ("POST", "/v1/invitations", {"email": "new@example.org", "role": "viewer"}),
    ]
    for method, path, body in made:
        answer = await tenant.call(method, path, body)
        assert answer.status in {200, 201, 202}, f"{method} {path}: {answer.raw!r}"
    # Of another account, whose own token stays a customer's.
    _, operator = await operator_login(await service.account())
    return Bench(server, service, tenant, tokens, reader, operator)


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_operation_by_its_schema(bench: Bench, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=bench.server.url)
    by_id = {operation.id: operation for operation in operations()}
    generated: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    wanted = {
        operation.definition.raw["operationId"]: operation
        for operation in generated
        if operation.path.startswith("/v1/") and not is_stream(operation.definition.raw)
    }
    assert set(wanted) == set(by_id)
    faults: list[str] = []
    for operation in by_id.values():
        if operation.media_types - {JSON}:
            continue  # what is not JSON has its own test
        try:
            try_operation(bench, operation, wanted[operation.id], mode)
        except Unsatisfiable:
            pass  # what takes no input can't be given wrong input
        except Exception as fault:
            faults.append(f"{operation.id}, {mode.value}: {type(fault).__name__}: {fault}")
    collected(faults)


def try_operation(bench: Bench, operation: Operation, generated: Any, mode: GenerationMode) -> None:
    there = bench.existing(operation) if mode is GenerationMode.POSITIVE else {}
    roles = itertools.cycle([EVERY_ROLE if mode is GenerationMode.POSITIVE else OWNER, OWNER, OWNER, OWNER])

    # As short as can be: for each operation, Hypothesis reads its source twice.
    def check(case: Any, exists: bool) -> None:
        try_case(bench, operation, next(roles), case, there if exists else {})

    examples = EXAMPLES if operation.id not in SLOW else min(3, EXAMPLES)
    cases = given(case=generated.as_strategy(generation_mode=mode), exists=st.booleans())
    hypothesis.settings(QUIET, max_examples=examples)(cases(check))()


def try_case(bench: Bench, operation: Operation, roles: Sequence[Role], case: Any, there: Mapping[str, str]) -> None:
    case.path_parameters = there or case.path_parameters
    if operation.id in FOR_PROGRAMS:
        case.query = {**(case.query or {}), "wait": 0}  # a wait takes as long as it is asked to
    # Odd credentials are for other tests: here it is known who asks.
    case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
    for role in roles:
        if operation.id == "logout" and role is Role.OWNER:
            return  # the owner is still needed
        response = case.call(session=bench.session, headers=bench.headers(operation, role), timeout=HANG_SECONDS)
        case.validate_response(response, checks=CHECKS)
        given_headers = {name.title().replace("-Id", "-ID"): values[0] for name, values in response.headers.items()}
        answer = Answer(response.status_code, given_headers, response.content)
        bench.check(operation, role, str(case.path_parameters), answer)


def paths(operation: Operation, there: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The operation's path with what is there, then with odd values in its place, then with odd queries."""
    name, _, after = operation.path.replace("{part}", "1").partition("{")[2].partition("}")
    collection = operation.path.partition("{")[0]
    usual = operation.path.replace("{part}", "1").replace(f"{{{name}}}", quote(there.get(name, "none"), safe="@"))
    yield "usual", usual
    if name:
        for segment in corpus.ODD_SEGMENTS:
            target = f"{collection}{segment}{after}".replace(" ", "%20")
            if target.isascii():
                yield f"{name} = {segment[:30]}", target
    for parameter in operation.parameters:
        if parameter["in"] == "query":
            for value in ODD_QUERY_VALUES:
                yield f"{parameter['name']} = {value[:30]}", f"{usual}?{parameter['name']}={value}"
            yield f"{parameter['name']} twice", f"{usual}?{parameter['name']}=1&{parameter['name']}=2"
    if any(parameter["in"] == "query" for parameter in operation.parameters):
        for query in corpus.ODD_QUERIES:
            yield f"?{query[:30]}", f"{usual}?{query}"


def plain(schema: dict[str, Any]) -> Any:
    """Something small that the schema allows, at least by its types."""
    schema = resolved(schema)
    for choice in ("examples", "enum"):
        if schema.get(choice):
            return schema[choice][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    if "anyOf" in schema:
        return plain(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            return {name: plain(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [plain(schema["items"])]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return "a"


def odd_bodies(operation: Operation) -> Iterator[tuple[str, bytes]]:
    form = plain(operation.schema)
    assert isinstance(form, dict), operation.id
    yield "usual", json.dumps(form).encode()
    for body in ODD_BODIES:
        yield f"body {body[:20]!r}", body
    for place, name in enumerate([*operation.schema["properties"], "unknown"], len(operation.id)):
        for number, value in list(enumerate(corpus.ODD_VALUES))[place % SHARE :: SHARE]:
            yield f"{name} = value {number}", json.dumps({**form, name: value}).encode()
            if isinstance(form.get(name), list):
                yield f"{name} = [value {number}]", json.dumps({**form, name: [value]}).encode()
        for literal in ODD_LITERALS:
            body = json.dumps({**form, name: "?"}).encode().replace(b'"?"', literal)
            yield f"{name} = {literal[:20]!r}", body
        if name in form:
            yield f"{name} missing", json.dumps({item: value for item, value in form.items() if item != name}).encode()


class Request(NamedTuple):
    name: str
    target: str
    body: bytes | None = None
    media_type: str = JSON
    headers: Mapping[str, str | bytes] = {}


def send(bench: Bench, probe: HttpProbe, operation: Operation, request: Request) -> Answer:
    headers: dict[str, str | bytes] = {**bench.headers(operation)}
    if request.body is not None:
        headers["Content-Type"] = request.media_type
    for parameter in operation.parameters:
        if parameter["in"] == "header":
            headers[parameter["name"]] = ascii(f"{operation.id} {request.name}")[:250]
    answer = probe._exchange(operation.method, request.target, {**headers, **request.headers}, request.body, False)
    bench.check(operation, Role.OWNER, request.name, answer)
    return answer


def tried(bench: Bench, operation: Operation, requests: Iterable[Request], every: int = 1) -> list[str]:
    faults = []
    probe = HttpProbe(bench.server.port, bench.tally)
    for number, request in enumerate(requests, len(operation.id)):
        if number % every and request.name != "usual":
            continue
        try:
            answer = send(bench, probe, operation, request)
            # A path that leads elsewhere is answered by what is there.
            elsewhere = {404, 405} if request.name.partition(" = ")[0] == path_parameter(operation) else set()
            # The type of a body is checked before anything else about it.
            assert answer.status in operation.statuses | elsewhere, f"{answer.status} {answer.raw[:200]!r}"
        except Exception as fault:
            probe.close()
            faults.append(f"{operation.id}: {request.name}: {type(fault).__name__}: {fault}")
    probe.close()
    return faults


def path_parameter(operation: Operation) -> str:
    return operation.path.partition("{")[2].partition("}")[0]


def requests(operation: Operation, there: dict[str, str]) -> Iterator[Request]:
    body = json.dumps(plain(operation.schema)).encode() if JSON in operation.media_types else None
    usual = ""
    for name, target in paths(operation, there):
        usual = usual or target
        yield Request(name, target, body)
    if JSON in operation.media_types:
        for name, odd in odd_bodies(operation):
            yield Request(name, usual, odd)
        for media_type in ("text/plain", "application/xml", "application/json; charset=latin-1", "x", ""):
            yield Request(f"type {media_type!r}", usual, body, media_type)


def test_odd_values_in_every_parameter_and_field(bench: Bench) -> None:
    faults: list[str] = []
    for operation in operations():
        if operation.media_types - {JSON} or operation.id == "logout":
            continue
        before = bench.tally.inputs.total()
        odd = requests(operation, bench.existing(operation))
        faults += tried(bench, operation, odd, SLOW_EVERY if operation.id in SLOW else EVERY)
        assert bench.tally.inputs.total() > before, f"nothing was tried of {operation.id}"
    collected(faults)


def test_odd_headers(bench: Bench) -> None:
    faults: list[str] = []
    for operation in operations():
        names = [given["name"] for given in operation.parameters if given["in"] == "header"]
        body = json.dumps(plain(operation.schema)).encode() if names else None
        faults += tried(
            bench,
            operation,
            [
                Request(f"{name} = {value!r:.30}", operation.path, body, headers={name: value})
                for name in names
                for value in ODD_HEADERS
            ],
        )
    collected(faults)


def test_cursors_that_were_tampered_with(bench: Bench) -> None:
    """A cursor of this list or another, cut or changed: an answer, and never another account's data."""
    faults: list[str] = []
    lists = [
        operation
        for operation in operations()
        if operation.method == "GET" and any(p["name"] in ("cursor", "after") for p in operation.parameters)
    ]
    pages = [operation for operation in lists if any(p["name"] == "limit" for p in operation.parameters)]
    given_cursors = {operation.id: cursor for operation in pages if (cursor := first_cursor(bench, operation))}
    assert given_cursors
    for operation in lists:
        name = next(p["name"] for p in operation.parameters if p["name"] in ("cursor", "after"))
        odd = [
            changed
            for cursor in {*given_cursors.values(), "ev_" + "0" * 26}
            for changed in (cursor, cursor[:-1], cursor[1:], cursor + "A", cursor[::-1], cursor.swapcase(), cursor * 2)
        ]
        wanted = (Request(f"{name} = {cursor[:60]}", f"{operation.path}?{name}={quote(cursor)}") for cursor in odd)
        faults += tried(bench, operation, wanted, max(1, EVERY // 4))
    collected(faults)


def first_cursor(bench: Bench, operation: Operation) -> str | None:
    probe = HttpProbe(bench.server.port, bench.tally)
    answer = send(bench, probe, operation, Request("usual", f"{operation.path}?limit=1"))
    probe.close()
    cursor: str | None = answer.body.get("next_cursor")
    return cursor


def test_hostile_files(bench: Bench) -> None:
    faults: list[str] = []
    for operation in operations():
        for media_type in operation.media_types - {JSON}:
            files = (Request(f"file {body[:30]!r}", operation.path, body, media_type) for body in ODD_CSV)
            kinds = (JSON, "", "text/plain", "x")
            wrong = (Request(f"type {kind!r}", operation.path, b"email\r\n", kind) for kind in kinds)
            faults += tried(bench, operation, itertools.chain(files, wrong))
    collected(faults)


def test_afterwards_the_database_is_consistent_and_the_server_healthy(bench: Bench) -> None:
    """Runs last: it checks what all other tests did to the account."""
    tally = bench.tally
    never = {operation.id for operation in operations()} - bench.succeeded
    print(f"{tally.inputs.total()} inputs: {dict(tally.statuses)}; never with success: {sorted(never)}")
    assert asyncio.run(database_faults(bench.service.database_url)) == {}
    probe = HttpProbe(bench.server.port, tally)
    by_id = {operation.id: operation for operation in operations()}
    for name, status in (("getMe", 200), ("logout", 200), ("getMe", 401)):
        assert send(bench, probe, by_id[name], Request("usual", by_id[name].path)).status == status, name
    probe.close()
    assert bench.server.running.poll() is None
