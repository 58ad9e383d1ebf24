"""Upkeep with the usual retention; a test passes what it is about."""

from typing import Any

from posthouse.chance import SystemChance
from posthouse.clock import Clock
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver


def new_upkeep(database: Database, clock: Clock, **given: Any) -> Upkeep:
    usual: dict[str, Any] = {
        "chance": SystemChance(),
        "resolver": Resolver(),
        "sealer": Sealer({"1": bytes(32)}, "1"),
        "retention": Retention(30, 3),
    }
    return Upkeep(database=database, clock=clock, **{**usual, **given})
