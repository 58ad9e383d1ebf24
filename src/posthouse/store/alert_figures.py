"""What alerts are about, read for many accounts at once; only what any of them is asked for."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final

from posthouse.rules import alert, ids
from posthouse.rules.alert import AlertKind, Reading
from posthouse.rules.ids import AccountId
from posthouse.store import reputation
from posthouse.store.postgres import Connection

Readings = Mapping[tuple[AccountId, AlertKind], Sequence[Reading]]
_OfAccounts = Mapping[AccountId, Sequence[Reading]]

_DAY: Final = timedelta(days=1)
_RESULTS: Final = """
SELECT account_id, sum(delivered)::bigint AS delivered, sum(bounced)::bigint AS bounced, sum(failed)::bigint AS failed
FROM usage_days WHERE account_id = ANY($1::uuid[]) AND day >= $2 GROUP BY account_id
"""
_SPENT: Final = """
SELECT account_id, available, sum(accepted)::bigint AS spent
FROM usage_days JOIN accounts ON accounts.id = account_id
WHERE account_id = ANY($1::uuid[]) AND day >= $2 AND day < $3 GROUP BY account_id, available
"""
_AVAILABLE: Final = "SELECT id, available FROM accounts WHERE id = ANY($1::uuid[])"
# By the statistics an account has few rows, which are then all read and sorted, however many it has.
_WALK_THE_KEY: Final = "SELECT set_config('enable_bitmapscan', 'off', true)"
_OLDEST: Final = """
SELECT asked.account_id, oldest.message_id, oldest.send_at
FROM unnest($1::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT message_id, send_at FROM (
        SELECT message_id, send_at FROM schedule WHERE account_id = asked.account_id
        ORDER BY message_id, position LIMIT 10000) first
    WHERE coalesce(send_at <= $2, true) ORDER BY message_id LIMIT 1) oldest
"""
# Unverified ones only where an alert is raised: a domain that lost its records for too long is not well again.
_DOMAINS: Final = """
SELECT account_id, name, missing_since IS NOT NULL AS is_missing FROM domains
WHERE account_id = ANY($1::uuid[]) AND (missing_since IS NOT NULL OR verified_at IS NULL AND EXISTS (
    SELECT FROM alert_states state
    WHERE state.account_id = domains.account_id AND kind = 'records_missing' AND subject = domains.name))
ORDER BY name
"""
# When the endpoint's owners got the notice of it, which is then not sent again.
_FAILING: Final = """
SELECT account_id FROM webhook_endpoints
WHERE account_id = ANY($1::uuid[]) AND enabled AND failing_noted_at IS NOT NULL
UNION
SELECT account_id FROM endpoints
WHERE account_id = ANY($1::uuid[]) AND enabled AND failing_noted_at IS NOT NULL
"""
# A key that was replaced ends soon on purpose.
_KEYS: Final = """
SELECT account_id, id, name, hint, expires_at FROM api_keys
WHERE account_id = ANY($1::uuid[]) AND revoked_at IS NULL AND replaced_by IS NULL
  AND coalesce(expires_at, 'infinity') > $2 AND coalesce(expires_at, 'infinity') <= $3
ORDER BY expires_at
"""


async def read(tx: Connection, asked: Mapping[AlertKind, Sequence[AccountId]], now: datetime) -> Readings:
    """Of each kind, for these accounts. An account that nothing is known of has no entry."""
    found: dict[tuple[AccountId, AlertKind], Sequence[Reading]] = {}
    for kind, account_ids in asked.items():
        if account_ids:
            readings = await _READERS[kind](tx, list(account_ids), now)
            found.update({(account_id, kind): read_ for account_id, read_ in readings.items()})
    return found


async def _bounce_share(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:
    rows = await tx.fetch(_RESULTS, account_ids, _yesterday(now).date())
    return {row["account_id"]: alert.bounce_share(row["delivered"], row["bounced"], row["failed"]) for row in rows}


async def _complaint_share(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:
    rows = await tx.fetch(_RESULTS, account_ids, _yesterday(now).date())
    reasons = await reputation.reasons(tx, _yesterday(now))
    return {
        row["account_id"]: alert.complaint_share(row["delivered"], reasons.get(row["account_id"], (0, 0))[1])
        for row in rows
    }


async def _oldest_waiting(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:
    await tx.execute(_WALK_THE_KEY)
    rows = await tx.fetch(_OLDEST, account_ids, now)
    return {
        row["account_id"]: alert.oldest_waiting(row["send_at"] or ids.time_of(row["message_id"]), now) for row in rows
    }


async def _credits_left(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:  # noqa: ARG001
    rows = await tx.fetch(_AVAILABLE, account_ids)
    return {row["id"]: [Reading(row["available"])] for row in rows}


async def _days_left(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:
    today = now.astimezone(UTC).date()
    rows = await tx.fetch(_SPENT, account_ids, today - _DAY * alert.PACE_DAYS, today)
    return {row["account_id"]: alert.days_left(row["available"], row["spent"]) for row in rows}


async def _records_missing(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:  # noqa: ARG001
    domains: defaultdict[AccountId, list[tuple[str, bool]]] = defaultdict(list)
    for row in await tx.fetch(_DOMAINS, account_ids):
        domains[row["account_id"]].append((row["name"], row["is_missing"]))
    return {account_id: alert.records_missing(found) for account_id, found in domains.items()}


async def _webhook_failing(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:  # noqa: ARG001
    rows = await tx.fetch(_FAILING, account_ids)
    return {row["account_id"]: alert.webhook_failing() for row in rows}


async def _key_expiring(tx: Connection, account_ids: list[AccountId], now: datetime) -> _OfAccounts:
    keys: defaultdict[AccountId, list[tuple[str, str, datetime]]] = defaultdict(list)
    for row in await tx.fetch(_KEYS, account_ids, now, now + _DAY * alert.KEY_DAYS_READ):
        label = f"{row['name']} ({row['hint']})" if row["name"] else row["hint"]
        keys[row["account_id"]].append((ids.text(ids.API_KEY, row["id"]), label, row["expires_at"]))
    return {account_id: alert.key_expiring(found, now) for account_id, found in keys.items()}


def _yesterday(now: datetime) -> datetime:
    """Its begin."""
    return datetime.combine(now.astimezone(UTC).date() - _DAY, time(), UTC)


_READERS: Final[Mapping[AlertKind, Callable[[Connection, list[AccountId], datetime], Awaitable[_OfAccounts]]]] = {
    AlertKind.BOUNCE_SHARE: _bounce_share,
    AlertKind.COMPLAINT_SHARE: _complaint_share,
    AlertKind.OLDEST_WAITING: _oldest_waiting,
    AlertKind.CREDITS_LEFT: _credits_left,
    AlertKind.DAYS_LEFT: _days_left,
    AlertKind.RECORDS_MISSING: _records_missing,
    AlertKind.WEBHOOK_FAILING: _webhook_failing,
    AlertKind.KEY_EXPIRING: _key_expiring,
}
