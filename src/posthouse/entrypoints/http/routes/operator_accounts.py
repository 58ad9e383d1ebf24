"""The operator's routes of accounts: to see them, and to change what they may do."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.kept import Kept
from posthouse.entrypoints.http.openapi import IDEMPOTENCY_KEY, json_body, responses_with
from posthouse.entrypoints.http.operator_flows import OperatorFlows
from posthouse.entrypoints.http.route_context import (
    Cursor,
    PageSize,
    body_of,
    json_response,
    key_of,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.routes.operator import (
    CHANGE_ERRORS,
    MUCH,
    RANKED_FOR,
    READ_ERRORS,
    flows_of,
    kept_of,
)
from posthouse.entrypoints.http.routes.resends import ResendId, resend_fields, resend_request
from posthouse.entrypoints.http.schemas import operator as schemas
from posthouse.entrypoints.http.schemas.resends import ResendRequest, ResendResponse
from posthouse.flows.account.usage_and_ledger import AccountSummary
from posthouse.flows.operate.accounts import AccountFigures, AccountOrder, AccountRow
from posthouse.flows.operate.nearest_limits import NearestLimit
from posthouse.flows.shared.principal import Operating
from posthouse.rules import ids
from posthouse.rules.refusal import invalid, unreadable_cursor

router = APIRouter()

# Of its domains, and of its users.
SHOWN_OF_ACCOUNT: Final = 100

AccountsBy = Annotated[
    str,
    Query(
        description="All by `name`; or the first by `volume`, by `conduct` (the share not delivered), the nearest to "
        "their `limits` or `new`.",
        json_schema_extra={"enum": [order.value for order in AccountOrder]},
    ),
]
AccountName = Annotated[str, Path(description="Its name or id.")]


@router.get(
    "/v1/operator/accounts",
    operation_id="operatorListAccounts",
    summary="All accounts in the order of their names, or those that stand out",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorAccounts, *READ_ERRORS),
)
async def list_accounts(
    request: Request, limit: PageSize = "50", cursor: Cursor = None, by: AccountsBy = "name"
) -> Response:
    flows = await flows_of(request)
    count = page_size(limit)
    if by not in set(AccountOrder):
        raise invalid(f"`by` is one of {', '.join(AccountOrder)}.")
    if by != AccountOrder.NAME:
        kept = kept_of(request).accounts.setdefault((by, count), Kept(RANKED_FOR, lambda first: first.read > MUCH))
        order = AccountOrder(by)
        read = flows.nearest_limits.first if order is AccountOrder.LIMITS else partial(flows.accounts.first, order)
        first = await kept.get(services_of(request).now, partial(read, count))
        found = await flows.accounts.rows(first.account_ids)
        return json_response(request, {"accounts": await _accounts(flows, found), "next_cursor": None})
    if cursor is not None and "\0" in cursor:
        raise unreadable_cursor()
    rows = await flows.accounts.page(cursor or "", count + 1)
    is_more = len(rows) > count
    content = {
        "accounts": await _accounts(flows, rows[:count]),
        "next_cursor": rows[count - 1].name if is_more else None,
    }
    return json_response(request, content)


@router.post(
    "/v1/operator/accounts/{account}/suspend",
    operation_id="operatorSuspendAccount",
    summary="Stop an account from sending; its mail is held",
    tags=["Operator"],
    openapi_extra=json_body(schemas.SuspendRequest),
    responses=responses_with(200, schemas.OperatorAccountChanged, *CHANGE_ERRORS),
)
async def suspend_account(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.SuspendRequest)
    (changed,) = await _accounts(flows, [await flows.accounts.suspend(account, given.reason)])
    return json_response(request, {"account": changed})


@router.post(
    "/v1/operator/accounts/{account}/resume",
    operation_id="operatorResumeAccount",
    summary="Let a suspended account send again, and send what was held",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorAccountChanged, *CHANGE_ERRORS),
)
async def resume_account(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    (changed,) = await _accounts(flows, [await flows.accounts.resume(account)])
    return json_response(request, {"account": changed})


@router.post(
    "/v1/operator/accounts/{account}/visit",
    operation_id="operatorVisitAccount",
    summary="A viewer's token for an account for 30 minutes, which can change nothing; its log says so",
    tags=["Operator"],
    responses=responses_with(200, schemas.AccountVisit, *CHANGE_ERRORS),
)
async def visit_account(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    visit = await flows.accounts.visit(account)
    token = await services_of(request).operators.visiting_token(
        request.headers.get("authorization"), visit.account.id, visit.until
    )
    content = {
        "account_id": ids.text(ids.ACCOUNT, visit.account.id),
        "account": visit.account.name,
        "token": token,
        "expires_at": timestamp(visit.until),
    }
    return json_response(request, content)


@router.get(
    "/v1/operator/accounts/{account}",
    operation_id="operatorGetAccount",
    summary="An account: its limits, its domains and its users",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorAccountDetail, *READ_ERRORS),
)
async def get_account(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    found = await flows.accounts.account(account)
    summary = await services_of(request).usage_and_ledger.account(found.account.id)
    (shown,) = await _accounts(flows, [found.account])
    content = {
        "account": shown,
        "granted": found.granted,
        "waiting": summary.waiting.queued + summary.waiting.deferred,
        "limits": _limits(summary),
        "domains": [
            {"name": row.name, "verified_at": timestamp(row.verified_at)} for row in found.domains[:SHOWN_OF_ACCOUNT]
        ],
        "users": [
            {"id": ids.text(ids.USER, row.user_id), "email": row.email, "role": row.role}
            for row in found.members[:SHOWN_OF_ACCOUNT]
        ],
    }
    return json_response(request, content)


@router.post(
    "/v1/operator/accounts/{account}/limits",
    operation_id="operatorSetLimits",
    summary="Set an account's own limits, or put them back to the service's; what is not given stays",
    tags=["Operator"],
    openapi_extra=json_body(schemas.LimitsRequest),
    responses=responses_with(200, schemas.OperatorAccountChanged, *CHANGE_ERRORS),
)
async def set_limits(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    given = await body_of(request, schemas.LimitsRequest)
    if given.rate_per_second is None and given.rate_burst is None and given.warmup is None:
        raise invalid("Give `rate_per_second`, `rate_burst` or `warmup`: nothing is to be set.")
    row = await flows.accounts.set_limits(
        account, rate_per_second=given.rate_per_second, rate_burst=given.rate_burst, warmup=given.warmup
    )
    (changed,) = await _accounts(flows, [row])
    return json_response(request, {"account": changed})


@router.post(
    "/v1/operator/accounts/{account}/credits",
    operation_id="operatorGrantCredits",
    summary="Give an account credits, or take back a mistake",
    tags=["Operator"],
    openapi_extra=json_body(schemas.GrantRequest) | {"parameters": [IDEMPOTENCY_KEY]},
    responses=responses_with(200, schemas.OperatorAccountChanged, *CHANGE_ERRORS),
)
async def grant_credits(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    key = key_of(request)
    given = await body_of(request, schemas.GrantRequest)
    row = await flows.accounts.grant_credits(account, given.amount, given.reason, key)
    (changed,) = await _accounts(flows, [row])
    return json_response(request, {"account": changed})


@router.post(
    "/v1/operator/accounts/{account}/resends",
    operation_id="operatorCreateResend",
    summary="Send an account's failed messages again, as `POST /v1/resends` does; with `dry_run`, only count",
    tags=["Operator"],
    status_code=202,
    openapi_extra=json_body(ResendRequest) | {"parameters": [IDEMPOTENCY_KEY]},
    responses=responses_with(202, ResendResponse, *CHANGE_ERRORS),
)
async def create_resend(request: Request, account: AccountName) -> Response:
    flows = await flows_of(request)
    key = key_of(request)
    asked = await resend_request(request)
    resend = await flows.resends.begin(Operating(await flows.accounts.account_id(account)), key, asked)
    return json_response(request, {"resend": resend_fields(resend)}, 202)


@router.get(
    "/v1/operator/accounts/{account}/resends/{id}",
    operation_id="operatorGetResend",
    summary="How far a resend of an account is",
    tags=["Operator"],
    responses=responses_with(200, ResendResponse, *READ_ERRORS),
)
async def get_resend(request: Request, account: AccountName, resend_id: ResendId) -> Response:
    flows = await flows_of(request)
    resend = await flows.resends.resend(await flows.accounts.account_id(account), resend_id)
    return json_response(request, {"resend": resend_fields(resend)})


@router.post(
    "/v1/operator/accounts/{account}/resends/{id}/stop",
    operation_id="operatorStopResend",
    summary="End a resend of an account; what was sent again stays",
    tags=["Operator"],
    responses=responses_with(200, ResendResponse, *CHANGE_ERRORS),
)
async def stop_resend(request: Request, account: AccountName, resend_id: ResendId) -> Response:
    flows = await flows_of(request)
    resend = await flows.resends.stop(Operating(await flows.accounts.account_id(account)), resend_id)
    return json_response(request, {"resend": resend_fields(resend)})


def _limits(summary: AccountSummary) -> dict[str, Any]:
    own = summary.account
    return {
        "rate_per_second": summary.rate.per_second,
        "rate_burst": summary.rate.burst,
        "warmup_day": summary.warmup.day,
        "warmup_limit": summary.warmup.limit,
        "warmup_used": summary.warmup.used,
        "own_rate_per_second": own.rate_per_second,
        "own_rate_burst": own.rate_burst,
        "own_warmup": "exempt" if own.warmup_exempt else own.warmup_limits,
    }


async def _accounts(flows: OperatorFlows, rows: Sequence[AccountRow]) -> list[dict[str, Any]]:
    account_ids = [row.id for row in rows]
    figures = await flows.accounts.figures(account_ids)
    limits = await flows.nearest_limits.of(account_ids)
    return [_account(row, figures[row.id], limits.get(row.id)) for row in rows]


def _account(row: AccountRow, figures: AccountFigures, nearest: NearestLimit | None) -> dict[str, Any]:
    counts = figures.counts
    return {
        "id": ids.text(ids.ACCOUNT, row.id),
        "name": row.name,
        "state": row.state,
        "available": row.available,
        "suspended_at": timestamp(row.suspended_at),
        "suspended_reason": row.suspended_reason,
        "created_at": timestamp(row.created_at),
        "warned_at": timestamp(figures.warned_at),
        "accepted": counts.accepted,
        "delivered": counts.delivered,
        "bounced": counts.bounced,
        "failed": counts.failed,
        "erased": figures.erased,
        "nearest_limit": None if nearest is None else nearest._asdict(),
    }
