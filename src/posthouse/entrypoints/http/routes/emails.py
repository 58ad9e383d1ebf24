"""Sending messages, their status, cancellation and rescheduling."""

from functools import partial
from typing import Annotated, Any, Final, NoReturn
from uuid import UUID

from fastapi import Request
from starlette.responses import Response as HttpResponse

from posthouse import metrics
from posthouse.entrypoints.http import openapi, responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.operation import Operations, Reader, Sender
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.http.request_limits import LARGE_WORK
from posthouse.entrypoints.http.route_context import GivenMessageId, json_response, require_declared_parameters
from posthouse.entrypoints.http.send_email import (
    ABSENT_IF_FORGOTTEN,
    CONTENT_DESCRIPTION,
    REPLAYED,
    SendResponse,
    authorization_of,
    content_of,
    idempotency_key,
    peer_of,
    traced,
    traceparent_of,
)
from posthouse.entrypoints.http.send_request import BatchRequest, SendRequest, read_batch, read_whole_batch
from posthouse.entrypoints.http.shapes import (
    REQUEST_ID_EXAMPLE,
    AttemptCount,
    CreditsReserved,
    Error,
    FromAddress,
    LastCode,
    LastResponse,
    OptionalTimestamp,
    RecipientCount,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
)
from posthouse.entrypoints.refusals import http_status
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.batch import BatchResult
from posthouse.flows.accept.intake import Intake
from posthouse.flows.account.message_changes import MessageChanges
from posthouse.flows.account.message_detail import MessageDetail, StoredMessage
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.rules import ids, limits
from posthouse.rules.credential import Scope
from posthouse.rules.ids import MessageId
from posthouse.rules.message import FORGET, BillingStatus, MessageStatus, RecipientStatus, Source
from posthouse.rules.refusal import Refusal
from posthouse.traces import Span, Tracer

router = Operations("Email", Scope.SEND)

_SEND_ERRORS: Final = (400, 401, 402, 403, 409, 413, 429)
_KEY: Final[dict[str, Any]] = {"parameters": [openapi.IDEMPOTENCY_KEY]}
_ACCEPTED: Final = {
    "responses": {
        "202": {
            "description": "Accepted and stored; delivery follows.",
            "headers": {
                **openapi.RATE_HEADERS,
                REPLAYED: {
                    "description": "`true` when the key was used before: this is the first response again.",
                    "schema": {"type": "string", "const": "true"},
                },
            },
        },
        "429": {"headers": openapi.RATE_HEADERS},
    }
}


_RECIPIENT: Final[dict[str, Any]] = {
    "id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
    "email": "ada@example.net",
    "status": "delivered",
    "billing_status": "settled",
    "attempt_count": 1,
    "last_smtp_code": 250,
    "last_smtp_response": "2.0.0 OK",
    "delivered_at": "2026-11-15T09:30:01.204Z",
    "bounced_at": None,
}

_MESSAGE: Final[dict[str, Any]] = {
    "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    "status": "delivered",
    "source": "api",
    "from": "Acme <hello@example.com>",
    "subject": "Welcome",
    "billing_status": "settled",
    "recipient_count": 1,
    "credits_reserved": 1,
    "created_at": "2026-11-15T09:30:00.000Z",
    "recipients": [_RECIPIENT],
}
_UNTRIED: Final = {"attempt_count": 0, "last_smtp_code": None, "last_smtp_response": None, "delivered_at": None}


def _scheduled(message: str, recipient: str, billing: str) -> dict[str, Any]:
    """A scheduled message with one recipient, in these states."""
    state = {"billing_status": billing}
    return {
        **_MESSAGE,
        **state,
        "status": message,
        "recipients": [{**_RECIPIENT, **_UNTRIED, **state, "status": recipient}],
        "send_at": "2026-11-16T07:00:00.000Z",
        "request_id": REQUEST_ID_EXAMPLE,
    }


class MoveRequest(RequestModel):
    model_config = examples({"send_at": "2026-11-16T07:00:00Z"})

    send_at: Annotated[str, described(f"The new time, up to {limits.SEND_AT_DAYS_MAX} days ahead.", format="date-time")]


class BatchError(Error):
    model_config = examples(
        {
            "error": "`subject` is required unless a `template` supplies it.",
            "code": "invalid_request",
            "http_status": 400,
        }
    )

    http_status: Annotated[int, described("The status with which POST /emails answers this error.")]


class BatchResponse(Response):
    results: Annotated[
        list[SendResponse | BatchError],
        described("One for each email, in the same order: the response of POST /emails, or its error."),
    ]


class Recipient(Shown):
    model_config = examples(_RECIPIENT)

    id: Annotated[UUID, id_text(ids.RECIPIENT)]
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: AttemptCount
    last_smtp_code: LastCode
    last_smtp_response: LastResponse
    delivered_at: OptionalTimestamp
    bounced_at: OptionalTimestamp


class Message(Response):
    model_config = examples(_MESSAGE)

    id: Annotated[MessageId, id_text(ids.MESSAGE)]
    status: MessageStatus
    source: Source
    sender: FromAddress
    subject: str | None = absent(ABSENT_IF_FORGOTTEN)
    billing_status: BillingStatus
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved
    created_at: Timestamp
    metadata: dict[str, str] | None = absent("Absent if none was given.")
    recipients: list[Recipient]
    send_at: Timestamp | None = absent("Absent if none was given.")
    resent_from: Annotated[MessageId, id_text(ids.MESSAGE)] | None = absent(
        "The id of the message that this one sends again, if any."
    )
    content: str | None = absent(CONTENT_DESCRIPTION)


