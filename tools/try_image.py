"""Runs an image without a container engine, as root, and sends a message through it: `python -m tools.try_image IMAGE`.

The image's root file system is mounted read-only in its own namespaces, and the image's entry point is run there as
the image's user, without capabilities. Only the network is the machine's.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.private_postgres import PrivatePostgres, free_port

ROOT: Final = Path(__file__).parents[1]
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 40.0
MIB: Final = 1024 * 1024

# What an engine does for `--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges`.
_ENTER: Final = """
set -eu
mount --bind "$0" "$0"
mount --options remount,bind,ro "$0"
mount --types proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --types tmpfs tmpfs "$0/tmp"
mount --types tmpfs tmpfs "$0/run"
mkdir "$0/run/secrets"
for secret in "$1"/*; do
  touch "$0/run/secrets/${secret##*/}"
  mount --bind "$secret" "$0/run/secrets/${secret##*/}"
done
user=$2
shift 2
exec chroot "$0" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups --bounding-set=-all --inh-caps=-all \\
  --no-new-privs "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    root: Path
    user: str
    environment: Mapping[str, str]
    entry_point: Sequence[str]
    command: Sequence[str]
    health_check: Sequence[str]

    def inside(self, words: Sequence[str], secrets: Path, settings: Mapping[str, str]) -> list[str]:
        variables = [f"{name}={value}" for name, value in {**self.environment, **settings}.items()]
        namespaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=SIGKILL"]
        entered = ["sh", "-c", _ENTER, str(self.root), str(secrets), self.user]
        return [*namespaces, *entered, "env", "--ignore-environment", *variables, *words]


@contextmanager
def mounted(name: str) -> Iterator[Image]:
    container = _output("buildah", "from", name)
    try:
        described: dict[str, Any] = json.loads(_output("buildah", "inspect", "--type", "image", name))["Docker"]
        config = described["config"]
        yield Image(
            Path(_output("buildah", "mount", container)),
            config["User"],
            dict(variable.split("=", 1) for variable in config["Env"]),
            config["Entrypoint"],
            config["Cmd"],
            config["Healthcheck"]["Test"][1:],
        )
    finally:
        _output("buildah", "rm", container)


def try_image(image: Image, secrets: Path, settings: Mapping[str, str]) -> None:
    def within(*words: str) -> str:
        return _output(*image.inside(words, secrets, settings))

    def posthouse(*words: str) -> str:
        return within(*image.entry_point, *words)

    print(posthouse("--version"), "as", within("id"))
    assert within("sh", "-c", "touch /opt/posthouse/x 2>&1 || true").endswith("Read-only file system")
    print(posthouse("migrate"))
    with served(image, secrets, settings) as url:
        within(*image.health_check)
        assert "swagger" in _get(f"{url}/docs").lower()
        posthouse("account", "create", "acme")
        posthouse("credits", "grant", "acme", "10", "--reason", "a try")
        posthouse("domain", "add", "acme", "acme.example")
        posthouse("domain", "verify", "acme", "acme.example", "--vouched")
        key = _found(r"ph_test_\w+", posthouse("key", "create", "acme", "--name", "try", "--test", "--read"))
        print("A message is", _delivered(url, key))


@contextmanager
def served(image: Image, secrets: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """The image's own command; it has to end in order."""
    url = f"http://127.0.0.1:{settings['POSTHOUSE_HTTP__PORT']}"
    started = time.monotonic()
    process = subprocess.Popen(image.inside([*image.entry_point, *image.command], secrets, settings))
    try:
        while not _answers(f"{url}/healthz"):
            assert process.poll() is None, f"the service ended with {process.returncode}"
            assert time.monotonic() < started + READY_SECONDS_MAX, "the service does not answer"
            time.sleep(0.1)
        print(f"/healthz answers after {time.monotonic() - started:.1f} s")
        yield url
        # `unshare` waits for the service, which is its only child.
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()


def _delivered(url: str, key: str) -> str:
    message = {"from": "a@acme.example", "to": "delivered@simulator.invalid", "subject": "Hello", "text": "Hello."}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Idempotency-Key": "try-1"}
    request = urllib.request.Request(f"{url}/emails", json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        accepted = json.load(response)
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        request = urllib.request.Request(f"{url}/emails/{accepted['id']}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            status = str(json.load(response)["status"])
        if status == "delivered":
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.2)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[0]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def _answers(url: str) -> bool:
    try:
        return '"ok"' in _get(url)
    except OSError:
        return False


def _output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _sizes(name: str, directory: Path) -> str:
    archive = directory / "image.tar"
    _output("buildah", "push", "--quiet", name, f"docker-archive:{archive}")
    compressed = int(_output("sh", "-c", f"gzip -6 < {shlex.quote(str(archive))} | wc -c"))
    return f"{name}: {archive.stat().st_size / MIB:.0f} MiB, compressed {compressed / MIB:.0f} MiB"


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as given, PrivatePostgres.start() as postgres, mounted(name) as image:
        postgres.create_database("posthouse")
        secrets = Path(given, "secrets")
        _output(str(ROOT / "deploy/make-secrets.sh"), str(secrets))
        settings = {
            "POSTHOUSE_HTTP__PORT": str(free_port()),
            "POSTHOUSE_DATABASE__URL": postgres.url("posthouse"),
            "POSTHOUSE_SECRETS__PEPPER_FILE": "/run/secrets/pepper",
            "POSTHOUSE_SECRETS__JWT_SECRET_FILE": "/run/secrets/jwt_secret",
            "POSTHOUSE_SECRETS__SEAL_KEYS_FILE": "/run/secrets/seal_keys",
            "POSTHOUSE_SECRETS__SEAL_KEY_ACTIVE": "1",
        }
        try_image(image, secrets, settings)
        print(_sizes(name, Path(given)))


if __name__ == "__main__":
    main(sys.argv[1])
