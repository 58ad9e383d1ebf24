"""The operator's routes of users: to find one, and to end their sessions."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, json_response, timestamp
from posthouse.entrypoints.http.routes.operator import CHANGE_ERRORS, READ_ERRORS, flows_of
from posthouse.entrypoints.http.schemas import operator as schemas
from posthouse.flows.operate.users import FoundUser
from posthouse.rules import ids

router = APIRouter()

Named = Annotated[str, Query(description="A user's whole address or id; without it, the operators.")]
UserId = Annotated[str, Path(alias="id", description="The user's id.")]


@router.get(
    "/v1/operator/users",
    operation_id="operatorFindUsers",
    summary="Find a user of any account by the address or the id; or see who the operators are",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorUsers, *READ_ERRORS),
)
async def find_users(request: Request, q: Named = "") -> Response:
    flows = await flows_of(request)
    return json_response(request, {"users": [_user(found) for found in await flows.users.find(q)]})


@router.post(
    "/v1/operator/users/{id}/end-sessions",
    operation_id="operatorEndSessions",
    summary="End a session of a user, or all of them",
    tags=["Operator"],
    openapi_extra=json_body(schemas.EndSessionsRequest),
    responses=responses_with(200, schemas.SessionsEnded, *CHANGE_ERRORS),
)
async def end_sessions(request: Request, user_id: UserId) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.EndSessionsRequest)
    return json_response(request, {"ended": await flows.sessions.end_of(user_id, given.session)})


def _user(found: FoundUser) -> dict[str, Any]:
    return {
        "id": ids.text(ids.USER, found.user.id),
        "email": found.user.email,
        "created_at": timestamp(found.user.created_at),
        "operator_since": timestamp(found.operator_since),
        "has_second_factor": found.has_second_factor,
        "accounts": [
            {"id": ids.text(ids.ACCOUNT, account.account_id), "name": account.name, "role": account.role}
            for account in found.accounts
        ],
        "sessions": [
            {
                "id": ids.text(ids.SESSION, session.id),
                "created_at": timestamp(session.created_at),
                "expires_at": timestamp(session.expires_at),
                "address": session.peer,
                "user_agent": session.user_agent,
            }
            for session in found.sessions
        ],
    }
