"""Look-ups against a real name server on the loopback: found, surely absent, and nobody knows."""

import asyncio
import socket

import pytest

from posthouse.rules.domain import NoTexts, Texts, UnknownTexts
from posthouse.wire.dns import Resolver
from tests.support.nameserver import ALIAS, REFUSED, SERVFAIL, SILENT, TRUNCATED, Nameserver

NAME = "_posthouse.example.com"


async def ask(server: Nameserver, name: str = NAME) -> object:
    return await Resolver([server.endpoint], lookup_seconds_max=1.0).texts(name)


async def test_texts_are_found_and_their_strings_joined() -> None:
    long = "v=DKIM1; k=rsa; p=" + "A" * 400
    async with Nameserver({NAME: ["one", long]}) as server:
        answer = await ask(server)
    assert isinstance(answer, Texts)
    assert sorted(answer.values) == ["one", long]


async def test_bytes_that_are_no_text_do_not_break_the_look_up() -> None:
    async with Nameserver({NAME: ["grün “quoted” \\ ;"]}) as server:
        assert await ask(server) == Texts(("grün “quoted” \\ ;",))


async def test_a_name_that_does_not_exist_is_surely_absent() -> None:
    async with Nameserver({}) as server:
        assert await ask(server) == NoTexts()


async def test_a_name_without_txt_records_is_surely_absent() -> None:
    async with Nameserver({NAME: []}) as server:
        assert await ask(server) == NoTexts()


async def test_an_alias_is_followed() -> None:
    async with Nameserver({"proof.example.net": ["token"]}, {NAME: f"{ALIAS}proof.example.net"}) as server:
        assert await ask(server) == Texts(("token",))


async def test_a_truncated_answer_is_asked_for_again_over_tcp() -> None:
    async with Nameserver({NAME: ["token"]}, {NAME: TRUNCATED}) as server:
        assert await ask(server) == Texts(("token",))
        assert server.asked == [(NAME, "udp"), (NAME, "tcp")]


@pytest.mark.parametrize("act", [SERVFAIL, REFUSED])
async def test_a_server_that_fails_leaves_the_answer_unknown(act: str) -> None:
    async with Nameserver({NAME: ["token"]}, {NAME: act}) as server:
        assert isinstance(await ask(server), UnknownTexts)


async def test_silence_is_unknown_and_ends_in_time() -> None:
    async with Nameserver({}, {NAME: SILENT}) as server:
        started = asyncio.get_running_loop().time()
        answer = await ask(server)
        assert asyncio.get_running_loop().time() - started < 3
    assert answer == UnknownTexts("the name servers did not answer in time")


async def test_no_server_at_all_is_unknown() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    answer = await Resolver([("127.0.0.1", port)], lookup_seconds_max=1.0).texts(NAME)
    assert isinstance(answer, UnknownTexts)


async def test_the_second_server_is_asked_when_the_first_fails() -> None:
    async with Nameserver({}, {NAME: SERVFAIL}) as broken, Nameserver({NAME: ["token"]}) as sound:
        resolver = Resolver([broken.endpoint, sound.endpoint], lookup_seconds_max=2.0)
        assert await resolver.texts(NAME) == Texts(("token",))


async def test_nothing_is_remembered_between_two_looks() -> None:
    async with Nameserver({}) as server:
        resolver = Resolver([server.endpoint], lookup_seconds_max=1.0)
        assert await resolver.texts(NAME) == NoTexts()
        server.zone[NAME] = ["token"]
        assert await resolver.texts(NAME) == Texts(("token",))


@pytest.mark.parametrize("name", ["a" * 64 + ".example.com", ".".join(["abcdefgh"] * 40), "a..example.com"])
async def test_a_name_that_dns_can_not_hold_is_unknown_not_a_crash(name: str) -> None:
    async with Nameserver({}) as server:
        assert isinstance(await ask(server, name), UnknownTexts)
        assert server.asked == []
