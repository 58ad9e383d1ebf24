"""Maintenance: partitions made and dropped, expired rows deleted, domains checked again, secrets resealed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

import structlog

from posthouse import crash, metrics
from posthouse.flows.operate.address_check import AddressCheck
from posthouse.flows.operate.partitions import Partitions
from posthouse.flows.operate.secrets import Reseal
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.domain_check import DomainCheck, waiting_among
from posthouse.rules import erasure, ids, limits, reputation, resend, retry, service_time
from posthouse.rules.credential import SERVICE
from posthouse.store import (
    address_quotas,
    audit_log,
    credentials,
    domains,
    erasures,
    invitations,
    learned_limits,
    logins,
    maintenance,
    message_changes,
    reroutes,
    resends,
    sessions,
    suppressions,
    webhook_schedule,
)
from posthouse.store import reputation as reputation_store
from posthouse.store.domains import DomainRow
from posthouse.store.postgres import Connection, Database
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

CONTENTS_A_PAGE: Final = 1_000
KEYS_A_BATCH: Final = 5_000
DOMAINS_A_RUN_MAX: Final = 200
ACCOUNTS_RAISED_A_RUN_MAX: Final = 1_000
WEBHOOK_OVERDUE_MAX: Final = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    """What a run did."""

    partitions_made: int = 0
    partitions_dropped: int = 0
    keys_forgotten: int = 0
    sessions_forgotten: int = 0
    domains_checked: int = 0
    domains_lost: int = 0
    secrets_resealed: int = 0
    webhooks_ended: int = 0
    addresses_checked: int = 0
    accounts_raised: int = 0
    contents_forgotten: int = 0


class _Task(NamedTuple):
    """`counts` names the fields of MaintenanceRun that hold the task's result."""

    name: str
    work: Callable[[], Awaitable[int | tuple[int, ...]]]
    counts: tuple[str, ...]
    deletes: bool = False


