"""What a conversation asks its connection to do: start TLS, check a password, accept a message, close."""

from dataclasses import dataclass, field
from typing import NamedTuple

from posthouse.entrypoints.smtp.service import Envelope


@dataclass(frozen=True, slots=True)
class StartTls:
    """After the output is written. Its result is `tls_started`."""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Its result is `authenticated` or `not_authenticated`."""

    username: str = field(repr=False)
    password: str = field(repr=False)


class AcceptMessage(NamedTuple):
    """Its result is `message_answered`."""

    envelope: Envelope
    content: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """After the output is written. If the client did not request it, the client may still be sending."""

    is_requested: bool = False


Effect = StartTls | Authenticate | AcceptMessage | Close


class Step(NamedTuple):
    """Write the output, then perform the effect, if any."""

    output: bytes
    effect: Effect | None
