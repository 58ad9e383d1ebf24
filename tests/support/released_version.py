"""The newest release as a program: its wheel, built from the repository, with its own locked dependencies."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
START: Final = REPOSITORY / "tests" / "upgrade" / "start-commit"
_KEPT: Final = REPOSITORY / ".run" / "releases"


class Release(NamedTuple):
    name: str
    commit: str

    @property
    def is_tagged(self) -> bool:
        return self.name.startswith("v")


class ReleaseError(Exception):
    """Without a release tag, the repository must have the commit that upgrades start from."""


def newest_release() -> Release:
    """The newest tag v*; without one, the commit that `tests/upgrade/start-commit` names."""
    if tag := newest_tag(REPOSITORY):
        return Release(tag, _git("rev-list", "-1", tag).strip())
    commit = START.read_text().strip()
    try:
        _git("cat-file", "-e", f"{commit}^{{commit}}")
    except ReleaseError:
        text = f"this clone has no tag v*, and not commit {commit}: `git fetch --tags --unshallow` fetches both"
        raise ReleaseError(text) from None
    return Release("the commit that upgrades start from", commit)


def newest_tag(repository: Path) -> str | None:
    """Of the tags v* that HEAD contains; a release candidate is older than its release."""
    by_version = ("-c", "versionsort.suffix=-", "tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname")
    return next(iter(_git(*by_version, repository=repository).split()), None)


def released_text(release: Release, path: str) -> str:
    """A file of the release."""
    return _git("show", f"{release.commit}:{path}")


def newest_revision(release: Release) -> str:
    """Of its schema."""
    files = _git("ls-tree", "--name-only", release.commit, "src/posthouse/store/migrations/versions/").split()
    return max(Path(file).name.partition("_")[0] for file in files if file.endswith(".py"))


def installed(release: Release) -> Path:
    """Its `posthouse`, in its own environment, kept for the next run; needs uv and the package index."""
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


def _git(*words: str, repository: Path = REPOSITORY) -> str:
    done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"`git {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
