"""The live view of the queue: each lane summed over all workers, with its rate."""

import json
import os
import pty
import select
import signal
import time
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from rich.console import Console

from posthouse.cli import output
from posthouse.cli.queue import Rates, counted, plain, render, state_of, totals_of
from posthouse.flows.operate.lanes import LaneRow, merged
from posthouse.flows.operate.monitor import Backlog, BoundedCount, LaneReport, Monitor, QueueView, ReportedLane
from posthouse.store.lanes import report
from tests.cli.test_cli import Terminal, environment, secrets
from tests.support import preloaded
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.eventually import HANG_SECONDS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST, SECOND = UUID(int=1), UUID(int=2)
NONE = BoundedCount(0, False)
EMPTY = Backlog(NONE, NONE, NONE, NONE, NONE, None)


def lane(name: str = "google", **given: Any) -> ReportedLane:
    usual: dict[str, Any] = {
        "waiting": 0,
        "in_flight": 0,
        "connections": 2,
        "delivered_total": 0,
        "deferred_total": 0,
        "paused_until": None,
        "last_reply": None,
    }
    return ReportedLane(lane=name, **{**usual, **given})


def reported(worker: UUID, seconds: float, state: ReportedLane) -> LaneReport:
    return LaneReport(worker, NOON + timedelta(seconds=seconds), state)


def text_of(view: QueueView, width: int = 240) -> str:
    out = StringIO()
    Console(file=out, width=width).print(render(view, merged(view.reports, {})))
    return out.getvalue()


def test_the_parts_of_a_lane_are_added_up() -> None:
    reports = [
        reported(FIRST, 0, lane(waiting=3, in_flight=1, delivered_total=10, last_reply="250 old")),
        reported(SECOND, 1, lane(waiting=4, in_flight=2, delivered_total=5, last_reply="250 new", paused_until=NOON)),
        reported(FIRST, 0, lane("example.org", waiting=100)),
    ]
    assert merged(reports, {(FIRST, "google"): 1.5, (SECOND, "google"): 2.5}) == [
        LaneRow("example.org", 1, 100, 0, 2, 0, 0, None, None, None),
        LaneRow("google", 2, 7, 3, 4, 15, 0, 4.0, NOON, "250 new"),
    ]


def test_only_the_replies_are_cut_in_a_narrow_terminal() -> None:
    reply = "421 4.7.28 Our system has detected an unusual rate of unsolicited mail originating from your IP address"
    busy = lane("customers.example", waiting=1, last_reply=reply)
    shown = text_of(QueueView(NOON, EMPTY, [reported(FIRST, 0, busy)]), width=100)
    assert max(map(len, shown.splitlines())) <= 100
    for whole in ("customers.example", "delivered/s", "busy", "421 4.7.28"):
        assert whole in shown
    assert reply not in shown


def test_a_rate_is_measured_between_two_reports() -> None:
    rates = Rates()
    part = FIRST, "google"
    assert rates.observe([reported(FIRST, 0, lane(delivered_total=100))]) == {part: None}
    assert rates.observe([reported(FIRST, 2, lane(delivered_total=150))]) == {part: 25.0}
    assert rates.observe([reported(FIRST, 2, lane(delivered_total=150))]) == {part: 25.0}, "no new report, no new rate"
    assert rates.observe([reported(FIRST, 4, lane(delivered_total=150))]) == {part: 0.0}
    assert rates.observe([]) == {}
    assert rates.observe([reported(FIRST, 9, lane(delivered_total=900))]) == {part: None}, "it was away"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, "idle"),
        ({"in_flight": 1}, "busy"),
        ({"waiting": 1, "in_flight": 1}, "busy"),
        ({"waiting": 1, "in_flight": 2}, "full"),
        ({"waiting": 1, "paused_until": NOON + timedelta(seconds=90)}, "paused until 12:01:30 (90 s)"),
        ({"waiting": 1, "paused_until": NOON}, "busy"),
    ],
)
def test_a_lane_is_in_one_state(given: dict[str, Any], state: str) -> None:
    (row,) = merged([reported(FIRST, 0, lane(**given))], {})
    assert state_of(row, NOON) == state


