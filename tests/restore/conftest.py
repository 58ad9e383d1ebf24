"""The event loop of these tests."""

from tests.support.steady_loop import steady as pytest_asyncio_loop_factories  # noqa: F401 (pytest's name)
