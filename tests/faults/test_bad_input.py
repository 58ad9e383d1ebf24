"""Bad input by the thousand: an answer, never a 500, the error object, nothing charged, memory bounded."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.faults import corpus
from tests.faults.http_probe import HttpProbe, NoAnswer, Tally, declared_statuses, is_parsers_own
from tests.faults.schema_checks import CHECKS, QUIET, collected
from tests.support.bad_input import IS_REPEATED, TIMES, TRIED, inputs
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import Answer
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant

pytestmark = [
    pytest.mark.fuzz("Sending: POST /emails"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestWarning"),
]

INPUTS_MIN = 2_000
GROWTH_BYTES_MAX = 400 * corpus.MIB
GENERATED_EXAMPLES = inputs(8)
# CI tries a part of the odd values, in each field another; `make nightly` and `make fuzz` try all.
EVERY = 5 if IS_REPEATED else 1
MAIL_EXAMPLES = inputs(160)
CREDITS = 1_000_000


@dataclass(slots=True)
class Bench:
    """A server, an account, and the requests made."""

    runner: asyncio.Runner
    server: ServerProcess
    service: Service
    tenant: Tenant
    token: str
    tally: Tally
    resident_bytes: int
    resident_bytes_max: int = 0
    finished: set[str] = field(default_factory=set)

    def probe(self) -> HttpProbe:
        return HttpProbe(self.server.port, self.tally)

    def measure(self) -> int:
        resident = self.server.resident_bytes()
        self.resident_bytes_max = max(self.resident_bytes_max, resident)
        return resident

    def restart(self) -> None:
        self.server.kill()
        self.runner.run(self.server.start())


@pytest.fixture(scope="module")
def bench(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    server = ServerProcess(new_database(), tmp_path_factory.mktemp("bad") / "server.log")
    with asyncio.Runner() as runner:
        made = runner.run(prepared(runner, server))
        yield made
        runner.run(made.service.close())
    server.kill()
    raw = made.tally.inputs["raw"]
    TRIED.update({"Raw HTTP": raw, "Sending: POST /emails": made.tally.inputs.total() - raw})


async def prepared(runner: asyncio.Runner, server: ServerProcess) -> Bench:
    await server.start()
    service = await server.open_client()
    tenant = await service.account(credits=CREDITS)
    token = await tenant.jwt()
    await tenant.template("t", subject="Hello {{a}}", text="{{a}}", html="<p>{{a}}</p>")
    # A request of each kind, so that one-time loading is not counted as growth.
    await tenant.send(tenant.mail(from_="nobody"))
    return Bench(runner, server, service, tenant, token, Tally(), server.resident_bytes())


@pytest.fixture
def probe(bench: Bench, request: pytest.FixtureRequest) -> Iterator[HttpProbe]:
    made = bench.probe()
    yield made
    made.close()
    bench.measure()
    bench.finished.add(request.node.originalname)


def sending(bench: Bench, name: str) -> dict[str, str | bytes]:
    return {
        "Authorization": bench.tenant.basic,
        "Content-Type": "application/json",
        "Idempotency-Key": ascii(f"bad input {name}")[:250],
    }


def try_bodies(
    bench: Bench, probe: HttpProbe, kind: str, inputs: Iterator[corpus.Input], *, chunked: bool = False
) -> None:
    faults: list[str] = []
    for item in inputs:
        name = f"{item.name}{' in chunks' if chunked else ''}"
        try:
            probe.send(kind, name, "POST", "/emails", sending(bench, f"{kind} {name}"), item.body, chunked=chunked)
        except TimeoutError:
            # Work still in progress on it would be blamed on the next input.
            faults.append(f"{name}: no answer in time, {bench.measure() // corpus.MIB} MiB resident")
            probe.close()
            bench.restart()
        except Exception as fault:
            probe.close()
            faults.append(f"{name}: {type(fault).__name__}: {fault}")
        if len(item.body) > corpus.MIB:
            bench.measure()
    collected(faults)


def test_odd_values_in_every_field(bench: Bench, probe: HttpProbe) -> None:
    odd = corpus.odd_bodies(bench.tenant.mail())
    try_bodies(bench, probe, "odd values", itertools.islice(odd, None, None, EVERY))


def test_broken_json(bench: Bench, probe: HttpProbe) -> None:
    try_bodies(bench, probe, "broken JSON", corpus.broken_json(bench.tenant.mail()))


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(bench: Bench, probe: HttpProbe, chunked: bool) -> None:
    # CI tries every shape, but fewer of a million: making and sending them takes most of the time.
    inputs = corpus.large_bodies(bench.tenant.mail(), 1 if IS_REPEATED else 8)
    if chunked:
        # Those at the limit come first; the others take seconds to make.
        inputs = itertools.takewhile(lambda given: given.name.startswith(str(corpus.BODY_BYTES_MAX)[:6]), inputs)
    try_bodies(bench, probe, "large", inputs, chunked=chunked)


def test_a_body_one_byte_over_16_mib_is_413_and_16_mib_is_read(bench: Bench, probe: HttpProbe) -> None:
    body_start = json.dumps(bench.tenant.mail()).encode()
    for chunked in (False, True):
        for size, status in ((corpus.BODY_BYTES_MAX, 202), (corpus.BODY_BYTES_MAX + 1, 413)):
            name = f"{size} chunked {chunked}"
            body = body_start + b" " * (size - len(body_start))
            answer = probe.send("limits", name, "POST", "/emails", sending(bench, name), body, chunked=chunked)
            assert answer.status == status, answer.raw


def test_odd_credentials_open_nothing(bench: Bench, probe: HttpProbe) -> None:
    faults: list[str] = []
    tenant = bench.tenant
    odd = corpus.authorizations(tenant.username, tenant.password, bench.token)
    for number, value in enumerate(odd):
        for method, target in (("POST", "/emails"), ("GET", "/emails/em_1"), ("GET", "/v1/templates")):
            name = f"{method} {target} with {value[:40]!r} ({number})"
            headers = {**sending(bench, name), "Authorization": value}
            try:
                answer = probe.send("credentials", name, method, target, headers, b"{}" if method == "POST" else None)
                assert answer.status in {401, 431}, f"{name}: {answer.status}"
            except Exception as fault:
                probe.close()
                faults.append(f"{name}: {type(fault).__name__}: {fault}")
    collected(faults)


def test_odd_ids_of_messages(bench: Bench, probe: HttpProbe) -> None:
    """Odd paths and queries below /v1 are the account's."""
    faults: list[str] = []
    for segment in corpus.ODD_SEGMENTS:
        target = f"/emails/{segment}".replace(" ", "%20")
        if not target.isascii():
            continue
        try:
            answer = probe.send("paths", target[:80], "GET", target, {"Authorization": bench.tenant.basic})
            assert answer.status in declared_statuses("GET", target.partition("?")[0]) | {405}, answer.status
        except Exception as fault:
            probe.close()
            faults.append(f"GET {target[:80]}: {type(fault).__name__}: {fault}")
    collected(faults)


