"""Password resets by mail.

Whether there is a user with an address is not revealed: the answer comes before the address is looked up, and is always
the same, also while the service can't send. Mail is limited for each address, and requests for each network, in the
memory of this process.
"""

from datetime import timedelta
from typing import Final

import structlog

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import credential, input_checks, limits, service_text
from posthouse.rules.pepper import Peppers
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import password_resets, users
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

LIFETIME: Final = timedelta(seconds=limits.PASSWORD_RESET_SECONDS)
# Mail to an address: three at once, then one in 20 minutes. Requests of a network: ten at once, then one in 10 seconds.
ADDRESS_RATE: Final = Rate(1 / 1_200, 3)
NETWORK_RATE: Final = Rate(1 / 10, 10)
IN_PROGRESS_MAX: Final = 100


class PasswordReset:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        passwords: Passwords,
        sessions: Sessions,
        service_mail: ServiceMail,
        peppers: Peppers,
        public_url: str,
    ) -> None:
        self._database = database
        self._clock = clock
        self._chance = chance
        self._passwords = passwords
        self._sessions = sessions
        self._service_mail = service_mail
        self._peppers = peppers
        self._public_url = public_url
        self._addresses: MemoryRates[str] = MemoryRates()
        self._networks: MemoryRates[str] = MemoryRates()
        self._tasks = BackgroundTasks()
        self._in_progress = 0

    async def forgot(self, email: str, peer: str) -> None:
        """Mail a token to the user of that address, if there is one; returns before that is known.

        Raises when no mail can be sent, whoever asks: a user must not wait for mail that won't come.
        """
        self._service_mail.require()
        taken = self._networks.take(credential.peer_network(peer), NETWORK_RATE, self._clock.now())
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"Many new passwords were asked for from this address: try again in {taken.seconds} s.",
                taken.seconds,
            )
        await self._service_mail.check()
        if self._in_progress >= IN_PROGRESS_MAX:
            raise Refusal(Code.TEMPORARY_FAILURE, "Many new passwords are asked for at this moment: try again.", 2)
        self._in_progress += 1
        self._tasks.spawn(self._mail(email))

    async def settle(self) -> None:
        """Return when all mail that was asked for is accepted or refused."""
        await self._tasks.settle()

    async def _mail(self, email: str) -> None:
        try:
            address = input_checks.user_address(email)
            if isinstance(self._addresses.take(address, ADDRESS_RATE, self._clock.now()), RateWait):
                return
            async with self._database.connection() as connection:
                user = await users.find_by_email(connection, address)
            if user is None:
                return
            token = credential.new_mail_token(self._chance.bytes(credential.SECRET_RANDOM_BYTES))
            token_hash = self._peppers.hash(token)
            async with self._database.transaction() as tx:
                await password_resets.begin(tx, user.id, token_hash, self._clock.now() + LIFETIME)
            link = f"{self._public_url}/reset#{token}" if self._public_url else None
            await self._service_mail.send(user.email, *service_text.password_reset(token, link))
        except Refusal as refusal:
            # An address that is none, or a service that can't send at this moment: the user asks again.
            log.warning("password_reset_not_mailed", code=refusal.code.value)
        finally:
            self._in_progress -= 1

    async def reset(self, token: str, password: str, peer: str) -> None:
        """Set the password of the token's user; all of their sessions end. A second factor stays."""
        input_checks.check_password(password)
        token_hashes = self._peppers.hashes(token)
        async with self._database.connection() as connection:
            user_id = await password_resets.find_open(connection, token_hashes, self._clock.now())
            user = None if user_id is None else await users.find_by_id(connection, user_id)
        if user is None:
            raise _not_open()
        password_hash = await self._passwords.hashed(password, peer)
        async with self._database.transaction() as tx:
            # In the transaction that sets the password: of two requests with one token the second finds none.
            if not await password_resets.use(tx, user.id, token_hashes):
                raise _not_open()
            await self._sessions.set_password(tx, user, password_hash)
        await self._passwords.trust(user.email, peer)


def _not_open() -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        "No new password can be chosen with this token: it was used, replaced, or is older than "
        f"{limits.PASSWORD_RESET_SECONDS // 60} minutes. Ask for another with POST /v1/auth/forgot.",
    )
