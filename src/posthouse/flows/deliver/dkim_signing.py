"""DKIM signing: prepends the sender's signatures to a message, in threads outside the event loop.

A signature costs more than all other work on a message, and the library releases the interpreter lock while it
computes one, so there is a thread for each of two cores. The call into a thread costs some tens of microseconds on
top, so messages that arrive while the threads are busy are signed in groups.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Final, NamedTuple

from posthouse.mail.dkim import SigningKey, load_signing_key, signatures
from posthouse.rules.ids import AccountId
from posthouse.store.control_cache import ControlCache, SealedKey
from posthouse.store.seal import Sealer

THREADS: Final = 2
# A group takes about 10 ms to sign, unless it contains a large message.
GROUP_MAX: Final = 16
GROUP_BYTES_MAX: Final = 1024 * 1024
# A loaded key takes some 4 KB.
KEYS_MAX: Final = 10_000


class _Unsigned(NamedTuple):
    domain: str
    keys: tuple[SealedKey, ...]
    message: bytes
    now: datetime


class DkimSigning:
    """For use in one event loop. The caller bounds how many messages wait."""

    def __init__(self, control_cache: ControlCache, sealer: Sealer, *, keys_max: int = KEYS_MAX) -> None:
        self._control_cache = control_cache
        self._signer = _Signer(sealer, keys_max)
        self._threads = ThreadPoolExecutor(THREADS, "signing")
        self._waiting: deque[tuple[_Unsigned, asyncio.Future[bytes]]] = deque()
        self._busy = 0

    async def keys(self, account_id: AccountId, domain: str) -> tuple[SealedKey, ...]:
        """The domain's current signing keys; none when the account lost the domain."""
        return await self._control_cache.signing_keys(account_id, domain)

    async def sign(self, domain: str, keys: tuple[SealedKey, ...], message: bytes, now: datetime) -> bytes:
        """The message with a signature for each key; unchanged without keys."""
        if not keys:
            return message
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((_Unsigned(domain, keys, message, now), answer))
        self._start()
        return await answer

    def close(self) -> None:
        """End the threads; waiting messages are cancelled."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        self._threads.shutdown()

    def _start(self) -> None:
        while self._waiting and self._busy < THREADS:
            group = self._take()
            unsigned = [message for message, _ in group]
            done = asyncio.get_running_loop().run_in_executor(self._threads, self._signer.sign, unsigned)
            self._busy += 1
            done.add_done_callback(partial(self._finish, [answer for _, answer in group]))

    def _take(self) -> list[tuple[_Unsigned, asyncio.Future[bytes]]]:
        """A share of the waiting messages, so that no thread is idle while another has all the work."""
        count = min(math.ceil(len(self._waiting) / THREADS), GROUP_MAX)
        group = [self._waiting.popleft()]
        size_bytes = len(group[0][0].message)
        while len(group) < count and size_bytes + len(self._waiting[0][0].message) <= GROUP_BYTES_MAX:
            size_bytes += len(self._waiting[0][0].message)
            group.append(self._waiting.popleft())
        return group

    def _finish(self, answers: Sequence[asyncio.Future[bytes]], done: asyncio.Future[list[bytes | Exception]]) -> None:
        self._busy -= 1
        for answer, result in zip(answers, done.result(), strict=True):
            if answer.done():  # its caller was cancelled
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        self._start()


class _Signer:
    """The threads' work, with a cache of opened keys that drops the least recently used ones."""

    def __init__(self, sealer: Sealer, keys_max: int) -> None:
        self._sealer = sealer
        self._keys_max = keys_max
        self._keys: OrderedDict[tuple[str, str, bytes], SigningKey] = OrderedDict()
        self._lock = Lock()

    def sign(self, group: Sequence[_Unsigned]) -> list[bytes | Exception]:
        return [self._signed(unsigned) for unsigned in group]

    def _signed(self, unsigned: _Unsigned) -> bytes | Exception:
        try:
            keys = [self._key(unsigned.domain, key) for key in unsigned.keys]
            return signatures(unsigned.message, keys, unsigned.now) + unsigned.message
        except Exception as fault:  # raised for this message only, not for the others of the group
            return fault

    def _key(self, domain: str, stored: SealedKey) -> SigningKey:
        cache_key = domain, stored.selector, stored.sealed
        with self._lock:
            key = self._keys.get(cache_key)
            if key is not None:
                self._keys.move_to_end(cache_key)
                return key
        # Two threads may both load a key; the last one stays in the cache.
        key = load_signing_key(domain, stored.selector, self._sealer.open(stored.sealed, stored.purpose))
        with self._lock:
            self._keys[cache_key] = key
            if len(self._keys) > self._keys_max:
                self._keys.popitem(last=False)
        return key
