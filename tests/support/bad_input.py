"""Bad input: how many inputs a run tries, how samples are mutated, and the table of what was tried.

A test names its surface and a number of inputs; `FUZZ_TIMES` multiplies it (CI: a quarter, `make fuzz`: 20). CI's
inputs are the same in every run, so that it fails only for what changed; other runs have new ones. Hypothesis shows a
failure in its smallest form, with the line that repeats it.
"""

import functools
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some

TIMES: Final = float(os.environ.get("FUZZ_TIMES", "0.25"))
IS_REPEATED: Final = TIMES < 1
TRIED: Final[Counter[str]] = Counter()
_MARK: Final = "fuzz"

# A busy machine is no reason to fail; a failing example is printed with what reproduces it.
settings.register_profile("posthouse", deadline=None, print_blob=not IS_REPEATED, derandomize=IS_REPEATED)
settings.load_profile("posthouse")


def new_seed() -> int:
    """For a test's own choices: always 1 in CI, otherwise a new one; a failure shows it."""
    seed = 1 if IS_REPEATED else random.randrange(1 << 32)
    print(f"seed {seed}")
    return seed


def inputs(count: int) -> int:
    """The number of inputs that this run tries."""
    return max(1, round(count * TIMES))


def bad_input(surface: str, count: int, *, each: int = 1) -> Callable[[Any], Any]:
    """Above `@given`: the test is one of this surface's, and is given `count` examples of `each` inputs."""

    def prepare(test: Any) -> Any:
        inner = test.hypothesis.inner_test

        @functools.wraps(inner)
        def counted(*given: Any, **named: Any) -> Any:
            TRIED[surface] += each
            return inner(*given, **named)

        test.hypothesis.inner_test = counted
        slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
        sized = settings(max_examples=inputs(count), deadline=None, suppress_health_check=slow)(test)
        return getattr(pytest.mark, _MARK)(surface)(sized)

    return prepare


@some.composite
def spoiled(draw: some.DrawFn, samples: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    """A sample in which some bytes are gone, others are in their place, or a part of another sample."""
    raw = draw(some.sampled_from(samples))
    for _ in range(draw(some.integers(1, 6))):
        begin = draw(some.integers(0, len(raw)))
        end = begin + draw(some.sampled_from((0, 0, 1, 2, 20, 200)))
        raw = raw[:begin] + draw(_put(samples, pieces)) + raw[end:]
    return raw


@some.composite
def _put(draw: some.DrawFn, samples: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    match draw(some.integers(0, 5)):
        case 0:
            return b""
        case 1:
            return draw(some.binary(max_size=4))
        case 2:
            other = draw(some.sampled_from(samples))
            begin = draw(some.integers(0, len(other)))
            return other[begin : begin + draw(some.integers(1, 300))]
        case _:
            return draw(some.sampled_from(pieces))


# pytest's own: tests/conftest.py defines them under these names.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker(_MARK)) is not None:
            item.user_properties.append((_MARK, mark.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.markexpr != _MARK:
        return
    reports = [report for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    faults = Counter(surface for report in reports for name, surface in report.user_properties if name == _MARK)
    terminalreporter.section(f"bad input, {TIMES:g} times CI's size")
    terminalreporter.write_line(f"{'Surface':<44}{'Inputs':>12}{'Faults':>8}")
    for surface in sorted(TRIED | faults):
        terminalreporter.write_line(f"{surface:<44}{TRIED[surface]:>12,}{faults[surface]:>8}")
    terminalreporter.write_line(f"{'':<44}{TRIED.total():>12,}{faults.total():>8}")
