"""Readers of the archive: the HTTP server in two processes, and eight clients that ask it for what they are given."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from string import Template
from typing import Any, Final

from bench import search_ground, served
from bench.load import LoadError, watched
from bench.processes import stolen_part
from bench.search_ground import Archive

CLIENTS: Final = 8
PROCESSES: Final = 2
LISTEN_SECONDS_MAX: Final = 10.0
UNAVAILABLE: Final = 503
# Of the processors, by the machine's host during a run that counts; and how often a run is made for that.
STOLEN_MAX: Final = 0.002
TRIES_MAX: Final = 6

_RESULT: Final = re.compile(r"^result (\{.*\})$", re.MULTILINE)
_SCRIPT: Final = Template("""\
local requests = {
$requests
}
local count = $first

function request()
  count = count + 1
  return requests[count % #requests + 1]
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


@dataclass(frozen=True, slots=True)
class Search:
    """Pages of one kind, each as its path and query."""

    name: str
    pages: tuple[str, ...]
    # Of two filters together; there are many of those.
    is_pair: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one search; processor time is in microseconds a page.

    `stolen` is the part of the processors that the machine's host gave to others meanwhile.
    """

    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    postgres_us: float
    stolen: float

    def __str__(self) -> str:
        return (
            f"{self.per_second:,.0f}/s, p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f} ms, "
            f"CPU {self.server_us:.0f} + {self.postgres_us:.0f} µs, {self.stolen:.1%} stolen"
        )


@dataclass(frozen=True, slots=True)
class Readers:
    """Of one archive, each with the token of a login."""

    archive: Archive
    server: int
    port: int
    token: str
    tries_max: int

    def read(self, asked: Search, seconds: int, first: int = 0) -> Measured:
        """Page after page from the first one named; raises unless every one was answered with 200.

        A run that the machine's host disturbed is made again, some times; the least disturbed one counts.
        """
        runs: list[Measured] = []
        while not runs or (runs[-1].stolen > STOLEN_MAX and len(runs) < self.tries_max):
            runs.append(self._read(asked, seconds, first))
        return min(runs, key=lambda run: run.stolen)

    def _read(self, asked: Search, seconds: int, first: int) -> Measured:
        before = stolen_part()
        with watched(postgres=self.archive.ground.cluster.pid, server=self.server) as watch:
            said = self._wrk(asked, seconds, first)
        stolen, whole = stolen_part(before)
        return Measured(
            requests=said["requests"],
            per_second=said["requests"] / said["microseconds"] * 1e6,
            p50_ms=said["p50"] / 1000,
            p99_ms=said["p99"] / 1000,
            server_us=watch.server / said["requests"] * 1e6,
            postgres_us=watch.postgres / said["requests"] * 1e6,
            stolen=stolen / whole,
        )

    def ask(self, page: str) -> bool:
        """One page, once; whether it was answered, which a machine that is busy elsewhere may fail to do in time."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{page}", headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            if error.code != UNAVAILABLE:
                raise LoadError(f"{page} was answered with {error}") from error
            return False
        return True

    def _wrk(self, asked: Search, seconds: int, first: int) -> dict[str, Any]:
        workplace = self.archive.ground.workplace
        file = workplace / "search.lua"
        head = f"HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n\r\n"
        requests = ",\n".join(json.dumps(f"GET {page} {head}") for page in asked.pages)
        file.write_text(_SCRIPT.substitute(requests=requests, first=first))
        done = subprocess.run(
            [
                str(served.program()),
                "--threads=1",
                f"--connections={CLIENTS}",
                f"--duration={seconds}s",
                "--timeout=10s",
                "--latency",
                f"--script={file}",
                f"http://127.0.0.1:{self.port}",
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
            end = (workplace / "server.log").read_text(errors="replace")[-2000:]
            raise LoadError(f"{asked.name}: some were not answered with 200: {said}; the server's log ends:\n{end}")
        return said


def tries_max(rounds: int) -> int:
    """A single round is meant to be quick."""
    return TRIES_MAX if rounds > 1 else 1


@contextmanager
def reading(archive: Archive, tries: int = 1) -> Iterator[Readers]:
    with served.running(archive.ground, PROCESSES) as (server, port):
        yield Readers(archive, server.pid, port, _login(port), tries)


def _login(port: int) -> str:
    body = json.dumps({"email": search_ground.EMAIL, "password": search_ground.PASSWORD}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/auth/login", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + LISTEN_SECONDS_MAX
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                token: str = json.load(answer)["token"]
            return token
        except urllib.error.URLError as error:
            # It says that it is ready a moment before it listens, and may be slow with its first connection.
            if time.monotonic() > deadline:
                raise LoadError(f"the login failed: {error}") from error
            time.sleep(0.1)
