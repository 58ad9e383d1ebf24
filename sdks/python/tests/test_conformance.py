"""Every case of sdks/conformance, with both clients: `python3 ../conformance/stub.py -- python3 -m unittest`."""

import asyncio
import base64
import io
import json
import os
import unittest
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import posthouse_sdk as posthouse
from posthouse_sdk import (
    ApiError,
    AsyncClient,
    Attachment,
    AttemptTimeoutError,
    Basic,
    Bearer,
    Client,
    ConnectionFailedError,
    Email,
    InvalidArgumentError,
    PosthouseError,
    RetryPolicy,
    WaitTimeoutError,
    WebhookVerificationError,
)

STUB = os.environ.get("POSTHOUSE_STUB", "")
TYPES = {
    ApiError: "api",
    ConnectionFailedError: "connection",
    AttemptTimeoutError: "timeout",
    WaitTimeoutError: "wait_timeout",
    WebhookVerificationError: "webhook",
    InvalidArgumentError: "invalid",
}


@dataclass
class FakeTime:
    """Time that stands still but for sleeps."""

    at: float
    sleeps: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    monotonic = now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.at += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


@unittest.skipUnless(STUB, "run it as `python3 ../conformance/stub.py -- python3 -m unittest`")
class ConformanceTest(unittest.TestCase):
    def test_every_case_with_the_client_for_threads(self) -> None:
        self.run_all(run_in_this_thread)

    def test_every_case_with_the_client_for_asyncio(self) -> None:
        self.run_all(lambda case: asyncio.run(run_with_asyncio(case)))

    def run_all(self, run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        for name in ask("/_/cases")["cases"]:
            with self.subTest(name):
                case = ask("/_/runs", {"case": name})
                verdict = ask("/_/reports", {"run": case["run"], **run(case)})
                self.assertTrue(verdict["passed"], "\n".join(verdict["problems"]))


def run_in_this_thread(case: dict[str, Any]) -> dict[str, Any]:
    clock, report = FakeTime(case["now"]), new_report()
    try:
        if case["kind"] == "webhook":
            return {**report, "result": neutral(verified(case))}
        injected: dict[str, Any] = {"clock": clock, "sleep": clock.sleep} if case["clock"] == "fake" else {}
        client = Client(**options(case, report), **injected)
        report["inspected"] = f"{client!r} {client}"
        call = case["call"]
        if case["kind"] == "send":
            report["result"] = neutral(client.send(email(call), **given(call, "idempotency_key")))
        elif case["kind"] == "get":
            report["result"] = neutral(client.get(call["id"]))
        else:
            report["result"] = neutral(client.wait(call["id"], **given(call, "timeout")))
    except PosthouseError as error:
        report["error"] = describe(error)
    return {**report, "sleeps": clock.sleeps}


async def run_with_asyncio(case: dict[str, Any]) -> dict[str, Any]:
    clock, report = FakeTime(case["now"]), new_report()
    try:
        if case["kind"] == "webhook":
            return {**report, "result": neutral(verified(case))}
        injected: dict[str, Any] = {"clock": clock, "sleep": clock.sleep_async} if case["clock"] == "fake" else {}
        client = AsyncClient(**options(case, report), **injected)
        report["inspected"] = f"{client!r} {client}"
        call = case["call"]
        if case["kind"] == "send":
            report["result"] = neutral(await client.send(email(call), **given(call, "idempotency_key")))
        elif case["kind"] == "get":
            report["result"] = neutral(await client.get(call["id"]))
        else:
            report["result"] = neutral(await client.wait(call["id"], **given(call, "timeout")))
    except PosthouseError as error:
        report["error"] = describe(error)
    return {**report, "sleeps": clock.sleeps}


def new_report() -> dict[str, Any]:
    return {"sleeps": [], "result": None, "error": None, "debug": [], "inspected": None}


def options(case: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    client = case["client"]
    known, drawn = client["credential"], iter(case["random"])
    options: dict[str, Any] = {
        "credential": Basic(**known) if "username" in known else Bearer(known.get("api_key", known.get("jwt"))),
        "base_url": client["base_url"],
        "debug": lambda event: report["debug"].append(asdict(event)),
        "random": lambda: next(drawn, 0.0),
        **given(client, "timeout"),
        **given(client, "user_agent_suffix"),
    }
    if "retry" in client:
        options["retry"] = RetryPolicy.none() if client["retry"] == "none" else RetryPolicy(**client["retry"])
    return options


def email(call: dict[str, Any]) -> Email:
    fields = dict(call["email"])
    fields["from_"] = fields.pop("from")
    if "attachments" in fields:
        fields["attachments"] = [attachment(item) for item in fields["attachments"]]
    return Email(**fields)


def attachment(fields: dict[str, Any]) -> Attachment:
    named = given(fields, "content_type") | given(fields, "content_id")
    if "file" in fields:
        return Attachment.from_file(fields["file"], **given(fields, "filename"), **named)
    if "stream" in fields:
        return Attachment.from_stream(io.BytesIO(base64.b64decode(fields["stream"])), fields["filename"], **named)
    return Attachment(fields["filename"], base64.b64decode(fields["bytes"]), **named)


def verified(case: dict[str, Any]) -> posthouse.Event:
    call = case["call"]
    body = base64.b64decode(call["body_base64"])
    return posthouse.verify_webhook(body, call["header"], call["secret"], now=case["now"], **given(call, "tolerance"))


def neutral(value: Any) -> Any:
    """A model under the names of the HTTP interface."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {name.removesuffix("_"): neutral(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [neutral(item) for item in value]
    return neutral(asdict(value)) if hasattr(value, "__dataclass_fields__") else value


def describe(error: PosthouseError) -> dict[str, Any]:
    return {
        "type": TYPES[type(error)],
        "message": str(error),
        "status": error.status,
        "code": error.code,
        "request_id": error.request_id,
        "retry_after": error.retry_after if error.retry_after != float("inf") else None,
        "is_retryable": error.is_retryable,
        "is_insufficient_credits": error.is_insufficient_credits,
        "is_idempotency_conflict": error.is_idempotency_conflict,
        "last": neutral(error.last) if isinstance(error, WaitTimeoutError) else None,
        "reason": error.reason if isinstance(error, WebhookVerificationError) else None,
    }


def given(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {name: fields[name]} if name in fields else {}


def ask(path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(STUB + path, data), timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    unittest.main()
