"""How long each file of tests takes: `make test-times` measures it, and the longest files start first."""

import csv
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

TABLE: Final = Path(__file__).parents[1] / "times.csv"
# A file that was never measured starts with the long ones.
UNKNOWN_SECONDS: Final = 30.0

_PROPERTY: Final = "processor_seconds"
_OF_SERVERS: Final = "processor_seconds_of_servers"
_is_measured: Final = "MEASURE_TEST_TIMES" in os.environ
_files: Final[defaultdict[str, defaultdict[str, float]]] = defaultdict(lambda: defaultdict(float))
_processor_seconds_before = 0.0
_server_seconds = 0.0
_is_last = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No worker begins a long file when the others have finished."""
    with TABLE.open() as table:
        seconds = {row["file"]: float(row["wall"]) for row in csv.DictReader(table)}
    items.sort(key=lambda item: -seconds.get(_file(item.nodeid), UNKNOWN_SECONDS))


def pytest_collection_finish() -> None:
    global _processor_seconds_before
    _processor_seconds_before = _processor_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    global _is_last
    _is_last = nextitem is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    global _processor_seconds_before
    report = yield
    processor_seconds = _processor_seconds()
    # After its last test, a worker ends the PostgreSQL of all its tests, whose time belongs to no single file.
    name = _OF_SERVERS if report.when == "teardown" and _is_last else _PROPERTY
    report.user_properties.append((name, processor_seconds - _processor_seconds_before))
    _processor_seconds_before = processor_seconds
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global _server_seconds
    _server_seconds += sum(float(str(value)) for name, value in report.user_properties if name == _OF_SERVERS)
    file = _files[_file(report.nodeid)]
    file["tests"] += report.when == "call"
    file["wall"] += report.duration
    file["setup"] += report.duration if report.when == "setup" else 0
    file["processor"] += sum(float(str(value)) for name, value in report.user_properties if name == _PROPERTY)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _is_measured:
        return
    longest = sorted(_files, key=lambda file: -_files[file]["wall"])
    with TABLE.open("w") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(("file", "tests", "wall", "processor", "waiting", "setup"))
        for name in longest:
            file = _files[name]
            waiting = max(file["wall"] - file["processor"], 0)
            shown = (file["wall"], file["processor"], waiting, file["setup"])
            rows.writerow((name, int(file["tests"]), *(f"{seconds:.1f}" for seconds in shown)))
    tests, wall, processor = (sum(file[name] for file in _files.values()) for name in ("tests", "wall", "processor"))
    terminalreporter.write_line(
        f"{TABLE}: {tests:.0f} tests, {wall:.0f} worker-seconds, {processor:.0f} of the processor, and "
        f"{_server_seconds:.0f} of PostgreSQL for all tests"
    )


def _processor_seconds() -> float:
    """Of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
