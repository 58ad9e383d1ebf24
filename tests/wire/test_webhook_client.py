"""Calling webhooks over real sockets, TLS and DNS; and never a socket to a forbidden address."""

import asyncio
import contextlib
import errno
import inspect
import logging
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

import pytest
from aiohttp.connector import AddrInfoType

from posthouse.rules import event
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.wire.dns import Resolver
from posthouse.wire.webhook_client import (
    ANSWER_BYTES_MAX,
    CALL_SECONDS_MAX,
    HttpWebhookClient,
    NoWebhookAnswer,
    WebhookAnswer,
    WebhookCallResult,
    open_socket,
    public_tls,
)
from tests.rules.test_webhook_url import CORPUS
from tests.support.bad_input import TRIED, inputs, new_seed
from tests.support.certificates import Certificates, trusting_webhooks
from tests.support.clock import SettableClock
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nameserver import SERVFAIL, SILENT, Nameserver
from tests.support.steady_loop import ON_STEADY_LOOP
from tests.support.webhook_receiver import BOMB, GIGABYTE, WebhookReceiver, record_server_names
from tests.wire.unresponsive_server import UnresponsiveServer

NAME = "hooks.example.com"
BODY = b'{"id":"ev_1","type":"webhook.test"}'
# Of calls whose end is the time limit; the others have as long as a test may take.
SHORT_SECONDS_MAX = 0.5


@pytest.fixture(scope="module")
def authority() -> Certificates:
    return Certificates.make(NAME)


@dataclass
class Sockets:
    """Opens sockets as the caller's own function does, and remembers where to; `unreachable` opens none."""

    opened: list[str] = field(default_factory=list)
    unreachable: bool = False

    def open(self, info: AddrInfoType) -> socket.socket:
        self.opened.append(info[4][0])
        if self.unreachable:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return open_socket(info)


@dataclass
class ClientFlow:
    """A name server, certificates, and callers that ask it and trust them."""

    nameserver: Nameserver
    authority: Certificates
    sockets: Sockets = field(default_factory=Sockets)
    clock: SettableClock = field(default_factory=SettableClock)
    callers: list[HttpWebhookClient] = field(default_factory=list)

    def leads(self, *addresses: str, name: str = NAME) -> None:
        """From now on the name has these addresses; what was known of it before is too old."""
        for kind, is_long in (("A", False), ("AAAA", True)):
            self.nameserver.records[name, kind] = [address for address in addresses if (":" in address) is is_long]
        self.clock.advance(seconds=1_000_000)

    def webhook_receiver(
        self, certificate: str = "sound", *, host: str = "127.0.0.1", port: int = 0, behaviour: str = ""
    ) -> WebhookReceiver:
        return WebhookReceiver(self.authority.servers[certificate], host=host, port=port, behaviour=behaviour)

    def caller(
        self, *, may_connect: Callable[[Address], bool] | None = None, seconds_max: float = HANG_SECONDS
    ) -> HttpWebhookClient:
        caller = HttpWebhookClient(
            resolver=Resolver([self.nameserver.endpoint], monotonic=self.clock.monotonic),
            may_connect=may_connect or (lambda address: address.is_loopback),
            tls=trusting_webhooks(self.authority.authority_pem),
            seconds_max=seconds_max,
            open_socket=self.sockets.open,
        )
        self.callers.append(caller)
        return caller


@pytest.fixture
async def flow(authority: Certificates) -> AsyncIterator[ClientFlow]:
    async with Nameserver() as nameserver:
        flow = ClientFlow(nameserver, authority)
        flow.leads("127.0.0.1")
        yield flow
        for caller in flow.callers:
            await caller.close()


@pytest.fixture
async def webhook_receiver(flow: ClientFlow) -> AsyncIterator[WebhookReceiver]:
    async with flow.webhook_receiver() as running:
        yield running


def target(webhook_receiver: WebhookReceiver, path: str = "/events", host: str = NAME) -> WebhookTarget:
    return WebhookTarget(host, webhook_receiver.port, path, f"https://{host}:{webhook_receiver.port}{path}")


