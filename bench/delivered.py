"""Posthouse as a relay: taken by POST /emails, kept in PostgreSQL, signed, handed to the sink, recorded.

Each part is a process of its own, as `posthouse run` starts them on NATS, so that it is seen which one
needs what. Destinations are looked up in DNS: a name server on the loopback says that the sink takes
their mail.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from bench import deliver_letter, posts, served
from bench.ground import BooksError, Caller, Ground
from bench.load import LoadError
from bench.relay import Process, Relay, part_running
from posthouse.compose.operator import operator_services
from posthouse.mail import dkim
from posthouse.rules.actor import OPERATOR
from posthouse.rules.ids import AccountId
from tests.support.nameserver import Nameserver
from tests.support.nats import PrivateNats
from tests.support.service import settings_from
from tools.private_postgres import free_port

# Each has its own domain and its own keys.
SENDERS: Final = 10
# As many as have their turn in the stream's shards: one destination would be one shard's, and one process'.
DESTINATIONS: Final = 16
CONNECTIONS: Final = 64
LANE_CONNECTIONS_MAX: Final = 100
START_SECONDS_MAX: Final = 60.0
RECORD_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.05
SIGNED: Final = 300

_STARTED: Final = "Application startup complete"
_EXCHANGE: Final = "mx.customer.example"
_DELIVERY_TABLES: Final = ("attempts", "events")

_OPEN: Final = "SELECT count(*) FROM schedule"
# The message, its recipient, its one attempt, its event: all of them say the same.
_OUTCOMES: Final = """
SELECT (SELECT count(*) FROM messages WHERE status = 'delivered' AND billing_status = 'settled') AS messages,
       (SELECT count(*) FROM recipients WHERE status = 'delivered' AND attempt_count = 1) AS recipients,
       (SELECT count(*) FROM attempts WHERE outcome = 'delivered' AND fence = 1) AS attempts,
       (SELECT count(*) FROM events WHERE type = 'email.delivered') AS events,
       (SELECT count(*) FROM ledger WHERE kind = 'settle') AS settled
