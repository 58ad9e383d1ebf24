"""The operator's operations of lanes and of the queue.

Lanes: what they have learned; pause, resume and pin them. The queue: where mail waits; retry, hold, release or cancel
it.
"""

from datetime import timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import BeforeValidator, Field

from posthouse.clock import Clock
from posthouse.entrypoints.http.cached_read import CachedReads
from posthouse.entrypoints.http.operation import Converted, Operations, Operator
from posthouse.entrypoints.http.shapes import (
    OptionalTimestamp,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.lanes import Lanes, listed
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.queue_changes import Chosen, QueueChanges
from posthouse.rules import ids, learned_limits, queue_change
from posthouse.rules.queue_change import QueueChange
from posthouse.rules.refusal import invalid

router = Operations("Operator")

# They are also drawn as a chart.
LIMIT_CHANGES_OF_LANE: Final = 100
LANES_LISTED: Final = 100
LIMIT_CHANGE_MAX: Final = 2**63 - 1
SHARES_SHOWN: Final = 50
OLDER_THAN_SECONDS_MAX: Final = 366 * 24 * 3600

LaneName = Annotated[str, Path(description="A provider's name, such as google, or a domain.")]
_LANE: Final = Field(examples=["google"])
LaneText = Annotated[str, described("A provider, such as `google`, or a domain.")]
LaneStateText = Annotated[str, described("`open`, `resting`, `blocked` or `paused`.")]
AddressText = Annotated[
    str, described("Our address (empty if single) or From's `@domain`; after `>`, a destination and account.")
]
LanePart = Annotated[str, Query(description="Only lanes whose names contain this text.", examples=["example"])]


def _limit_change_number(given: str) -> int:
    if given.isascii() and given.isdigit() and len(given) < 20 and 1 <= int(given) <= LIMIT_CHANGE_MAX:
        return int(given)
    raise invalid("`id` is a limit change's number, as GET /v1/operator/lanes/{lane} shows it.")


LimitChangeNumber = Annotated[
    int,
    Path(
        alias="id",
        description="The limit change's number.",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": LIMIT_CHANGE_MAX},
    ),
    Converted(_limit_change_number),
]


class OperatorLane(Shown):
    model_config = examples(
        {
            "lane": "google",
            "state": "paused",
            "waiting": 412,
            "in_flight": 0,
            "connections": 0,
            "delivered_total": 81203,
            "deferred_total": 310,
            "per_second": 12.5,
            "ceiling": 14.0,
            "rests_until": None,
            "pinned": False,
            "since": "2026-11-15T09:30:00.000Z",
            "reason": "they have an outage",
            "last_reply": "421 4.7.28 too many messages from this address",
        }
    )

    lane: LaneText
    state: LaneStateText
    waiting: Annotated[int, described("Recipients that wait for their turn at a worker.")]
    in_flight: Annotated[int, described("Recipients that are being sent now.")]
    connections: Annotated[int, described("Open connections to its servers.")]
    delivered_total: Annotated[int, described("Since the workers started.")]
    deferred_total: Annotated[int, described("Since the workers started.")]
    per_second: Annotated[float | None, described("The strictest rate that it has learned; null if none.")]
    ceiling: Annotated[float | None, described("The rate above which the destination refused mail; null if none.")]
    rests_until: Annotated[OptionalTimestamp, described("The end of its pause or block.")]
    pinned: Annotated[bool, described("Whether an operator set its rate, so that it learns none.")]
    since: Annotated[OptionalTimestamp, described("When an operator paused it; null if none did.")]
    reason: Annotated[str | None, described("Why the operator paused it.")]
    last_reply: Annotated[str | None, described("The last reply of one of its servers.")]


class OperatorLimitChange(Shown):
    model_config = examples(
        {
            "id": 71,
            "at": "2026-11-15T09:30:00.000Z",
            "lane": "google",
            "address": "192.0.2.10",
            "kind": "grew",
            "what": "14 messages a second instead of 12.5: it had more mail, and nothing was refused",
            "reply": "",
            "message": None,
            "until": None,
            "per_second": 14.0,
            "was_per_second": 12.5,
        }
    )

    id: Annotated[int, described("Its number, with which it can be undone.")]
    at: Annotated[Timestamp, read_from("change", "at")]
    lane: Annotated[LaneText, read_from("change", "scope", "lane")]
    address: Annotated[AddressText, read_from("change", "scope", "ip")]
    kind: Annotated[str, described("Such as `slow`, `grew`, `block` or `pinned`."), read_from("change", "kind")]
    what: Annotated[
        str, BeforeValidator(learned_limits.change_text), read_from("change"), described("A description of the change.")
    ]
    reply: Annotated[
        str | None, described("The reply that caused it; empty if none did."), read_from("change", "refused", "reply")
    ]
    message: Annotated[
        Annotated[ids.MessageId, id_text(ids.MESSAGE)] | None,
        described("The message that got this reply."),
        read_from("change", "refused", "message_id"),
    ]
    until: Annotated[
        OptionalTimestamp, described("Until when it stops the lane; null if it doesn't."), read_from("change", "until")
    ]
    per_second: Annotated[float, read_from("change", "after", "per_second"), described("The rate after the change.")]
    was_per_second: Annotated[
        float, read_from("change", "before", "per_second"), described("The rate before the change.")
    ]


class OperatorLearnedLimits(Shown):
    address: Annotated[AddressText, Field(examples=["192.0.2.10"]), read_from("scope", "ip")]
    domain: Annotated[
        str | None, described("The From domain to which they apply; null: any."), read_from("scope", "domain")
    ]
    lines: Annotated[list[str], described("A description of the learned limits.")]


class OperatorLanes(Response):
    lanes: Annotated[list[OperatorLane], described("Paused ones first, then the busiest; at most 100.")]
    is_more: Annotated[bool, described("Whether there are more than these.")]


class OperatorLaneDetail(Response):
    lane: Annotated[str, _LANE]
    begins_at: Annotated[float, described("Messages per second before anything is learned.")]
    now: Annotated[OperatorLane | None, described("Null if it has no mail, no limit change and no pause.")]
    learned_limits: list[OperatorLearnedLimits]
    limit_changes: Annotated[list[OperatorLimitChange], described("The latest 100, newest first.")]


class PauseRequest(RequestModel):
    model_config = examples({"reason": "they have an outage"})

    reason: Annotated[str, described("The reason, for the other operators.")] = ""


class PinRequest(RequestModel):
    model_config = examples({"per_second": 5})

    per_second: Annotated[
        float | None, described("Messages per second; null lets it learn again.", minimum=learned_limits.PER_SECOND_MIN)
    ]
    address: Annotated[str, described("The sending address to which it applies, if there are several.")] = ""


class LaneChanged(Response):
    lane: Annotated[str, _LANE, read_from("scope", "lane")]
    state: Annotated[LaneStateText, Field(examples=["paused"]), read_from("after", "state")]


@router.get("/v1/operator/lanes")
async def operator_list_lanes(
    _: Operator, clock: Clock, lanes: Lanes, reads: CachedReads, lane: LanePart = ""
) -> OperatorLanes:
    """The lanes that have mail, have learned something, or are paused: the first 100"""
    count = LANES_LISTED + 1
    if lane:
        first = await lanes.first(count, part=lane)
    else:
        first = await reads.lanes.get(clock.now, partial(lanes.first, count))
    rows = listed(await lanes.shown(first.names, count, part=lane))
    return OperatorLanes(lanes=OperatorLane.of_all(rows[:LANES_LISTED]), is_more=len(rows) > LANES_LISTED)


@router.get("/v1/operator/lanes/{lane}")
async def operator_get_lane(_: Operator, lanes: Lanes, lane: LaneName) -> OperatorLaneDetail:
    """A lane's learned limits, and the replies that they were learned from"""
    view = await lanes.explain(lane, LIMIT_CHANGES_OF_LANE)
    rows = listed(await lanes.one(lane))
    learned = [
        OperatorLearnedLimits.of(found, lines=learned_limits.limits_text(found.limits, view.at))
        for found in view.learned_limits
    ]
    return OperatorLaneDetail.of(view, now=rows[0] if rows else None, learned_limits=learned)


@router.post("/v1/operator/lanes/{lane}/pause", errors=(409,))
async def operator_pause_lane(_: Operator, lanes: Lanes, lane: LaneName, body: PauseRequest) -> LaneChanged:
    """Start no session in a lane until it is resumed"""
    await lanes.pause(lane, body.reason)
    return LaneChanged(lane=lane, state="paused")


@router.post("/v1/operator/lanes/{lane}/resume", errors=(409,))
async def operator_resume_lane(_: Operator, lanes: Lanes, lane: LaneName) -> LaneChanged:
    """End a lane's pause"""
    await lanes.resume(lane)
    return LaneChanged(lane=lane, state="open")


@router.post("/v1/operator/lanes/{lane}/pin")
async def operator_pin_lane(_: Operator, lanes: Lanes, lane: LaneName, body: PinRequest) -> LaneChanged:
    """Keep a lane at a rate, whatever is refused; or let it learn again"""
    if body.per_second is None:
        return LaneChanged.of(await lanes.unpin(lane, body.address))
    return LaneChanged.of(await lanes.pin(lane, body.per_second, body.address))


@router.post("/v1/operator/limit-changes/{id}/undo")
async def operator_undo_limit_change(_: Operator, lanes: Lanes, number: LimitChangeNumber) -> LaneChanged:
    """Restore a lane to its state before a limit change"""
    return LaneChanged.of(await lanes.undo(number))


class OperatorShare(Shown):
    model_config = examples({"name": "google", "id": None, "waiting": 412, "held": 0})

    name: Annotated[str, described("The destination's lane, or the account's name.")]
    id: Annotated[
        Annotated[ids.AccountId, id_text(ids.ACCOUNT)] | None,
        read_from("account_id"),
        described("The account's id; null for a destination."),
    ]
    waiting: Annotated[int, described("Recipients that are not final, including held ones.")]
    held: Annotated[int, described("How many of these are held.")]


class OperatorQueue(Response):
    destinations: Annotated[list[OperatorShare], described("The 50 with the most mail.")]
    accounts: Annotated[list[OperatorShare], described("The 50 with the most mail.")]
    is_more: Annotated[bool, described("Whether only the 4,000 due soonest and the 4,000 held longest were counted.")]


class QueueChangeRequest(RequestModel):
    model_config = examples({"change": "hold", "account": "acme", "dry_run": True})

    change: Annotated[
        QueueChange,
        described("`cancel` ends mail as failed; `release_restored` sends what a restore held."),
        Field(strict=False),
    ]
    message: Annotated[str | None, described("The id of a message.")] = None
    account: Annotated[str | None, described("The account's name or id.")] = None
    destination: Annotated[str | None, described("The recipients' domain.")] = None
    lane: Annotated[str | None, described("A provider, such as `google`, or a domain.")] = None
    older_than_seconds: Annotated[int | None, described("Only mail accepted longer ago than this.", minimum=1)] = None
    dry_run: Annotated[bool, described("Only count.")] = True


class QueueChanged(Response):
    model_config = examples({"recipients": 412, "being_tried": 3, "is_done": False})

    recipients: Annotated[int, described("How many were changed, or would be.")]
    being_tried: Annotated[int, described("How many are being tried at this moment, and so are left out.")]
    is_done: Annotated[bool, described("False if they were only counted.")]


@router.get("/v1/operator/queue")
async def operator_queue(_: Operator, clock: Clock, monitor: Monitor, reads: CachedReads) -> OperatorQueue:
    """Where the waiting mail goes, and whose it is"""
    return OperatorQueue.of(await reads.shares.get(clock.now, partial(monitor.shares, SHARES_SHOWN)))


@router.post("/v1/operator/queue", errors=(404,))
async def operator_change_queue(
    _: Operator, queue_changes: QueueChanges, accounts: Accounts, body: QueueChangeRequest, reads: CachedReads
) -> QueueChanged:
    """Retry, hold, release or cancel mail that is not final; by default it only counts"""
    seconds = body.older_than_seconds
    if seconds is not None and not 1 <= seconds <= OLDER_THAN_SECONDS_MAX:
        raise invalid(f"`older_than_seconds` is a number from 1 to {OLDER_THAN_SECONDS_MAX}.")
    age = None if seconds is None else timedelta(seconds=seconds)
    account_id = None if body.account is None else await accounts.account_id(body.account)
    chosen = Chosen(body.message, account_id, body.destination, body.lane, age)
    selection = await queue_changes.select(chosen)
    count = await queue_changes.count(body.change, selection)
    recipients = count.recipients
    if not body.dry_run:
        words = queue_change.described(
            message=body.message,
            account=body.account,
            destination=body.destination,
            lane=body.lane,
            older_than=None if seconds is None else f"{seconds}s",
        )
        recipients = await queue_changes.apply(body.change, selection, words)
        reads.shares.forget()
        reads.waiting.forget()
    return QueueChanged(recipients=recipients, being_tried=count.being_tried, is_done=not body.dry_run)
