"""The flows of the operator's routes: those of the commands, with the name of who uses them for the log."""

from collections.abc import Callable
from typing import Protocol

from posthouse.flows.account.resends import Resends
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.address_warm_ups import AddressWarmUps
from posthouse.flows.operate.addresses import Addresses
from posthouse.flows.operate.doctor import Doctor
from posthouse.flows.operate.lanes import Lanes
from posthouse.flows.operate.message_lookup import MessageLookup
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.nearest_limits import NearestLimits
from posthouse.flows.operate.provider_delays import ProviderDelays
from posthouse.flows.operate.queue_changes import QueueChanges
from posthouse.flows.operate.users import Users
from posthouse.rules.actor import Actor


class OperatorFlows(Protocol):
    @property
    def accounts(self) -> Accounts: ...
    @property
    def addresses(self) -> Addresses: ...
    @property
    def address_warm_ups(self) -> AddressWarmUps: ...
    @property
    def doctor(self) -> Doctor: ...
    @property
    def lanes(self) -> Lanes: ...
    @property
    def message_lookup(self) -> MessageLookup: ...
    @property
    def monitor(self) -> Monitor: ...
    @property
    def nearest_limits(self) -> NearestLimits: ...
    @property
    def provider_delays(self) -> ProviderDelays: ...
    @property
    def queue_changes(self) -> QueueChanges: ...
    @property
    def resends(self) -> Resends: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def users(self) -> Users: ...


FlowsOf = Callable[[Actor], OperatorFlows]
