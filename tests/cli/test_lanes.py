"""Learned limits of lanes, on the command line."""

import json

from tests.cli.conftest import Type


def test_a_lane_is_explained_pinned_and_its_limit_changes_are_undone(typed: Type) -> None:
    assert "Nothing was learnt yet" in typed("lane", "log").stdout
    assert "has learnt nothing" in typed("lane", "explain", "google").stdout
    assert "pinned it at 5 messages a second" in typed("lane", "pin", "google", "--rate", "5").stdout
    explained = typed("lane", "explain", "google").stdout
    assert "5 messages a second, pinned by an operator" in explained
    (limit_change,) = json.loads(typed("lane", "log", "google", "--json").stdout)
    assert (limit_change["kind"], limit_change["after"]["per_second"]) == ("pinned", 5.0)
    assert f"as before limit change {limit_change['id']}" in typed("lane", "undo", str(limit_change["id"])).stdout
    (learned,) = json.loads(typed("lane", "explain", "google", "--json").stdout)["learned_limits"]
    assert learned["per_second"] == limit_change["before"]["per_second"]
    assert not learned["is_pinned"]
    assert [row["kind"] for row in json.loads(typed("lane", "log", "--json").stdout)] == ["undone", "pinned"]


def test_wrong_words_are_refused(typed: Type) -> None:
    assert "is not a lane" in typed("lane", "explain", "goggle", status=1).stderr
    assert "There is no limit change 99" in typed("lane", "undo", "99", status=1).stderr
    typed("lane", "pin", "google", status=2)
    typed("lane", "pin", "google", "--rate", "5", "--off", status=2)
    assert "at most" in typed("lane", "pin", "google", "--rate", "100000", status=1).stderr
    typed("lane", "pin", "google", "--off")
