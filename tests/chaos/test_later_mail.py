"""Planted faults of scheduled mail are found in the receiving server's log."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.later_mail import LaterMail

DUE = datetime(2026, 11, 18, 9, 0, tzinfo=UTC)


def test_early_and_cancelled_mail_is_found(tmp_path: Path) -> None:
    later = LaterMail()
    for message_id, addresses in {"early": ["a@example.net", "b@example.net"], "cancelled": ["c@example.net"]}.items():
        later.note(message_id, DUE, addresses)
    later.cancelled.add("cancelled")
    arrived = {"a@example.net": -1, "b@example.net": 0, "c@example.net": 1, "at-once@example.net": -60}
    log = tmp_path / "log"
    log.write_text(
        "".join(
            json.dumps({"recipient": recipient, "time": (DUE + timedelta(milliseconds=after)).timestamp()}) + "\n"
            for recipient, after in arrived.items()
        )
    )
    assert later.arrivals(log) == (1, 1)
