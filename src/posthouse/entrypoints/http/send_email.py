"""POST /emails, without the router: headers, body, draft, intake, 202."""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from posthouse import crash, metrics, traces
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID, MESSAGE
from posthouse.entrypoints.http.request_body import BodyReader, Disconnected
from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.http.send_request import read_draft
from posthouse.entrypoints.http.shapes import (
    CreditsReserved,
    FromAddress,
    RecipientCount,
    Response,
    Timestamp,
    absent,
    described,
    examples,
)
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.shared.large_mail import run_in_mail_process
from posthouse.mail.mime import Attachment
from posthouse.rules import ids, limits
from posthouse.rules.draft import Draft
from posthouse.rules.message import FORGET, BillingStatus, MessageStatus, Source
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.traces import Span, Tracer

REPLAYED: Final = "Idempotent-Replayed"
ABSENT_IF_FORGOTTEN: Final = "Absent if the message was sent with `content`: `forget`."
CONTENT_DESCRIPTION: Final = "`forget` if the message was sent with it; otherwise absent."

Result = TypeVar("Result")


# The models only document what `content_of` returns.


class AttachmentMetadata(BaseModel):
    filename: str
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: str | None = absent("Absent if none was given.")


class SendResponse(Response):
    model_config = examples(
        {
            "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
            "status": "queued",
            "source": "api",
            "from": "Acme <hello@example.com>",
            "to": ["ada@example.net"],
            "cc": [],
            "bcc": [],
            "subject": "Welcome",
            "billing_status": "reserved",
            "recipient_count": 1,
            "credits_reserved": 1,
            "headers": {},
            "tags": [],
            "attachments": [],
        }
    )

    id: str
    status: Annotated[str, Field(json_schema_extra={"const": "queued"})]
    source: Annotated[str, Field(json_schema_extra={"const": "api"})]
    sender: FromAddress
    to: list[str]
    cc: list[str]
    bcc: list[str]
    reply_to: str | None = absent("Absent if none was given.")
    subject: str | None = absent(ABSENT_IF_FORGOTTEN)
    billing_status: BillingStatus
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved
    headers: dict[str, str] | None = absent(ABSENT_IF_FORGOTTEN)
    tags: list[str]
    attachments: list[AttachmentMetadata]
    send_at: Timestamp | None = absent("Absent if none was given.")
    content: str | None = absent(CONTENT_DESCRIPTION)


class SendEndpoint:
    """An ASGI application, to be opened before its first request."""

    _admission: Admission
    _intake: Intake
    _tracer: Tracer | None

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    def open(self, admission: Admission, intake: Intake, tracer: Tracer | None) -> None:
        self._admission = admission
        self._intake = intake
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        tracer = self._tracer
        span = None if tracer is None else tracer.begin_request("POST /emails", traceparent_of(scope))
        if span is None:
            await self._accept(scope, receive, None)
        else:
            await traced(span, scope, self._accept(scope, receive, span))

    async def _accept(self, scope: Scope, receive: Receive, span: Span | None) -> None:
        # Before any work is done for the request: most requests of an overload are refused.
        self._reader.in_progress.work.check_wait()
        headers = dict(scope["headers"])
        principal = await self._admission.sender(authorization_of(headers), peer_of(scope))
        scope[ACCOUNT_ID] = principal.account_id
        crash.point("accept.admitted")
        if scope["query_string"]:
            raise invalid("POST /emails takes no query parameters: put everything into the body.")
        self._reader.check_headers(scope)
        check_given_once(scope, b"idempotency-key")
        key = idempotency_key(headers)
        request_id = responses.request_id_of(scope)
        async with self._reader.in_progress.request(principal.account_id, headers) as request:
            body = await self._reader.read(receive, request=request, is_here=responses.IS_BODY_HERE in scope)
            crash.point("accept.read")
            await request.begin_work(body)
            if len(body) > limits.THREAD_BODY_BYTES_MIN:
                read = partial(read_draft, body, self._intake.fingerprint)
                draft, body_hash = await run_in_mail_process(principal.account_id, read)
            else:
                draft, body_hash = read_draft(body, self._intake.fingerprint)
            accepted = await self._intake.accept(principal, key, draft, body_hash, request_id, span=span)
        crash.point("accept.before_answer")
        metrics.ACCEPTS.count("http", "replayed" if accepted.is_replay else "accepted")
        if span is not None:
            span.set_attributes(
                {traces.RECIPIENTS: accepted.recipient_count, traces.IS_REPLAY: accepted.is_replay or None}
            )
        content = content_of(draft, accepted, responses.request_id_text(scope))
        scope[MESSAGE] = content["id"]
        await responses.send_json(scope, 202, content, headers_of(accepted))
        crash.point("accept.answered")


