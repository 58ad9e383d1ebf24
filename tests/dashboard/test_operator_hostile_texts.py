"""Hostile texts of outsiders and customers on the operator's pages: nothing runs, and nothing connects."""

import json
from typing import Final
from uuid import uuid4

import pytest

from tests.support.connection_trap import ConnectionTrap
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import operator_pages, operators_page, visited
from tests.support.hostile_html import payloads
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

NAMES: Final = ("script", "event handlers", "nested frame", "picture", "style", "javascript link", "breaking out")
STATEMENTS: Final = """
INSERT INTO learned_limits VALUES ('@' || $1::text, 'google', '{"per_second": 2}', 1, now());
INSERT INTO limit_changes (at, ip, lane, kind, scope, before, after, cause, reply)
VALUES (now(), '', 'google', 'slow', 'address', '{"per_second": 9}', '{"per_second": 2}', '421', $1::text);
INSERT INTO lane_pauses VALUES ($1::text, now(), $1::text);
INSERT INTO pools (name, created_at) SELECT 'hostile', now() WHERE $1::text IS NOT NULL;
INSERT INTO sending_addresses (ip, hostname, pool, state, created_at, changed_at, findings)
VALUES ('192.0.2.1', $1::text, 'hostile', 'retired', now(), now(), ARRAY[$1::text]);
INSERT INTO postmaster_mail (id, recipient, sender, peer, subject, mime, at)
VALUES (gen_random_uuid(), $1::text, $1::text, '192.0.2.1', $1::text, convert_to($1::text, 'UTF8'), now());
INSERT INTO blocklist_entries VALUES ('192.0.2.1', $1::text, $1::text, now(), now());
UPDATE accounts SET suspended_at = now(), suspended_reason = $1::text, name = left($1::text, 100)
WHERE name = 'renamed later'
"""


async def test_nothing_runs_on_any_page_of_operators(pages: Pages, tenant: Tenant) -> None:
    service = tenant.service
    async with ConnectionTrap() as trap:
        hostile = payloads(trap.url)
        text = "".join(hostile[name] for name in NAMES)
        other = await service.account()
        sent = await other.accepts(other.mail(to="a@example.org", subject=hostile["script"]))
        await service.sql("UPDATE accounts SET name = 'renamed later' WHERE id = $1", other.id)
        for statement in STATEMENTS.split(";\n"):
            await service.sql(statement, text)
        logged = "INSERT INTO operator_log VALUES ($1, now(), $2, $2, $2, $3)"
        await service.sql(logged, uuid4(), text, json.dumps({text: text}))
        page = await operators_page(pages, tenant, "now")
        shown = set()
        pages_shown = operator_pages(other, sent["id"])
        pages_shown["message-search"] += f"?q={sent['id']}"
        for name, path in pages_shown.items():
            await visited(page, tenant, path)
            # An account's name has the first 100 characters.
            if text[:100] in await page.locator("main").inner_text():
                shown.add(name)
        # The watch of `pages` reports dialogs, violations of the policy and requests to another origin.
        assert trap.connections == 0
        assert {
            "now",
            "lanes",
            "lanes/$lane",
            "accounts",
            "accounts/$id",
            "message-search",
            "message-search/$id",
            "postmaster-mail",
            "addresses",
            "operator-log",
        } <= shown
