"""The access log: one JSON line for each answered request, in the log of its process.

A line names the route, but not the path or the query, which may contain recipients' addresses and tokens of links.
Accounts and messages are named by their public ids. It bypasses the processing of other log lines, which would take
several times as long.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TextIO

import pydantic_core
from starlette.types import Scope

from posthouse.entrypoints.http import responses
from posthouse.rules import ids

# Keys in a request's scope, set once their values are known.
ACCOUNT_ID: Final = "posthouse.account_id"
MESSAGE: Final = "posthouse.message"
SECONDS_DIGITS: Final = 4


class AccessLog:
    """`write` is called with each line, including its line end."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def __call__(self, scope: Scope, status: int, seconds: float) -> None:
        account_id = scope.get(ACCOUNT_ID)
        client = scope.get("client")
        line = {
            "event": "request",
            "request_id": scope[responses.REQUEST_ID_TEXT],
            "method": "HEAD" if responses.IS_HEAD in scope else scope["method"],
            "route": route_of(scope),
            "status": status,
            "seconds": round(seconds, SECONDS_DIGITS),
            "peer": client[0] if client else None,
            "account": None if account_id is None else ids.text(ids.ACCOUNT, account_id),
            "message": scope.get(MESSAGE) or _message_of(scope),
            "level": "info",
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        self._write(pydantic_core.to_json(line).decode() + "\n")


class LineWriter:
    """Write the lines of requests that are answered together, such as those of a group commit, in one call."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []

    def __call__(self, line: str) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._write)
        self._lines.append(line)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        self._stream.write("".join(lines))
        self._stream.flush()


def route_of(scope: Scope) -> str | None:
    """The route as the OpenAPI document writes it, such as /v1/suppressions/{email}; None for an unknown path."""
    if scope["path"] == "/emails":
        return "/emails"
    return getattr(scope.get("route"), "path", None)


def _message_of(scope: Scope) -> str | None:
    """The message that the path names."""
    named = [given for given in scope.get("path_params", {}).values() if ids.parse(ids.MESSAGE, str(given)) is not None]
    return named[0] if named else None
