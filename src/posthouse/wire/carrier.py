"""Carrying one mail to one destination: its mail servers in turn, TLS where it is offered, connections reused.

The result is one happening for each recipient, judged by `rules.outcome`; nothing here is an exception. A
server that fails before it was told of the mail says nothing about the mail, so that the next one is
tried; whatever is said from MAIL on is the answer.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from posthouse import crash
from posthouse.chance import Chance
from posthouse.mail.exchange import Exchange, NullExchange, exchanges
from posthouse.rules import outcome
from posthouse.rules.outcome import AttemptResult, Forbidden, LookupFailure, NoReply, Replied, Stage, Unresolved
from posthouse.rules.public_address import Address
from posthouse.wire import smtp
from posthouse.wire.dns import HostAddresses, MxRecords, NoAnswer, NoName, Resolver
from posthouse.wire.smtp import ClientDeadlines, SmtpSession
from posthouse.wire.smtp_content import SmtpContent
from posthouse.wire.tls import CLEARTEXT, TlsPolicy, TlsUse

SMTP_PORT: Final = 25
# A destination that lists many servers, all of them dead, must not hold a slot for an hour.
TRIES_MAX: Final = 6
ORDER_RANDOM_BYTES: Final = 16
IDLE_SECONDS_MAX: Final = 30.0
IDLE_SESSIONS_MAX: Final = 1_000
TRANSACTIONS_A_SESSION_MAX: Final = 100
ADDRESSES_JUDGED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class CarrierRequest:
    """One mail for recipients of one destination."""

    sender: str
    recipients: tuple[str, ...]
    message: SmtpContent


@dataclass(frozen=True, slots=True)
class CarrierResult:
    """What happened to each recipient, in the parcel's order, and where: the last server that was spoken to."""

    results: tuple[AttemptResult, ...]
    exchange: str | None = None
    address: str | None = None
    tls: str | None = None


