"""Servers that answer nonsense, over real sockets: a result every time, in time, and never a false success."""

# ruff: noqa: E501 (a table of bytes reads better unbroken)

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.mx_host import mx_hosts
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.wire.dns import RECORDS_MAX, HostAddresses, MxRecords, NoAnswer, NoName, Resolver
from posthouse.wire.smtp import SmtpAccepted, SmtpFailure
from posthouse.wire.webhook_client import NoWebhookAnswer
from tests.mail.test_address import domains, locals_, near_addresses, near_mailboxes
from tests.support.bad_input import bad_input, spoiled
from tests.support.certificates import Certificates
from tests.support.nameserver import Nameserver
from tests.support.smtp_receiver import SmtpReceiver
from tests.wire.smtp_sessions import MESSAGE, PATIENT, CannedServer, deliver, open_to, session_with
from tests.wire.test_webhook_client import ClientFlow, call

# DNS answers

NAMES: Final = 16
LOOKUP_SECONDS_MAX: Final = 0.2
# What a busy machine may add.
GRACE_SECONDS: Final = 5.0
KINDS: Final = ("MX", "A", "AAAA", "TXT")


def answer(kind: str, *texts: str, rcode: dns.rcode.Rcode = dns.rcode.NOERROR) -> bytes:
    """A server's answer to a query for the first name; the query's number is inserted later."""
    response = dns.message.make_response(dns.message.make_query("00.example.com", kind, use_edns=0, payload=1232))
    response.set_rcode(rcode)
    if texts:
        response.answer.append(dns.rrset.from_text("00.example.com.", 300, "IN", kind, *texts))
    return response.to_wire()


def alias(kind: str, target: str) -> bytes:
    response = dns.message.make_response(dns.message.make_query("00.example.com", kind))
    response.answer.append(dns.rrset.from_text("00.example.com.", 300, "IN", "CNAME", target))
    return response.to_wire()


RECORDS: Final = {
    "MX": ("10 mx.example.com.", "20 mx2.example.net.", "0 ."),
    "A": ("192.0.2.1", "127.0.0.1"),
    "AAAA": ("2001:db8::1", "::ffff:127.0.0.1"),
    "TXT": ('"v=DKIM1; k=rsa; p=" "AAAA"', '"posthouse=token"'),
}
ANSWERS: Final = {
    kind: [
        answer(kind, *RECORDS[kind]),
        answer(kind, RECORDS[kind][0]),
        answer(kind),
        answer(kind, rcode=dns.rcode.NXDOMAIN),
        alias(kind, "00.example.com."),
        alias(kind, "other.example.com."),
    ]
    for kind in KINDS
}
# Counts, lengths, pointers forward, backward and at themselves, and other kinds and classes.
PIECES: Final = [
    b"\0", b"\0\0", b"\0\1", b"\xff", b"\xff\xff", b"\xc0\x0c", b"\xc0\x00", b"\xc0\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x3f",
    b"\x40", b"\x00\x0f", b"\x00\x10", b"\x00\x1c", b"\x00\x05", b"\x00\x29", b"\x00\xfa", b"\x81\x80", b"\x83\x80", b"\x85\x83",
    b"\x0200\x07example\x03com\x00", b"\x01.\x00", b"\x02\r\n\x00", b"\x01\xe9\x00",
]  # fmt: skip


