"""Metrics: the catalogue of what a process counts and measures, and the numbers themselves.

A flow or an entry point calls `count`, `set` or `observe` of a metric below; `entrypoints.monitoring` shows them all to
Prometheus. Numbers are plain and change only on the event loop, so that counting costs a microsecond, monitored or not.
They are those of this process since its start: Prometheus adds up processes.

Labels have few values, known from the code: never an address, an account or a text from outside. A metric has at most
SERIES_MAX sets of labels; further ones are counted under `other`.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

SERIES_MAX: Final = 300
OTHER: Final = "other"

_Labels = tuple[str, ...]


class Metric:
    """`area` is its heading in the catalogue, and `text` describes it."""

    __slots__ = ("area", "labels", "name", "text")

    kind: str

    def __init__(self, area: str, name: str, text: str, labels: _Labels = ()) -> None:
        self.area = area
        self.name = name
        self.text = text
        self.labels = labels
        CATALOGUE.append(self)

    def _bounded(self, labels: _Labels, known: int) -> _Labels:
        return labels if known < SERIES_MAX else (OTHER,) * len(self.labels)


CATALOGUE: Final[list[Metric]] = []


class Counter(Metric):
    __slots__ = ("values",)

    kind = "counter"

    def __init__(self, area: str, name: str, text: str, labels: _Labels = ()) -> None:
        super().__init__(area, name, text, labels)
        # Without labels there is one number, which starts at 0; with labels, a number exists once it is first counted.
        self.values: dict[_Labels, float] = {} if labels else {(): 0}

    def count(self, *labels: str, by: float = 1) -> None:
        values = self.values
        if labels not in values:
            labels = self._bounded(labels, len(values))
            values.setdefault(labels, 0)
        values[labels] += by


class Gauge(Metric):
    """Absent until it is set: a figure that can't be measured is not shown."""

    __slots__ = ("values",)

    kind = "gauge"

    def __init__(self, area: str, name: str, text: str, labels: _Labels = ()) -> None:
        super().__init__(area, name, text, labels)
        self.values: dict[_Labels, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self.values[labels if labels in self.values else self._bounded(labels, len(self.values))] = value

    def replace(self, values: Mapping[_Labels, float]) -> None:
        """Set these values, and remove all others."""
        self.values = dict(values)

    def clear(self) -> None:
        self.values = {}


class Histogram(Metric):
    """How many values fell below each of the `buckets`, and their sum."""

    __slots__ = ("buckets", "values")

    kind = "histogram"

    def __init__(self, area: str, name: str, text: str, labels: _Labels = (), *, buckets: tuple[float, ...]) -> None:
        super().__init__(area, name, text, labels)
        self.buckets = buckets
        # For each set of labels, how many values fell between the bounds, and as the last item their sum.
        self.values: dict[_Labels, list[float]] = {} if labels else {(): self._empty()}

    def observe(self, value: float, *labels: str) -> None:
        counts = self.values.get(labels)
        if counts is None:
            counts = self.values.setdefault(self._bounded(labels, len(self.values)), self._empty())
        counts[bisect_left(self.buckets, value)] += 1
        counts[-1] += value

    def _empty(self) -> list[float]:
        return [0] * (len(self.buckets) + 2)


_SHORT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAITS: Final = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5)
# From seconds to the three days that a message may take.
_LONG: Final = (0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400, 259_200)

_PROVIDER: Final = "`provider` is a known mailbox provider, `simulator` or `other`."
_KIND: Final = "`kind` is `mail` or `webhook`."
_SERVICE: Final = "`service` is `submission` or `inbound`."

# Accepting.

