"""Delays of logins after failures at the same network, or with the same e-mail address.

Many people share a network behind a proxy or a company's router, and strangers can type any address. So neither count
refuses a login: it only delays the next, by a bounded time. Counts are in the memory of this process.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from posthouse.rules import rate_limit

SUBJECTS_MAX: Final = 10_000
REMEMBERED_SECONDS: Final = 900.0


class _Failures(NamedTuple):
    number: int
    last_at: float


class LoginDelays:
    def __init__(self, *, subjects_max: int = SUBJECTS_MAX) -> None:
        self._subjects_max = subjects_max
        # The one that failed last is at the end.
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds(self, subject: str, failures_free: int, now: float) -> float:
        """How long a login of the subject is delayed; `now` is monotonic."""
        return rate_limit.login_delay_seconds(self._count(subject, now) - failures_free)

    def count(self, subject: str, now: float) -> None:
        """The subject failed."""
        self._failures[subject] = _Failures(self._count(subject, now) + 1, now)
        self._failures.move_to_end(subject)
        if len(self._failures) > self._subjects_max:
            self._failures.popitem(last=False)

    def clear(self, subject: str) -> None:
        self._failures.pop(subject, None)

    def _count(self, subject: str, now: float) -> int:
        found = self._failures.get(subject)
        return 0 if found is None or now - found.last_at > REMEMBERED_SECONDS else found.number
