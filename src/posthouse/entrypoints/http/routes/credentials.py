"""SMTP credentials and API keys."""

from typing import Annotated, Final

from fastapi import Path
from pydantic import BeforeValidator
from pydantic.config import JsonDict

from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.shapes import (
    NextCursor,
    RequestModel,
    Response,
    RevokedAt,
    Shown,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.shared.principal import Member
from posthouse.rules import credential, ids, input_checks, limits
from posthouse.rules.credential import Mode, Role, Scope
from posthouse.rules.input_checks import NAME_CHARACTERS_MAX, NETWORKS_MAX

router = Operations("Credentials")

_CredentialId = Annotated[str, Path(alias="id", description="The id of a credential: `cr_…`.")]
_KeyId = Annotated[str, Path(alias="id", description="The id of a key: `ak_…`.")]

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
    "created_by": "admin@example.com",
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
Networks = Annotated[list[str], BeforeValidator(lambda networks: [str(network) for network in networks])]
LastUsed = Annotated[Timestamp | None, described("Accurate to about a minute; null if never used.")]


class CredentialRequest(RequestModel):
    model_config = examples({"name": "shop", "allowed_networks": ["192.0.2.0/24"]})

    name: GivenName
    allowed_networks: GivenNetworks = None


class RotationRequest(RequestModel):
    model_config = examples({"overlap_seconds": 3600})

    overlap_seconds: Annotated[
        int | None,
        described(
            f"How long the old secret still works; {limits.OVERLAP_SECONDS} by default.",
            minimum=0,
            maximum=limits.OVERLAP_SECONDS_MAX,
        ),
    ] = None

    @property
    def seconds(self) -> int:
        return limits.OVERLAP_SECONDS if self.overlap_seconds is None else self.overlap_seconds


class KeyRequest(RequestModel):
    model_config = examples({"name": "shop", "mode": "live", "scopes": ["send", "read"]})

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
        str | None, described("The credential to which it belongs; the account's default credential if absent.")
    ] = None
    allowed_networks: GivenNetworks = None
    sender_domains: Annotated[
        list[str] | None,
        described(
            "The domains from which it may send and whose messages it may read, if not all of the account.",
            maxItems=limits.KEY_DOMAINS_MAX,
        ),
    ] = None
    expires_at: Annotated[
        str | None,
        described("When the key expires, RFC 3339, at most ten years ahead; never if absent.", format="date-time"),
    ] = None


class Credential(Shown):
    model_config = examples(_CREDENTIAL)

    id: Annotated[ids.CredentialId, id_text(ids.CREDENTIAL)]
    username: str
    name: str
    is_default: Annotated[bool, described("Whether it is used for mail of logged-in members.")]
    allowed_networks: Annotated[Networks, described("The networks it may be used from; empty: from anywhere.")]
    created_at: Timestamp
    last_used_at: LastUsed
    last_used_from: Annotated[
        str | None, described("The address from which it was last used; null before its first use.")
    ]
    previous_password_until: Annotated[
        Timestamp | None,
        described("When the previous password stops working, after a rotation."),
        read_from("previous_until"),
    ]
    revoked_at: RevokedAt


class Key(Shown):
    model_config = examples(_KEY)

    id: Annotated[ids.ApiKeyId, id_text(ids.API_KEY)]
    hint: Annotated[str, described("The beginning and the end of the key, to recognise it.")]
    name: str
    mode: Annotated[str, described("Whether mail is really sent.", enum=[mode.value for mode in Mode])]
    scopes: Annotated[
        list[str],
        described("What the key may do.", items={"type": "string", "enum": [scope.value for scope in Scope]}),
    ]
    sender_domains: Annotated[list[str] | None, BeforeValidator(lambda domains: domains or None)] = absent(
        "The domains to which it is bound; absent if it is bound to none."
    )
    credential_id: Annotated[
        ids.CredentialId,
        id_text(ids.CREDENTIAL),
        described("The credential to which it belongs, and with which it is revoked."),
    ]
    allowed_networks: Annotated[
        Networks, described("The networks it may be used from, besides those of its credential. Empty: from anywhere.")
    ]
    created_at: Timestamp
    created_by: Annotated[
        str | None,
        described("The user who created it, or `operator`, according to the account's log; null once that is deleted."),
    ]
    last_used_at: LastUsed
    last_used_from: Annotated[
        str | None, described("The address from which it was last used; null before its first use.")
    ]
    expires_at: Annotated[Timestamp | None, described("Null: it never expires.")]
    replaced_by: Annotated[
        Annotated[ids.ApiKeyId, id_text(ids.API_KEY)] | None,
        described("The id of the key that replaced it, after a rotation."),
    ]
    revoked_at: RevokedAt


class CredentialResponse(Response):
    model_config = examples({"credential": _CREDENTIAL})

    credential: Credential


