"""Templates: text with `{{ name }}` placeholders, without code, loops or nesting.

That is the engine `plain`. A version may use the engine `handlebars` instead, which has conditions and repetitions
(`rules/handlebars`).

A part is split once into text and placeholder names; rendering replaces the names by values and joins. Values are
not parsed, so a value that looks like a placeholder stays as it is; the work is linear in the output, whose size is
known in advance.
"""

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Final, NamedTuple, TypeAlias, assert_never

from posthouse.rules import handlebars, limits
from posthouse.rules.handlebars import VariableTree
from posthouse.rules.message import CONTROL
from posthouse.rules.refusal import Code, Refusal, invalid

VariableValue: TypeAlias = str | int | float | bool | None
Variables: TypeAlias = Mapping[str, VariableTree]

# Matches every `{{`; a name and `}}` must follow, or the group stays empty and the placeholder is malformed. The
# classes are possessive, so that no input causes backtracking.
_PLACEHOLDER: Final = re.compile(r"\{\{(?:[ \t]*+([A-Za-z_][A-Za-z0-9_.]{0,63}+)[ \t]*+\}\})?")
_ALIAS: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Engine(StrEnum):
    PLAIN = "plain"
    HANDLEBARS = "handlebars"


@dataclass(frozen=True, slots=True)
class Template:
    subject: str | None
    text: str | None
    html: str | None
    engine: Engine = Engine.PLAIN

    @property
    def parts(self) -> dict[str, str]:
        """The parts that the template has, by field."""
        given = {"subject": self.subject, "text": self.text, "html": self.html}
        return {field: source for field, source in given.items() if source is not None}

    @property
    def size_bytes(self) -> int:
        return sum(len(part.encode()) for part in (self.subject, self.text, self.html) if part)


class StoredVersion(NamedTuple):
    version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    subject: str | None
    text: str | None
    html: str | None


def is_alias(given: str) -> bool:
    return _ALIAS.fullmatch(given) is not None


def check_alias(alias: str, field: str = "alias") -> None:
    if not is_alias(alias):
        raise invalid(f"`{field}` takes 1 to 64 lower-case letters, digits, '-' or '_', the first a letter or digit.")


def check_name(name: str) -> None:
    if not 1 <= len(name) <= limits.TEMPLATE_NAME_CHARACTERS_MAX or not name.isprintable():
        raise invalid(f"`name` takes 1 to {limits.TEMPLATE_NAME_CHARACTERS_MAX} printable characters.")


def check(template: Template) -> None:
    """Refuse a template that can't be stored, or that no request could render."""
    if not template.text and not template.html:
        raise invalid("The template is empty: give at least one of `text`, `html`.")
    _check_part("subject", template.subject, limits.SUBJECT_CHARACTERS_MAX)
    _check_part("text", template.text, limits.TEMPLATE_PART_CHARACTERS_MAX)
    _check_part("html", template.html, limits.TEMPLATE_PART_CHARACTERS_MAX)
    if template.subject and CONTROL.search(template.subject):
        raise invalid("The template's `subject` contains a control character (such as a line break): remove it.")
    if template.engine is Engine.PLAIN:
        _check_placeholders(template)
    used = len(placeholders(template))
    if used > limits.VARIABLES_MAX:
        raise invalid(
            f"The template's `subject`, `text` and `html` use {used} variables: at most {limits.VARIABLES_MAX} can be "
            "given, so use fewer."
        )


def _check_placeholders(template: Template) -> None:
    for field, tokens in _split(template).items():
        if len(tokens) // 2 > limits.TEMPLATE_PLACEHOLDERS_MAX:
            raise invalid(
                f"The template's `{field}` has {len(tokens) // 2} placeholders: "
                f"at most {limits.TEMPLATE_PLACEHOLDERS_MAX} are allowed."
            )


def excess_versions(stored: Sequence[StoredVersion], used: Container[int], bytes_over: int) -> list[StoredVersion]:
    """The versions to delete so that a template keeps its limits, the oldest first and none that is used.

    `stored` is ordered by number. `bytes_over` is by how much the account's templates exceed their limit.
    """
    count_over = len(stored) - limits.TEMPLATE_VERSIONS_MAX
    excess: list[StoredVersion] = []
    for row in stored:
        if count_over <= 0 and bytes_over <= 0:
            break
        if row.version not in used:
            excess.append(row)
            count_over -= 1
            bytes_over -= row.size_bytes
    return excess


