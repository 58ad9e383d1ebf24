"""What several tests of delivery start with."""

from collections.abc import AsyncIterator

import pytest

from posthouse.flows.operate.sending_addresses import SendingAddresses
from tests.support.certificates import Certificates
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow


@pytest.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org", "example.net", "outlook.com")
        yield flow


@pytest.fixture
def addresses(flow: DeliveryFlow) -> SendingAddresses:
    return SendingAddresses(context(flow.steps.database, flow.clock))


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates.make()
