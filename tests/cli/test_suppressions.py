"""Suppressed addresses, on the command line."""

import json
import os
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from posthouse.cli.app import app
from tests.support.service import settings_for

Type = Callable[..., Result]


@pytest.fixture
def typed(database_url: str) -> Type:
    others: dict[str, str | None] = {name: None for name in os.environ if name.startswith("POSTHOUSE_")}

    def type_(*words: str, status: int = 0) -> Result:
        done = CliRunner().invoke(app, ["suppression", *words], env={**others, **settings_for(database_url)})
        assert done.exit_code == status, (done.output, done.exception)
        return done

    CliRunner().invoke(app, ["account", "create", "Acme"], env={**others, **settings_for(database_url)})
    return type_


def test_addresses_are_added_listed_and_removed(typed: Type) -> None:
    assert "No address is suppressed." in typed("list", "Acme").stdout
    assert "ada@example.org is suppressed." in typed("add", "acme", "Ada@example.org", "--note", "asked").stdout
    assert "already (manual)" in typed("add", "Acme", "ada@example.org").stdout
    typed("add", "Acme", "bob@example.net", "--json")
    (ada,) = json.loads(typed("list", "Acme", "--search", "@example.org", "--json").stdout)
    assert (ada["email"], ada["reason"], ada["note"], ada["added_by"]) == (
        "ada@example.org", "manual", "asked", "operator",
    )  # fmt: skip
    assert "There are more" in typed("list", "Acme", "--limit", "1").stdout
    assert [row["email"] for row in json.loads(typed("list", "Acme", "--reason", "manual", "--json").stdout)] == [
        "bob@example.net", "ada@example.org",
    ]  # fmt: skip
    assert "no longer suppressed" in typed("remove", "Acme", "ada@example.org", "--reason", "a mistake").stdout
    assert "no such address" in typed("remove", "Acme", "ada@example.org", "--reason", "x", status=1).stderr
    assert "no @" in typed("add", "Acme", "absent", status=1).stderr
    assert "no account" in typed("list", "Absent", status=1).stderr
