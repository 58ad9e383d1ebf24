"""How fast the content of large messages is read: those who send it share a rate.

Reading takes time of the event loop, which a fast line could fill for all others. A holder that sent more than its part
pauses; with many holders each has less.
"""

from collections.abc import Hashable
from typing import Final

# A holder may be ahead of its part by this much.
AHEAD_SECONDS: Final = 0.25


class ContentPace:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        # When the part of each holder will have paid for what was read.
        self._paid_at: dict[Hashable, float] = {}
        self._forgotten_at = 0.0

    def pause_seconds(self, holder: Hashable, size: int, now: float) -> float:
        """How long to read no more of the holder, after so many bytes; `now` is monotonic."""
        if now >= self._forgotten_at + 1:
            self._paid_at = {known: paid_at for known, paid_at in self._paid_at.items() if paid_at > now}
            self._forgotten_at = now
        begin = max(now, self._paid_at.setdefault(holder, now))
        self._paid_at[holder] = paid_at = begin + size * len(self._paid_at) / self._bytes_per_second
        return max(0.0, paid_at - now - AHEAD_SECONDS)
