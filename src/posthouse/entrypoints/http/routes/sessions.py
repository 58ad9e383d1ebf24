"""Login, logout, password and second factor."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import Path, Request
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.operation import Operations, Peer, model_response
from posthouse.entrypoints.http.shapes import (
    AlwaysTrue,
    DeletedResponse,
    HasSecondFactor,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.login_tokens import LoginLinks, PasswordReset
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.shared.principal import LoginSession, Member, RenewalSecret
from posthouse.rules import ids, limits
from posthouse.rules.credential import Role
from posthouse.rules.refusal import Code, Refusal

router = Operations("Sessions")

# The cookie of a remembered session is good only for renewing the session, and only for a page of our origin.
# With this prefix browsers accept it only with Secure, for the whole host, and from no other host; also at
# http://127.0.0.1.
COOKIE: Final = "__Host-posthouse"
_OTHER_ORIGIN: Final = "Only the dashboard's own pages can renew a session: log in with POST /v1/auth/login."


_SessionId = Annotated[str, Path(alias="id", description="The id of one of the user's sessions: `se_…`.")]

_SETS_COOKIE: Final = {
    "200": {
        "headers": {
            "Set-Cookie": {
                "description": f"`{COOKIE}`, which renews a remembered session. Scripts can't read it.",
                "schema": {"type": "string"},
            }
        }
    }
}
_SECOND_FACTOR: Final = {
    "401": {
        "headers": {
            "Second-Factor": {
                "description": "`required` if the password is right, but `code` is missing or wrong.",
                "schema": {"type": "string", "const": "required"},
            }
        }
    }
}
_LOGIN: Final[Mapping[str, Any]] = {"responses": {**_SETS_COOKIE, **_SECOND_FACTOR}}

_ACCOUNT_ID: Final = "ac_01kb3ge5p0f8wexample00000a"
_TOKEN: Final = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.c2lnbmF0dXJl"  # noqa: S105 (an example)
_EXPIRES_AT: Final = "2026-11-16T03:04:05.000Z"
_REMEMBER: Final = (
    "Remember the session in this browser: the token expires after 15 minutes, and the cookie `__Host-posthouse` gets "
    "another with `POST /v1/auth/renew`."
)
_CODE: Final = "Six digits from the authenticator app, or a recovery code; each works once."


class LoginRequest(RequestModel):
    model_config = examples({"email": "ada@example.com", "password": "correct horse battery staple"})

    email: str
    password: str
    code: Annotated[str | None, described(f"Required for a user with a second factor. {_CODE}")] = None
    remember: Annotated[bool, described(_REMEMBER)] = False


class LoginByLinkRequest(RequestModel):
    model_config = examples({"token": "4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM"})

    token: Annotated[str, described("The part of the link after `#link=`.")]
    code: Annotated[str | None, described(f"Required for a user with a second factor. {_CODE}")] = None
    remember: Annotated[bool, described(_REMEMBER)] = False


class RenewSessionRequest(RequestModel):
    model_config = examples({"account_id": _ACCOUNT_ID})

    account_id: Annotated[
        str | None, described("An account of the user; if left out, the account that a login would open.")
    ] = None


class ForgotPasswordRequest(RequestModel):
    model_config = examples({"email": "ada@example.com"})

    email: Annotated[str, described("The user's address.")]


class ResetPasswordRequest(RequestModel):
    model_config = examples(
        {"token": "4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM", "password": "correct horse battery staple"}
    )

    token: Annotated[str, described("The token in the email: the part of its link after the #.")]
    password: Annotated[
        str,
        described(
            "The password to set.",
            minLength=limits.PASSWORD_CHARACTERS_MIN,
            maxLength=limits.PASSWORD_CHARACTERS_MAX,
        ),
    ]


class SwitchAccountRequest(RequestModel):
    model_config = examples({"account_id": _ACCOUNT_ID})

    account_id: Annotated[str, described("An account listed by `GET /v1/auth/me`.")]


class ChangePasswordRequest(RequestModel):
    model_config = examples(
        {"current_password": "correct horse battery staple", "new_password": "a new one, longer than that"}
    )

    current_password: str
    new_password: Annotated[
        str,
        described(
            "Ends all other sessions of the user.",
            minLength=limits.PASSWORD_CHARACTERS_MIN,
            maxLength=limits.PASSWORD_CHARACTERS_MAX,
        ),
    ]


class BeginTotpRequest(RequestModel):
    model_config = examples({"password": "correct horse battery staple"})

    password: Annotated[str, described("The user's password, as for a login.")]


class ConfirmTotpRequest(RequestModel):
    model_config = examples({"code": "287082"})

    code: Annotated[str, described("The six digits that the authenticator app shows now.")]


class DisableTotpRequest(RequestModel):
    model_config = examples({"password": "correct horse battery staple", "code": "287082"})

    password: str
    code: Annotated[str, described(_CODE)]


class RenewRecoveryCodesRequest(RequestModel):
    model_config = examples({"password": "correct horse battery staple", "code": "287082"})

    password: str
    code: Annotated[str, described(_CODE)]


class LoginResponse(Response):
    model_config = examples({"token": _TOKEN, "expires_at": _EXPIRES_AT})

    token: Annotated[str, described("A JWT; send it as `Authorization: Bearer <token>`.")]
    expires_at: Timestamp


class ForgotPasswordResponse(Response):
    model_config = examples({"requested": True})

    requested: Annotated[bool, described("Always true, whether or not a user has this address.")]


class ResetPasswordResponse(Response):
    model_config = examples({"reset": True})

    reset: AlwaysTrue


class SessionEntry(Shown):
    id: Annotated[ids.SessionId, id_text(ids.SESSION)]
    created_at: Timestamp
    expires_at: Timestamp
    address: Annotated[str, described("Where the login came from.", examples=["192.0.2.7"]), read_from("peer")]
    user_agent: Annotated[str, described("The `User-Agent` of the login.", examples=["Mozilla/5.0"])]
    current: Annotated[bool, described("Whether this request's token belongs to it.")]


class SessionListResponse(Response):
    sessions: list[SessionEntry]


class LogoutResponse(Response):
    model_config = examples({"logged_out": True})

    logged_out: AlwaysTrue


class Person(Shown):
    id: Annotated[ids.UserId, id_text(ids.USER), read_from("member", "user_id")]
    email: Annotated[str, read_from("member", "email")]
    totp_enabled: Annotated[HasSecondFactor, read_from("has_second_factor")]
    recovery_codes_left: Annotated[int, described("0 without a second factor.")]


class AccountOfUser(Shown):
    id: Annotated[ids.AccountId, id_text(ids.ACCOUNT), read_from("account_id")]
    name: str
    role: Role


class OperatorLogin(Shown):
    until: Annotated[Timestamp, described("When the login will be too old for the operator's routes.")]


class OperatorImpersonation(Shown):
    until: Timestamp


class MeResponse(Response):
    model_config = examples(
        {
            "user": {
                "id": "us_01kb3ge5p0f8wexample00000u",
                "email": "ada@example.com",
                "totp_enabled": True,
                "recovery_codes_left": 9,
            },
            "account_id": _ACCOUNT_ID,
            "role": "owner",
            "totp_required": False,
            "expires_at": _EXPIRES_AT,
            "accounts": [{"id": _ACCOUNT_ID, "name": "Acme", "role": "owner"}],
        }
    )

    user: Person
    account_id: Annotated[
        ids.AccountId,
        id_text(ids.ACCOUNT),
        described("The account for which the token is valid."),
        read_from("member", "account_id"),
    ]
    role: Annotated[Role, described("The user's current role in that account."), read_from("member", "role")]
    totp_required: Annotated[
        bool,
        described("Whether that account requires a second factor of its members."),
        read_from("is_second_factor_required"),
    ]
    expires_at: Annotated[Timestamp, described("When the session ends. RFC 3339, UTC.")]
    accounts: Annotated[list[AccountOfUser], described("The user's accounts, in the order of joining; at most 100.")]
    operator: OperatorLogin | None = absent("Only for operators; absent for other users.")
    impersonation: OperatorImpersonation | None = absent("For an operator who impersonates a viewer; otherwise absent.")


class ChangePasswordResponse(Response):
    model_config = examples({"changed": True})

    changed: AlwaysTrue


class BeginTotpResponse(Response):
    model_config = examples(
        {
            "secret": "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",
            "uri": "otpauth://totp/Posthouse:ada@example.com?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Posthouse",
        }
    )

    secret: Annotated[str, described("Base 32, to type into an authenticator app; it is never shown again.")]
    uri: Annotated[str, described("The same secret as a URI, to be shown as a QR code.")]


class ConfirmTotpResponse(Response):
    model_config = examples({"recovery_codes": ["abcd-efgh-ijkl-mn23", "opqr-stuv-wxyz-2345"]})

    recovery_codes: Annotated[
        list[str], described("Ten codes, each valid for a single login without the app; they are never shown again.")
    ]


class RenewRecoveryCodesResponse(Response):
    model_config = examples({"recovery_codes": ["abcd-efgh-ijkl-mn23", "opqr-stuv-wxyz-2345"]})

    recovery_codes: Annotated[list[str], described("Ten codes, which are never shown again; all others are void.")]


class DisableTotpResponse(Response):
    model_config = examples({"disabled": True})

    disabled: AlwaysTrue


@router.post("/v1/auth/login", errors=(401, 429), content=LoginResponse, extra=_LOGIN)
async def login(request: Request, body: LoginRequest, sessions: Sessions, peer: Peer) -> HttpResponse:
    """Log in to the dashboard"""
    session = await sessions.login(
        body.email, body.password, body.code or None, peer, _user_agent(request), remember=body.remember
    )
    return _session_response(request, session)


@router.post(
    "/v1/auth/renew",
    errors=(401, 403, 404),
    content=LoginResponse,
    extra={
        "description": f"Takes the cookie `{COOKIE}` of a login with `remember`, only from our own pages.",
        "responses": _SETS_COOKIE,
    },
)
async def renew_session(request: Request, body: RenewSessionRequest, sessions: Sessions) -> HttpResponse:
    """Get another token for a session that this browser remembers"""
    secret = _renewal_secret_of(request)
    return _session_response(request, await sessions.renew(secret, body.account_id))


@router.post("/v1/auth/link", errors=(401, 429), content=LoginResponse, extra=_LOGIN)
async def login_by_link(
    request: Request, body: LoginByLinkRequest, login_links: LoginLinks, peer: Peer
) -> HttpResponse:
    """Log in with a link that works once"""
    session = await login_links.login(body.token, body.code or None, peer, _user_agent(request), remember=body.remember)
    return _session_response(request, session)


@router.post("/v1/auth/forgot", errors=(409, 429))
async def forgot_password(
    body: ForgotPasswordRequest, password_reset: PasswordReset, peer: Peer
) -> ForgotPasswordResponse:
    """Email a token for a new password to the user with an address, if there is one"""
    await password_reset.forgot(body.email, peer)
    return ForgotPasswordResponse(requested=True)


@router.post("/v1/auth/reset", errors=(404, 409))
async def reset_password(
    body: ResetPasswordRequest, password_reset: PasswordReset, peer: Peer
) -> ResetPasswordResponse:
    """Choose a new password with the token from an email; all sessions of the user end"""
    await password_reset.reset(body.token, body.password, peer)
    return ResetPasswordResponse(reset=True)


@router.get("/v1/auth/sessions", Role.VIEWER, is_own=True)
async def list_sessions(member: Member, sessions: Sessions) -> SessionListResponse:
    """The user's sessions, newest first"""
    found = await sessions.live(member)
    return SessionListResponse(sessions=[SessionEntry.of(row, current=row.id == member.session_id) for row in found])


