"""The metrics: what they count, how Prometheus reads them, and that their labels stay few."""

import re
from collections import Counter as Tally
from collections.abc import Iterator

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from posthouse import metrics
from posthouse.entrypoints import monitoring
from posthouse.entrypoints.workers import step_name
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.metrics import CATALOGUE, OTHER, SERIES_MAX, Counter, Gauge, Histogram

# What a label may not be: it would have a value for each customer, or identify them.
FORBIDDEN_LABELS = frozenset({"account", "account_id", "address", "email", "recipient", "message", "peer", "domain"})


@pytest.fixture(autouse=True)
def _own_metrics() -> Iterator[None]:
    """Metrics that a test makes are not those of the service."""
    before = list(CATALOGUE)
    yield
    CATALOGUE[:] = before


def shown(metric: metrics.Metric) -> dict[tuple[str, tuple[str, ...]], float]:
    """A metric's samples, as Prometheus reads them: by name and the values of the labels."""
    text = generate_latest(monitoring.metrics_registry()).decode()
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(metric.name)
    ]
    return {(sample.name, tuple(sample.labels.values())): sample.value for sample in samples}


def test_a_counter_counts_by_its_labels() -> None:
    counter = Counter("Test", "posthouse_test_total", "Of a test.", ("code",))
    counter.count("accepted")
    counter.count("accepted", by=2)
    counter.count("refused")
    assert shown(counter) == {("posthouse_test_total", ("accepted",)): 3, ("posthouse_test_total", ("refused",)): 1}


def test_a_counter_without_labels_is_shown_from_the_start() -> None:
    assert shown(Counter("Test", "posthouse_test_total", "Of a test.")) == {("posthouse_test_total", ()): 0}


def test_a_gauge_is_absent_until_it_is_set_and_once_it_is_cleared() -> None:
    gauge = Gauge("Test", "posthouse_test", "Of a test.")
    assert shown(gauge) == {}
    gauge.set(2.5)
    assert shown(gauge) == {("posthouse_test", ()): 2.5}
    gauge.clear()
    assert shown(gauge) == {}


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    histogram = Histogram("Test", "posthouse_test_seconds", "Of a test.", ("source",), buckets=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds, "http")
    found = shown(histogram)
    buckets = {labels[0]: number for (name, labels), number in found.items() if name.endswith("_bucket")}
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert found["posthouse_test_seconds_count", ("http",)] == 4
    assert found["posthouse_test_seconds_sum", ("http",)] == pytest.approx(7.65)


def test_a_metric_has_no_more_series_than_it_may() -> None:
    """Even if a bug made a label of each of ten thousand destinations."""
    counter = Counter("Test", "posthouse_test_total", "Of a test.", ("lane",))
    gauge = Gauge("Test", "posthouse_test", "Of a test.", ("lane",))
    histogram = Histogram("Test", "posthouse_test_seconds", "Of a test.", ("lane",), buckets=(1.0,))
    for number in range(10_000):
        counter.count(f"{number}.example")
        gauge.set(number, f"{number}.example")
        histogram.observe(number, f"{number}.example")
    for values in (counter.values, gauge.values, histogram.values):
        assert len(values) == SERIES_MAX + 1
        assert (OTHER,) in values
    assert sum(counter.values.values()) == 10_000


def test_the_metrics_are_orderly() -> None:
    assert [name for name, number in Tally(metric.name for metric in CATALOGUE).items() if number > 1] == []
    assert [metric.name for metric in CATALOGUE if not re.fullmatch(r"posthouse_[a-z_]+", metric.name)] == []
    assert [
        metric.name for metric in CATALOGUE if isinstance(metric, Counter) is not metric.name.endswith("_total")
    ] == []
    assert [metric.name for metric in CATALOGUE if FORBIDDEN_LABELS & set(metric.labels)] == []
    assert [metric.name for metric in CATALOGUE for label in metric.labels if f"`{label}`" not in metric.text] == []


def test_every_metric_can_be_read() -> None:
    text = generate_latest(monitoring.metrics_registry()).decode()
    assert [metric.name for metric in CATALOGUE if f"# TYPE {metric.name} {metric.kind}" not in text] == []
    assert "process_cpu_seconds_total" in text


def test_steps_have_names_in_words() -> None:
    async def synchronize_clock() -> None: ...

    assert step_name(synchronize_clock) == "synchronize_clock"
    assert step_name(SearchIndexer.run) == "search_indexer"  # type: ignore[arg-type]
    assert step_name(SearchIndexer._progress) == "search_indexer__progress"  # type: ignore[arg-type]
