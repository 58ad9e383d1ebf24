"""Request and response schemas of the team and the audit log."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import NextCursor, Request, Response, Timestamp, described
from posthouse.rules import limits
from posthouse.rules.credential import Role
from posthouse.rules.input_checks import NAME_CHARACTERS_MAX

_ROLES: Final = "Viewers read, members send, admins manage keys and domains, owners manage the team."

GivenRole = Annotated[str, described(_ROLES, enum=[role.value for role in Role])]

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


class MemberRoleRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "admin"}]})

    role: GivenRole


class RequireSecondFactorRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"required": True}]})

    required: Annotated[bool, described("Whether members need a second factor.")]


class RenameAccountRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Acme Shop"}]})

    name: Annotated[str, described("Not unique; without line breaks.", minLength=1, maxLength=NAME_CHARACTERS_MAX)]


class RenameAccountResponse(Response):
    name: str


class RequireSecondFactorResponse(Response):
    required: bool


class InvitationRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"email": "grace@example.com", "role": "member"}]},
    )

    email: Annotated[str, described("A bare address.", maxLength=limits.ADDRESS_CHARACTERS_MAX)]
    role: GivenRole


class AcceptInvitationRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"token": "4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM", "password": "correct horse battery staple"}
            ]
        },
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


class Member(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_MEMBER]})

    id: Annotated[str, described("The user's id.")]
    email: str
    role: Role
    created_at: Annotated[str, described("When the user joined the account. RFC 3339, UTC.", format="date-time")]
    second_factor: Annotated[bool, described("Whether the user has a second factor.")]
    last_seen_at: Annotated[
        str | None,
        described("Their last request to this account, to the minute or so; null before it.", format="date-time"),
    ]


class MemberResponse(Response):
    member: Member


class MemberListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"members": [_MEMBER], "next_cursor": None, "request_id": "rq_01kmx2v3q8f7t9n5r6w4y0zabc"},
            ]
        }
    )

    members: Annotated[list[Member], described("The newest member first.")]
    next_cursor: NextCursor


class Invitation(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_INVITATION]})

    id: str
    email: str
    role: Role
    invited_by: Annotated[str, described("The address of the inviting owner, or `operator`.")]
    created_at: Timestamp
    expires_at: Timestamp


class InvitationListResponse(Response):
    invitations: Annotated[list[Invitation], described("The open invitations, newest first.")]
    next_cursor: NextCursor


class InvitationCreatedResponse(Response):
    invitation: Invitation


class JoinedAccount(BaseModel):
    id: str
    name: str


class InvitationAcceptedResponse(Response):
    account: JoinedAccount
    email: Annotated[str, described("Log in with this address and the given password.")]
    role: Role


class Actor(BaseModel):
    name: Annotated[
        str, described("The user's address at that time; `operator`, or `posthouse` for automatic changes.")
    ]
    user_id: Annotated[str | None, described("Null if it was not a user.")]


class AuditEntry(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_ENTRY]})

    id: str
    at: Timestamp
    actor: Actor
    action: Annotated[str, described("The action, such as `member.role_changed`.")]
    target: Annotated[str, described("The name, address or id of the changed object.")]
    detail: Annotated[
        dict[str, str | int | bool | None],
        Field(description="Further details, depending on the action."),
    ]


class AuditLogResponse(Response):
    entries: Annotated[list[AuditEntry], described("Newest first.")]
    next_cursor: NextCursor
