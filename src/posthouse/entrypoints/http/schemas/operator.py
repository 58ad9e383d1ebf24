"""Request and response schemas of the operator's routes."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from posthouse.entrypoints.http.schemas.shapes import (
    NextCursor,
    OptionalTimestamp,
    Request,
    Response,
    Timestamp,
    described,
)
from posthouse.rules.check_up import Severity
from posthouse.rules.queue_change import QueueChange


class OperatorCount(BaseModel):
    count: int
    is_more: Annotated[bool, described("There are more than were counted.")]


class OperatorLane(BaseModel):
    lane: str
    state: Annotated[str, described("`open`, `resting`, `blocked` or `paused`.")]
    waiting: int
    in_flight: int
    per_second: Annotated[float | None, described("The strictest rate that it has learnt; null if none.")]
    pinned: bool
    since: OptionalTimestamp
    reason: str | None
    last_reply: str | None


class OperatorDelay(BaseModel):
    provider: str
    since: Timestamp
    p95_seconds: float
    week_p95_seconds: float


class OperatorLogEntry(BaseModel):
    at: Timestamp
    actor: str
    action: str
    target: str
    account: str | None
    detail: dict[str, Any]


class OperatorOverview(Response):
    at: Timestamp
    due: OperatorCount
    leased: OperatorCount
    claimed: OperatorCount
    later: OperatorCount
    held: OperatorCount
    oldest_due_at: OptionalTimestamp
    workers: Annotated[int, described("Delivery workers that report.")]
    lanes: Annotated[list[OperatorLane], described("Those with mail, a lesson or a pause; the busiest first.")]
    delays: Annotated[list[OperatorDelay], described("Providers that take mail much later than in the week before.")]
    changes: Annotated[list[OperatorLogEntry], described("The latest changes by operators.")]


class OperatorLanes(Response):
    lanes: list[OperatorLane]


class OperatorLesson(BaseModel):
    id: int
    at: Timestamp
    address: str
    kind: str
    what: Annotated[str, described("What changed, in words.")]
    reply: str | None
    message: str | None
    until: OptionalTimestamp


class OperatorStanding(BaseModel):
    address: str
    domain: str
    lines: Annotated[list[str], described("What holds, in words.")]


class OperatorLaneDetail(Response):
    lane: str
    begins_at: Annotated[float, described("Mails a second before anything is learnt.")]
    standings: list[OperatorStanding]
    lessons: list[OperatorLesson]


class PauseRequest(Request):
    reason: Annotated[str, described("Why, for the other operators.")] = ""


class LaneChanged(Response):
    lane: str
    state: str


class QueueChangeRequest(Request):
    change: Annotated[QueueChange, described("What happens to the mail."), Field(strict=False)]
    message: str | None = None
    account: Annotated[str | None, described("Its name or id.")] = None
    destination: str | None = None
    lane: str | None = None
    older_than_seconds: Annotated[int | None, described("Accepted longer ago than this.", minimum=1)] = None
    dry_run: Annotated[bool, described("Only count.")] = True


class QueueChanged(Response):
    recipients: Annotated[int, described("How many were changed, or would be.")]
    being_tried: Annotated[int, described("How many are being tried at this moment, and are left out.")]
    is_done: bool


class OperatorAccount(BaseModel):
    id: str
    name: str
    state: Annotated[str, described("`active`, `suspended` or `closed`.")]
    available: int
    suspended_at: OptionalTimestamp
    suspended_reason: str | None
    created_at: Timestamp


class OperatorAccounts(Response):
    accounts: list[OperatorAccount]
    next_cursor: NextCursor


class SuspendRequest(Request):
    reason: Annotated[str, described("Why; the owners see it.", minLength=1)]


class OperatorAccountChanged(Response):
    account: OperatorAccount


class OperatorAddress(BaseModel):
    ip: str
    hostname: str
    pool: str
    state: str
    listed_by: list[str]
    findings: list[str]
    checked_at: OptionalTimestamp
    warms_up_since: OptionalTimestamp


class OperatorAddresses(Response):
    addresses: list[OperatorAddress]


class OperatorCheck(BaseModel):
    check: str
    is_well: bool
    severity: Severity
    found: str
    why: str
    advice: str


class OperatorHealth(Response):
    checked_at: Timestamp
    checks: list[OperatorCheck]


class OperatorLog(Response):
    entries: list[OperatorLogEntry]
