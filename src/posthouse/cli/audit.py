"""The audit: checks every promise against the records and outside logs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform
from posthouse.mail.reply import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from posthouse.compose.operator import OperatorServices
    from posthouse.flows.operate.audit import AuditProgress, OutsideLogs
    from posthouse.rules.audit.promises import AuditTally


def _log(whose: str) -> typer.models.OptionInfo:
    text = f"The log of {whose}, a JSON object a line: see the reference."
    option: typer.models.OptionInfo = typer.Option(exists=True, dir_okay=False, readable=True, help=text)
    return option


def audit(
    account: Annotated[str | None, typer.Option(help="Only this account, by its name or id.")] = None,
    sender: Annotated[Path | None, _log("a sender")] = None,
    receiver: Annotated[Path | None, _log("a receiving server")] = None,
    webhooks: Annotated[Path | None, _log("a webhook's receiver")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Check every promise on the records, and against the logs of a sender, a receiving server and a webhook.

    Ends with 1 when a promise is broken. Safe beside the running service.
    """
    from posthouse.rules.audit.outside_logs import OutsideLogError

    with ExitStack() as opened:
        logs = _logs(opened, sender, receiver, webhooks)
        report = opened.enter_context(nullcontext(_silent) if as_json else _progress())

        async def act(services: "OperatorServices") -> "AuditTally":
            only = None if account is None else await services.accounts.account_id(account)
            return await services.audit.audit(logs, report, only=only)

        try:
            tally = perform(act)
        except OutsideLogError as error:
            fail(f"A log can't be read: {error}.")
    if as_json:
        output.write_json({"is_broken": tally.is_broken, "promises": _promises(tally), "findings": findings_of(tally)})
    else:
        _print(tally)
    if tally.is_broken:
        raise typer.Exit(1)


def _logs(opened: ExitStack, sender: Path | None, receiver: Path | None, webhooks: Path | None) -> "OutsideLogs":
    from posthouse.flows.operate.audit import OutsideLogs

    def lines(path: Path | None) -> "Iterator[str] | None":
        return None if path is None else opened.enter_context(path.open(encoding="utf-8"))

    return OutsideLogs(lines(sender), lines(receiver), lines(webhooks))


def _silent(_: "AuditProgress") -> None:
    """With --json, nothing but JSON is printed."""


@contextmanager
def _progress() -> "Iterator[Callable[[AuditProgress], None]]":
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the outside logs", total=None)

        def report(at: "AuditProgress") -> None:
            text = f"account {at.account}: {at.messages:,} messages, {at.events:,} events checked in all"
            bar.update(task, description=text)

        yield report


def _print(tally: "AuditTally") -> None:
    rows = _promises(tally)
    output.write_table(rows, list(rows[0]), title="The promises")
    if tally.findings:
        output.write_table(findings_of(tally), ["promise", "fault", "where", "what"], title="Findings")
    broken = [str(promise.value) for promise, count in tally.counts.items() if count.is_broken]
    output.write_line(f"Broken: {', '.join(broken)}." if broken else "Every promise that could be checked holds.")


def _promises(tally: "AuditTally") -> list[output.Plain]:
    from posthouse.rules.audit.promises import TITLES

    return [
        {
            "number": promise.value,
            "promise": TITLES[promise],
            "checked": count.checked,
            "ok": count.ok,
            **{fault.value: number for fault, number in count.faults.items()},
            "explained": count.explained,
        }
        for promise, count in tally.counts.items()
    ]


def findings_of(tally: "AuditTally") -> list[output.Plain]:
    return [
        {
            "promise": finding.promise.value,
            "fault": finding.fault.value,
            "where": printable(finding.where.encode()),
            "what": printable(finding.what.encode()),
        }
        for finding in tally.findings
    ]
