"""What would only make tests slow: costly secrets, and minutes between the runs of background work."""

import itertools
import os
from datetime import timedelta
from typing import Final

from argon2 import PasswordHasher
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from posthouse.flows.account import passwords
from posthouse.mail import dkim

# A real hash takes a third of a second of processor time, and so does each login with it.
CHEAP_HASHER: Final = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
# In the environment of a process, for tests that are about what real hashes cost.
REAL_HASHES: Final = "REAL_PASSWORD_HASHES"
# In the environment of a process whose maintenance need not be awaited for a minute.
SHORT_PAUSES: Final = "SHORT_PAUSES"
_PAUSE_SECONDS: Final = 0.2
# In the environment of a process that needn't wait half a minute for the rest of an HTTP request.
SHORT_DEADLINES: Final = "SHORT_DEADLINES"
_DEADLINE_SECONDS: Final = 5.0
# Consecutive domains of a test have different keys; a new 2048-bit key takes 0.1 s of processor time.
_KEYS: Final = 4
_made: Final[list[RSAPrivateKey]] = []
_turns: Final = itertools.cycle(range(_KEYS))


def use_cheap_secrets() -> None:
    """From now on in this process: cheap password hashes, and a few real RSA keys in turn for new domains."""
    dkim.generate_private_key = _next_key  # type: ignore[assignment, attr-defined]
    passwords.PasswordHasher = lambda: CHEAP_HASHER  # type: ignore[misc, assignment, attr-defined]


def prepare_process() -> None:
    """For a process of the service, as its environment says."""
    if REAL_HASHES not in os.environ:
        use_cheap_secrets()
    if SHORT_PAUSES in os.environ:
        # Only these processes need all the modules of the service.
        from posthouse.compose import maintenance
        from posthouse.flows.operate import erasing

        for work in ("SEARCH_INDEX_PAUSE", "FORGETTING_PAUSE", "ERASURE_PAUSE", "ERASURE_IDLE", "RESEND_IDLE"):
            setattr(maintenance, f"{work}_SECONDS", _PAUSE_SECONDS)
        erasing.PASS_PAUSE = erasing.COMMITTED_WITHIN = timedelta(seconds=_PAUSE_SECONDS)  # type: ignore[misc]
    if SHORT_DEADLINES in os.environ:
        from posthouse.entrypoints.http import request_body, server

        server.HEAD_SECONDS_MAX = server.DISCARDED_SECONDS_MAX = _DEADLINE_SECONDS  # type: ignore[misc]
        request_body.READ_SECONDS_MAX = _DEADLINE_SECONDS  # type: ignore[misc, assignment]


def _next_key(public_exponent: int, key_size: int) -> RSAPrivateKey:
    if len(_made) < _KEYS:
        _made.append(generate_private_key(public_exponent, key_size))
        return _made[-1]
    return _made[next(_turns)]
