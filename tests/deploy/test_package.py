"""The wheel, built from the source distribution, works in an empty environment without a clone."""

import re
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from posthouse.entrypoints.http.static_content import is_dashboard_built
from tests.deploy.files import ROOT
from tests.support.eventually import HANG_SECONDS
from tools.private_postgres import PrivatePostgres, free_port

pytestmark = pytest.mark.nightly

READY_SECONDS_MAX = 60.0
DASHBOARD_BYTES_MAX = 3_000_000


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment with nothing but the wheel and what it needs, and an empty directory to work in."""

    environment: Path
    directory: Path

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": f"{self.environment / 'bin'}:/usr/bin:/bin", "HOME": str(self.directory), "LANG": "C.UTF-8"}

    def command(self, *words: str) -> str:
        done = subprocess.run(
            ["posthouse", *words],
            executable=self.environment / "bin/posthouse",
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def served(self, port: int) -> Iterator[str]:
        process = subprocess.Popen(
            [self.environment / "bin/posthouse", "run", "--port", str(port)], cwd=self.directory, env=self.variables
        )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_SECONDS_MAX
        try:
            while not _answers(url):
                assert process.poll() is None, process.returncode
                assert time.monotonic() < deadline
                time.sleep(0.05)  # until the port answers
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        return _get(f"{url}/healthz").startswith(b"{")
    except OSError:
        return False


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=HANG_SECONDS) as response:
        content: bytes = response.read()
    return content


def _uv(*words: str | Path) -> None:
    uv = shutil.which("uv")
    assert uv, "uv is missing: install it with 'pipx install uv'"
    done = subprocess.run([uv, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel that is built from it."""
    directory = tmp_path_factory.mktemp("dist")
    _uv("build", "--quiet", "--out-dir", directory)
    return directory


@pytest.fixture(scope="module")
def installation(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    environment, directory = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    (wheel,) = packages.glob("*.whl")
    _uv("venv", "--quiet", "--clear", environment)
    _uv(
        "pip", "install", "--quiet", "--python", environment / "bin/python", "--constraints", "requirements.lock", wheel
    )
    return Installation(environment, directory)


@pytest.fixture
def empty_database(postgres: PrivatePostgres) -> str:
    postgres.create_database("package")
    return postgres.url("package")


def test_the_wheel_has_all_that_the_package_has(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    tracked = subprocess.run(
        ["git", "ls-files", "src/posthouse"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert {file.removeprefix("src/") for file in tracked} <= names
    assert not [name for name in names if not name.startswith(("posthouse/", "posthouse-"))]


@pytest.mark.skipif(not is_dashboard_built(), reason="the dashboard is not built: make dashboard")
def test_the_wheel_has_the_dashboard_and_little_more_for_it(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        sizes = {info.filename: info.compress_size for info in opened.infolist()}
    built = {name: size for name, size in sizes.items() if name.startswith("posthouse/dashboard/")}
    assert "posthouse/dashboard/index.html" in built
    assert sum(built.values()) <= DASHBOARD_BYTES_MAX


@pytest.mark.skipif(not is_dashboard_built(), reason="the dashboard is not built: make dashboard")
def test_the_wheel_has_every_runbook(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        scripts = [opened.read(name) for name in opened.namelist() if re.search(r"/dashboard/assets/.*\.js$", name)]
    titles = [page.read_bytes().partition(b"\n")[0] for page in (ROOT / "docs/runbooks").glob("*.md")]
    assert len(titles) > 20
    assert [title for title in titles if not any(title in script for script in scripts)] == []


def test_a_wheel_that_is_made_in_a_clone_has_the_dashboard(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    _uv("build", "--quiet", "--wheel", "--out-dir", tmp_path, clone)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert "posthouse/dashboard/index.html" in opened.namelist()


def test_the_source_distribution_has_what_a_packager_needs(packages: Path) -> None:
    (source,) = packages.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "LICENSE",
        "CHANGELOG.md",
        "pyproject.toml",
        "requirements.lock",
        "deploy/systemd/posthouse.service",
    } <= names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|\.run|secrets|node_modules)/", name)]


def test_commands_work_without_a_clone(installation: Installation) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert installation.command("--version") == f"posthouse {version[1]}\n"
    assert "migrate" in installation.command("--help")


def test_the_service_runs_without_a_clone(installation: Installation, empty_database: str) -> None:
    installation.command("config", "init", "--database-url", empty_database)
    assert "The tables are up to date" in installation.command("migrate")
    with installation.served(free_port()) as url:
        page = _get(f"{url}/docs").decode()
        assets = re.findall(r'"(docs/[^"]+)"', page)
        assert len(assets) == 3
        assert all(len(_get(f"{url}/{asset}")) > 100 for asset in assets)
        assert b'"openapi":"3.1' in _get(f"{url}/openapi.json").replace(b" ", b"")
        if is_dashboard_built():
            # Without Node, which is not in the environment.
            files = re.findall(r'"(/dashboard/assets/[^"]+)"', _get(f"{url}/dashboard/").decode())
            assert files
            assert all(len(_get(f"{url}{file}")) > 100 for file in files)
