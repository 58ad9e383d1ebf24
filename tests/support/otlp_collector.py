"""A collector of traces: accepts OTLP over HTTP, as a real one does, and stores what it was sent."""

import gzip
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began_at: int
    ended_at: int
    is_error: bool
    attributes: dict[str, Any]
    process: dict[str, Any]


@dataclass
class OtlpCollector:
    bodies: list[bytes] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    endpoint: str = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        _, port = self._runner.addresses[0]
        self.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def spans(self) -> list[CollectedSpan]:
        """The earliest first."""
        found = [span for body in self.bodies for span in _spans(body)]
        return sorted(found, key=lambda span: (span.began_at, -span.ended_at))

    async def _take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        self.bodies.append(gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body)
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


def _spans(body: bytes) -> list[CollectedSpan]:
    found = []
    for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
        process = _attributes(of_process.resource.attributes)
        for scope in of_process.scope_spans:
            found += [_collected(span, process) for span in scope.spans]
    return found


def _collected(span: Any, process: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        name=span.name,
        kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began_at=span.start_time_unix_nano,
        ended_at=span.end_time_unix_nano,
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
        process=process,
    )


def _attributes(given: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in given}
