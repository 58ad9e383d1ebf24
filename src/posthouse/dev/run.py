"""Everything that `posthouse dev` starts, from the lock to the panel, and stops in the opposite order."""

import asyncio
import itertools
import os
import secrets
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import uvloop

from posthouse import config
from posthouse.compose.database import migrate
from posthouse.compose.flows import Flows, open_flows
from posthouse.compose.links import captured_mail_url, login_link_url
from posthouse.compose.process import CannotListen
from posthouse.compose.run import run as run_parts
from posthouse.config import Settings
from posthouse.config.environment import OTHER_VARIABLES
from posthouse.config.settings import ENVIRONMENT_PREFIX
from posthouse.dev import ports as free_ports
from posthouse.dev.home import ACCOUNT, DIRECTORY, LOCALHOST, Home
from posthouse.dev.ports import DevError, Ports
from posthouse.dev.postgres import PostgresError, PrivatePostgres, free_port, stop_left_server
from posthouse.entrypoints.http.static_content import NOT_BUILT, is_dashboard_built
from posthouse.rules.credential import OPERATOR, Mode, Role, Scope

# What `posthouse dev` prints once everything runs. Lines have no border at the sides, so that they can be copied.


WIDTH: Final = 100
READY: Final = "Ctrl-C stops everything"


def panel(demo: Mapping[str, str], home: Home, ports: Ports, *, link: str, seconds: float) -> str:
    """`link` opens the dashboard or the page of captured mail, once."""
    # Commands find the default directory automatically.
    posthouse = "posthouse" if home.directory == DIRECTORY else f"POSTHOUSE_CONFIG={home.config} posthouse"
    notes = "".join(f"\n  port {taken} is taken, {chosen} is used instead" for taken, chosen in ports.skipped)
    if not is_dashboard_built():
        notes += f"\n  {NOT_BUILT}"
    return f"""\
{" Posthouse is running ":━^{WIDTH}}
  No mail leaves: all of it, with any key, is captured. Read it here (the link works once, within 10 minutes):

  {link}

  API {demo["DEMO_URL"]} (reference: {demo["DEMO_URL"]}/docs), SMTP {demo["DEMO_SMTP_URL"]} (STARTTLS)
  login {demo["DEMO_LOGIN_EMAIL"]} with {demo["DEMO_LOGIN_PASSWORD"]}
  live key {demo["DEMO_LIVE_KEY"]}
  test key {demo["DEMO_TEST_KEY"]}{notes}
{" Send an email with curl ":─^{WIDTH}}
{_curl(demo)}
{" with Python ":─^{WIDTH}}
{_python(demo)}
{" over SMTP ":─^{WIDTH}}
{_smtp(demo, home)}
{" Read it ":─^{WIDTH}}
{posthouse} message open ID
{"":─^{WIDTH}}
  Started in {seconds:.1f} s. {READY}; the next start continues, `--reset` starts over.
  Data, log and the account's secrets as shell variables (demo.env) are in {home.directory}.
{"":━^{WIDTH}}
"""


def _curl(demo: Mapping[str, str]) -> str:
    body = f'{{"from": "{demo["DEMO_FROM"]}", "to": "ada@example.org", "subject": "Hello", "text": "It works."}}'
    return textwrap.dedent(f"""\
        curl {demo["DEMO_URL"]}/emails \\
          -H 'Authorization: Bearer {demo["DEMO_LIVE_KEY"]}' \\
          -H 'Content-Type: application/json' \\
          -H "Idempotency-Key: $(date +%s%N)" \\
          -d '{body}'""")


def _python(demo: Mapping[str, str]) -> str:
    return textwrap.dedent(f"""\
        import json, urllib.request, uuid
        mail = {{"from": "{demo["DEMO_FROM"]}", "to": "ada@example.org", "subject": "Hello", "text": "It works."}}
        headers = {{
            "Authorization": "Bearer {demo["DEMO_LIVE_KEY"]}",
            "Content-Type": "application/json",
            "Idempotency-Key": str(uuid.uuid4()),
        }}
        request = urllib.request.Request("{demo["DEMO_URL"]}/emails", json.dumps(mail).encode(), headers)
        print(urllib.request.urlopen(request).read().decode())""")