@router.delete("/v1/auth/sessions/{id}", Role.VIEWER, is_own=True)
async def end_session(member: Member, session_id: _SessionId, sessions: Sessions) -> DeletedResponse:
    """End a session of the user, and all of its tokens"""
    await sessions.end(member, session_id)
    return DeletedResponse(deleted=True)


@router.post("/v1/auth/logout", Role.VIEWER, is_own=True, ends_impersonation=True, content=LogoutResponse)
async def logout(member: Member, request: Request, sessions: Sessions) -> HttpResponse:
    """End the session, and all of its tokens

    With the token of a read-only impersonation, only the impersonation ends.
    """
    await sessions.by(member.actor).logout(member)
    response = model_response(request, LogoutResponse(logged_out=True))
    # The cookie is that of the operator's own session.
    if member.impersonated_until is None:
        _remove_cookie(request, response)
    return response


@router.get("/v1/auth/me", Role.VIEWER, is_own=True)
async def get_me(member: Member, sessions: Sessions) -> MeResponse:
    """The logged-in user and their accounts"""
    me = await sessions.me(member)
    operator_until, impersonated_until = me.operator_until, me.member.impersonated_until
    return MeResponse.of(
        me,
        user=me,
        operator=None if operator_until is None else OperatorLogin(until=operator_until),
        impersonation=None if impersonated_until is None else OperatorImpersonation(until=impersonated_until),
    )


