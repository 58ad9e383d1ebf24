"""Deliver a message to a destination: try its mail servers in order, use TLS where offered, reuse connections.

The outcome is an attempt result for each recipient, judged by `rules.outcome`; nothing here raises for a failed
delivery. A server that fails before MAIL says nothing about the message, so the next server is tried; any reply from
MAIL on is the result.
"""

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Protocol

from posthouse import crash
from posthouse.mail.mx_host import MxHost, NullMx, mx_hosts
from posthouse.randomness import Randomness
from posthouse.rules import outcome
from posthouse.rules.lane import PER_CONNECTION_MAX
from posthouse.rules.outcome import AttemptResult, Forbidden, LookupFailure, NoReply, Replied, Stage, Unresolved
from posthouse.rules.public_address import Address
from posthouse.rules.route import Relay, Route
from posthouse.wire import smtp
from posthouse.wire.dialogue import SmtpContent
from posthouse.wire.dns import HostAddresses, MxRecords, NoAnswer, NoName, Resolver
from posthouse.wire.smtp import ClientDeadlines, Login, SmtpSession
from posthouse.wire.tls import CLEARTEXT, TlsPolicy, TlsUse

SMTP_PORT: Final = 25
TRIES_MAX: Final = 6
IDLE_SECONDS_MAX: Final = 30.0
IDLE_SESSIONS_MAX: Final = 1_000
ADDRESSES_KNOWN_MAX: Final = 10_000


class LaneConnections:
    """The open connections of one lane, at all addresses; `most` returns how many there may be now.

    A server counts a connection until it has closed it as well. So a connection that we quit still counts until then,
    and is replaced only afterwards.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._open = 0
        # The oldest first.
        self._idle: dict[SmtpSession, None] = {}
        self._leaving: set[SmtpSession] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_closed = False

    def close(self) -> None:
        """Close idle connections now, and those in use as soon as they are idle."""
        self._is_closed = True
        for session in self._idle:
            session.quit()
        self._idle.clear()

    async def make_capacity(self) -> None:
        """Return when another connection may be opened. It counts from then on, until it is `lost`."""
        # Messages have no more slots in the lane than it may have connections: none waits for another message.
        while self._open >= self._most() and (self._idle or self._leaving):
            if self._idle and len(self._leaving) <= len(self._waiters):
                session = next(iter(self._idle))
                del self._idle[session]
                self.leave(session)
            else:
                await self._change()
        self._open += 1

    def own(self, session: SmtpSession) -> None:
        """Take over a session that was opened after `make_capacity`."""
        session.when_lost(partial(self.lost, session))

    def lost(self, session: SmtpSession | None = None) -> None:
        """A connection has ended, or could not be opened."""
        self._open -= 1
        if session is not None:
            self._idle.pop(session, None)
            self._leaving.discard(session)
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                break

    def keep(self, session: SmtpSession) -> bool:
        """Whether it may stay open while it is idle."""
        if self._is_closed or self._open > self._most():
            return False
        self._idle[session] = None
        return True

    def reuse_session(self, session: SmtpSession, lane: "LaneConnections | None") -> None:
        """Use an idle session again, in this lane or another."""
        self._idle.pop(session, None)
        if lane is not self:
            self.lost()
            if lane is not None:
                lane.take_over(session)

    def take_over(self, session: SmtpSession) -> None:
        self._open += 1
        self.own(session)

    def leave(self, session: SmtpSession) -> None:
        self._leaving.add(session)
        session.leave()

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise


@dataclass(frozen=True, slots=True)
class CarrierRequest:
    """A message for recipients at the same destination.

    It leaves by the first of `routes` that has the server's address family; without routes, the system chooses the
    address. With a `relay` it is sent there, whatever the destination.
    """

    sender: str
    recipients: tuple[str, ...]
    message: SmtpContent
    is_first_attempt: bool = False
    routes: tuple[Route, ...] = ()
    connections: LaneConnections | None = None
    per_connection_max: int = PER_CONNECTION_MAX
    relay: Relay | None = None


@dataclass(frozen=True, slots=True)
class CarrierResult:
    """A result for each recipient, in the request's order, and the last server that was connected to.

    `source` is the address of the route that was used, None without one. `taken_before` is how many messages the
    connection had carried before. `relay` is the name of the relay that took it.
    """

    results: tuple[AttemptResult, ...]
    mx_host: str | None = None
    remote_ip: str | None = None
    tls: str | None = None
    source_ip: str | None = None
    taken_before: int = 0
    relay: str | None = None


class Carrier(Protocol):
    async def carry(self, destination: str, request: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        """`before_dot` is called at the last moment at which the message can still be withdrawn."""


@dataclass(frozen=True, slots=True)
class _Server:
    """A server's address, and the route to it; None: the system chooses. `relay`, if the server is one."""

    host: str
    address: str
    route: Route | None = None
    relay: Relay | None = None

    @property
    def source(self) -> str | None:
        return None if self.route is None else str(self.route.source)


