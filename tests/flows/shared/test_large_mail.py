"""Work on large messages in a separate process: results and refusals come back, and a lost process is replaced."""

import os
import signal
from datetime import UTC, datetime
from functools import partial

import pytest

from posthouse.flows.shared.large_mail import LargeMailProcess, run_in_mail_process
from posthouse.mail import submitted
from posthouse.mail.submitted import SubmittedMailError
from posthouse.rules.refusal import Code, Refusal, invalid


def refuse(text: str) -> None:
    raise invalid(text)


async def test_work_is_done_in_another_process() -> None:
    assert await run_in_mail_process("holder", partial(os.getpid)) != os.getpid()
    assert await run_in_mail_process("holder", partial(bytes.upper, b"x" * 5_000_000)) == b"X" * 5_000_000


async def test_refusals_come_back_as_they_were_raised() -> None:
    with pytest.raises(Refusal) as refused:
        await run_in_mail_process("holder", partial(refuse, "Send less."))
    assert refused.value == invalid("Send less.")
    with pytest.raises(SubmittedMailError) as error:
        await run_in_mail_process(
            "holder", partial(submitted.prepare, b"\r\n", date=datetime.now(UTC), message_id="", hostname="")
        )
    assert error.value.status == "550 5.6.0"


async def test_a_fault_says_where_it_was_raised() -> None:
    with pytest.raises(ZeroDivisionError) as fault:
        await run_in_mail_process("holder", partial(divmod, 1, 0))
    assert "in _answer" in fault.value.__notes__[0]


def test_a_process_that_is_lost_is_replaced() -> None:
    process = LargeMailProcess()
    try:
        with pytest.raises(Refusal) as refused:
            process.run(partial(os.kill, process.run(partial(os.getpid)), signal.SIGKILL))
        assert refused.value.code is Code.TEMPORARY_FAILURE
        assert process.run(partial(len, b"abc")) == 3
    finally:
        process.stop()


def test_the_process_outlives_a_signal_to_its_group_and_ends_with_its_connection() -> None:
    process = LargeMailProcess()
    number = process.run(partial(os.getpid))
    os.kill(number, signal.SIGTERM)
    assert process.run(partial(os.getpid)) == number
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
