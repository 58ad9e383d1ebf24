"""Transactions of an SMTP session: delivered content, each recipient's result, and ambiguous results."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.rules.outcome import Stage
from posthouse.wire.dialogue import BLOCK_BYTES_MAX, SmtpContent, dot_stuffed
from posthouse.wire.smtp import SmtpAccepted, SmtpFailure, SmtpSession
from posthouse.wire.tls import CLEARTEXT, TlsPolicy
from tests.support.certificates import Certificates
from tests.support.eventually import eventually
from tests.support.smtp_receiver import SmtpReceiver
from tests.support.steady_loop import ON_STEADY_LOOP
from tests.wire.smtp_sessions import (
    BROKEN,
    CONTENT,
    EHLO_PIPELINING,
    HASTY_COMMAND,
    HASTY_DOT,
    LARGE,
    MESSAGE,
    PATIENT,
    SENDER,
    SHORT,
    TRANSFER_MODES,
    canned,
    deliver,
    failure_of,
    open_to,
    reason_of,
    result_of,
    session_with,
)

# Delivering


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_messages_of_any_size_arrive_as_they_were_given_over_one_connection(way: str) -> None:
    at_block_ends = [n * BLOCK_BYTES_MAX + more for n, more in ((1, -1), (1, 0), (1, 1), (2, 0))]
    padded = [SmtpContent(b"Subject: b\r\n\r\n".ljust(size - 2, b"x") + b"\r\n") for size in at_block_ends]
    messages = [MESSAGE, LARGE, *padded]
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        for message in messages:
            (result,) = await deliver(session, message=message)
            assert isinstance(result, SmtpAccepted)
            assert (result.reply.code, result.reply.enhanced) == (250, "2.0.0")
            assert session.is_reusable
        assert session.transactions == len(messages)
    assert [received.message for received in receiver.accepted] == [message.content for message in messages]
    assert [received.transaction for received in receiver.accepted] == [1, 2, 3, 4, 5, 6]
    assert {(received.sender, received.recipient, received.tls) for received in receiver.accepted} == {
        (SENDER, "ada@example.com", None)
    }
    assert receiver.connections == 1
    assert "RSET" not in receiver.commands


async def test_the_null_return_path_is_written_as_such() -> None:
    async with SmtpReceiver() as receiver, session_with(receiver) as session:
        assert isinstance((await deliver(session, sender=""))[0], SmtpAccepted)
    assert receiver.accepted[0].sender == ""


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_each_recipient_has_its_own_result(way: str) -> None:
    recipients = ["a@example.com", "550-rcpt+1@example.com", "452-rcpt+1@example.com", "b@example.com"]
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        first, second, third, fourth = await deliver(session, *recipients)
        assert isinstance(first, SmtpAccepted)
        assert isinstance(fourth, SmtpAccepted)
        assert failure_of(second) == (Stage.RCPT, 550, False)
        assert failure_of(third) == (Stage.RCPT, 452, False)
        assert session.is_reusable
    assert [(received.recipient, received.transaction) for received in receiver.accepted] == [
        ("a@example.com", 1),
        ("b@example.com", 1),
    ]


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_fifty_recipients_go_in_one_transaction(way: str) -> None:
    recipients = [f"r{number}@example.com" for number in range(50)]
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        results = await deliver(session, *recipients)
        assert all(isinstance(result, SmtpAccepted) for result in results)
    assert [received.recipient for received in receiver.accepted] == recipients


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_without_an_accepted_recipient_no_content_is_sent(way: str) -> None:
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        results = await deliver(session, "550-rcpt@example.com", "450-rcpt@example.com")
        assert [failure_of(result) for result in results] == [(Stage.RCPT, 550, False), (Stage.RCPT, 450, False)]
        assert receiver.strays == []
        assert ("DATA" in receiver.commands) == (way == "")
        assert session.is_reusable
        assert isinstance((await deliver(session))[0], SmtpAccepted)
    assert receiver.commands.count("RSET") == 1
    assert [received.recipient for received in receiver.accepted] == ["ada@example.com"]


async def test_a_lone_dot_ends_content_without_recipients() -> None:
    async with SmtpReceiver("data-anyway") as receiver, session_with(receiver) as session:
        (result,) = await deliver(session, "550-rcpt@example.com")
        assert failure_of(result) == (Stage.RCPT, 550, False)
        assert receiver.strays == [b""]
        assert isinstance((await deliver(session))[0], SmtpAccepted)
    assert [received.message for received in receiver.accepted] == [CONTENT]


async def test_a_pipelined_envelope_is_a_single_write() -> None:
    async with canned(220, EHLO_PIPELINING, "250 a\r\n250 b\r\n354 c", 250) as (server, session):
        assert isinstance((await deliver(session))[0], SmtpAccepted)
    assert server.heard[1] == f"MAIL FROM:<{SENDER}>\r\nRCPT TO:<ada@example.com>\r\nDATA\r\n".encode()


async def test_replies_are_read_alike_in_any_chunks() -> None:
    says = ("250 a\r\n550-first", "550 last\r\n250 b\r\n354 c")
    async with canned(220, EHLO_PIPELINING, says, 250, pause_seconds=0.02) as (_, session):
        refused, accepted = await deliver(session, "grace@example.com", "ada@example.com")
        assert failure_of(refused) == (Stage.RCPT, 550, False)
        assert refused.reply is not None
        assert refused.reply.text == "first\nlast"
        assert isinstance(accepted, SmtpAccepted)
        assert session.is_reusable


# What servers refuse, break and leave unsaid


@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize("code", [450, 451, 452, 550, 552, 554])
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.DOT])
async def test_a_refusal_has_its_stage_and_keeps_the_session(way: str, code: int, stage: Stage) -> None:
    words = f"{way}--{code}-mail" if stage is Stage.MAIL else way
    result, receiver, is_reusable = await result_of(words, f"{code}-{stage}@example.com")
    assert failure_of(result) == (stage, code, False)
    assert receiver.accepted == []
    assert is_reusable


@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.DOT])
async def test_421_ends_the_session_at_any_stage(way: str, stage: Stage) -> None:
    words = f"{way}--421-mail" if stage is Stage.MAIL else way
    result, receiver, is_reusable = await result_of(words, f"421-{stage}@example.com")
    assert failure_of(result) == (stage, 421, False)
    assert receiver.accepted == []
    assert not is_reusable


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_421_among_recipients_keeps_earlier_results(way: str) -> None:
    recipients = ["550-rcpt@example.com", "a@example.com", "421-rcpt@example.com", "b@example.com"]
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        results = await deliver(session, *recipients)
    assert [failure_of(result) for result in results] == [
        (Stage.RCPT, 550, False),
        (Stage.DATA, 421, False),
        (Stage.RCPT, 421, False),
        (Stage.RCPT, 421, False),
    ]
    assert receiver.accepted == []


@ON_STEADY_LOOP
@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize(("act", "reason"), BROKEN)
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA])
async def test_a_connection_lost_before_the_dot_delivered_nothing(
    way: str, act: str, reason: str, stage: Stage
) -> None:
    words = f"{way}--{act}-mail" if stage is Stage.MAIL else way
    deadlines = PATIENT
    if act in ("hang", "drip"):
        deadlines = replace(HASTY_COMMAND, dot_seconds=SHORT) if "chunking" in way else HASTY_COMMAND
    result, receiver, is_reusable = await result_of(words, f"{act}-{stage}@example.com", deadlines=deadlines)
    ambiguous = False
    if stage is Stage.DATA and "chunking" in way:
        # There it answers the content; pipelined, the last chunk may have left already.
        stage = Stage.DATA if "no-pipelining" in way else Stage.DOT
        ambiguous = "no-pipelining" not in way
    assert failure_of(result) == (stage, None, ambiguous)
    assert any(part in reason_of(result) for part in reason.split("|")), reason_of(result)
    assert ambiguous or receiver.accepted == []
    assert not is_reusable


@ON_STEADY_LOOP
@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize(("act", "reason"), [*BROKEN, ("lose", "clos|broke")])
async def test_no_reply_to_the_dot_is_ambiguous(way: str, act: str, reason: str) -> None:
    deadlines = HASTY_DOT if act in ("hang", "drip") else PATIENT
    result, receiver, is_reusable = await result_of(way, f"{act}-dot@example.com", deadlines=deadlines)
    assert failure_of(result) == (Stage.DOT, None, True)
    assert any(part in reason_of(result) for part in reason.split("|")), reason_of(result)
    assert len(receiver.accepted) == (act not in ("drop", "hang", "garbage"))
    assert not is_reusable


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_a_drop_within_the_content_delivered_nothing(way: str) -> None:
    result, receiver, is_reusable = await result_of(way, "drop-body@example.com", message=LARGE)
    assert failure_of(result) == (Stage.DATA, None, False)
    assert (receiver.accepted, is_reusable) == ([], False)


@ON_STEADY_LOOP
@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_a_server_that_stops_reading_times_out(way: str) -> None:
    huge = SmtpContent(LARGE.content * 4)  # more than the system's own buffers take
    asked: list[bool] = []

    def before_dot() -> bool:
        asked.append(True)
        return True

    async with SmtpReceiver(way) as receiver, session_with(receiver, deadlines=HASTY_COMMAND) as session:
        (result,) = await deliver(session, "hang-body@example.com", message=huge, before_dot=before_dot)
    assert failure_of(result) == (Stage.DATA, None, False)
    assert asked == []


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_a_refusal_within_the_content_stops_it(way: str) -> None:
    huge = SmtpContent(LARGE.content * 4)
    result, receiver, is_reusable = await result_of(way, "552-body@example.com", message=huge)
    assert failure_of(result) == (Stage.DATA, 552, False)
    assert (receiver.accepted, is_reusable) == ([], False)


@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT])
async def test_a_surplus_reply_is_never_used_for_the_next_command(way: str, stage: Stage) -> None:
    words = f"{way}--twice-mail" if stage is Stage.MAIL else way
    result, receiver, is_reusable = await result_of(words, f"twice-{stage}@example.com")
    assert isinstance(result, SmtpFailure)
    assert not result.ambiguous
    assert (receiver.accepted, is_reusable) == ([], False)


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_a_second_reply_to_the_dot_ends_the_session(way: str) -> None:
    result, receiver, is_reusable = await result_of(way, "twice-dot@example.com")
    assert isinstance(result, SmtpAccepted)
    assert (len(receiver.accepted), is_reusable) == (1, False)


async def test_a_message_over_the_servers_size_is_refused_by_the_server_at_mail() -> None:
    result, receiver, is_reusable = await result_of("size-50", "ada@example.com")
    assert failure_of(result) == (Stage.MAIL, 552, False)
    assert f"MAIL FROM:<{SENDER}> SIZE={len(CONTENT)}" in receiver.commands
    assert is_reusable


# Deadlines


@ON_STEADY_LOOP
async def test_each_reply_restarts_the_wait() -> None:
    recipients = [f"r{number}@example.com" for number in range(6)]
    deadlines = replace(PATIENT, command_seconds=1.0)
    async with (
        SmtpReceiver("no-pipelining--delay-150") as receiver,
        session_with(receiver, deadlines=deadlines) as session,
    ):
        results = await deliver(session, *recipients)
        assert all(isinstance(result, SmtpAccepted) for result in results)


@ON_STEADY_LOOP
async def test_each_pipelined_reply_restarts_the_wait() -> None:
    says = ("250 a", "250 b", "354 c")
    deadlines = replace(PATIENT, command_seconds=1.0)
    async with canned(220, EHLO_PIPELINING, says, 250, pause_seconds=0.4, deadlines=deadlines) as (_, session):
        assert isinstance((await deliver(session))[0], SmtpAccepted)


@ON_STEADY_LOOP
async def test_nothing_extends_the_total_time() -> None:
    recipients = [f"r{number}@example.com" for number in range(50)]
    deadlines = replace(PATIENT, transaction_seconds_total=0.5)
    async with (
        SmtpReceiver("no-pipelining--delay-100") as receiver,
        session_with(receiver, deadlines=deadlines) as session,
    ):
        results = await deliver(session, *recipients)
        assert {failure_of(result)[1] for result in results} == {None}
        assert isinstance(results[-1], SmtpFailure)
        assert results[-1].reason == "not done within the time in all"
    assert receiver.accepted == []


@ON_STEADY_LOOP
async def test_the_opening_has_a_total_time_too() -> None:
    deadlines = replace(PATIENT, opening_seconds_total=1.5)
    async with SmtpReceiver("delay-1000") as receiver:
        failure = await open_to(receiver.port, deadlines=deadlines)
        assert failure_of(failure) == (Stage.EHLO, None, False)


@ON_STEADY_LOOP
async def test_each_transaction_has_its_own_total_time() -> None:
    deadlines = replace(PATIENT, transaction_seconds_total=1.0, opening_seconds_total=1.0)
    async with SmtpReceiver("delay-100") as receiver, session_with(receiver, deadlines=deadlines) as session:
        for _ in range(6):
            assert isinstance((await deliver(session))[0], SmtpAccepted)


# The last question before the dot


@pytest.mark.parametrize("way", TRANSFER_MODES)
@pytest.mark.parametrize("message", [MESSAGE, LARGE], ids=["small", "large"])
async def test_a_refused_before_dot_delivers_nothing(way: str, message: SmtpContent) -> None:
    async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
        (result,) = await deliver(session, message=message, before_dot=lambda: False)
        assert failure_of(result) == (Stage.DATA, None, False)
        assert reason_of(result) == "withdrawn before the final dot"
        assert not session.is_reusable
        await asyncio.sleep(0.02)  # time for a message that must not come
    assert receiver.accepted == []


@pytest.mark.parametrize("policy", ["cleartext", "verified"])
@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_before_dot_is_called_once_after_a_large_content(
    way: str, policy: str, certificates: Certificates, verified: TlsPolicy
) -> None:
    asked: list[int] = []

    def before_dot() -> bool:
        asked.append(session.unsent_bytes)
        return True

    tls = verified if policy == "verified" else CLEARTEXT
    async with (
        SmtpReceiver(f"{way}--starttls", certificates=certificates) as receiver,
        session_with(receiver, tls=tls) as session,
    ):
        assert isinstance((await deliver(session, message=LARGE, before_dot=before_dot))[0], SmtpAccepted)
        assert asked == [0]


async def test_before_dot_is_not_called_without_recipients() -> None:
    def before_dot() -> bool:
        pytest.fail("asked without a recipient")

    async with SmtpReceiver() as receiver, session_with(receiver) as session:
        (result,) = await deliver(session, "550-rcpt@example.com", before_dot=before_dot)
    assert failure_of(result) == (Stage.RCPT, 550, False)


# Idle sessions, endings, mistakes of the caller


async def spoiled(session: SmtpSession) -> None:
    """Returns as soon as it can't be used again."""

    async def is_reusable() -> bool:
        return session.is_reusable

    await eventually(is_reusable, lambda answer: not answer)


