"""Secrets stay where they belong: everything that a service answers, logs or stores is searched for each of them.

Every kind of secret that there is is used, rightly and wrongly, while the service's processes log all they can and
PostgreSQL goes away under them, or isn't what they think. Then each is looked for, in plain and in the ways in which it
could have been written, in the logs, in the answers, in the spans of traces, and in every column of every table.
"""

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

import asyncpg
import pytest

from posthouse.rules import totp
from posthouse.rules.ids import AccountId, DomainId
from posthouse.store.domains import dkim_purpose, ed25519_purpose
from posthouse.store.seal import Sealer
from tests.support import live_stream, webhook_accounts
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.otlp_collector import OtlpCollector
from tests.support.service import JWT_SECRET, PASSWORD, PEPPER, SEAL_KEY, Tenant, basic, service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, plain, raw_mail, submit
from tests.support.tcp_proxy import DatabaseProxy
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import WebhookReceiver
from tools.private_postgres import free_port

pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).resolve().parents[2]
DATABASE_PASSWORD: Final = "the-databases-own-9QwXz"
# Secrets that a person or a program sends where they aren't asked for, or wrongly.
WRONG: Final = "wr0ng-Pl4ce+of/a=secret Kq7"
STRAY_KEY: Final = "ph_live_strayKeyThatNobodyEverMade77"
LOST_TABLES: Final = ("users", "credentials", "api_keys", "sessions", "invitations", "endpoints", "messages")
SPANS: Final = frozenset({"POST /emails", "submission", "commit", "deliver", "smtp", "record", "webhook", "call"})


@dataclass
class Recorder:
    """Calls the service, and keeps the answer, unless its purpose is to show a secret."""

    processes: ServiceProcesses
    secrets: dict[str, bytes] = field(default_factory=dict)
    answers: list[tuple[str, bytes]] = field(default_factory=list)

    def plant(self, name: str, secret: str | bytes) -> None:
        self.secrets[name] = secret.encode() if isinstance(secret, str) else secret

    async def ask(
        self, method: str, path: str, body: object = None, authorization: str | None = None, *, shows: bool = False
    ) -> Answer:
        headers = {"Idempotency-Key": f"key-{len(self.answers)}"}
        if authorization is not None:
            headers["Authorization"] = authorization
        service = self.processes.service
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        async with service.client.request(
            method, service.url + path, headers=headers, data=data, skip_auto_headers=["Content-Type"]
        ) as response:
            answer = Answer(response.status, response.headers.copy(), await response.read())
        if not shows:
            written = json.dumps(dict(answer.headers)).encode()
            self.answers.append((f"{method} {path}: {answer.status}", written + answer.raw))
        return answer

    async def shown_once(self, method: str, path: str, body: object, authorization: str, *names: str) -> dict[str, Any]:
        """Plants what an answer shows once under these names of its fields."""
        answer = await self.ask(method, path, body, authorization, shows=True)
        assert answer.status < 300, answer.raw
        for name in names:
            self.plant(f"{method} {path}: {name}", answer.body[name])
        return answer.body


def forms(secret: bytes) -> Iterator[bytes]:
    """As it might have been written: plain, escaped, hexadecimal, and in the middle of something in Base64."""
    yield secret
    yield secret.hex().encode()
    for text in (secret.decode("latin-1"),):
        yield quote(text, safe="").encode()
        yield quote_plus(text).encode()
        yield json.dumps(text)[1:-1].encode()
        yield repr(text)[1:-1].encode()
    yield repr(secret)[2:-1].encode()
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + secret)
        # Without the characters that depend on what stands before and after.
        whole = encoded[4 if shift else 0 : len(encoded) // 4 * 4 - 4]
        yield whole
        yield whole.replace(b"+", b"-").replace(b"/", b"_")


def found(secrets: dict[str, bytes], places: list[tuple[str, bytes]]) -> list[str]:
    """Which secret is where, in upper or lower case."""
    looked_for = {form.lower(): name for name, secret in secrets.items() for form in forms(secret)}
    assert all(len(form) >= 8 for form in looked_for), "so short a secret is found anywhere"
    lowered = [(place, text.lower()) for place, text in places]
    return sorted(
        {f"{name} in {place}" for form, name in looked_for.items() for place, text in lowered if form in text}
    )


async def tables(url: str) -> list[tuple[str, bytes]]:
    """Every row of every table as text; what is bytes is hexadecimal there."""
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        )
        rows = []
        for (name,) in names:
            said = await connection.fetch(f'SELECT t::text AS said FROM ONLY "{name}" t')
            # In a row's text quotes and backslashes are doubled.
            rows += [
                (f"table {name}", row["said"].encode().replace(b"\\\\", b"\\").replace(b'""', b'"')) for row in said
            ]
        return rows
    finally:
        await connection.close()


