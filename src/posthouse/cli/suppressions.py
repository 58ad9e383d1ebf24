"""Commands about suppressed addresses: those that an account sends nothing to."""

from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import show
from posthouse.cli.operator import perform_for
from posthouse.cli.show import AccountGiven, AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules.actor import OPERATOR
from posthouse.rules.suppression import SuppressionReason

if TYPE_CHECKING:
    from posthouse.flows.account.suppressions import SuppressionRow

suppression = typer.Typer(no_args_is_help=True, help="Suppressions: addresses that an account sends nothing to.")

_COLUMNS = ("email", "reason", "at", "added_by", "note", "response")

EmailGiven = Annotated[str, typer.Argument(metavar="ADDRESS", help="Such as ada@example.com.")]


@suppression.command("list")
def list_(
    account: AccountGiven,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Those that begin with this, or are @ this domain.")
    ] = None,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only this one.")] = None,
    reason: Annotated[SuppressionReason | None, typer.Option(help="Only those with this reason.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show an account's suppressed addresses, newest first."""
    page = perform_for(
        account, lambda services, at: services.suppressions.page(at, limit, email=email, search=search, reason=reason)
    )
    rows = [_plain(row) for row in page.items]
    if as_json:
        return show.write_json(rows)
    if not rows:
        return show.write_line("None is suppressed.")
    show.write_table(rows, _COLUMNS)
    if page.next_cursor is not None:
        show.write_line("There are more: ask with --search, --reason or a higher --limit.")
    return None


@suppression.command("add")
def add(
    account: AccountGiven,
    email: EmailGiven,
    note: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let an account send nothing to an address any more."""
    row, is_new = perform_for(account, lambda services, at: services.suppressions.add(at, OPERATOR, email, note))
    if as_json:
        return show.write_json(_plain(row))
    if is_new:
        return show.write_line(f"{row.email} is suppressed.")
    return show.write_line(f"{row.email} was suppressed already ({row.reason}), and stays as it is.")


@suppression.command("remove")
def remove(
    account: AccountGiven,
    email: EmailGiven,
    reason: Annotated[str, typer.Option(help="Why it may get mail again; the account's log keeps it.")],
) -> None:
    """Let an address get an account's mail again."""
    row = perform_for(account, lambda services, at: services.suppressions.remove(at, OPERATOR, email, reason))
    show.write_line(f"{row.email} is suppressed no more (it was, as {row.reason}).")


def _plain(row: "SuppressionRow") -> Plain:
    return {
        "email": row.email,
        "reason": row.reason,
        "note": row.note,
        "added_by": row.added_by,
        "code": row.code,
        # What a stranger's server said must not steer the terminal.
        "response": None if row.response is None else printable(row.response.encode()),
        "at": row.at,
    }
