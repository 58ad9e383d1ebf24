"""Suppressed addresses, on the command line."""

import json
from functools import partial

from tests.cli.conftest import Type


def test_addresses_are_added_listed_and_removed(typed: Type) -> None:
    typed("account", "create", "Acme")
    suppression = partial(typed, "suppression")
    assert "No address is suppressed." in suppression("list", "Acme").stdout
    assert "ada@example.org is suppressed." in suppression("add", "acme", "Ada@example.org", "--note", "asked").stdout
    assert "already (manual)" in suppression("add", "Acme", "ada@example.org").stdout
    suppression("add", "Acme", "bob@example.net", "--json")
    (ada,) = json.loads(suppression("list", "Acme", "--search", "@example.org", "--json").stdout)
    assert (ada["email"], ada["reason"], ada["note"], ada["added_by"]) == (
        "ada@example.org", "manual", "asked", "operator",
    )  # fmt: skip
    assert "There are more" in suppression("list", "Acme", "--limit", "1").stdout
    assert [row["email"] for row in json.loads(suppression("list", "Acme", "--reason", "manual", "--json").stdout)] == [
        "bob@example.net", "ada@example.org",
    ]  # fmt: skip
    assert "no longer suppressed" in suppression("remove", "Acme", "ada@example.org", "--reason", "a mistake").stdout
    assert "no such address" in suppression("remove", "Acme", "ada@example.org", "--reason", "x", status=1).stderr
    assert "no @" in suppression("add", "Acme", "absent", status=1).stderr
    assert "no account" in suppression("list", "Absent", status=1).stderr
