"""Commands about the installation: its settings, log, backups, restores, secrets, clock and postmaster mail.

Postmaster mail is mail to postmaster@ and abuse@, kept for the operator.
"""

import os
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform, settings
from posthouse.cli.output import AsJson, LimitGiven, Plain
from posthouse.cli.queue import command_for
from posthouse.flows.operate.secrets import SecretUse
from posthouse.mail.reply import printable
from posthouse.rules import ids, service_time
from posthouse.rules.queue_change import QueueChange

if TYPE_CHECKING:
    from posthouse.flows.operate.monitor import OperatorLogEntry, PostmasterMessage

backup = typer.Typer(no_args_is_help=True)
restore = typer.Typer(no_args_is_help=True)
secret = typer.Typer(no_args_is_help=True)
clock = typer.Typer(no_args_is_help=True)
config = typer.Typer(no_args_is_help=True)
postmaster_mail = typer.Typer(no_args_is_help=True)

_LOG_COLUMNS: Final = ("at", "action", "target", "account", "detail")
# In the order of `flows.operate.restore.AGES`.
_AGES = ("10 minutes", "1 hour", "6 hours", "1 day", "older")
_SECRET_COLUMNS = ("secret", "id", "state", "may_be_removed", "used_by")
_MAIL_COLUMNS = ("id", "at", "recipient", "sender", "subject", "bytes")


