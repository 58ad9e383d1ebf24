"""Response schemas of the account, its usage and its ledger."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import NextCursor, OptionalTimestamp, Response, Timestamp, described
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
        str,
        described(
            "Recognised by the names of its mail servers: `google`, `microsoft`, `yahoo`, `apple` …; or `other`."
        ),
    ]
    results: Annotated[int, described("Final results after contact with a mail server.")]
    p50_seconds: Annotated[float, described("From acceptance to the final result, within 25 %.")]
    p95_seconds: float
    p99_seconds: float


class UsageDay(BaseModel):
    day: _Day
    accepted: Annotated[int, described("Recipients of the mail accepted on this day.")]
    delivered: Annotated[int, described("How many of them are delivered by now.")]
    bounced: int
    failed: int
    open: Annotated[int, described("How many of them had no final result at `counted_at`.")]
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
            "The numbers of all days include everything before this time; null before the first count.",
            format="date-time",
        ),
    ]
    now: Annotated[WaitingMail, described("The mail without a final result now, of all days.")]
    days: Annotated[list[UsageDay], described("Every requested day, newest first.")]
    providers: Annotated[list[ProviderUsage], described("The sum of these days.")]


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
