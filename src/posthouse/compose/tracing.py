"""Tracing of a part; nothing unless it is switched on, and only then is OpenTelemetry imported."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec

import structlog

from posthouse.clock import Clock
from posthouse.config import Settings
from posthouse.randomness import Randomness
from posthouse.traces import Tracer

log = structlog.get_logger(__name__)


def lack(settings: Settings) -> str | None:
    """What tracing lacks, if it is switched on."""
    if not settings.tracing.is_on or _is_installed():
        return None
    return 'tracing is switched on and needs OpenTelemetry: install "posthouse[otel]", or set tracing.share to 0'


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


@asynccontextmanager
async def open_tracer(
    settings: Settings, part: str, clock: Clock, randomness: Randomness
) -> AsyncIterator[Tracer | None]:
    tracing = settings.tracing
    if not tracing.is_on:
        yield None
        return
    from posthouse.wire.otlp import SpanSender

    sender = SpanSender(
        tracing.endpoint,
        {
            "service.name": "posthouse",
            "service.version": version("posthouse"),
            "posthouse.part": part,
            "host.name": settings.service.hostname,
            "process.pid": os.getpid(),
        },
    )
    log.info("tracing", part=part, share=tracing.share, endpoint=tracing.endpoint)
    try:
        yield Tracer(
            clock=clock,
            randomness=randomness,
            export=sender.send,
            share=tracing.share,
            follows_callers=tracing.follow_callers,
        )
    finally:
        await sender.close()