def _smtp(demo: Mapping[str, str], home: Home) -> str:
    return textwrap.dedent(f"""\
        printf 'From: {demo["DEMO_FROM"]}\\r\\nTo: ada@example.org\\r\\nSubject: Hello\\r\\n\\r\\nIt works.\\r\\n' |
        curl --url {demo["DEMO_SMTP_URL"]} --ssl-reqd --cacert {home.certificate} \\
          --user '{demo["DEMO_SMTP_USERNAME"]}:{demo["DEMO_SMTP_PASSWORD"]}' \\
          --mail-from {demo["DEMO_FROM"]} --mail-rcpt ada@example.org --upload-file -""")


# The demo account of `posthouse dev`: an owner, a verified domain, credits, its API keys, an SMTP login.


CREDITS: Final = 1_000_000


async def prepare(settings: Settings, known: Mapping[str, str]) -> dict[str, str]:
    """Create partitions for the coming days, and the account unless it is `known`; returns its secrets by name."""
    async with open_flows(settings) as flows:
        await flows.partitions.make()
        accounts = {account.name for account in await flows.accounts.list_accounts()}
        if known.get("DEMO_ACCOUNT") in accounts:
            return dict(known)
        # Another account, if the first already exists and its secrets are lost.
        names = itertools.chain([ACCOUNT], (f"{ACCOUNT}-{number}" for number in itertools.count(2)))
        return await _new_account(flows, next(name for name in names if name not in accounts))


async def _new_account(flows: Flows, name: str) -> dict[str, str]:
    domain, email, password = f"{name}.example", f"owner@{name}.example", secrets.token_urlsafe(12)
    made = await flows.accounts.create_account(name)
    account_id, scopes = made.account.id, [Scope.SEND, Scope.READ]
    await flows.accounts.grant_credits(name, CREDITS, "to try things out")
    await flows.domains.add(account_id, domain, OPERATOR)
    await flows.domains.verify(account_id, domain, OPERATOR, vouched=True)
    await flows.team.create_user(account_id, email, password, Role.OWNER, OPERATOR)
    live = await flows.credentials.create_key(account_id, OPERATOR, name="demo, live", mode=Mode.LIVE, scopes=scopes)
    test = await flows.credentials.create_key(account_id, OPERATOR, name="demo, test", mode=Mode.TEST, scopes=scopes)
    full = await flows.credentials.create_key(account_id, OPERATOR, name="demo, full", mode=Mode.LIVE, scopes=[*Scope])
    return {
        "DEMO_ACCOUNT": name,
        "DEMO_FROM": f"hello@{domain}",
        "DEMO_TEST_KEY": test.secret,
        "DEMO_LIVE_KEY": live.secret,
        "DEMO_FULL_KEY": full.secret,
        "DEMO_SMTP_USERNAME": made.credential.credential.username,
        "DEMO_SMTP_PASSWORD": made.credential.password,
        "DEMO_LOGIN_EMAIL": email,
        "DEMO_LOGIN_PASSWORD": password,
    }


DATABASE: Final = "posthouse"
PARTS: Final = frozenset({"http", "submission", "inbound", "dispatch", "delivery", "notification", "maintenance"})
CLUSTER_SETTINGS: Final = {"max_connections": "100", "shared_buffers": "64MB", "max_wal_size": "256MB"}
POLL_SECONDS: Final = 0.05
WATCH_SECONDS: Final = 1.0
EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path = DIRECTORY
    host: str = LOCALHOST
    port: int = free_ports.HTTP
    smtp_port: int = free_ports.SUBMISSION
    is_reset: bool = False


