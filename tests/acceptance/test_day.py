"""A day of an account, over real HTTP: set up, verified, sending, its keys rotated, charged."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dkim
import pytest

from tests.support import preloaded
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.server_process import environment
from tests.support.service import ABSENT
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, run_processes
from tests.support.smtp_conversation import Delivered

pytestmark = pytest.mark.long

OWNER: Final = "owner@acme.example"
PASSWORD: Final = "correct horse battery staple"
DOMAIN: Final = "acme.example"
CREDITS: Final = 10_000
DESTINATION: Final = "friends.example.net"
# Many are under way at any moment, also while the keys change.
MESSAGES: Final = 30
SENDERS: Final = 4


@dataclass(slots=True)
class Day:
    """An account and its members."""

    processes: ServiceProcesses
    token: str = ""
    key: str = ""
    sent: list[str] = field(default_factory=list)
    posted: Counter[str] = field(default_factory=Counter)

    async def call(self, method: str, path: str, body: object = ABSENT, *, token: str | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return await self.processes.service.request(method, path, headers=headers, json=body)

    async def get(self, path: str, *, token: str | None = None) -> dict[str, Any]:
        answer = await self.call("GET", path, token=token)
        assert answer.status == 200, answer.raw
        return answer.body

    async def login(self, email: str) -> str:
        answer = await self.processes.service.login(email, PASSWORD)
        assert answer.status == 200, answer.raw
        token: str = answer.body["token"]
        return token

    async def send(self, to: str, *, by: str | None = None, **fields: object) -> Answer:
        number = self.posted.total() + 1
        self.posted[to.partition("+")[0]] += 1
        mail = {"from": f"Acme <news@{DOMAIN}>", "to": to, "subject": f"Mail {number}", "text": "Good morning."}
        headers = {"Authorization": f"Bearer {by or self.key}", "Idempotency-Key": f"mail-{number}"}
        answer = await self.processes.service.request("POST", "/emails", headers=headers, json={**mail, **fields})
        if answer.status == 202:
            self.sent.append(answer.body["id"])
        return answer

    async def accepted(self, to: str, **how: Any) -> str:
        answer = await self.send(to, **how)
        assert answer.is_accepted()
        message_id: str = answer.body["id"]
        return message_id

    async def detail(self, message_id: str) -> dict[str, Any]:
        message: dict[str, Any] = (await self.get(f"/v1/messages/{message_id}"))["message"]
        return message

    async def recipient(self, message_id: str) -> dict[str, Any]:
        (recipient,) = (await self.detail(message_id))["recipients"]
        assert isinstance(recipient, dict)
        return recipient

    async def final(self, message_id: str) -> dict[str, Any]:
        return await eventually(lambda: self.recipient(message_id), lambda recipient: recipient["waiting"] is None)

    def publish(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            if record["type"] == "TXT" and record["value"] and record["purpose"] != "return_path":
                self.processes.nameserver.zone[record["name"]] = [record["value"]]

    async def verify(self) -> dict[str, Any]:
        """As if the last check were long ago."""
        await self.processes.service.sql("UPDATE domains SET asked_at = NULL")
        answer = await self.call("POST", f"/v1/domains/{DOMAIN}/verify")
        assert answer.status == 200, answer.raw
        domain: dict[str, Any] = answer.body["domain"]
        return domain


@asynccontextmanager
async def at_work(database_url: str, directory: Path) -> AsyncIterator[Day]:
    async with run_processes(database_url, directory, **LONG_LEASE) as processes:
        processes.destination(DESTINATION)
        yield Day(processes)


@pytest.mark.rule("DAY-01", "DAY-02", "DAY-03", "DAY-08", "DAY-09")
async def test_a_day_in_the_life_of_an_account(new_database: Callable[[], str], tmp_path: Path) -> None:
    database_url = await asyncio.to_thread(new_database)
    async with at_work(database_url, tmp_path) as day:
        for step in (
            make_the_account,
            verify_a_domain,
            send_with_a_new_key,
            rotate_keys_while_mail_flows,
            read_the_ledger,
        ):
            await step(day)
        assert await day.processes.broken_promises() == {}


async def make_the_account(day: Day) -> None:
    assert (await operator(day, "account", "create", "acme"))["name"] == "acme"
    await asyncio.gather(
        operator(day, "credits", "grant", "acme", str(CREDITS), "--reason", "a first order"),
        operator(day, "account", "limits", "acme", "--rate", "10000", "--burst", "10000", "--warmup", "exempt"),
        operator(day, "user", "create", "acme", OWNER, "--role", "owner", "--password-stdin", given=PASSWORD),
    )
    day.token = await day.login(OWNER)
    account = (await day.get("/v1/account"))["account"]
    assert (account["name"], account["role"], account["credits"]["available"]) == ("acme", "owner", CREDITS)


async def operator(day: Day, *words: str, given: str = "") -> Any:
    """Runs an operator's command; returns its JSON output."""
    done = await asyncio.to_thread(
        preloaded.run,
        *words,
        "--json",
        directory=day.processes.directory,
        environment=environment(day.processes.database_url, **day.processes.settings),
        given=given,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def verify_a_domain(day: Day) -> None:
    added = await day.call("POST", "/v1/domains", {"name": DOMAIN})
    assert added.status == 201, added.raw
    domain = added.body["domain"]
    assert not domain["verified"]
    assert (await day.send(f"early@{DESTINATION}", by=day.token)).status == 403
    day.publish(domain["records"])
    domain = await day.verify()
    assert domain["verified"], domain["records"]
    assert {record["result"] for record in domain["records"] if record["required"]} == {"found"}


async def send_with_a_new_key(day: Day) -> None:
    made = await day.call("POST", "/v1/keys", {"name": "shop", "scopes": ["send", "read"]})
    assert made.status == 201, made.raw
    day.key = made.body["secret"]
    # A verified domain is known in every process within seconds.
    answer = await eventually(lambda: day.send(f"first@{DESTINATION}"), lambda answer: answer.status == 202)
    delivered = await day.final(answer.body["id"])
    assert delivered["status"] == "delivered"
    listed = (await day.get("/v1/keys"))["keys"]
    assert [credential["name"] for credential in listed] == ["shop"]
    assert day.key not in json.dumps(listed)


@dataclass(slots=True)
class Watch:
    """The receiver: verifies each copy on arrival, with the DNS records of that moment."""

    day: Day
    selectors: Counter[str] = field(default_factory=Counter)
    unverified: list[str] = field(default_factory=list)
    _seen: int = 0

    def check(self) -> None:
        accepted = self.day.processes.receiver.accepted
        for copy in accepted[self._seen :]:
            self._seen += 1
            self._verify(copy)

    def _verify(self, copy: Delivered) -> None:
        found = re.findall(rb"^DKIM-Signature:(?:[^\r\n]|\r\n[ \t])*", copy.message, re.MULTILINE)
        for number, signature in enumerate(found):
            unfolded = re.sub(rb"\s", b"", signature)
            selector = re.search(rb";s=([^;]+);", unfolded)
            assert selector is not None, signature
            if dkim.DKIM(copy.message).verify(idx=number, dnsfunc=self._published):
                self.selectors[selector[1].decode()] += 1
            else:
                self.unverified.append(f"{copy.recipient}: {selector[1].decode()}")
        if not found:
            self.unverified.append(f"{copy.recipient}: not signed")

    def _published(self, name: bytes, timeout: int = 5) -> bytes | None:  # noqa: ARG002 (as dkimpy asks)
        texts = self.day.processes.nameserver.zone.get(name.decode().rstrip("."))
        return "".join(texts).encode() if texts else None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While the block runs, senders keep posting and received mail is verified."""
        is_over = False

        async def post() -> None:
            while not is_over:
                await self.day.accepted(f"flow+{self.day.posted['flow']}@{DESTINATION}")
                await asyncio.sleep(0.05)  # a steady flow, no flood

        async def check() -> None:
            while not is_over:
                self.check()
                await asyncio.sleep(0.02)  # a look at what came in, again and again

        async with asyncio.TaskGroup() as group:
            for work in (*[post] * SENDERS, check):
                group.create_task(work())
            try:
                yield
            finally:
                is_over = True

    async def more(self, number: int, signed_by: str) -> None:
        """Returns after this many further copies signed by this selector."""
        wanted = self.selectors[signed_by] + number
        await eventually(
            lambda: self.selectors[signed_by],
            lambda number: number >= wanted,
            or_say=lambda: f"{self.selectors}, unverified: {self.unverified[:5]}",
        )


async def rotate_keys_while_mail_flows(day: Day) -> None:
    watch = Watch(day)
    domain = (await day.get(f"/v1/domains/{DOMAIN}"))["domain"]
    old = {record["name"].partition(".")[0] for record in signing(domain, "active")}
    rsa = selector_of(domain, "dkim_rsa", "active")
    async with watch.watching():
        await watch.more(MESSAGES, rsa)
        rotated = await day.call("POST", f"/v1/domains/{DOMAIN}/rotate")
        assert rotated.status in {200, 201, 202}, rotated.raw
        domain = rotated.body["domain"]
        new = {record["name"].partition(".")[0] for record in signing(domain, "pending")}
        new_rsa = selector_of(domain, "dkim_rsa", "pending")
        assert old.isdisjoint(new)
        # Not published yet, so the old keys still sign.
        domain = await day.verify()
        assert selector_of(domain, "dkim_rsa", "active") == rsa
        await watch.more(MESSAGES, rsa)
        assert not new & set(watch.selectors)
        day.publish(signing(domain, "pending"))
        domain = await day.verify()
        assert selector_of(domain, "dkim_rsa", "active") == new_rsa
        await watch.more(MESSAGES, new_rsa)
    await day.processes.wait_until_all_final()
    watch.check()
    assert watch.unverified == []
    assert set(watch.selectors) == old | new
    # Mail signed before can still be verified later, as the response advises.
    assert {record["name"].partition(".")[0] for record in signing(domain, "previous")} == old
    print(f"verified by selector: {dict(watch.selectors)}")


def signing(domain: dict[str, Any], state: str) -> list[dict[str, Any]]:
    return [
        record for record in domain["records"] if record["purpose"].startswith("dkim_") and record["state"] == state
    ]


def selector_of(domain: dict[str, Any], purpose: str, state: str) -> str:
    (record,) = [record for record in signing(domain, state) if record["purpose"] == purpose]
    selector: str = record["name"].partition(".")[0]
    return selector


async def read_the_ledger(day: Day) -> None:
    entries: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await day.get(f"/v1/ledger?limit=100{cursor}")
        entries += page["entries"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    credits_ = (await day.get("/v1/account"))["account"]["credits"]
    assert sum(entry["amount"] for entry in entries) == credits_["available"]
    assert credits_["reserved"] == 0
    assert len({entry["id"] for entry in entries}) == len(entries)
    kinds = Counter(entry["kind"] for entry in entries)
    assert kinds == {"grant": 1, "reserve": len(day.sent), "settle": len(day.sent)}
    assert credits_["available"] == CREDITS - kinds["settle"]
    assert all(entry["why"] for entry in entries)
    reserved = {entry["message_id"] for entry in entries if entry["kind"] == "reserve"}
    closed = [entry for entry in entries if entry["kind"] == "settle"]
    assert reserved == set(day.sent) == {entry["message_id"] for entry in closed}
    assert len({entry["recipient_id"] for entry in closed}) == len(closed)
