"""An account with many other events around those a test queries, and how many rows a query read."""

from datetime import timedelta

from posthouse.store.postgres import Connection
from tests.support.accept_flow import new_id
from tests.support.delivery_steps import DeliverySteps


async def add_other_events(steps: DeliverySteps, number: int) -> None:
    """Insert this many events of other mail, from fifty minutes ago until a minute ago."""
    now = steps.clock.now()
    made = [new_id(now - timedelta(minutes=1 + 49 * place / number)) for place in range(number)]
    await steps.fetch(
        "INSERT INTO events (account_id, id, message_id, position, type, created_at, body)"
        " SELECT $1, id, gen_random_uuid(), 0, 'email.delivered', $3, '' FROM unnest($2::uuid[]) made(id)",
        steps.sender.account_id, made, now,
    )  # fmt: skip
    await steps.fetch("ANALYZE events")


async def events_fetched(tx: Connection) -> int:
    """How many rows of events the transaction has read, returned or not."""
    return int(
        await tx.fetchval(
            "SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) FROM pg_stat_xact_user_tables"
            " WHERE relname ~ '^events(_|$)'"
        )
    )
