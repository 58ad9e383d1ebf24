"""The response with an exported list: a CSV file, written page by page while the client reads it."""

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.route_context import disconnected
from posthouse.flows.account.exports import ROWS_MAX, SECONDS_MAX, ExportPage, Exports
from posthouse.flows.shared.page import Page
from posthouse.rules.ids import AccountId
from posthouse.rules.spreadsheet import guarded

CSV_TYPE: Final = "text/csv"
EXPORT_DESCRIPTION: Final = f"""\
UTF-8, with a header line. A text that a spreadsheet would take for a formula begins with `'`. After {ROWS_MAX:,}
rows or {SECONDS_MAX / 60:.0f} minutes the file ends with the line `# There is more: continue with cursor=…`. An account
can only run its share of exports at the same time."""

Item = TypeVar("Item")
Cell = str | int | None


@dataclass(frozen=True, slots=True)
class CsvFile(Generic[Item]):
    """`cells` returns those of a row, by the names in the header; texts are guarded here, numbers need no guard."""

    name: str
    header: Sequence[str]
    cells: Callable[[Item], Mapping[str, Cell]]


class CsvExport(Response, Generic[Item]):
    media_type = CSV_TYPE

    def __init__(
        self,
        exports: Exports,
        account_id: AccountId,
        file: CsvFile[Item],
        read: Callable[[int, str | None], Awaitable[Page[Item]]],
        cursor: str | None,
    ) -> None:
        super().__init__(headers={"Content-Disposition": f'attachment; filename="{file.name}"'})
        del self.headers["content-length"]
        self._exports = exports
        self._account_id = account_id
        self._file = file
        self._read = read
        self._cursor = cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            with self._exports.place(self._account_id):
                async with aclosing(self._exports.pages(self._read, self._cursor)) as pages:
                    # The first page is read before the response starts, so that a refusal gets its own status.
                    first = await anext(pages)
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send(_piece(csv_lines([self._file.header]) + self._written(first)))
                    if not scope.get(responses.IS_HEAD):
                        async for page in pages:
                            if leaving.done():
                                return
                            await send(_piece(self._written(page)))
                    await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()

    def _written(self, page: ExportPage[Item]) -> bytes:
        header = self._file.header
        rows = [[_cell(cells[name]) for name in header] for cells in map(self._file.cells, page.items)]
        if page.goes_on_at is not None:
            rows.append([f"# There is more: continue with cursor={page.goes_on_at}"])
        return csv_lines(rows)


def csv_lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(cell: Cell) -> str | int:
    return guarded(cell) if isinstance(cell, str) else "" if cell is None else cell


def _piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
