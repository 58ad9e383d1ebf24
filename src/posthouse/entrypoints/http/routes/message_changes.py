"""Changes to messages.

Of waiting ones: the next attempt of one now, and the cancellation of all with a tag or metadata. Of failed ones:
resends.
"""

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path

from posthouse.entrypoints.http.operation import IdempotencyKey, Operations
from posthouse.entrypoints.http.route_context import GivenMessageId
from posthouse.entrypoints.http.shapes import (
    FinishedAt,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.message_changes import MESSAGES_MAX, MessageChanges, waiting
from posthouse.flows.account.resends import ResendRequest as GivenResend
from posthouse.flows.account.resends import Resends
from posthouse.flows.shared.principal import Caller
from posthouse.rules import ids, limits
from posthouse.rules.credential import Role, Scope
from posthouse.rules.resend import ResendStatus
from posthouse.rules.retry import REQUEST_RATE as RATE
from posthouse.rules.retry import REQUESTS_PER_MESSAGE_MAX as PER_MESSAGE_MAX
from posthouse.rules.retry import RetryAnswer
from posthouse.rules.wait_reason import WaitReason

router = Operations("Messages", Scope.MESSAGES)

_RETRY_DESCRIPTION: Final = f"""\
For deferred recipients. It counts as an attempt, and waits for its destination's limits like any other. A message can
be retried {PER_MESSAGE_MAX} times. An account may send {RATE.burst} of these requests in a burst, and one a minute
after that; a request that moves nothing doesn't count."""

_CANCEL_DESCRIPTION: Final = f"""\
Each message is cancelled as by `POST /emails/{{id}}/cancel`, or stays as it is. A request cancels up to {MESSAGES_MAX},
the newest first: pass `next_cursor` as `cursor` until it is null. Messages accepted in the meantime are not included.
With `dry_run`, the response is the same and nothing is changed."""

ResendId = Annotated[str, Path(alias="id", description="The id from `POST /v1/resends`.")]

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "rs_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "running",
    "dry_run": False,
    "since": "2026-11-15T09:30:00.000Z",
    "until": "2026-11-15T12:30:00.000Z",
    "tag": None,
    "metadata": {},
    "destination": "example.net",
    "matched": 75,
    "recipients": 75,
    "resent": 75,
    "no_body": 0,
    "excluded": 2,
    "refused": 0,
    "waiting_for": None,
    "created_at": "2026-11-15T14:00:00.000Z",
    "finished_at": None,
}


class RetryRequest(RequestModel):
    model_config = examples({}, {"recipient": "ada@example.net"})

    recipient: Annotated[
        str | None,
        described("Only this recipient; all deferred recipients if left out.", maxLength=1024),
    ] = None


class RetriedRecipient(Shown):
    id: Annotated[UUID, id_text(ids.RECIPIENT)]
    email: str
    result: Annotated[
        RetryAnswer | WaitReason,
        read_from("result", "result"),
        described(
            "`now`: the next attempt was moved. `final`, `last_attempt`, `taken`, or what it waits for: it stays."
        ),
    ]
    text: Annotated[str, read_from("result", "text"), described("The same in plain words.")]


class RetryResponse(Response):
    model_config = examples(
        {
            "recipients": [
                {
                    "id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
                    "email": "ada@example.net",
                    "result": "now",
                    "text": "due now; it is tried as soon as its destination's limits allow",
                }
            ]
        }
    )

    recipients: list[RetriedRecipient]


class CancelMessagesRequest(RequestModel):
    model_config = examples({"tag": "reminder"}, {"metadata": {"order": "1001"}, "dry_run": True})

    tag: Annotated[
        str | None, described("Messages with this tag.", minLength=1, maxLength=limits.TAG_CHARACTERS_MAX)
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        described("Messages with all of these pairs.", minProperties=1, maxProperties=limits.METADATA_MAX),
    ] = None
    dry_run: Annotated[bool, described("Only count, change nothing.")] = False
    cursor: Annotated[
        str | None, described("`next_cursor` of the previous response, with the same `tag` and `metadata`.")
    ] = None


class CancelMessagesResponse(Response):
    model_config = examples({"cancelled": 12, "tried": 1, "next_cursor": None})

    cancelled: Annotated[int, described("Messages that were cancelled: none of their recipients gets them.")]
    tried: Annotated[int, described("Messages with a recipient that was already tried; they stay as they are.")]
    next_cursor: Annotated[
        str | None,
        described("Pass it as `cursor`, until it is null; a response may cancel none and not be the last."),
    ]


@router.post(
    "/v1/messages/{id}/retry",
    Role.MEMBER,
    scopes=(Scope.MESSAGES, Scope.SEND),
    stores=True,
    errors=(409,),
    extra={"description": _RETRY_DESCRIPTION},
)
async def retry_message(
    caller: Caller, message_id: GivenMessageId, body: RetryRequest, message_changes: MessageChanges
) -> RetryResponse:
    """Try a message's deferred recipients now"""
    retried = await message_changes.retry(caller.account_id, caller.actor, message_id, body.recipient)
    return RetryResponse(recipients=RetriedRecipient.of_all(retried))


