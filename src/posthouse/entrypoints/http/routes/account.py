"""The account: its credits and limits, its first steps and its name, and the alerts that a member gets by email."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from posthouse.entrypoints.http.operation import Operations
from posthouse.entrypoints.http.shapes import (
    AvailableCredits,
    OptionalTimestamp,
    RequestModel,
    Response,
    Shown,
    SuspendedReason,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.alerts import Alerts, MemberAlert
from posthouse.flows.account.team import Team
from posthouse.flows.account.usage_and_ledger import AccountSummary, ReputationReading, UsageAndLedger
from posthouse.flows.shared.principal import Member
from posthouse.rules import ids, reputation
from posthouse.rules.alert import SCALES, AlertKind
from posthouse.rules.credential import Role
from posthouse.rules.input_checks import NAME_CHARACTERS_MAX
from posthouse.rules.reputation import Marks, ReputationVerdict
from posthouse.rules.usage import Step

router = Operations("Account")

WAITING_EXAMPLE: Final[dict[str, Any]] = {"queued": 3, "deferred": 2, "held": 0, "is_more": False}
_KIND: Final = Field(
    description="What the alert is about.", json_schema_extra={"enum": [kind.value for kind in AlertKind]}
)
_RANGES: Final = "; ".join(f"{kind}: {scale.lowest:g} to {scale.highest:g}" for kind, scale in SCALES.items())
WarmUpDay = Annotated[int, described("The day of the warm-up; day 1 is the day of the first message.", minimum=1)]
_RAISED: Final[dict[str, Any]] = {"subject": None, "since": "2026-11-16T03:04:05.000Z"}


class Credits(Shown):
    available: AvailableCredits
    reserved: Annotated[int, described("Reserved for mail without a final result; a lower bound when `is_more`.")]
    granted: Annotated[int, described("All credits ever granted, less those taken back.")]
    is_more: Annotated[bool, described("Whether there is more mail without a final result than is counted.")]


class WaitingMail(Shown):
    queued: Annotated[int, described("Recipients that have not been tried yet.")]
    deferred: Annotated[int, described("Recipients that were tried and will be tried again.")]
    held: Annotated[int, described("How many of these are held because the account is suspended or a lane is paused.")]
    is_more: Annotated[bool, described("Whether there are more: only the oldest 10,000 are counted.")]


class Sending(Shown):
    suspended: Annotated[bool, described("Whether mail is refused, and waiting mail held.")]
    reason: SuspendedReason
    since: OptionalTimestamp


class Rate(Shown):
    per_second: Annotated[int, described("Requests per second.")]
    burst: Annotated[int, described("Requests in a burst.")]
    remaining: Annotated[int, described("How many requests could be sent in a burst now.")]
    reset_seconds: Annotated[int, described("Seconds until the whole burst is available again.")]


class WarmUp(Shown):
    exempt: Annotated[bool, described("Whether no day has a limit.")]
    day: WarmUpDay
    limit: Annotated[int | None, described("Today's limit of recipients; null after the warm-up.")]
    used: Annotated[int, described("Recipients of mail accepted today.")]
    resets_at: Timestamp


class ReputationWarning(Shown):
    warned_at: Timestamp
    text: Annotated[str, described("What is wrong and what to do, for people.")]


class ReputationMark(Shown):
    percent: Annotated[float, described("The share of the results at which the threshold is reached.")]
    count: Annotated[int, described("The least number at which it is reached."), read_from("count_min")]


class ReputationShare(Shown):
    count: Annotated[int, described("How many addresses; each counts once.")]
    percent: Annotated[float, described("Their share of the results.")]
    warn: Annotated[ReputationMark, described("When the account is warned.")]
    suspend: Annotated[ReputationMark, described("When the account is suspended.")]


class Reputation(Shown):
    verdict: Annotated[ReputationVerdict, described("What the current numbers mean.")]
    exempt: Annotated[bool, described("Whether the account is only warned, and never suspended for it.")]
    results: Annotated[int, described("Final results with a server's reply among the latest 10,000 recipients.")]
    results_min: Annotated[int, described("With fewer results than this, the account is not judged.")]
    bounces: Annotated[ReputationShare, described("Recipients whose address doesn't exist.")]
    complaints: Annotated[ReputationShare, described("Recipients who complained.")]
    counted_since: Annotated[Timestamp, described("24 hours ago, or the end of the last suspension. RFC 3339, UTC.")]
    counted_at: Annotated[Timestamp, described("At most a minute ago. RFC 3339, UTC.")]


class Account(Shown):
    id: Annotated[ids.AccountId, id_text(ids.ACCOUNT)]
    name: str
    created_at: Timestamp
    role: Annotated[Role, described("The role of the token's user in this account.")]
    credits: Credits
    waiting: WaitingMail
    sending: Sending
    rate: Rate
    warmup: WarmUp
    reputation_warning: Annotated[
        ReputationWarning | None, described("A warning that is still in force; null without a warning.")
    ]
    reputation: Annotated[
        Reputation | None, described("The numbers behind it; null when they could not be counted in time.")
    ]
    impersonated_until: OptionalTimestamp = absent("While an operator looks at the account; otherwise absent.")


class AccountResponse(Response):
    model_config = examples(
        {
            "account": {
                "id": "ac_01k6wq3v5e7m8x9c0b2d4f6h8j",
                "name": "acme",
                "created_at": "2026-10-01T08:00:00.000Z",
                "role": "owner",
                "credits": {"available": 9120, "reserved": 5, "granted": 10_000, "is_more": False},
                "waiting": WAITING_EXAMPLE,
                "sending": {"suspended": False, "reason": None, "since": None},
                "rate": {"per_second": 20, "burst": 40, "remaining": 39, "reset_seconds": 1},
                "warmup": {
                    "exempt": False,
                    "day": 3,
                    "limit": 500,
                    "used": 120,
                    "resets_at": "2026-11-16T00:00:00.000Z",
                },
                "reputation_warning": None,
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
            }
        }
    )

    account: Account


class ProgressStep(Shown):
    step: Annotated[
        Step,
        described(
            "`test_mail`: an email to oneself, or an account too old to tell. `first_request`: mail was sent by a "
            "program, or a key or credential was used. `webhook_answered`: by a 2xx. `second_factor`: the caller's."
        ),
    ]
    done: bool
    at: Annotated[OptionalTimestamp, described("When it was done. RFC 3339, UTC; null if not done.")]


class ProgressResponse(Response):
    model_config = examples(
        {
            "steps": [
                {"step": "test_mail", "done": True, "at": "2026-11-15T13:40:01.000Z"},
                {"step": "domain_verified", "done": False, "at": None},
            ],
            "is_complete": False,
        }
    )

    steps: Annotated[list[ProgressStep], described("All steps, in the usual order.")]
    is_complete: Annotated[bool, described("Whether all steps are done.")]


class RenameAccountRequest(RequestModel):
    model_config = examples({"name": "Acme Shop"})

    name: Annotated[str, described("Not unique; without line breaks.", minLength=1, maxLength=NAME_CHARACTERS_MAX)]


class RenameAccountResponse(Response):
    model_config = examples({"name": "Acme"})

    name: str


@router.get("/v1/account", Role.VIEWER)
async def get_account(member: Member, usage_and_ledger: UsageAndLedger) -> AccountResponse:
    """The account: its credits, its limits and how much of them remains, and whether it may send"""
    view = await usage_and_ledger.account(member.account_id)
    return AccountResponse(account=_account(view, member.role))


@router.get("/v1/progress", Role.VIEWER)
async def get_progress(member: Member, usage_and_ledger: UsageAndLedger) -> ProgressResponse:
    """The first steps of a new account, and which of them are done"""
    steps = await usage_and_ledger.first_steps(member.account_id, member.user_id)
    return ProgressResponse(
        steps=[ProgressStep(step=step, done=at is not None, at=at) for step, at in steps.items()],
        is_complete=None not in steps.values(),
    )


@router.put("/v1/account", Role.OWNER)
async def rename_account(member: Member, body: RenameAccountRequest, team: Team) -> RenameAccountResponse:
    """Change the account's name that its members see"""
    name = await team.rename_account(member.account_id, body.name, member.actor)
    return RenameAccountResponse(name=name)


