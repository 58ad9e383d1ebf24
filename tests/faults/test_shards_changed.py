"""Another number of shards, process by process under load: no mail is lost or doubled."""

from pathlib import Path

import pytest

from tests.support.service_processes import Senders, run_processes

DOMAINS = [f"d{number}.example.net" for number in range(8)]
# They send all the time that processes take to start: more of them would only cost processor time.
SENDERS = 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        ("4", "16", "workers"),
        ("16", "4", "publishers"),
        pytest.param("4", "16", "publishers", marks=pytest.mark.nightly),
        pytest.param("16", "4", "workers", marks=pytest.mark.nightly),
    ],
)
async def test_the_number_of_shards_changes_while_mail_flows(
    database_url: str, tmp_path: Path, before: str, after: str, first: str
) -> None:
    async with run_processes(database_url, tmp_path, workers=2, keeps_mail=False, STREAM__SHARDS=before) as processes:
        dispatch, *workers, _ = processes.parts
        sending = Senders(
            processes, await processes.service.account(credits=1_000_000), [*map(processes.destination, DOMAINS)]
        )

        async def replace_workers() -> None:
            for worker in workers:
                await processes.start_worker()
                await sending.accepts(20)
                assert await worker.terminate() == 0, worker.said()
                await sending.accepts(20)

        async def replace_publishers() -> None:
            processes.start("dispatch")
            assert await dispatch.terminate() == 0, dispatch.said()
            await processes.start_http()
            sending.tenant = await processes.clients[-1].account(credits=1_000_000)
            await sending.accepts(30)

        async with sending.sending(SENDERS):
            await sending.accepts(30)
            processes.settings["STREAM__SHARDS"] = after
            for replace in (
                [replace_workers, replace_publishers] if first == "workers" else [replace_publishers, replace_workers]
            ):
                await replace()
        seconds = await processes.wait_until_all_final()
        print(f"{sending.answers.total()} messages; all final {seconds:.1f} s after the last was accepted")
        assert await processes.broken_promises() == {}
        assert (await processes.orphans(), await processes.duplicates()) == (0, 0)