async def test_a_connection_closed_while_idle_is_noticed() -> None:
    async with canned(220, EHLO_PIPELINING, then_hangs_up=True) as (_, session):
        await spoiled(session)
        (result,) = await deliver(session)
        assert failure_of(result) == (Stage.MAIL, None, False)


@pytest.mark.parametrize(
    ("closing_reply", "code"),
    [("421 4.4.2 idle too long", 421), ("451 4.4.2 idle too long", 451), ("554 5.4.7 idle too long", None)],
)
async def test_a_refusal_while_idle_is_never_final_for_the_next_message(closing_reply: str, code: int | None) -> None:
    async with canned(220, (EHLO_PIPELINING, closing_reply), pause_seconds=0.02) as (_, session):
        await spoiled(session)
        (result,) = await deliver(session)
        assert failure_of(result) == (Stage.MAIL, code, False)


async def test_a_partial_reply_while_idle_ends_the_session() -> None:
    async with canned(220, EHLO_PIPELINING + "\r\n250-half") as (server, session):
        await spoiled(session)
        (result,) = await deliver(session)
        assert failure_of(result) == (Stage.MAIL, None, False)
    assert b"MAIL" not in b"".join(server.heard)


async def test_a_recipient_after_a_refused_sender_gets_no_empty_message() -> None:
    async with canned(220, EHLO_PIPELINING, "550 no\r\n250 yes\r\n354 go on") as (server, session):
        (result,) = await deliver(session)
        # Not at MAIL: a recipient was accepted, and the message must not be sent to them again.
        assert failure_of(result) == (Stage.DATA, 550, False)
        assert not session.is_reusable
        await asyncio.sleep(0.02)  # time for content that must not come
        assert server.heard[2:] == []


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        # A login that is asked for is about no recipient, though one was accepted.
        (["530 5.7.0 log in first\r\n250 yes\r\n554 no"], (Stage.MAIL, 530, False)),
        # 250 in place of 354 delivers nothing; and after the dot 354 may mean anything.
        (["250 a\r\n250 b\r\n250 c"], (Stage.DATA, None, False)),
        (["250 a\r\n250 b\r\n354 c", "354 again"], (Stage.DOT, None, True)),
    ],
)
async def test_an_odd_reply_delivers_nothing_for_sure(
    replies: list[str], expected: tuple[Stage, int | None, bool]
) -> None:
    async with canned(220, EHLO_PIPELINING, *replies) as (_, session):
        assert failure_of((await deliver(session))[0]) == expected