ACCEPTS: Final = Counter(
    "Accepting mail",
    "posthouse_accepts_total",
    "Send requests. `source` is `http` or `smtp`; `code` is `accepted`, `replayed` (a used idempotency key), "
    "`disconnected` (no answer could be given) or the code of the refusal.",
    ("source", "code"),
)
ACCEPT_SECONDS: Final = Histogram(
    "Accepting mail",
    "posthouse_accept_seconds",
    "From the head of a send request, or the end of a message over SMTP, to the response, by `source`: `http` or "
    "`smtp`; without 429, which waits on purpose.",
    ("source",),
    buckets=_SHORT,
)
ACCEPT_BATCH: Final = Histogram(
    "Accepting mail",
    "posthouse_group_commit_messages",
    "Messages in one group commit.",
    buckets=(1, 2, 5, 10, 20, 50, 100),
)
ACCEPT_BATCH_SECONDS: Final = Histogram(
    "Accepting mail",
    "posthouse_group_commit_seconds",
    "Duration of a group commit's transaction.",
    buckets=_SHORT,
)
CREDITS: Final = Counter(
    "Accepting mail",
    "posthouse_credits_total",
    "Credits by `step`: `reserved` on acceptance, then `settled` or `released`.",
    ("step",),
)

# HTTP and SMTP.

HTTP_REQUESTS: Final = Counter(
    "HTTP and SMTP",
    "posthouse_http_requests_total",
    "Answered requests. `area` is `emails` (send requests), `v1`, `live` (responses that wait) or `other`; `status` "
    "is the HTTP status, 0 if the client disconnected first.",
    ("area", "status"),
)
HTTP_SECONDS: Final = Histogram(
    "HTTP and SMTP",
    "posthouse_http_request_seconds",
    "Duration of requests, by `area`: `v1` or `other`.",
    ("area",),
    buckets=_SHORT,
)
SMTP_SESSIONS: Final = Gauge(
    "HTTP and SMTP", "posthouse_smtp_sessions", f"Open sessions with our SMTP servers. {_SERVICE}", ("service",)
)
SMTP_CONNECTIONS: Final = Counter(
    "HTTP and SMTP",
    "posthouse_smtp_connections_total",
    f"Connections to our SMTP servers. {_SERVICE} `result` is `taken`, `too_many` or `draining`.",
    ("service", "result"),
)
SMTP_LOGINS: Final = Counter(
    "HTTP and SMTP",
    "posthouse_smtp_logins_total",
    "Logins over SMTP. `result` is `ok`, `too_many_sessions` or the code of the refusal: `unauthorized` is a wrong "
    "password, `rate_limited` one attempt too many.",
    ("result",),
)
SMTP_MESSAGES: Final = Counter(
    "HTTP and SMTP",
    "posthouse_smtp_messages_total",
    f"Messages that our SMTP servers received completely, by the `code` of the reply. {_SERVICE}",
    ("service", "code"),
)

# Delivery.

ATTEMPTS: Final = Counter(
    "Delivery",
    "posthouse_attempts_total",
    "Results for recipients that were claimed. `outcome` is `delivered`, `bounced`, `failed`, `deferred`, or "
    f"`postponed` (not tried after all, or held because our address was refused). {_PROVIDER}",
    ("provider", "outcome"),
)
AMBIGUOUS: Final = Counter(
    "Delivery",
    "posthouse_attempts_ambiguous_total",
    f"Attempts that ended without a reply after the final dot: the message may arrive twice. {_PROVIDER}",
    ("provider",),
)
FINAL_SECONDS: Final = Histogram(
    "Delivery",
    "posthouse_time_to_final_seconds",
    f"From acceptance, or from `send_at`, to the final result of a recipient. {_PROVIDER}",
    ("provider",),
    buckets=_LONG,
)
UNCOMMITTED_SECONDS: Final = Histogram(
    "Delivery",
    "posthouse_delivered_uncommitted_seconds",
    "From the receiver's 250 to our commit: a crash in this time sends a message twice.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
)
LANE_ANSWERS: Final = Counter(
    "Delivery",
    "posthouse_lane_answers_total",
    "Turns in lanes, by how they were `served`: `well`, `pushed_back` (421), `slow`, `connections`, "
    "`per_connection`, `blocked` (refusals because of us), `unreachable`, `otherwise`, "
    f"`not_sent`. {_PROVIDER}",
    ("provider", "served"),
)
LIMIT_CHANGES: Final = Counter(
    "Delivery",
    "posthouse_lane_limit_changes_total",
    "What this worker's lanes learned from refusals, and from time without them. `kind` is `slow`, `still_slow`, "
    "`recovered`, `grew`, `ceiling_forgotten`, `connections`, `per_connection`, `relaxed` or `block`. "
    f"{_PROVIDER}",
    ("provider", "kind"),
)
_LANE: Final = "`lane` is a known mailbox provider, or one of the 20 busiest others by its domain, or `other`."
LANE_WAITING: Final = Gauge(
    "Delivery", "posthouse_lane_waiting", f"Recipients that wait in this worker's lanes. {_LANE}", ("lane",)
)
LANE_OLDEST: Final = Gauge(
    "Delivery",
    "posthouse_lane_oldest_seconds",
    f"The age since acceptance of the oldest message that waits in this worker's lane. {_LANE}",
    ("lane",),
)
LANE_SESSIONS: Final = Gauge("Delivery", "posthouse_lane_sessions", f"SMTP sessions in use. {_LANE}", ("lane",))
LANE_CONNECTIONS: Final = Gauge(
    "Delivery", "posthouse_lane_connections", f"Connections that the lane allows at the moment. {_LANE}", ("lane",)
)
LANES_PAUSED: Final = Gauge("Delivery", "posthouse_lanes_paused", f"Lanes that are paused. {_LANE}", ("lane",))