def log(limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show what operators changed, newest first, whatever account it belongs to. Entries are kept for 400 days."""
    entries = perform(lambda flows: flows.monitor.operator_log(limit))
    rows = [_plain(found) for found in entries]
    if not as_json:
        rows = [{**row, "detail": _detail(found.entry.detail)} for row, found in zip(rows, entries, strict=True)]
    output.write_page(rows, _LOG_COLUMNS, as_json=as_json, empty="Nothing was changed.")


def _plain(found: "OperatorLogEntry") -> Plain:
    entry = found.entry
    return {
        "at": entry.at,
        "action": entry.action,
        "target": entry.target,
        "account": found.account,
        "detail": dict(entry.detail),
    }


def _detail(detail: Plain) -> str:
    return ", ".join(f"{name} {value}" for name, value in detail.items() if value is not None)


@backup.callback()
def backups() -> None:
    """Backups: note that one was made."""


@backup.command("noted")
def note_backup(as_json: AsJson = False) -> None:
    """Note that a backup was made just now: the last step of the script that makes it.

    `posthouse doctor` finds fault once the last is older than doctor.backup_hours_max.
    """
    at = perform(lambda flows: flows.restores.note_backup())
    output.write_done(f"Noted: a backup was made {output.text(at)}.", {"at": at}, as_json=as_json)


@restore.command("show")
def show(as_json: AsJson = False) -> None:
    """How much is held since the restore: by account, destination and age."""
    held = perform(lambda flows: flows.restores.held())
    accounts = [
        {"id": ids.text(ids.ACCOUNT, account_id), "name": name, "recipients": count}
        for account_id, name, count in held.accounts
    ]
    destinations = [{"destination": destination, "recipients": count} for destination, count in held.destinations]
    ages = [{"accepted within": age, "recipients": count} for age, count in zip(_AGES, held.ages, strict=True)]
    totals = {
        "noticed_at": held.restored_at,
        "restored_to": held.restored_to,
        "recipients": held.recipients,
        "messages": held.messages,
        "tried_before": held.tried,
        "held_by_operators": held.operators,
    }
    if as_json:
        output.write_json({**totals, "accounts": accounts, "destinations": destinations, "ages": ages})
        return
    if held.restored_at is None:
        output.write_line("No restore was noticed.")
        return
    output.write_values(totals)
    for rows in (accounts, destinations, ages):
        if held.recipients:
            output.write_line()
            output.write_table(rows, list(rows[0]))


restore.command(
    "release",
    help="Release mail that is held since the restore: all of it, or a part. Mail that was sent before arrives twice."
    "\n\nEnd mail that must not be sent again with `posthouse queue cancel`.",
)(command_for(QueueChange.RELEASE_RESTORED))


@restore.command("begin")
def begin(as_json: AsJson = False) -> None:
    """Hold everything that was accepted before now, for a restore that the service can't detect.

    That is a copy of the disk or of the machine (a snapshot): its timeline is the same as before. Run this while no
    process of the service runs.
    """
    count = perform(lambda flows: flows.restores.begin())
    text = f"{count:,} recipients are held: see `posthouse restore show`."
    output.write_done(text, {"recipients": count}, as_json=as_json)


@secret.callback()
def family() -> None:
    """The installation's secrets: which are in use, which may be removed."""


@secret.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show peppers, JWT secrets and seal keys: what needs each of them, and whether it may be removed.

    Run it once on the new settings after a secret was replaced: it notes the time from which old tokens and links end.
    """
    found, now = perform(lambda flows: flows.secrets.all_now())
    output.write_page([_row(use, now) for use in found], _SECRET_COLUMNS, as_json=as_json)


def _row(use: SecretUse, now: datetime) -> Plain:
    state = "missing in the settings" if not use.is_known else "active" if use.is_active else "not active"
    if use.is_active or not use.is_known:
        removable = "no"
    elif use.may_be_removed(now):
        removable = "yes"
    elif use.uses:
        removable = "not while it is used"
    else:
        removable = f"from {output.text(use.needed_until)}"
    used_by = ", ".join(f"{count} {what}" for what, count in use.uses.items())
    return {"secret": use.kind, "id": use.id, "state": state, "may_be_removed": removable, "used_by": used_by}


@clock.command("show")
def show_clock(as_json: AsJson = False) -> None:
    """Compare service time with the clocks of the database and of this machine."""
    state = perform(lambda flows: flows.service_clock.state())
    values = {
        "service_time": state.service_time,
        "database_time": state.database_time,
        "host_time": state.host_time,
        "step_seconds": 0.0 if state.step is None else round(state.step.total_seconds(), 3),
    }
    if as_json:
        return output.write_json(values)
    output.write_values(values)
    return output.write_line(
        "The database's clock is believed." if state.step is None else service_time.explain(state.step)
    )


@clock.command("accept")
def accept(as_json: AsJson = False) -> None:
    """Make the database's time service time, although it has stepped. What it makes too old will expire."""
    perform(lambda flows: flows.service_clock.accept())
    done = "The database's time is accepted; every process follows within seconds."
    output.write_done(done, {"accepted": True}, as_json=as_json)


class InstallationKind(StrEnum):
    LAPTOP = "laptop"
    SERVER = "server"
    FLEET = "fleet"


@config.command("init")
def init(
    file: Annotated[Path, typer.Option(help="Where to write it.")] = Path("posthouse.toml"),
    database_url: Annotated[
        str | None, typer.Option(envvar="POSTHOUSE_DATABASE__URL", help="postgresql://user@host:port/database")
    ] = None,
    kind: Annotated[
        InstallationKind | None,
        typer.Option(
            "--for",
            help="Begin with the settings of a laptop (no mail leaves), of one server behind a proxy, or of several "
            "machines with NATS.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a configuration file with fresh secrets, every setting explained; never over an existing file."""
    from posthouse.config.text import EXAMPLE_DATABASE_URL, Purpose, commented_toml, generated

    purpose = None if kind is None else Purpose(kind.value)
    text = commented_toml(generated(), database_url or EXAMPLE_DATABASE_URL, purpose)
    try:
        # Created readable only by its owner; never over an existing file.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(
            f"{file} exists already, and without its secrets the stored keys are worthless: "
            "name another with --file, or move it to a safe place first"
        )
    except OSError as error:
        fail(f"{file} can't be written: {error.strerror}")
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write(text)
    if as_json:
        return output.write_json({"file": str(file)})
    output.write_line(f"{file} is written. It holds secrets: keep a copy of it in a safe place.")
    first = [] if database_url else ["set url under [database] in it"]
    first += ["look through the settings that its head names"] if kind in ("server", "fleet") else []
    then = "run `posthouse migrate` and `posthouse doctor`."
    return output.write_line(f"Next: {', '.join(first)}{', then ' if first else ''}{then}")


@config.command("check")
def check(
    file: Annotated[Path | None, typer.Option(help="The file, instead of the one that commands read.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings; names each wrong line or variable and what it should be. Ends with 1 when there is one."""
    from posthouse.config import ConfigError, config_file, load

    try:
        source = file or config_file()
        load(file)
    except ConfigError as error:
        faults = error.faults
    else:
        faults = ()
    if as_json:
        output.write_json([{"where": fault.where, "setting": fault.setting, "fault": fault.text} for fault in faults])
    elif faults:
        for fault in faults:
            output.write_line(str(fault))
    else:
        output.write_line(f"The settings can be used: {source or 'no file'}, and the environment.")
    if faults:
        raise typer.Exit(1)


@config.command("show")
def show_settings(as_json: AsJson = False) -> None:
    """Show the settings in force, secrets hidden."""
    from posthouse.config import config_file
    from posthouse.config.text import shown

    values = shown(settings())
    if as_json:
        return output.write_json(values)
    output.write_line(f"# from {config_file() or 'the environment only'}\n")
    for section, settings_of in values.items():
        for name, value in settings_of.items():
            output.write_line(f"{f'{section}.{name}':<34} {output.text(value)}")
    return None


@postmaster_mail.command("list")
def list_postmaster_mail(as_json: AsJson = False) -> None:
    """Show the postmaster mail, newest first."""
    rows = [_plain_mail(mail) for mail in perform(lambda flows: flows.monitor.postmaster_mail())]
    if not as_json:
        rows = [{**row, "sender": row["sender"] or "<>"} for row in rows]
    output.write_page(rows, _MAIL_COLUMNS, as_json=as_json, empty="There is no postmaster mail.")


@postmaster_mail.command("show")
def show_postmaster_mail(
    mail_id: Annotated[str, typer.Argument(metavar="ID", help="The mail's id (in_…).")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the mail's bytes as received, for a file or a program.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a message. Control codes in it can't reach the terminal, except with --raw."""
    mail, mime = perform(lambda flows: flows.monitor.postmaster_message(mail_id))
    if as_json:
        return output.write_json({**_plain_mail(mail), "content": mime.decode("utf-8", "replace")})
    if raw:
        sys.stdout.buffer.write(mime)
        sys.stdout.buffer.flush()
        return None
    output.write_values({**_plain_mail(mail), "sender": printable(mail.sender or "<>")})
    output.write_line()
    for line in mime.replace(b"\r\n", b"\n").split(b"\n"):
        output.write_line(printable(line))
    return None


@postmaster_mail.command("remove")
def remove_postmaster_mail(
    mail_ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids (in_…) of mail to remove.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove mail for good."""
    named = mail_ids or []
    if bool(named) is everything:
        fail("name the mail to remove: ids as `posthouse postmaster-mail list` shows them, or --all")
    count = perform(lambda flows: flows.accounts.forget_mail(named))
    output.write_done(f"Removed: {count}.", {"removed": count}, as_json=as_json)


def _plain_mail(mail: "PostmasterMessage") -> Plain:
    return {
        "id": ids.text(ids.POSTMASTER_MESSAGE, mail.id),
        "at": mail.at,
        "recipient": printable(mail.recipient),
        "sender": printable(mail.sender),
        "peer": mail.peer,
        "subject": printable(mail.subject),
        "bytes": mail.mime_bytes,
    }
