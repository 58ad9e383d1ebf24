"""The template engine `handlebars`: choices and repetitions, as a subset of what npm's handlebars renders.

`{{a.b}}`, `{{{raw}}}`, `{{#if}}` with `{{else if}}` and `{{else}}`, `{{#unless}}`, `{{#each}}` with `this`, `@index`,
`@first` and `@last`, `../` and `@root` for values outside a repetition, comments, and `~` to remove white space.
There are no helpers and no partials. Whatever a template or its variables contain, parsing and rendering end after a
bounded number of steps.

Parsing builds a tree, from which white space is removed by the same rules as in handlebars' `whitespace-control`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Final, TypeAlias

from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal, invalid

# The types that JSON is parsed into.
VariableTree: TypeAlias = "str | int | float | bool | list[VariableTree] | dict[str, VariableTree] | None"

# Open blocks, and the choices of each before the current one.
DEPTH_MAX: Final = 32
# Steps of a rendering: each round of a repetition, and each part of it, is one.
STEPS_MAX: Final = 8_000
# Bounds of a rendering, and of its variables, that may run on the event loop, between other requests.
QUICK_STEPS_MAX: Final = 1_000
QUICK_BYTES_MAX: Final = 8 * 1024
# How many parsed parts are cached, and how long each may be.
PARSED_MAX: Final = 64
PARSED_CHARACTERS_MAX: Final = 64 * 1024

# JavaScript's white space, which differs from Python's.
_WHITE: Final = (
    "\t\n\x0b\x0c\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_PATH: Final = re.compile(
    r"((?:\.\./){0,16})([@A-Za-z_$][A-Za-z0-9_$-]{0,63}+)((?:\.[A-Za-z0-9_$][A-Za-z0-9_$-]{0,63}+){0,16})"
)
_BLANK: Final = re.compile(rf"[{_WHITE}]*+")
_REST_OF_LINE: Final = re.compile(r"[ \t]*+\r?\n?")
_DATA: Final = frozenset({"@root", "@index", "@first", "@last"})

_BLOCKS: Final = frozenset({"if", "unless", "each"})
# Names that npm's handlebars treats as helpers or values.
_NOT_NAMES: Final = frozenset({"if", "unless", "each", "with", "lookup", "log", "helperMissing", "blockHelperMissing"})
_LITERALS: Final = frozenset({"true", "false", "null", "undefined"})
_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"}
)
# What a list or an object counts in addition to its content: walking it takes as long as this many bytes.
_CONTAINER_BYTES: Final = 14
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_ABSENT: Final = object()


class Slow(Exception):  # noqa: N818 (not an error)
    """The rendering takes longer than other requests should wait."""


@dataclass(slots=True)
class _Text:
    original: str
    value: str
    is_left_stripped: bool = False
    is_right_stripped: bool = False


@dataclass(frozen=True, slots=True)
class _Path:
    """`up` is the number of repetitions outwards; `data` is a name with `@`, or empty."""

    up: int
    data: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Strip:
    """Whether `~` is at the tag's beginning and at its end."""

    open: bool
    close: bool


@dataclass(slots=True)
class _Comment:
    strip: _Strip


@dataclass(slots=True)
class _Output:
    path: _Path
    is_raw: bool
    strip: _Strip


@dataclass(slots=True)
class _Program:
    body: "list[_Node]" = field(default_factory=list)
    # The single block of `{{else if}}`.
    is_chained: bool = False


@dataclass(slots=True)
class _Block:
    kind: str
    path: _Path
    open_strip: _Strip
    program: _Program = field(default_factory=_Program)
    inverse: _Program | None = None
    inverse_strip: _Strip | None = None
    close_strip: _Strip | None = None


_Node: TypeAlias = _Text | _Comment | _Output | _Block


@dataclass(frozen=True, slots=True)
class Parsed:
    """A part of a template, ready to be rendered."""

    root: _Program
    tags: int


def parse(source: str, where: str) -> Parsed:
    """`where` names the part in refusals."""
    return _parse_cached(source, where) if len(source) <= PARSED_CHARACTERS_MAX else _parse(source, where)


def _parse(source: str, where: str) -> Parsed:
    parsed = _Parser(source, where).parse()
    _strip_program(parsed.root, is_root=True)
    return parsed


