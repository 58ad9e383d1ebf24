"""An HTTP answer of the service, and what holds for every answer."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SEND_STATUSES: Final = {202, 400, 401, 402, 403, 409, 413, 429, 500, 503}
GET_STATUSES: Final = {200, 401, 404, 500, 503}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        parsed = json.loads(self.raw)
        assert isinstance(parsed, dict), self.raw
        return parsed

    @property
    def code(self) -> str | None:
        code: str | None = self.body.get("code")
        return code

    @property
    def error(self) -> str:
        text: str = self.body["error"]
        return text

    def is_refusal(self, status: int, code: str, *naming: str) -> bool:
        """Asserts, so that a failing test shows the whole answer, that this is the refusal expected."""
        assert (self.status, self.code) == (status, code), f"{self.status} {self.raw[:500]!r}"
        for name in naming:
            assert name in self.error, f"{name!r} is not named in {self.error!r}"
        return True

    def is_accepted(self) -> bool:
        assert self.status == 202, f"{self.status} {self.raw[:500]!r}"
        return True


def check_every_answer(method: str, path: str, answer: Answer) -> None:
    """What holds for every answer to any request: the request id, the error object, the statuses."""
    request_id = answer.headers.get("X-Request-ID")
    assert request_id, f"{method} {path}: no X-Request-ID on {answer.status}"
    assert answer.headers.get("Content-Type", "").split(";")[0] == "application/json", answer.headers
    assert answer.body.get("request_id") == request_id, f"{method} {path}: {answer.raw[:300]!r}"
    if answer.status >= 400:
        assert set(answer.body) == {"error", "code", "request_id"}, answer.raw[:300]
        assert all(isinstance(value, str) and value for value in answer.body.values()), answer.raw[:300]
    if answer.status in {429, 503}:
        assert int(answer.headers["Retry-After"]) >= 1, answer.headers
    if (method, path) == ("POST", "/emails"):
        assert answer.status in SEND_STATUSES, f"{answer.status} is not a status of POST /emails"
    if method == "GET" and path.startswith("/emails/"):
        assert answer.status in GET_STATUSES, f"{answer.status} is not a status of GET /emails/{{id}}"
    assert answer.status != 500, f"{method} {path}: {answer.raw[:300]!r}"


def spelled(name: str) -> str:
    """A header's name as the tests write it."""
    return "-".join(part.capitalize() for part in name.split("-")).replace("Request-Id", "Request-ID")


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {spelled(name): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("Content-Length", "0")))
    return Answer(int(status_line.split()[1]), headers, raw)
