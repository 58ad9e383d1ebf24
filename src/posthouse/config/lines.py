"""In which line of a TOML file a setting stands. The parser in the standard library doesn't say."""

from collections.abc import Mapping, Sequence

Path = tuple[str, ...]


def lines_of(text: str) -> Mapping[Path, int]:
    """The line of each table and each key, counted from 1."""
    found: dict[Path, int] = {}
    table: Path = ()
    is_in_text = False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not is_in_text and words.startswith("["):
            table = _parts(words.lstrip("[").partition("]")[0])
            found.setdefault(table, number)
        elif not is_in_text and "=" in words and not words.startswith("#"):
            found.setdefault((*table, *_parts(words.partition("=")[0])), number)
        # A text of several lines begins or ends here.
        if (line.count('"""') + line.count("'''")) % 2:
            is_in_text = not is_in_text
    return found


def line_of(lines: Mapping[Path, int], place: Sequence[str]) -> int | None:
    """The line of that setting; of the table or value that it is in, where it has no line of its own."""
    for length in range(len(place), 0, -1):
        if tuple(place[:length]) in lines:
            return lines[tuple(place[:length])]
    return None


def _parts(dotted: str) -> Path:
    """The parts of a key; a dot in quotes divides nothing."""
    parts, quote = [""], ""
    for character in dotted.strip():
        if character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character == ".":
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)
