"""A scripted name server on the loopback: real sockets, UDP and TCP, answers as the test says."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Final, Self, cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

STRING_BYTES_MAX: Final = 255

# What the server does instead of answering a name from its zone.
SILENT: Final = "silent"
SERVFAIL: Final = "servfail"
REFUSED: Final = "refused"
TRUNCATED: Final = "truncated"  # over UDP only: ask again over TCP
ALIAS: Final = "alias:"  # and the name it stands for


class Nameserver:
    """`zone` maps names to the texts of their TXT records; `script` names to what else happens there.

    `records` are records of any other kind, as (name, kind) and their texts in master-file form.
    """

    def __init__(
        self, zone: Mapping[str, Sequence[str]] | None = None, script: Mapping[str, str] | None = None
    ) -> None:
        self.zone: dict[str, Sequence[str]] = dict(zone or {})
        self.script: dict[str, str] = dict(script or {})
        self.records: dict[tuple[str, str], Sequence[str]] = {}
        self.ttl = 0
        self.asked: list[tuple[str, str]] = []
        self.port = 0
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    @property
    def endpoint(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def __aenter__(self) -> Self:
        while self._udp is None:
            self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", 0)
            self.port = self._tcp.sockets[0].getsockname()[1]
            try:
                self._udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                    lambda: _Datagrams(self), local_addr=self.endpoint, family=socket.AF_INET
                )
            except OSError:
                # A port that is free for TCP may be in use for UDP.
                self._tcp.close()
                await self._tcp.wait_closed()
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._udp is not None
        assert self._tcp is not None
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    def answer(self, wire: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        self.asked.append((name, transport))
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        act = self.script.get(name, "")
        if act == SILENT:
            return None
        if act in (SERVFAIL, REFUSED):
            response.set_rcode(dns.rcode.from_text(act))
            return response.to_wire()
        if act == TRUNCATED and transport == "udp":
            response.flags |= dns.flags.TC
            return response.to_wire()
        owner = question.name
        if act.startswith(ALIAS):
            target = dns.name.from_text(act.removeprefix(ALIAS))
            response.answer.append(dns.rrset.from_text(owner, 0, "IN", "CNAME", target.to_text()))
            owner, name = target, target.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        others = self.records.get((name, kind), ())
        if others:
            response.answer.append(dns.rrset.from_text(owner, self.ttl, "IN", kind, *others))
        elif name not in self.zone and not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif name not in self.zone:
            pass
        elif question.rdtype == dns.rdatatype.TXT and self.zone[name]:
            texts = [_quoted(text) for text in self.zone[name]]
            response.answer.append(dns.rrset.from_text(owner, 0, "IN", "TXT", *texts))
        return response.to_wire()

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            answer = self.answer(await reader.readexactly(size), "tcp")
            if answer is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: Nameserver) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, "udp")
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


def _quoted(text: str) -> str:
    """In master-file form, split into strings of 255 bytes as a DKIM key has to be."""
    raw = text.encode()
    parts = [raw[start : start + STRING_BYTES_MAX] for start in range(0, len(raw), STRING_BYTES_MAX)] or [b""]
    return " ".join('"' + "".join(f"\\{byte:03d}" for byte in part) + '"' for part in parts)
