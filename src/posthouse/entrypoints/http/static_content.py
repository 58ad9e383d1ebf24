"""Content that is the same for every request: compressed once, and sent only when the client lacks it.

The dashboard's files are such content: `make dashboard` puts them into the package.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response

import posthouse

DASHBOARD_DIRECTORY: Final = Path(posthouse.__file__).with_name("dashboard")
# The names of the files below it contain a hash of their content, so browsers may cache them.
HASHED: Final = "assets/"
NOT_BUILT: Final = "The dashboard is not built: run `make dashboard` in the clone, then start the service again."
_PAGE: Final = "index.html"
# The suffixes of the files that the build compressed, the best compression first.
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
# The first requests wait for one thread, which reads everything.
_READING: Final = Lock()


@dataclass(frozen=True, slots=True)
class StaticContent:
    """`compressed` is keyed by the name of the encoding, the best first."""

    media_type: str
    content: bytes
    compressed: Mapping[str, bytes]
    version: str

    @classmethod
    def of(cls, content: bytes, media_type: str, compressed: Mapping[str, bytes] | None = None) -> "StaticContent":
        """Without `compressed`, the content is compressed now."""
        if compressed is None:
            compressed = {"gzip": gzip.compress(content, mtime=0)}
        return cls(media_type, content, compressed, sha256(content).hexdigest()[:16])

    def response(self, request_headers: Headers, headers: Mapping[str, str]) -> Response:
        accepted = request_headers.get("accept-encoding", "")
        encoding = next((name for name in self.compressed if name in accepted), None)
        # A strong validator identifies the bytes that are sent, so each encoding has its own.
        tag = f'"{self.version}-{encoding}"' if encoding else f'"{self.version}"'
        sent = {**headers, "ETag": tag, "Vary": "Accept-Encoding"}
        if _names(request_headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=sent)
        if encoding is None:
            return Response(self.content, headers=sent, media_type=self.media_type)
        sent["Content-Encoding"] = encoding
        return Response(self.compressed[encoding], headers=sent, media_type=self.media_type)


class NotBuiltError(Exception):
    """The package has no dashboard."""


@dataclass(frozen=True, slots=True)
class DashboardBuild:
    """What `make dashboard` built: the page, and the files that it loads, by their path below /dashboard/."""

    page: str
    files: Mapping[str, StaticContent]


def is_dashboard_built() -> bool:
    return (DASHBOARD_DIRECTORY / _PAGE).is_file()


def is_dashboard_read() -> bool:
    return _dashboard.cache_info().currsize > 0


def read_dashboard() -> DashboardBuild:
    """Reads megabytes the first time. If the build is missing, the next call looks again."""
    with _READING:
        return _dashboard()


@cache
def _dashboard() -> DashboardBuild:
    if not is_dashboard_built():
        raise NotBuiltError
    found = {path.relative_to(DASHBOARD_DIRECTORY).as_posix(): path for path in DASHBOARD_DIRECTORY.rglob("*")}
    page = found.pop(_PAGE).read_text(encoding="utf-8")
    files = {
        name: StaticContent.of(path.read_bytes(), _MEDIA_TYPES[path.suffix], _compressed(path))
        for name, path in found.items()
        if path.suffix in _MEDIA_TYPES
    }
    return DashboardBuild(page, files)


def _compressed(path: Path) -> Mapping[str, bytes]:
    compressed = {encoding: path.with_name(path.name + suffix) for encoding, suffix in _ENCODINGS.items()}
    return {encoding: file.read_bytes() for encoding, file in compressed.items() if file.is_file()}


def _names(if_none_match: str, tag: str) -> bool:
    """A weak comparison (RFC 9110, 13.1.2): proxies that compress make the tags weak."""
    given = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return tag in given or "*" in given
