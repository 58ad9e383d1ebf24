"""Allowances of a worker's lanes: what an address that warms up, or a relay, may send within the hour and the day.

A worker asks for a part of the hour's allowance at a time, in a transaction: all workers together never send more,
and one that dies takes with it what it had been given. What became of the mail is written with the next request, or
every few seconds.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Final

from posthouse.clock import Clock
from posthouse.rules import address_warm_up
from posthouse.rules.address_warm_up import VOLUMES, AddressWarmUp, Volumes, WarmUpDay
from posthouse.rules.lane import is_provider, lane_of
from posthouse.rules.standing import Place
from posthouse.store import allowances
from posthouse.store.allowances import AllowanceRow
from posthouse.store.postgres import Connection, Database

# What is given to a worker at a time, of an hour's allowance.
GIVEN_SHARE: Final = 0.1
# A relay's day is asked for in parts as well.
RELAY_GIVEN_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class WarmingSince:
    """An address that warms up."""

    at: datetime


@dataclass(frozen=True, slots=True)
class PerDay:
    """A relay that takes so many mails a day."""

    mails: int


Bound = WarmingSince | PerDay


@dataclass(slots=True)
class _Note:
    """What happened on a day and is not written yet. Of the `unused`, some may have been given in the present hour."""

    day: date
    hour: int
    taken: int = 0
    slow: int = 0
    was_blocked: bool = False
    unused: int = 0
    unused_this_hour: int = 0


@dataclass(slots=True)
class _Held:
    """What is known here of a place, in this hour; `permits` are given to this worker, of the row's `given`."""

    day: date
    hour: int
    row: AllowanceRow
    limit: AddressWarmUp | PerDay
    permits: int = 0

    def room(self, *, is_list: bool) -> int | None:
        """How many more may go within this hour; None is any number."""
        used, used_this_hour = self.row.given - self.permits, self.row.given_this_hour - self.permits
        return _room(self.limit, used, used_this_hour, is_list=is_list)


