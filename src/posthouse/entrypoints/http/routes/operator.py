"""The operator's routes: the queue, lanes, accounts, addresses, health and the log of the whole installation.

The same flows as the commands. A customer's token is refused, whatever its role.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.kept import Kept
from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.operator_flows import OperatorFlows
from posthouse.entrypoints.http.route_context import (
    PageSize,
    body_of,
    json_response,
    page_size,
    require_declared,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import operator as schemas
from posthouse.flows.operate.accounts import FirstAccounts
from posthouse.flows.operate.lane_rows import ListedLane, listed
from posthouse.flows.operate.lanes import FirstLanes, StoredLesson
from posthouse.flows.operate.monitor import (
    BoundedCount,
    OperatorLogEntry,
    QueueShare,
    QueueShares,
    RecentUsage,
    WaitingView,
)
from posthouse.flows.operate.queue_changes import Chosen
from posthouse.rules import ids, lesson_text
from posthouse.rules.check_up import DoctorCheck
from posthouse.rules.queue_change import described
from posthouse.rules.refusal import invalid
from posthouse.rules.standing import LaneState

router = APIRouter()

READ_ERRORS: Final = (400, 401, 403, 404, 500, 503)
CHANGE_ERRORS: Final = (400, 401, 403, 404, 409, 413, 500, 503)
CHANGES_SHOWN: Final = 20
LESSONS_SHOWN: Final = 20
# They are also drawn.
LESSONS_OF_LANE: Final = 100
WARM_UPS_SHOWN: Final = 5
LANES_SHOWN: Final = 20
LANES_LISTED: Final = 100
SHARES_SHOWN: Final = 50
LESSON_MAX: Final = 2**63 - 1
OLDER_THAN_SECONDS_MAX: Final = 366 * 24 * 3600
# Checks ask other servers: within this time the last result is shown again.
CHECKED_FOR: Final = timedelta(seconds=30)
# What is much to read is shown again for so long, however many pages are open.
READ_FOR: Final = timedelta(seconds=5)
RANKED_FOR: Final = timedelta(seconds=30)
MUCH: Final = 1_000

LaneName = Annotated[str, Path(description="A provider's name, such as google, or a domain.")]
LanePart = Annotated[str, Query(description="Only lanes whose names have this part.", examples=["example"])]


@dataclass(frozen=True, slots=True)
class KeptReads:
    """Of this process: several pages and operators share them."""

    checks: Kept[tuple[datetime, list[DoctorCheck]]] = field(default_factory=lambda: Kept(CHECKED_FOR))
    waiting: Kept[WaitingView] = field(default_factory=lambda: Kept(READ_FOR, lambda view: view.backlog.is_more))
    usage: Kept[RecentUsage] = field(default_factory=lambda: Kept(READ_FOR, lambda recent: recent.rows_read > MUCH))
    stopped_lanes: Kept[FirstLanes] = field(
        default_factory=lambda: Kept(READ_FOR, lambda first: first.rows_read > MUCH)
    )
    lanes: Kept[FirstLanes] = field(default_factory=lambda: Kept(READ_FOR, lambda first: first.rows_read > MUCH))
    # By order and number, of which there are few.
    accounts: dict[tuple[str, int], Kept[FirstAccounts]] = field(default_factory=dict)
    shares: Kept[QueueShares] = field(default_factory=lambda: Kept(READ_FOR, lambda shares: shares.is_more))


def kept_of(request: Request) -> KeptReads:
    kept: KeptReads = request.app.state.kept_reads
    return kept


async def flows_of(request: Request) -> OperatorFlows:
    """The flows, for an operator who logged in; everyone else is refused."""
    services = services_of(request)
    actor = await services.operators.admit(request.headers.get("authorization"))
    await require_declared(request)
    return services.operator_flows(actor)


@router.get(
    "/v1/operator/overview",
    operation_id="operatorOverview",
    summary="The queue, the lanes and the latest changes of the installation",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorOverview, *READ_ERRORS),
)
async def overview(request: Request) -> Response:
    flows = await flows_of(request)
    kept, now = kept_of(request), services_of(request).now
    view, recent = await kept.waiting.get(now, flows.monitor.waiting), await kept.usage.get(now, flows.monitor.usage)
    backlog, counts = view.backlog, recent.counts
    # Those that don't take mail as usual come first.
    first = await kept.stopped_lanes.get(now, partial(flows.lanes.first, LANES_SHOWN, stopped_first=True))
    lanes = listed(await flows.lanes.shown(first.names, LANES_SHOWN))
    shown = sorted(lanes, key=lambda row: row.state == LaneState.OPEN)
    return json_response(
        request,
        {
            "at": timestamp(view.at),
            "due": _count(backlog.due),
            "leased": _count(backlog.leased),
            "claimed": _count(backlog.claimed),
            "later": _count(backlog.later),
            "held": _count(backlog.held),
            "oldest_due_at": timestamp(backlog.oldest_due_at),
            "workers": view.totals.workers,
            "delivered_total": view.totals.delivered,
            "deferred_total": view.totals.deferred,
            "recent": {
                "since": timestamp(recent.since),
                "accepted": counts.accepted,
                "delivered": counts.delivered,
                "bounced": counts.bounced,
                "failed": counts.failed,
            },
            "lanes": [_lane(row) for row in shown],
            "delays": [
                {"provider": found.provider, "since": timestamp(found.since), **found.delay._asdict()}
                for found in await flows.provider_delays.known()
            ],
            "latency": [
                {
                    "provider": row.provider,
                    "delivered": row.delivered,
                    "p50_seconds": row.times.p50,
                    "p95_seconds": row.times.p95,
                    "p99_seconds": row.times.p99,
                }
                for row in await flows.provider_delays.latency()
            ],
            "lessons": [_lesson(found) for found in await flows.lanes.log(None, LESSONS_SHOWN)],
            "changes": [_entry(entry) for entry in await flows.monitor.operator_log(CHANGES_SHOWN)],
        },
    )


@router.get(
    "/v1/operator/lanes",
    operation_id="operatorListLanes",
    summary="The lanes that have mail, have learnt something, or are paused: the first 100",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorLanes, *READ_ERRORS),
)
async def list_lanes(request: Request, lane: LanePart = "") -> Response:
    flows = await flows_of(request)
    count = LANES_LISTED + 1
    if lane:
        first = await flows.lanes.first(count, part=lane)
    else:
        first = await kept_of(request).lanes.get(services_of(request).now, partial(flows.lanes.first, count))
    rows = listed(await flows.lanes.shown(first.names, count, part=lane))
    content = {"lanes": [_lane(row) for row in rows[:LANES_LISTED]], "is_more": len(rows) > LANES_LISTED}
    return json_response(request, content)


@router.get(
    "/v1/operator/lanes/{lane}",
    operation_id="operatorGetLane",
    summary="What holds for a lane, and the replies that it learnt it from",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorLaneDetail, *READ_ERRORS),
)
async def get_lane(request: Request, lane: LaneName) -> Response:
    flows = await flows_of(request)
    view = await flows.lanes.explain(lane, LESSONS_OF_LANE)
    rows = [_lane(row) for row in listed(await flows.lanes.one(lane))]
    return json_response(
        request,
        {
            "lane": view.lane,
            "begins_at": view.begins_at,
            "now": rows[0] if rows else None,
            "standings": [
                {
                    "address": found.place.ip,
                    "domain": found.place.domain,
                    "lines": list(lesson_text.described(found.standing, view.at)),
                }
                for found in view.standings
            ],
            "lessons": [_lesson(found) for found in view.lessons],
        },
    )


@router.post(
    "/v1/operator/lanes/{lane}/pause",
    operation_id="operatorPauseLane",
    summary="Begin no session with a lane until it is resumed",
    tags=["Operator"],
    openapi_extra=json_body(schemas.PauseRequest),
    responses=responses_with(200, schemas.LaneChanged, *CHANGE_ERRORS),
)
async def pause_lane(request: Request, lane: LaneName) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.PauseRequest)
    await flows.lanes.pause(lane, given.reason)
    return json_response(request, {"lane": lane, "state": "paused"})


@router.post(
    "/v1/operator/lanes/{lane}/resume",
    operation_id="operatorResumeLane",
    summary="End a lane's pause",
    tags=["Operator"],
    responses=responses_with(200, schemas.LaneChanged, *CHANGE_ERRORS),
)
async def resume_lane(request: Request, lane: LaneName) -> Response:
    flows = await flows_of(request)
    await flows.lanes.resume(lane)
    return json_response(request, {"lane": lane, "state": "open"})


@router.post(
    "/v1/operator/lanes/{lane}/pin",
    operation_id="operatorPinLane",
    summary="Keep a lane at a rate, whatever is refused; or let it learn again",
    tags=["Operator"],
    openapi_extra=json_body(schemas.PinRequest),
    responses=responses_with(200, schemas.LaneChanged, *CHANGE_ERRORS),
)
async def pin_lane(request: Request, lane: LaneName) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.PinRequest)
    if given.per_second is None:
        done = await flows.lanes.unpin(lane, given.address)
    else:
        done = await flows.lanes.pin(lane, given.per_second, given.address)
    return json_response(request, {"lane": done.place.lane, "state": done.after.state})


@router.post(
    "/v1/operator/lessons/{id}/undo",
    operation_id="operatorUndoLesson",
    summary="Put a lane back to what it was before a lesson",
    tags=["Operator"],
    responses=responses_with(200, schemas.LaneChanged, *CHANGE_ERRORS),
)
async def undo_lesson(
    request: Request,
    lesson: Annotated[
        str,
        Path(
            alias="id",
            description="The lesson's number.",
            json_schema_extra={"type": "integer", "minimum": 1, "maximum": LESSON_MAX},
        ),
    ],
) -> Response:
    flows = await flows_of(request)
    if not (lesson.isascii() and lesson.isdigit() and 1 <= int(lesson[:20]) <= LESSON_MAX):
        raise invalid("`id` is a lesson's number, as GET /v1/operator/lanes/{lane} shows it.")
    done = await flows.lanes.undo(int(lesson))
    return json_response(request, {"lane": done.place.lane, "state": done.after.state})


@router.get(
    "/v1/operator/queue",
    operation_id="operatorQueue",
    summary="Where the mail that waits goes, and whose it is",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorQueue, *READ_ERRORS),
)
async def queue(request: Request) -> Response:
    flows = await flows_of(request)
    shares = await kept_of(request).shares.get(services_of(request).now, partial(flows.monitor.shares, SHARES_SHOWN))
    content = {
        "destinations": [_share(share) for share in shares.destinations],
        "accounts": [_share(share) for share in shares.accounts],
        "is_more": shares.is_more,
    }
    return json_response(request, content)


@router.post(
    "/v1/operator/queue",
    operation_id="operatorChangeQueue",
    summary="Retry, hold, release or cancel mail that is not final; by default it only counts",
    tags=["Operator"],
    openapi_extra=json_body(schemas.QueueChangeRequest),
    responses=responses_with(200, schemas.QueueChanged, *CHANGE_ERRORS),
)
async def change_queue(request: Request) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.QueueChangeRequest)
    if given.older_than_seconds is not None and not 1 <= given.older_than_seconds <= OLDER_THAN_SECONDS_MAX:
        raise invalid(f"`older_than_seconds` is a number from 1 to {OLDER_THAN_SECONDS_MAX}.")
    age = None if given.older_than_seconds is None else timedelta(seconds=given.older_than_seconds)
    account_id = None if given.account is None else await flows.accounts.account_id(given.account)
    chosen = Chosen(given.message, account_id, given.destination, given.lane, age)
    selection = await flows.queue_changes.select(chosen)
    count = await flows.queue_changes.count(given.change, selection)
    recipients = count.recipients
    if not given.dry_run:
        older_than = None if age is None else f"{given.older_than_seconds}s"
        words = described(
            message=given.message,
            account=given.account,
            destination=given.destination,
            lane=given.lane,
            older_than=older_than,
        )
        recipients = await flows.queue_changes.apply(given.change, selection, words)
        kept_of(request).shares.forget()
        kept_of(request).waiting.forget()
    content = {"recipients": recipients, "being_tried": count.being_tried, "is_done": not given.dry_run}
    return json_response(request, content)


@router.get(
    "/v1/operator/addresses",
    operation_id="operatorListAddresses",
    summary="The addresses that mail leaves from, and what the last check found",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorAddresses, *READ_ERRORS),
)
async def list_addresses(request: Request) -> Response:
    flows = await flows_of(request)
    warm_ups = await _warm_ups(flows)
    rows = [
        {
            "ip": str(row.ip),
            "hostname": row.hostname,
            "pool": row.pool,
            "state": row.state,
            "listed_by": list(row.listed_by),
            "findings": list(row.findings),
            "checked_at": timestamp(row.checked_at),
            "warms_up_since": timestamp(row.warms_up_since),
            "warm_ups": warm_ups.get(str(row.ip), []),
        }
        for row in await flows.addresses.list_addresses()
    ]
    return json_response(request, {"addresses": rows})


@router.get(
    "/v1/operator/health",
    operation_id="operatorHealth",
    summary="What `posthouse doctor` finds, and what to do about it",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorHealth, *READ_ERRORS),
)
async def health(request: Request) -> Response:
    flows = await flows_of(request)
    now = services_of(request).now

    async def check() -> tuple[datetime, list[DoctorCheck]]:
        return now(), list(await flows.doctor.check_up())

    checked_at, found = await kept_of(request).checks.get(now, check)
    checks = [
        {
            "check": check.name,
            "is_well": check.is_well,
            "severity": check.severity,
            "found": check.found,
            "why": check.why,
            "advice": check.advice,
            "runbook": check.runbook,
        }
        for check in found
    ]
    return json_response(request, {"checked_at": timestamp(checked_at), "checks": checks})


@router.get(
    "/v1/operator/log",
    operation_id="operatorLog",
    summary="What operators changed, newest first",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorLog, *READ_ERRORS),
)
async def log(request: Request, limit: PageSize = "50") -> Response:
    flows = await flows_of(request)
    entries = await flows.monitor.operator_log(page_size(limit))
    return json_response(request, {"entries": [_entry(entry) for entry in entries]})


async def _warm_ups(flows: OperatorFlows) -> dict[str, list[dict[str, Any]]]:
    """By address: the lanes with the largest allowances, of those that warm up still."""
    found: dict[str, list[dict[str, Any]]] = {}
    views = [view for view in await flows.address_warm_ups.list_today() if not view.warm_up.is_warm]
    for view in sorted(views, key=lambda view: (-view.warm_up.allowance, view.warm_up.lane)):
        shown = found.setdefault(view.ip, [])
        if len(shown) < WARM_UPS_SHOWN:
            warm_up = view.warm_up
            shown.append(
                {
                    "lane": warm_up.lane,
                    "day": warm_up.day,
                    "allowance": warm_up.allowance,
                    "taken": view.taken,
                    "taken_before": list(warm_up.taken),
                }
            )
    return found


def _count(count: BoundedCount) -> dict[str, Any]:
    return {"count": count.number, "is_more": count.is_more}


def _share(share: QueueShare) -> dict[str, Any]:
    account_id = None if share.account_id is None else ids.text(ids.ACCOUNT, share.account_id)
    return {"name": share.name, "id": account_id, "waiting": share.waiting, "held": share.held}


def _lane(row: ListedLane) -> dict[str, Any]:
    return {**row._asdict(), "rests_until": timestamp(row.rests_until), "since": timestamp(row.since)}


def _lesson(found: StoredLesson) -> dict[str, Any]:
    lesson = found.lesson
    message_id = lesson.refused.message_id
    return {
        "id": found.id,
        "at": timestamp(lesson.at),
        "lane": lesson.place.lane,
        "address": lesson.place.ip,
        "kind": lesson.kind,
        "what": lesson_text.said(lesson),
        "reply": lesson.refused.reply,
        "message": None if message_id is None else ids.text(ids.MESSAGE, message_id),
        "until": timestamp(lesson.until),
        "per_second": lesson.after.per_second,
        "was_per_second": lesson.before.per_second,
    }


def _entry(found: OperatorLogEntry) -> dict[str, Any]:
    entry = found.entry
    return {
        "at": timestamp(entry.at),
        "actor": entry.actor.name,
        "action": entry.action,
        "target": entry.target,
        "account": found.account,
        "detail": dict(entry.detail),
    }
