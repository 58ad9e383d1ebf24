"""The relay of a pool."""

from typing import Final

from posthouse.flows.operate.relays import Relays
from tests.support.certificates import NAME
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow

PASSWORD: Final = "correct horse"


def relays_of(flow: DeliveryFlow) -> Relays:
    return Relays(context(flow.steps.database, flow.clock, sealer=flow.sealer))


async def use_relay(flow: DeliveryFlow, port: int, pool: str = "default", per_day: int | None = None) -> None:
    """The pool, made if needed, has a relay named ses at this port."""
    relays = relays_of(flow)
    flow.nameserver.records[NAME, "A"] = ["127.0.0.1"]
    await relays.add("ses", NAME, port=port, username="posthouse", password=PASSWORD, per_second=100.0, per_day=per_day)
    await flow.steps.fetch("INSERT INTO pools (name, created_at) VALUES ($1, now()) ON CONFLICT DO NOTHING", pool)
    await relays.set_pool_relay(pool, "ses")
    await flow.delivery.read_routes()
