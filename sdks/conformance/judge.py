"""What a library did, beside what the case expects: the comparison is written once, here, not once per language."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cases import FILES, Case

SECONDS_TOLERANCE: Final = 0.001
TIME_TOLERANCE: Final = timedelta(milliseconds=1)
TIMES: Final = frozenset({"created_at", "delivered_at", "bounced_at"})
# A string and a list of that string mean the same here.
LISTS: Final = frozenset({"to", "cc", "bcc", "tags"})
FLAGS: Final = ("is_retryable", "is_insufficient_credits", "is_idempotency_conflict")
ERROR_TYPES: Final = frozenset({"api", "connection", "timeout", "wait_timeout", "webhook", "invalid"})

_uuid4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_user_agent: Final = re.compile(r"posthouse-[a-z]+/\d+\.\d+\.\d+(?:[-.+][0-9A-Za-z.]+)?").fullmatch


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: header names in lower case, the path without what the run put in front of it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def request_problems(case: Case, request: Request, first: Request | None) -> Iterator[str]:
    """`first` is the request of the same call that came before this one, if there was any."""
    sends = case.kind == "send"
    method = "POST" if sends else "GET"
    path = case.request.get("path", "/emails" if sends else f"/emails/{case.call['id']}")
    if request.method != method:
        yield f"the method is {request.method}, not {method}"
    if request.path != path:
        yield f"the path is {request.path}, not {path}"
    yield from _header_problems(case, request)
    if sends:
        yield from _body_problems(case, request)
        if first is not None and request.body != first.body:
            yield "a retry has another body than the first attempt"
        if first is not None and request.headers.get("idempotency-key") != first.headers.get("idempotency-key"):
            yield "a retry has another Idempotency-Key than the first attempt"
    elif request.body:
        yield f"a GET has a body of {len(request.body)} bytes"


def report_problems(case: Case, report: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with what the library returned or raised, how long it slept, and what it let be seen."""
    if case.sleeps is not None and case.kind != "webhook":
        sleeps = report.get("sleeps") or []
        if len(sleeps) != len(case.sleeps) or not all(map(_same_seconds, sleeps, case.sleeps)):
            yield f"it slept {sleeps}, not {case.sleeps}"
    error = report.get("error")
    if case.error is None:
        if error is not None:
            yield f"it failed: {json.dumps(error, ensure_ascii=False)}"
        else:
            yield from _differences("result", _plain(report.get("result")), _expected_result(case))
    elif error is None:
        yield f"it should have failed, but returned {json.dumps(report.get('result'), ensure_ascii=False)}"
    else:
        yield from _error_problems(case.error, error)
    if case.debug is not None:
        yield from _debug_problems(case.debug, report.get("debug") or [])
    seen = json.dumps([report.get("debug"), report.get("inspected"), error], ensure_ascii=False)
    if any(secret in seen for secret in case.secrets):
        yield "a secret is to be seen in an error, in a debug event or in the client's printed form"
    if case.kind != "webhook" and case.error != {"type": "invalid"} and not report.get("inspected"):
        yield "the report lacks `inspected`, the client's printed form"


def expected_body(case: Case) -> Any:
    """The JSON of a send: what the case says, or the email as it was given, without what is empty."""
    body = case.request.get("body", case.call["email"])
    return _filled(body) if isinstance(body, dict) else body


def _header_problems(case: Case, request: Request) -> Iterator[str]:
    expected: dict[str, str] = {"authorization": _authorization(case), "accept": "application/json"}
    if case.kind == "send":
        expected["content-type"] = "application/json"
    if case.call.get("idempotency_key"):
        expected["idempotency-key"] = case.call["idempotency_key"]
    expected |= {name.lower(): value for name, value in case.request.get("headers", {}).items()}
    for name, value in expected.items():
        if request.headers.get(name) != value:
            yield f"the header {name} is {request.headers.get(name)!r}, not {value!r}"
    key = request.headers.get("idempotency-key")
    if case.kind != "send" and key is not None:
        yield "a GET has an Idempotency-Key"
    if case.kind == "send" and "idempotency-key" not in expected and not _uuid4(key or ""):
        yield f"the Idempotency-Key {key!r} is no UUID of version 4"
    product, _, suffix = request.headers.get("user-agent", "").partition(" ")
    if not _user_agent(product) or suffix != case.client.get("user_agent_suffix", ""):
        yield f"the User-Agent is {request.headers.get('user-agent')!r}"


def _authorization(case: Case) -> str:
    credential = case.client["credential"]
    if "username" in credential:
        pair = f"{credential['username']}:{credential['password']}"
        return "Basic " + base64.b64encode(pair.encode()).decode()
    return f"Bearer {credential.get('api_key') or credential.get('jwt')}"


