"""The stream of hints on the wire: heartbeats while nothing happens, no body for HEAD, an end that is sent."""

import asyncio
from uuid import uuid4

import pytest
from starlette.types import Message, Scope

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.routes.live import LiveStream
from posthouse.flows.account.live import Live
from posthouse.flows.shared.principal import Member
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.store.postgres import Database
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.eventually import HANG_SECONDS


class Client:
    """Reads what is sent, until it disconnects."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leaves = asyncio.Event()
        self.changed = asyncio.Event()

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.changed.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def reads(self, body: bytes) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while self.body != body:
                self.changed.clear()
                await self.changed.wait()


async def admitted() -> None:
    pass


@pytest.fixture
def live(database: Database) -> Live:
    return Live(context(database, SettableClock()))


def stream_of(live: Live, heartbeat_seconds: float) -> LiveStream:
    member = Member(AccountId(uuid4()), UserId(uuid4()), Role.VIEWER, "ada@example.org", SessionId(uuid4()))
    return LiveStream(live, member, admitted, heartbeat_seconds)


def begun(stream: LiveStream, client: Client, scope: Scope | None = None) -> "asyncio.Task[None]":
    return asyncio.create_task(stream(scope or {}, client.receive, client.send))


async def test_a_silent_stream_has_heartbeats_until_its_client_leaves(live: Live) -> None:
    client = Client()
    task = begun(stream_of(live, 0.01), client)
    await client.reads(b":\n\n" * 4)
    client.leaves.set()
    await task
    assert not live._accounts


async def test_a_stream_that_is_ended_says_so_last(live: Live) -> None:
    client = Client()
    task = begun(stream_of(live, 60), client)
    await client.reads(b":\n\n")
    live.close()
    await task
    assert client.body.startswith(b':\n\nevent: end\ndata: {"error":"This process is about to stop')
    assert client.sent[-1].get("more_body") is None


async def test_head_has_no_stream(live: Live) -> None:
    client = Client()
    await begun(stream_of(live, 60), client, {responses.IS_HEAD: True})
    assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]
    assert client.body == b""
