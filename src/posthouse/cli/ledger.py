"""Commands about the ledger."""

from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.audit import findings_of
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson

if TYPE_CHECKING:
    from posthouse.compose.operator import OperatorServices
    from posthouse.rules.audit.promises import AuditTally

ledger = typer.Typer(no_args_is_help=True)


@ledger.callback()
def family() -> None:
    """The ledger: whether it agrees with the messages and the credits."""


@ledger.command("verify")
def verify(
    account: Annotated[str | None, typer.Option(help="Only this account, by its name or id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add the ledger up: each recipient's entries, and each account's credits. Ends with 1 if they don't agree.

    It is the part of `posthouse audit` that is about credits. Safe beside the running service.
    """

    async def act(services: "OperatorServices") -> "AuditTally":
        only = None if account is None else await services.accounts.account_id(account)
        return await services.audit.verify_ledger(only=only)

    from posthouse.rules.audit.promises import Promise

    tally = perform(act)
    count = tally.counts[Promise.LEDGER]
    found = findings_of(tally)
    if as_json:
        output.write_json({"is_broken": count.is_broken, "checked": count.checked, "ok": count.ok, "findings": found})
    else:
        if found:
            output.write_table(found, ["fault", "where", "what"])
        end = "The ledger does not agree" if count.is_broken else "The ledger agrees"
        output.write_line(f"{end}: {count.ok:,} of {count.checked:,} checks hold.")
    if count.is_broken:
        raise typer.Exit(1)
