"""Commands about suppressed addresses: an account sends nothing to them."""

from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform_for
from posthouse.cli.output import AccountGiven, AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules.credential import OPERATOR
from posthouse.rules.suppression import SuppressionReason

if TYPE_CHECKING:
    from posthouse.flows.account.suppressions import SuppressionRow

suppression = typer.Typer(no_args_is_help=True)

_COLUMNS = ("email", "reason", "at", "added_by", "note", "response")

EmailGiven = Annotated[str, typer.Argument(metavar="ADDRESS", help="Such as ada@example.com.")]


@suppression.command("list")
def list_(
    account: AccountGiven,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Those that begin with this, or are @ this domain.")
    ] = None,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only this address.")] = None,
    reason: Annotated[SuppressionReason | None, typer.Option(help="Only those with this reason.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show an account's suppressed addresses, newest first."""
    page = perform_for(
        account, lambda flows, at: flows.suppressions.page(at, limit, email=email, search=search, reason=reason)
    )
    rows = [_plain(row) for row in page.items]
    if as_json:
        return output.write_json(rows)
    if not rows:
        return output.write_line("No address is suppressed.")
    output.write_table(rows, _COLUMNS)
    if page.next_cursor is not None:
        output.write_line("There are more: ask with --search, --reason or a higher --limit.")
    return None


@suppression.command("add")
def add(
    account: AccountGiven,
    email: EmailGiven,
    note: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
    as_json: AsJson = False,
) -> None:
    """Suppress an address: the account sends nothing to it any more."""
    row, is_new = perform_for(account, lambda flows, at: flows.suppressions.add(at, OPERATOR, email, note))
    already = f"{row.email} was suppressed already ({row.reason}), and stays as it is."
    output.write_done(f"{row.email} is suppressed." if is_new else already, _plain(row), as_json=as_json)


@suppression.command("remove")
def remove(
    account: AccountGiven,
    email: EmailGiven,
    reason: Annotated[str, typer.Option(help="Why it may get mail again; the account's log keeps it.")],
    as_json: AsJson = False,
) -> None:
    """Remove a suppression: the address gets the account's mail again."""
    row = perform_for(account, lambda flows, at: flows.suppressions.remove(at, OPERATOR, email, reason))
    done = f"{row.email} is no longer suppressed (it was, as {row.reason})."
    output.write_done(done, _plain(row), as_json=as_json)


def _plain(row: "SuppressionRow") -> Plain:
    return {
        "email": row.email,
        "reason": row.reason,
        "note": row.note,
        "added_by": row.added_by,
        "code": row.code,
        # Control codes in another server's reply must not reach the terminal.
        "response": None if row.response is None else printable(row.response),
        "at": row.at,
    }
