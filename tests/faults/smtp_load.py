"""Load over SMTP: clients that submit mail and record every answer."""

import asyncio
import itertools
import random
import ssl
from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tests.faults.load import run_senders
from tests.support.eventually import eventually
from tests.support.service import Service, Tenant, uuid
from tests.support.smtp_listeners import SmtpListeners, plain, queued_id, raw_mail, submit
from tests.support.smtp_service import SmtpConnection

# The beginnings of replies, by which they are counted.
QUEUED: Final = "250 2.0.0"
DEFERRED: Final = "451 4.3.0"
PAUSE_SECONDS: Final = 0.02
TO: Final = ("delivered@simulator.invalid", "ada@example.org", "bob@example.org")


@dataclass(slots=True)
class Mail:
    """A message as its sender knows it; its subject is unique in its account, so that copies can be counted.

    After 4xx or no answer the sender submits it again; SMTP has no key that identifies the first try.
    """

    tenant: Tenant
    subject: str
    recipients: int
    ids: list[str] = field(default_factory=list)
    deferred: int = 0
    unanswered: int = 0


@dataclass(slots=True)
class SmtpLoad:
    listeners: SmtpListeners
    tenants: list[Tenant]
    seed: int
    messages: list[Mail] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    _is_stopping: bool = False

    async def run(self, senders: int) -> None:
        """Returns when `stop` was called and every sender has its last answer."""
        await run_senders(self._send_on, self.seed, senders)

    def stop(self) -> None:
        self._is_stopping = True

    async def answered(self, reply: str, more: int) -> None:
        """Returns when there were this many more such replies."""
        wanted = self.answers[reply] + more
        await eventually(lambda: self.answers[reply], lambda number: number >= wanted)

    @property
    def accepted(self) -> list[Mail]:
        return [mail for mail in self.messages if mail.ids]

    async def faults(self, service: Service) -> list[str]:
        """Answers that the database contradicts."""
        there = await self._stored(service)
        found = []
        for mail in self.messages:
            stored = there.pop(mail.subject, [])
            known = [uuid(message_id) for message_id in mail.ids]
            if len(set(known)) != len(known) or not set(known) <= set(stored):
                found.append(f"{mail}: a 250 without its message, among {stored}")
            if len(stored) > len(known) + mail.unanswered + mail.deferred:
                found.append(f"{mail}: more messages than answers, {stored}")
        return found + [f"{subject}: never submitted" for subject in there]

    async def in_doubt(self, service: Service) -> Counter[str]:
        """How many messages are stored without a 250."""
        there = await self._stored(service)
        kept: Counter[str] = Counter()
        for mail in self.messages:
            kept["unanswered" if mail.unanswered else "deferred"] += len(there.get(mail.subject, [])) - len(mail.ids)
        return +kept

    async def _stored(self, service: Service) -> dict[str, list[UUID]]:
        rows = await service.sql(
            "SELECT subject, id FROM messages WHERE account_id = ANY($1)", [tenant.id for tenant in self.tenants]
        )
        there: dict[str, list[UUID]] = {}
        for row in rows:
            there.setdefault(row["subject"], []).append(row["id"])
        return there

    async def _send_on(self, randomness: random.Random, number: int) -> None:
        tenant = self.tenants[number % len(self.tenants)]
        numbers = itertools.count(1)
        mail: Mail | None = None
        while not self._is_stopping:
            try:
                async with self.listeners.line() as line:
                    replies = await line.say("EHLO load.example", plain(tenant.username, tenant.password))
                    self.answers[f"login {replies[1][:3]}"] += 1
                    if not replies[1].startswith("235 "):
                        await asyncio.sleep(PAUSE_SECONDS * 5)
                        continue
                    for _ in range(randomness.randint(1, 20)):
                        if self._is_stopping:
                            return
                        if mail is None or mail.ids:
                            mail = Mail(tenant, f"{self.seed}-{number}-{next(numbers)}", randomness.randint(1, 3))
                            self.messages.append(mail)
                        if not await self._submit(line, mail, randomness):
                            break
                        await asyncio.sleep(randomness.random() * PAUSE_SECONDS)
            except (OSError, ssl.SSLError):
                self.answers["no connection"] += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def _submit(self, line: SmtpConnection, mail: Mail, randomness: random.Random) -> bool:
        """Whether the session continues."""
        body = "Good morning. " * randomness.choice([1, 1, 1, 100, 10_000])
        # A connection lost before the end of the data submitted nothing, but the client cannot know that.
        try:
            reply = await submit(line, raw_mail(mail.tenant, mail.subject, body=body), TO[: mail.recipients], sender="")
        except (OSError, ssl.SSLError):
            reply = ""
        self.answers[reply[:9] or "no answer"] += 1
        match reply[:3]:
            case "250":
                mail.ids.append(queued_id(reply))
            case "":
                mail.unanswered += 1
            case "421":
                pass  # the message was not accepted
            case _:
                mail.deferred += 1
                await asyncio.sleep(PAUSE_SECONDS)
        return reply[:3] not in ("", "421")
