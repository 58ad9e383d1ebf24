"""Each test runs once, a file that can't be imported is an error, and a fixed wait says what it is for."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.eventually import HANG_SECONDS

FILES = {
    "first/test_before.py": "def test_sum(): assert 1 + 1 == 2",
    "first/test_none_is_asked_for.py": "import pytest\n\n@pytest.mark.slow\ndef test_slow(): pass",
    "pytest.ini": "[pytest]\nmarkers = slow",
    "test_broken.py": "import a_module_that_does_not_exist",
    "test_marked.py": "import pytest\n\n@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_quick(): pass",
    "test_wrong.py": "def test_sum(): assert 1 + 1 == 3\n\ndef test_product(): pass",
}
PLUGINS = ("no:cacheprovider", "no:schemathesis", "no:hypothesispytest", "tests.support.files_in_turn")


def test_a_worker_runs_each_test_that_is_asked_for_and_reports_files_that_cannot_be_imported(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "--numprocesses=1", "-m", "not slow", *plugins],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1].split(" in ")[0]) == (1, "1 failed, 3 passed, 1 error")
    assert {line.split(" - ")[0] for line in lines} >= {"FAILED test_wrong.py::test_sum", "ERROR test_broken.py"}


def test_a_wait_of_fixed_length_says_what_it_is_for() -> None:
    waits = re.compile(r"\bsleep\((?!0\))[0-9][^#\n]*$", re.MULTILINE)
    files = Path(__file__).parent.rglob("*.py")
    found = {file.name: [match.group() for match in waits.finditer(file.read_text())] for file in files}
    assert not {name: matches for name, matches in found.items() if matches}
