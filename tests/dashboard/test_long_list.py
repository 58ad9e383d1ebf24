"""100,000 messages, scrolled to the end: few rows in the document, even frames, little memory."""

import statistics
from typing import Any, Final

import pytest
from playwright.async_api import Page

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

MESSAGES: Final = 100_000
ROWS_MAX: Final = 60
FRAME_P95_MILLISECONDS_MAX: Final = 60.0
HEAP_BYTES_MAX: Final = 150_000_000
SCROLL_MILLISECONDS_MAX: Final = 900_000

# Of today, in the order of their ids, all delivered.
_MESSAGES: Final = """
INSERT INTO messages (account_id, id, credential_id, request_id, source, status, billing_status, sender,
    envelope_sender, subject, tags, recipient_count, credits_reserved, open_count, delivered_count, released_count,
    created_at)
SELECT $1, id, $2, id, 'api', 'delivered', 'settled', $3, $3, 'Order ' || n, ARRAY['order'], 1, 1, 0, 1, 0, at
FROM (
    SELECT n, at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
        || '8' || substr(md5(n::text), 4, 13) || '00')::uuid AS id
    FROM (SELECT n, date_trunc('day', now()) + n * (now() - date_trunc('day', now())) / $4::int AS at
          FROM generate_series(1, $4::int) n) numbers) made
"""
_RECIPIENTS: Final = """
INSERT INTO recipients (account_id, message_id, position, field, email, status, billing_status, attempt_count,
    last_smtp_code, last_smtp_response, delivered_at)
SELECT account_id, id, 0, 'to', 'reader@example.org', 'delivered', 'settled', 1, 250, '2.0.0 taken', created_at
FROM messages WHERE account_id = $1
"""
# Scrolls to what is loaded, until nothing more comes, and measures every frame.
SCROLL: Final = """async (box) => {
  const frames = []; let last = performance.now(), measures = true, rows = 0, end = 0;
  const measure = (now) => { frames.push(now - last); last = now; if (measures) requestAnimationFrame(measure); };
  requestAnimationFrame(measure);
  for (;;) {
    box.scrollTop = box.scrollHeight;
    await new Promise((next) => setTimeout(next, 20));
    const items = [...box.querySelectorAll("[role=listitem]")];
    rows = Math.max(rows, items.length);
    const item = items.at(-1);
    end = Math.max(end, Number(item?.ariaPosInSet));
    if (item?.ariaSetSize === item?.ariaPosInSet) break;
  }
  measures = false;
  return { frames, rows, end };
}"""


async def fill(dashboard: DashboardService) -> Tenant:
    tenant = await dashboard.account()
    service = dashboard.service
    await service.sql(_MESSAGES, tenant.id, tenant.credential_id, f"news@{tenant.domain}", MESSAGES)
    await service.sql(_RECIPIENTS, tenant.id)
    await service.sql("ANALYZE messages")
    return tenant


async def heap_bytes(page: Page) -> int:
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    usage: dict[str, Any] = await session.send("Runtime.getHeapUsage")
    return int(usage["usedSize"])


async def test_a_list_of_many_messages_is_scrolled_to_its_end(pages: Pages, dashboard: DashboardService) -> None:
    tenant = await fill(dashboard)
    page = await pages.of(tenant, "messages")
    await settled(page)
    page.set_default_timeout(SCROLL_MILLISECONDS_MAX)
    scroller = page.locator("[role=region]:has(> [role=list])").first
    found: dict[str, Any] = await scroller.evaluate(SCROLL, timeout=SCROLL_MILLISECONDS_MAX)
    p95 = statistics.quantiles(found["frames"], n=20)[18]
    heap = await heap_bytes(page)
    print(f"\n{found['end']} rows, {found['rows']} in the document, p95 frame {p95:.0f} ms, {heap / 1e6:.0f} MB")
    assert found["end"] == MESSAGES
    assert found["rows"] <= ROWS_MAX
    assert heap <= HEAP_BYTES_MAX
    assert p95 <= FRAME_P95_MILLISECONDS_MAX