class Allowances:
    """`bound_of` says what bounds a place; None, as nearly always: nothing, and no mail of it is counted."""

    def __init__(
        self, *, database: Database, clock: Clock, bound_of: Callable[[Place], Bound | None], volumes: Volumes = VOLUMES
    ) -> None:
        self._database = database
        self._clock = clock
        self._bound_of = bound_of
        self._volumes = volumes
        self._held: dict[Place, _Held] = {}
        self._notes: dict[Place, _Note] = {}
        self._wanted: dict[Place, int] = {}
        self._turn = asyncio.Lock()

    def is_bounded(self, place: Place) -> bool:
        return self._bound_of(place) is not None

    def is_spent(self, place: Place, *, is_list: bool = False) -> bool:
        """Nothing more may go within this hour, as far as is known here."""
        held = self._current(place)
        return held is not None and held.room(is_list=is_list) == 0

    def may_take(self, place: Place) -> bool:
        """Whether a mail may go without asking for more."""
        held = self._current(place)
        return held is not None and (held.permits > 0 or held.room(is_list=False) is None)

    def take(self, place: Place, wanted: int, *, is_list: bool) -> int:
        """Permission for so many of the wanted mails; 0 if more must be reserved, or there is none."""
        held = self._current(place)
        if held is None:
            return 0
        room = held.room(is_list=is_list)
        if room is None:
            return wanted
        taken = min(wanted, room, held.permits)
        held.permits -= taken
        return taken

    def put_back(self, place: Place, count: int) -> None:
        """So many mails were not sent after all."""
        held = self._current(place)
        if held is not None and held.room(is_list=False) is not None:
            held.permits += count

    def note(self, place: Place, *, taken: int = 0, slow: int = 0, was_blocked: bool = False) -> None:
        """What became of mail."""
        note = self._note(place)
        note.taken += taken
        note.slow += slow
        note.was_blocked = note.was_blocked or was_blocked

    def seconds_left(self) -> float:
        """Until the next hour, in which there may be room again."""
        now = self._clock.now()
        following = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return (following - now).total_seconds()

    async def reserve(self, place: Place, wanted: int) -> None:
        """Learn how much room there is, and take some of it for this worker."""
        self._wanted[place] = max(wanted, self._wanted.get(place, 0))
        async with self._turn:
            # The turn before may have asked for this as well.
            if place in self._wanted:
                await self._write()

    async def synchronize(self) -> None:
        """Write what became of the mail."""
        if self._notes:
            async with self._turn:
                await self._write()

    async def give_back(self) -> None:
        """Return what was given to this worker and not used."""
        for place, held in self._held.items():
            if held.permits:
                self._return_unused(place, held)
        await self.synchronize()

    def _current(self, place: Place) -> _Held | None:
        held = self._held.get(place)
        if held is None:
            return None
        now = self._clock.now()
        if (held.day, held.hour) == (_day(now), now.hour):
            return held
        del self._held[place]
        if held.permits:
            self._return_unused(place, held)
        return None

    def _return_unused(self, place: Place, held: _Held) -> None:
        note = self._note(place)
        if held.day == note.day:
            note.unused += held.permits
            if held.hour == self._clock.now().hour:
                note.hour, note.unused_this_hour = held.hour, held.permits
        held.permits = 0

    def _note(self, place: Place) -> _Note:
        now = self._clock.now()
        note = self._notes.get(place)
        if note is None or note.day != _day(now):
            # What is left of the day before is lost, which makes the next allowance smaller, not larger.
            note = self._notes[place] = _Note(_day(now), now.hour)
        return note

    async def _write(self) -> None:
        wanted, self._wanted = self._wanted, {}
        notes, self._notes = self._notes, {}
        now = self._clock.now()
        places = {place for place in (*wanted, *notes) if self._bound_of(place) is not None}
        if not places:
            return
        try:
            async with self._database.transaction() as tx:
                rows = await allowances.locked(tx, places, _day(now), now.hour)
                found = []
                for row in rows:
                    complaints = await _complaints(tx, row) if row.day < _day(now) else 0
                    held = self._renewed(row, notes.get(row.place), wanted.get(row.place, 0), complaints, now)
                    await allowances.change(tx, held.row)
                    found.append(held)
        except BaseException:
            self._notes = notes | self._notes
            raise
        for held in found:
            before = self._current(held.row.place)
            held.permits += before.permits if before is not None else 0
            self._held[held.row.place] = held

    def _renewed(self, row: AllowanceRow, note: _Note | None, wanted: int, complaints: int, now: datetime) -> _Held:
        """The row with what happened, on the present day and hour, and with what this worker is given now."""
        today = _day(now)
        row = _with_note(row, note)
        bound = self._bound_of(row.place)
        limit = bound if isinstance(bound, PerDay) else self._warm_up(row, bound, complaints, now)
        if row.day < today:
            row = replace(row, day=today, hour=now.hour, given=0, given_this_hour=0, taken=0, slow=0, was_blocked=False)
        if row.hour != now.hour:
            row = replace(row, hour=now.hour, given_this_hour=0)
        given = _given(limit, row, wanted)
        kept = None if isinstance(limit, PerDay) else address_warm_up.stored(limit)
        row = replace(row, given=row.given + given, given_this_hour=row.given_this_hour + given, warm_up=kept)
        return _Held(today, now.hour, row, limit, given)

    def _warm_up(self, row: AllowanceRow, bound: WarmingSince | None, complaints: int, now: datetime) -> AddressWarmUp:
        """As it is today, after what became of the row's day."""
        if row.warm_up is None:
            age_days = 0 if bound is None else (now - bound.at).days
            return address_warm_up.begin(row.place.lane, self._volumes, age_days=age_days)
        warm_up = address_warm_up.restored(row.place.lane, row.warm_up, self._volumes)
        days = (_day(now) - row.day).days
        if days <= 0:
            return warm_up
        return address_warm_up.after_days(warm_up, WarmUpDay(row.taken, row.slow, complaints, row.was_blocked), days)


def _given(limit: AddressWarmUp | PerDay, row: AllowanceRow, wanted: int) -> int:
    room = _room(limit, row.given, row.given_this_hour, is_list=False)
    if room is None:
        return 0
    most = limit.mails * RELAY_GIVEN_SHARE if isinstance(limit, PerDay) else limit.allowance_an_hour * GIVEN_SHARE
    return min(wanted, room, ceil(most))


async def _complaints(tx: Connection, row: AllowanceRow) -> int:
    """Of the row's day, at a provider."""
    lane = row.place.lane
    if not is_provider(lane) or not row.place.ip:
        return 0
    return sum(lane_of("", host) == lane for host in await allowances.complained_at(tx, row.place.ip, row.day))


def _room(limit: AddressWarmUp | PerDay, used: int, used_this_hour: int, *, is_list: bool) -> int | None:
    if isinstance(limit, PerDay):
        return max(0, limit.mails - used)
    return limit.room(taken_today=used, taken_this_hour=used_this_hour, is_list=is_list)


def _with_note(row: AllowanceRow, note: _Note | None) -> AllowanceRow:
    if note is None or note.day != row.day:
        return row
    unused_this_hour = note.unused_this_hour if note.hour == row.hour else 0
    return replace(
        row,
        given=max(0, row.given - note.unused),
        given_this_hour=max(0, row.given_this_hour - unused_this_hour),
        taken=row.taken + note.taken,
        slow=row.slow + note.slow,
        was_blocked=row.was_blocked or note.was_blocked,
    )


def _day(now: datetime) -> date:
    return now.astimezone(UTC).date()