"""

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Installation:
    """What stays over all rounds: the cluster with its accounts, NATS, the name server."""

    ground: Ground
    nats: PrivateNats
    environment: Mapping[str, str]
    callers: tuple[Caller, ...]


@contextmanager
def opened(ground: Ground, sink_port: int) -> Iterator[Installation]:
    with ExitStack() as opened_now:
        nats = opened_now.enter_context(PrivateNats())
        names = opened_now.enter_context(_names())
        settings = {
            "STREAM__SERVERS": nats.url,
            "SERVICE__RESOLVERS": f"127.0.0.1:{names}",
            "DELIVERY__PORT": str(sink_port),
            "DELIVERY__ALLOW_LOOPBACK": "true",
            "SERVICE__HOSTNAME": "mail.posthouse.example",
            # Too high to be what is measured.
            "LANES__PER_SECOND": "1000000",
            "LANES__BURST": "1000000",
            "LANES__CONNECTIONS_MAX": str(LANE_CONNECTIONS_MAX),
        }
        environment = {**ground.environment, **{f"POSTHOUSE_{name}": value for name, value in settings.items()}}
        yield Installation(ground, nats, environment, _with_keys(ground))


@contextmanager
def running(installation: Installation, *, is_signing: bool) -> Iterator[Relay]:
    ground = installation.ground
    ground.clear()
    _with_connection(ground.url, lambda connection: connection.execute(f"TRUNCATE {', '.join(_DELIVERY_TABLES)}"))
    environment = {**installation.environment, "POSTHOUSE_DELIVERY__DKIM_ENABLED": "true" if is_signing else "false"}
    port = free_port()
    words: Mapping[str, Sequence[str]] = {"http": ("--port", str(port)), "dispatch": (), "delivery": ()}
    runs, sent = itertools.count(1), 0
    with ExitStack() as started:
        parts = {
            part: started.enter_context(part_running([part, *more], environment, ground.workplace / f"{part}.log"))
            for part, more in words.items()
        }
        _wait_until_serving(ground.workplace, parts["http"])
        requests = _requests(installation.callers, port)

        def start_load(mails: int) -> Process:
            script = ground.workplace / "posts.lua"
            name = f"run{next(runs)}"
            return posts.start(script, requests, port=port, mails=mails, connections=CONNECTIONS, run=name)

        def require_well() -> None:
            for part, process in parts.items():
                if process.poll() is not None:
                    raise LoadError(f"{part} ended ({process.returncode}): {_log_end(ground.workplace, part)}")

        def finish(mails: int) -> None:
            nonlocal sent
            sent += mails
            _require_outcomes(ground, sent)

        yield Relay(
            families={
                **{part: process.pid for part, process in parts.items()},
                "PostgreSQL": ground.cluster.pid,
                "NATS": installation.nats.pid,
            },
            start_load=start_load,
            end_load=posts.ended_well,
            require_well=require_well,
            finish=finish,
        )


def signing_us() -> float:
    """What the two signatures of one mail cost by themselves, here and now: the least that DKIM can cost."""
    keys = [
        dkim.load_signing_key("mail0.example", "selector", pair.private_der)
        for pair in (dkim.new_key_pair(), dkim.new_ed25519_key_pair())
    ]
    message, now = deliver_letter.written(), datetime.now(UTC)
    dkim.signatures(message, keys, now)  # the first one prepares the keys
    started = time.process_time()
    for _ in range(SIGNED):
        dkim.signatures(message, keys, now)
    return (time.process_time() - started) / SIGNED * 1e6


def _requests(callers: Sequence[Caller], port: int) -> list[str]:
    """Every sender with every destination."""
    pairs = itertools.product(range(DESTINATIONS), callers)
    return [
        served.ready(caller, deliver_letter.fields(caller.domain, f"ada@{_destination(number)}"), port)
        for number, caller in pairs
    ]


def _destination(number: int) -> str:
    return f"customer{number}.example"


def _wait_until_serving(workplace: Path, http: Process) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while _STARTED not in (workplace / "http.log").read_text(errors="replace"):
        if http.poll() is not None or time.monotonic() > deadline:
            raise LoadError(f"the server did not start:\n{_log_end(workplace, 'http')}")
        time.sleep(POLL_SECONDS)


def _log_end(workplace: Path, part: str) -> str:
    return (workplace / f"{part}.log").read_text(errors="replace")[-3000:]


def _require_outcomes(ground: Ground, mails: int) -> None:
    """Returns once every mail's outcome is on the books; raises unless all were delivered, at the first attempt."""

    deadline = time.monotonic() + RECORD_SECONDS_MAX
    while _with_connection(ground.url, lambda connection: connection.fetchval(_OPEN)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    outcomes = dict(_with_connection(ground.url, lambda connection: connection.fetchrow(_OUTCOMES)))
    if set(outcomes.values()) != {mails}:
        raise BooksError(
            f"the sink has {mails:,} mails, and the books say otherwise: {outcomes}; "
            f"delivery's log ends:\n{_log_end(ground.workplace, 'delivery')}"
        )


def _with_keys(ground: Ground) -> tuple[Caller, ...]:
    """Some of the accounts, each with a further domain that has keys to sign with."""
    settings = settings_from(ground.environment)
    callers = tuple(replace(one, domain=f"mail{one.number}.example") for one in ground.callers[:SENDERS])

    async def add() -> None:
        async with operator_services(settings) as services:
            for one in callers:
                await services.domains.add(AccountId(one.account_id), one.domain, OPERATOR)
                await services.domains.verify(AccountId(one.account_id), one.domain, OPERATOR, vouched=True)

    asyncio.run(add())
    # Long ago: a server forgets what it knew of an account that changed lately.
    _with_connection(
        ground.url, lambda connection: connection.execute("UPDATE accounts SET changed_at = now() - interval '1 hour'")
    )
    return callers


@contextmanager
def _names() -> Iterator[int]:
    """A name server on a thread of its own; its port."""
    server = Nameserver()
    server.ttl = 3600
    server.records = {(_EXCHANGE, "A"): ["127.0.0.1"]}
    server.records |= {(_destination(number), "MX"): [f"10 {_EXCHANGE}."] for number in range(DESTINATIONS)}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _with_connection(url: str, act: Callable[[Any], Awaitable[Read]]) -> Read:
    async def run() -> Read:
        connection = await asyncpg.connect(url)
        try:
            return await act(connection)
        finally:
            await connection.close()

    return asyncio.run(run())
