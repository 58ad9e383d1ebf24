"""Whether a regular expression can take more than linear time: its automaton is searched for ways to read a text twice.

A matcher that backtracks tries every way in which the pattern can read a text. There are exponentially many when a
loop can read one word in two ways, and as many as the square of its length when one word leads round a first loop,
round a second, and from the first to the second. Where there is no such word, time is linear. A search begins
anywhere, which is one more loop, in front of the pattern.

Counted repeats are shortened to a few rounds: they are no loops, but are checked as ambiguous parts of a loop. What is
possessive leaves a character to what follows only when it can't read it itself.
"""

import functools
import importlib
import itertools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# A module of the standard library that has no separate name in the stubs.
_parser: Final[Any] = importlib.import_module("re._parser")
_compiler: Final[Any] = importlib.import_module("re._compiler")

END: Final = -1
_BEYOND_LATIN: Final = (0x17F, 0x3A9, 0x660, 0x2028, 0x3002, 0x4E2D, 0xD800, 0xFEFF, 0x1F600)
BYTES: Final = frozenset(range(256))
CHARACTERS: Final = BYTES | frozenset(_BEYOND_LATIN)
ROUNDS_MORE: Final = 2
ENDLESS: Final = 10_000
# Of texts to try.
WAYS_MAX: Final = 8
TEXTS_MAX: Final = 24

# Patterns of one character.
SINGLE: Final = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})

Symbols = frozenset[int]
# By the node, the flags and the universe: patterns have many classes in common.
_READ: Final[dict[tuple[str, int, Symbols], Symbols]] = {}


@dataclass(slots=True)
class Piece:
    """Part of a pattern: where it begins and ends, with the symbols that may come next, and if it may be empty."""

    first: dict[int, Symbols] = field(default_factory=dict)
    last: dict[int, Symbols] = field(default_factory=dict)
    empty: Symbols = frozenset()


@dataclass(slots=True)
class Automaton:
    """Its states are the pattern's characters; an edge has the symbols on which it is taken."""

    universe: Symbols
    edges: dict[int, dict[int, Symbols]] = field(default_factory=dict)
    # Edges that the pattern has twice, as `(a*)*` has one from the a to itself.
    twice: set[tuple[int, int]] = field(default_factory=set)
    reads: dict[int, Symbols] = field(default_factory=dict)
    whole: Piece = field(default_factory=Piece)
    # What is inside a lookaround or something possessive is a separate pattern as well.
    inner: list["Automaton"] = field(default_factory=list)

    def state(self, reads: Symbols) -> int:
        number = len(self.reads)
        self.reads[number] = reads
        self.edges[number] = {}
        return number

    def join(self, before: Piece, after: Piece) -> None:
        for (origin, leaves), (target, enters) in itertools.product(before.last.items(), after.first.items()):
            if symbols := leaves & enters:
                known = self.edges[origin].get(target, frozenset())
                if known & symbols:
                    self.twice.add((origin, target))
                self.edges[origin][target] = known | symbols

    def reachable(self, origin: int) -> set[int]:
        seen: set[int] = set()
        waiting = [origin]
        while waiting:
            for target in self.edges[waiting.pop()]:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen


def automaton(pattern: "re.Pattern[Any]", *, searches: bool = False, is_whole: bool = False) -> Automaton:
    """`searches` when it may begin anywhere, `is_whole` when it must end where the text does."""
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    characters = BYTES if isinstance(pattern.pattern, bytes) else CHARACTERS
    return _built(parsed, parsed.state.flags | pattern.flags, characters | {END}, searches, is_whole)


def _built(parsed: Any, flags: int, universe: Symbols, searches: bool, is_whole: bool) -> Automaton:
    made = Automaton(universe)
    whole = _sequence(made, parsed, flags)
    if searches:
        anything = made.state(universe - {END})
        ahead = Piece({anything: universe - {END}}, {anything: universe}, universe)
        made.join(ahead, ahead)
        whole = _chained(made, ahead, whole)
    if is_whole:
        whole = _chained(made, whole, Piece(empty=frozenset({END})))
    made.whole = whole
    return made


def _chained(made: Automaton, before: Piece, after: Piece) -> Piece:
    made.join(before, after)
    first = dict(before.first)
    for state, symbols in after.first.items():
        if kept := symbols & before.empty:
            first[state] = first.get(state, frozenset()) | kept
    last = dict(after.last)
    for state, symbols in before.last.items():
        if kept := symbols & after.empty:
            last[state] = last.get(state, frozenset()) | kept
    return Piece(first, last, before.empty & after.empty)


def _sequence(made: Automaton, parsed: Any, flags: int) -> Piece:
    piece = Piece(empty=made.universe)
    for node in parsed:
        piece = _chained(made, piece, _node(made, parsed.state, node, flags))
    return piece


