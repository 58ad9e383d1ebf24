"""The list of messages, and the search in it."""

from dataclasses import fields
from functools import lru_cache, partial
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.datastructures import QueryParams
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.operation import Operations
from posthouse.entrypoints.http.route_context import (
    NAMED,
    PAGE_DEFAULT,
    PAGE_MAX,
    json_response,
    page_size,
)
from posthouse.entrypoints.http.shapes import (
    FromAddress,
    RecipientCount,
    Response,
    TemplateAlias,
    Timestamp,
    described,
    examples,
)
from posthouse.flows.account.exports import Exports
from posthouse.flows.account.message_search import MessageListRow, MessageSearch
from posthouse.flows.shared.principal import Caller
from posthouse.rules import ids
from posthouse.rules.credential import Role, Scope
from posthouse.rules.ids import CredentialId
from posthouse.rules.message import FORGET, BillingStatus, MessageState, MessageStatus, Source, read_metadata
from posthouse.rules.search import WORD_CHARACTERS_MIN, WORDS_ASKED_MAX, SearchFilters

router = Operations("Messages", Scope.MESSAGES)

CREDENTIAL_IDS_CACHED_MAX: Final = 1_000

_DESCRIPTION: Final = """\
Newest first. A message must match all given filters. The search does a bounded amount of work per page, so a page
with filters may contain fewer messages than `limit`, even none, and not be the last: continue until `next_cursor` is
null. `status` finds a change of status up to a minute later."""


def _parameter(name: str, text: str, example: str | None = None, **schema: Any) -> dict[str, Any]:
    declared = {"name": name, "in": "query", "required": False, "description": text}
    shown = {} if example is None else {"example": example}
    return {**declared, "schema": {"type": "string", **schema}, **shown}


# Declared here and read in the route: FastAPI's own parsing takes longer than the rest of the route.
_PARAMETERS: Final = [
    _parameter("status", "Only of this status.", enum=list(MessageStatus)),
    _parameter(
        "state",
        "Only waiting for their `send_at` (`scheduled`), or only those that failed because all recipients bounced, "
        "were suppressed or were cancelled.",
        enum=list(MessageState),
    ),
    _parameter("recipient", "Only to this address, in `to`, `cc` or `bcc`.", "ada@example.net"),
    _parameter("sender", "Only from this address.", "hello@example.com"),
    _parameter(
        "subject",
        f"1 to {WORDS_ASKED_MAX} whole words, all of which are in the subject, in any order and case. A word has "
        f"{WORD_CHARACTERS_MIN} characters or more.",
        "order 1023",
    ),
    _parameter("tag", "Only with this tag.", "shipping"),
    _parameter("template", "Only those made from the template with this alias.", "order-shipped"),
    _parameter("source", "Only those submitted in this way.", enum=list(Source)),
    _parameter("credential_id", "Only those sent with this SMTP credential or one of its API keys."),
    _parameter("after", "Only those accepted at this time or after it.", "2026-11-14T09:30:00Z", format="date-time"),
    _parameter("before", "Only those accepted before this time.", "2026-11-15T09:30:00Z", format="date-time"),
    _parameter("request_id", "Only the messages that this request sent.", "rq_01k6wq3v5e7m8x9c0b2d4f6h81"),
    _parameter(
        f"metadata.{NAMED}",
        "Only with this pair of metadata, such as `metadata.order=1001`; several may be given.",
    ),
    _parameter("limit", "1 to 100.", type="integer", minimum=1, maximum=PAGE_MAX, default=PAGE_DEFAULT),
    _parameter("cursor", "`next_cursor` of the previous page, which had the same filters."),
]
_METADATA: Final = "metadata."
_FILTERS: Final = tuple(field.name for field in fields(SearchFilters) if field.name != "metadata")


_EXAMPLE: Final[dict[str, Any]] = {
    "id": "em_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "delivered",
    "state": "delivered",
    "source": "api",
    "from": "Acme <hello@example.com>",
    "to": ["ada@example.net"],
    "recipient_count": 1,
    "subject": "Your order 1023 has shipped",
    "tags": ["shipping"],
    "template": "order-shipped",
    "credential_id": "cr_01k9xw2v8r5h3m7q4z6t8y0abc",
    "billing_status": "settled",
    "created_at": "2026-11-15T09:30:00.000Z",
}