# The same template is rendered for many messages, and parsing it takes longer than rendering.
_parse_cached: Final = lru_cache(PARSED_MAX)(_parse)


def names(parsed: Parsed) -> tuple[str, ...]:
    """The variables that the part uses, in order of first use."""
    return tuple(dict.fromkeys(_used(parsed.root, 0)))


class _Parser:
    """Reads the tags from left to right; a stack holds the open blocks."""

    def __init__(self, source: str, where: str) -> None:
        self._source = source
        self._where = where
        self._root = _Program()
        self._target = self._root
        # Each open block, and the blocks of its `else if`, whose bodies follow one another.
        self._open: list[list[_Block]] = []
        # Where each of them begins.
        self._begins: list[int] = []
        self._tags = 0

    def parse(self) -> Parsed:
        source, at = self._source, 0
        while (begin := source.find("{{", at)) >= 0:
            if source.startswith("{{{{", begin):
                raise self._refused(begin, "four braces are not supported")
            if begin and source[begin - 1] == "\\":
                raise self._refused(begin, "a backslash before braces is not supported")
            self._add_text(source[at:begin])
            self._tags += 1
            if self._tags > limits.TEMPLATE_PLACEHOLDERS_MAX:
                raise self._refused(begin, f"at most {limits.TEMPLATE_PLACEHOLDERS_MAX} tags are allowed")
            at = self._tag(begin)
        self._add_text(source[at:])
        if self._open:
            raise self._refused(self._begins[-1], f"{{{{#{self._open[-1][0].kind}}}}} is never closed")
        return Parsed(self._root, self._tags)

    def _add_text(self, text: str) -> None:
        if text:
            self._target.body.append(_Text(text, text))

    def _tag(self, begin: int) -> int:
        """Read the tag at this place; returns where it ends."""
        source = self._source
        at = begin + 2
        is_open = source.startswith("~", at)
        at += is_open
        if source.startswith("!", at):
            return self._comment(begin, at, is_open)
        sign = source[at : at + 1]
        if sign == "{":
            return self._output(begin, at + 1, is_open, closing="}", is_raw=True)
        if sign == "#":
            return self._block(begin, at + 1, is_open)
        if sign == "/":
            return self._close(begin, at + 1, is_open)
        if sign and sign in "^&>*":
            raise self._refused(begin, f"'{{{{{sign}' is not supported")
        after = self._blank(at)
        if source.startswith("else", after):
            if source[after + 4 : after + 5] not in (*_WHITE, "~", "}"):
                raise self._refused(begin, "a name here can't begin with `else`")
            return self._else(begin, after + 4, is_open)
        return self._output(begin, at, is_open, closing="", is_raw=False)

    def _comment(self, begin: int, at: int, is_open: bool) -> int:
        has_dashes = self._source.startswith("!--", at)
        end = self._comment_end(at) if has_dashes else self._source.find("}}", at)
        if end < 0:
            raise self._refused(begin, "the comment is never closed")
        self._target.body.append(_Comment(_Strip(is_open, self._source[end - 1] == "~")))
        return end + 2

    def _comment_end(self, at: int) -> int:
        """The position of the braces that close a comment with dashes."""
        plain, stripped = self._source.find("--}}", at + 1), self._source.find("--~}}", at + 1)
        if plain >= 0 and (stripped < 0 or plain < stripped):
            return plain + 2
        return stripped + 3 if stripped >= 0 else -1

    def _output(self, begin: int, at: int, is_open: bool, *, closing: str, is_raw: bool) -> int:
        path, at = self._path(begin, at)
        if path.names and not path.up and not path.data and path.names[0] in _NOT_NAMES and len(path.names) == 1:
            raise self._refused(begin, f"`{path.names[0]}` can't be a variable's name here")
        is_close, at = self._end(begin, at, closing)
        self._target.body.append(_Output(path, is_raw, _Strip(is_open, is_close)))
        return at

    def _block(self, begin: int, at: int, is_open: bool) -> int:
        kind, at = self._kind(begin, at)
        path, at = self._path(begin, at)
        is_close, at = self._end(begin, at, "")
        self._check_depth(begin)
        block = _Block(kind, path, _Strip(is_open, is_close))
        self._target.body.append(block)
        self._open.append([block])
        self._begins.append(begin)
        self._target = block.program
        return at

    def _else(self, begin: int, at: int, is_open: bool) -> int:
        if not self._open:
            raise self._refused(begin, "{{else}} is outside of a block")
        chain = self._open[-1]
        last = chain[-1]
        if last.inverse is not None:
            raise self._refused(begin, "the block already has an {{else}}")
        at = self._blank(at)
        if self._source.startswith(("}", "~"), at):
            is_close, at = self._end(begin, at, "")
            last.inverse_strip = _Strip(is_open, is_close)
            last.inverse = self._target = _Program()
            return at
        kind, at = self._kind(begin, at)
        if kind != "if":
            raise self._refused(begin, "only {{else}} and {{else if name}} are supported")
        path, at = self._path(begin, at)
        is_close, at = self._end(begin, at, "")
        self._check_depth(begin)
        strip = _Strip(is_open, is_close)
        chained = _Block("if", path, strip)
        last.inverse_strip = strip
        last.inverse = _Program([chained], is_chained=True)
        chain.append(chained)
        self._target = chained.program
        return at

    def _close(self, begin: int, at: int, is_open: bool) -> int:
        kind, at = self._kind(begin, at)
        is_close, at = self._end(begin, at, "")
        if not self._open or self._open[-1][0].kind != kind:
            raise self._refused(begin, f"{{{{/{kind}}}}} closes no {{{{#{kind}}}}}")
        chain = self._open.pop()
        self._begins.pop()
        # Like npm's parser: the first two have the strip of the closing tag, a later one has that of its own tag.
        strip = _Strip(is_open, is_close)
        for place, block in enumerate(chain):
            block.close_strip = strip if place < 2 else block.open_strip
        self._target = self._inside()
        return at

    def _check_depth(self, begin: int) -> None:
        if sum(map(len, self._open)) >= DEPTH_MAX:
            raise self._refused(begin, f"blocks and their choices are more than {DEPTH_MAX} deep")

    def _inside(self) -> _Program:
        """The program that continues after a block."""
        if not self._open:
            return self._root
        last = self._open[-1][-1]
        return last.program if last.inverse is None else last.inverse

    def _kind(self, begin: int, at: int) -> tuple[str, int]:
        at = self._blank(at)
        end = at
        while self._source[end : end + 1].isalpha() and end - at < 16:
            end += 1
        kind = self._source[at:end]
        if kind not in _BLOCKS:
            raise self._refused(begin, "a block is one of #if, #unless and #each")
        return kind, end

    def _path(self, begin: int, at: int) -> tuple[_Path, int]:
        found = _PATH.match(self._source, self._blank(at))
        if found is None:
            raise self._refused(
                begin,
                "here should be a name such as `order.total`, of letters, digits, '_', '$' and '-'",
            )
        up, head, rest = found.groups()
        parts = tuple(rest[1:].split(".")) if rest else ()
        data = head if head[0] == "@" else ""
        if data:
            if data not in _DATA:
                raise self._refused(begin, f"here should be a name; with '@' there are {', '.join(sorted(_DATA))}")
            if up or (parts and data != "@root"):
                raise self._refused(begin, f"`{data}` can't be followed by other names")
        if "this" in parts or head in _LITERALS:
            raise self._refused(begin, "`this`, `true`, `false`, `null` and `undefined` can't be names")
        if not data and head != "this":
            parts = (head, *parts)
        return _Path(up.count("/"), data, parts), found.end()

    def _end(self, begin: int, at: int, closing: str) -> tuple[bool, int]:
        """Whether the tag ends with `~`, and where."""
        at = self._blank(at)
        for text, is_close in ((f"{closing}}}}}", False), (f"{closing}~}}}}", True)):
            if self._source.startswith(text, at):
                return is_close, at + len(text)
        what = "is never closed by '}}'" if self._source.find("}}", at) < 0 else "has something after the name"
        raise self._refused(begin, f"the tag {what}: there are no helpers")

    def _blank(self, at: int) -> int:
        found = _BLANK.match(self._source, at)
        return at if found is None else found.end()

    def _refused(self, at: int, what: str) -> Refusal:
        line = self._source.count("\n", 0, at) + 1
        column = at - self._source.rfind("\n", 0, at)
        return invalid(f"{self._where}, line {line}, character {column}: {what}.")


