"""The content of a message while it is received: stored up to a limit, then only read to its end.

DATA ends with CRLF, a dot, CRLF and nothing else (anything looser permits SMTP smuggling). The CRLF before the dot may
be that of the command, so the stored bytes begin with a CRLF. Content with a bare CR or LF is read to the same end and
refused there.
"""

from collections.abc import Hashable
from typing import Final

from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.flows.shared.shares import FairShare

# A holder may be ahead of its share by this much.
AHEAD_SECONDS: Final = 0.25
END: Final = b"\r\n.\r\n"
_LINE_END: Final = b"\r\n"
_DOT: Final = b"\r\n."
_RETURN: Final = 13

TOO_LARGE: Final = ServerReply(552, "5.3.4", "The message is larger than the SIZE that EHLO announces.")
NO_MEMORY: Final = ServerReply(452, "4.3.1", "Too much mail is coming in now; try again in a minute.")
BARE: Final = ServerReply(
    550, "5.6.0", "The message contains a bare CR or LF: end its lines with CR LF, and send it again."
)


class ContentMemory:
    """The memory for content, in bytes, of a server's connections; holders are accounts, or networks without login.

    Unfinished content can be dropped. So when memory is full, a holder that needs less than another one has still
    gets it: the oldest unfinished message of the holder with the most memory is dropped, and its client sends it again
    later.
    """

    def __init__(self, bytes_max: int, *, least: int = 0) -> None:
        self._share: FairShare[Hashable] = FairShare(bytes_max, least=least)
        # The oldest first.
        self._unfinished: dict[Hashable, dict[Content, None]] = {}

    @property
    def taken(self) -> int:
        return self._share.taken

    def held(self, holder: Hashable) -> int:
        return self._share.held(holder)

    def reserve_bytes(self, holder: Hashable, size: int) -> bool:
        share = self._share
        if share.take_units(holder, size):
            return True
        while share.taken + size > share.capacity:
            if not self._drop_unfinished(share.held(holder) + size):
                return False
        return share.take_units(holder, size)

    def release_bytes(self, holder: Hashable, size: int) -> None:
        self._share.release_units(holder, size)

    def begin(self, holder: Hashable, content: "Content") -> None:
        """Register content that may be dropped until it is finished."""
        self._unfinished.setdefault(holder, {})[content] = None

    def finish(self, holder: Hashable, content: "Content") -> None:
        unfinished = self._unfinished.get(holder, {})
        unfinished.pop(content, None)
        if not unfinished:
            self._unfinished.pop(holder, None)

    def _drop_unfinished(self, wanted: int) -> bool:
        """Drop content of a holder that has more than is wanted; returns whether there was any."""
        most = max(self._unfinished, key=self._share.held, default=None)
        if most is None or self._share.held(most) <= wanted:
            return False
        next(iter(self._unfinished[most])).drop()
        return True


def content_memory(bytes_max: int, message_bytes_max: int) -> ContentMemory:
    """A holder may always have one message, as long as any memory is free."""
    return ContentMemory(bytes_max, least=_raw_bytes_max(message_bytes_max))


def _raw_bytes_max(message_bytes_max: int) -> int:
    # Dot-stuffing makes a line of a single dot a third longer; the limit applies to the message without it.
    return message_bytes_max + message_bytes_max // 3 + len(END)


