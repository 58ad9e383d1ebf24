"""How long an event loop waits for a thread of its process that runs Python code."""

import sys
from typing import Final

# 5 ms unless it is set: a request meets several such waits.
SWITCH_SECONDS: Final = 0.001


def prefer_event_loop() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
