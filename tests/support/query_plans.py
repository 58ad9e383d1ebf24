"""Query plans: how PostgreSQL would run a statement that was planned while its tables were empty."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from posthouse.rules.ids import lowest_id
from posthouse.store.postgres import Connection, Database
from posthouse.store.statement import DayStatement, Statement


def statements(*modules: ModuleType) -> dict[str, str]:
    """The modules' statements, by module and name; those on a day's partition also as they are today."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}{suffix}": text
        for module in modules
        for name, value in vars(module).items()
        for suffix, text in _texts(value)
        if name.isupper()
        and isinstance(text, str)
        and any(verb in text for verb in ("SELECT", "UPDATE", "DELETE"))
        # A part of statements has names where these have numbers.
        and not re.search(r"(?<![:\w]):[a-z]", text)
    }


def _texts(value: object) -> list[tuple[str, object]]:
    match value:
        case Statement():
            return [("", value.text)]
        case DayStatement():
            return [("", value.for_days(None).text), (", one day", value.for_days(datetime.now(UTC).date()).text)]
        case _:
            return [("", value)]


async def scans(database: Database, statement: str, *, analysed: str = "") -> list[dict[str, Any]]:
    """The parts of the plan that read a table; statistics of an `analysed` one say that it is empty."""
    today = datetime.now(UTC)
    values = {
        "uuid": f"'{lowest_id(today)}'",
        "timestamptz": f"'{today}'",
        "date": f"'{today.date()}'",
        "interval": "'1 day'",
        "bytea": "''",
        "bool": "false",
    }
    async with database.connection() as connection:
        if analysed:
            await connection.execute(f"ANALYZE {analysed}")
        types = await parameters(connection, statement)
        arguments = ["'{}'" if kind.kind == "array" else values.get(kind.name, "1") for kind in types]
        # Only what is executed by name is planned as it is planned for us.
        await connection.execute(f"PREPARE shown AS {statement}")
        given = f"({', '.join(arguments)})" if arguments else ""
        explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON, VERBOSE) EXECUTE shown{given}")
        await connection.execute("DEALLOCATE shown")
    (plan,) = json.loads(explained)
    return [node for node in nodes(plan["Plan"]) if node["Node Type"].endswith("Scan") and "Relation Name" in node]


async def parameters(connection: Connection, statement: str) -> tuple[Any, ...]:
    """The types of the statement's parameters, as asyncpg describes them."""
    raw: Any = connection
    found: tuple[Any, ...] = (await raw.prepare(statement)).get_parameters()
    return found


def condition(scan: dict[str, Any]) -> str:
    """What the rows are found by; empty when all of them are read."""
    found: str = scan.get("Index Cond", scan.get("Recheck Cond", scan.get("TID Cond", "")))
    return "" if scan["Node Type"] == "Seq Scan" else found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a plan, each before those that it reads from."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)
