"""The route that lists and searches messages."""

from dataclasses import fields
from functools import lru_cache, partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import (
    NAMED,
    PAGE_DEFAULT,
    PAGE_MAX,
    caller_of,
    page_response,
    page_size,
    services_of,
)
from posthouse.entrypoints.http.schemas.message_search import MessageListResponse
from posthouse.flows.account.message_search import MessageListRow
from posthouse.rules import ids, metadata
from posthouse.rules.ids import CredentialId
from posthouse.rules.kept_content import FORGET
from posthouse.rules.message import MessageStatus, Source
from posthouse.rules.search import WORD_CHARACTERS_MIN, WORDS_ASKED_MAX, SearchFilters

router = APIRouter()

CREDENTIAL_IDS_CACHED_MAX: Final = 1_000

_DESCRIPTION: Final = """\
Newest first. A message must match all given filters. The search does a bounded amount of work per page, so a page
with filters may hold fewer messages than `limit`, even none, and not be the last: continue until `next_cursor` is
null. `status` finds a change of status up to a minute later.
"""


def _parameter(name: str, text: str, example: str | None = None, **schema: Any) -> dict[str, Any]:
    declared = {"name": name, "in": "query", "required": False, "description": text}
    shown = {} if example is None else {"example": example}
    return {**declared, "schema": {"type": "string", **schema}, **shown}


# Declared here and read in the route: FastAPI's own parsing takes longer than the rest of the route.
_PARAMETERS: Final = [
    _parameter("status", "Only of this status.", enum=list(MessageStatus)),
    _parameter("recipient", "Only to this address, be it `to`, `cc` or `bcc`.", "ada@example.net"),
    _parameter("sender", "Only from this address.", "hello@example.com"),
    _parameter(
        "subject",
        f"1 to {WORDS_ASKED_MAX} whole words, all of which are in the subject, in any order and case. A word has "
        f"{WORD_CHARACTERS_MIN} characters or more.",
        "order 1023",
    ),
    _parameter("tag", "Only with this tag.", "shipping"),
    _parameter("template", "Only those from the template with this alias.", "order-shipped"),
    _parameter("source", "Only those submitted in this way.", enum=list(Source)),
    _parameter("credential_id", "Only those sent with this SMTP credential or one of its API keys."),
    _parameter("after", "Only those accepted at this time or after it.", "2026-11-14T09:30:00Z", format="date-time"),
    _parameter("before", "Only those accepted before this time.", "2026-11-15T09:30:00Z", format="date-time"),
    _parameter("request_id", "Only that which this request sent.", "rq_01k6wq3v5e7m8x9c0b2d4f6h81"),
    _parameter(
        f"metadata.{NAMED}",
        "Only with this pair of metadata, as `metadata.order=1001`; several may be given.",
    ),
    _parameter("limit", "1 to 100.", type="integer", minimum=1, maximum=PAGE_MAX, default=PAGE_DEFAULT),
    _parameter("cursor", "`next_cursor` of the page before, which had the same filters."),
]
_METADATA: Final = "metadata."
_FILTERS: Final = tuple(field.name for field in fields(SearchFilters) if field.name != "metadata")


@router.get(
    "/v1/messages",
    operation_id="listMessages",
    summary="The account's messages, newest first, filtered if you wish",
    description=_DESCRIPTION,
    tags=["Messages"],
    openapi_extra={"parameters": _PARAMETERS},
    responses=responses_with(200, MessageListResponse, 400, 401, 500, 503),
)
async def list_messages(request: Request) -> Response:
    caller = await caller_of(request)
    given = request.query_params
    filters = _filters(given)
    limit = page_size(given.get("limit", str(PAGE_DEFAULT)))
    page = await services_of(request).message_search.page(caller.account_id, filters, limit, given.get("cursor"))
    return page_response(request, "messages", page, _listed)


@router.get(
    "/v1/messages/export",
    operation_id="exportMessages",
    summary="The account's messages as a CSV file, newest first, filtered as the list is",
    description=EXPORT_DESCRIPTION,
    tags=["Messages"],
    openapi_extra={"parameters": [parameter for parameter in _PARAMETERS if parameter["name"] != "limit"]},
    response_class=Response,
    responses=responses_with(200, CSV_TYPE, 400, 401, 429, 500, 503),
)
async def export_messages(request: Request) -> Response:
    caller = await caller_of(request)
    services, given = services_of(request), request.query_params
    filters = _filters(given)
    read = partial(services.message_search.page, caller.account_id, filters)
    return CsvExport(services.exports, caller.account_id, _FILE, read, given.get("cursor"))


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
        **({} if message.metadata is None else {"metadata": metadata.read(message.metadata)}),
        **({"content": FORGET} if message.forgets_content else {}),
    }


def _cells(message: MessageListRow) -> tuple[str | int | None, ...]:
    shown = _listed(message)
    joined = {"subject": message.subject, "to": ", ".join(message.recipients), "tags": ", ".join(message.tags or ())}
    return tuple([{**shown, **joined}[name] for name in _FILE.header])


_FILE: Final[CsvFile[MessageListRow]] = CsvFile(
    "messages.csv",
    (
        "id", "created_at", "status", "source", "from", "to", "recipient_count", "subject", "tags", "template",
        "credential_id", "billing_status",
    ),
    _cells,
)  # fmt: skip
