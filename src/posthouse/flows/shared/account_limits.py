"""An account's sending limits: the service's defaults, and the account's own values where it has them."""

from dataclasses import dataclass

from posthouse.rules import send_quota
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.acceptance import AccountQuotaRow


@dataclass(frozen=True, slots=True)
class Defaults:
    """The limits of an account that has none of its own."""

    rate: Rate
    warmup_limits: tuple[int, ...] | None


def working_copy(row: AccountQuotaRow, defaults: Defaults) -> send_quota.Account:
    """The account as the quota rules need it, with the defaults where it has no limits of its own."""
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
    )


def suspended() -> Refusal:
    return Refusal(
        Code.ACCOUNT_SUSPENDED,
        "Sending is suspended for this account; mail that is already queued is held. Ask the operator.",
    )