def test_totals_say_where_counting_ended() -> None:
    assert [
        counted(BoundedCount(0, False)),
        counted(BoundedCount(1_234, False)),
        counted(BoundedCount(10_000, True)),
    ] == [
        "0",
        "1,234",
        "10,000+",
    ]
    backlog = Backlog(
        BoundedCount(10_000, True), NONE, NONE, BoundedCount(7, False), NONE, NOON - timedelta(minutes=30)
    )
    totals = totals_of(backlog, NOON)
    assert "due now 10,000+" in totals
    assert "later 7" in totals
    assert totals.endswith("oldest due 1,800 s")
    assert totals_of(EMPTY, NOON).endswith("oldest due –")


def test_the_view_shows_lanes_and_why_they_wait() -> None:
    busy = lane(
        "example.org", waiting=1_200, last_reply="421 too\x1b[2J many", paused_until=NOON + timedelta(seconds=5)
    )
    text = text_of(QueueView(NOON, EMPTY, [reported(FIRST, 0, busy), reported(FIRST, 0, lane("[red]"))]))
    assert "example.org" in text
    assert "1,200" in text
    assert "paused until 12:00:05 (5 s)" in text
    assert "\x1b[2J" not in text
    assert "[red]" in text, "a lane's name is no markup"


def test_an_empty_view_says_what_it_may_mean() -> None:
    assert "no `posthouse run delivery` is running" in text_of(QueueView(NOON, EMPTY, []))


async def test_the_view_shows_the_database(steps: DeliverySteps) -> None:
    await steps.accept(3)
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        await report(tx, uuid4(), [lane(waiting=3)], now)
        await report(tx, uuid4(), [lane("example.org")], now - timedelta(seconds=11))
    view = await Monitor(context(steps.database, steps.clock)).queue()
    assert [each.state.lane for each in view.reports] == ["google"], "a silent worker is not shown"
    values = json.loads(json.dumps(plain(view, merged(view.reports, {})), default=output._encoded))
    assert values["due"] == {"count": 3, "is_more": False}
    assert [(row["lane"], row["waiting"], row["state"]) for row in values["lanes"]] == [("google", 3, "busy")]


async def test_the_ticket_lease_in_the_settings_decides_what_is_dispatched(
    steps: DeliverySteps, database_url: str, tmp_path: Path
) -> None:
    await steps.accept(3)
    async with steps.database.transaction() as tx:
        await tx.execute("UPDATE delivery_schedule SET next_at = now() + interval '200 seconds'")
    settings = {"DATABASE__URL": database_url, "WORKERS__TICKET_LEASE_SECONDS": "300", **secrets()}
    view = Terminal(tmp_path, environment(**settings)).type("queue", "top", "--json").json
    assert (view["leased"]["count"], view["later"]["count"]) == (3, 0)


def test_the_command_shows_the_queue_once_or_until_stopped(database_url: str, tmp_path: Path) -> None:
    made = {"DATABASE__URL": database_url, **secrets()}
    terminal = Terminal(tmp_path, environment(**made))
    assert "due now 0" in terminal.type("queue", "top", "--once").out
    assert terminal.type("queue", "top", "--json").json["lanes"] == []
    terminal.refuses("message", "show", "em_1", expected="is not a message's id")
    terminal.refuses("message", "show", "em_00000000000000000000000000", expected="No account has a message")

    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as screen:
        # Its own session: the signal is only for the command.
        watching = preloaded.start(
            "queue", "top", environment=terminal.environment, directory=tmp_path, output=screen, given=screen,
            new_session=True,
        )  # fmt: skip
    try:
        shown = _until(ours, b"oldest due")
        assert b"due now 0" in shown
        watching.send_signal(signal.SIGINT)
        assert b"Traceback" not in _until(ours, b"")
        assert watching.wait(HANG_SECONDS) == 0
    finally:
        if watching.poll() is None:
            watching.kill()
            watching.wait()
        os.close(ours)


def _until(terminal: int, awaited: bytes) -> bytes:
    """The output up to `awaited`, or, if that is empty, until the command ends."""
    shown = b""
    deadline = time.monotonic() + HANG_SECONDS
    while not awaited or awaited not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            try:
                part = os.read(terminal, 65_536)
            except OSError:  # on Linux: the other end is closed
                break
            if not part:
                break
            shown += part
    return shown
