"""Commands that run the service and maintain it."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform, settings, text_of
from posthouse.cli.output import AsJson
from posthouse.rules import limits

if TYPE_CHECKING:
    from posthouse.config import Settings

# A child that has not ended by then is killed, so that all of them end before a supervisor kills this process.
CHILDREN_SECONDS_MAX: Final = limits.STOP_SECONDS_MAX - 5.0
_POLL_SECONDS: Final = 0.2


class ServicePart(StrEnum):
    HTTP = "http"
    SUBMISSION = "submission"
    INBOUND = "inbound"
    DISPATCH = "dispatch"
    DELIVERY = "delivery"
    NOTIFICATION = "notification"
    MAINTENANCE = "maintenance"


_NEEDED: Final = {
    ServicePart.SUBMISSION: "smtp.tls_certificate_file and smtp.tls_key_file",
    ServicePart.INBOUND: "inbound.return_path_domain",
}


def migrate(as_json: AsJson = False) -> None:
    """Bring the database's tables up to date, with partitions for the days ahead."""
    from posthouse.compose import database
    from posthouse.compose.database import UnsafeDatabase
    from posthouse.rules.refusal import Refusal

    try:
        asyncio.run(database.migrate(settings()))
    except Refusal as refusal:
        fail(text_of(refusal))
    except UnsafeDatabase as error:
        fail(str(error))
    made = perform(lambda flows: flows.partitions.make())
    done = f"The tables are up to date; {made} partitions were made for the days ahead."
    output.write_done(done, {"partitions_made": made}, as_json=as_json)


