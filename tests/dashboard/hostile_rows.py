"""Hostile texts in every text column of an account's rows, as if no rule had kept them out.

The columns are read from the database: a column that a migration adds is filled too, or named in `CLOSED`.
"""

from typing import Final
from uuid import UUID

from tests.support.service import Service

# States, kinds and keys that the service computes with; the database, or the code that reads them, admits no other.
_CLOSED: Final = {
    "alert_notices": "kind label",
    "alert_states": "kind label subject",
    "alerts": "kind",
    "api_keys": "mode",
    "attempts": "outcome stage",
    "audit_log": "action",
    "credentials": "username",
    "domains": "name",
    "endpoint_events": "type",
    "endpoints": "mode types header_names",
    "erasures": "phase",
    "events": "type",
    "credit_grants": "key",
    "idempotency": "key",
    "invitations": "role",
    "ledger": "kind",
    "removed_suppressions": "reason",
    "memberships": "role",
    "messages": "billing_status source status",
    "recipients": "billing_status field status",
    "reports": "kind",
    "resends": "status",
    "delivery_schedule": "destination",
    "suppressions": "reason",
    "template_versions": "alias engine",
    "templates": "alias former_alias",
    "unsubscriptions": "email mailing_list",
    "usage_reasons": "result",
    "usage_splits": "kind",
    # The receivers' answers in `failed_attempts` are written in base64.
    "webhook_deliveries": "failed_attempts status type",
}
CLOSED: Final = frozenset(f"{table}.{column}" for table, columns in _CLOSED.items() for column in columns.split())
# What a text begins with where a constraint of the table requires it.
_PREFIXES: Final = {"endpoints.url": "https://hooks.example/"}
# The classic webhook has no filters.
_ENDPOINTS: Final = "id <> account_id"
_ROWS: Final = {"endpoints.sender_domains": _ENDPOINTS, "endpoints.tags": _ENDPOINTS}

_COLUMNS: Final = """
SELECT columns.table_name || '.' || columns.column_name AS name, columns.udt_name AS type
FROM information_schema.columns
JOIN pg_class ON relnamespace = CAST('public' AS regnamespace) AND relname = columns.table_name
WHERE columns.table_schema = 'public' AND columns.udt_name IN ('text', '_text', 'jsonb') AND NOT relispartition
  AND relkind IN ('r', 'p') AND EXISTS (
    SELECT FROM information_schema.columns owner
    WHERE owner.table_name = columns.table_name AND owner.column_name = 'account_id')
ORDER BY name
"""
_NUMBER: Final = "1 + (hashtext(tableoid::text || ctid::text) & 65535) % cardinality($2::text[])"

