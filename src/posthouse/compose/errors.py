"""Reasons not to start, which a command prints as one line."""

from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase


class CannotListen(RuntimeError):  # noqa: N818 (reads as what it says)
    """A server can't listen at its address, or can't use its certificate."""
