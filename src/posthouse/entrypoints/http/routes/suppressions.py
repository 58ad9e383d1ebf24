"""The routes of suppressions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.csv_export import CSV_TYPE, csv_lines
from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    PageSize,
    body_of,
    caller_of,
    json_response,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.entrypoints.http.schemas.suppressions import (
    SuppressionListResponse,
    SuppressionRequest,
    SuppressionResponse,
)
from posthouse.flows.account.suppressions import Import, SuppressionRow, Suppressions
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.spreadsheet import guarded
from posthouse.rules.suppression import (
    EXPORT_HEADER,
    IMPORT_BYTES_MAX,
    IMPORT_LINES_MAX,
    WHY_CHARACTERS_MAX,
    SuppressionReason,
)

router = APIRouter()

# The longest wait for the next piece of the file, and for all of it.
PIECE_SECONDS_MAX: Final = 30
IMPORT_SECONDS_MAX: Final = 3600
PROGRESS_TYPE: Final = "application/x-ndjson"
_NO_STORE: Final = {"Cache-Control": "no-store"}

_WHY: Final = {
    "parameters": [
        {
            "name": "reason",
            "in": "query",
            "required": True,
            "description": "Why the address may get mail again; it is kept in the audit log.",
            "schema": {"type": "string", "minLength": 1, "maxLength": WHY_CHARACTERS_MAX},
        }
    ]
}
_FILE: Final = {
    "requestBody": {
        "required": True,
        "description": "UTF-8. The address is in the first column, or in the column that a header line names "
        "`email`, `address` or `recipient`; a column `note` or `reason` becomes the note.",
        "content": {
            CSV_TYPE: {"schema": {"type": "string"}, "example": "email,note\r\nada@example.net,asked for no mail\r\n"}
        },
    }
}


@router.get(
    "/v1/suppressions",
    operation_id="listSuppressions",
    summary="The addresses that get no mail of the account, newest first",
    tags=["Suppressions"],
    responses=responses_with(200, SuppressionListResponse, 400, 401, 500, 503),
)
async def list_suppressions(
    request: Request,
    email: Annotated[str | None, Query(description="Only this address.")] = None,
    search: Annotated[
        str | None,
        Query(
            description="Addresses that begin with this, in alphabetical order, not together with `reason`; or, with a "
            "leading `@`, those of this domain."
        ),
    ] = None,
    reason: Annotated[
        str | None,
        Query(
            description="Only with this reason.",
            json_schema_extra={"enum": [reason.value for reason in SuppressionReason]},
        ),
    ] = None,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
) -> Response:
    caller = await caller_of(request)
    page = await services_of(request).suppression.page(
        caller.account_id, page_size(limit), cursor, email=email, search=search, reason=reason
    )
    return page_response(request, "suppressions", page, _suppression)


@router.post(
    "/v1/suppressions",
    operation_id="addSuppression",
    summary="Suppress an address; an existing suppression is not changed",
    tags=["Suppressions"],
    status_code=201,
    openapi_extra=json_body(SuppressionRequest),
    responses=responses_with(201, SuppressionResponse, 400, 401, 403, 409, 413, 429, 500, 503)
    | {200: responses_with(200, SuppressionResponse)[200]},
)
async def add_suppression(request: Request) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, SuppressionRequest)
    row, is_new = await services_of(request).suppression.add(caller.account_id, caller.actor, body.email, body.note)
    return json_response(request, {"suppression": _suppression(row)}, 201 if is_new else 200)


@router.post(
    "/v1/suppressions/import",
    operation_id="importSuppressions",
    summary="Suppress the addresses of a CSV file",
    description=f"At most {IMPORT_LINES_MAX:,} lines and {IMPORT_BYTES_MAX // 1_000_000} MB, and one import at a time. "
    "The response begins while the file is sent: a line of JSON at most once a second, "
    '`{"lines", "added", "known", "invalid"}`, and at the end a line with `"done": true` and, in `errors`, the first '
    '100 invalid lines; or `"done": false` with `error` and `code`. Addresses added by then stay, and the '
    "same file can be sent again.",
    tags=["Suppressions"],
    openapi_extra=_FILE,
    response_class=StreamingResponse,
    responses=responses_with(200, PROGRESS_TYPE, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def import_suppressions(request: Request) -> Response:
    caller = await caller_of(request)
    _check_file(request)
    suppression = services_of(request).suppression
    file_import = await suppression.begin_import(caller.account_id, caller.actor)
    return _ImportResponse(suppression, file_import, responses.request_id_text(request.scope))


@router.get(
    "/v1/suppressions/export",
    operation_id="exportSuppressions",
    summary="All suppressed addresses as a CSV file, in the order of the addresses",
    tags=["Suppressions"],
    response_class=StreamingResponse,
    responses=responses_with(200, CSV_TYPE, 401, 403, 500, 503),
)
async def export_suppressions(request: Request) -> Response:
    caller = await caller_of(request)
    batches = services_of(request).suppression.export(caller.account_id)
    # The first batch is read before the response starts, so that an unreachable PostgreSQL is still a 503.
    first: list[SuppressionRow] = await anext(batches, [])
    headers = {**_NO_STORE, "Content-Disposition": 'attachment; filename="suppressions.csv"'}
    return StreamingResponse(_file(first, batches), media_type=f"{CSV_TYPE}; charset=utf-8", headers=headers)


@router.delete(
    "/v1/suppressions/{email:path}",
    operation_id="removeSuppression",
    summary="Let an address get mail again",
    tags=["Suppressions"],
    openapi_extra=_WHY,
    responses=responses_with(200, DeletedResponse, 400, 401, 403, 404, 429, 500, 503),
)
async def remove_suppression(
    request: Request, email: Annotated[str, Path(description="The address.", examples=["ada@example.net"])]
) -> Response:
    caller = await caller_of(request)
    why = request.query_params.get("reason", "")
    await services_of(request).suppression.remove(caller.account_id, caller.actor, email, why)
    return json_response(request, {"deleted": True})


class _ImportResponse(Response):
    """Reads the file and reports its progress at the same time."""

    media_type = PROGRESS_TYPE

    def __init__(self, suppression: Suppressions, file_import: Import, request_id: str) -> None:
        super().__init__(headers=_NO_STORE)
        del self.headers["content-length"]
        self._suppression = suppression
        self._import = file_import
        self._request_id = request_id
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        file_import = self._import
        try:
            async with aclosing(self._suppression.bring_in(file_import, self._chunks(receive, send))) as progress:
                async for _ in progress:
                    await send(self._line({}))
        except Refusal as refusal:
            if not self._has_begun:
                raise
            refusal.drop_traceback()
            last: dict[str, Any] = {"done": False, "error": refusal.text, "code": refusal.code.value}
        else:
            last = {"done": True}
        errors = [{"line": line.number, "error": f"Line {line.number} {line.fault}."} for line in file_import.faults]
        await send(self._line({**last, "errors": errors, "request_id": self._request_id}, more_body=False))

    async def _chunks(self, receive: Receive, send: Send) -> AsyncIterator[bytes]:
        """The file; the response starts with its first chunk: `Expect: 100-continue` must be answered first."""
        async for chunk in _chunks(receive):
            if not self._has_begun:
                self._has_begun = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            yield chunk

    def _line(self, more: dict[str, Any], *, more_body: bool = True) -> dict[str, Any]:
        done = self._import.progress
        counts = {"lines": done.lines, "added": done.added, "known": done.known, "invalid": done.invalid}
        return {
            "type": "http.response.body",
            "body": responses.encoded({**counts, **more}) + b"\n",
            "more_body": more_body,
        }


def _check_file(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.replace('"', "").strip().lower()
    if media_type.strip().lower() != CSV_TYPE or (charset.startswith("charset=") and charset != "charset=utf-8"):
        raise invalid("The Content-Type must be text/csv, in UTF-8.")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > IMPORT_BYTES_MAX:
        raise Refusal(Code.PAYLOAD_TOO_LARGE, f"The file is larger than {IMPORT_BYTES_MAX // 1_000_000} MB: split it.")


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    ends_at = asyncio.get_running_loop().time() + IMPORT_SECONDS_MAX
    more = True
    while more:
        try:
            async with asyncio.timeout_at(min(ends_at, asyncio.get_running_loop().time() + PIECE_SECONDS_MAX)):
                event = await receive()
        except TimeoutError:
            raise invalid("The file came too slowly: send it again, faster.") from None
        if event["type"] == "http.disconnect":
            raise Disconnected
        more = event.get("more_body", False)
        yield event.get("body", b"")


async def _file(first: list[SuppressionRow], batches: AsyncIterator[list[SuppressionRow]]) -> AsyncIterator[bytes]:
    yield csv_lines([EXPORT_HEADER])
    yield csv_lines([_cells(row) for row in first])
    async for batch in batches:
        yield csv_lines([_cells(row) for row in batch])


def _cells(row: SuppressionRow) -> tuple[str, ...]:
    return (guarded(row.email), row.reason, guarded(row.note or ""), timestamp(row.at) or "")


def _suppression(row: SuppressionRow) -> dict[str, Any]:
    return {
        "email": row.email,
        "reason": row.reason,
        "note": row.note,
        "added_by": row.added_by,
        "smtp_code": row.code,
        "smtp_response": row.response,
        "at": timestamp(row.at),
    }
