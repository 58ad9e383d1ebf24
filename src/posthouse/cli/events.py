"""Events as their receiver meets them: judged by their signature, written as they are sent, shown to people."""

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
    """What a receiver finds out about a request, in a word and in a sentence."""

    verdict: SignatureVerdict
    reason: str

    @property
    def is_genuine(self) -> bool:
        return self.verdict is SignatureVerdict.GENUINE

    @property
    def is_signed(self) -> bool:
        """Whoever sent it knew the secret, be it at the right time or not."""
        return self.verdict in (SignatureVerdict.GENUINE, SignatureVerdict.STALE)


def judged(secret: str, header: str, body: bytes, now: int) -> SignatureCheck:
    verdict = event.verify(secret, header, body, now)
    match verdict:
        case SignatureVerdict.UNREADABLE:
            return SignatureCheck(
                verdict, f"malformed: {SIGNATURE_HEADER} is t=<unix_seconds>,v1=<64 hexadecimal digits>"
            )
        case SignatureVerdict.FORGED:
            return SignatureCheck(verdict, f"wrong signature: {_suspicion(secret, header, body, now)}")
        case SignatureVerdict.GENUINE | SignatureVerdict.STALE:
            late_seconds = now - int(header.partition(",")[0].removeprefix("t="))
            when = f"signed {late_seconds} s ago" if late_seconds >= 0 else f"signed {-late_seconds} s from now"
            if verdict is SignatureVerdict.GENUINE:
                return SignatureCheck(verdict, when)
            word = "old" if late_seconds > 0 else "new"
            return SignatureCheck(verdict, f"too {word}: {when}, and {SIGNATURE_SECONDS_MAX} s are allowed")


def _suspicion(secret: str, header: str, body: bytes, now: int) -> str:
    if event.verify(secret, header, body.rstrip(b"\r\n"), now) is not SignatureVerdict.FORGED:
        return "it fits the body without the line break at its end, which the service did not send"
    if not secret.startswith(SECRET_PREFIX):
        return f"the key is the whole secret, which begins with {SECRET_PREFIX}"
    return "another secret signed it, or the body is not byte for byte what was sent"


def as_sent(told: Mapping[str, Any]) -> bytes:
    """The bytes that a webhook sends for an event of the feed: those of `rules.event`, which writes in this form."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def read(body: bytes) -> dict[str, Any] | None:
    """What the body tells, if that is an event."""
    # Too deep a nesting is not a ValueError.
    with suppress(ValueError, RecursionError):
        told = json.loads(body)
        if isinstance(told, dict) and isinstance(told.get("type"), str) and isinstance(told.get("data"), dict):
            return told
    return None


def write(body: bytes, *notes: tuple[str, str]) -> None:
    """Shows what came, and notes (text, style) on it. What strangers wrote can't steer the terminal."""
    told = read(body)
    if told is None:
        shown = printable(body[:UNREADABLE_SHOWN_BYTES_MAX])
        _print(f"The body is no event: {shown or 'it is empty'}", "red")
    else:
        about = told["data"].get("to") or told["data"].get("subject") or ""
        heading = f"{told.get('created_at', '')}  {told['type']}  {about}"
        _print(_one_line(heading), f"bold {_STYLES.get(told['type'], '')}")
        for name, value in _details(told):
            _print(f"  {name:<13} {value}")
    for note, style in notes:
        _print(f"  {_one_line(note)}", style)


def write_json(values: Mapping[str, object]) -> None:
    _print(json.dumps(values))


def _print(line: str, style: str = "") -> None:
    """At once, and unbroken; a reader who has left ends the command."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(line, style=style))


def _details(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", _one_line(told.get("id", ""))
    for name, value in told["data"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield _one_line(name), _one_line(text)


def _one_line(value: object) -> str:
    return printable(str(value).encode("utf-8", "replace"))
