"""The routes of the team and the audit log."""

import json
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    PageSize,
    body_of,
    json_response,
    member_of,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import team as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.team import AuditLogEntry, InvitationRow, MemberRow
from posthouse.rules import ids, limits, role
from posthouse.rules.audit_log_filters import audit_log_filters

router = APIRouter()

_MemberId = Annotated[str, Path(alias="id", description="The id of a member: `us_…`.")]
_InvitationId = Annotated[str, Path(alias="id", description="The id of an open invitation: `iv_…`.")]

# Filters of the audit log and of its file.
_Action = Annotated[
    str | None, Query(description="Only this action, such as `domain.added`, or all of a kind, such as `domain`.")
]
_Actor = Annotated[
    str | None, Query(description="Only of this actor: a member's address or id, `operator` or `posthouse`.")
]
_Since = Annotated[str | None, Query(description="Only then or later, RFC 3339.")]
_Until = Annotated[str | None, Query(description="Only before then, RFC 3339.")]


@router.get(
    "/v1/members",
    operation_id="listMembers",
    summary="Who belongs to the account, newest first",
    tags=["Team"],
    responses=responses_with(200, schemas.MemberListResponse, 400, 401, 500, 503),
)
async def list_members(request: Request, limit: PageSize = str(PAGE_DEFAULT), cursor: Cursor = None) -> Response:
    member = await member_of(request)
    page = await services_of(request).team.members(member.account_id, page_size(limit), cursor)
    return page_response(request, "members", page, _member)


