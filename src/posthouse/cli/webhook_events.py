"""Events as a webhook's receiver gets them: their signature checked, their bytes as sent, their text for people."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from posthouse.mail.reply import printable
from posthouse.rules import event
from posthouse.rules.event import SECRET_PREFIX, SIGNATURE_HEADER, SIGNATURE_SECONDS_MAX, SignatureVerdict

UNREADABLE_SHOWN_BYTES_MAX: Final = 500

_STYLES: Final = {
    "email.delivered": "green",
    "email.bounced": "red",
    "email.failed": "red",
    "webhook.test": "cyan",
}


class SignatureCheck(NamedTuple):
    """The result of checking a request's signature, as a verdict and as a sentence."""

    verdict: SignatureVerdict
    reason: str

    @property
    def is_genuine(self) -> bool:
        return self.verdict is SignatureVerdict.GENUINE

    @property
    def is_signed(self) -> bool:
        """The sender knew the secret, whether or not the time is right."""
        return self.verdict in (SignatureVerdict.GENUINE, SignatureVerdict.STALE)


def check_signature(secret: str, header: str, body: bytes, now: int) -> SignatureCheck:
    verdict = event.verify(secret, header, body, now)
    match verdict:
        case SignatureVerdict.UNREADABLE:
            return SignatureCheck(
                verdict, f"malformed: {SIGNATURE_HEADER} is t=<unix_seconds>,v1=<64 hexadecimal digits>"
            )
        case SignatureVerdict.FORGED:
            return SignatureCheck(verdict, f"wrong signature: {_likely_cause(secret, header, body, now)}")
        case SignatureVerdict.GENUINE | SignatureVerdict.STALE:
            late_seconds = now - int(header.partition(",")[0].removeprefix("t="))
            when = f"signed {late_seconds} s ago" if late_seconds >= 0 else f"signed {-late_seconds} s from now"
            if verdict is SignatureVerdict.GENUINE:
                return SignatureCheck(verdict, when)
            word = "old" if late_seconds > 0 else "new"
            return SignatureCheck(verdict, f"too {word}: {when}, and {SIGNATURE_SECONDS_MAX} s are allowed")


def _likely_cause(secret: str, header: str, body: bytes, now: int) -> str:
    if event.verify(secret, header, body.rstrip(b"\r\n"), now) is not SignatureVerdict.FORGED:
        return "it fits the body without the line break at its end, which the service did not send"
    if not secret.startswith(SECRET_PREFIX):
        return f"the key is the whole secret, which begins with {SECRET_PREFIX}"
    return "another secret signed it, or the body is not byte for byte what was sent"


def as_sent(event_values: Mapping[str, Any]) -> bytes:
    """The bytes that a webhook sends for an event of the feed: those of `rules.event`, which writes in this form."""
    return json.dumps(event_values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def read(body: bytes) -> dict[str, Any] | None:
    """The event in the body, if it is an event."""
    # Too deep a nesting is not a ValueError.
    with suppress(ValueError, RecursionError):
        values = json.loads(body)
        if isinstance(values, dict) and isinstance(values.get("type"), str) and isinstance(values.get("data"), dict):
            return values
    return None


def write(body: bytes, *notes: tuple[str, str]) -> None:
    """Print an event, and notes (text, style) on it. Untrusted text can't send control codes to the terminal."""
    values = read(body)
    if values is None:
        shown = printable(body[:UNREADABLE_SHOWN_BYTES_MAX])
        _print(f"The body is no event: {shown or 'it is empty'}", "red")
    else:
        about = values["data"].get("to") or values["data"].get("subject") or ""
        heading = f"{values.get('created_at', '')}  {values['type']}  {about}"
        _print(_one_line(heading), f"bold {_STYLES.get(values['type'], '')}")
        for name, value in _details(values):
            _print(f"  {name:<13} {value}")
    for note, style in notes:
        _print(f"  {_one_line(note)}", style)


def write_json(values: Mapping[str, object]) -> None:
    _print(json.dumps(values))


def _print(line: str, style: str = "") -> None:
    """Print a line at once, unwrapped; a closed pipe ends the command."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(line, style=style))


def _details(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", _one_line(values.get("id", ""))
    for name, value in values["data"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield _one_line(name), _one_line(text)


def _one_line(value: object) -> str:
    return printable(str(value))
