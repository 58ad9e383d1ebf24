"""External relays, on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Type


def test_relays_are_added_given_to_pools_listed_and_removed(typed: Type, tmp_path: Path) -> None:
    assert "There are none" in typed("relay", "list").stdout
    added = typed("relay", "add", "ses", "smtp.example.com", "--username", "posthouse", given="very secret\n")
    assert "The relay ses is smtp.example.com:587" in added.stdout
    file = tmp_path / "password"
    file.write_text("other secret\n")
    more = ("--username", "us", "--port", "465", "--per-second", "2.5", "--password-file", str(file), "--json")
    assert json.loads(typed("relay", "add", "other", "smtp.example.net", *more).stdout)["port"] == 465
    typed("address", "add", "127.0.0.7", "mta.example.com")
    assert "over the relay ses" in typed("pool", "relay", "default", "ses").stdout
    assert "give a relay" in typed("pool", "relay", "default", status=1).stderr
    assert json.loads(typed("pool", "list", "--json").stdout)[0]["relay"] == "ses"
    listed = typed("relay", "list").stdout
    assert "secret" not in listed
    assert "smtp.example.net" in listed
    assert "uses the relay ses" in typed("relay", "remove", "ses", status=1).stderr
    assert "has no relay" in typed("pool", "relay", "default", "--none").stdout
    typed("relay", "remove", "ses")
    assert [row["name"] for row in json.loads(typed("relay", "list", "--json").stdout)] == ["other"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("Ses", "smtp.example.com", "--username", "us"), "name"),
        (("ses", "not a host", "--username", "us"), "domain"),
        (("ses", "smtp.example.com", "--username", "us", "--port", "0"), "port"),
        (("ses", "smtp.example.com", "--username", "us", "--per-second", "0"), "rate"),
        (("ses", "smtp.example.com", "--username", ""), "username"),
    ],
)
def test_what_can_t_be_a_relay_is_refused(typed: Type, words: tuple[str, ...], says: str) -> None:
    assert says in typed("relay", "add", *words, status=1, given="secret\n").stderr
