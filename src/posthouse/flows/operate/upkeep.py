"""Upkeep: partitions ahead, old days behind, expired keys gone, domains still proved, seals renewed, keys complete."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, TypeVar

import structlog

from posthouse import crash
from posthouse.chance import Chance, SystemChance
from posthouse.clock import Clock
from posthouse.flows.shared.domain_check import DomainCheck, waiting_among
from posthouse.mail import dkim
from posthouse.rules import domain, limits, reputation
from posthouse.rules.actor import SERVICE
from posthouse.store import (
    audit_log,
    domains,
    idempotency,
    invitations,
    logins,
    partitions,
    second_factors,
    sessions,
    suppressions,
    webhooks,
)
from posthouse.store.domains import DomainRow
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

Done = TypeVar("Done")

KEYS_A_BATCH: Final = 5_000
SESSIONS_A_BATCH: Final = 5_000
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
class UpkeepRound:
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
        self,
        *,
        database: Database,
        clock: Clock,
        resolver: Resolver,
        sealer: Sealer,
        retention: Retention,
        chance: Chance | None = None,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._domain_check = DomainCheck(
            database=database, clock=clock, chance=chance or SystemChance(), resolver=resolver
        )
        self._retention = retention

    async def round(self) -> UpkeepRound:
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
        await tried(self.forget_sessions, 0)
        checked, lost = await tried(self.recheck_domains, (0, 0))
        resealed = await tried(self.reseal, 0)
        keys_made = await tried(self.make_ed25519_keys, 0)
        if faults:
            raise faults[0]
        return UpkeepRound(made, dropped, forgotten, checked, lost, resealed, keys_made)

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
                        crash.point("upkeep.before_partition")
                    crash.point("upkeep.partition_made")
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
                    crash.point("upkeep.before_detaching")
                    await partitions.detach(connection, partition)
                    crash.point("upkeep.detached")
            dropped = [one for one in await partitions.detached(connection) if one.day < self._last_kept(one.table)]
            for partition in dropped:
                async with connection.transaction():
                    await partitions.drop(connection, partition)
                    crash.point("upkeep.before_drop")
                crash.point("upkeep.dropped")
        return len(dropped)

    async def _is_over(self, connection: Connection, partition: Partition) -> bool:
        if partition.day >= self._last_kept(partition.table):
            return False
        return await partitions.is_finished(connection, partition)

    def _last_kept(self, table: str) -> date:
        return self._clock.now().date() - timedelta(days=self._retention.days(table))

    async def forget_expired(self) -> int:
        """Keys, failed logins, invitations and entries past their lifetime, in batches that hold no lock for long."""
        now = self._clock.now()
        total = 0
        while True:
            async with self._database.transaction() as tx:
                count = await idempotency.delete_expired(tx, now, KEYS_A_BATCH)
                crash.point("upkeep.before_forgetting")
            crash.point("upkeep.forgotten")
            total += count
            if count < KEYS_A_BATCH:
                break
        await self._swept(lambda tx: logins.forget_old(tx, now, KEYS_A_BATCH))
        async with self._database.transaction() as tx:
            await domains.forget_keys(tx, now - timedelta(seconds=limits.DOMAIN_KEYS_RETIRED_SECONDS))
        await self._swept(lambda tx: invitations.forget_expired(tx, now, KEYS_A_BATCH))
        await self._swept(lambda tx: suppressions.forget_lifted(tx, now - reputation.WINDOW, KEYS_A_BATCH))
        entries_kept = timedelta(days=limits.AUDIT_LOG_DAYS)
        await self._swept(lambda tx: audit_log.forget_old(tx, now - entries_kept, KEYS_A_BATCH))
        return total

    async def _swept(self, sweep: Callable[[Connection], Awaitable[int]]) -> None:
        while True:
            async with self._database.transaction() as tx:
                if await sweep(tx) < KEYS_A_BATCH:
                    return

    async def forget_sessions(self) -> int:
        """Logins whose tokens have all expired."""
        now = self._clock.now()
        total = 0
        while True:
            async with self._database.transaction() as tx:
                count = await sessions.delete_expired(tx, now, SESSIONS_A_BATCH)
            total += count
            if count < SESSIONS_A_BATCH:
                return total

    async def recheck_domains(self) -> tuple[int, int]:
        """Look daily whether verified domains are still proved; a week of missing records un-verifies one.

        Domains whose new keys wait for their records are looked at more often. Returns how many domains there were,
        and how many of them are verified no more.
        """
        now = self._clock.now()
        checked_before = now - timedelta(seconds=limits.DOMAIN_RECHECK_SECONDS)
        keys_before = now - timedelta(seconds=limits.DOMAIN_PENDING_RECHECK_SECONDS)
        async with self._database.connection() as connection:
            due = [
                *await domains.due_for_check(connection, checked_before, DOMAINS_A_ROUND_MAX),
                *await domains.due_for_keys(connection, keys_before, DOMAINS_A_ROUND_MAX),
            ]
        by_id = {row.id: row for row in due}
        lost = 0
        for row in by_id.values():
            lost += await self._recheck(row)
        return len(by_id), lost

    async def _recheck(self, row: DomainRow) -> bool:
        """Whether the domain is verified no more."""
        async with self._database.connection() as connection:
            keys = (await domains.keys(connection, row.account_id, [row.id]))[row.id]
        look = await self._domain_check.look(row, waiting_among(keys))
        written = await self._domain_check.record(look, SERVICE)
        if written is None:
            return False
        if written.missing_since is not None or written.verified_at is None:
            advice = [finding.advice for finding in look.judgement.checks if finding.advice]
            log.warning(
                "domain_records_missing", domain=row.name, verified=written.verified_at is not None, advice=advice
            )
        return written.verified_at is None

    async def reseal(self) -> int:
        """What a retired key sealed is sealed anew with the active one, so that the old key can go."""
        retired = sorted(self._sealer.retired_key_ids)
        if not retired:
            return 0
        resealed = await self._reseal_domains(retired) + await self._reseal_endpoints(retired)
        return resealed + await self._reseal_second_factors(retired)

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
        return total + await self._reseal_waiting_keys(retired)

    async def _reseal_waiting_keys(self, retired: Sequence[str]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                found = await domains.keys_sealed_with(tx, retired, SEALS_A_BATCH)
                for row in found:
                    if row.dkim_sealed is not None and row.ed25519_sealed is not None:
                        rsa = self._resealed(row.dkim_sealed, domains.dkim_purpose(row.account_id, row.domain_id))
                        purpose = domains.ed25519_purpose(row.account_id, row.domain_id)
                        await domains.reseal_keys(tx, row, rsa, self._resealed(row.ed25519_sealed, purpose))
                        total += 2
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

    async def _reseal_second_factors(self, retired: Sequence[str]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                found = await second_factors.sealed_with(tx, retired, SEALS_A_BATCH)
                for row in found:
                    sealed = self._resealed(row.secret_sealed, second_factors.secret_purpose(row.user_id))
                    await second_factors.reseal(tx, row.user_id, sealed)
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
