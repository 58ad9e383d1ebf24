"""`posthouse doctor`: everything that is checked, and what to do about what is not well."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, Plain
from posthouse.rules.check_up import DoctorCheck, Severity

if TYPE_CHECKING:
    from pathlib import Path

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

    Ends with 0 if all is well, 1 if something is critical, 3 if there are warnings alone.
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
    return [*checks, *perform(lambda services: services.doctor.check_up(), even_if_unusable=True)]


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
