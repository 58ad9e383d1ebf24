"""Suppressions: why an address gets no mail, and the import of address files from other services.

A file is read in chunks: no more than one line is held in memory.
"""

import csv
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from posthouse.mail.address import AddressError, parse_domain, parse_mailbox
from posthouse.rules.refusal import Refusal, invalid
from posthouse.rules.spreadsheet import unguarded

NOTE_CHARACTERS_MAX: Final = 200
WHY_CHARACTERS_MAX: Final = 200
# Manual entries per account; bounces and complaints are bounded by the mail sent.
MANUAL_MAX: Final = 5_000_000

IMPORT_BYTES_MAX: Final = 200 * 1000 * 1000
IMPORT_LINES_MAX: Final = 1_000_000
LINE_BYTES_MAX: Final = 1024
FAULTS_REPORTED_MAX: Final = 100

EXPORT_HEADER: Final = ("address", "reason", "note", "at")

_ADDRESS_COLUMNS: Final = frozenset({"email", "address", "recipient", "emailaddress"})
_NOTE_COLUMNS: Final = ("note", "suppressionreason", "reason", "error")
_DELIMITERS: Final = ",;\t"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SuppressionReason(StrEnum):
    """`bounce` and `complaint` result from sent mail, `manual` was added by a member."""

    BOUNCE = "bounce"
    COMPLAINT = "complaint"
    MANUAL = "manual"


def address_of(given: str) -> str:
    """The address in its normalised form, or a refusal."""
    try:
        return parse_mailbox(given).key
    except AddressError as error:
        raise invalid(f"`email` {error}.") from error


def bare_address_of(given: str) -> str:
    """The same, without a display name."""
    email = address_of(given)
    if parse_mailbox(given).name:
        raise invalid("`email` has a display name: give the bare address.")
    return email


def known_address(given: str) -> str | None:
    """The same for looking up an existing suppression; None if it can't be an address."""
    try:
        return parse_mailbox(given).key
    except AddressError:
        return None


def reason_of(given: str) -> SuppressionReason:
    try:
        return SuppressionReason(given)
    except ValueError:
        raise invalid(f"`reason` is one of {', '.join(SuppressionReason)}.") from None


class SuppressionSearch(NamedTuple):
    """Either the beginning of an address, or a whole domain."""

    prefix: str | None = None
    domain: str | None = None


def search_of(given: str) -> SuppressionSearch:
    if given.startswith("@"):
        try:
            return SuppressionSearch(domain=parse_domain(given[1:]))
        except AddressError as error:
            raise invalid(f"`search` {error}.") from error
    if not 1 <= len(given) <= 254 or not given.isascii() or not given.isprintable():
        raise invalid("`search` is the beginning of an address, or `@` and a whole domain: 1 to 254 ASCII characters.")
    return SuppressionSearch(prefix=given.lower())


def checked_note(given: str | None) -> str | None:
    if not given:
        return None
    if len(given) > NOTE_CHARACTERS_MAX or not given.isprintable():
        raise invalid(f"`note` has up to {NOTE_CHARACTERS_MAX} printable characters.")
    return given


def checked_reason(given: str) -> str:
    if not 1 <= len(given) <= WHY_CHARACTERS_MAX or not given.isprintable():
        raise _missing_reason()
    return given


def _missing_reason() -> Refusal:
    return invalid(
        f"`reason` says why the address may get mail again, in 1 to {WHY_CHARACTERS_MAX} printable characters: "
        "the account's log keeps it."
    )


# Files of addresses.


class ImportLine(NamedTuple):
    """A line of a file: its address and note, or its fault."""

    number: int
    email: str = ""
    note: str | None = None
    fault: str | None = None


