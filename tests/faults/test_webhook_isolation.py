"""A customer's hanging endpoint does not delay the others: a small version of `make bench-webhooks`."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from posthouse.wire.webhook_client import CALL_SECONDS_MAX
from tests.faults.webhook_isolation import measure_waits
from tests.faults.webhook_load_receiver import WebhookLoadReceiver
from tests.support import webhook_accounts
from tests.support.service_processes import prepare_processes
from tests.support.webhook_flow import NAME

# Few, so that the hanging endpoint has more events than may be in flight to it at a time.
ACCOUNTS = 20
EVENTS = 600
PER_SECOND = 100
# Behind the hanging endpoint, each call of which takes its five seconds, no event would arrive in time.
WAIT_SECONDS_MAX = 25.0


@pytest.mark.nightly
async def test_an_endpoint_that_hangs_does_not_delay_the_others_events(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = await asyncio.to_thread(new_database)
    with WebhookLoadReceiver(tmp_path) as load_receiver:
        async with prepare_processes(
            url,
            tmp_path,
            keeps_mail=False,
            **webhook_accounts.webhook_settings(load_receiver.port, load_receiver.authority),
        ) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.nameserver.ttl = 3600
            for words in ("dispatch", "delivery", "notification"):
                processes.start(words)
            await processes.start_http()
            waits = await measure_waits(processes, load_receiver, ACCOUNTS, EVENTS, PER_SECOND, WAIT_SECONDS_MAX)
    print(
        f"{len(waits.others)} events of {ACCOUNTS - 1} customers: p50 {waits.percentile(0.5):.3f} s, "
        f"p99 {waits.percentile(0.99):.3f} s, most {waits.percentile(1):.3f} s; the hanging endpoint was called "
        f"{waits.hanging_calls} times about {waits.hanging_events} events"
    )
    assert waits.hanging_events * CALL_SECONDS_MAX > WAIT_SECONDS_MAX
    assert waits.hanging_calls > 0