def maintenance(
    force: Annotated[
        bool,
        typer.Option("--force", help="Drop all days past their retention at once, not only the two oldest."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run maintenance now: make coming days' partitions, drop old ones, check domains again, count usage, alert."""
    done = perform(lambda flows: flows.maintenance.run())
    if force:
        dropped = perform(lambda flows: flows.partitions.drop(days_max=None))
        done = replace(done, partitions_dropped=done.partitions_dropped + dropped)
    counted = perform(lambda flows: flows.usage_counter.run())
    delays = perform(lambda flows: flows.provider_delays.run())
    alerts = perform(lambda flows: flows.alert_check.run())
    values = {
        "partitions_made": done.partitions_made,
        "partitions_dropped": done.partitions_dropped,
        "keys_forgotten": done.keys_forgotten,
        "domains_checked": done.domains_checked,
        "domains_lost": done.domains_lost,
        "secrets_resealed": done.secrets_resealed,
        "webhooks_ended": done.webhooks_ended,
        "addresses_checked": done.addresses_checked,
        "accounts_raised": done.accounts_raised,
        "contents_forgotten": done.contents_forgotten,
        "usage_steps": counted.steps,
        "provider_delays_begun": delays.begun,
        "alerts_mailed": alerts.mailed,
    }
    if as_json:
        return output.write_json(values)
    return output.write_values(values)


def run(
    parts: Annotated[
        list[ServicePart] | None,
        typer.Argument(help="Which parts of the service; when none is named, all that are set up."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="How many processes serve HTTP.")] = 1,
    host: Annotated[str | None, typer.Option(help="Listen here instead of the settings' http.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Listen here instead of the settings' http.port; 0: any.")
    ] = None,
) -> None:
    """Run the service until a signal stops it (Ctrl-C, SIGTERM).

    http answers requests, submission accepts mail over SMTP (once smtp.tls_certificate_file is set), inbound receives
    bounces and complaints (once inbound.return_path_domain is set), dispatch releases mail that is due, delivery sends
    it, notification sends webhooks, maintenance maintains the data.
    """
    from posthouse.compose import tracing

    given = settings()
    chosen = list(dict.fromkeys(parts or _set_up(given)))
    if ServicePart.SUBMISSION in chosen and not given.smtp.tls_certificate_file:
        fail("submission needs a certificate: set smtp.tls_certificate_file and smtp.tls_key_file")
    if missing := tracing.lack(given):
        fail(missing)
    in_memory = not given.stream.addresses
    if in_memory and ((ServicePart.DISPATCH in chosen) != (ServicePart.DELIVERY in chosen) or _lacks_dispatch(chosen)):
        fail(
            "with the stream in memory, dispatch, delivery and notification work in one process only: name them "
            "together, as in `posthouse run dispatch delivery notification`, or set `stream.servers` to the address of "
            "a NATS server"
        )
    _raise_file_limit(given, chosen)
    _refuse_unusable_database(given)
    groups = _grouped(chosen, processes, in_memory)
    address = host or given.http.host, given.http.port if port is None else port
    _announce(given, groups, address, named=bool(parts))
    match groups:
        case [[ServicePart.HTTP]]:
            from posthouse.compose.http import serve_http

            serve_http(given, address, processes)
        case [group]:
            _work(given, group, address)
        case _:
            _supervise([_command(group, processes, host, port) for group in groups])


def _announce(
    given: "Settings", groups: Sequence[Sequence[ServicePart]], address: tuple[str, int], *, named: bool
) -> None:
    """Say which parts start, where they listen, and which don't start for want of a setting."""
    if len(groups) == 1:
        for part in groups[0]:
            sys.stderr.write(f"posthouse: {part} starts{_place(given, part, address)}\n")
    if not named:
        for part, setting in _NEEDED.items():
            if not any(part in group for group in groups):
                sys.stderr.write(f"posthouse: {part} does not start: set {setting} for it\n")


def _place(given: "Settings", part: ServicePart, address: tuple[str, int]) -> str:
    match part:
        case ServicePart.HTTP:
            return f" on http://{address[0]}:{address[1]}"
        case ServicePart.SUBMISSION:
            ports = {"STARTTLS": given.submission.port, "TLS": given.submission.tls_port}
            return f" on {given.submission.host}, port " + " and ".join(
                f"{port} ({kind})" for kind, port in ports.items() if port
            )
        case ServicePart.INBOUND:
            return f" on {given.inbound.host}, port {given.inbound.port}"
        case _:
            return ""


def _set_up(given: "Settings") -> list[ServicePart]:
    missing = set()
    if not given.smtp.tls_certificate_file:
        missing.add(ServicePart.SUBMISSION)
    if not given.inbound.return_path_domain:
        missing.add(ServicePart.INBOUND)
    return [part for part in ServicePart if part not in missing]


def _lacks_dispatch(parts: list[ServicePart]) -> bool:
    """Webhooks would wait for ever."""
    return ServicePart.NOTIFICATION in parts and ServicePart.DISPATCH not in parts


def _grouped(parts: list[ServicePart], processes: int, in_memory: bool) -> list[list[ServicePart]]:
    """Which parts share a process: those that share a stream in memory, and then all, but for HTTP in several."""
    if not in_memory:
        return [[part] for part in parts]
    apart = [ServicePart.HTTP] if processes > 1 else []
    groups = [[part for part in parts if part in apart], [part for part in parts if part not in apart]]
    return [group for group in groups if group]


def _raise_file_limit(given: "Settings", parts: Sequence[ServicePart]) -> None:
    """Every connection is an open file. Without free files, clients hang instead of being asked to try later."""
    from posthouse.compose.outside_checks import OTHER_FILES, files_needed

    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems call it unlimited, and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    needs = files_needed(given)
    settings_of = {
        ServicePart.SUBMISSION: "smtp.connections_max",
        ServicePart.INBOUND: "smtp.connections_max",
        ServicePart.DELIVERY: "delivery.sessions_max",
    }
    for part in parts:
        name = settings_of.get(part, "")
        needed = needs.get(name, 0)
        if allowed != resource.RLIM_INFINITY and allowed < needed:
            fail(
                f"{part} may have {needed - OTHER_FILES} connections ({name}), and this process may have only "
                f"{allowed} files open: allow it {needed} (LimitNOFILE= in systemd, `ulimit -Hn`), or lower {name}"
            )


def _refuse_unusable_database(given: "Settings") -> None:
    """Refuse a database without tables, or with unsafe settings, before anything starts.

    A database that is down is no reason not to start: clients are asked to try again until it is back. Nor is a
    NATS server that is down: mail is accepted and waits.
    """
    from posthouse.compose.database import UnsafeDatabase
    from posthouse.compose.flows import open_flows
    from posthouse.rules.refusal import Refusal

    async def check() -> None:
        async with open_flows(given):
            pass

    try:
        asyncio.run(check())
    except UnsafeDatabase as error:
        fail(str(error))
    except Refusal as refusal:
        if refusal.__cause__ is None:
            fail(refusal.text)


def _work(given: "Settings", parts: Sequence[ServicePart], address: tuple[str, int]) -> None:
    """Run the parts in this process until a signal; exits with status 0 when they ended in order."""
    import uvloop

    from posthouse.compose.process import CannotListen
    from posthouse.compose.run import run as run_parts

    async def until_signalled() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run_parts(given, frozenset(parts), address if ServicePart.HTTP in parts else None, stop)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_signalled())
    except CannotListen as error:
        fail(str(error))


def _command(parts: Sequence[ServicePart], processes: int, host: str | None, port: int | None) -> list[str]:
    command = [sys.executable, "-m", "posthouse", "run", *parts]
    if ServicePart.HTTP in parts:
        command += ["--processes", str(processes)]
        command += ["--host", host] if host is not None else []
        command += ["--port", str(port)] if port is not None else []
    return command


def _supervise(commands: Sequence[Sequence[str]]) -> None:
    """Run each group of parts in a separate process. When a process ends, for any reason, all end.

    Restarting is up to systemd or a container engine, which does it better and sees the failure.
    """
    from posthouse.compose.process import end_with_parent

    asked_to_stop = False

    def stop(number: int, frame: object) -> None:  # noqa: ARG001 (the shape of a signal handler)
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    children: list[subprocess.Popen[bytes]] = []
    try:
        # In separate sessions, so that Ctrl-C reaches them once, from here. This process has no other thread.
        children += [
            subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent)  # noqa: S603
            for command in commands
        ]
        while not asked_to_stop and all(child.poll() is None for child in children):
            time.sleep(_POLL_SECONDS)
    finally:
        codes = _ended(children)
    # A server that was stopped by a signal exits with that signal.
    failures = [abs(code) for code in codes if code not in (0, -signal.SIGTERM)]
    if failures or not asked_to_stop:
        raise typer.Exit(failures[0] if failures else 1)


def _ended(children: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + CHILDREN_SECONDS_MAX
    codes = []
    for child in children:
        try:
            codes.append(child.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            codes.append(child.wait())
    return codes


def dev(
    directory: Annotated[Path, typer.Option(help="Where the data, the settings and the log are.")] = Path(".posthouse"),
    host: Annotated[str, typer.Option(help="Listen here.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For HTTP; if it is taken, the next free port.")] = 8025,
    smtp_port: Annotated[
        int, typer.Option(min=1, max=65535, help="For SMTP; if it is taken, the next free port.")
    ] = 2587,
    reset: Annotated[bool, typer.Option("--reset", help="Delete all data first, and start over.")] = False,
) -> None:
    """Run everything on this machine, with its own PostgreSQL and a demo account; no mail leaves.

    PostgreSQL is that of the machine, or comes with `pip install 'posthouse[dev]'`. Ctrl-C stops everything; the next
    start continues with the same data and keys.
    """
    from posthouse.dev.ports import DevError
    from posthouse.dev.run import Options, run
    from posthouse.rules.refusal import Refusal

    # The service's parts print to a log; this is still the terminal.
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(text: str) -> None:
        terminal.write(text + "\n")
        terminal.flush()

    try:
        run(Options(directory, host, port, smtp_port, reset), say)
    except DevError as error:
        fail(str(error))
    except Refusal as refusal:
        fail(text_of(refusal))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    output.write_line("Stopped.")
