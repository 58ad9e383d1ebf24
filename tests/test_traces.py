"""Which requests are traced, and how spans belong together."""

from datetime import timedelta
from pathlib import Path

import pytest

from posthouse import traces
from posthouse.randomness import SeededRandomness
from posthouse.traces import Kind, Span, TraceContext, Tracer
from tests.support.clock import SettableClock

SAMPLED = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOT_SAMPLED = SAMPLED[:-2] + b"00"
SEED = 22


def tracer(share: float, *, follows_callers: bool = False) -> tuple[Tracer, list[Span], SettableClock]:
    ended: list[Span] = []
    clock = SettableClock()
    made = Tracer(
        clock=clock,
        randomness=SeededRandomness(SEED),
        export=ended.append,
        share=share,
        follows_callers=follows_callers,
    )
    return made, ended, clock


@pytest.mark.parametrize(
    ("share", "follows_callers", "traceparent", "is_traced"),
    [
        (0.0, False, None, False),
        (1.0, False, None, True),
        # A caller decides nothing on its own.
        (0.0, False, SAMPLED, False),
        (1.0, False, NOT_SAMPLED, True),
        # Unless the operator lets it.
        (0.0, True, SAMPLED, True),
        (0.0, True, NOT_SAMPLED, False),
        (0.0, True, None, False),
        (0.0, True, SAMPLED + b"x", False),
        (1.0, True, NOT_SAMPLED, True),
    ],
)
def test_the_operator_decides_what_is_traced(
    share: float, follows_callers: bool, traceparent: bytes | None, is_traced: bool
) -> None:
    made, _, _ = tracer(share, follows_callers=follows_callers)
    assert (made.begin_request("POST /emails", traceparent) is not None) is is_traced


def test_about_the_share_is_traced() -> None:
    made, _, _ = tracer(0.1)
    number = sum(made.begin_request("POST /emails") is not None for _ in range(10_000))
    assert 800 < number < 1_200


def test_a_caller_s_trace_is_continued_and_another_begins_one() -> None:
    made, _, _ = tracer(1.0)
    with_caller, alone = made.begin_request("a", SAMPLED), made.begin_request("a", b"nonsense")
    assert with_caller is not None
    assert alone is not None
    assert with_caller.context.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (with_caller.parent_id or b"").hex() == "00f067aa0ba902b7"
    assert alone.parent_id is None
    assert alone.context.trace_id != with_caller.context.trace_id


def test_a_span_is_exported_when_it_ends_with_its_times_and_attributes() -> None:
    made, ended, clock = tracer(1.0)
    span = made.begin_request("a")
    assert span is not None
    began_at = clock.now()
    clock.advance(timedelta(seconds=2))
    child = span.child("b", Kind.CLIENT)
    child.end({traces.CODE: "accepted", traces.MESSAGE: None}, is_error=True)
    assert ended == [child]
    assert (child.context.trace_id, child.parent_id) == (span.context.trace_id, span.context.span_id)
    assert child.attributes == {traces.CODE: "accepted"}
    span.end()
    assert (span.began_at, span.ended_at) == (began_at, began_at + timedelta(seconds=2))


def test_readings_of_the_monotonic_clock_keep_their_distances_when_the_process_pauses_in_between() -> None:
    made, _, clock = tracer(0.0)
    received, turn = clock.monotonic() - 3, clock.monotonic() - 1
    read = clock.monotonic

    def after_a_pause() -> float:
        clock.advance(seconds=5)
        return read()

    clock.monotonic = after_a_pause  # type: ignore[method-assign]
    first, second, third = made.times_of(received, turn, turn)
    assert second - first == timedelta(seconds=2)
    assert second == third


def test_stored_work_continues_its_trace() -> None:
    made, _, _ = tracer(0.0)
    parent = TraceContext(b"t" * 16, b"s" * 8)
    span = made.follow(parent.stored, "deliver")
    assert span is not None
    assert (span.context.trace_id, span.parent_id, span.kind) == (b"t" * 16, b"s" * 8, Kind.CONSUMER)
    assert made.follow(None, "deliver") is None
    assert made.follow(b"of another version", "deliver") is None


def test_every_attribute_is_described() -> None:
    named = {value for name, value in vars(traces).items() if name.isupper() and isinstance(value, str)}
    assert named - {traces.TRACEPARENT_HEADER} == set(traces.ATTRIBUTES)
    page = (Path(__file__).parents[1] / "docs" / "howto" / "trace.md").read_text()
    assert [name for name, text in traces.ATTRIBUTES.items() if f"| `{name}` | {text} |" not in page] == []