class Content:
    __slots__ = (
        "_bare",
        "_bytes_max",
        "_has_dots",
        "_held_bytes",
        "_holder",
        "_is_unfinished",
        "_kept",
        "_memory",
        "_raw_bytes_max",
        "fault",
        "received_bytes",
    )

    def __init__(self, bytes_max: int, memory: ContentMemory, holder: Hashable) -> None:
        self.fault: ServerReply | None = None
        self.received_bytes = 0
        self._bytes_max = bytes_max
        self._raw_bytes_max = _raw_bytes_max(bytes_max)
        self._memory = memory
        self._holder = holder
        self._held_bytes = 0
        self._is_unfinished = False
        self._kept = bytearray(_LINE_END)
        self._has_dots = False
        self._bare = 0

    def add_dotted(self, data: bytes, start: int) -> int:
        """Add DATA content; returns where the next command begins, or -1 before the end."""
        kept = self._kept
        before = len(kept)
        kept += memoryview(data)[start:] if start else data
        # The same search finds the end, and whether any dot was doubled.
        found = kept.find(_DOT, max(0, before - len(END) + 1))
        if found >= 0 and not kept.startswith(END, found):
            self._has_dots = True
            found = kept.find(END, found)
        if found < 0:
            self._count(data[start:] if start else data, before)
            self._begin()
            return -1
        end = found + len(END)
        surplus = len(kept) - end
        stop = len(data) - surplus
        if surplus:
            del kept[end:]
        self._count(data[start:stop] if start or surplus else data, before)
        return stop

    def add_chunk(self, data: bytes, start: int, stop: int) -> None:
        before = len(self._kept)
        piece = data[start:stop]
        self._kept += piece
        self._count(piece, before)
        self._begin()

    def dotted(self) -> bytes | ServerReply:
        """The whole message, after its end."""
        self._finish()
        if self.fault is not None or self._bare:
            return self.fault or BARE
        kept = self._kept
        self._kept = bytearray()
        del kept[len(_LINE_END) - len(END) :]
        if self._has_dots:
            kept = kept.replace(_DOT, _LINE_END)
        return self._whole(kept)

    def chunked(self) -> bytes | ServerReply:
        """The whole message, after its last chunk."""
        self._finish()
        if self.fault is not None or self._bare:
            return self.fault or BARE
        kept = self._kept
        self._kept = bytearray()
        if not kept.endswith(_LINE_END):
            kept += _LINE_END
        return self._whole(kept)

    def drop(self) -> None:
        """Free the memory of an unfinished message; its client is answered at the end."""
        self._refuse(NO_MEMORY)

    def discard(self) -> None:
        self._finish()
        self._memory.release_bytes(self._holder, self._held_bytes)
        self._held_bytes = 0
        self._kept = bytearray()

    def _whole(self, kept: bytearray) -> bytes | ServerReply:
        if len(kept) - len(_LINE_END) > self._bytes_max:
            return TOO_LARGE
        with memoryview(kept) as view:
            return bytes(view[len(_LINE_END) :])

    def _count(self, piece: bytes, before: int) -> None:
        """Count a piece that was added at `before`; drop the content when it exceeds a limit."""
        size = len(piece)
        self.received_bytes += size
        if self.fault is not None:
            del self._kept[: 1 - len(END)]
            return
        # All CR and LF less those in CRLF pairs: any remainder is bare.
        self._bare += size - len(piece.translate(None, _LINE_END)) - 2 * piece.count(_LINE_END)
        if piece[:1] == b"\n" and self._kept[before - 1] == _RETURN:
            self._bare -= 2
        if self.received_bytes > self._raw_bytes_max:
            self._refuse(TOO_LARGE)
        elif self._memory.reserve_bytes(self._holder, size):
            self._held_bytes += size
        else:
            self._refuse(NO_MEMORY)

    def _begin(self) -> None:
        if not self._is_unfinished and self.fault is None:
            self._is_unfinished = True
            self._memory.begin(self._holder, self)

    def _finish(self) -> None:
        if self._is_unfinished:
            self._is_unfinished = False
            self._memory.finish(self._holder, self)

    def _refuse(self, fault: ServerReply) -> None:
        self._finish()
        self.fault = fault
        self._memory.release_bytes(self._holder, self._held_bytes)
        self._held_bytes = 0
        kept = self._kept
        # Cutting off the beginning would not release the memory of a large bytearray.
        self._kept = bytearray(kept[1 - len(END) :])


class ContentPace:
    """How fast the content of large messages is read: its senders share a rate.

    Reading takes time on the event loop, and one fast connection could take all of it. A holder that has sent more than
    its share pauses; the more holders, the smaller each share.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        # When each holder's share will have paid for what was read.
        self._paid_at: dict[Hashable, float] = {}
        self._forgotten_at = 0.0

    def pause_seconds(self, holder: Hashable, size: int, now: float) -> float:
        """How long to read nothing more from the holder after these bytes; `now` is monotonic."""
        if now >= self._forgotten_at + 1:
            self._paid_at = {known: paid_at for known, paid_at in self._paid_at.items() if paid_at > now}
            self._forgotten_at = now
        begin = max(now, self._paid_at.setdefault(holder, now))
        self._paid_at[holder] = paid_at = begin + size * len(self._paid_at) / self._bytes_per_second
        return max(0.0, paid_at - now - AHEAD_SECONDS)