def _either(pieces: list[Piece]) -> Piece:
    whole = Piece()
    for piece in pieces:
        whole.first |= {state: symbols | whole.first.get(state, frozenset()) for state, symbols in piece.first.items()}
        whole.last |= {state: symbols | whole.last.get(state, frozenset()) for state, symbols in piece.last.items()}
        whole.empty |= piece.empty
    return whole


def _node(made: Automaton, state: Any, node: Any, flags: int) -> Piece:
    kind, given = str(node[0]), node[1]
    match kind:
        case kind if kind in SINGLE:
            reads = _read_by(state, node, flags, made.universe)
            number = made.state(reads)
            return Piece({number: reads}, {number: made.universe})
        case "SUBPATTERN":
            _, added, removed, inside = given
            return _sequence(made, inside, (flags | added) & ~removed)
        case "BRANCH":
            return _either([_sequence(made, branch, flags) for branch in given[1]])
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeated(made, given, flags)
        case "POSSESSIVE_REPEAT":
            return _possessive(made, _repeated(made, given, flags), given[2], flags)
        case "ATOMIC_GROUP":
            made.inner.append(_built(given, flags, made.universe, False, False))
            return _sequence(made, given, flags)
        case "ASSERT" | "ASSERT_NOT":
            return _looked_around(made, kind, given, flags)
        case "AT":
            ends = {"AT_END_STRING": {END}, "AT_END": {END, ord("\n")}}.get(str(given))
            return Piece(empty=made.universe if ends is None else frozenset(ends))
    raise NotImplementedError(f"{kind} is not known here: its time is not either")


def _repeated(made: Automaton, given: Any, flags: int) -> Piece:
    least, most, body = given
    if most >= ENDLESS:
        piece = _sequence(made, body, flags)
        made.join(piece, piece)
        return piece if least else Piece(piece.first, piece.last, made.universe)
    needed = min(least, ROUNDS_MORE)
    piece = Piece(empty=made.universe)
    # What is optional comes one inside the other, so that two rounds of four are two in one way only.
    for _ in range(min(most - least, ROUNDS_MORE)):
        piece = _chained(made, _sequence(made, body, flags), piece)
        piece = Piece(piece.first, piece.last, made.universe)
    for _ in range(needed):
        piece = _chained(made, _sequence(made, body, flags), piece)
    return piece


def _possessive(made: Automaton, piece: Piece, body: Any, flags: int) -> Piece:
    if not _is_single(body):
        made.inner.append(_built(body, flags, made.universe, False, False))
    kept: Symbols = frozenset().union(*piece.first.values())
    left = made.universe - kept
    return Piece(piece.first, {state: symbols & left for state, symbols in piece.last.items()}, piece.empty & left)


def _looked_around(made: Automaton, kind: str, given: Any, flags: int) -> Piece:
    direction, inside = given
    if direction < 0:
        return Piece(empty=made.universe)  # of fixed width
    made.inner.append(_built(inside, flags, made.universe, False, False))
    ahead = made.inner[-1].whole
    begins: Symbols = frozenset().union(*ahead.first.values())
    if kind == "ASSERT":
        return Piece(empty=begins | ahead.empty)
    # What may be refused may fail here, and that is what makes a matcher go back.
    return Piece(empty=made.universe - begins if _is_single(inside) else made.universe - {END})


def _is_single(parsed: Any) -> bool:
    return len(parsed) == 1 and str(parsed[0][0]) in SINGLE


def uncertain_groups(pattern: "re.Pattern[Any]") -> list[str]:
    """Possessive and atomic groups, which Python before 3.11.5 matches wrongly; a possessive character is no group."""
    return list(_uncertain(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)))


def _uncertain(parsed: Any) -> Iterator[str]:
    for node in parsed:
        kind, given = str(node[0]), node[1]
        if kind == "ATOMIC_GROUP" or (kind == "POSSESSIVE_REPEAT" and not _is_single(given[2])):
            yield kind
        for inside in _inside(kind, given):
            yield from _uncertain(inside)


def _inside(kind: str, given: Any) -> Any:
    match kind:
        case "BRANCH":
            return given[1]
        case "ATOMIC_GROUP":
            return [given]
        case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT" | "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return [given[-1]]
        case "GROUPREF_EXISTS":
            return [branch for branch in given[1:] if branch is not None]
    return []


def _read_by(state: Any, node: Any, flags: int, universe: Symbols) -> Symbols:
    key = str(node), flags, universe
    if key not in _READ:
        is_read = _compiler.compile(_parser.SubPattern(state, [node]), flags).match
        as_text = universe == CHARACTERS | {END}
        _READ[key] = frozenset(
            symbol for symbol in universe if symbol != END and is_read(chr(symbol) if as_text else bytes([symbol]))
        )
    return _READ[key]


# What is wrong with it


