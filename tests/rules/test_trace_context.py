"""The header `traceparent`: what is read of it, and what is passed on."""

import pytest

from posthouse.traces import TraceContext, from_stored, parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("given", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_a_caller_s_trace_is_read(given: str, is_sampled: bool) -> None:
    assert parse_traceparent(given.encode()) == TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled)


@pytest.mark.parametrize(
    "given",
    [
        "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-01 ",
        f"00-{TRACE}-{SPAN}-01\n", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01x", f"cc-{TRACE}-{SPAN}-01-{'x' * 1_000}",
        f"cc-{TRACE}-{SPAN}-01-\xff",
    ],
)  # fmt: skip
def test_what_is_no_traceparent_counts_as_none(given: str) -> None:
    assert parse_traceparent(given.encode("latin-1")) is None


def test_what_is_passed_on_is_read_again() -> None:
    context = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN))
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(context.traceparent.encode()) == context
    assert from_stored(context.stored) == context


def test_what_another_version_stored_is_no_trace() -> None:
    assert [from_stored(stored) for stored in (b"", b"x" * 23, b"x" * 25)] == [None] * 3
