"""The cases as they are written in cases/*.json, whole: with their defaults and the named answers they refer to."""

import base64
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
CASES: Final = HERE / "cases"
FILES: Final = HERE / "files"
NAMED_ANSWERS: Final = HERE / "answers.json"

KINDS: Final = ("send", "get", "wait", "webhook")
KEYS: Final = frozenset(
    {"name", "about", "kind", "client", "call", "random", "now", "clock", "request", "answers"}
    | {"sleeps", "debug", "seconds_max", "result", "error"}
)
# What a case has that doesn't say otherwise.
API_KEY: Final = "ph_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
NOW: Final = 1_794_726_000
EMAIL: Final = {
    "from": "Acme <hello@acme.example>",
    "to": "ada@example.net",
    "subject": "Hello",
    "text": "Good morning.",
}
MESSAGE_ID: Final = "em_01kb2x5e8qf6vtn0c3m9w7h4jd"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: str
    client: dict[str, Any]
    call: dict[str, Any]
    random: list[float]
    now: int
    clock: str
    request: dict[str, Any]
    answers: list[dict[str, Any]]
    sleeps: list[float] | None
    debug: list[dict[str, Any]] | None
    seconds_max: float | None
    result: Any
    error: dict[str, Any] | None

    @property
    def secrets(self) -> list[str]:
        """What may never be seen in an error, in a debug event or in a client's printed form."""
        credential = self.client.get("credential", {})
        secrets = [str(credential[name]) for name in ("api_key", "jwt", "password") if credential.get(name)]
        if "username" in credential:
            pair = f"{credential['username']}:{credential['password']}"
            secrets.append(base64.b64encode(pair.encode()).decode())
        if "secret" in self.call:
            secrets.append(self.call["secret"])
        return [secret for secret in secrets if len(secret) >= 8]


class CaseError(ValueError):
    """A case that can't be run as it is written; the text says which and why."""


def load() -> dict[str, Case]:
    """All cases by name, in the order of the files and of the cases in them."""
    named = json.loads(NAMED_ANSWERS.read_text(encoding="utf-8"))
    cases: dict[str, Case] = {}
    for file in sorted(CASES.glob("*.json")):
        for written in json.loads(file.read_text(encoding="utf-8")):
            case = _whole(written, named)
            if case.name in cases:
                raise CaseError(f"{file.name}: there are two cases {case.name!r}")
            cases[case.name] = case
    return cases


def _whole(written: dict[str, Any], named: dict[str, Any]) -> Case:
    name, kind = written["name"], written["kind"]
    unknown = written.keys() - KEYS
    if unknown or kind not in KINDS or not written.get("about"):
        raise CaseError(f"case {name!r}: unknown keys {sorted(unknown)}, an unknown kind or no `about`")
    if ("result" in written) == ("error" in written):
        raise CaseError(f"case {name!r} must have either `result` or `error`")
    answers = [_answer(name, given, named) for given in written.get("answers", [])]
    call = copy.deepcopy(written.get("call", {}))
    client = copy.deepcopy(written.get("client", {}))
    if kind == "send":
        call["email"] = {**EMAIL, **call.get("email", {})}
        call["email"] = {field: value for field, value in call["email"].items() if value is not None}
    elif kind != "webhook":
        call.setdefault("id", MESSAGE_ID)
    if kind != "webhook":
        client.setdefault("credential", {"api_key": API_KEY})
        client.setdefault("base_url", "{base}")
    result = written.get("result")
    if result == "answer":
        result = answers[-1]["json"]
    clock = written.get("clock", "fake")
    return Case(
        name=name,
        kind=kind,
        client=client,
        call=call,
        random=written.get("random", []),
        now=written.get("now", NOW),
        clock=clock,
        request=written.get("request", {}),
        answers=answers,
        sleeps=written.get("sleeps", [] if clock == "fake" else None),
        debug=written.get("debug"),
        seconds_max=written.get("seconds_max"),
        result=result,
        error=written.get("error"),
    )


def _answer(name: str, given: Any, named: dict[str, Any]) -> dict[str, Any]:
    """A named answer, an answer, or a named one with changes: `{"use": "busy", "headers": {…}}`."""
    if isinstance(given, str):
        given = {"use": given}
    if "use" not in given:
        return dict(given)
    if given["use"] not in named:
        raise CaseError(f"case {name!r} uses the answer {given['use']!r}, which answers.json hasn't")
    return {**copy.deepcopy(named[given["use"]]), **{key: value for key, value in given.items() if key != "use"}}
