"""What an SMTP server says: read the same however it is split, bounded, and made printable."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from posthouse.mail.reply import (
    LINE_BYTES_MAX,
    LINES_MAX,
    REPLY_BYTES_MAX,
    TEXT_CHARACTERS_MAX,
    Reply,
    ReplyError,
    ReplyParser,
)
from tests.support.bad_input import bad_input


def read(*pieces: bytes) -> tuple[list[Reply], str | None]:
    """All replies in these pieces, and the fault that ended them."""
    parser = ReplyParser()
    replies: list[Reply] = []
    for piece in pieces:
        try:
            replies += parser.feed(piece)
        except ReplyError as error:
            return [*replies, *error.replies], str(error)
    return replies, None


def only(data: bytes) -> Reply:
    (reply,) = ReplyParser().feed(data)
    return reply


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"250 OK\r\n", Reply(250, None, "OK")),
        (b"250\r\n", Reply(250, None, "")),
        (b"250 \r\n", Reply(250, None, "")),
        (b"354 Go ahead\n", Reply(354, None, "Go ahead")),
        (b"250 2.1.5 fine\r\n", Reply(250, "2.1.5", "2.1.5 fine")),
        (b"550 5.1.1 <a@b.example>: unknown\r\n", Reply(550, "5.1.1", "5.1.1 <a@b.example>: unknown")),
        (b"550 5.1.1\r\n", Reply(550, "5.1.1", "5.1.1")),
        (b"550 5.1.10: gone\r\n", Reply(550, "5.1.10", "5.1.10: gone")),
        (b"421-4.7.28 slow\r\n421 4.7.28 down\r\n", Reply(421, "4.7.28", "4.7.28 slow\n4.7.28 down")),
        (b"550-who?\r\n550 5.1.1 nobody\r\n", Reply(550, "5.1.1", "who?\n5.1.1 nobody")),
        (b"250-mx.example\r\n250-SIZE 100\r\n250 PIPELINING\r\n", Reply(250, None, "mx.example\nSIZE 100\nPIPELINING")),
        (b"250-a\r\n250\r\n", Reply(250, None, "a\n")),
    ],
)
def test_a_reply_is_a_code_a_status_and_a_text(data: bytes, reply: Reply) -> None:
    assert read(data) == ([reply], None)


@pytest.mark.parametrize(
    "text",
    [
        "4.1.1 a class that is not the code's", "5.1 too short", "5.1.1.7 is an address", "5.1.1000 too long",
        "5.01.1 not written like that", "3.1.1 no such class", "unknown 5.1.1 is somewhere else", "51.1.1",
    ],
)  # fmt: skip
def test_text_that_resembles_a_status_is_not_one(text: str) -> None:
    assert only(f"550 {text}\r\n".encode()) == Reply(550, None, text)


def test_a_reply_keeps_its_lines_and_the_last_one_decides_the_code() -> None:
    reply = only(b"250-mx.example\r\n250-SIZE 100\r\n550 no\r\n")
    assert (reply.code, reply.lines) == (550, ("mx.example", "SIZE 100", "no"))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"caf\xe9", "caf\N{REPLACEMENT CHARACTER}"),
        (b"a\0b\x1b[31mc", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mc"),
        (b"a\tb\rc\xc2\xa0d", "a b c d"),
        ("a\u202eb\u2028c".encode(), "a\N{REPLACEMENT CHARACTER}b c"),
    ],
)
def test_any_bytes_become_printable(raw: bytes, text: str) -> None:
    assert only(b"550 " + raw + b"\r\n").text == text


@pytest.mark.parametrize(
    "line",
    [
        b"", b"hello", b"25 OK", b"2500 OK", b"250OK", b"250\tOK", b"150 wait", b"650 what", b" 250 OK", b"25x OK",
        b"\xff",
    ],
)  # fmt: skip
def test_a_line_that_is_no_reply_ends_the_session(line: bytes) -> None:
    replies, fault = read(b"250 OK\r\n" + line + b"\r\n250 OK\r\n")
    assert replies == [Reply(250, None, "OK")]
    assert fault is not None
    assert fault.startswith("the server sent a line that is no reply")
    assert fault.isprintable()


def test_nothing_is_read_after_a_fault() -> None:
    parser = ReplyParser()
    with pytest.raises(ReplyError):
        parser.feed(b"what?\r\n")
    with pytest.raises(ReplyError, match="no reply"):
        parser.feed(b"250 OK\r\n")


def test_an_endless_line_is_refused() -> None:
    assert read(b"250 " + b"a" * (LINE_BYTES_MAX - 5) + b"\r\n")[1] is None
    fault = f"the server sent a line of more than {LINE_BYTES_MAX:,} bytes"
    assert read(b"250 " + b"a" * LINE_BYTES_MAX) == ([], fault)
    assert read(b"250 " + b"a" * LINE_BYTES_MAX + b"\r\n") == ([], fault)


def test_a_reply_has_a_hundred_lines_at_most() -> None:
    assert len(only(b"250-a\r\n" * (LINES_MAX - 1) + b"250 b\r\n").lines) == LINES_MAX
    assert read(b"250-a\r\n" * LINES_MAX) == ([], f"the server sent a reply of more than {LINES_MAX} lines")


def test_the_size_limit_is_per_reply() -> None:
    long = b"250-" + b"a" * 1_990 + b"\r\n"
    fits = long * 30 + b"250 end\r\n"
    assert [reply.code for reply in ReplyParser().feed(fits * 3)] == [250] * 3
    assert read(long * 40) == ([], f"the server sent a reply of more than {REPLY_BYTES_MAX:,} bytes")


def test_a_long_text_loses_whole_lines() -> None:
    text = only(b"250-" + b"a" * 1_500 + b"\r\n250-" + b"b" * 499 + b"\r\n250 SIZE 1000000\r\n").text
    assert text == "a" * 1_500 + "\n" + "b" * 499
    assert len(text) == TEXT_CHARACTERS_MAX
    assert only(b"550 " + b"x" * 2_010 + b"\r\n").text == "x" * TEXT_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("data", "is_between"),
    [(b"", True), (b"220 go\r\n", True), (b"220 go\r\n2", False), (b"220-go\r\n", False), (b"220 go\r", False)],
)
def test_a_partial_reply_is_visible_before_tls(data: bytes, is_between: bool) -> None:
    parser = ReplyParser()
    parser.feed(data)
    assert parser.is_between_replies is is_between


lines = some.one_of(
    some.sampled_from([b"250 OK\r\n", b"250-more\r\n", b"550 5.1.1 no\n", b"354\r\n", b"what\r\n", b"250 \xff\0\r\n"]),
    some.binary(max_size=30).map(lambda text: b"250-" + text.replace(b"\n", b"") + b"\r\n"),
    some.binary(max_size=30),
)


@bad_input("SMTP replies", 500)
@given(some.lists(lines, max_size=12).map(b"".join), some.lists(some.integers(0, 400), max_size=8))
@example(b"250 OK\r\n", [7])
def test_chunk_boundaries_never_change_the_replies(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = read(data)
    assert read(*(data[start:end] for start, end in pairwise(edges))) == whole
    assert read(*(bytes([byte]) for byte in data)) == whole


@bad_input("SMTP replies", 500)
@given(some.binary(max_size=300))
def test_any_bytes_are_printable_replies_or_a_fault(data: bytes) -> None:
    replies, fault = read(b"550-" + data + b"\r\n550 end\r\n")
    assert fault is None or fault.isprintable()
    for reply in replies:
        assert 200 <= reply.code <= 599
        assert all(line.isprintable() for line in reply.lines)