@pytest.mark.fuzz("Raw HTTP")
def test_raw_requests(bench: Bench, probe: HttpProbe) -> None:
    faults: list[str] = []
    tally = bench.tally
    for request in corpus.raw_requests(bench.tenant.basic, bench.tenant.mail()):
        started = time.monotonic()
        try:
            answers = probe.raw(request.name, request.sent, request.answers)
            assert len(answers) == request.answers or not request.is_http, f"{len(answers)} answers"
            if not answers:
                tally.inputs["raw"] += 1
                tally.parsers_own.append(f"{request.name} (closed)")
            for answer in answers:
                check_raw(bench, probe, request, answer, time.monotonic() - started)
        except NoAnswer as fault:
            # The server may still wait for the end of an unfinished message.
            if request.is_http:
                faults.append(str(fault))
            else:
                tally.inputs["raw"] += 1
                tally.parsers_own.append(f"{request.name} (waits)")
        except Exception as fault:
            faults.append(f"{request.name}: {type(fault).__name__}: {fault}")
    print(f"answered by the parser, or not at all: {tally.parsers_own}")
    collected(faults)


def check_raw(bench: Bench, probe: HttpProbe, request: corpus.RawRequest, answer: Answer, seconds: float) -> None:
    if is_parsers_own(answer):
        bench.tally.inputs["raw"] += 1
        bench.tally.parsers_own.append(request.name)
        assert not request.is_http, "the parser refused what is a proper message"
        return
    method = request.sent.split(b" ", 1)[0].decode("latin-1") if request.is_http else ""
    probe.check("raw", request.name, method, "", answer, seconds)
    assert answer.status in declared_statuses("", "") | {202, 402}, f"{answer.status} {answer.raw[:200]!r}"
    assert not request.statuses or answer.status in request.statuses, f"{answer.status} {answer.raw[:200]!r}"
    if answer.status == 202:
        bench.tally.accepted.add(answer.body["id"])