class ListedMessage(BaseModel):
    model_config = examples(_EXAMPLE)

    id: str
    status: MessageStatus
    state: Annotated[
        MessageStatus | MessageState,
        described(
            "The status, or more exactly what holds for a scheduled message, or for all recipients of a failed one."
        ),
    ]
    source: Source
    sender: FromAddress
    to: Annotated[list[str], described("The first three recipients, including `cc` and `bcc`.")]
    recipient_count: RecipientCount
    subject: str | None = Field(default=None, description="Absent if the message was sent with `content`: `forget`.")
    tags: list[str]
    template: TemplateAlias
    credential_id: Annotated[str, described("The SMTP credential that sent it, or the credential of its API key.")]
    billing_status: BillingStatus
    created_at: Timestamp
    metadata: dict[str, str] | None = Field(default=None, description="Absent if none was given.")
    content: str | None = Field(default=None, description="`forget` if the message was sent with it; otherwise absent.")


class MessageListResponse(Response):
    model_config = examples({"messages": [_EXAMPLE], "next_cursor": "AZOoXC9YfxyKtJQAAAAAAEKp2Yk0Jg"})

    messages: Annotated[list[ListedMessage], described("Newest first.")]
    next_cursor: Annotated[
        str | None,
        described(
            "Pass it as `cursor`, with the same filters, for the next page; null on the last. With filters a page may "
            "contain fewer messages than `limit`, even none: continue until it is null."
        ),
    ]


@router.get(
    "/v1/messages",
    Role.VIEWER,
    content=MessageListResponse,
    extra={"description": _DESCRIPTION, "parameters": _PARAMETERS},
)
async def list_messages(caller: Caller, request: Request, message_search: MessageSearch) -> HttpResponse:
    """The account's messages, newest first, with optional filters"""
    given = request.query_params
    filters = _filters(given)
    limit = page_size(given.get("limit", str(PAGE_DEFAULT)))
    page = await message_search.page(caller.account_id, filters, limit, given.get("cursor"))
    # No models: they would take longer than the rest of the operation.
    content = {"messages": [_listed(item) for item in page.items], "next_cursor": page.next_cursor}
    return json_response(request, content)


@router.get(
    "/v1/messages/export",
    Role.VIEWER,
    read_action="messages.exported",
    errors=(429,),
    content=CSV_TYPE,
    extra={
        "description": EXPORT_DESCRIPTION,
        "parameters": [parameter for parameter in _PARAMETERS if parameter["name"] != "limit"],
    },
)
async def export_messages(
    caller: Caller, request: Request, exports: Exports, message_search: MessageSearch
) -> HttpResponse:
    """The account's messages as a CSV file, newest first, with the same filters as the list"""
    given = request.query_params
    read = partial(message_search.page, caller.account_id, _filters(given))
    return CsvExport(exports, caller.account_id, _FILE, read, given.get("cursor"))


def _filters(given: QueryParams) -> SearchFilters:
    pairs = [(name[len(_METADATA) :], value) for name, value in given.multi_items() if name.startswith(_METADATA)]
    filters: dict[str, Any] = {name: given.get(name) for name in _FILTERS}
    return SearchFilters(**filters, metadata=tuple(pairs))


@lru_cache(CREDENTIAL_IDS_CACHED_MAX)
def _credential(credential_id: CredentialId) -> str:
    return ids.text(ids.CREDENTIAL, credential_id)


def _listed(message: MessageListRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.MESSAGE, message.id),
        "status": message.status,
        "state": message.state,
        "source": message.source,
        "from": message.sender,
        "to": message.recipients,
        "recipient_count": message.recipient_count,
        **({} if message.forgets_content else {"subject": message.subject}),
        "tags": message.tags or (),
        "template": message.template,
        "credential_id": _credential(message.credential_id),
        "billing_status": message.billing_status,
        # PostgreSQL's times are in UTC already.
        "created_at": f"{message.created_at.isoformat(timespec='milliseconds')[:-6]}Z",
        **({} if message.metadata is None else {"metadata": read_metadata(message.metadata)}),
        **({"content": FORGET} if message.forgets_content else {}),
    }


def _cells(message: MessageListRow) -> dict[str, Any]:
    joined = {"subject": message.subject, "to": ", ".join(message.recipients), "tags": ", ".join(message.tags or ())}
    return {**_listed(message), **joined}


_FILE: Final[CsvFile[MessageListRow]] = CsvFile(
    "messages.csv",
    (
        "id", "created_at", "status", "source", "from", "to", "recipient_count", "subject", "tags", "template",
        "credential_id", "billing_status",
    ),
    _cells,
)  # fmt: skip