def logs(directory: Path) -> list[tuple[str, bytes]]:
    return [(f"log {path.name}", path.read_bytes()) for path in directory.glob("*.log")]


def scraped(processes: ServiceProcesses) -> list[tuple[str, bytes]]:
    """The metrics of each process."""
    first = int(processes.settings["MONITORING__PORT"])
    found = []
    for port in range(first, first + len(processes.parts)):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_SECONDS) as answer:
            found.append((f"metrics {port}", answer.read()))
    return found


@asynccontextmanager
async def running(
    proxy: DatabaseProxy, directory: Path, collector: OtlpCollector
) -> AsyncIterator[tuple[ServiceProcesses, SmtpListeners, WebhookReceiver]]:
    listeners = SmtpListeners.make(directory)
    authority = directory / "webhooks.pem"
    authority.write_bytes(certificates().authority_pem)
    url = proxy.url.replace("postgres@", f"postgres:{DATABASE_PASSWORD}@")
    async with WebhookReceiver(certificates().servers["sound"]) as webhook_receiver:
        chosen = {
            **webhook_accounts.webhook_settings(webhook_receiver.port, authority),
            **listeners.settings,
            "SERVICE__LOG_LEVEL": "debug",
            "MONITORING__PORT": str(free_port()),
            "TRACING__SHARE": "1",
            "TRACING__ENDPOINT": collector.endpoint,
        }
        async with prepare_processes(url, directory, **chosen) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.destination("there.example.net")
            for word in ("dispatch", "delivery", "notification"):
                processes.start(word)
            submission = processes.start("submission")
            await processes.start_http()
            await listeners.open(submission)
            yield processes, listeners, webhook_receiver


