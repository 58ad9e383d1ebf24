"""One event loop for all tests, so that connections to a database outlive the test; and the flows of accounts."""

from collections.abc import AsyncIterator

import pytest

from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Database
from tests.flows.account_flows import AccountFlows, open_account_flows
from tests.support.shared_loop import *  # noqa: F403


@pytest.fixture
async def flows(database: Database) -> AsyncIterator[AccountFlows]:
    async with open_account_flows(database) as opened:
        yield opened


@pytest.fixture
async def acme(flows: AccountFlows) -> AccountId:
    return await flows.account("Acme")
