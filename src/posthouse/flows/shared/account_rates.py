"""A rate limit per account in the memory of this process, for requests that leave nothing in the database."""

from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.rules.ids import AccountId

AccountRates = MemoryRates[AccountId]
