"""Commands that check the installation: the doctor, the audit of every promise, and the ledger."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform
from posthouse.cli.output import AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules.check_up import DoctorCheck, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from posthouse.compose.flows import Flows
    from posthouse.flows.operate.audit import AuditProgress, OutsideLogs
    from posthouse.rules.audit.promises import AuditTally

ledger = typer.Typer(no_args_is_help=True)

PAUSE_SECONDS: Final = 30.0
# 2 is a command that was mistyped.
STATUSES: Final = {Severity.OK: 0, Severity.CRITICAL: 1, Severity.WARNING: 3}
_LABELS: Final = {Severity.OK: "ok  ", Severity.WARNING: "WARN", Severity.CRITICAL: "FAIL"}


def doctor(
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again every 30 s and show what changed, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that everything is in place; says why it matters and what to do where it is not.

    Ends with 0 if all is well, 1 if something is critical, 3 if there are only warnings.
    """
    if watch:
        with suppress(KeyboardInterrupt):
            _watch()
        return
    checks = check_all()
    if as_json:
        output.write_json([plain(check) for check in checks])
    else:
        for check in checks:
            _write(check)
    status = STATUSES[gravest(checks)]
    if status:
        raise typer.Exit(status)


def check_all() -> list[DoctorCheck]:
    from posthouse.config import ConfigError, config_file, load

    try:
        load()
    except ConfigError as error:
        return [DoctorCheck("settings", False, str(error), "Correct them; `posthouse config check` names each.")]
    file = config_file()
    checks = [DoctorCheck("settings", True, f"from {file}" if file else "from the environment")]
    if file is not None:
        checks.append(_privacy(file))
    return [*checks, *perform(lambda flows: flows.doctor.check_up(), even_if_unusable=True)]


def gravest(checks: Sequence[DoctorCheck]) -> Severity:
    found = {check.severity for check in checks}
    return next((severity for severity in (Severity.CRITICAL, Severity.WARNING) if severity in found), Severity.OK)


def plain(check: DoctorCheck) -> Plain:
    return {
        "check": check.name,
        "kind": check.kind,
        "is_well": check.is_well,
        "severity": check.severity,
        "found": check.found,
        "why": check.why,
        "advice": check.advice,
        "runbook": check.runbook,
    }


def changed(before: Sequence[DoctorCheck], after: Sequence[DoctorCheck]) -> list[DoctorCheck]:
    """What became well or unwell since; at first, what is unwell."""
    known = {check.name: check.severity for check in before}
    return [check for check in after if known.get(check.name, Severity.OK) is not check.severity]


def _watch() -> None:
    before: list[DoctorCheck] = []
    while True:
        after = check_all()
        news = changed(before, after)
        if news or not before:
            unwell = sum(not check.is_well for check in after)
            output.write_line(f"{time.strftime('%H:%M:%S')}  {len(after)} checks, {unwell} not well")
        for check in news:
            _write(check)
        before = after
        time.sleep(PAUSE_SECONDS)


def _privacy(file: "Path") -> DoctorCheck:
    mode = file.stat().st_mode
    is_private = not mode & 0o077
    advice = "" if is_private else f"Run `chmod 600 {file}`: it holds secrets."
    return DoctorCheck("settings_private", is_private, oct(mode & 0o777)[2:], advice)


def _write(check: DoctorCheck) -> None:
    output.write_line(f"{_LABELS[check.severity]}  {check.name}: {check.found}")
    if check.why:
        output.write_line(f"      {check.why}")
    if check.advice:
        output.write_line(f"      → {check.advice}")
    if check.runbook:
        output.write_line(f"      Runbook: /dashboard/runbooks/{check.runbook}")


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

    Ends with 1 when a promise is broken. Safe while the service runs.
    """
    from posthouse.rules.audit.outside_logs import OutsideLogError

    with ExitStack() as opened:
        logs = _logs(opened, sender, receiver, webhooks)
        report = opened.enter_context(nullcontext(_silent) if as_json else _progress())

        async def act(flows: "Flows") -> "AuditTally":
            only = None if account is None else await flows.accounts.account_id(account)
            return await flows.audit.audit(logs, report, only=only)

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
            "where": printable(finding.where),
            "what": printable(finding.what),
        }
        for finding in tally.findings
    ]


@ledger.callback()
def family() -> None:
    """The ledger: whether it agrees with the messages and the credits."""


@ledger.command("verify")
def verify(
    account: Annotated[str | None, typer.Option(help="Only this account, by its name or id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add the ledger up: each recipient's entries, and each account's credits. Ends with 1 if they don't agree.

    It is the part of `posthouse audit` that is about credits. Safe while the service runs.
    """

    async def act(flows: "Flows") -> "AuditTally":
        only = None if account is None else await flows.accounts.account_id(account)
        return await flows.audit.verify_ledger(only=only)

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