def _account(view: AccountSummary, role: Role) -> Account:
    account, waiting, warmup = view.account, view.waiting, view.warmup
    return Account(
        id=account.id,
        name=account.shown_name,
        created_at=account.created_at,
        role=role,
        credits=Credits(
            available=account.available, reserved=waiting.credits, granted=view.granted, is_more=waiting.is_more
        ),
        waiting=WaitingMail.of(waiting),
        sending=Sending(
            suspended=account.suspended_at is not None, reason=account.suspended_reason, since=account.suspended_at
        ),
        rate=Rate.of(view.rate, remaining=view.reading.remaining, reset_seconds=view.reading.reset_seconds),
        warmup=WarmUp.of(warmup, exempt=account.warmup_exempt, resets_at=view.midnight),
        reputation_warning=None
        if view.warned_at is None
        else ReputationWarning(warned_at=view.warned_at, text=reputation.WARNING),
        reputation=_reputation(view.reputation, is_exempt=view.is_reputation_exempt),
        impersonated_until=view.impersonated_until,
    )


def _reputation(reading: ReputationReading | None, *, is_exempt: bool) -> Reputation | None:
    if reading is None:
        return None
    figures = reading.figures
    return Reputation.of(
        reading,
        exempt=is_exempt,
        results=figures.finals,
        results_min=reputation.FINALS_MIN,
        bounces=_share(figures.unknown, figures.unknown_percent, reputation.UNKNOWN_MARKS),
        complaints=_share(figures.complaints, figures.complaints_percent, reputation.COMPLAINT_MARKS),
    )