async def traced(span: Span, scope: Scope, accept: Awaitable[Result]) -> Result:
    """Count the result of a request that sends mail; its span ends with the code of the response."""
    code = Code.INTERNAL_ERROR.value
    try:
        result = await accept
        code = "accepted"
        return result
    except Disconnected:
        code = "disconnected"
        raise
    except Refusal as refusal:
        code = refusal.code.value
        raise
    finally:
        account_id = scope.get(ACCOUNT_ID)
        span.end(
            {
                traces.REQUEST: responses.request_id_text(scope),
                traces.ACCOUNT: None if account_id is None else ids.text(ids.ACCOUNT, account_id),
                traces.MESSAGE: scope.get(MESSAGE),
                traces.CODE: code,
            },
            is_error=code != "accepted",
        )


def traceparent_of(scope: Scope) -> bytes | None:
    """The header's value; None if it is given more than once."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    return given[0] if len(given) == 1 else None


def authorization_of(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"authorization")
    return None if given is None else given.decode("latin-1")


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    key = headers.get(b"idempotency-key", b"").decode("latin-1").strip()
    if not 1 <= len(key) <= limits.IDEMPOTENCY_KEY_CHARACTERS_MAX:
        raise invalid(
            f"The header Idempotency-Key is required, with 1 to {limits.IDEMPOTENCY_KEY_CHARACTERS_MAX} "
            "characters: make a new one for each message, and repeat it when you retry."
        )
    return key


def headers_of(accepted: AcceptedMessage) -> Mapping[str, str]:
    return {**accepted.rate_headers, REPLAYED: "true"} if accepted.is_replay else accepted.rate_headers


def content_of(draft: Draft, accepted: AcceptedMessage, request_id: str, source: Source = Source.API) -> dict[str, Any]:
    echo = draft.request_fields
    content: dict[str, Any] = {
        "id": ids.text(ids.MESSAGE, accepted.message_id),
        "status": str(MessageStatus.QUEUED),
        "source": str(source),
        "request_id": request_id,
        "from": echo.sender,
        "to": echo.to,
        "cc": echo.cc,
        "bcc": echo.bcc,
        "subject": accepted.subject,
        "billing_status": str(BillingStatus.RESERVED),
        "recipient_count": accepted.recipient_count,
        "credits_reserved": accepted.credits_reserved,
        "headers": dict(echo.headers),
        "tags": draft.tags,
        "attachments": [_metadata(attachment) for attachment in draft.attachments],
    }
    if echo.reply_to is not None:
        content["reply_to"] = echo.reply_to
    if draft.send_at is not None:
        content["send_at"] = responses.timestamp(draft.send_at)
    if draft.forgets_content:
        del content["subject"], content["headers"]
        content["content"] = FORGET
    return content


def _metadata(attachment: Attachment) -> dict[str, str | int]:
    metadata: dict[str, str | int] = {
        "filename": attachment.filename,
        "content_type": attachment.content_type,
        "size": len(attachment.content),
    }
    if attachment.content_id is not None:
        metadata["content_id"] = attachment.content_id
    return metadata