# Webhooks.

WEBHOOKS: Final = Counter(
    "Webhooks",
    "posthouse_webhook_attempts_total",
    "Calls to customers' endpoints. `outcome` is `succeeded`, `deferred`, `failed`, or `postponed` (not called after "
    "all).",
    ("outcome",),
)
WEBHOOK_SECONDS: Final = Histogram(
    "Webhooks", "posthouse_webhook_seconds", "How long endpoints took to answer.", buckets=_SHORT
)
WEBHOOK_LAG: Final = Histogram(
    "Webhooks", "posthouse_webhook_lag_seconds", "From an event to the 2xx that accepted it.", buckets=_LONG
)

# The queue.

QUEUE: Final = Gauge(
    "The queue",
    "posthouse_queue_recipients",
    "Recipients that are not final, by `state`: `due`, `leased` (a ticket is on its way), `claimed`, `later`, `held`; "
    "each is counted up to 10,000. Measured by dispatch.",
    ("state",),
)
QUEUE_OLDEST: Final = Gauge(
    "The queue",
    "posthouse_queue_oldest_due_seconds",
    "How long the recipient that has been due longest has been due without a ticket. Measured by dispatch.",
)
HELD_AFTER_RESTORE: Final = Gauge(
    "The queue",
    "posthouse_queue_held_after_restore",
    "Recipients that have been held since PostgreSQL was restored, until an operator decides; counted up to "
    "10,000. Measured by dispatch.",
)
WEBHOOK_QUEUE: Final = Gauge(
    "The queue",
    "posthouse_webhook_queue",
    "Webhook deliveries that are due, counted up to 10,000. Measured by dispatch.",
)
WEBHOOK_QUEUE_OLDEST: Final = Gauge(
    "The queue",
    "posthouse_webhook_queue_oldest_due_seconds",
    "How long the webhook delivery that has been due longest has been due without a ticket. Measured by dispatch.",
)
WORKERS: Final = Gauge(
    "The queue", "posthouse_workers", "Workers for mail and webhooks that have a lease. Measured by dispatch."
)
STREAM_PENDING: Final = Gauge(
    "The queue",
    "posthouse_stream_pending",
    f"Messages in the stream that are not acknowledged, each with up to 16 tickets. {_KIND} Measured by dispatch.",
    ("kind",),
)
STREAM_CONNECTED: Final = Gauge(
    "The queue",
    "posthouse_stream_connected",
    "1 while this process is connected to NATS and its streams exist, otherwise 0. Absent with a stream in memory.",
)
TICKETS: Final = Counter(
    "The queue", "posthouse_tickets_published_total", f"Tickets that this process published. {_KIND}", ("kind",)
)
POSTPONED: Final = Counter(
    "The queue",
    "posthouse_tickets_postponed_total",
    f"Tickets that found no space in a lane, or whose account is suspended. {_KIND}",
    ("kind",),
)
RECLAIMED: Final = Counter(
    "The queue",
    "posthouse_claims_reclaimed_total",
    "Claims of dead workers that were made due again. Each leaves an orphan: an attempt without an outcome.",
)
LEASE_LOSSES: Final = Counter(
    "The queue",
    "posthouse_worker_lease_losses_total",
    "How often this worker's lease had ended before it was renewed.",
)
WITHDRAWN: Final = Counter(
    "The queue",
    "posthouse_permits_refused_total",
    "Messages and calls that were withdrawn at the last moment, because the worker's lease had ended.",
)
LATE: Final = Counter(
    "The queue",
    "posthouse_outcomes_late_total",
    f"Outcomes that came after another claim and changed nothing. {_KIND}",
    ("kind",),
)
UNRECORDED: Final = Counter(
    "The queue",
    "posthouse_outcomes_unrecorded_total",
    f"Outcomes that could not be recorded because of a fault of the service. {_KIND}",
    ("kind",),
)

