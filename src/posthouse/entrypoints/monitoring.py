"""The monitoring server of a process: /metrics, /livez and /readyz, on a port that customers can't reach.

It is a small separate server, so that a process without HTTP needs no web framework. A connection carries one request.
/metrics are the service's metrics as Prometheus reads them, with those of the process and the interpreter
(`process_…`, `python_…`).
"""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from posthouse import metrics

HEAD_BYTES_MAX: Final = 8 * 1024
SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 50
# Each process of a machine takes the first port that is free.
PORTS_TRIED: Final = 100
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def metrics_registry() -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    made.register(_Catalogue())
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


class MonitoringAnswer(NamedTuple):
    status: int
    content_type: str
    body: bytes


class MonitoringServer:
    """`reasons` returns why the process is not ready to work; if empty, it is ready."""

    def __init__(self, reasons: Callable[[], Awaitable[list[str]]]) -> None:
        self._reasons = reasons
        self._registry = metrics_registry()
        self._open = 0
        self._paths: Mapping[str, Callable[[], Awaitable[MonitoringAnswer]]] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
        }

    async def listen(self, host: str, port: int) -> tuple[asyncio.Server, int]:
        """Serve on the first free port from there on; an OSError if none is free, or if the address isn't local."""
        for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
            try:
                server = await asyncio.start_server(self._serve, host, candidate, limit=HEAD_BYTES_MAX)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return server, candidate
        raise OSError(errno.EADDRINUSE, f"no port is free, starting at {port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(SECONDS_MAX):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is slow, or gone
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        method, target = [*head.partition(b"\r\n")[0].decode("latin-1").split(" "), "", ""][:2]
        answer = await self._answer_to(method, target.partition("?")[0])
        fields = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            *(f"{name}: {text}" for name, text in fields.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else answer.body))
        await writer.drain()

    async def _answer_to(self, method: str, path: str) -> MonitoringAnswer:
        if not method or not path:
            return _json(400, {"error": "This is not an HTTP request."})
        if path not in self._paths:
            return _json(404, {"error": f"The paths are {', '.join(self._paths)}."})
        if method not in ("GET", "HEAD"):
            return _json(405, {"error": "Only GET is supported."})
        return await self._paths[path]()

    async def _metrics(self) -> MonitoringAnswer:
        await self._read_readiness()
        return MonitoringAnswer(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    async def _livez(self) -> MonitoringAnswer:
        """Says only that the event loop runs: a restart fixes nothing that is wrong elsewhere."""
        return _json(200, {"status": "alive"})

    async def _readyz(self) -> MonitoringAnswer:
        reasons = await self._read_readiness()
        if reasons:
            return _json(503, {"status": "not ready", "reasons": reasons})
        return _json(200, {"status": "ready"})

    async def _read_readiness(self) -> list[str]:
        reasons = await self._reasons()
        metrics.READY.set(not reasons)
        return reasons


def _json(status: int, content: Mapping[str, object]) -> MonitoringAnswer:
    return MonitoringAnswer(status, "application/json", json.dumps(content).encode() + b"\n")


class _Catalogue(Collector):
    def collect(self) -> Iterator[Family]:
        for metric in metrics.CATALOGUE:
            yield _family(metric)


def _family(metric: metrics.Metric) -> Family:
    match metric:
        case metrics.Counter():
            counter = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
            for labels, value in metric.values.items():
                counter.add_metric(labels, value)
            return counter
        case metrics.Gauge():
            gauge = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
            for labels, value in metric.values.items():
                gauge.add_metric(labels, value)
            return gauge
        case metrics.Histogram():
            histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
            bounds = [*map(str, map(float, metric.buckets)), "+Inf"]
            for labels, (*counts, total) in metric.values.items():
                histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
            return histogram
        case _:
            raise TypeError(f"unknown kind of metric: {metric.kind}")
