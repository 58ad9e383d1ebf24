"""The service as its clients see it: a real server process, real HTTP, and accounts."""

import asyncio
import base64
import email
import email.policy
import io
import itertools
import json
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import aiohttp
import jwt

from posthouse.config import Settings
from posthouse.flows.account import passwords
from posthouse.rules import ids
from posthouse.rules.credential import Scope
from posthouse.rules.pepper import FIRST, Pepper, Peppers
from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import Answer, check_every_answer, read_answer
from tests.support.operator_client import MadeCredential, Operator

PEPPER: Final = "acceptance pepper, thirty-two bytes or more"
JWT_SECRET: Final = "acceptance token secret, thirty-two bytes or more"
SEAL_KEY: Final = base64.b64encode(bytes(range(32))).decode()
PASSWORD: Final = "correct horse battery staple"
# The account that sends the service's own mail, once `Service.prepare_sender` made it.
SENDER_ACCOUNT: Final = "posthouse-service"
SENDER_DOMAIN: Final = "service.posthouse.example"


class Absence(Enum):
    """The value of a field that a test omits; an enum member, so that test ids are the same in every process."""

    ABSENT = "absent"


ABSENT: Final[object] = Absence.ABSENT


@dataclass(slots=True)
class Service:
    """A client of one server process: HTTP, an operator, and the database. `server_process.start_service` makes one."""

    database_url: str
    port: int
    log: Path
    process: subprocess.Popen[bytes]
    client: aiohttp.ClientSession
    operator: Operator
    pool: Any
    request_ids: set[str] = field(default_factory=set)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def stop(self) -> int:
        """Asks the process to end, and waits for it; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = await self.ended()
        await self.close()
        return status

    async def close(self) -> None:
        """The process runs on."""
        await self.client.close()
        await self.operator.close()
        await self.pool.close()

    async def ended(self) -> int:
        try:
            return await asyncio.to_thread(self.process.wait, HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: object = ABSENT,
        data: Any = None,
    ) -> Answer:
        """One request over HTTP; its answer has passed `check_every_answer`."""
        given = dict(headers or {})
        if json is not ABSENT:
            data = _encode(json)
            given.setdefault("Content-Type", "application/json")
        if isinstance(data, bytes) and len(data) > 2**19:
            data = io.BytesIO(data)  # aiohttp warns about large bytes
        async with self.client.request(
            method, self.url + path, headers=given, data=data, skip_auto_headers=["Content-Type"]
        ) as response:
            answer = Answer(response.status, response.headers.copy(), await response.read())
        check_every_answer(method, path, answer)
        request_id = answer.headers["X-Request-ID"]
        assert request_id not in self.request_ids, "a request id was given twice"
        self.request_ids.add(request_id)
        return answer

    async def raw(self, request: bytes) -> Answer:
        """Raw bytes on a new connection, for what no HTTP client would send."""
        (answer,) = await self.raw_answers(request, 1)
        return answer

    async def raw_answers(self, requests: bytes, count: int) -> list[Answer]:
        """The first `count` answers to raw bytes on one connection, in their order."""
        method, path = requests.split(b" ", 2)[:2]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(requests)
            await writer.drain()
            async with asyncio.timeout(HANG_SECONDS):
                answers = [await read_answer(reader) for _ in range(count)]
        finally:
            writer.close()
        check_every_answer(method.decode(), path.decode(), answers[0])
        return answers

    async def sql(self, query: str, *arguments: object) -> list[Any]:
        return list(await self.pool.fetch(query, *arguments))

    async def value(self, query: str, *arguments: object) -> Any:
        return await self.pool.fetchval(query, *arguments)

    async def account(
        self,
        *,
        credits: int = 1_000,  # noqa: A002 (the word of the product)
        domain: str | None = "{unique}.example.com",
        rate: tuple[int, int] | None = (10_000, 10_000),
        warmup: Sequence[int] | None = (),
    ) -> "Tenant":
        """A fresh account with one SMTP credential and one verified domain.

        Its rate is out of the way unless `rate` is None (the service's own), and so is warm-up unless
        `warmup` is None (the service's own) or has numbers.
        """
        unique = f"a{next(self._numbers)}-{self.port}"
        made = await self.operator.create_account(unique)
        if credits:
            await self.operator.grant_credits(made.id, credits)
        name = domain.format(unique=unique) if domain else ""
        if name:
            await self.operator.add_verified_domain(made.id, name)
        await self.operator.set_limits(made.id, rate=rate, warmup=warmup)
        first = made.credential
        return Tenant(self, made.id, unique, name, first.id, first.username, first.password)

    async def prepare_sender(self) -> None:
        """Creates the account that sends the service's own mail."""
        made = await self.operator.create_account(SENDER_ACCOUNT)
        await self.operator.grant_credits(made.id, 100_000)
        await self.operator.add_verified_domain(made.id, SENDER_DOMAIN)
        await self.operator.set_limits(made.id, rate=(10_000, 10_000), warmup=())

    async def mailed_texts(self, email: str) -> list[str]:
        """The service's own mail to the address, the newest first."""
        rows = await self.sql(_SERVICE_MAIL, SENDER_ACCOUNT, email.lower())
        return [str(_parsed(row["mime"]).get_content()) for row in rows]

    async def mailed_tokens(self, email: str) -> list[str]:
        """The tokens in the service's own mail to the address, the newest first."""
        texts = await self.mailed_texts(email)
        return [found for text in texts for found in re.findall(r"^([0-9A-Za-z]{43})\s*$", text, re.MULTILINE)]

    async def mailed_token(self, email: str) -> str:
        """The token in the newest of the service's own emails to the address."""
        return (await self.mailed_tokens(email))[0]

    async def login(self, email: str, password: str) -> Answer:
        return await self.request("POST", "/v1/auth/login", json={"email": email, "password": password})


@dataclass(slots=True)
class Tenant:
    """An account and its owner's actions."""

    service: Service
    id: UUID
    unique: str
    domain: str
    credential_id: UUID
    username: str
    password: str
    _tokens: dict[str, str] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def basic(self) -> str:
        return basic(self.username, self.password)

    async def key(self, mode: str = "live", may_read: bool = False, credential_id: UUID | None = None) -> str:
        """A new API key, as the value of an Authorization header."""
        of = credential_id or self.credential_id
        return f"Bearer {(await self.service.operator.create_key(self.id, of, mode=mode, may_read=may_read)).secret}"

    async def scoped_key(self, *scopes: Scope, sender_domains: tuple[str, ...] = ()) -> str:
        """The same, with only these scopes."""
        made = await self.service.operator.create_key(
            self.id, self.credential_id, scopes=scopes, sender_domains=sender_domains
        )
        return f"Bearer {made.secret}"

    async def credential(self, allowed_networks: Sequence[str] = ()) -> MadeCredential:
        """A further SMTP credential of this account."""
        return await self.service.operator.create_credential(
            self.id, f"another {next(self._numbers)}", allowed_networks
        )

    async def user(self, role: str = "owner") -> str:
        """The email of a new user of this account, whose password is PASSWORD."""
        address = f"{role}-{next(self._numbers)}@{self.unique}.example.net"
        await self.service.operator.create_user(self.id, address, PASSWORD, role)
        return address

    async def jwt(self, role: str = "owner") -> str:
        """A token from the login endpoint, as the value of an Authorization header."""
        if role not in self._tokens:
            answer = await self.service.login(await self.user(role), PASSWORD)
            assert answer.status == 200, answer.raw
            self._tokens[role] = f"Bearer {answer.body['token']}"
        return self._tokens[role]

    async def forged(self, *, secret: str = JWT_SECRET, algorithm: str = "", **claims: object) -> str:
        """A token like the real one except for the given claims; ABSENT takes one away."""
        real = (await self.jwt()).removeprefix("Bearer ")
        header = jwt.get_unverified_header(real)
        payload = jwt.decode(real, options={"verify_signature": False}) | claims
        payload = {name: value for name, value in payload.items() if value is not ABSENT}
        return f"Bearer {jwt.encode(payload, secret, algorithm or header['alg'])}"

    def mail(self, **changes: object) -> dict[str, Any]:
        """A small valid request with some fields changed; `from_` is `from`, ABSENT takes a field away."""
        fields: dict[str, object] = {
            "from": f"news@{self.domain}",
            "to": "ada@example.org",
            "subject": "Hello",
            "text": "Good morning.",
        }
        fields |= {name.removesuffix("_"): value for name, value in changes.items()}
        return {name: value for name, value in fields.items() if value is not ABSENT}

    def new_key(self) -> str:
        return f"{self.unique}-{next(self._numbers)}"

    async def send(
        self,
        body: object = ABSENT,
        *,
        key: object = None,
        authorization: str | None = None,
        service: Service | None = None,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
    ) -> Answer:
        """POST /emails, with a fresh key unless one is given (ABSENT: without any)."""
        given = {"Authorization": authorization or self.basic}
        if key is not ABSENT:
            given["Idempotency-Key"] = str(self.new_key() if key is None else key)
        if data is not None:
            given["Content-Type"] = "application/json"
        elif body is ABSENT:
            body = self.mail()
        given |= headers or {}
        return await (service or self.service).request("POST", "/emails", headers=given, json=body, data=data)

    async def get(self, message_id: str, *, authorization: str | None = None) -> Answer:
        return await self.service.request(
            "GET", f"/emails/{message_id}", headers={"Authorization": authorization or self.basic}
        )

    async def cancel(self, message_id: str, *, authorization: str | None = None) -> Answer:
        return await self.service.request(
            "POST", f"/emails/{message_id}/cancel", headers={"Authorization": authorization or self.basic}
        )

    async def call(
        self, method: str, path: str, json: object = ABSENT, *, role: str = "owner", **headers: str
    ) -> Answer:
        """A call under /v1 with a token of the given role."""
        return await self.service.request(
            method, path, headers={"Authorization": await self.jwt(role), **headers}, json=json
        )

    async def template(self, alias: str, **fields: object) -> Answer:
        answer = await self.call("POST", "/v1/templates", {"alias": alias, "publish": True, **fields})
        assert answer.status == 201, answer.raw
        return answer

    async def available(self) -> int:
        return int(await self.service.value("SELECT available FROM accounts WHERE id = $1", self.id))

    async def counts(self) -> dict[str, int]:
        """What acceptance leaves behind, as numbers: compare before and after a refusal."""
        (row,) = await self.service.sql(_COUNTS, self.id)
        return dict(row)

    async def state(self) -> dict[str, Any]:
        """The account's whole row and everything that belongs to it: equal before and after a refusal."""
        (row,) = await self.service.sql(_STATE, self.id)
        return {**dict(row), **await self.counts()}

    async def set(self, **columns: object) -> None:
        """Changes columns of the account's row, for rules about time; marks the account as changed."""
        assignments = [f"{name} = ${number}" for number, name in enumerate(columns, 2)] + ["changed_at = now()"]
        query = f"UPDATE accounts SET {', '.join(assignments)} WHERE id = $1"
        await self.service.sql(query, self.id, *columns.values())

    async def use_up_rate(self) -> None:
        """Requests are refused for a minute; a time further ahead would not be believed."""
        await self.set(rate_full_at=datetime.now(UTC) + timedelta(minutes=1))

    async def mime(self, message_id: str) -> bytes:
        query = "SELECT mime FROM bodies WHERE account_id = $1 AND message_id = $2"
        return bytes(await self.service.value(query, self.id, uuid(message_id)))

    async def stored(self, message_id: str) -> EmailMessage:
        return _parsed(await self.mime(message_id))

    async def refuses(self, body: object, status: int, code: str, *naming: str, **sending: Any) -> Answer:
        """Sends what must be refused, and shows that the refusal left nothing behind."""
        before = await self.state()
        answer = await self.send(body, **sending)
        assert answer.is_refusal(status, code, *naming)
        assert await self.state() == before, "a refused request left something behind"
        return answer

    async def accepts(self, body: object = ABSENT, **sending: Any) -> dict[str, Any]:
        """Sends what must be accepted; returns the response's body."""
        answer = await self.send(body, **sending)
        assert answer.is_accepted()
        return answer.body


_SERVICE_MAIL: Final = """
SELECT b.mime FROM accounts a JOIN recipients r ON r.account_id = a.id
JOIN bodies b ON b.account_id = r.account_id AND b.message_id = r.message_id
WHERE a.name = $1 AND r.email = $2 ORDER BY b.message_id DESC
"""

_COUNTS: Final = """
SELECT (SELECT count(*) FROM messages WHERE account_id = $1) AS messages,
       (SELECT count(*) FROM recipients WHERE account_id = $1) AS recipients,
       (SELECT count(*) FROM bodies WHERE account_id = $1) AS bodies,
       (SELECT count(*) FROM delivery_schedule WHERE account_id = $1) AS delivery_schedule,
       (SELECT count(*) FROM idempotency WHERE account_id = $1) AS keys,
       (SELECT coalesce(sum(amount), 0) FROM ledger WHERE account_id = $1 AND kind = 'reserve') AS reserved,
       (SELECT coalesce(sum(amount), 0) FROM credit_grants WHERE account_id = $1) AS granted
"""

_STATE: Final = """
SELECT available, rate_full_at, warmup_started_on, warmup_day, warmup_used FROM accounts WHERE id = $1
"""


def settings_for(database_url: str, **settings: str) -> dict[str, str]:
    """The environment of a server process."""
    chosen = {
        "DATABASE__URL": database_url,
        "SECRETS__PEPPER": PEPPER,
        "SECRETS__JWT_SECRET": JWT_SECRET,
        "SECRETS__SEAL_KEYS": json.dumps({"first": SEAL_KEY}),
        "SECRETS__SEAL_KEY_ACTIVE": "first",
        "HTTP__HOST": "127.0.0.1",
        # A machine that stands still for seconds is no reason to fail.
        "DATABASE__TIMEOUT_FACTOR": "10",
        # Every client of the tests has the same address.
        "HTTP__UNAUTHENTICATED_PER_SECOND": "100000",
        "HTTP__UNAUTHENTICATED_BURST": "100000",
        # Tests share a volume, and an account does in seconds what people do in a day.
        "DISK_SPACE__DIRECTORY": "",
        "SERVICE__SENDER": f"Posthouse <no-reply@{SENDER_DOMAIN}>",
        "SERVICE__SENDER_ACCOUNT": SENDER_ACCOUNT,
        "LIMITS__WRITES_PER_SECOND": "10000",
        "LIMITS__WRITES_BURST": "10000",
        **settings,
    }
    return {f"POSTHOUSE_{name}": value for name, value in chosen.items() if not name.startswith("_")}


@cache
def service_settings(database_url: str) -> Settings:
    return settings_from(settings_for(database_url))


def settings_from(environment: Mapping[str, str]) -> Settings:
    """The settings of a process with this environment."""
    values: dict[str, dict[str, str]] = {}
    for name, value in environment.items():
        section, delimiter, setting = name.removeprefix("POSTHOUSE_").lower().partition("__")
        if name.startswith("POSTHOUSE_") and delimiter:
            values.setdefault(section, {})[setting] = value
    return Settings.model_validate(values)


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def person_at(email: str, place: str = "127.0.0.1") -> str:
    """The name under which the failed logins of a person at a place are counted."""
    return passwords.person(email, place, Peppers(Pepper(FIRST, PEPPER.encode())))


def uuid(message_id: str) -> UUID:
    value = ids.parse(ids.MESSAGE, message_id)
    assert value is not None, f"{message_id!r} is no message id"
    return value


# Starts a further process; takes the arguments of `server_process.start_service`, the database's URL optional.
StartService = Callable[..., Awaitable[Service]]


def _parsed(mime: bytes) -> EmailMessage:
    parsed = email.message_from_bytes(mime, policy=email.policy.SMTP)
    assert isinstance(parsed, EmailMessage)
    return parsed


def _encode(value: object) -> bytes:
    # Lone surrogates stay escaped, as a careless client would send them.
    return json.dumps(value).encode()
