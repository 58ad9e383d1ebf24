"""AUTH (RFC 4954): reads the client's answers to 334 until username and password are complete."""

import base64
import binascii
import re
from typing import Final

from posthouse.entrypoints.smtp.effects import Authenticate
from posthouse.entrypoints.smtp.replies import LOGIN_CANCELLED, LOGIN_FOR_ANOTHER, LOGIN_UNREADABLE, ServerReply

_PROMPT: Final = b"334 \r\n"
_PROMPT_USERNAME: Final = b"334 VXNlcm5hbWU6\r\n"
_PROMPT_PASSWORD: Final = b"334 UGFzc3dvcmQ6\r\n"

_find_control: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


class AuthExchange:
    """PLAIN has a single answer; LOGIN has the username, then the password."""

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

    def read(self, line: bytes) -> bytes | Authenticate | ServerReply:
        """The next prompt, the complete credentials, or a refusal."""
        if line == b"*":
            return LOGIN_CANCELLED
        given = _decoded(line)
        if not given:
            return LOGIN_UNREADABLE
        if self._is_plain:
            parts = given.split("\0")
            if len(parts) != 3:
                return LOGIN_UNREADABLE
            authorization_id, username, password = parts
            return LOGIN_FOR_ANOTHER if authorization_id not in ("", username) else _login(username, password)
        if not self._username:
            self._username = given
            return _PROMPT_PASSWORD
        return _login(self._username, given)


def _login(username: str, password: str) -> Authenticate | ServerReply:
    is_valid = username and password and not _find_control(username) and not _find_control(password)
    return Authenticate(username, password) if is_valid else LOGIN_UNREADABLE


def _decoded(line: bytes) -> str | None:
    if line == b"=":
        return ""
    try:
        return base64.b64decode(line, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None  # without the error, which contains the secret
