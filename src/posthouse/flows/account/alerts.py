"""Alerts of a member: which ones they chose, with which thresholds, and what is measured now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import Member
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import alert
from posthouse.rules.alert import AlertKind, Reading
from posthouse.rules.refusal import invalid
from posthouse.store import alerts
from posthouse.store.alerts import RaisedAlert as RaisedAlert
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class MemberAlert:
    """`threshold` is the default if the member did not choose the alert."""

    kind: AlertKind
    is_chosen: bool
    threshold: float
    readings: Sequence[Reading]
    raised: Sequence[RaisedAlert]


class Alerts(Flow):
    def __init__(self, context: Context, *, service_mail: ServiceMail) -> None:
        super().__init__(context)
        self._service_mail = service_mail

    async def alerts_of(self, member: Member) -> Sequence[MemberAlert]:
        """Every kind of alert."""
        async with self._database.transaction() as tx:
            return await self._of(tx, member)

    async def save(self, member: Member, given: Sequence[tuple[str, float | None]]) -> Sequence[MemberAlert]:
        """Choose these alerts and no others, each with its threshold.

        A condition that already holds is shown in the response; its alert is raised without an email.
        """
        thresholds = _thresholds(given)
        if thresholds:
            self._service_mail.require()
        now = self._clock.now()
        async with self._database.transaction() as tx:
            before = await alerts.lock_chosen_by(tx, member.account_id, member.user_id)
            changed = [kind for kind, threshold in thresholds.items() if before.get(kind) != threshold]
            await alerts.choose(tx, member.account_id, member.user_id, thresholds)
            found = await alerts.read(tx, {kind: [member.account_id] for kind in changed}, now)
            troubles = [
                (kind, change.subject, change.label)
                for (_, kind), readings in found.items()
                for change in alert.changes(kind, thresholds[kind], {}, readings)
            ]
            await alerts.set_raised(tx, member.account_id, member.user_id, changed, troubles, now)
            if changed or before.keys() != thresholds.keys():
                detail = {"kinds": ", ".join(thresholds)}
                await self._audit_log.add_entry(
                    tx, member.account_id, member.actor, "alerts.saved", member.email, now, detail
                )
            return await self._of(tx, member)

    async def _of(self, tx: Connection, member: Member) -> Sequence[MemberAlert]:
        now = self._clock.now()
        chosen = await alerts.lock_chosen_by(tx, member.account_id, member.user_id)
        raised = await alerts.raised_for(tx, member.account_id, member.user_id)
        found = await alerts.read(tx, {kind: [member.account_id] for kind in AlertKind}, now)
        return [
            MemberAlert(
                kind,
                kind in chosen,
                chosen.get(kind, alert.threshold_of(kind, None)),
                found.get((member.account_id, kind), ()),
                [state for state in raised if state.kind is kind],
            )
            for kind in AlertKind
        ]


def _thresholds(given: Sequence[tuple[str, float | None]]) -> Mapping[AlertKind, float]:
    thresholds: dict[AlertKind, float] = {}
    for name, threshold in given:
        kind = alert.parse_kind(name)
        if kind in thresholds:
            raise invalid(f"`alerts` has {kind} more than once.")
        thresholds[kind] = alert.threshold_of(kind, threshold)
    return thresholds
