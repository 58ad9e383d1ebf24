"""What an operator can do with mail in the queue, without a change of the tables by hand.

`retry` makes the next try due now, unless it would be the last or the mail has a `send_at` ahead; `hold` keeps mail
back, and `release` ends that;
`release_restored` does so for what is held since a restore; `cancel` ends it as failed, and its credits are returned.
The time for which an operator held it does not count.
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
    """What mail was chosen, in words, for the operator's log."""
    named = [f"{name.replace('_', ' ')} {value}" for name, value in chosen.items() if value is not None]
    return ", ".join(named) or "all"


# As the recipient's result and its event say it.
CANCELLED: Final = "it was cancelled by the operator of this service"
