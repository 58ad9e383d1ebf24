"""Reputation: warns about accounts with many bounces or complaints, and suspends the worst, to protect all others.

A run checks accounts with newly suppressed addresses, and again those that had too few results to be judged. A
suspension is the same as an operator's: mail is held, not dropped, until `account resume`. The account's owner is
notified of both, and the account's tier is `watched` from then on.

The account that sends the service's own mail is never suspended here, and keeps its tier: what others cause must not
keep anyone from a new password. A metric has it instead, for an alert.
"""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse import metrics
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.rules import ids
from posthouse.rules import reputation as rules
from posthouse.rules.actor import SERVICE
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.reputation import WARN_AGAIN, WINDOW, ReputationFigures
from posthouse.rules.route import Tier
from posthouse.store import accounts, reputation
from posthouse.store.postgres import Connection, Database
from posthouse.store.reputation import AccountReputation

log = structlog.get_logger(__name__)

UNDECIDED_MAX: Final = 1_000
# A suppression is stamped before its transaction commits: what commits within this is still seen.
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


class Reputation:
    def __init__(self, *, database: Database, clock: Clock, chance: Chance, service_account: str = "") -> None:
        """`service_account` is the name or id of the account that sends the service's own mail."""
        self._service_account = service_account
        self._service_account_id = ids.parse(ids.ACCOUNT, service_account)
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._checked_to: datetime | None = None
        # Accounts not checked yet, or with too few results so far; and until when their present results count.
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
                # Its row is locked, or its mail takes too long to count: the other accounts must not wait for that.
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
        # Counting the results of a day's mail takes a third of a second, and most accounts need no count.
        if not can_be_bad:
            return _AccountCheck()
        now = self._clock.now()
        async with self._database.connection() as connection:
            standing = await reputation.account_reputation(connection, account_id)
            if standing is None or standing.suspended_at is not None:
                return _AccountCheck()
            figures = await reputation.figures(connection, account_id, rules.counted_since(standing.since, now))
        is_decided = figures.finals >= rules.FINALS_MIN
        match rules.judge(*figures):
            case rules.ReputationVerdict.WELL:
                return _AccountCheck(is_decided)
            case rules.ReputationVerdict.SUSPEND if self._is_the_services(standing):
                metrics.SERVICE_ACCOUNT_BAD.count()
                return _AccountCheck(is_decided, is_warned=await self._warn(standing, figures))
            case rules.ReputationVerdict.SUSPEND if not standing.exempt:
                return _AccountCheck(is_decided, is_suspended=await self._suspend(standing, figures))
            case _:
                return _AccountCheck(is_decided, is_warned=await self._warn(standing, figures))

    def _is_the_services(self, standing: AccountReputation) -> bool:
        return bool(self._service_account) and (
            standing.name == self._service_account or standing.account_id == self._service_account_id
        )

    async def _suspend(self, standing: AccountReputation, figures: ReputationFigures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # An operator's change in the meantime wins.
            if await reputation.lock(tx, standing.account_id) != standing:
                return False
            reason = f"Its reputation: {rules.described(figures)}."
            await accounts.suspend(tx, standing.account_id, reason, now)
            await reputation.watch(tx, standing.account_id)
            await self._notify_owner(tx, standing, "account.suspended", reason, now)
        log.warning("account_suspended_for_its_reputation", **_log_fields(standing, figures))
        return True

    async def _warn(self, standing: AccountReputation, figures: ReputationFigures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            tier = standing.tier if self._is_the_services(standing) else Tier.WATCHED
            is_time = await reputation.warn(tx, standing.account_id, now, now - WARN_AGAIN, tier)
            if is_time:
                reason = f"Its reputation: {rules.described(figures)}."
                await self._notify_owner(tx, standing, "account.warned", reason, now)
        if is_time:
            log.warning("account_reputation_is_bad", exempt=standing.exempt, **_log_fields(standing, figures))
        return is_time

    async def _notify_owner(
        self, tx: Connection, standing: AccountReputation, action: str, reason: str, now: datetime
    ) -> None:
        """Owners read it in the account's audit log. A mail to them belongs here as well, in this transaction."""
        await self._audit_log.note(tx, standing.account_id, SERVICE, action, standing.name, now, {"reason": reason})


def _log_fields(standing: AccountReputation, figures: ReputationFigures) -> dict[str, object]:
    return {
        "account": ids.text(ids.ACCOUNT, standing.account_id),
        "name": standing.name,
        "results": figures.finals,
        "unknown_percent": round(figures.unknown_percent, 2),
        "complaints_percent": round(figures.complaints_percent, 2),
    }
