"""Lengths of time as commands take them: 90s, 30m, 2h, 7d."""

import re
from datetime import timedelta
from typing import Final

from posthouse.cli.operator import fail

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_length: Final = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII).fullmatch


def length(option: str, given: str) -> timedelta:
    """Ends the command if it is none."""
    found = _length(given)
    if found is None:
        fail(f"{option} {given!r} is no length of time: write such as 90s, 30m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def is_length(given: str) -> bool:
    return _length(given) is not None
