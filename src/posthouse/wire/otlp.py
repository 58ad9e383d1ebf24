"""Sends spans to a collector over HTTP (OTLP), with OpenTelemetry's SDK in a separate thread.

The SDK takes half a second to import, and is an extra: only a process that traces imports this module. Its queue is
bounded: spans that a collector doesn't take in time are dropped. The exporter reads its credentials and its timeout
from OpenTelemetry's environment variables (`OTEL_EXPORTER_OTLP_…`).
"""

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from posthouse.traces import Kind, Span

# An unreachable collector must not delay the end of a process.
CLOSE_SECONDS_MAX: Final = 3.0
_KINDS: Final = {
    Kind.INTERNAL: SpanKind.INTERNAL,
    Kind.SERVER: SpanKind.SERVER,
    Kind.CLIENT: SpanKind.CLIENT,
    Kind.CONSUMER: SpanKind.CONSUMER,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _GivenIds(IdGenerator):
    """Returns the ids that were chosen when the span began."""

    span: Span

    def generate_span_id(self) -> int:
        return int.from_bytes(self.span.context.span_id, "big")

    def generate_trace_id(self) -> int:
        return int.from_bytes(self.span.context.trace_id, "big")


class SpanSender:
    """`resource` describes the process that the spans belong to."""

    def __init__(self, endpoint: str, resource: Mapping[str, str | int]) -> None:
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # only sampled operations have a span
            resource=Resource.create(dict(resource)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("posthouse")

    def send(self, span: Span) -> None:
        """Take an ended span, on the event loop; it is sent later."""
        self._ids.span = span
        sent = self._tracer.start_span(
            span.name,
            context=set_span_in_context(NonRecordingSpan(_parent(span))),
            kind=_KINDS[span.kind],
            attributes=span.attributes,
            start_time=_nanoseconds(span.began_at),
        )
        if span.is_error:
            sent.set_status(StatusCode.ERROR)
        sent.end(_nanoseconds(span.ended_at))

    async def close(self) -> None:
        """Send the remaining spans, if the collector takes them soon."""
        closing = threading.Thread(target=self._provider.shutdown, name="otlp-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS_MAX)


def _parent(span: Span) -> SpanContext:
    """The parent's context; an invalid one without a parent: the span is then the first of its trace."""
    if span.parent_id is None:
        return SpanContext(0, 0, is_remote=False)
    trace_id, span_id = (int.from_bytes(given, "big") for given in (span.context.trace_id, span.parent_id))
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    passed = at - _EPOCH
    return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1_000
