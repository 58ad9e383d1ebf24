"""Queries to a real name server on the loopback: found, absent, and unknown."""

import asyncio
import socket
from ipaddress import ip_address

import pytest

from posthouse.mail.mx_host import MxRecord
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.wire import dns as wire_dns
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
from tests.support.clock import SettableClock
from tests.support.nameserver import ALIAS, REFUSED, SERVFAIL, SILENT, TRUNCATED, Nameserver

NAME = "_posthouse.example.com"


def resolver_of(nameserver: Nameserver) -> Resolver:
    return Resolver([nameserver.endpoint], lookup_seconds_max=1.0)


async def ask(nameserver: Nameserver, name: str = NAME) -> object:
    return await resolver_of(nameserver).texts(name)


async def test_texts_are_found_and_their_strings_joined(nameserver: Nameserver) -> None:
    long = "v=DKIM1; k=rsa; p=" + "A" * 400
    nameserver.zone[NAME] = ["one", long]
    answer = await ask(nameserver)
    assert isinstance(answer, TxtValues)
    assert sorted(answer.values) == ["one", long]


async def test_bytes_that_are_not_text_do_not_break_the_look_up(nameserver: Nameserver) -> None:
    nameserver.zone[NAME] = ["grün “quoted” \\ ;"]
    assert await ask(nameserver) == TxtValues(("grün “quoted” \\ ;",))


async def test_a_name_that_does_not_exist_or_has_no_txt_record_is_absent(nameserver: Nameserver) -> None:
    assert await ask(nameserver) == NoTxtRecord()
    nameserver.zone[NAME] = []
    assert await ask(nameserver) == NoTxtRecord()


async def test_an_alias_is_followed(nameserver: Nameserver) -> None:
    nameserver.zone["proof.example.net"] = ["token"]
    nameserver.script[NAME] = f"{ALIAS}proof.example.net"
    assert await ask(nameserver) == TxtValues(("token",))


async def test_a_truncated_answer_is_queried_again_over_tcp(nameserver: Nameserver) -> None:
    nameserver.zone[NAME] = ["token"]
    nameserver.script[NAME] = TRUNCATED
    assert await ask(nameserver) == TxtValues(("token",))
    assert nameserver.asked == [(NAME, "udp"), (NAME, "tcp")]


@pytest.mark.parametrize("act", [SERVFAIL, REFUSED])
async def test_a_failing_server_makes_the_answer_unknown(nameserver: Nameserver, act: str) -> None:
    nameserver.zone[NAME] = ["token"]
    nameserver.script[NAME] = act
    assert isinstance(await ask(nameserver), TxtUnknown)


async def test_a_silent_server_times_out_as_unknown(nameserver: Nameserver) -> None:
    nameserver.script[NAME] = SILENT
    started = asyncio.get_running_loop().time()
    assert await ask(nameserver) == TxtUnknown("the name servers did not answer in time")
    assert asyncio.get_running_loop().time() - started < 3


async def test_no_server_at_all_is_unknown() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    answer = await Resolver([("127.0.0.1", port)], lookup_seconds_max=1.0).texts(NAME)
    assert isinstance(answer, TxtUnknown)


async def test_the_second_server_is_queried_when_the_first_fails(nameserver: Nameserver) -> None:
    nameserver.zone[NAME] = ["token"]
    async with Nameserver({}, {NAME: SERVFAIL}) as broken:
        resolver = Resolver([broken.endpoint, nameserver.endpoint], lookup_seconds_max=2.0)
        assert await resolver.texts(NAME) == TxtValues(("token",))


async def test_txt_records_are_not_cached(nameserver: Nameserver) -> None:
    resolver = resolver_of(nameserver)
    assert await resolver.texts(NAME) == NoTxtRecord()
    nameserver.zone[NAME] = ["token"]
    assert await resolver.texts(NAME) == TxtValues(("token",))


@pytest.mark.parametrize("name", ["a" * 64 + ".example.com", ".".join(["abcdefgh"] * 40), "a..example.com"])
async def test_an_invalid_name_is_unknown_not_an_exception(nameserver: Nameserver, name: str) -> None:
    assert isinstance(await ask(nameserver, name), TxtUnknown)
    assert nameserver.asked == []


