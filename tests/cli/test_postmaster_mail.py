"""Mail to the postmaster and accounts' reputation, on the command line."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from posthouse.clock import DatabaseClock
from posthouse.flows.inbound.reports import Reports
from posthouse.store.postgres import Database
from tests.cli.conftest import Type
from tests.support.context import context
from tests.support.feedback_loop import complaint_check

MAIL = b"Subject: =?utf-8?q?Stop=1B[2J_it?=\r\nFrom: ada@example.org\r\n\r\nPlease\x1b]0;x\x07 stop.\r\n"


def keep(database_url: str, *recipients: str) -> None:
    async def kept() -> None:
        database = await Database.open(database_url)
        reports = Reports(
            context(database, DatabaseClock(), return_path=()),
            return_path_domain="example.com",
            complaint_check=complaint_check(),
        )
        for recipient in recipients:
            assert await reports.keep(MAIL, recipient=recipient, sender="", peer="192.0.2.1")
        await database.close()

    asyncio.run(kept())


def listed(typed: Type) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(typed("postmaster-mail", "list", "--json").stdout)
    return rows


def test_mail_is_listed_shown_and_forgotten(typed: Type, database_url: str) -> None:
    assert "There is no postmaster mail." in typed("postmaster-mail", "list").stdout
    keep(database_url, "abuse@example.com", "postmaster@example.com", "postmaster")
    newest, middle, oldest = listed(typed)
    assert [mail["recipient"] for mail in (oldest, middle, newest)] == [
        "abuse@example.com", "postmaster@example.com", "postmaster",
    ]  # fmt: skip
    assert (newest["sender"], newest["peer"], newest["bytes"]) == ("", "192.0.2.1", len(MAIL))
    assert newest["id"] in typed("postmaster-mail", "list").stdout

    shown = typed("postmaster-mail", "show", oldest["id"]).stdout
    assert "abuse@example.com" in shown
    assert "stop." in shown
    # Untrusted text can't send control codes to the terminal.
    assert all(line.isprintable() for line in shown.splitlines())
    assert typed("postmaster-mail", "show", oldest["id"], "--raw").stdout_bytes == MAIL

    assert "Removed: 1." in typed("postmaster-mail", "remove", oldest["id"]).stdout
    assert "Removed: 0." in typed("postmaster-mail", "remove", oldest["id"]).stdout
    assert [mail["id"] for mail in listed(typed)] == [newest["id"], middle["id"]]
    assert "Removed: 2." in typed("postmaster-mail", "remove", "--all").stdout
    assert listed(typed) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "in_00000000000000000000000000"), "postmaster-mail list"),
        (("show", "hello"), "postmaster-mail list"),
        (("remove", "hello"), "postmaster-mail list"),
        (("remove",), "--all"),
        (("remove", "--all", "in_00000000000000000000000000"), "--all"),
    ],
)
def test_an_unknown_message_is_refused_with_a_hint(typed: Type, words: tuple[str, ...], expected: str) -> None:
    assert expected in typed("postmaster-mail", *words, status=1).stderr


def test_an_account_shows_its_reputation_and_can_be_exempt(typed: Type) -> None:
    typed("account", "create", "Acme")
    plain = typed("account", "reputation", "Acme").stdout
    assert "0 (0.0 %)" in plain
    for word, exempt in (("--exempt", True), ("--no-exempt", False)):
        assert json.loads(typed("account", "reputation", "Acme", word, "--json").stdout)["exempt"] is exempt
        again = json.loads(typed("account", "reputation", "Acme", "--json").stdout)
        assert (again["exempt"], again["verdict"], again["results"]) == (exempt, "well", 0)
    typed("account", "suspend", "Acme", "--reason", "its reputation")
    typed("account", "resume", "Acme")
    since = json.loads(typed("account", "reputation", "Acme", "--json").stdout)["counted_since"]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds() < 60
    assert "account list" in typed("account", "reputation", "absent", status=1).stderr
