"""The operator's operations of accounts and users.

Accounts: list and read them, and change what they may do. Users: find one, and end their sessions.
"""

from collections.abc import Sequence
from datetime import date
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import Path, Query, Request
from pydantic import BeforeValidator, Field

from posthouse.clock import Clock
from posthouse.entrypoints.http.cached_read import CachedReads
from posthouse.entrypoints.http.operation import Converted, IdempotencyKey, Operations, Operator, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor
from posthouse.entrypoints.http.routes.account import WarmUpDay
from posthouse.entrypoints.http.routes.message_changes import Resend, ResendId, ResendRequest, ResendResponse
from posthouse.entrypoints.http.routes.operator_messages import FoundMessage
from posthouse.entrypoints.http.routes.team import AuditEntry
from posthouse.entrypoints.http.shapes import (
    AvailableCredits,
    HasSecondFactor,
    NextCursor,
    OptionalTimestamp,
    RequestModel,
    Response,
    Shown,
    SuspendedReason,
    Timestamp,
    VerifiedAt,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.resends import Resends
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.team import Team
from posthouse.flows.account.usage_and_ledger import UsageAndLedger
from posthouse.flows.operate.accounts import AccountOrder, AccountRow, Accounts
from posthouse.flows.operate.message_lookup import MessageLookup
from posthouse.flows.operate.operators import Operators
from posthouse.flows.shared.principal import Operating
from posthouse.rules import ids
from posthouse.rules.credential import Role
from posthouse.rules.refusal import invalid, unreadable_cursor
from posthouse.rules.send_quota import LimitKind

router = Operations("Operator")

# For its domains, and for its users.
SHOWN_OF_ACCOUNT: Final = 100
NEWEST_OF_ACCOUNT: Final = 20
DAYS_OF_ACCOUNT: Final = 30
_EMAIL: Final = Field(examples=["ada@example.com"])
AccountName = Annotated[str, Path(description="Its name or id.")]

Named = Annotated[str, Query(description="A user's whole address or id; without it, the operators.")]
UserId = Annotated[str, Path(alias="id", description="The user's id.")]


def _order(given: str) -> AccountOrder:
    if given not in set(AccountOrder):
        raise invalid(f"`by` is one of {', '.join(AccountOrder)}.")
    return AccountOrder(given)


def _own_warmup(account: AccountRow) -> tuple[int, ...] | str | None:
    return "exempt" if account.warmup_exempt else account.warmup_limits


AccountsBy = Annotated[
    AccountOrder,
    Query(
        description="All by `name`; or the first by `volume`, by `reputation` (the share not delivered), closest to "
        "their `limits` or `new`.",
        json_schema_extra={"enum": [order.value for order in AccountOrder]},
    ),
    Converted(_order),
]


class NearestLimit(Shown):
    kind: LimitKind
    share: Annotated[
        float,
        described("The used part of today's warm-up, or of credits for 7 days; 1 at the limit.", minimum=0, maximum=1),
    ]
    days_left: Annotated[float | None, described("How long credits last; null for a warm-up.", minimum=0)]


class OperatorAccount(Shown):
    model_config = examples(
        {
            "id": "ac_01k6wq3v5e7m8x9c0b2d4f6h80",
            "name": "acme",
            "state": "active",
            "available": 10000,
            "suspended_at": None,
            "suspended_reason": None,
            "created_at": "2026-11-15T09:30:00.000Z",
            "warned_at": None,
            "accepted": 9310,
            "delivered": 9105,
            "bounced": 84,
            "failed": 2,
            "erased": 0,
            "nearest_limit": {"kind": "warmup", "share": 0.8, "days_left": None},
        }
    )

    id: Annotated[ids.AccountId, id_text(ids.ACCOUNT)]
    name: str
    state: Annotated[str, described("`active`, `suspended` or `closed`.")]
    available: AvailableCredits
    suspended_at: OptionalTimestamp
    suspended_reason: SuspendedReason
    created_at: Timestamp
    warned_at: Annotated[
        OptionalTimestamp, read_from("figures", "warned_at"), described("When it had too many bounces or complaints.")
    ]
    accepted: Annotated[
        int,
        read_from("figures", "counts", "accepted"),
        described("Recipients of live mail that it sent in the last 24 hours."),
    ]
    delivered: Annotated[int, read_from("figures", "counts", "delivered")]
    bounced: Annotated[int, read_from("figures", "counts", "bounced")]
    failed: Annotated[int, read_from("figures", "counts", "failed")]
    erased: Annotated[
        int,
        read_from("figures", "erased"),
        described("Recipients of this mail that the account erased; their results still count."),
    ]
    nearest_limit: Annotated[NearestLimit | None, described("Null if it is close to none, or suspended.")]


class OperatorAccounts(Response):
    accounts: list[OperatorAccount]
    next_cursor: NextCursor


class OperatorAccountChanged(Response):
    account: OperatorAccount


class OperatorLimits(Shown):
    model_config = examples(
        {
            "rate_per_second": 20,
            "rate_burst": 40,
            "warmup_day": 3,
            "warmup_limit": 2000,
            "warmup_used": 1600,
            "own_rate_per_second": None,
            "own_rate_burst": None,
            "own_warmup": None,
        }
    )

    rate_per_second: Annotated[
        float, read_from("rate", "per_second"), described("The effective limit of requests per second.")
    ]
    rate_burst: Annotated[int, read_from("rate", "burst"), described("The effective limit of requests in a burst.")]
    warmup_day: Annotated[WarmUpDay, read_from("warmup", "day")]
    warmup_limit: Annotated[
        int | None, read_from("warmup", "limit"), described("Today's limit of recipients; null without one.")
    ]
    warmup_used: Annotated[int, read_from("warmup", "used"), described("Recipients of mail accepted today.")]
    own_rate_per_second: Annotated[
        int | None, read_from("account", "rate_per_second"), described("Null: the service's limit.")
    ]
    own_rate_burst: Annotated[int | None, read_from("account", "rate_burst"), described("Null: the service's limit.")]
    own_warmup: Annotated[
        list[int] | Literal["exempt"] | None,
        BeforeValidator(_own_warmup),
        read_from("account"),
        described("Recipients a day; null: the service's."),
    ]


class OperatorDomain(Shown):
    name: Annotated[str, Field(examples=["example.com"])]
    verified_at: VerifiedAt


class OperatorMember(Shown):
    id: Annotated[ids.UserId, id_text(ids.USER), read_from("user_id")]
    email: Annotated[str, _EMAIL]
    role: Role


class OperatorAccountDay(Shown):
    model_config = examples({"day": "2026-11-15", "accepted": 9310, "delivered": 9105, "bounced": 84, "failed": 2})

    day: Annotated[date, described("In UTC.")]
    accepted: Annotated[int, read_from("usage", "live", "accepted"), described("Recipients of live mail.")]
    delivered: Annotated[int, read_from("usage", "live", "delivered")]
    bounced: Annotated[int, read_from("usage", "live", "bounced")]
    failed: Annotated[int, read_from("usage", "live", "failed")]


class OperatorAccountDetail(Response):
    account: OperatorAccount
    granted: Annotated[int, described("All credits ever granted, less those taken back.", examples=[50000])]
    waiting: Annotated[
        int, described("Recipients that are not final; at most the oldest 10,000 are counted.", examples=[119])
    ]
    limits: OperatorLimits
    domains: Annotated[list[OperatorDomain], described("At most 100.")]
    users: Annotated[list[OperatorMember], described("At most 100.")]
    usage: Annotated[list[OperatorAccountDay], described("The last 30 days, newest first.")]
    messages: Annotated[list[FoundMessage], described("The newest 20 of the last 7 days.")]
    log: Annotated[list[AuditEntry], described("The newest 20 entries of the account's own log.")]


class SuspendRequest(RequestModel):
    model_config = examples({"reason": "A third of its mail bounces."})

    reason: Annotated[str, described("The reason; the owners see it.", minLength=1)]


class LimitsRequest(RequestModel):
    model_config = examples({"rate_per_second": 50, "warmup": "exempt"})

    rate_per_second: Annotated[
        int | Literal["default"] | None, described("Requests per second; `default`: the service's limit.", minimum=1)
    ] = None
    rate_burst: Annotated[
        int | Literal["default"] | None, described("Requests in a burst; `default`: the service's limit.", minimum=1)
    ] = None
    warmup: Annotated[
        list[int] | Literal["default", "exempt"] | None,
        described("Recipients for each day; `exempt`: no limit; `default`: the service's limits."),
    ] = None


class GrantRequest(RequestModel):
    model_config = examples({"amount": 10000, "reason": "Invoice 1001"})

    amount: Annotated[int, described("How many; a negative number takes back a mistake.")]
    reason: Annotated[str, described("The reason; the owners see it.", minLength=1)]


class AccountImpersonation(Response):
    account_id: Annotated[ids.AccountId, id_text(ids.ACCOUNT), read_from("account", "id")]
    account: Annotated[str, read_from("account", "name"), described("The account's name.", examples=["acme"])]
    token: Annotated[
        str, described("For the routes that a viewer may read.", examples=["eyJhbGciOiJIUzI1NiJ9.e30.aW1w"])
    ]
    expires_at: Annotated[Timestamp, read_from("until")]


@router.get("/v1/operator/accounts")
async def operator_list_accounts(
    _: Operator,
    clock: Clock,
    accounts: Accounts,
    reads: CachedReads,
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
    by: AccountsBy = AccountOrder.NAME,
) -> OperatorAccounts:
    """All accounts by name, or those that stand out"""
    if by is not AccountOrder.NAME:
        first = await reads.first_accounts(by, limit).get(clock.now, partial(accounts.first, by, limit))
        found = await accounts.rows(first.account_ids)
        return OperatorAccounts(accounts=await _accounts(accounts, found), next_cursor=None)
    if cursor is not None and "\0" in cursor:
        raise unreadable_cursor()
    rows = await accounts.page(cursor or "", limit + 1)
    next_cursor = rows[limit - 1].name if len(rows) > limit else None
    return OperatorAccounts(accounts=await _accounts(accounts, rows[:limit]), next_cursor=next_cursor)


@router.post("/v1/operator/accounts/{account}/suspend", errors=(409,))
async def operator_suspend_account(
    _: Operator, accounts: Accounts, account: AccountName, body: SuspendRequest
) -> OperatorAccountChanged:
    """Stop an account from sending; its mail is held"""
    return await _changed(accounts, await accounts.suspend(account, body.reason))


@router.post("/v1/operator/accounts/{account}/resume", errors=(409,))
async def operator_resume_account(_: Operator, accounts: Accounts, account: AccountName) -> OperatorAccountChanged:
    """Let a suspended account send again, and send held mail"""
    return await _changed(accounts, await accounts.resume(account))


@router.post("/v1/operator/accounts/{account}/impersonation")
async def operator_impersonate_account(
    _: Operator, account: AccountName, accounts: Accounts, operators: Operators, request: Request
) -> AccountImpersonation:
    """A viewer's token for an account, read-only and valid for 30 minutes; the account's log shows it"""
    impersonation = await accounts.impersonate(account)
    token = await operators.impersonation_token(
        request.headers.get("authorization"), impersonation.account.id, impersonation.until
    )
    return AccountImpersonation.of(impersonation, token=token)


@router.get("/v1/operator/accounts/{account}")
async def operator_get_account(
    _: Operator,
    account: AccountName,
    accounts: Accounts,
    usage_and_ledger: UsageAndLedger,
    message_lookup: MessageLookup,
    team: Team,
) -> OperatorAccountDetail:
    """An account: its limits, domains, users and use, its newest messages, and its log"""
    found = await accounts.account(account)
    account_id = found.account.id
    summary = await usage_and_ledger.account(account_id)
    usage = await usage_and_ledger.usage(account_id, days=str(DAYS_OF_ACCOUNT))
    (shown,) = await _accounts(accounts, [found.account])
    return OperatorAccountDetail(
        account=shown,
        granted=found.granted,
        waiting=summary.waiting.queued + summary.waiting.deferred,
        limits=OperatorLimits.of(summary),
        domains=OperatorDomain.of_all(found.domains[:SHOWN_OF_ACCOUNT]),
        users=OperatorMember.of_all(found.members[:SHOWN_OF_ACCOUNT]),
        usage=OperatorAccountDay.of_all(usage.days),
        messages=FoundMessage.of_all(await message_lookup.newest(account_id, NEWEST_OF_ACCOUNT)),
        log=AuditEntry.of_all((await team.log(account_id, NEWEST_OF_ACCOUNT)).items),
    )


@router.post("/v1/operator/accounts/{account}/limits")
async def operator_set_limits(
    _: Operator, accounts: Accounts, account: AccountName, body: LimitsRequest
) -> OperatorAccountChanged:
    """Set an account's own limits, or reset them to the service's; limits that are not given stay"""
    if body.rate_per_second is None and body.rate_burst is None and body.warmup is None:
        raise invalid("There is nothing to set: give `rate_per_second`, `rate_burst` or `warmup`.")
    row = await accounts.set_limits(
        account, rate_per_second=body.rate_per_second, rate_burst=body.rate_burst, warmup=body.warmup
    )
    return await _changed(accounts, row)


@router.post("/v1/operator/accounts/{account}/credits", errors=(409,))
async def operator_grant_credits(
    _: Operator,
    accounts: Accounts,
    account: AccountName,
    key: IdempotencyKey,
    body: GrantRequest,
) -> OperatorAccountChanged:
    """Give an account credits, or take back a mistake"""
    return await _changed(accounts, await accounts.grant_credits(account, body.amount, body.reason, key))


@router.post("/v1/operator/accounts/{account}/resends", status=202, errors=(409,))
async def operator_create_resend(
    _: Operator, accounts: Accounts, resends: Resends, account: AccountName, key: IdempotencyKey, body: ResendRequest
) -> ResendResponse:
    """Send an account's failed messages again, as `POST /v1/resends` does; with `dry_run`, only count"""
    operating = Operating(await accounts.account_id(account))
    return ResendResponse(resend=Resend.of(await resends.begin(operating, key, body.given)))


@router.get("/v1/operator/accounts/{account}/resends/{id}")
async def operator_get_resend(
    _: Operator, accounts: Accounts, resends: Resends, account: AccountName, resend_id: ResendId
) -> ResendResponse:
    """The progress of an account's resend"""
    account_id = await accounts.account_id(account)
    return ResendResponse(resend=Resend.of(await resends.resend(account_id, resend_id)))


@router.post("/v1/operator/accounts/{account}/resends/{id}/stop")
async def operator_stop_resend(
    _: Operator, accounts: Accounts, resends: Resends, account: AccountName, resend_id: ResendId
) -> ResendResponse:
    """Stop an account's resend; messages that were already sent again stay"""
    operating = Operating(await accounts.account_id(account))
    return ResendResponse(resend=Resend.of(await resends.stop(operating, resend_id)))


async def _changed(accounts: Accounts, row: AccountRow) -> OperatorAccountChanged:
    (account,) = await _accounts(accounts, [row])
    return OperatorAccountChanged(account=account)


async def _accounts(accounts: Accounts, rows: Sequence[AccountRow]) -> list[OperatorAccount]:
    account_ids = [row.id for row in rows]
    figures = await accounts.figures(account_ids)
    limits = await accounts.nearest_limits(account_ids)
    return [OperatorAccount.of(row, figures=figures[row.id], nearest_limit=limits.get(row.id)) for row in rows]


class OperatorUserAccount(Shown):
    id: Annotated[ids.AccountId, id_text(ids.ACCOUNT), read_from("account_id")]
    name: Annotated[str, Field(examples=["acme"])]
    role: Role


class OperatorUserSession(Shown):
    id: Annotated[ids.SessionId, id_text(ids.SESSION)]
    created_at: Timestamp
    expires_at: Timestamp
    address: Annotated[str, read_from("peer"), described("Where the login came from.", examples=["192.0.2.7"])]
    user_agent: Annotated[str, described("The `User-Agent` of the login.", examples=["Mozilla/5.0"])]


class OperatorUser(Shown):
    id: Annotated[ids.UserId, id_text(ids.USER), read_from("user", "id")]
    email: Annotated[str, _EMAIL, read_from("user", "email")]
    created_at: Annotated[Timestamp, read_from("user", "created_at")]
    operator_since: Annotated[OptionalTimestamp, described("Null: not an operator.")]
    has_second_factor: HasSecondFactor
    accounts: Annotated[list[OperatorUserAccount], described("At most 100.")]
    sessions: Annotated[list[OperatorUserSession], described("Sessions that have not ended, newest first.")]


class OperatorUsers(Response):
    users: Annotated[list[OperatorUser], described("At most one; without `q`, the first 100 operators.")]


class EndSessionsRequest(RequestModel):
    model_config = examples({"session": "se_01k6wq3v5e7m8x9c0b2d4f6h80"})

    session: Annotated[str | None, described("The session's id; null: all sessions.")] = None


class SessionsEnded(Response):
    ended: Annotated[int, described("How many sessions were ended.", examples=[1])]


@router.get("/v1/operator/users")
async def operator_find_users(_: Operator, operators: Operators, q: Named = "") -> OperatorUsers:
    """Find a user of any account by address or id; or see who the operators are"""
    return OperatorUsers(users=OperatorUser.of_all(await operators.find_users(q)))


@router.post("/v1/operator/users/{id}/end-sessions")
async def operator_end_sessions(
    _: Operator, sessions: Sessions, user_id: UserId, body: EndSessionsRequest
) -> SessionsEnded:
    """End a session of a user, or all of them"""
    return SessionsEnded(ended=await sessions.end_of(user_id, body.session))