# Reputation.

ERASED: Final = Counter(
    "Reputation",
    "posthouse_erased_addresses_total",
    "Addresses that were erased for accounts. `suppressed` says why an address had been suppressed within a day: "
    "`bounce`, `complaint`, or `no`. Counted by maintenance.",
    ("suppressed",),
)

SERVICE_ACCOUNT_BAD: Final = Counter(
    "Reputation",
    "posthouse_service_account_bad_total",
    "How often the account that sends the service's own mail was found to have enough bounces or complaints to "
    "suspend any other account. Counted by maintenance.",
)

# PostgreSQL and maintenance.

DATABASE_WAIT: Final = Histogram(
    "PostgreSQL and maintenance",
    "posthouse_database_wait_seconds",
    "Wait for a connection from the pool, and for a new connection if none was open.",
    buckets=_WAITS,
)
DATABASE_REFUSALS: Final = Counter(
    "PostgreSQL and maintenance",
    "posthouse_database_refusals_total",
    "Transactions that PostgreSQL did not complete, by `code`: `service_unavailable` (it is unavailable), "
    "`temporary_failure` (a lock or statement took too long).",
    ("code",),
)
STORAGE_LOW: Final = Gauge(
    "PostgreSQL and maintenance",
    "posthouse_storage_low",
    "1 while new mail is refused because storage is nearly full. Absent if it is not measured.",
)
CLOCK_STEP: Final = Gauge(
    "PostgreSQL and maintenance",
    "posthouse_database_clock_step_seconds",
    "How far the database's clock is ahead of service time while it is not trusted; otherwise 0.",
)
PARTITIONS: Final = Gauge(
    "PostgreSQL and maintenance", "posthouse_partitions", "Partitions by `table`. Measured by maintenance.", ("table",)
)
DAYS_AHEAD: Final = Gauge(
    "PostgreSQL and maintenance",
    "posthouse_partitions_days_ahead",
    "Days after today for which every table has a partition; -1 without today's. Measured by maintenance.",
)
MAINTENANCE: Final = Counter(
    "PostgreSQL and maintenance",
    "posthouse_maintenance_tasks_total",
    "Maintenance tasks by `task` and `result`: `done` or `failed`.",
    ("task", "result"),
)
MAINTENANCE_AT: Final = Gauge(
    "PostgreSQL and maintenance",
    "posthouse_maintenance_success_timestamp_seconds",
    "When all maintenance tasks last succeeded in this process.",
)
SEARCH_LAG: Final = Gauge(
    "PostgreSQL and maintenance",
    "posthouse_search_index_lag_seconds",
    "How far the search index is behind; half a minute is normal. Measured by maintenance.",
)

# The process.

PART: Final = Gauge("The process", "posthouse_process_info", "1 for each `part` that this process runs.", ("part",))
INFO: Final = Gauge("The process", "posthouse_info", "1, with the `version`.", ("version",))
READY: Final = Gauge("The process", "posthouse_ready", "1 while `/readyz` answers 200, otherwise 0.")
STEP_FAILURES: Final = Counter(
    "The process",
    "posthouse_loop_failures_total",
    "Repeated work that failed and will be tried again, by `step`; the log has the cause.",
    ("step",),
)
