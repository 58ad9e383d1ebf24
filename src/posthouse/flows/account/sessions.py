"""Sessions: logging in and out of the dashboard, passwords, and the second factor.

A login begins a session; all tokens issued in it, for any of the user's accounts, end with it. A change of the password
or the second factor is noted in the audit log of each of the user's accounts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, assert_never

import structlog

from posthouse.flows.account.login_notices import LoginNotices
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.principal import LoginSession, Member, RenewalSecret
from posthouse.rules import credential, ids, input_checks, limits, login, token, totp
from posthouse.rules.credential import OPERATOR, SESSION_MAX, Actor, Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.rules.login import SecretUse
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import accounts, audit_log, logins, second_factors, sessions, users
from posthouse.store.postgres import Connection
from posthouse.store.second_factors import SecondFactorRow
from posthouse.store.sessions import RenewableSession
from posthouse.store.sessions import SessionRow as SessionRow
from posthouse.store.users import AccountOfUser as AccountOfUser
from posthouse.store.users import UserRow, named_user

OVER: Final = "The session is over: log in again."
NO_ACCOUNT: Final = "You are no longer a member of any account: ask an owner for a new invitation."
NO_MEMBER: Final = "You are not a member of an account with this id: GET /v1/auth/me lists your accounts."
# If a user has more accounts, those joined first are shown.
ACCOUNTS_SHOWN_MAX: Final = 100
_NOT_BEGUN: Final = "There is no second factor to confirm: begin one with POST /v1/auth/totp."
_ALREADY_ENABLED: Final = "There is already a second factor: disable it before you begin another."
_NOT_ENABLED: Final = "You have no second factor: begin one with POST /v1/auth/totp."
_WRONG_CODE: Final = "The code is wrong: check that the device's clock is right, and give the code that it shows now."
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Me:
    """Who is logged in, until when, and their other accounts."""

    member: Member
    expires_at: datetime
    has_second_factor: bool
    recovery_codes_left: int
    accounts: Sequence[AccountOfUser]
    is_second_factor_required: bool
    # Until when the login is an operator's; None for other users.
    operator_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A second factor's secret, for the authenticator app; shown only once."""

    text: str = field(repr=False)
    uri: str = field(repr=False)


