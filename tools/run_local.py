"""The service on your own machine: a configuration, a certificate, a NATS server and a demo account in .run/.

`make run` starts a private PostgreSQL and then this, which starts `posthouse run`. The first run makes everything,
later runs reuse it; `make clean` deletes it. Arguments are those of `posthouse run`. With POSTHOUSE_STREAM__SERVERS
set (to `memory`, or to a server's address) no NATS server is started.
"""

import asyncio
import itertools
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trustme

from posthouse import config
from posthouse.compose.errors import UnsafeDatabase
from posthouse.compose.operator import OperatorServices, migrate, operator_services
from posthouse.config import ConfigError, Settings
from posthouse.config import text as config_text
from posthouse.rules.actor import OPERATOR
from posthouse.rules.credential import Mode, Role, Scope
from posthouse.rules.refusal import Refusal
from tools.private_nats import NatsError, PrivateNats

DIRECTORY: Final = Path(".run")
CONFIGURATION: Final = DIRECTORY / "posthouse.toml"
# The demo account's keys, to be read by a shell: `. .run/demo.env`.
DEMO: Final = DIRECTORY / "demo.env"
CREDITS: Final = 10_000
NATS: Final = DIRECTORY / "nats"
STREAM_VARIABLE: Final = "POSTHOUSE_STREAM__SERVERS"
# So that mail can carry unsubscribe links, although the demo's mail is never sent.
PUBLIC_URL: Final = "https://mail.demo.example"
AUTHORITY: Final = DIRECTORY / "authority.pem"
CERTIFICATE: Final = DIRECTORY / "certificate.pem"
CERTIFICATE_KEY: Final = DIRECTORY / "certificate.key"
# Submission over SMTP, on ports that an ordinary user may open.
SUBMISSION: Final = {
    "POSTHOUSE_SMTP__TLS_CERTIFICATE_FILE": str(CERTIFICATE),
    "POSTHOUSE_SMTP__TLS_KEY_FILE": str(CERTIFICATE_KEY),
    "POSTHOUSE_SUBMISSION__PORT": "2587",
    "POSTHOUSE_SUBMISSION__TLS_PORT": "2465",
}


def main(arguments: Sequence[str]) -> int:
    DIRECTORY.mkdir(exist_ok=True)
    if not CONFIGURATION.exists():
        address = os.environ.get("POSTHOUSE_DATABASE__URL", config_text.EXAMPLE_DATABASE_URL)
        _write_privately(CONFIGURATION, config_text.commented_toml(config_text.generated(), address))
    os.environ[config.FILE_VARIABLE] = str(CONFIGURATION.resolve())
    os.environ.setdefault("POSTHOUSE_HTTP__PUBLIC_URL", PUBLIC_URL)
    if "POSTHOUSE_SMTP__TLS_CERTIFICATE_FILE" not in os.environ:
        _make_certificate()
        for name, value in SUBMISSION.items():
            os.environ.setdefault(name, value)
    try:
        settings = config.load()
        asyncio.run(migrate(settings))
        asyncio.run(_prepare(settings))
        if STREAM_VARIABLE in os.environ:
            return _run(arguments)
        with PrivateNats(NATS) as nats:
            os.environ[STREAM_VARIABLE] = nats.url
            return _run(arguments)
    except (ConfigError, Refusal, UnsafeDatabase, NatsError) as error:
        sys.exit(f"run_local: {error}")


