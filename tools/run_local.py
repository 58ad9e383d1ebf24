"""The service on one's own machine: a configuration and a demo account in .run/, then `posthouse run`.

`make run` starts a private PostgreSQL around this. Everything is made on the first run and kept for the
next; `make clean` forgets it. Arguments are those of `posthouse run`.
"""

import asyncio
import itertools
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from posthouse import bootstrap, config
from posthouse.config import ConfigError, Settings
from posthouse.flows.administration import Administration
from posthouse.rules.credential import Mode, Role
from posthouse.rules.refusal import Refusal

DIRECTORY: Final = Path(".run")
CONFIGURATION: Final = DIRECTORY / "posthouse.toml"
# What the demo account may be used with, to be read by a shell: `. .run/demo.env`.
DEMO: Final = DIRECTORY / "demo.env"
CREDITS: Final = 10_000


def main(arguments: Sequence[str]) -> NoReturn:
    DIRECTORY.mkdir(exist_ok=True)
    if not CONFIGURATION.exists():
        address = os.environ.get("POSTHOUSE_DATABASE_URL", config.EXAMPLE_DATABASE_URL)
        _write_privately(CONFIGURATION, config.commented_toml(config.generated(), address))
    os.environ[config.FILE_VARIABLE] = str(CONFIGURATION.resolve())
    try:
        settings = config.load()
        asyncio.run(bootstrap.migrate(settings))
        asyncio.run(_prepare(settings))
    except (ConfigError, Refusal, bootstrap.UnsafeDatabase) as error:
        sys.exit(f"run_local: {error}")
    os.execv(sys.executable, [sys.executable, "-m", "posthouse", "run", *arguments])


async def _prepare(settings: Settings) -> None:
    """Room for the days ahead, and an account to send with."""
    address = f"http://{settings.http_host}:{settings.http_port}"
    async with bootstrap.operator(settings) as desk:
        await desk.upkeep.round()
        accounts = {account.name for account in await desk.administration.list_accounts()}
        known: Mapping[str, str] = _known()
        if known.get("DEMO_ACCOUNT") not in accounts:
            # Another, when the first is there already and its keys are lost.
            names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
            name = next(name for name in names if name not in accounts)
            known = await _new_account(desk.administration, name)
    known = {**known, "DEMO_URL": address}
    _write_privately(DEMO, "".join(f"{name}={shlex.quote(value)}\n" for name, value in known.items()))
    print(_told(known), flush=True)


async def _new_account(administration: Administration, name: str) -> Mapping[str, str]:
    domain, email, password = f"{name}.example", f"owner@{name}.example", secrets.token_urlsafe(12)
    made = await administration.create_account(name)
    await administration.grant_credits(name, CREDITS, "to try things out")
    await administration.add_domain(name, domain)
    await administration.verify_domain(name, domain, vouched=True)
    await administration.create_user(name, email, password, Role.OWNER)
    live = await administration.create_key(name, name="demo, live", mode=Mode.LIVE, may_read=True)
    test = await administration.create_key(name, name="demo, test", mode=Mode.TEST, may_read=True)
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


def _told(demo: Mapping[str, str]) -> str:
    return f"""
Account {demo["DEMO_ACCOUNT"]!r} may send from {demo["DEMO_FROM"]}; its keys are in {DEMO}. In another terminal:

curl -i {demo["DEMO_URL"]}/emails \\
  -H 'Authorization: Bearer {demo["DEMO_TEST_KEY"]}' \\
  -H 'Content-Type: application/json' \\
  -H "Idempotency-Key: $(date +%s%N)" \\
  -d '{{"from": "{demo["DEMO_FROM"]}", "to": "ada@example.net", "subject": "Hello", "text": "It works."}}'

The API reference is at {demo["DEMO_URL"]}/docs. Ctrl-C stops everything; the data stays in {DIRECTORY}.
"""


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
    main(sys.argv[1:])
