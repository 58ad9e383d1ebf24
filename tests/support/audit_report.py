"""The verdict on a town after crashes or chaos: the audit's table and the figures, to be seen or kept as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.duplicate_mail import count_duplicates
from tests.support.whole_service import WholeService


async def audit_result(whole_service: WholeService) -> dict[str, Any]:
    """What the audit says of a town at rest, and its figures."""
    said = await whole_service.audit()
    service = whole_service.processes.service
    said["mails"] = await service.value("SELECT count(*) FROM messages")
    said["recipients"] = await service.value("SELECT count(*) FROM recipients")
    said["attempts"] = await service.value("SELECT count(*) FROM attempts")
    said["orphans"] = await whole_service.processes.orphans()
    said["answers"] = dict(sorted(whole_service.answers.items()))
    said["copies"] = (await count_duplicates(whole_service.processes.log, whole_service.under_way)).told()
    return said


def is_failed(said: dict[str, Any]) -> bool:
    return bool(said["is_broken"] or said["copies"]["is_exceeded"])


def figures(said: dict[str, Any]) -> list[tuple[str, str]]:
    copies = said["copies"]
    by_death = copies["orphaned"] + copies["unexplained"]
    return [
        ("mails", f"{said['mails']:,}"),
        ("recipients", f"{said['recipients']:,}"),
        ("attempts", f"{said['attempts']:,}"),
        ("attempts left without an outcome", f"{said['orphans']:,}"),
        ("deaths of a delivery worker", f"{copies['deaths']:,}"),
        ("connections at receiving servers at those moments", f"{copies['connections_at_deaths']:,}"),
        (
            "**duplicates after a death ≤ recipients in sessions open at the deaths**",
            f"**{_held_against(by_death, copies['under_way_at_deaths'])}**",
        ),
        ("times that the database went out of the workers' sight", f"{copies['partings']:,}"),
        (
            "**duplicates of a worker given up for dead ≤ recipients in sessions open then**",
            f"**{_held_against(copies['late'], copies['under_way_at_partings'])}**",
        ),
        ("duplicates that nothing on record explains", f"{copies['unexplained']:,}"),
        ("besides: copies of mail that a server took, and hung up", f"{copies['ambiguous']:,}"),
    ]


def _held_against(number: int, bound: int) -> str:
    return f"{number:,} {'≤' if number <= bound else '>'} {bound:,}"


def show(said: dict[str, Any], console: Console) -> None:
    for title, header, rows in _tables(said):
        table = Table(title=title)
        for number, column in enumerate(header):
            table.add_column(column, justify="left" if number < _left(header) else "right", no_wrap=True)
        for row in rows:
            table.add_row(*[cell.replace("**", "") for cell in row])
        console.print(table)
    for finding in said["findings"]:
        console.print(finding, highlight=False)


def write(said: dict[str, Any], title: str, to: Path) -> None:
    """A section of Markdown."""
    lines = [f"### {title}", ""]
    for caption, header, rows in _tables(said):
        sides = ["---" if number < _left(header) else "---:" for number in range(len(header))]
        lines += [f"{caption}:", "", _line(header), _line(sides), *map(_line, rows), ""]
    if said["findings"]:
        lines += [*[f"- {finding}" for finding in said["findings"]], ""]
    to.write_text("\n".join(lines))


def _tables(said: dict[str, Any]) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    promises = [
        [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()] for row in said["promises"]
    ]
    tables: list[tuple[str, Sequence[str], list[Sequence[str]]]] = [
        ("The promises", ["", *list(said["promises"][0])[1:]], list(promises)),
        ("Figures", ["what", "how many"], list(figures(said))),
        ("Answers to clients", ["answer", "times"], _counts(said["answers"])),
    ]
    if "faults" in said:
        total = f"{sum(said['faults'].values()):,} faults, {said['kills']:,} of them kills"
        tables.append((total, ["fault", "times"], _counts(said["faults"])))
    return tables


def _counts(counts: dict[str, int]) -> list[Sequence[str]]:
    return [(name, f"{count:,}") for name, count in sorted(counts.items())]


def _left(header: Sequence[str]) -> int:
    """How many columns hold words."""
    return 2 if "promise" in header else 1


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
