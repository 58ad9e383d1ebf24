"""Carrying mail over real sockets, with a real name server, to servers that behave as their addresses say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_address

import pytest

from posthouse.compose.connections import opportunistic_tls
from posthouse.randomness import SeededRandomness
from posthouse.rules import outcome
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


async def carry(
    carrier: SmtpCarrier,
    *recipients: str,
    destination: str = DOMAIN,
    may_send: bool = True,
    is_first_attempt: bool = False,
) -> CarrierResult:
    to = recipients or ("ada@example.com",)
    request = CarrierRequest("bounces+x@example.org", to, MESSAGE, is_first_attempt=is_first_attempt)
    return await carrier.carry(destination, request, lambda: may_send)


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


@pytest.mark.parametrize(
    "behaviour", ["554-connect", "421-connect", "drop-connect", "hang-connect", "421-ehlo", "530-mail"]
)
async def test_a_failure_before_mail_tries_the_next_server(flow: CarrierFlow, behaviour: str) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    async with SmtpReceiver(behaviour, host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carried = await carry(flow.carrier(receiver.port))
    assert kinds(carried) == [OutcomeKind.DELIVERED]
    assert carried.mx_host == "mx2.example.com"


async def test_an_unreachable_server_leads_to_the_next(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    async with SmtpReceiver(host="127.0.0.3") as receiver:
        carried = await carry(flow.carrier(receiver.port))
    assert kinds(carried) == [OutcomeKind.DELIVERED]


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


async def test_all_servers_failing_defers_with_the_last_reply(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    async with SmtpReceiver("554-connect", host="127.0.0.2", behaviours={"127.0.0.3": "421-connect"}) as receiver:
        carried = await carry(flow.carrier(receiver.port))
    verdict = judge(carried.results[0])
    assert (verdict.kind, verdict.code) == (OutcomeKind.DEFERRED, 421)


async def test_each_recipient_has_its_own_result(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry(flow.carrier(receiver.port), "ada@x.example", "550-rcpt@x.example", "452-rcpt@x.example")
    assert kinds(carried) == [OutcomeKind.DELIVERED, OutcomeKind.BOUNCED, OutcomeKind.DEFERRED]


async def test_a_withdrawn_message_is_not_sent(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry(flow.carrier(receiver.port), may_send=False)
        assert receiver.accepted == []
    verdict = judge(carried.results[0])
    assert (verdict.kind, verdict.ambiguous) == (OutcomeKind.DEFERRED, False)


async def test_a_domain_without_mx_hosts_is_its_own_server(flow: CarrierFlow) -> None:
    flow.nameserver.records[DOMAIN, "A"] = ["127.0.0.2"]
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        assert kinds(await carry(flow.carrier(receiver.port))) == [OutcomeKind.DELIVERED]


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


async def test_a_private_address_is_never_connected_to(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2", "10.0.0.1", "169.254.169.254")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry(flow.carrier(receiver.port, may_connect=is_public))
        assert carried.results == (Forbidden(),)
        assert receiver.connections == 0


async def test_the_allowed_address_of_several_is_used(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2", "127.0.0.3")
    async with SmtpReceiver("554-connect", host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carrier = flow.carrier(receiver.port, may_connect=lambda received: received == IPv4Address("127.0.0.3"))
        assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
        assert receiver.connections == 1


async def test_a_connection_is_reused_and_closed_when_idle(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port)
        for _ in range(5):
            assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
        assert receiver.connections == 1
        carrier.close_idle(float("-inf"))
        await carry(carrier)
        assert receiver.connections == 1
        carrier.close_idle(asyncio.get_running_loop().time() + IDLE_SECONDS_MAX + 1)
        await carry(carrier)
        assert receiver.connections == 2
        carrier.close_idle(0, all_of_them=True)


class CountedConversations(set[SmtpConversation]):
    most = 0

    def add(self, conversation: SmtpConversation) -> None:
        super().add(conversation)
        self.most = max(self.most, len(self))


def requested(connections: LaneConnections) -> CarrierRequest:
    return CarrierRequest("bounces+x@example.org", ("ada@example.com",), MESSAGE, connections=connections)


async def test_a_lanes_connections_are_closed_those_in_use_once_they_are_idle(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port)
        lane, other = LaneConnections(lambda: 10), LaneConnections(lambda: 10)
        for _ in range(2):
            await carrier.carry(DOMAIN, requested(lane), lambda: True)
        assert receiver.connections == 1

        def close_before_the_dot() -> bool:
            lane.close()
            return True

        carried = await carrier.carry(DOMAIN, requested(lane), close_before_the_dot)
        assert (kinds(carried), receiver.connections) == ([OutcomeKind.DELIVERED], 1)
        for _ in range(2):
            await carrier.carry(DOMAIN, requested(other), lambda: True)
        assert receiver.connections == 2
        other.close()
        await eventually(lambda: not receiver.conversations)
        await carrier.carry(DOMAIN, requested(LaneConnections(lambda: 10)), lambda: True)
        assert receiver.connections == 3
        carrier.close_idle(0, all_of_them=True)


async def test_a_lane_that_opens_a_connection_at_its_limit_closes_an_idle_one_elsewhere(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    flow.nameserver.records["other.example", "MX"] = ["10 mx.other.example."]
    flow.nameserver.records["mx.other.example", "A"] = ["127.0.0.3"]
    async with SmtpReceiver(host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carrier = flow.carrier(receiver.port)
        wide, narrow = LaneConnections(lambda: 2), LaneConnections(lambda: 1)
        for destination in (DOMAIN, "other.example"):
            await carrier.carry(destination, requested(wide), lambda: True)
        assert len(receiver.conversations) == 2
        wide.close()
        await eventually(lambda: not receiver.conversations)
        for destination in (DOMAIN, "other.example"):
            await carrier.carry(destination, requested(narrow), lambda: True)
        await eventually(lambda: len(receiver.conversations) == 1)
        carrier.close_idle(0, all_of_them=True)


@pytest.mark.parametrize("per_connection_max", [1, 100])
async def test_a_server_never_sees_more_connections_than_the_lane_may_have(
    flow: CarrierFlow, per_connection_max: int
) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    flow.nameserver.records["other.example", "MX"] = ["10 mx.other.example."]
    flow.nameserver.records["mx.other.example", "A"] = ["127.0.0.3"]
    async with SmtpReceiver(host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        conversations = receiver.conversations = CountedConversations()
        carrier = flow.carrier(receiver.port)
        slots = asyncio.Semaphore(3)
        lane = LaneConnections(lambda: 3)

        async def send(number: int) -> None:
            async with slots:
                request = replace(requested(lane), per_connection_max=per_connection_max)
                carried = await carrier.carry((DOMAIN, "other.example")[number % 2], request, lambda: True)
                assert kinds(carried) == [OutcomeKind.DELIVERED]

        await asyncio.gather(*[send(number) for number in range(30)])
        assert conversations.most == 3
        carrier.close_idle(0, all_of_them=True)


async def test_a_server_that_ignores_quit_is_waited_for_only_a_little(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver("hang-quit", host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port)
        request = replace(requested(LaneConnections(lambda: 1)), per_connection_max=1)
        for _ in range(2):
            assert kinds(await carrier.carry(DOMAIN, request, lambda: True)) == [OutcomeKind.DELIVERED]
        assert receiver.connections == 2


async def test_a_stale_connection_is_not_an_attempt(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port)
        await carry(carrier)
        for conversation in list(receiver.conversations):
            conversation.cut()
        assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
        assert len(receiver.accepted) == 2
        carrier.close_idle(0, all_of_them=True)


async def test_refused_starttls_leads_to_the_next_server(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    flow.mx_host(20, "mx2.example.com", "127.0.0.3")
    async with SmtpReceiver("starttls-refused", host="127.0.0.2", behaviours={"127.0.0.3": ""}) as receiver:
        carrier = flow.carrier(receiver.port, tls=opportunistic_tls())
        carried = await carry(carrier)
        carrier.close_idle(0, all_of_them=True)
    assert (kinds(carried), carried.mx_host) == ([OutcomeKind.DELIVERED], "mx2.example.com")


@pytest.mark.parametrize("behaviour", ["", "starttls-broken"])
async def test_broken_opportunistic_tls_falls_back_to_cleartext(flow: CarrierFlow, behaviour: str) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    async with SmtpReceiver(behaviour, host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port, tls=opportunistic_tls())
        carried = await carry(carrier)
        carrier.close_idle(0, all_of_them=True)
    assert kinds(carried) == [OutcomeKind.DELIVERED]
    assert carried.tls is None
    assert isinstance(carried.results[0], outcome.Replied)


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
        assert receiver.connections == 1
    assert kinds(carried) == [OutcomeKind.DEFERRED]


async def test_a_first_attempt_at_silent_servers_is_short_and_tries_each(flow: CarrierFlow) -> None:
    deadlines = replace(DEADLINES, greeting_seconds=60.0, opening_seconds_total=60.0, first_seconds_total=3.0)
    async with silent_servers(flow) as receiver, asyncio.timeout(HANG_SECONDS):
        carried = await carry(flow.carrier(receiver.port, deadlines=deadlines), is_first_attempt=True)
        assert receiver.connections == len(SILENT)
    assert kinds(carried) == [OutcomeKind.DEFERRED]


async def test_a_server_that_answered_before_has_the_full_time(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx.example.com", "127.0.0.2")
    deadlines = replace(DEADLINES, first_seconds_total=0.001)
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port, deadlines=deadlines)
        assert kinds(await carry(carrier)) == [OutcomeKind.DELIVERED]
        carrier.close_idle(0, all_of_them=True)
        assert kinds(await carry(carrier, is_first_attempt=True)) == [OutcomeKind.DELIVERED]
        carrier.close_idle(0, all_of_them=True)


def route(ip: str, hostname: str) -> Route:
    return Route(ip_address(ip), hostname)


async def carry_by(carrier: SmtpCarrier, *routes: Route) -> CarrierResult:
    request = CarrierRequest("bounces+x@example.org", ("ada@example.com",), MESSAGE, routes=routes)
    return await carrier.carry(DOMAIN, request, lambda: True)


async def test_mail_leaves_from_its_routes_address_and_greets_with_its_name(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry_by(flow.carrier(receiver.port), route("127.0.0.7", "mta7.example.com"))
        assert (kinds(carried), carried.source_ip) == ([OutcomeKind.DELIVERED], "127.0.0.7")
        assert [(mail.source, mail.greeting) for mail in receiver.accepted] == [("127.0.0.7", "mta7.example.com")]


async def test_idle_sessions_are_separate_by_route(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    seven, eight = route("127.0.0.7", "mta7.example.com"), route("127.0.0.8", "mta8.example.com")
    renamed = route("127.0.0.7", "new7.example.com")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carrier = flow.carrier(receiver.port)
        for routes in [(seven,), (eight,), (), (seven,), (eight,), (), (renamed,)]:
            assert kinds(await carry_by(carrier, *routes)) == [OutcomeKind.DELIVERED]
        assert [(mail.source, mail.greeting) for mail in receiver.accepted] == [
            ("127.0.0.7", "mta7.example.com"),
            ("127.0.0.8", "mta8.example.com"),
            ("127.0.0.1", "posthouse.example.com"),
            ("127.0.0.7", "mta7.example.com"),
            ("127.0.0.8", "mta8.example.com"),
            ("127.0.0.1", "posthouse.example.com"),
            ("127.0.0.7", "new7.example.com"),
        ]
        assert receiver.connections == 4
        carrier.close_idle(asyncio.get_running_loop().time(), all_of_them=True)


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


async def test_a_destination_that_no_route_leads_to_is_deferred(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry_by(flow.carrier(receiver.port), route("::1", "six.example.com"))
    (verdict,) = [judge(result) for result in carried.results]
    assert (verdict.kind, receiver.connections) == (OutcomeKind.DEFERRED, 0)
    assert verdict.text.startswith("the destination has no IPv6 address, and mail leaves from no other")


async def test_a_route_from_another_machines_address_fails_before_the_server_is_reached(flow: CarrierFlow) -> None:
    flow.mx_host(10, "mx1.example.com", "127.0.0.2")
    async with SmtpReceiver(host="127.0.0.2") as receiver:
        carried = await carry_by(flow.carrier(receiver.port), route("192.0.2.1", "mta.example.com"))
    assert (kinds(carried), carried.source_ip, receiver.connections) == ([OutcomeKind.DEFERRED], "192.0.2.1", 0)
