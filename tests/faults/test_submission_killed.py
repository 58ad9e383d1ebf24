"""The submission server is killed or stopped under load: all mail answered with 250 is stored, and none half stored."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.forked_processes import ForkedProcesses
from tests.faults.smtp_load import Mail, SmtpLoad
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.eventually import eventually
from tests.support.server_process import environment
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, dotted, is_listening, queued_id, raw_mail

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

KILLS = 12
SENDERS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """Only HTTP runs, for the client: nothing delivers, so that accepted mail stays as it was."""
    url = await asyncio.to_thread(new_database)
    async with prepare_processes(url, tmp_path_factory.mktemp("killed"), stream="memory") as processes:
        await processes.start_http()
        yield processes


@pytest.fixture
def listeners(tmp_path: Path) -> SmtpListeners:
    return SmtpListeners.make(tmp_path)


@pytest.fixture
def forked(processes: ServiceProcesses, listeners: SmtpListeners, tmp_path: Path) -> Iterator[ForkedProcesses]:
    settings = environment(processes.database_url, **processes.settings, **listeners.settings)
    with ForkedProcesses(settings, tmp_path) as forked:
        yield forked


async def accepted(load: SmtpLoad, count: int) -> None:
    await eventually(lambda: len(load.accepted), lambda number: number >= count)


async def started(forked: ForkedProcesses, listeners: SmtpListeners) -> int:
    """One more server at the same ports; returns when it listens too."""
    pid = forked.start("run", "submission")
    await eventually(lambda: _listens(pid), or_say=lambda: forked.said(pid))
    assert await is_listening(listeners.port)
    return pid


def _listens(pid: int) -> bool:
    """Whether the process has both of its ports, whether or not others share them."""
    listening = {
        fields[9]
        for fields in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[3] == "0A"
    }
    try:
        opened = {entry.readlink().name for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except (FileNotFoundError, ProcessLookupError):
        return False
    return len({f"socket:[{inode}]" for inode in listening} & opened) == 2


async def test_kills_in_mid_load_lose_no_250(
    processes: ServiceProcesses, listeners: SmtpListeners, forked: ForkedProcesses
) -> None:
    seed = new_seed()
    randomness = random.Random(seed)
    load = SmtpLoad(listeners, [await processes.service.account(credits=10_000_000) for _ in range(3)], seed)
    # Two servers share the ports, and are killed in turns: one takes mail while the other comes back.
    servers = [await started(forked, listeners), await started(forked, listeners)]
    sending = asyncio.create_task(load.run(SENDERS))
    for kill in range(KILLS):
        await accepted(load, 10 * (kill + 1) + 1)
        await asyncio.sleep(randomness.uniform(0.02, 0.2))
        forked.kill(servers.pop(0))
        servers.append(await started(forked, listeners))
    load.stop()
    await sending
    in_doubt = await load.in_doubt(processes.service)
    print(f"{len(load.accepted)} accepted; {dict(load.answers)}; stored without a 250: {in_doubt}")
    assert len(load.accepted) > 10 * KILLS, "too little load to show anything"
    assert load.answers["no answer"] > 0, "no kill hit a transaction"
    assert {answer for answer in load.answers if answer[0].isdigit()} == {"250 2.0.0"}
    assert await load.faults(processes.service) == []
    assert await database_faults(processes.database_url) == {}


async def test_a_stopping_server_takes_what_has_come_and_answers_it(
    processes: ServiceProcesses, listeners: SmtpListeners, tmp_path: Path
) -> None:
    seed = new_seed()
    load = SmtpLoad(listeners, [await processes.service.account(credits=10_000_000) for _ in range(3)], seed)
    processes.settings |= listeners.settings
    part = processes.start("submission")
    await listeners.open(part)
    slow = load.tenants[0]
    async with listeners.session(slow) as line:
        sending = asyncio.create_task(load.run(SENDERS))
        await accepted(load, 21)
        # In the middle of a message when SIGTERM arrives.
        await line.say("MAIL FROM:<>", "RCPT TO:<ada@example.org>", "DATA")
        content = dotted(raw_mail(slow, f"{seed}-slow"))
        line.writer.write(content[:60])
        ending = asyncio.create_task(part.terminate())
        await eventually(lambda: is_listening(listeners.port), lambda is_open: not is_open)
        replies = await line.say(content[60:], replies=2)
        status = await ending
    load.stop()
    await sending
    load.messages.append(Mail(slow, f"{seed}-slow", 1, [queued_id(replies[0])]))
    assert replies[1].startswith("421 4.3.2 ")
    print(f"status {status}; {len(load.accepted)} accepted; {dict(load.answers)}")
    assert status == 0, part.said()
    assert len(load.accepted) > 20, "too little load to show anything"
    # No client was left without an answer in the middle of a message.
    assert load.answers["no answer"] == 0
    assert await load.faults(processes.service) == []
    assert await load.in_doubt(processes.service) == {}
    assert await database_faults(processes.database_url) == {}