def _body_problems(case: Case, request: Request) -> Iterator[str]:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        yield f"the body is no JSON: {error}"
        return
    if not isinstance(body, dict):
        yield "the body is no JSON object"
        return
    if empty := [name for name, value in body.items() if value in (None, "", [], {})]:
        yield f"the body has empty fields, which are to be left out: {empty}"
    yield from _differences("body", _listed(body), _listed(expected_body(case)))


def _listed(body: Mapping[str, Any]) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for name, value in body.items():
        listed[name] = [value] if name in LISTS and isinstance(value, str) else value
    if isinstance(listed.get("attachments"), list):
        listed["attachments"] = [_with_content(one) for one in listed["attachments"]]
    return listed


def _with_content(attachment: Any) -> Any:
    """An expected attachment may name one of our files as its content: `{"content_of": "hello.txt"}`."""
    if not isinstance(attachment, dict) or "content_of" not in attachment:
        return attachment
    name = attachment["content_of"]
    content = large_file() if name == "{large}" else (FILES / name).read_bytes()
    rest = {key: value for key, value in attachment.items() if key != "content_of"}
    return {**rest, "content": base64.b64encode(content).decode()}


def large_file() -> bytes:
    """Two mebibytes in which no two neighbouring pages are alike."""
    return b"".join(number.to_bytes(4, "big") for number in range(2**19))


def _expected_result(case: Case) -> Any:
    return _plain(case.result)


def _filled(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if one not in (None, "", [], {})}


def _plain(value: Any) -> Any:
    """Without what is absent in one language and a zero in another."""
    if isinstance(value, dict):
        plain = {name: _plain(one) for name, one in value.items()}
        return {name: one for name, one in plain.items() if one not in (None, "", [], {}, 0, False)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _differences(where: str, actual: Any, expected: Any) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for name in sorted(actual.keys() | expected.keys()):
            inner = f"{where}.{name}"
            if name not in expected:
                yield f"{inner} is {_short(actual[name])}, and should be absent"
            elif name not in actual:
                yield f"{inner} is absent, and should be {_short(expected[name])}"
            elif name in TIMES:
                if not _same_time(actual[name], expected[name]):
                    yield f"{inner} is {actual[name]!r}, not {expected[name]!r}"
            else:
                yield from _differences(inner, actual[name], expected[name])
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from _differences(f"{where}[{number}]", one, other)
    elif isinstance(actual, bool) != isinstance(expected, bool) or actual != expected:
        yield f"{where} is {_short(actual)}, not {_short(expected)}"


def _error_problems(expected: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[str]:
    if error.get("type") not in ERROR_TYPES:
        yield f"the error's type {error.get('type')!r} is none of {sorted(ERROR_TYPES)}"
    if not error.get("message"):
        yield "the error has no message"
    for name, value in expected.items():
        if name == "message":
            if value not in str(error.get("message")):
                yield f"the error's message {error.get('message')!r} doesn't say {value!r}"
        elif name == "last":
            yield from _differences("error.last", _plain(error.get("last")), _plain(value))
        elif name == "retry_after":
            if not _same_seconds(error.get("retry_after"), value):
                yield f"error.retry_after is {error.get('retry_after')!r}, not {value!r}"
        elif _plain({name: error.get(name)}) != _plain({name: value}):
            yield f"error.{name} is {error.get(name)!r}, not {value!r}"
    for flag in FLAGS:
        if flag not in expected and error.get(flag):
            yield f"error.{flag} is true"


def _debug_problems(expected: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(events) != len(expected):
        yield f"there were {len(events)} debug events, not {len(expected)}"
        return
    for number, (event, wanted) in enumerate(zip(events, expected, strict=True), 1):
        for name, value in wanted.items():
            same = _same_seconds(event.get(name), value) if name == "wait" else (event.get(name) or None) == value
            if name == "url":
                same = str(event.get("url")).endswith(value)
            if not same:
                yield f"in debug event {number} {name} is {event.get(name)!r}, not {value!r}"
        duration = event.get("duration")
        if not isinstance(duration, int | float) or isinstance(duration, bool) or duration < 0:
            yield f"in debug event {number} the duration is {duration!r}"


def _same_seconds(actual: Any, expected: Any) -> bool:
    if expected is None or actual is None:
        return actual is expected
    return isinstance(actual, int | float) and abs(actual - expected) <= SECONDS_TOLERANCE


def _same_time(actual: Any, expected: Any) -> bool:
    try:
        return abs(datetime.fromisoformat(actual) - datetime.fromisoformat(expected)) <= TIME_TOLERANCE
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
