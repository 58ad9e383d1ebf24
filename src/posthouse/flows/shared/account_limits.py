"""An account's sending limits: the service's defaults, unless the account has its own values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from posthouse.rules import limits, send_quota
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.acceptance import AccountQuotaRow, Spending


@dataclass(frozen=True, slots=True)
class Defaults:
    """The limits of an account without its own values."""

    rate: Rate
    warmup_limits: tuple[int, ...] | None
    stored_bytes_max: int = limits.STORED_BYTES_PER_DAY


def working_copy(row: AccountQuotaRow, defaults: Defaults) -> send_quota.Account:
    """The account as the quota rules need it, with the defaults for limits that it doesn't have itself."""
    own_limits = defaults.warmup_limits if row.warmup_limits is None else tuple(row.warmup_limits)
    return send_quota.Account(
        id=row.id,
        suspended=row.is_suspended,
        available=row.available,
        rate=Rate(
            row.rate_per_second or defaults.rate.per_second,
            row.rate_burst or defaults.rate.burst,
        ),
        full_at=row.rate_full_at,
        warmup_limits=None if row.warmup_exempt else own_limits,
        warmup_started_on=row.warmup_started_on,
        warmup_day=row.warmup_day,
        warmup_used=row.warmup_used,
        warmup_ahead=_ahead(row.warmup_ahead),
        recipients_full_at=row.recipients_full_at,
        stored_on=row.stored_on,
        stored_bytes=row.stored_bytes,
        stored_test_bytes=row.stored_test_bytes,
        stored_bytes_max=defaults.stored_bytes_max,
    )


def spending(account: send_quota.Account, credits_: int) -> Spending:
    """The new values of its row."""
    return Spending(
        account_id=account.id,
        credits=credits_,
        rate_full_at=account.full_at,
        recipients_full_at=account.recipients_full_at,
        stored_on=account.stored_on,
        stored_bytes=account.stored_bytes,
        stored_test_bytes=account.stored_test_bytes,
        warmup_started_on=account.warmup_started_on,
        warmup_day=account.warmup_day,
        warmup_used=account.warmup_used,
        warmup_ahead=_stored(account.warmup_ahead),
    )


def _stored(ahead: Mapping[date, int]) -> str | None:
    return json.dumps({day.isoformat(): count for day, count in ahead.items()}) if ahead else None


def _ahead(stored: str | None) -> Mapping[date, int]:
    return {} if stored is None else {date.fromisoformat(day): count for day, count in json.loads(stored).items()}


def suspended() -> Refusal:
    return Refusal(
        Code.ACCOUNT_SUSPENDED,
        "Sending is suspended for this account; mail that is already queued is held. Ask the operator.",
    )
