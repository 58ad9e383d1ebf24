"""Suppressions: the addresses that get no mail from the account. Erasures: an address is removed from its tables."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query, Request
from pydantic.config import JsonDict
from starlette.responses import Response as HttpResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.csv_export import CSV_TYPE, csv_lines
from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.operation import Operations, PageSize, model_response
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.shapes import (
    DeletedResponse,
    FinishedAt,
    NextCursor,
    ReplyCode,
    ReplyText,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.erasures import ErasureRow, Erasures
from posthouse.flows.account.suppressions import Import, SuppressionRow, Suppressions
from posthouse.flows.shared.principal import Caller
from posthouse.rules import credential, ids
from posthouse.rules.credential import Role
from posthouse.rules.erasure import ErasurePhase
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.spreadsheet import guarded
from posthouse.rules.suppression import (
    EXPORT_HEADER,
    IMPORT_BYTES_MAX,
    IMPORT_LINES_MAX,
    NOTE_CHARACTERS_MAX,
    WHY_CHARACTERS_MAX,
    SuppressionReason,
)

router = Operations("Suppressions", credential.Scope.SUPPRESSIONS)

# The longest wait for the next piece of the file, and for the whole file.
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
            "description": "Why the address may get mail again; it is written to the audit log.",
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
_EXAMPLE: Final[JsonDict] = {
    "email": "ada@example.net",
    "reason": "manual",
    "note": "Asked by phone to get no more mail.",
    "added_by": "owner@example.com",
    "smtp_code": None,
    "smtp_response": None,
    "at": "2026-03-01T09:30:00.000Z",
}
_IMPORT_DESCRIPTION: Final = (
    f"At most {IMPORT_LINES_MAX:,} lines and {IMPORT_BYTES_MAX // 1_000_000} MB, and one import at a time. "
    "The response begins while the file is sent: a line of JSON at most once a second, "
    '`{"lines", "added", "known", "invalid"}`, and at the end a line with `"done": true` and, in `errors`, the first '
    '100 invalid lines; or `"done": false` with `error` and `code`. Addresses added until then stay, and the '
    "same file can be sent again."
)
_ERASURE_EXAMPLE: Final[dict[str, Any]] = {
    "id": "er_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "running",
    "cancelled": 1,
    "messages": 40,
    "created_at": "2026-11-15T14:00:00.000Z",
    "finished_at": None,
}


class SuppressionRequest(RequestModel):
    model_config = examples({"email": "ada@example.net", "note": "Asked by phone to get no more mail."})

    email: Annotated[str, described("The address to suppress.", maxLength=1024)]
    note: Annotated[
        str | None, described("The reason, for people; printable characters.", maxLength=NOTE_CHARACTERS_MAX)
    ] = None


class Suppression(Shown):
    model_config = examples(_EXAMPLE)

    email: Annotated[str, described("In lower case, its domain in A-labels.")]
    reason: SuppressionReason
    note: Annotated[str | None, described("The note given when it was added.")]
    added_by: Annotated[str | None, described("The member who added it; null for bounces and complaints.")]
    smtp_code: Annotated[ReplyCode, read_from("code")]
    smtp_response: Annotated[ReplyText, read_from("response")]
    at: Timestamp


class SuppressionResponse(Response):
    model_config = examples({"suppression": _EXAMPLE})

    suppression: Suppression


class SuppressionListResponse(Response):
    model_config = examples({"suppressions": [_EXAMPLE], "next_cursor": None})

    suppressions: Annotated[list[Suppression], read_from("items")]
    next_cursor: NextCursor


@router.get("/v1/suppressions", Role.VIEWER)
async def list_suppressions(
    caller: Caller,
    suppressions: Suppressions,
    email: Annotated[str | None, Query(description="Only this address.")] = None,
    search: Annotated[
        str | None,
        Query(
            description="Addresses that begin with this, in alphabetical order; not together with `reason`. With a "
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
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
) -> SuppressionListResponse:
    """The addresses that get no mail from the account, newest first"""
    return SuppressionListResponse.of(
        await suppressions.page(caller.account_id, limit, cursor, email=email, search=search, reason=reason)
    )


@router.post(
    "/v1/suppressions",
    Role.MEMBER,
    stores=True,
    status=201,
    errors=(409,),
    content=SuppressionResponse,
    extra={"responses": responses_with(200, SuppressionResponse)},
)
async def add_suppression(
    caller: Caller, body: SuppressionRequest, request: Request, suppressions: Suppressions
) -> HttpResponse:
    """Suppress an address; an existing suppression is not changed"""
    row, is_new = await suppressions.add(caller.account_id, caller.actor, body.email, body.note)
    return model_response(request, SuppressionResponse(suppression=Suppression.of(row)), 201 if is_new else 200)


@router.post(
    "/v1/suppressions/import",
    Role.ADMIN,
    stores=True,
    errors=(400, 409, 413),
    content=PROGRESS_TYPE,
    extra={"description": _IMPORT_DESCRIPTION, **_FILE},
)
async def import_suppressions(caller: Caller, request: Request, suppressions: Suppressions) -> HttpResponse:
    """Suppress the addresses of a CSV file"""
    _check_file(request)
    file_import = await suppressions.begin_import(caller.account_id, caller.actor)
    return _ImportResponse(suppressions, file_import, responses.request_id_text(request.scope))


@router.get("/v1/suppressions/export", Role.ADMIN, content=CSV_TYPE)
async def export_suppressions(caller: Caller, suppressions: Suppressions) -> HttpResponse:
    """All suppressed addresses as a CSV file, in alphabetical order"""
    batches = suppressions.export(caller.account_id)
    # The first batch is read before the response starts, so that an unreachable PostgreSQL is still a 503.
    first: list[SuppressionRow] = await anext(batches, [])
    headers = {**_NO_STORE, "Content-Disposition": 'attachment; filename="suppressions.csv"'}
    return StreamingResponse(_file(first, batches), media_type=f"{CSV_TYPE}; charset=utf-8", headers=headers)


@router.delete("/v1/suppressions/{email:path}", Role.MEMBER, extra=_WHY)
async def remove_suppression(
    caller: Caller,
    email: Annotated[str, Path(description="The address.", examples=["ada@example.net"])],
    request: Request,
    suppressions: Suppressions,
) -> DeletedResponse:
    """Let an address get mail again"""
    why = request.query_params.get("reason", "")
    await suppressions.remove(caller.account_id, caller.actor, email, why)
    return DeletedResponse(deleted=True)


class _ImportResponse(HttpResponse):
    """Read the file and report the progress at the same time."""

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
        """The file. The response starts with its first chunk, because `Expect: 100-continue` must be answered first."""
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
            raise invalid("The file was sent too slowly: send it again, faster.") from None
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
    return (guarded(row.email), row.reason, guarded(row.note or ""), responses.timestamp(row.at) or "")


class ErasureRequest(RequestModel):
    model_config = examples({"email": "ada@example.net"})

    email: Annotated[str, described("The address, without a name.", minLength=3, maxLength=254)]


class Erasure(Shown):
    id: Annotated[UUID, id_text(ids.ERASURE)]
    status: Annotated[str, described("Whether it is done.", enum=["running", "done"])]
    cancelled: Annotated[int, described("Waiting recipients that were cancelled.")]
    messages: Annotated[int, described("Messages from which the address has been erased so far."), read_from("erased")]
    created_at: Timestamp
    finished_at: FinishedAt


class ErasureResponse(Response):
    model_config = examples({"erasure": _ERASURE_EXAMPLE})

    erasure: Erasure


@router.post("/v1/erasures", Role.MEMBER, stores=True, status=202)
async def create_erasure(caller: Caller, body: ErasureRequest, erasures: Erasures) -> ErasureResponse:
    """Erase an address

    Waiting mail to the address is cancelled, and the account sends it no more mail. In the background, usually within
    minutes, the address is erased from messages, results, events and logs, with the subject and content of its mail;
    counts and credits stay. Only a keyed hash remains, which still suppresses the address. A request for an address
    whose erasure is already running returns that erasure.
    """
    return _response(await erasures.begin(caller, body.email))


@router.get("/v1/erasures/{id}", Role.VIEWER)
async def get_erasure(
    caller: Caller,
    erasure_id: Annotated[str, Path(alias="id", description="The id from `POST /v1/erasures`.")],
    erasures: Erasures,
) -> ErasureResponse:
    """The progress of an erasure"""
    return _response(await erasures.erasure(caller.account_id, erasure_id))


def _response(row: ErasureRow) -> ErasureResponse:
    status = "done" if row.phase is ErasurePhase.DONE else "running"
    return ErasureResponse(erasure=Erasure.of(row, status=status))
