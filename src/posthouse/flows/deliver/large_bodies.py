"""Memory for bodies that are too large to be read with their claims: a share for each account.

The size of a message is known after its first claim. From then on its room is checked before the next claim, and what
finds none is postponed to when there should be some, behind what was postponed before.
"""

from collections import OrderedDict
from typing import Final

from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId, MessageId

LARGE_BYTES_MAX: Final = 256 * 1024 * 1024
SIZES_KNOWN_MAX: Final = 10_000
WAIT_SECONDS_MIN: Final = 5.0
WAIT_SECONDS_MAX: Final = 600.0
# How long a body is held is the mean of about so many.
MEAN_OF: Final = 10


class LargeBodies:
    def __init__(self, bytes_max: int = LARGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._share: FairShare[AccountId] = FairShare(bytes_max)
        self._sizes: OrderedDict[MessageId, int] = OrderedDict()
        self._held_seconds = 1.0
        # The time up to which room is promised to postponed mail.
        self._horizon = float("-inf")

    def lacks_room(self, account_id: AccountId, message_id: MessageId) -> bool:
        """Whether the message is known as large and finds no room now."""
        size = self._sizes.get(message_id, 0)
        return size > 0 and not self._share.has_room(account_id, size)

    def take(self, account_id: AccountId, message_id: MessageId, size: int) -> bool:
        """Take room for a body, if there is some; it must be given back."""
        self._sizes[message_id] = size
        if len(self._sizes) > SIZES_KNOWN_MAX:
            self._sizes.popitem(last=False)
        return self._share.take(account_id, size)

    def give_back(self, account_id: AccountId, size: int, seconds: float) -> None:
        """Give back the room of a body that was held for so long."""
        self._share.give_back(account_id, size)
        self._held_seconds += (seconds - self._held_seconds) / MEAN_OF

    def wait_seconds(self, message_id: MessageId, now: float) -> float:
        """When there should be room: after everything that was postponed before, at the pace of late."""
        size = self._sizes.get(message_id, 0)
        begin = max(self._horizon, now + WAIT_SECONDS_MIN)
        self._horizon = min(begin + self._held_seconds * size / self._bytes_max, now + WAIT_SECONDS_MAX)
        return begin - now
