"""What a new OpenAPI document takes away from the clients of an old one.

A client sends what the old document allows, and reads what it promises. An added operation, field or value does no
harm; nor does an error status that is no longer returned.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

Part = Mapping[str, Any]

# Limits of what a client sends: the new ones must not be narrower.
_UPPER: Final = ("maxLength", "maxItems", "maxProperties", "maximum")
_LOWER: Final = ("minLength", "minItems", "minProperties", "minimum")


def incompatible_changes(old: Part, new: Part) -> list[str]:
    """Each with its place."""
    return sorted(set(_Comparison(old, new).changes()))


class _Comparison:
    def __init__(self, old: Part, new: Part) -> None:
        self._old = old
        self._new = new
        # The changes of each pair of schemas, which may contain themselves.
        self._known: dict[tuple[int, int, bool], list[str]] = {}

    def changes(self) -> Iterator[str]:
        for path, methods in self._old["paths"].items():
            for method, old in methods.items():
                place = f"{method.upper()} {path}"
                new = self._new["paths"].get(path, {}).get(method)
                if new is None:
                    yield f"{place}: removed"
                    continue
                yield from self._parameters(_parameters(self._old, old), _parameters(self._new, new), place)
                yield from self._body(old.get("requestBody", {}), new.get("requestBody", {}), place)
                for status in (status for status in old["responses"] if status.startswith("2")):
                    if status not in new["responses"]:
                        yield f"{place} {status}: removed"
                    else:
                        yield from self._content(
                            old["responses"][status], new["responses"][status], f"{place} {status}", self._read
                        )

    def _parameters(self, old: Sequence[Part], new: Sequence[Part], place: str) -> Iterator[str]:
        before, after = ({(each["in"], each["name"]): each for each in given} for given in (old, new))
        for key, parameter in before.items():
            if key in after:
                yield from self._sent(parameter["schema"], after[key]["schema"], f"{place} {key[1]}")
            else:
                yield f"{place} {key[1]}: removed"
        for key, parameter in after.items():
            if parameter.get("required") and not before.get(key, {}).get("required"):
                yield f"{place} {key[1]}: required"

    def _body(self, old: Part, new: Part, place: str) -> Iterator[str]:
        if new.get("required") and not old.get("required"):
            yield f"{place} body: required"
        yield from self._content(old, new, f"{place} body", self._sent)

    def _content(
        self, old: Part, new: Part, place: str, compare: Callable[[Part, Part, str], list[str]]
    ) -> Iterator[str]:
        for media_type, content in old.get("content", {}).items():
            if media_type not in new.get("content", {}):
                yield f"{place}: no longer {media_type}"
            else:
                yield from compare(content["schema"], new["content"][media_type]["schema"], place)

    def _sent(self, old: Part, new: Part, place: str) -> list[str]:
        """Empty if each value that the old schema allows is still allowed."""
        return self._compared(old, new, place, is_read=False)

    def _read(self, old: Part, new: Part, place: str) -> list[str]:
        """Empty if each value that the new schema allows is one that the old one promises."""
        return self._compared(old, new, place, is_read=True)

    def _compared(self, old: Part, new: Part, place: str, *, is_read: bool) -> list[str]:
        old, new = _target(self._old, old), _target(self._new, new)
        pair = id(old), id(new), is_read
        if pair not in self._known:
            self._known[pair] = []
            before, after = list(_branches(self._old, old)), list(_branches(self._new, new))
            if is_read:
                found = [[list(self._read_branch(a, b, place)) for a in before] for b in after]
            else:
                found = [[list(self._sent_branch(a, b, place)) for b in after] for a in before]
            self._known[pair] = [change for choices in found for change in min(choices, key=len)]
        return self._known[pair]

    def _sent_branch(self, old: Part, new: Part, place: str) -> Iterator[str]:
        if not _is_type(old, new):
            yield f"{place}: can't be {old.get('type', 'anything')}"
            return
        if old.get("type") == "null":
            return  # the limits of a union's whole mean its other branches
        if (values := _values(new)) is not None and not (_values(old) or {object()}) <= values:
            yield f"{place}: fewer values"
        yield from (f"{place}: {name} {new[name]}" for name in _UPPER if name in new and _above(old, new, name))
        yield from (f"{place}: {name} {new[name]}" for name in _LOWER if name in new and _above(new, old, name))
        if "pattern" in new and old.get("pattern") != new["pattern"]:
            yield f"{place}: pattern {new['pattern']}"
        fields, allows_others = new.get("properties", {}), new.get("additionalProperties", True) is not False
        for name, field in old.get("properties", {}).items():
            if name in fields:
                yield from self._sent(field, fields[name], f"{place}.{name}")
            elif not allows_others:
                yield f"{place}.{name}: removed"
        for name in {*new.get("required", [])} - {*old.get("required", [])}:
            yield f"{place}.{name}: required"
        yield from self._entries(old, new, place, self._sent)

    def _read_branch(self, old: Part, new: Part, place: str) -> Iterator[str]:
        if not _is_type(new, old):
            yield f"{place}: may be {new.get('type', 'anything')}"
            return
        fields = new.get("properties", {})
        for name, field in old.get("properties", {}).items():
            if name not in fields:
                yield f"{place}.{name}: removed"
            elif name in old.get("required", []) and name not in new.get("required", []):
                yield f"{place}.{name}: may be absent"
            else:
                yield from self._read(field, fields[name], f"{place}.{name}")
        yield from self._entries(old, new, place, self._read)

    def _entries(
        self, old: Part, new: Part, place: str, compare: Callable[[Part, Part, str], list[str]]
    ) -> Iterator[str]:
        for name in ("items", "additionalProperties"):
            if isinstance(old.get(name), Mapping) and isinstance(new.get(name), Mapping):
                yield from compare(old[name], new[name], f"{place}[]")


def _parameters(document: Part, operation: Part) -> Sequence[Part]:
    return [_target(document, parameter) for parameter in operation.get("parameters", [])]


def _target(document: Part, part: Part) -> Part:
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    target: Part = document["components"][kind][name]
    return target


def _branches(document: Part, schema: Part) -> Iterator[Part]:
    """The alternatives of a union, each with the limits of the whole; otherwise the schema itself."""
    if "anyOf" not in schema:
        yield schema
        return
    whole = {name: value for name, value in schema.items() if name != "anyOf"}
    for branch in schema["anyOf"]:
        yield {**_target(document, branch), **whole}


def _is_type(narrow: Part, wide: Part) -> bool:
    return "type" not in wide or narrow.get("type") in {wide["type"], "integer" if wide["type"] == "number" else None}


def _values(schema: Part) -> set[Any] | None:
    return {schema["const"]} if "const" in schema else set(schema["enum"]) if "enum" in schema else None


def _above(one: Part, other: Part, name: str) -> bool:
    """Whether the bound of `one` is above that of the other; without a bound, there is none."""
    missing = float("inf") if name in _UPPER else float("-inf")
    above: bool = one.get(name, missing) > other.get(name, missing)
    return above
