"""Carrying mail over real sockets, with a real name server, to servers that behave as their addresses say.

Which server is tried after which fault is in `tests/faults/test_delivery_matrix.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest

from posthouse.randomness import SeededRandomness
from posthouse.rules.outcome import Forbidden, LookupFailure, OutcomeKind, Unresolved, judge
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.route import Route
from posthouse.wire.carrier import IDLE_SECONDS_MAX, CarrierRequest, CarrierResult, LaneConnections, SmtpCarrier
from posthouse.wire.dialogue import SmtpContent
from posthouse.wire.dns import Resolver
from posthouse.wire.smtp import ClientDeadlines
from posthouse.wire.tls import CLEARTEXT, TlsPolicy
from tests.support.delivery_flow import DEADLINES
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nameserver import SERVFAIL, Nameserver
from tests.support.smtp_conversation import SmtpConversation
from tests.support.smtp_receiver import SmtpReceiver

DOMAIN = "example.com"
MESSAGE = SmtpContent(b"Subject: hello\r\n\r\n.a line that begins with a dot\r\n")


def anywhere(_: Address) -> bool:
    return True


@dataclass
class CarrierFlow:
    """A name server, and carriers that ask it."""

    nameserver: Nameserver

    def carrier(
        self,
        port: int,
        *,
        tls: TlsPolicy = CLEARTEXT,
        may_connect: Callable[[Address], bool] = anywhere,
        deadlines: ClientDeadlines = DEADLINES,
    ) -> SmtpCarrier:
        return SmtpCarrier(
            resolver=Resolver([self.nameserver.endpoint], lookup_seconds_max=1.0),
            randomness=SeededRandomness(1),
            hostname="posthouse.example.com",
            tls=tls,
            may_connect=may_connect,
            deadlines=deadlines,
            port=port,
        )

    def mx_host(self, preference: int, host: str, *addresses: str) -> None:
        known = self.nameserver.records.get((DOMAIN, "MX"), ())
        self.nameserver.records[DOMAIN, "MX"] = [*known, f"{preference} {host}."]
        if addresses:
            self.nameserver.records[host, "A"] = addresses


@pytest.fixture
async def flow() -> AsyncIterator[CarrierFlow]:
    async with Nameserver() as nameserver:
        yield CarrierFlow(nameserver)


@pytest.fixture
async def receiver(flow: CarrierFlow) -> AsyncIterator[SmtpReceiver]:
    """The domain's only server."""
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        yield receiver


@pytest.fixture
def carrier(flow: CarrierFlow, receiver: SmtpReceiver) -> Iterator[SmtpCarrier]:
    carrier = flow.carrier(receiver.port)
    yield carrier
    carrier.close_idle(0, all_of_them=True)


async def carry(
    carrier: SmtpCarrier,
    *recipients: str,
    destination: str = DOMAIN,
    is_first_attempt: bool = False,
) -> CarrierResult:
    to = recipients or ("ada@example.com",)
    request = CarrierRequest("bounces+x@example.org", to, MESSAGE, is_first_attempt=is_first_attempt)
    return await carrier.carry(destination, request, lambda: True)


def kinds(carried: CarrierResult) -> list[OutcomeKind]:
    return [judge(result).kind for result in carried.results]


async def test_a_message_reaches_the_most_preferred_server(flow: CarrierFlow) -> None:
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carried = await carry(flow.carrier(receiver.port), "ada@example.com", "bob@example.com")
        assert kinds(carried) == [OutcomeKind.DELIVERED] * 2
        assert (carried.mx_host, carried.remote_ip, carried.tls) == ("mx1.example.com", "127.0.0.2", None)
        assert [received.recipient for received in receiver.accepted] == ["ada@example.com", "bob@example.com"]


