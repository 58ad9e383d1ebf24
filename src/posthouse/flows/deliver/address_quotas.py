"""Quotas of a worker's lanes: how much an address that warms up, or a relay, may send within the hour and the day.

A worker reserves a part of the hour's quota at a time, in a transaction, so that all workers together never exceed it.
What a worker has reserved and not used is lost when it dies. The results of its mail are written with the next
request, or every few seconds.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Final

from posthouse.flows.shared.context import Context
from posthouse.rules import address_warm_up
from posthouse.rules.address_warm_up import VOLUMES, AddressWarmUp, Volumes, WarmUpDay
from posthouse.rules.lane import is_provider, lane_of
from posthouse.rules.learned_limits import LaneScope
from posthouse.store import address_quotas
from posthouse.store.address_quotas import AddressQuotaRow
from posthouse.store.postgres import Connection

# The share of an hour's quota that a worker reserves at a time.
GIVEN_SHARE: Final = 0.1
# A relay's quota for the day is reserved in parts as well.
RELAY_GIVEN_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class WarmingSince:
    """An address that warms up."""

    at: datetime


@dataclass(frozen=True, slots=True)
class PerDay:
    """A relay that takes this many messages a day."""

    messages: int


Bound = WarmingSince | PerDay


@dataclass(slots=True)
class _Note:
    """Results of a day that are not written yet. Some of the `unused` may have been reserved in the current hour."""

    day: date
    hour: int
    taken: int = 0
    slow: int = 0
    was_blocked: bool = False
    unused: int = 0
    unused_this_hour: int = 0


@dataclass(slots=True)
class _Held:
    """What this worker knows about a scope in this hour; `permits` are its share of what the row has granted."""

    day: date
    hour: int
    row: AddressQuotaRow
    limit: AddressWarmUp | PerDay
    permits: int = 0

    def capacity(self, *, is_list: bool) -> int | None:
        """How many more may be sent within this hour; None if any number."""
        used, used_this_hour = self.row.granted - self.permits, self.row.granted_this_hour - self.permits
        return _capacity(self.limit, used, used_this_hour, is_list=is_list)


class AddressQuotas:
    """`bound_of` says what bounds a scope. It is nearly always None: then there is no bound, and mail isn't counted."""

    def __init__(
        self,
        context: Context,
        *,
        bound_of: Callable[[LaneScope], Bound | None],
        volumes: Volumes = VOLUMES,
    ) -> None:
        self._database = context.database
        self._clock = context.clock
        self.bound_of = bound_of
        self._volumes = volumes
        self._held: dict[LaneScope, _Held] = {}
        self._notes: dict[LaneScope, _Note] = {}
        self._wanted: dict[LaneScope, int] = {}
        self._turn = asyncio.Lock()

    def is_spent(self, scope: LaneScope, *, is_list: bool = False) -> bool:
        """Whether nothing more may be sent within this hour, as far as this worker knows."""
        held = self._current(scope)
        return held is not None and held.capacity(is_list=is_list) == 0

    def may_take(self, scope: LaneScope) -> bool:
        """Whether a message may be sent without reserving more."""
        held = self._current(scope)
        return held is not None and (held.permits > 0 or held.capacity(is_list=False) is None)

    def take_permits(self, scope: LaneScope, wanted: int, *, is_list: bool) -> int:
        """How many of the wanted messages may be sent; 0 if more must be reserved, or the quota is used up."""
        held = self._current(scope)
        if held is None:
            return 0
        capacity = held.capacity(is_list=is_list)
        if capacity is None:
            return wanted
        taken = min(wanted, capacity, held.permits)
        held.permits -= taken
        return taken

    def put_back(self, scope: LaneScope, count: int) -> None:
        """This many messages were not sent after all."""
        held = self._current(scope)
        if held is not None and held.capacity(is_list=False) is not None:
            held.permits += count

    def note_results(self, scope: LaneScope, *, taken: int = 0, slow: int = 0, was_blocked: bool = False) -> None:
        """Count results of mail from this scope."""
        note = self._note(scope)
        note.taken += taken
        note.slow += slow
        note.was_blocked = note.was_blocked or was_blocked

    def seconds_left(self) -> float:
        """The seconds until the next hour, which has a quota again."""
        now = self._clock.now()
        following = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return (following - now).total_seconds()

    async def reserve(self, scope: LaneScope, wanted: int) -> None:
        """Find out how much of the quota is left, and reserve some of it for this worker."""
        self._wanted[scope] = max(wanted, self._wanted.get(scope, 0))
        async with self._turn:
            # The call before this one may have reserved for it too.
            if scope in self._wanted:
                await self._write()

    async def synchronize(self) -> None:
        """Write the results counted so far."""
        if self._notes:
            async with self._turn:
                await self._write()

    async def return_permits(self) -> None:
        """Return what this worker reserved and did not use."""
        for scope, held in self._held.items():
            if held.permits:
                self._return_unused(scope, held)
        await self.synchronize()

    def _current(self, scope: LaneScope) -> _Held | None:
        held = self._held.get(scope)
        if held is None:
            return None
        now = self._clock.now()
        if (held.day, held.hour) == (_day(now), now.hour):
            return held
        del self._held[scope]
        if held.permits:
            self._return_unused(scope, held)
        return None

    def _return_unused(self, scope: LaneScope, held: _Held) -> None:
        note = self._note(scope)
        if held.day == note.day:
            note.unused += held.permits
            if held.hour == self._clock.now().hour:
                note.hour, note.unused_this_hour = held.hour, held.permits
        held.permits = 0

    def _note(self, scope: LaneScope) -> _Note:
        now = self._clock.now()
        note = self._notes.get(scope)
        if note is None or note.day != _day(now):
            # What was not written of the day before is lost, which makes the next quota smaller, not larger.
            note = self._notes[scope] = _Note(_day(now), now.hour)
        return note

    async def _write(self) -> None:
        wanted, self._wanted = self._wanted, {}
        notes, self._notes = self._notes, {}
        now = self._clock.now()
        scopes = {scope for scope in (*wanted, *notes) if self.bound_of(scope) is not None}
        if not scopes:
            return
        try:
            async with self._database.transaction() as tx:
                rows = await address_quotas.locked(tx, scopes, _day(now), now.hour)
                found = []
                for row in rows:
                    complaints = await _complaints(tx, row) if row.day < _day(now) else 0
                    held = self._renewed(row, notes.get(row.scope), wanted.get(row.scope, 0), complaints, now)
                    await address_quotas.change(tx, held.row)
                    found.append(held)
        except BaseException:
            self._notes = notes | self._notes
            raise
        for held in found:
            before = self._current(held.row.scope)
            held.permits += before.permits if before is not None else 0
            self._held[held.row.scope] = held

    def _renewed(self, row: AddressQuotaRow, note: _Note | None, wanted: int, complaints: int, now: datetime) -> _Held:
        """The row with the noted results, moved to the current day and hour, and with what this worker reserves now."""
        today = _day(now)
        row = _with_note(row, note)
        bound = self.bound_of(row.scope)
        limit = bound if isinstance(bound, PerDay) else self._warm_up(row, bound, complaints, now)
        if row.day < today:
            row = replace(
                row, day=today, hour=now.hour, granted=0, granted_this_hour=0, accepted=0, slowed=0, was_blocked=False
            )
        if row.hour != now.hour:
            row = replace(row, hour=now.hour, granted_this_hour=0)
        given = _given(limit, row, wanted)
        kept = None if isinstance(limit, PerDay) else address_warm_up.stored(limit)
        row = replace(row, granted=row.granted + given, granted_this_hour=row.granted_this_hour + given, warm_up=kept)
        return _Held(today, now.hour, row, limit, given)

    def _warm_up(
        self, row: AddressQuotaRow, bound: WarmingSince | None, complaints: int, now: datetime
    ) -> AddressWarmUp:
        """The warm-up as of today, after the results of the row's day."""
        if row.warm_up is None:
            age_days = 0 if bound is None else (now - bound.at).days
            return address_warm_up.begin(row.scope.lane, self._volumes, age_days=age_days)
        warm_up = address_warm_up.restored(row.scope.lane, row.warm_up, self._volumes)
        days = (_day(now) - row.day).days
        if days <= 0:
            return warm_up
        return address_warm_up.after_days(
            warm_up, WarmUpDay(row.accepted, row.slowed, complaints, row.was_blocked), days
        )