async def test_a_session_that_can_not_be_reset_is_given_up() -> None:
    async with canned(220, EHLO_PIPELINING, "250 a\r\n550 b\r\n503 c", "500 no RSET here") as (_, session):
        assert failure_of((await deliver(session))[0]) == (Stage.RCPT, 550, False)
        assert session.is_reusable
        assert failure_of((await deliver(session))[0]) == (Stage.MAIL, None, False)
        assert not session.is_reusable


async def test_quit_may_be_called_twice() -> None:
    async with SmtpReceiver() as receiver:
        session = await open_to(receiver.port)
        assert isinstance(session, SmtpSession)
        session.quit()
        session.quit()
        assert not session.is_reusable
        await eventually(lambda: "QUIT" in receiver.commands)
    assert receiver.commands[-1] == "QUIT"


async def test_a_cancelled_delivery_aborts_the_connection() -> None:
    async with SmtpReceiver() as receiver, session_with(receiver) as session:
        task = asyncio.create_task(deliver(session, "hang-data@example.com"))
        await eventually(lambda: "DATA" in receiver.commands)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not session.is_reusable
    assert receiver.accepted == []


async def test_one_transaction_at_a_time() -> None:
    async with SmtpReceiver("delay-50") as receiver, session_with(receiver) as session:
        first = asyncio.create_task(deliver(session))
        await eventually(lambda: any(command.startswith("MAIL") for command in receiver.commands))
        with pytest.raises(RuntimeError, match="one transaction"):
            await deliver(session)
        assert isinstance((await first)[0], SmtpAccepted)


