"""A Posthouse that does what a case says: answers, fails and hangs, then reports what was wrong with the library.

    python3 stub.py -- <command of a library's tests>

runs the command with POSTHOUSE_STUB in its environment, the address of this server. The command's tests fetch each
case from it, do what the case says, and report the result; README.md has the formats. After the command
has ended, the last line is `conformance: N of M`, where N is how many of the M cases were run and found right. It
ends with the command's status, or with 1 if that is 0 and N is less than M.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import cases
import judge
from cases import FILES, Case
from judge import Request

ADDRESS_VARIABLE: Final = "POSTHOUSE_STUB"
# How long a fault keeps a connection whose client never gives up.
HANG_SECONDS_MAX: Final = 20.0
DRIP_SECONDS: Final = 0.1
REQUEST_BYTES_MAX: Final = 64 * 2**20


@dataclass(slots=True)
class Run:
    """One case, being run by one library."""

    case: Case
    base_url: str
    began: float = field(default_factory=time.monotonic)
    requests: list[Request] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_reported: bool = False

    def take(self, request: Request) -> dict[str, Any] | None:
        """The answer to a request, or none when the case expects no further one."""
        number = len(self.requests)
        first = self.requests[0] if self.requests else None
        self.requests.append(request)
        if number >= len(self.case.answers):
            self.problems.append(f"request {number + 1} is one too many: {request.method} {request.path}")
            return None
        found = judge.request_problems(self.case, request, first)
        self.problems += [f"request {number + 1}: {problem}" for problem in found]
        return self.case.answers[number]

    def judge(self, report: Mapping[str, Any]) -> list[str]:
        if len(self.requests) < len(self.case.answers):
            self.problems.append(f"there were {len(self.requests)} requests, not {len(self.case.answers)}")
        self.problems += judge.report_problems(self.case, report)
        seconds = time.monotonic() - self.began
        if self.case.seconds_max is not None and seconds > self.case.seconds_max:
            self.problems.append(f"it took {seconds:.1f} s, more than {self.case.seconds_max} s")
        self.is_reported = True
        return self.problems


class Stub(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Path) -> None:
        self.cases = cases.load()
        self.runs: list[Run] = []
        self.lock = threading.Lock()
        self.large_file = directory / "large.bin"
        self.large_file.write_bytes(judge.large_file())
        # Bound, never listening: connections to it are refused.
        self.closed_port = socket.socket()
        self.closed_port.bind(("127.0.0.1", 0))
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle of an answer is what faults are about."""

    def begin(self, name: str) -> dict[str, Any]:
        """What a library needs to run the case, without what is expected of it."""
        case = self.cases[name]
        with self.lock:
            number = len(self.runs)
            base_url = f"{self.url}/r/{number}"
            self.runs.append(Run(case, base_url))
        client = dict(case.client)
        if "base_url" in client:
            refused = f"http://127.0.0.1:{self.closed_port.getsockname()[1]}"
            client["base_url"] = client["base_url"].replace("{base}", base_url).replace("{refused}", refused)
        return {
            "run": number,
            "name": name,
            "kind": case.kind,
            "client": client,
            "call": self._call(case),
            "random": case.random,
            "now": case.now,
            "clock": case.clock,
        }

    def tally(self) -> tuple[int, list[str]]:
        """How many cases are right in every run of theirs, and what is to be said of the others."""
        said: list[str] = []
        for name in self.cases:
            runs = [run for run in self.runs if run.case.name == name and run.is_reported]
            problems = [problem for run in runs for problem in run.problems]
            if not runs:
                said.append(f"{name}: was not run")
            elif problems:
                said.append(f"{name}: {'; '.join(dict.fromkeys(problems))}")
        return len(self.cases) - len(said), said

    def _call(self, case: Case) -> dict[str, Any]:
        call = dict(case.call)
        if "email" in call and "attachments" in call["email"]:
            attachments = [dict(one) for one in call["email"]["attachments"]]
            for one in attachments:
                if "file" in one:
                    one["file"] = str(self.large_file if one["file"] == "{large}" else (FILES / one["file"]).resolve())
            call["email"] = {**call["email"], "attachments": attachments}
        if case.kind == "webhook" and "body" in call:
            call["body_base64"] = base64.b64encode(call.pop("body").encode()).decode()
        return call


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Stub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        parts = urllib.parse.urlsplit(self.path).path.split("/", 3)
        if parts[1] == "_":
            self._control("/".join(parts[2:]))
        elif parts[1] == "r" and parts[2].isdigit() and int(parts[2]) < len(self.server.runs):
            self._play(self.server.runs[int(parts[2])])
        else:
            self._tell(404, {"error": "nothing is here", "code": "not_found", "request_id": "req_none"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

    def _control(self, path: str) -> None:
        if path == "cases":
            self._tell(200, {"cases": list(self.server.cases)})
            return
        given = json.loads(self._body() or b"{}")
        if path == "runs":
            self._tell(201, self.server.begin(given["case"]))
        elif path == "reports":
            problems = self.server.runs[given["run"]].judge(given)
            self._tell(200, {"passed": not problems, "problems": problems})
        else:
            self._tell(404, {"error": f"there is no /_/{path}"})

    def _play(self, run: Run) -> None:
        prefix = urllib.parse.urlsplit(run.base_url).path
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path.removeprefix(prefix), headers, self._body())
        with self.server.lock:
            answer = run.take(request)
        if answer is None:
            self._tell(500, {"error": "one request too many", "code": "internal_error", "request_id": "req_none"})
            return
        fault = answer.get("fault")
        if fault == "drop":
            return
        if fault == "hang":
            self._wait_for_its_end()
        elif fault == "garbage":
            self.wfile.write(b"\x16\x03\x01 this is no HTTP at all\r\n\r\n\x00\xff")
        else:
            self._answer(answer, run.base_url)

    def _answer(self, answer: Mapping[str, Any], base_url: str) -> None:
        content = b"" if "json" not in answer else json.dumps(answer["json"], ensure_ascii=False).encode()
        content = answer.get("text", "").encode() or content
        if "repeat" in answer:
            content = answer["repeat"][0].encode() * answer["repeat"][1]
        content = content.ljust(answer.get("pad_to", 0))
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if isinstance(answer.get("json"), dict) and isinstance(answer["json"].get("request_id"), str):
            headers["X-Request-ID"] = answer["json"]["request_id"]
        framing = answer.get("framing", "length")
        if framing == "length":
            headers["Content-Length"] = str(len(content))
        elif framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        given = answer.get("headers", {})
        headers |= {name: str(value).replace("{base}", base_url) for name, value in given.items()}
        lines = [f"HTTP/1.1 {answer['status']} {_phrase(answer['status'])}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if given.get(name, "") is not None]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if answer.get("fault") == "truncate":
            content = content[: len(content) // 2]
        if answer.get("fault") == "drip":
            self._drip(content)
        elif framing == "chunked":
            for start in range(0, len(content), 100):
                piece = content[start : start + 100]
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if answer.get("fault") != "truncate":
                self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(content)

    def _drip(self, content: bytes) -> None:
        """A byte at a time, so that something always comes, yet never all of it in time."""
        for byte in content:
            self.wfile.write(bytes([byte]))
            time.sleep(DRIP_SECONDS)

    def _wait_for_its_end(self) -> None:
        self.connection.settimeout(HANG_SECONDS_MAX)
        try:
            while self.connection.recv(4096):
                pass
        except OSError:
            pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline(32).split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline(8)
            self.rfile.readline(8)
            return b"".join(pieces)
        return self.rfile.read(min(int(self.headers.get("Content-Length") or 0), REQUEST_BYTES_MAX))

    def _tell(self, status: int, value: object) -> None:
        content = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def main(arguments: Sequence[str]) -> int:
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        sys.exit("usage: python3 stub.py -- <command of a library's tests>")
    with tempfile.TemporaryDirectory(prefix="posthouse-stub-") as directory, Stub(Path(directory)) as stub:
        threading.Thread(target=stub.serve_forever, args=(0.05,), daemon=True).start()
        try:
            status = subprocess.run(command, env={**os.environ, ADDRESS_VARIABLE: stub.url}, check=False).returncode
        finally:
            stub.shutdown()
            stub.closed_port.close()
        passed, said = stub.tally()
    for line in said:
        print(f"  {line}")
    print(f"conformance: {passed} of {len(stub.cases)}", flush=True)
    return status or int(bool(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