@router.put(
    "/v1/members/{id}",
    operation_id="changeMemberRole",
    summary="Change a member's role; the last owner can't be changed",
    tags=["Team"],
    openapi_extra=json_body(schemas.MemberRoleRequest),
    responses=responses_with(200, schemas.MemberResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def change_member_role(request: Request, user_id: _MemberId) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.MemberRoleRequest)
    changed = await services_of(request).team.change_role(
        member.account_id, user_id, role.parse_role(body.role), member.actor
    )
    return json_response(request, {"member": _member(changed)})


@router.delete(
    "/v1/members/{id}",
    operation_id="removeMember",
    summary="Remove a member; their tokens end within seconds, and the last owner can't be removed",
    tags=["Team"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def remove_member(request: Request, user_id: _MemberId) -> Response:
    member = await member_of(request)
    await services_of(request).team.remove(member.account_id, user_id, member.actor)
    return json_response(request, {"deleted": True})


@router.put(
    "/v1/account/second-factor",
    operation_id="requireSecondFactor",
    summary="Whether all members need a second factor; those without one can then only set it up",
    tags=["Team"],
    openapi_extra=json_body(schemas.RequireSecondFactorRequest),
    responses=responses_with(200, schemas.RequireSecondFactorResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def require_second_factor(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.RequireSecondFactorRequest)
    await services_of(request).team.require_second_factor(member.account_id, body.required, member.actor)
    return json_response(request, {"required": body.required})


@router.put(
    "/v1/account",
    operation_id="renameAccount",
    summary="Change the account's name, as its members see it",
    tags=["Account"],
    openapi_extra=json_body(schemas.RenameAccountRequest),
    responses=responses_with(200, schemas.RenameAccountResponse, 400, 401, 403, 413, 429, 500, 503),
)
async def rename_account(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.RenameAccountRequest)
    name = await services_of(request).team.rename_account(member.account_id, body.name, member.actor)
    return json_response(request, {"name": name})


@router.get(
    "/v1/invitations",
    operation_id="listInvitations",
    summary="The invitations that are open, newest first",
    tags=["Team"],
    responses=responses_with(200, schemas.InvitationListResponse, 400, 401, 403, 500, 503),
)
async def list_invitations(request: Request, limit: PageSize = str(PAGE_DEFAULT), cursor: Cursor = None) -> Response:
    member = await member_of(request)
    page = await services_of(request).team.invitations(member.account_id, page_size(limit), cursor)
    return page_response(request, "invitations", page, _invitation)


@router.post(
    "/v1/invitations",
    operation_id="inviteMember",
    summary="Mail a person an invitation, whose link works once, for 7 days",
    tags=["Team"],
    status_code=201,
    openapi_extra=json_body(schemas.InvitationRequest),
    responses=responses_with(201, schemas.InvitationCreatedResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def invite_member(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.InvitationRequest)
    made = await services_of(request).team.invite_by_mail(
        member.account_id, body.email, role.parse_role(body.role), member.actor
    )
    return json_response(request, {"invitation": _invitation(made)}, 201)


@router.post(
    "/v1/invitations/accept",
    operation_id="acceptInvitation",
    summary="Accept an invitation and join its account; then log in",
    tags=["Team"],
    openapi_extra=json_body(schemas.AcceptInvitationRequest, is_public=True),
    responses=responses_with(200, schemas.InvitationAcceptedResponse, 400, 401, 404, 409, 413, 429, 500, 503),
)
async def accept_invitation(request: Request) -> Response:
    body = await body_of(request, schemas.AcceptInvitationRequest)
    joined = await services_of(request).team.accept(body.token, body.password, body.code, peer_of(request.scope))
    content = {
        "account": {"id": ids.text(ids.ACCOUNT, joined.account.id), "name": joined.account.shown_name},
        "email": joined.member.email,
        "role": joined.member.role,
    }
    return json_response(request, content)


@router.delete(
    "/v1/invitations/{id}",
    operation_id="revokeInvitation",
    summary="Revoke an invitation",
    tags=["Team"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 429, 500, 503),
)
async def revoke_invitation(request: Request, invitation_id: _InvitationId) -> Response:
    member = await member_of(request)
    await services_of(request).team.revoke_invitation(member.account_id, invitation_id, member.actor)
    return json_response(request, {"deleted": True})


@router.get(
    "/v1/audit-log",
    operation_id="listAuditLog",
    summary=f"Who changed what in the last {limits.AUDIT_LOG_DAYS} days, newest first",
    tags=["Team"],
    responses=responses_with(200, schemas.AuditLogResponse, 400, 401, 403, 500, 503),
)
async def list_audit_log(
    request: Request,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
    action: _Action = None,
    actor: _Actor = None,
    since: _Since = None,
    until: _Until = None,
) -> Response:
    member = await member_of(request)
    filters = audit_log_filters(action, actor, since, until)
    page = await services_of(request).team.log(member.account_id, page_size(limit), cursor, filters)
    return page_response(request, "entries", page, _entry)


@router.get(
    "/v1/audit-log/export",
    operation_id="exportAuditLog",
    summary="The audit log as a CSV file, newest first",
    description=EXPORT_DESCRIPTION,
    tags=["Team"],
    response_class=Response,
    responses=responses_with(200, CSV_TYPE, 400, 401, 403, 429, 500, 503),
)
async def export_audit_log(
    request: Request,
    cursor: Cursor = None,
    action: _Action = None,
    actor: _Actor = None,
    since: _Since = None,
    until: _Until = None,
) -> Response:
    member = await member_of(request)
    services = services_of(request)
    filters = audit_log_filters(action, actor, since, until)
    read = partial(services.team.log, member.account_id, filters=filters)
    return CsvExport(services.exports, member.account_id, _LOG_FILE, read, cursor)


def _member(row: MemberRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.USER, row.user_id),
        "email": row.email,
        "role": row.role,
        "created_at": timestamp(row.created_at),
        "second_factor": row.has_second_factor,
        "last_seen_at": timestamp(row.last_seen_at),
    }


def _invitation(row: InvitationRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.INVITATION, row.id),
        "email": row.email,
        "role": row.role,
        "invited_by": row.inviter.name,
        "created_at": timestamp(row.created_at),
        "expires_at": timestamp(row.expires_at),
    }


def _entry(entry: AuditLogEntry) -> dict[str, Any]:
    user_id = entry.actor.user_id
    return {
        "id": ids.text(ids.AUDIT_ENTRY, entry.id),
        "at": timestamp(entry.at),
        "actor": {"name": entry.actor.name, "user_id": None if user_id is None else ids.text(ids.USER, user_id)},
        "action": entry.action,
        "target": entry.target,
        "detail": dict(entry.detail),
    }


def _log_cells(entry: AuditLogEntry) -> tuple[str | int | None, ...]:
    shown = _entry(entry)
    actor, detail = shown["actor"], json.dumps(shown["detail"], ensure_ascii=False)
    return shown["id"], shown["at"], actor["name"], actor["user_id"], shown["action"], shown["target"], detail


_LOG_FILE: Final[CsvFile[AuditLogEntry]] = CsvFile(
    "audit-log.csv", ("id", "at", "actor", "user_id", "action", "target", "detail"), _log_cells
)
