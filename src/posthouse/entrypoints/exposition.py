"""The metrics as Prometheus reads them, with those of the process and the interpreter (`process_…`, `python_…`)."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from posthouse import metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Catalogue(Collector):
    def collect(self) -> Iterator[Family]:
        for metric in metrics.CATALOGUE:
            yield _family(metric)


def registry() -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    made.register(_Catalogue())
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


def text(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)


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
            raise TypeError(f"no such kind of metric: {metric.kind}")
