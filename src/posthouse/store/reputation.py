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


# What an account suppresses by itself says nothing about its mail; what it lifts again still does.
_SUPPRESSING: Final = """
SELECT account_id FROM suppressions WHERE reason <> 'manual' AND at >= $1
UNION
SELECT account_id FROM lifted_suppressions WHERE at >= $1
"""

_STANDING: Final = """
SELECT id, name, suspended_at, conduct_exempt, conduct_since, conduct_warned_at, tier FROM accounts WHERE id = $1
"""
_STANDING_LOCKED: Final = _STANDING + "FOR NO KEY UPDATE"

# By the time alone: an account's addresses may be a million, those of a day are fewer, and are read once for all.
_REASONS: Final = """
SELECT account_id, count(*) FILTER (WHERE reason = 'bounce'), count(*) FILTER (WHERE reason = 'complaint')
FROM (
    SELECT account_id, reason FROM suppressions WHERE reason <> 'manual' AND at >= $1
    UNION ALL
    SELECT account_id, reason FROM lifted_suppressions WHERE at >= $1) suppressed
GROUP BY account_id
"""

# The account's own messages, and those of invitations that it caused, which the service's account sent.
_OWN: Final = """
SELECT $1::uuid AS account_id, id FROM messages WHERE account_id = $1 AND id >= $2 AND credits_reserved > 0
ORDER BY id DESC LIMIT $3
"""
_INVITATIONS: Final = """
SELECT sender_id AS account_id, message_id AS id FROM mailed_invitations WHERE account_id = $1 AND message_id >= $2
ORDER BY id DESC LIMIT $3
"""


# A server that answered has an address and a code; the simulator has no address, a broken connection no code, and
# what was suppressed no attempt. The status is the first in the reply, as `mail.reply` finds it. Of what any
# of several recipients could have written, a message counts one bounce and one complaint; and an address counts once,
# or its owner could ask for many mails and complain about each. An erased address is known by its keyed hash: all of
# them look alike. What costs nothing is a dry run; test mail that members send to themselves is delivered, and counts.
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
          AND position = latest.position AND address IS NOT NULL AND code IS NOT NULL
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
UPDATE accounts SET conduct_warned_at = $2, tier = $4
WHERE id = $1 AND (conduct_warned_at IS NULL OR conduct_warned_at < $3)
RETURNING 1
"""

_WATCH: Final = "UPDATE accounts SET tier = 'watched' WHERE id = $1"

# Accounts whose rows are in use now are raised in a later run.
_RAISE: Final = """
UPDATE accounts SET tier = 'good'
WHERE id IN (
    SELECT id FROM accounts candidate
    CROSS JOIN LATERAL (SELECT greatest(created_at, conduct_warned_at, conduct_since) AS since) good
    WHERE tier <> 'good' AND suspended_at IS NULL AND good.since <= $1 AND $2 <= (
        SELECT sum(delivered) FROM usage_days
        WHERE account_id = candidate.id AND day >= (good.since AT TIME ZONE 'UTC')::date)
    ORDER BY id LIMIT $3 FOR NO KEY UPDATE OF candidate SKIP LOCKED)
RETURNING id
"""

_SET_EXEMPT: Final = "UPDATE accounts SET conduct_exempt = $2 WHERE id = $1"


async def accounts_with_suppressions(connection: Connection, since: datetime) -> Sequence[AccountId]:
    """The accounts whose addresses were suppressed since then, each once."""
    return [row["account_id"] for row in await connection.fetch(_SUPPRESSING, since)]


async def account_reputation(connection: Connection, account_id: AccountId) -> AccountReputation | None:
    row = await connection.fetchrow(_STANDING, account_id)
    return None if row is None else _reputation(row)


async def lock(tx: Connection, account_id: AccountId) -> AccountReputation:
    """The same, locked until the transaction ends."""
    return _reputation(required(await tx.fetchrow(_STANDING_LOCKED, account_id)))


async def reasons(connection: Connection, since: datetime) -> Mapping[AccountId, tuple[int, int]]:
    """How many addresses bounced and how many complained since then, of each account that has any."""
    return {row[0]: (row[1], row[2]) for row in await connection.fetch(_REASONS, since)}


async def figures(
    connection: Connection, account_id: AccountId, since: datetime, recipients_max: int = RECIPIENTS_MAX
) -> ReputationFigures:
    """The results of the latest mail that was accepted since then, and of the account's latest invitations."""
    own = await _counted(connection, _FIGURES, account_id, since, recipients_max)
    invited = await invitation_figures(connection, account_id, since)
    return ReputationFigures(*[sum(both) for both in zip(own, invited, strict=True)])


async def invitation_figures(connection: Connection, account_id: AccountId, since: datetime) -> ReputationFigures:
    """The results of the invitations that were mailed for the account since then."""
    return await _counted(connection, _INVITED, account_id, since, RECIPIENTS_MAX)


async def _counted(
    connection: Connection, query: str, account_id: AccountId, since: datetime, recipients_max: int
) -> ReputationFigures:
    asked = (account_id, lowest_id(since), recipients_max, list(SUPPRESSING), ERASED)
    return ReputationFigures(*required(await connection.fetchrow(query, *asked)))


async def warn(
    tx: Connection, account_id: AccountId, now: datetime, last_before: datetime, tier: Tier = Tier.WATCHED
) -> bool:
    """Whether it is time to warn about the account, which has this tier from then on; True for only one process."""
    return await tx.fetchval(_WARN, account_id, now, last_before, tier) is not None


async def watch(tx: Connection, account_id: AccountId) -> None:
    await tx.execute(_WATCH, account_id)


async def raise_good(tx: Connection, since: datetime, delivered_min: int, count: int) -> Sequence[AccountId]:
    """Accounts that are good from now on: without a warning since then, with so many mails delivered since theirs."""
    return [row["id"] for row in await tx.fetch(_RAISE, since, delivered_min, count)]


async def set_exempt(tx: Connection, account_id: AccountId, exempt: bool, now: datetime) -> None:
    await tx.execute(_SET_EXEMPT, account_id, exempt)
    await accounts.touch(tx, account_id, now)


def _reputation(row: Row) -> AccountReputation:
    return AccountReputation(
        row["id"],
        row["name"],
        row["suspended_at"],
        row["conduct_exempt"],
        row["conduct_since"],
        row["conduct_warned_at"],
        Tier(row["tier"]),
    )
