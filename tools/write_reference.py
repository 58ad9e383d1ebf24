"""Writes settings.md, cli.md, metrics.md and doctor.md of docs/reference from what the code itself says."""

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from posthouse import metrics
from posthouse.cli.app import app
from posthouse.config.section import Section, is_secret
from posthouse.config.settings import section_types, variable
from posthouse.config.text import toml_value
from posthouse.rules.check_up import CHECKS

REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
WIDTH: Final = 120

_SETTINGS_HEAD: Final = """\
# Settings

Each setting can be in `posthouse.toml`, under the section's name, or in the environment, which wins over the file.
`posthouse config init` writes a file with all of them, `posthouse config check` names what is wrong in it, and
`posthouse config show` prints what is in force. An unknown setting or `POSTHOUSE_…` variable is refused, and the error
names the nearest.

**Secrets can be in separate files.** A setting marked *secret* has a second name that ends in `_file` (in the
environment `_FILE`), whose value is the path of a file that contains the secret: `pepper_file` under `[secrets]`, or
`POSTHOUSE_SECRETS__PEPPER_FILE`. That is how systemd (`LoadCredential=`), Docker and Kubernetes provide secrets.

This page is made by `make reference`.
"""
_COMMANDS_HEAD: Final = """\
# Commands

Every command has `-h` and `--help`; every command that prints something has `--json`, for programs. A command that is
refused ends with 1 and a line on standard error that says what to do; one that is mistyped ends with 2.
`posthouse completion bash` (or `zsh`, `fish`) prints a script with which the shell completes commands and options.

This page is made by `make reference`.
"""
_METRICS_HEAD: Final = """\
# Metrics

With `monitoring.port` set, every process serves three paths at that port, or, where several processes share a machine,
each at the first port that is free from there on:

| Path | Answers |
|---|---|
| `/metrics` | the metrics below, for Prometheus |
| `/livez` | 200 as long as the process answers at all |
| `/readyz` | 200 if the process can work; otherwise 503 with the `reasons`: no PostgreSQL, old tables, draining |

A process counts what it does itself, since its start: add up processes with `sum`. What is measured in PostgreSQL comes
from one part, as each text says: where several processes run it, take the `max`. Labels have few values: no address, no
account and no text from outside is ever one, and a metric keeps at most {series_max} sets of labels. Processor time,
memory and open files of each process are under their usual names (`process_cpu_seconds_total`, …).

`deploy/monitoring/` has rules, alerts and dashboards for these metrics; see
[how to monitor the service](../howto/monitor.md).

This page is made by `make reference`.
"""
_DOCTOR_HEAD: Final = """\
# Doctor

`posthouse doctor` checks that everything is in place. Each finding says what was found, why it matters, and which
command, setting or DNS record fixes it. It also names a runbook, which the service shows at
`/dashboard/runbooks/`, from the installed package and without a login. `--json` is for programs, `--watch` checks again
every 30 seconds and shows what changed. It changes nothing, and is safe while the service runs.

![posthouse doctor: what is well, and two findings with their advice](../assets/screenshots/terminal-doctor.png)

| Ends with | |
|---|---|
| 0 | all is well |
| 1 | something is critical |
| 2 | the command was mistyped |
| 3 | there are only warnings |

Where no mail leaves (`delivery.outbound = "capture"`), names in DNS, name servers and port 25 are not checked.
Outbound port 25 is checked if `doctor.port_25_host` names a server to ask for its greeting, the age of the last backup
if `doctor.backup_hours_max` is set and the backup's script ends with `posthouse backup noted`.

This page is made by `make reference`.

| Check | If not | Why it matters | Runbook |
|---|---|---|---|
"""


def settings_page() -> str:
    return "\n".join([_SETTINGS_HEAD, *(_section(name, kind) for name, kind in section_types().items())])


def commands_page() -> str:
    return "\n".join([_COMMANDS_HEAD, *_commands(typer.main.get_command(app), "posthouse")])


def metrics_page() -> str:
    areas: dict[str, list[metrics.Metric]] = {}
    for metric in metrics.CATALOGUE:
        areas.setdefault(metric.area, []).append(metric)
    parts = [_METRICS_HEAD.format(series_max=metrics.SERIES_MAX)]
    for area, found in areas.items():
        rows = [f"| `{metric.name}` | {metric.kind} | {_labels(metric)} | {metric.text} |" for metric in found]
        parts += [f"## {area}", "", "| Name | Kind | Labels | Meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)


def doctor_page() -> str:
    rows = [
        f"| {check.title} | {check.severity} | {check.why} | [{check.runbook}](../runbooks/{check.runbook}.md) |"
        for check in CHECKS.values()
        if check.why
    ]
    return "\n".join([_DOCTOR_HEAD.rstrip("\n"), *rows, ""])


def _labels(metric: metrics.Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels)


def _section(name: str, kind: type[Section]) -> str:
    parts = [f"## [{name}]", "", inspect.cleandoc(kind.__doc__ or ""), ""]
    for setting, field in kind.model_fields.items():
        default = "required" if field.is_required() else f"default `{toml_value(field.default)}`"
        marks = f"{default}; *secret*" if is_secret(field) else default
        text = textwrap.fill(field.description or "", WIDTH, break_on_hyphens=False, break_long_words=False)
        parts += [f"### `{name}.{setting}`", "", f"`{variable(name, setting)}`; {marks}.", "", _escaped(text), ""]
    return "\n".join(parts)


def _commands(command: Any, name: str) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield _command(command, name)
        return
    if " " in name:
        yield f"## {name}\n\n{command.help}\n"
    for word, sub in command.commands.items():
        if not sub.hidden:
            yield from _commands(sub, f"{name} {word}")


def _command(command: Any, name: str) -> str:
    context = typer.Context(command, info_name=name)
    pieces = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    parts = [f"{'##' if name.count(' ') == 1 else '###'} {name}", "", f"    {name} {pieces}", ""]
    parts += [_escaped(inspect.cleandoc(command.help or "")), ""]
    rows = [row for parameter in command.params if (row := parameter.get_help_record(context)) is not None]
    if rows:
        parts += ["| | |", "|---|---|", *(f"| `{_cell(head)}` | {_escaped(_cell(text))} |" for head, text in rows), ""]
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """No text of ours is HTML."""
    return text.replace("<", "&lt;")


def main() -> None:
    (REFERENCE / "settings.md").write_text(settings_page())
    (REFERENCE / "cli.md").write_text(commands_page())
    (REFERENCE / "metrics.md").write_text(metrics_page())
    (REFERENCE / "doctor.md").write_text(doctor_page())


if __name__ == "__main__":
    main()