class Liar(Nameserver):
    """Sends the given answer to the query with its number; other queries get NXDOMAIN."""

    def __init__(self, said: Sequence[bytes], *, over_tcp: bool) -> None:
        super().__init__()
        self._said = said
        self._over_tcp = over_tcp

    def answer(self, wire: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        label = query.question[0].name.labels[0].decode("latin-1")
        response = dns.message.make_response(query)
        if self._over_tcp and transport == "udp":
            response.flags |= dns.flags.TC
            return response.to_wire()
        if not label.isdigit():
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response.to_wire()
        return wire[:2] + self._said[int(label)].replace(b"\x0200", b"\x02" + label.encode())[2:]


async def looked_up(said: Sequence[bytes], kind: str, *, over_tcp: bool) -> list[object]:
    async with Liar(said, over_tcp=over_tcp) as server:
        resolver = Resolver([server.endpoint], lookup_seconds_max=LOOKUP_SECONDS_MAX)
        ask = {"MX": resolver.mx_hosts, "TXT": resolver.texts}.get(kind, resolver.addresses)
        return list(await asyncio.gather(*(ask(f"{number:02}.example.com") for number in range(len(said)))))


@bad_input("DNS answers", 25, each=NAMES)
@given(some.data(), some.sampled_from(KINDS), some.booleans())
def test_any_dns_answer_is_found_absent_or_unknown(data: some.DataObject, kind: str, over_tcp: bool) -> None:
    said = data.draw(some.lists(spoiled(ANSWERS[kind], PIECES), min_size=NAMES, max_size=NAMES))
    began = time.monotonic()
    found = asyncio.run(looked_up(said, kind, over_tcp=over_tcp))
    assert time.monotonic() - began < LOOKUP_SECONDS_MAX + GRACE_SECONDS
    for found_answer in found:
        match found_answer:
            case MxRecords(records):
                assert len(records) <= RECORDS_MAX
                assert all(0 <= record.preference <= 65_535 for record in records)
                mx_hosts("example.com", records, b"")
            case HostAddresses(addresses):
                assert all(isinstance(address, IPv4Address | IPv6Address) for address in addresses)
            case TxtValues(values):
                assert all(value.encode() is not None for value in values)
            case NoName() | NoAnswer() | NoTxtRecord() | TxtUnknown():
                pass
            case _:
                pytest.fail(f"{found_answer!r} is none of the answers")


# Replies of mail servers

HASTY: Final = replace(
    PATIENT, greeting_seconds=2, command_seconds=2, block_seconds=2, dot_seconds=2, opening_seconds_total=3
)
GREETING: Final = [b"220 mx.example.com ESMTP\r\n", b"220-mx.example.com\r\n220 ready\r\n"]
OFFERS: Final = [
    b"250-mx.example.com\r\n250-PIPELINING\r\n250-SIZE 1000000\r\n250 ENHANCEDSTATUSCODES\r\n",
    b"250-mx.example.com\r\n250-PIPELINING\r\n250 CHUNKING\r\n",
    b"250 mx.example.com\r\n",
]
ENVELOPE: Final = [
    b"250 2.1.0 yes\r\n250 2.1.5 yes\r\n250 2.1.5 yes\r\n354 go on\r\n",
    b"250 yes\r\n550 5.1.1 no such user\r\n250 yes\r\n354 go on\r\n",
    b"250 yes\r\n452-4.2.2 later\r\n452 4.2.2 later\r\n250 yes\r\n354 go on\r\n",
]
END: Final = [b"250 2.0.0 taken as 1\r\n", b"554-5.7.1 we don't\r\n554 5.7.1 like this\r\n", b"451 4.3.0 later\r\n"]
SAYINGS: Final = [
    b"\r\n", b"\n", b"\r", b"\0", b"\xff", b"250", b"250 ", b"250-", b"354 ", b"421 4.3.2 bye\r\n", b"999 x\r\n", b"250\r\n", b"1", b"-",
    b"x" * 3_000, b"250-x\r\n" * 120, b"5.1.1", b"\x1b[2J", b"250 PIPELINING\r\n", b"SIZE 99999999999999999999\r\n", b"\xe2\x80\xa8",
]  # fmt: skip
RECIPIENTS: Final = ("ada@example.com", "bob@example.com")
# How long it waits to hear something before it continues on its own.
PATIENCE_SECONDS: Final = 0.05


async def delivered_to(says: Sequence[bytes]) -> tuple[list[SmtpAccepted | SmtpFailure], bytes]:
    async with CannedServer(*says, hear_seconds=PATIENCE_SECONDS, then_hangs_up=True) as server:
        session = await open_to(server.port, deadlines=HASTY)
        if isinstance(session, SmtpFailure):
            return [session], b"".join(server.heard)
        results = await deliver(session, *RECIPIENTS)
        session.quit()
        assert len(results) == len(RECIPIENTS)
    return results, b"".join(server.heard)


def some_of(samples: Sequence[bytes]) -> some.SearchStrategy[bytes]:
    """Mostly correct, so that the session reaches the next stage too."""
    return some.sampled_from(samples) | some.sampled_from(samples) | spoiled(samples, SAYINGS)


@bad_input("SMTP replies", 150)
@given(some.tuples(some_of(GREETING), some_of(OFFERS), some_of(ENVELOPE), some_of(END), some_of(END)))
def test_any_server_replies_give_each_recipient_a_result(says: tuple[bytes, ...]) -> None:
    results, heard = asyncio.run(delivered_to(says))
    for result in results:
        if isinstance(result, SmtpAccepted):
            assert 200 <= result.reply.code < 300
            assert all(line.isprintable() for line in result.reply.lines)
            # The whole message was there, with its end, before it was called delivered.
            assert MESSAGE.stuffed + b".\r\n" in heard or MESSAGE.content + b"BDAT 0 LAST\r\n" in heard
        else:
            assert result.reason.isprintable()
            assert result.reply is None or all(line.isprintable() for line in result.reply.lines)


# Addresses

ADDRESSES: Final = 5
plain_addresses: Final = some.builds("{}@{}".format, locals_, domains)


async def written(addresses: Sequence[str]) -> list[str]:
    async with SmtpReceiver() as receiver, session_with(receiver) as session:
        for address in addresses:
            assert len(await deliver(session, address)) == 1
            if not session.is_reusable:
                break
    return [command for command in receiver.commands if command.startswith("RCPT")]


@bad_input("Addresses", 100, each=ADDRESSES)
@given(
    some.lists(
        near_addresses | near_mailboxes | plain_addresses | some.emails(), min_size=ADDRESSES, max_size=ADDRESSES
    )
)
def test_an_accepted_address_is_a_single_envelope_line(texts: list[str]) -> None:
    accepted = []
    for text in texts:
        with contextlib.suppress(AddressError):
            accepted.append(parse_mailbox(text).address)
    if accepted:
        assert asyncio.run(written(accepted)) == [f"RCPT TO:<{address}>" for address in accepted]


# Webhook URLs

CALLS: Final = 8
disguised: Final = some.ip_addresses(v=4).flatmap(
    lambda address: some.sampled_from(
        [
            IPv6Address(int(address)),
            IPv6Address(0xFFFF << 32 | int(address)),
            IPv6Address(0x64FF9B << 96 | int(address)),
            IPv6Address(0x2002 << 112 | int(address) << 80),
        ]
    )
)
inward: Final = some.sampled_from(
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.1", "0.0.0.0", "::1", "fe80::1", "fd00::1"]
).map(ip_address)
leads: Final = some.lists(some.ip_addresses() | disguised | inward, max_size=4)


async def opened(ways: Sequence[Sequence[Address]], authority: Certificates) -> tuple[list[Address], list[object]]:
    """The addresses of opened sockets, while the name resolved to each of these in turn; and the results of the calls."""
    async with Nameserver() as names:
        flow = ClientFlow(names, authority)
        flow.sockets.unreachable = True
        caller = flow.caller(may_connect=is_public)
        said: list[object] = []
        for addresses in ways:
            flow.leads(*map(str, addresses))
            said.append(await call(caller, WebhookTarget("hooks.example.com", 443, "/", "https://hooks.example.com/")))
        await caller.close()
    return [ip_address(found_answer) for found_answer in flow.sockets.opened], said


@bad_input("Webhook URLs", 40, each=CALLS)
@given(some.lists(leads, min_size=CALLS, max_size=CALLS))
def test_no_socket_is_opened_to_a_forbidden_address(certificates: Certificates, ways: list[list[Address]]) -> None:
    to, said = asyncio.run(opened(ways, certificates))
    assert all(isinstance(found_answer, NoWebhookAnswer) for found_answer in said)
    for address in to:
        assert address.is_global
        assert not address.is_multicast
        if isinstance(address, IPv6Address):
            assert address.ipv4_mapped is None
            assert address.sixtofour is None
            assert int(address) >> 96 not in (0, 0x64FF9B)


def test_a_session_with_valid_replies_is_opened() -> None:
    """Otherwise the test of replies would prove nothing."""
    results, _ = asyncio.run(delivered_to((GREETING[0], OFFERS[0], ENVELOPE[0], END[0])))
    assert [isinstance(result, SmtpAccepted) for result in results] == [True, True]
