"""The shapes of the team and the log of what it changed."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Moment, NextCursor, Request, Response, described
from posthouse.rules import limits
from posthouse.rules.credential import Role

_ROLES: Final = "Viewers look, members send, admins hold the keys and the domains, owners say who is who."

GivenRole = Annotated[str, described(_ROLES, enum=[role.value for role in Role])]

_MEMBER: Final[dict[str, Any]] = {
    "id": "us_01kmx2v3q8f7t9n5r6w4y0zabc",
    "email": "ada@example.com",
    "role": "admin",
    "created_at": "2026-11-15T09:30:00.000Z",
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

    token: Annotated[str, described("Of the invitation: what follows the # of its link.")]
    password: Annotated[
        str,
        described(
            "Of the user whom the address names; for an address that is none, the new user's own, of "
            f"{limits.PASSWORD_CHARACTERS_MIN} to {limits.PASSWORD_CHARACTERS_MAX} characters."
        ),
    ]
    code: Annotated[
        str | None, described("From the authenticator, or a recovery code, if the user has a second factor.")
    ] = None


class Member(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_MEMBER]})

    id: Annotated[str, described("The user's.")]
    email: str
    role: Role
    created_at: Annotated[str, described("When they joined the account: RFC 3339, UTC.", format="date-time")]


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

    members: Annotated[list[Member], described("Whoever joined last is first.")]
    next_cursor: NextCursor


class Invitation(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_INVITATION]})

    id: str
    email: str
    role: Role
    invited_by: Annotated[str, described("The owner's address, or `operator`.")]
    created_at: Moment
    expires_at: Moment


class InvitationListResponse(Response):
    invitations: Annotated[list[Invitation], described("Those that are open, newest first.")]
    next_cursor: NextCursor


class InvitationCreatedResponse(Response):
    invitation: Invitation
    token: Annotated[str, described("Whoever has it can accept the invitation. It is never shown again.")]
    link: Annotated[
        str | None, described("The token in a link for people; null when the service doesn't know its own address.")
    ]


class JoinedAccount(BaseModel):
    id: str
    name: str


class InvitationAcceptedResponse(Response):
    account: JoinedAccount
    email: Annotated[str, described("Log in with it, and with the password that was given.")]
    role: Role


class Actor(BaseModel):
    name: Annotated[
        str, described("The user's address at that time; `operator`, or `posthouse` for what happens by itself.")
    ]
    user_id: Annotated[str | None, described("Null when it was no user.")]


class AuditEntry(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_ENTRY]})

    id: str
    at: Moment
    actor: Actor
    action: Annotated[str, described("What was done: of what kind, and how.")]
    target: Annotated[str, described("To what, by its name, address or id.")]
    detail: Annotated[
        dict[str, str | int | bool | None],
        Field(description="What else there is to tell; which depends on the action."),
    ]


class AuditLogResponse(Response):
    entries: Annotated[list[AuditEntry], described("Newest first.")]
    next_cursor: NextCursor