def _share(count: int, percent: float, marks: Marks) -> ReputationShare:
    return ReputationShare.of(marks, count=count, percent=round(percent, 3))


class ChosenAlert(RequestModel):
    kind: Annotated[str, _KIND]
    threshold: Annotated[float | None, described(f"The default if left out. {_RANGES}; the other kinds take none.")] = (
        None
    )


class SaveAlertsRequest(RequestModel):
    model_config = examples({"alerts": [{"kind": "credits_left", "threshold": 500}, {"kind": "webhook_failing"}]})

    alerts: Annotated[
        list[ChosenAlert],
        described("All alerts that you want by email; those that are left out end.", maxItems=len(AlertKind)),
    ]


class RaisedAlert(Shown):
    subject: Annotated[str | None, described("The domain or the key; null for the account as a whole.")]
    since: Timestamp


class Alert(Shown):
    kind: Annotated[str, _KIND]
    chosen: Annotated[bool, described("Whether you get email about it."), read_from("is_chosen")]
    unit: Annotated[str | None, described("Of `threshold` and `value`: `percent`, `minutes`, `credits` or `days`.")]
    threshold: Annotated[float | None, described("Your threshold, or the default; null for kinds without one.")]
    value: Annotated[float | None, described("The measured value now; null if there is nothing to measure.")]
    raised: Annotated[list[RaisedAlert], described("What it is raised for; empty while all is well, or if not chosen.")]


class AlertsResponse(Response):
    model_config = examples(
        {
            "alerts": [
                {
                    "kind": "credits_left",
                    "chosen": True,
                    "unit": "credits",
                    "threshold": 500.0,
                    "value": 120.0,
                    "raised": [_RAISED],
                }
            ]
        }
    )

    alerts: list[Alert]


@router.get("/v1/account/alerts", Role.VIEWER)
async def get_alerts(member: Member, alerts: Alerts) -> AlertsResponse:
    """The alerts of the account: which ones you chose, their current values, and which are raised"""
    return _response(await alerts.alerts_of(member))


@router.put("/v1/account/alerts", Role.VIEWER, errors=(409,))
async def save_alerts(member: Member, body: SaveAlertsRequest, alerts: Alerts) -> AlertsResponse:
    """Choose which alerts of the account you get by email"""
    return _response(await alerts.save(member, [(alert.kind, alert.threshold) for alert in body.alerts]))


def _response(found: Sequence[MemberAlert]) -> AlertsResponse:
    return AlertsResponse(alerts=[_alert(alert) for alert in found])


def _alert(alert: MemberAlert) -> Alert:
    scale = SCALES.get(alert.kind)
    measured = [reading.value for reading in alert.readings if reading.value is not None]
    return Alert.of(
        alert,
        unit=None if scale is None else scale.unit,
        threshold=None if scale is None else alert.threshold,
        # With several keys, the one that expires first.
        value=round(min(measured), 4) if scale is not None and measured else None,
        raised=[RaisedAlert(subject=state.label or None, since=state.raised_at) for state in alert.raised],
    )
