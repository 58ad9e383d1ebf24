"""Attackers of the noisy-neighbour suite, each in its own process: `python -m tests.attacks.attackers NAME JSON`.

Each does its worst until it is killed, from addresses other than the victim's. It prints a line once it is at work.
"""

import asyncio
import base64
import itertools
import json
import ssl
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

HOST: Final = "127.0.0.1"
MIB: Final = 1024 * 1024
LINE: Final = b"x" * 76 + b"\r\n"
PAUSE_SECONDS: Final = 0.05
# The domains below it have mail servers.
ANSWERING: Final = "answering.example.net"
LEAD_SECONDS: Final = 2.0
# The slowest that the server tolerates: 1 KiB a second, or a little more.
DRIP_SECONDS: Final = 2.0
DRIP_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Target:
    """The service's ports, and an account of the attacker's."""

    http: int
    submission: int
    starttls: int
    inbound: int
    authority: str
    username: str
    password: str
    token: str
    domain: str
    email: str
    inbound_recipient: str
    # Of every attacking account, which act together: its domain, its API key and a test key.
    accounts: Sequence[tuple[str, str, str]] = ()

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def mail(self, text: str = "Good morning.", to: Sequence[str] = ("delivered@simulator.invalid",)) -> bytes:
        fields = {"from": f"news@{self.domain}", "to": list(to), "subject": "Hello", "text": text}
        return json.dumps(fields).encode()


Attack = Callable[[Target], Coroutine[Any, Any, None]]
Requests = Iterator[bytes]


