"""Queries to a real name server on the loopback: found, absent, and unknown."""

import asyncio
import socket
from ipaddress import ip_address

import pytest

from posthouse.mail.mx_host import MxRecord
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.wire.dns import (
    ABSENT_SECONDS,
    CACHE_SECONDS_MAX,
    CACHE_SECONDS_MIN,
    HostAddresses,
    MxRecords,
    NoAnswer,
    NoName,
    Resolver,
)
from tests.support.nameserver import ALIAS, REFUSED, SERVFAIL, SILENT, TRUNCATED, Nameserver

NAME = "_posthouse.example.com"


async def ask(server: Nameserver, name: str = NAME) -> object:
    return await Resolver([server.endpoint], lookup_seconds_max=1.0).texts(name)


async def test_texts_are_found_and_their_strings_joined() -> None:
    long = "v=DKIM1; k=rsa; p=" + "A" * 400
    async with Nameserver({NAME: ["one", long]}) as server:
        answer = await ask(server)
    assert isinstance(answer, TxtValues)
    assert sorted(answer.values) == ["one", long]


async def test_bytes_that_are_not_text_do_not_break_the_look_up() -> None:
    async with Nameserver({NAME: ["grün “quoted” \\ ;"]}) as server:
        assert await ask(server) == TxtValues(("grün “quoted” \\ ;",))


async def test_a_name_that_does_not_exist_is_absent() -> None:
    async with Nameserver({}) as server:
        assert await ask(server) == NoTxtRecord()


async def test_a_name_without_txt_records_is_absent() -> None:
    async with Nameserver({NAME: []}) as server:
        assert await ask(server) == NoTxtRecord()


async def test_an_alias_is_followed() -> None:
    async with Nameserver({"proof.example.net": ["token"]}, {NAME: f"{ALIAS}proof.example.net"}) as server:
        assert await ask(server) == TxtValues(("token",))


async def test_a_truncated_answer_is_queried_again_over_tcp() -> None:
    async with Nameserver({NAME: ["token"]}, {NAME: TRUNCATED}) as server:
        assert await ask(server) == TxtValues(("token",))
        assert server.asked == [(NAME, "udp"), (NAME, "tcp")]


@pytest.mark.parametrize("act", [SERVFAIL, REFUSED])
async def test_a_failing_server_makes_the_answer_unknown(act: str) -> None:
    async with Nameserver({NAME: ["token"]}, {NAME: act}) as server:
        assert isinstance(await ask(server), TxtUnknown)


async def test_a_silent_server_times_out_as_unknown() -> None:
    async with Nameserver({}, {NAME: SILENT}) as server:
        started = asyncio.get_running_loop().time()
        answer = await ask(server)
        assert asyncio.get_running_loop().time() - started < 3
    assert answer == TxtUnknown("the name servers did not answer in time")


async def test_no_server_at_all_is_unknown() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    answer = await Resolver([("127.0.0.1", port)], lookup_seconds_max=1.0).texts(NAME)
    assert isinstance(answer, TxtUnknown)


async def test_the_second_server_is_queried_when_the_first_fails() -> None:
    async with Nameserver({}, {NAME: SERVFAIL}) as broken, Nameserver({NAME: ["token"]}) as sound:
        resolver = Resolver([broken.endpoint, sound.endpoint], lookup_seconds_max=2.0)
        assert await resolver.texts(NAME) == TxtValues(("token",))


async def test_txt_records_are_not_cached() -> None:
    async with Nameserver({}) as server:
        resolver = Resolver([server.endpoint], lookup_seconds_max=1.0)
        assert await resolver.texts(NAME) == NoTxtRecord()
        server.zone[NAME] = ["token"]
        assert await resolver.texts(NAME) == TxtValues(("token",))


@pytest.mark.parametrize("name", ["a" * 64 + ".example.com", ".".join(["abcdefgh"] * 40), "a..example.com"])
async def test_an_invalid_name_is_unknown_not_an_exception(name: str) -> None:
    async with Nameserver({}) as server:
        assert isinstance(await ask(server, name), TxtUnknown)
        assert server.asked == []


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