def run(options: Options, say: Callable[[str], None]) -> None:
    """Run the service until a signal; a DevError says why it can't run, or why it ended."""
    home = Home(options.directory)
    _ignore_environment(say)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    with home.locked():
        try:
            _run(options, home, say)
        except PostgresError as error:
            raise DevError(str(error)) from None


def _run(options: Options, home: Home, say: Callable[[str], None]) -> None:
    started_at = time.monotonic()
    stop_left_server(home.postgres)
    if options.is_reset:
        home.reset()
    password, port = home.database_password(), free_port()
    ports = free_ports.choose(options.host, options.port, options.smtp_port)
    # Before the cluster, which can't be used without the password in the settings.
    reached_at = LOCALHOST if options.host in EVERYWHERE else options.host
    url = f"http://{reached_at}:{ports.http}"
    home.write_config(f"postgresql://postgres:{password}@{LOCALHOST}:{port}/{DATABASE}", ports, options.host, url)
    home.make_certificate()
    with PrivatePostgres.start(home.postgres, port, CLUSTER_SETTINGS, password=password) as cluster:
        cluster.create_database(DATABASE)
        settings = config.load(home.config)
        asyncio.run(migrate(settings))
        demo = _demo(settings, home, url, f"smtp://{reached_at}:{ports.submission}")
        link = asyncio.run(_link(settings, demo))

        def ready() -> None:
            home.announce(demo["DEMO_URL"])
            say(panel(demo, home, ports, link=link, seconds=time.monotonic() - started_at))

        _serve(settings, home, cluster, ready)


def _ignore_environment(say: Callable[[str], None]) -> None:
    """Settings of another installation must not be read: they could let mail leave."""
    prefixed = [name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX)]
    given = sorted(name for name in prefixed if name.upper() not in OTHER_VARIABLES)
    for name in given:
        del os.environ[name]
    if given:
        say(f"posthouse dev has its own settings and ignores {', '.join(given)}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _demo(settings: Settings, home: Home, url: str, smtp_url: str) -> Mapping[str, str]:
    demo = asyncio.run(prepare(settings, home.read_demo())) | {
        "DEMO_URL": url,
        "DEMO_SMTP_URL": smtp_url,
        "DEMO_SMTP_AUTHORITY": str(home.certificate.resolve()),
    }
    home.write_demo(demo)
    return demo


async def _link(settings: Settings, demo: Mapping[str, str]) -> str:
    """A link to the dashboard, logged in as the demo account's owner; without one, to the pages of captured mail."""
    if is_dashboard_built():
        return await login_link_url(settings, demo["DEMO_LOGIN_EMAIL"])
    return await captured_mail_url(settings, demo["DEMO_ACCOUNT"])


def _serve(settings: Settings, home: Home, cluster: PrivatePostgres, ready: Callable[[], None]) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        address = settings.http.host, settings.http.port
        watch = asyncio.create_task(_watch(settings, cluster, stop, ready))
        await run_parts(settings, PARTS, address, stop)
        await watch

    with _output_to(home.log):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except CannotListen as error:
            raise DevError(str(error)) from None
    if cluster.has_ended:
        raise DevError(f"PostgreSQL ended; its log is {cluster.log}")


async def _watch(settings: Settings, cluster: PrivatePostgres, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Report when all ports answer; stop when PostgreSQL is gone."""
    waited_for = [
        (settings.http.host, settings.http.port),
        (settings.submission.host, settings.submission.port),
        (settings.inbound.host, settings.inbound.port),
    ]
    while not stop.is_set() and not cluster.has_ended:
        if waited_for and all(_answers(host, port) for host, port in waited_for):
            waited_for = []
            ready()
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), POLL_SECONDS if waited_for else WATCH_SECONDS)
    stop.set()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((LOCALHOST if host in EVERYWHERE else host, port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send everything that the service's parts print to the log, because the terminal is for the panel."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in enumerate(kept, 1):
            os.dup2(original, number)
            os.close(original)
