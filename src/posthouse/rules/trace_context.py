"""Trace contexts: which trace a mail belongs to, as W3C's header `traceparent` says it and as a row keeps it."""

import re
from typing import Final, NamedTuple

HEADER: Final = "traceparent"
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_STORED_BYTES: Final = TRACE_ID_BYTES + SPAN_ID_BYTES
_SAMPLED: Final = 0x01
# A later version may have more after the flags; version ff is forbidden.
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_TRACEPARENT_BYTES_MAX: Final = 512


class TraceContext(NamedTuple):
    """A span by its ids. What is stored or passed on is always of a sampled trace."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool = True

    @property
    def stored(self) -> bytes:
        return self.trace_id + self.span_id

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{_SAMPLED:02x}"


def parse_traceparent(given: bytes) -> TraceContext | None:
    """What a caller's header says; None for one that can't be read, which counts as none."""
    matched = _TRACEPARENT.fullmatch(given) if len(given) <= _TRACEPARENT_BYTES_MAX else None
    if matched is None:
        return None
    version, trace_id, span_id, flags, more = matched.groups()
    if (version == b"00" and more is not None) or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()), is_sampled)


def from_stored(stored: bytes) -> TraceContext | None:
    """None for bytes that another version may have stored."""
    if len(stored) != _STORED_BYTES:
        return None
    return TraceContext(stored[:TRACE_ID_BYTES], stored[TRACE_ID_BYTES:])
