"""Checks the conditions of alerts every minute, and mails the members who chose them.

One process at a time does it, for many accounts in one statement. A raised or cleared alert is stored together with
its notice. Then the notices are mailed, each with its own idempotency key, so that after a crash the same message is
submitted again and accepted once. If no alert is chosen, a run is one small statement.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import alert, limits
from posthouse.rules.alert import AlertKind
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.refusal import Refusal
from posthouse.store import alerts, endpoint_events, postgres
from posthouse.store.alerts import AlertChange, ChosenAlert, PendingNotice, RaisedAlert, Readings
from posthouse.store.endpoint_events import AccountEvent
from posthouse.store.postgres import AdvisoryLock as LockName

log = structlog.get_logger(__name__)

# What the subjects of each alert are called in its message.
_States = Mapping[tuple[AccountId, UserId, AlertKind], Mapping[str, str]]

ACCOUNTS_A_STEP: Final = 200
NOTICES_A_RUN_MAX: Final = 500
# The sender may be out of credits, or over its rate: the next run continues.
REFUSALS_A_RUN_MAX: Final = 3
# A notice that could not be mailed for this long is of no use any more.
NOTICE_KEPT: Final = timedelta(days=3)
# A notice whose message may have been accepted is submitted again only while its idempotency key is remembered.
_TRIED_AGAIN_FOR: Final = timedelta(seconds=limits.IDEMPOTENCY_LIFETIME_SECONDS) - timedelta(hours=1)


class AlertRun(NamedTuple):
    """What a run did."""

    raised: int = 0
    cleared: int = 0
    mailed: int = 0


class AlertCheck(Flow):
    def __init__(
        self,
        context: Context,
        *,
        open_service_mail: Callable[[], AbstractAsyncContextManager[ServiceMail]],
        accounts_a_step: int = ACCOUNTS_A_STEP,
    ) -> None:
        """`open_service_mail` is called only when there is something to mail."""
        super().__init__(context)
        self._open_service_mail = open_service_mail
        self._accounts_a_step = accounts_a_step

    async def run(self) -> AlertRun:
        async with self._database.connection() as connection:
            if not await alerts.has_work(connection):
                return AlertRun()
            async with postgres.try_advisory_lock(connection, LockName.ALERTS) as is_held:
                if not is_held:
                    return AlertRun()
                raised = cleared = 0
                account_ids: Sequence[AccountId] = ()
                while account_ids := await alerts.accounts_after(
                    connection, account_ids[-1] if account_ids else None, self._accounts_a_step
                ):
                    step = await self._check(account_ids)
                    raised, cleared = raised + step.raised, cleared + step.cleared
                return AlertRun(raised, cleared, await self._mail())

    async def _check(self, account_ids: Sequence[AccountId]) -> AlertRun:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            chosen = await alerts.chosen(tx, account_ids)
            readings = await alerts.read(tx, _asked(chosen), now)
            states = _by_alert(await alerts.raised(tx, account_ids))
            changes = [change for choice in chosen for change in self._changes(choice, states, readings, now)]
            raised = await alerts.record_raised(tx, [change for change in changes if change.is_raised], now)
            cleared = await alerts.record_cleared(tx, [change for change in changes if not change.is_raised], now)
            if raised or cleared:
                await endpoint_events.enter_of_account(tx, _events([*raised, *cleared]), now)
        return AlertRun(len(raised), len(cleared))

    def _changes(
        self, choice: ChosenAlert, states: _States, readings: Readings, now: datetime
    ) -> Iterator[AlertChange]:
        raised = states.get((choice.account_id, choice.user_id, choice.kind), {})
        measured = readings.get((choice.account_id, choice.kind), ())
        for change in alert.changes(choice.kind, choice.threshold, raised, measured):
            yield AlertChange(new_id(self._randomness, now), choice, change)

    async def _mail(self) -> int:
        """How many notices were mailed."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            forgotten = await alerts.forget_old(tx, now - NOTICE_KEPT, now - _TRIED_AGAIN_FOR)
            notices = await alerts.pending(tx, NOTICES_A_RUN_MAX)
        if forgotten:
            log.error("alert_notices_not_mailed", notices=forgotten)
        mailed = refused = 0
        if notices:
            async with self._open_service_mail() as service_mail:
                for notice in notices:
                    if await self._send(service_mail, notice):
                        mailed += 1
                    else:
                        refused += 1
                    if refused == REFUSALS_A_RUN_MAX:
                        break
        return mailed

    async def _send(self, service_mail: ServiceMail, pending: PendingNotice) -> bool:
        """False if the message was refused; the next run tries again."""
        async with self._database.transaction() as tx:
            if not await alerts.begin_try(tx, pending.id, self._clock.now()):
                return True
        try:
            # Mail of the account that sends it would create events for the endpoint that fails.
            if pending.notice.kind is not AlertKind.WEBHOOK_FAILING or not await service_mail.is_sent_by(
                pending.account_id
            ):
                await service_mail.send(pending.email, *alert.alert_text(pending.notice), key=f"alert-{pending.id}")
        except Refusal:
            async with self._database.transaction() as tx:
                await alerts.note_not_sent(tx, pending.id)
            return False
        async with self._database.transaction() as tx:
            await alerts.forget(tx, pending.id)
        return True


def _events(changes: Sequence[AlertChange]) -> list[AccountEvent]:
    """The events for endpoints, each once, however many members chose the same alert."""
    found: dict[tuple[object, ...], AccountEvent] = {}
    for each in changes:
        kind, threshold, change = each.alert.kind, each.alert.threshold, each.change
        type_ = FurtherType.ALERT_RAISED if each.is_raised else FurtherType.ALERT_CLEARED
        data = {"alert": kind.value, "about": change.label, "value": change.value, "threshold": threshold}
        key = each.alert.account_id, type_, kind, threshold, change.subject
        found.setdefault(key, AccountEvent(each.alert.account_id, type_, data))
    return list(found.values())


def _asked(chosen: Sequence[ChosenAlert]) -> Mapping[AlertKind, Sequence[AccountId]]:
    asked: defaultdict[AlertKind, list[AccountId]] = defaultdict(list)
    for kind, account_id in sorted({(choice.kind, choice.account_id) for choice in chosen}):
        asked[kind].append(account_id)
    return asked


def _by_alert(raised: Sequence[RaisedAlert]) -> _States:
    states: defaultdict[tuple[AccountId, UserId, AlertKind], dict[str, str]] = defaultdict(dict)
    for state in raised:
        states[state.account_id, state.user_id, state.kind][state.subject] = state.label
    return states
