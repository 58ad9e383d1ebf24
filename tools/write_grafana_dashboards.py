"""Writes the Grafana dashboards of deploy/monitoring/dashboards: `make grafana-dashboards`.

Panels are rows of a table below: a title, a unit, and queries with their legends. The queries use the catalogue of
`posthouse.metrics` and the recording rules; tests run each of them against a real Prometheus.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

DIRECTORY: Final = Path(__file__).parents[1] / "deploy" / "monitoring" / "dashboards"
SOURCE: Final = "$datasource"


class Query(NamedTuple):
    expression: str
    legend: str = ""


class Graph(NamedTuple):
    title: str
    unit: str
    queries: Sequence[Query]
    is_number: bool = False


def _quantile(part: float, metric: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def _rate(metric: str, by: str = "") -> str:
    total = f"rate({metric}[$__rate_interval])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def _mean(metric: str) -> str:
    return f"{_rate(f'{metric}_sum')} / {_rate(f'{metric}_count')}"


OVERVIEW: Final = {
    "Now": [
        Graph("Parts", "short", [Query("count by (part) (posthouse_process_info)", "{{part}}")], is_number=True),
        Graph("Not ready", "short", [Query("count(posthouse_ready == 0) or vector(0)")], is_number=True),
        Graph("Without NATS", "short", [Query("count(posthouse_stream_connected == 0) or vector(0)")], is_number=True),
        Graph("Oldest due", "s", [Query("max(posthouse_queue_oldest_due_seconds)")], is_number=True),
        Graph("Held after a restore", "short", [Query("max(posthouse_queue_held_after_restore)")], is_number=True),
        Graph("Days of partitions ahead", "short", [Query("max(posthouse_partitions_days_ahead)")], is_number=True),
    ],
    "Accepting": [
        Graph(
            "Requests to send, by answer",
            "reqps",
            [Query(_rate("posthouse_accepts_total", "source, code"), "{{source}} {{code}}")],
        ),
        Graph(
            "Time to answer",
            "s",
            [
                Query(_quantile(0.5, "posthouse_accept_seconds", "source"), "{{source}} p50"),
                Query(_quantile(0.99, "posthouse_accept_seconds", "source"), "{{source}} p99"),
            ],
        ),
        Graph(
            "Messages a transaction",
            "short",
            [
                Query(
                    _mean("posthouse_group_commit_messages"),
                    "mean",
                )
            ],
        ),
        Graph("Credits", "short", [Query(_rate("posthouse_credits_total", "step"), "{{step}}")]),
    ],
    "Results": [
        Graph("Results", "ops", [Query(_rate("posthouse_attempts_total", "outcome"), "{{outcome}}")]),
        Graph(
            "From acceptance to the final result",
            "s",
            [
                Query(_quantile(0.5, "posthouse_time_to_final_seconds"), "p50"),
                Query(_quantile(0.95, "posthouse_time_to_final_seconds"), "p95"),
            ],
        ),
        Graph("Webhook calls", "ops", [Query(_rate("posthouse_webhook_attempts_total", "outcome"), "{{outcome}}")]),
        Graph("Webhook lag", "s", [Query(_quantile(0.95, "posthouse_webhook_lag_seconds"), "p95")]),
    ],
}

DELIVERY: Final = {
    "Queue": [
        Graph(
            "Recipients that are not final",
            "short",
            [Query("max by (state) (posthouse_queue_recipients)", "{{state}}")],
        ),
        Graph("Pending in the stream", "short", [Query("max by (kind) (posthouse_stream_pending)", "{{kind}}")]),
        Graph("Workers", "short", [Query("max(posthouse_workers)", "workers")]),
        Graph("Webhook deliveries due", "short", [Query("max(posthouse_webhook_queue)", "due")]),
    ],
    "Providers": [
        Graph(
            "Delivered",
            "ops",
            [Query(_rate('posthouse_attempts_total{outcome="delivered"}', "provider"), "{{provider}}")],
        ),
        Graph(
            "Deferred",
            "ops",
            [Query(_rate('posthouse_attempts_total{outcome="deferred"}', "provider"), "{{provider}}")],
        ),
        Graph(
            "Bounced", "ops", [Query(_rate('posthouse_attempts_total{outcome="bounced"}', "provider"), "{{provider}}")]
        ),
        Graph(
            "From acceptance to the final result, p95",
            "s",
            [Query(_quantile(0.95, "posthouse_time_to_final_seconds", "provider"), "{{provider}}")],
        ),
        Graph(
            "What turns say of the receiver",
            "ops",
            [Query(_rate("posthouse_lane_answers_total", "served"), "{{served}}")],
        ),
    ],
    "Lanes": [
        Graph("Waiting", "short", [Query("sum by (lane) (posthouse_lane_waiting)", "{{lane}}")]),
        Graph("Oldest that waits", "s", [Query("max by (lane) (posthouse_lane_oldest_seconds)", "{{lane}}")]),
        Graph("Sessions", "short", [Query("sum by (lane) (posthouse_lane_sessions)", "{{lane}}")]),
        Graph("Connections allowed", "short", [Query("sum by (lane) (posthouse_lane_connections)", "{{lane}}")]),
        Graph("Paused", "short", [Query("sum by (lane) (posthouse_lanes_paused)", "{{lane}}")]),
    ],
    "Safety": [
        Graph(
            "From the receiver's 250 to our commit",
            "s",
            [
                Query(_quantile(0.5, "posthouse_delivered_uncommitted_seconds"), "p50"),
                Query(_quantile(0.99, "posthouse_delivered_uncommitted_seconds"), "p99"),
            ],
        ),
        Graph(
            "Leases and claims",
            "ops",
            [
                Query(_rate("posthouse_worker_lease_losses_total"), "leases lost"),
                Query(_rate("posthouse_permits_refused_total"), "withdrawn"),
                Query(_rate("posthouse_claims_reclaimed_total"), "reclaimed"),
            ],
        ),
        Graph("Tickets", "ops", [Query(_rate("posthouse_tickets_published_total", "kind"), "{{kind}}")]),
    ],
}

PROCESSES: Final = {
    "Processes": [
        Graph(
            "Processor time",
            "percentunit",
            [Query('rate(process_cpu_seconds_total{job="posthouse"}[$__rate_interval])', "{{instance}}")],
        ),
        Graph("Memory", "bytes", [Query('process_resident_memory_bytes{job="posthouse"}', "{{instance}}")]),
        Graph("Open files", "short", [Query('process_open_fds{job="posthouse"}', "{{instance}}")]),
        Graph(
            "HTTP requests",
            "reqps",
            [Query(_rate("posthouse_http_requests_total", "area, status"), "{{area}} {{status}}")],
        ),
        Graph(
            "HTTP requests, p99", "s", [Query(_quantile(0.99, "posthouse_http_request_seconds", "area"), "{{area}}")]
        ),
    ],
    "SMTP": [
        Graph("Sessions", "short", [Query("sum by (service) (posthouse_smtp_sessions)", "{{service}}")]),
        Graph(
            "Connections",
            "ops",
            [Query(_rate("posthouse_smtp_connections_total", "service, result"), "{{service}} {{result}}")],
        ),
        Graph("Logins", "ops", [Query(_rate("posthouse_smtp_logins_total", "result"), "{{result}}")]),
        Graph(
            "Messages", "ops", [Query(_rate("posthouse_smtp_messages_total", "service, code"), "{{service}} {{code}}")]
        ),
    ],
    "PostgreSQL and maintenance": [
        Graph("Wait for a connection, p99", "s", [Query(_quantile(0.99, "posthouse_database_wait_seconds"), "p99")]),
        Graph("The shared transaction, p99", "s", [Query(_quantile(0.99, "posthouse_group_commit_seconds"), "p99")]),
        Graph("Search index", "s", [Query("max(posthouse_search_index_lag_seconds)", "behind")]),
        Graph("Partitions", "short", [Query("max by (table) (posthouse_partitions)", "{{table}}")]),
        Graph(
            "Tasks",
            "ops",
            [Query(_rate("posthouse_maintenance_tasks_total", "task, result"), "{{task}} {{result}}")],
        ),
    ],
}

DASHBOARDS: Final = {
    "posthouse-overview": ("Posthouse: overview", OVERVIEW),
    "posthouse-delivery": ("Posthouse: delivery", DELIVERY),
    "posthouse-processes": ("Posthouse: processes and storage", PROCESSES),
}

WIDTH: Final = 8
HEIGHT: Final = 8
NUMBER_WIDTH: Final = 4
NUMBER_HEIGHT: Final = 4


def queries() -> list[str]:
    """Every query of every dashboard."""
    return [
        query.expression
        for _, rows in DASHBOARDS.values()
        for graphs in rows.values()
        for graph in graphs
        for query in graph.queries
    ]


def rendered(uid: str) -> str:
    title, rows = DASHBOARDS[uid]
    made = (
        Dashboard(title)
        .uid(uid)
        .tags(["posthouse"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, graphs in rows.items():
        made = made.with_row(Row(name))
        for graph in graphs:
            made = made.with_panel(_panel(graph))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _panel(graph: Graph) -> Stat | Timeseries:
    panel: Stat | Timeseries
    if graph.is_number:
        panel = Stat().height(NUMBER_HEIGHT).span(NUMBER_WIDTH)
    else:
        panel = Timeseries().height(HEIGHT).span(WIDTH)
    panel = panel.title(graph.title).unit(graph.unit).datasource(_source())
    for query in graph.queries:
        target = Dataquery().expr(query.expression).datasource(_source())
        panel = panel.with_target(target.legend_format(query.legend) if query.legend else target)
    return panel


def _source() -> DataSourceRef:
    return DataSourceRef(type_val="prometheus", uid=SOURCE)


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for uid in DASHBOARDS:
        (DIRECTORY / f"{uid}.json").write_text(rendered(uid))


if __name__ == "__main__":
    main()
