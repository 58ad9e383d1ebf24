"""The newest release as a program: its wheel, built from the repository, with its own locked dependencies."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
_KEPT: Final = REPOSITORY / ".run" / "releases"
_SECTION: Final = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - ", re.MULTILINE)


class Release(NamedTuple):
    name: str
    commit: str


class ReleaseError(Exception):
    """The repository has neither a tag of a release nor the commit that dated its section in the changelog."""


def newest_release() -> Release:
    """The newest tag v*; without one, the commit that gave the changelog its newest dated section."""
    tags = _git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname").split()
    if tags:
        return Release(tags[0], _git("rev-list", "-1", tags[0]).strip())
    found = _SECTION.search((REPOSITORY / "CHANGELOG.md").read_text())
    if found is not None:
        commits = _git("log", f"-S{found[0]}", "--format=%H", "--", "CHANGELOG.md").split()
        # A clone of limited depth has its oldest commit as the one that added everything.
        if commits and _git("rev-parse", "--is-shallow-repository").strip() == "false":
            return Release(found[1], commits[-1])
    raise ReleaseError("this clone has no tag v* and not the whole history: `git fetch --tags --unshallow` mends it")


def installed(release: Release) -> Path:
    """Its `posthouse`, in an environment of its own, kept for the next time; needs uv and the package index."""
    directory = _KEPT / release.commit
    program = directory / "bin" / "posthouse"
    if program.exists():
        return program
    uv = shutil.which("uv")
    if uv is None:
        raise ReleaseError("uv is missing: the release's wheel can't be built")
    shutil.rmtree(directory, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary)
        archive = subprocess.run(
            ["git", "archive", release.commit], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE
        ).stdout
        subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
        _run(uv, "build", "--quiet", "--wheel", "--out-dir", str(source / "dist"), str(source))
        (wheel,) = (source / "dist").glob("*.whl")
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(directory))
        _run(
            *(uv, "pip", "install", "--quiet", "--python", str(directory / "bin" / "python")),
            *("--constraints", str(source / "requirements.lock"), str(wheel)),
        )
    return program


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"`git {words[0]}` failed: {done.stderr.strip()}")
    return done.stdout


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