@router.post("/v1/auth/switch", Role.VIEWER, is_own=True, errors=(404,))
async def switch_account(member: Member, body: SwitchAccountRequest, sessions: Sessions) -> LoginResponse:
    """Get a token of the same session for another of the user's accounts"""
    return LoginResponse.of(await sessions.switch(member, body.account_id))


@router.post("/v1/auth/password", Role.VIEWER, is_own=True, errors=(409,))
async def change_password(
    member: Member, body: ChangePasswordRequest, sessions: Sessions, peer: Peer
) -> ChangePasswordResponse:
    """Change the user's password; all of their other sessions end"""
    await sessions.change_password(member, body.current_password, body.new_password, peer)
    return ChangePasswordResponse(changed=True)


@router.post("/v1/auth/totp", Role.VIEWER, is_own=True, errors=(409,))
async def begin_totp(member: Member, body: BeginTotpRequest, sessions: Sessions, peer: Peer) -> BeginTotpResponse:
    """Start a second factor; it is required once it is confirmed"""
    secret = await sessions.begin_totp(member, body.password, peer)
    return BeginTotpResponse(secret=secret.text, uri=secret.uri)


@router.post("/v1/auth/totp/confirm", Role.VIEWER, is_own=True, errors=(409,))
async def confirm_totp(member: Member, body: ConfirmTotpRequest, sessions: Sessions) -> ConfirmTotpResponse:
    """Confirm the second factor; logins then need a code, and all other sessions end"""
    return ConfirmTotpResponse(recovery_codes=list(await sessions.confirm_totp(member, body.code)))


