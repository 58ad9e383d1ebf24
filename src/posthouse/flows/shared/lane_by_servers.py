"""The lane of a destination, decided by its mail servers in DNS."""

from typing import assert_never

from posthouse.mail.mx_host import NullMx, mx_hosts
from posthouse.rules.lane import lane_by_hosts
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver


async def lane_by_servers(resolver: Resolver, destination: str) -> str | None:
    """None if DNS gave no answer."""
    answer = await resolver.mx_hosts(destination)
    match answer:
        case NoAnswer():
            return None
        case NoName():
            return destination
        case MxRecords(records):
            hosts = mx_hosts(destination, records, b"")
        case _:
            assert_never(answer)
    if isinstance(hosts, NullMx):
        return destination
    return lane_by_hosts(destination, [host.host for host in hosts])
