"""A new timeline is a promotion if a process that ran before finds its note, and a restore otherwise."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.restore import CONFIRMATION_MAX, Continuity, NotedTime, TimelineFound, judge

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTED = NotedTime(NOON, 1)
EARLIER = NotedTime(NOON - timedelta(seconds=5), 1)
NOW, LONG = timedelta(0), CONFIRMATION_MAX


@pytest.mark.parametrize(
    ("remembered", "found", "continuity"),
    [
        (None, TimelineFound(NOTED, None), Continuity.TRUSTED),
        (NOTED, TimelineFound(NOTED, None), Continuity.TRUSTED),
        (EARLIER, TimelineFound(NOTED, NOW), Continuity.PROMOTED),
        (NOTED, TimelineFound(NOTED, LONG), Continuity.PROMOTED),
        # This process did not run before: others may still say that nothing is missing.
        (None, TimelineFound(NOTED, NOW), Continuity.UNKNOWN),
        (None, TimelineFound(NOTED, LONG), Continuity.RESTORED),
        # What this process noted is missing, also on the same timeline: a snapshot.
        (NOTED, TimelineFound(EARLIER, NOW), Continuity.RESTORED),
        (NOTED, TimelineFound(EARLIER, None), Continuity.RESTORED),
        (NOTED, TimelineFound(None, None), Continuity.RESTORED),
        # An operator set service time back; and an acceptance that is missing.
        (NOTED, TimelineFound(NotedTime(EARLIER.service_time, 2), None), Continuity.TRUSTED),
        (NOTED, TimelineFound(NotedTime(NOON, 0), None), Continuity.RESTORED),
        # The recovery has a target; a restore was noticed, and its mail is being held.
        (None, TimelineFound(NOTED, NOW, has_target=True), Continuity.RESTORED),
        (NOTED, TimelineFound(NOTED, NOW, has_target=True), Continuity.RESTORED),
        (NOTED, TimelineFound(NOTED, None, has_target=True), Continuity.TRUSTED),
        (NOTED, TimelineFound(NOTED, NOW, is_being_held=True), Continuity.RESTORED),
    ],
)
def test_an_existing_note_distinguishes_a_promotion_from_a_restore(
    remembered: NotedTime | None, found: TimelineFound, continuity: Continuity
) -> None:
    assert judge(remembered, found) is continuity
