"""Reasons not to start, which a command prints as one line."""

from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase
from posthouse.store.postgres import advice as database_advice


def why_unavailable(refusal: Refusal) -> str | None:
    """What PostgreSQL or the system said, and what to do about it; None when the refusal is not about that."""
    cause = refusal.__cause__
    lines = str(cause or "").strip().splitlines()
    if refusal.code is not Code.SERVICE_UNAVAILABLE or not lines:
        return None
    return f"PostgreSQL can't be used ({lines[0]}): {database_advice(cause)}."


class CannotListen(RuntimeError):  # noqa: N818 (reads as what it says)
    """A server can't listen at its address, or can't use its certificate."""