_IdleKey = tuple[str, Route | None, Relay | None]


class SmtpCarrier:
    def __init__(
        self,
        *,
        resolver: Resolver,
        randomness: Randomness,
        hostname: str,
        tls: TlsPolicy,
        may_connect: Callable[[Address], bool],
        deadlines: ClientDeadlines | None = None,
        port: int = SMTP_PORT,
        relay_tls: Callable[[], TlsPolicy] | None = None,
    ) -> None:
        """`relay_tls` must verify certificates; it is called when a relay is first used."""
        self._resolver = resolver
        self._randomness = randomness
        self._hostname = hostname
        self._tls = tls
        self._relay_tls = relay_tls
        # Cached, since it is checked for every message, and the list of forbidden networks is long.
        self._allowed = lru_cache(ADDRESSES_KNOWN_MAX)(partial(_allowed, may_connect))
        self._deadlines = deadlines or ClientDeadlines()
        self._port = port
        # Idle sessions by the server's address and the route to it, since a session greeted with the name of its route.
        # Sessions at a relay are logged in there.
        self._idle: dict[_IdleKey, deque[tuple[float, SmtpSession, LaneConnections | None]]] = defaultdict(deque)
        self._idle_count = 0
        # Addresses at which a session was opened, the latest last.
        self._answered: OrderedDict[str, None] = OrderedDict()

    async def carry(self, destination: str, request: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        relay = request.relay
        servers = await (self._servers(destination) if relay is None else self._relay_servers(relay))
        if not isinstance(servers, list):
            return _same_result(request, servers)
        if request.routes:
            servers = _routed(servers, request.routes)
        if not servers:
            return _same_result(request, NoReply(Stage.CONNECT, _no_route(request.routes)))
        is_unknown = request.is_first_attempt and not [each for each in servers if each.address in self._answered]
        deadlines = self._deadlines
        seconds = deadlines.first_seconds_total if is_unknown else deadlines.destination_seconds_total
        last: CarrierResult | None = None
        for number, server in enumerate(servers, start=1):
            left = started_at + seconds - loop.time()
            if left <= 0:
                break
            # In a short attempt no server may use up the time of the next one.
            until = loop.time() + (left / (len(servers) - number + 1) if is_unknown else left)
            last = await self._carry_to(server, request, before_dot, until)
            if number == len(servers) or not all(outcome.judge(result).next_mx_host for result in last.results):
                break
        return last or _same_result(request, NoReply(Stage.CONNECT, "no server could be tried in time"))

    def close_idle(self, now: float, *, all_of_them: bool = False) -> None:
        """Close connections that were idle for a while."""
        for key, sessions in list(self._idle.items()):
            while sessions and (all_of_them or now - sessions[0][0] > IDLE_SECONDS_MAX):
                _, session, _ = sessions.popleft()
                self._idle_count -= 1
                session.quit()
            if not sessions:
                del self._idle[key]

    async def _servers(self, destination: str) -> "list[_Server] | Unresolved | Forbidden":
        """The addresses to try, in order; or why there are none."""
        records = await self._resolver.mx_hosts(destination)
        match records:
            case NoName():
                return Unresolved(LookupFailure.NO_SUCH_NAME)
            case NoAnswer(reason):
                return Unresolved(LookupFailure.NO_ANSWER, reason)
            case MxRecords():
                hosts = mx_hosts(destination, records.records, self._randomness.id_bytes())
        if isinstance(hosts, NullMx):
            return Unresolved(LookupFailure.NULL_MX)
        return await self._addresses_of(hosts)

    async def _relay_servers(self, relay: Relay) -> "list[_Server] | NoReply":
        """The relay's addresses, which the operator may have in a private network."""
        answer = await self._resolver.addresses(relay.host)
        found = answer.addresses if isinstance(answer, HostAddresses) else ()
        if not found:
            # This says nothing about the recipient.
            return NoReply(Stage.CONNECT, f"the name of the relay, {relay.host}, has no address in DNS")
        ordered = sorted(found, key=lambda address: address.version)[:TRIES_MAX]
        return [_Server(relay.host, str(address), relay=relay) for address in ordered]

    async def _addresses_of(self, hosts: Sequence[MxHost]) -> "list[_Server] | Unresolved | Forbidden":
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
                    allowed = self._allowed(addresses)
                    is_forbidden = is_forbidden or len(allowed) < len(addresses)
                    servers += [_Server(host.host, address) for address in allowed]
            if len(servers) >= TRIES_MAX:
                break
        if servers:
            return servers[:TRIES_MAX]
        if unknown is not None:
            return Unresolved(LookupFailure.NO_ANSWER, unknown)
        return Forbidden() if is_forbidden else Unresolved(LookupFailure.NO_ADDRESS)

    async def _carry_to(
        self, server: _Server, request: CarrierRequest, before_dot: Callable[[], bool], until: float
    ) -> CarrierResult:
        while True:
            session = idle = self._take_idle(server, request.connections)
            if session is None:
                opened = await self._open_in(request.connections, server, until)
                if isinstance(opened, smtp.SmtpFailure):
                    return _same_result(request, _attempt_result(opened), server)
                session = opened
            taken_before = session.transactions
            results = await session.deliver(request.sender, request.recipients, request.message, before_dot)
            tls = None if session.tls is None else f"{session.tls.version} {session.tls.cipher}"
            self._keep(server, session, request)
            carried = tuple([_attempt_result(result) for result in results])
            # A server that closed an idle connection has said nothing about this message.
            if idle is None or not _was_lost_at_mail(carried[0]):
                return CarrierResult(
                    carried, server.host, server.address, tls, server.source, taken_before, _relay_name(request)
                )

    async def _open_in(
        self, lane: LaneConnections | None, server: _Server, until: float
    ) -> SmtpSession | smtp.SmtpFailure:
        """A new session, which counts for the lane."""
        if lane is not None:
            await lane.make_capacity()
        opened: SmtpSession | smtp.SmtpFailure | None = None
        try:
            opened = await self._open(server, until)
        finally:
            if lane is not None:
                if isinstance(opened, SmtpSession):
                    lane.own(opened)
                else:
                    lane.lost()
        if isinstance(opened, SmtpSession):
            self._remember(server.address)
            crash.point("carry.connected")
        return opened

    async def _open(self, server: _Server, until: float) -> SmtpSession | smtp.SmtpFailure:
        if server.relay is not None:
            if self._relay_tls is None:
                raise ValueError("a relay needs a policy for verified TLS")
            return await self._connect(server, self._relay_tls(), until)
        opened = await self._connect(server, self._tls, until)
        if not isinstance(opened, smtp.SmtpFailure) or self._tls.use is not TlsUse.OPPORTUNISTIC:
            return opened
        # Encrypt when offered; if TLS breaks, cleartext is no worse. A server that refuses the STARTTLS it offered
        # may be out of order, so the next server is tried instead.
        is_broken_tls = opened.stage is Stage.STARTTLS and opened.reply is None
        return await self._connect(server, CLEARTEXT, until) if is_broken_tls else opened

    async def _connect(self, server: _Server, tls: TlsPolicy, until: float) -> SmtpSession | smtp.SmtpFailure:
        left = max(0.0, until - asyncio.get_running_loop().time())
        relay = server.relay
        return await SmtpSession.open(
            server.address,
            self._port if relay is None else relay.port,
            hostname=self._hostname if server.route is None else server.route.hostname,
            tls=tls,
            server_name=server.host,
            deadlines=replace(self._deadlines, opening_seconds_total=min(self._deadlines.opening_seconds_total, left)),
            source_address=server.source,
            login=None if relay is None else Login(relay.username, relay.password),
            is_implicit_tls=relay is not None and relay.is_implicit_tls,
        )

    def _remember(self, address: str) -> None:
        self._answered[address] = None
        self._answered.move_to_end(address)
        if len(self._answered) > ADDRESSES_KNOWN_MAX:
            self._answered.popitem(last=False)

    def _take_idle(self, server: _Server, lane: LaneConnections | None) -> SmtpSession | None:
        sessions = self._idle.get((server.address, server.route, server.relay))
        while sessions:
            _, session, owner = sessions.pop()
            self._idle_count -= 1
            if session.is_reusable:
                if owner is not None:
                    owner.reuse_session(session, lane)
                return session
            if not session.is_leaving:
                session.quit()
        return None

    def _keep(self, server: _Server, session: SmtpSession, request: CarrierRequest) -> None:
        lane = request.connections
        if not session.is_reusable:
            session.quit()
            return
        is_used_up = session.transactions >= request.per_connection_max or self._idle_count >= IDLE_SESSIONS_MAX
        if is_used_up or (lane is not None and not lane.keep(session)):
            _leave(session, lane)
            return
        self._idle[server.address, server.route, server.relay].append(
            (asyncio.get_running_loop().time(), session, lane)
        )
        self._idle_count += 1


def _allowed(may_connect: Callable[[Address], bool], addresses: Sequence[Address]) -> Sequence[str]:
    """Those that we may connect to; IPv4 first: many networks have no IPv6 route and notice it slowly."""
    return [str(address) for address in sorted(filter(may_connect, addresses), key=lambda address: address.version)]


def _leave(session: SmtpSession, lane: LaneConnections | None) -> None:
    if lane is None:
        session.quit()
    else:
        lane.leave(session)


def _same_result(request: CarrierRequest, result: AttemptResult, server: _Server | None = None) -> CarrierResult:
    results = (result,) * len(request.recipients)
    relay = _relay_name(request)
    if server is None:
        return CarrierResult(results, relay=relay)
    return CarrierResult(results, server.host, server.address, source_ip=server.source, relay=relay)


def _relay_name(request: CarrierRequest) -> str | None:
    return None if request.relay is None else request.relay.name


def _routed(servers: Sequence[_Server], routes: Sequence[Route]) -> list[_Server]:
    """The servers that can be reached by a route, each with its route."""
    by_family = {route.source.version: route for route in reversed(routes)}
    pairs = [(server, by_family.get(6 if ":" in server.address else 4)) for server in servers]
    return [replace(server, route=route) for server, route in pairs if route is not None]


def _no_route(routes: Sequence[Route]) -> str:
    families = " or ".join(sorted({f"IPv{route.source.version}" for route in routes}))
    return f"the destination has no {families} address, and mail leaves from no other"


def _attempt_result(result: smtp.SmtpResult) -> AttemptResult:
    match result:
        case smtp.SmtpAccepted(reply):
            return Replied(Stage.DOT, reply)
        case smtp.SmtpFailure(stage, reply, reason):
            return NoReply(stage, reason) if reply is None else Replied(stage, reply)


def _was_lost_at_mail(result: AttemptResult) -> bool:
    """If so, then for all recipients of the transaction."""
    return isinstance(result, NoReply) and result.stage is Stage.MAIL
