"""What is left of a secret: in a dump of the database, in logs, in the stream's data."""

import asyncio
import base64
import subprocess
from typing import Final

DUMP_SECONDS_MAX: Final = 300


async def dump(database_url: str) -> bytes:
    """All rows of all tables, as pg_dump writes them."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["pg_dump", "--data-only", database_url],
        capture_output=True,
        timeout=DUMP_SECONDS_MAX,
        check=True,
    )
    return done.stdout


def copies_of(secret: str, content: bytes) -> list[bytes]:
    """The forms in which the content holds the secret: text in any case, base64, or either as hexadecimal digits."""
    plain = secret.encode().lower()
    # Three bytes become four characters, so that base64 looks different from three places.
    inner = [base64.b64encode(b"\0" * skipped + secret.encode())[4 if skipped else 0 : -4] for skipped in range(3)]
    lowered = content.lower()
    hexadecimal = [form.hex().encode() for form in (secret.encode(), plain, *inner)]
    return [form for form in (plain, *hexadecimal) if form in lowered] + [form for form in inner if form in content]
