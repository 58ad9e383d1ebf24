"""Links that log a user in once, made by an operator or by `posthouse dev`.

A link stands for the password, never for the second factor.
"""

from datetime import timedelta
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.shared.principal import LoginSession
from posthouse.rules import credential, limits
from posthouse.rules.pepper import Peppers
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import login_links, users
from posthouse.store.postgres import Database

LIFETIME: Final = timedelta(seconds=limits.LOGIN_LINK_SECONDS)
# Behind the #, which browsers send to no server: the token is in no log of a proxy.
_PATH: Final = "/dashboard/login#link="


class LoginLinks:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        passwords: Passwords,
        sessions: Sessions,
        peppers: Peppers,
    ) -> None:
        self._database = database
        self._clock = clock
        self._chance = chance
        self._passwords = passwords
        self._sessions = sessions
        self._peppers = peppers

    async def new_link(self, email: str) -> str:
        """The path of a link for the user with this address."""
        now = self._clock.now()
        token = credential.new_mail_token(self._chance.bytes(credential.SECRET_RANDOM_BYTES))
        user = await self._sessions.user(email)
        async with self._database.transaction() as tx:
            await login_links.add(tx, self._peppers.hash(token), user.id, expires_at=now + LIFETIME, now=now)
            await self._sessions.note_login_link(tx, user)
        return _PATH + token

    async def login(self, token: str, code: str | None, peer: str, user_agent: str, *, keep: bool) -> LoginSession:
        token_hashes = self._peppers.hashes(token)
        async with self._database.connection() as connection:
            user_id = await login_links.find_open(connection, token_hashes, self._clock.now())
            user = None if user_id is None else await users.find_by_id(connection, user_id)
        if user is None:
            raise _not_open()
        await self._passwords.require_code(user.id, code)
        async with self._database.transaction() as tx:
            # In the transaction that begins the session: of two requests with one token the second finds none.
            if not await login_links.use(tx, token_hashes):
                raise _not_open()
            begun = await self._sessions.begin(tx, user, peer, user_agent, keep=keep)
        self._sessions.note_login(user, peer, user_agent)
        return begun


def _not_open() -> Refusal:
    return Refusal(
        Code.UNAUTHORIZED,
        f"This link can't be used: it works once, for {limits.LOGIN_LINK_SECONDS // 60} minutes. Ask for another, or "
        "log in with your password.",
    )
