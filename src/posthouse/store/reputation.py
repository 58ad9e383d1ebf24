"""Reputation: the results of an account's latest mail, counted; and which accounts to check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules.erasure import ERASED
from posthouse.rules.ids import AccountId, lowest_id
from posthouse.rules.outcome import SUPPRESSING
from posthouse.rules.reputation import RECIPIENTS_MAX, ReputationFigures
from posthouse.rules.route import Tier
from posthouse.store import accounts
from posthouse.store.postgres import Connection, Row, required


@dataclass(frozen=True, slots=True)
class AccountReputation:
    """What an account's reputation depends on: only mail sent after `since` counts, if that is set."""

    account_id: AccountId
    name: str
    suspended_at: datetime | None
    exempt: bool
    since: datetime | None
    warned_at: datetime | None
    tier: Tier


# Addresses that an account suppresses itself say nothing about its mail; addresses that it lifts again still do.
_SUPPRESSING: Final = """
SELECT account_id FROM suppressions WHERE reason <> 'manual' AND at >= $1
UNION
SELECT account_id FROM removed_suppressions WHERE at >= $1
"""

_LEARNED_LIMITS: Final = """
SELECT id, name, suspended_at, reputation_exempt, reputation_since, reputation_warned_at, tier FROM accounts
    WHERE id = $1
"""
_LEARNED_LIMITS_LOCKED: Final = _LEARNED_LIMITS + "FOR NO KEY UPDATE"

# Only by time: an account may have a million addresses, but a day has fewer, and they are read once for all accounts.
_REASONS: Final = """
SELECT account_id, count(*) FILTER (WHERE reason = 'bounce'), count(*) FILTER (WHERE reason = 'complaint')
FROM (
    SELECT account_id, reason FROM suppressions WHERE reason <> 'manual' AND at >= $1
    UNION ALL
    SELECT account_id, reason FROM removed_suppressions WHERE at >= $1) suppressed
GROUP BY account_id
"""

# The account's own messages, and invitations on its behalf, which the service's account sent.
_OWN: Final = """
SELECT $1::uuid AS account_id, id FROM messages WHERE account_id = $1 AND id >= $2 AND credits_reserved > 0
ORDER BY id DESC LIMIT $3
"""
_INVITATIONS: Final = """
SELECT sender_id AS account_id, message_id AS id FROM mailed_invitations WHERE account_id = $1 AND message_id >= $2
ORDER BY id DESC LIMIT $3
"""


# A server that answered has an address and a code; the simulator has no address, a broken connection no code, and a
# suppressed recipient no attempt. The status is the first in the reply, as `mail.reply` finds it. Of reports that any
# of several recipients could have written, a message counts one bounce and one complaint; and an address counts once,
# or its owner could ask for many messages and complain about each. An erased address is recognised by its keyed hash,
# since all of them look alike. Mail that costs nothing is not counted, as it is simulated; test messages that members
# send to themselves are delivered, and count.
def _counting(messages: str) -> str:
    return rf"""
WITH latest AS MATERIALIZED (
    SELECT recipient.*
    FROM ({messages}) message
    CROSS JOIN LATERAL (
        SELECT account_id, message_id, position, status, lower(email) AS email FROM recipients
        WHERE account_id = message.account_id AND message_id = message.id AND message_id >= $2) recipient
    ORDER BY message.id DESC LIMIT $3
), final AS MATERIALIZED (
    SELECT latest.account_id, latest.message_id, latest.position,
        CASE WHEN latest.email = $5 THEN coalesce((
            SELECT encode(hash, 'hex') FROM erased_recipients
            WHERE account_id = latest.account_id AND message_id = latest.message_id AND position = latest.position),
            latest.email) ELSE latest.email END AS address,
        CASE WHEN latest.status = 'bounced' AND answered.outcome = 'bounced' AND answered.stage = 'rcpt'
             THEN substring(answered.response FROM '(?n)^[245]\.\d{{1,3}}\.\d{{1,3}}(?![0-9.])') END AS status
    FROM latest
    CROSS JOIN LATERAL (
        SELECT outcome, stage, response FROM attempts
        WHERE account_id = latest.account_id AND message_id = latest.message_id AND message_id >= $2
          AND position = latest.position AND remote_ip IS NOT NULL AND code IS NOT NULL
        ORDER BY fence DESC LIMIT 1) answered
    WHERE latest.status IN ('delivered', 'bounced', 'failed')
)
SELECT count(*) AS finals,
    count(DISTINCT address) FILTER (WHERE later.is_unknown OR final.status = ANY ($4)) AS unknown,
    count(DISTINCT address) FILTER (WHERE later.is_complaint) AS complaints
FROM final
CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(kind = 'bounce'), false) AS is_unknown,
        coalesce(bool_or(kind = 'complaint'), false) AS is_complaint
    FROM reports
    WHERE account_id = final.account_id AND message_id = final.message_id AND message_id >= $2
      AND position = final.position AND suppressed AND (NOT shared OR NOT EXISTS (
        SELECT FROM reports another
        WHERE another.account_id = reports.account_id AND another.message_id = final.message_id
          AND another.message_id >= $2 AND another.kind = reports.kind AND another.suppressed AND another.shared
          AND another.id < reports.id))
    ) later
"""


