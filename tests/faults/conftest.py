"""Shared by the tests of faults."""

import pytest

from tests.support.smtp_listeners import SmtpListeners


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> SmtpListeners:
    """Ports and a certificate for a module's submission and inbound servers."""
    return SmtpListeners.make(tmp_path_factory.mktemp("listeners"))