@router.post("/v1/auth/recovery-codes", Role.VIEWER, is_own=True, errors=(409,))
async def renew_recovery_codes(
    member: Member, body: RenewRecoveryCodesRequest, sessions: Sessions, peer: Peer
) -> RenewRecoveryCodesResponse:
    """Create new recovery codes for the second factor; all others end"""
    codes = await sessions.renew_recovery_codes(member, body.password, body.code, peer)
    return RenewRecoveryCodesResponse(recovery_codes=list(codes))


@router.post("/v1/auth/totp/disable", Role.VIEWER, is_own=True, errors=(409,))
async def disable_totp(member: Member, body: DisableTotpRequest, sessions: Sessions, peer: Peer) -> DisableTotpResponse:
    """Remove the second factor and its recovery codes"""
    await sessions.disable_totp(member, body.password, body.code, peer)
    return DisableTotpResponse(disabled=True)


def _user_agent(request: Request) -> str:
    return request.headers.get("user-agent", "")


def _session_response(request: Request, session: LoginSession) -> HttpResponse:
    response = model_response(request, LoginResponse.of(session))
    if session.renewal_secret is not None:
        _put_cookie(response, session.renewal_secret)
    return response


def _put_cookie(response: HttpResponse, secret: RenewalSecret) -> None:
    _set_cookie(response, secret.text, int(secret.lifetime.total_seconds()))


def _remove_cookie(request: Request, response: HttpResponse) -> None:
    if COOKIE in request.cookies:
        _set_cookie(response, "", 0)


def _set_cookie(response: HttpResponse, text: str, seconds: int) -> None:
    response.set_cookie(COOKIE, text, max_age=seconds, path="/", secure=True, httponly=True, samesite="strict")


def _renewal_secret_of(request: Request) -> str:
    _require_same_origin(request)
    secret = request.cookies.get(COOKIE, "")
    if not secret:
        raise Refusal(Code.UNAUTHORIZED, "There is no remembered session in this browser: log in.")
    return secret


def _require_same_origin(request: Request) -> None:
    """A page can't set either header. Browsers that don't send the first one send the second with each POST."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        host = request.headers.get("host", "")
        is_own = bool(host) and _host_of(request.headers.get("origin", "")) == host.lower()
    if not is_own:
        raise Refusal(Code.FORBIDDEN, _OTHER_ORIGIN)


def _host_of(origin: str) -> str:
    """Compared without the scheme, because a proxy in front of us may terminate TLS."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