async def secrets_of_all_kinds(recorder: Recorder, tenant: Tenant, webhook_receiver: WebhookReceiver) -> str:
    """Makes and correctly uses a secret of each kind; returns the token of the account's owner."""
    recorder.plant("pepper", PEPPER)
    recorder.plant("token secret", JWT_SECRET)
    recorder.plant("seal key", base64.b64decode(SEAL_KEY))
    recorder.plant("seal key as given", SEAL_KEY.rstrip("="))
    recorder.plant("database password", DATABASE_PASSWORD)
    recorder.plant("dashboard password", PASSWORD)
    recorder.plant("SMTP password", tenant.password)
    recorder.plant("what is in the wrong place", WRONG)
    recorder.plant("key that does not exist", STRAY_KEY)

    email = await tenant.user()
    body = await recorder.shown_once("POST", "/v1/auth/login", {"email": email, "password": PASSWORD}, "", "token")
    owner = f"Bearer {body['token']}"
    begun = await recorder.shown_once("POST", "/v1/auth/totp", {"password": PASSWORD}, owner, "secret")
    key = base64.b32decode(begun["secret"])
    recorder.plant("second factor's key", key)
    code = totp.code_of(key, int(time.time()) // totp.STEP_SECONDS)
    confirmed = await recorder.ask("POST", "/v1/auth/totp/confirm", {"code": code}, owner, shows=True)
    assert confirmed.status == 200, confirmed.raw
    codes = confirmed.body["recovery_codes"]
    for number, recovery_code in enumerate(codes):
        recorder.plant(f"recovery code {number}", recovery_code)
    for used in (codes[0], codes[0], "0" * 16):
        given = {"email": email, "password": PASSWORD, "code": used}
        again = await recorder.ask("POST", "/v1/auth/login", given, shows=used == codes[0])
        if again.status == 200:
            recorder.plant("second token", again.body["token"])

    made = await recorder.shown_once("POST", "/v1/credentials", {"name": "another"}, owner, "password")
    await recorder.shown_once("POST", f"/v1/credentials/{made['credential']['id']}/rotate", {}, owner, "password")
    made = await recorder.shown_once("POST", "/v1/keys", {"mode": "live", "name": "a"}, owner, "secret")
    await recorder.ask("POST", "/emails", tenant.mail(to="a@there.example.net"), f"Bearer {made['secret']}")
    await recorder.shown_once("POST", f"/v1/keys/{made['key']['id']}/rotate", {}, owner, "secret")
    invitation = {"email": "new@there.example.net", "role": "member"}
    # By an operator, because the token of an invitation by mail is in the mail.
    token = await tenant.service.operator.invite(tenant.id, invitation["email"], invitation["role"])
    recorder.plant("invitation's token", token)
    await recorder.ask("POST", "/v1/invitations/accept", {"token": token, "password": "short"})
    await recorder.ask("POST", "/v1/invitations/accept", {"token": token, "password": f"{WRONG} and more"})
    hook = {"url": f"https://{NAME}:{webhook_receiver.port}/events", "events": ["email.delivered"]}
    await recorder.shown_once("PUT", "/v1/webhook", hook, owner, "secret")
    await recorder.shown_once("POST", "/v1/webhook/rotate-secret", None, owner, "secret")
    await recorder.ask("POST", "/v1/webhook/ping", None, owner)
    await plant_signing_keys(recorder, tenant)
    return owner


async def plant_signing_keys(recorder: Recorder, tenant: Tenant) -> None:
    given = service_settings(recorder.processes.database_url)
    sealer = Sealer(given.secrets.seal_key_bytes, given.secrets.seal_key_active)
    account = AccountId(tenant.id)
    for row in await recorder.processes.service.sql("SELECT * FROM domains WHERE account_id = $1", tenant.id):
        domain = DomainId(row["id"])
        sealed = {"dkim_sealed": dkim_purpose(account, domain), "ed25519_sealed": ed25519_purpose(account, domain)}
        for column, purpose in sealed.items():
            if row.get(column):
                # An RSA key's beginning and middle; its public part is no secret.
                key = sealer.open(row[column], purpose)
                recorder.plant(column, key if len(key) < 200 else key[len(key) // 2 : len(key) // 2 + 48])


def operations() -> list[tuple[str, str]]:
    described = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    return [
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
        if method in ("get", "post", "put", "patch", "delete")
    ]


async def wrongly_used(recorder: Recorder, tenant: Tenant, owner: str) -> None:
    """Every operation: without the right to, with the right and nonsense, and with a secret in every field."""
    names = ("email", "password", "code", "token", "from", "to", "role", "name", "url", "alias", "mode")
    spread = dict.fromkeys(names, WRONG)
    for method, path in operations():
        if path.endswith(("/logout", "/password", "/switch")):
            continue
        filled = path.replace("{", "").replace("}", "")
        body = None if method == "GET" else spread
        for authorization in (None, f"Bearer {STRAY_KEY}", basic(tenant.username, WRONG), basic(WRONG, WRONG)):
            await recorder.ask(method, filled, body, authorization)
        if path == live_stream.PATH:
            continue  # its answer has no end
        await recorder.ask(method, filled, body, owner)
        await recorder.ask(method, f"{filled}?token={quote(WRONG)}&limit={quote(WRONG)}", body, owner)
    for authorization in (
        WRONG,
        f"Basic {WRONG}",
        f"Bearer {WRONG}",
        f"Digest {WRONG}",
        owner[:-2],
        f"{owner} {WRONG}",
    ):
        await recorder.ask("GET", "/v1/account", None, authorization)
        await recorder.ask("POST", "/emails", tenant.mail(), authorization)
    for given in ({"email": WRONG, "password": PASSWORD}, {"email": PASSWORD, "password": WRONG}, {"password": WRONG}):
        await recorder.ask("POST", "/v1/auth/login", given)


async def submitted(recorder: Recorder, listeners: SmtpListeners, tenant: Tenant) -> None:
    """Over SMTP: a right login, wrong ones, and secrets where there should be none."""
    async with listeners.session(tenant) as line:
        reply = await submit(line, raw_mail(tenant, "a"), ["b@there.example.net"], sender=f"news@{tenant.domain}")
        recorder.answers.append(("smtp", reply.encode()))
    wrong = base64.b64encode(WRONG.encode()).decode()
    for login in (
        [plain(tenant.username, WRONG)],
        [plain(WRONG, tenant.password)],
        [f"AUTH PLAIN {WRONG}"],
        [f"AUTH {WRONG}"],
        ["AUTH LOGIN", base64.b64encode(tenant.username.encode()).decode(), wrong],
        ["AUTH LOGIN", wrong, wrong],
        [f"{WRONG} {WRONG}"],
        [f"MAIL FROM:<{WRONG}>"],
        [f"EHLO {WRONG}"],
    ):
        async with listeners.line() as line:
            replies = [await line.say("EHLO client.example")]
            replies += [await line.say(command) for command in login]
            recorder.answers.append(("smtp", repr(replies).encode()))


async def wait_for_mail(processes: ServiceProcesses) -> None:
    async def waiting() -> int:
        number: int = await processes.service.value("SELECT count(*) FROM delivery_schedule")
        return number

    await eventually(waiting, lambda number: number == 0)


async def in_trouble(
    recorder: Recorder, proxy: DatabaseProxy, listeners: SmtpListeners, tenant: Tenant, owner: str, url: str
) -> None:
    """The same while PostgreSQL is away, and while essential tables are missing."""

    async def everything() -> None:
        email = "ada@there.example.net"
        await recorder.ask("POST", "/v1/auth/login", {"email": email, "password": WRONG})
        await recorder.ask("POST", "/v1/invitations/accept", {"token": WRONG, "password": PASSWORD})
        for authorization in (owner, basic(tenant.username, WRONG), tenant.basic, f"Bearer {STRAY_KEY}"):
            await recorder.ask("POST", "/emails", tenant.mail(), authorization)
            await recorder.ask("GET", "/v1/webhook", None, authorization)
            await recorder.ask("POST", "/v1/credentials", {"name": "b"}, authorization)
        async with listeners.line() as line:
            said = await line.say("EHLO client.example", plain("nobody", WRONG), replies=2)
            recorder.answers.append(("smtp", repr(said).encode()))

    connection = await asyncpg.connect(url)
    try:
        for name in LOST_TABLES:
            await connection.execute(f"ALTER TABLE {name} RENAME TO {name}_away")
        await everything()
        for name in LOST_TABLES:
            await connection.execute(f"ALTER TABLE {name}_away RENAME TO {name}")
    finally:
        await connection.close()
    await proxy.cut()
    await everything()
    await proxy.restore()


async def test_no_secret_is_in_a_log_an_answer_or_a_table(database_url: str, tmp_path: Path) -> None:
    async with (
        DatabaseProxy(database_url) as proxy,
        OtlpCollector() as collector,
        running(proxy, tmp_path, collector) as (processes, listeners, webhook_receiver),
    ):
        tenant = await processes.service.account()
        recorder = Recorder(processes)
        owner = await secrets_of_all_kinds(recorder, tenant, webhook_receiver)
        await submitted(recorder, listeners, tenant)
        await wait_for_mail(processes)
        await wrongly_used(recorder, tenant, owner)
        await in_trouble(recorder, proxy, listeners, tenant, owner, database_url)
        await asyncio.sleep(1)  # for code that logs what it could not do
        await eventually(lambda: {span.name for span in collector.spans}, SPANS.issubset)
        spans = [("spans", body) for body in collector.bodies]
        said = [*logs(tmp_path), *await asyncio.to_thread(scraped, processes), *spans]
        kept = await tables(database_url)

    assert len(recorder.secrets) > 25
    assert any(b'"event":"request"' in text for _, text in said), "no access line was written"
    assert any(b"posthouse_smtp_logins_total" in text for _, text in said), "no metrics were read"
    assert any(answer.endswith(" 500") or " 500" in answer for answer, _ in recorder.answers), "no fault was met"
    assert b"Traceback" in b"".join(text for _, text in said) or b"exception" in b"".join(text for _, text in said)
    assert not found(recorder.secrets, [*said, *kept, *recorder.answers])

    # The search itself: a planted secret is found in each form, in every place.
    for form in forms(recorder.secrets["SMTP password"]):
        assert found(recorder.secrets, [*said, ("log planted.log", b'{"event":"' + form + b'"}')])
    planted = await _with_planted(database_url, tenant, recorder.secrets["pepper"])
    assert [place for place in found(recorder.secrets, planted) if place == "pepper in table audit_log"]


async def _with_planted(url: str, tenant: Tenant, secret: bytes) -> list[tuple[str, bytes]]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "UPDATE audit_log SET detail = jsonb_build_object('note', $2::text) WHERE account_id = $1",
            tenant.id,
            secret.decode(),
        )
    finally:
        await connection.close()
    return await tables(url)
