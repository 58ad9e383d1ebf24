"""Upkeep: makes coming days' partitions, drops old days, deletes what has expired, re-checks domains, renews seals."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse import crash, metrics
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.operate.address_check import AddressCheck
from posthouse.flows.operate.content_forgetting import ContentForgetting
from posthouse.flows.operate.reseal import Reseal
from posthouse.flows.shared.domain_check import DomainCheck, waiting_among
from posthouse.mail import dkim
from posthouse.rules import domain, erasure, ids, limits, reputation, resend, retry_request, service_time
from posthouse.rules.actor import SERVICE
from posthouse.store import (
    advisory_lock,
    allowances,
    audit_log,
    credentials,
    domains,
    erasures,
    idempotency,
    invitations,
    last_done,
    logins,
    message_retries,
    operator_log,
    partitions,
    password_resets,
    rescues,
    resends,
    sessions,
    standings,
    stragglers,
    suppressions,
    webhook_schedule,
)
from posthouse.store import reputation as reputation_store
from posthouse.store.advisory_lock import LockName
from posthouse.store.domains import DomainRow
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

KEYS_A_BATCH: Final = 5_000
DOMAINS_A_RUN_MAX: Final = 200
NEW_KEYS_A_RUN_MAX: Final = 200
ACCOUNTS_RAISED_A_RUN_MAX: Final = 1_000
DAYS_DROPPED_AT_ONCE_MAX: Final = 2
WEBHOOK_OVERDUE_MAX: Final = timedelta(days=3)
FINAL_FORGOTTEN_EVERY: Final = timedelta(hours=6)
# Days of all other tables wait until their messages' day is dropped or reduced.
_INDEPENDENT: Final = frozenset({"messages", "bodies", "endpoint_events", "webhook_deliveries"})


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that a partition is kept after its own day; bodies and events, as long as a replay could need them."""

    messages_days: int
    bodies_days: int
    webhooks_days: int = 7

    def days(self, table: str) -> int:
        match table:
            case "bodies":
                return self.bodies_days
            case "webhook_deliveries":
                return self.webhooks_days
            case "events" | "endpoint_events":
                return max(self.messages_days, self.webhooks_days)
            case _:
                return self.messages_days


@dataclass(frozen=True, slots=True)
class UpkeepRun:
    """What a run did."""

    partitions_made: int = 0
    partitions_dropped: int = 0
    keys_forgotten: int = 0
    sessions_forgotten: int = 0
    domains_checked: int = 0
    domains_lost: int = 0
    secrets_resealed: int = 0
    domain_keys_made: int = 0
    webhooks_ended: int = 0
    addresses_checked: int = 0
    accounts_raised: int = 0
    contents_forgotten: int = 0


class _Chore(NamedTuple):
    """`counts` names the fields of UpkeepRun that the chore's result fills."""

    name: str
    work: Callable[[], Awaitable[int | tuple[int, ...]]]
    counts: tuple[str, ...]
    deletes: bool = False


