"""Alerts: which members chose which alerts, what they are raised for, and the notices that are to be mailed.

A row of `alert_states` is an alert that is raised. It is inserted or deleted in the transaction that adds the notice
about it, so a crash neither loses a notice nor adds it twice.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from posthouse.rules import alert, ids
from posthouse.rules.alert import AlertKind, AlertNotice, Change, Reading
from posthouse.rules.ids import AccountId, UserId
from posthouse.store import backlog, reputation
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class ChosenAlert:
    account_id: AccountId
    user_id: UserId
    kind: AlertKind
    threshold: float


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    account_id: AccountId
    user_id: UserId
    kind: AlertKind
    subject: str
    label: str
    raised_at: datetime


@dataclass(frozen=True, slots=True)
class AlertChange:
    """A change of a member's alert; `notice_id` identifies the notice about it."""

    notice_id: UUID
    alert: ChosenAlert
    change: Change

    @property
    def is_raised(self) -> bool:
        return self.change.is_raised


@dataclass(frozen=True, slots=True)
class PendingNotice:
    id: UUID
    account_id: AccountId
    email: str
    notice: AlertNotice


_HAS_WORK: Final = "SELECT EXISTS (SELECT FROM alerts) OR EXISTS (SELECT FROM alert_notices)"
_ACCOUNTS: Final = "SELECT DISTINCT account_id FROM alerts WHERE account_id > $1 ORDER BY account_id LIMIT $2"
_CHOSEN: Final = "SELECT account_id, user_id, kind, threshold FROM alerts WHERE account_id = ANY($1::uuid[])"
_CHOSEN_BY: Final = """
SELECT account_id, user_id, kind, threshold FROM alerts WHERE account_id = $1 AND user_id = $2 FOR UPDATE
"""
_RAISED: Final = """
SELECT account_id, user_id, kind, subject, label, raised_at FROM alert_states WHERE account_id = ANY($1::uuid[])
"""
_RAISED_FOR: Final = """
SELECT account_id, user_id, kind, subject, label, raised_at FROM alert_states
WHERE account_id = $1 AND user_id = $2 ORDER BY raised_at, label
"""

# States and notices of an alert that is no longer chosen are deleted with it.
_FORGET: Final = "DELETE FROM alerts WHERE account_id = $1 AND user_id = $2 AND kind <> ALL($3::text[])"
_CHOOSE: Final = """
INSERT INTO alerts (account_id, user_id, kind, threshold)
SELECT member.account_id, member.user_id, given.kind, given.threshold
FROM (SELECT account_id, user_id FROM memberships WHERE account_id = $1 AND user_id = $2 FOR KEY SHARE) member
CROSS JOIN unnest($3::text[], $4::float8[]) given(kind, threshold)
ON CONFLICT (account_id, user_id, kind) DO UPDATE SET threshold = excluded.threshold
"""
_FORGET_STATES: Final = """
DELETE FROM alert_states WHERE account_id = $1 AND user_id = $2 AND kind = ANY($3::text[])
"""
_RAISE_WITHOUT_NOTICE: Final = """
INSERT INTO alert_states (account_id, user_id, kind, subject, label, raised_at)
SELECT alerts.account_id, alerts.user_id, alerts.kind, given.subject, given.label, $6
FROM alerts JOIN unnest($3::text[], $4::text[], $5::text[]) given(kind, subject, label) ON given.kind = alerts.kind
WHERE alerts.account_id = $1 AND alerts.user_id = $2
ON CONFLICT DO NOTHING
"""

_GIVEN: Final = """
given AS (
    SELECT * FROM unnest(:notice_ids::uuid[], :account_ids::uuid[], :user_ids::uuid[], :kinds::text[],
        :thresholds::float8[], :subjects::text[], :labels::text[], :measured::float8[])
        given(notice_id, account_id, user_id, kind, threshold, subject, label, value)
)
"""
# A member may have changed their choice since it was read: then the next check decides.
_RAISE: Final = statement(f"""
WITH {_GIVEN}, chosen AS (
    SELECT given.* FROM given JOIN alerts USING (account_id, user_id, kind)
    WHERE alerts.threshold = given.threshold FOR SHARE OF alerts
), raised AS (
    INSERT INTO alert_states (account_id, user_id, kind, subject, label, raised_at)
    SELECT account_id, user_id, kind, subject, label, :now FROM chosen
    ON CONFLICT DO NOTHING
    RETURNING account_id, user_id, kind, subject
)
INSERT INTO alert_notices (id, account_id, user_id, kind, is_raised, label, value, threshold, at)
SELECT notice_id, account_id, user_id, kind, true, label, value, threshold, :now
FROM raised JOIN chosen USING (account_id, user_id, kind, subject)
RETURNING id
""")
_CLEAR: Final = statement(f"""
WITH {_GIVEN}, chosen AS (
    SELECT given.* FROM given JOIN alerts USING (account_id, user_id, kind)
    WHERE alerts.threshold = given.threshold FOR SHARE OF alerts
), cleared AS (
    DELETE FROM alert_states state USING chosen
    WHERE (state.account_id, state.user_id, state.kind, state.subject)
        = (chosen.account_id, chosen.user_id, chosen.kind, chosen.subject)
    RETURNING chosen.*
)
INSERT INTO alert_notices (id, account_id, user_id, kind, is_raised, label, value, threshold, at)
SELECT notice_id, account_id, user_id, kind, false, label, value, threshold, :now FROM cleared
RETURNING id
""")

