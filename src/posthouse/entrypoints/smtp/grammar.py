"""The grammar of SMTP commands: paths and their parameters (RFC 5321, 4.1.2), read strictly.

The patterns can read a text in one way only, so that parsing takes linear time.
"""

import functools
import re
from typing import Final, NamedTuple

from posthouse.entrypoints.smtp.replies import ServerReply

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
# Of lines of at most 2 KB each.
CACHED_MAX: Final = 1_024

BAD_PATH: Final = ServerReply(
    501, "5.1.7", "The sender can't be read: write MAIL FROM:<ada@example.com>, or MAIL FROM:<>."
)
BAD_RECIPIENT: Final = ServerReply(501, "5.1.3", "The recipient can't be read: write RCPT TO:<ada@example.com>.")
ROUTED: Final = ServerReply(553, "5.1.3", "Source routes are not supported: write the final address alone.")
NOT_ASCII: Final = ServerReply(
    553, "5.6.7", "SMTPUTF8 is not offered: write the address in ASCII, its domain as A-labels."
)
BAD_PARAMETER: Final = ServerReply(501, "5.5.4", "A parameter after the address can't be read, or stands there twice.")
NO_SUCH_PARAMETER: Final = ServerReply(555, "5.5.4", "A parameter after the address is not one that EHLO has offered.")


class Sender(NamedTuple):
    path: str
    size: int


class Chunk(NamedTuple):
    size: int
    is_last: bool


# A client has few senders and repeats them with every message.
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
    """No extension that we offer has any: DSN is not offered, because webhooks report results."""
    parameters = _read_parameters(text)
    if isinstance(parameters, ServerReply):
        return parameters
    return NO_SUCH_PARAMETER if parameters else None