class Upkeep:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        resolver: Resolver,
        sealer: Sealer,
        retention: Retention,
        clock_step: Callable[[], timedelta | None] = lambda: None,
        address_check: AddressCheck | None = None,
    ) -> None:
        """Nothing is deleted while `clock_step` says that the database's clock is not believed."""
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._domain_check = DomainCheck(database=database, clock=clock, chance=chance, resolver=resolver)
        self._address_check = address_check
        self._reseal = Reseal(database=database, sealer=sealer)
        self._content_forgetting = ContentForgetting(database=database)
        self._retention = retention
        self._clock_step = clock_step
        self._forget_final_at: dict[Partition, datetime] = {}
        self._chores = (
            _Chore("make_partitions", self.make_partitions, ("partitions_made",)),
            _Chore("drop_partitions", self.drop_partitions, ("partitions_dropped",), deletes=True),
            _Chore("forget_expired", self.forget_expired, ("keys_forgotten",), deletes=True),
            _Chore("forget_sessions", self.forget_sessions, ("sessions_forgotten",), deletes=True),
            _Chore("end_overdue_webhooks", self.end_overdue_webhooks, ("webhooks_ended",), deletes=True),
            _Chore("recheck_domains", self.recheck_domains, ("domains_checked", "domains_lost")),
            _Chore("reseal", self.reseal, ("secrets_resealed",)),
            _Chore("make_ed25519_keys", self.make_ed25519_keys, ("domain_keys_made",)),
            _Chore("check_addresses", self.check_addresses, ("addresses_checked",)),
            _Chore("raise_accounts", self.raise_accounts, ("accounts_raised",)),
            _Chore("forget_contents", self.forget_contents, ("contents_forgotten",)),
        )

    async def run(self) -> UpkeepRun:
        """Run every chore. A failure is logged and does not stop the others; the first is raised at the end."""
        counts: dict[str, int] = {}
        faults: list[Exception] = []
        step = self._clock_step()
        if step is not None:
            log.error("nothing_is_deleted", advice=service_time.explain(step))
        for chore in self._chores:
            if chore.deletes and step is not None:
                continue
            try:
                done = await chore.work()
            except Exception as fault:
                log.exception("chore_failed", chore=chore.name)
                metrics.UPKEEP.count(chore.name, "failed")
                faults.append(fault)
            else:
                metrics.UPKEEP.count(chore.name, "done")
                counts.update(zip(chore.counts, done if isinstance(done, tuple) else (done,), strict=True))
        if faults:
            raise faults[0]
        metrics.UPKEEP_AT.set(self._clock.now().timestamp())
        async with self._database.transaction() as tx:
            await last_done.note(tx, last_done.UPKEEP, self._clock.now())
        return UpkeepRun(**counts)

    async def forget_contents(self) -> int:
        """Delete bodies that are to be forgotten and whose messages are final; returns how many."""
        return await self._content_forgetting.run()

    async def raise_accounts(self) -> int:
        """Accounts of good conduct for long enough: from now on their tier is `good`."""
        since = self._clock.now() - reputation.GOOD_AFTER
        async with self._database.transaction() as tx:
            raised = await reputation_store.raise_good(
                tx, since, reputation.GOOD_DELIVERED_MIN, ACCOUNTS_RAISED_A_RUN_MAX
            )
        for account_id in raised:
            log.info("account_is_good", account=ids.text(ids.ACCOUNT, account_id))
        return len(raised)

    async def make_partitions(self) -> int:
        """Make what is missing of every table's partitions for yesterday, today and the days ahead."""
        today = self._clock.now().date()
        days = [today + timedelta(days=ahead) for ahead in range(-1, limits.PARTITION_DAYS_AHEAD + 1)]
        wanted = [Partition(day, table) for day in days for table in partitions.TABLES]
        made = 0
        async with (
            self._database.connection() as connection,
            advisory_lock.try_lock(connection, LockName.PARTITIONS) as is_held,
        ):
            if not is_held:
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

    async def drop_partitions(self, *, at_once_max: int | None = DAYS_DROPPED_AT_ONCE_MAX) -> int:
        """Drop days past their retention, the oldest first; return how many. What is still needed of them is kept.

        Of each table at most `at_once_max` days: normally it is one, and a mistake must not cost everything at once.
        """
        if self._clock_step() is not None:
            return 0
        async with (
            self._database.connection() as connection,
            advisory_lock.try_lock(connection, LockName.PARTITIONS) as is_held,
        ):
            if not is_held:
                return 0
            for partition in await partitions.detaching(connection):
                await partitions.finish_detaching(connection, partition)
            await self._take_down(connection, at_once_max)
            dropped = self._over(await partitions.detached(connection), at_once_max)
            for partition in dropped:
                async with connection.transaction():
                    await partitions.drop(connection, partition)
                    crash.point("upkeep.before_drop")
                crash.point("upkeep.dropped")
        return len(dropped)

    async def _take_down(self, connection: Connection, at_once_max: int | None) -> None:
        """Detach days past their retention; where something is still needed, reduce them to that.

        Messages come first: what belongs to a message stays as long as the message's own row.
        """
        attached = await partitions.attached(connection)
        whole = {partition.day for partition in attached if partition.table == "messages" and not partition.is_reduced}
        taken: Counter[str] = Counter()
        for partition in self._over(attached, None):
            follows = partition.table not in _INDEPENDENT
            if taken[partition.table] == at_once_max or (follows and partition.day in whole):
                continue
            async with connection.transaction():
                is_needed = await stragglers.is_needed(connection, partition)
            if not is_needed:
                crash.point("upkeep.before_detaching")
                await partitions.detach(connection, partition)
                crash.point("upkeep.detached")
                self._forget_final_at.pop(partition, None)
            elif not await self._reduce(connection, partition):
                continue
            taken[partition.table] += not partition.is_reduced
            if partition.table == "messages":
                whole.discard(partition.day)

    async def _reduce(self, connection: Connection, partition: Partition) -> bool:
        """Reduce the day to what is still needed; False when its table is in use for too long."""
        if partition.is_reduced:
            await self._forget_final(connection, partition)
            return True
        try:
            async with connection.transaction():
                reduced = await stragglers.reduce(connection, partition)
                crash.point("upkeep.before_reducing")
        except stragglers.TableInUse as fault:
            log.warning("partition_in_use", partition=partition.name, reason=str(fault))
            return False
        crash.point("upkeep.reduced")
        log.info("partition_reduced", partition=partition.name)
        await self._forget_final(connection, reduced)
        return True

    async def _forget_final(self, connection: Connection, reduced: Partition) -> None:
        """Delete what became final since; not in every run, since that reads all that is left of the day."""
        now = self._clock.now()
        if now < self._forget_final_at.get(reduced, now):
            return
        self._forget_final_at[reduced] = now + FINAL_FORGOTTEN_EVERY
        page: int | None = 0
        while page is not None:
            async with connection.transaction():
                page = await stragglers.forget_final(connection, reduced, page)
                crash.point("upkeep.before_forgetting_final")
            crash.point("upkeep.forgotten_final")

    def _over(self, found: Iterable[Partition], at_once_max: int | None) -> list[Partition]:
        """Those past their retention, the oldest of each table."""
        over = [partition for partition in found if partition.day < self._last_kept(partition.table)]
        over.sort(key=lambda partition: (partition.day, partitions.TABLES.index(partition.table)))
        taken: Counter[str] = Counter()
        kept = []
        for partition in over:
            taken[partition.table] += 1
            if at_once_max is None or taken[partition.table] <= at_once_max:
                kept.append(partition)
        return kept

    def _last_kept(self, table: str) -> date:
        return self._clock.now().date() - timedelta(days=self._retention.days(table))

    async def forget_expired(self) -> int:
        """Delete what has expired, in batches that hold no lock for long; returns the number of idempotency keys."""
        now = self._clock.now()
        keys = await self._delete_in_batches(lambda tx: idempotency.delete_expired(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: logins.forget_old(tx, now, KEYS_A_BATCH))
        async with self._database.transaction() as tx:
            await domains.forget_keys(tx, now - timedelta(seconds=limits.DOMAIN_KEYS_RETIRED_SECONDS))
        await self._delete_in_batches(lambda tx: invitations.forget_expired(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: password_resets.forget_expired(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: suppressions.forget_lifted(tx, now - reputation.WINDOW, KEYS_A_BATCH))
        uncounted = ids.lowest_id(now - reputation.WINDOW)
        await self._delete_in_batches(lambda tx: erasures.forget_recipients(tx, uncounted, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: invitations.forget_mailed(tx, uncounted, KEYS_A_BATCH))
        keys_ended_before = now - timedelta(days=limits.KEYS_ENDED_DAYS)
        await self._delete_in_batches(lambda tx: credentials.delete_ended_keys(tx, keys_ended_before, KEYS_A_BATCH))
        await self._delete_in_batches(
            lambda tx: message_retries.forget_old(tx, now - retry_request.REMEMBERED, KEYS_A_BATCH)
        )
        await self._delete_in_batches(lambda tx: resends.forget_old(tx, now - resend.REMEMBERED, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: erasures.forget_old(tx, now - erasure.REMEMBERED, KEYS_A_BATCH))
        entries_kept = timedelta(days=limits.AUDIT_LOG_DAYS)
        await self._delete_in_batches(lambda tx: audit_log.forget_old(tx, now - entries_kept, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: operator_log.forget_old(tx, now - entries_kept, KEYS_A_BATCH))
        lessons_before = now - timedelta(days=limits.LESSONS_DAYS)
        await self._delete_in_batches(lambda tx: standings.forget_lessons(tx, lessons_before, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: standings.forget_standings(tx, lessons_before, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: allowances.forget(tx, lessons_before.date(), KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: rescues.forget(tx, lessons_before, KEYS_A_BATCH))
        return keys

    async def forget_sessions(self) -> int:
        """Delete logins whose tokens have all expired."""
        now = self._clock.now()
        return await self._delete_in_batches(lambda tx: sessions.delete_expired(tx, now, KEYS_A_BATCH))

    async def end_overdue_webhooks(self) -> int:
        """End webhook deliveries whose last scheduled attempt was due long ago: they would keep their day for ever."""
        due_before = self._clock.now() - WEBHOOK_OVERDUE_MAX
        return await self._delete_in_batches(lambda tx: webhook_schedule.end_overdue(tx, due_before, KEYS_A_BATCH))

    async def _delete_in_batches(self, delete: Callable[[Connection], Awaitable[int]]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                count = await delete(tx)
                crash.point("upkeep.before_forgetting")
            crash.point("upkeep.forgotten")
            total += count
            if count < KEYS_A_BATCH:
                return total

    async def recheck_domains(self) -> tuple[int, int]:
        """Check verified domains daily; a week of missing records makes a domain unverified.

        Domains with new keys that wait for their DNS records are checked more often. Returns how many domains were
        checked, and how many of them are no longer verified.
        """
        now = self._clock.now()
        checked_before = now - timedelta(seconds=limits.DOMAIN_RECHECK_SECONDS)
        keys_before = now - timedelta(seconds=limits.DOMAIN_PENDING_RECHECK_SECONDS)
        async with self._database.connection() as connection:
            due = [
                *await domains.due_for_check(connection, checked_before, DOMAINS_A_RUN_MAX),
                *await domains.due_for_keys(connection, keys_before, DOMAINS_A_RUN_MAX),
            ]
        by_id = {row.id: row for row in due}
        lost = 0
        for row in by_id.values():
            lost += await self._recheck(row)
        return len(by_id), lost

    async def _recheck(self, row: DomainRow) -> bool:
        """Returns whether the domain is no longer verified."""
        async with self._database.connection() as connection:
            keys = (await domains.keys(connection, row.account_id, [row.id]))[row.id]
        found = await self._domain_check.read_dns(row, waiting_among(keys))
        written = await self._domain_check.record(found, SERVICE)
        if written is None:
            return False
        if written.missing_since is not None or written.verified_at is None:
            advice = [finding.advice for finding in found.judgement.checks if finding.advice]
            log.warning(
                "domain_records_missing", domain=row.name, verified=written.verified_at is not None, advice=advice
            )
        return written.verified_at is None

    async def reseal(self) -> int:
        """Seal anew what a retired key sealed; returns how many secrets."""
        return await self._reseal.run()

    async def check_addresses(self) -> int:
        """Check sending addresses in DNS, each once an hour; returns how many."""
        return 0 if self._address_check is None else await self._address_check.run()

    async def make_ed25519_keys(self) -> int:
        """Make the Ed25519 key of domains registered before there were such keys; it signs once its record is found."""
        async with self._database.transaction() as tx:
            found = await domains.without_ed25519(tx, NEW_KEYS_A_RUN_MAX)
            for row in found:
                pair = dkim.new_ed25519_key_pair()
                sealed = self._sealer.seal(pair.private_der, domains.ed25519_purpose(row.account_id, row.id))
                await domains.set_ed25519(tx, row, domain.ed25519_selector(row.selector), pair.public, sealed)
        return len(found)