def _run(arguments: Sequence[str]) -> int:
    """Run the service; signals are passed on, and the stream is stopped after it."""
    # In a session of its own, so that Ctrl-C reaches it once, from here.
    process = subprocess.Popen([sys.executable, "-m", "posthouse", "run", *arguments], start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


async def _prepare(settings: Settings) -> None:
    """Make partitions for the coming days, and an account to send with."""
    address = f"http://{settings.http.host}:{settings.http.port}"
    async with operator_services(settings) as services:
        await services.upkeep.run()
        accounts = {account.name for account in await services.accounts.list_accounts()}
        known: Mapping[str, str] = _known()
        if known.get("DEMO_ACCOUNT") not in accounts:
            # A further account, when the first exists already and its keys are lost.
            names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
            name = next(name for name in names if name not in accounts)
            known = await _new_account(services, name)
    known = {
        **known,
        "DEMO_URL": address,
        "DEMO_SMTP_URL": f"smtp://{settings.submission.host}:{settings.submission.port}",
        "DEMO_SMTP_AUTHORITY": str(AUTHORITY),
    }
    _write_privately(DEMO, "".join(f"{name}={shlex.quote(value)}\n" for name, value in known.items()))
    print(_instructions(known), flush=True)


async def _new_account(services: OperatorServices, name: str) -> Mapping[str, str]:
    domain, email, password = f"{name}.example", f"owner@{name}.example", secrets.token_urlsafe(12)
    made = await services.accounts.create_account(name)
    account_id, scopes = made.account.id, [Scope.SEND, Scope.READ]
    await services.accounts.grant_credits(name, CREDITS, "to try things out")
    await services.domains.add(account_id, domain, OPERATOR)
    await services.domains.verify(account_id, domain, OPERATOR, vouched=True)
    await services.team.create_user(account_id, email, password, Role.OWNER, OPERATOR)
    live = await services.credentials.create_key(account_id, OPERATOR, name="demo, live", mode=Mode.LIVE, scopes=scopes)
    test = await services.credentials.create_key(account_id, OPERATOR, name="demo, test", mode=Mode.TEST, scopes=scopes)
    return {
        "DEMO_ACCOUNT": name,
        "DEMO_FROM": f"hello@{domain}",
        "DEMO_TEST_KEY": test.secret,
        "DEMO_LIVE_KEY": live.secret,
        "DEMO_SMTP_USERNAME": made.credential.credential.username,
        "DEMO_SMTP_PASSWORD": made.credential.password,
        "DEMO_LOGIN_EMAIL": email,
        "DEMO_LOGIN_PASSWORD": password,
    }


def _instructions(demo: Mapping[str, str]) -> str:
    return f"""
Account {demo["DEMO_ACCOUNT"]!r} may send from {demo["DEMO_FROM"]}; its keys are in {DEMO}. In another terminal:

curl -i {demo["DEMO_URL"]}/emails \\
  -H 'Authorization: Bearer {demo["DEMO_TEST_KEY"]}' \\
  -H 'Content-Type: application/json' \\
  -H "Idempotency-Key: $(date +%s%N)" \\
  -d '{{"from": "{demo["DEMO_FROM"]}", "to": "delivered@simulator.invalid", "subject": "Hello", "text": "It works."}}'

Mail of this key is never sent: the simulator accepts it, and ends it as its address says (delivered@, bounced@,
failed@, deferred@simulator.invalid). Its state: GET {demo["DEMO_URL"]}/emails/<id>, or
`POSTHOUSE_CONFIG={CONFIGURATION} .venv/bin/posthouse message show <id>`.

Over SMTP: {demo["DEMO_SMTP_URL"]} with STARTTLS, username {demo["DEMO_SMTP_USERNAME"]}, the password in {DEMO}, the
authority to trust in {AUTHORITY}.

The API reference is at {demo["DEMO_URL"]}/docs. Ctrl-C stops everything; the data stays in {DIRECTORY}.
"""


def _make_certificate() -> None:
    """Issued by a new authority, which clients on this machine can trust."""
    if CERTIFICATE.exists():
        return
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    AUTHORITY.write_bytes(authority.cert_pem.bytes())
    _write_privately(CERTIFICATE_KEY, issued.private_key_pem.bytes().decode())
    CERTIFICATE.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


def _known() -> dict[str, str]:
    if not DEMO.exists():
        return {}
    pairs = (line.partition("=") for line in shlex.split(DEMO.read_text()))
    return {name: value for name, _, value in pairs}


def _write_privately(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
