"""The routes of the account, its usage and its ledger."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.csv_export import CSV_TYPE, EXPORT_DESCRIPTION, CsvExport, CsvFile
from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    MessageFilter,
    PageSize,
    json_response,
    member_of,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import account as schemas
from posthouse.flows.account.usage_and_ledger import (
    AccountBacklog,
    AccountSummary,
    DayUsage,
    ExplainedEntry,
    Kind,
    Percentiles,
    ProviderUsage,
    ReasonView,
    ReputationReading,
    UsageCounts,
    UsageRow,
    message_id_of,
)
from posthouse.rules import ids, reputation
from posthouse.rules.credential import Role
from posthouse.rules.reputation import Marks
from posthouse.rules.usage import DAYS_DEFAULT, DAYS_MAX, HOURLY_DAYS_MAX, Interval

router = APIRouter()

_From = Annotated[
    str | None, Query(alias="from", description="The first day, in UTC.", json_schema_extra={"format": "date"})
]
_To = Annotated[
    str | None, Query(alias="to", description="The last day, in UTC.", json_schema_extra={"format": "date"})
]

_Days = Annotated[
    str,
    Query(
        description=f"The number of days up to today. Or give `from` and `to`, at most {DAYS_MAX} days.",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": DAYS_MAX, "default": DAYS_DEFAULT},
    ),
]


@router.get(
    "/v1/account",
    operation_id="getAccount",
    summary="The account: its credits, its limits and what remains of them, and whether it may send",
    tags=["Account"],
    responses=responses_with(200, schemas.AccountResponse, 401, 500, 503),
)
async def get_account(request: Request) -> Response:
    member = await member_of(request)
    view = await services_of(request).usage_and_ledger.account(member.account_id)
    return json_response(request, {"account": _account(view, member.role)})


@router.get(
    "/v1/progress",
    operation_id="getProgress",
    summary="The first steps of a new account, and which of them are done",
    tags=["Account"],
    responses=responses_with(200, schemas.ProgressResponse, 401, 500, 503),
)
async def get_progress(request: Request) -> Response:
    member = await member_of(request)
    steps = await services_of(request).progress.steps(member.account_id, member.user_id)
    content = {
        "steps": [{"step": step, "done": at is not None, "at": timestamp(at)} for step, at in steps.items()],
        "is_complete": None not in steps.values(),
    }
    return json_response(request, content)


@router.get(
    "/v1/usage",
    operation_id="listUsage",
    summary="Messages, results and delivery times per day or hour",
    tags=["Account"],
    responses=responses_with(200, schemas.UsageResponse, 400, 401, 500, 503),
)
async def list_usage(
    request: Request,
    days: _Days = str(DAYS_DEFAULT),
    first: _From = None,
    last: _To = None,
    by: Annotated[
        str,
        Query(
            description=f"`hour` adds `hours`, for {HOURLY_DAYS_MAX} days at most.",
            json_schema_extra={"enum": [interval.value for interval in Interval], "default": Interval.DAY.value},
        ),
    ] = Interval.DAY.value,
) -> Response:
    member = await member_of(request)
    view = await services_of(request).usage_and_ledger.usage(
        member.account_id, by=by, days=_given_days(request, days), first=first, last=last
    )
    content = {
        "counted_at": timestamp(view.counted_to),
        "now": _waiting(view.waiting),
        "days": [_day(usage) for usage in view.days],
        "hours": None
        if view.hours is None
        else [{"hour": timestamp(usage.hour), **_usage(usage.usage)} for usage in view.hours],
        "providers": _providers(view.providers),
    }
    return json_response(request, content)


@router.get(
    "/v1/reasons",
    operation_id="listReasons",
    summary="Why mail bounced, failed or was deferred, by mailbox provider and status code",
    tags=["Account"],
    responses=responses_with(200, schemas.ReasonsResponse, 400, 401, 500, 503),
)
async def list_reasons(
    request: Request, days: _Days = str(DAYS_DEFAULT), first: _From = None, last: _To = None
) -> Response:
    member = await member_of(request)
    view = await services_of(request).usage_and_ledger.reasons(
        member.account_id, days=_given_days(request, days), first=first, last=last
    )
    content = {
        "counted_at": timestamp(view.counted_to),
        "reasons": [_reason(reason) for reason in view.reasons],
        "is_shortened": view.is_shortened,
        "waiting": [_reason(reason) for reason in view.waiting],
    }
    return json_response(request, content)


@router.get(
    "/v1/ledger",
    operation_id="listLedger",
    summary="Every change of the credits and its reason, by message, newest first",
    tags=["Account"],
    responses=responses_with(200, schemas.LedgerResponse, 400, 401, 500, 503),
)
async def list_ledger(
    request: Request,
    message_id: MessageFilter = None,
    kind: Annotated[
        str | None,
        Query(
            description="Only of this kind. A page may hold fewer than `limit`, even none, and still have a cursor.",
            json_schema_extra={"enum": [kind.value for kind in Kind]},
        ),
    ] = None,
    first: _From = None,
    last: _To = None,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
) -> Response:
    member = await member_of(request)
    page = await services_of(request).usage_and_ledger.ledger(
        member.account_id, page_size(limit), cursor, message_id=message_id, kind=kind, first=first, last=last
    )
    return page_response(request, "entries", page, _entry)


@router.get(
    "/v1/ledger/export",
    operation_id="exportLedger",
    summary="The ledger as a CSV file, newest first, filtered as the list is",
    description=EXPORT_DESCRIPTION,
    tags=["Account"],
    response_class=Response,
    responses=responses_with(200, CSV_TYPE, 400, 401, 429, 500, 503),
)
async def export_ledger(
    request: Request,
    message_id: MessageFilter = None,
    kind: Annotated[
        str | None,
        Query(description="Only of this kind.", json_schema_extra={"enum": [kind.value for kind in Kind]}),
    ] = None,
    first: _From = None,
    last: _To = None,
    cursor: Cursor = None,
) -> Response:
    member = await member_of(request)
    services = services_of(request)
    read = partial(
        services.usage_and_ledger.ledger, member.account_id, message_id=message_id, kind=kind, first=first, last=last
    )
    return CsvExport(services.exports, member.account_id, _FILE, read, cursor)


def _account(view: AccountSummary, role: Role) -> dict[str, Any]:
    account, warmup = view.account, view.warmup
    return {
        "id": ids.text(ids.ACCOUNT, account.id),
        "name": account.shown_name,
        "created_at": timestamp(account.created_at),
        "role": role.value,
        "credits": {
            "available": account.available,
            "reserved": view.waiting.credits,
            "granted": view.granted,
            "is_more": view.waiting.is_more,
        },
        "waiting": _waiting(view.waiting),
        "sending": {
            "suspended": account.suspended_at is not None,
            "reason": account.suspended_reason,
            "since": timestamp(account.suspended_at),
        },
        "rate": {
            "per_second": view.rate.per_second,
            "burst": view.rate.burst,
            "remaining": view.reading.remaining,
            "reset_seconds": view.reading.reset_seconds,
        },
        "warmup": {
            "exempt": account.warmup_exempt,
            "day": warmup.day,
            "limit": warmup.limit,
            "used": warmup.used,
            "resets_at": timestamp(view.midnight),
        },
        "conduct": None
        if view.warned_at is None
        else {"warned_at": timestamp(view.warned_at), "text": reputation.WARNING},
        "reputation": _reputation(view.reputation, is_exempt=view.is_reputation_exempt),
        **({} if view.visited_until is None else {"visited_until": timestamp(view.visited_until)}),
    }


def _reputation(reading: ReputationReading | None, *, is_exempt: bool) -> dict[str, Any] | None:
    if reading is None:
        return None
    figures = reading.figures
    return {
        "verdict": reading.verdict,
        "exempt": is_exempt,
        "results": figures.finals,
        "results_min": reputation.FINALS_MIN,
        "bounces": _share(figures.unknown, figures.unknown_percent, reputation.UNKNOWN_MARKS),
        "complaints": _share(figures.complaints, figures.complaints_percent, reputation.COMPLAINT_MARKS),
        "counted_since": timestamp(reading.counted_since),
        "counted_at": timestamp(reading.counted_at),
    }


def _share(count: int, percent: float, marks: Marks) -> dict[str, Any]:
    return {
        "count": count,
        "percent": round(percent, 3),
        **{name: {"percent": mark.percent, "count": mark.count_min} for name, mark in marks._asdict().items()},
    }


def _waiting(waiting: AccountBacklog) -> dict[str, Any]:
    return {
        "queued": waiting.queued,
        "deferred": waiting.deferred,
        "held": waiting.held,
        "is_more": waiting.is_more,
    }


def _given_days(request: Request, days: str) -> str | None:
    return days if "days" in request.query_params else None


def _day(day: DayUsage) -> dict[str, Any]:
    return {"day": day.day.isoformat(), **_usage(day.usage), "providers": _providers(day.providers)}


def _usage(usage: UsageRow) -> dict[str, Any]:
    return {**_counts(usage.live), "test": _counts(usage.test)}


def _counts(counts: UsageCounts) -> dict[str, Any]:
    return {
        "accepted": counts.accepted,
        "delivered": counts.delivered,
        "bounced": counts.bounced,
        "failed": counts.failed,
        "open": counts.open,
    }


def _providers(usages: Sequence[ProviderUsage]) -> list[dict[str, Any]]:
    return [
        {
            "provider": usage.provider,
            "results": usage.results,
            **_seconds(usage.percentiles),
            "delivered": usage.delivered,
            "bounced": usage.bounced,
            "failed": usage.failed,
            "time_to_delivered": None if usage.to_delivered is None else _seconds(usage.to_delivered),
        }
        for usage in usages
    ]


def _seconds(percentiles: Percentiles) -> dict[str, float]:
    return {"p50_seconds": percentiles.p50, "p95_seconds": percentiles.p95, "p99_seconds": percentiles.p99}


def _reason(reason: ReasonView) -> dict[str, Any]:
    return {
        "provider": reason.provider,
        "result": reason.result,
        "code": reason.code,
        "count": reason.count,
        "example_message_id": ids.text(ids.MESSAGE, reason.example_id),
        "explanation": asdict(reason.explanation),
    }


def _entry(explained: ExplainedEntry) -> dict[str, Any]:
    entry, fate = explained.entry, explained.fate
    message_id = message_id_of(entry)
    has_recipient = entry.kind in (Kind.SETTLE, Kind.RELEASE)
    return {
        "id": explained.id,
        "kind": entry.kind.value,
        "amount": explained.amount,
        "at": timestamp(entry.at),
        "why": explained.why,
        "message_id": None if message_id is None else ids.text(ids.MESSAGE, message_id),
        "recipient_id": ids.text(ids.RECIPIENT, ids.recipient_id(message_id, entry.place.position))
        if message_id is not None and has_recipient
        else None,
        "email": None if fate is None else fate.email,
        "status": None if fate is None else fate.status,
        "smtp_code": None if fate is None else fate.code,
        "smtp_response": None if fate is None else fate.response,
        "day": _sum(explained) if entry.kind is Kind.DAY else None,
    }


def _sum(explained: ExplainedEntry) -> dict[str, Any]:
    reserved, settled, released = explained.entry.credits
    day = explained.entry.at.date().isoformat()
    return {"day": day, "reserved": reserved, "settled": settled, "released": released}


def _cells(explained: ExplainedEntry) -> tuple[str | int | None, ...]:
    shown = _entry(explained)
    return tuple([shown[name] for name in _FILE.header])


_FILE: Final[CsvFile[ExplainedEntry]] = CsvFile(
    "ledger.csv",
    (
        "id", "at", "kind", "amount", "why", "message_id", "recipient_id", "email", "status", "smtp_code",
        "smtp_response",
    ),
    _cells,
)  # fmt: skip
