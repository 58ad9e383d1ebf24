"""One HTTP connection: uvicorn's, with bounds on a request's head and the error object for what is not HTTP."""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.entrypoints.http import responses
from posthouse.rules import ids
from posthouse.rules.refusal import invalid

HEAD_BYTES_MAX: Final = 64 * 1024
HEAD_SECONDS_MAX: Final = 20.0
# A client that sends on after its answer (a 413, a 401) must be let finish, or it never reads the answer.
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024
DISCARDED_SECONDS_MAX: Final = 20.0
# A client that takes less than this of its answer in so many seconds has left, or wants to hold our memory.
TAKEN_BYTES_MIN: Final = 16 * 1024
TAKING_SECONDS_MAX: Final = 20.0


class BoundedConnection(HttpToolsProtocol):
    """A head that grows without end, or never ends, would otherwise be held in memory for ever; so would an answer
    that nobody takes."""

    _head_bytes = 0
    _is_reading_head = False
    _is_reading_body = False
    _discarded_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    taking_seconds_max = TAKING_SECONDS_MAX
    _untaken_bytes = 0
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer(HEAD_SECONDS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_looking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken_bytes = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(self.taking_seconds_max, self._look_at_taking)

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_reading_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("The request's head is too large.")
        elif self._is_reading_body and self.cycle.response_complete:
            self._discarded_bytes += len(data)
            self._start_timer(DISCARDED_SECONDS_MAX)
            if self._discarded_bytes > DISCARDED_BYTES_MAX:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._is_reading_head = True
        self._start_timer(HEAD_SECONDS_MAX)

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        self._is_reading_body = True
        self._discarded_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_reading_body = False
        self._stop_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        request_id = ids.text(ids.REQUEST, ids.new_id(DatabaseClock().now(), SystemChance().bytes(ids.RANDOM_BYTES)))
        refusal = invalid(f"{msg} Speak HTTP/1.1, with a head of at most {HEAD_BYTES_MAX // 1024} KiB.")
        body = responses.encoded({"error": refusal.text, "code": refusal.code.value, "request_id": request_id})
        lines: list[bytes] = [
            STATUS_LINE[400],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"x-request-id: %s\r\n" % request_id.encode(),
            b"connection: close\r\n\r\n",
            body,
        ]
        self.transport.write(b"".join(lines))
        self.transport.close()

    def _start_timer(self, seconds: float) -> None:
        """Close the connection then, unless a timer runs already or what is awaited comes before."""
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _look_at_taking(self) -> None:
        untaken_bytes = self.transport.get_write_buffer_size()
        if self._untaken_bytes - untaken_bytes < TAKEN_BYTES_MIN:
            self._taking = None
            self.transport.abort()
            return
        self._untaken_bytes = untaken_bytes
        self._taking = self.loop.call_later(self.taking_seconds_max, self._look_at_taking)

    def _stop_looking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
