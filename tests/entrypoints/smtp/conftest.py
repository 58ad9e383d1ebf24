"""Certificates, and both event loops for the server tests: they differ in when they write, pause and raise."""

import asyncio
import ssl
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.support.certificates import Authority
from tests.support.smtp_service import NAME
from tests.support.steady_loop import SteadyLoop

ON_BOTH_LOOPS = ("test_server.py", "test_server_tls.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": SteadyLoop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": SteadyLoop}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls"), NAME)


@pytest.fixture(scope="session")
def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.ca.configure_trust(context)
    return context