# White space around tags, by the rules of npm's handlebars, step by step.


def _strip_program(program: _Program, *, is_root: bool = False) -> None:
    body = program.body
    for place, node in enumerate(body):
        if isinstance(node, _Text):
            continue
        opens = closes = is_inline = False
        if isinstance(node, _Block):
            strip, opens, closes = _strip_block(node)
        else:
            strip, is_inline = node.strip, isinstance(node, _Comment)
        if not (strip.open or strip.close or opens or closes or is_inline):
            continue
        is_before, is_after = _is_blank_before(body, place, is_root), _is_blank_after(body, place, is_root)
        if strip.close:
            _omit_right(body, place + 1, is_all=True)
        if strip.open:
            _omit_left(body, place - 1, is_all=True)
        if is_inline and is_before and is_after:
            _omit_right(body, place + 1)
            _omit_left(body, place - 1)
        if isinstance(node, _Block) and opens and is_before:
            _omit_right(node.program.body, 0)
            _omit_left(body, place - 1)
        if isinstance(node, _Block) and closes and is_after:
            _omit_right(body, place + 1)
            last = (node.inverse or node.program).body
            _omit_left(last, len(last) - 1)


def _strip_block(block: _Block) -> tuple[_Strip, bool, bool]:
    """Its outer `~`, and whether its first and its last tag may be on lines of their own."""
    _strip_program(block.program)
    if block.inverse is not None:
        _strip_program(block.inverse)
    program = block.program.body
    close_strip = block.close_strip or _Strip(open=False, close=False)
    first = last = block.inverse
    if first is not None and first.is_chained:
        first = _chained(first).program
        while last is not None and last.is_chained:
            last = _chained(last).program
    opens = _is_blank_after(program, -1, is_root=False)
    ending = program if first is None else first.body
    closes = _is_blank_before(ending, len(ending), is_root=False)
    if block.open_strip.close:
        _omit_right(program, 0, is_all=True)
    if first is not None and last is not None and block.inverse_strip is not None:
        if block.inverse_strip.open:
            _omit_left(program, len(program) - 1, is_all=True)
        if block.inverse_strip.close:
            _omit_right(first.body, 0, is_all=True)
        if close_strip.open:
            _omit_left(last.body, len(last.body) - 1, is_all=True)
        if _is_blank_before(program, len(program), is_root=False) and _is_blank_after(first.body, -1, is_root=False):
            _omit_left(program, len(program) - 1)
            _omit_right(first.body, 0)
    elif close_strip.open:
        _omit_left(program, len(program) - 1, is_all=True)
    return _Strip(block.open_strip.open, close_strip.close), opens, closes


