"""Commands about webhooks: an account's endpoint for the operator; for receivers, checks of requests and events."""

import asyncio
import os
import secrets
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output, webhook_events
from posthouse.cli.operator import DryRun, Yes, confirm, fail, is_length, length, moment, perform_for
from posthouse.cli.output import AccountGiven, AsJson, LimitGiven, Plain
from posthouse.mail.reply import printable
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR
from posthouse.rules.event import SECRET_PREFIX, SIGNATURE_HEADER

if TYPE_CHECKING:
    from posthouse.cli.event_feed import Login
    from posthouse.compose.flows import Flows
    from posthouse.flows.webhooks.endpoints import WebhookDelivery
    from posthouse.rules.ids import AccountId

webhook = typer.Typer(no_args_is_help=True)

BODY_BYTES_MAX: Final = 256 * 1024
# Longer than any service keeps its events, and not before there were ids.
LONG_AGO: Final = timedelta(days=3_650)

_NAME: Final = f"{SIGNATURE_HEADER.lower()}:"

Secret = Annotated[
    str,
    typer.Option(envvar="POSTHOUSE_WEBHOOK_SECRET", show_default=False, help="The endpoint's secret (whsec_…)."),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(envvar="POSTHOUSE_WEBHOOK_SECRET_FILE", help="A file that holds the secret.", show_default=False),
]


@webhook.command("show")
def show(account: AccountGiven, as_json: AsJson = False) -> None:
    """Show an account's endpoint, and whether it answers."""

    async def endpoint_of(flows: "Flows", account_id: "AccountId") -> Plain | None:
        endpoint = await flows.endpoints.webhook(account_id)
        if endpoint is None:
            return None
        return {
            "url": endpoint.url,
            "events": list(endpoint.filters.types),
            "enabled": endpoint.enabled,
            "state": flows.endpoints.state(endpoint),
            "answered_at": endpoint.answered_at,
            "failing_since": endpoint.failing_since,
            "created_at": endpoint.created_at,
            "updated_at": endpoint.updated_at,
        }

    found = perform_for(account, endpoint_of)
    if as_json:
        return output.write_json(found)
    if found is None:
        return output.write_line("The account has no webhook endpoint.")
    return output.write_values(found)


@webhook.command("deliveries")
def deliveries(
    account: AccountGiven,
    message: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this message (em_…).")] = None,
    limit: LimitGiven = 50,
    as_json: AsJson = False,
) -> None:
    """Show what was sent to an account's webhook, newest first, and how its server answered."""
    page = perform_for(account, lambda flows, at: flows.endpoints.deliveries(at, limit, message_id=message))
    rows = [_delivery(row) for row in page.items]
    columns = ("id", "created_at", "type", "status", "attempt", "http_status", "error", "next_attempt_at")
    hint = "Nothing was sent: the account has no webhook, or no results since it has one."
    output.write_page(rows, columns, as_json=as_json, is_more=page.next_cursor is not None, empty=hint)


