"""What can't be sent as it was given is refused here: above all whatever could end a header and begin another."""

import math
import re
import urllib.parse
from typing import Final

from posthouse_sdk.errors import InvalidArgumentError

KEY_CHARACTERS_MAX: Final = 255

_control: Final = re.compile(r"[\x00-\x1f\x7f]").search
_printable: Final = re.compile(r"[ -~]*").fullmatch
_visible: Final = re.compile(r"[!-~]+").fullmatch


def base_url(url: str) -> str:
    """The base URL without slashes at its end."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not _visible(url) or "@" in parts.netloc or "?" in url or "#" in url:
        # The text doesn't repeat the address, which may have a password in it.
        raise InvalidArgumentError(
            "the base URL must be http://host or https://host, with a path or not, "
            "and without user name, password, query and fragment"
        )
    return url.rstrip("/")


def bearer_token(token: str) -> str:
    if not _visible(token):
        raise InvalidArgumentError("an API key or token is printable ASCII without spaces, and not empty")
    return token


def user_name(text: str) -> str:
    if not text or ":" in text or _control(text):
        raise InvalidArgumentError("a user name is not empty and has neither colons nor control characters")
    return text


def password(text: str) -> str:
    if not text or _control(text):
        raise InvalidArgumentError("a password is not empty and has no control characters")
    return text


def user_agent_suffix(text: str) -> str:
    if not _printable(text):
        raise InvalidArgumentError("the user agent's suffix may have printable ASCII characters alone")
    return text


def idempotency_key(key: str) -> str:
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX or not _printable(key) or key != key.strip():
        raise InvalidArgumentError(
            f"an idempotency key is 1 to {KEY_CHARACTERS_MAX} printable ASCII characters, without spaces at its ends"
        )
    return key


def message_id(given: str) -> str:
    """The id as it stands in a path."""
    if given in ("", ".", "..") or _control(given):
        raise InvalidArgumentError("this is no message id; use that of a send's result")
    return urllib.parse.quote(given, safe="")


def filename(text: str) -> str:
    if not text or "/" in text or "\\" in text or _control(text):
        raise InvalidArgumentError(f"{text!r} is no file name: it must be one without a path")
    return text


def seconds(value: float, name: str, *, may_be_zero: bool = True) -> float:
    if not (math.isfinite(value) and (value > 0 or (may_be_zero and value == 0))):
        raise InvalidArgumentError(f"{name} must be {'at least' if may_be_zero else 'above'} 0")
    return value