class ImportLines:
    """The lines of a CSV file that arrives in chunks; blank lines and the header are skipped.

    A quoted field may contain line breaks. An unclosed quote costs no more than the longest line: a longer field ends
    at its next line break.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rest = b""
        self._record: list[bytes] = []
        self._record_bytes = 0
        self._is_in_quotes = False
        self._is_skipping = False
        self._begun_at = 1
        self._is_first = True
        self._delimiter = ","
        self._address_column = 0
        self._note_column: int | None = None

    def feed(self, piece: bytes) -> Iterator[ImportLine]:
        """The lines that this chunk completes; `count` is the number of line breaks so far."""
        *ended, self._rest = (self._rest + piece).split(b"\n")
        for text in ended:
            line = self._end(text)
            if line is not None:
                yield line
        if self._is_skipping:
            self._rest = b""
        elif self._record_bytes + len(self._rest) > LINE_BYTES_MAX:
            yield self._too_long(self._begun_at if self._record else self.count + 1)
            self._forget()
            self._rest = b""
            self._is_skipping = True
            self._is_first = False

    def finish(self) -> Iterator[ImportLine]:
        """The text after the last line break."""
        rest, self._rest = self._rest, b""
        if rest or self._record:
            line = self._end(rest)
            if line is None and self._record:
                # An unclosed quote ends with the file.
                line = self._line(b"\n".join(self._record))
            if line is not None:
                yield line

    def _end(self, piece: bytes) -> ImportLine | None:
        self.count += 1
        if self._is_skipping:
            self._is_skipping = False
            return None
        if not self._record:
            self._begun_at = self.count
        self._record.append(piece)
        self._record_bytes += len(piece) + 1
        if piece.count(b'"') % 2:
            self._is_in_quotes = not self._is_in_quotes
        if self._is_in_quotes and self._record_bytes <= LINE_BYTES_MAX:
            return None
        record = b"\n".join(self._record)
        self._forget()
        return self._line(record)

    def _forget(self) -> None:
        self._record = []
        self._record_bytes = 0
        self._is_in_quotes = False

    def _line(self, record: bytes) -> ImportLine | None:
        is_first, self._is_first = self._is_first, False
        if len(record) > LINE_BYTES_MAX:
            return self._too_long(self._begun_at)
        if is_first:
            record = record.removeprefix(_BYTE_ORDER_MARK)
        try:
            text = record.decode().strip("\r\n")
        except UnicodeDecodeError:
            return ImportLine(self._begun_at, fault="is not UTF-8")
        if not text or text.isspace():
            self._is_first = is_first
            return None
        if is_first:
            self._delimiter = next((mark for mark in _DELIMITERS if mark in text), ",")
            if self._is_header(self._cells(text)):
                return None
        return self._read(self._cells(text))

    def _cells(self, text: str) -> Sequence[str]:
        if '"' not in text:
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error:
            return ()

    def _is_header(self, cells: Sequence[str]) -> bool:
        names = [cell.strip().lower().replace(" ", "").replace("_", "").replace("-", "") for cell in cells]
        found = [column for column, name in enumerate(names) if name in _ADDRESS_COLUMNS]
        if not found:
            return False
        self._address_column = found[0]
        self._note_column = next((names.index(name) for name in _NOTE_COLUMNS if name in names), None)
        return True

    def _read(self, cells: Sequence[str]) -> ImportLine:
        if len(cells) <= self._address_column:
            return ImportLine(self._begun_at, fault="has no column for the address")
        try:
            email = parse_mailbox(unguarded(cells[self._address_column].strip())).key
        except AddressError as error:
            return ImportLine(self._begun_at, fault=str(error))
        note = None
        if self._note_column is not None and len(cells) > self._note_column:
            note = _as_note(unguarded(cells[self._note_column].strip()))
        return ImportLine(self._begun_at, email, note)

    @staticmethod
    def _too_long(number: int) -> ImportLine:
        return ImportLine(number, fault=f"is longer than {LINE_BYTES_MAX} bytes")


def _as_note(text: str) -> str | None:
    """The reason from another service, truncated, without control characters."""
    if not text.isprintable():
        text = "".join([character if character.isprintable() else " " for character in text])
    return text[:NOTE_CHARACTERS_MAX] or None
