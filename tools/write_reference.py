"""Writes settings.md, cli.md, metrics.md and doctor.md of docs/reference from what the code itself says."""

import inspect
import re
import textwrap
from collections import Counter
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

A command that is refused ends with 1 and a line on standard error that says what to do; one that is mistyped ends with
2. These arguments and options mean the same everywhere:

- `-h`, `--help`: show how to use the command; every command has it.
- `--json`: print JSON, for programs. Every command has it, except `dev`, `run` and `completion`.
{everywhere}
This page is made by `make reference`.
"""
# Explained once, at the top of the page of commands.
_EVERYWHERE: Final = {
    "ACCOUNT": "The account's name or id (ac_…).",
    "--limit": "How many at most. [default: 50; 1 to 1000]",
    "--dry-run": "Say what would be changed, and change nothing.",
    "--yes": "Don't ask: for programs.",
}
_METRICS_HEAD: Final = """\
# Metrics

With `monitoring.port` set, every process serves three paths at that port, or, where several processes share a machine,
each at the first port that is free from there on:

| Path | Answers |
|---|---|
| `/metrics` | the metrics below, for Prometheus |
| `/livez` | 200 as long as the process answers at all |
| `/readyz` | 200 if the process can work; otherwise 503 with the `reasons`: no PostgreSQL, old tables, draining |

A process counts what it does itself, since its start: add up processes with `sum`. Where a text says which part
measures something in PostgreSQL, and several processes run that part, take the `max`. Labels have few values: no
address, no account and no text from outside is ever one, and a metric keeps at most {series_max} sets of labels.
Processor time, memory and open files of each process have their usual names (`process_cpu_seconds_total`, …).

`deploy/monitoring/` contains rules, alerts and dashboards; see [how to monitor the
service](../howto/monitor.md). This page is made by `make reference`.

These labels have the same values in several metrics, unless a metric's text says otherwise:

{labels}
"""
_DOCTOR_HEAD: Final = """\
# Doctor

`posthouse doctor` checks that everything is in place. Each finding says what was found, why it matters, and which
command, setting or DNS record fixes it, and names a runbook, which the service shows without a login at
`/dashboard/runbooks/`. `--json` is for programs, `--watch` checks again every 30 seconds and shows what changed. It
changes nothing, and is safe while the service runs. It exits with 0 if all is well, 1 if something is critical, 2 if
the command was mistyped, and 3 if there are only warnings.

![posthouse doctor: what is well, and two findings with their advice](../assets/screenshots/terminal-doctor.png)

Where no mail leaves (`delivery.outbound = "capture"`), names in DNS, name servers and port 25 are not checked.
Outbound port 25 is checked if `doctor.port_25_host` names a server to ask for its greeting, the age of the last backup
if `doctor.backup_hours_max` is set and the backup's script ends with `posthouse backup noted`.

This page is made by `make reference`.

| Check | If it fails |
|---|---|
"""
# What a label's values are, as the text of a metric says it.
_LABEL: Final = re.compile(r" (`(\w+)` is [^.]*\.)")


def settings_page() -> str:
    return "\n".join([_SETTINGS_HEAD, *(_section(name, kind) for name, kind in section_types().items())])


def commands_page() -> str:
    everywhere = "".join(f"- `{name}`: {text}\n" for name, text in _EVERYWHERE.items())
    head = _COMMANDS_HEAD.format(everywhere=everywhere)
    return "\n".join([head, *_commands(typer.main.get_command(app), "posthouse")])


def metrics_page() -> str:
    areas: dict[str, list[metrics.Metric]] = {}
    for metric in metrics.CATALOGUE:
        areas.setdefault(metric.area, []).append(metric)
    said = Counter(sentence for metric in metrics.CATALOGUE for sentence, _ in _LABEL.findall(metric.text))
    common = [sentence for sentence, count in said.items() if count > 2]
    labels = "\n".join(f"- {sentence}" for sentence in common)
    parts = [_METRICS_HEAD.format(series_max=metrics.SERIES_MAX, labels=labels)]
    for area, found in areas.items():
        rows = [f"| `{metric.name}` | {_kind(metric)} {_without(metric.text, common)} |" for metric in found]
        parts += [f"## {area}", "", "| Name | Kind, labels and meaning |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def doctor_page() -> str:
    """The checks; those next to one another that fail for the same reason share a row."""
    rows: dict[str, list[str]] = {}
    for check in CHECKS.values():
        if check.why:
            runbook = f"[{check.runbook}](../runbooks/{check.runbook}.md)"
            rows.setdefault(f"**{check.severity}**: {check.why} {runbook}", []).append(check.title)
    return "\n".join(
        [_DOCTOR_HEAD.rstrip("\n"), *(f"| {', '.join(titles)} | {why} |" for why, titles in rows.items()), ""]
    )


def _kind(metric: metrics.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"*{metric.kind}* by {labels}:" if labels else f"*{metric.kind}*:"


def _without(text: str, sentences: list[str]) -> str:
    for sentence in sentences:
        text = text.replace(f" {sentence}", "")
    return text


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
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece and piece != "[OPTIONS]"]
    parts = [f"{'##' if name.count(' ') == 1 else '###'} {name}", ""]
    if pieces:
        parts += [f"    {' '.join([name, *pieces])}", ""]
    parts += [_escaped(inspect.cleandoc(command.help or "")), ""]
    rows = [row for parameter in command.params if (row := parameter.get_help_record(context)) is not None]
    options = [line for head, text in rows if (line := _option(head, text))]
    if options:
        parts += [*options, ""]
    return "\n".join(parts)


def _option(head: str, text: str) -> str:
    """A line of the list of a command's arguments and options; none for those that the top of the page explains."""
    name, text = head.partition(" ")[0], " ".join(text.split())
    text = re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", text).replace("x>=", "at least ")
    if (name, text) == ("--json", "Print JSON, for programs."):
        return ""
    # The usage line shows which arguments are required.
    is_argument = not name.startswith("-")
    text = text.removesuffix(" [required]") if is_argument else text
    if _EVERYWHERE.get(name) == text:
        return "" if is_argument else f"- `{head.partition(' <')[0]}`"
    return f"- `{' '.join(head.split()).replace('<int range>', '<int>')}`: {_escaped(text)}"


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
