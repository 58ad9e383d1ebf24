"""Deadlines in tests of entry points stand still while the machine does."""

from tests.support.steady_loop import steady as pytest_asyncio_loop_factories  # noqa: F401 (pytest's name)
