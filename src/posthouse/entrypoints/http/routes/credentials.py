"""The routes of SMTP credentials and API keys."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

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
from posthouse.entrypoints.http.schemas import credentials as schemas
from posthouse.flows.account.credentials import ApiKeyRow, CredentialRow
from posthouse.rules import credential, ids, input_checks, limits, scope

router = APIRouter()

_CredentialId = Annotated[str, Path(alias="id", description="The id of a credential: `cr_…`.")]
_KeyId = Annotated[str, Path(alias="id", description="The id of a key: `ak_…`.")]


@router.get(
    "/v1/credentials",
    operation_id="listCredentials",
    summary="The account's SMTP credentials, newest first, revoked ones included",
    tags=["Credentials"],
    responses=responses_with(200, schemas.CredentialListResponse, 400, 401, 403, 500, 503),
)
async def list_credentials(request: Request, limit: PageSize = str(PAGE_DEFAULT), cursor: Cursor = None) -> Response:
    member = await member_of(request)
    page = await services_of(request).credentials.credentials(member.account_id, page_size(limit), cursor)
    return page_response(request, "credentials", page, _credential)


@router.post(
    "/v1/credentials",
    operation_id="createCredential",
    summary="Create an SMTP credential; its password is shown this once",
    tags=["Credentials"],
    status_code=201,
    openapi_extra=json_body(schemas.CredentialRequest),
    responses=responses_with(201, schemas.NewCredentialResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def create_credential(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.CredentialRequest)
    made = await services_of(request).credentials.create_credential(
        member.account_id, body.name, body.allowed_networks or (), member.actor
    )
    return json_response(request, {"credential": _credential(made.credential), "password": made.password}, 201)


@router.post(
    "/v1/credentials/{id}/rotate",
    operation_id="rotateCredential",
    summary="Create a new password, shown this once; the old password works until the overlap ends",
    tags=["Credentials"],
    openapi_extra=json_body(schemas.RotationRequest),
    responses=responses_with(200, schemas.NewCredentialResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def rotate_credential(request: Request, credential_id: _CredentialId) -> Response:
    member = await member_of(request)
    overlap_seconds = _overlap_seconds(await body_of(request, schemas.RotationRequest))
    made = await services_of(request).credentials.rotate_credential(
        member.account_id, credential_id, member.actor, overlap_seconds=overlap_seconds
    )
    return json_response(request, {"credential": _credential(made.credential), "password": made.password})


@router.delete(
    "/v1/credentials/{id}",
    operation_id="revokeCredential",
    summary="Revoke a credential and its keys, within seconds; the last credential can't be revoked",
    tags=["Credentials"],
    responses=responses_with(200, schemas.CredentialResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def revoke_credential(request: Request, credential_id: _CredentialId) -> Response:
    member = await member_of(request)
    row = await services_of(request).credentials.revoke_credential(member.account_id, credential_id, member.actor)
    return json_response(request, {"credential": _credential(row)})


@router.get(
    "/v1/keys",
    operation_id="listKeys",
    summary="The account's API keys, newest first, revoked ones included",
    tags=["Keys"],
    responses=responses_with(200, schemas.KeyListResponse, 400, 401, 403, 500, 503),
)
async def list_keys(request: Request, limit: PageSize = str(PAGE_DEFAULT), cursor: Cursor = None) -> Response:
    member = await member_of(request)
    page = await services_of(request).credentials.keys(member.account_id, page_size(limit), cursor)
    return page_response(request, "keys", page, _key)


@router.post(
    "/v1/keys",
    operation_id="createKey",
    summary="Create an API key, which is shown this once",
    tags=["Keys"],
    status_code=201,
    openapi_extra=json_body(schemas.KeyRequest),
    responses=responses_with(201, schemas.NewKeyResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def create_key(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.KeyRequest)
    made = await services_of(request).credentials.create_key(
        member.account_id,
        member.actor,
        name=input_checks.name("`name`", body.name),
        mode=credential.mode(body.mode),
        scopes=credential.scopes(body.scopes),
        given_credential=body.credential_id,
        allowed_networks=body.allowed_networks or (),
        sender_domains=scope.sender_domains(body.sender_domains),
        expires_at=None if body.expires_at is None else input_checks.moment("expires_at", body.expires_at),
    )
    return json_response(request, {"key": _key(made.key), "secret": made.secret}, 201)


@router.post(
    "/v1/keys/{id}/rotate",
    operation_id="rotateKey",
    summary="Replace a key; the new key is shown this once, and the old key works until the overlap ends",
    tags=["Keys"],
    status_code=201,
    openapi_extra=json_body(schemas.RotationRequest),
    responses=responses_with(201, schemas.RotatedKeyResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def rotate_key(request: Request, key_id: _KeyId) -> Response:
    member = await member_of(request)
    overlap_seconds = _overlap_seconds(await body_of(request, schemas.RotationRequest))
    made = await services_of(request).credentials.rotate_key(
        member.account_id, key_id, member.actor, overlap_seconds=overlap_seconds
    )
    previous = None if made.previous is None else _key(made.previous)
    return json_response(request, {"key": _key(made.key), "secret": made.secret, "previous": previous}, 201)


@router.delete(
    "/v1/keys/{id}",
    operation_id="revokeKey",
    summary="Revoke an API key, within seconds",
    tags=["Keys"],
    responses=responses_with(200, schemas.KeyResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def revoke_key(request: Request, key_id: _KeyId) -> Response:
    member = await member_of(request)
    row = await services_of(request).credentials.revoke_key(member.account_id, key_id, member.actor)
    return json_response(request, {"key": _key(row)})


def _overlap_seconds(body: schemas.RotationRequest) -> int:
    return limits.OVERLAP_SECONDS if body.overlap_seconds is None else body.overlap_seconds


def _credential(row: CredentialRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.CREDENTIAL, row.id),
        "username": row.username,
        "name": row.name,
        "is_default": row.is_default,
        "allowed_networks": [str(network) for network in row.allowed_networks],
        "created_at": timestamp(row.created_at),
        "last_used_at": timestamp(row.last_used_at),
        "last_used_from": row.last_used_from,
        "previous_password_until": timestamp(row.previous_until),
        "revoked_at": timestamp(row.revoked_at),
    }


def _key(row: ApiKeyRow) -> dict[str, Any]:
    bound = {"sender_domains": row.sender_domains} if row.sender_domains else {}
    return {
        "id": ids.text(ids.API_KEY, row.id),
        "hint": row.hint,
        "name": row.name,
        "mode": row.mode,
        "scopes": row.scopes,
        **bound,
        "credential_id": ids.text(ids.CREDENTIAL, row.credential_id),
        "allowed_networks": [str(network) for network in row.allowed_networks],
        "created_at": timestamp(row.created_at),
        "last_used_at": timestamp(row.last_used_at),
        "last_used_from": row.last_used_from,
        "expires_at": timestamp(row.expires_at),
        "replaced_by": None if row.replaced_by is None else ids.text(ids.API_KEY, row.replaced_by),
        "revoked_at": timestamp(row.revoked_at),
    }