def _given(limit: AddressWarmUp | PerDay, row: AddressQuotaRow, wanted: int) -> int:
    capacity = _capacity(limit, row.granted, row.granted_this_hour, is_list=False)
    if capacity is None:
        return 0
    most = limit.messages * RELAY_GIVEN_SHARE if isinstance(limit, PerDay) else limit.quota_an_hour * GIVEN_SHARE
    return min(wanted, capacity, ceil(most))


async def _complaints(tx: Connection, row: AddressQuotaRow) -> int:
    """The complaints at a provider about the mail of the row's day."""
    lane = row.scope.lane
    if not is_provider(lane) or not row.scope.ip:
        return 0
    return sum(lane_of("", host) == lane for host in await address_quotas.complained_at(tx, row.scope.ip, row.day))


def _capacity(limit: AddressWarmUp | PerDay, used: int, used_this_hour: int, *, is_list: bool) -> int | None:
    if isinstance(limit, PerDay):
        return max(0, limit.messages - used)
    return limit.capacity(taken_today=used, taken_this_hour=used_this_hour, is_list=is_list)


def _with_note(row: AddressQuotaRow, note: _Note | None) -> AddressQuotaRow:
    if note is None or note.day != row.day:
        return row
    unused_this_hour = note.unused_this_hour if note.hour == row.hour else 0
    return replace(
        row,
        granted=max(0, row.granted - note.unused),
        granted_this_hour=max(0, row.granted_this_hour - unused_this_hour),
        accepted=row.accepted + note.taken,
        slowed=row.slowed + note.slow,
        was_blocked=row.was_blocked or note.was_blocked,
    )


def _day(now: datetime) -> date:
    return now.astimezone(UTC).date()
