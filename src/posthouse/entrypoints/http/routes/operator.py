"""The operator's operations of the whole installation: an overview, addresses, health and the log.

The same flows as the commands. A customer's token is refused, whatever its role.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from posthouse.clock import Clock
from posthouse.entrypoints.http.cached_read import CachedReads
from posthouse.entrypoints.http.operation import Operations, Operator, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT
from posthouse.entrypoints.http.routes.operator_lanes import LaneText, OperatorLane, OperatorLimitChange
from posthouse.entrypoints.http.routes.team import DETAIL, Target
from posthouse.entrypoints.http.shapes import (
    OptionalTimestamp,
    P95Seconds,
    P99Seconds,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    read_from,
)
from posthouse.flows.operate.doctor import Doctor
from posthouse.flows.operate.lanes import Lanes, listed
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.sending_addresses import SendingAddresses, WarmUpView
from posthouse.flows.operate.usage_counter import ProviderDelays
from posthouse.rules.check_up import DoctorCheck, Severity
from posthouse.rules.learned_limits import LaneState

router = Operations("Operator")

CHANGES_SHOWN: Final = 20
LIMIT_CHANGES_SHOWN: Final = 20
WARM_UPS_SHOWN: Final = 5
LANES_SHOWN: Final = 20


class OperatorCount(Shown):
    model_config = examples({"count": 120, "is_more": False})

    count: Annotated[int, read_from("number")]
    is_more: Annotated[bool, described("Whether there are more than were counted.")]


class OperatorDelay(Shown):
    model_config = examples(
        {"provider": "yahoo", "since": "2026-11-15T09:00:00.000Z", "p95_seconds": 912.0, "week_p95_seconds": 4.1}
    )

    provider: str
    since: Annotated[Timestamp, described("When it was noticed. RFC 3339, UTC.")]
    p95_seconds: Annotated[P95Seconds, read_from("delay", "p95_seconds")]
    week_p95_seconds: Annotated[
        float, described("The same in the week before."), read_from("delay", "week_p95_seconds")
    ]


class OperatorLatency(Shown):
    model_config = examples(
        {"provider": "google", "delivered": 8120, "p50_seconds": 0.9, "p95_seconds": 2.4, "p99_seconds": 6.0}
    )

    provider: str
    delivered: int
    p50_seconds: Annotated[float, described("The median."), read_from("times", "p50")]
    p95_seconds: Annotated[P95Seconds, read_from("times", "p95")]
    p99_seconds: Annotated[P99Seconds, read_from("times", "p99")]


class OperatorLogEntry(Shown):
    model_config = examples(
        {
            "at": "2026-11-15T09:30:00.000Z",
            "actor": "ada@example.com",
            "action": "lane.paused",
            "target": "google",
            "account": None,
            "detail": {"reason": "they have an outage"},
        }
    )

    at: Annotated[Timestamp, read_from("entry", "at")]
    actor: Annotated[
        str, described("The operator's address; `operator` for a command."), read_from("entry", "actor", "name")
    ]
    action: Annotated[str, described("The action, such as `lane.paused`."), read_from("entry", "action")]
    target: Annotated[Target, read_from("entry", "target")]
    account: Annotated[str | None, described("The changed account's name, if one was changed.")]
    detail: Annotated[dict[str, Any], DETAIL, read_from("entry", "detail")]


class OperatorUsage(Shown):
    model_config = examples(
        {"since": "2026-11-15T08:00:00.000Z", "accepted": 9310, "delivered": 9105, "bounced": 84, "failed": 2}
    )

    since: Timestamp
    accepted: Annotated[int, described("Recipients of the mail accepted since then."), read_from("counts", "accepted")]
    delivered: Annotated[int, read_from("counts", "delivered")]
    bounced: Annotated[int, read_from("counts", "bounced")]
    failed: Annotated[int, read_from("counts", "failed")]


class OperatorOverview(Response):
    at: Timestamp
    due: Annotated[OperatorCount, described("Recipients that should be tried now."), read_from("backlog", "due")]
    leased: Annotated[
        OperatorCount, described("On their way to a worker, or due within a minute."), read_from("backlog", "leased")
    ]
    claimed: Annotated[OperatorCount, described("Recipients that a worker has."), read_from("backlog", "claimed")]
    later: Annotated[OperatorCount, described("Due later: deferred or scheduled."), read_from("backlog", "later")]
    held: Annotated[
        OperatorCount, described("Held; they are in none of the other counts."), read_from("backlog", "held")
    ]
    oldest_due_at: Annotated[
        OptionalTimestamp,
        described("Since when the oldest `due` recipient waits; null if there is none."),
        read_from("backlog", "oldest_due_at"),
    ]
    workers: Annotated[int, read_from("totals", "workers"), described("Delivery workers that are running.")]
    delivered_total: Annotated[
        int, read_from("totals", "delivered"), described("Recipients, since these workers started.")
    ]
    deferred_total: Annotated[
        int, read_from("totals", "deferred"), described("Recipients, since these workers started.")
    ]
    recent: Annotated[
        OperatorUsage, described("Live mail that was accepted in this hour and the one before, counted a minute late.")
    ]
    lanes: Annotated[list[OperatorLane], described("The first 20: resting, blocked or paused lanes, then the busiest.")]
    delays: Annotated[list[OperatorDelay], described("Providers that take mail much later than in the week before.")]
    latency: Annotated[
        list[OperatorLatency],
        described("From acceptance to delivery, for mail delivered in this hour and the last; the slowest first."),
    ]
    limit_changes: Annotated[list[OperatorLimitChange], described("The latest limit changes of all lanes.")]
    changes: Annotated[list[OperatorLogEntry], described("The latest changes by operators.")]


class OperatorWarmUp(Shown):
    model_config = examples({"lane": "google", "day": 3, "quota": 200, "accepted": 120, "accepted_before": [50, 100]})

    lane: Annotated[LaneText, read_from("warm_up", "lane")]
    day: Annotated[int, described("The day of the warm-up, from 1."), read_from("warm_up", "day")]
    quota: Annotated[int, read_from("warm_up", "quota"), described("Emails that may leave today.")]
    accepted: Annotated[int, described("Emails that the provider accepted today.")]
    accepted_before: Annotated[
        list[int], read_from("warm_up", "taken"), described("The same on the 30 days before, the newest last.")
    ]


class OperatorAddress(Shown):
    ip: Annotated[str, BeforeValidator(str), Field(examples=["192.0.2.10"])]
    hostname: Annotated[
        str, Field(description="The name with which mail from it greets other servers.", examples=["mta1.example.com"])
    ]
    pool: Annotated[str, Field(examples=["default"])]
    state: Annotated[str, Field(description="`active`, `resting` or `retired`.", examples=["active"])]
    listed_by: Annotated[list[str], described("DNS block lists that contain it.")]
    findings: Annotated[list[str], described("What the last check found wrong, for people.")]
    checked_at: OptionalTimestamp
    warms_up_since: Annotated[OptionalTimestamp, described("Null if providers knew it when it was added.")]
    warm_ups: Annotated[list[OperatorWarmUp], described("The 5 largest quotas of lanes that are still warming up.")]


class OperatorAddresses(Response):
    addresses: list[OperatorAddress]


class OperatorCheck(Shown):
    model_config = examples(
        {
            "check": "workers run",
            "is_well": False,
            "severity": "critical",
            "found": "none",
            "why": "Mail is accepted and waits.",
            "advice": "Start `posthouse run delivery`.",
            "runbook": "no-workers",
        }
    )

    check: Annotated[str, described("What is checked."), read_from("name")]
    is_well: Annotated[bool, described("Whether the check passed.")]
    severity: Severity
    found: Annotated[str, described("What was found.")]
    why: Annotated[str, described("Why it matters; empty if the check passed.")]
    advice: Annotated[str, described("What to do; empty if the check passed.")]
    runbook: Annotated[
        str | None, described("The name of its page below `/dashboard/runbooks/`; null if the check passed.")
    ]


class OperatorHealth(Response):
    checked_at: Timestamp
    checks: list[OperatorCheck]


class OperatorLog(Response):
    entries: list[OperatorLogEntry]


@router.get("/v1/operator/overview")
async def operator_overview(
    _: Operator, clock: Clock, lanes: Lanes, monitor: Monitor, provider_delays: ProviderDelays, reads: CachedReads
) -> OperatorOverview:
    """The queue, the lanes and the latest changes of the installation"""
    view = await reads.waiting.get(clock.now, monitor.waiting)
    # Lanes that don't take mail as usual come first.
    read_first = partial(lanes.first, LANES_SHOWN, stopped_first=True)
    first = await reads.stopped_lanes.get(clock.now, read_first)
    shown = listed(await lanes.shown(first.names, LANES_SHOWN))
    return OperatorOverview.of(
        view,
        recent=await reads.usage.get(clock.now, monitor.usage),
        lanes=sorted(shown, key=lambda row: row.state == LaneState.OPEN),
        delays=await provider_delays.known(),
        latency=await provider_delays.latency(),
        limit_changes=await lanes.log(None, LIMIT_CHANGES_SHOWN),
        changes=await monitor.operator_log(CHANGES_SHOWN),
    )


@router.get("/v1/operator/addresses")
async def operator_list_addresses(_: Operator, sending_addresses: SendingAddresses) -> OperatorAddresses:
    """The addresses that mail leaves from, and what the last check found"""
    warm_ups = _largest_warm_ups(await sending_addresses.list_warm_ups())
    rows = await sending_addresses.list_addresses()
    return OperatorAddresses(
        addresses=[OperatorAddress.of(row, warm_ups=warm_ups.get(str(row.ip), [])) for row in rows]
    )


def _largest_warm_ups(views: Sequence[WarmUpView]) -> dict[str, list[WarmUpView]]:
    """By address: the lanes with the largest quotas among those that are still warming up."""
    found: dict[str, list[WarmUpView]] = {}
    for view in sorted(views, key=lambda view: (-view.warm_up.quota, view.warm_up.lane)):
        if not view.warm_up.is_warm:
            found.setdefault(view.ip, []).append(view)
    return {ip: largest[:WARM_UPS_SHOWN] for ip, largest in found.items()}


@router.get("/v1/operator/health")
async def operator_health(_: Operator, clock: Clock, doctor: Doctor, reads: CachedReads) -> OperatorHealth:
    """What `posthouse doctor` finds, and what to do about it"""

    async def check() -> tuple[datetime, list[DoctorCheck]]:
        return clock.now(), list(await doctor.check_up())

    checked_at, found = await reads.checks.get(clock.now, check)
    return OperatorHealth(checked_at=checked_at, checks=OperatorCheck.of_all(found))


@router.get("/v1/operator/log")
async def operator_log(_: Operator, monitor: Monitor, limit: PageSize = PAGE_DEFAULT) -> OperatorLog:
    """What operators changed, newest first"""
    return OperatorLog(entries=OperatorLogEntry.of_all(await monitor.operator_log(limit)))