def variables(template: Template) -> dict[str, list[str]]:
    """The parts in which each variable is used, in order of first use; empty for a malformed template."""
    try:
        parts = _used_by_part(template)
    except Refusal:
        return {}
    return {name: [field for field, used in parts.items() if name in used] for name in placeholders(template)}


def placeholders(template: Template) -> tuple[str, ...]:
    """The names in the template, in order of first use: subject, text, html."""
    return tuple(dict.fromkeys(name for used in _used_by_part(template).values() for name in used))


def _used_by_part(template: Template) -> dict[str, Sequence[str]]:
    if template.engine is Engine.HANDLEBARS:
        return {field: handlebars.names(parsed) for field, parsed in _parsed(template).items()}
    return {field: tokens[1::2] for field, tokens in _split(template).items()}


def engine(given: str | None) -> Engine:
    """The given engine; plain by default."""
    if given is None:
        return Engine.PLAIN
    if given not in list(Engine):
        raise invalid(f"`engine` is {' or '.join(Engine)}.")
    return Engine(given)


def render(template: Template, variables: Variables, *, bytes_max: int, is_quick: bool = False) -> RenderedTemplate:
    """The template with values for its placeholders; `bytes_max` bounds all parts together, as UTF-8.

    With `is_quick`, raises `handlebars.Slow` if it takes more than a few milliseconds.

    If a request has its own subject, pass a template with subject None: the request then needs no variables for the
    unused subject.
    """
    if len(variables) > limits.VARIABLES_MAX:
        raise invalid(f"`variables` has {len(variables)} keys: at most {limits.VARIABLES_MAX} are allowed.")
    if template.engine is Engine.HANDLEBARS:
        return _render_handlebars(template, variables, bytes_max, is_quick=is_quick)
    plain = {name: _plain(name, value) for name, value in variables.items()}
    parts = _split(template)
    names = _names(parts.values())
    if missing := [name for name in names if name not in plain]:
        raise invalid(f"`variables` lacks names that the template uses: add {', '.join(missing)}.")

    raw = {name: _spelled(name, plain[name]) for name in names}
    _check_subject_values(parts.get("subject", []), raw)
    raw_bytes = {name: _utf8_bytes(f"`variables.{name}`", value) for name, value in raw.items()}
    html_names = _names([parts.get("html", [])])
    html_bytes = {name: raw_bytes[name] + _escape_growth(raw[name]) for name in html_names}
    output_bytes = sum(
        _part_bytes(field, tokens, html_bytes if field == "html" else raw_bytes) for field, tokens in parts.items()
    )
    if output_bytes > bytes_max:
        raise Refusal(
            Code.PAYLOAD_TOO_LARGE,
            f"The rendered template is {output_bytes} bytes, at most {bytes_max} are allowed:"
            " shorten the template or its variables.",
        )

    escaped = {name: escape(raw[name]) for name in html_names}
    rendered = {field: _joined(tokens, escaped if field == "html" else raw) for field, tokens in parts.items()}
    _check_subject_length(rendered.get("subject"))
    return RenderedTemplate(rendered.get("subject"), rendered.get("text"), rendered.get("html"))


def _render_handlebars(template: Template, variables: Variables, bytes_max: int, *, is_quick: bool) -> RenderedTemplate:
    """The template rendered by handlebars, where a variable without a value is empty."""
    if is_quick and sum(map(len, template.parts.values())) > handlebars.PARSED_CHARACTERS_MAX:
        raise handlebars.Slow
    handlebars.check_variables(variables, is_quick=is_quick)
    renderer = handlebars.Renderer(variables, bytes_max, is_quick=is_quick)
    rendered = {field: renderer.render(parsed, escapes=field == "html") for field, parsed in _parsed(template).items()}
    for field, text in rendered.items():
        _utf8_bytes(f"The rendered `{field}`", text)
    subject = rendered.get("subject")
    _check_subject_length(subject)
    if subject is not None and CONTROL.search(subject):
        raise invalid("The rendered `subject` contains a control character (such as a line break): remove it.")
    return RenderedTemplate(subject, rendered.get("text"), rendered.get("html"))


def _parsed(template: Template) -> dict[str, handlebars.Parsed]:
    return {field: handlebars.parse(source, f"The template's `{field}`") for field, source in template.parts.items()}


def _check_subject_length(subject: str | None) -> None:
    if subject is not None and len(subject) > limits.SUBJECT_CHARACTERS_MAX:
        raise invalid(
            f"The rendered `subject` has {len(subject)} characters, at most"
            f" {limits.SUBJECT_CHARACTERS_MAX} are allowed: shorten the variables that it uses."
        )


