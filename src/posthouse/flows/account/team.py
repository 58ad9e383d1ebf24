"""The team: an account's members, the invitations to join it, and the audit log.

Every change of the team holds the lock of the account's row from its first read on, so that concurrent changes can
neither remove the last owner nor exceed the number of members. Under the lock the actor's role is read again, because
the role that was checked with their token may be some seconds old.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from posthouse.flows.account.passwords import Passwords
from posthouse.flows.shared.account_limits import suspended
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.page import Page, id_position, page_of, time_cursor, time_position
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.flows.shared.shares import Rates
from posthouse.rules import credential, ids, input_checks, limits, service_text
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.credential import SERVICE, Actor, Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.reputation import ReputationVerdict
from posthouse.rules.search import AuditLogFilters
from posthouse.store import accounts, audit_log, invitations, reputation, second_factors, users
from posthouse.store.accounts import AccountRow
from posthouse.store.audit_log import AuditLogEntry as AuditLogEntry
from posthouse.store.audit_log import Detail
from posthouse.store.invitations import InvitationRow as InvitationRow
from posthouse.store.postgres import Connection
from posthouse.store.users import MemberRow as MemberRow
from posthouse.store.users import UserRow

# Invitations by email: from an account 20 in a burst, then 20 an hour; to an address 3 in a burst, then one an hour.
ACCOUNT_MAIL_RATE: Final = Rate(20 / 3_600, 20)
ADDRESS_MAIL_RATE: Final = Rate(1 / 3_600, 3)
# A client waits for the response; its next request continues.
SEARCH_SECONDS_MAX: Final = 0.5
ANY_ENTRY: Final = AuditLogFilters()
INVITATION_LIFETIME: Final = timedelta(seconds=limits.INVITATION_LIFETIME_SECONDS)


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """`link` is None if `public_url` is not set."""

    invitation: InvitationRow
    token: str = field(repr=False)
    link: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Joined:
    account: AccountRow
    member: MemberRow


class Team(Flow):
    def __init__(
        self, context: Context, *, passwords: Passwords, public_url: str, service_mail: ServiceMail | None = None
    ) -> None:
        super().__init__(context)
        self._passwords = passwords
        self._public_url = public_url
        self._service_mail = service_mail or NoServiceMail()
        self._mail_rates: Rates[AccountId | str] = Rates()

    # Members.

    async def members(self, account_id: AccountId, limit: int, cursor: str | None = None) -> Page[MemberRow]:
        """The members, newest first."""
        before = users.END if cursor is None else _member_position(cursor)
        async with self._database.connection() as connection:
            found = await users.page_of_members(connection, account_id, before, limit + 1)
        return page_of(found, limit, lambda row: time_cursor(row.created_at, ids.text(ids.USER, row.user_id)))

    async def user_id(self, given: str) -> str:
        """The id of the user with this address or id, as an operator names them."""
        if "@" not in given:
            return given
        address = input_checks.user_address(given)
        async with self._database.connection() as connection:
            user = await users.find_by_email(connection, address)
        if user is None:
            raise _no_member()
        return ids.text(ids.USER, user.id)

    async def change_role(self, account_id: AccountId, given_id: str, role: Role, actor: Actor) -> MemberRow:
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            member = await _member(tx, account_id, given_id)
            if member.role is role:
                return member
            if role is not Role.OWNER:
                await _require_another_owner(tx, account_id, member)
            now = self._clock.now()
            await users.change_role(tx, account_id, member.user_id, role, now)
            detail = {**_member_detail(member.user_id, role), "was": member.role}
            await self._audit_log.add_entry(tx, account_id, actor, "member.role_changed", member.email, now, detail)
        return replace(member, role=role)

    async def remove(self, account_id: AccountId, given_id: str, actor: Actor) -> None:
        """The user remains, and may be a member of other accounts; their tokens for this account end within seconds."""
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            member = await _member(tx, account_id, given_id)
            await _require_another_owner(tx, account_id, member)
            now = self._clock.now()
            await users.remove_member(tx, account_id, member.user_id, now)
            await invitations.clear(tx, account_id, member.email)
            detail = _member_detail(member.user_id, member.role)
            await self._audit_log.add_entry(tx, account_id, actor, "member.removed", member.email, now, detail)

    async def check_new_user(self, account_id: AccountId, email: str) -> AccountId:
        """Raises what `create_user` would for this address, before a password is asked for; returns the account."""
        address = input_checks.user_address(email)
        async with self._database.connection() as connection:
            if await users.find_by_email(connection, address) is not None:
                raise _user_exists(address)
        return account_id

    async def create_user(
        self, account_id: AccountId, email: str, password: str, role: Role, actor: Actor
    ) -> MemberRow:
        """A member without an invitation, whose password the actor chose."""
        user = await self._new_user(input_checks.user_address(email), password)
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            if not await users.insert(tx, user):
                raise _user_exists(user.email)
            return await self._join(tx, account_id, user, role, actor, "member.created")

    async def require_second_factor(self, account_id: AccountId, is_required: bool, actor: Actor) -> None:
        """From now on, within seconds, members without a second factor may only set one up."""
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            if is_required and (actor.user_id is None or not await second_factors.is_active(tx, UserId(actor.user_id))):
                raise Refusal(
                    Code.CONFLICT, "You have no second factor yourself: begin one with POST /v1/auth/totp first."
                )
            now = self._clock.now()
            await accounts.require_totp(tx, account_id, is_required, now)
            detail: Detail = {"required": is_required}
            await self._audit_log.add_entry(tx, account_id, actor, "account.second_factor_required", "", now, detail)

    async def rename_account(self, account_id: AccountId, given: str, actor: Actor) -> str:
        """The name that members see; the operator's name for the account stays."""
        name = input_checks.name("`name`", given)
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            now = self._clock.now()
            await accounts.rename(tx, account_id, name, now)
            await self._audit_log.add_entry(tx, account_id, actor, "account.renamed", name, now)
        return name

    # Invitations.

    async def invitations(self, account_id: AccountId, limit: int, cursor: str | None = None) -> Page[InvitationRow]:
        """The open invitations, newest first."""
        before = invitations.END if cursor is None else id_position(ids.INVITATION, cursor)
        async with self._database.connection() as connection:
            found = await invitations.page(connection, account_id, before, limit + 1, self._clock.now())
        return page_of(found, limit, lambda row: ids.text(ids.INVITATION, row.id))

    async def invite_by_mail(self, account_id: AccountId, email: str, role: Role, actor: Actor) -> InvitationRow:
        """Email the invitation. Only the owner of the address gets the token, so accepting it proves the address."""
        self._service_mail.require()
        address = input_checks.user_address(email)
        await self._require_inviter(account_id)
        await self._service_mail.check(is_invitation=True)
        allowed = f"Many invitations were mailed for this account, or to {address}"
        self._mail_rates.require(account_id, ACCOUNT_MAIL_RATE, self._clock.now(), allowed)
        self._mail_rates.require(address, ADDRESS_MAIL_RATE, self._clock.now(), allowed)
        made = await self.invite(account_id, address, role, actor)
        async with self._database.connection() as connection:
            account = await accounts.find_by_id(connection, account_id)
        if account is None:
            raise RuntimeError("an account is gone, although accounts are never deleted")
        text = service_text.invitation(account.name, actor.name, made.token, made.link)
        await self._service_mail.send(address, *text, inviter=account_id)
        return made.invitation

    async def _require_inviter(self, account_id: AccountId) -> None:
        """Results of its invitations count for the account: it is warned about bad ones, then can't send any more."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            state = await reputation.account_reputation(tx, account_id)
            if state is None:
                raise RuntimeError("an account is gone, although accounts are never deleted")
            if state.suspended_at is not None:
                raise suspended()
            since = reputation_rules.counted_since(state.since, now)
            figures = await reputation.invitation_figures(tx, account_id, since)
            verdict = reputation_rules.judge_invitations(figures)
            if verdict is ReputationVerdict.WELL:
                return
            said = reputation_rules.invitations_described(figures)
            if await reputation.warn(tx, account_id, now, now - reputation_rules.WARN_AGAIN):
                reason = {"reason": f"Its invitations: {said}."}
                await self._audit_log.add_entry(tx, account_id, SERVICE, "account.warned", state.name, now, reason)
        if verdict is ReputationVerdict.SUSPEND and not state.exempt:
            raise Refusal(
                Code.FORBIDDEN,
                f"This account can send no more invitations for now: {said}. Check the addresses, and try again "
                "tomorrow or ask the operator.",
            )

    async def invite(self, account_id: AccountId, email: str, role: Role, actor: Actor) -> NewInvitation:
        """Replaces any invitation of the address; for an operator, who sees the token only once."""
        address = input_checks.user_address(email)
        token = credential.new_mail_token(self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            now = self._clock.now()
            if await users.is_member(tx, account_id, address):
                raise Refusal(Code.CONFLICT, f"{address} is already a member: change their role instead.")
            await invitations.clear(tx, account_id, address)
            if await invitations.count_open(tx, account_id, now) >= limits.INVITATIONS_MAX:
                raise Refusal(
                    Code.CONFLICT,
                    f"An account has at most {limits.INVITATIONS_MAX} open invitations: revoke one first.",
                )
            row = InvitationRow(
                account_id=account_id,
                id=new_id(self._randomness, now),
                email=address,
                role=role,
                inviter=actor,
                created_at=now,
                expires_at=now + INVITATION_LIFETIME,
            )
            await invitations.insert(tx, row, self._keys.peppers.hash(token))
            await accounts.touch(tx, account_id, now)
            await self._audit_log.add_entry(
                tx, account_id, actor, "invitation.created", address, now, _invitation_detail(row)
            )
        # After the #, which browsers do not send: no server logs it.
        link = f"{self._public_url}/invitation#{token}" if self._public_url else None
        return NewInvitation(row, token, link)

    async def revoke_invitation(self, account_id: AccountId, given_id: str, actor: Actor) -> None:
        invitation_id = ids.parse(ids.INVITATION, given_id)
        async with self._database.transaction() as tx:
            await self._lock(tx, account_id, actor)
            now = self._clock.now()
            row = None if invitation_id is None else await invitations.revoke(tx, account_id, invitation_id, now)
            if row is None:
                raise Refusal(Code.NOT_FOUND, "This account has no open invitation with that id.")
            await accounts.touch(tx, account_id, now)
            await self._audit_log.add_entry(
                tx, account_id, actor, "invitation.revoked", row.email, now, _invitation_detail(row)
            )

    async def accept(self, token: str, password: str, code: str | None, peer: str) -> Joined:
        """A new user is created with this password; an existing user must give the right one, as for a login."""
        token_hashes = self._keys.peppers.hashes(token)
        async with self._database.connection() as connection:
            invitation = await _open(connection, token_hashes, self._clock.now())
            await _require_open(connection, invitation)
            known = await users.find_by_email(connection, invitation.email)
        if known is None:
            user = await self._new_user(invitation.email, password, peer)
        else:
            user = await self._passwords.proven(invitation.email, password, peer, code)
        async with self._database.transaction() as tx:
            account = await accounts.lock(tx, invitation.account_id)
            # The invitation may have changed while the password was checked.
            invitation = await _open(tx, token_hashes, self._clock.now())
            await _require_open(tx, invitation)
            if known is None and not await users.insert(tx, user):
                raise Refusal(
                    Code.CONFLICT, f"{user.email} has just become a user: accept again with that user's password."
                )
            actor = Actor(user.id, user.email)
            return Joined(account, await self._join(tx, account.id, user, invitation.role, actor, "member.joined"))

    # The audit log.

    async def log(
        self,
        account_id: AccountId,
        limit: int,
        cursor: str | None = None,
        filters: AuditLogFilters = ANY_ENTRY,
    ) -> Page[AuditLogEntry]:
        """The newest first. With filters a page may be short, or empty, and not be the last."""
        if cursor is not None:
            position = id_position(ids.AUDIT_ENTRY, cursor)
            filters = replace(filters, before=min(filters.before, position))
        found: list[AuditLogEntry] = []
        until = self._clock.monotonic() + SEARCH_SECONDS_MAX
        async with self._database.connection() as connection:
            while True:
                some, reached = await audit_log.page(connection, account_id, filters, limit + 1 - len(found))
                found.extend(some)
                if reached is None or len(found) > limit or self._clock.monotonic() >= until:
                    break
                filters = replace(filters, before=reached)
        page = page_of(found, limit, lambda row: ids.text(ids.AUDIT_ENTRY, row.id))
        if page.next_cursor is None and reached is not None:
            return Page(page.items, ids.text(ids.AUDIT_ENTRY, reached))
        return page

    async def _lock(self, tx: Connection, account_id: AccountId, actor: Actor) -> None:
        """Lock the team against other changes, and check that the actor is still an owner."""
        await accounts.lock(tx, account_id)
        if actor.user_id is None:
            return
        member = await users.find_member(tx, account_id, actor.user_id)
        if member is None or member.role is not Role.OWNER:
            raise Refusal(Code.FORBIDDEN, "You are no longer an owner of this account: ask one of them.")

    async def _new_user(self, email: str, password: str, peer: str = "") -> UserRow:
        input_checks.check_password(password)
        password_hash = await self._passwords.hashed(password, peer)
        now = self._clock.now()
        return UserRow(UserId(new_id(self._randomness, now)), email, now, password_hash)

    async def _join(
        self, tx: Connection, account_id: AccountId, user: UserRow, role: Role, actor: Actor, action: str
    ) -> MemberRow:
        """With the account locked: make the user a member, and remove invitations of their address."""
        if await users.count_members(tx, account_id) >= limits.MEMBERS_MAX:
            raise Refusal(
                Code.CONFLICT, f"An account has at most {limits.MEMBERS_MAX} members: one must be removed first."
            )
        now = self._clock.now()
        if not await users.join_account(tx, account_id, user.id, role, now):
            raise Refusal(Code.CONFLICT, f"{user.email} is already a member: log in.")
        await invitations.clear(tx, account_id, user.email)
        await self._audit_log.add_entry(tx, account_id, actor, action, user.email, now, _member_detail(user.id, role))
        return MemberRow(user.id, user.email, role, now)


async def _member(tx: Connection, account_id: AccountId, given_id: str) -> MemberRow:
    user_id = ids.parse(ids.USER, given_id)
    found = None if user_id is None else await users.find_member(tx, account_id, UserId(user_id))
    if found is None:
        raise _no_member()
    return found


def _no_member() -> Refusal:
    return Refusal(Code.NOT_FOUND, "This account has no such member: list its members.")


def _user_exists(email: str) -> Refusal:
    return Refusal(Code.CONFLICT, f"There is already a user {email}: invite them to this account.")


async def _require_another_owner(tx: Connection, account_id: AccountId, member: MemberRow) -> None:
    """With the account locked: raises if the member is the only owner."""
    if member.role is Role.OWNER and await users.count_members(tx, account_id, Role.OWNER) == 1:
        raise Refusal(Code.CONFLICT, f"{member.email} is the account's last owner: make someone else an owner first.")


async def _open(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> InvitationRow:
    found = await invitations.find_open(connection, token_hashes, now)
    if found is None:
        raise Refusal(
            Code.NOT_FOUND,
            "There is no open invitation for this token: it was accepted (then log in), replaced, revoked, or is older "
            f"than {INVITATION_LIFETIME.days} days. Ask an owner of the account for a new one.",
        )
    return found


async def _require_open(connection: Connection, invitation: InvitationRow) -> None:
    """An invitation by an owner is valid while they are an owner; an operator's always."""
    inviter = invitation.inviter
    if inviter.user_id is None:
        return
    member = await users.find_member(connection, invitation.account_id, inviter.user_id)
    if member is None or member.role is not Role.OWNER:
        raise Refusal(
            Code.CONFLICT,
            "The person who invited you is no longer an owner of the account: ask an owner for a new invitation.",
        )


def _member_detail(user_id: UserId, role: Role) -> Detail:
    return {"user_id": ids.text(ids.USER, user_id), "role": role}


def _invitation_detail(row: InvitationRow) -> Detail:
    return {"invitation_id": ids.text(ids.INVITATION, row.id), "role": row.role}


def _member_position(cursor: str) -> tuple[datetime, UserId]:
    at, user = time_position(cursor)
    return at, UserId(id_position(ids.USER, user))
