"""The floor of accepting in Python: an ASGI handler that stores mail with our statements and applies no rule.

    python bench/accept_asgi.py PORT DATABASE_URL SENDERS_FILE

The file names the account and the credential of each Authorization header. The HTTP server, the parser of JSON, the
driver, the statements, batching and durability are ours. Nothing is checked, limited, counted or logged, and a message
is written with one format string. So no server in Python with these parts costs less; what ours costs more is its
rules.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from os import urandom
from pathlib import Path
from typing import Any, Final
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
import pydantic_core
import uvicorn

from bench.dataset import Sender
from posthouse.rules import ids
from posthouse.rules.draft import DraftRecipient
from posthouse.rules.ids import AccountId, CredentialId, RequestId
from posthouse.rules.limits import GROUP_COMMIT_ITEMS_MAX
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage, Spending
from posthouse.store.postgres import SETTINGS

Message = dict[str, Any]
Waiting = tuple[PreparedMessage, "asyncio.Future[None]"]

_MAIL: Final = (
    "From: {sender}\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {date}\r\nMessage-ID: <{id}@localhost>\r\n"
    'MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary="{id}"\r\n\r\n'
    '--{id}\r\nContent-Type: text/plain; charset="utf-8"\r\n\r\n{text}\r\n'
    '--{id}\r\nContent-Type: text/html; charset="utf-8"\r\n\r\n{html}\r\n--{id}--\r\n'
)


def write_senders(file: Path, senders: Sequence[Sender]) -> None:
    """The file of senders."""
    file.write_text(json.dumps({sender.basic: [sender.account_id.hex, sender.credential_id.hex] for sender in senders}))


def read_senders(file: Path) -> dict[bytes, tuple[AccountId, CredentialId]]:
    return {
        header.encode(): (AccountId(UUID(account)), CredentialId(UUID(credential)))
        for header, (account, credential) in json.loads(file.read_text()).items()
    }


class Handler:
    def __init__(self, database_url: str, senders: Mapping[bytes, tuple[AccountId, CredentialId]]) -> None:
        self._database_url = database_url
        self._senders = senders
        self._connection: Any = None
        self._waiting: list[Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        headers = dict(scope["headers"])
        account_id, credential_id = self._senders[headers[b"authorization"]]
        event = await receive()
        body: bytes = event["body"]
        while event.get("more_body"):
            event = await receive()
            body += event["body"]
        entry = _entry(account_id, credential_id, headers[b"idempotency-key"].decode(), body)
        await self._stored(entry)
        answer = pydantic_core.to_json(
            {"id": ids.text(ids.MESSAGE, entry.message_id), "status": "queued", "subject": entry.subject}
        )
        lines = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 202, "headers": lines})
        await send({"type": "http.response.body", "body": answer})

    async def _live(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        await receive()
        self._connection = await asyncpg.connect(self._database_url, server_settings=SETTINGS)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._connection.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _stored(self, entry: PreparedMessage) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._store_all())
        await answer

    async def _store_all(self) -> None:
        await asyncio.sleep(0)
        while self._waiting:
            batch, self._waiting = self._waiting[:GROUP_COMMIT_ITEMS_MAX], self._waiting[GROUP_COMMIT_ITEMS_MAX:]
            await self._store([entry for entry, _ in batch])
            for _, answer in batch:
                if not answer.done():
                    answer.set_result(None)
        self._running = None

    async def _store(self, entries: Sequence[PreparedMessage]) -> None:
        keys = [entry.key for entry in entries if entry.key is not None]
        spent: dict[AccountId, int] = {}
        for entry in entries:
            spent[entry.account_id] = spent.get(entry.account_id, 0) + entry.credits
        now = datetime.now(UTC)
        spendings = [
            Spending(account, count, now, now, now.date(), count, 0, now.date(), now.date(), count)
            for account, count in spent.items()
        ]
        async with self._connection.transaction():
            await acceptance.lock(self._connection, keys, sorted(spent))
            await acceptance.recall(self._connection, keys)
            await acceptance.write(self._connection, entries, spendings, now, now)


def _entry(account_id: AccountId, credential_id: CredentialId, key: str, body: bytes) -> PreparedMessage:
    fields = pydantic_core.from_json(body)
    now = datetime.now(UTC)
    message_id = ids.new_message_id(now, urandom(ids.RANDOM_BYTES))
    sender, to = fields["from"], fields["to"]
    recipient = to.rpartition("<")[2].rstrip(">")
    envelope_sender = sender.rpartition("<")[2].rstrip(">")
    mail = _MAIL.format(
        sender=sender,
        to=to,
        subject=fields["subject"],
        date=now,
        id=message_id.hex,
        text=fields["text"],
        html=fields["html"],
    )
    return PreparedMessage(
        account_id=account_id,
        credential_id=credential_id,
        key=IdempotencyKey(account_id, credential_id, key),
        body_hash=blake2b(body, digest_size=32).digest(),
        message_id=message_id,
        request_id=RequestId(message_id),
        source="api",
        sender=sender,
        envelope_sender=envelope_sender,
        subject=fields["subject"],
        tags=(),
        template=None,
        recipients=(DraftRecipient("to", recipient, recipient.rpartition("@")[2]),),
        credits=1,
        mime=mail.encode(),
        sender_domain=envelope_sender.rpartition("@")[2],
    )


def main() -> None:
    port, database_url, senders_file = sys.argv[1:]
    uvicorn.run(
        Handler(database_url, read_senders(Path(senders_file))),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
