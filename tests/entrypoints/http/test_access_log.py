"""Access lines: each answered request is one, without what its path or query may give away."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from posthouse.compose.process import _JsonFormatter
from posthouse.entrypoints.http.access_log import ACCOUNT_ID, MESSAGE, AccessLog, LineWriter
from posthouse.entrypoints.http.responses import IS_HEAD, REQUEST_ID_TEXT
from posthouse.rules import ids

MESSAGE_ID = ids.text(ids.MESSAGE, ids.new_message_id(datetime(2026, 11, 17, tzinfo=UTC), bytes(10)))
ACCOUNT = UUID("019a8f00-0000-7000-8000-000000000001")


def line(path: str, status: int = 200, **more: object) -> dict[str, Any]:
    lines: list[str] = []
    scope = {"method": "GET", "path": path, "client": ("192.0.2.7", 4711), REQUEST_ID_TEXT: "req_1", **more}
    AccessLog(lines.append)(scope, status, 0.01234567)
    (written,) = lines
    assert written.endswith("}\n")
    found: dict[str, Any] = json.loads(written)
    return found


def test_an_accepted_request_names_its_account_and_message() -> None:
    found = line("/emails", 202, **{ACCOUNT_ID: ACCOUNT, MESSAGE: MESSAGE_ID, "method": "POST"})
    assert datetime.fromisoformat(found.pop("timestamp")).tzinfo is not None
    assert found == {
        "event": "request",
        "request_id": "req_1",
        "method": "POST",
        "route": "/emails",
        "status": 202,
        "seconds": 0.0123,
        "peer": "192.0.2.7",
        "account": ids.text(ids.ACCOUNT, ACCOUNT),
        "message": MESSAGE_ID,
        "level": "info",
    }


def test_the_route_is_named_and_not_the_path() -> None:
    found = line(
        "/v1/suppressions/ada@example.org",
        route=SimpleNamespace(path="/v1/suppressions/{email}"),
        path_params={"email": "ada@example.org"},
        query_string=b"token=secret",
    )
    assert found["route"] == "/v1/suppressions/{email}"
    assert "ada" not in json.dumps(found)
    assert "secret" not in json.dumps(found)


def test_a_message_in_the_path_is_named() -> None:
    route = SimpleNamespace(path="/v1/messages/{id}")
    assert line(f"/v1/messages/{MESSAGE_ID}", route=route, path_params={"id": MESSAGE_ID})["message"] == MESSAGE_ID
    assert line("/v1/messages/em_x", route=route, path_params={"id": "em_x"})["message"] is None


def test_an_unknown_address_is_not_repeated() -> None:
    found = line("/ph_live_pasted-by-mistake", 404)
    assert (found["route"], found["account"], found["message"]) == (None, None, None)
    assert "pasted" not in json.dumps(found)


def test_head_is_named_although_routes_see_get() -> None:
    assert line("/healthz", **{IS_HEAD: True})["method"] == "HEAD"


async def test_lines_of_requests_that_are_answered_together_are_written_at_once() -> None:
    written: list[str] = []
    stream = SimpleNamespace(write=written.append, flush=lambda: written.append("flushed"))
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for numbers in ("12", "3"):
        for number in numbers:
            writer(f"{number}\n")
        assert not written
        await asyncio.sleep(0)
        assert written == ["".join(f"{number}\n" for number in numbers), "flushed"]
        written.clear()


@pytest.mark.parametrize("fault", [None, ValueError("no such thing")])
def test_lines_of_libraries_are_json(fault: Exception | None) -> None:
    raised = None if fault is None else (type(fault), fault, None)
    record = logging.LogRecord("uvicorn.error", logging.INFO, "server.py", 1, "Uvicorn on %s", ("x:1\n",), raised)
    written = _JsonFormatter().format(record)
    assert "\n" not in written
    found = json.loads(written)
    assert (found["event"], found["logger"], found["level"]) == ("Uvicorn on x:1\n", "uvicorn.error", "info")
    assert ("exception" in found) is (fault is not None)
