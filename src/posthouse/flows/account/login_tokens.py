"""Tokens that work once: links that log a user in, and resets of a password by email.

A link is created by an operator or by `posthouse dev`; it replaces the password, never the second factor.

Whether there is a user with an address is not revealed: the response to a forgotten password is sent before the address
is looked up, and is always the same, even while the service can't send. Mail is limited for each address, and requests
for each network, in the memory of this process.
"""

from datetime import timedelta
from typing import Final

import structlog

from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import LoginSession
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.flows.shared.shares import Rates
from posthouse.rules import credential, input_checks, limits, service_text
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import logins, users

log = structlog.get_logger(__name__)

LINK_LIFETIME: Final = timedelta(seconds=limits.LOGIN_LINK_SECONDS)
RESET_LIFETIME: Final = timedelta(seconds=limits.PASSWORD_RESET_SECONDS)
# After the #, which browsers send to no server, so that the token is in no proxy's log.
_LINK_PATH: Final = "/dashboard/login#link="
# Mail to an address: a burst of three, then one in 20 minutes. Requests of a network: ten, then one in 10 seconds.
ADDRESS_RATE: Final = Rate(1 / 1_200, 3)
NETWORK_RATE: Final = Rate(1 / 10, 10)
IN_PROGRESS_MAX: Final = 100


class LoginLinks(Flow):
    def __init__(self, context: Context, *, passwords: Passwords, sessions: Sessions) -> None:
        super().__init__(context)
        self._passwords = passwords
        self._sessions = sessions

    async def new_link(self, email: str) -> str:
        """The path of a link for the user with this address."""
        now = self._clock.now()
        token = credential.new_mail_token(self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
        user = await self._sessions.user(email)
        async with self._database.transaction() as tx:
            await logins.add_link(tx, self._keys.peppers.hash(token), user.id, expires_at=now + LINK_LIFETIME, now=now)
            await self._sessions.note_login_link(tx, user)
        return _LINK_PATH + token

    async def login(self, token: str, code: str | None, peer: str, user_agent: str, *, remember: bool) -> LoginSession:
        token_hashes = self._keys.peppers.hashes(token)
        async with self._database.connection() as connection:
            user_id = await logins.find_open_link(connection, token_hashes, self._clock.now())
            user = None if user_id is None else await users.find_by_id(connection, user_id)
        if user is None:
            raise _link_not_open()
        await self._passwords.require_code(user.id, code)
        async with self._database.transaction() as tx:
            # In the transaction that begins the session: if two requests use one token, the second finds none.
            if not await logins.use_link(tx, token_hashes):
                raise _link_not_open()
            begun = await self._sessions.begin(tx, user, peer, user_agent, remember=remember)
        self._sessions.note_login(user, peer, user_agent)
        return begun


class PasswordReset(Flow):
    def __init__(
        self, context: Context, *, passwords: Passwords, sessions: Sessions, service_mail: ServiceMail, public_url: str
    ) -> None:
        super().__init__(context)
        self._passwords = passwords
        self._sessions = sessions
        self._service_mail = service_mail
        self._public_url = public_url
        self._addresses: Rates[str] = Rates()
        self._networks: Rates[str] = Rates()
        self._tasks = BackgroundTasks()

    async def forgot(self, email: str, peer: str) -> None:
        """Email a token to the user with that address, if there is one; returns before that is known.

        Raises for every caller if no mail can be sent, because a user must not wait for mail that won't come.
        """
        self._service_mail.require()
        network, now = credential.peer_network(peer), self._clock.now()
        self._networks.require(network, NETWORK_RATE, now, "Many new passwords were requested from this address")
        await self._service_mail.check()
        if len(self._tasks) >= IN_PROGRESS_MAX:
            raise Refusal(Code.TEMPORARY_FAILURE, "Many new passwords are being requested now: try again.", 2)
        self._tasks.spawn(self._mail(email))

    async def settle(self) -> None:
        """Return when all requested mail is accepted or refused."""
        await self._tasks.settle()

    async def _mail(self, email: str) -> None:
        try:
            address = input_checks.user_address(email)
            if self._addresses.take_request(address, ADDRESS_RATE, self._clock.now()) is not None:
                return
            async with self._database.connection() as connection:
                user = await users.find_by_email(connection, address)
            if user is None:
                return
            token = credential.new_mail_token(self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
            token_hash = self._keys.peppers.hash(token)
            async with self._database.transaction() as tx:
                await logins.begin_reset(tx, user.id, token_hash, self._clock.now() + RESET_LIFETIME)
            link = f"{self._public_url}/reset#{token}" if self._public_url else None
            await self._service_mail.send(user.email, *service_text.password_reset(token, link))
        except Refusal as refusal:
            # The address is invalid, or the service can't send now: the user will try again.
            log.warning("password_reset_not_mailed", code=refusal.code.value)

    async def reset(self, token: str, password: str, peer: str) -> None:
        """Set the password of the token's user; all of their sessions end. A second factor stays."""
        input_checks.check_password(password)
        token_hashes = self._keys.peppers.hashes(token)
        async with self._database.connection() as connection:
            user_id = await logins.find_open_reset(connection, token_hashes, self._clock.now())
            user = None if user_id is None else await users.find_by_id(connection, user_id)
        if user is None:
            raise _reset_not_open()
        password_hash = await self._passwords.hashed(password, peer)
        async with self._database.transaction() as tx:
            # In the transaction that sets the password: if two requests use one token, the second finds none.
            if not await logins.use_reset(tx, user.id, token_hashes):
                raise _reset_not_open()
            await self._sessions.set_password(tx, user, password_hash)
        await self._passwords.trust(user.email, peer)


def _link_not_open() -> Refusal:
    return Refusal(
        Code.UNAUTHORIZED,
        f"This link can't be used: it works once, within {limits.LOGIN_LINK_SECONDS // 60} minutes. Ask for another, "
        "or log in with your password.",
    )


def _reset_not_open() -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        "No new password can be chosen with this token: it was used, replaced, or is older than "
        f"{limits.PASSWORD_RESET_SECONDS // 60} minutes. Ask for another with POST /v1/auth/forgot.",
    )
