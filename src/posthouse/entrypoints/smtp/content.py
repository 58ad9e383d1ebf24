"""The content of one message as it comes in: kept within bounds, or only followed to its end.

The end of DATA is CRLF, a dot, CRLF, and nothing else (anything looser lets one client's text be another's
command). The line end before the first dot may be that of the command, so that what is kept begins with it.
Content with a bare CR or LF is followed to the same end, and refused there.
"""

from typing import Final

from posthouse.entrypoints.smtp.replies import ServerReply

END: Final = b"\r\n.\r\n"
_LINE_END: Final = b"\r\n"
_DOT: Final = b"\r\n."
_RETURN: Final = 13

TOO_LARGE: Final = ServerReply(552, "5.3.4", "The message is larger than the SIZE that EHLO tells.")
NO_ROOM: Final = ServerReply(452, "4.3.1", "Too much mail is coming in just now; try again in a minute.")
BARE: Final = ServerReply(
    550, "5.6.0", "The message holds a bare CR or LF: end its lines with CR LF, and send it again."
)


class Room:
    """Memory for content that all conversations of a server share."""

    __slots__ = ("_bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0

    def has(self, size: int) -> bool:
        return self.used_bytes + size <= self._bytes_max

    def give_back(self, size: int) -> None:
        self.used_bytes -= size


class Content:
    __slots__ = (
        "_bare",
        "_bytes_max",
        "_has_dots",
        "_held_bytes",
        "_kept",
        "_raw_bytes_max",
        "_room",
        "fault",
        "received_bytes",
    )

    def __init__(self, bytes_max: int, room: Room) -> None:
        self.fault: ServerReply | None = None
        self.received_bytes = 0
        self._bytes_max = bytes_max
        # Lines of a single dot grow by a third when their dots are doubled; what counts is the message without.
        self._raw_bytes_max = bytes_max + bytes_max // 3 + len(END)
        self._room = room
        self._held_bytes = 0
        self._kept = bytearray(_LINE_END)
        self._has_dots = False
        self._bare = 0

    def add_dotted(self, data: bytes, start: int) -> int:
        """Take what belongs to the content; where the next command begins, or -1 while the end has not come."""
        kept = self._kept
        before = len(kept)
        kept += memoryview(data)[start:] if start else data
        # One search finds the end and, on its way, whether any dot was doubled.
        found = kept.find(_DOT, max(0, before - len(END) + 1))
        if found >= 0 and not kept.startswith(END, found):
            self._has_dots = True
            found = kept.find(END, found)
        if found < 0:
            self._note(data[start:] if start else data, before)
            return -1
        end = found + len(END)
        surplus = len(kept) - end
        stop = len(data) - surplus
        if surplus:
            del kept[end:]
        self._note(data[start:stop] if start or surplus else data, before)
        return stop

    def add_chunk(self, data: bytes, start: int, stop: int) -> None:
        before = len(self._kept)
        piece = data[start:stop]
        self._kept += piece
        self._note(piece, before)

    def dotted(self) -> bytes | ServerReply:
        """The whole message, once its end has come."""
        if self.fault is not None or self._bare:
            return self.fault or BARE
        kept = self._kept
        self._kept = bytearray()
        del kept[len(_LINE_END) - len(END) :]
        if self._has_dots:
            kept = kept.replace(_DOT, _LINE_END)
        return self._whole(kept)

    def chunked(self) -> bytes | ServerReply:
        """The whole message, once its last chunk has come."""
        if self.fault is not None or self._bare:
            return self.fault or BARE
        kept = self._kept
        self._kept = bytearray()
        if not kept.endswith(_LINE_END):
            kept += _LINE_END
        return self._whole(kept)

    def let_go(self) -> None:
        """Nobody needs it any more."""
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0
        self._kept = bytearray()

    def _whole(self, kept: bytearray) -> bytes | ServerReply:
        if len(kept) - len(_LINE_END) > self._bytes_max:
            return TOO_LARGE
        with memoryview(kept) as view:
            return bytes(view[len(_LINE_END) :])

    def _note(self, piece: bytes, before: int) -> None:
        """Count what has just been kept from `before` on, and let go of it when it is too much."""
        size = len(piece)
        self.received_bytes += size
        if self.fault is not None:
            del self._kept[: 1 - len(END)]
            return
        # How many CR and LF are there, less those that stand together: none, or some are bare.
        self._bare += size - len(piece.translate(None, _LINE_END)) - 2 * piece.count(_LINE_END)
        if piece[:1] == b"\n" and self._kept[before - 1] == _RETURN:
            self._bare -= 2
        if self.received_bytes > self._raw_bytes_max:
            self._refuse(TOO_LARGE)
        elif not self._room.has(size):
            self._refuse(NO_ROOM)
        else:
            self._held_bytes += size
            self._room.used_bytes += size

    def _refuse(self, fault: ServerReply) -> None:
        self.fault = fault
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0
        kept = self._kept
        # A large array doesn't shrink by itself when its front is cut off.
        self._kept = bytearray(kept[1 - len(END) :])
