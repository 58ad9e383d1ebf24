"""Maintenance with the usual retention; a test passes what it is about."""

from typing import Any

from posthouse.clock import Clock
from posthouse.flows.operate.maintenance import Maintenance
from posthouse.flows.operate.partitions import Partitions, Retention
from posthouse.store.postgres import Database
from posthouse.wire.dns import Resolver
from tests.support.context import context


def new_maintenance(database: Database, clock: Clock, **given: Any) -> Maintenance:
    its_context = context(
        database, clock, **{name: given.pop(name) for name in ("randomness", "sealer") if name in given}
    )
    clock_step = given.pop("clock_step", lambda: None)
    partitions = Partitions(its_context, retention=given.pop("retention", Retention(30, 3)), clock_step=clock_step)
    return Maintenance(
        its_context, **{"resolver": Resolver(), "partitions": partitions, "clock_step": clock_step, **given}
    )
