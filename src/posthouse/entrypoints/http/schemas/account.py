"""Response schemas of the account, its usage and its ledger."""

from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.message_detail import Explanation
from posthouse.entrypoints.http.schemas.shapes import NextCursor, OptionalTimestamp, Response, Timestamp, described
from posthouse.flows.account.usage_and_ledger import Kind
from posthouse.rules.credential import Role
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.explanation import explain_result
from posthouse.rules.message import RecipientStatus
from posthouse.rules.progress import Step
from posthouse.rules.reputation import ReputationVerdict

_Day = Annotated[str, described("A day in UTC.", format="date")]
_CountedAt = Annotated[
    str | None,
    described(
        "The numbers of all days include everything before this time; null before the first count.", format="date-time"
    ),
]

_REQUEST_ID: Final = "rq_01k6wq3v5e7m8x9c0b2d4f6h8j"
_WAITING_EXAMPLE: Final[dict[str, Any]] = {"queued": 3, "deferred": 2, "held": 0, "is_more": False}
_PROVIDER_EXAMPLE: Final[dict[str, Any]] = {
    "provider": "google",
    "results": 812,
    "p50_seconds": 1.24,
    "p95_seconds": 4.4,
    "p99_seconds": 61.0,
    "delivered": 790,
    "bounced": 20,
    "failed": 2,
    "time_to_delivered": {"p50_seconds": 1.22, "p95_seconds": 4.1, "p99_seconds": 60.0},
}
_COUNTS_EXAMPLE: Final[dict[str, Any]] = {"accepted": 830, "delivered": 790, "bounced": 31, "failed": 4, "open": 5}
_TEST_COUNTS_EXAMPLE: Final[dict[str, Any]] = {"accepted": 12, "delivered": 12, "bounced": 0, "failed": 0, "open": 0}
_REASON_EXAMPLE: Final[dict[str, Any]] = {
    "provider": "google",
    "result": "bounced",
    "code": "5.1.1",
    "count": 18,
    "example_message_id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    "explanation": asdict(explain_result("bounced", DeliveryReason.UNKNOWN_ADDRESS)),
}


class Credits(BaseModel):
    available: Annotated[int, described("Credits that can be spent now.")]
    reserved: Annotated[int, described("Reserved for mail without a final result; a lower bound when `is_more`.")]
    granted: Annotated[int, described("All credits ever granted, less those taken back.")]
    is_more: Annotated[bool, described("Whether there is more mail without a final result than is counted.")]


class WaitingMail(BaseModel):
    queued: Annotated[int, described("Recipients not tried yet.")]
    deferred: Annotated[int, described("Recipients tried already, to be tried again.")]
    held: Annotated[int, described("How many of these are held because the account is suspended or a lane is paused.")]
    is_more: Annotated[bool, described("Whether there are more: only the oldest 10,000 are counted.")]


class Sending(BaseModel):
    suspended: bool
    reason: Annotated[str | None, described("Why the account is suspended.")]
    since: OptionalTimestamp


class Rate(BaseModel):
    per_second: Annotated[int, described("Requests per second.")]
    burst: Annotated[int, described("Requests at once.")]
    remaining: Annotated[int, described("How many requests could be sent at once now.")]
    reset_seconds: Annotated[int, described("Seconds until the whole burst is available again.")]


class WarmUp(BaseModel):
    exempt: bool
    day: Annotated[int, described("The day of the warm-up; day 1 is the day of the first mail.", minimum=1)]
    limit: Annotated[int | None, described("Today's limit of recipients; null after the warm-up.")]
    used: Annotated[int, described("Recipients of mail accepted today.")]
    resets_at: Timestamp


class ConductWarning(BaseModel):
    warned_at: Timestamp
    text: str


class ReputationMark(BaseModel):
    percent: Annotated[float, described("The share of the results at which the mark is reached.")]
    count: Annotated[int, described("And at least so many.")]


class ReputationShare(BaseModel):
    count: Annotated[int, described("How many addresses; each counts once.")]
    percent: Annotated[float, described("Their share of the results.")]
    warn: Annotated[ReputationMark, described("Where the account is warned.")]
    suspend: Annotated[ReputationMark, described("Where the account is suspended.")]


class Reputation(BaseModel):
    verdict: Annotated[ReputationVerdict, described("What the present numbers mean.")]
    exempt: Annotated[bool, described("Whether the account is warned only, and never suspended for it.")]
    results: Annotated[int, described("Final results with a server's reply among the latest 10,000 recipients.")]
    results_min: Annotated[int, described("Fewer results than this are not judged.")]
    bounces: Annotated[ReputationShare, described("Addresses that don't exist.")]
    complaints: Annotated[ReputationShare, described("Recipients who complained.")]
    counted_since: Annotated[
        str, described("24 hours ago, or the end of the last suspension. RFC 3339, UTC.", format="date-time")
    ]
    counted_at: Annotated[str, described("At most a minute ago. RFC 3339, UTC.", format="date-time")]