_FIGURES: Final = _counting(_OWN)
_INVITED: Final = _counting(_INVITATIONS)

_WARN: Final = """
UPDATE accounts SET reputation_warned_at = $2, tier = $4
WHERE id = $1 AND (reputation_warned_at IS NULL OR reputation_warned_at < $3)
RETURNING 1
"""

_WATCH: Final = "UPDATE accounts SET tier = 'watched' WHERE id = $1"

# Accounts whose rows are locked now are promoted in a later run.
_RAISE: Final = """
UPDATE accounts SET tier = 'good'
WHERE id IN (
    SELECT id FROM accounts candidate
    CROSS JOIN LATERAL (SELECT greatest(created_at, reputation_warned_at, reputation_since) AS since) good
    WHERE tier <> 'good' AND suspended_at IS NULL AND good.since <= $1 AND $2 <= (
        SELECT sum(delivered) FROM usage_days
        WHERE account_id = candidate.id AND day >= (good.since AT TIME ZONE 'UTC')::date)
    ORDER BY id LIMIT $3 FOR NO KEY UPDATE OF candidate SKIP LOCKED)
RETURNING id
"""

_SET_EXEMPT: Final = "UPDATE accounts SET reputation_exempt = $2 WHERE id = $1"


async def accounts_with_suppressions(connection: Connection, since: datetime) -> Sequence[AccountId]:
    """The accounts whose addresses were suppressed since then, each once."""
    return [row["account_id"] for row in await connection.fetch(_SUPPRESSING, since)]


async def account_reputation(connection: Connection, account_id: AccountId) -> AccountReputation | None:
    row = await connection.fetchrow(_LEARNED_LIMITS, account_id)
    return None if row is None else _reputation(row)


async def lock(tx: Connection, account_id: AccountId) -> AccountReputation:
    """The same, locked until the transaction ends."""
    return _reputation(required(await tx.fetchrow(_LEARNED_LIMITS_LOCKED, account_id)))


async def reasons(connection: Connection, since: datetime) -> Mapping[AccountId, tuple[int, int]]:
    """How many addresses bounced and how many complained since then, of each account that has any."""
    return {row[0]: (row[1], row[2]) for row in await connection.fetch(_REASONS, since)}


async def figures(
    connection: Connection, account_id: AccountId, since: datetime, recipients_max: int = RECIPIENTS_MAX
) -> ReputationFigures:
    """The results of the latest mail that was accepted since then, including the account's latest invitations."""
    own = await _counted(connection, _FIGURES, account_id, since, recipients_max)
    invited = await invitation_figures(connection, account_id, since)
    return ReputationFigures(*[sum(both) for both in zip(own, invited, strict=True)])


async def invitation_figures(connection: Connection, account_id: AccountId, since: datetime) -> ReputationFigures:
    """The results of the invitations that were sent for the account since then."""
    return await _counted(connection, _INVITED, account_id, since, RECIPIENTS_MAX)


async def _counted(
    connection: Connection, query: str, account_id: AccountId, since: datetime, recipients_max: int
) -> ReputationFigures:
    asked = (account_id, lowest_id(since), recipients_max, list(SUPPRESSING), ERASED)
    return ReputationFigures(*required(await connection.fetchrow(query, *asked)))


async def warn(
    tx: Connection, account_id: AccountId, now: datetime, last_before: datetime, tier: Tier = Tier.WATCHED
) -> bool:
    """Whether to warn about the account now, which gets this tier; True for only one process."""
    return await tx.fetchval(_WARN, account_id, now, last_before, tier) is not None


async def watch(tx: Connection, account_id: AccountId) -> None:
    await tx.execute(_WATCH, account_id)


async def raise_good(tx: Connection, since: datetime, delivered_min: int, count: int) -> Sequence[AccountId]:
    """Promote accounts to good: those without a warning since then that delivered this many messages after the last."""
    return [row["id"] for row in await tx.fetch(_RAISE, since, delivered_min, count)]


async def set_exempt(tx: Connection, account_id: AccountId, exempt: bool, now: datetime) -> None:
    await tx.execute(_SET_EXEMPT, account_id, exempt)
    await accounts.touch(tx, account_id, now)


def _reputation(row: Row) -> AccountReputation:
    return AccountReputation(
        row["id"],
        row["name"],
        row["suspended_at"],
        row["reputation_exempt"],
        row["reputation_since"],
        row["reputation_warned_at"],
        Tier(row["tier"]),
    )
