"""AUTH (RFC 4954): what a client answers to 334, until there is a username and a password."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

from posthouse.entrypoints.smtp.replies import LOGIN_CANCELLED, LOGIN_FOR_ANOTHER, LOGIN_UNREADABLE, ServerReply

_PROMPT: Final = b"334 \r\n"
_PROMPT_USERNAME: Final = b"334 VXNlcm5hbWU6\r\n"
_PROMPT_PASSWORD: Final = b"334 UGFzc3dvcmQ6\r\n"

_find_control: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Whose password this is, is for the service to say: then `admitted` or `not_admitted`."""

    username: str = field(repr=False)
    password: str = field(repr=False)


class AuthExchange:
    """PLAIN tells all in one answer; LOGIN the username, then the password."""

    __slots__ = ("_is_plain", "_username")

    def __init__(self, *, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._username = ""

    @classmethod
    def named(cls, mechanism: str) -> "AuthExchange | None":
        return cls(is_plain=mechanism.upper() == "PLAIN") if mechanism.upper() in ("PLAIN", "LOGIN") else None

    @property
    def prompt(self) -> bytes:
        return _PROMPT if self._is_plain else _PROMPT_USERNAME

    def hear(self, line: bytes) -> bytes | Authenticate | ServerReply:
        """The next prompt, what the answers amount to, or what is wrong with them."""
        if line == b"*":
            return LOGIN_CANCELLED
        given = _decoded(line)
        if not given:
            return LOGIN_UNREADABLE
        if self._is_plain:
            parts = given.split("\0")
            if len(parts) != 3:
                return LOGIN_UNREADABLE
            acts_for, username, password = parts
            return LOGIN_FOR_ANOTHER if acts_for not in ("", username) else _login(username, password)
        if not self._username:
            self._username = given
            return _PROMPT_PASSWORD
        return _login(self._username, given)


def _login(username: str, password: str) -> Authenticate | ServerReply:
    is_fit = username and password and not _find_control(username) and not _find_control(password)
    return Authenticate(username, password) if is_fit else LOGIN_UNREADABLE


def _decoded(line: bytes) -> str | None:
    if line == b"=":
        return ""
    try:
        return base64.b64decode(line, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None  # without the error, which holds the secret