class Carrier(Protocol):
    async def carry(self, destination: str, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        """`before_dot` is asked at the last moment at which the mail can still be withdrawn."""


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    address: str


class SmtpCarrier:
    def __init__(
        self,
        *,
        resolver: Resolver,
        chance: Chance,
        hostname: str,
        tls: TlsPolicy,
        may_connect: Callable[[Address], bool],
        deadlines: ClientDeadlines | None = None,
        port: int = SMTP_PORT,
    ) -> None:
        self._resolver = resolver
        self._chance = chance
        self._hostname = hostname
        self._tls = tls
        # Asked for every mail, and the list of forbidden networks is long.
        self._may_connect = lru_cache(ADDRESSES_JUDGED_MAX)(may_connect)
        self._deadlines = deadlines or ClientDeadlines()
        self._port = port
        self._idle: dict[str, deque[tuple[float, SmtpSession]]] = defaultdict(deque)
        self._idle_count = 0

    async def carry(self, destination: str, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        servers = await self._servers(destination)
        if not isinstance(servers, list):
            return _same_for_all(parcel, servers)
        last = _same_for_all(parcel, NoReply(Stage.CONNECT, "no server could be tried"))
        for server in servers:
            last = await self._carry_to(server, parcel, before_dot)
            if not all(outcome.judge(happening).next_exchange for happening in last.results):
                break
        return last

    def close_idle(self, now: float, *, all_of_them: bool = False) -> None:
        """Say goodbye to connections that nobody used for a while."""
        for address, sessions in list(self._idle.items()):
            while sessions and (all_of_them or now - sessions[0][0] > IDLE_SECONDS_MAX):
                _, session = sessions.popleft()
                self._idle_count -= 1
                session.quit()
            if not sessions:
                del self._idle[address]

    async def _servers(self, destination: str) -> "list[_Server] | Unresolved | Forbidden":
        """The addresses to try, in order; or why there is none."""
        records = await self._resolver.exchanges(destination)
        match records:
            case NoName():
                return Unresolved(LookupFailure.NO_SUCH_NAME)
            case NoAnswer(reason):
                return Unresolved(LookupFailure.NO_ANSWER, reason)
            case MxRecords():
                hosts = exchanges(destination, records.records, self._chance.bytes(ORDER_RANDOM_BYTES))
        if isinstance(hosts, NullExchange):
            return Unresolved(LookupFailure.NULL_MX)
        return await self._addressed(hosts)

    async def _addressed(self, hosts: Sequence[Exchange]) -> "list[_Server] | Unresolved | Forbidden":
        servers: list[_Server] = []
        unknown: str | None = None
        is_forbidden = False
        for host in hosts:
            answer = await self._resolver.addresses(host.host)
            match answer:
                case NoAnswer(reason):
                    unknown = reason
                case NoName():
                    pass
                case HostAddresses(addresses):
                    # Version 4 first: many networks have no way out for version 6, and find out slowly.
                    allowed = sorted(filter(self._may_connect, addresses), key=lambda one: one.version)
                    is_forbidden = is_forbidden or len(allowed) < len(addresses)
                    servers += [_Server(host.host, str(address)) for address in allowed]
            if len(servers) >= TRIES_MAX:
                break
        if servers:
            return servers[:TRIES_MAX]
        if unknown is not None:
            return Unresolved(LookupFailure.NO_ANSWER, unknown)
        return Forbidden() if is_forbidden else Unresolved(LookupFailure.NO_ADDRESS)

    async def _carry_to(self, server: _Server, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        while (session := self._take_idle(server)) is not None:
            carriage = await self._deliver(session, server, parcel, before_dot)
            # A server that hung up on an idle connection has not said a word about this mail.
            if not _was_stale(carriage):
                return carriage
        opened = await self._open(server)
        if isinstance(opened, smtp.SmtpFailure):
            return _same_for_all(parcel, _happening(opened), server)
        crash.point("carry.connected")
        return await self._deliver(opened, server, parcel, before_dot)

    async def _open(self, server: _Server) -> SmtpSession | smtp.SmtpFailure:
        opened = await self._connect(server, self._tls)
        if not isinstance(opened, smtp.SmtpFailure) or self._tls.use is not TlsUse.OPPORTUNISTIC:
            return opened
        # Nobody demanded TLS, and TLS that breaks is no worse than none. A server that refuses what it offered
        # is another matter: it may be out of order, and the next one is asked.
        is_broken_tls = opened.stage is Stage.STARTTLS and opened.reply is None
        return await self._connect(server, CLEARTEXT) if is_broken_tls else opened

    async def _connect(self, server: _Server, tls: TlsPolicy) -> SmtpSession | smtp.SmtpFailure:
        return await SmtpSession.open(
            server.address,
            self._port,
            hostname=self._hostname,
            tls=tls,
            server_name=server.host,
            deadlines=self._deadlines,
        )

    async def _deliver(
        self, session: SmtpSession, server: _Server, parcel: CarrierRequest, before_dot: Callable[[], bool]
    ) -> CarrierResult:
        transaction = await session.deliver(parcel.sender, parcel.recipients, parcel.message, before_dot)
        tls = None if session.tls is None else f"{session.tls.version} {session.tls.cipher}"
        self._keep(server, session)
        happenings = tuple([_happening(result) for result in transaction.results])
        return CarrierResult(happenings, server.host, server.address, tls)

    def _take_idle(self, server: _Server) -> SmtpSession | None:
        sessions = self._idle.get(server.address)
        while sessions:
            _, session = sessions.pop()
            self._idle_count -= 1
            if session.is_reusable:
                return session
            session.quit()
        return None

    def _keep(self, server: _Server, session: SmtpSession) -> None:
        is_worn = session.transactions >= TRANSACTIONS_A_SESSION_MAX
        if is_worn or not session.is_reusable or self._idle_count >= IDLE_SESSIONS_MAX:
            session.quit()
            return
        self._idle[server.address].append((asyncio.get_running_loop().time(), session))
        self._idle_count += 1


def _same_for_all(parcel: CarrierRequest, happening: AttemptResult, server: _Server | None = None) -> CarrierResult:
    happenings = (happening,) * len(parcel.recipients)
    return CarrierResult(happenings) if server is None else CarrierResult(happenings, server.host, server.address)


def _happening(result: smtp.SmtpResult) -> AttemptResult:
    match result:
        case smtp.SmtpAccepted(reply):
            return Replied(Stage.DOT, reply)
        case smtp.SmtpFailure(stage, reply, reason):
            return NoReply(stage, reason) if reply is None else Replied(stage, reply)


def _was_stale(carriage: CarrierResult) -> bool:
    return all(isinstance(happening, NoReply) and happening.stage is Stage.MAIL for happening in carriage.results)
