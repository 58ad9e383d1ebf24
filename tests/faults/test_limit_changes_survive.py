"""A killed worker leaves its limit changes behind: the others know them, and don't provoke the provider again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from tests.support.eventually import eventually
from tests.support.provider import Google
from tests.support.provider_server import ProviderServer
from tests.support.service_processes import prepare_processes

HOST = "127.0.1.9"
_HOLDER = "SELECT worker_id FROM lane_reports WHERE lane = 'google' AND paused_until > now() AND worker_id = ANY($1)"


async def test_the_others_know_the_limit_changes_of_a_killed_worker(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = await asyncio.to_thread(new_database)
    google = Google(1)
    bucket = google.bucket("127.0.0.1")
    bucket.tokens, bucket.per_second = 1.0, 0.0
    async with (
        prepare_processes(url, tmp_path, keeps_mail=False) as processes,
        ProviderServer(google, HOST, processes.receiver.port, asyncio.get_running_loop().time),
    ):
        processes.destination("gmail.com", HOST)
        await processes.start_http()
        processes.start("dispatch")
        workers = dict([(await processes.start_worker())[::-1] for _ in range(2)])
        # A lane believes a refusal that several accounts got: of three, two are refused at one of the two workers.
        tenants = [await processes.service.account(credits=1_000) for _ in range(3)]
        for number in range(9):
            tenant = tenants[number % 3]
            assert (await tenant.send(tenant.mail(to=[f"u{number}@gmail.com"]))).status == 202

        async def who_learned() -> UUID | None:
            found: UUID | None = await processes.service.value(_HOLDER, list(workers))
            return found

        first = await eventually(who_learned, lambda found: found is not None)
        assert first is not None
        assert await processes.service.value("SELECT limits ->> 'state' FROM learned_limits WHERE ip = ''") == "resting"
        refused = len(google.tally.refused)
        await asyncio.to_thread(workers.pop(first).kill)
        for number in range(9, 15):
            tenant = tenants[number % 3]
            assert (await tenant.send(tenant.mail(to=[f"u{number}@gmail.com"]))).status == 202
        assert await eventually(who_learned, lambda found: found is not None) in workers
        assert (len(google.tally.taken), len(google.tally.refused)) == (1, refused)
