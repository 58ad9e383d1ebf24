"""The interface of the newest release still holds; and what counts as an incompatible change."""

import copy
import json
from typing import Any, Final

import pytest

from tests.entrypoints.interface_changes import incompatible_changes
from tests.support.released_version import ReleaseError, newest_release, released_text
from tools.write_openapi import FILE, document

JSON: Final = "application/json"
STRING: Final = {"type": "string"}


def test_the_interface_keeps_what_the_newest_release_promises() -> None:
    try:
        release = newest_release()
    except ReleaseError as error:
        pytest.skip(str(error))
    if not release.is_tagged:
        pytest.skip("there is no release yet whose interface must hold")
    released = json.loads(released_text(release, f"docs/reference/{FILE.name}"))
    assert incompatible_changes(released, document()) == []


def test_a_document_is_compatible_with_itself() -> None:
    assert incompatible_changes(document(), document()) == []


def test_a_shared_parameter_is_compared_like_one_of_an_operation() -> None:
    def shared(maximum: int) -> dict[str, Any]:
        document = interface(parameters=[{"$ref": "#/components/parameters/Limit"}])
        limit = {"in": "query", "name": "limit", "schema": {"type": "integer", "maximum": maximum}}
        document["components"]["parameters"] = {"Limit": limit}
        return document

    assert incompatible_changes(interface(), shared(100)) == []
    assert incompatible_changes(shared(100), interface()) == []
    assert incompatible_changes(interface(), shared(99)) == ["POST /x limit: maximum 99"]


def interface(sent: Any = STRING, shown: Any = STRING, **operation: Any) -> dict[str, Any]:
    """A document with one operation that takes `{"a": …}` and returns `{"b": …}`."""
    body = {"type": "object", "properties": {"a": sent}, "additionalProperties": False}
    answer = {"type": "object", "properties": {"b": shown}, "required": ["b"]}
    declared = {
        "parameters": [{"in": "query", "name": "limit", "schema": {"type": "integer", "maximum": 100}}],
        "requestBody": {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Body"}}}},
        "responses": {"200": {"content": {JSON: {"schema": answer}}}, "404": {}},
    }
    return {"paths": {"/x": {"post": declared | operation}}, "components": {"schemas": {"Body": body}}}


def union(*branches: Any, **limits: Any) -> dict[str, Any]:
    return {"anyOf": list(branches), **limits}


def query(name: str = "limit", *, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"parameters": [{"in": "query", "name": name, "required": required, "schema": schema}]}


NULL: Final = {"type": "null"}
SENT: Final = "POST /x body.a"
SHOWN: Final = "POST /x 200.b"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        # What a client sends.
        (interface(STRING), interface({"type": "integer"}), [f"{SENT}: can't be string"]),
        (interface({"type": "integer"}), interface({"type": "number"}), []),
        (interface(STRING), interface(union(STRING, NULL)), []),
        (interface(union(STRING, NULL)), interface(STRING), [f"{SENT}: can't be null"]),
        (interface(STRING), interface({**STRING, "maxLength": 5}), [f"{SENT}: maxLength 5"]),
        (interface({**STRING, "maxLength": 5}), interface({**STRING, "maxLength": 6}), []),
        (interface({**STRING, "minLength": 1}), interface({**STRING, "minLength": 2}), [f"{SENT}: minLength 2"]),
        (interface(union(STRING, NULL)), interface(union(STRING, NULL, maxLength=5)), [f"{SENT}: maxLength 5"]),
        (interface(STRING), interface({**STRING, "pattern": "^a$"}), [f"{SENT}: pattern ^a$"]),
        (interface({"enum": ["x", "y"]}), interface({"enum": ["x"]}), [f"{SENT}: fewer values"]),
        (interface({"enum": ["x"]}), interface({"enum": ["x", "y"]}), []),
        (interface({}), interface({"enum": ["x", None]}), [f"{SENT}: fewer values"]),
        (
            interface({"type": "array", "items": {"enum": ["x", "y"]}}),
            interface({"type": "array", "items": {"enum": ["x"]}}),
            [f"{SENT}[]: fewer values"],
        ),
        (
            interface({"type": "object", "properties": {"c": STRING}}),
            interface({"type": "object", "properties": {"c": STRING, "d": STRING}, "required": ["d"]}),
            [f"{SENT}.d: required"],
        ),
        (
            interface({"type": "object", "properties": {"c": STRING}}),
            interface({"type": "object", "additionalProperties": False}),
            [f"{SENT}.c: removed"],
        ),
        (interface(), interface(**query(type="integer", maximum=50)), ["POST /x limit: maximum 50"]),
        (interface(), interface(**query(type="string")), ["POST /x limit: can't be integer"]),
        (interface(), interface(**query(type="integer", required=True)), ["POST /x limit: required"]),
        (interface(), interface(parameters=[]), ["POST /x limit: removed"]),
        (interface(requestBody={}), interface(requestBody={"required": True}), ["POST /x body: required"]),
        (interface(), interface(requestBody={}), ["POST /x body: no longer application/json"]),
        # What it reads.
        (interface(shown=STRING), interface(shown={"type": "integer"}), [f"{SHOWN}: may be integer"]),
        (interface(shown=STRING), interface(shown=union(STRING, NULL)), [f"{SHOWN}: may be null"]),
        (interface(shown=union(STRING, NULL)), interface(shown=STRING), []),
        (interface(shown={"type": "number"}), interface(shown={"type": "integer"}), []),
        (interface(shown={"enum": ["x"]}), interface(shown={"enum": ["x", "y"]}), []),
        (
            interface(shown={"type": "object", "properties": {"c": STRING}}),
            interface(shown={"type": "object", "properties": {"d": STRING}}),
            [f"{SHOWN}.c: removed"],
        ),
        (
            interface(shown={"type": "object", "properties": {"c": STRING}, "required": ["c"]}),
            interface(shown={"type": "object", "properties": {"c": STRING}}),
            [f"{SHOWN}.c: may be absent"],
        ),
        (interface(), interface(responses={"201": {}}), ["POST /x 200: removed"]),
        (
            interface(),
            interface(responses={"200": {"content": {"text/csv": {}}}}),
            ["POST /x 200: no longer application/json"],
        ),
        # Operations.
        (interface(), {"paths": {}}, ["POST /x: removed"]),
        ({"paths": {}}, interface(), []),
    ],
)
def test_only_a_change_that_breaks_a_client_is_incompatible(
    old: dict[str, Any], new: dict[str, Any], changes: list[str]
) -> None:
    assert incompatible_changes(old, new) == changes


def test_a_schema_may_contain_itself() -> None:
    old = interface({"$ref": "#/components/schemas/Body"})
    new = copy.deepcopy(old)
    new["components"]["schemas"]["Body"]["required"] = ["a"]
    assert incompatible_changes(old, new) == [f"{SENT}: required"]
