"""An account's usage, the reasons of its failures, and its ledger."""

from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Query, Request

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor, MessageFilter
from posthouse.entrypoints.http.routes.account import WAITING_EXAMPLE, WaitingMail
from posthouse.entrypoints.http.routes.message_detail import Explanation
from posthouse.entrypoints.http.shapes import (
    LastCode,
    LastResponse,
    NextCursor,
    OptionalTimestamp,
    P95Seconds,
    P99Seconds,
    Response,
    Shown,
    Timestamp,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.exports import Exports
from posthouse.flows.account.usage_and_ledger import (
    DayUsage,
    ExplainedEntry,
    HourUsage,
    Kind,
    UsageAndLedger,
    message_id_of,
)
from posthouse.flows.shared.principal import Member
from posthouse.rules import ids
from posthouse.rules.credential import Role
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.explanation import explain_result
from posthouse.rules.message import RecipientStatus
from posthouse.rules.usage import DAYS_DEFAULT, DAYS_MAX, HOURLY_DAYS_MAX, Interval

router = Operations("Account")

_From = Annotated[
    str | None, Query(alias="from", description="The first day (UTC).", json_schema_extra={"format": "date"})
]
_To = Annotated[str | None, Query(alias="to", description="The last day (UTC).", json_schema_extra={"format": "date"})]

_Days = Annotated[
    str,
    Query(
        description=f"The number of days up to today. Or give `from` and `to`, at most {DAYS_MAX} days.",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": DAYS_MAX, "default": DAYS_DEFAULT},
    ),
]

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

_CountedAt = Annotated[
    OptionalTimestamp,
    described("The numbers of all days include everything before this time; null before the first count."),
    read_from("counted_to"),
]


class DeliveryTimes(Shown):
    p50_seconds: Annotated[float, described("From acceptance to delivery, accurate within 25 %."), read_from("p50")]
    p95_seconds: Annotated[P95Seconds, read_from("p95")]
    p99_seconds: Annotated[P99Seconds, read_from("p99")]


class ProviderUsage(Shown):
    provider: Annotated[
        str,
        described(
            "Recognised by the names of its mail servers: `google`, `microsoft`, `yahoo`, `apple` …; or `other`."
        ),
    ]
    results: Annotated[int, described("Final results after contact with a mail server.")]
    p50_seconds: Annotated[
        float,
        described("From acceptance to the final result, accurate within 25 %."),
        read_from("percentiles", "p50"),
    ]
    p95_seconds: Annotated[P95Seconds, read_from("percentiles", "p95")]
    p99_seconds: Annotated[P99Seconds, read_from("percentiles", "p99")]
    delivered: Annotated[int, described("How many of the results are of each kind.")]
    bounced: int
    failed: int
    time_to_delivered: Annotated[
        DeliveryTimes | None,
        described("The same for delivered recipients only; null if there are none."),
        read_from("to_delivered"),
    ]


class UsageCounts(Shown):
    accepted: Annotated[int, described("Recipients of the mail accepted in this period.")]
    delivered: Annotated[int, described("How many of them have been delivered by now.")]
    bounced: int
    failed: int
    open: Annotated[int, described("How many of them had no final result at `counted_at`.")]


class _Hour(Shown):
    hour: Annotated[Timestamp, described("The start of the hour. RFC 3339, UTC.")]


class _Day(Shown):
    day: Annotated[date, described("A day (UTC).")]


class _Domain(Shown):
    domain: Annotated[str | None, described("The domain in From; null for all but the 200 with most recipients.")]


class _Tag(Shown):
    tag: Annotated[str | None, described("Null for all but the 200 with most recipients.")]


# A model's first fields are those of its last base.
class DomainUsage(UsageCounts, _Domain):
    """Live mail from a domain."""


class TagUsage(UsageCounts, _Tag):
    """Live mail with a tag."""


class UsageHour(UsageCounts, _Hour):
    test: Annotated[UsageCounts, described("The same for test mail, which is not in the other numbers.")]


class UsageDay(UsageCounts, _Day):
    test: Annotated[UsageCounts, described("The same for test mail, which is not in the other numbers.")]
    providers: Annotated[list[ProviderUsage], described("The provider with most results first; stored for 40 days.")]


class UsageResponse(Response):
    model_config = examples(
        {
            "counted_at": "2026-11-15T13:44:00.000Z",
            "now": WAITING_EXAMPLE,
            "days": [
                {"day": "2026-11-15", **_COUNTS_EXAMPLE, "test": _TEST_COUNTS_EXAMPLE, "providers": [_PROVIDER_EXAMPLE]}
            ],
            "hours": [{"hour": "2026-11-15T13:00:00.000Z", **_COUNTS_EXAMPLE, "test": _TEST_COUNTS_EXAMPLE}],
            "providers": [_PROVIDER_EXAMPLE],
            "domains": [{"domain": "example.com", **_COUNTS_EXAMPLE}],
            "tags": [{"tag": "order", **_COUNTS_EXAMPLE}],
            "split_from": "2026-11-01",
        }
    )

    counted_at: _CountedAt
    now: Annotated[WaitingMail, described("Mail of all days that has no final result now.")]
    days: Annotated[list[UsageDay], described("Every requested day, newest first.")]
    hours: Annotated[
        list[UsageHour] | None,
        described("With `by=hour`: every hour of these days until now, newest first; otherwise null."),
    ]
    providers: Annotated[list[ProviderUsage], described("The sum of these days.")]
    domains: Annotated[
        list[DomainUsage],
        described(
            "The sum of these days by domain in From, without test mail, most recipients first; stored for 40 days."
        ),
    ]
    tags: Annotated[
        list[TagUsage],
        described("The same by tag. A message with several tags counts for each of them, one without any for none."),
    ]
    split_from: Annotated[
        date | None,
        described("The first day counted by domain and tag, after an upgrade from a version that did not count them."),
    ]


class ReasonCount(Shown):
    provider: Annotated[
        str, described("As in `GET /v1/usage`; `none` if no server was reached, `other` for all others.")
    ]
    result: Annotated[str, described("What happened.", enum=["bounced", "failed", "deferred"])]
    code: Annotated[
        str | None,
        described(
            "The enhanced status code (RFC 3463) or else the SMTP code; null if no server replied, `other` for what "
            "is beyond the reasons counted in a day."
        ),
    ]
    count: Annotated[int, described("How many recipients; for `deferred`, how many attempts.")]
    example_message_id: Annotated[
        ids.MessageId,
        id_text(ids.MESSAGE),
        described("The newest message to which it happened."),
        read_from("example_id"),
    ]
    explanation: Explanation


class ReasonsResponse(Response):
    model_config = examples(
        {"counted_at": "2026-11-15T13:44:00.000Z", "reasons": [_REASON_EXAMPLE], "is_shortened": False, "waiting": []}
    )

    counted_at: _CountedAt
    reasons: Annotated[
        list[ReasonCount], described("For mail accepted on these days and final now, most frequent first.")
    ]
    is_shortened: Annotated[bool, described("Whether less frequent reasons than the first 200 are omitted.")]
    waiting: Annotated[
        list[ReasonCount], described("For mail of any day that is deferred now: the oldest 1,000 recipients.")
    ]


class LedgerDay(_Day):
    reserved: Annotated[int, described("Credits set aside for mail accepted on this day.")]
    settled: Annotated[int, described("How many of them were spent.")]
    released: Annotated[int, described("How many of them were returned.")]


class LedgerEntry(Shown):
    id: str
    kind: Annotated[
        Kind,
        described(
            "`grant`: credits were added or taken back. `reserve`: a message was accepted. `settle`: a recipient's "
            "credit is spent. `release`: it is returned. `day`: the sum of a day whose entries are no longer stored."
        ),
    ]
    amount: Annotated[int, described("The change of `available`, which is the sum of all entries. Zero for `settle`.")]
    at: Annotated[Timestamp, described("RFC 3339, UTC; for `day`, the start of the day.")]
    why: Annotated[str, described("For people.")]
    message_id: Annotated[
        Annotated[ids.MessageId, id_text(ids.MESSAGE)] | None, described("Null for `grant` and `day`.")
    ]
    recipient_id: Annotated[
        Annotated[UUID, id_text(ids.RECIPIENT)] | None, described("Only for `settle` and `release`.")
    ]
    email: Annotated[str | None, described("The recipient's address.")]
    status: Annotated[RecipientStatus | None, described("The recipient's final status.")]
    smtp_code: LastCode
    smtp_response: LastResponse
    day: Annotated[LedgerDay | None, described("Only for `day`.")]


class LedgerResponse(Response):
    model_config = examples(
        {
            "entries": [
                {
                    "id": "le_01k6wq3v5e7m8x9c0b2d4f6h8003",
                    "kind": "release",
                    "amount": 1,
                    "at": "2026-11-15T13:40:02.120Z",
                    "why": "Returned: the message was refused for good; last said: 550 5.1.1 No such user",
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
                    "why": "Reserved: one credit for its recipient.",
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
        }
    )

    entries: Annotated[
        list[LedgerEntry],
        described(
            "By message, newest first: the results of its recipients, then its reserve. Grants are listed by time."
        ),
    ]
    next_cursor: NextCursor


@router.get("/v1/usage", Role.VIEWER)
async def list_usage(
    member: Member,
    request: Request,
    usage_and_ledger: UsageAndLedger,
    days: _Days = str(DAYS_DEFAULT),
    first: _From = None,
    last: _To = None,
    by: Annotated[
        str,
        Query(
            description=f"`hour` adds `hours`, for at most {HOURLY_DAYS_MAX} days.",
            json_schema_extra={"enum": [interval.value for interval in Interval], "default": Interval.DAY.value},
        ),
    ] = Interval.DAY.value,
) -> UsageResponse:
    """Messages, results and delivery times per day or hour"""
    view = await usage_and_ledger.usage(
        member.account_id, by=by, days=_given_days(request, days), first=first, last=last
    )
    return UsageResponse.of(
        view,
        now=view.waiting,
        days=[_day(usage) for usage in view.days],
        hours=None if view.hours is None else [_hour(usage) for usage in view.hours],
        domains=[DomainUsage.of(split.counts, domain=split.value) for split in view.domains],
        tags=[TagUsage.of(split.counts, tag=split.value) for split in view.tags],
    )


@router.get("/v1/reasons", Role.VIEWER)
async def list_reasons(
    member: Member,
    request: Request,
    usage_and_ledger: UsageAndLedger,
    days: _Days = str(DAYS_DEFAULT),
    first: _From = None,
    last: _To = None,
) -> ReasonsResponse:
    """Why mail bounced, failed or was deferred, by mailbox provider and status code"""
    return ReasonsResponse.of(
        await usage_and_ledger.reasons(member.account_id, days=_given_days(request, days), first=first, last=last)
    )


@router.get("/v1/ledger", Role.VIEWER)
async def list_ledger(
    member: Member,
    usage_and_ledger: UsageAndLedger,
    message_id: MessageFilter = None,
    kind: Annotated[
        str | None,
        Query(
            description="Only of this kind. A page may contain fewer than `limit`, even none, and still have a cursor.",
            json_schema_extra={"enum": [kind.value for kind in Kind]},
        ),
    ] = None,
    first: _From = None,
    last: _To = None,
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
) -> LedgerResponse:
    """Every change of the credits and its reason, by message, newest first"""
    page = await usage_and_ledger.ledger(
        member.account_id, limit, cursor, message_id=message_id, kind=kind, first=first, last=last
    )
    return LedgerResponse(entries=[_entry(entry) for entry in page.items], next_cursor=page.next_cursor)


@router.get(
    "/v1/ledger/export",
    Role.VIEWER,
    read_action="ledger.exported",
    errors=(429,),
    content=CSV_TYPE,
    extra={"description": EXPORT_DESCRIPTION},
)
async def export_ledger(
    member: Member,
    exports: Exports,
    usage_and_ledger: UsageAndLedger,
    message_id: MessageFilter = None,
    kind: Annotated[
        str | None,
        Query(description="Only of this kind.", json_schema_extra={"enum": [kind.value for kind in Kind]}),
    ] = None,
    first: _From = None,
    last: _To = None,
    cursor: Cursor = None,
) -> CsvExport[ExplainedEntry]:
    """The ledger as a CSV file, newest first, with the same filter as the list"""
    read = partial(usage_and_ledger.ledger, member.account_id, message_id=message_id, kind=kind, first=first, last=last)
    return CsvExport(exports, member.account_id, _FILE, read, cursor)


def _given_days(request: Request, days: str) -> str | None:
    return days if "days" in request.query_params else None


def _day(row: DayUsage) -> UsageDay:
    return UsageDay.of(row.usage.live, day=row.day, test=row.usage.test, providers=row.providers)


def _hour(row: HourUsage) -> UsageHour:
    return UsageHour.of(row.usage.live, hour=row.hour, test=row.usage.test)


def _entry(explained: ExplainedEntry) -> LedgerEntry:
    entry, fate = explained.entry, explained.fate
    message_id = message_id_of(entry)
    has_recipient = entry.kind in (Kind.SETTLE, Kind.RELEASE)
    return LedgerEntry.of(
        explained,
        kind=entry.kind,
        at=entry.at,
        message_id=message_id,
        recipient_id=None
        if message_id is None or not has_recipient
        else ids.recipient_id(message_id, entry.place.position),
        email=None if fate is None else fate.email,
        status=None if fate is None else fate.status,
        smtp_code=None if fate is None else fate.code,
        smtp_response=None if fate is None else fate.response,
        day=_sum(explained) if entry.kind is Kind.DAY else None,
    )


def _sum(explained: ExplainedEntry) -> LedgerDay:
    reserved, settled, released = explained.entry.credits
    return LedgerDay(day=explained.entry.at.date(), reserved=reserved, settled=settled, released=released)


_FILE: Final[CsvFile[ExplainedEntry]] = CsvFile(
    "ledger.csv",
    (
        "id", "at", "kind", "amount", "why", "message_id", "recipient_id", "email", "status", "smtp_code",
        "smtp_response",
    ),
    lambda explained: _entry(explained).model_dump(),
)  # fmt: skip
