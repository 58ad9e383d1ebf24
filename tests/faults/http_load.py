"""Load over HTTP: clients that send with known keys and record every answer."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.faults.load import run_senders
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant

PAUSE_SECONDS: Final = 0.05
IN_PROGRESS: Final = "idempotency_in_progress"


@dataclass(slots=True)
class Request:
    """One message as its sender knows it. Its subject is its key, so that its copies can be counted."""

    tenant: Tenant
    key: str
    body: dict[str, Any]
    tries: int = 0
    message_id: str | None = None
    refusal: str | None = None

    @property
    def is_open(self) -> bool:
        """Tried, but no answer says whether it was accepted."""
        return self.tries > 0 and self.message_id is None and self.refusal is None


@dataclass(slots=True)
class HttpLoad:
    """Senders over the given services (one database); a sender that gets no answer tries another one."""

    services: list[Service]
    tenants: list[Tenant]
    seed: int
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    _is_stopping: bool = False

    async def run(self, senders: int) -> None:
        """Returns when `stop` was called and every sender has its last answer."""
        await run_senders(self._send_on, self.seed, senders)

    def stop(self) -> None:
        self._is_stopping = True

    async def accepts(self, more: int) -> None:
        """Returns when this many more requests were accepted."""
        wanted = self.answers.get("202", 0) + more
        await eventually(lambda: self.answers.get("202", 0), lambda number: number >= wanted)

    async def _send_on(self, randomness: random.Random, number: int) -> None:
        count = 0
        while not self._is_stopping:
            count += 1
            request = self._new_request(randomness, f"{self.seed}-{number}-{count}")
            self.requests.append(request)
            while request.tries == 0 and not self._is_stopping:
                if await self.attempt(request, randomness.choice(self.services)) is None:
                    await asyncio.sleep(PAUSE_SECONDS)
            # Some senders retry at once, as a client library does; others later.
            while request.is_open and randomness.random() < 0.5 and not self._is_stopping:
                await asyncio.sleep(PAUSE_SECONDS)
                await self.attempt(request, randomness.choice(self.services))
            await asyncio.sleep(randomness.random() * PAUSE_SECONDS)

    def _new_request(self, randomness: random.Random, key: str) -> Request:
        tenant = randomness.choice(self.tenants)
        recipients = [f"r{number}@example.org" for number in range(randomness.randint(1, 5))]
        text = "Good morning. " * randomness.choice([1, 1, 1, 100, 3_000])
        return Request(tenant, key, tenant.mail(subject=key, to=recipients, text=text))

    async def attempt(self, request: Request, service: Service) -> Answer | None:
        """Sends it once; None when no answer came."""
        request.tries += 1
        try:
            answer = await request.tenant.send(request.body, key=request.key, service=service)
        except aiohttp.ClientConnectorError:
            self._count("refused the connection")
            request.tries -= 1  # nothing was sent
            return None
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as fault:
            self._count(type(fault).__name__)
            return None
        self._count(str(answer.status))
        if answer.status == 202:
            assert request.message_id in (None, answer.body["id"]), f"{request.key} was given two ids"
            request.message_id = answer.body["id"]
            request.refusal = None
        elif answer.status == 503 or answer.code == IN_PROGRESS:
            pass  # the answer says to try again
        else:
            request.refusal = answer.code
        return answer

    async def settle(self, request: Request, service: Service, *, tries: int = 100) -> None:
        """Tries until there is a final answer."""
        for _ in range(tries):
            answer = await self.attempt(request, service)
            if answer is not None and (answer.status == 202 or request.refusal is not None):
                return
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"no answer for {request.key} after {tries} tries")

    def _count(self, name: str) -> None:
        self.answers[name] = self.answers.get(name, 0) + 1
