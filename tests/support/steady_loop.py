"""An event loop whose time stands still while the machine does.

A deadline of a fraction of a second would pass in a test whose process gets no processor for that long, before what
came meanwhile is read. This loop's time goes on by at most STEP_SECONDS between two of its turns.
"""

import asyncio
import selectors
import time
from asyncio import sslproto
from collections.abc import Mapping
from typing import Any, Final

import pytest

STEP_SECONDS: Final = 0.1
# Waits of the loop are divided into shorter ones, which the step above includes.
WAIT_SECONDS_MAX: Final = 0.05
# Of tests with short deadlines, where others run on uvloop too.
ON_STEADY_LOOP: Final = pytest.mark.asyncio(loop_factories=["asyncio"])


class _ShortWaits(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(WAIT_SECONDS_MAX if timeout is None else min(timeout, WAIT_SECONDS_MAX))


class SteadyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._read_at = time.monotonic()
        self._now = self._read_at
        super().__init__(_ShortWaits())

    def time(self) -> float:
        read_at = time.monotonic()
        self._now += min(read_at - self._read_at, STEP_SECONDS)
        self._read_at = read_at
        return self._now


def repair_tls() -> None:
    """Before Python 3.11.4, asyncio can't abort a TLS connection that was closed twice; the service runs on uvloop."""
    transport: Any = vars(sslproto)["_SSLProtocolTransport"]
    close = transport.close

    def close_once(closing: asyncio.Transport) -> None:
        if not closing.is_closing():
            close(closing)

    transport.close = close_once


def steady(config: Any, item: Any) -> Mapping[str, type[asyncio.AbstractEventLoop]]:
    """For `pytest_asyncio_loop_factories` in a conftest."""
    return {"asyncio": SteadyLoop}
