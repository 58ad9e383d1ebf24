"""Statements with named parameters: what is compiled, what is refused, and that every call gives the right names."""

import ast
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from posthouse import store
from posthouse.store.statement import DayStatement, Statement, statement


def test_names_become_numbers_in_the_order_of_their_first_use() -> None:
    found = statement("SELECT :b, :a, :b")
    assert (found.text, found.names) == ("SELECT $1, $2, $1", ("b", "a"))
    assert found.bind(a=1, b=2) == ("SELECT $1, $2, $1", 2, 1)
    assert statement("SELECT :text").bind(text="a") == ("SELECT $1", "a")
    assert statement("SELECT 1").bind() == ("SELECT 1",)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT '1'::integer::text",
        "SELECT ':a', 'it''s :a', E'\\x1f\\':a'",
        'SELECT ":a" -- :a',
        "SELECT tags[1:2], tags[1:n], (tags)[low:high]",
    ],
)
def test_casts_literals_comments_and_slices_are_left_unchanged(text: str) -> None:
    found = statement(text)
    assert (found.text, found.names) == (text, ())


def test_a_parameter_may_be_cast_and_may_be_an_array() -> None:
    found = statement(
        "SELECT unnest(:ids::uuid[], :codes ::smallint[]) WHERE :now::timestamptz > at AND id = ANY(:ids)"
    )
    assert found.text == "SELECT unnest($1::uuid[], $2 ::smallint[]) WHERE $3::timestamptz > at AND id = ANY($1)"


@pytest.mark.parametrize(
    "text", ["SELECT $1", "SELECT :a, $2", "SELECT $$:a$$", "SELECT $tag$ :a $tag$", "SELECT : a", "/* :a */"]
)
def test_numbered_parameters_block_comments_and_stray_colons_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="may only have :name parameters and line comments"):
        statement(text)


def test_a_keyword_is_not_a_name() -> None:
    with pytest.raises(SyntaxError):
        statement("SELECT :from")


def test_a_missing_and_an_unknown_name_are_refused() -> None:
    found = statement("SELECT :a, :b")
    with pytest.raises(TypeError, match="'b'"):
        found.bind(a=1)
    with pytest.raises(TypeError, match="'c'"):
        found.bind(a=1, b=2, c=3)
    with pytest.raises(TypeError, match="positional"):
        found.bind(1, 2)


MODULES = [importlib.import_module(f"posthouse.store.{name}") for _, name, _ in pkgutil.iter_modules(store.__path__)]


def _calls(module: ModuleType) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.Call]]:
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                called = node.func if isinstance(node, ast.Call) else None
                if (
                    isinstance(called, ast.Attribute)
                    and called.attr in ("bind", "bind_row")
                    and ast.unparse(called) != "self.bind"
                ):
                    yield function, typing.cast(ast.Call, node)


def _type(row: ast.expr, hints: dict[str, Any]) -> type:
    if isinstance(row, ast.Attribute):
        return typing.cast(type, typing.get_type_hints(_type(row.value, hints))[row.attr])
    assert isinstance(row, ast.Name), ast.unparse(row)
    return typing.cast(type, hints[row.id])


def _names(row: type) -> set[str]:
    """Its fields and properties."""
    return {*typing.get_type_hints(row), *[name for name, value in vars(row).items() if isinstance(value, property)]}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_call_gives_its_statement_the_names_that_it_has(module: ModuleType) -> None:
    statements = {
        name: value.for_days(None) if isinstance(value, DayStatement) else value
        for name, value in vars(module).items()
        if isinstance(value, Statement | DayStatement)
    }
    bound = set()
    for function, node in _calls(module):
        assert isinstance(node.func, ast.Attribute)
        named = node.func.value
        if isinstance(named, ast.Call) and isinstance(named.func, ast.Attribute) and named.func.attr == "for_days":
            named = named.func.value  # `STATEMENT.for_days(day).bind(…)`
        # `(ONE if … else ANOTHER).bind(…)`
        either = [named.body, named.orelse] if isinstance(named, ast.IfExp) else [named]
        given = [keyword.arg or "**" for keyword in node.keywords]
        for one in either:
            assert isinstance(one, ast.Name), ast.unparse(node)
            names = set(statements[one.id].names)
            if node.func.attr == "bind_row":
                names -= _names(_type(node.args[0], typing.get_type_hints(getattr(module, function.name)))) - {*given}
            if "**" not in given:
                assert sorted(given) == sorted(names), f"{one.id}, line {node.lineno}"
            bound.add(one.id)
    assert statements.keys() == bound, "a statement that is never bound"


def test_a_row_gives_the_values_that_are_not_named() -> None:
    insert = statement("INSERT INTO t (a, b, c) VALUES (:a, :b, :c)")
    row = SimpleNamespace(a=1, b=2, other=3)
    assert insert.bind_row(row, b=4, c=5)[1:] == (1, 4, 5)
    with pytest.raises(AttributeError):
        insert.bind_row(row)
    with pytest.raises(TypeError):
        insert.bind_row(row, c=5, other=3)
