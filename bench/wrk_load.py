"""The HTTP server, started by its own command, and the load of wrk, whose requests are made beforehand."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

from bench.processes import (
    LOAD,
    BenchError,
    MachineTime,
    Measured,
    Process,
    ends_with_parent,
    log_end,
    metered,
    microseconds,
    posthouse_command,
    running,
)
from tools.private_postgres import free_port

CONNECTIONS: Final = 64
UNLIMITED: Final = 10**12
CRLF: Final = "\r\n"

_STARTED: Final = "Application startup complete"
_RESULT: Final = re.compile(r"^result (\{.*\})$", re.MULTILINE)

# A request of two strings has its own key between them; wrk has one thread, so one counter makes keys unique. wrk can
# stop at a time, not at a number: when all have been sent, what it is given to send is empty, and its connections wait
# in silence until a signal ends it. Its first request is asked for and thrown away.
_SCRIPT: Final = Template("""\
local requests = {
$requests
}
local count = $first - 1

function request()
  count = count + 1
  if count > $most then
    return ""
  end
  local ready = requests[count % #requests + 1]
  if ready[2] == nil then
    return ready[1]
  end
  return ready[1] .. string.format("$name-%09d", count) .. ready[2]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'result {"requests": %d, "microseconds": %d, "refused": %d, "broken": %d, "late": %d, "p50": %d, "p99": %d}\\n',
    summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write, errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
""")


def missing() -> str | None:
    if shutil.which("wrk") is None:
        return "wrk is missing: install it (Debian, Ubuntu: `apt install wrk`; macOS: `brew install wrk`)"
    return None


@dataclass(frozen=True, slots=True)
class HttpServer:
    process: Process
    port: int
    log: Path


@contextmanager
def http_server(environment: Mapping[str, str], workplace: Path, processes: int = 1) -> Iterator[HttpServer]:
    port = free_port()
    command = posthouse_command("run", "http", "--processes", str(processes), "--port", str(port))
    with started(command, port, workplace, processes, environment) as server:
        yield server


@contextmanager
def started(
    command: Sequence[str], port: int, workplace: Path, processes: int = 1, environment: Mapping[str, str] | None = None
) -> Iterator[HttpServer]:
    """A server of uvicorn, when all of its processes accept requests."""
    log = workplace / "http.log"

    def is_ready() -> bool:
        # Every process, not the first that answers: a connection stays with the process that took it.
        return log.read_text(errors="replace").count(_STARTED) >= processes

    with running(command, log, is_ready, environment=environment) as process:
        yield HttpServer(process, port, log)


def post(
    authorization: str, fields: Mapping[str, object], port: int, path: str = "/emails", *, keeps_alive: bool = True
) -> str:
    """A POST as two Lua strings: up to its Idempotency-Key, and from there on."""
    body = json.dumps(fields)
    head = CRLF.join(
        [
            f"POST {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Authorization: {authorization}",
            f"Connection: {'keep-alive' if keeps_alive else 'close'}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Idempotency-Key: ",
        ]
    )
    # JSON's strings are Lua's too, as long as they are ASCII without escapes by number.
    return f"  {{{json.dumps(head)}, {json.dumps(f'{CRLF}{CRLF}{body}')}}}"


def get(path: str, token: str, port: int) -> str:
    request = f"GET {path} HTTP/1.1{CRLF}Host: 127.0.0.1:{port}{CRLF}Authorization: Bearer {token}{CRLF}{CRLF}"
    return f"  {{{json.dumps(request)}}}"


def start(
    server: HttpServer,
    requests: Sequence[str],
    *,
    seconds: int,
    connections: int = CONNECTIONS,
    name: str = "load",
    first: int = 0,
    most: int = UNLIMITED,
) -> Process:
    """The requests in turn, from the given first one; each run's keys begin with its name."""
    script = server.log.parent / "load.lua"
    script.write_text(_SCRIPT.substitute(name=name, first=first, most=most, requests=",\n".join(requests)))
    return subprocess.Popen(
        [
            *ends_with_parent(),
            "wrk",
            "--threads=1",
            f"--connections={connections}",
            f"--duration={seconds}s",
            "--timeout=10s",
            "--latency",
            f"--script={script}",
            f"http://127.0.0.1:{server.port}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def result(load: Process, seconds_max: float | None = None) -> dict[str, Any]:
    output = load.communicate(timeout=seconds_max)[0].decode(errors="replace")
    found = _RESULT.search(output)
    if found is None:
        raise BenchError(f"wrk failed ({load.returncode}):\n{output[-2000:]}")
    said: dict[str, Any] = json.loads(found[1])
    return said


def measure(
    server: HttpServer,
    postgres: int,
    requests: Sequence[str],
    *,
    seconds: int,
    connections: int = CONNECTIONS,
    name: str = "load",
    first: int = 0,
) -> Measured:
    """Raises unless every request was answered, and not refused."""
    began = MachineTime.now()
    with metered({"Python": [server.process.pid], "PostgreSQL": [postgres]}) as used:
        said = result(start(server, requests, seconds=seconds, connections=connections, name=name, first=first))
    if said["refused"] or said["broken"] or said["late"] or not said["requests"]:
        raise BenchError(f"{name}: some requests were refused: {said}; the server's log ends:\n{log_end(server.log)}")
    count = said["requests"]
    each_us = microseconds(used, count)
    load_us = each_us.pop(LOAD)
    return Measured(
        count=count,
        seconds=said["microseconds"] / 1e6,
        server_us=each_us,
        load_us=load_us,
        p50_ms=said["p50"] / 1000,
        p99_ms=said["p99"] / 1000,
        figures={"stolen": began.stolen_since()},
    )