class Maintenance(Flow):
    def __init__(
        self,
        context: Context,
        *,
        resolver: Resolver,
        partitions: Partitions,
        clock_step: Callable[[], timedelta | None] = lambda: None,
        address_check: AddressCheck | None = None,
    ) -> None:
        """Nothing is deleted while `clock_step` says that the database's clock is not trusted."""
        super().__init__(context)
        self._domain_check = DomainCheck(context, resolver=resolver)
        self._address_check = address_check
        self._reseal = Reseal(context)
        self.partitions = partitions
        self._clock_step = clock_step
        self._tasks = (
            _Task("make_partitions", partitions.make, ("partitions_made",)),
            _Task("drop_partitions", partitions.drop, ("partitions_dropped",), deletes=True),
            _Task("forget_expired", self.forget_expired, ("keys_forgotten",), deletes=True),
            _Task("forget_sessions", self.forget_sessions, ("sessions_forgotten",), deletes=True),
            _Task("end_overdue_webhooks", self.end_overdue_webhooks, ("webhooks_ended",), deletes=True),
            _Task("recheck_domains", self.recheck_domains, ("domains_checked", "domains_lost")),
            _Task("reseal", self.reseal, ("secrets_resealed",)),
            _Task("check_addresses", self.check_addresses, ("addresses_checked",)),
            _Task("raise_accounts", self.raise_accounts, ("accounts_raised",)),
            _Task("forget_contents", self.forget_contents, ("contents_forgotten",)),
        )

    async def run(self) -> MaintenanceRun:
        """Run every task. A failure is logged and does not stop the others; the first is raised at the end."""
        counts: dict[str, int] = {}
        faults: list[Exception] = []
        step = self._clock_step()
        if step is not None:
            log.error("nothing_is_deleted", advice=service_time.explain(step))
        for task in self._tasks:
            if task.deletes and step is not None:
                continue
            try:
                done = await task.work()
            except Exception as fault:
                log.exception("maintenance_task_failed", task=task.name)
                metrics.MAINTENANCE.count(task.name, "failed")
                faults.append(fault)
            else:
                metrics.MAINTENANCE.count(task.name, "done")
                counts.update(zip(task.counts, done if isinstance(done, tuple) else (done,), strict=True))
        if faults:
            raise faults[0]
        metrics.MAINTENANCE_AT.set(self._clock.now().timestamp())
        async with self._database.transaction() as tx:
            await maintenance.note_run(tx, maintenance.MAINTENANCE, self._clock.now())
        return MaintenanceRun(**counts)

    async def forget_contents(self) -> int:
        """Delete bodies that are to be forgotten and whose messages are final; returns how many."""
        return await forget_contents(self._database)

    async def raise_accounts(self) -> int:
        """Raise accounts that have had a good reputation for long enough to the tier `good`."""
        since = self._clock.now() - reputation.GOOD_AFTER
        async with self._database.transaction() as tx:
            raised = await reputation_store.raise_good(
                tx, since, reputation.GOOD_DELIVERED_MIN, ACCOUNTS_RAISED_A_RUN_MAX
            )
        for account_id in raised:
            log.info("account_is_good", account=ids.text(ids.ACCOUNT, account_id))
        return len(raised)

    async def forget_expired(self) -> int:
        """Delete expired rows, in batches that hold no lock for long; returns the number of idempotency keys."""
        now = self._clock.now()
        keys = await self._delete_in_batches(lambda tx: maintenance.delete_expired_keys(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: logins.forget_old_failures(tx, now, KEYS_A_BATCH))
        async with self._database.transaction() as tx:
            await domains.forget_keys(tx, now - timedelta(seconds=limits.DOMAIN_KEYS_RETIRED_SECONDS))
        await self._delete_in_batches(lambda tx: invitations.forget_expired(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: logins.forget_expired_resets(tx, now, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: suppressions.forget_lifted(tx, now - reputation.WINDOW, KEYS_A_BATCH))
        uncounted = ids.lowest_id(now - reputation.WINDOW)
        await self._delete_in_batches(lambda tx: erasures.forget_recipients(tx, uncounted, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: invitations.forget_mailed(tx, uncounted, KEYS_A_BATCH))
        keys_ended_before = now - timedelta(days=limits.KEYS_ENDED_DAYS)
        await self._delete_in_batches(lambda tx: credentials.delete_ended_keys(tx, keys_ended_before, KEYS_A_BATCH))
        await self._delete_in_batches(
            lambda tx: message_changes.forget_old(tx, now - retry.REQUEST_REMEMBERED, KEYS_A_BATCH)
        )
        await self._delete_in_batches(lambda tx: resends.forget_old(tx, now - resend.REMEMBERED, KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: erasures.forget_old(tx, now - erasure.REMEMBERED, KEYS_A_BATCH))
        entries_kept = timedelta(days=limits.AUDIT_LOG_DAYS)
        await self._delete_in_batches(lambda tx: audit_log.forget_old(tx, now - entries_kept, KEYS_A_BATCH))
        await self._delete_in_batches(
            lambda tx: audit_log.forget_old_operator_entries(tx, now - entries_kept, KEYS_A_BATCH)
        )
        limit_changes_before = now - timedelta(days=limits.LIMIT_CHANGES_DAYS)
        await self._delete_in_batches(
            lambda tx: learned_limits.forget_limit_changes(tx, limit_changes_before, KEYS_A_BATCH)
        )
        await self._delete_in_batches(
            lambda tx: learned_limits.forget_learned_limits(tx, limit_changes_before, KEYS_A_BATCH)
        )
        await self._delete_in_batches(lambda tx: address_quotas.forget(tx, limit_changes_before.date(), KEYS_A_BATCH))
        await self._delete_in_batches(lambda tx: reroutes.forget(tx, limit_changes_before, KEYS_A_BATCH))
        return keys

    async def forget_sessions(self) -> int:
        """Delete logins whose tokens have all expired."""
        now = self._clock.now()
        return await self._delete_in_batches(lambda tx: sessions.delete_expired(tx, now, KEYS_A_BATCH))

    async def end_overdue_webhooks(self) -> int:
        """End webhook deliveries whose last scheduled attempt was due long ago: they would keep their day forever."""
        due_before = self._clock.now() - WEBHOOK_OVERDUE_MAX
        return await self._delete_in_batches(lambda tx: webhook_schedule.end_overdue(tx, due_before, KEYS_A_BATCH))

    async def _delete_in_batches(self, delete: Callable[[Connection], Awaitable[int]]) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                count = await delete(tx)
                crash.point("maintenance.before_forgetting")
            crash.point("maintenance.forgotten")
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
        """Reseal what a retired key sealed; returns how many secrets."""
        return await self._reseal.run()

    async def check_addresses(self) -> int:
        """Check sending addresses in DNS, each of them hourly; returns how many."""
        return 0 if self._address_check is None else await self._address_check.run()


async def forget_contents(database: Database, page_rows: int = CONTENTS_A_PAGE) -> int:
    """Go through all that is waiting, a page per transaction; returns how many bodies were deleted."""
    after, deleted = maintenance.FIRST_BODY, 0
    while True:
        async with database.transaction() as tx:
            page = await maintenance.bodies_to_delete(tx, after, page_rows)
            final = [content for content in page if content.is_final]
            if final:
                await maintenance.delete_bodies(tx, final)
                crash.point("maintenance.before_forgetting_content")
        if final:
            crash.point("maintenance.forgotten_content")
        deleted += len(final)
        if len(page) < page_rows:
            return deleted
        after = page[-1].account_id, page[-1].message_id
