"""The flows of a process, by name and by class."""

from functools import cached_property

from posthouse.clock import DatabaseClock
from posthouse.compose.flows import Flows
from posthouse.entrypoints.http.app import create_router
from posthouse.entrypoints.http.route_context import OperationRoute
from posthouse.rules.credential import Actor
from posthouse.store.postgres import Database
from tests.support.service import service_settings


async def test_every_flow_is_created_once_and_found_by_its_class(database_url: str, database: Database) -> None:
    flows = Flows(service_settings(database_url), database, DatabaseClock(), intake_database=database)
    names = [name for name, each in vars(Flows).items() if isinstance(each, cached_property)]
    for found in [getattr(flows, name) for name in names if name[0] != "_" and name != "service_mail"]:
        if type(found).__module__.startswith("posthouse.flows."):
            assert flows[type(found)] is found


async def test_the_process_has_every_flow_that_an_operation_names(database_url: str, database: Database) -> None:
    flows = Flows(service_settings(database_url), database, DatabaseClock(), intake_database=database)
    named = {kind for route in create_router().routes if isinstance(route, OperationRoute) for kind in route.flows}
    assert len(named) > 30
    for kind in named:
        assert type(flows[kind]) is kind


async def test_an_operators_flow_shares_all_but_the_name_in_the_log(database_url: str, database: Database) -> None:
    flow = Flows(service_settings(database_url), database, DatabaseClock()).message_detail
    of_operator = flow.by(Actor(None, "ada@example.com"))
    assert {name for name, value in vars(flow).items() if vars(of_operator)[name] is not value} == {"_operator_log"}


async def test_a_check_asks_dns_again(database_url: str, database: Database) -> None:
    flows = Flows(service_settings(database_url), database, DatabaseClock())
    assert flows.doctor is not flows.doctor
