"""Passwords and second factors, checked at a rate that makes guessing hopeless.

Every check of a password is made here, so that every attempt counts. An attempt counts against the person, that is, an
email address at a network: after some failures only that pair is blocked for a time. A right password clears it, once
the code of the second factor, if there is one, is right as well. Failures of a network with any address, and with an
address from any network, only delay further attempts (decision record 0027). Codes count against their user from all
networks together: there are only a million codes, and an attacker who guesses codes has the password, and may have
many addresses.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from posthouse.flows.shared.background_tasks import in_low_priority
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.shared_database import count_for
from posthouse.flows.shared.shares import TURN_SECONDS_MAX, FairShare, WaitedShare, busy
from posthouse.rules import credential, limits, rate_limit, totp
from posthouse.rules.ids import UserId
from posthouse.rules.pepper import Peppers
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import logins, second_factors, users
from posthouse.store.postgres import Connection
from posthouse.store.users import UserRow

SUBJECTS_MAX: Final = 10_000
REMEMBERED_SECONDS: Final = 900.0
# Each check holds 64 MiB and a core for a while; networks take turns.
CONCURRENT_CHECKS_MAX: Final = 2
CHECKS_MAX: Final = 40
_BUSY: Final = busy("Many passwords are being checked")
# This header tells a program that only a code is missing.
SECOND_FACTOR_HEADER: Final = "Second-Factor"
_WRONG: Final = "The email address or the password is wrong."
_WRONG_CODE: Final = "The code is wrong, or was already used: give the one that is shown now, or a recovery code."
_CODE_NEEDED: Final = (
    "This user has a second factor: send `code` as well, from the authenticator app, or one of the recovery codes."
)


class _Failures(NamedTuple):
    number: int
    last_at: float


class LoginDelays:
    """Delays of logins after failures from the same network, or with the same email address.

    Many people share a network behind a proxy or a company's router, and anyone can type any address. So these counts
    refuse no login, but only delay the next one, by a bounded time. Counts are in the memory of this process.
    """

    def __init__(self, *, subjects_max: int = SUBJECTS_MAX) -> None:
        self._subjects_max = subjects_max
        # The subject that failed last is at the end.
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds(self, subject: str, failures_free: int, now: float) -> float:
        """How long a login of the subject is delayed; `now` is monotonic."""
        return rate_limit.login_delay_seconds(self._count(subject, now) - failures_free)

    def count(self, subject: str, now: float) -> None:
        """Count a failure of the subject."""
        self._failures[subject] = _Failures(self._count(subject, now) + 1, now)
        self._failures.move_to_end(subject)
        if len(self._failures) > self._subjects_max:
            self._failures.popitem(last=False)

    def clear(self, subject: str) -> None:
        self._failures.pop(subject, None)

    def _count(self, subject: str, now: float) -> int:
        found = self._failures.get(subject)
        return 0 if found is None or now - found.last_at > REMEMBERED_SECONDS else found.number


class Passwords(Flow):
    """A process has a single instance, which bounds how many hashes are computed at the same time."""

    def __init__(
        self,
        context: Context,
        *,
        hasher: PasswordHasher | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(context)
        self._hasher = hasher or PasswordHasher()
        self._in_progress: FairShare[str] = FairShare(CHECKS_MAX)
        self._turns: WaitedShare[str] = WaitedShare(
            CONCURRENT_CHECKS_MAX,
            holder_max=CONCURRENT_CHECKS_MAX,
            wait_seconds_max=TURN_SECONDS_MAX,
            refusal=_BUSY,
        )
        self._delays = LoginDelays()
        self._pause = pause
        self._dummy_password = context.randomness.bytes(16).hex()
        self._dummy_hash = ""

    async def proven(self, email: str, password: str, peer: str, code: str | None = None) -> UserRow:
        """The user with that address, if password and code are right."""
        user = await self.recognised(email, password, peer)
        if user is None:
            raise Refusal(Code.UNAUTHORIZED, _WRONG)
        await self.require_code(user.id, code)
        await self.trust(user.email, peer)
        return user

    async def require_code(self, user_id: UserId, code: str | None) -> None:
        """Raises unless the code is right, or the user has no second factor."""
        async with self._database.connection() as connection:
            needs_code = await second_factors.is_active(connection, user_id)
        if needs_code and not code:
            raise Refusal(Code.UNAUTHORIZED, _CODE_NEEDED, headers={SECOND_FACTOR_HEADER: "required"})
        if needs_code and not await self.is_code(user_id, code or ""):
            raise Refusal(Code.UNAUTHORIZED, _WRONG_CODE, headers={SECOND_FACTOR_HEADER: "required"})

    async def recognised(self, email: str, password: str, peer: str) -> UserRow | None:
        """The user with that address, if this is their password; the attempt counts until `trust`."""
        email = email.strip().lower()
        if len(email) > limits.ADDRESS_CHARACTERS_MAX or not email.isprintable():
            return None
        network = credential.peer_network(peer)
        count_for(network)
        with self._in_progress.taking(network, _BUSY):
            await self._count_attempt(person(email, peer, self._keys.peppers))
            await self._delay(email, network)
            async with self._database.connection() as connection:
                known = await users.find_by_email(connection, email)
            is_right = await self._is_right(None if known is None else known.password_hash, password, network)
        if known is None or not is_right:
            # Not cleared by a right password: an attacker at the network may have their own login.
            self._delays.count(network, self._clock.monotonic())
            self._delays.count(email, self._clock.monotonic())
            return None
        return known

    async def _delay(self, email: str, network: str) -> None:
        now = self._clock.monotonic()
        seconds = max(
            self._delays.seconds(network, limits.LOGIN_NETWORK_FAILURES_FREE, now),
            self._delays.seconds(email, limits.LOGIN_FAILURES_FREE, now),
        )
        if seconds:
            await self._pause(seconds)

    async def trust(self, email: str, peer: str) -> None:
        """Clear the failed attempts of a person who is now authenticated."""
        self._delays.clear(email)
        async with self._database.transaction() as tx:
            await logins.clear_failures(tx, person(email, peer, self._keys.peppers))

    async def is_code(self, user_id: UserId, given: str) -> bool:
        """Whether it is a code of the user's second factor, or a recovery code; either works once."""
        await self.count_code(user_id)
        async with self._database.transaction() as tx:
            is_right = await self._use(tx, user_id, given)
            if is_right:
                await self.clear_codes(tx, user_id)
        return is_right

    async def count_code(self, user_id: UserId) -> None:
        """Count an attempt at one of the user's codes; raises while the user's codes are blocked."""
        await self._count_attempt(_codes(user_id))

    async def clear_codes(self, tx: Connection, user_id: UserId) -> None:
        """Clear the attempts of a user who gave a right code."""
        await logins.clear_failures(tx, _codes(user_id))

    async def _use(self, tx: Connection, user_id: UserId, given: str) -> bool:
        code = totp.recovery_code(given)
        if code is not None:
            return await second_factors.use_recovery_code(tx, user_id, self._keys.peppers.hashes(code))
        factor = await second_factors.lock(tx, user_id)
        if factor is None or factor.confirmed_at is None:
            return False
        secret = self._keys.sealer.open(factor.secret_sealed, second_factors.secret_purpose(user_id))
        step = totp.matching_step(secret, given, self._clock.now(), factor.last_step)
        return step is not None and await second_factors.use_step(tx, user_id, step)

    async def hashed(self, password: str, peer: str = "") -> str:
        """What is stored in place of a password."""
        network = credential.peer_network(peer)
        # Slow on purpose, so not on the event loop, and never inside a transaction.
        with self._in_progress.taking(network, _BUSY):
            async with self._turns.turn(network):
                return await in_low_priority(self._hasher.hash, password)

    async def _is_right(self, password_hash: str | None, password: str, network: str) -> bool:
        """An unknown user is checked against a dummy hash: the time taken must not reveal whether a user exists."""
        async with self._turns.turn(network):
            # Computed at the first check.
            if not self._dummy_hash:
                self._dummy_hash = await in_low_priority(self._hasher.hash, self._dummy_password)
            try:
                return await in_low_priority(self._hasher.verify, password_hash or self._dummy_hash, password)
            except (VerificationError, InvalidHashError):
                return False

    async def _count_attempt(self, subject: str) -> None:
        """Count this attempt against the subject; raises, without counting it, while the subject is blocked."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # Most blocked attempts are refused without a write.
            until = await logins.blocked_until(tx, subject)
            if until is not None and until > now:
                raise _blocked(until, now)
            count = await logins.count_try(tx, subject, now)
            if count is None:
                raise _blocked(await logins.blocked_until(tx, subject), now)
            await logins.block_logins(tx, subject, now, rate_limit.login_wait_seconds(count))


def _blocked(until: datetime | None, now: datetime) -> Refusal:
    # The subject may have been cleared since then.
    seconds = 1 if until is None else max(1, -((now - until) // timedelta(seconds=1)))
    return Refusal(Code.RATE_LIMITED, f"Too many failed logins: try again in {seconds} s.", seconds)


def _codes(user_id: UserId) -> str:
    return f"code {user_id}"


def person(email: str, peer: str, peppers: Peppers) -> str:
    """Hashed, because people type their password into the address field, and this is stored for a day."""
    return f"person {credential.secret_hash(email, peppers.active.key).hex()} {credential.peer_network(peer)}"
