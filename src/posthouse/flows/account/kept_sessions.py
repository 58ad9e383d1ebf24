"""Kept sessions: a secret in the browser's cookie gives a short-lived token, and is replaced at each use.

A secret that was replaced longer ago than two tabs need is a copy in use by someone else, or by the user while someone
else has the newer: the session ends.
"""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

import structlog

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.account.session_tokens import NO_ACCOUNT, NO_MEMBER, OVER, SessionTokens
from posthouse.flows.shared.principal import LoginSession
from posthouse.rules import ids, renewal
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.pepper import Peppers
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.renewal import Use
from posthouse.store import sessions, users
from posthouse.store.postgres import Connection, Database
from posthouse.store.sessions import RenewableSession, SessionRow

log = structlog.get_logger(__name__)


class KeptSessions:
    def __init__(
        self, *, database: Database, clock: Clock, chance: Chance, tokens: SessionTokens, peppers: Peppers
    ) -> None:
        self._database = database
        self._clock = clock
        self._chance = chance
        self._tokens = tokens
        self._peppers = peppers

    async def renew(self, secret: str, account_id: str | None) -> LoginSession:
        """A token for that account, or for the one that a login would open."""
        async with self._database.transaction() as tx:
            renewed = await self._renew(tx, secret, account_id, self._clock.now())
        # Raised after the commit: the session's end must hold.
        if renewed is None:
            raise Refusal(Code.UNAUTHORIZED, OVER)
        return renewed

    async def _renew(self, tx: Connection, secret: str, account_id: str | None, now: datetime) -> LoginSession | None:
        found = await sessions.lock_renewable(tx, self._peppers.hashes(secret), now)
        if found is None:
            return None
        session = found.session
        match renewal.judge(is_current=found.is_current, renewed_at=found.renewed_at, now=now):
            case Use.FIRST:
                account = await _account(tx, session.user_id, account_id)
                session = replace(session, expires_at=renewal.end_of_session(session.created_at, now))
                return self._tokens.issue(session, *account, await self._replace(tx, session, secret, now))
            case Use.AGAIN:
                account = await _account(tx, session.user_id, account_id)
                return self._tokens.issue(session, *account, self._next_of(secret, found))
            case Use.TOO_LATE:
                await sessions.revoke(tx, session.id, session.user_id, now)
                log.warning("old_renewal_secret_ended_session", session=ids.text(ids.SESSION, session.id))
                return None
            case never:
                assert_never(never)

    async def _replace(self, tx: Connection, session: SessionRow, secret: str, now: datetime) -> str:
        salt = self._chance.bytes(renewal.SALT_BYTES)
        replaced_by = renewal.next_secret(secret, salt, self._peppers.active.key)
        await sessions.renew(tx, session.id, self._peppers.hash(replaced_by), salt, session.expires_at, now)
        return replaced_by

    def _next_of(self, secret: str, found: RenewableSession) -> str:
        """The secret that has replaced this one, whichever pepper was active in the process that did it."""
        following = [renewal.next_secret(secret, found.salt or b"", key) for key in self._peppers.keys]
        return next((given for given in following if self._peppers.matches(given, found.renewal_hash)), following[0])


async def _account(tx: Connection, user_id: UserId, given: str | None) -> tuple[AccountId, Role]:
    if given is None:
        joined = await users.account_to_open(tx, user_id)
        if joined is None:
            raise Refusal(Code.UNAUTHORIZED, NO_ACCOUNT)
        return joined.account_id, joined.role
    account_id = ids.parse(ids.ACCOUNT, given)
    member = None if account_id is None else await users.find_member(tx, AccountId(account_id), user_id)
    if account_id is None or member is None:
        raise Refusal(Code.NOT_FOUND, NO_MEMBER)
    return AccountId(account_id), member.role
