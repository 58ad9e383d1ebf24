"""The second factor: a code of six digits that changes every 30 seconds (RFC 6238), and recovery codes for its loss."""

import base64
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from posthouse.rules import credential

ISSUER: Final = "Posthouse"
# RFC 4226 recommends 160 bits, as long as the hash.
SECRET_BYTES: Final = 20
STEP_SECONDS: Final = 30
# A clock may be a step off, and a person may finish typing a moment late.
STEPS_AROUND: Final = 1
RECOVERY_CODES: Final = 10
RECOVERY_CODE_BYTES: Final = 10

_DIGITS: Final = 6
_CODE: Final = re.compile(r"[0-9]{6}")
_RECOVERY_CODE: Final = re.compile(r"[a-z2-7]{16}")
_GROUP: Final = 4
# Longer than any code, however it is grouped.
_GIVEN_CHARACTERS_MAX: Final = 64
# Its hash is of no use in any other column that keeps hashes under the same key.
_PURPOSE: Final = "recovery code "


def secret_text(secret: bytes) -> str:
    """As an authenticator app takes it when it is typed: base 32."""
    return base64.b32encode(secret).decode("ascii")


def secret_uri(secret: bytes, email: str) -> str:
    """As an authenticator app takes it from a picture."""
    label = quote(f"{ISSUER}:{email}", safe=":@")
    return f"otpauth://totp/{label}?{urlencode({'secret': secret_text(secret), 'issuer': ISSUER})}"


def step_at(now: datetime) -> int:
    return int(now.timestamp()) // STEP_SECONDS


def code_of(secret: bytes, step: int) -> str:
    """The code of one step: RFC 4226's truncation of an HMAC-SHA-1."""
    digest = hmac.digest(secret, step.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 0x0F
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**_DIGITS:0{_DIGITS}}"


def matching_step(secret: bytes, given: str, now: datetime, last_step: int) -> int | None:
    """The step whose code was given, if it is of about now and after the last that was used."""
    code = _plain(given)
    if not _CODE.fullmatch(code):
        return None
    middle = step_at(now)
    steps = range(middle - STEPS_AROUND, middle + STEPS_AROUND + 1)
    # All are compared, whichever it is. The first that is left is used, so that the one after it stays good.
    fitting = [step for step in steps if hmac.compare_digest(code_of(secret, step), code)]
    return next((step for step in fitting if step > last_step), None)


def new_recovery_codes(random: bytes) -> Sequence[str]:
    """Ten codes of 80 bits from a hundred random bytes, grouped so that people can copy them."""
    if len(random) != RECOVERY_CODES * RECOVERY_CODE_BYTES:
        raise ValueError(f"needs {RECOVERY_CODES * RECOVERY_CODE_BYTES} random bytes, got {len(random)}")
    plain = base64.b32encode(random).decode("ascii").lower()
    size = len(plain) // RECOVERY_CODES
    codes = [plain[start : start + size] for start in range(0, len(plain), size)]
    return ["-".join(code[at : at + _GROUP] for at in range(0, size, _GROUP)) for code in codes]


def recovery_code_hash(given: str, pepper: bytes) -> bytes | None:
    """What is stored in place of a recovery code; None for what is none. Case, spaces and hyphens don't matter."""
    plain = _plain(given)
    return credential.secret_hash(_PURPOSE + plain, pepper) if _RECOVERY_CODE.fullmatch(plain) else None


def _plain(given: str) -> str:
    return given[:_GIVEN_CHARACTERS_MAX].replace(" ", "").replace("-", "").lower()
