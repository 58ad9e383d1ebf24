"""Webhook workers killed again and again, right after a customer has answered: every event is sent, unchanged.

A worker killed then cannot record the answer. The same event is sent again, and the customer knows it by its id.
"""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from posthouse.rules import ids
from tests.faults.forked_processes import ForkedProcesses, owner_of
from tests.support import webhook_accounts
from tests.support.bad_input import new_seed
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.server_process import environment
from tests.support.service import service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_accounts import ATTEMPTS_MAX, signed_at
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver

KILLS = 8
# This many at a time: while one is dead, and its claims wait, the others continue.
WORKERS = 8
# More than there are shards, so that every worker has something to do.
ACCOUNTS = 32
FEED_SECONDS = 0.4
# A machine that stood still let a look-up or a call time out; its next attempt need not wait for minutes.
_RETRY_AT_ONCE = """
UPDATE webhook_schedule SET next_at = now() WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM webhook_schedule s JOIN webhook_deliveries d USING (account_id, id)
    WHERE s.next_at = d.next_attempt_at AND s.next_at > now() FOR NO KEY UPDATE OF s SKIP LOCKED))
"""
KILLED_SECONDS_MAX = 2 * HANG_SECONDS


class Killer:
    """Kills the worker that was just answered: immediately, or a moment later, when it may have recorded it."""

    def __init__(self, forked: ForkedProcesses, randomness: random.Random) -> None:
        self.kills = 0
        self._forked = forked
        self._randomness = randomness
        self._owners: dict[int, int | None] = {}
        self._condemned: set[int] = set()

    def see(self, request: Request) -> None:
        if self.kills + len(self._condemned) >= KILLS or self._condemned:
            return
        port = request.peer_port
        if port not in self._owners:
            self._owners[port] = owner_of(port, self._forked.alive)
        pid = self._owners[port]
        if pid is None or pid not in self._forked.alive:
            return
        self._condemned.add(pid)
        if self._randomness.random() < 0.7:
            self._kill(pid)
        else:
            asyncio.get_running_loop().call_later(self._randomness.uniform(0, 0.03), self._kill, pid)

    def _kill(self, pid: int) -> None:
        self._forked.kill(pid)
        self.kills += 1
        self._forked.start("run", "notification")
        self._condemned.discard(pid)


@pytest.mark.long
async def test_after_many_kills_every_event_was_sent_and_none_changed(database_url: str, tmp_path: Path) -> None:
    seed = new_seed()
    authority = tmp_path / "authority.pem"
    authority.write_bytes(certificates().authority_pem)
    async with WebhookReceiver(certificates().servers["sound"]) as webhook_receiver:
        chosen = {**webhook_accounts.webhook_settings(webhook_receiver.port, authority), "WORKERS__LEASE_SECONDS": "2"}
        async with prepare_processes(database_url, tmp_path, keeps_mail=False, **chosen) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.nameserver.ttl = 3600
            await processes.start_http()
            processes.start("dispatch")
            own = environment(database_url, **processes.settings)
            with ForkedProcesses(own, tmp_path) as forked:
                await _kill_and_compare(processes, webhook_receiver, forked, random.Random(seed))


async def _unsent(pool: Any) -> int:
    await pool.execute(_RETRY_AT_ONCE)
    number: int = await pool.fetchval("SELECT count(*) FROM webhook_schedule")
    return number


async def _open(pool: Any) -> list[dict[str, Any]]:
    """Some of the events that are not sent yet, and why."""
    rows = await pool.fetch(
        """SELECT c.attempt_count, c.fence, c.next_at - now() AS due_in, w.expires_at - now() AS lease_ends_in,
                  c.worker_id, d.error, count(*) OVER () AS number
           FROM webhook_schedule c JOIN webhook_deliveries d USING (account_id, id) LEFT JOIN workers w
               ON w.id = c.worker_id
           LIMIT 5"""
    )
    return [dict(row) for row in rows]


async def _kill_and_compare(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver, forked: ForkedProcesses, randomness: random.Random
) -> None:
    pool = processes.service.pool
    made = await webhook_accounts.create_accounts(
        pool,
        service_settings(processes.database_url),
        webhook_receiver.port,
        [f"/events?{number}" for number in range(ACCOUNTS)],
    )
    for _ in range(WORKERS):
        forked.start("run", "notification")
    killer = Killer(forked, randomness)
    webhook_receiver.when_answered = killer.see
    began_at = time.monotonic()
    while killer.kills < KILLS:
        await webhook_accounts.add_events(pool, made)
        await asyncio.sleep(FEED_SECONDS)
        processes.check()
        late = time.monotonic() - began_at > KILLED_SECONDS_MAX
        assert not late, f"{killer.kills} kills, {len(webhook_receiver.requests)} calls; {forked.said(forked.alive[0])}"
    killed_at = time.monotonic()
    await eventually(lambda: _unsent(pool), lambda number: number == 0, every=0.25, or_say=lambda: _open(pool))
    ended_at = time.monotonic()

    secrets = {account.path: account.secret for account in made}
    lines: defaultdict[str, list[Request]] = defaultdict(list)
    for request in webhook_receiver.requests:
        lines[json.loads(request.body)["id"]].append(request)
    rows = await pool.fetch(
        """SELECT e.id, e.body, d.status, d.attempt FROM events e
           LEFT JOIN webhook_deliveries d ON d.account_id = e.account_id AND d.event_id = e.id"""
    )
    orphans = sum(row["attempt"] - 1 for row in rows)
    print(
        f"{killer.kills} kills in {killed_at - began_at:.1f} s, all sent {ended_at - killed_at:.1f} s later; "
        f"{len(rows)} events, {len(webhook_receiver.requests)} calls, {orphans} attempts without a record; "
        f"calls per event: {sorted(Counter(map(len, lines.values())).items())}"
    )
    assert killer.kills == KILLS
    assert len(rows) == len(lines), "every event came, and nothing else did"
    assert {row["status"] for row in rows} == {"succeeded"}
    for row in rows:
        came = lines[ids.text(ids.EVENT, row["id"])]
        assert {request.body for request in came} == {row["body"]}
        assert 1 <= len(came) <= row["attempt"] <= ATTEMPTS_MAX
        secret = secrets[came[0].line.split(" ")[1]]
        times = [signed_at(request, secret) for request in came]
        assert None not in times
        assert times == sorted(t for t in times if t is not None), "each has its own time, or the same second"
    # Not every kill was early enough to be noticed.
    again = sum(len(came) > 1 for came in lines.values())
    assert again > 0
