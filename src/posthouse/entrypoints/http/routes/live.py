"""The stream of live hints."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.operation import Operations
from posthouse.entrypoints.http.route_context import disconnected, require_still_allowed
from posthouse.flows.account.live import Live, Watcher
from posthouse.flows.shared.principal import Member
from posthouse.rules.credential import Role
from posthouse.rules.live import HEARTBEAT_SECONDS

router = Operations("Account")

STREAM_TYPE: Final = "text/event-stream"
# A proxy that buffers a response until it is complete would never pass on anything.
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT: Final = b":\n\n"

_DESCRIPTION: Final = """\
Server-sent events. They are hints: read what they name with a GET, and poll it occasionally even without them.

| Event | Data |
|---|---|
| `ready` | From now on nothing is missed: read your lists now. |
| `accepted` | `{"message_ids": []}`: messages that were accepted. |
| `final` | `{"recipients": [{"recipient_id", "message_id"}]}`: recipients that have their result. |
| `resync` | Hints were dropped: read your lists again. |
| `end` | `{"error", "code"}`: the stream ends, because a new request would be refused with this error. |

A comment is sent every 15 seconds.
"""


class LiveStream(Response):
    media_type = STREAM_TYPE

    def __init__(
        self,
        live: Live,
        member: Member,
        check: Callable[[], Awaitable[None]],
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._live = live
        self._member = member
        self._check = check
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        member = self._member
        with self._live.watch(member.account_id, member.user_id, self._check) as watcher:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not scope.get(responses.IS_HEAD):
                leaving = asyncio.ensure_future(disconnected(receive))
                leaving.add_done_callback(lambda _: watcher.leave())
                try:
                    await self._send_events(watcher, send)
                finally:
                    leaving.cancel()
            await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, watcher: Watcher, send: Send) -> None:
        """The stream's bytes until it ends; the first comment makes proxies pass on the head."""
        body = _COMMENT
        while not watcher.is_over:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            body = await _written(watcher, self._heartbeat_seconds) or _COMMENT
        # It may have ended while the last piece was sent.
        body += await _written(watcher, 0)
        await send({"type": "http.response.body", "body": body, "more_body": True})


@router.get("/v1/live", Role.VIEWER, errors=(429,), content=STREAM_TYPE, extra={"description": _DESCRIPTION})
async def watch_account(member: Member, request: Request, live: Live) -> LiveStream:
    """Live hints about what is new in the account"""
    return LiveStream(live, member, partial(require_still_allowed, request))


async def _written(watcher: Watcher, seconds: float) -> bytes:
    events = await watcher.next(seconds)
    return b"".join(b"event: %s\ndata: %s\n\n" % (event.name.encode(), event.data) for event in events)
