"""One tenant or stranger does its worst with each shared resource: another tenant's p99 is at most three times as long.

The victim's times are measured alone and beside the attack, in turns, on a service with all its parts in a process.
With REPORT=FILE the figures are written into that file, between two comments: `make attacks-table`.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.neighbours import TIMES_MAX, percentile, run_attacker
from tests.support.neighbours_table import write_row
from tests.support.processor_load import ProcessorLoad
from tests.support.service import Tenant
from tests.support.victim import ACTIONS, DESTINATION, SILENT, Stage, Times, Victim, merged, open_stage

ROUNDS: Final = 2
SECONDS: Final = 5.0
# A time that no customer notices, whatever it was alone.
UNNOTICED_SECONDS: Final = 0.05

Prepare = Callable[[Stage, Tenant], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scene:
    """`attacker` names a function of `tests.support.attackers`."""

    resource: str
    worst: str
    attacker: str
    prepare: Prepare | None = None


async def send_to_silent_servers(stage: Stage, attacker: Tenant) -> None:
    names = [f"d{number}.silent.example.net" for number in range(600)]
    for name in names:
        stage.processes.destination(name)
        stage.processes.nameserver.records[f"mx.{name}", "A"] = SILENT
    await send_all(attacker, [f"u@{name}" for name in names])


async def send_to_the_same_domain(_: Stage, attacker: Tenant) -> None:
    await send_all(attacker, [f"u{number}@{DESTINATION}" for number in range(10_000)])


async def send_all(attacker: Tenant, recipients: list[str]) -> None:
    for start in range(0, len(recipients), 50):
        await attacker.accepts(attacker.mail(to=recipients[start : start + 50]))


async def hang_its_webhook(stage: Stage, attacker: Tenant) -> None:
    await stage.add_webhook(attacker, "/hang")
    await send_all(attacker, [f"delivered+{number}@simulator.invalid" for number in range(2_000)])


async def revoke_keys(stage: Stage, attacker: Tenant) -> None:
    await stage.processes.service.sql(
        """INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, revoked_at)
        SELECT $1, gen_random_uuid(), $2, $3::bytea || n::text::bytea, 'ph_live_…', 'x', 'live', now(), now()
        FROM generate_series(1, 300000) n""",
        attacker.id,
        attacker.credential_id,
        attacker.unique.encode(),
    )
    await stage.processes.service.sql("ANALYZE api_keys")


async def have_many_messages(_: Stage, attacker: Tenant) -> None:
    for number in range(500):
        await attacker.accepts(attacker.mail(subject=f"Hello {number}", to="delivered@simulator.invalid"))


SCENES: Final = (
    Scene("work of accepting", "64 connections send small mails, above the rate", "small mails"),
    Scene("work and memory of bodies", "64 connections send mails of 200 KB", "mails of 200 KB"),
    Scene("work and memory of bodies", "64 connections send mails of 1 MiB", "mails of 1 MiB"),
    Scene("changes under `/v1`", "16 connections store template versions of 200 KB", "template versions"),
    Scene("reads under `/v1`", "32 connections list and search messages", "searches", have_many_messages),
    Scene("reads under `/v1`", "16 connections read a mail of 5 MiB", "large reads"),
    Scene("checks of passwords", "32 connections at 4 addresses guess passwords", "wrong logins"),
    Scene("checks of passwords", "32 connections at 4 addresses log in", "right logins"),
    Scene("pages", "32 connections at 4 addresses ask for pages", "pages"),
    Scene("look-ups of keys", "32 connections at 4 addresses send wrong API keys", "wrong keys"),
    Scene("work of dry runs", "32 connections ask for dry runs of 200 KB", "dry runs"),
    Scene("DKIM keys", "16 connections add and remove domains", "domains"),
    Scene("the lock of an account", "300,000 revoked keys, 8 connections create keys", "keys", revoke_keys),
    Scene("HTTP connections", "200 bodies that drip, 100 clients that don't read", "slow bodies"),
    Scene("HTTP connections", "4,000 idle connections from 8 addresses", "idle connections"),
    Scene("content over submission", "40 sessions send mails of 9 MiB", "submission content"),
    Scene("SMTP connections", "2,700 sessions without AUTH from 60 addresses", "connections before AUTH"),
    Scene("content on port 25", "360 slow messages of 2 MiB from 8 networks", "inbound content"),
    Scene("delivery sessions", "600 domains with 6 silent servers each", "nothing", send_to_silent_servers),
    Scene("webhook calls", "2,000 events of an endpoint that hangs", "steady mail", hang_its_webhook),
    Scene("a destination's lane", "10,000 mails to the victim's destination", "nothing", send_to_the_same_domain),
)


async def round_of(stage: Stage, victim: Victim, scene: Scene) -> tuple[Times, Times, str]:
    alone = await victim.live(SECONDS)
    rate = None if scene.prepare is None else (10_000, 10_000)
    attacker = await stage.processes.service.account(credits=10**6, rate=rate)
    target = json.dumps(asdict(await stage.target(attacker)))
    if scene.prepare is not None:
        await scene.prepare(stage, attacker)
    service_pid = stage.processes.parts[0].running.pid
    async with run_attacker("-m", "tests.support.attackers", scene.attacker, target) as process:
        began = ProcessorLoad.now(service_pid, process.pid)
        beside = await victim.live(SECONDS)
        load = began.until(ProcessorLoad.now(service_pid, process.pid))
    await stage.forget(attacker)
    stage.processes.check()
    return alone, beside, load


@pytest.mark.rare
@pytest.mark.parametrize("scene", [pytest.param(scene, id=scene.worst) for scene in SCENES])
async def test_a_noisy_neighbour_delays_no_other_tenant(
    new_database: Callable[[], str], tmp_path: Path, scene: Scene
) -> None:
    async with open_stage(await asyncio.to_thread(new_database), tmp_path) as stage:
        victim = await Victim.make(stage)
        await victim.live(2.0)
        rounds = [await round_of(stage, victim, scene) for _ in range(ROUNDS)]
    alone, beside = merged([before for before, _, _ in rounds]), merged([during for _, during, _ in rounds])
    load = rounds[-1][2]
    if report := os.environ.get("REPORT"):
        write_row(Path(report), scene.resource, scene.worst, load, alone, beside)
    too_long = {}
    for action in ACTIONS:
        before, during = percentile(alone.seconds[action], 0.99), percentile(beside.seconds[action], 0.99)
        print(f"{action}: {before * 1e3:.0f} -> {during * 1e3:.0f} ms", end="; ")
        if during > max(TIMES_MAX * before, UNNOTICED_SECONDS):
            too_long[action] = f"{before * 1e3:.0f} ms alone, {during * 1e3:.0f} ms beside"
    print(dict(beside.refused), load)
    assert not alone.refused
    assert not beside.refused
    assert not too_long
