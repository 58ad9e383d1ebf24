"""The lane of a destination by its mail servers in DNS."""

from typing import assert_never

from posthouse.mail.exchange import NullExchange, exchanges
from posthouse.rules.lane import lane_by_hosts
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver


async def lane_by_servers(resolver: Resolver, destination: str) -> str | None:
    """None when DNS gave no answer."""
    answer = await resolver.exchanges(destination)
    match answer:
        case NoAnswer():
            return None
        case NoName():
            return destination
        case MxRecords(records):
            hosts = exchanges(destination, records, b"")
        case _:
            assert_never(answer)
    if isinstance(hosts, NullExchange):
        return destination
    return lane_by_hosts(destination, [host.host for host in hosts])