async def test_mx_records_have_their_preferences_and_a_null_mx_is_one(nameserver: Nameserver) -> None:
    nameserver.records["example.com", "MX"] = ["20 mx2.example.com.", "10 MX1.example.com."]
    nameserver.records["null.example", "MX"] = ["0 ."]
    resolver = resolver_of(nameserver)
    found = await resolver.mx_hosts("example.com")
    assert isinstance(found, MxRecords)
    assert {(item.preference, item.host.lower()) for item in found.records} == {
        (10, "mx1.example.com."),
        (20, "mx2.example.com."),
    }
    assert await resolver.mx_hosts("null.example") == MxRecords((MxRecord(0, "."),))


async def test_no_record_no_name_and_no_answer_differ(nameserver: Nameserver) -> None:
    nameserver.script["broken.example"] = SERVFAIL
    nameserver.records["example.com", "A"] = ["192.0.2.1"]
    nameserver.zone["bare.example"] = []
    resolver = resolver_of(nameserver)
    assert await resolver.mx_hosts("example.com") == MxRecords(())
    assert await resolver.addresses("bare.example") == HostAddresses(())
    for look_up in (resolver.mx_hosts, resolver.addresses):
        assert await look_up("nowhere.example") == NoName()
        assert isinstance(await look_up("broken.example"), NoAnswer)


async def test_addresses_of_both_families_are_found_through_an_alias(nameserver: Nameserver) -> None:
    nameserver.script["mx.example.com"] = ALIAS + "host.example.com"
    nameserver.records["host.example.com", "A"] = ["192.0.2.1", "192.0.2.2"]
    nameserver.records["host.example.com", "AAAA"] = ["2001:db8::1"]
    found = await resolver_of(nameserver).addresses("mx.example.com")
    assert isinstance(found, HostAddresses)
    assert set(found.addresses) == {ip_address(item) for item in ("192.0.2.1", "192.0.2.2", "2001:db8::1")}


@pytest.mark.parametrize(("ttl", "known_seconds"), [(0, CACHE_SECONDS_MIN), (600, 600.0), (10**6, CACHE_SECONDS_MAX)])
async def test_an_answer_is_cached_for_its_ttl_within_bounds(
    nameserver: Nameserver, ttl: int, known_seconds: float
) -> None:
    clock = SettableClock()
    nameserver.ttl = ttl
    nameserver.records["example.com", "MX"] = ["10 mx.example.com."]
    resolver = Resolver([nameserver.endpoint], monotonic=clock.monotonic)
    for passed, asked in ((0, 1), (known_seconds - 1, 1), (2, 2)):
        clock.advance(seconds=passed)
        await resolver.mx_hosts("example.com")
        assert len(nameserver.asked) == asked


async def test_absence_is_cached_for_a_while(nameserver: Nameserver) -> None:
    clock = SettableClock()
    resolver = Resolver([nameserver.endpoint], monotonic=clock.monotonic)
    assert await resolver.mx_hosts("example.com") == NoName()
    nameserver.records["example.com", "MX"] = ["10 mx.example.com."]
    assert await resolver.mx_hosts("example.com") == NoName()
    clock.advance(seconds=ABSENT_SECONDS + 1)
    assert isinstance(await resolver.mx_hosts("example.com"), MxRecords)


async def test_a_full_cache_forgets_only_the_oldest_answer(
    nameserver: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_dns, "CACHE_MAX", 2)
    resolver = Resolver([nameserver.endpoint])
    for name in ("a.example", "b.example", "c.example", "b.example", "a.example"):
        await resolver.mx_hosts(name)
    assert [name.rstrip(".") for name, _ in nameserver.asked] == ["a.example", "b.example", "c.example", "a.example"]


async def test_concurrent_queries_share_a_request(nameserver: Nameserver) -> None:
    nameserver.records["example.com", "MX"] = ["10 mx.example.com."]
    resolver = resolver_of(nameserver)
    await asyncio.gather(*(resolver.mx_hosts("example.com") for _ in range(50)))
    assert len(nameserver.asked) == 1
