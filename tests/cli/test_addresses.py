"""Sending addresses and pools, on the command line."""

import asyncio
import json

import asyncpg

from tests.cli.conftest import Type


def test_addresses_are_added_listed_rested_and_retired(typed: Type) -> None:
    assert "from the machine's own address" in typed("address", "list").stdout
    assert "leaves from 127.0.0.7, as mta.example.com" in typed("address", "add", "127.0.0.7", "mta.example.com").stdout
    assert "does not have 192.0.2.1" in typed("address", "add", "192.0.2.1", "b.example.com").stdout
    (first, second) = json.loads(typed("address", "list", "--json").stdout)
    assert (first["ip"], first["hostname"], first["pool"], first["state"]) == (
        "127.0.0.7", "mta.example.com", "default", "active",
    )  # fmt: skip
    assert second["ip"] == "192.0.2.1"
    assert "The other addresses" in typed("address", "retire", "192.0.2.1").stdout
    assert "its mail waits" in typed("address", "rest", "127.0.0.7").stdout
    assert "127.0.0.7  mta.example.com  default  resting" in typed("address", "list").stdout
    assert json.loads(typed("address", "add", "127.0.0.7", "--json").stdout)["state"] == "active"
    assert "never added" in typed("address", "rest", "127.0.0.9", status=1).stderr
    lines = typed("log").stdout.splitlines()
    assert [line.split()[3] for line in lines[2:]] == [
        "address.added", "address.rested", "address.retired", "address.added", "address.added",
    ]  # fmt: skip


def test_pools_are_made_and_given_to_accounts(typed: Type) -> None:
    assert "There are none" in typed("pool", "list").stdout
    typed("address", "add", "127.0.0.7", "mta.example.com")
    assert "--pool own" in typed("pool", "add", "own", "--overflow", "default").stdout
    assert "choose another name" in typed("pool", "add", "own", status=1).stderr
    typed("account", "create", "Acme")
    assert "leaves from the pool own" in typed("account", "pool", "acme", "own").stdout
    pools = json.loads(typed("pool", "list", "--json").stdout)
    assert [(row["name"], row["addresses"], row["accounts"]) for row in pools] == [("default", 1, 0), ("own", 0, 1)]
    assert "leaves from the pool of its tier" in typed("account", "pool", "Acme", "--none").stdout
    assert "give a pool" in typed("account", "pool", "Acme", status=1).stderr


def test_a_new_address_warms_up_unless_providers_know_it(typed: Type, database_url: str) -> None:
    assert "No address warms up" in typed("warmup").stdout
    assert "It warms up" in typed("address", "add", "127.0.0.7", "mta.example.com").stdout
    assert "It warms up" not in typed("address", "add", "127.0.0.8", "b.example.com", "--warm").stdout
    since = {row["ip"]: row["warms_up_since"] for row in json.loads(typed("address", "list", "--json").stdout)}
    assert (since["127.0.0.7"] is None, since["127.0.0.8"]) == (False, None)
    asyncio.run(put_warm_up(database_url))
    (row,) = json.loads(typed("warmup", "--json").stdout)
    assert (row["day"], row["quota"], row["used"], row["accepted"], row["change"]) == (3, 280, 60, 50, "grew")
    assert "it grew: the day before went well" in typed("warmup").stdout
    # Known again: no warm-up.
    typed("address", "add", "127.0.0.7", "--warm")


async def put_warm_up(database_url: str) -> None:
    kept = {"day": 3, "quota": 280, "change": "grew", "taken": [200, 200], "bad_days": 0, "good_days": 2}
    kept |= {"idle_days": 0, "was_blocked": False, "was_slow": False}
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "INSERT INTO address_quotas (ip, lane, day, hour, granted, accepted, warm_up) "
        "VALUES ('127.0.0.7', 'google', (now() AT TIME ZONE 'UTC')::date, 0, 60, 50, $1)",
        json.dumps(kept),
    )
    await connection.close()