@pytest.mark.parametrize(
    "address", ["a@example.com>\r\nRCPT TO:<b@example.com", "a b@example.com", "a@exa\nmple.com", "ä@example.com", ""]
)
async def test_an_address_that_breaks_out_of_brackets_is_refused(address: str) -> None:
    async with SmtpReceiver() as receiver, session_with(receiver) as session:
        with pytest.raises(ValueError, match="can't be written"):
            await deliver(session, "a@example.com", address)
        if address:
            with pytest.raises(ValueError, match="can't be written"):
                await deliver(session, sender=address)
        assert session.is_reusable
    assert [command for command in receiver.commands if command.startswith(("MAIL", "RCPT"))] == []


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\r", b"a\r\nb\nc\r\n", b"a\rb\r\n", b"\n.\r\n", b"\xe4\r\n"])
def test_content_with_bare_cr_or_lf_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="content"):
        SmtpContent(content)


# Dots

LINES = st.lists(st.sampled_from([b"", b".", b"..", b".a", b"a.", b"a", b"..."]), min_size=1, max_size=12)


@given(LINES)
def test_dot_stuffing_is_reversible(lines: Sequence[bytes]) -> None:
    content = b"".join(line + b"\r\n" for line in lines)
    stuffed = dot_stuffed(content)
    assert SmtpContent(content).stuffed == stuffed
    assert b"".join(line.removeprefix(b".") + b"\r\n" for line in stuffed.split(b"\r\n")[:-1]) == content
    # Its end is the first thing that looks like one.
    assert (b"\r\n" + stuffed + b".\r\n").find(b"\r\n.\r\n") == len(stuffed)


@settings(max_examples=30)
@given(st.lists(LINES, min_size=1, max_size=4), st.sampled_from(TRANSFER_MODES))
def test_a_transaction_is_exactly_one_message(messages: Sequence[Sequence[bytes]], way: str) -> None:
    contents = [b"".join(line + b"\r\n" for line in lines) for lines in messages]

    async def carry() -> list[bytes]:
        async with SmtpReceiver(way) as receiver, session_with(receiver) as session:
            for content in contents:
                assert isinstance((await deliver(session, message=SmtpContent(content)))[0], SmtpAccepted)
        return [received.message for received in receiver.accepted]

    assert asyncio.run(carry()) == contents
