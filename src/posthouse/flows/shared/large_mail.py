"""Parsing and writing of large mails: in a process of its own, one at a time, holders (accounts, networks) in turn.

Both hold the interpreter for as long as the mail is large. In a thread they would stop the event loop, and with it the
requests of all accounts (decision record 0036). The process starts with the first large mail, and ends with this one.
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

from posthouse.flows.shared.turns import Turns
from posthouse.rules.refusal import Code, Refusal

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

# With a share for each holder. Callers have bounds of their own, which are narrower.
IN_PROGRESS_MAX: Final = 1_000
ANSWER_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 2.0
# Where cores are few, event loops come first.
NICENESS: Final = 5

# Only waits for the process, without holding the interpreter.
_THREAD: Final = ThreadPoolExecutor(1, "large-mail")
_TURNS: Final[Turns[Hashable]] = Turns(at_once_max=1, in_progress_max=IN_PROGRESS_MAX, work="Many large mails are read")


async def in_turn(holder: Hashable, work: "partial[Result]") -> Result:
    """The result of a pure function of a module and its arguments, which are copied to the process."""
    with _TURNS.place(holder):
        async with _TURNS.turn(holder):
            return await asyncio.get_running_loop().run_in_executor(_THREAD, _PROCESS.run, work)


class LargeMailProcess:
    """Used by one thread at a time."""

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
            raise Refusal(Code.TEMPORARY_FAILURE, "The mail could not be processed: try again.", 1) from error
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
    # A supervisor may signal the whole group, whose other processes still finish what they have.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # a sandbox may forbid it; mail then takes its turn with the rest
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
