"""The grammar of SMTP commands: paths and their parameters (RFC 5321, 4.1.2), and the answers of AUTH, read strictly.

The patterns can match a text in only one way, so that parsing takes linear time.
"""

import base64
import binascii
import functools
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from posthouse.entrypoints.smtp.replies import LOGIN_CANCELLED, LOGIN_FOR_ANOTHER, LOGIN_UNREADABLE, ServerReply

LOCAL_CHARACTERS_MAX: Final = 64
PATH_CHARACTERS_MAX: Final = 254

_LOCAL: Final = r"""[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]++|"(?:[ !#-\[\]-~]++|\\[ -~])*\""""
_DOMAIN: Final = r"[A-Za-z0-9._-]++|\[[A-Za-z0-9.:-]++\]"
# A space after the colon is common and unambiguous.
_path: Final = re.compile(rf" ?<(?:({_LOCAL})(?:@({_DOMAIN}))?)?>(?: (.*))?\Z").match
_parameter: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*+)(?:=([!-<>-~]++))?\Z").match
# RFC 1870: at most twenty digits.
_is_size: Final = re.compile(r"[0-9]{1,20}+\Z").match
_chunk: Final = re.compile(r"([0-9]{1,12}+)( [Ll][Aa][Ss][Tt])?\Z").match
# The keys are lines of at most 2 KB each.
CACHED_MAX: Final = 1_024

BAD_PATH: Final = ServerReply(
    501, "5.1.7", "The sender can't be read: write MAIL FROM:<ada@example.com>, or MAIL FROM:<>."
)
BAD_RECIPIENT: Final = ServerReply(501, "5.1.3", "The recipient can't be read: write RCPT TO:<ada@example.com>.")
ROUTED: Final = ServerReply(553, "5.1.3", "Source routes are not supported: write only the final address.")
NOT_ASCII: Final = ServerReply(
    553, "5.6.7", "SMTPUTF8 is not offered: write the address in ASCII, its domain as A-labels."
)
BAD_PARAMETER: Final = ServerReply(501, "5.5.4", "A parameter after the address can't be read, or is given twice.")
NO_SUCH_PARAMETER: Final = ServerReply(555, "5.5.4", "A parameter after the address is not one that EHLO has offered.")


_PROMPT: Final = b"334 \r\n"
_PROMPT_USERNAME: Final = b"334 VXNlcm5hbWU6\r\n"
_PROMPT_PASSWORD: Final = b"334 UGFzc3dvcmQ6\r\n"

_find_control_character: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


class Sender(NamedTuple):
    path: str
    size: int


class Chunk(NamedTuple):
    size: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Its result is `authenticated` or `not_authenticated`."""

    username: str = field(repr=False)
    password: str = field(repr=False)


# A client has few senders and repeats them for every message.
@functools.lru_cache(maxsize=CACHED_MAX)
def read_sender(argument: str) -> Sender | ServerReply:
    """Parses the argument of MAIL. Senders without a domain are accepted: devices and local programs use them."""
    read = _read_path(argument, "FROM:", BAD_PATH)
    if isinstance(read, ServerReply):
        return read
    path, parameters = read
    return Sender(path, 0) if parameters is None else _read_sender_parameters(path, parameters)


def read_recipient(argument: str) -> str | ServerReply:
    """Parses the argument of RCPT."""
    read = _read_path(argument, "TO:", BAD_RECIPIENT)
    if isinstance(read, ServerReply):
        return read
    path, parameters = read
    if "@" not in path and path.lower() != "postmaster":
        return BAD_RECIPIENT
    refusal = None if parameters is None else _check_recipient_parameters(parameters)
    return path if refusal is None else refusal


def read_chunk(argument: str) -> Chunk | None:
    """Parses the argument of BDAT; None if malformed: the start of the next command is then unknown."""
    found = _chunk(argument)
    return None if found is None else Chunk(int(found[1]), found[2] is not None)


class AuthExchange:
    """AUTH (RFC 4954): reads the client's answers to 334 until username and password are complete.

    PLAIN has a single answer; LOGIN has the username, then the password.
    """

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


def _read_path(argument: str, keyword: str, unreadable: ServerReply) -> tuple[str, str | None] | ServerReply:
    """The path without its brackets, and its parameters."""
    if not argument.isascii():
        return NOT_ASCII
    start = len(keyword)
    if argument[:start].upper() != keyword:
        return unreadable
    found = _path(argument, start)
    if found is None:
        return ROUTED if argument[start:].lstrip().startswith("<@") else unreadable
    local, domain, parameters = found.groups()
    if local is None:
        return "", parameters
    path = local if domain is None else f"{local}@{domain}"
    if len(local) > LOCAL_CHARACTERS_MAX or len(path) > PATH_CHARACTERS_MAX:
        return unreadable
    return path, parameters


def _read_parameters(text: str) -> dict[str, str | None] | ServerReply:
    parameters: dict[str, str | None] = {}
    for word in text.split(" "):
        if not word:
            continue
        found = _parameter(word)
        if found is None:
            return BAD_PARAMETER
        keyword = found[1].upper()
        if keyword in parameters:
            return BAD_PARAMETER
        parameters[keyword] = found[2]
    return parameters


def _read_sender_parameters(path: str, text: str) -> Sender | ServerReply:
    parameters = _read_parameters(text)
    if isinstance(parameters, ServerReply):
        return parameters
    size = 0
    for keyword, value in parameters.items():
        is_valid = value is not None
        match keyword:
            case "SIZE":
                is_valid = value is not None and _is_size(value) is not None
                size = int(value) if value is not None and is_valid else 0
            case "BODY":
                is_valid = value is not None and value.upper() in ("7BIT", "8BITMIME")
            case "AUTH":
                pass
            case _:
                return NO_SUCH_PARAMETER
        if not is_valid:
            return BAD_PARAMETER
    return Sender(path, size)


def _check_recipient_parameters(text: str) -> ServerReply | None:
    """None of the offered extensions has any: DSN is not offered, because webhooks report results."""
    parameters = _read_parameters(text)
    if isinstance(parameters, ServerReply):
        return parameters
    return NO_SUCH_PARAMETER if parameters else None


def _login(username: str, password: str) -> Authenticate | ServerReply:
    is_valid = username and password and not _find_control_character(username) and not _find_control_character(password)
    return Authenticate(username, password) if is_valid else LOGIN_UNREADABLE


def _decoded(line: bytes) -> str | None:
    if line == b"=":
        return ""
    try:
        return base64.b64decode(line, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None  # without the error, which contains the secret
