"""Plants each fault of tests/mutations in a copy of the last commit, and runs tests until one finds it."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FAULTS: Final = ROOT / "tests/mutations"
# The tests of each area, the cheapest first. Those in a patch's line `# tests:` come before them.
AREAS: Final = {
    "accept": "tests/rules tests/flows/accept tests/flows/shared tests/acceptance",
    "idempotency": "tests/rules tests/flows/accept tests/acceptance/test_idempotency.py tests/acceptance",
    "credits": "tests/rules tests/store tests/flows/account tests/flows/operate tests/flows/deliver tests/acceptance",
    "claims": "tests/rules tests/store tests/flows/deliver tests/flows/shared tests/faults",
    "outcomes": "tests/rules tests/store tests/flows/deliver tests/flows/account tests/acceptance",
    "lanes": "tests/rules tests/store tests/flows/deliver tests/flows/operate tests/cli",
    "webhooks": "tests/rules tests/store tests/wire tests/flows/webhooks tests/acceptance",
    "inbound": "tests/rules tests/mail tests/store tests/flows/inbound tests/entrypoints/smtp tests/acceptance",
    "sessions": "tests/rules tests/store tests/flows/account tests/acceptance",
    "templates": "tests/rules tests/mail tests/flows/account tests/acceptance",
    "erasure": "tests/rules tests/store tests/flows/operate tests/flows/account tests/acceptance",
    "migrations": "tests/store tests/flows tests/acceptance",
}
MARKS: Final = "not long and not nightly"
# A test that hangs fails after its own limit; nothing takes this long.
SECONDS_MAX: Final = 3600
NOT_FOUND: Final = "not found"
HEADING: Final = "| Area | Fault | Found by |"
_failed: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?::\w+)", re.MULTILINE)
_row: Final = re.compile(r"^\| (\w+) \| (\S+) \| (.+) \|$", re.MULTILINE)


def patches(areas: Iterable[str] = AREAS, name: str = "*") -> list[Path]:
    return [patch for area in areas for patch in sorted((FAULTS / area).glob(f"{name}.patch"))]


def likely_tests(patch: Path) -> list[str]:
    return re.findall(r"\S+", "".join(re.findall(r"^# tests:(.*)$", patch.read_text(), re.MULTILINE)))


def refusal(patch: Path, tree: Path = ROOT) -> str:
    """Why it doesn't apply, and what to do; empty if it does."""
    refused = _git(tree, "apply", "--check", str(patch)).stderr
    return refused and (
        f"{refused}{patch.relative_to(ROOT)} no longer applies: plant the same mistake in today's code, write "
        "`git diff -U2` below its line `# tests:`, and undo the change."
    )


class Copy:
    """The last commit, in a directory of its own."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        imported = self._python("-c", "import posthouse; print(posthouse.__file__)").stdout.strip()
        if not Path(imported).is_relative_to(tree):
            raise SystemExit(f"{imported} is imported, which is not the copy in {tree}.")

    @contextmanager
    def planted(self, patch: Path) -> Iterator[None]:
        if refused := refusal(patch, self._tree):
            raise SystemExit(refused)
        _git(self._tree, "apply", str(patch))
        yield
        _git(self._tree, "apply", "--reverse", str(patch))

    def failed_tests(self, tests: Iterable[str], *options: str) -> list[str]:
        known = [test for test in tests if (self._tree / test.partition("::")[0]).exists()]
        if not known:
            return []
        done = self._python("-m", "pytest", "-q", "--tb=no", "-rfE", "-m", MARKS, *options, *known)
        failed = list(dict.fromkeys(_failed.findall(done.stdout)))
        # 0: all passed; 4: a test that was named is gone; 5: there are none.
        if not failed and done.returncode not in (0, 4, 5):
            raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return failed

    def _python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self._tree, env=self._environment, capture_output=True, text=True, timeout=SECONDS_MAX
        )


@contextmanager
def copied_commit() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory(prefix="posthouse-mutations-") as made:
        tree = Path(made).resolve()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
        tree.chmod(0o755)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        yield Copy(tree)


def find(copy: Copy, patch: Path) -> str:
    """The test that finds the fault."""
    with copy.planted(patch):
        failed = copy.failed_tests(likely_tests(patch), "-x")
        failed = failed or copy.failed_tests(AREAS[patch.parent.name].split(), "-x", "-n2", "--dist=loadfile")
    return failed[0] if failed else NOT_FOUND


def write_table(page: Path, found: dict[Path, str]) -> None:
    """Into the table at the end of the page; the rows of faults that were not tried stay."""
    head, _, table = page.read_text().partition(HEADING)
    cells = {(area, fault): cell for area, fault, cell in _row.findall(table)}
    cells |= {(patch.parent.name, patch.stem): f"`{test}`" for patch, test in found.items()}
    keys = [(patch.parent.name, patch.stem) for patch in patches()]
    rows = [f"| {area} | {fault} | {cells[area, fault]} |" for area, fault in keys if (area, fault) in cells]
    page.write_text("\n".join([head + HEADING, "|---|---|---|", *rows, ""]))


def _git(tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--area", nargs="+", default=AREAS, choices=AREAS, help="only the faults of these areas")
    parser.add_argument("--only", default="*", metavar="NAME", help="only this fault, such as 1-all-is-any")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results into the table of this page")
    given = parser.parse_args()
    chosen = patches(given.area, given.only)
    if not chosen:
        raise SystemExit("There is no such fault in tests/mutations.")
    found: dict[Path, str] = {}
    with copied_commit() as copy:
        for number, patch in enumerate(chosen, 1):
            print(f"{number}/{len(chosen)} {patch.parent.name:<12} {patch.stem:<45} ", end="", flush=True)
            began_at = time.monotonic()
            found[patch] = find(copy, patch)
            print(f"{time.monotonic() - began_at:4.0f} s  {found[patch]}", flush=True)
            if given.write:
                write_table(given.write, found)
        # A test that fails in any case has found nothing.
        finders = sorted(set(found.values()) - {NOT_FOUND})
        broken = copy.failed_tests(finders)
    missed = [patch.stem for patch, test in found.items() if test == NOT_FOUND]
    if broken or missed:
        raise SystemExit(f"Not found: {missed}. Fail without a fault as well: {broken}.")


if __name__ == "__main__":
    main()
