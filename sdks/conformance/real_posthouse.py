"""A real Posthouse to try a library against: runs a command beside it and ends with that command's status.

    .venv/bin/python sdks/conformance/real_posthouse.py -- <command>

Starts a private PostgreSQL and `posthouse run`, makes an account that may send, and gives the command POSTHOUSE_URL,
POSTHOUSE_API_KEY (which may read, too), POSTHOUSE_FROM, POSTHOUSE_USERNAME and POSTHOUSE_PASSWORD. Mail to
delivered@simulator.invalid is delivered without leaving the machine. Nothing is left behind.
"""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.private_postgres import PrivatePostgres, free_port  # noqa: E402

ACCOUNT: Final = "libraries"
DOMAIN: Final = "libraries.example"
CREDITS: Final = 1_000
READY_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 30.0
COMMAND_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.1


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """The variables for a program that sends, while the service runs."""
    with tempfile.TemporaryDirectory(prefix="posthouse-real-") as directory, PrivatePostgres.start() as postgres:
        postgres.create_database("posthouse")
        port = free_port()
        environment = _environment(postgres.url("posthouse"), port)
        workplace = Path(directory)  # away from any posthouse.toml
        _told(environment, workplace, "migrate")
        account = _told(environment, workplace, "account", "create", ACCOUNT, "--json")
        _told(environment, workplace, "credits", "grant", ACCOUNT, str(CREDITS), "--reason", "to try the libraries")
        _told(environment, workplace, "domain", "add", ACCOUNT, DOMAIN)
        _told(environment, workplace, "domain", "verify", ACCOUNT, DOMAIN, "--vouched")
        key = _told(environment, workplace, "key", "create", ACCOUNT, "--read", "--json")
        with _service(environment, workplace, port) as url:
            yield {
                "POSTHOUSE_URL": url,
                "POSTHOUSE_API_KEY": key["secret"],
                "POSTHOUSE_FROM": f"hello@{DOMAIN}",
                "POSTHOUSE_USERNAME": _found(account, "username"),
                "POSTHOUSE_PASSWORD": _found(account, "password"),
            }


def _environment(database_url: str, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
    settings = {
        "DATABASE__URL": database_url,
        "SECRETS__PEPPER": secrets.token_urlsafe(32),
        "SECRETS__JWT_SECRET": secrets.token_urlsafe(32),
        "SECRETS__SEAL_KEYS": json.dumps({"1": base64.b64encode(secrets.token_bytes(32)).decode()}),
        "SECRETS__SEAL_KEY_ACTIVE": "1",
        "HTTP__HOST": "127.0.0.1",
        "HTTP__PORT": str(port),
        "STREAM__SERVERS": "memory",
    }
    return {**kept, **{f"POSTHOUSE_{name}": value for name, value in settings.items()}}


def _told(environment: Mapping[str, str], workplace: Path, *words: str) -> Any:
    """What a command of the operator's says."""
    done = subprocess.run(
        [sys.executable, "-m", "posthouse", *words],
        env=environment,
        cwd=workplace,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
    )
    if done.returncode:
        sys.exit(f"posthouse {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout) if "--json" in words else None


@contextmanager
def _service(environment: Mapping[str, str], workplace: Path, port: int) -> Iterator[str]:
    log = workplace / "posthouse.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "posthouse", "run"],
            env=environment,
            cwd=workplace,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5):
                return
        except OSError:
            time.sleep(POLL_SECONDS)
    sys.exit(f"the service did not become ready:\n{log.read_text(errors='replace')[-4000:]}")


def _found(value: Any, name: str) -> str:
    """The field of that name, wherever it is."""
    if isinstance(value, dict):
        if isinstance(value.get(name), str):
            return str(value[name])
        for inner in value.values():
            if found := _found(inner, name):
                return found
    return ""


def main(arguments: Sequence[str]) -> int:
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        sys.exit("usage: real_posthouse.py -- <command>")
    # On SIGTERM it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with running() as variables:
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