def sources(count: int) -> Iterator[str]:
    return itertools.cycle([f"127.0.1.{number}" for number in range(1, count + 1)])


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    fields = {"Host": "x", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def again(act: Callable[[], Awaitable[None]]) -> None:
    """Whatever happens to the connection."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, EOFError):
            await act()
        await asyncio.sleep(PAUSE_SECONDS)


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """The body."""
    first = await reader.readline()
    if not first:
        raise EOFError
    size = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    return await reader.readexactly(size)


async def flood(port: int, requests: Sequence[Requests], addresses: int = 1) -> None:
    """A connection for each; it sends its next request as soon as it has an answer."""
    source = sources(addresses)

    async def send_on(own: Requests) -> None:
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=(next(source), 0))
        try:
            while True:
                writer.write(next(own))
                await read_response(reader)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(again(lambda own=own: send_on(own)) for own in requests))  # type: ignore[misc]


def messages(target: Target, body: bytes) -> Requests:
    while True:
        yield request("POST", "/emails", body, Authorization=target.basic, Idempotency_Key=uuid.uuid4().hex)


def calls(target: Target, method: str, path: str, body: bytes = b"") -> Requests:
    return itertools.repeat(request(method, path, body, Authorization=target.token))


def large_messages(text_bytes: int) -> Attack:
    async def attack(target: Target) -> None:
        body = target.mail("y" * text_bytes)
        await flood(target.http, [messages(target, body) for _ in range(64)])

    return attack


def batches(emails: int, recipients: int, *, is_test: bool, text_bytes: int = 10) -> Attack:
    """Batch requests of all accounts at once, six of each, to one recipient's domain for each email."""

    async def attack(target: Target) -> None:
        def of(domain: str, live_key: str, test_key: str) -> Requests:
            for number in itertools.count():
                sent = [
                    {
                        "from": f"news@{domain}",
                        "to": [f"r{number}-{place}@d{index % 100}.{ANSWERING}" for place in range(recipients)],
                        "subject": "Hello",
                        "text": "z" * text_bytes,
                    }
                    for index in range(emails)
                ]
                yield request(
                    "POST",
                    "/emails/batch",
                    json.dumps({"emails": sent}).encode(),
                    Authorization=test_key if is_test else live_key,
                    Idempotency_Key=uuid.uuid4().hex,
                )

        each = max(1, 12 // len(target.accounts))
        await flood(target.http, [of(*account) for account in target.accounts for _ in range(each)])

    return attack


async def stored_test_mail(target: Target) -> None:
    """Messages of 6 MiB with a test key, which cost no credit."""
    body = target.mail("y" * 6 * MIB)

    def of(test_key: str) -> Requests:
        while True:
            key = uuid.uuid4().hex
            yield request("POST", "/emails", body, Authorization=test_key, Idempotency_Key=key)

    await flood(target.http, [of(test_key) for _, _, test_key in target.accounts for _ in range(8)])


async def templates(target: Target) -> None:
    text = "z" * 200_000
    create = json.dumps({"alias": "flood", "publish": True, "text": text}).encode()
    version = json.dumps({"text": text}).encode()
    requests = [calls(target, "POST", "/v1/templates/flood/versions", version) for _ in range(15)]
    await flood(target.http, [calls(target, "POST", "/v1/templates", create), *requests])


async def searches(target: Target) -> None:
    paths = ["/v1/messages?limit=100", "/v1/messages?subject=hello&limit=100", "/v1/messages?status=delivered"]
    await flood(target.http, [calls(target, "GET", paths[number % len(paths)]) for number in range(32)])


async def large_reads(target: Target) -> None:
    """The content of a message of 5 MiB, again and again."""
    reader, writer = await asyncio.open_connection(HOST, target.http, local_addr=("127.0.1.1", 0))
    writer.write(next(messages(target, target.mail("y" * 5 * MIB))))
    sent = json.loads(await read_response(reader))
    writer.close()
    await flood(target.http, [calls(target, "GET", f"/v1/messages/{sent['id']}/content") for _ in range(16)])


def logins(emails: Iterator[str], password: str) -> Requests:
    for email in emails:
        yield request("POST", "/v1/auth/login", json.dumps({"email": email, "password": password}).encode())


async def wrong_logins(target: Target) -> None:
    def guesses(number: int) -> Iterator[str]:
        return (f"g{number}-{count}@example.com" for count in itertools.count())

    await flood(target.http, [logins(guesses(number), "a wrong password") for number in range(32)], addresses=4)


async def right_logins(target: Target) -> None:
    password = "correct horse battery staple"
    await flood(target.http, [logins(itertools.repeat(target.email), password) for _ in range(32)], addresses=4)


async def pages(target: Target) -> None:
    paths = ["/openapi.json", "/docs/swagger-ui-bundle.js", "/nowhere", "/v1/messages"]
    requests = [itertools.repeat(request("GET", paths[number % 4])) for number in range(32)]
    await flood(target.http, requests, addresses=4)


async def wrong_keys(target: Target) -> None:
    def wrong() -> Requests:
        while True:
            key = uuid.uuid4().hex + "x" * 11
            yield request("POST", "/emails", target.mail(), Authorization=f"Bearer ph_live_{key}", Idempotency_Key="k")

    await flood(target.http, [wrong() for _ in range(32)], addresses=4)


async def dry_runs(target: Target) -> None:
    body = target.mail("y" * 200 * 1024)
    await flood(target.http, [calls(target, "POST", "/v1/emails/dry-run", body) for _ in range(32)])


async def domains(target: Target) -> None:
    def names(worker: int) -> Requests:
        for number in itertools.count():
            name = f"d{worker}-{number}.example.org"
            yield request("POST", "/v1/domains", json.dumps({"name": name}).encode(), Authorization=target.token)
            yield request("DELETE", f"/v1/domains/{name}", Authorization=target.token)

    await flood(target.http, [names(worker) for worker in range(16)])


async def keys(target: Target) -> None:
    create = json.dumps({"name": "x"}).encode()
    requests = [calls(target, "POST", "/v1/keys", create) for _ in range(8)]
    await flood(target.http, [*requests, *(messages(target, target.mail()) for _ in range(8))])


async def steady_mail(target: Target) -> None:
    await flood(target.http, [messages(target, target.mail()) for _ in range(8)])


async def slow_bodies(target: Target) -> None:
    """Chunked bodies that grow by a byte now and then, and responses that are not read."""

    async def drip() -> None:
        _, writer = await asyncio.open_connection(HOST, target.http, local_addr=("127.0.1.1", 0))
        head = request("POST", "/emails", Authorization=target.basic, Idempotency_Key="k", Transfer_Encoding="chunked")
        writer.write(head.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"))
        while not writer.transport.is_closing():
            writer.write(b"1\r\n{\r\n")
            await asyncio.sleep(PAUSE_SECONDS)

    async def unread() -> None:
        _, writer = await asyncio.open_connection(HOST, target.http, local_addr=("127.0.1.2", 0), limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not writer.transport.is_closing():
            writer.write(request("GET", "/v1/messages?limit=100", Authorization=target.token))
            await writer.drain()
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(again(drip) for _ in range(200)), *(again(unread) for _ in range(100)))


async def idle_connections(target: Target) -> None:
    source = sources(8)

    async def wait() -> None:
        reader, _ = await asyncio.open_connection(HOST, target.http, local_addr=(next(source), 0))
        await reader.read()

    await asyncio.gather(*(again(wait) for _ in range(4_000)))


async def endless_trailers(target: Target) -> None:
    begin = request("POST", "/v1/auth/login", Content_Type="application/json", Transfer_Encoding="chunked")
    begin += b"1\r\n{\r\n0\r\n"
    fields = b"".join(b"a:%d\r\n" % number for number in range(4_000))

    async def send() -> None:
        _, writer = await asyncio.open_connection(HOST, target.http, local_addr=("127.0.1.1", 0))
        writer.write(begin)
        while not writer.transport.is_closing():
            writer.write(fields)
            await writer.drain()

    await asyncio.gather(*(again(send) for _ in range(16)))


async def nothing(_: Target) -> None:
    """The prepared requests are the attack."""
    await asyncio.Event().wait()


class SmtpClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, source: str, authority: str = "") -> "SmtpClient":
        tls = ssl.create_default_context(cafile=authority) if authority else None
        name = "localhost" if authority else None
        opened = await asyncio.open_connection(HOST, port, local_addr=(source, 0), ssl=tls, server_hostname=name)
        client = cls(*opened)
        await client.reply()
        return client

    async def reply(self) -> bytes:
        while True:
            line = await self.reader.readline()
            if not line:
                raise EOFError
            if line[3:4] != b"-":
                return line

    async def say(self, *commands: str) -> bytes:
        """The last reply."""
        self.writer.write("".join(f"{command}\r\n" for command in commands).encode())
        for _ in commands:
            last = await self.reply()
        return last


async def submission_content(target: Target) -> None:
    """Sessions of one account that send messages of 10 MiB without a pause."""
    source = sources(2)
    login = base64.b64encode(f"\0{target.username}\0{target.password}".encode()).decode()
    text = b"Subject: x\r\nFrom: <news@" + target.domain.encode() + b">\r\n\r\n" + LINE * (9 * MIB // len(LINE))

    async def send() -> None:
        client = await SmtpClient.open(target.submission, next(source), target.authority)
        await client.say("EHLO noisy.example", f"AUTH PLAIN {login}")
        while True:
            sender = f"MAIL FROM:<news@{target.domain}>"
            if (await client.say(sender, "RCPT TO:<delivered@simulator.invalid>", "DATA")).startswith(b"354"):
                client.writer.write(text + b".\r\n")
                await client.writer.drain()
                await client.reply()

    await asyncio.gather(*(again(send) for _ in range(40)))


def connections_before_auth(networks: int) -> Attack:
    """Idle sessions that never log in, from many addresses of six prefixes."""

    async def attack(target: Target) -> None:
        source = itertools.cycle([f"127.0.{10 + number % 6}.{1 + number // 6}" for number in range(networks)])

        async def wait() -> None:
            client = await SmtpClient.open(target.starttls, next(source))
            await client.say("EHLO noisy.example")
            await client.reader.read()

        await asyncio.gather(*(again(wait) for _ in range(45 * networks)))

    return attack


def inbound_content(networks: int) -> Attack:
    """Messages to port 25 that come as slowly as the server tolerates, from several networks."""

    async def attack(target: Target) -> None:
        source = sources(networks)

        async def drip() -> None:
            client = await SmtpClient.open(target.inbound, next(source))
            recipient = f"RCPT TO:<{target.inbound_recipient}>"
            await client.say("EHLO noisy.example", "MAIL FROM:<>", recipient, "DATA")
            client.writer.write(LINE * ((2 * MIB - 200_000) // len(LINE)))
            while not client.writer.transport.is_closing():
                await asyncio.sleep(DRIP_SECONDS)
                client.writer.write(LINE * DRIP_LINES)
                await client.writer.drain()

        await asyncio.gather(*(again(drip) for _ in range(45 * networks)))

    return attack


ATTACKS: Final[dict[str, Attack]] = {
    "batches": batches(20, 50, is_test=False),
    "batches of test mail": batches(20, 50, is_test=True),
    "batches of single recipients": batches(500, 1, is_test=False),
    "stored test mail": stored_test_mail,
    "small messages": large_messages(1_000),
    "messages of 200 KB": large_messages(200 * 1024),
    "messages of 1 MiB": large_messages(MIB),
    "template versions": templates,
    "searches": searches,
    "large reads": large_reads,
    "wrong logins": wrong_logins,
    "right logins": right_logins,
    "pages": pages,
    "wrong keys": wrong_keys,
    "dry runs": dry_runs,
    "domains": domains,
    "keys": keys,
    "steady mail": steady_mail,
    "slow bodies": slow_bodies,
    "endless trailers": endless_trailers,
    "idle connections": idle_connections,
    "nothing": nothing,
    "submission content": submission_content,
    "connections before AUTH": connections_before_auth(60),
    "inbound content": inbound_content(8),
}


async def main(name: str, target: Target) -> None:
    attack = asyncio.create_task(ATTACKS[name](target))
    # Most connections are open by then.
    await asyncio.wait([attack], timeout=LEAD_SECONDS)
    print("begun", flush=True)
    await attack


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Target(**json.loads(sys.argv[2]))))
