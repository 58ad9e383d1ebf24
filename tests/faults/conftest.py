"""Shared by the tests of faults."""

import pytest

from tests.support.smtp_listeners import SmtpListeners
from tests.support.steady_loop import steady as pytest_asyncio_loop_factories  # noqa: F401 (pytest's name)


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> SmtpListeners:
    """Ports and a certificate for a module's submission and inbound servers."""
    return SmtpListeners.make(tmp_path_factory.mktemp("listeners"))
