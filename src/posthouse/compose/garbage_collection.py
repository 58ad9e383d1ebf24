"""Garbage collection of a long-running process."""

import gc


def collect_rarely() -> None:
    """Loaded modules stay for good, and requests and mails make no cycles: collect rarely, and new objects only."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
