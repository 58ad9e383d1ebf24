"""`posthouse run`: which parts share a process, how they start, deliver together, and stop."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import preloaded
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nameserver import Nameserver
from tests.support.nats import PrivateNats
from tests.support.server_process import ServerProcess, environment
from tests.support.service import Service, Tenant
from tests.support.smtp_receiver import SmtpReceiver
from tools.private_postgres import free_port

pytestmark = pytest.mark.long


@dataclass(slots=True)
class Started(ServerProcess):
    """`posthouse run` with these arguments; `below` another command, as a process that is not forked from ours."""

    words: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def spawn(self, processes: int = 1) -> None:
        if not self.below:
            ServerProcess.spawn(self, processes)
            return
        command = [*self.below, sys.executable, "-m", "posthouse", "run", *self.words]
        with self.log.open("ab") as written:
            self.process = subprocess.Popen(
                command + (["--processes", str(processes)] if processes > 1 else []),
                env=environment(self.database_url, HTTP__PORT=str(self.port), **self.settings),
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
            )

    def parts(self) -> list[str]:
        """The arguments of the child processes."""
        found = []
        for child in _children(self.running.pid):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")[:-1]
            if "run" in words:
                found.append(" ".join(words[words.index("run") + 1 :]))
        return sorted(found)

    def end(self) -> None:
        for pid in [self.running.pid, *_children(self.running.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(slots=True)
class Runs:
    """Starts the service, ends it, and is its only customer."""

    database_url: str
    directory: Path
    started: list[Started] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)

    async def run(
        self, *words: str, processes: int = 1, settings: Mapping[str, str] | None = None, below: tuple[str, ...] = ()
    ) -> Started:
        log = self.directory / f"run-{len(self.started)}.log"
        server = Started(self.database_url, log, dict(settings or {}), words=words, below=below)
        self.started.append(server)
        server.spawn(processes)
        if not words or "http" in words:
            await server.ready()
        return server

    async def customer(self, server: Started) -> Tenant:
        service = await server.open_client()
        self.services.append(service)
        return await service.account()

    async def close(self) -> None:
        for service in self.services:
            await service.close()
        for server in self.started:
            if server.running.poll() is None:
                server.end()


@pytest.fixture
async def runs(new_database: Callable[[], str], tmp_path: Path) -> AsyncIterator[Runs]:
    opened = Runs(new_database(), tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def nats() -> Iterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


@pytest.fixture
async def destination() -> AsyncIterator[SmtpReceiver]:
    async with SmtpReceiver(behaviours={"127.0.0.2": "delay-300"}) as receiver:
        yield receiver


@pytest.fixture
async def towards(destination: SmtpReceiver) -> AsyncIterator[dict[str, str]]:
    """Settings under which mail for example.org, and slow.example.org, comes to the destination."""
    async with Nameserver() as nameserver:
        nameserver.records["example.org", "MX"] = ["10 mx.example.org."]
        nameserver.records["mx.example.org", "A"] = ["127.0.0.1"]
        nameserver.records["slow.example.org", "MX"] = ["10 mx.slow.example.org."]
        nameserver.records["mx.slow.example.org", "A"] = ["127.0.0.2"]
        yield {
            "SERVICE__RESOLVERS": f"127.0.0.1:{nameserver.port}",
            "DELIVERY__PORT": str(destination.port),
            "DELIVERY__ALLOW_LOOPBACK": "true",
        }


async def sent(customer: Tenant, to: str, **fields: object) -> str:
    answer = await customer.send(customer.mail(to=to, **fields))
    assert answer.is_accepted()
    message_id: str = answer.body["id"]
    return message_id


async def status_is(customer: Tenant, message_id: str, status: str) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        return (await customer.get(message_id)).body

    return await eventually(ask, lambda body: body["status"] == status)


def refusal(runs: Runs, *words: str, below: Sequence[str] = ()) -> str:
    variables = environment(runs.database_url)
    if below:
        done = subprocess.run(
            [*below, sys.executable, "-m", "posthouse", "run", *words],
            cwd=runs.directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    else:
        done = preloaded.run("run", *words, environment=variables, directory=runs.directory)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


async def test_a_process_with_too_few_open_files_does_not_start(runs: Runs) -> None:
    parts = "dispatch", "delivery", "notification"
    errors = await asyncio.to_thread(refusal, runs, *parts, below=["prlimit", "--nofile=550:550"])
    assert errors.startswith("posthouse: delivery may have 500 connections (delivery.sessions_max), and this process")
    assert "allow it 600 (LimitNOFILE= in systemd, `ulimit -Hn`), or lower delivery.sessions_max" in errors


async def test_the_limit_on_open_files_is_raised_to_the_hard_limit(runs: Runs) -> None:
    server = await runs.run("dispatch", "delivery", below=("prlimit", "--nofile=300:"))
    # Before anything else starts.
    await eventually(
        lambda: resource.prlimit(server.running.pid, resource.RLIMIT_NOFILE),
        lambda limit: 300 < limit[0] == limit[1],
        or_say=server.said,
    )


async def test_an_address_in_use_ends_everything_with_a_reason(runs: Runs) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    try:
        errors = await asyncio.to_thread(refusal, runs, "--port", str(port))
    finally:
        taken.close()
        await taken.wait_closed()
    assert f"posthouse: HTTP can't be served at 127.0.0.1, port {port}" in errors
    assert "address already in use" in errors


async def test_in_memory_one_process_accepts_and_delivers_and_its_metrics_say_so(
    runs: Runs, destination: SmtpReceiver, towards: dict[str, str]
) -> None:
    port = free_port()
    # Nothing waits for a lease to end.
    settings = {**towards, "WORKERS__TICKET_LEASE_SECONDS": "3600", "MONITORING__PORT": str(port)}
    server = await runs.run(settings=settings)
    assert server.parts() == []
    customer = await runs.customer(server)
    message = await status_is(customer, await sent(customer, "ada@example.org"), "delivered")
    assert message["recipients"][0]["last_smtp_code"] == 250
    (delivered,) = destination.accepted
    assert delivered.recipient == "ada@example.org"
    assert b"\r\nDKIM-Signature:" in b"\r\n" + delivered.message
    assert delivered.sender.startswith("bounces+")
    assert delivered.sender.endswith("@localhost.localdomain")
    assert (await customer.send({}, authorization="Bearer ph_live_wrong")).status == 401

    async def samples() -> dict[tuple[str, ...], float]:
        found = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
        families = text_string_to_metric_families(found)
        # Labels are in the order of their names.
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    def is_counted(found: dict[tuple[str, ...], float]) -> bool:
        # The status is visible before the worker counts it; and the first figures may come before there is a worker.
        names = {name for name, *_ in found}
        return (
            ("posthouse_attempts_total", "delivered", "other") in found
            and found.get(("posthouse_workers",), 0) >= 1
            and names >= {"posthouse_maintenance_tasks_total", "posthouse_search_index_lag_seconds"}
        )

    found = await eventually(samples, is_counted)
    assert found["posthouse_accepts_total", "accepted", "http"] == 1
    assert found["posthouse_accepts_total", "unauthorized", "http"] == 1
    assert found["posthouse_http_requests_total", "emails", "202"] == 1
    assert found["posthouse_group_commit_messages_sum",] == 1
    assert found["posthouse_credits_total", "reserved"] == found["posthouse_credits_total", "settled"] == 1
    assert found["posthouse_time_to_final_seconds_count", "other"] == 1
    assert found["posthouse_delivered_uncommitted_seconds_count",] == 1
    assert found["posthouse_tickets_published_total", "mail"] == 1
    assert found["posthouse_stream_pending", "mail"] >= 0
    assert await server.terminate() == 0, server.said()
    assert "Traceback" not in server.said()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG_SECONDS) as response:
        text: str = response.read().decode()
        return text


async def test_in_memory_mail_of_separate_http_processes_is_delivered_and_all_end_when_the_first_is_killed(
    runs: Runs,
) -> None:
    server = await runs.run(processes=2)
    assert server.parts() == ["dispatch delivery notification maintenance", "http --processes 2"]
    customer = await runs.customer(server)
    message_id = await sent(customer, "bounced@simulator.invalid")
    assert (await status_is(customer, message_id, "failed"))["recipients"][0]["status"] == "bounced"
    parts = _children(server.running.pid)
    others = [*parts, *(worker for part in parts for worker in _children(part))]
    # Two parts, and of HTTP two workers and what multiprocessing needs.
    assert len(others) >= 4
    server.running.kill()

    def left() -> list[int]:
        return [pid for pid in others if os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/cmdline").read_bytes()]

    await eventually(left, lambda found: found == [], or_say=server.said)


async def test_with_nats_every_part_is_its_own_process_and_mail_is_accepted_while_nats_is_down(runs: Runs) -> None:
    nats = PrivateNats()
    settings = {"STREAM__SERVERS": nats.url, "WORKERS__TICKET_LEASE_SECONDS": "2"}
    try:
        server = await runs.run("http", "dispatch", "delivery", settings=settings)
        assert server.parts() == ["delivery", "dispatch", "http --processes 1"]
        customer = await runs.customer(server)
        key = await customer.key(mode="test", may_read=True)
        answer = await customer.send(customer.mail(to="ada@example.org"), authorization=key)
        nats.start()
        message = await status_is(customer, answer.body["id"], "delivered")
        assert message["source"] == "test"
        children = _children(server.running.pid)
        assert await server.terminate() == 0, server.said()
        assert [child for child in children if os.path.exists(f"/proc/{child}")] == []  # noqa: ASYNC240
        assert "Traceback" not in server.said()
    finally:
        nats.__exit__()


async def test_with_nats_a_second_worker_continues_when_the_first_stops(runs: Runs, nats: PrivateNats) -> None:
    http = await runs.run("http", settings={"STREAM__SERVERS": nats.url})
    await runs.run("dispatch", settings={"STREAM__SERVERS": nats.url})
    first = await runs.run("delivery", settings={"STREAM__SERVERS": nats.url})
    customer = await runs.customer(http)
    await status_is(customer, await sent(customer, "delivered@simulator.invalid"), "delivered")
    await runs.run("delivery", settings={"STREAM__SERVERS": nats.url})
    assert await first.terminate() == 0, first.said()
    await status_is(customer, await sent(customer, "delivered@simulator.invalid"), "delivered")


async def test_a_delivery_under_way_is_finished_before_the_process_ends(
    runs: Runs, destination: SmtpReceiver, towards: dict[str, str]
) -> None:
    """And a message that was not begun is released, and found by the next process."""
    server = await runs.run(settings={**towards, "LANES__CONNECTIONS_MAX": "1"})
    customer = await runs.customer(server)
    under_way = await sent(customer, "ada@slow.example.org")
    await eventually(lambda: destination.connections > 0)
    waiting = await sent(customer, "charles@slow.example.org")
    assert await server.terminate() == 0, server.said()
    assert [mail.recipient for mail in destination.accepted] == ["ada@slow.example.org"]
    again = await runs.run(settings={**towards, "WORKERS__TICKET_LEASE_SECONDS": "2"})
    customer.service.port = again.port
    assert (await status_is(customer, under_way, "delivered"))["recipients"][0]["attempt_count"] == 1
    await customer.service.sql("UPDATE delivery_schedule SET next_at = now()")
    assert (await status_is(customer, waiting, "delivered"))["recipients"][0]["attempt_count"] == 1


async def test_a_database_that_is_down_is_waited_for(runs: Runs) -> None:
    server = await runs.run("dispatch", "delivery", settings={"DATABASE__URL": "postgresql://me@127.0.0.1:1/nowhere"})
    await eventually(lambda: "step_refused" in server.said(), or_say=server.said)
    assert server.running.poll() is None, server.said()
    assert await server.terminate() == 0, server.said()
    assert "Traceback" not in server.said()
