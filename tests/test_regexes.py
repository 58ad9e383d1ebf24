"""Every regular expression of the service takes time in proportion to its text, whatever the text.

None has a possessive or atomic group: Python before 3.11.5, which Debian 12 has, matches these wrongly.
"""

import ast
import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import posthouse
from tests.ambiguity import automaton, faults, hostile, uncertain_groups
from tests.support.processor_time import processor_seconds

METHODS: Final = ("match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn")
FUNCTIONS: Final = (*METHODS, "compile", "template")
IMPORTS_RE: Final = re.compile(r"^import re$|^from re import", re.MULTILINE).search
USES_RE: Final = re.compile(rf"(\w+)\.({'|'.join(METHODS)})\b").findall
SEARCHING: Final = frozenset(METHODS) - {"match", "fullmatch"}

TEXT_CHARACTERS: Final = 3_000
# A linear pattern needs a tenth of this for twice as long a text, however busy the machine; others far more.
ENOUGH_SECONDS: Final = 0.01
# Twice the text takes twice as long, or four times.
RATIO_MAX: Final = 3.0
TRIES: Final = 3
# Their callers ensure that the text fits; otherwise they would take quadratic time.
FITTING: Final[dict[str, Callable[[Any], Any]]] = {
    "posthouse.mail.encoded_words._find_words": lambda text: text + "?=",
    "posthouse.mail.header_reader._scan": lambda text: b"\r\n".join([*text.splitlines(), b""]),
    "posthouse.mail.header_reader._words": lambda text: text + b"x",
}
DISAPPOINTMENTS: Final = ([0x00], [0x21], [0x0A])


@dataclass(frozen=True)
class Regex:
    """A regular expression of the service, and how it is used."""

    where: str
    pattern: "re.Pattern[Any]"
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return self.where


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(posthouse.__path__, "posthouse."):
        # Only Alembic runs migrations, and an entry point would run.
        if ".migrations" not in found.name and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def held_by(module: ModuleType) -> Iterator[tuple[str, "re.Pattern[Any]", str | None]]:
    """Patterns and their methods among a module's names, in its classes, and in the tables of both."""
    own = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    for names in (vars(module), *map(vars, own)):
        # A lazily loaded name appears when it is looked at.
        for name, value in list(names.items()):
            for item in _within(value):
                if isinstance(item, re.Pattern):
                    yield name, item, None
                elif isinstance(getattr(item, "__self__", None), re.Pattern):
                    yield name, item.__self__, item.__name__


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple | list | set | frozenset) else (value,)


def written_in(module: ModuleType) -> Iterator[tuple[str, "re.Pattern[Any]", str | None]]:
    """Patterns that are given to a function of `re` anywhere; every pattern must be constant."""
    path = module.__file__
    if path is None:
        return
    text = Path(path).read_text()
    if not IMPORTS_RE(text):
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in FUNCTIONS
        ):
            where = f"{module.__name__}:{node.lineno}"
            flags = [item.value for item in node.keywords if item.arg == "flags"]
            if node.func.attr == "compile" and len(node.args) > 1:
                flags.append(node.args[1])
            try:
                given = [_value(item, module) for item in (node.args[0], *flags)]
            except NameError as error:
                raise AssertionError(f"{where}: this pattern is made of what isn't constant: {error}") from None
            method = None if node.func.attr in ("compile", "template") else node.func.attr
            yield where, re.compile(*given), method


def _value(node: ast.expr, module: ModuleType) -> Any:
    return eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(vars(module)))


@functools.cache
def _uses() -> dict[str, set[str]]:
    """The methods of patterns that the service calls, by the name of the object that has the pattern."""
    found: dict[str, set[str]] = {}
    for path in Path(posthouse.__path__[0]).rglob("*.py"):
        for name, method in USES_RE(path.read_text()):
            found.setdefault(name, set()).add(method)
    return found


@functools.cache
def regexes() -> list[Regex]:
    """Each once, with all its uses; if its use is unknown, with every use."""
    methods: dict[re.Pattern[Any], set[str]] = {}
    places: dict[re.Pattern[Any], str] = {}
    for module in modules():
        for name, pattern, method in held_by(module):
            places.setdefault(pattern, f"{module.__name__}.{name}")
            methods.setdefault(pattern, set()).update({method} if method else _uses().get(name, ()))
        for where, pattern, method in written_in(module):
            places.setdefault(pattern, where)
            methods.setdefault(pattern, set()).update({method} if method else ())
    return [Regex(places[item], item, tuple(sorted(used or METHODS))) for item, used in methods.items()]


def slow_text(regex: Regex, characters: int = TEXT_CHARACTERS) -> str | None:
    """The beginning of a text for which twice the length took much more than twice the time."""
    for text in _texts(regex):
        for method in regex.methods:
            if not _is_linear(_worker(regex.pattern, method), text, characters):
                return f"{method} of {text(characters)[:60]!r}"
    return None


def _is_linear(work: Callable[[Any], object], text: Callable[[int], Any], characters: int) -> bool:
    long = text(2 * characters)
    seconds = processor_seconds(lambda: work(long), enough=ENOUGH_SECONDS)
    if seconds <= ENOUGH_SECONDS:
        return True
    short = text(characters)
    # What takes the square of the time takes it every time; a busy machine doesn't.
    return any(
        processor_seconds(lambda: work(long)) <= RATIO_MAX * processor_seconds(lambda: work(short))
        for _ in range(TRIES)
    )


