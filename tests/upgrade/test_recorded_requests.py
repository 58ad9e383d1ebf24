"""A client that uses nothing new sees nothing new: 500 old requests get the answers and webhooks that they got before.

`make test-contract`. The requests are generated from a seed, with the fields and routes of the commit before `send_at`,
metadata, scopes and batches. They are sent to the service of that commit and to this one, each with a database whose
tables it made. Answers and webhook bodies must be the same bytes, except for ids and times.
"""

import asyncio
import base64
import json
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from posthouse.rules import event
from posthouse.rules.ids import AccountId
from posthouse.store import endpoints
from posthouse.store.seal import Sealer
from tests.support import webhook_accounts
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.released_version import Release, ReleaseError, installed
from tests.support.server_process import environment
from tests.support.service import Tenant, service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver
from tests.support.webhook_steps import ALL_EVENTS, save_webhook
from tools.private_postgres import PrivatePostgres

pytestmark = pytest.mark.nightly

BEFORE: Final = Release("before these features", "539bf08e842397d7d1c88156ccbe470feac0ab26")
# The names that commit has for settings that the tests set; it refuses any other name.
OLD_SETTINGS: Final = {"POSTHOUSE_DATABASE__TIMEOUT_FACTOR": "POSTHOUSE_DATABASE__PATIENCE"}
SEED: Final = 20261117
SENDS: Final = 380
READS: Final = 120
DOMAIN: Final = "shop.example.com"
DESTINATION: Final = "there.example.net"
FINAL_SECONDS_MAX: Final = 5 * HANG_SECONDS
MIGRATE_SECONDS_MAX: Final = 5 * HANG_SECONDS

