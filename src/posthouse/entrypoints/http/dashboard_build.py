"""The dashboard as `make dashboard` built it, in the package: its page, and the files that the page loads."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

import posthouse
from posthouse.entrypoints.http.static_content import StaticContent

DIRECTORY: Final = Path(posthouse.__file__).with_name("dashboard")
# Their names hold a hash of their content: browsers may keep them.
HASHED: Final = "assets/"
NOT_BUILT: Final = "The dashboard is not built: run `make dashboard` in the clone, then start the service again."

_PAGE: Final = "index.html"
# The suffixes of the files that the build compressed, the best first.
_ENCODINGS: Final = {"br": ".br", "gzip": ".gz"}
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
# The first requests wait for a single thread to read everything.
_READING: Final = Lock()


class NotBuiltError(Exception):
    """The package has no dashboard."""


@dataclass(frozen=True, slots=True)
class DashboardBuild:
    """`files` are by their path below /dashboard/."""

    page: str
    files: Mapping[str, StaticContent]


def is_built() -> bool:
    return (DIRECTORY / _PAGE).is_file()


def is_read() -> bool:
    return _build.cache_info().currsize > 0


def read() -> DashboardBuild:
    """Reads megabytes the first time. A missing build is looked for again at the next call."""
    with _READING:
        return _build()


@cache
def _build() -> DashboardBuild:
    if not is_built():
        raise NotBuiltError
    found = {path.relative_to(DIRECTORY).as_posix(): path for path in DIRECTORY.rglob("*")}
    page = found.pop(_PAGE).read_text(encoding="utf-8")
    files = {
        name: StaticContent.of(path.read_bytes(), _MEDIA_TYPES[path.suffix], _compressed(path))
        for name, path in found.items()
        if path.suffix in _MEDIA_TYPES
    }
    return DashboardBuild(page, files)


def _compressed(path: Path) -> Mapping[str, bytes]:
    beside = {encoding: path.with_name(path.name + suffix) for encoding, suffix in _ENCODINGS.items()}
    return {encoding: file.read_bytes() for encoding, file in beside.items() if file.is_file()}