@pytest.mark.parametrize("behaviour", ["450-mail", "550-mail", "drop-mail", "drop-data", "451-dot", "lose-dot"])
async def test_a_reply_about_the_mail_is_final_for_the_attempt(flow: CarrierFlow, behaviour: str) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    async with SmtpReceiver(behaviour, host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carried = await carry(flow.carrier(receiver.port))
        assert carried.mx_host == "mx1.example.com"
        assert receiver.connections == 1
    verdict = judge(carried.results[0])
    assert verdict.kind is (OutcomeKind.BOUNCED if behaviour == "550-mail" else OutcomeKind.DEFERRED)
    assert verdict.ambiguous is (behaviour == "lose-dot")


async def test_each_dns_failure_has_its_own_result(flow: CarrierFlow) -> None:
    flow.nameserver.records["null.example", "MX"] = ["0 ."]
    flow.nameserver.zone["bare.example"] = []
    flow.nameserver.script["broken.example"] = SERVFAIL
    flow.nameserver.records["lost.example", "MX"] = ["10 nowhere.example."]
    flow.nameserver.records["half.example", "MX"] = ["10 broken.example."]
    carrier = flow.carrier(9)
    expected = {
        "null.example": LookupFailure.NULL_MX,
        "bare.example": LookupFailure.NO_ADDRESS,
        "broken.example": LookupFailure.NO_ANSWER,
        "unknown.example": LookupFailure.NO_SUCH_NAME,
        "lost.example": LookupFailure.NO_ADDRESS,
        "half.example": LookupFailure.NO_ANSWER,
    }
    for domain, lookup in expected.items():
        result = (await carry(carrier, destination=domain)).results[0]
        assert isinstance(result, Unresolved), domain
        assert result.lookup is lookup, domain


async def test_a_private_address_is_never_connected_to(flow: CarrierFlow, receiver: SmtpReceiver) -> None:
    flow.nameserver.records["mx.example.com", "A"] = ["127.0.0.2", "10.0.0.1", "169.254.169.254"]
    carried = await carry(flow.carrier(receiver.port, may_connect=is_public))
    assert carried.results == (Forbidden(),)
    assert receiver.connections == 0


async def test_the_allowed_address_of_several_is_used(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2", "127.0.0.3")
    async with SmtpReceiver("554-connect", host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carrier = flow.carrier(receiver.port, may_connect=lambda received: received == IPv4Address("127.0.0.3"))
        assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
        assert receiver.connections == 1


async def test_a_connection_is_reused_and_closed_when_idle(carrier: SmtpCarrier, receiver: SmtpReceiver) -> None:
    for _ in range(5):
        assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
    assert receiver.connections == 1
    carrier.close_idle(float("-inf"))
    await carry(carrier)
    assert receiver.connections == 1
    carrier.close_idle(asyncio.get_running_loop().time() + IDLE_SECONDS_MAX + 1)
    await carry(carrier)
    assert receiver.connections == 2


class CountedConversations(set[SmtpConversation]):
    most = 0

    def add(self, conversation: SmtpConversation) -> None:
        super().add(conversation)
        self.most = max(self.most, len(self))


async def carry_in(carrier: SmtpCarrier, lane: LaneConnections, destination: str = DOMAIN, **how: Any) -> None:
    request = CarrierRequest("bounces+x@example.org", ("ada@example.com",), MESSAGE, connections=lane, **how)
    assert kinds(await carrier.carry(destination, request, lambda: True)) == [OutcomeKind.DELIVERED]


async def test_a_lanes_connections_are_closed_those_in_use_once_they_are_idle(
    carrier: SmtpCarrier, receiver: SmtpReceiver
) -> None:
    lane, other = LaneConnections(lambda: 10), LaneConnections(lambda: 10)
    for _ in range(2):
        await carry_in(carrier, lane)
    assert receiver.connections == 1

    def close_before_the_dot() -> bool:
        lane.close()
        return True

    request = CarrierRequest("bounces+x@example.org", ("ada@example.com",), MESSAGE, connections=lane)
    carried = await carrier.carry(DOMAIN, request, close_before_the_dot)
    assert (kinds(carried), receiver.connections) == ([OutcomeKind.DELIVERED], 1)
    for _ in range(2):
        await carry_in(carrier, other)
    assert receiver.connections == 2
    other.close()
    await eventually(lambda: not receiver.conversations)
    await carry_in(carrier, LaneConnections(lambda: 10))
    assert receiver.connections == 3


@pytest.fixture
def destinations(flow: CarrierFlow) -> tuple[str, str]:
    """With a server each."""
    flow.nameserver.records["other.example", "MX"] = ["10 mx.other.example."]
    flow.nameserver.records["mx.other.example", "A"] = ["127.0.0.3"]
    return DOMAIN, "other.example"


async def test_a_lane_that_opens_a_connection_at_its_limit_closes_an_idle_one_elsewhere(
    carrier: SmtpCarrier, receiver: SmtpReceiver, destinations: tuple[str, str]
) -> None:
    wide, narrow = LaneConnections(lambda: 2), LaneConnections(lambda: 1)
    for destination in destinations:
        await carry_in(carrier, wide, destination)
    assert len(receiver.conversations) == 2
    wide.close()
    await eventually(lambda: not receiver.conversations)
    for destination in destinations:
        await carry_in(carrier, narrow, destination)
    await eventually(lambda: len(receiver.conversations) == 1)


@pytest.mark.parametrize("per_connection_max", [1, 100])
async def test_a_server_never_sees_more_connections_than_the_lane_may_have(
    carrier: SmtpCarrier, receiver: SmtpReceiver, destinations: tuple[str, str], per_connection_max: int
) -> None:
    conversations = receiver.conversations = CountedConversations()
    slots = asyncio.Semaphore(3)
    lane = LaneConnections(lambda: 3)

    async def send(number: int) -> None:
        async with slots:
            await carry_in(carrier, lane, destinations[number % 2], per_connection_max=per_connection_max)

    await asyncio.gather(*[send(number) for number in range(30)])
    assert conversations.most == 3


async def test_a_server_that_ignores_quit_is_waited_for_only_a_little(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver("hang-quit", host="127.0.0.2") as receiver:
        carrier, lane = flow.carrier(receiver.port), LaneConnections(lambda: 1)
        for _ in range(2):
            await carry_in(carrier, lane, per_connection_max=1)
        assert receiver.connections == 2


async def test_a_stale_connection_is_not_an_attempt(carrier: SmtpCarrier, receiver: SmtpReceiver) -> None:
    await carry(carrier)
    for conversation in list(receiver.conversations):
        conversation.cut()
    assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
    assert len(receiver.accepted) == 2


SILENT = [f"127.0.0.{number}" for number in range(2, 8)]


def silent_servers(flow: CarrierFlow) -> SmtpReceiver:
    """The domain's six servers accept connections and say nothing."""
    for number, address in enumerate(SILENT):
        flow.mx_host(number, f"mx{number}.example.com", address)
    return SmtpReceiver("hang-connect", host=SILENT[0], behaviours=dict.fromkeys(SILENT[1:], "hang-connect"))


async def test_all_servers_of_a_destination_share_one_deadline(flow: CarrierFlow) -> None:
    deadlines = replace(DEADLINES, greeting_seconds=60.0, opening_seconds_total=60.0, destination_seconds_total=0.5)
    async with silent_servers(flow) as receiver, asyncio.timeout(HANG_SECONDS):
        carried = await carry(flow.carrier(receiver.port, deadlines=deadlines))
        assert receiver.connections < len(SILENT)
    assert kinds(carried) == [OutcomeKind.DEFERRED]


async def test_a_first_attempt_at_silent_servers_is_short_and_tries_each(flow: CarrierFlow) -> None:
    deadlines = replace(DEADLINES, greeting_seconds=60.0, opening_seconds_total=60.0, first_seconds_total=3.0)
    async with silent_servers(flow) as receiver, asyncio.timeout(HANG_SECONDS):
        carried = await carry(flow.carrier(receiver.port, deadlines=deadlines), is_first_attempt=True)
        assert receiver.connections == len(SILENT)
    assert kinds(carried) == [OutcomeKind.DEFERRED]


async def test_a_server_that_answered_before_has_the_full_time(flow: CarrierFlow, receiver: SmtpReceiver) -> None:
    carrier = flow.carrier(receiver.port, deadlines=replace(DEADLINES, first_seconds_total=0.001))
    for is_first_attempt in (False, True):
        assert kinds(await carry(carrier, is_first_attempt=is_first_attempt)) == [OutcomeKind.DELIVERED]
        carrier.close_idle(0, all_of_them=True)


def route(ip: str, hostname: str) -> Route:
    return Route(ip_address(ip), hostname)


async def carry_by(carrier: SmtpCarrier, *routes: Route) -> CarrierResult:
    request = CarrierRequest("bounces+x@example.org", ("ada@example.com",), MESSAGE, routes=routes)
    return await carrier.carry(DOMAIN, request, lambda: True)


async def test_idle_sessions_are_separate_by_route_whose_address_and_name_they_have(
    carrier: SmtpCarrier, receiver: SmtpReceiver
) -> None:
    seven, eight = route("127.0.0.7", "mta7.example.com"), route("127.0.0.8", "mta8.example.com")
    renamed, usual = route("127.0.0.7", "new7.example.com"), route("127.0.0.1", "posthouse.example.com")
    for routes in [(seven,), (eight,), (), (seven,), (eight,), (), (renamed,)]:
        carried = await carry_by(carrier, *routes)
        assert kinds(carried) == [OutcomeKind.DELIVERED]
        assert carried.source_ip == (str(routes[0].source) if routes else None)
    sent_by = [route(mail.source, mail.greeting) for mail in receiver.accepted]
    assert sent_by == [seven, eight, usual, seven, eight, usual, renamed]
    assert receiver.connections == 4


async def test_a_route_leads_only_to_servers_of_its_family(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.nameserver.records["mx1.example.com", "AAAA"] = ["::1"]
    six = route("::1", "six.example.com")
    async with SmtpReceiver(host="::1", behaviours={"127.0.0.2": "554-connect"}) as receiver:
        carrier = flow.carrier(receiver.port)
        carried = await carry_by(carrier, six)
        assert (carried.remote_ip, carried.source_ip, receiver.connections) == ("::1", "::1", 1)
        carrier.close_idle(asyncio.get_running_loop().time(), all_of_them=True)
        # With a route of each family both are tried, each server over its own.
        carried = await carry_by(carrier, route("127.0.0.7", "mta7.example.com"), six)
        assert (carried.remote_ip, carried.source_ip, receiver.connections) == ("::1", "::1", 3)
        assert [mail.greeting for mail in receiver.accepted] == ["six.example.com"] * 2


async def test_a_destination_that_no_route_leads_to_is_deferred(carrier: SmtpCarrier, receiver: SmtpReceiver) -> None:
    carried = await carry_by(carrier, route("::1", "six.example.com"))
    (verdict,) = [judge(result) for result in carried.results]
    assert (verdict.kind, receiver.connections) == (OutcomeKind.DEFERRED, 0)
    assert verdict.text.startswith("the destination has no IPv6 address, and mail leaves from no other")


async def test_a_route_from_another_machines_address_fails_before_the_server_is_reached(
    carrier: SmtpCarrier, receiver: SmtpReceiver
) -> None:
    carried = await carry_by(carrier, route("192.0.2.1", "mta.example.com"))
    assert (kinds(carried), carried.source_ip, receiver.connections) == ([OutcomeKind.DEFERRED], "192.0.2.1", 0)
