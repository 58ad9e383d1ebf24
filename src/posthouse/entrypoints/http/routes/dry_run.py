"""Test mail to oneself, and dry runs."""

import asyncio
from functools import partial
from typing import Annotated, Final

from fastapi import Request
from pydantic import Field
from pydantic.config import JsonDict
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.openapi import json_body
from posthouse.entrypoints.http.operation import Operations, model_response
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.http.route_context import json_response
from posthouse.entrypoints.http.routes.domains import MaySend
from posthouse.entrypoints.http.send_email import SendResponse, content_of, headers_of, idempotency_key, peer_of
from posthouse.entrypoints.http.send_request import SendRequest, canonical, draft_of
from posthouse.entrypoints.http.shapes import (
    AvailableCredits,
    ErrorText,
    RequestModel,
    Response,
    Shown,
    TemplateAlias,
    described,
    examples,
    read_from,
)
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.dry_run import DryRun, DryRunReport
from posthouse.flows.accept.intake import Intake
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.flows.shared.principal import Caller, Member
from posthouse.rules import limits
from posthouse.rules.credential import Role, Scope
from posthouse.rules.draft import Draft
from posthouse.rules.message import Source
from posthouse.rules.refusal import Code
from posthouse.rules.suppression import SuppressionReason

router = Operations("Email", Scope.SEND)

TEST_BODY_BYTES_MAX: Final = limits.THREAD_BODY_BYTES_MIN
# Makes the fingerprint different from that of POST /emails with the same key.
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

_DRY_RUN: Final[JsonDict] = {
    "would_accept": False,
    "refusal": {"code": "insufficient_credits", "error": "This message needs 1 credits, 0 are available: add credits."},
    "mime": 'From: "Acme" <hello@example.com>\r\n…',
    "size_bytes": 612,
    "subject": "Welcome",
    "template": None,
    "recipients": [
        {
            "email": "ada@example.net",
            "field": "to",
            "suppressed": None,
            "lane": "google",
            "simulator": False,
        }
    ],
    "credits": {"needed": 1, "available": 0},
    "domain": {
        "name": "example.com",
        "registered": True,
        "verified": True,
        "dkim_selectors": ["ph1", "pe1"],
        "dkim_aligned": True,
        "return_path": "bounce.posthouse.example",
        "spf_aligned": False,
    },
    "warnings": ["It has no text part: some readers show none of its words, and filters like it less. Give `text`."],
}
_SENT: Final[JsonDict] = {
    "id": "em_01kjm3v0e8f7t9y2w5x6z1b400",
    "status": "queued",
    "source": "test",
    "from": "test@example.com",
    "to": ["owner@example.com"],
    "cc": [],
    "bcc": [],
    "subject": "A test email",
    "billing_status": "reserved",
    "recipient_count": 1,
    "credits_reserved": 1,
    "headers": {},
    "tags": [],
    "attachments": [],
}


class TestEmailRequest(RequestModel):
    model_config = examples({}, {"from": "Acme <hello@example.com>"})

    sender: Annotated[
        str | None,
        Field(
            alias="from",
            description="An address of a verified domain of the account; by default `test@` its first domain.",
        ),
    ] = None
    subject: Annotated[
        str | None, described("A built-in subject by default.", maxLength=limits.SUBJECT_CHARACTERS_MAX)
    ] = None
    text: Annotated[str | None, described("A built-in text unless `text` or `html` is given.")] = None
    html: Annotated[str | None, described("HTML body.")] = None


class TestEmailResponse(SendResponse):
    model_config = examples(_SENT)

    source: Annotated[str, Field(json_schema_extra={"const": "test"})]


class DryRunRefusal(Shown):
    code: Code
    error: Annotated[ErrorText, read_from("text")]


class DryRunRecipient(Shown):
    email: str
    field: Annotated[str, Field(json_schema_extra={"enum": ["to", "cc", "bcc"]})]
    suppressed: Annotated[SuppressionReason | None, described("Why the address is suppressed; null if it is not.")]
    lane: Annotated[
        str | None,
        described("The mailbox provider, or the domain itself; null if DNS returned no mail server in time."),
    ]
    simulator: Annotated[
        bool,
        read_from("is_simulated"),
        described("Whether delivery is only simulated, because of the address's domain."),
    ]


class DryRunCredits(Shown):
    needed: Annotated[int, read_from("credits_needed"), described("One for each recipient, 0 with a test key.")]
    available: Annotated[AvailableCredits, read_from("credits_available")]


