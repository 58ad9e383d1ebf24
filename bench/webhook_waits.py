"""How much one hanging endpoint delays the other accounts' webhooks, at any size.

Mail to the simulator is final at once, for every account in turn; one account's endpoint never answers. The result is
how long the others' events took from the final result (the event's `created_at`) to the receiver.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bench.delivery_isolation import percentile
from bench.rate_load import post, raw_request
from bench.webhook_load_receiver import Arrival, WebhookLoadReceiver
from tests.support import webhook_accounts
from tests.support.accept_flow import SIMULATOR
from tests.support.service import service_settings
from tests.support.service_processes import ServiceProcesses
from tests.support.webhook_accounts import WebhookAccount

# The recipients of one message are final at the same moment.
RECIPIENTS: Final = 10
POLL_SECONDS: Final = 0.25
HANGING: Final = "/hang/0"

_numbers: Final = itertools.count(1)


class EventsMissingError(AssertionError):
    """An event that should have been sent was not: there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The others' events: when each was created and how many seconds it took; and the calls to the hanging endpoint."""

    others: list[tuple[float, float]]
    hanging_calls: int
    hanging_events: int
    seconds: float

    def percentile(self, part: float) -> float:
        return percentile([wait for _, wait in self.others], part)


async def measure_waits(
    processes: ServiceProcesses,
    load_receiver: WebhookLoadReceiver,
    accounts: int,
    events: int,
    per_second: float,
    seconds_max: float,
) -> Waits:
    """The processes run every part, with settings that permit calls to the load receiver."""
    paths = [HANGING, *(f"/customer/{number}" for number in range(1, accounts))]
    made = await webhook_accounts.create_accounts(
        processes.service.pool, service_settings(processes.database_url), load_receiver.port, paths
    )
    # An endpoint that answered before it hangs: a new one would get a single call at a time.
    await processes.service.sql("UPDATE endpoints SET answered_at = now() WHERE account_id = $1", made[0].account_id)
    # A new worker holds no shards for some seconds, and first requests are slow.
    await _post(processes, made[1:], (len(made) - 1) * RECIPIENTS, per_second * 2)
    await _wait_until_sent(processes, (len(made) - 1) * RECIPIENTS, seconds_max)
    load_receiver.arrivals()
    before = await processes.service.value("SELECT count(*) FROM events")
    began_at = time.time()
    await _post(processes, made, events, per_second)
    posted_seconds = time.time() - began_at
    expected = events - len(range(0, events // RECIPIENTS, len(made))) * RECIPIENTS
    await _wait_until_sent(processes, (len(made) - 1) * RECIPIENTS + expected, seconds_max)
    arrivals = load_receiver.arrivals()
    number = await processes.service.value("SELECT count(*) FROM events") - before
    if number != events:
        raise EventsMissingError(f"{number} events were made of {events} recipients")
    return Waits(
        _waits(arrivals, made, expected, began_at),
        sum(arrival.path == HANGING for arrival in arrivals),
        events - expected,
        posted_seconds,
    )


def _waits(
    arrivals: Sequence[Arrival], made: Sequence[WebhookAccount], expected: int, began_at: float
) -> list[tuple[float, float]]:
    secrets = {account.path: account.secret for account in made}
    waits = []
    received: Counter[str] = Counter()
    for arrival in arrivals:
        if not arrival.is_signed(secrets[arrival.path]):
            raise EventsMissingError(f"a call without a valid signature: {arrival}")
        if arrival.path == HANGING:
            continue
        event = arrival.event
        received[event["id"]] += 1
        made_at = datetime.fromisoformat(event["created_at"]).timestamp()
        waits.append((made_at - began_at, arrival.at - made_at))
    if len(received) != expected or len(waits) != expected:
        raise EventsMissingError(
            f"{len(received)} events arrived in {len(waits)} calls; expected {expected}, each once"
        )
    return waits


async def _post(processes: ServiceProcesses, senders: Sequence[WebhookAccount], events: int, per_second: float) -> None:
    sent = await post(
        processes.service.port,
        _requests(senders, events // RECIPIENTS),
        per_second=per_second / RECIPIENTS,
        connections=8,
    )
    if not sent.is_well:
        raise EventsMissingError(f"not every request was answered with 202: {dict(sent.answers)}")


def _requests(senders: Sequence[WebhookAccount], messages: int) -> Iterator[bytes]:
    for sender, _ in zip(itertools.cycle(senders), range(messages), strict=False):
        number = next(_numbers)
        body = sender.mail([f"delivered+{number}.{place}@{SIMULATOR}" for place in range(RECIPIENTS)])
        yield raw_request(sender.basic, body)


async def _wait_until_sent(processes: ServiceProcesses, number: int, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    query = "SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded' AND attempt = 1"
    while (sent := await processes.service.value(query)) < number:
        processes.check()
        if time.monotonic() > deadline:
            logs = [f"{part.words} logged:\n{part.said()}" for part in processes.parts if "http" not in part.words]
            raise EventsMissingError(
                "\n".join([f"{sent} of {number} events were sent within {seconds_max:.0f} s", *logs])
            )
        await asyncio.sleep(POLL_SECONDS)
