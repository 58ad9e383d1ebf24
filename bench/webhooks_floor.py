"""The floor of webhooks: a loop that only signs and posts, with the HTTP client that the service uses.

    python bench/webhooks_floor.py FILE AUTHORITY_FILE HOST PORT CALLS

Each line of the file is a JSON array of a path, a secret and a body. Nothing is claimed, recorded or checked. At its
end it prints how many seconds of processor time that took.
"""

import asyncio
import json
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
import uvloop
from aiohttp.abc import AbstractResolver, ResolveResult

from posthouse.rules import event


class Loopback(AbstractResolver):
    """Every name resolves to this machine."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        pass


async def call_all(lines: Sequence[str], host: str, port: int, authority: Path, calls: int) -> None:
    waiting = iter(lines)
    connector = aiohttp.TCPConnector(
        ssl=ssl.create_default_context(cafile=str(authority)), limit=0, resolver=Loopback(), family=socket.AF_INET
    )
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def call_on() -> None:
            for line in waiting:
                path, secret, text = json.loads(line)
                body = text.encode()
                headers = {
                    "Content-Type": event.CONTENT_TYPE,
                    "User-Agent": event.USER_AGENT,
                    event.SIGNATURE_HEADER: event.sign(secret, body, int(time.time())),
                }
                async with session.post(f"https://{host}:{port}{path}", data=body, headers=headers) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"the receiver answered {answer.status}")

        async with asyncio.TaskGroup() as group:
            for _ in range(calls):
                group.create_task(call_on())


def main() -> None:
    file, authority, host, port, calls = sys.argv[1:]
    lines = Path(file).read_text().splitlines()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before = time.process_time()  # starting up does not count
        runner.run(call_all(lines, host, int(port), Path(authority), int(calls)))
        print(time.process_time() - before)


if __name__ == "__main__":
    main()
