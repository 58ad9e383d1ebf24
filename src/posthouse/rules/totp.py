"""The second factor: a six-digit code that changes every 30 seconds (RFC 6238), and recovery codes."""

import base64
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

ISSUER: Final = "Posthouse"
# RFC 4226 recommends 160 bits, as long as the hash.
SECRET_BYTES: Final = 20
STEP_SECONDS: Final = 30
# A clock may be a step off, and typing takes time.
STEPS_TOLERATED: Final = 1
RECOVERY_CODES: Final = 10
RECOVERY_CODE_BYTES: Final = 10

_DIGITS: Final = 6
_CODE: Final = re.compile(r"[0-9]{6}")
_RECOVERY_CODE: Final = re.compile(r"[a-z2-7]{16}")
_GROUP: Final = 4
# Longer than any code with separators.
_GIVEN_CHARACTERS_MAX: Final = 64
# Makes the hash useless in other columns with hashes under the same key.
_PURPOSE: Final = "recovery code "


def secret_text(secret: bytes) -> str:
    """In base 32, to type into an authenticator app."""
    return base64.b32encode(secret).decode("ascii")


def secret_uri(secret: bytes, email: str) -> str:
    """The URI for a QR code."""
    label = quote(f"{ISSUER}:{email}", safe=":@")
    return f"otpauth://totp/{label}?{urlencode({'secret': secret_text(secret), 'issuer': ISSUER})}"


def step_at(now: datetime) -> int:
    return int(now.timestamp()) // STEP_SECONDS


def code_of(secret: bytes, step: int) -> str:
    """The code of a step: RFC 4226's truncation of an HMAC-SHA-1."""
    digest = hmac.digest(secret, step.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 0x0F
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**_DIGITS:0{_DIGITS}}"


def matching_step(secret: bytes, given: str, now: datetime, last_step: int) -> int | None:
    """The step of the given code, if it is current and later than the last used step."""
    code = _plain(given)
    if not _CODE.fullmatch(code):
        return None
    middle = step_at(now)
    steps = range(middle - STEPS_TOLERATED, middle + STEPS_TOLERATED + 1)
    # Compares all steps, in constant time. The earliest unused step counts, so that the next stays valid.
    fitting = [step for step in steps if hmac.compare_digest(code_of(secret, step), code)]
    return next((step for step in fitting if step > last_step), None)


def new_recovery_codes(random: bytes) -> Sequence[str]:
    """Ten codes of 80 bits from a hundred random bytes, grouped for easy copying."""
    if len(random) != RECOVERY_CODES * RECOVERY_CODE_BYTES:
        raise ValueError(f"needs {RECOVERY_CODES * RECOVERY_CODE_BYTES} random bytes, got {len(random)}")
    plain = base64.b32encode(random).decode("ascii").lower()
    size = len(plain) // RECOVERY_CODES
    codes = [plain[start : start + size] for start in range(0, len(plain), size)]
    return ["-".join(code[at : at + _GROUP] for at in range(0, size, _GROUP)) for code in codes]


def recovery_code(given: str) -> str | None:
    """The part of a recovery code that is hashed; None if malformed. Ignores case, spaces and hyphens."""
    plain = _plain(given)
    return _PURPOSE + plain if _RECOVERY_CODE.fullmatch(plain) else None


def _plain(given: str) -> str:
    return given[:_GIVEN_CHARACTERS_MAX].replace(" ", "").replace("-", "").lower()
