"""The `console` blocks of the guides, typed by an ordinary user on a clean Debian 12 that is booted for it.

A block that can't run there says why in a comment before it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from posthouse.config.text import plain_toml
from tests.deploy.files import DEPLOY, ROOT
from tests.support.eventually import HANG_SECONDS

HOWTO: Final = ROOT / "docs" / "howto"
# Followed in this order on the same machine; `sh` blocks, too.
FOLLOWED: Final = [
    HOWTO / f"{name}.md"
    for name in (
        "first-server",
        "behind-a-proxy",
        "monitor",
        "deploy-systemd",
        "upgrade",
        "rotate-secrets",
        "trace",
        "backup",
        "deploy-kubernetes",
    )
]
PAGES: Final = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(DEPLOY.rglob("*.md")), *ROOT.glob("*.md")]
_BLOCK: Final = re.compile(
    r"^ *(?:<!-- not run: (?P<reason>[^>]+) -->\n *)?```(?P<kind>console|sh)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
FIRST: Final = FOLLOWED[0].read_text()
# The reader's name and version, and what would never end.
TYPED: Final = {
    "YOUR-NAME": "mail.example.com",
    "==NEW": "==" + re.findall(r"posthouse-([\w.]+)-py3", FIRST)[0],
    "journalctl -fu": "journalctl --no-pager --lines 20 --unit",
}
# It finds that a machine without the Internet can't deliver mail.
FAILS: Final = "posthouse doctor"
# For prompts: those of `createuser --pwprompt`.
ANSWERS: Final = "PASSWORD\nPASSWORD\n"
# What a server has that a provider hands over, and what the pages take for granted.
INSTALLED: Final = ("systemd-sysv", "dbus", "sudo", "ca-certificates", "curl", "openssl", "pgbackrest")
# Without systemd on this machine, and reaching only itself.
NSPAWN: Final = ("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network")


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    kind: str
    reason: str | None
    text: str

    @property
    def commands(self) -> list[str]:
        """As a reader types them, without the output that a page shows."""
        if self.kind == "sh":
            return self.text.splitlines()
        found, is_continued = [], False
        for line in self.text.splitlines():
            if is_continued or line.lstrip().startswith("$ "):
                found.append(line if is_continued else line.lstrip()[2:])
                is_continued = line.endswith("\\")
        return found


def _blocks(page: Path) -> list[Block]:
    return [Block(page, found["kind"], found["reason"], found["text"]) for found in _BLOCK.finditer(page.read_text())]


def _code(page: Path, language: str, beginning: str = "") -> str:
    """The page's only block of that language, or the one that begins like this."""
    (found,) = re.findall(
        rf"^```{language}\n({re.escape(beginning)}.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return str(found)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_console_block_is_run_or_says_why_not(page: Path) -> None:
    silent = [block.text for block in _blocks(page) if block.kind == "console" and block.reason is None]
    assert page in FOLLOWED or silent == []
    assert [text for text in silent if "$ " not in text] == [], "a command has a prompt"


class Machine:
    """A Debian 12 in a directory, which runs its own systemd and reaches only itself."""

    def __init__(self, root: Path, leader: int) -> None:
        self.root = root
        self._leader = leader

    def run(self, commands: Sequence[str]) -> str:
        """The output of commands that the user types."""
        (self.root / "home/ada/typed.sh").write_text("shopt -s expand_aliases\n" + "\n".join(commands) + "\n")
        words = [*_within(self._leader), "env", "--ignore-environment", "PATH=/usr/sbin:/usr/bin"]
        words += ["su", "--login", "ada", "--command", "bash -eu -o pipefail /home/ada/typed.sh 2>&1"]
        done = subprocess.run(
            words,
            input=ANSWERS,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS * 5,
            check=False,
            # Without a terminal, prompts read what they are given.
            start_new_session=True,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def set(self, page: Path) -> None:
        """Changes the settings that the page names."""
        file = self.root / "etc/posthouse/posthouse.toml"
        settings: dict[str, dict[str, Any]] = tomllib.loads(file.read_text())
        for section, values in tomllib.loads(_code(page, "toml")).items():
            settings.setdefault(section, {}).update(values)
        file.write_text(plain_toml(settings))

    def wait(self, command: str) -> None:
        self.run([f"for _ in $(seq 240); do {command} && exit 0; sleep 0.5; done; exit 1"])


def _packages() -> set[str]:
    """Those that the followed pages install, from the machine's own package source."""
    lines = [line for page in FOLLOWED for block in _blocks(page) if not block.reason for line in block.commands]
    return {
        *INSTALLED,
        *(word for line in lines if "apt-get install -y " in line for word in line.split(" -y ")[1].split()),
    }


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    assert os.getuid() == 0, "booting a machine needs root"
    for program in ("mmdebstrap", "systemd-nspawn", "nsenter"):
        assert shutil.which(program), f"{program} is missing: apt-get install mmdebstrap systemd-container"
    directory = tmp_path_factory.mktemp("machine")
    root, wheels = directory / "root", directory / "wheels"
    listed = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")]
    sources = [str(source) for source in listed if source.exists() and source.stat().st_size]
    subprocess.run(
        ["mmdebstrap", "--quiet", f"--include={','.join(sorted(_packages()))}", "bookworm", str(root), *sources],
        check=True,
        timeout=HANG_SECONDS * 5,
    )
    # What pip would get from PyPI.
    subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", wheels], cwd=ROOT, check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(["/usr/bin/python3", "-m", "venv", directory / "pip"], check=True)
    pip = [str(directory / "pip/bin/pip"), "download", "--quiet", "--dest", str(wheels), f"{wheel}[otel]"]
    subprocess.run(pip, check=True, timeout=HANG_SECONDS * 5)
    shutil.copytree(wheels, root / "wheels")
    (root / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    subprocess.run(["useradd", "--root", root, "--create-home", "--shell", "/bin/bash", "ada"], check=True)
    (root / "etc/sudoers.d/ada").write_text("ada ALL=(ALL) NOPASSWD: ALL\n")
    home = root / "home/ada"
    shutil.copy(wheel, home)
    shutil.copytree(DEPLOY, home / "deploy")
    owner = home.stat()
    for path in home.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)
    with _booted(root) as leader:
        yield Machine(root, leader)
    # A gigabyte, of which pytest would keep three.
    shutil.rmtree(directory)


@contextlib.contextmanager
def _booted(root: Path) -> Iterator[int]:
    """The machine's first process, seen from here."""
    with (root.parent / "boot.log").open("wb") as log:
        process = subprocess.Popen(
            [*NSPAWN, "--console=pipe", "--directory", root],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while not (leader := _child(process.pid)) or not _is_up(leader):
            assert process.poll() is None, (root.parent / "boot.log").read_text()
            assert time.monotonic() < deadline, (root.parent / "boot.log").read_text()
            time.sleep(0.2)  # until the machine is up
        yield leader
    finally:
        # Everything in it ends with its first process.
        os.kill(_child(process.pid) or process.pid, signal.SIGKILL)
        process.wait(HANG_SECONDS)


def _child(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(words[0]) if words else None


def _is_up(leader: int) -> bool:
    asked = [*_within(leader), "systemctl", "is-system-running"]
    return subprocess.run(asked, capture_output=True, check=False).stdout in (b"running\n", b"degraded\n")


def _within(leader: int) -> list[str]:
    return ["nsenter", "--target", str(leader), "--all"]


def _do_what_the_prose_says(machine: Machine, block: Block) -> None:
    """What a reader does by hand before this block."""
    page, root = block.page, machine.root
    if page.name == "first-server.md" and "cron.daily" in block.text:
        # "Move the file … owned by root, mode 600": the service's directory doesn't exist before.
        machine.run(["sudo install -D -m 600 posthouse.toml /etc/posthouse/posthouse.toml", "sudo rm posthouse.toml"])
        machine.set(page)
        (root / "etc/cron.daily/posthouse-certificate").write_text(_code(page, "bash"))
        lives = root / "etc/letsencrypt/live/mail.example.com"
        lives.mkdir(parents=True)
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=mail.example.com"]
        words += ["-keyout", str(lives / "privkey.pem"), "-out", str(lives / "fullchain.pem")]
        subprocess.run(words, capture_output=True, check=True)
    if page.name == "first-server.md" and "journalctl" not in block.text and "posthouse doctor" in block.text:
        machine.wait("curl -sf http://127.0.0.1:8025/healthz")
    if page.name == "monitor.md":
        machine.set(page)
        machine.run(["sudo systemctl restart posthouse"])
        machine.wait("curl -sf http://127.0.0.1:9825/readyz")
    if page.name == "backup.md" and "stanza-create" in block.text:
        (root / "etc/pgbackrest.conf").write_text(_code(page, "ini", "# /etc/pgbackrest.conf"))
        with (root / "etc/postgresql/15/main/postgresql.conf").open("a") as settings:
            settings.write(_code(page, "ini", "# postgresql.conf"))
        machine.run(["sudo systemctl restart postgresql"])


@pytest.mark.nightly
def test_the_guides_work_as_written_on_a_clean_debian(machine: Machine) -> None:
    aliases = re.findall(r"^\$ (alias .+)$", FIRST, re.MULTILINE)
    seen: dict[str, str] = {}
    for block in (block for page in FOLLOWED for block in _blocks(page) if block.reason is None):
        _do_what_the_prose_says(machine, block)
        commands = [f"{line} || [ $? -eq 1 ]" if line == FAILS else line for line in block.commands]
        for placeholder, real in TYPED.items():
            commands = [line.replace(placeholder, real) for line in commands]
        seen[block.page.stem] = seen.get(block.page.stem, "") + machine.run([*aliases, *commands])
    assert "stored secrets can be opened" in seen["first-server"]
    assert "ph_live_" in seen["first-server"]
    assert "leaves from 192.0.2.10" in seen["first-server"]
    assert '{"status": "ready"}' in seen["monitor"]
    assert "The tables are up to date" in seen["upgrade"]
    assert re.search(r"^seal key +1 +active", seen["rotate-secrets"], re.MULTILINE)
    assert machine.run(["systemctl is-active posthouse caddy"]) == "active\nactive\n"