async def call(caller: HttpWebhookClient, at: WebhookTarget) -> WebhookCallResult:
    return await caller.call(at, BODY, {event.SIGNATURE_HEADER: event.sign("whsec_1", BODY, 1_700_000_000)})


async def answered(caller: HttpWebhookClient, at: WebhookTarget) -> WebhookAnswer:
    answer = await call(caller, at)
    assert isinstance(answer, WebhookAnswer), answer
    return answer


async def unanswered(caller: HttpWebhookClient, at: WebhookTarget) -> NoWebhookAnswer:
    answer = await call(caller, at)
    assert isinstance(answer, NoWebhookAnswer), answer
    return answer


# What is sent


async def test_the_request_is_the_contracts(flow: ClientFlow) -> None:
    async with WebhookReceiver(record_server_names(flow.authority.servers["sound"])) as webhook_receiver:
        answer = await answered(flow.caller(), target(webhook_receiver, "/a/%C3%BC?b[]=1&c=%20"))
        assert (answer.status, answer.body, answer.truncated, answer.address) == (200, b"ok", False, "127.0.0.1")
        assert answer.duration_ms >= 0
        request = webhook_receiver.requests[0]
    assert request.line == "POST /a/%C3%BC?b[]=1&c=%20 HTTP/1.1"
    assert request.body == BODY
    assert request.server_name == NAME
    assert request.headers == {
        "host": f"{NAME}:{webhook_receiver.port}",
        "content-type": "application/json",
        "user-agent": "Service-Webhook/1.0",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
        "service-signature": event.sign("whsec_1", BODY, 1_700_000_000),
    }
    assert len(request.raw_names) == len(request.headers)