_PENDING: Final = """
SELECT n.id, n.account_id, u.email, n.kind, n.is_raised, a.name AS account, n.label, n.value, n.threshold
FROM alert_notices n JOIN users u ON u.id = n.user_id JOIN accounts a ON a.id = n.account_id
ORDER BY n.id LIMIT $1
"""
_TRY: Final = "UPDATE alert_notices SET tried_at = coalesce(tried_at, $2) WHERE id = $1 RETURNING id"
_NOT_SENT: Final = "UPDATE alert_notices SET tried_at = NULL WHERE id = $1"
_SENT: Final = "DELETE FROM alert_notices WHERE id = $1"
_FORGET_NOTICES: Final = "DELETE FROM alert_notices WHERE at < $1 OR tried_at < $2 RETURNING 1"

# In the order in which members joined.
_OWNERS_WITHOUT: Final = """
SELECT u.email FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.account_id = $1 AND m.role = 'owner' AND NOT EXISTS (
    SELECT FROM alerts WHERE account_id = m.account_id AND user_id = m.user_id AND kind = $2)
ORDER BY m.created_at, m.user_id LIMIT $3
"""


async def has_work(connection: Connection) -> bool:
    """Whether any alert is chosen or any notice is to be mailed."""
    return bool(await connection.fetchval(_HAS_WORK))


async def accounts_after(connection: Connection, account_id: AccountId | None, limit: int) -> list[AccountId]:
    """The next accounts in which any alert is chosen."""
    rows = await connection.fetch(_ACCOUNTS, account_id or UUID(int=0), limit)
    return [row["account_id"] for row in rows]


async def chosen(connection: Connection, account_ids: Sequence[AccountId]) -> list[ChosenAlert]:
    return [_chosen(*row) for row in await connection.fetch(_CHOSEN, list(account_ids))]


async def lock_chosen_by(tx: Connection, account_id: AccountId, user_id: UserId) -> Mapping[AlertKind, float]:
    """The thresholds that the member chose."""
    rows = await tx.fetch(_CHOSEN_BY, account_id, user_id)
    return {AlertKind(row["kind"]): row["threshold"] for row in rows}


async def raised(connection: Connection, account_ids: Sequence[AccountId]) -> list[RaisedAlert]:
    return [_raised(*row) for row in await connection.fetch(_RAISED, list(account_ids))]


async def raised_for(connection: Connection, account_id: AccountId, user_id: UserId) -> list[RaisedAlert]:
    """The oldest first."""
    return [_raised(*row) for row in await connection.fetch(_RAISED_FOR, account_id, user_id)]


async def choose(tx: Connection, account_id: AccountId, user_id: UserId, thresholds: Mapping[AlertKind, float]) -> None:
    """Set the member's choice to exactly these alerts."""
    await tx.execute(_FORGET, account_id, user_id, list(thresholds))
    await tx.execute(_CHOOSE, account_id, user_id, list(thresholds), list(thresholds.values()))


async def set_raised(
    tx: Connection,
    account_id: AccountId,
    user_id: UserId,
    kinds: Sequence[AlertKind],
    troubles: Sequence[tuple[AlertKind, str, str]],
    now: datetime,
) -> None:
    """Raise alerts of these kinds for exactly these subjects, with their labels, and without a notice."""
    await tx.execute(_FORGET_STATES, account_id, user_id, list(kinds))
    of_kind, subjects, labels = ([trouble[place] for trouble in troubles] for place in range(3))
    await tx.execute(_RAISE_WITHOUT_NOTICE, account_id, user_id, of_kind, subjects, labels, now)


async def record_raised(tx: Connection, changes: Sequence[AlertChange], now: datetime) -> list[AlertChange]:
    """Raise these alerts with a notice for each, except those that are raised already. Returns the new ones."""
    return await _recorded(tx, _RAISE.bind(**_columns(changes), now=now), changes)