def _chained(program: _Program) -> _Block:
    (block,) = program.body
    if not isinstance(block, _Block):
        raise TypeError("a chained program is one block")
    return block


def _is_blank_before(body: "list[_Node]", place: int, is_root: bool) -> bool:
    if place < 1:
        return is_root
    before = body[place - 1]
    if not isinstance(before, _Text):
        return False
    text = before.original
    shorter = text.rstrip(_WHITE)
    return "\n" in text[len(shorter) :] or (is_root and place == 1 and not shorter)


def _is_blank_after(body: "list[_Node]", place: int, is_root: bool) -> bool:
    if place + 1 >= len(body):
        return is_root
    after = body[place + 1]
    if not isinstance(after, _Text):
        return False
    text = after.original
    shorter = text.lstrip(_WHITE)
    return "\n" in text[: len(text) - len(shorter)] or (is_root and place + 2 == len(body) and not shorter)


def _omit_right(body: "list[_Node]", place: int, *, is_all: bool = False) -> None:
    node = body[place] if place < len(body) else None
    if not isinstance(node, _Text) or (not is_all and node.is_right_stripped):
        return
    value = node.value.lstrip(_WHITE) if is_all else _without_blank_line(node.value)
    node.is_right_stripped = value != node.value
    node.value = value


def _without_blank_line(text: str) -> str:
    found = _REST_OF_LINE.match(text)
    return text if found is None else text[found.end() :]


def _omit_left(body: "list[_Node]", place: int, *, is_all: bool = False) -> None:
    node = body[place] if place >= 0 else None
    if not isinstance(node, _Text) or (not is_all and node.is_left_stripped):
        return
    value = node.value.rstrip(_WHITE if is_all else " \t")
    node.is_left_stripped = value != node.value
    node.value = value


