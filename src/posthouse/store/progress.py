"""Since when an account's first steps are done, read from the tables of each."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.progress import Step
from posthouse.store import backlog
from posthouse.store.postgres import Connection, required
from posthouse.store.statement import statement

# A new account's first messages are among its oldest; no more of them are read.
_MESSAGES_READ_MAX: Final = 1_000

# Messages are deleted after some weeks, days of usage are not: they show that mail was sent before. When a key was last
# used is written once a minute; a message shows it at once.
_STEPS: Final = statement(f"""
WITH first_messages AS MATERIALIZED (
    SELECT source, credits_reserved, created_at FROM messages WHERE account_id = :account_id
    ORDER BY id LIMIT {_MESSAGES_READ_MAX}
)
SELECT
    coalesce(
        (SELECT min(created_at) FROM first_messages WHERE source = 'test' AND credits_reserved > 0),
        (SELECT min(day)::timestamp AT TIME ZONE 'UTC' FROM usage_days WHERE account_id = :account_id AND accepted > 0)
    ) AS test_mail,
    (SELECT min(verified_at) FROM domains WHERE account_id = :account_id AND shared_from IS NULL) AS domain_verified,
    (SELECT min(created_at) FROM api_keys WHERE account_id = :account_id) AS key_created,
    least(
        (SELECT min(created_at) FROM first_messages WHERE source <> 'test' OR credits_reserved = 0),
        (SELECT min(last_used_at) FROM api_keys WHERE account_id = :account_id),
        (SELECT min(last_used_at) FROM credentials WHERE account_id = :account_id)) AS first_request,
    (SELECT created_at FROM webhook_endpoints WHERE account_id = :account_id) AS webhook_saved,
    (SELECT answered_at FROM webhook_endpoints WHERE account_id = :account_id) AS webhook_answered,
    (SELECT confirmed_at FROM second_factors WHERE user_id = :user_id) AS second_factor,
    least(
        (SELECT min(created_at) FROM invitations WHERE account_id = :account_id),
        (SELECT created_at FROM memberships WHERE account_id = :account_id ORDER BY created_at OFFSET 1 LIMIT 1)
    ) AS member_invited
""")


async def steps(tx: Connection, account_id: AccountId, user_id: UserId) -> Mapping[Step, datetime | None]:
    """When each step was done; the second factor is the user's own."""
    await backlog.walk_the_key(tx)
    row = required(await tx.fetchrow(*_STEPS.bind(account_id=account_id, user_id=user_id)))
    return {step: row[step.value] for step in Step}
