"""The name that was probably meant."""

from collections.abc import Iterable
from typing import Final

CUTOFF: Final = 0.7


def did_you_mean(given: str, names: Iterable[str], *, prefix: str = "") -> str:
    """A question that names the nearest; empty when none is near. A prefix that all have makes none nearer."""
    from difflib import get_close_matches  # only a fault needs it

    near = get_close_matches(given.removeprefix(prefix), [name.removeprefix(prefix) for name in names], 1, CUTOFF)
    return f"did you mean {prefix}{near[0]}?" if near else ""