class DryRunDomain(Shown):
    name: Annotated[str, described("The domain of `from`.")]
    registered: Annotated[bool, read_from("is_registered"), described("Whether the account has added it.")]
    verified: Annotated[MaySend, read_from("is_verified")]
    dkim_selectors: Annotated[
        list[str], read_from("selectors"), described("The selectors of the keys that would sign.")
    ]
    dkim_aligned: Annotated[bool, read_from("is_dkim_aligned"), described("Whether the signature satisfies DMARC.")]
    return_path: Annotated[str, described("The domain that receives bounces and whose SPF is checked.")]
    spf_aligned: Annotated[
        bool, read_from("is_spf_aligned"), described("Whether SPF satisfies DMARC too; the signature is enough.")
    ]


class DryRunResponse(Response):
    model_config = examples(_DRY_RUN)

    would_accept: Annotated[bool, described("Whether it would be accepted now; otherwise see `refusal`.")]
    refusal: Annotated[DryRunRefusal | None, described("The first refusal that sending would return.")]
    mime: Annotated[
        str | None,
        described(
            "The message as it would be stored; trace fields, unsubscribe links and the DKIM signature are added at "
            "delivery. Null if it can't be composed."
        ),
    ]
    size_bytes: Annotated[int | None, described("The length of `mime`.")]
    subject: Annotated[str | None, described("With its variables filled in; null if that fails.")]
    template: TemplateAlias
    recipients: list[DryRunRecipient]
    credits: DryRunCredits
    domain: DryRunDomain
    warnings: Annotated[list[str], described("What is allowed but should be changed; for people.")]


@router.post(
    "/v1/test-email",
    Role.MEMBER,
    stores=True,
    status=202,
    errors=(402, 409),
    body_bytes_max=TEST_BODY_BYTES_MAX,
    content=TestEmailResponse,
    extra=_KEY,
)
async def send_test_email(
    member: Member, body: TestEmailRequest, request: Request, intake: Intake, admission: Admission, dry_run: DryRun
) -> HttpResponse:
    """Send a message to your own address, delivered and charged like any other"""
    check_given_once(request.scope, b"idempotency-key")
    headers = dict(request.scope["headers"])
    key = idempotency_key(headers) if b"idempotency-key" in headers else None
    principal = await admission.sender(request.headers.get("authorization"), peer_of(request.scope))
    request.scope[ACCOUNT_ID] = principal.account_id
    draft = await dry_run.test_draft(member, body.sender, body.subject, body.text, body.html)
    # Equal requests from two members are two messages.
    content = canonical(body.model_dump(by_alias=True, exclude_unset=True))
    body_hash = intake.fingerprint(_TEST_EMAIL + member.user_id.bytes + content)
    if key is None:
        key = await dry_run.click_key(principal, member, body_hash)
    request_id = responses.request_id_of(request.scope)
    accepted = await intake.accept(principal, key, draft, body_hash, request_id, Source.TEST)
    sent = content_of(draft, accepted, responses.request_id_text(request.scope), Source.TEST)
    response = json_response(request, sent, 202)
    response.headers.update(headers_of(accepted))
    return response


@router.post("/v1/emails/dry-run", Role.MEMBER, errors=(400, 413), content=DryRunResponse, extra=json_body(SendRequest))
async def dry_run_email(caller: Caller, request: Request, dry_run: DryRun) -> HttpResponse:
    """Check a message without sending it

    Takes the body of POST /emails. An invalid body is refused in the same way. A refusal because of the account, its
    domain or its credits is returned in `refusal`. Nothing is reserved, counted or stored.
    """
    reader: BodyReader = request.app.state.reader
    reader.check_headers(request.scope)
    headers = dict(request.scope["headers"])
    async with reader.in_progress.request(caller.account_id, headers) as taken:
        body = await reader.read(request.receive, request=taken)
        await taken.begin_work(body)
        if len(body) <= limits.THREAD_BODY_BYTES_MIN:
            return await _dry_run_response(request, dry_run, caller, draft_of(body))
        draft = await run_in_mail_process(caller.account_id, partial(draft_of, body))
        return await _dry_run_response(request, dry_run, caller, draft)


async def _dry_run_response(request: Request, dry_run: DryRun, caller: Caller, draft: Draft) -> HttpResponse:
    report = await dry_run.dry_run(caller, draft)
    if report.mime is not None and len(report.mime) > limits.THREAD_BODY_BYTES_MIN:
        return await asyncio.to_thread(lambda: model_response(request, _dry_run(report)))
    return model_response(request, _dry_run(report))


def _dry_run(report: DryRunReport) -> DryRunResponse:
    mime = report.mime
    return DryRunResponse.of(
        report,
        would_accept=report.refusal is None,
        mime=None if mime is None else mime.decode("utf-8", "replace"),
        size_bytes=None if mime is None else len(mime),
        credits=DryRunCredits.of(report),
    )
