"""The result of a crash or chaos run: the audit's table and the figures, printed or written as Markdown."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import figures
from tests.support.duplicate_mail import count_duplicates
from tests.support.whole_service import WholeService


async def audit_result(whole_service: WholeService) -> dict[str, Any]:
    """The audit and the figures of an idle service."""
    report = await whole_service.audit()
    service = whole_service.processes.service
    report["messages"] = await service.value("SELECT count(*) FROM messages")
    report["recipients"] = await service.value("SELECT count(*) FROM recipients")
    report["attempts"] = await service.value("SELECT count(*) FROM attempts")
    report["orphans"] = await whole_service.processes.orphans()
    report["answers"] = dict(sorted(whole_service.answers.items()))
    report["copies"] = (await count_duplicates(whole_service.processes.log, whole_service.in_flight)).as_json()
    later = await whole_service.later.compare(whole_service.processes.log, service)
    report["later"] = {**asdict(later), "is_broken": later.is_broken}
    return report


def is_failed(report: dict[str, Any]) -> bool:
    return bool(report["is_broken"] or report["copies"]["is_exceeded"] or report["later"]["is_broken"])


def counts(report: dict[str, Any]) -> list[tuple[str, str]]:
    copies, later = report["copies"], report["later"]
    by_death = copies["orphaned"] + copies["unexplained"]
    return [
        ("messages", f"{report['messages']:,}"),
        ("recipients", f"{report['recipients']:,}"),
        ("attempts", f"{report['attempts']:,}"),
        ("attempts left without an outcome", f"{report['orphans']:,}"),
        ("deaths of a delivery worker", f"{copies['deaths']:,}"),
        ("connections at receiving servers at those moments", f"{copies['connections_at_deaths']:,}"),
        (
            "**duplicates after a death ≤ recipients in sessions open at the deaths**",
            f"**{_held_against(by_death, copies['in_flight_at_deaths'])}**",
        ),
        ("times that the workers lost the database", f"{copies['database_losses']:,}"),
        (
            "**duplicates of a worker that lost its lease ≤ recipients in sessions open then**",
            f"**{_held_against(copies['late'], copies['in_flight_at_losses'])}**",
        ),
        ("duplicates that nothing in the database explains", f"{copies['unexplained']:,}"),
        ("also: copies after a server accepted the message and closed the connection", f"{copies['ambiguous']:,}"),
        ("messages with `send_at`", f"{later['messages']:,}"),
        ("**recipients that got one before `send_at`**", f"**{later['early']:,}**"),
        ("messages that were cancelled", f"{later['cancelled']:,}"),
        ("**recipients that got a cancelled one**", f"**{later['cancelled_arrived']:,}**"),
        ("cancellations that were refused", f"{later['refused']:,}"),
        ("**of these, of a message that was never tried**", f"**{later['refused_untried']:,}**"),
    ]


def _held_against(number: int, bound: int) -> str:
    return f"{number:,} {'≤' if number <= bound else '>'} {bound:,}"


def show(report: dict[str, Any], console: Console) -> None:
    for title, header, rows in _tables(report):
        table = Table(title=title)
        for number, column in enumerate(header):
            table.add_column(column, justify="left" if number < _left(header) else "right", no_wrap=True)
        for row in rows:
            table.add_row(*[cell.replace("**", "") for cell in row])
        console.print(table)
    for finding in report["findings"]:
        console.print(finding, highlight=False)


def write(report: dict[str, Any], name: str, title: str, how: str, to: Path) -> None:
    """Writes the file's section of that name, in Markdown, and the figures that pages quote from it."""
    lines = [f"### {title}", "", how, ""]
    for caption, header, rows in _tables(report):
        sides = ["---" if number < _left(header) else "---:" for number in range(len(header))]
        lines += [f"{caption}:", "", _line(header), _line(sides), *map(_line, rows), ""]
    if report["findings"]:
        lines += [*[f"- {finding}" for finding in report["findings"]], ""]
    to.write_text(figures.replaced(to.read_text() if to.exists() else "", name, "\n".join([*lines, ""])))
    if to.resolve() == figures.RELIABILITY:
        figures.write()


def _tables(report: dict[str, Any]) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    promises = [
        [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()] for row in report["promises"]
    ]
    tables: list[tuple[str, Sequence[str], list[Sequence[str]]]] = [
        ("The promises", ["", *list(report["promises"][0])[1:]], list(promises)),
        ("Figures", ["what", "how many"], list(counts(report))),
        ("Answers to clients", ["answer", "times"], _counts(report["answers"])),
    ]
    if "faults" in report:
        total = f"{sum(report['faults'].values()):,} faults, {report['kills']:,} of them kills"
        tables.append((total, ["fault", "times"], _counts(report["faults"])))
    return tables


def _counts(counts: dict[str, int]) -> list[Sequence[str]]:
    return [(name, f"{count:,}") for name, count in sorted(counts.items())]


def _left(header: Sequence[str]) -> int:
    """How many columns contain words."""
    return 2 if "promise" in header else 1


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
