"""What one run of a load generator came to, and the watch that times it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.processes import cpu_seconds


class LoadError(RuntimeError):
    """A load generator, or the server under it, failed; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time is in microseconds a message: of our server, of PostgreSQL, of the generator."""

    messages: int
    per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    postgres_cpu_us: float
    generator_cpu_us: float


@dataclass(slots=True)
class Watch:
    """Seconds of processor time that passed while the load ran."""

    server: float = 0.0
    postgres: float = 0.0
    generator: float = 0.0


@contextmanager
def watched(*, postgres: int, server: int | None = None) -> Iterator[Watch]:
    """Watches the families of two processes, and whatever this one starts and waits for meanwhile."""
    watch = Watch()
    before = _reading(postgres, server)
    yield watch
    after = _reading(postgres, server)
    watch.postgres, watch.server, watch.generator = (late - early for early, late in zip(before, after, strict=True))


def _reading(postgres: int, server: int | None) -> tuple[float, float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        cpu_seconds(postgres),
        0.0 if server is None else cpu_seconds(server),
        children.ru_utime + children.ru_stime,
    )
