"""The shapes of the account, its use and its ledger."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import MaybeMoment, Moment, NextCursor, Response, described
from posthouse.flows.account.usage_and_ledger import Kind
from posthouse.rules.credential import Role
from posthouse.rules.message import RecipientStatus

_Day = Annotated[str, described("A day in UTC.", format="date")]

_REQUEST_ID: Final = "rq_01k6wq3v5e7m8x9c0b2d4f6h8j"
_WAITING_EXAMPLE: Final[dict[str, Any]] = {"queued": 3, "deferred": 2, "held": 0, "is_more": False}
_PROVIDER_EXAMPLE: Final[dict[str, Any]] = {
    "provider": "google",
    "results": 812,
    "p50_seconds": 1.24,
    "p95_seconds": 4.4,
    "p99_seconds": 61.0,
}


class Credits(BaseModel):
    available: Annotated[int, described("What can be spent now.")]
    reserved: Annotated[int, described("Set aside for mail whose result is open; at least so many when `is_more`.")]
    granted: Annotated[int, described("All that was ever granted, less what was taken back.")]
    is_more: Annotated[bool, described("More mail is open than is counted.")]


class WaitingMail(BaseModel):
    queued: Annotated[int, described("Recipients that were not tried yet.")]
    deferred: Annotated[int, described("Recipients that were tried and will be tried again.")]
    held: Annotated[int, described("How many of both are held, because the account is suspended or a lane is paused.")]
    is_more: Annotated[bool, described("These are the oldest 10,000, and there are more.")]


class Sending(BaseModel):
    suspended: bool
    reason: Annotated[str | None, described("Why it is suspended.")]
    since: MaybeMoment


class Rate(BaseModel):
    per_second: Annotated[int, described("Requests a second.")]
    burst: Annotated[int, described("Requests at once.")]
    remaining: Annotated[int, described("How many could be sent at once now.")]
    reset_seconds: Annotated[int, described("Until all of the burst is there again.")]


class WarmUp(BaseModel):
    exempt: bool
    day: Annotated[int, described("Which day of the warm-up it is; the first is the day of the first mail.", minimum=1)]
    limit: Annotated[int | None, described("Recipients that today allows; null when there is no limit any more.")]
    used: Annotated[int, described("Recipients whose mail was accepted today.")]
    resets_at: Moment


class ConductWarning(BaseModel):
    warned_at: Moment
    text: str


class Account(BaseModel):
    id: str
    name: str
    created_at: Moment
    role: Annotated[Role, described("Whose token this is, in this account.")]
    credits: Credits
    waiting: WaitingMail
    sending: Sending
    rate: Rate
    warmup: WarmUp
    conduct: Annotated[ConductWarning | None, described("A warning that still counts; null when there is none.")]


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
                    },
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    account: Account


class ProviderUsage(BaseModel):
    provider: Annotated[
        str, described("Known by the names of its mail servers: `google`, `microsoft`, `yahoo`, `apple` …; or `other`.")
    ]
    results: Annotated[int, described("Final results after a mail server was spoken to.")]
    p50_seconds: Annotated[float, described("From acceptance to the final result; a quarter off at most.")]
    p95_seconds: float
    p99_seconds: float


class UsageDay(BaseModel):
    day: _Day
    accepted: Annotated[int, described("Recipients of the mail that was accepted on this day.")]
    delivered: Annotated[int, described("How many of them were delivered since.")]
    bounced: int
    failed: int
    open: Annotated[int, described("How many of them had no final result when it was counted.")]
    providers: Annotated[list[ProviderUsage], described("The one with the most results first; kept for 40 days.")]


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
                            "accepted": 830,
                            "delivered": 790,
                            "bounced": 31,
                            "failed": 4,
                            "open": 5,
                            "providers": [_PROVIDER_EXAMPLE],
                        }
                    ],
                    "providers": [_PROVIDER_EXAMPLE],
                    "request_id": _REQUEST_ID,
                }
            ]
        }
    )

    counted_at: Annotated[
        str | None,
        described(
            "All that happened before this is in the numbers, of each day; null before the first count.",
            format="date-time",
        ),
    ]
    now: Annotated[WaitingMail, described("What is open at this moment, of all days.")]
    days: Annotated[list[UsageDay], described("Every day that was asked for, the newest first.")]
    providers: Annotated[list[ProviderUsage], described("Of all these days together.")]


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
            "`grant`: credits came, or were taken back. `reserve`: a message was accepted. `settle`: the credit of one "
            "recipient is spent. `release`: it came back. `day`: the sum of a day whose entries are no longer stored."
        ),
    ]
    amount: Annotated[int, described("What it did to `available`: all entries add up to it. Zero for `settle`.")]
    at: Annotated[str, described("RFC 3339, UTC; of a `day`, its beginning.", format="date-time")]
    why: Annotated[str, described("For people.")]
    message_id: Annotated[str | None, described("Null for `grant` and `day`.")]
    recipient_id: Annotated[str | None, described("Of `settle` and `release`.")]
    email: Annotated[str | None, described("The recipient's address.")]
    status: Annotated[RecipientStatus | None, described("What became of the recipient.")]
    smtp_code: int | None
    smtp_response: str | None
    day: Annotated[LedgerDay | None, described("Of a `day`.")]


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
            "By message, the newest first: how its recipients ended, then its reserve. Grants stand at their time."
        ),
    ]
    next_cursor: NextCursor