class Sessions(Flow):
    def __init__(
        self,
        context: Context,
        *,
        passwords: Passwords,
        login_notices: LoginNotices | None = None,
    ) -> None:
        """In accounts' logs their owners see "the operator"; the operator's log names the `actor`."""
        super().__init__(context)
        self._passwords = passwords
        self._login_notices = login_notices

    async def login(
        self, email: str, password: str, code: str | None, peer: str, user_agent: str = "", *, remember: bool = False
    ) -> LoginSession:
        """A new session, in the account that the user opened last, or otherwise joined first."""
        user = await self._passwords.proven(email, password, peer, code)
        async with self._database.transaction() as tx:
            begun = await self.begin(tx, user, peer, user_agent, remember=remember)
        self.note_login(user, peer, user_agent)
        return begun

    async def begin(self, tx: Connection, user: UserRow, peer: str, user_agent: str, *, remember: bool) -> LoginSession:
        """A session for an authenticated user. A remembered one can be renewed."""
        now = self._clock.now()
        joined = await users.account_to_open(tx, user.id)
        if joined is None:
            raise Refusal(Code.UNAUTHORIZED, NO_ACCOUNT)
        session = SessionRow(
            SessionId(new_id(self._randomness, now)),
            user.id,
            joined.account_id,
            now,
            login.renewed_session_end(now, now) if remember else token.end_of_session(now),
            peer,
            "".join(filter(str.isprintable, user_agent))[: limits.USER_AGENT_CHARACTERS_MAX],
            is_remembered=remember,
        )
        secret = credential.new_mail_token(self._randomness.bytes(credential.SECRET_RANDOM_BYTES)) if remember else None
        renewal_hash = None if secret is None else self._keys.peppers.hash(secret)
        if not await sessions.begin(tx, session, user.password_hash, limits.SESSIONS_PER_USER_MAX, renewal_hash):
            raise Refusal(Code.UNAUTHORIZED, "The password was just changed: log in with the new one.")
        return self._issue(session, joined.account_id, joined.role, secret)

    def note_login(self, user: UserRow, peer: str, user_agent: str) -> None:
        """To be called after the commit; a login from a new place is followed by an email."""
        if self._login_notices is not None:
            self._login_notices.note_login(user.id, user.email, peer, user_agent)

    async def logout(self, member: Member) -> None:
        """End the session and all of its tokens; of an operator who impersonates a viewer, only the impersonation."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if member.impersonated_until is None:
                await sessions.revoke(tx, member.session_id, member.user_id, now)
                return
            action, detail = "account.impersonation_ended", audit_log.impersonation_detail(member.impersonated_until)
            account = await accounts.find_by_id(tx, member.account_id)
            if account is None:
                raise Refusal(Code.UNAUTHORIZED, OVER)
            await self._audit_log.add_entry(tx, account.id, OPERATOR, action, account.name, now, detail)
            await self._operator_log.add_entry(tx, action, account.name, now, detail)

    async def live(self, member: Member) -> Sequence[SessionRow]:
        """The user's sessions, newest first."""
        async with self._database.connection() as connection:
            return await sessions.live_of_user(
                connection, member.user_id, self._clock.now(), limits.SESSIONS_PER_USER_MAX
            )

    async def end(self, member: Member, given: str) -> None:
        """End a session of the user, and all of its tokens."""
        session_id = ids.parse(ids.SESSION, given)
        async with self._database.transaction() as tx:
            if session_id is None or not await sessions.revoke(
                tx, SessionId(session_id), member.user_id, self._clock.now()
            ):
                raise Refusal(Code.NOT_FOUND, "You have no session with this id: GET /v1/auth/sessions lists them.")

    async def me(self, member: Member) -> Me:
        async with self._database.connection() as connection:
            session = await sessions.live(connection, member.session_id, member.user_id, self._clock.now())
            if session is None:
                raise Refusal(Code.UNAUTHORIZED, OVER)
            if member.impersonated_until is not None:
                return await _impersonating(connection, member, member.impersonated_until)
            return Me(
                member,
                session.expires_at,
                await second_factors.is_active(connection, member.user_id),
                await second_factors.recovery_codes_left(connection, member.user_id),
                await users.accounts_of(connection, member.user_id, ACCOUNTS_SHOWN_MAX),
                await accounts.requires_totp(connection, member.account_id),
                session.created_at + SESSION_MAX if await users.is_operator(connection, member.user_id) else None,
            )

    async def switch(self, member: Member, given: str) -> LoginSession:
        """A token of the same session, until the same end, for another of the user's accounts."""
        account_id = ids.parse(ids.ACCOUNT, given)
        async with self._database.transaction() as tx:
            session = await sessions.live(tx, member.session_id, member.user_id, self._clock.now())
            if session is None:
                raise Refusal(Code.UNAUTHORIZED, OVER)
            joined = None
            if account_id is not None:
                joined = await users.find_member(tx, AccountId(account_id), member.user_id)
            if account_id is not None and joined is not None:
                await users.note_opened(tx, member.user_id, AccountId(account_id))
        if account_id is None or joined is None:
            raise Refusal(Code.NOT_FOUND, NO_MEMBER)
        return self._issue(session, AccountId(account_id), joined.role)

    def _issue(
        self, session: SessionRow, account_id: AccountId, role: Role, renewal_secret: str | None = None
    ) -> LoginSession:
        """A token, which ends with its session; that of a remembered one ends sooner, since it can be renewed."""
        now = self._clock.now()
        expires_at = login.end_of_token(session.expires_at, now) if session.is_remembered else session.expires_at
        issued = token.issue(
            account_id=account_id,
            user_id=session.user_id,
            role=role,
            session_id=session.id,
            expires_at=expires_at,
            token_id=self._randomness.bytes(16).hex(),
            secret=self._keys.token_secrets[0],
            now=now,
        )
        renews = None if renewal_secret is None else RenewalSecret(renewal_secret, session.expires_at - now)
        return LoginSession(issued, expires_at, renews)

    async def renew(self, secret: str, account_id: str | None) -> LoginSession:
        """A token of a remembered session, for that account, or for the one that a login would open.

        The secret in the browser's cookie is replaced at each use. Two tabs may use the same one within moments. If it
        is used long after it was replaced, there are two copies, one of them in someone else's hands: the session ends.
        """
        async with self._database.transaction() as tx:
            renewed = await self._renew(tx, secret, account_id, self._clock.now())
        # Raised after the commit: the session's end must hold.
        if renewed is None:
            raise Refusal(Code.UNAUTHORIZED, OVER)
        return renewed

    async def _renew(self, tx: Connection, secret: str, account_id: str | None, now: datetime) -> LoginSession | None:
        found = await sessions.lock_renewable(tx, self._keys.peppers.hashes(secret), now)
        if found is None:
            return None
        session = found.session
        match login.judge_secret(is_current=found.is_current, renewed_at=found.renewed_at, now=now):
            case SecretUse.FIRST:
                account = await _account(tx, session.user_id, account_id)
                session = replace(session, expires_at=login.renewed_session_end(session.created_at, now))
                return self._issue(session, *account, await self._replace_secret(tx, session, secret, now))
            case SecretUse.AGAIN:
                account = await _account(tx, session.user_id, account_id)
                return self._issue(session, *account, self._next_of(secret, found))
            case SecretUse.TOO_LATE:
                await sessions.revoke(tx, session.id, session.user_id, now)
                log.warning("old_renewal_secret_ended_session", session=ids.text(ids.SESSION, session.id))
                return None
            case never:
                assert_never(never)

    async def _replace_secret(self, tx: Connection, session: SessionRow, secret: str, now: datetime) -> str:
        salt = self._randomness.bytes(login.SALT_BYTES)
        replaced_by = login.next_secret(secret, salt, self._keys.peppers.active.key)
        await sessions.renew(tx, session.id, self._keys.peppers.hash(replaced_by), salt, session.expires_at, now)
        return replaced_by

    def _next_of(self, secret: str, found: RenewableSession) -> str:
        """The secret that has replaced this one, whichever pepper was active in the process that did it."""
        following = [login.next_secret(secret, found.salt or b"", key) for key in self._keys.peppers.keys]
        return next(
            (given for given in following if self._keys.peppers.matches(given, found.renewal_hash)), following[0]
        )

    async def change_password(self, member: Member, current: str, new: str, peer: str) -> None:
        """Ends all other sessions of the user, so that anyone else who knew the password is logged out."""
        input_checks.check_password(new, "new_password")
        user = await self._passwords.recognised(member.email, current, peer)
        if user is None:
            raise Refusal(Code.FORBIDDEN, "`current_password` is wrong.")
        await self._replace_password(user, await self._passwords.hashed(new, peer), member.session_id, member.actor)
        await self._passwords.trust(user.email, peer)

    async def begin_totp(self, member: Member, password: str, peer: str) -> NewSecret:
        """A secret that has no effect until a code from it confirms that the app has it.

        It requires the password, because a stolen token must not be enough to lock the user out.
        """
        async with self._database.connection() as connection:
            if await second_factors.is_active(connection, member.user_id):
                raise Refusal(Code.CONFLICT, _ALREADY_ENABLED)
        user = await self._passwords.recognised(member.email, password, peer)
        if user is None:
            raise Refusal(Code.FORBIDDEN, "`password` is wrong: give it as for a login.")
        secret = self._randomness.bytes(totp.SECRET_BYTES)
        sealed = self._keys.sealer.seal(secret, second_factors.secret_purpose(member.user_id))
        async with self._database.transaction() as tx:
            if not await second_factors.begin(tx, member.user_id, sealed, self._clock.now()):
                raise Refusal(Code.CONFLICT, _ALREADY_ENABLED)
        await self._passwords.trust(user.email, peer)
        return NewSecret(totp.secret_text(secret), totp.secret_uri(secret, member.email))

    async def confirm_totp(self, member: Member, code: str) -> Sequence[str]:
        """From now on a login needs a code; returns the recovery codes, which are shown only once.

        All other sessions of the user end, because they began without a code.
        """
        now = self._clock.now()
        codes, hashes = self._new_recovery_codes()
        async with self._database.transaction() as tx:
            await _unconfirmed(tx, member.user_id)
        await self._passwords.count_code(member.user_id)
        async with self._database.transaction() as tx:
            factor = await _unconfirmed(tx, member.user_id)
            secret = self._keys.sealer.open(factor.secret_sealed, second_factors.secret_purpose(member.user_id))
            step = totp.matching_step(secret, code, now, factor.last_step)
            if step is None:
                raise Refusal(Code.FORBIDDEN, _WRONG_CODE)
            await second_factors.confirm(tx, member.user_id, step, hashes, now)
            await self._passwords.clear_codes(tx, member.user_id)
            await self._touch_accounts(tx, member.user_id, now)
            await sessions.revoke_all(tx, member.user_id, member.session_id, now)
            await self._note(tx, member.user_id, member.actor, "user.totp_enabled", member.email, now)
        return codes

    def _new_recovery_codes(self) -> tuple[Sequence[str], Sequence[bytes]]:
        """The codes, and their hashes."""
        codes = totp.new_recovery_codes(self._randomness.bytes(totp.RECOVERY_CODES * totp.RECOVERY_CODE_BYTES))
        hashed = [self._keys.peppers.hash(code) for code in map(totp.recovery_code, codes) if code is not None]
        return codes, hashed

    async def renew_recovery_codes(self, member: Member, password: str, code: str, peer: str) -> Sequence[str]:
        """Ten new recovery codes, which are shown only once; all others end."""
        user = await self._proven_twice(member, password, code, peer)
        now = self._clock.now()
        codes, hashes = self._new_recovery_codes()
        async with self._database.transaction() as tx:
            factor = await second_factors.lock(tx, user.id)
            if factor is None or factor.confirmed_at is None:
                raise Refusal(Code.CONFLICT, _NOT_ENABLED)
            await second_factors.replace_recovery_codes(tx, user.id, hashes)
            await self._note(tx, user.id, member.actor, "user.recovery_codes_renewed", user.email, now)
        await self._passwords.trust(user.email, peer)
        return codes

    async def _proven_twice(self, member: Member, password: str, code: str, peer: str) -> UserRow:
        """The member, who must have a second factor and give password and code; the attempt counts until `trust`."""
        async with self._database.connection() as connection:
            if not await second_factors.is_active(connection, member.user_id):
                raise Refusal(Code.CONFLICT, _NOT_ENABLED)
        user = await self._passwords.recognised(member.email, password, peer)
        if user is None or not await self._passwords.is_code(user.id, code):
            raise Refusal(Code.FORBIDDEN, "`password` or `code` is wrong: give both as for a login.")
        return user

    async def disable_totp(self, member: Member, password: str, code: str, peer: str) -> None:
        user = await self._proven_twice(member, password, code, peer)
        await self._remove_factor(user, member.actor)
        await self._passwords.trust(user.email, peer)

    # Operator's actions for users who can't log in.

    async def reset_password(self, email: str, password: str) -> int:
        """Set a password without the previous one, and end all sessions; returns how many there were."""
        input_checks.check_password(password)
        user = await self.user(email)
        return await self._replace_password(user, await self._passwords.hashed(password), None, OPERATOR)

    async def note_login_link(self, tx: Connection, user: UserRow) -> None:
        """Log that an operator created a link that logs this user in."""
        await self._note(tx, user.id, OPERATOR, "user.login_link_made", user.email, self._clock.now())

    async def live_of(self, email: str) -> Sequence[SessionRow]:
        """The sessions of this user, the newest first."""
        user = await self.user(email)
        async with self._database.connection() as connection:
            return await sessions.live_of_user(connection, user.id, self._clock.now(), limits.SESSIONS_PER_USER_MAX)

    async def end_of(self, named: str, given: str | None) -> int:
        """End a session of this user, or all (None); returns how many ended."""
        user, now = await self.user(named), self._clock.now()
        session_id = None if given is None else ids.parse(ids.SESSION, given)
        async with self._database.transaction() as tx:
            if given is None:
                ended = await sessions.revoke_all(tx, user.id, None, now)
                # Otherwise a link in the wrong hands would begin the next session.
                await logins.forget_links_of_user(tx, user.id)
            else:
                ended = session_id is not None and await sessions.revoke(tx, SessionId(session_id), user.id, now)
                if not ended:
                    raise Refusal(Code.NOT_FOUND, f"{user.email} has no session {given!r}: see `session list`.")
            if ended:
                await self._note(tx, user.id, OPERATOR, "user.sessions_ended", user.email, now)
                if self._operator_log.actor != OPERATOR:
                    await self._operator_log.add_entry(tx, "user.sessions_ended", user.email, now)
        return int(ended)

    async def switch_off_totp(self, email: str) -> None:
        """For someone who lost both the device and the recovery codes."""
        await self._remove_factor(await self.user(email), OPERATOR)

    async def user(self, given: str) -> UserRow:
        """The user with this address or id."""
        async with self._database.connection() as connection:
            user = await named_user(connection, given)
        if user is None:
            raise Refusal(Code.NOT_FOUND, f"There is no user {given}: `user list` shows an account's users.")
        return user

    async def set_password(self, tx: Connection, user: UserRow, password_hash: str) -> None:
        """Replace the password of a user who was authenticated in another way, and end all sessions."""
        await self._replace(tx, user, password_hash, None, Actor(user.id, user.email))

    async def _replace_password(self, user: UserRow, password_hash: str, but: SessionId | None, actor: Actor) -> int:
        async with self._database.transaction() as tx:
            return await self._replace(tx, user, password_hash, but, actor)

    async def _replace(
        self, tx: Connection, user: UserRow, password_hash: str, but: SessionId | None, actor: Actor
    ) -> int:
        now = self._clock.now()
        if not await users.replace_password(tx, user, password_hash):
            raise Refusal(Code.CONFLICT, "The password was just changed by someone else: try again.")
        ended = await sessions.revoke_all(tx, user.id, but, now)
        await logins.forget_links_of_user(tx, user.id)
        await self._note(tx, user.id, actor, "user.password_changed", user.email, now)
        return ended

    async def _remove_factor(self, user: UserRow, actor: Actor) -> None:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if not await second_factors.remove(tx, user.id):
                raise Refusal(Code.CONFLICT, _NOT_ENABLED)
            await self._touch_accounts(tx, user.id, now)
            await self._note(tx, user.id, actor, "user.totp_disabled", user.email, now)

    @staticmethod
    async def _touch_accounts(tx: Connection, user_id: UserId, now: datetime) -> None:
        """Caches contain whether a member has a second factor. Locked in order and before others against deadlocks."""
        joined = await users.accounts_of(tx, user_id, ACCOUNTS_SHOWN_MAX)
        for account_id in sorted(account.account_id for account in joined):
            await accounts.touch(tx, account_id, now)

    async def _note(
        self, tx: Connection, user_id: UserId, actor: Actor, action: str, email: str, now: datetime
    ) -> None:
        for account in await users.accounts_of(tx, user_id, ACCOUNTS_SHOWN_MAX):
            await self._audit_log.add_entry(tx, account.account_id, actor, action, email, now)


async def _unconfirmed(tx: Connection, user_id: UserId) -> SecondFactorRow:
    """The unconfirmed second factor, locked."""
    factor = await second_factors.lock(tx, user_id)
    if factor is None:
        raise Refusal(Code.CONFLICT, _NOT_BEGUN)
    if factor.confirmed_at is not None:
        raise Refusal(Code.CONFLICT, _ALREADY_ENABLED)
    return factor


async def _impersonating(connection: Connection, member: Member, until: datetime) -> Me:
    """An operator in an account that is not theirs."""
    account = await accounts.find_by_id(connection, member.account_id)
    if account is None:
        raise Refusal(Code.UNAUTHORIZED, OVER)
    shown = AccountOfUser(account.id, account.shown_name, member.role)
    return Me(member, until, True, 0, [shown], False)


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