async def test_mx_records_have_their_preferences() -> None:
    async with Nameserver() as server:
        server.records["example.com", "MX"] = ["20 mx2.example.com.", "10 MX1.example.com."]
        found = await Resolver([server.endpoint]).mx_hosts("example.com")
    assert isinstance(found, MxRecords)
    assert {(item.preference, item.host.lower()) for item in found.records} == {
        (10, "mx1.example.com."),
        (20, "mx2.example.com."),
    }


async def test_a_null_mx_is_an_ordinary_record() -> None:
    async with Nameserver() as server:
        server.records["example.com", "MX"] = ["0 ."]
        assert await Resolver([server.endpoint]).mx_hosts("example.com") == MxRecords((MxRecord(0, "."),))


async def test_no_mx_no_name_and_no_answer_differ() -> None:
    async with Nameserver(script={"broken.example": SERVFAIL}) as server:
        server.records["example.com", "A"] = ["192.0.2.1"]
        resolver = Resolver([server.endpoint], lookup_seconds_max=1.0)
        assert await resolver.mx_hosts("example.com") == MxRecords(())
        assert await resolver.mx_hosts("nowhere.example") == NoName()
        assert isinstance(await resolver.mx_hosts("broken.example"), NoAnswer)


async def test_addresses_of_both_families_are_found_through_an_alias() -> None:
    async with Nameserver(script={"mx.example.com": ALIAS + "host.example.com"}) as server:
        server.records["host.example.com", "A"] = ["192.0.2.1", "192.0.2.2"]
        server.records["host.example.com", "AAAA"] = ["2001:db8::1"]
        found = await Resolver([server.endpoint]).addresses("mx.example.com")
    assert isinstance(found, HostAddresses)
    assert set(found.addresses) == {ip_address(item) for item in ("192.0.2.1", "192.0.2.2", "2001:db8::1")}


async def test_a_host_without_addresses_differs_from_no_name() -> None:
    async with Nameserver({"host.example.com": []}) as server:
        resolver = Resolver([server.endpoint])
        assert await resolver.addresses("host.example.com") == HostAddresses(())
        assert await resolver.addresses("nowhere.example.com") == NoName()


@pytest.mark.parametrize(("ttl", "known_seconds"), [(0, CACHE_SECONDS_MIN), (600, 600.0), (10**6, CACHE_SECONDS_MAX)])
async def test_an_answer_is_cached_for_its_ttl_within_bounds(ttl: int, known_seconds: float) -> None:
    hands = Hands()
    async with Nameserver() as server:
        server.ttl = ttl
        server.records["example.com", "MX"] = ["10 mx.example.com."]
        resolver = Resolver([server.endpoint], monotonic=hands)
        await resolver.mx_hosts("example.com")
        hands.seconds += known_seconds - 1
        await resolver.mx_hosts("example.com")
        assert len(server.asked) == 1
        hands.seconds += 2
        await resolver.mx_hosts("example.com")
        assert len(server.asked) == 2


async def test_absence_is_cached_for_a_while() -> None:
    hands = Hands()
    async with Nameserver() as server:
        resolver = Resolver([server.endpoint], monotonic=hands)
        assert await resolver.mx_hosts("example.com") == NoName()
        server.records["example.com", "MX"] = ["10 mx.example.com."]
        assert await resolver.mx_hosts("example.com") == NoName()
        hands.seconds += ABSENT_SECONDS + 1
        assert isinstance(await resolver.mx_hosts("example.com"), MxRecords)


async def test_concurrent_queries_share_a_request() -> None:
    async with Nameserver() as server:
        server.records["example.com", "MX"] = ["10 mx.example.com."]
        resolver = Resolver([server.endpoint])
        await asyncio.gather(*(resolver.mx_hosts("example.com") for _ in range(50)))
        assert len(server.asked) == 1
