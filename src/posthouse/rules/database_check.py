"""What is wrong with PostgreSQL and with the work that waits in it, from readings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from posthouse.rules.check_up import DoctorCheck, expect
from posthouse.rules.wait_reason import when

OLDEST_VERSION: Final = 15
LOCKS_PER_TRANSACTION_MIN: Final = 256
CLOCK_DIFFERENCE_MAX: Final = timedelta(seconds=5)
# This many of the connections for users other than superusers must be free.
CONNECTIONS_LEFT_MIN: Final = 5
TRANSACTION_MAX: Final = timedelta(hours=1)
SLOT_BYTES_MAX: Final = 4 * 1024**3
MAINTENANCE_MAX: Final = timedelta(hours=26)
DUE_MAX: Final = timedelta(minutes=15)
HELD_MAX: Final = timedelta(days=1)
NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """`connections` are those of clients; `usable_connections` how many there may be, without those for superusers.

    `synchronous_names` is the setting, `synchronous_standbys` how many standbys that commits wait for are connected.
    """

    version_number: int
    version: str
    clock: datetime
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    locks_per_transaction_max: int
    autovacuum: str
    is_standby: bool
    connections: int
    usable_connections: int
    synchronous_names: str
    synchronous_standbys: int
    idle_slots: Sequence[str]
    idle_slot_bytes: int
    archive_mode: str
    archive_failed_at: datetime | None
    archived_at: datetime | None
    oldest_transaction_at: datetime | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work that is not final, and since when the oldest waits. `workers` have a valid lease."""

    workers: int
    due: int
    oldest_due_at: datetime | None
    oldest_webhook_at: datetime | None
    held: int
    held_since: datetime | None
    restored: int
    pauses: Sequence[tuple[str, datetime]]
    domains_missing: Sequence[str]
    maintenance_at: datetime | None
    backup_at: datetime | None


def check_server(server: DatabaseServer, now: datetime) -> Iterator[DoctorCheck]:
    """`now` is this machine's time."""
    yield expect(
        "postgres_version",
        server.version_number >= OLDEST_VERSION * 10_000,
        server.version,
        f"Upgrade PostgreSQL to {OLDEST_VERSION} or newer.",
    )
    for setting, value in (
        ("fsync", server.fsync),
        ("full_page_writes", server.full_page_writes),
        ("synchronous_commit", server.synchronous_commit),
    ):
        yield expect(
            setting,
            value == "on",
            value,
            f"Set {setting} = on in postgresql.conf and restart PostgreSQL: accepted mail could be lost.",
        )
    yield expect(
        "locks",
        server.locks_per_transaction_max >= LOCKS_PER_TRANSACTION_MIN,
        f"max_locks_per_transaction = {server.locks_per_transaction_max}",
        f"Set max_locks_per_transaction = {LOCKS_PER_TRANSACTION_MIN} in postgresql.conf and restart PostgreSQL.",
    )
    yield expect(
        "primary",
        not server.is_standby,
        "it is a standby" if server.is_standby else "yes",
        "Let database.url name the primary, or promote this server (`pg_ctl promote`).",
    )
    yield expect(
        "autovacuum",
        server.autovacuum == "on",
        server.autovacuum,
        "Set autovacuum = on in postgresql.conf, and reload.",
    )
    left = server.usable_connections - server.connections
    yield expect(
        "connections",
        left >= CONNECTIONS_LEFT_MIN,
        f"{server.connections} of {server.usable_connections} in use",
        "Raise max_connections in postgresql.conf and restart PostgreSQL, or lower database.pool_max: an HTTP process "
        "may have pool_max, delivery and notification 7 each, maintenance 4, dispatch 2.",
    )
    yield from _copies(server)
    yield from _times(server, now)


def _copies(server: DatabaseServer) -> Iterator[DoctorCheck]:
    yield expect(
        "replication",
        not server.synchronous_names or server.synchronous_standbys > 0,
        f"{server.synchronous_standbys} for {server.synchronous_names}"
        if server.synchronous_names
        else "none is waited for",
        "Start a standby that synchronous_standby_names names, and see pg_stat_replication on the primary.",
    )
    is_short = server.idle_slot_bytes < SLOT_BYTES_MAX
    yield expect(
        "slots",
        is_short,
        f"{', '.join(server.idle_slots)}: {server.idle_slot_bytes // 1024**2:,} MiB are kept"
        if server.idle_slots
        else "all",
        f"Start the standby that uses it, or SELECT pg_drop_replication_slot('{next(iter(server.idle_slots), '')}').",
    )
    failed, done = server.archive_failed_at, server.archived_at
    is_failing = failed is not None and (done is None or done < failed)
    found = (
        "off"
        if server.archive_mode == "off"
        else "yes"
        if failed is None or not is_failing
        else f"failed {when(failed)}"
    )
    yield expect(
        "archive",
        server.archive_mode == "off" or not is_failing,
        found,
        "See the log of PostgreSQL for what archive_command said, and fix it; nothing is removed meanwhile.",
    )


