"""What `posthouse doctor` reads from PostgreSQL and its tables."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from posthouse.rules import ids
from posthouse.rules.database_check import DatabaseServer, Waiting
from posthouse.rules.pepper import FIRST, HASH_BYTES
from posthouse.rules.restore import RESTORE
from posthouse.store import backlog, delivery_schedule, lanes, maintenance
from posthouse.store.postgres import Connection, required

# A role that may not see the state of standbys still sees that they exist.
_SERVER: Final = """
SELECT current_setting('server_version_num')::integer AS version_number,
       current_setting('server_version') AS version,
       clock_timestamp() AS clock,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('max_locks_per_transaction')::integer AS locks_per_transaction_max,
       current_setting('autovacuum') AS autovacuum,
       pg_is_in_recovery() AS is_standby,
       (SELECT sum(numbackends)::integer FROM pg_stat_database) AS connections,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           AS usable_connections,
       current_setting('synchronous_standby_names') AS synchronous_names,
       (SELECT count(*) FROM pg_stat_replication
        WHERE state IS NULL OR (state = 'streaming' AND sync_state IN ('sync', 'quorum'))) AS synchronous_standbys,
       ARRAY(SELECT slot_name::text FROM pg_replication_slots WHERE NOT active ORDER BY 1) AS idle_slots,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE (
           SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
           FROM pg_replication_slots WHERE NOT active) END AS idle_slot_bytes,
       current_setting('archive_mode') AS archive_mode,
       archiver.last_failed_time AS archive_failed_at, archiver.last_archived_time AS archived_at,
       (SELECT min(xact_start) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid())
           AS oldest_transaction_at
FROM pg_stat_archiver archiver
"""

_HELD: Final = """
SELECT count(*), min(held_since) FROM (
    SELECT held_since FROM delivery_schedule WHERE held_since IS NOT NULL AND held_by = 'operator'
    ORDER BY held_since LIMIT 100000) held
"""
_RESTORED: Final = f"""
SELECT count(*) FROM (
    SELECT FROM delivery_schedule WHERE held_since IS NOT NULL AND held_by = '{RESTORE}' LIMIT 100000) held
"""
_MISSING: Final = "SELECT name FROM domains WHERE missing_since IS NOT NULL ORDER BY missing_since LIMIT 100"

_MEMBERS_WHO_ARE_NOT_OPERATORS: Final = """
SELECT u.email FROM accounts a JOIN memberships m ON m.account_id = a.id JOIN users u ON u.id = m.user_id
WHERE (a.id = $1 OR a.name = $2) AND u.operator_since IS NULL ORDER BY u.email LIMIT 100
"""

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED: Final = """
SELECT convert_from(substring(sealed FROM 3 FOR get_byte(sealed, 1)), 'UTF8') AS key_id, count(*) AS uses
FROM (SELECT dkim_sealed, ed25519_sealed FROM domains
      UNION ALL SELECT dkim_sealed, ed25519_sealed FROM domain_keys WHERE retired_at IS NULL
      UNION ALL SELECT secret_sealed, previous_secret_sealed FROM endpoints
      UNION ALL SELECT headers_sealed, NULL FROM endpoints
      UNION ALL SELECT secret_sealed, NULL FROM second_factors
      UNION ALL SELECT password_sealed, NULL FROM relays) keys
CROSS JOIN LATERAL (VALUES (dkim_sealed), (ed25519_sealed)) secret(sealed)
WHERE sealed IS NOT NULL GROUP BY 1
"""

# Returns no row if this database user may not know it.
_DATA_DIRECTORY: Final = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"
_DATABASE_BYTES: Final = "SELECT pg_database_size(current_database())"

# The pepper's id is readable in the hash: see `rules/pepper`.
_PEPPER_USES: Final = f"""
SELECT CASE WHEN octet_length(hash) = {HASH_BYTES} THEN '{FIRST}'
            ELSE convert_from(substring(hash FROM 1 FOR octet_length(hash) - {HASH_BYTES + 1}), 'UTF8')
       END AS pepper_id, what, count(*) AS uses
FROM (SELECT secret_hash, 'SMTP passwords' FROM credentials WHERE revoked_at IS NULL
      UNION ALL SELECT previous_hash, 'replaced SMTP passwords' FROM credentials WHERE previous_until > $1
      UNION ALL SELECT secret_hash, 'API keys' FROM api_keys
          WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)
      UNION ALL SELECT renewal_hash, 'kept logins' FROM sessions
          WHERE renewal_hash IS NOT NULL AND revoked_at IS NULL AND expires_at > $1
      UNION ALL SELECT code_hash, 'recovery codes' FROM recovery_codes
      UNION ALL SELECT token_hash, 'invitations' FROM invitations WHERE expires_at > $1
      UNION ALL SELECT token_hash, 'password resets' FROM password_resets WHERE expires_at > $1
      UNION ALL SELECT token_hash, 'login links' FROM login_links WHERE expires_at > $1
      UNION ALL SELECT hash, 'erased addresses' FROM erased_addresses
      UNION ALL SELECT secret_hash, 'links to captured mail' FROM captured_mail_secrets WHERE expires_at > $1
     ) stored (hash, what)
GROUP BY 1, 2 ORDER BY 1, 2
"""


async def server(connection: Connection) -> DatabaseServer:
    return DatabaseServer(**required(await connection.fetchrow(_SERVER)))


async def waiting(connection: Connection, now: datetime) -> Waiting:
    """The counts, if the tables are up to date."""
    counted = await backlog.backlog(connection, now, now)
    _, oldest_webhook_at = await backlog.due_webhooks(connection, now)
    held, held_since = required(await connection.fetchrow(_HELD))
    done = await maintenance.task_runs(connection)
    return Waiting(
        workers=await delivery_schedule.living_workers(connection, now),
        due=counted.due.number,
        oldest_due_at=counted.oldest_due_at,
        oldest_webhook_at=oldest_webhook_at,
        held=held,
        held_since=held_since,
        restored=await connection.fetchval(_RESTORED),
        pauses=[(pause.lane, pause.since) for pause in await lanes.pauses(connection)],
        domains_missing=[row["name"] for row in await connection.fetch(_MISSING)],
        maintenance_at=done.get(maintenance.MAINTENANCE),
        backup_at=done.get(maintenance.BACKUP),
    )


async def members_who_are_not_operators(connection: Connection, account: str) -> list[str]:
    """Of the account with this name or id."""
    account_id = ids.parse(ids.ACCOUNT, account)
    return [row["email"] for row in await connection.fetch(_MEMBERS_WHO_ARE_NOT_OPERATORS, account_id, account)]


async def data_directory(connection: Connection) -> str | None:
    """Where PostgreSQL stores its data; None if this database user may not know it."""
    found: str | None = await connection.fetchval(_DATA_DIRECTORY)
    return found


async def database_bytes(connection: Connection) -> int:
    found: int = await connection.fetchval(_DATABASE_BYTES)
    return found


async def sealing_key_uses(connection: Connection) -> Mapping[str, int]:
    """How many stored secrets each seal key's id sealed."""
    return {row["key_id"]: row["uses"] for row in await connection.fetch(_SEALED)}


async def pepper_uses(connection: Connection, now: datetime) -> Mapping[str, Mapping[str, int]]:
    """For each pepper, how many valid secrets of each kind are stored under it."""
    uses: dict[str, dict[str, int]] = {}
    for row in await connection.fetch(_PEPPER_USES, now):
        uses.setdefault(row["pepper_id"], {})[row["what"]] = row["uses"]
    return uses
