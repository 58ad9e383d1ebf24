"""The routes of login, logout, password and second factor."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http import session_cookie
from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, json_response, member_of, services_of, timestamp
from posthouse.entrypoints.http.schemas import sessions as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.sessions import SessionRow
from posthouse.flows.shared.principal import LoginSession
from posthouse.rules import ids
from posthouse.rules.ids import SessionId

router = APIRouter()

_SessionId = Annotated[str, Path(alias="id", description="The id of one of the user's sessions: `se_…`.")]


def _with_cookie(declared: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    cookie = {
        "Set-Cookie": {
            "description": f"`{session_cookie.NAME}`, of a kept session: what renews it. Scripts can't read it.",
            "schema": {"type": "string"},
        }
    }
    declared[200]["headers"] = declared[200]["headers"] | cookie
    return declared


def _login_responses() -> dict[int | str, dict[str, Any]]:
    declared = _with_cookie(responses_with(200, schemas.LoginResponse, 400, 401, 413, 429, 500, 503))
    second_factor = {
        "Second-Factor": {
            "description": "`required` when the password is right, and `code` is missing or wrong.",
            "schema": {"type": "string", "const": "required"},
        }
    }
    declared[401]["headers"] = declared[401]["headers"] | second_factor
    return declared


@router.post(
    "/v1/auth/login",
    operation_id="login",
    summary="Log in to the dashboard",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.LoginRequest, is_public=True),
    responses=_login_responses(),
)
async def login(request: Request) -> Response:
    body = await body_of(request, schemas.LoginRequest)
    session = await services_of(request).sessions.login(
        body.email,
        body.password,
        body.code or None,
        peer_of(request.scope),
        request.headers.get("user-agent", ""),
        keep=body.keep,
    )
    return _session_response(request, session)


@router.post(
    "/v1/auth/renew",
    operation_id="renewSession",
    summary="Another token of a session that this browser keeps",
    description=f"Takes the cookie `{session_cookie.NAME}` of a login with `keep`, from our own pages alone.",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.RenewSessionRequest, is_public=True),
    responses=_with_cookie(responses_with(200, schemas.LoginResponse, 400, 401, 403, 404, 413, 500, 503)),
)
async def renew_session(request: Request) -> Response:
    body = await body_of(request, schemas.RenewSessionRequest)
    secret = session_cookie.secret_of(request)
    return _session_response(request, await services_of(request).kept_sessions.renew(secret, body.account_id))


@router.post(
    "/v1/auth/link",
    operation_id="loginByLink",
    summary="Log in with a link that works once",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.LoginByLinkRequest, is_public=True),
    responses=_login_responses(),
)
async def login_by_link(request: Request) -> Response:
    body = await body_of(request, schemas.LoginByLinkRequest)
    session = await services_of(request).login_links.login(
        body.token,
        body.code or None,
        peer_of(request.scope),
        request.headers.get("user-agent", ""),
        keep=body.keep,
    )
    return _session_response(request, session)


@router.post(
    "/v1/auth/forgot",
    operation_id="forgotPassword",
    summary="Mail a token for a new password to the user of an address, if there is one",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.ForgotPasswordRequest, is_public=True),
    responses=responses_with(200, schemas.ForgotPasswordResponse, 400, 409, 413, 429, 500, 503),
)
async def forgot_password(request: Request) -> Response:
    body = await body_of(request, schemas.ForgotPasswordRequest)
    await services_of(request).password_reset.forgot(body.email, peer_of(request.scope))
    return json_response(request, {"requested": True})


@router.post(
    "/v1/auth/reset",
    operation_id="resetPassword",
    summary="Choose a new password with the token from a mail; all sessions of the user end",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.ResetPasswordRequest, is_public=True),
    responses=responses_with(200, schemas.ResetPasswordResponse, 400, 404, 409, 413, 500, 503),
)
async def reset_password(request: Request) -> Response:
    body = await body_of(request, schemas.ResetPasswordRequest)
    await services_of(request).password_reset.reset(body.token, body.password, peer_of(request.scope))
    return json_response(request, {"reset": True})


@router.get(
    "/v1/auth/sessions",
    operation_id="listSessions",
    summary="The user's sessions, newest first",
    tags=["Sessions"],
    responses=responses_with(200, schemas.SessionListResponse, 401, 500, 503),
)
async def list_sessions(request: Request) -> Response:
    member = await member_of(request)
    found = await services_of(request).sessions.live(member)
    return json_response(request, {"sessions": [_row(row, member.session_id) for row in found]})


@router.delete(
    "/v1/auth/sessions/{id}",
    operation_id="endSession",
    summary="End a session of the user, and all of its tokens",
    tags=["Sessions"],
    responses=responses_with(200, DeletedResponse, 401, 404, 429, 500, 503),
)
async def end_session(request: Request, session_id: _SessionId) -> Response:
    member = await member_of(request)
    await services_of(request).sessions.end(member, session_id)
    return json_response(request, {"deleted": True})


@router.post(
    "/v1/auth/logout",
    operation_id="logout",
    summary="End the session, and all of its tokens",
    tags=["Sessions"],
    responses=responses_with(200, schemas.LogoutResponse, 401, 429, 500, 503),
)
async def logout(request: Request) -> Response:
    member = await member_of(request)
    await services_of(request).sessions.logout(member)
    response = json_response(request, {"logged_out": True})
    session_cookie.remove(request, response)
    return response


@router.get(
    "/v1/auth/me",
    operation_id="getMe",
    summary="Who is logged in, and where they are a member",
    tags=["Sessions"],
    responses=responses_with(200, schemas.MeResponse, 401, 500, 503),
)
async def get_me(request: Request) -> Response:
    me = await services_of(request).sessions.me(await member_of(request))
    operator = {} if me.operator_until is None else {"operator": {"until": timestamp(me.operator_until)}}
    visits_until = me.member.visits_until
    visit = {} if visits_until is None else {"visit": {"until": timestamp(visits_until)}}
    return json_response(
        request,
        {
            "user": {
                "id": ids.text(ids.USER, me.member.user_id),
                "email": me.member.email,
                "totp_enabled": me.has_second_factor,
                "recovery_codes_left": me.recovery_codes_left,
            },
            "account_id": ids.text(ids.ACCOUNT, me.member.account_id),
            "role": me.member.role,
            "totp_required": me.is_second_factor_required,
            "expires_at": timestamp(me.expires_at),
            "accounts": [
                {"id": ids.text(ids.ACCOUNT, membership.account_id), "name": membership.name, "role": membership.role}
                for membership in me.accounts
            ],
            **operator,
            **visit,
        },
    )


@router.post(
    "/v1/auth/switch",
    operation_id="switchAccount",
    summary="A token of the same session for another of the user's accounts",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.SwitchAccountRequest),
    responses=responses_with(200, schemas.LoginResponse, 400, 401, 404, 413, 429, 500, 503),
)
async def switch_account(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.SwitchAccountRequest)
    return json_response(request, _session(await services_of(request).sessions.switch(member, body.account_id)))


@router.post(
    "/v1/auth/password",
    operation_id="changePassword",
    summary="Change the user's password; all of their other sessions end",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.ChangePasswordRequest),
    responses=responses_with(200, schemas.ChangePasswordResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def change_password(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.ChangePasswordRequest)
    await services_of(request).sessions.change_password(
        member, body.current_password, body.new_password, peer_of(request.scope)
    )
    return json_response(request, {"changed": True})


@router.post(
    "/v1/auth/totp",
    operation_id="beginTotp",
    summary="Start a second factor; it is required once it is confirmed",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.BeginTotpRequest),
    responses=responses_with(200, schemas.BeginTotpResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def begin_totp(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.BeginTotpRequest)
    secret = await services_of(request).sessions.begin_totp(member, body.password, peer_of(request.scope))
    return json_response(request, {"secret": secret.text, "uri": secret.uri})


@router.post(
    "/v1/auth/totp/confirm",
    operation_id="confirmTotp",
    summary="Confirm the second factor; logins then need a code, and all other sessions end",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.ConfirmTotpRequest),
    responses=responses_with(200, schemas.ConfirmTotpResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def confirm_totp(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.ConfirmTotpRequest)
    return json_response(
        request, {"recovery_codes": await services_of(request).sessions.confirm_totp(member, body.code)}
    )


@router.post(
    "/v1/auth/recovery-codes",
    operation_id="renewRecoveryCodes",
    summary="New recovery codes of the second factor; all others end",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.RenewRecoveryCodesRequest),
    responses=responses_with(200, schemas.RenewRecoveryCodesResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def renew_recovery_codes(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.RenewRecoveryCodesRequest)
    codes = await services_of(request).sessions.renew_recovery_codes(
        member, body.password, body.code, peer_of(request.scope)
    )
    return json_response(request, {"recovery_codes": codes})


@router.post(
    "/v1/auth/totp/disable",
    operation_id="disableTotp",
    summary="Remove the second factor and its recovery codes",
    tags=["Sessions"],
    openapi_extra=json_body(schemas.DisableTotpRequest),
    responses=responses_with(200, schemas.DisableTotpResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def disable_totp(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.DisableTotpRequest)
    await services_of(request).sessions.disable_totp(member, body.password, body.code, peer_of(request.scope))
    return json_response(request, {"disabled": True})


def _row(row: SessionRow, current: SessionId) -> dict[str, Any]:
    return {
        "id": ids.text(ids.SESSION, row.id),
        "created_at": timestamp(row.created_at),
        "expires_at": timestamp(row.expires_at),
        "address": row.peer,
        "user_agent": row.user_agent,
        "current": row.id == current,
    }


def _session_response(request: Request, session: LoginSession) -> Response:
    response = json_response(request, _session(session))
    if session.renewal_secret is not None:
        session_cookie.put(response, session.renewal_secret)
    return response


def _session(session: LoginSession) -> dict[str, Any]:
    return {"token": session.token, "expires_at": timestamp(session.expires_at)}
