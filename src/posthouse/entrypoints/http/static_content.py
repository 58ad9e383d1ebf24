"""Content that is the same for every request: encoded and compressed once, and sent only when the client lacks it."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class StaticContent:
    media_type: str
    content: bytes
    compressed: bytes
    version: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "StaticContent":
        return cls(media_type, content, gzip.compress(content, mtime=0), sha256(content).hexdigest()[:16])

    def response(self, request_headers: Headers, headers: Mapping[str, str]) -> Response:
        is_compressed = "gzip" in request_headers.get("accept-encoding", "")
        # A strong validator names the bytes that are sent, so each encoding has its own.
        tag = f'"{self.version}-gzip"' if is_compressed else f'"{self.version}"'
        sent = {**headers, "ETag": tag, "Vary": "Accept-Encoding"}
        if _names(request_headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=sent)
        if not is_compressed:
            return Response(self.content, headers=sent, media_type=self.media_type)
        return Response(self.compressed, headers={**sent, "Content-Encoding": "gzip"}, media_type=self.media_type)


def _names(if_none_match: str, tag: str) -> bool:
    """A weak comparison (RFC 9110, 13.1.2): proxies that compress make the tags weak."""
    given = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return tag in given or "*" in given
