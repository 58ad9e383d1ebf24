"""Request and response schemas of SMTP credentials and API keys."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.shapes import NextCursor, Request, Response, Timestamp, described
from posthouse.rules import limits
from posthouse.rules.credential import Mode, Scope
from posthouse.rules.input_checks import NAME_CHARACTERS_MAX, NETWORKS_MAX

_REQUEST_ID: Final = "rq_01kmx2v3q8f7t9n5r6w4y0zabc"
_CREDENTIAL: Final[JsonDict] = {
    "id": "cr_01kmx2v3q8f7t9n5r6w4y0zabc",
    "username": "smtp_mf2xk4tboj2wk3dm",
    "name": "shop",
    "is_default": True,
    "allowed_networks": ["192.0.2.0/24"],
    "created_at": "2026-11-15T09:30:00.000Z",
    "last_used_at": "2026-11-15T10:02:00.000Z",
    "last_used_from": "198.51.100.7",
    "previous_password_until": None,
    "revoked_at": None,
}
_KEY: Final[JsonDict] = {
    "id": "ak_01kmx2v3q8f7t9n5r6w4y0zabc",
    "hint": "ph_live_…x7Qd",
    "name": "shop",
    "mode": "live",
    "scopes": ["send", "read"],
    "credential_id": "cr_01kmx2v3q8f7t9n5r6w4y0zabc",
    "allowed_networks": [],
    "created_at": "2026-11-15T09:30:00.000Z",
    "last_used_at": None,
    "last_used_from": None,
    "expires_at": None,
    "replaced_by": None,
    "revoked_at": None,
}

GivenName = Annotated[str, described("What it is for.", minLength=1, maxLength=NAME_CHARACTERS_MAX)]
GivenNetworks = Annotated[
    list[str] | None,
    described(
        "The networks (`192.0.2.0/24`) or addresses it may be used from. Empty: from anywhere.",
        maxItems=NETWORKS_MAX,
    ),
]
Networks = Annotated[list[str], described("The networks it may be used from; empty: from anywhere.")]
LastUsed = Annotated[Timestamp | None, described("Accurate to about a minute; null if never used.")]


class CredentialRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "shop", "allowed_networks": ["192.0.2.0/24"]}]},
    )

    name: GivenName
    allowed_networks: GivenNetworks = None


class RotationRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_seconds": 3600}]})

    overlap_seconds: Annotated[
        int | None,
        described(
            f"How long the old secret still works; {limits.OVERLAP_SECONDS} by default.",
            minimum=0,
            maximum=limits.OVERLAP_SECONDS_MAX,
        ),
    ] = None


class KeyRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "shop", "mode": "live", "scopes": ["send", "read"]}]},
    )

    name: GivenName
    mode: Annotated[
        str | None,
        described(
            "`test` keys simulate delivery: no mail is sent, no credit is used. `live` by default.",
            enum=[*[mode.value for mode in Mode], None],
        ),
    ] = None
    scopes: Annotated[
        list[str] | None,
        described(
            "What the key may do; `send` by default.",
            minItems=1,
            items={"type": "string", "enum": [scope.value for scope in Scope]},
        ),
    ] = None
    credential_id: Annotated[
        str | None, described("The credential it belongs to; the account's default credential if absent.")
    ] = None
    allowed_networks: GivenNetworks = None
    sender_domains: Annotated[
        list[str] | None,
        described(
            "The domains that it may send from, and whose messages it reads, if not all of the account.",
            maxItems=limits.KEY_DOMAINS_MAX,
        ),
    ] = None
    expires_at: Annotated[
        str | None,
        described("When the key expires, RFC 3339, at most ten years ahead; never if absent.", format="date-time"),
    ] = None


class Credential(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_CREDENTIAL]})

    id: str
    username: str
    name: str
    is_default: Annotated[bool, described("Whether mail of logged-in members is sent with it.")]
    allowed_networks: Networks
    created_at: Timestamp
    last_used_at: LastUsed
    last_used_from: Annotated[
        str | None, described("The address that it was last used from; null before its first use.")
    ]
    previous_password_until: Annotated[
        Timestamp | None, described("When the previous password stops working, after a rotation.")
    ]
    revoked_at: Timestamp | None


class Key(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_KEY]})

    id: str
    hint: Annotated[str, described("The start and the end of the key, to recognise it.")]
    name: str
    mode: Annotated[str, described("Whether mail is really sent.", enum=[mode.value for mode in Mode])]
    scopes: Annotated[
        list[str],
        described("What the key may do.", items={"type": "string", "enum": [scope.value for scope in Scope]}),
    ]
    sender_domains: Annotated[
        list[str] | None, described("The domains that it is bound to; absent if it is bound to none.")
    ] = None
    credential_id: str
    allowed_networks: Annotated[
        list[str], described("The networks it may be used from, besides those of its credential. Empty: from anywhere.")
    ]
    created_at: Timestamp
    last_used_at: LastUsed
    last_used_from: Annotated[
        str | None, described("The address that it was last used from; null before its first use.")
    ]
    expires_at: Timestamp | None
    replaced_by: Annotated[str | None, described("The id of the key that replaced it, after a rotation.")]
    revoked_at: Timestamp | None


class CredentialResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [{"credential": _CREDENTIAL, "request_id": _REQUEST_ID}]})

    credential: Credential


class NewCredentialResponse(CredentialResponse):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "credential": _CREDENTIAL,
                    "password": "0aB9cD8eF7gH6iJ5kL4mN3oP2qR1sT0uV9wX8yZ7aB6",
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    password: Annotated[str, described("Shown this once.")]


class CredentialListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"credentials": [_CREDENTIAL], "next_cursor": None, "request_id": _REQUEST_ID}]}
    )

    credentials: list[Credential]
    next_cursor: NextCursor


class KeyResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [{"key": _KEY, "request_id": _REQUEST_ID}]})

    key: Key


class NewKeyResponse(KeyResponse):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key": _KEY,
                    "secret": "ph_live_0aB9cD8eF7gH6iJ5kL4mN3oP2qR1sT0uV9wX8yZx7Qd",
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    secret: Annotated[str, described("Shown this once.")]


class RotatedKeyResponse(NewKeyResponse):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key": _KEY,
                    "secret": "ph_live_0aB9cD8eF7gH6iJ5kL4mN3oP2qR1sT0uV9wX8yZx7Qd",
                    "previous": {
                        **_KEY,
                        "id": "ak_01kmx2v3q8f7t9n5r6w4y0zabb",
                        "hint": "ph_live_…k2Wp",
                        "expires_at": "2026-11-16T09:30:00.000Z",
                        "replaced_by": "ak_01kmx2v3q8f7t9n5r6w4y0zabc",
                    },
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    previous: Annotated[Key, described("The replaced key, with the time at which it expires.")]


class KeyListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"keys": [_KEY], "next_cursor": None, "request_id": _REQUEST_ID}]}
    )

    keys: list[Key]
    next_cursor: NextCursor
