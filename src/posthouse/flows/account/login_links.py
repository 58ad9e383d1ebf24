"""Links that log a user in once, created by an operator or by `posthouse dev`.

A link replaces the password, never the second factor.
"""

from datetime import timedelta
from typing import Final

from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import LoginSession
from posthouse.rules import credential, limits
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import logins, users

LIFETIME: Final = timedelta(seconds=limits.LOGIN_LINK_SECONDS)
# After the #, which browsers send to no server, so that the token is in no proxy's log.
_PATH: Final = "/dashboard/login#link="


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
            await logins.add_link(tx, self._keys.peppers.hash(token), user.id, expires_at=now + LIFETIME, now=now)
            await self._sessions.note_login_link(tx, user)
        return _PATH + token

    async def login(self, token: str, code: str | None, peer: str, user_agent: str, *, remember: bool) -> LoginSession:
        token_hashes = self._keys.peppers.hashes(token)
        async with self._database.connection() as connection:
            user_id = await logins.find_open_link(connection, token_hashes, self._clock.now())
            user = None if user_id is None else await users.find_by_id(connection, user_id)
        if user is None:
            raise _not_open()
        await self._passwords.require_code(user.id, code)
        async with self._database.transaction() as tx:
            # In the transaction that begins the session: if two requests use one token, the second finds none.
            if not await logins.use_link(tx, token_hashes):
                raise _not_open()
            begun = await self._sessions.begin(tx, user, peer, user_agent, remember=remember)
        self._sessions.note_login(user, peer, user_agent)
        return begun


def _not_open() -> Refusal:
    return Refusal(
        Code.UNAUTHORIZED,
        f"This link can't be used: it works once, within {limits.LOGIN_LINK_SECONDS // 60} minutes. Ask for another, "
        "or log in with your password.",
    )
