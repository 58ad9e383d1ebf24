"""What an operator can do with mail in the queue, without changing tables by hand.

`retry` makes the next try due now, unless it would be the last or the message has a `send_at` ahead; `hold` holds mail,
and `release` ends that; `release_restored` ends it for mail that is held since a restore; `cancel` ends mail as failed,
and its credits are returned. The time for which an operator held mail does not count towards its lifetime.
"""

from enum import StrEnum
from typing import Final


class QueueChange(StrEnum):
    RETRY = "retry"
    HOLD = "hold"
    RELEASE = "release"
    RELEASE_RESTORED = "release_restored"
    CANCEL = "cancel"


def described(**chosen: str | None) -> str:
    """Which mail was chosen, in words, for the operator's log."""
    named = [f"{name.replace('_', ' ')} {value}" for name, value in chosen.items() if value is not None]
    return ", ".join(named) or "all"


# The text in the recipient's result and in its event.
CANCELLED: Final = "it was cancelled by the operator of this service"
