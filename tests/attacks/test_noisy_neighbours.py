"""One tenant or anonymous client does its worst with each shared resource: another tenant's work takes little longer.

The victim's times are measured without and during the attack, in turns: five pairs of windows, whose medians are
compared, so that a machine with other things to do changes both. All parts of the service run in one process, or in a
fleet with NATS. With REPORT=FILE the figures are written into that file, between two comments: `make attacks-table`.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.attacks.neighbours_table import Measured, write_row
from tests.attacks.processor_load import ProcessorLoad
from tests.attacks.victim import ACTIONS, DESTINATION, SILENT, Stage, Victim, open_stage
from tests.support import nameserver
from tests.support.eventually import HANG_SECONDS
from tests.support.service import Tenant

ROOT: Final = Path(__file__).resolve().parents[2]
PAIRS: Final = 5
SECONDS: Final = 5.0
# Of the p99 without the attack; the first is for accepting and delivering.
TWICE: Final = 2.0
TIMES_MAX: Final = 3.0
# A time that no customer notices, whatever it was without the attack.
UNNOTICED_SECONDS: Final = 0.05
# What the attack's limits allow may take an event loop of a small machine, or all of it. Then the victim waits for its
# turn too, but not for what the attack has queued.
BUSY: Final = 1 / 3
BUSY_SECONDS: Final = 1.0

Prepare = Callable[[Stage, Sequence[Tenant]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scene:
    """`attack` names a function of `tests.attacks.attackers`."""

    resource: str
    worst: str
    attack: str
    prepare: Prepare | None = None
    accounts: int = 1


async def send_to_silent_servers(stage: Stage, attackers: Sequence[Tenant]) -> None:
    names = [f"d{number}.silent.example.net" for number in range(600)]
    for name in names:
        stage.processes.destination(name)
        stage.processes.nameserver.records[f"mx.{name}", "A"] = SILENT
    await send_all(attackers[0], [f"u@{name}" for name in names])


async def send_to_names_without_answer(stage: Stage, attackers: Sequence[Tenant]) -> None:
    names = [f"d{attackers[0].unique}-{number}.dead.example.net" for number in range(10_000)]
    stage.processes.nameserver.script |= dict.fromkeys(names, nameserver.SILENT)
    await send_all(attackers[0], [f"u@{name}" for name in names])


async def send_to_the_same_domain(_: Stage, attackers: Sequence[Tenant]) -> None:
    await send_all(attackers[0], [f"u{number}@{DESTINATION}" for number in range(10_000)])


async def send_all(attacker: Tenant, recipients: list[str]) -> None:
    for start in range(0, len(recipients), 50):
        await attacker.accepts(attacker.mail(to=recipients[start : start + 50]))


async def hang_its_webhook(stage: Stage, attackers: Sequence[Tenant]) -> None:
    await stage.add_webhook(attackers[0], "/hang")
    await send_all(attackers[0], [f"delivered+{number}@simulator.invalid" for number in range(2_000)])


async def revoke_keys(stage: Stage, attackers: Sequence[Tenant]) -> None:
    attacker = attackers[0]
    await stage.processes.service.sql(
        """INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, revoked_at)
        SELECT $1, gen_random_uuid(), $2, $3::bytea || n::text::bytea, 'ph_live_…', 'x', 'live', now(), now()
        FROM generate_series(1, 300000) n""",
        attacker.id,
        attacker.credential_id,
        attacker.unique.encode(),
    )
    await stage.processes.service.sql("ANALYZE api_keys")


async def have_many_messages(_: Stage, attackers: Sequence[Tenant]) -> None:
    for number in range(500):
        await attackers[0].accepts(attackers[0].mail(subject=f"Hello {number}", to="delivered@simulator.invalid"))


SCENES: Final = (
    Scene("recipients", "batches to 50 recipients an email, with a test key", "batches of test mail"),
    Scene("recipients", "batches to 50 recipients an email", "batches"),
    Scene("recipients", "batches of 500 emails", "batches of single recipients"),
    Scene("recipients", "ten accounts send such batches with test keys", "batches of test mail", accounts=10),
    Scene("recipients", "ten accounts send such batches", "batches", accounts=10),
    Scene("look-ups in DNS", "10,000 recipients at names without an answer", "nothing", send_to_names_without_answer),
    Scene("stored bytes", "8 connections send test mail of 6 MiB", "stored test mail"),
    Scene("work of accepting", "64 connections send small messages, above the rate", "small messages"),
    Scene("work and memory of bodies", "64 connections send messages of 200 KB", "messages of 200 KB"),
    Scene("work and memory of bodies", "64 connections send messages of 1 MiB", "messages of 1 MiB"),
    Scene("changes under `/v1`", "16 connections store template versions of 200 KB", "template versions"),
    Scene("reads under `/v1`", "32 connections list and search messages", "searches", have_many_messages),
    Scene("reads under `/v1`", "16 connections read a message of 5 MiB", "large reads"),
    Scene("checks of passwords", "32 connections at 4 addresses guess passwords", "wrong logins"),
    Scene("checks of passwords", "32 connections at 4 addresses log in", "right logins"),
    Scene("pages", "32 connections at 4 addresses ask for pages", "pages"),
    Scene("look-ups of keys", "32 connections at 4 addresses send wrong API keys", "wrong keys"),
    Scene("work of dry runs", "32 connections ask for dry runs of 200 KB", "dry runs"),
    Scene("DKIM keys", "16 connections add and remove domains", "domains"),
    Scene("the lock of an account", "300,000 revoked keys, 8 connections create keys", "keys", revoke_keys),
    Scene("HTTP connections", "200 bodies that drip, 100 clients that don't read", "slow bodies"),
    Scene("HTTP connections", "16 connections send trailers without an end", "endless trailers"),
    Scene("HTTP connections", "4,000 idle connections from 8 addresses", "idle connections"),
    Scene("content over submission", "40 sessions send messages of 9 MiB", "submission content"),
    Scene("SMTP connections", "2,700 sessions without AUTH from 60 addresses", "connections before AUTH"),
    Scene("content on port 25", "360 slow messages of 2 MiB from 8 networks", "inbound content"),
    Scene("delivery sessions", "600 domains with 6 silent servers each", "nothing", send_to_silent_servers),
    Scene("webhook calls", "2,000 events of an endpoint that hangs", "steady mail", hang_its_webhook),
    Scene("a destination's lane", "10,000 messages to the victim's destination", "nothing", send_to_the_same_domain),
)


@asynccontextmanager
async def run_attacker(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Python with these arguments, in a process of its own so that its work doesn't slow the victim's client.

    It prints a line when the attack has begun, and is killed at the end.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(HANG_SECONDS):
            assert await process.stdout.readline(), "the attacker ended before it began"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def measure(stage: Stage, victim: Victim, scene: Scene) -> Measured:
    measured = Measured()
    for _ in range(PAIRS):
        measured.alone.append(await victim.live(SECONDS))
        rate = None if scene.prepare is None else (10_000, 10_000)
        attackers = [await stage.processes.service.account(credits=10**6, rate=rate) for _ in range(scene.accounts)]
        target = json.dumps(asdict(await stage.target(attackers)))
        if scene.prepare is not None:
            await scene.prepare(stage, attackers)
        service_pid = stage.processes.parts[0].running.pid
        async with run_attacker("-m", "tests.attacks.attackers", scene.attack, target) as process:
            began = ProcessorLoad.now(service_pid, process.pid)
            measured.attacked.append(await victim.live(SECONDS))
            measured.load = began.until(ProcessorLoad.now(service_pid, process.pid))
        await stage.forget(attackers)
        stage.processes.check()
        # Until its email arrives in time again.
        await victim.live(1.0)
    return measured


@pytest.mark.nightly
@pytest.mark.parametrize("is_fleet", [False, True], ids=["process", "fleet"])
@pytest.mark.parametrize("scene", [pytest.param(scene, id=scene.worst) for scene in SCENES])
async def test_a_noisy_neighbour_delays_no_other_tenant(
    new_database: Callable[[], str], tmp_path: Path, scene: Scene, is_fleet: bool
) -> None:
    async with open_stage(await asyncio.to_thread(new_database), tmp_path, is_fleet=is_fleet) as stage:
        victim = await Victim.make(stage)
        await victim.live(2.0)
        measured = await measure(stage, victim, scene)
    if report := os.environ.get("REPORT"):
        write_row(Path(report), scene.resource, scene.worst, measured, is_fleet=is_fleet)
    added_max = BUSY_SECONDS if measured.load.busy > BUSY else UNNOTICED_SECONDS
    too_long = {}
    for action in ACTIONS:
        alone, attacked = measured.medians(action)
        print(f"{action}: {alone * 1e3:.0f} -> {attacked * 1e3:.0f} ms", end="; ")
        times_max = TWICE if action in ("send", "delivery") else TIMES_MAX
        if attacked > max(times_max * alone, alone + added_max):
            too_long[action] = f"{alone * 1e3:.0f} ms without, {attacked * 1e3:.0f} ms attacked"
    refused = measured.refused
    print(dict(refused), measured.load)
    assert not any(times.refused for times in measured.alone)
    assert not refused
    assert not too_long