# Rows of which the account has none or one: copies that differ in what is unique and in the text.
_COPIES: Final = (
    """INSERT INTO users SELECT (jsonb_populate_record(users, jsonb_build_object(
           'id', gen_random_uuid(), 'email', lower(text) || number))).*
       FROM unnest($2::text[]) WITH ORDINALITY given(text, number), users
       WHERE id = (SELECT user_id FROM memberships WHERE account_id = $1 LIMIT 1)""",
    """INSERT INTO memberships (account_id, user_id, role, created_at)
       SELECT $1, id, 'viewer', now() FROM users
       WHERE email = ANY (SELECT lower(text) || number FROM unnest($2::text[]) WITH ORDINALITY given(text, number))""",
    """INSERT INTO accounts SELECT (jsonb_populate_record(accounts, jsonb_build_object(
           'id', gen_random_uuid(), 'name', 'hostile-' || number, 'display_name', left(text, 100)))).*
       FROM unnest($2::text[]) WITH ORDINALITY given(text, number), accounts WHERE id = $1""",
    """INSERT INTO endpoints SELECT (jsonb_populate_record(endpoints, jsonb_build_object('id', gen_random_uuid()))).*
       FROM endpoints WHERE account_id = $1 LIMIT 1""",
    """INSERT INTO credit_grants SELECT $1, gen_random_uuid(), 1, text, now() FROM unnest($2::text[]) text""",
    """INSERT INTO invitations (account_id, id, email, role, token_hash, inviter, created_at, expires_at)
       SELECT $1, gen_random_uuid(), lower(text) || number, 'viewer', sha256(convert_to(text || number, 'UTF8')), text,
           now(), now() + interval '1 day'
       FROM unnest($2::text[]) WITH ORDINALITY given(text, number)""",
    """INSERT INTO reports (account_id, message_id, id, position, kind, detail, status, code, response, suppressed,
           shared, at)
       SELECT account_id, id, gen_random_uuid(), 0, 'bounce', '', '', 550, '', false, false, now()
       FROM messages WHERE account_id = $1""",
    # Waiting mail: some held by an operator, some because of a block of our address.
    """UPDATE recipients SET status = 'queued', billing_status = 'reserved', delivered_at = NULL, bounced_at = NULL,
           failed_at = NULL
       WHERE account_id = $1 AND position = 1""",
    """INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at, held_since, bounce_at,
    first_code,
           first_response, held_by)
       SELECT account_id, message_id, position, 'hostile.example', now() + interval '1 year',
           CASE WHEN hashtext(message_id::text) > 0 THEN now() END, now() + interval '1 year', 550, '', ''
       FROM recipients WHERE account_id = $1 AND position = 1""",
    """INSERT INTO erasures (account_id, id, email, hash, position, next_at, created_at)
       SELECT $1, gen_random_uuid(), '', sha256(convert_to(text, 'UTF8')), gen_random_uuid(), now() + interval '1 year',
           now()
       FROM unnest($2::text[]) text""",
    """INSERT INTO reroutes (at, lane, from_ip, to_ip, account_id, message_id, position)
       SELECT now(), '', '', '', account_id, id, 0 FROM messages WHERE account_id = $1""",
)


async def fill_rows(service: Service, account_id: UUID, texts: list[str]) -> None:
    for copy in _COPIES:
        arguments = (account_id, texts) if "$2" in copy else (account_id,)
        await service.sql(copy, *arguments)
    await service.sql("UPDATE accounts SET display_name = $2 WHERE id = $1", account_id, texts[0][:100])
    for row in await service.sql(_COLUMNS):
        name, kind = row["name"], row["type"]
        if name in CLOSED or kind == "jsonb":
            continue
        table, column = name.split(".")
        text = f"'{_PREFIXES.get(name, '')}' || ($2::text[])[{_NUMBER}]"
        if column in ("email", "value"):
            text = f"lower({text}) || hashtext(tableoid::text || ctid::text)"
        value = f"ARRAY[{text}]" if kind == "_text" else text
        rows = _ROWS.get(name, "true")
        await service.sql(f"UPDATE {table} SET {column} = {value} WHERE account_id = $1 AND {rows}", account_id, texts)


async def columns_without(service: Service, account_id: UUID, texts: list[str]) -> set[str]:
    """Text columns in which no row of the account has any of the texts."""
    lacking = set()
    for row in await service.sql(_COLUMNS):
        table, column = row["name"].split(".")
        query = f"""SELECT EXISTS (SELECT FROM {table}, unnest($2::text[]) hostile(hostile_text)
            WHERE account_id = $1 AND strpos(lower({table}.{column}::text), lower(hostile_text)) > 0)"""
        if not await service.value(query, account_id, texts):
            lacking.add(row["name"])
    return lacking


async def join_all(service: Service, email: str) -> None:
    """The user becomes a member of the accounts with hostile names."""
    await service.sql(
        """INSERT INTO memberships (account_id, user_id, role, created_at)
           SELECT accounts.id, users.id, 'viewer', now() FROM accounts, users
           WHERE accounts.name LIKE 'hostile-%' AND users.email = $1""",
        email,
    )
