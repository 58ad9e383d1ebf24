"""Consistency of the database: every message has all its rows, and no row is without its message.

Quick enough to run after every fault test; each statement returns the rows that break its promise.
"""

from typing import Any, Final

import asyncpg

PROMISES: Final = {
    "available is what was granted, less what is reserved, plus what was released": """
        SELECT a.id, a.available, g.granted, l.reserved, l.released FROM accounts a
        CROSS JOIN LATERAL (SELECT coalesce(sum(amount), 0) AS granted FROM credit_grants WHERE account_id = a.id) g
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(amount) FILTER (WHERE kind = 'reserve'), 0)
                       + (SELECT coalesce(sum(reserved), 0) FROM ledger_days d WHERE d.account_id = a.id) AS reserved,
                   coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0)
                       + (SELECT coalesce(sum(released), 0) FROM ledger_days d WHERE d.account_id = a.id) AS released
            FROM ledger WHERE account_id = a.id) l
        WHERE a.available <> g.granted - l.reserved + l.released OR a.available < 0
    """,
    "a message has its reserve": """
        SELECT m.id, m.credits_reserved, l.amount FROM messages m
        LEFT JOIN ledger l ON l.account_id = m.account_id AND l.message_id = m.id AND l.position = -1
        WHERE m.credits_reserved <> coalesce(l.amount, 0)
    """,
    "a message has its body, unless it is final and forgotten": """
        SELECT m.id FROM messages m
        WHERE NOT EXISTS (SELECT FROM bodies b WHERE b.account_id = m.account_id AND b.message_id = m.id)
          AND NOT (m.open_count = 0 AND coalesce(m.forgets_content, false))
    """,
    "a message has all of its recipients": """
        SELECT m.id, m.recipient_count FROM messages m
        WHERE recipient_count <> (
            SELECT count(*) FROM recipients r WHERE r.account_id = m.account_id AND r.message_id = m.id)
    """,
    "what is not final is in the schedule": """
        SELECT m.id, m.open_count FROM messages m
        WHERE open_count <> (
            SELECT count(*) FROM delivery_schedule s WHERE s.account_id = m.account_id AND s.message_id = m.id)
    """,
    "a recipient is in the schedule exactly while it is not final": """
        SELECT coalesce(r.message_id, s.message_id), coalesce(r.position, s.position), r.status
        FROM (SELECT * FROM recipients WHERE status IN ('queued', 'deferred')) r
        FULL JOIN delivery_schedule s USING (account_id, message_id, position)
        WHERE r.message_id IS NULL OR s.message_id IS NULL
    """,
    "a message's counts are its recipients', and its state follows from them": """
        SELECT m.id, m.status, m.billing_status, r.* FROM messages m
        CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE status IN ('queued', 'deferred')) AS open,
                   count(*) FILTER (WHERE status = 'delivered') AS delivered,
                   count(*) FILTER (WHERE billing_status = 'released') AS released, count(*) AS total
            FROM recipients WHERE account_id = m.account_id AND message_id = m.id) r
        WHERE (m.open_count, m.delivered_count, m.released_count) <> (r.open, r.delivered, r.released)
           OR m.status <> CASE WHEN r.open > 0 THEN 'queued' WHEN r.delivered = r.total THEN 'delivered'
                               WHEN r.delivered > 0 THEN 'partial' ELSE 'failed' END
           OR m.billing_status <> CASE WHEN r.open > 0 THEN 'reserved' WHEN r.released = r.total THEN 'released'
                                       ELSE 'settled' END
    """,
    "a recipient's credit is closed exactly when it is final, as its result says": """
        SELECT coalesce(r.message_id, l.message_id), coalesce(r.position, l.position), r.status, l.kind
        FROM (
            SELECT r.*, CASE r.billing_status WHEN 'released' THEN 'release' ELSE 'settle' END AS kind FROM recipients r
            JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
            WHERE r.status IN ('delivered', 'bounced', 'failed', 'cancelled') AND m.credits_reserved > 0) r
        FULL JOIN (SELECT * FROM ledger WHERE position >= 0) l USING (account_id, message_id, position)
        WHERE r.kind IS DISTINCT FROM l.kind
    """,
    "a final recipient has one event, and no other recipient has any": """
        SELECT coalesce(r.message_id, e.message_id), coalesce(r.position, e.position), r.status, e.types
        FROM (SELECT * FROM recipients WHERE status IN ('delivered', 'bounced', 'failed')) r
        FULL JOIN (
            SELECT account_id, message_id, position, array_agg(type) AS types FROM events
            WHERE message_id IS NOT NULL GROUP BY 1, 2, 3) e USING (account_id, message_id, position)
        WHERE e.types IS DISTINCT FROM ARRAY['email.' || r.status]
    """,
    "what is delivered has an attempt that delivered it": """
        SELECT r.message_id, r.position FROM recipients r WHERE r.status = 'delivered' AND NOT EXISTS (
            SELECT FROM attempts a WHERE a.account_id = r.account_id AND a.message_id = r.message_id
                AND a.position = r.position AND a.outcome = 'delivered')
    """,
    # A postponement recorded after its worker's lease was reclaimed has been counted as an attempt.
    "a final recipient was tried as often as it says": """
        SELECT r.message_id, r.position, r.attempt_count, a.counted, a.written FROM recipients r
        CROSS JOIN LATERAL (
            SELECT count(*) AS written, count(*) FILTER (WHERE outcome IS DISTINCT FROM 'postponed') AS counted
            FROM attempts
            WHERE account_id = r.account_id AND message_id = r.message_id AND position = r.position) a
        WHERE r.status IN ('delivered', 'bounced', 'failed') AND r.attempt_count NOT BETWEEN a.counted AND a.written
    """,
    # The first of a batch request has the request's key too.
    "a message has one key, and one that came over SMTP or is sent again has none": """
        SELECT m.id, m.source, i.keys FROM messages m LEFT JOIN (
            SELECT account_id, credential_id, message_id,
                   count(*) - CASE WHEN bool_or(key LIKE ' %') AND count(*) = 2 THEN 1 ELSE 0 END AS keys
            FROM idempotency GROUP BY 1, 2, 3
        ) i ON i.account_id = m.account_id AND i.credential_id = m.credential_id AND i.message_id = m.id
        WHERE coalesce(i.keys, 0) <> CASE WHEN m.source = 'smtp' OR m.resent_from IS NOT NULL THEN 0 ELSE 1 END
    """,
    **{
        f"nothing in {table} is without its message": f"""
            SELECT t.account_id, t.message_id FROM {table} t
            WHERE NOT EXISTS (SELECT FROM messages m WHERE m.account_id = t.account_id AND m.id = t.message_id)
        """
        for table in ("recipients", "bodies", "ledger", "delivery_schedule", "attempts", "idempotency")
    },
    "a message has an account and a credential": """
        SELECT m.id FROM messages m WHERE NOT EXISTS (
            SELECT FROM credentials c WHERE c.account_id = m.account_id AND c.id = m.credential_id)
    """,
}


_BYTES: Final = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname !~ '^pg_'"
# ANALYZE takes 0.3 s of processor time in any database, so it is for those where the planner's guess would cost more.
ANALYZED_BYTES: Final = 4 * 1024**2


async def database_faults(database_url: str) -> dict[str, list[Any]]:
    """The broken promises, each with some of the rows that break it."""
    connection = await asyncpg.connect(database_url)
    try:
        # The planner has no statistics of rows that the test has just written.
        if await connection.fetchval(_BYTES) > ANALYZED_BYTES:
            await connection.execute("ANALYZE")
        broken = {name: await connection.fetch(f"{query} LIMIT 5") for name, query in PROMISES.items()}
    finally:
        await connection.close()
    return {name: [dict(row) for row in rows] for name, rows in broken.items() if rows}
