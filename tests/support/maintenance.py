"""Maintenance with the usual retention; a test passes what it is about."""

from typing import Any

from posthouse.clock import Clock
from posthouse.flows.operate.maintenance import Maintenance, Retention
from posthouse.store.postgres import Database
from posthouse.wire.dns import Resolver
from tests.support.context import context


def new_maintenance(database: Database, clock: Clock, **given: Any) -> Maintenance:
    of_context = {name: given.pop(name) for name in ("randomness", "sealer") if name in given}
    usual: dict[str, Any] = {"resolver": Resolver(), "retention": Retention(30, 3)}
    return Maintenance(context(database, clock, **of_context), **{**usual, **given})
