"""Request and response schemas of the operator's routes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from posthouse.entrypoints.http.schemas.message_detail import Attempt
from posthouse.entrypoints.http.schemas.shapes import (
    NextCursor,
    OptionalTimestamp,
    Request,
    Response,
    Timestamp,
    described,
)
from posthouse.rules import standing as rules
from posthouse.rules.check_up import Severity
from posthouse.rules.credential import Role
from posthouse.rules.message import MessageStatus, RecipientStatus, Source
from posthouse.rules.nearest_limit import LimitKind
from posthouse.rules.queue_change import QueueChange


class OperatorCount(BaseModel):
    count: int
    is_more: Annotated[bool, described("There are more than were counted.")]


class OperatorLane(BaseModel):
    lane: str
    state: Annotated[str, described("`open`, `resting`, `blocked` or `paused`.")]
    waiting: int
    in_flight: int
    connections: int
    delivered_total: Annotated[int, described("Since the workers began.")]
    deferred_total: Annotated[int, described("Since the workers began.")]
    per_second: Annotated[float | None, described("The strictest rate that it has learnt; null if none.")]
    ceiling: Annotated[float | None, described("The rate above which the destination refused mail; null if none.")]
    rests_until: Annotated[str | None, described("The end of its rest or block.", format="date-time")]
    pinned: bool
    since: OptionalTimestamp
    reason: str | None
    last_reply: str | None


class OperatorDelay(BaseModel):
    provider: str
    since: Timestamp
    p95_seconds: float
    week_p95_seconds: float


class OperatorLatency(BaseModel):
    provider: str
    delivered: int
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


class OperatorLogEntry(BaseModel):
    at: Timestamp
    actor: str
    action: str
    target: str
    account: str | None
    detail: dict[str, Any]


class OperatorLesson(BaseModel):
    id: int
    at: Timestamp
    lane: str
    address: str
    kind: str
    what: Annotated[str, described("What changed, in words.")]
    reply: str | None
    message: str | None
    until: OptionalTimestamp
    per_second: Annotated[float, described("The rate after it.")]
    was_per_second: Annotated[float, described("The rate before it.")]


class OperatorUsage(BaseModel):
    since: Timestamp
    accepted: int
    delivered: int
    bounced: int
    failed: int


class OperatorOverview(Response):
    at: Timestamp
    due: OperatorCount
    leased: OperatorCount
    claimed: OperatorCount
    later: OperatorCount
    held: OperatorCount
    oldest_due_at: OptionalTimestamp
    workers: Annotated[int, described("Delivery workers that report.")]
    delivered_total: Annotated[int, described("Recipients, since these workers began.")]
    deferred_total: Annotated[int, described("Recipients, since these workers began.")]
    recent: Annotated[
        OperatorUsage, described("Live mail that was accepted in this hour and the one before, counted a minute late.")
    ]
    lanes: Annotated[
        list[OperatorLane], described("The first 20: those that rest or are blocked or paused, then the busiest.")
    ]
    delays: Annotated[list[OperatorDelay], described("Providers that take mail much later than in the week before.")]
    latency: Annotated[
        list[OperatorLatency],
        described("From acceptance to delivery, of mail delivered in this hour and the one before; the slowest first."),
    ]
    lessons: Annotated[list[OperatorLesson], described("The latest lessons of all lanes.")]
    changes: Annotated[list[OperatorLogEntry], described("The latest changes by operators.")]


class OperatorLanes(Response):
    lanes: Annotated[list[OperatorLane], described("Paused ones first, then the busiest; 100 at most.")]
    is_more: Annotated[bool, described("There are more than these.")]


class OperatorStanding(BaseModel):
    address: str
    domain: str | None
    lines: Annotated[list[str], described("What holds, in words.")]


class OperatorLaneDetail(Response):
    lane: str
    begins_at: Annotated[float, described("Mails a second before anything is learnt.")]
    now: Annotated[OperatorLane | None, described("Null while it has no mail, no lesson and no pause.")]
    standings: list[OperatorStanding]
    lessons: Annotated[list[OperatorLesson], described("The latest 100, newest first.")]


class PauseRequest(Request):
    reason: Annotated[str, described("Why, for the other operators.")] = ""


class PinRequest(Request):
    per_second: Annotated[
        float | None, described("Mails a second; null lets it learn again.", minimum=rules.PER_SECOND_MIN)
    ]
    address: Annotated[str, described("Our address that it holds for, if there are several.")] = ""


class LaneChanged(Response):
    lane: str
    state: str


class OperatorShare(BaseModel):
    name: str
    id: Annotated[str | None, described("Of an account.")]
    waiting: Annotated[int, described("Recipients that are not final, held ones as well.")]
    held: int


class OperatorQueue(Response):
    destinations: Annotated[list[OperatorShare], described("The 50 with the most mail.")]
    accounts: Annotated[list[OperatorShare], described("The 50 with the most mail.")]
    is_more: Annotated[bool, described("Only the 4,000 due soonest and the 4,000 held longest were counted.")]


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


class NearestLimit(BaseModel):
    kind: LimitKind
    share: Annotated[
        float,
        described("The used part of today's warm-up, or of credits for 7 days; 1 at the limit.", minimum=0, maximum=1),
    ]
    days_left: Annotated[float | None, described("How long credits last; null of a warm-up.", minimum=0)]


class OperatorAccount(BaseModel):
    id: str
    name: str
    state: Annotated[str, described("`active`, `suspended` or `closed`.")]
    available: int
    suspended_at: OptionalTimestamp
    suspended_reason: str | None
    created_at: Timestamp
    warned_at: Annotated[str | None, described("When its bounces or complaints became too many.", format="date-time")]
    accepted: Annotated[int, described("Recipients of live mail that it sent in the last 24 hours.")]
    delivered: int
    bounced: int
    failed: int
    erased: Annotated[int, described("Addresses of this mail that the account erased; their results count as before.")]
    nearest_limit: Annotated[NearestLimit | None, described("Null while it is near to none, or suspended.")]


class OperatorAccounts(Response):
    accounts: list[OperatorAccount]
    next_cursor: NextCursor


class SuspendRequest(Request):
    reason: Annotated[str, described("Why; the owners see it.", minLength=1)]


class OperatorAccountChanged(Response):
    account: OperatorAccount


class OperatorLimits(BaseModel):
    rate_per_second: Annotated[float, described("Requests per second that hold.")]
    rate_burst: Annotated[int, described("Requests at once that hold.")]
    warmup_day: int
    warmup_limit: Annotated[int | None, described("Today's limit of recipients; null without one.")]
    warmup_used: Annotated[int, described("Recipients of mail accepted today.")]
    own_rate_per_second: Annotated[int | None, described("Null: the service's.")]
    own_rate_burst: Annotated[int | None, described("Null: the service's.")]
    own_warmup: Annotated[list[int] | Literal["exempt"] | None, described("Recipients a day; null: the service's.")]


class OperatorDomain(BaseModel):
    name: str
    verified_at: OptionalTimestamp


class OperatorMember(BaseModel):
    id: str
    email: str
    role: Role


class OperatorAccountDetail(Response):
    account: OperatorAccount
    granted: Annotated[int, described("All credits ever granted, less those taken back.")]
    waiting: Annotated[int, described("Recipients that are not final; at most the oldest 10,000 are counted.")]
    limits: OperatorLimits
    domains: Annotated[list[OperatorDomain], described("100 at most.")]
    users: Annotated[list[OperatorMember], described("100 at most.")]


class LimitsRequest(Request):
    rate_per_second: Annotated[
        int | Literal["default"] | None, described("Requests per second; `default`: the service's.", minimum=1)
    ] = None
    rate_burst: Annotated[
        int | Literal["default"] | None, described("Requests at once; `default`: the service's.", minimum=1)
    ] = None
    warmup: Annotated[
        list[int] | Literal["default", "exempt"] | None,
        described("Recipients a day, day by day; `exempt`: without limit; `default`: the service's."),
    ] = None


class GrantRequest(Request):
    amount: Annotated[int, described("How many; a negative number takes back a mistake.")]
    reason: Annotated[str, described("Why; the owners see it.", minLength=1)]


class AccountVisit(Response):
    account_id: str
    account: Annotated[str, described("The account's name.")]
    token: Annotated[str, described("For the routes that a viewer may read.")]
    expires_at: Timestamp


class FoundMessage(BaseModel):
    id: str
    account_id: str
    account: Annotated[str, described("The account's name.")]
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from", description="As given, with its display name if any.")]
    to: Annotated[list[str], described("The first three recipients, including `cc` and `bcc`.")]
    recipient_count: Annotated[int, described("The number of all recipients.")]
    created_at: Timestamp


class FoundMessages(Response):
    messages: Annotated[list[FoundMessage], described("The newest first, 50 at most.")]
    is_more: Annotated[bool, described("There are older ones within the 7 days.")]


class ExplainedRecipient(BaseModel):
    email: str
    status: RecipientStatus
    now: Annotated[str | None, described("What it waits for, in words; null once its result is final.")]
    next_at: OptionalTimestamp
    final_at: OptionalTimestamp
    reason: Annotated[str, described("A stable name, for programs.")]
    cause: Annotated[str | None, described("Whose side the cause is on; null when nothing is wrong.")]
    why: Annotated[str, described("What happened, in words.")]
    lane: Annotated[str | None, described("The lesson that stops its lane, in words; null if none does.")]
    what_to_do: Annotated[str, described("What the sender can do.")]
    operator: Annotated[str | None, described("What an operator can do.")]
    attempts: Annotated[list[Attempt], described("Oldest first.")]


class ExplainedMessage(Response):
    id: str
    account_id: str
    account: Annotated[str, described("The account's name.")]
    suspended_reason: Annotated[str | None, described("Null unless the account is suspended.")]
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    created_at: Timestamp
    accepted_request_id: Annotated[str, described("The request or SMTP transaction that submitted it.")]
    recipients: list[ExplainedRecipient]
    is_shortened: Annotated[bool, described("Only the latest 2,000 attempts are listed.")]


class OperatorWarmUp(BaseModel):
    lane: str
    day: int
    allowance: Annotated[int, described("Mails today.")]
    taken: Annotated[int, described("Mails that were taken today.")]
    taken_before: Annotated[list[int], described("On the 30 days before, the newest last.")]


class OperatorAddress(BaseModel):
    ip: str
    hostname: str
    pool: str
    state: str
    listed_by: list[str]
    findings: list[str]
    checked_at: OptionalTimestamp
    warms_up_since: OptionalTimestamp
    warm_ups: Annotated[
        list[OperatorWarmUp], described("The 5 lanes with the largest allowances, if they warm up still.")
    ]


class OperatorAddresses(Response):
    addresses: list[OperatorAddress]


class OperatorUserAccount(BaseModel):
    id: str
    name: str
    role: Role


class OperatorUserSession(BaseModel):
    id: str
    created_at: Timestamp
    expires_at: Timestamp
    address: Annotated[str, described("Where the login came from.")]
    user_agent: Annotated[str, described("The `User-Agent` of the login.")]


class OperatorUser(BaseModel):
    id: str
    email: str
    created_at: Timestamp
    operator_since: Annotated[str | None, described("Null: no operator.", format="date-time")]
    has_second_factor: bool
    accounts: Annotated[list[OperatorUserAccount], described("100 at most.")]
    sessions: Annotated[list[OperatorUserSession], described("Those that have not ended, newest first.")]


class OperatorUsers(Response):
    users: Annotated[list[OperatorUser], described("One at most; without `q`, the first 100 operators.")]


class EndSessionsRequest(Request):
    session: Annotated[str | None, described("Its id; null: all of them.")] = None


class SessionsEnded(Response):
    ended: Annotated[int, described("How many.")]


class InboxEntry(BaseModel):
    id: str
    at: Timestamp
    recipient: str
    sender: Annotated[str, described("Of the envelope; empty for a report.")]
    peer: Annotated[str, described("The server that brought it.")]
    subject: str
    bytes: int


class OperatorInbox(Response):
    mails: Annotated[list[InboxEntry], described("1,000 at most.")]


class OperatorInboxMail(Response):
    mail: InboxEntry
    source: Annotated[str, described("Its first 256 KiB, as they came.")]
    is_shortened: bool


class OperatorCheck(BaseModel):
    check: str
    is_well: bool
    severity: Severity
    found: str
    why: str
    advice: str
    runbook: Annotated[
        str | None, described("Its page is at `/dashboard/runbooks/` with this name; null if the check is well.")
    ]


class OperatorHealth(Response):
    checked_at: Timestamp
    checks: list[OperatorCheck]


class OperatorLog(Response):
    entries: list[OperatorLogEntry]