_ID: Final = re.compile(rb"\b(em|rc|rq|ev|wd|cr|ac)_[0-9a-z]{26}\b")
_TIME: Final = re.compile(rb"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
# The receiver counts what it accepts, in any order.
_COUNT: Final = re.compile(rb"\btaken as \d+")
# Their values depend on the time; the length is that of the body, which is compared.
TIMED: Final = frozenset(
    {"date", "x-request-id", "ratelimit-remaining", "ratelimit-reset", "retry-after", "content-length"}
)
# The one exception: the refusal of an unknown field lists the fields that there are.
NEW_FIELDS: Final = b"tags, attachments, metadata, send_at, content.", b"tags, attachments."


class Send(NamedTuple):
    """A request to POST /emails; `body` is JSON text, valid or not."""

    headers: dict[str, str]
    body: bytes


def requests(randomness: random.Random) -> Iterator[Send]:
    """Most are valid. A few repeat a key, with the same body or with another."""
    sent: list[Send] = []
    for number in range(SENDS):
        headers = {"Idempotency-Key": f"key-{number}", "Content-Type": "application/json"}
        if sent and randomness.random() < 0.06:
            earlier = randomness.choice(sent)
            same = randomness.random() < 0.5
            yield Send(earlier.headers, earlier.body if same else _encoded(_mail(randomness, number)))
            continue
        mail = _mail(randomness, number)
        is_spoiled = randomness.random() < 0.4
        made = Send(headers, _encoded(_spoiled(randomness, mail) if is_spoiled else mail))
        if randomness.random() < 0.08:
            made = _spoiled_request(randomness, made)
        else:
            sent.append(made)
        yield made


def _encoded(mail: object) -> bytes:
    return json.dumps(mail, ensure_ascii=False).encode()


def _address(randomness: random.Random, number: int) -> str:
    local = randomness.choice(["ada", "bob", "taken", "550-rcpt", "554-rcpt", "451-rcpt"])
    simulated = randomness.choice(["delivered", "bounced", "failed", "deferred"])
    return randomness.choice(
        [f"{local}+{number}-{randomness.randrange(99)}@{DESTINATION}", f"{simulated}+{number}@simulator.invalid"]
    )


def _addresses(randomness: random.Random, number: int) -> object:
    given = [_address(randomness, number) for _ in range(randomness.randint(1, 4))]
    if randomness.random() < 0.3:
        given = [f"Zoë “the {place}” Å <{address}>" for place, address in enumerate(given)]
    return given[0] if len(given) == 1 and randomness.random() < 0.7 else given


def _mail(randomness: random.Random, number: int) -> dict[str, Any]:
    mail: dict[str, Any] = {
        "from": randomness.choice([f"news@{DOMAIN}", f"Shop <news@{DOMAIN}>", f"Ünï Cödé <a.b@{DOMAIN}>"]),
        "to": _addresses(randomness, number),
        "subject": randomness.choice(["Hello", f"Order {number}", "Grüße aus Köln ✓", "x" * 500]),
    }
    mail |= randomness.choice(
        [{"text": "Good morning."}, {"html": "<p>Hi</p>"}, {"text": "a\r\nb", "html": "<b>b</b>"}]
    )
    if randomness.random() < 0.3:
        mail["cc"] = _addresses(randomness, number)
    if randomness.random() < 0.2:
        mail["bcc"] = _addresses(randomness, number)
    if randomness.random() < 0.2:
        mail["reply_to"] = f"Reply <reply@{DOMAIN}>"
    if randomness.random() < 0.3:
        mail["tags"] = randomness.choice(["one", ["one", "two"], [], ["list:news"], [f"t{tag}" for tag in range(20)]])
    if randomness.random() < 0.2:
        mail["headers"] = randomness.choice(
            [{"X-Order": str(number)}, {"List-Unsubscribe": "<mailto:u@shop.example>"}, {}]
        )
    if randomness.random() < 0.2:
        content = base64.b64encode(randomness.randbytes(randomness.randint(0, 4_000))).decode()
        attachment = {"filename": randomness.choice(["a.pdf", "b.bin", "ü.txt", "c.png"]), "content": content}
        if randomness.random() < 0.5:
            attachment |= {"content_type": "image/png", "content_id": "logo"}
        mail["attachments"] = [attachment] * randomness.randint(1, 2)
    return mail


def _spoiled(randomness: random.Random, mail: dict[str, Any]) -> object:
    changes: list[dict[str, Any]] = [
        {"from": "news@elsewhere.example"},
        {"from": "nonsense"},
        {"from": 7},
        {"to": []},
        {"to": None},
        {"to": "nonsense"},
        {"to": [f"r{number}@{DESTINATION}" for number in range(51)]},
        {"cc": {"a": "b"}},
        {"subject": "x" * 501},
        {"subject": "two\nlines"},
        {"subject": None},
        {"text": 1},
        {"text": "x", "template": "welcome"},
        {"template": "nowhere", "text": None, "html": None},
        {"variables": {"a": 1}},
        {"headers": {"Subject": "x"}},
        {"headers": {"X A": "x"}},
        {"headers": {"X-A": "a\nb"}},
        {"tags": ["t"] * 21},
        {"tags": [""]},
        {"tags": "x" * 129},
        {"attachments": [{"filename": "a"}]},
        {"attachments": [{"filename": "../a", "content": "YQ=="}]},
        {"attachments": [{"filename": "a", "content": "no base64"}]},
        {"attachments": [{"filename": "a", "content": "YQ==", "content_type": "multipart/mixed"}]},
        {"reply_to": ["a@b.example"]},
        {"replyto": "a@b.example"},
        {"unknown": True},
    ]
    if randomness.random() < 0.1:
        return randomness.choice([[], "text", None, 7, {}])
    return mail | randomness.choice(changes)


def _spoiled_request(randomness: random.Random, made: Send) -> Send:
    headers = dict(made.headers)
    match randomness.randrange(6):
        case 0:
            del headers["Idempotency-Key"]
        case 1:
            headers["Idempotency-Key"] = "k" * 256
        case 2:
            headers["Content-Type"] = "text/plain"
        case 3:
            headers["Authorization"] = randomness.choice(
                ["Basic !!", "Bearer ph_live_unknown", "Basic YTpi", "Digest x"]
            )
        case 4:
            return Send(headers, made.body[:-2])
        case _:
            return Send(headers, b'{"from": "a", "from": "b"}')
    return Send(headers, made.body)


# The webhook of an account had its own table.
_OLD_WEBHOOK = """
INSERT INTO webhook_endpoints (account_id, url, events, enabled, secret_sealed, created_at, updated_at)
VALUES ($1, $2, $3, true, $4, $5, $5)
"""


class Recorded(NamedTuple):
    """Each answer, in order, as a text; and the webhooks, sorted."""

    answers: list[str]
    webhooks: Counter[str]


def _set_aside(text: bytes) -> str:
    known = _COUNT.sub(b"taken", text.replace(*NEW_FIELDS))
    return _TIME.sub(b"<time>", _ID.sub(rb"<\1>", known)).decode("utf-8", "backslashreplace")


def _shown(answer: Answer) -> str:
    headers = sorted(
        f"{name.lower()}: {'<varies>' if name.lower() in TIMED else value}" for name, value in answer.headers.items()
    )
    return "\n".join([str(answer.status), *headers, "", _set_aside(answer.raw)])


def _webhook(request: Request) -> str:
    names = sorted(name.lower() for name in request.raw_names)
    return "\n".join([*names, request.headers.get("user-agent", ""), _set_aside(request.body)])


@asynccontextmanager
async def _service(
    url: str, directory: Path, program: Path | None
) -> AsyncIterator[tuple[ServiceProcesses, WebhookReceiver, Tenant, Tenant]]:
    authority = directory / "webhooks.pem"
    authority.write_bytes(certificates().authority_pem)
    async with WebhookReceiver(certificates().servers["sound"]) as receiver:
        settings = webhook_accounts.webhook_settings(receiver.port, authority)
        async with prepare_processes(url, directory, stream="memory", program=program, **settings) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.destination(DESTINATION)
            await processes.start_http("dispatch", "delivery", "notification")
            tenant = await processes.service.account(credits=3_000, domain=DOMAIN)
            other = await processes.service.account(domain=None)
            await _add_webhook(processes, tenant, receiver.port, is_old=program is not None)
            yield processes, receiver, tenant, other


async def _add_webhook(processes: ServiceProcesses, tenant: Tenant, port: int, *, is_old: bool) -> None:
    given = service_settings(processes.database_url)
    sealer = Sealer(given.secrets.seal_key_bytes, given.secrets.seal_key_active)
    account_id = AccountId(tenant.id)
    secret = f"{event.SECRET_PREFIX}of-the-tests".encode()
    url = f"https://{NAME}:{port}/events"
    async with processes.service.pool.acquire() as connection, connection.transaction():
        now = datetime.now(UTC)
        if is_old:
            sealed = sealer.seal(secret, b"webhook:" + account_id.bytes)
            await connection.execute(_OLD_WEBHOOK, account_id, url, ALL_EVENTS, sealed, now)
        else:
            sealed = sealer.seal(secret, endpoints.secret_purpose(account_id, account_id))
            await save_webhook(connection, account_id, url, ALL_EVENTS, True, sealed, now)


async def record(url: str, directory: Path, program: Path | None) -> Recorded:
    """What the service answers to all of the requests."""
    randomness = random.Random(SEED)
    async with _service(url, directory, program) as (processes, receiver, tenant, other):
        answers: list[Answer] = []
        for send in requests(randomness):
            headers = {"Authorization": tenant.basic, **send.headers}
            answers.append(await tenant.service.request("POST", "/emails", headers=headers, data=send.body))
        await processes.wait_until_all_final(FINAL_SECONDS_MAX)
        sent = [answer.body["id"] for answer in answers if answer.status == 202]
        for _ in range(READS):
            message_id = randomness.choice([*sent, *sent, "em_01jbz3qk8e0000000000000000", "nonsense"])
            by = other if randomness.random() < 0.1 else tenant
            answers.append(await by.get(message_id))
        finals = "SELECT count(*) FROM events WHERE message_id IS NOT NULL"
        expected = await processes.service.value(finals)
        await eventually(
            lambda: len(receiver.requests), lambda number: number >= expected, within=FINAL_SECONDS_MAX, every=0.2
        )
        return Recorded([_shown(answer) for answer in answers], Counter(map(_webhook, receiver.requests)))


@pytest.fixture(scope="module")
def old_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `posthouse` of that commit, behind a script that gives it the settings by its names."""
    try:
        program = installed(BEFORE)
    except (ReleaseError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"the commit before these features is not here: {reason}")
    renamed = [f'export {old}="${new}"\nunset {new}' for new, old in OLD_SETTINGS.items()]
    script = tmp_path_factory.mktemp("old") / "posthouse"
    script.write_text("\n".join(["#!/bin/sh", *renamed, f'exec {shlex.quote(str(program))} "$@"', ""]))
    script.chmod(0o755)
    return script


async def test_500_old_requests_are_answered_as_before(old_program: Path, tmp_path: Path) -> None:
    with PrivatePostgres.start(settings={"max_connections": "200"}) as cluster:
        recorded = []
        for name, program in (("old", old_program), ("new", None)):
            directory = tmp_path / name
            directory.mkdir()
            cluster.create_database(name)
            url = cluster.url(name)
            migrate = [str(program or Path(sys.executable).parent / "posthouse"), "migrate"]
            await asyncio.to_thread(
                subprocess.run, migrate, env=environment(url), cwd=directory, timeout=MIGRATE_SECONDS_MAX, check=True
            )
            recorded.append(await record(url, directory, program))
        old, new = recorded
        statuses = Counter(answer.partition("\n")[0] for answer in old.answers)
        print(f"{len(old.answers)} requests, answers {dict(statuses)}, {sum(old.webhooks.values())} webhooks")
        different = [pair for pair in zip(old.answers, new.answers, strict=True) if pair[0] != pair[1]]
        assert different[:3] == []
        assert len(old.answers) == SENDS + READS
        assert old.webhooks == new.webhooks
