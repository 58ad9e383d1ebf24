"""The team, its invitations and the audit log."""

import json
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query
from pydantic import Field

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.operation import Operations, PageSize, Peer
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.shapes import (
    DeletedResponse,
    HasSecondFactor,
    NextCursor,
    OptionalTimestamp,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.exports import Exports
from posthouse.flows.account.team import AuditLogEntry, Team
from posthouse.flows.shared.principal import Member as LoggedInMember
from posthouse.rules import credential, ids, limits
from posthouse.rules.credential import Role
from posthouse.rules.search import audit_log_filters

router = Operations("Team")

_MemberId = Annotated[str, Path(alias="id", description="The id of a member: `us_…`.")]
_InvitationId = Annotated[str, Path(alias="id", description="The id of an open invitation: `iv_…`.")]

# Filters of the audit log and of its file.
_Action = Annotated[
    str | None, Query(description="Only this action, such as `domain.added`, or all of a kind, such as `domain`.")
]
_Actor = Annotated[
    str | None, Query(description="Only of this actor: a member's address or id, `operator` or `posthouse`.")
]
_Since = Annotated[str | None, Query(description="Only at this time or later, RFC 3339.")]
_Until = Annotated[str | None, Query(description="Only before this time, RFC 3339.")]

IsRequired = Annotated[bool, described("Whether members need a second factor.")]
# Of an entry in a log.
Target = Annotated[str, described("The name, address or id of the changed object.")]
DETAIL: Final = described("Further details, depending on the action.")
GivenRole = Annotated[str, described(Role.__doc__ or "", enum=[role.value for role in Role])]

_MEMBER: Final[dict[str, Any]] = {
    "id": "us_01kmx2v3q8f7t9n5r6w4y0zabc",
    "email": "ada@example.com",
    "role": "admin",
    "created_at": "2026-11-15T09:30:00.000Z",
    "second_factor": True,
    "last_seen_at": "2026-11-16T08:05:00.000Z",
}
_INVITATION: Final[dict[str, Any]] = {
    "id": "iv_01kmx2v3q8f7t9n5r6w4y0zabc",
    "email": "grace@example.com",
    "role": "member",
    "invited_by": "ada@example.com",
    "created_at": "2026-11-15T09:30:00.000Z",
    "expires_at": "2026-11-22T09:30:00.000Z",
}
_ENTRY: Final[dict[str, Any]] = {
    "id": "al_01kmx2v3q8f7t9n5r6w4y0zabc",
    "at": "2026-11-15T09:30:00.000Z",
    "actor": {"name": "ada@example.com", "user_id": "us_01kmx2v3q8f7t9n5r6w4y0zabc"},
    "action": "member.role_changed",
    "target": "grace@example.com",
    "detail": {"user_id": "us_01kmx2v3q8f7t9n5r6w4y0zabd", "role": "admin", "was": "member"},
}


class MemberRoleRequest(RequestModel):
    model_config = examples({"role": "admin"})

    role: GivenRole


class RequireSecondFactorRequest(RequestModel):
    model_config = examples({"required": True})

    required: IsRequired


class RequireSecondFactorResponse(Response):
    required: IsRequired


class InvitationRequest(RequestModel):
    model_config = examples({"email": "grace@example.com", "role": "member"})

    email: Annotated[str, described("A bare address.", maxLength=limits.ADDRESS_CHARACTERS_MAX)]
    role: GivenRole


class AcceptInvitationRequest(RequestModel):
    model_config = examples(
        {"token": "4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM", "password": "correct horse battery staple"}
    )

    token: Annotated[str, described("The token of the invitation: the part of its link after the #.")]
    password: Annotated[
        str,
        described(
            "The password of the existing user; for a new user, the password to set, of "
            f"{limits.PASSWORD_CHARACTERS_MIN} to {limits.PASSWORD_CHARACTERS_MAX} characters."
        ),
    ]
    code: Annotated[
        str | None, described("From the authenticator app, or a recovery code, if the user has a second factor.")
    ] = None


class Member(Shown):
    model_config = examples(_MEMBER)

    id: Annotated[ids.UserId, id_text(ids.USER), described("The user's id."), read_from("user_id")]
    email: str
    role: Role
    created_at: Annotated[Timestamp, described("When the user joined the account. RFC 3339, UTC.")]
    second_factor: Annotated[HasSecondFactor, read_from("has_second_factor")]
    last_seen_at: Annotated[
        OptionalTimestamp,
        described("The last request to this account, accurate to about a minute; null before the first."),
    ]


class MemberResponse(Response):
    member: Member


class MemberListResponse(Response):
    model_config = examples({"members": [_MEMBER], "next_cursor": None})

    members: Annotated[list[Member], read_from("items"), described("The newest member first.")]
    next_cursor: NextCursor


class Invitation(Shown):
    model_config = examples(_INVITATION)

    id: Annotated[UUID, id_text(ids.INVITATION)]
    email: str
    role: Role
    invited_by: Annotated[
        str, described("The address of the inviting owner, or `operator`."), read_from("inviter", "name")
    ]
    created_at: Timestamp
    expires_at: Timestamp


class InvitationListResponse(Response):
    invitations: Annotated[list[Invitation], read_from("items"), described("The open invitations, newest first.")]
    next_cursor: NextCursor


class InvitationCreatedResponse(Response):
    invitation: Invitation


class JoinedAccount(Shown):
    id: Annotated[ids.AccountId, id_text(ids.ACCOUNT)]
    name: Annotated[str, Field(examples=["Acme"]), read_from("shown_name")]


class InvitationAcceptedResponse(Response):
    account: JoinedAccount
    email: Annotated[
        str,
        described("Log in with this address and the given password.", examples=["grace@example.com"]),
        read_from("member", "email"),
    ]
    role: Annotated[Role, read_from("member", "role")]


class Actor(Shown):
    name: Annotated[
        str, described("The user's address at that time; `operator`, or `posthouse` for automatic changes.")
    ]
    user_id: Annotated[Annotated[ids.UserId, id_text(ids.USER)] | None, described("Null if the actor was not a user.")]


class AuditEntry(Shown):
    model_config = examples(_ENTRY)

    id: Annotated[UUID, id_text(ids.AUDIT_ENTRY)]
    at: Timestamp
    actor: Actor
    action: Annotated[str, described("The action, such as `member.role_changed`.")]
    target: Target
    detail: Annotated[dict[str, str | int | bool | None], DETAIL]


class AuditLogResponse(Response):
    entries: Annotated[list[AuditEntry], read_from("items"), described("Newest first.")]
    next_cursor: NextCursor


@router.get("/v1/members", Role.VIEWER)
async def list_members(
    member: LoggedInMember, team: Team, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> MemberListResponse:
    """The members of the account, newest first"""
    return MemberListResponse.of(await team.members(member.account_id, limit, cursor))


@router.put("/v1/members/{id}", Role.OWNER, errors=(409,))
async def change_member_role(
    member: LoggedInMember, user_id: _MemberId, body: MemberRoleRequest, team: Team
) -> MemberResponse:
    """Change a member's role; the last owner can't be changed"""
    changed = await team.change_role(member.account_id, user_id, credential.parse_role(body.role), member.actor)
    return MemberResponse(member=Member.of(changed))


@router.delete("/v1/members/{id}", Role.OWNER, errors=(409,))
async def remove_member(member: LoggedInMember, user_id: _MemberId, team: Team) -> DeletedResponse:
    """Remove a member; their tokens end within seconds, and the last owner can't be removed"""
    await team.remove(member.account_id, user_id, member.actor)
    return DeletedResponse(deleted=True)


@router.put("/v1/account/second-factor", Role.OWNER, errors=(409,))
async def require_second_factor(
    member: LoggedInMember, body: RequireSecondFactorRequest, team: Team
) -> RequireSecondFactorResponse:
    """Set whether all members need a second factor; members without one can then only set it up"""
    await team.require_second_factor(member.account_id, body.required, member.actor)
    return RequireSecondFactorResponse(required=body.required)


@router.get("/v1/invitations", Role.OWNER)
async def list_invitations(
    member: LoggedInMember, team: Team, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> InvitationListResponse:
    """The open invitations, newest first"""
    return InvitationListResponse.of(await team.invitations(member.account_id, limit, cursor))


@router.post("/v1/invitations", Role.OWNER, stores=True, status=201, errors=(409,))
async def invite_member(member: LoggedInMember, body: InvitationRequest, team: Team) -> InvitationCreatedResponse:
    """Email a person an invitation, whose link works once, within 7 days"""
    made = await team.invite_by_mail(member.account_id, body.email, credential.parse_role(body.role), member.actor)
    return InvitationCreatedResponse(invitation=Invitation.of(made))


@router.post("/v1/invitations/accept", errors=(401, 404, 409, 429))
async def accept_invitation(body: AcceptInvitationRequest, team: Team, peer: Peer) -> InvitationAcceptedResponse:
    """Accept an invitation and join its account; then log in"""
    return InvitationAcceptedResponse.of(await team.accept(body.token, body.password, body.code, peer))


@router.delete("/v1/invitations/{id}", Role.OWNER)
async def revoke_invitation(member: LoggedInMember, invitation_id: _InvitationId, team: Team) -> DeletedResponse:
    """Revoke an invitation"""
    await team.revoke_invitation(member.account_id, invitation_id, member.actor)
    return DeletedResponse(deleted=True)


@router.get(
    "/v1/audit-log",
    Role.OWNER,
    extra={"summary": f"Who changed what in the last {limits.AUDIT_LOG_DAYS} days, newest first"},
)
async def list_audit_log(
    member: LoggedInMember,
    team: Team,
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
    action: _Action = None,
    actor: _Actor = None,
    since: _Since = None,
    until: _Until = None,
) -> AuditLogResponse:
    """Who changed what, newest first"""
    filters = audit_log_filters(action, actor, since, until)
    return AuditLogResponse.of(await team.log(member.account_id, limit, cursor, filters))


@router.get(
    "/v1/audit-log/export",
    Role.OWNER,
    errors=(429,),
    content=CSV_TYPE,
    extra={"description": EXPORT_DESCRIPTION},
)
async def export_audit_log(
    member: LoggedInMember,
    exports: Exports,
    team: Team,
    cursor: Cursor = None,
    action: _Action = None,
    actor: _Actor = None,
    since: _Since = None,
    until: _Until = None,
) -> CsvExport[AuditLogEntry]:
    """The audit log as a CSV file, newest first"""
    filters = audit_log_filters(action, actor, since, until)
    read = partial(team.log, member.account_id, filters=filters)
    return CsvExport(exports, member.account_id, _LOG_FILE, read, cursor)


def _log_cells(entry: AuditLogEntry) -> dict[str, Any]:
    shown = AuditEntry.of(entry).model_dump()
    user_id, detail = shown["actor"]["user_id"], json.dumps(shown["detail"], ensure_ascii=False)
    return {**shown, "actor": shown["actor"]["name"], "user_id": user_id, "detail": detail}


_LOG_FILE: Final[CsvFile[AuditLogEntry]] = CsvFile(
    "audit-log.csv", ("id", "at", "actor", "user_id", "action", "target", "detail"), _log_cells
)