def _times(server: DatabaseServer, now: datetime) -> Iterator[DoctorCheck]:
    difference = now - server.clock
    yield expect(
        "host_clock",
        abs(difference) <= CLOCK_DIFFERENCE_MAX,
        f"{difference.total_seconds():+.1f} s from the database's",
        "Let both machines keep time by NTP: `timedatectl set-ntp true`, then `timedatectl timesync-status`.",
    )
    began = server.oldest_transaction_at
    yield expect(
        "transactions",
        began is None or server.clock - began <= TRANSACTION_MAX,
        "yes" if began is None else f"the oldest began {when(began)}",
        "Find it in pg_stat_activity (ORDER BY xact_start), and end it: SELECT pg_terminate_backend(PID).",
    )


def check_waiting(waiting: Waiting, now: datetime, backup_max: timedelta | None) -> Iterator[DoctorCheck]:
    """`backup_max` is how old the last backup may be; None: it is not checked."""
    yield expect(
        "workers",
        waiting.workers > 0 or not waiting.due,
        f"{waiting.workers} with a valid lease",
        "Start `posthouse run delivery`; if it runs, its log says why it can't renew its lease.",
    )
    yield _age(
        "oldest_due",
        waiting.oldest_due_at,
        DUE_MAX,
        now,
        "See `posthouse queue top`.",
    )
    yield _age(
        "oldest_webhook", waiting.oldest_webhook_at, DUE_MAX, now, "Start `posthouse run notification`, and dispatch."
    )
    yield expect(
        "held",
        waiting.held_since is None or now - waiting.held_since <= HELD_MAX,
        "none is held"
        if waiting.held_since is None
        else f"{waiting.held:,} recipients since {when(waiting.held_since)}",
        "`posthouse queue release --older-than 0s --dry-run` says how much; release or cancel it.",
    )
    yield expect(
        "restored",
        not waiting.restored,
        f"{waiting.restored:,} recipients are held since a restore" if waiting.restored else "nothing is held",
        "See `posthouse restore show`; then `posthouse restore release`, or `posthouse queue cancel`.",
    )
    old = [(lane, since) for lane, since in waiting.pauses if now - since > HELD_MAX]
    yield expect(
        "pauses",
        not old,
        ", ".join(f"{lane} since {when(since)}" for lane, since in old) or "none is old",
        f"`posthouse lane resume {old[0][0] if old else ''}` ends it; `posthouse log` says who paused it.",
    )
    missing = waiting.domains_missing
    yield expect(
        "domains",
        not missing,
        f"missing for {', '.join(missing[:NAMED_MAX])}{' …' if len(missing) > NAMED_MAX else ''}"
        if missing
        else "all there",
        f"`posthouse domain verify ACCOUNT {missing[0] if missing else ''}` says which records to publish.",
    )
    yield expect(
        "maintenance",
        waiting.maintenance_at is None or now - waiting.maintenance_at <= MAINTENANCE_MAX,
        "not yet" if waiting.maintenance_at is None else when(waiting.maintenance_at),
        "Keep `posthouse run maintenance` running; `posthouse maintenance` does it once, now.",
    )
    if backup_max is None:
        yield DoctorCheck("backup", True, "not checked: doctor.backup_hours_max is 0")
    else:
        yield expect(
            "backup",
            waiting.backup_at is not None and now - waiting.backup_at <= backup_max,
            "none was noted" if waiting.backup_at is None else when(waiting.backup_at),
            "Make one, and let the script that makes it end with `posthouse backup noted`.",
        )


def _age(kind: str, since: datetime | None, most: timedelta, now: datetime, advice: str) -> DoctorCheck:
    found = "none is due" if since is None else f"the oldest since {when(since)}"
    return expect(kind, since is None or now - since <= most, found, advice)
