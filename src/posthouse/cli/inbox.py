"""Commands about the inbox: mail to postmaster@ and abuse@, kept for the operator."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform
from posthouse.cli.output import AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules import ids

if TYPE_CHECKING:
    from posthouse.flows.operate.monitor import InboxMail

inbox = typer.Typer(no_args_is_help=True)

_COLUMNS = ("id", "at", "recipient", "sender", "subject", "bytes")


@inbox.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show the inbox, newest first."""
    rows = [_plain(mail) for mail in perform(lambda services: services.monitor.inbox())]
    if as_json:
        return output.write_json(rows)
    if not rows:
        return output.write_line("The inbox is empty.")
    return output.write_table([{**row, "sender": row["sender"] or "<>"} for row in rows], _COLUMNS)


@inbox.command("show")
def show_(
    mail_id: Annotated[str, typer.Argument(metavar="ID", help="The mail's id (in_…).")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the mail's bytes as received, for a file or a program.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a mail. Control codes in it can't reach the terminal, except with --raw."""
    mail, mime = perform(lambda services: services.monitor.inbox_mail(mail_id))
    if as_json:
        return output.write_json({**_plain(mail), "content": mime.decode("utf-8", "replace")})
    if raw:
        sys.stdout.buffer.write(mime)
        sys.stdout.buffer.flush()
        return None
    output.write_values({**_plain(mail), "sender": printable((mail.sender or "<>").encode())})
    output.write_line()
    for line in mime.replace(b"\r\n", b"\n").split(b"\n"):
        output.write_line(printable(line))
    return None


@inbox.command("forget", hidden=True)  # its name before
@inbox.command("remove")
def remove(
    mail_ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids (in_…) of mail to remove.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove mail for good."""
    named = mail_ids or []
    if bool(named) is everything:
        fail("name the mail to remove: ids as `posthouse inbox list` shows them, or --all")
    count = perform(lambda services: services.accounts.forget_mail(named))
    output.write_done(f"Removed: {count}.", {"removed": count}, as_json=as_json)


def _plain(mail: "InboxMail") -> Plain:
    return {
        "id": ids.text(ids.INBOX_MAIL, mail.id),
        "at": mail.at,
        "recipient": printable(mail.recipient.encode()),
        "sender": printable(mail.sender.encode()),
        "peer": mail.peer,
        "subject": printable(mail.subject.encode()),
        "bytes": mail.mime_bytes,
    }
