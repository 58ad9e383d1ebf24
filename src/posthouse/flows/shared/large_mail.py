"""Parsing and writing of large messages: in a separate process, one at a time; holders (accounts, networks) take turns.

Both hold the interpreter lock, the longer the larger the message is. In a thread they would stop the event loop, and
with it the requests of all accounts (decision record 0036). The process starts with the first large message, and ends
with this one.
"""

import asyncio
import atexit
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

import structlog

from posthouse.flows.shared.shares import TURN_SECONDS_MAX, FairShare, WaitedShare, busy
from posthouse.rules import handlebars, limits, template
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.template import RenderedTemplate, Template, Variables

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

# With a share for each holder. Callers have their own bounds, which are narrower.
IN_PROGRESS_MAX: Final = 1_000
ANSWER_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 2.0
# If there are few cores, event loops come first.
NICENESS: Final = 5

# Only waits for the process, without holding the interpreter.
_THREAD: Final = ThreadPoolExecutor(1, "large-mail")
_BUSY: Final = busy("Many large messages are being read")
_IN_PROGRESS: Final[FairShare[Hashable]] = FairShare(IN_PROGRESS_MAX)
_TURNS: Final[WaitedShare[Hashable]] = WaitedShare(1, wait_seconds_max=TURN_SECONDS_MAX, refusal=_BUSY)


async def run_in_mail_process(holder: Hashable, work: "partial[Result]") -> Result:
    """The result of a pure function of a module and its arguments, which are copied to the process."""
    with _IN_PROGRESS.taking(holder, _BUSY):
        async with _TURNS.turn(holder):
            return await asyncio.get_running_loop().run_in_executor(_THREAD, _PROCESS.run, work)


class LargeMailProcess:
    """The separate process; used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(self, work: "partial[Result]") -> Result:
        connection = self._connection or self._start()
        try:
            connection.send_bytes(pickle.dumps(work, pickle.HIGHEST_PROTOCOL))
            if not connection.poll(ANSWER_SECONDS_MAX):
                raise EOFError(f"no answer after {ANSWER_SECONDS_MAX:.0f} s")
            has_failed, answer = pickle.loads(connection.recv_bytes())  # noqa: S301 (of our own process)
        except (OSError, EOFError) as error:
            log.error("large_mail_process_lost", error=repr(error))
            self.stop()
            raise Refusal(Code.TEMPORARY_FAILURE, "The message could not be processed: try again.", 1) from error
        if has_failed:
            raise answer
        result: Result = answer
        return result

    def stop(self) -> None:
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS_MAX)
            process.kill()
            process.wait()

    def _start(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            descriptor = theirs.fileno()
            command = f"from {__name__} import serve; serve({descriptor})"
            self._process = subprocess.Popen(  # noqa: S603 (nothing in it comes from outside)
                [sys.executable, "-c", command], stdin=subprocess.DEVNULL, pass_fds=[descriptor]
            )
        self._connection = ours
        return ours


_PROCESS: Final = LargeMailProcess()
atexit.register(_PROCESS.stop)


def serve(descriptor: int) -> None:
    """In the process: answer until the connection is closed."""
    # A supervisor may signal the whole process group, whose other processes still finish their work.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # a sandbox may forbid it; large messages then have normal priority
        os.nice(NICENESS)
    connection = Connection(descriptor)
    while True:
        try:
            answer = _answer(connection.recv_bytes())
        except EOFError:
            return
        with suppress(BrokenPipeError):
            connection.send_bytes(answer)


def _answer(request: bytes) -> bytes:
    """Whether the work failed, and its exception or its result."""
    answer: tuple[bool, Any]
    try:
        answer = False, pickle.loads(request)()  # noqa: S301 (of our own process)
    except Exception as fault:
        fault.add_note(traceback.format_exc())
        answer = True, fault
    return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)


# Rendering a template: long work is done in a separate process, and accounts take turns.


async def rendered(account_id: AccountId, found: Template, variables: Variables) -> RenderedTemplate:
    try:
        return template.render(found, variables, bytes_max=limits.MIME_BYTES_MAX, is_quick=True)
    except handlebars.Slow:
        render = partial(template.render, found, dict(variables), bytes_max=limits.MIME_BYTES_MAX)
        return await run_in_mail_process(account_id, render)
