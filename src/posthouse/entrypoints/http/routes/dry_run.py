"""The routes of test mail and dry runs."""

import asyncio
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.repeated_headers import check_idempotency_key
from posthouse.entrypoints.http.request_body import BodyReader, parsed, validated
from posthouse.entrypoints.http.route_context import caller_of, json_response, member_of, services_of
from posthouse.entrypoints.http.schemas.dry_run import DryRunResponse, TestEmailRequest, TestEmailResponse
from posthouse.entrypoints.http.schemas.emails import SendRequest
from posthouse.entrypoints.http.send_email import content_of, headers_of, idempotency_key, peer_of
from posthouse.entrypoints.http.send_request import canonical, draft_of
from posthouse.flows.accept.dry_run import DryRunRecipient, DryRunReport, SenderDomain
from posthouse.flows.shared.large_mail import in_turn
from posthouse.flows.shared.principal import Caller
from posthouse.rules import limits
from posthouse.rules.draft import Draft
from posthouse.rules.message import Source

router = APIRouter()

TEST_BODY_BYTES_MAX: Final = limits.THREAD_BODY_BYTES_MIN
# Keeps the fingerprint different from that of POST /emails with the same key.
_TEST_EMAIL: Final = b"test-email "
_KEY: Final = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "As for POST /emails. Without a key, equal requests within 10 seconds send one message.",
            "schema": {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_CHARACTERS_MAX},
        }
    ]
}


@router.post(
    "/v1/test-email",
    operation_id="sendTestEmail",
    summary="Send a message to your own address, delivered and charged like any other",
    tags=["Email"],
    status_code=202,
    openapi_extra=json_body(TestEmailRequest) | _KEY,
    responses=responses_with(202, TestEmailResponse, 400, 401, 402, 403, 409, 413, 429, 500, 503),
)
async def send_test_email(request: Request) -> Response:
    member = await member_of(request)
    services = services_of(request)
    headers = dict(request.scope["headers"])
    reader: BodyReader = request.app.state.reader
    reader.check_headers(request.scope, TEST_BODY_BYTES_MAX)
    check_idempotency_key(request.scope)
    key = idempotency_key(headers) if b"idempotency-key" in headers else None
    content = parsed(await reader.read(request.receive, TEST_BODY_BYTES_MAX))
    body = validated(TestEmailRequest, content)
    principal = await services.admission.sender(request.headers.get("authorization"), peer_of(request.scope))
    request.scope[ACCOUNT_ID] = principal.account_id
    draft = await services.dry_run.test_draft(member, body.sender, body.subject, body.text, body.html)
    # Equal requests of two members are two messages.
    body_hash = services.intake.fingerprint(_TEST_EMAIL + member.user_id.bytes + canonical(content))
    if key is None:
        key = await services.dry_run.click_key(principal, member, body_hash)
    request_id = responses.request_id_of(request.scope)
    accepted = await services.intake.accept(principal, key, draft, body_hash, request_id, Source.TEST)
    sent = content_of(draft, accepted, responses.request_id_text(request.scope), Source.TEST)
    response = json_response(request, sent, 202)
    response.headers.update(headers_of(accepted))
    return response


@router.post(
    "/v1/emails/dry-run",
    operation_id="dryRunEmail",
    summary="Check a message without sending it",
    description="Takes the body of POST /emails. An invalid body is refused in the same way; a refusal because of "
    "the account, its domain or its credits is returned in `refusal`. Nothing is reserved, counted or stored.",
    tags=["Email"],
    openapi_extra=json_body(SendRequest),
    responses=responses_with(200, DryRunResponse, 400, 401, 403, 413, 429, 500, 503),
)
async def dry_run_email(request: Request) -> Response:
    caller = await caller_of(request)
    reader: BodyReader = request.app.state.reader
    reader.check_headers(request.scope)
    headers = dict(request.scope["headers"])
    async with reader.in_progress.request(caller.account_id, headers) as taken:
        body = await reader.read(request.receive, request=taken)
        await taken.begin_work(body)
        if len(body) <= limits.THREAD_BODY_BYTES_MIN:
            return await _dry_run_response(request, caller, draft_of(body))
        draft = await in_turn(caller.account_id, partial(draft_of, body))
        return await _dry_run_response(request, caller, draft)


async def _dry_run_response(request: Request, caller: Caller, draft: Draft) -> Response:
    trial = await services_of(request).dry_run.dry_run(caller, draft)
    if trial.mime is not None and len(trial.mime) > limits.THREAD_BODY_BYTES_MIN:
        return await asyncio.to_thread(lambda: json_response(request, _trial(trial)))
    return json_response(request, _trial(trial))


def _trial(trial: DryRunReport) -> dict[str, Any]:
    refusal = trial.refusal
    return {
        "would_accept": refusal is None,
        "refusal": None if refusal is None else {"code": refusal.code.value, "error": refusal.text},
        "mime": None if trial.mime is None else trial.mime.decode("utf-8", "replace"),
        "size_bytes": None if trial.mime is None else len(trial.mime),
        "subject": trial.subject,
        "template": trial.template,
        "recipients": [_addressee(addressee) for addressee in trial.recipients],
        "credits": {"needed": trial.credits_needed, "available": trial.credits_available},
        "domain": _domain(trial.domain),
        "warnings": trial.warnings,
    }


def _addressee(addressee: DryRunRecipient) -> dict[str, Any]:
    return {
        "email": addressee.email,
        "field": addressee.field,
        "suppressed": addressee.suppressed,
        "lane": addressee.lane,
        "simulator": addressee.is_simulated,
    }


def _domain(domain: SenderDomain) -> dict[str, Any]:
    return {
        "name": domain.name,
        "registered": domain.is_registered,
        "verified": domain.is_verified,
        "dkim_selectors": domain.selectors,
        "dkim_aligned": domain.is_dkim_aligned,
        "return_path": domain.return_path,
        "spf_aligned": domain.is_spf_aligned,
    }
