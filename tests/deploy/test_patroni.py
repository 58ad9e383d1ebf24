"""The files of `deploy/patroni`: no 202 for what only one server has. `make test-patroni` runs them."""

from typing import Any

import yaml

from tests.deploy.files import DEPLOY


def configuration() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "patroni" / "patroni.yml").read_text())
    return read


def test_each_commit_waits_for_a_standby_also_when_there_is_none() -> None:
    dcs = configuration()["bootstrap"]["dcs"]
    assert (dcs["synchronous_mode"], dcs["synchronous_mode_strict"], dcs["synchronous_node_count"]) == (
        "quorum",
        True,
        1,
    )
    parameters = dcs["postgresql"]["parameters"]
    assert {parameters[name] for name in ("fsync", "full_page_writes", "synchronous_commit")} == {"on"}


def test_a_primary_that_hangs_gives_up_before_another_is_promoted() -> None:
    """Patroni demands it: a leader stops within loop_wait + 2 * retry_timeout of its last renewal."""
    dcs = configuration()["bootstrap"]["dcs"]
    assert dcs["loop_wait"] + 2 * dcs["retry_timeout"] <= dcs["ttl"]


def test_what_differs_from_server_to_server_is_not_in_the_shared_file() -> None:
    lines = (DEPLOY / "patroni" / "node.env").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert values["PATRONI_NAME"]
    assert values["PATRONI_SUPERUSER_PASSWORD"] == values["PATRONI_REPLICATION_PASSWORD"] == ""
    assert "name" not in configuration()
