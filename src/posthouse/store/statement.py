"""SQL statements whose parameters have names: `:now` in the text becomes `$1`, and `now=` gives its value.

    _RENEW: Final = statement("UPDATE workers SET expires_at = :until WHERE id = :worker_id")
    await tx.execute(*_RENEW.bind(worker_id=worker_id, until=until))

The text is compiled once, when its module is imported. `bind` is a function made for the statement, so that Python
itself refuses a name that is missing or unknown, and a call costs hardly more than by position.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# Literals, quoted names, line comments, casts and array slices hold no parameters, but may hold colons. A quote that is
# never closed runs to the end, so that the search takes linear time; PostgreSQL refuses such a text.
_TOKEN: Final = re.compile(
    r"""
    [eE]'(?:[^'\\]++|\\.)*'?
    | '[^']*+'?
    | "[^"]*+"?
    | --[^\n]*+
    | ::
    | (?P<forbidden> \$\w*+ | /\* | (?<![\w\]]): (?!\w) )
    | (?<![\w\]]) : (?P<name>[A-Za-z_]\w*+)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """`text` is what PostgreSQL gets; `bind` returns the text and the values in the order of `names`."""

    text: str
    names: tuple[str, ...]
    bind: Callable[..., tuple[Any, ...]]


def statement(sql: str) -> Statement:
    """Raises ValueError for a text with `$` parameters or quotes, a block comment, or a stray colon."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        if found["forbidden"]:
            raise ValueError(f"a statement has :name parameters and line comments only, not {found[0]!r}: {sql}")
        name = found["name"]
        return found[0] if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    text = _TOKEN.sub(numbered, sql)
    names = tuple(numbers)
    listed = ", ".join(names)
    # The text is a literal, so that no parameter's name can hide it. Both come from our own source; a keyword among the
    # names is a SyntaxError here.
    bind = eval(f"lambda *, {listed}: ({text!r}, {listed})" if names else f"lambda: ({text!r},)", {})  # noqa: S307
    return Statement(text, names, bind)
