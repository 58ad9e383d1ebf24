"""How long mail to each provider took, by hour, for all accounts together; and the delays that this shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules import usage
from posthouse.rules.usage import ProviderDelay
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class KnownDelay:
    provider: str
    since: datetime
    delay: ProviderDelay


_ADD: Final = statement("""
INSERT INTO provider_hours AS kept (provider, hour, delivered_counts)
SELECT provider, :hour, counts::bigint[] FROM unnest(:providers::text[], :counts::text[]) more (provider, counts)
ORDER BY provider
ON CONFLICT (provider, hour) DO UPDATE SET delivered_counts = ARRAY(
    SELECT old + new FROM unnest(kept.delivered_counts, excluded.delivered_counts) WITH ORDINALITY
        both_of(old, new, place) ORDER BY place)
""")
_HOURS: Final = statement("""
SELECT provider, delivered_counts FROM provider_hours
WHERE hour >= :since AND hour < :until AND (:providers::text[] IS NULL OR provider = ANY(:providers::text[]))
""")
_FORGET: Final = "DELETE FROM provider_hours WHERE hour < $1"
_KNOWN: Final = "SELECT provider, since, p95_seconds, week_p95_seconds FROM provider_delays ORDER BY since, provider"
_PUT: Final = """
INSERT INTO provider_delays (provider, since, p95_seconds, week_p95_seconds) VALUES ($1, $2, $3, $4)
ON CONFLICT (provider) DO UPDATE SET p95_seconds = excluded.p95_seconds, week_p95_seconds = excluded.week_p95_seconds
RETURNING xmax = 0
"""
_REMOVE: Final = "DELETE FROM provider_delays WHERE provider = $1 RETURNING 1"


async def add(tx: Connection, hour: datetime, delivered: Mapping[str, Sequence[int]]) -> None:
    """Add mail delivered in this hour: for each provider, a histogram of delivery times."""
    counts = ["{" + ",".join(map(str, counts)) + "}" for counts in delivered.values()]
    if counts:
        await tx.execute(*_ADD.bind(hour=hour, providers=list(delivered), counts=counts))


async def sums(
    connection: Connection, since: datetime, until: datetime, providers: Sequence[str] | None = None
) -> dict[str, list[int]]:
    """The deliveries in these hours to each provider, or only to these."""
    rows: dict[str, list[list[int]]] = {}
    for row in await connection.fetch(*_HOURS.bind(since=since, until=until, providers=providers)):
        rows.setdefault(row["provider"], []).append(row["delivered_counts"])
    return {provider: usage.sum_histograms(counts) for provider, counts in rows.items()}


async def known(connection: Connection) -> list[KnownDelay]:
    return [
        KnownDelay(row["provider"], row["since"], ProviderDelay(row["p95_seconds"], row["week_p95_seconds"]))
        for row in await connection.fetch(_KNOWN)
    ]


async def put(tx: Connection, provider: str, delay: ProviderDelay, now: datetime) -> bool:
    """Store the delay; returns whether it is new."""
    return bool(await tx.fetchval(_PUT, provider, now, *delay))


async def remove(tx: Connection, provider: str) -> bool:
    """End the delay; returns whether there was one."""
    return await tx.fetchval(_REMOVE, provider) is not None


async def forget(tx: Connection, before: datetime) -> None:
    await tx.execute(_FORGET, before)
