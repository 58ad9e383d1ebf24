"""The frame around every request: its id, its way to the endpoint, and an answer whatever happens."""

from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.response_limits import Outgoing
from posthouse.rules import ids
from posthouse.rules.ids import RequestId
from posthouse.rules.refusal import Code, Refusal

log = structlog.get_logger(__name__)

# Answers of the dashboard's side carry secrets and people's data: nothing on the way keeps them.
_NO_STORE: Final = (b"cache-control", b"no-store")


class Frame:
    """POST /emails goes straight to its endpoint; everything else goes through the application's router."""

    def __init__(self, application: ASGIApp, send_endpoint: ASGIApp, clock: Clock, chance: Chance) -> None:
        self._application = application
        self._send_endpoint = send_endpoint
        self._clock = clock
        self._chance = chance
        self._outgoing = Outgoing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request_id = RequestId(ids.new_id(self._clock.now(), self._chance.bytes(ids.RANDOM_BYTES)))
        request_id_text = ids.text(ids.REQUEST, request_id)
        scope[responses.REQUEST_ID] = request_id
        scope[responses.REQUEST_ID_TEXT] = request_id_text
        header = (b"x-request-id", request_id_text.encode())
        is_private = scope["path"].startswith("/v1/")
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message["headers"], header]
                if is_private:
                    others = [one for one in message["headers"] if one[0] != _NO_STORE[0]]
                    message["headers"] = [*others, _NO_STORE]
            await send(message)

        try:
            if scope["path"] == "/emails" and scope["method"] == "POST":
                await self._send_endpoint(scope, receive, send_with_id)
            else:
                await self._application(scope, receive, self._outgoing.way(scope, receive, send_with_id))
        except Disconnected:
            return
        except Refusal as refusal:
            await self._refuse(scope, receive, send_with_id, refusal)
        except Exception as fault:
            log.exception("fault", request_id=request_id_text, path=scope["path"], fault=type(fault).__name__)
            if not has_started:
                await self._refuse(scope, receive, send_with_id, responses.FAULT)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
        if refusal.code in {Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE}:
            log.warning("unavailable", code=refusal.code.value, cause=repr(refusal.__cause__))
        await responses.error_response(scope, refusal)(scope, receive, send)