@router.post("/v1/messages/cancel", Role.MEMBER, extra={"description": _CANCEL_DESCRIPTION})
async def cancel_messages(
    caller: Caller, body: CancelMessagesRequest, message_changes: MessageChanges
) -> CancelMessagesResponse:
    """Cancel all messages with a tag or with metadata that have not been tried yet"""
    done = await message_changes.cancel_matching(
        caller, waiting(body.tag, body.metadata), body.cursor, is_dry_run=body.dry_run
    )
    return CancelMessagesResponse.of(done)


class ResendRequest(RequestModel):
    model_config = examples(
        {"since": "2026-11-15T09:30:00Z", "destination": "example.net"},
        {"message_ids": ["em_01k6wq3v5e7m8x9c0b2d4f6h80"]},
    )

    since: Annotated[
        str | None,
        described("Messages accepted at this time or after it. Required without `message_ids`.", format="date-time"),
    ] = None
    until: Annotated[
        str | None, described("Messages accepted before this time; now if left out.", format="date-time")
    ] = None
    tag: Annotated[
        str | None, described("Only those with this tag.", minLength=1, maxLength=limits.TAG_CHARACTERS_MAX)
    ] = None
    metadata: Annotated[
        dict[str, str] | None, described("Only those with all of these pairs.", maxProperties=limits.METADATA_MAX)
    ] = None
    destination: Annotated[str | None, described("Only recipients of this domain.")] = None
    message_ids: Annotated[
        list[str] | None,
        described(
            "Only these messages, without any other filter. Ids that the account doesn't have match nothing.",
            minItems=1,
            maxItems=limits.RESEND_MESSAGES_MAX,
        ),
    ] = None
    dry_run: Annotated[bool, described("Count, and send nothing.")] = False

    @property
    def given(self) -> GivenResend:
        return GivenResend(
            self.since, self.until, self.tag, self.metadata or {}, self.destination, self.dry_run, self.message_ids
        )


class Resend(Shown):
    id: Annotated[UUID, id_text(ids.RESEND)]
    status: ResendStatus
    dry_run: Annotated[bool, described("Whether it only counts."), read_from("is_dry_run")]
    since: Timestamp
    until: Timestamp
    tag: Annotated[str | None, described("Null: messages with any tags.")]
    metadata: Annotated[dict[str, str], described("Empty: messages with any pairs.")]
    destination: Annotated[str | None, described("Null: recipients of any domain.")]
    matched: Annotated[
        int, described("Messages that are sent again, or would be without `dry_run`."), read_from("counts", "matched")
    ]
    recipients: Annotated[int, described("Their recipients that get them again."), read_from("counts", "recipients")]
    resent: Annotated[int, described("New messages."), read_from("counts", "resent")]
    no_body: Annotated[
        int, described("Messages whose content is no longer stored."), read_from("counts", "without_body")
    ]
    excluded: Annotated[
        int,
        described("Recipients to which nothing is sent again: unknown, suppressed, unsubscribed and others."),
        read_from("counts", "excluded"),
    ]
    refused: Annotated[
        int,
        described("Messages that were refused because their domain is no longer verified."),
        read_from("counts", "refused"),
    ]
    waiting_for: Annotated[
        str | None, described("The code of what prevents the account from sending now, if anything does.")
    ]
    created_at: Timestamp
    finished_at: FinishedAt


class ResendResponse(Response):
    model_config = examples({"resend": _EXAMPLE})

    resend: Resend


@router.post("/v1/resends", Role.MEMBER, scopes=(Scope.MESSAGES, Scope.SEND), stores=True, status=202, errors=(409,))
async def create_resend(caller: Caller, key: IdempotencyKey, body: ResendRequest, resends: Resends) -> ResendResponse:
    """Send failed messages again

    Messages that failed, and those that bounced because of a policy, become new messages with the same content, for the
    recipients that did not get them; each at most once. Unknown, suppressed and unsubscribed addresses get nothing. The
    work continues in the background at a steady pace: `GET /v1/resends/{id}` shows its progress. With `dry_run`, it
    only counts.
    """
    return ResendResponse(resend=Resend.of(await resends.begin(caller, key, body.given)))


@router.get("/v1/resends/{id}", Role.VIEWER)
async def get_resend(caller: Caller, resend_id: ResendId, resends: Resends) -> ResendResponse:
    """The progress of a resend"""
    return ResendResponse(resend=Resend.of(await resends.resend(caller.account_id, resend_id)))


@router.post("/v1/resends/{id}/stop", Role.MEMBER)
async def stop_resend(caller: Caller, resend_id: ResendId, resends: Resends) -> ResendResponse:
    """Stop a resend; messages that were already sent again stay"""
    return ResendResponse(resend=Resend.of(await resends.stop(caller, resend_id)))
