"""The operator's log on the command line."""

from typing import TYPE_CHECKING, Final

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, LimitGiven, Plain

if TYPE_CHECKING:
    from posthouse.flows.operate.monitor import OperatorLogEntry

_COLUMNS: Final = ("at", "action", "target", "account", "detail")


def log(limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show what operators changed, newest first, whatever account it belongs to. Entries are kept for 400 days."""
    entries = perform(lambda services: services.monitor.operator_log(limit))
    rows = [_plain(found) for found in entries]
    if not as_json:
        rows = [{**row, "detail": _detail(found.entry.detail)} for row, found in zip(rows, entries, strict=True)]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty="Nothing was changed.")


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
