"""Reputation: warns accounts with many bounces or complaints, and suspends the worst, to protect all others.

A run checks accounts with newly suppressed addresses, and rechecks those that had too few results to be judged. A
suspension works like one by an operator: mail is held, not dropped, until `account resume`. The account's owner is
notified of both, and the account's tier is `watched` from then on.

The account that sends the service's own mail is never suspended here, and keeps its tier: what others cause must not
stop anyone from getting a new password. A metric reports it instead, for an alert.
"""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse import metrics
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import ids
from posthouse.rules import reputation as rules
from posthouse.rules.credential import SERVICE
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.reputation import WARN_AGAIN, WINDOW, ReputationFigures
from posthouse.rules.route import Tier
from posthouse.store import accounts, reputation
from posthouse.store.postgres import Connection
from posthouse.store.reputation import AccountReputation

log = structlog.get_logger(__name__)

UNDECIDED_MAX: Final = 1_000
# A suppression gets its time before its transaction commits. One that commits within this time is still seen.
COMMIT_LONGEST: Final = timedelta(seconds=60)


class ReputationRun(NamedTuple):
    """What a run did."""

    checked: int = 0
    warned: int = 0
    suspended: int = 0


class _AccountCheck(NamedTuple):
    """The result for an account; an undecided account is checked again."""

    is_decided: bool = True
    is_warned: bool = False
    is_suspended: bool = False


class Reputation(Flow):
    def __init__(self, context: Context, *, service_account: str = "") -> None:
        """`service_account` is the name or id of the account that sends the service's own mail."""
        super().__init__(context)
        self._service_account = service_account
        self._service_account_id = ids.parse(ids.ACCOUNT, service_account)
        self._checked_to: datetime | None = None
        # Accounts that are not checked yet, or have too few results so far, and until when their current results count.
        self._undecided: OrderedDict[AccountId, datetime] = OrderedDict()

    async def run(self) -> ReputationRun:
        now = self._clock.now()
        since = now - WINDOW if self._checked_to is None else self._checked_to - COMMIT_LONGEST
        async with self._database.connection() as connection:
            found = await reputation.accounts_with_suppressions(connection, since)
            for account_id in found:
                self._undecided[account_id] = now + WINDOW
                self._undecided.move_to_end(account_id)
            while len(self._undecided) > max(UNDECIDED_MAX, len(found)):
                self._undecided.popitem(last=False)
            reasons = await reputation.reasons(connection, now - WINDOW) if self._undecided else {}
        self._checked_to = now
        done = ReputationRun()
        for account_id, until in list(self._undecided.items()):
            bounces, complaints = reasons.get(account_id, (0, 0))
            try:
                check = await self._check(account_id, can_be_bad=rules.can_be_bad(bounces, complaints))
            except Refusal as refusal:
                if refusal.code is not Code.TEMPORARY_FAILURE:
                    raise
                # Its row is locked, or its mail takes too long to count; the other accounts must not wait for that.
                log.warning(
                    "account_reputation_is_unknown",
                    account=ids.text(ids.ACCOUNT, account_id),
                    cause=repr(refusal.__cause__),
                )
                check = _AccountCheck(is_decided=False)
            if check.is_decided or until <= now:
                del self._undecided[account_id]
            done = ReputationRun(done.checked + 1, done.warned + check.is_warned, done.suspended + check.is_suspended)
        return done

    async def _check(self, account_id: AccountId, *, can_be_bad: bool) -> _AccountCheck:
        # Counting the results of a day's mail takes a third of a second, and most accounts don't need it.
        if not can_be_bad:
            return _AccountCheck()
        now = self._clock.now()
        async with self._database.connection() as connection:
            account = await reputation.account_reputation(connection, account_id)
            if account is None or account.suspended_at is not None:
                return _AccountCheck()
            figures = await reputation.figures(connection, account_id, rules.counted_since(account.since, now))
        is_decided = figures.finals >= rules.FINALS_MIN
        match rules.judge(*figures):
            case rules.ReputationVerdict.WELL:
                return _AccountCheck(is_decided)
            case rules.ReputationVerdict.SUSPEND if self._is_the_services(account):
                metrics.SERVICE_ACCOUNT_BAD.count()
                return _AccountCheck(is_decided, is_warned=await self._warn(account, figures))
            case rules.ReputationVerdict.SUSPEND if not account.exempt:
                return _AccountCheck(is_decided, is_suspended=await self._suspend(account, figures))
            case _:
                return _AccountCheck(is_decided, is_warned=await self._warn(account, figures))

    def _is_the_services(self, account: AccountReputation) -> bool:
        return bool(self._service_account) and (
            account.name == self._service_account or account.account_id == self._service_account_id
        )

    async def _suspend(self, account: AccountReputation, figures: ReputationFigures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # An operator's change in the meantime wins.
            if await reputation.lock(tx, account.account_id) != account:
                return False
            reason = f"Its reputation: {rules.described(figures)}."
            await accounts.suspend(tx, account.account_id, reason, now)
            await reputation.watch(tx, account.account_id)
            await self._notify_owner(tx, account, "account.suspended", reason, now)
        log.warning("account_suspended_for_its_reputation", **_log_fields(account, figures))
        return True

    async def _warn(self, account: AccountReputation, figures: ReputationFigures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            tier = account.tier if self._is_the_services(account) else Tier.WATCHED
            is_time = await reputation.warn(tx, account.account_id, now, now - WARN_AGAIN, tier)
            if is_time:
                reason = f"Its reputation: {rules.described(figures)}."
                await self._notify_owner(tx, account, "account.warned", reason, now)
        if is_time:
            log.warning("account_reputation_is_bad", exempt=account.exempt, **_log_fields(account, figures))
        return is_time

    async def _notify_owner(
        self, tx: Connection, account: AccountReputation, action: str, reason: str, now: datetime
    ) -> None:
        """Owners read it in the account's audit log. An email to them belongs here as well, in this transaction."""
        await self._audit_log.add_entry(tx, account.account_id, SERVICE, action, account.name, now, {"reason": reason})


def _log_fields(account: AccountReputation, figures: ReputationFigures) -> dict[str, object]:
    return {
        "account": ids.text(ids.ACCOUNT, account.account_id),
        "name": account.name,
        "results": figures.finals,
        "unknown_percent": round(figures.unknown_percent, 2),
        "complaints_percent": round(figures.complaints_percent, 2),
    }