async def test_a_checked_url_is_called(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    checked = check_url(f"https://Hooks.Example.com:{webhook_receiver.port}?a=1", ports=(443, webhook_receiver.port))
    assert (await answered(flow.caller(), checked)).status == 200
    assert webhook_receiver.requests[0].line == "POST /?a=1 HTTP/1.1"


async def test_connections_are_reused(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for path in ["/events", "/status/500", "/redirect", "/exact", "/chunked", "/no-content", "/gzip", "/early-hints"]:
        await answered(caller, target(webhook_receiver, path))
    assert {request.connection for request in webhook_receiver.requests} == {1}
    assert flow.sockets.opened == ["127.0.0.1"]


async def test_many_calls_at_once_each_get_their_own_answer(
    flow: ClientFlow, webhook_receiver: WebhookReceiver
) -> None:
    caller = flow.caller()
    statuses = [200 + number for number in range(60)]
    answers = await asyncio.gather(
        *[answered(caller, target(webhook_receiver, f"/status/{code}")) for code in statuses]
    )
    assert [answer.status for answer in answers] == statuses


async def test_a_stale_connection_is_not_used(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for _ in range(3):
        assert (await answered(caller, target(webhook_receiver, "/polite"))).status == 200
        await webhook_receiver.all_closed(HANG_SECONDS)
    assert webhook_receiver.connections == 3


async def test_a_call_resolves_the_name_once(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for calls in (1, 2):
        flow.leads("127.0.0.1")
        await answered(caller, target(webhook_receiver))
        assert flow.nameserver.asked == [(NAME, "udp")] * 2 * calls  # both families
    answer = await unanswered(caller, target(webhook_receiver, host="127.0.0.1"))
    assert "certificate" in answer.reason
    assert len(flow.nameserver.asked) == 4


async def test_no_proxy_of_the_environment_is_used(
    flow: ClientFlow, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with flow.webhook_receiver(host="127.0.0.2", behaviour="plain") as proxy:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.2:{proxy.port}")
        assert (await answered(flow.caller(), target(webhook_receiver))).status == 200
        assert proxy.connections == 0


async def test_cookies_are_neither_stored_nor_sent(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for _ in range(2):
        await answered(caller, target(webhook_receiver, "/cookie"))
    assert all("cookie" not in request.headers for request in webhook_receiver.requests)


# What comes back


KILOBYTES = b"x" * ANSWER_BYTES_MAX
# By path: the status, what is read of the body, and whether there was more.
ANSWERS = {
    **{f"/status/{status}": (status, b"said", False) for status in (200, 201, 299, 300, 400, 404, 410, 429, 500, 599)},
    "/status/304": (304, b"", False),
    "/redirect": (301, b"", False),
    "/redirect-inward": (307, b"", False),
    "/no-content": (204, b"", False),
    "/exact": (200, KILOBYTES, False),
    **dict.fromkeys(("/longer", "/long", "/longer-close", "/long-close", "/longest-close"), (200, KILOBYTES, True)),
    **dict.fromkeys(("/long-until-close", "/long-chunks-close", "/long-chunk-cut"), (200, KILOBYTES, True)),
    "/tiny-chunks-close": (200, b"x" * 1500, False),
    "/chunked": (200, b"abcdef", False),
    "/until-close": (200, b"abc", False),
    "/old": (200, b"old", False),
    **dict.fromkeys(("/polite", "/twice", "/continue", "/early-hints"), (200, b"ok", False)),
    **dict.fromkeys(("/gzip", "/deflate", "/chunked-gzip"), (200, BOMB, False)),
}


async def test_two_kilobytes_of_every_answer_are_read_unchanged_and_none_is_followed(
    flow: ClientFlow, webhook_receiver: WebhookReceiver
) -> None:
    found = {}
    for path in ANSWERS:
        answer = await answered(flow.caller(), target(webhook_receiver, path))
        found[path] = (answer.status, answer.body, answer.truncated)
    assert found == ANSWERS
    assert len(BOMB) < ANSWER_BYTES_MAX == 2048
    assert flow.sockets.opened == ["127.0.0.1"] * len(ANSWERS)
    assert len(webhook_receiver.requests) == len(ANSWERS)


async def test_an_upgrade_is_refused(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    assert (await answered(caller, target(webhook_receiver, "/upgrade"))).status == 101
    assert (await answered(caller, target(webhook_receiver))).status == 200
    assert webhook_receiver.connections == 2


async def test_an_unsolicited_answer_is_dropped(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for _ in range(3):
        assert (await answered(caller, target(webhook_receiver, "/twice"))).status == 200


async def test_a_gigabyte_is_not_read(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    await answered(flow.caller(), target(webhook_receiver))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in ("/endless", "/endless-chunks", "/endless-gzip"):
        webhook_receiver.bytes_sent = 0
        answer = await answered(flow.callers[0], target(webhook_receiver, path))
        assert (answer.status, len(answer.body), answer.truncated) == (200, ANSWER_BYTES_MAX, True), path
        assert await webhook_receiver.all_closed(HANG_SECONDS)
        assert webhook_receiver.bytes_sent < GIGABYTE / 50, path
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 40_000


async def test_headers_are_bounded(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    for path in [
        "/many-headers",
        "/huge-header",
        "/huge-reason",
        "/endless-headers",
        "/endless-line",
        "/endless-continues",
    ]:
        webhook_receiver.bytes_sent = 0
        answer = await unanswered(flow.caller(), target(webhook_receiver, path))
        assert answer.reason == "the answer is not HTTP, or its headers are too long", path
        assert await webhook_receiver.all_closed(HANG_SECONDS)
        assert webhook_receiver.bytes_sent < GIGABYTE / 50, path


@ON_STEADY_LOOP
async def test_a_body_of_mostly_framing_is_cut_quickly(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller(seconds_max=SHORT_SECONDS_MAX)
    await answered(caller, target(webhook_receiver))
    await timed_out(caller, target(webhook_receiver, "/endless-extensions"), "reading the answer (200)")
    assert webhook_receiver.bytes_sent < GIGABYTE / 50, "it is read for as long as the call takes"
    assert await webhook_receiver.all_closed(HANG_SECONDS)


async def test_what_is_not_http_or_incomplete_is_no_answer(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    for path in ["/garbage", "/odd-status", "/two-lengths", "/odd-length"]:
        answer = await unanswered(caller, target(webhook_receiver, path))
        assert answer.reason == "the answer is not HTTP, or its headers are too long", path
    for path in ["/half", "/tiny-chunks-cut", "/chunked-garbage", "/chunked-endless-size", "/chunked-huge-size"]:
        assert "not HTTP" in (await unanswered(caller, target(webhook_receiver, path))).reason, path
        assert (await answered(caller, target(webhook_receiver))).status == 200


async def test_a_closed_connection_is_reported(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller()
    assert (await unanswered(caller, target(webhook_receiver, "/close"))).reason == (
        "the connection was closed while waiting for the answer"
    )
    assert "waiting for the answer" in (await unanswered(caller, target(webhook_receiver, "/reset"))).reason
    assert len(webhook_receiver.requests) == 2, "a request that may have been read is not repeated"


# Time


async def timed_out(caller: HttpWebhookClient, at: WebhookTarget, stage: str) -> NoWebhookAnswer:
    """The result of a call that timed out there: on a slow machine an earlier one may time out before."""
    return await eventually(lambda: unanswered(caller, at), lambda answer: answer.reason.endswith(f"while {stage}"))


@ON_STEADY_LOOP
async def test_the_whole_call_times_out(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    stages = {
        "/hang": "waiting for the answer",
        "/hang-headers": "waiting for the answer",
        "/hang-body": "reading the answer (200)",
        "/hang-chunk": "reading the answer (200)",
    }
    caller = flow.caller(seconds_max=SHORT_SECONDS_MAX)
    answers = await asyncio.gather(
        *(timed_out(caller, target(webhook_receiver, path), stage) for path, stage in stages.items())
    )
    for answer, stage in zip(answers, stages.values(), strict=True):
        assert answer.reason == f"no complete answer within 0.5 seconds: time ran out while {stage}"
        assert answer.duration_ms >= SHORT_SECONDS_MAX * 1000 - 1
    assert await webhook_receiver.all_closed(HANG_SECONDS), "the connections are cut, whatever the other side wants"


@ON_STEADY_LOOP
async def test_a_slow_body_times_out(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    caller = flow.caller(seconds_max=4 * SHORT_SECONDS_MAX)
    await timed_out(caller, target(webhook_receiver, "/drip"), "reading the answer (200)")


@ON_STEADY_LOOP
async def test_a_silent_server_times_out(flow: ClientFlow) -> None:
    async with flow.webhook_receiver(behaviour="silent") as webhook_receiver:
        await timed_out(flow.caller(seconds_max=SHORT_SECONDS_MAX), target(webhook_receiver), "connecting")
        assert await webhook_receiver.all_closed(HANG_SECONDS)


@pytest.fixture
def full_queue() -> Iterator[int]:
    """A port at which connections are neither accepted nor refused: too many wait already."""
    with UnresponsiveServer("127.0.0.1") as server:
        yield server.port


@ON_STEADY_LOOP
async def test_a_connection_that_is_never_accepted_times_out(flow: ClientFlow, full_queue: int) -> None:
    caller = flow.caller(seconds_max=SHORT_SECONDS_MAX)
    await timed_out(caller, WebhookTarget(NAME, full_queue, "/", ""), "connecting")


@ON_STEADY_LOOP
async def test_silent_name_servers_time_out(flow: ClientFlow) -> None:
    flow.nameserver.script[NAME] = SILENT
    caller = flow.caller(seconds_max=SHORT_SECONDS_MAX)
    await timed_out(caller, WebhookTarget(NAME, 443, "/", ""), "looking up the name")
    assert flow.sockets.opened == []


@ON_STEADY_LOOP
async def test_the_time_limit_is_five_seconds() -> None:
    usual = inspect.signature(HttpWebhookClient).parameters["seconds_max"].default
    assert usual == CALL_SECONDS_MAX == 5.0


async def test_a_cancelled_call_leaves_no_connection(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    calling = asyncio.ensure_future(call(flow.caller(), target(webhook_receiver, "/hang")))
    await webhook_receiver.came.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await webhook_receiver.all_closed(HANG_SECONDS)


# TLS and connections


@pytest.mark.parametrize("certificate", ["untrusted", "othername"])
async def test_a_certificate_must_be_trusted_and_match_the_name(flow: ClientFlow, certificate: str) -> None:
    async with flow.webhook_receiver(certificate) as webhook_receiver:
        answer = await unanswered(flow.caller(), target(webhook_receiver))
        assert answer.reason.startswith("the certificate is not valid for this host: ")
        assert webhook_receiver.requests == []


async def test_a_private_authority_is_not_trusted_by_default(
    flow: ClientFlow, webhook_receiver: WebhookReceiver
) -> None:
    caller = HttpWebhookClient(
        resolver=Resolver([flow.nameserver.endpoint]),
        may_connect=lambda _: True,
        tls=public_tls(),
        seconds_max=HANG_SECONDS,
    )
    assert "certificate" in (await unanswered(caller, target(webhook_receiver))).reason
    await caller.close()


@pytest.mark.parametrize("behaviour", ["plain", "cut"])
async def test_a_server_without_tls_gets_no_request(flow: ClientFlow, behaviour: str) -> None:
    async with flow.webhook_receiver(behaviour=behaviour) as webhook_receiver:
        answer = await unanswered(flow.caller(seconds_max=SHORT_SECONDS_MAX), target(webhook_receiver))
        assert answer.reason.startswith(("TLS failed: ", "could not connect: ", "no complete answer within"))
        assert webhook_receiver.requests == []


async def test_a_refused_connection_is_reported(flow: ClientFlow) -> None:
    async with flow.webhook_receiver() as webhook_receiver:
        pass
    answer = await unanswered(flow.caller(), target(webhook_receiver))
    assert answer.reason == "could not connect: connection refused"


@ON_STEADY_LOOP
async def test_old_tls_is_refused() -> None:
    public = public_tls()
    assert public.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert (public.check_hostname, public.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_python_is_not_stricter_with_certificates_than_other_clients() -> None:
    assert not public_tls().verify_flags & ssl.VERIFY_X509_STRICT, "3.13 refuses what 3.11 accepts"


# Where to


async def test_an_unreachable_address_is_tried_last_for_a_while(flow: ClientFlow) -> None:
    async with flow.webhook_receiver(host="::1") as webhook_receiver:
        flow.leads("127.0.0.2", "::1")
        caller = flow.caller()
        for _ in range(3):
            assert (await answered(caller, target(webhook_receiver))).address == "::1"
        assert flow.sockets.opened == ["127.0.0.2", "::1"]


@ON_STEADY_LOOP
async def test_a_hanging_address_does_not_use_up_the_time(flow: ClientFlow, full_queue: int) -> None:
    async with flow.webhook_receiver(host="::1", port=full_queue) as webhook_receiver:
        flow.leads("127.0.0.1", "::1")
        caller = flow.caller(seconds_max=4 * SHORT_SECONDS_MAX)
        answer = await eventually(
            lambda: call(caller, target(webhook_receiver)), lambda answer: isinstance(answer, WebhookAnswer)
        )
        assert isinstance(answer, WebhookAnswer)
        assert answer.address == "::1"


async def test_a_sent_request_is_not_repeated_at_the_next_address(
    flow: ClientFlow, webhook_receiver: WebhookReceiver
) -> None:
    async with flow.webhook_receiver(host="::1", port=webhook_receiver.port) as other:
        flow.leads("127.0.0.1", "::1")
        for path in ("/close", "/garbage", "/status/500"):
            await call(flow.caller(), target(webhook_receiver, path))
        assert len(webhook_receiver.requests) == 3
        await timed_out(
            flow.caller(seconds_max=SHORT_SECONDS_MAX), target(webhook_receiver, "/hang"), "waiting for the answer"
        )
        assert other.connections == 0


async def test_an_address_in_the_url_is_checked_like_any_other(
    flow: ClientFlow, webhook_receiver: WebhookReceiver
) -> None:
    for host in ("127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
        answer = await unanswered(flow.caller(may_connect=is_public), target(webhook_receiver, host=host))
        assert answer.reason == f"{host} resolves to an address that is not public"
    assert (flow.sockets.opened, flow.nameserver.asked, webhook_receiver.connections) == ([], [], 0)


async def test_dns_that_leads_nowhere_is_reported_as_what_it_is(flow: ClientFlow) -> None:
    flow.nameserver.script["broken.example.com"] = SERVFAIL
    flow.nameserver.zone["bare.example.com"] = []
    caller = flow.caller()
    reasons = {
        "unknown.example.com": "unknown.example.com does not exist in DNS",
        "bare.example.com": "bare.example.com has no address in DNS",
        "broken.example.com": "broken.example.com could not be looked up: the name servers could not answer",
    }
    for name, reason in reasons.items():
        assert (await unanswered(caller, WebhookTarget(name, 443, "/", ""))).reason == reason
    assert flow.sockets.opened == []


FORBIDDEN = (
    "127.0.0.1", "0.0.0.0", "10.0.0.1", "100.100.100.200", "169.254.169.254", "172.16.0.1", "192.168.1.1",
    "168.63.129.16", "::1", "::", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "224.0.0.1",
)  # fmt: skip


@ON_STEADY_LOOP
async def test_no_socket_is_opened_to_a_forbidden_address(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    async with flow.webhook_receiver(host="::1", port=webhook_receiver.port) as other:
        caller = flow.caller(may_connect=is_public)
        for address in FORBIDDEN:
            # By itself, and next to a public one, in either order and family.
            for others in ((), ("8.8.8.8",), ("2606:4700::1111",), ("8.8.8.8", "2606:4700::1111")):
                for addresses in ((address, *others), (*others, address)):
                    flow.leads(*addresses)
                    answer = await unanswered(caller, target(webhook_receiver))
                    assert answer.reason == f"{NAME} resolves to an address that is not public", addresses
        assert flow.sockets.opened == []
        assert (webhook_receiver.connections, other.connections) == (0, 0)


@ON_STEADY_LOOP
async def test_no_url_of_the_corpus_opens_a_forbidden_socket(flow: ClientFlow) -> None:
    """As if all of them had been saved: numbers, disguises and odd names lead nowhere but to their own addresses."""
    flow.sockets.unreachable = True
    caller = flow.caller(may_connect=is_public, seconds_max=10.0)
    asked = set()
    for url in CORPUS:
        with contextlib.suppress(ValueError):
            asked.add(urlsplit(url).hostname or "")
    answers = [await call(caller, WebhookTarget(host, 443, "/", "")) for host in sorted(asked)]
    assert len(asked) > 200
    assert [answer for answer in answers if not isinstance(answer, NoWebhookAnswer)] == []
    assert [address for address in flow.sockets.opened if not is_public(ip_address(address))] == []


async def test_a_name_that_becomes_private_is_refused(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    flow.sockets.unreachable = True
    caller = flow.caller(may_connect=is_public)
    flow.leads("8.8.8.8")
    assert "network is unreachable" in (await unanswered(caller, target(webhook_receiver))).reason
    flow.leads("127.0.0.1")
    assert "not public" in (await unanswered(caller, target(webhook_receiver))).reason
    assert flow.sockets.opened == ["8.8.8.8"]
    assert webhook_receiver.connections == 0


async def test_the_checked_address_is_the_one_called(flow: ClientFlow) -> None:
    """The name server answers the next query with a private address: there is no next query."""
    async with (
        flow.webhook_receiver() as allowed,
        flow.webhook_receiver(host="127.0.0.9", port=allowed.port) as inward,
    ):
        caller = flow.caller(may_connect=lambda address: address == IPv4Address("127.0.0.1"))
        resolved = flow.nameserver.answer

        def rebinding(wire: bytes, transport: str) -> bytes | None:
            given = resolved(wire, transport)
            if len(flow.nameserver.asked) >= 2:
                flow.nameserver.records[NAME, "A"] = ["127.0.0.9"]
            return given

        flow.nameserver.answer = rebinding  # type: ignore[method-assign]
        assert (await answered(caller, target(allowed))).address == "127.0.0.1"
        flow.clock.advance(seconds=1_000_000)
        assert "not public" in (await unanswered(caller, target(allowed))).reason
        assert flow.sockets.opened == ["127.0.0.1"]
        assert (allowed.connections, inward.connections) == (1, 0)


async def test_an_open_connection_is_dropped_when_the_name_changes(flow: ClientFlow) -> None:
    async with flow.webhook_receiver() as first, flow.webhook_receiver(host="127.0.0.2", port=first.port) as second:
        caller = flow.caller(may_connect=lambda address: address != IPv4Address("127.0.0.3"))
        assert (await answered(caller, target(first))).address == "127.0.0.1"
        flow.leads("127.0.0.3")
        assert "not public" in (await unanswered(caller, target(first))).reason
        flow.leads("127.0.0.2")
        assert (await answered(caller, target(first))).address == "127.0.0.2"
        assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_a_connection_is_not_shared_between_names(flow: ClientFlow, webhook_receiver: WebhookReceiver) -> None:
    """Its certificate was checked for one of them only."""
    flow.leads("127.0.0.1", name="other.example.com")
    caller = flow.caller()
    assert (await answered(caller, target(webhook_receiver))).status == 200
    assert "certificate" in (await unanswered(caller, target(webhook_receiver, host="other.example.com"))).reason


async def test_the_address_is_checked_again_when_the_socket_opens(flow: ClientFlow) -> None:
    """If the look-up were ever bypassed: the judgement changes between the two."""
    verdicts = {IPv4Address("127.0.0.1"): True, IPv6Address("::1"): False}
    caller = flow.caller(may_connect=verdicts.__getitem__)
    info = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 443, 0, 0))
    with pytest.raises(PermissionError):
        caller._checked_socket(info)
    assert flow.sockets.opened == []


# Anything


@pytest.mark.fuzz("Webhook answers")
async def test_any_response_is_an_answer_or_a_failure(flow: ClientFlow, caplog: pytest.LogCaptureFixture) -> None:
    seed = new_seed()
    randomness = random.Random(seed)
    pieces = [
        b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b"100", b"204", b"999", b" ", b"OK", b"\r\n", b"\r\n", b"\n", b"\r", b"\0",
        b"Content-Length: ", b"5", b"-1", b"99999999999999999999", b"Transfer-Encoding: chunked", b"chunked, gzip",
        b"Content-Encoding: gzip", b"Content-Encoding: br", BOMB[:50], b"Connection: close", b"Upgrade: h2c", b"0",
        b":", b"Connection: upgrade", b"Location: http://127.0.0.1/", b"Set-Cookie: a", b"\xff\xfe",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n", b"Content-Type: ;;=", b"\x80" * 20, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ]  # fmt: skip
    said = {}
    for number in range(inputs(150)):
        head = b"HTTP/1.1 200 OK\r\n" if randomness.random() < 0.6 else b""
        said[f"/{number}"] = head + b"".join(randomness.choices(pieces, k=randomness.randrange(12)))
    caller = flow.caller()
    async with WebhookReceiver(flow.authority.servers["sound"], said=said) as webhook_receiver:
        for path, text in said.items():
            TRIED["Webhook answers"] += 1
            try:
                assert isinstance(await call(caller, target(webhook_receiver, path)), WebhookAnswer | NoWebhookAnswer)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {text!r}") from error
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
