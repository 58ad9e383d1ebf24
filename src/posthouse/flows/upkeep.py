"""Upkeep: partitions ahead, old days behind, expired keys gone, domains still proved, seals renewed, keys complete."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, TypeVar

import structlog

from posthouse.clock import Clock
from posthouse.mail import dkim
from posthouse.rules import domain, limits
from posthouse.store import domains, idempotency, logins, partitions, webhooks
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

Done = TypeVar("Done")

KEYS_A_BATCH: Final = 5_000
DOMAINS_A_ROUND_MAX: Final = 200
SEALS_A_BATCH: Final = 200
NEW_KEYS_A_ROUND_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that a partition is kept after its own; a body, and an event, as long as a replay could need it."""

    messages_days: int
    bodies_days: int
    webhooks_days: int = 7

    def days(self, table: str) -> int:
        match table:
            case "bodies":
                return self.bodies_days
            case "webhook_deliveries":
                return self.webhooks_days
            case "events":
                return max(self.messages_days, self.webhooks_days)
            case _:
                return self.messages_days


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    partitions_made: int = 0
    partitions_dropped: int = 0
    keys_forgotten: int = 0
    domains_checked: int = 0
    domains_lost: int = 0
    secrets_resealed: int = 0
    domain_keys_made: int = 0


class Upkeep:
    def __init__(
        self, *, database: Database, clock: Clock, resolver: Resolver, sealer: Sealer, retention: Retention
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._resolver = resolver
        self._retention = retention

    async def round(self) -> Round:
        """Every chore once. One that fails is logged, the others are done, and then the first fault is raised."""
        faults: list[Exception] = []

        async def tried(chore: Callable[[], Awaitable[Done]], otherwise: Done) -> Done:
            try:
                return await chore()
            except Exception as fault:
                log.exception("chore_failed", chore=chore.__name__)
                faults.append(fault)
                return otherwise

        made = await tried(self.make_partitions, 0)
        dropped = await tried(self.drop_partitions, 0)
        forgotten = await tried(self.forget_expired, 0)
        checked, lost = await tried(self.recheck_domains, (0, 0))
        resealed = await tried(self.reseal, 0)
        keys_made = await tried(self.make_ed25519_keys, 0)
        if faults:
            raise faults[0]
        return Round(made, dropped, forgotten, checked, lost, resealed, keys_made)

    async def make_partitions(self) -> int:
        """Every table has a partition for yesterday, today and the days ahead."""
        today = self._clock.now().date()
        days = [today + timedelta(days=ahead) for ahead in range(-1, limits.PARTITION_DAYS_AHEAD + 1)]
        wanted = [Partition(day, table) for day in days for table in partitions.TABLES]
        made = 0
        async with self._database.connection() as connection, partitions.alone(connection) as is_alone:
            if not is_alone:
                return 0
            there = set(await partitions.attached(connection))
            for partition in wanted:
                if partition not in there:
                    async with connection.transaction():
                        await partitions.create(connection, partition)
                    made += 1
        return made

    async def drop_partitions(self) -> int:
        """Days past their retention go, the oldest first, once nothing of them or before them is open."""
        async with self._database.connection() as connection, partitions.alone(connection) as is_alone:
            if not is_alone:
                return 0
            for partition in await partitions.leaving(connection):
                await partitions.finish_detaching(connection, partition)
            for partition in await partitions.attached(connection):
                if await self._is_over(connection, partition):
                    await partitions.detach(connection, partition)
            dropped = [one for one in await partitions.detached(connection) if one.day < self._last_kept(one.table)]
            for partition in dropped:
                async with connection.transaction():
                    await partitions.drop(connection, partition)
        return len(dropped)

    async def _is_over(self, connection: Connection, partition: Partition) -> bool:
        if partition.day >= self._last_kept(partition.table):
            return False
        return await partitions.is_finished(connection, partition)

    def _last_kept(self, table: str) -> date:
        return self._clock.now().date() - timedelta(days=self._retention.days(table))

    async def forget_expired(self) -> int:
        """Keys past their lifetime, in batches that hold no lock for long."""
        now = self._clock.now()
        total = 0
        while True:
            async with self._database.transaction() as tx:
                count = await idempotency.delete_expired(tx, now, KEYS_A_BATCH)
            total += count
            if count < KEYS_A_BATCH:
                break
        async with self._database.transaction() as tx:
            await logins.forget_old(tx, now)
        return total

    async def recheck_domains(self) -> tuple[int, int]:
        """Look daily whether verified domains are still proved; a week of missing records un-verifies one."""
        now = self._clock.now()
        checked_before = now - timedelta(seconds=limits.DOMAIN_RECHECK_SECONDS)
        async with self._database.connection() as connection:
            due = await domains.due_for_check(connection, checked_before, DOMAINS_A_ROUND_MAX)
        lost = 0
        for row in due:
            wanted = domain.records(
                row.name, row.token, row.selector, row.dkim_public, row.ed25519_selector, row.ed25519_public
            )
            judgement = domain.judge(wanted, *[await self._resolver.texts(record.name) for record in wanted.all])
            published = judgement.is_ed25519_published(row.ed25519_published)
            now = self._clock.now()
            verified_at, missing_since = domain.after_check(row.verified_at, row.missing_since, judgement.result, now)
            async with self._database.transaction() as tx:
                await domains.record_check(tx, row, verified_at, missing_since, now, published, now)
            if missing_since is not None or verified_at is None:
                advice = [finding.advice for finding in judgement.findings if finding.advice]
                log.warning("domain_records_missing", domain=row.name, verified=verified_at is not None, advice=advice)
            lost += verified_at is None
        return len(due), lost

    async def reseal(self) -> int:
        """What a retired key sealed is sealed anew with the active one, so that the old key can go."""
        retired = sorted(self._sealer.retired_key_ids)
        return await self._reseal_domains(retired) + await self._reseal_endpoints(retired) if retired else 0

    async def _reseal_domains(self, retired: Sequence[str]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                found = await domains.sealed_with(tx, retired, SEALS_A_BATCH)
                for row in found:
                    rsa = self._resealed(row.dkim_sealed, domains.dkim_purpose(row.account_id, row.id))
                    ed25519 = None
                    if row.ed25519_sealed is not None:
                        ed25519 = self._resealed(row.ed25519_sealed, domains.ed25519_purpose(row.account_id, row.id))
                    await domains.reseal(tx, row, rsa, ed25519)
                    total += 1 if ed25519 is None else 2
            if len(found) < SEALS_A_BATCH:
                break
        return total

    async def _reseal_endpoints(self, retired: Sequence[str]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                found = await webhooks.sealed_with(tx, retired, SEALS_A_BATCH)
                for row in found:
                    sealed = self._resealed(row.secret_sealed, webhooks.secret_purpose(row.account_id))
                    await webhooks.reseal(tx, row, sealed)
            total += len(found)
            if len(found) < SEALS_A_BATCH:
                break
        return total

    def _resealed(self, sealed: bytes, purpose: bytes) -> bytes:
        return self._sealer.seal(self._sealer.open(sealed, purpose), purpose)

    async def make_ed25519_keys(self) -> int:
        """Domains that were registered before there were such keys get one; it signs once its record is seen."""
        async with self._database.transaction() as tx:
            found = await domains.without_ed25519(tx, NEW_KEYS_A_ROUND_MAX)
            for row in found:
                pair = dkim.new_ed25519_key_pair()
                sealed = self._sealer.seal(pair.private_der, domains.ed25519_purpose(row.account_id, row.id))
                await domains.set_ed25519(tx, row, domain.ed25519_selector(row.selector), pair.public, sealed)
        return len(found)