def faults(made: Automaton) -> list[str]:
    """Empty when every text is read in linear time."""
    found = [fault for inner in made.inner for fault in faults(inner)]
    reach = {state: made.reachable(state) for state in made.reads}
    looping = [state for state in made.reads if state in reach[state]]
    # Where the pattern continues or may end, whatever comes next, it never fails, and nothing is tried again.
    at_will = {
        state for state, ends in made.whole.last.items() if ends.union(*made.edges[state].values()) == made.universe
    }
    for origin, target in made.twice:
        if origin in reach[target]:
            found.append(f"a loop over {_shown(made.reads[target])} is inside another over the same")
    found += [
        f"a word beginning with {_shown(made.reads[loop])} goes round one loop in two ways"
        for loop in looping
        if loop not in at_will and _reads_twice(made, loop, reach)
    ]
    for loop, other in itertools.permutations(looping, 2):
        if other in reach[loop] and other not in at_will and _shares_word(made, loop, other, reach):
            found.append(f"loops over {_shown(made.reads[loop])} and {_shown(made.reads[other])} share a word")
    return found


def _reads_twice(made: Automaton, loop: int, reach: dict[int, set[int]]) -> bool:
    """From (loop, loop) over two different states and back."""
    home = {state for state in reach[loop] if loop in reach[state]}
    seen: set[tuple[int, ...]] = {(loop, loop, False)}
    waiting = deque(seen)
    while waiting:
        left, right, differs = waiting.popleft()
        for after in _steps(made, (left, right), (home, home)):
            now = (*after, differs or after[0] != after[1])
            if now == (loop, loop, True):
                return True
            if now not in seen:
                seen.add(now)
                waiting.append(now)
    return False


def _shares_word(made: Automaton, loop: int, other: int, reach: dict[int, set[int]]) -> bool:
    """From (loop, loop, other) to (loop, other, other), all three on the same word."""
    here = {state for state in reach[loop] if loop in reach[state]}
    there = {state for state in reach[other] if other in reach[state]}
    between = {state for state in reach[loop] if other in reach[state]}
    goal = (loop, other, other)
    seen: set[tuple[int, ...]] = {(loop, loop, other)}
    waiting = deque(seen)
    while waiting:
        for after in _steps(made, waiting.popleft(), (here, between, there)):
            if after == goal:
                return True
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return False


def _steps(made: Automaton, states: tuple[int, ...], reachable: tuple[set[int], ...]) -> Iterator[tuple[int, ...]]:
    ways = [
        [(target, symbols) for target, symbols in made.edges[state].items() if target in allowed]
        for state, allowed in zip(states, reachable, strict=True)
    ]
    for chosen in itertools.product(*ways):
        if frozenset.intersection(*(symbols for _, symbols in chosen)):
            yield tuple(target for target, _ in chosen)


def _shown(symbols: Symbols) -> str:
    shown = "".join(chr(symbol) for symbol in sorted(symbols) if 0x20 < symbol < 0x7F)
    return f"[{shown[:12]}{'…' if len(shown) > 12 else ''}]"


# What would show it


def hostile(made: Automaton) -> list[tuple[list[int], list[int]]]:
    """Pairs of what leads to a loop and what leads round it; repeated, they make a matcher work most."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for automaton_ in (made, *made.inner):
        ways = _ways_in(automaton_)
        for state, way in ways.items():
            for round_ in _rounds(automaton_, state):
                found[tuple(way), tuple(round_)] = None
    # Texts of one word, of which the pattern's own beginnings are the worst.
    for whole in sorted({tuple(way) for way in _ways_in(made).values()}, key=len, reverse=True)[:WAYS_MAX]:
        found[(), whole] = None
    return [(list(way), list(round_)) for way, round_ in itertools.islice(found, TEXTS_MAX)]


@functools.cache
def _symbol(symbols: Symbols) -> int:
    """A letter rather than a sign: it is in most classes."""
    return min(
        symbols - {END} or symbols, key=lambda symbol: (not chr(max(symbol, 0)).isalnum(), symbol > 0x7F, symbol)
    )


def _ways_in(made: Automaton) -> dict[int, list[int]]:
    """The shortest text that leads to each state."""
    ways = {state: [_symbol(symbols)] for state, symbols in made.whole.first.items() if symbols - {END}}
    waiting = deque(ways)
    while waiting:
        state = waiting.popleft()
        for target, symbols in made.edges[state].items():
            if target not in ways and symbols - {END}:
                ways[target] = [*ways[state], _symbol(symbols)]
                waiting.append(target)
    return ways


def _rounds(made: Automaton, state: int) -> Iterator[list[int]]:
    """The shortest text from a state back to it, by each of its edges."""
    for target, symbols in made.edges[state].items():
        ways = {target: [_symbol(symbols)]}
        waiting = deque(ways)
        while waiting and state not in ways:
            here = waiting.popleft()
            for after, further in made.edges[here].items():
                if after not in ways and further - {END}:
                    ways[after] = [*ways[here], _symbol(further)]
                    waiting.append(after)
        if state in ways:
            yield ways[state]
