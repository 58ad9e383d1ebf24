"""The operator's operations of messages: find one of any account, see why it waits, read it; and of postmaster mail."""

import asyncio
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query, Request
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.operation import Operations, Operator, model_response
from posthouse.entrypoints.http.routes.message_detail import (
    ATTEMPT_EXAMPLE,
    Attempt,
    MessageContent,
    MessageContentResponse,
    shown_attempt,
)
from posthouse.entrypoints.http.shapes import (
    DeletedResponse,
    FromAddress,
    OptionalTimestamp,
    RecipientCount,
    Response,
    Shown,
    SuspendedReason,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.message_lookup import CONTENT_READ, MessageLookup, explained
from posthouse.flows.operate.monitor import Monitor, RecipientTimeline, StoredLimitChange, Timeline
from posthouse.rules import ids
from posthouse.rules.explanation import explain
from posthouse.rules.message import MessageStatus, RecipientStatus, Source
from posthouse.rules.refusal import Code, Refusal

router = Operations("Operator")

MessageId = Annotated[str, Path(alias="id", description="The message's id, of any account.")]
Quoted = Annotated[
    str,
    Query(
        description="A message's id, a text that contains one, as a customer quotes it; or a whole address.",
        examples=["250 2.0.0 queued as em_01k6wq3v5e7m8x9c0b2d4f6h80"],
    ),
]

BYTES_SHOWN_MAX: Final = 256 * 1024

MailId = Annotated[str, Path(alias="id", description="The message's id.")]


_GREYLISTED: Final = explain("deferred", 451, "4.7.1 Greylisted, try again in five minutes")
_EXPLAINED: Final[dict[str, Any]] = {
    "email": "ada@example.net",
    "status": "deferred",
    "now": "greylisted by mx1.example.net; next try at 2026-11-15 09:35:04 UTC",
    "reason": _GREYLISTED.reason.value,
    "cause": _GREYLISTED.cause,
    "why": _GREYLISTED.headline,
    "lane": None,
    "what_to_do": _GREYLISTED.what_to_do,
    "operator": None,
    "next_at": "2026-11-15T09:35:04.000Z",
    "final_at": None,
    "attempts": [ATTEMPT_EXAMPLE],
}
_OF_ACCOUNT: Final[dict[str, Any]] = {
    "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    "account_id": "ac_01k6wq3v5e7m8x9c0b2d4f6h80",
    "account": "acme",
    "status": "queued",
    "source": "api",
    "from": "Acme <hello@example.com>",
    "created_at": "2026-11-15T09:30:00.000Z",
}


class FoundMessage(Shown):
    model_config = examples({**_OF_ACCOUNT, "to": ["ada@example.net"], "recipient_count": 1})

    id: Annotated[ids.MessageId, id_text(ids.MESSAGE)]
    account_id: Annotated[ids.AccountId, id_text(ids.ACCOUNT)]
    account: Annotated[str, described("The account's name.")]
    status: MessageStatus
    source: Source
    sender: FromAddress
    to: Annotated[
        list[str], read_from("recipients"), described("The first three recipients, including `cc` and `bcc`.")
    ]
    recipient_count: RecipientCount
    created_at: Timestamp


class FoundMessages(Response):
    messages: Annotated[list[FoundMessage], described("The newest first, at most 50.")]
    is_more: Annotated[bool, described("Whether there are older ones within the 7 days.")]


class ExplainedRecipient(Shown):
    model_config = examples(_EXPLAINED)

    email: str
    status: RecipientStatus
    now: Annotated[str | None, described("What it waits for, in a few words; null once its result is final.")]
    reason: Annotated[str, described("A stable name, for programs.")]
    cause: Annotated[str | None, described("Who causes it; null if nothing is wrong.")]
    why: Annotated[str, described("What happened, in a sentence.")]
    lane: Annotated[str | None, described("A description of the limit change that stops its lane; null if none does.")]
    what_to_do: Annotated[str, described("What the sender can do.")]
    operator: Annotated[str | None, described("What an operator can do.")]
    next_at: OptionalTimestamp
    final_at: OptionalTimestamp
    attempts: Annotated[list[Attempt], described("Oldest first.")]


class ExplainedMessage(Response):
    model_config = examples(
        {
            **_OF_ACCOUNT,
            "suspended_reason": None,
            "accepted_request_id": "rq_01k6wq3v5e7m8x9c0b2d4f6h80",
            "recipients": [_EXPLAINED],
            "is_shortened": False,
        }
    )

    id: Annotated[ids.MessageId, id_text(ids.MESSAGE)]
    account_id: Annotated[ids.AccountId, id_text(ids.ACCOUNT)]
    account: Annotated[str, read_from("account_name"), described("The account's name.")]
    suspended_reason: SuspendedReason
    status: MessageStatus
    source: Source
    sender: FromAddress
    created_at: Timestamp
    accepted_request_id: Annotated[
        ids.RequestId,
        id_text(ids.REQUEST),
        read_from("request_id"),
        described("The request or SMTP transaction that submitted it."),
    ]
    recipients: list[ExplainedRecipient]
    is_shortened: Annotated[bool, described("Whether only the latest 2,000 attempts are listed.")]


@router.get("/v1/operator/messages")
async def operator_find_messages(_: Operator, message_lookup: MessageLookup, q: Quoted = "") -> FoundMessages:
    """Find a message of any account by its id, or mail of the last 7 days by an address"""
    return FoundMessages.of(await message_lookup.find(q))


@router.get("/v1/operator/messages/{id}")
async def operator_get_message(_: Operator, monitor: Monitor, message_id: MessageId) -> ExplainedMessage:
    """Why a message's recipients wait, or how they ended"""
    timeline = await monitor.timeline(message_id)
    limit_changes = await monitor.limit_changes(timeline)
    recipients = [_recipient(timeline, each, limit_changes.get(each.position)) for each in timeline.recipients]
    return ExplainedMessage.of(timeline, recipients=recipients)


@router.get("/v1/operator/messages/{id}/content", content=MessageContentResponse)
async def operator_get_message_content(
    _: Operator, message_id: MessageId, message_lookup: MessageLookup, message_detail: MessageDetail, request: Request
) -> HttpResponse:
    """The content of a message; the account's log says that an operator read it"""
    account_id = await message_lookup.account_of(message_id)
    content = await message_detail.content(account_id, message_id)
    await message_lookup.note_read(account_id, CONTENT_READ, message_id)
    return await asyncio.to_thread(model_response, request, MessageContentResponse(content=MessageContent.of(content)))


def _recipient(
    timeline: Timeline, recipient: RecipientTimeline, limit_change: StoredLimitChange | None
) -> ExplainedRecipient:
    return ExplainedRecipient.of(
        explained(timeline, recipient, limit_change),
        next_at=None if recipient.waiting is None else recipient.waiting.next_at,
        final_at=recipient.final_at,
        attempts=[shown_attempt(recipient, attempt) for attempt in recipient.attempts],
    )


class PostmasterMessage(Shown):
    model_config = examples(
        {
            "id": "in_01k6wq3v5e7m8x9c0b2d4f6h80",
            "at": "2026-11-15T09:30:00.000Z",
            "recipient": "abuse@mail.example.com",
            "sender": "grace@example.net",
            "peer": "192.0.2.7",
            "subject": "Unwanted mail",
            "bytes": 2310,
        }
    )

    id: Annotated[UUID, id_text(ids.POSTMASTER_MESSAGE)]
    at: Timestamp
    recipient: str
    sender: Annotated[str, described("The envelope sender; empty for a report.")]
    peer: Annotated[str, described("The server from which it came.")]
    subject: str
    bytes: Annotated[int, read_from("mime_bytes")]


class OperatorPostmasterMail(Response):
    messages: Annotated[list[PostmasterMessage], described("At most 1,000.")]


class OperatorPostmasterMessage(Response):
    message: PostmasterMessage
    source: Annotated[
        str, described("Its first 256 KiB, as received.", examples=["Subject: Unwanted mail\r\n\r\nStop."])
    ]
    is_shortened: Annotated[bool, described("Whether it is longer than `source`.")]


@router.get("/v1/operator/postmaster-mail")
async def operator_list_postmaster_mail(_: Operator, monitor: Monitor) -> OperatorPostmasterMail:
    """Mail to postmaster@ and abuse@, newest first"""
    return OperatorPostmasterMail(messages=PostmasterMessage.of_all(await monitor.postmaster_mail()))


@router.get("/v1/operator/postmaster-mail/{id}")
async def operator_get_postmaster_mail(_: Operator, monitor: Monitor, mail_id: MailId) -> OperatorPostmasterMessage:
    """A postmaster message, as it arrived"""
    mail, mime = await monitor.postmaster_message(mail_id)
    return OperatorPostmasterMessage(
        message=PostmasterMessage.of(mail),
        source=mime[:BYTES_SHOWN_MAX].decode("utf-8", "replace"),
        is_shortened=len(mime) > BYTES_SHOWN_MAX,
    )


@router.delete("/v1/operator/postmaster-mail/{id}")
async def operator_remove_postmaster_mail(_: Operator, accounts: Accounts, mail_id: MailId) -> DeletedResponse:
    """Remove a postmaster message for good"""
    if not await accounts.forget_mail([mail_id]):
        raise Refusal(Code.NOT_FOUND, "There is no postmaster message with this id, or no longer.")
    return DeletedResponse(deleted=True)
