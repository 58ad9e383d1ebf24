"""Request and response schemas of login, logout, password and second factor."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Request, Response, Timestamp, described
from posthouse.rules import limits
from posthouse.rules.credential import Role

_REQUEST_ID: Final = "rq_01kb3ge5p0f8wexample00000r"
_ACCOUNT_ID: Final = "ac_01kb3ge5p0f8wexample00000a"
_TOKEN: Final = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.c2lnbmF0dXJl"  # noqa: S105 (an example)
_EXPIRES_AT: Final = "2026-11-16T03:04:05.000Z"
_KEEP: Final = (
    "Keep the session in this browser: the token ends after 15 minutes, and the cookie `__Host-posthouse` gets another "
    "with `POST /v1/auth/renew`."
)
_CODE: Final = "Six digits from the authenticator app, or a recovery code; each works once."


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class LoginRequest(Request):
    model_config = _example(email="ada@example.com", password="correct horse battery staple")  # noqa: S106

    email: str
    password: str
    code: Annotated[str | None, described(f"Required for a user with a second factor. {_CODE}")] = None
    keep: Annotated[bool, described(_KEEP)] = False


class LoginByLinkRequest(Request):
    model_config = _example(token="4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM")  # noqa: S106

    token: Annotated[str, described("The part of the link after `#link=`.")]
    code: Annotated[str | None, described(f"Required for a user with a second factor. {_CODE}")] = None
    keep: Annotated[bool, described(_KEEP)] = False


class RenewSessionRequest(Request):
    model_config = _example(account_id=_ACCOUNT_ID)

    account_id: Annotated[
        str | None, described("An account of the user; without it, the account that a login would open.")
    ] = None


class ForgotPasswordRequest(Request):
    model_config = _example(email="ada@example.com")

    email: Annotated[str, described("The user's address.")]


class ResetPasswordRequest(Request):
    model_config = _example(
        token="4TqPBcYV0a8mCkJq3Wz9hXyR2nLdEoFgUsI7tA1bKvM",  # noqa: S106
        password="correct horse battery staple",  # noqa: S106
    )

    token: Annotated[str, described("The token in the mail: the part of its link after the #.")]
    password: Annotated[
        str,
        described(
            "The password to set.",
            minLength=limits.PASSWORD_CHARACTERS_MIN,
            maxLength=limits.PASSWORD_CHARACTERS_MAX,
        ),
    ]


class SwitchAccountRequest(Request):
    model_config = _example(account_id=_ACCOUNT_ID)

    account_id: Annotated[str, described("An account listed by `GET /v1/auth/me`.")]


class ChangePasswordRequest(Request):
    model_config = _example(
        current_password="correct horse battery staple",  # noqa: S106
        new_password="a new one, longer than that",  # noqa: S106
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


class BeginTotpRequest(Request):
    model_config = _example(password="correct horse battery staple")  # noqa: S106

    password: Annotated[str, described("The user's password, as for a login.")]


class ConfirmTotpRequest(Request):
    model_config = _example(code="287082")

    code: Annotated[str, described("The six digits that the authenticator app shows now.")]


class DisableTotpRequest(Request):
    model_config = _example(password="correct horse battery staple", code="287082")  # noqa: S106

    password: str
    code: Annotated[str, described(_CODE)]


class RenewRecoveryCodesRequest(Request):
    model_config = _example(password="correct horse battery staple", code="287082")  # noqa: S106

    password: str
    code: Annotated[str, described(_CODE)]


class LoginResponse(Response):
    model_config = _example(token=_TOKEN, expires_at=_EXPIRES_AT, request_id=_REQUEST_ID)

    token: Annotated[str, described("A JWT; send it as `Authorization: Bearer <token>`.")]
    expires_at: Timestamp


class ForgotPasswordResponse(Response):
    model_config = _example(requested=True, request_id=_REQUEST_ID)

    requested: Annotated[bool, described("Always true, whether or not the address is a user's.")]


class ResetPasswordResponse(Response):
    model_config = _example(reset=True, request_id=_REQUEST_ID)

    reset: bool


class SessionEntry(BaseModel):
    id: str
    created_at: Timestamp
    expires_at: Timestamp
    address: Annotated[str, described("Where the login came from.")]
    user_agent: Annotated[str, described("The `User-Agent` of the login.")]
    current: Annotated[bool, described("Whether this request's token belongs to it.")]


class SessionListResponse(Response):
    sessions: list[SessionEntry]


class LogoutResponse(Response):
    model_config = _example(logged_out=True, request_id=_REQUEST_ID)

    logged_out: Annotated[bool, Field(json_schema_extra={"const": True})]


class Person(BaseModel):
    id: str
    email: str
    totp_enabled: bool
    recovery_codes_left: Annotated[int, described("0 without a second factor.")]


class AccountOfUser(BaseModel):
    id: str
    name: str
    role: Role


class OperatorLogin(BaseModel):
    until: Annotated[str, described("When the login is too old for the operator's routes.", format="date-time")]


class OperatorVisit(BaseModel):
    until: Timestamp


class MeResponse(Response):
    model_config = _example(
        user={
            "id": "us_01kb3ge5p0f8wexample00000u",
            "email": "ada@example.com",
            "totp_enabled": True,
            "recovery_codes_left": 9,
        },
        account_id=_ACCOUNT_ID,
        role="owner",
        totp_required=False,
        expires_at=_EXPIRES_AT,
        accounts=[{"id": _ACCOUNT_ID, "name": "Acme", "role": "owner"}],
        request_id=_REQUEST_ID,
    )

    user: Person
    account_id: Annotated[str, described("The account that the token is for.")]
    role: Annotated[Role, described("The user's present role in that account.")]
    totp_required: Annotated[bool, described("Whether that account requires a second factor of its members.")]
    expires_at: Annotated[str, described("When the session ends. RFC 3339, UTC.", format="date-time")]
    accounts: Annotated[
        list[AccountOfUser], described("The accounts of the user, in the order of joining; at most 100.")
    ]
    operator: Annotated[OperatorLogin | None, described("Of operators; absent for other users.")] = None
    visit: Annotated[OperatorVisit | None, described("Of an operator who visits the account; else absent.")] = None


class ChangePasswordResponse(Response):
    model_config = _example(changed=True, request_id=_REQUEST_ID)

    changed: Annotated[bool, Field(json_schema_extra={"const": True})]


class BeginTotpResponse(Response):
    model_config = _example(
        secret="GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",  # noqa: S106
        uri="otpauth://totp/Posthouse:ada@example.com?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Posthouse",
        request_id=_REQUEST_ID,
    )

    secret: Annotated[str, described("Base 32, to type into an authenticator app; it is never shown again.")]
    uri: Annotated[str, described("The same secret as a URI, to be shown as a QR code.")]


class ConfirmTotpResponse(Response):
    model_config = _example(recovery_codes=["abcd-efgh-ijkl-mn23", "opqr-stuv-wxyz-2345"], request_id=_REQUEST_ID)

    recovery_codes: Annotated[
        list[str], described("Ten codes, each valid for a single login without the app; they are never shown again.")
    ]


class RenewRecoveryCodesResponse(Response):
    model_config = _example(recovery_codes=["abcd-efgh-ijkl-mn23", "opqr-stuv-wxyz-2345"], request_id=_REQUEST_ID)

    recovery_codes: Annotated[list[str], described("Ten codes; all others ended. They are never shown again.")]


class DisableTotpResponse(Response):
    model_config = _example(disabled=True, request_id=_REQUEST_ID)

    disabled: Annotated[bool, Field(json_schema_extra={"const": True})]
