"""Our HTTP server, started by its own command, under the load of wrk."""

import base64
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Template
from typing import Any, Final

from bench import letter
from bench.ground import Caller, Ground
from bench.load import Load, LoadError, watched
from tools.private_postgres import free_port

CONNECTIONS: Final = 64
CRLF: Final = "\r\n"
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
# How often an account sends to a process before the load counts.
WARM_REQUESTS: Final = 4
# Whatever a stopped load left unanswered is committed, or given up, by then.
SETTLE_SECONDS: Final = 0.5

_STARTED: Final = "Application startup complete"
_RESULT: Final = re.compile(r"^result (\{.*\})$", re.MULTILINE)

# Requests are made ready beforehand, but for their key; wrk has one thread, so one counter makes keys unique.
_SCRIPT: Final = Template("""\
local requests = {
$requests
}
local count = 0

function request()
  count = count + 1
  local ready = requests[count % #requests + 1]
  return ready[1] .. string.format("$run-%09d", count) .. ready[2]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'result {"requests": %d, "microseconds": %d, "refused": %d, "broken": %d, "p50": %d, "p99": %d}\\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
""")


def program() -> str | None:
    return shutil.which("wrk")


def missing() -> str | None:
    if program() is None:
        return "wrk is missing: install it (Debian, Ubuntu: `apt install wrk`; macOS: `brew install wrk`)"
    return None


def run(ground: Ground, *, processes: int, accounts: int, keeps_alive: bool, seconds: int, warm_runs_max: int) -> Load:
    """Messages accepted over HTTP; raises unless every one answered 202 is on the books."""
    callers = ground.callers[:accounts]
    ground.clear()
    with running(ground, processes) as (server, port):
        requests = [ready(one, letter.fields(one.domain), port, keeps_alive=keeps_alive) for one in callers]
        runs, answered = 0, 0
        # Until each process has most probably met every account: what is unknown is looked up first.
        while runs == 0 or (answered < WARM_REQUESTS * accounts * processes and runs < warm_runs_max):
            runs += 1
            answered += _wrk(ground, requests, port, f"warm{runs}", 1)["requests"]
        with watched(postgres=ground.cluster.pid, server=server.pid) as watch:
            said = _wrk(ground, requests, port, "load", seconds)
        time.sleep(SETTLE_SECONDS)
    answered += said["requests"]
    # Every run may end with one request in flight on each connection.
    ground.require_messages(answered, answered + (runs + 1) * CONNECTIONS)
    messages = said["requests"]
    return Load(
        messages=messages,
        per_second=messages / said["microseconds"] * 1e6,
        p50_ms=said["p50"] / 1000,
        p99_ms=said["p99"] / 1000,
        server_cpu_us=watch.server / messages * 1e6,
        postgres_cpu_us=watch.postgres / messages * 1e6,
        generator_cpu_us=watch.generator / messages * 1e6,
    )


@contextmanager
def running(ground: Ground, processes: int) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    port = free_port()
    log = ground.workplace / "server.log"
    with log.open("wb") as written:
        server = subprocess.Popen(
            [sys.executable, "-m", "posthouse", "run", "http", "--processes", str(processes), "--port", str(port)],
            env=ground.environment,
            cwd=ground.workplace,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        # Every process, not the first that answers: connections stay with whom they met.
        while log.read_text(errors="replace").count(_STARTED) < processes:
            if server.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        yield server, port
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wrk(ground: Ground, requests: Sequence[str], port: int, run_name: str, seconds: int) -> dict[str, Any]:
    file = ground.workplace / "load.lua"
    file.write_text(_SCRIPT.substitute(run=run_name, requests=",\n".join(requests)))
    done = subprocess.run(
        [
            str(program()),
            "--threads=1",
            f"--connections={CONNECTIONS}",
            f"--duration={seconds}s",
            "--timeout=10s",
            "--latency",
            f"--script={file}",
            f"http://127.0.0.1:{port}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = _RESULT.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise LoadError(f"wrk failed ({done.returncode}):\n{done.stderr[-2000:]}\n{done.stdout[-2000:]}")
    said: dict[str, Any] = json.loads(found[1])
    if said["refused"] or said["broken"] or not said["requests"]:
        end = (ground.workplace / "server.log").read_text(errors="replace")[-2000:]
        raise LoadError(f"some requests were not answered with 202: {said}; the server's log ends:\n{end}")
    return said


def ready(caller: Caller, fields: Mapping[str, object], port: int, *, keeps_alive: bool = True) -> str:
    """A request as two Lua strings: up to its Idempotency-Key, and from there on."""
    body = json.dumps(fields)
    pair = base64.b64encode(f"{caller.username}:{caller.password}".encode()).decode()
    head = CRLF.join(
        [
            "POST /emails HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Authorization: Basic {pair}",
            f"Connection: {'keep-alive' if keeps_alive else 'close'}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Idempotency-Key: ",
        ]
    )
    # JSON's strings are Lua's too, as long as they are ASCII without escapes by number.
    return f"  {{{json.dumps(head)}, {json.dumps(f'{CRLF}{CRLF}{body}')}}}"
