"""Request bodies are bounded before they are parsed."""

import tracemalloc
from typing import Any

import pytest

from posthouse.entrypoints.http.request_body import STRUCTURE_MAX, BodyReader, parsed
from posthouse.rules.refusal import Code, Refusal


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b",".join([b"[" * 100 + b"]" * 100] * 80_000) + b"]}",
        b'{"a":[' + b"{}," * 5_000_000 + b"{}]}",
        b"[" * 16_000_000,
        b'{"a":"' + b'\\"' * 8_000_000,
        b'{"a":"' + b"\\\\" * 4_000_000 + b'","b":[' + b"," * 4_000_000,
    ],
    ids=["deep", "wide", "open", "unterminated", "after escapes"],
)
def test_a_body_of_nothing_but_structure_costs_almost_nothing(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(Refusal) as caught:
        parsed(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code is Code.INVALID_REQUEST
    assert peak < 4 * len(body)


def test_text_may_contain_any_number_of_commas() -> None:
    text = 'a, [b], {c}, \\" \\\\' * STRUCTURE_MAX
    assert parsed(b'{"text":"' + text.encode() + b'"}')["text"].count(",") == 3 * STRUCTURE_MAX


@pytest.mark.rule("HTTP-06", "HTTP-07")
@pytest.mark.parametrize("literal", [b"NaN", b"-Infinity", b'"\\ud800"', b'"\\udc8c\\ud83d"', b"9" * 5_000], ids=ascii)
def test_a_value_that_json_does_not_have_is_refused(literal: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parsed(b'{"a":' + literal + b"}")
    assert caught.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("pieces", [[11], [6, 5], [5, 0, 6]])
async def test_a_body_is_read_up_to_its_limit_however_it_arrives(pieces: list[int]) -> None:
    events = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in pieces]
    events[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    with pytest.raises(Refusal) as caught:
        await BodyReader().read(receive, 10)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


def test_a_sent_refusal_keeps_no_references() -> None:
    def refuse(mail: Any) -> None:
        raise Refusal(Code.INVALID_REQUEST, f"{len(mail)}") from ValueError(mail)

    with pytest.raises(Refusal) as caught:
        refuse(bytes(10))
    refusal = caught.value
    refusal.drop_traceback()
    assert (refusal.__traceback__, refusal.__cause__, refusal.__context__) == (None, None, None)
