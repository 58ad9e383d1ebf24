"""A process that accepts batches for accounts while another process accepts for the same accounts.

python -m tests.faults.contender '{"url": ..., "seed": ..., "rounds": ..., "senders": [[...]], "descending": false}'
"""

import asyncio
import json
import random
import sys
from uuid import UUID

from posthouse.clock import DatabaseClock
from posthouse.entrypoints.workers import repeated
from tests.support.accept_flow import Sender, open_accept_flow


async def contend(url: str, seed: int, rounds: int, senders: list[Sender], descending: bool) -> dict[str, int]:
    """Each round is one batch of 2 to 5 accounts, in ascending or descending order of their ids."""
    randomness = random.Random(f"{seed} {descending}")
    outcome: dict[str, int] = {}
    async with (
        open_accept_flow(url, DatabaseClock(), connections_max=3) as accept_flow,
        repeated(accept_flow.control_cache.forget_changes, pause_seconds=1),
    ):
        for number in range(rounds):
            chosen = randomness.sample(senders, randomness.randint(2, min(5, len(senders))))
            chosen.sort(key=lambda sender: sender.account_id, reverse=descending)
            answers = await asyncio.gather(
                *(accept_flow.accept(sender, f"{seed} {descending} {number}") for sender in chosen),
                return_exceptions=True,
            )
            for answer in answers:
                name = f"{type(answer).__name__}: {answer}" if isinstance(answer, BaseException) else "accepted"
                outcome[name] = outcome.get(name, 0) + 1
    return outcome


def main() -> None:
    given = json.loads(sys.argv[1])
    given["senders"] = [
        Sender(UUID(account), UUID(credential), domain) for account, credential, domain in given["senders"]
    ]
    print(json.dumps(asyncio.run(contend(**given))))


if __name__ == "__main__":
    main()