def _worker(pattern: "re.Pattern[Any]", method: str) -> Callable[[Any], object]:
    function = getattr(pattern, method)
    if method in ("sub", "subn"):
        return lambda text: function(text[:0], text)
    return (lambda text: [None for _ in function(text)]) if method == "finditer" else function


def _texts(regex: Regex) -> Iterator[Callable[[int], Any]]:
    """Each loop repeated, and then a mismatch; or the whole path to it, again and again."""
    is_text = isinstance(regex.pattern.pattern, str)
    fit = FITTING.get(regex.where, lambda text: text)

    def written(symbols: list[int]) -> Any:
        return "".join(map(chr, symbols)) if is_text else bytes(symbols)

    for way, round_ in hostile(automaton(regex.pattern)):
        for start, pumped in ((way, round_), ([], way + round_)):
            for end in DISAPPOINTMENTS:
                parts = written(start), written(pumped), written(end)
                yield functools.partial(_text, fit, *parts)


def _text(fit: Callable[[Any], Any], start: Any, pumped: Any, end: Any, length: int) -> Any:
    return fit(start + pumped * (length // len(pumped)) + end)


def ambiguities(regex: Regex) -> list[str]:
    found: set[str] = set()
    if searching := SEARCHING & set(regex.methods):
        found |= {f"{'/'.join(sorted(searching))}: {item}" for item in faults(automaton(regex.pattern, searches=True))}
    if "match" in regex.methods:
        found |= {f"match: {item}" for item in faults(automaton(regex.pattern))}
    if "fullmatch" in regex.methods:
        found |= {f"fullmatch: {item}" for item in faults(automaton(regex.pattern, is_whole=True))}
    return sorted(found)


def test_no_text_can_be_read_in_many_ways() -> None:
    checked = [regex for regex in regexes() if regex.where not in FITTING]
    assert [(regex, found) for regex in checked if (found := ambiguities(regex))] == []


def test_no_group_is_possessive_or_atomic() -> None:
    assert [(regex, found) for regex in regexes() if (found := uncertain_groups(regex.pattern))] == []


def test_twice_the_text_takes_twice_the_time() -> None:
    assert [(regex, found) for regex in regexes() if (found := slow_text(regex))] == []


def test_every_file_with_regular_expressions_has_some_that_are_checked() -> None:
    root = Path(posthouse.__path__[0])
    knowing = {path for path in root.rglob("*.py") if IMPORTS_RE(path.read_text())}
    checked = {Path(str(sys.modules[_module_of(regex.where)].__file__)) for regex in regexes()}
    assert knowing <= checked
    assert set(FITTING) <= {regex.where for regex in regexes()}
    assert not [path for path in knowing if "from re import" in path.read_text()], "only `re.compile` is checked"


def _module_of(where: str) -> str:
    return where.partition(":")[0] if ":" in where else where.rpartition(".")[0]


SLOW: Final = [
    ("(a+)+b", "match"),
    ("(a*)*b", "match"),
    ("(a|ab)(c|bcd)*(d|dd)*x(d*d*)*y", "match"),
    ("(?:a|b|ab)*c", "match"),
    (r"[a-z]*[a-z0-9]*\Z", "match"),
    ("a*a*", "fullmatch"),
    (r"\s+$", "search"),
    ("<.*?>", "findall"),
    (r"(?:a{1,64}b?)*c", "match"),
    (r"x(?:(?:a+)+)++y", "match"),
    (r"(?=(?:a+)+b)a", "match"),
]
FAST: Final = [
    ("(?:a++)*b", "match"),
    ("a+b", "match"),
    (r"[a-z]*+[a-z0-9]*+\Z", "match"),
    (r"\w+", "findall"),
    ("<[^<>]*>", "findall"),
    (r"[a-z]+(?:\.[a-z]+)*\Z", "match"),
    (r"\s++", "split"),
    (r"(?:\r\n[ \t][^\r\n]*+)*+\r\n", "match"),
]


@pytest.mark.parametrize(("pattern", "method"), SLOW)
def test_a_slow_pattern_is_reported(pattern: str, method: str) -> None:
    assert ambiguities(Regex("here", re.compile(pattern), (method,)))


@pytest.mark.parametrize(("pattern", "method"), FAST)
def test_a_fast_pattern_is_not_reported(pattern: str, method: str) -> None:
    regex = Regex("here", re.compile(pattern), (method,))
    assert not ambiguities(regex)
    assert not slow_text(regex)


# Texts so short that the square of their length takes five times what is enough.
@pytest.mark.parametrize(("pattern", "method", "characters"), [("a*a*b", "match", 5_000), ("<.*?>", "findall", 1_500)])
def test_one_that_is_slow_takes_long(pattern: str, method: str, characters: int) -> None:
    assert slow_text(Regex("here", re.compile(pattern), (method,)), characters)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:ab)++", r"(?:a|bc)*+", r"(a)?+", r"(?:ab){1,3}+", r"(?>a)", r"x(?:y(?=(?:ab)*+))*", r"(?:a|(?>bc))",
        b"(?:ab)++",
    ],
)  # fmt: skip
def test_a_possessive_or_atomic_group_is_found(pattern: str | bytes) -> None:
    assert uncertain_groups(re.compile(pattern))


@pytest.mark.parametrize(
    "pattern", [r"a++", r"[a-z]*+", r"\w{1,3}+", r".?+", r"(?:[a-z]++\.)*", r"(?:a)++", rb"[^a]++"]
)
def test_possessive_characters_and_classes_are_allowed(pattern: str | bytes) -> None:
    assert not uncertain_groups(re.compile(pattern))