def _used(program: _Program, depth: int) -> Iterator[str]:
    for node in program.body:
        if isinstance(node, _Output | _Block):
            path = node.path
            if path.names and (path.data == "@root" or (not path.data and path.up >= depth)):
                yield path.names[0]
        if isinstance(node, _Block):
            yield from _used(node.program, depth + (node.kind == "each"))
            if node.inverse is not None:
                yield from _used(node.inverse, depth)


# Rendering.


@dataclass(slots=True)
class _Round:
    """The values of `@index`, `@first` and `@last`."""

    index: int
    is_last: bool


class Renderer:
    """Renders the parts of one message, which share the bounds on steps and bytes."""

    def __init__(self, variables: Mapping[str, VariableTree], bytes_max: int, *, is_quick: bool = False) -> None:
        """With `is_quick`, raises Slow after fewer steps."""
        self._is_quick = is_quick
        self._variables = variables
        self._bytes_max = bytes_max
        self._bytes = 0
        self._steps = 0
        self._escaped: dict[str, str] = {}
        self._lengths: dict[str, int] = {}
        # For lists, by their identity.
        self._joined: dict[int, str] = {}
        self._items: dict[int, Sequence[object]] = {}

    def render(self, parsed: Parsed, *, escapes: bool) -> str:
        pieces: list[str] = []
        self._program(parsed.root, [self._variables], None, pieces, escapes)
        return "".join(pieces)

    def _program(
        self, program: _Program, contexts: list[object], turn: _Round | None, pieces: list[str], escapes: bool
    ) -> None:
        for node in program.body:
            self._count_step()
            if isinstance(node, _Text):
                self._write(node.value, pieces)
            elif isinstance(node, _Output):
                text = self._spelled(self._value(node.path, contexts, turn))
                self._write(self._escape(text) if escapes and not node.is_raw else text, pieces)
            elif isinstance(node, _Block):
                value = self._value(node.path, contexts, turn)
                if node.kind == "each":
                    self._each(node, value, contexts, turn, pieces, escapes)
                    continue
                chosen = node.program if _is_true(value) is (node.kind == "if") else node.inverse
                if chosen is not None:
                    self._choice(chosen, contexts, turn, pieces, escapes)

    def _each(
        self,
        block: _Block,
        value: object,
        contexts: list[object],
        turn: _Round | None,
        pieces: list[str],
        escapes: bool,
    ) -> None:
        items = self._items.get(id(value))
        if items is None:
            items = self._items[id(value)] = _items(value)
        for index, item in enumerate(items):
            self._count_step()
            contexts.append(item)
            self._program(block.program, contexts, _Round(index, index == len(items) - 1), pieces, escapes)
            contexts.pop()
        if not items and block.inverse is not None:
            self._choice(block.inverse, contexts, turn, pieces, escapes)

    def _choice(
        self, chosen: _Program, contexts: list[object], turn: _Round | None, pieces: list[str], escapes: bool
    ) -> None:
        """Within a choice, a `this` that is null is an empty object, as in handlebars."""
        this = contexts[-1]
        contexts[-1] = {} if this is None else this
        self._program(chosen, contexts, turn, pieces, escapes)
        contexts[-1] = this

    def _count_step(self) -> None:
        self._steps += 1
        if self._is_quick and self._steps > QUICK_STEPS_MAX:
            raise Slow
        if self._steps > STEPS_MAX:
            raise invalid(
                f"The template takes more than {STEPS_MAX} steps with these `variables`: shorten their lists."
            )

    def _spelled(self, value: object) -> str:
        """Cached for lists, so that one which is repeated is converted once."""
        if not isinstance(value, list):
            return _spelled(value)
        joined = self._joined.get(id(value))
        if joined is None:
            joined = self._joined[id(value)] = _spelled(value)
        return joined

    def _write(self, text: str, pieces: list[str]) -> None:
        if not text:
            return
        self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > self._bytes_max:
            raise Refusal(
                Code.PAYLOAD_TOO_LARGE,
                f"The rendered template is larger than {self._bytes_max} bytes: shorten the template or its variables.",
            )
        pieces.append(text)

    def _escape(self, text: str) -> str:
        """Cached, so that a value which is repeated is escaped once."""
        escaped = self._escaped.get(text)
        if escaped is None:
            escaped = self._escaped[text] = text.translate(_ESCAPES)
        return escaped

    def _length(self, text: str) -> int:
        """The length as JavaScript counts it; cached, since a text may be asked for often."""
        length = self._lengths.get(text)
        if length is None:
            length = self._lengths[text] = len(text.encode("utf-16-le", "surrogatepass")) // 2
        return length

    def _value(self, path: _Path, contexts: list[object], turn: _Round | None) -> object:
        match path.data:
            case "":
                if path.up >= len(contexts):
                    return _ABSENT
                found: object = contexts[-1 - path.up]
            case "@root":
                found = self._variables
            case "@index":
                return _ABSENT if turn is None else turn.index
            case "@first":
                return _ABSENT if turn is None else turn.index == 0
            case _:
                return _ABSENT if turn is None else turn.is_last
        for name in path.names:
            found = self._length(found) if name == "length" and isinstance(found, str) else _member(found, name)
        return found