class Account(BaseModel):
    id: str
    name: str
    created_at: Timestamp
    role: Annotated[Role, described("The role of the token's user in this account.")]
    credits: Credits
    waiting: WaitingMail
    sending: Sending
    rate: Rate
    warmup: WarmUp
    conduct: Annotated[ConductWarning | None, described("A warning that is still in force; null without a warning.")]
    reputation: Annotated[
        Reputation | None, described("The numbers behind it; null when they could not be counted in time.")
    ]
    visited_until: Annotated[
        str | None, described("While an operator of the service looks at the account; else absent.", format="date-time")
    ] = None


class AccountResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "account": {
                        "id": "ac_01k6wq3v5e7m8x9c0b2d4f6h8j",
                        "name": "acme",
                        "created_at": "2026-10-01T08:00:00.000Z",
                        "role": "owner",
                        "credits": {"available": 9120, "reserved": 5, "granted": 10_000, "is_more": False},
                        "waiting": _WAITING_EXAMPLE,
                        "sending": {"suspended": False, "reason": None, "since": None},
                        "rate": {"per_second": 20, "burst": 40, "remaining": 39, "reset_seconds": 1},
                        "warmup": {
                            "exempt": False,
                            "day": 3,
                            "limit": 500,
                            "used": 120,
                            "resets_at": "2026-11-16T00:00:00.000Z",
                        },
                        "conduct": None,
                        "reputation": {
                            "verdict": "well",
                            "exempt": False,
                            "results": 812,
                            "results_min": 200,
                            "bounces": {
                                "count": 12,
                                "percent": 1.478,
                                "warn": {"percent": 5.0, "count": 0},
                                "suspend": {"percent": 10.0, "count": 0},
                            },
                            "complaints": {
                                "count": 0,
                                "percent": 0.0,
                                "warn": {"percent": 0.1, "count": 3},
                                "suspend": {"percent": 0.5, "count": 10},
                            },
                            "counted_since": "2026-11-14T13:44:00.000Z",
                            "counted_at": "2026-11-15T13:44:00.000Z",
                        },
                    },
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    account: Account


class ProgressStep(BaseModel):
    step: Annotated[
        Step,
        described(
            "`test_mail`: a mail to oneself, or any other live mail, was sent. `first_request`: mail was sent by a "
            "program, or a key or credential was used. `webhook_answered`: with a 2xx. `second_factor`: the caller's."
        ),
    ]
    done: bool
    at: Annotated[str | None, described("When it was done. RFC 3339, UTC; null when not done.", format="date-time")]


class ProgressResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "steps": [
                        {"step": "test_mail", "done": True, "at": "2026-11-15T13:40:01.000Z"},
                        {"step": "domain_verified", "done": False, "at": None},
                    ],
                    "is_complete": False,
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    steps: Annotated[list[ProgressStep], described("All of them, in the usual order.")]
    is_complete: Annotated[bool, described("Whether all are done.")]


class DeliveryTimes(BaseModel):
    p50_seconds: Annotated[float, described("From acceptance to delivery, within 25 %.")]
    p95_seconds: float
    p99_seconds: float


class ProviderUsage(BaseModel):
    provider: Annotated[
        str,
        described(
            "Recognised by the names of its mail servers: `google`, `microsoft`, `yahoo`, `apple` …; or `other`."
        ),
    ]
    results: Annotated[int, described("Final results after contact with a mail server.")]
    p50_seconds: Annotated[float, described("From acceptance to the final result, within 25 %.")]
    p95_seconds: float
    p99_seconds: float
    delivered: Annotated[int, described("How many of the results are of each kind.")]
    bounced: int
    failed: int
    time_to_delivered: Annotated[
        DeliveryTimes | None, described("The same of the delivered ones alone; null without any.")
    ]


class UsageCounts(BaseModel):
    accepted: Annotated[int, described("Recipients of the mail accepted in this time.")]
    delivered: Annotated[int, described("How many of them are delivered by now.")]
    bounced: int
    failed: int
    open: Annotated[int, described("How many of them had no final result at `counted_at`.")]


class UsageHour(UsageCounts):
    hour: Annotated[str, described("Its beginning. RFC 3339, UTC.", format="date-time")]
    test: Annotated[UsageCounts, described("The same of test mail, which is not in the other numbers.")]


class UsageDay(UsageCounts):
    day: _Day
    test: Annotated[UsageCounts, described("The same of test mail, which is not in the other numbers.")]
    providers: Annotated[list[ProviderUsage], described("The provider with the most results first; kept for 40 days.")]


class UsageResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "counted_at": "2026-11-15T13:44:00.000Z",
                    "now": _WAITING_EXAMPLE,
                    "days": [
                        {
                            "day": "2026-11-15",
                            **_COUNTS_EXAMPLE,
                            "test": _TEST_COUNTS_EXAMPLE,
                            "providers": [_PROVIDER_EXAMPLE],
                        }
                    ],
                    "hours": [{"hour": "2026-11-15T13:00:00.000Z", **_COUNTS_EXAMPLE, "test": _TEST_COUNTS_EXAMPLE}],
                    "providers": [_PROVIDER_EXAMPLE],
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    counted_at: _CountedAt
    now: Annotated[WaitingMail, described("The mail without a final result now, of all days.")]
    days: Annotated[list[UsageDay], described("Every requested day, newest first.")]
    hours: Annotated[
        list[UsageHour] | None,
        described("With `by=hour`: every hour of these days until now, newest first; otherwise null."),
    ]
    providers: Annotated[list[ProviderUsage], described("The sum of these days.")]


class ReasonCount(BaseModel):
    provider: Annotated[
        str, described("As in `GET /v1/usage`; `none` where no server was reached, `other` for all others.")
    ]
    result: Annotated[str, described("What happened.", enum=["bounced", "failed", "deferred"])]
    code: Annotated[
        str | None,
        described(
            "The enhanced status code (RFC 3463) or else the SMTP code; null when no server replied, `other` for what "
            "is beyond the reasons counted in a day."
        ),
    ]
    count: Annotated[int, described("How many recipients; of `deferred`, how many attempts.")]
    example_message_id: Annotated[str, described("The newest message that it happened to.")]
    explanation: Explanation


class ReasonsResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "counted_at": "2026-11-15T13:44:00.000Z",
                    "reasons": [_REASON_EXAMPLE],
                    "is_shortened": False,
                    "waiting": [],
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    counted_at: _CountedAt
    reasons: Annotated[
        list[ReasonCount], described("Of mail accepted on these days and final now, most frequent first.")
    ]
    is_shortened: Annotated[bool, described("Whether less frequent reasons than the first 200 are omitted.")]
    waiting: Annotated[
        list[ReasonCount], described("Of mail of any day that is deferred now: the oldest 1,000 recipients.")
    ]


class LedgerDay(BaseModel):
    day: _Day
    reserved: int
    settled: int
    released: int


class LedgerEntry(BaseModel):
    id: str
    kind: Annotated[
        Kind,
        described(
            "`grant`: credits were added or taken back. `reserve`: a message was accepted. `settle`: a recipient's "
            "credit is spent. `release`: it is returned. `day`: the sum of a day whose entries are no longer stored."
        ),
    ]
    amount: Annotated[int, described("The change of `available`, which is the sum of all entries. Zero for `settle`.")]
    at: Annotated[str, described("RFC 3339, UTC; for `day`, the start of the day.", format="date-time")]
    why: Annotated[str, described("For people.")]
    message_id: Annotated[str | None, described("Null for `grant` and `day`.")]
    recipient_id: Annotated[str | None, described("Only for `settle` and `release`.")]
    email: Annotated[str | None, described("The recipient's address.")]
    status: Annotated[RecipientStatus | None, described("The recipient's final status.")]
    smtp_code: int | None
    smtp_response: str | None
    day: Annotated[LedgerDay | None, described("Only for `day`.")]


class LedgerResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "entries": [
                        {
                            "id": "le_01k6wq3v5e7m8x9c0b2d4f6h8003",
                            "kind": "release",
                            "amount": 1,
                            "at": "2026-11-15T13:40:02.120Z",
                            "why": "Given back: the message was refused for good; last said: 550 5.1.1 No such user",
                            "message_id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
                            "recipient_id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
                            "email": "ada@example.net",
                            "status": "bounced",
                            "smtp_code": 550,
                            "smtp_response": "5.1.1 No such user",
                            "day": None,
                        },
                        {
                            "id": "le_01k6wq3v5e7m8x9c0b2d4f6h8002",
                            "kind": "reserve",
                            "amount": -1,
                            "at": "2026-11-15T13:40:01.000Z",
                            "why": "The message was accepted: a credit for its one recipient is set aside.",
                            "message_id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
                            "recipient_id": None,
                            "email": None,
                            "status": None,
                            "smtp_code": None,
                            "smtp_response": None,
                            "day": None,
                        },
                    ],
                    "next_cursor": None,
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    entries: Annotated[
        list[LedgerEntry],
        described(
            "By message, newest first: the results of its recipients, then its reserve. Grants are listed by time."
        ),
    ]
    next_cursor: NextCursor