def render_draft(template: Template, variables: Variables, *, bytes_max: int) -> tuple[RenderedTemplate, list[str]]:
    """A template that is still being written: variables without a value stay as they are, and are returned.

    With `handlebars` they are empty.
    """
    if template.engine is Engine.HANDLEBARS:
        absent = [name for name in placeholders(template) if name not in variables]
        return render(template, variables, bytes_max=bytes_max), absent
    used = placeholders(template)
    missing = [name for name in used if name not in variables]
    given = {name: _plain(name, value) for name, value in variables.items()}
    given = {name: value for name, value in given.items() if name in used}
    return render(template, {**given, **{name: f"{{{{{name}}}}}" for name in missing}}, bytes_max=bytes_max), missing


def _split(template: Template) -> dict[str, list[str]]:
    """Each present part as alternating text and names, beginning and ending with text."""
    return {field: _tokens(field, source) for field, source in template.parts.items()}


def _tokens(field: str, source: str) -> list[str]:
    tokens: list[str | None] = _PLACEHOLDER.split(source)
    whole = [token for token in tokens if token is not None]
    if len(whole) < len(tokens):
        raise _malformed(field, source)
    return whole


def _malformed(field: str, source: str) -> Refusal:
    at = next(match.start() for match in _PLACEHOLDER.finditer(source) if match[1] is None)
    line = source.count("\n", 0, at) + 1
    column = at - source.rfind("\n", 0, at)
    what = "is not a placeholder" if source.find("}}", at) >= 0 else "is never closed by '}}'"
    return invalid(
        f"The template's `{field}`, line {line}, character {column}: this '{{{{' {what}:"
        " write {{ name }}, a name being a letter or '_', then up to 63 letters, digits, '_' or '.'."
    )


def _names(parts: Iterable[list[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for tokens in parts for name in tokens[1::2]))


def _check_part(field: str, source: str | None, characters_max: int) -> None:
    if source is None:
        return
    if len(source) > characters_max:
        raise invalid(f"The template's `{field}` has {len(source)} characters: at most {characters_max} are allowed.")
    _utf8_bytes(f"The template's `{field}`", source)


def _check_subject_values(tokens: list[str], values: Mapping[str, str]) -> None:
    for name in _names([tokens]):
        if CONTROL.search(values[name]):
            raise invalid(
                f"`variables.{name}` contains a control character (such as a line break), which the subject that"
                " uses it can't carry: remove it."
            )


def _plain(name: str, value: VariableTree) -> VariableValue:
    if isinstance(value, list | dict):
        raise invalid(
            f"`variables.{name[:64]}` should be a valid string or a valid integer or a valid number or a valid boolean."
        )
    return value


def _spelled(name: str, value: VariableValue) -> str:
    """The value as in JSON, but strings without quotes and null as an empty string."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            if value.bit_length() > limits.VARIABLE_NUMBER_BITS_MAX:
                raise invalid(f"`variables.{name}` is too large a number: give it as a string.")
            return str(value)
        case float():
            if not math.isfinite(value):
                raise invalid(f"`variables.{name}` is not a finite number: give it as a string.")
            return repr(value)
        case _:
            assert_never(value)


def _utf8_bytes(what: str, value: str) -> int:
    """The value's length in UTF-8; refuses text that no message or database can store."""
    if "\x00" in value:
        raise invalid(f"{what} contains a NUL character: remove it.")
    try:
        return len(value) if value.isascii() else len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise invalid(f"{what} contains half of a surrogate pair: send whole characters.") from None


def _escape_growth(value: str) -> int:
    """How many characters `escape` adds, without building the escaped text."""
    return (
        4 * value.count("&")  # &amp;
        + 3 * (value.count("<") + value.count(">"))  # &lt; &gt;
        + 5 * (value.count('"') + value.count("'"))  # &quot; &#x27;
    )


def _part_bytes(field: str, tokens: list[str], value_bytes: Mapping[str, int]) -> int:
    literal = _utf8_bytes(f"The template's `{field}`", "".join(tokens[0::2]))
    return literal + sum(value_bytes[name] for name in tokens[1::2])


def _joined(tokens: list[str], values: Mapping[str, str]) -> str:
    joined = tokens.copy()
    joined[1::2] = [values[name] for name in tokens[1::2]]
    return "".join(joined)