class NewCredentialResponse(CredentialResponse):
    model_config = examples({"credential": _CREDENTIAL, "password": "0aB9cD8eF7gH6iJ5kL4mN3oP2qR1sT0uV9wX8yZ7aB6"})

    password: Annotated[str, described("Shown only once.")]


class CredentialListResponse(Response):
    model_config = examples({"credentials": [_CREDENTIAL], "next_cursor": None})

    credentials: Annotated[list[Credential], read_from("items")]
    next_cursor: NextCursor


class KeyResponse(Response):
    model_config = examples({"key": _KEY})

    key: Key


class NewKeyResponse(KeyResponse):
    model_config = examples({"key": _KEY, "secret": "ph_live_0aB9cD8eF7gH6iJ5kL4mN3oP2qR1sT0uV9wX8yZx7Qd"})

    secret: Annotated[str, described("Shown only once.")]


class RotatedKeyResponse(NewKeyResponse):
    model_config = examples(
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
        }
    )

    previous: Annotated[Key, described("The replaced key, with the time at which it expires.")]


class KeyListResponse(Response):
    model_config = examples({"keys": [_KEY], "next_cursor": None})

    keys: Annotated[list[Key], read_from("items")]
    next_cursor: NextCursor


@router.get("/v1/credentials", Role.ADMIN)
async def list_credentials(
    member: Member, credentials: Credentials, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> CredentialListResponse:
    """The account's SMTP credentials, newest first, revoked ones included"""
    return CredentialListResponse.of(await credentials.credentials(member.account_id, limit, cursor))


@router.post("/v1/credentials", Role.ADMIN, stores=True, status=201, errors=(409,))
async def create_credential(member: Member, body: CredentialRequest, credentials: Credentials) -> NewCredentialResponse:
    """Create an SMTP credential; its password is shown only once"""
    made = await credentials.create_credential(member.account_id, body.name, body.allowed_networks or (), member.actor)
    return NewCredentialResponse.of(made)


@router.post("/v1/credentials/{id}/rotate", Role.ADMIN, errors=(409,))
async def rotate_credential(
    member: Member, credential_id: _CredentialId, body: RotationRequest, credentials: Credentials
) -> NewCredentialResponse:
    """Create a new password, shown only once; the old password works until the overlap ends"""
    made = await credentials.rotate_credential(
        member.account_id, credential_id, member.actor, overlap_seconds=body.seconds
    )
    return NewCredentialResponse.of(made)


@router.delete("/v1/credentials/{id}", Role.ADMIN, errors=(409,))
async def revoke_credential(
    member: Member, credential_id: _CredentialId, credentials: Credentials
) -> CredentialResponse:
    """Revoke a credential and its keys within seconds; the last credential can't be revoked"""
    row = await credentials.revoke_credential(member.account_id, credential_id, member.actor)
    return CredentialResponse(credential=Credential.of(row))


@router.get("/v1/keys", Role.ADMIN, tag="Keys")
async def list_keys(
    member: Member, credentials: Credentials, limit: PageSize = PAGE_DEFAULT, cursor: Cursor = None
) -> KeyListResponse:
    """The account's API keys, newest first, revoked ones included"""
    return KeyListResponse.of(await credentials.keys(member.account_id, limit, cursor))


@router.post("/v1/keys", Role.ADMIN, tag="Keys", stores=True, status=201, errors=(404, 409))
async def create_key(member: Member, body: KeyRequest, credentials: Credentials) -> NewKeyResponse:
    """Create an API key, which is shown only once"""
    made = await credentials.create_key(
        member.account_id,
        member.actor,
        name=input_checks.name("`name`", body.name),
        mode=credential.mode(body.mode),
        scopes=credential.scopes(body.scopes),
        given_credential=body.credential_id,
        allowed_networks=body.allowed_networks or (),
        sender_domains=credential.sender_domains(body.sender_domains),
        expires_at=None if body.expires_at is None else input_checks.moment("expires_at", body.expires_at),
    )
    return NewKeyResponse.of(made)


@router.post("/v1/keys/{id}/rotate", Role.ADMIN, tag="Keys", stores=True, status=201, errors=(409,))
async def rotate_key(
    member: Member, key_id: _KeyId, body: RotationRequest, credentials: Credentials
) -> RotatedKeyResponse:
    """Replace a key; the new key is shown only once, and the old key works until the overlap ends"""
    made = await credentials.rotate_key(member.account_id, key_id, member.actor, overlap_seconds=body.seconds)
    return RotatedKeyResponse.of(made)


@router.delete("/v1/keys/{id}", Role.ADMIN, tag="Keys", errors=(409,))
async def revoke_key(member: Member, key_id: _KeyId, credentials: Credentials) -> KeyResponse:
    """Revoke an API key within seconds"""
    row = await credentials.revoke_key(member.account_id, key_id, member.actor)
    return KeyResponse(key=Key.of(row))
