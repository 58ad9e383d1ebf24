"""Files of addresses, as services and spreadsheets write them; searches and notes."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules import suppression
from posthouse.rules.refusal import Refusal
from posthouse.rules.suppression import LINE_BYTES_MAX, ImportLine, ImportLines, SuppressionSearch, search_of
from tests.support.bad_input import bad_input, spoiled


def read(content: bytes, piece_bytes: int = 1 << 20) -> list[ImportLine]:
    lines = ImportLines()
    found: list[ImportLine] = []
    for at in range(0, len(content), piece_bytes):
        found += lines.feed(content[at : at + piece_bytes])
    return [*found, *lines.finish()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"ada@example.org\n", [("ada@example.org", None)]),
        (b"Ada@Example.ORG", [("ada@example.org", None)]),
        (b"\xef\xbb\xbfemail\r\nada@example.org\r\n\r\n", [("ada@example.org", None)]),
        (b"\r\n\r\naddress\r\nada@example.org", [("ada@example.org", None)]),
        (b'"Lovelace, Ada <ada@example.org>",x\n', None),
        (b'"Ada <ada@example.org>",x\n', [("ada@example.org", None)]),
        (
            b"address,code,error,created_at\nada@example.org,550,no such user,now\n",
            [("ada@example.org", "no such user")],
        ),
        (b"created,email,reason,status\n1,ada@example.org,550 gone,5.1.1\n", [("ada@example.org", "550 gone")]),
        (
            b'"EmailAddress","SuppressionReason","Origin","CreatedAt"\n"ada@example.org","HardBounce","Recipient","x"\n',
            [("ada@example.org", "HardBounce")],
        ),
        (b"Recipient;Note\nada@example.org;asked to\n", [("ada@example.org", "asked to")]),
        (b"id\temail address\n1\tada@example.org\n", [("ada@example.org", None)]),
        (b'email,reason\nada@example.org,"two\nlines, ""quoted"""\n', [("ada@example.org", 'two lines, "quoted"')]),
        (b"email,reason\nada@example.org\n", [("ada@example.org", None)]),
        (b"'+ada@example.org\n''ada@example.org\n'ada@example.org", "guards"),
        (b'email,note\nada@example.org,"never closed\n', [("ada@example.org", "never closed")]),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_a_file_is_read_in_any_chunks(content: bytes, expected: object, piece_bytes: int) -> None:
    found = read(content, piece_bytes)
    if expected is None:
        assert [item.fault is None for item in found] == [False]
    elif expected == "guards":
        assert [item.email for item in found] == ["+ada@example.org", "'ada@example.org", "'ada@example.org"]
    else:
        assert [(item.email, item.note) for item in found] == expected


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_a_fault_has_its_line_number(piece_bytes: int) -> None:
    long = b"x" * (LINE_BYTES_MAX + 1)
    content = b"email,note\nada@example.org\nnobody\n\n" + long + b"\nbob@example.org\n\xff\xfe@example.org\n,\n"
    found = read(content, piece_bytes)
    assert [(item.number, item.fault is not None) for item in found] == [
        (2, False),
        (3, True),
        (5, True),
        (6, False),
        (7, True),
        (8, True),
    ]
    assert "1024 bytes" in str(found[2].fault)
    assert "UTF-8" in str(found[4].fault)


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_an_open_quote_costs_no_more_than_the_longest_line(piece_bytes: int) -> None:
    content = b'email,note\nada@example.org,"open\n' + b"".join([b"r%d@example.org\n" % item for item in range(1_000)])
    found = read(content, piece_bytes)
    assert (found[0].number, found[0].fault is not None) == (2, True)
    assert all(item.fault is None for item in found[1:])
    assert len(found) > 1_000 - LINE_BYTES_MAX // 10
    assert found[-1] == ImportLine(1_002, "r999@example.org")


def test_only_line_breaks_are_counted() -> None:
    lines = ImportLines()
    assert list(lines.feed(b"\n" * 1000)) == []
    assert lines.count == 1000


@bad_input("Suppression files (CSV)", 300)
@given(st.lists(st.text(max_size=20), min_size=1), st.integers(1, 50))
def test_any_bytes_are_lines_or_faults_in_any_chunks(rows: list[str], piece_bytes: int) -> None:
    written = io.StringIO()
    csv.writer(written).writerows([[row] for row in rows])
    content = written.getvalue().encode("utf-8", "surrogatepass")
    assert read(content, piece_bytes) == read(content)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("size", [LINE_BYTES_MAX - 3, LINE_BYTES_MAX, LINE_BYTES_MAX + 1])
def test_a_first_line_of_any_length_is_the_header_or_a_fault(before: bytes, size: int) -> None:
    """A line too long to be the header still leaves the next line an ordinary one."""
    content = before + b"email,".ljust(size - len(before), b"x") + b"\nnote,email\nada@example.org,bob@example.org\n"
    found = read(content)
    assert read(content, 1) == read(content, 1_000) == found
    assert [(item.number, item.email) for item in found if item.fault is None] == [(3, "ada@example.org")]
    assert (found[0].number == 1) is (size > LINE_BYTES_MAX)


FILES = [
    b"email\r\nada@example.org\r\nbob@example.org\r\n",
    b"\xef\xbb\xbfaddress;reason\nada@example.org;gone\n",
    b'"Email","Created","Note"\n"ada@example.org","2026-01-01","He said ""no"""\n',
    b"bob@example.org\teve@example.org\n",
    "address,note\r\nada@bücher.example,Grüße\r\n".encode(),
]


PIECES = [
    b",", b";", b"\t", b'"', b'""', b"\r", b"\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"@", b"'=", b"email", b"x" * 1_100,
]  # fmt: skip


@bad_input("Suppression files (CSV)", 500)
@given(spoiled(FILES, PIECES))
def test_damaged_files_are_lines_or_faults_in_any_chunks(content: bytes) -> None:
    whole = read(content)
    assert read(content, 1) == read(content, 7) == whole
    for item in whole:
        if item.fault is None:
            assert suppression.known_address(str(item.email)) == item.email
            assert item.note is None or item.note == suppression.checked_note(item.note)


@pytest.mark.parametrize(
    ("given_text", "search"),
    [
        ("Ada", SuppressionSearch(prefix="ada")),
        ("ada@exam", SuppressionSearch(prefix="ada@exam")),
        ("@Example.org", SuppressionSearch(domain="example.org")),
        ("@bücher.example", SuppressionSearch(domain="xn--bcher-kva.example")),
    ],
)
def test_a_search_is_a_beginning_or_a_domain(given_text: str, search: SuppressionSearch) -> None:
    assert search_of(given_text) == search


@pytest.mark.parametrize("given_text", ["", "@", "@nothing", "a\0", "é", "x" * 255, "@a b"])
def test_a_search_that_finds_nothing_is_refused(given_text: str) -> None:
    with pytest.raises(Refusal, match="`search`"):
        search_of(given_text)


def test_notes_and_reasons_have_their_bounds() -> None:
    assert suppression.checked_note("") is None
    for bad in ("x" * 201, "a\nb"):
        with pytest.raises(Refusal, match="`note`"):
            suppression.checked_note(bad)
    for bad in ("", "x" * 201, "a\nb"):
        with pytest.raises(Refusal, match="`reason`"):
            suppression.checked_reason(bad)