@router.post(
    "/emails",
    scopes=(Scope.SEND,),
    status=202,
    errors=_SEND_ERRORS,
    content=SendResponse,
    extra={**openapi.json_body(SendRequest), **_KEY, **_ACCEPTED},
)
async def send_email() -> NoReturn:
    """Send a message"""
    raise AssertionError("the request middleware calls the endpoint of `send_email` directly")


@router.get("/emails/{id}", scopes=(Scope.READ,))
async def get_email(reader: Reader, message_id: GivenMessageId, message_detail: MessageDetail) -> Message:
    """The status of a message and of its recipients"""
    found = await message_detail.message(reader.account_id, message_id, reader.mode, reader.sender_domains)
    return _message(found)


@router.post("/emails/{id}/cancel", errors=(400, 409), example=_scheduled("failed", "cancelled", "released"))
async def cancel_email(sender: Sender, message_id: GivenMessageId, message_changes: MessageChanges) -> Message:
    """Cancel a message that has not been tried yet

    With 200, none of its recipients gets it, and its credits are returned. If one of them was tried or has its result,
    nothing is changed, and the response is 409.
    """
    return _message(await message_changes.cancel(sender, message_id))


@router.patch("/emails/{id}", errors=(409,), example=_scheduled("queued", "queued", "reserved"))
async def move_email(
    sender: Sender, message_id: GivenMessageId, body: MoveRequest, message_changes: MessageChanges
) -> Message:
    """Send a message at another time

    For a message that was accepted with a `send_at` and has not been tried yet; otherwise it is a 409.
    """
    return _message(await message_changes.move(sender, message_id, body.send_at))


@router.post(
    "/emails/batch",
    scopes=(Scope.SEND,),
    errors=_SEND_ERRORS,
    content=BatchResponse,
    extra={
        "description": "Each email is accepted or refused on its own, and gets its own result; with `all`, one refusal "
        f"refuses the whole request. The body is at most 16 MiB. {limits.BATCH_EMAILS_PER_REQUEST} emails count as one "
        "request for the rate limit. The same request with the same key returns the same ids, and tries the refused "
        "emails again.",
        **openapi.json_body(BatchRequest),
        **_KEY,
    },
)
async def send_email_batch(request: Request, admission: Admission, intake: Intake) -> HttpResponse:
    """Send many messages"""
    tracer: Tracer | None = request.app.state.tracer
    scope = request.scope
    span = None if tracer is None else tracer.begin_request("POST /emails/batch", traceparent_of(scope))
    return await (
        _send(request, admission, intake, None)
        if span is None
        else traced(span, scope, _send(request, admission, intake, span))
    )


async def _send(request: Request, admission: Admission, intake: Intake, span: Span | None) -> HttpResponse:
    scope = request.scope
    headers = dict(scope["headers"])
    principal = await admission.sender(authorization_of(headers), peer_of(scope))
    scope[ACCOUNT_ID] = principal.account_id
    require_declared_parameters(request)
    reader: BodyReader = request.app.state.reader
    reader.check_headers(scope)
    check_given_once(scope, b"idempotency-key")
    key = idempotency_key(headers)
    async with reader.in_progress.request(principal.account_id, headers) as in_progress:
        body = await reader.read(request.receive, request=in_progress)
        await in_progress.begin_work(body, LARGE_WORK)
        fingerprint = intake.fingerprint
        if len(body) > limits.THREAD_BODY_BYTES_MIN:
            batch = await run_in_mail_process(principal.account_id, partial(read_whole_batch, body, fingerprint))
        else:
            batch = read_batch(body, fingerprint)
        del body
        # Its parts are prepared and written in turn with those of other accounts.
        in_progress.reduce_work()
        results = await intake.accept_batch(principal, key, batch, responses.request_id_of(scope), span=span)
    request_id = responses.request_id_text(scope)
    response = json_response(request, {"results": [_result(result, request_id) for result in results]})
    accepted = [result.answer for result in results if not isinstance(result, Refusal)]
    for answer in accepted:
        response.headers.update(answer.rate_headers)
    if accepted and all(answer.is_replay for answer in accepted):
        response.headers[REPLAYED] = "true"
    return response


def _result(result: BatchResult, request_id: str) -> dict[str, Any]:
    if isinstance(result, Refusal):
        metrics.ACCEPTS.count("http", result.code.value)
        return {
            "error": result.text,
            "code": result.code.value,
            "request_id": request_id,
            "http_status": http_status(result.code),
        }
    metrics.ACCEPTS.count("http", "replayed" if result.answer.is_replay else "accepted")
    return content_of(result.draft, result.answer, request_id)


def _message(message: StoredMessage) -> Message:
    return Message.of(
        message,
        subject=None if message.forgets_content else message.subject,
        metadata=message.metadata or None,
        recipients=[
            Recipient.of(recipient, id=ids.recipient_id(message.id, recipient.position))
            for recipient in message.recipients
        ],
        content=FORGET if message.forgets_content else None,
    )
