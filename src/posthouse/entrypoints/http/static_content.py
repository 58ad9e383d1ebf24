"""Content that is the same for every request: compressed once, and sent only when the client lacks it."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class StaticContent:
    """`compressed` is by the name of its encoding, the best first."""

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
        # A strong validator names the bytes that are sent, so each encoding has its own.
        tag = f'"{self.version}-{encoding}"' if encoding else f'"{self.version}"'
        sent = {**headers, "ETag": tag, "Vary": "Accept-Encoding"}
        if _names(request_headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=sent)
        if encoding is None:
            return Response(self.content, headers=sent, media_type=self.media_type)
        sent["Content-Encoding"] = encoding
        return Response(self.compressed[encoding], headers=sent, media_type=self.media_type)


def _names(if_none_match: str, tag: str) -> bool:
    """A weak comparison (RFC 9110, 13.1.2): proxies that compress make the tags weak."""
    given = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return tag in given or "*" in given