def test_a_long_header_costs_little_memory(bench: Bench, probe: HttpProbe) -> None:
    before = bench.server.resident_bytes()
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: "
    with socket.create_connection(("127.0.0.1", bench.server.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(head)
        try:
            for _ in range(64):
                connection.sendall(b"a" * corpus.MIB)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
        grown = bench.server.resident_bytes() - before
    bench.tally.inputs["raw"] += 1
    assert grown < 32 * corpus.MIB, f"one header of 64 MiB cost {grown // corpus.MIB} MiB"


def test_a_slow_but_steady_body_is_accepted(bench: Bench, probe: HttpProbe) -> None:
    body = json.dumps(bench.tenant.mail()).encode()
    head = f"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: {bench.tenant.basic}\r\nIdempotency-Key: slow\r\n"
    with socket.create_connection(("127.0.0.1", bench.server.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for start in range(0, len(body), 20):
            connection.sendall(body[start : start + 20])
            time.sleep(0.02)  # a slow client
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 202"), answer
    bench.tally.inputs["raw"] += 1
    bench.tally.accepted.add(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])


text = st.text(max_size=40) | st.sampled_from([value for value in corpus.ODD_VALUES if isinstance(value, str)])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)
address = st.sampled_from(["ada@example.org", "Ada <ada@example.org>", "b@xn--bcher-kva.example"]) | st.emails() | text
addresses = address | st.lists(address, max_size=60)
attachment = st.fixed_dictionaries(
    {"filename": st.just("a.txt") | text, "content": st.just("aGVsbG8=") | text},
    optional={"content_type": st.just("text/plain; charset=utf-8") | text, "content_id": st.just("a@b") | text},
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "to": addresses,
        "cc": addresses,
        "bcc": addresses,
        "reply_to": address,
        "subject": text,
        "text": text,
        "html": text,
        "template": st.just("t") | text,
        "variables": st.dictionaries(st.just("a") | text, anything, max_size=3),
        "headers": st.dictionaries(st.sampled_from(["X-A", "List-Id", "References"]) | text, text, max_size=5),
        "tags": text | st.lists(text, max_size=25),
        "attachments": st.lists(attachment, max_size=4),
    },
)


def test_generated_messages(bench: Bench, probe: HttpProbe) -> None:
    base = {name: value for name, value in bench.tenant.mail().items() if name in ("from", "to", "subject")}
    count = 0

    @hypothesis.settings(QUIET, max_examples=MAIL_EXAMPLES)
    @given(changes=messages, wrong=st.none() | st.tuples(st.sampled_from(corpus.FIELDS), anything))
    def check(changes: dict[str, Any], wrong: tuple[str, Any] | None) -> None:
        nonlocal count
        count += 1
        body = {**base, **changes} | ({} if wrong is None else {wrong[0]: wrong[1]})
        raw = json.dumps(body).encode()
        answer = probe.send("generated messages", "generated", "POST", "/emails", sending(bench, f"gen {count}"), raw)
        assert answer.status in {202, 400, 403, 413}, answer.raw

    check()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_by_its_schema(bench: Bench, probe: HttpProbe, mode: GenerationMode) -> None:
    """All but the account's API, which has its own tests."""
    schema = schemathesis.openapi.from_url(f"{bench.server.url}/openapi.json")
    found: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    operations = [operation for operation in found if not operation.path.startswith("/v1/")]
    assert {"/emails", "/emails/{id}", "/healthz"} <= {operation.path for operation in operations}
    faults: list[str] = []
    for operation in operations:
        try:
            try_operation(bench, operation, mode)
        except Unsatisfiable:
            assert operation.path == "/healthz", "only what takes nothing can be given nothing wrong"
        except Exception as fault:
            faults.append(f"{operation.label}: {type(fault).__name__}: {fault}")
    collected(faults)


def try_operation(bench: Bench, operation: Any, mode: GenerationMode) -> None:
    headers = {} if operation.path == "/healthz" else {"Authorization": bench.tenant.basic}

    @hypothesis.settings(QUIET, max_examples=GENERATED_EXAMPLES * (4 if operation.path == "/emails" else 1))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(headers=headers, timeout=HANG_SECONDS)
        bench.tally.inputs[f"schema, {mode.value}"] += 1
        bench.tally.statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        body = response.json()
        assert body["request_id"] == response.headers["x-request-id"][0]
        if operation.path == "/emails" and response.status_code == 202:
            bench.tally.accepted.add(body["id"])

    check()


def test_afterwards_memory_is_bounded_and_the_database_consistent(bench: Bench) -> None:
    """Runs last: it checks what all other tests did to the server."""
    tally, run = bench.tally, bench.runner.run
    print(f"{tally.inputs.total()} inputs: {dict(tally.inputs)}; {dict(tally.statuses)}; slowest {tally.slowest}")
    assert run(database_faults(bench.service.database_url)) == {}
    tenant = bench.tenant
    assert run(tenant.counts())["messages"] == len(tally.accepted), "a refusal left a message behind"
    run(tenant.accepts())
    assert run(bench.service.request("GET", "/healthz")).status == 200
    assert bench.server.running.poll() is None
    grown = max(bench.resident_bytes_max, bench.server.resident_bytes()) - bench.resident_bytes
    print(f"grown by {grown // corpus.MIB} MiB")
    assert grown < GROWTH_BYTES_MAX, f"grown by {grown // corpus.MIB} MiB"
    if len(bench.finished) < 10:
        pytest.skip("only a part of the corpus was run")
    assert tally.inputs.total() >= INPUTS_MIN * min(1.0, TIMES)
