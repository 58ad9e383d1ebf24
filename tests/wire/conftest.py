"""Certificates; and both event loops for our own protocols: they differ in when they write, pause and raise."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from posthouse.compose.connections import opportunistic_tls
from posthouse.wire.tls import TlsPolicy, TlsUse
from tests.support.certificates import Certificates
from tests.support.steady_loop import SteadyLoop

ON_BOTH_LOOPS = ("test_webhook_client.py", "test_smtp.py", "test_smtp_opening.py", "test_smtp_peers.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": SteadyLoop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": SteadyLoop}


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return Certificates.make()


@pytest.fixture(scope="session")
def verified(certificates: Certificates) -> TlsPolicy:
    return TlsPolicy(TlsUse.REQUIRED_VERIFIED, certificates.trusting())


@pytest.fixture(scope="session")
def opportunistic() -> TlsPolicy:
    return opportunistic_tls()