@webhook.command("replay")
def replay(
    account: AccountGiven,
    failed_since: Annotated[
        str, typer.Option(metavar="TIME", help="Such as 2h (two hours ago) or 2026-11-15T07:00:00Z.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send every event again whose last delivery failed since then; a second time adds nothing."""
    since = failed_since
    if is_length(since):
        since = (datetime.now(UTC) - length("--failed-since", since)).isoformat()
    count = perform_for(account, lambda flows, at: flows.endpoints.count_failed(at, since))
    confirmed = confirm(
        f"{count:,} webhook deliveries failed, and would be sent again.",
        count,
        {"failed": count},
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    if not confirmed:
        return
    done = perform_for(account, lambda flows, at: flows.endpoints.replay_failed(at, since, OPERATOR))
    more = f" There are more: continue with --failed-since {done.next_since.isoformat()}." if done.next_since else ""
    values = {"replayed": done.count, "next_since": done.next_since}
    output.write_done(f"{done.count:,} webhook deliveries are due again.{more}", values, as_json=as_json)


@webhook.command("verify")
def verify(
    header: Annotated[str, typer.Option(help=f"The value of {SIGNATURE_HEADER}: 't=…,v1=…'.")],
    body: Annotated[str, typer.Argument(metavar="[BODY]", help="A file with the raw body; - is standard input.")] = "-",
    secret: Secret = "",
    secret_file: SecretFile = None,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="As of then: Unix seconds, or such as 2026-11-15T07:00:00Z.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say whether a request is genuine, or exactly why it is not; the exit status is then 1."""
    now = _moment(at)
    raw = _body(body)
    value = header.strip()
    if value.lower().startswith(_NAME):
        value = value[len(_NAME) :].strip()
    key = _secret(secret, secret_file) or _prompted("Secret", "set POSTHOUSE_WEBHOOK_SECRET, or use --secret-file")
    found = webhook_events.check_signature(key, value, raw, now)
    if as_json:
        values = webhook_events.read(raw) if found.is_signed else None
        output.write_json(
            {"valid": found.is_genuine, "verdict": found.verdict, "reason": found.reason, "event": values}
        )
    else:
        output.write_line(f"{'valid' if found.is_genuine else 'not valid'}: {found.reason}")
        if found.is_signed:
            webhook_events.write(raw)
    if not found.is_genuine:
        raise typer.Exit(1)


@webhook.command("listen")
def listen(
    url: Annotated[
        str, typer.Option(envvar="POSTHOUSE_URL", help="The service whose events are followed.")
    ] = "http://127.0.0.1:8025",
    email: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Log in with this address; the password is asked for, or in POSTHOUSE_PASSWORD. Without it, "
            "POSTHOUSE_TOKEN holds the token of a login.",
        ),
    ] = "",
    forward: Annotated[
        str,
        typer.Option(
            metavar="URL",
            show_default=False,
            help="Send events to this program instead of to ourselves, such as http://127.0.0.1:3000/hook.",
        ),
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Listen here on 127.0.0.1; 0 is any free port.")] = 0,
    secret: Secret = "",
    secret_file: SecretFile = None,
    since: Annotated[str, typer.Option(metavar="30m|2h|7d", help="Begin with events from this long ago.")] = "0s",
    count: Annotated[int, typer.Option(min=0, help="End after this many events; 0 means never.")] = 0,
    follow: Annotated[bool, typer.Option(help="Follow the feed, or only listen.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each event, for programs.")] = False,
) -> None:
    """Show events as they arrive, verified, without a public address; Ctrl-C ends it.

    They are fetched from the service's feed and sent on, signed as the service signs: to a listener here, which
    verifies and shows what it receives, or with --forward to your own program, whose answers are shown.
    """
    from posthouse.cli.event_feed import FeedClosed
    from posthouse.cli.webhook_listener import CannotListen, ListenOptions
    from posthouse.cli.webhook_listener import listen as listen_to

    back = min(length("--since", since), LONG_AGO)
    if forward and not follow:
        fail("--forward sends events of the feed: remove --no-follow")
    access = _access(email) if follow else None
    key = _secret(secret, secret_file)
    if not key:
        key = SECRET_PREFIX + secrets.token_hex(24)
        _say(f"The secret of this session is {key}")
    options = ListenOptions(url, access, back, forward, port, key, count, as_json)

    async def until_signalled() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (asyncio.run makes one)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await listen_to(options, _say)

    try:
        asyncio.run(until_signalled())
    except asyncio.CancelledError:
        _say("Stopped.")
    except (FeedClosed, CannotListen) as end:
        fail(str(end))


def _delivery(row: "WebhookDelivery") -> Plain:
    return {
        "id": ids.text(ids.WEBHOOK_DELIVERY, row.id),
        "event_id": ids.text(ids.EVENT, row.event_id),
        "type": row.type,
        "message_id": None if row.message_id is None else ids.text(ids.MESSAGE, row.message_id),
        "url": row.url,
        "status": row.status,
        "attempt": f"{row.attempt} of {row.max_attempts}",
        "http_status": row.http_status,
        # Control codes in another server's answer must not reach the terminal.
        "error": None if row.error is None else printable(row.error),
        "duration_ms": row.duration_ms,
        "created_at": row.created_at,
        "last_attempt_at": row.last_attempt_at,
        "next_attempt_at": row.next_attempt_at,
    }


def _say(text: str) -> None:
    """To standard error: standard output carries only the events."""
    sys.stderr.write(f"{text}\n")


def _access(email: str) -> "Login | str":
    from posthouse.cli.event_feed import Login

    if email:
        return Login(email, _variable("POSTHOUSE_PASSWORD") or _prompted("Password", "set POSTHOUSE_PASSWORD"))
    token = _variable("POSTHOUSE_TOKEN")
    return token or fail("log in with --email, or set POSTHOUSE_TOKEN to the token of a login")


def _variable(name: str) -> str:
    """A secret in the environment, or in the file that `NAME_FILE` names."""
    file = os.environ.get(f"{name}_FILE")
    return _secret(os.environ.get(name, ""), Path(file) if file else None)


def _secret(given: str, file: Path | None) -> str:
    if file is None:
        return given.strip()
    try:
        return file.read_text("utf-8").strip() or fail(f"{file} is empty: write the secret into it")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} can't be read: {error}")


def _prompted(name: str, otherwise: str) -> str:
    if not sys.stdin.isatty():
        fail(f"the {name.lower()} is missing: {otherwise}")
    return str(typer.prompt(name, hide_input=True, err=True)).strip()


def _body(given: str) -> bytes:
    try:
        if given == "-":
            raw = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
        else:
            with Path(given).open("rb") as file:
                raw = file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        fail(f"{given} can't be read: {error.strerror}")
    if len(raw) > BODY_BYTES_MAX:
        fail(f"the body is longer than {BODY_BYTES_MAX // 1024} KB, which no event is")
    return raw


def _moment(given: str) -> int:
    if not given:
        return int(time.time())
    if given.isascii() and given.isdecimal() and len(given) <= 12:
        return int(given)
    return int(moment(given, "Unix seconds, or a date and time such as 2026-11-15T07:00:00Z").timestamp())
