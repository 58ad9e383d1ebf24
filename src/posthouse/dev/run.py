"""Everything that `posthouse dev` starts, from the lock to the panel, and its end in the opposite order."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import uvloop

from posthouse import config
from posthouse.compose.captured_mail import captured_mail_url
from posthouse.compose.errors import CannotListen
from posthouse.compose.login_link import login_link_url
from posthouse.compose.operator import migrate
from posthouse.compose.run import run as run_parts
from posthouse.config import Settings
from posthouse.config.environment import OTHER_VARIABLES
from posthouse.config.settings import ENVIRONMENT_PREFIX
from posthouse.dev import demo as demo_account
from posthouse.dev import ports as free_ports
from posthouse.dev.errors import DevError
from posthouse.dev.home import DIRECTORY, LOCALHOST, Home
from posthouse.dev.panel import panel
from posthouse.dev.postgres import PostgresError, PrivatePostgres, free_port, stop_left_server
from posthouse.entrypoints.http.dashboard_build import is_built

DATABASE: Final = "posthouse"
PARTS: Final = frozenset({"http", "submission", "inbound", "dispatch", "delivery", "notification", "upkeep"})
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
    # Before the cluster, which can't be used without the password in it.
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
        say(f"posthouse dev has settings of its own; ignored are {', '.join(given)}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _demo(settings: Settings, home: Home, url: str, smtp_url: str) -> Mapping[str, str]:
    demo = asyncio.run(demo_account.prepare(settings, home.read_demo())) | {
        "DEMO_URL": url,
        "DEMO_SMTP_URL": smtp_url,
        "DEMO_SMTP_AUTHORITY": str(home.certificate.resolve()),
    }
    home.write_demo(demo)
    return demo


async def _link(settings: Settings, demo: Mapping[str, str]) -> str:
    """To the dashboard, logged in as the demo account's owner; without a dashboard, to the page of captured mail."""
    if is_built():
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
    """Say when all ports answer; stop when PostgreSQL is gone."""
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
    """Everything that the service's parts print goes to the log: the terminal is for the panel."""
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
