"""The stream is expendable: NATS killed, its data gone, and every message still becomes final."""

import asyncio
from pathlib import Path

import pytest

from tests.support.service_processes import Senders, run_processes

# Accepted while there is no stream, and delivered after it is back.
AWAY = 20
BETWEEN = 40
SENDERS = 2


@pytest.mark.long
async def test_losing_nats_and_its_data_under_load_loses_no_mail(database_url: str, tmp_path: Path) -> None:
    async with run_processes(database_url, tmp_path, workers=2, keeps_mail=False) as processes:
        nats = processes.nats
        assert nats is not None
        domains = [processes.destination(f"d{number}.example.net") for number in range(8)]
        tenant = await processes.service.account(credits=1_000_000)
        posting = Senders(processes, tenant, domains)
        async with posting.sending(SENDERS):
            # Killed and started on its data; killed, and the data gone; the data gone from under it, then killed.
            for wiped in ("never", "while away", "while running"):
                await processes.delivers(BETWEEN)
                if wiped == "while running":
                    await asyncio.to_thread(nats.wipe)
                    await posting.accepts(AWAY)
                await asyncio.to_thread(nats.kill)
                await posting.accepts(AWAY)
                if wiped == "while away":
                    await asyncio.to_thread(nats.wipe)
                await asyncio.to_thread(nats.start)
            await processes.delivers(BETWEEN)
        accepted = posting.answers.total()
        assert dict(posting.answers) == {202: accepted}, "accepting failed while the stream was away"
        seconds = await processes.wait_until_all_final()
        print(f"{accepted} messages, all final {seconds:.1f} s later")
        assert await processes.broken_promises() == {}
        # No worker died, so nothing excuses a duplicate.
        assert await processes.orphans() == 0
        assert await processes.duplicates() == 0