async def record_cleared(tx: Connection, changes: Sequence[AlertChange], now: datetime) -> list[AlertChange]:
    return await _recorded(tx, _CLEAR.bind(**_columns(changes), now=now), changes)


async def _recorded(tx: Connection, bound: tuple[Any, ...], changes: Sequence[AlertChange]) -> list[AlertChange]:
    if not changes:
        return []
    noticed = {row["id"] for row in await tx.fetch(*bound)}
    return [change for change in changes if change.notice_id in noticed]


def _columns(changes: Sequence[AlertChange]) -> dict[str, list[object]]:
    return {
        "notice_ids": [change.notice_id for change in changes],
        "account_ids": [change.alert.account_id for change in changes],
        "user_ids": [change.alert.user_id for change in changes],
        "kinds": [change.alert.kind for change in changes],
        "thresholds": [change.alert.threshold for change in changes],
        "subjects": [change.change.subject for change in changes],
        "labels": [change.change.label for change in changes],
        "measured": [change.change.value for change in changes],
    }


async def pending(connection: Connection, limit: int) -> list[PendingNotice]:
    """The oldest first."""
    return [
        PendingNotice(row["id"], row["account_id"], row["email"], AlertNotice(AlertKind(row["kind"]), *tuple(row)[4:]))
        for row in await connection.fetch(_PENDING, limit)
    ]


async def begin_try(tx: Connection, notice_id: UUID, now: datetime) -> bool:
    """False if the notice no longer exists: its member left, or changed their choice."""
    return await tx.fetchval(_TRY, notice_id, now) is not None


async def note_not_sent(tx: Connection, notice_id: UUID) -> None:
    await tx.execute(_NOT_SENT, notice_id)


async def forget(tx: Connection, notice_id: UUID) -> None:
    await tx.execute(_SENT, notice_id)


async def forget_old(tx: Connection, added_before: datetime, tried_before: datetime) -> int:
    return len(await tx.fetch(_FORGET_NOTICES, added_before, tried_before))


async def owners_without(connection: Connection, account_id: AccountId, kind: AlertKind, limit: int) -> Sequence[str]:
    """The addresses of the owners who did not choose this alert; if there are too many, of the first who joined."""
    return [row["email"] for row in await connection.fetch(_OWNERS_WITHOUT, account_id, kind, limit)]


def _chosen(account_id: AccountId, user_id: UserId, kind: str, threshold: float) -> ChosenAlert:
    return ChosenAlert(account_id, user_id, AlertKind(kind), threshold)


def _raised(
    account_id: AccountId, user_id: UserId, kind: str, subject: str, label: str, raised_at: datetime
) -> RaisedAlert:
    return RaisedAlert(account_id, user_id, AlertKind(kind), subject, label, raised_at)


# The figures that alerts are about, read for many accounts together; only the kinds that were asked for.


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
_OLDEST: Final = """
SELECT asked.account_id, oldest.message_id, oldest.send_at
FROM unnest($1::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT message_id, send_at FROM (
        SELECT message_id, send_at FROM delivery_schedule WHERE account_id = asked.account_id
        ORDER BY message_id, position LIMIT 10000) first
    WHERE coalesce(send_at <= $2, true) ORDER BY message_id LIMIT 1) oldest
"""
# Unverified domains only if an alert is raised: a domain whose records were missing for too long has not recovered.
_DOMAINS: Final = """
SELECT account_id, name, missing_since IS NOT NULL AS is_missing FROM domains
WHERE account_id = ANY($1::uuid[]) AND (missing_since IS NOT NULL OR verified_at IS NULL AND EXISTS (
    SELECT FROM alert_states state
    WHERE state.account_id = domains.account_id AND kind = 'records_missing' AND subject = domains.name))
ORDER BY name
"""
# The time at which the endpoint's owners were notified, which is done only once.
_FAILING: Final = """
SELECT DISTINCT account_id FROM endpoints
WHERE account_id = ANY($1::uuid[]) AND enabled AND failing_noted_at IS NOT NULL
"""
# A key that was replaced is meant to end soon.
_KEYS: Final = """
SELECT account_id, id, name, hint, expires_at FROM api_keys
WHERE account_id = ANY($1::uuid[]) AND revoked_at IS NULL AND replaced_by IS NULL
  AND coalesce(expires_at, 'infinity') > $2 AND coalesce(expires_at, 'infinity') <= $3
ORDER BY expires_at
"""


async def read(tx: Connection, asked: Mapping[AlertKind, Sequence[AccountId]], now: datetime) -> Readings:
    """The figures of each kind for these accounts. An account without any has no entry."""
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
    await backlog.disable_bitmap_scans(tx)
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
    """The beginning of the hour."""
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