def _member(value: object, name: str) -> object:
    if isinstance(value, dict):
        return value.get(name, _ABSENT)
    if isinstance(value, list):
        if name == "length":
            return len(value)
        if _INDEX.fullmatch(name) and int(name) < len(value):
            return value[int(name)]
    return _ABSENT


def _items(value: object) -> Sequence[object]:
    """The items of a list, or the values of an object in JavaScript's order: numbers first."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        numbers = {key for key in value if key[:1].isdigit() and _INDEX.fullmatch(key)}
        return [value[key] for key in (*sorted(numbers, key=int), *(key for key in value if key not in numbers))]
    return ()


def _is_true(value: object) -> bool:
    """Truth as in JavaScript, except that an empty list counts as false; an empty object counts as true."""
    if value is _ABSENT or value is None:
        return False
    return True if isinstance(value, dict) else bool(value)


def _spelled(value: object) -> str:
    """The value as JavaScript writes it; nothing for null."""
    if isinstance(value, str):
        return value
    if value is _ABSENT or value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return "[object Object]"
    if isinstance(value, list):
        return ",".join(map(_spelled, value))
    raise TypeError(f"not a JSON value: {type(value)}")


def _number(value: float) -> str:
    """ECMA-262, Number::toString: the same shortest digits as Python's, and other rules for the exponent."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if 0 < point <= 21:
        digits = digits.ljust(point, "0")
        return sign + (f"{digits[:point]}.{digits[point:]}" if len(digits) > point else digits)
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"


def check_variables(variables: Mapping[str, VariableTree], *, is_quick: bool = False) -> None:
    """Refuse variables that are too large or too deep to be walked, and values that no message can contain."""
    if not is_quick:
        _measure(variables.items(), limits.VARIABLES_BYTES_MAX, 1, _too_large())
    else:
        _measure(variables.items(), QUICK_BYTES_MAX, 1, Slow())


def _too_large() -> Refusal:
    return invalid(f"`variables` is larger than {limits.VARIABLES_BYTES_MAX // 1024} KiB: send less.")


def _measure(pairs: Iterable[tuple[object, object]], capacity: int, level: int, too_large: Exception) -> int:
    """How many bytes of `capacity` are left; a value uses about as many as it would in JSON."""
    for name, value in pairs:
        capacity -= 2
        if isinstance(name, str):
            capacity -= len(name) + 3
        if isinstance(value, str):
            capacity -= len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
            if "\0" in value:
                raise invalid("`variables` contains a NUL character: remove it.")
        elif isinstance(value, int):
            capacity -= value.bit_length() // 3
            if value.bit_length() > limits.VARIABLE_NUMBER_BITS_MAX:
                raise invalid("`variables` contains a number that is too large: give it as a string.")
        elif isinstance(value, dict | list):
            if level >= limits.VARIABLES_LEVELS_MAX:
                raise invalid(f"`variables` has more than {limits.VARIABLES_LEVELS_MAX} levels: make it flatter.")
            capacity -= _CONTAINER_BYTES
            inner = value.items() if isinstance(value, dict) else zip(repeat(None), value, strict=False)
            capacity = _measure(inner, capacity, level + 1, too_large)
        elif isinstance(value, float) and not math.isfinite(value):
            raise invalid("`variables` contains a number that is not finite: give it as a string.")
        if capacity < 0:
            raise too_large
    return capacity
