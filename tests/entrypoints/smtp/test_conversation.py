"""SMTP sessions without a socket: replies, accepted messages, limits; the same however the bytes are split."""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.entrypoints.smtp import commands as subject
from posthouse.entrypoints.smtp.commands import AcceptMessage, Close, StartTls, Step
from posthouse.entrypoints.smtp.content import ContentMemory, content_memory
from posthouse.entrypoints.smtp.conversation import LINE_BYTES_MAX, Conversation
from posthouse.entrypoints.smtp.grammar import Authenticate
from posthouse.entrypoints.smtp.replies import ServerReply, encoded
from posthouse.entrypoints.smtp.service import Envelope, Policy
from tests.support.bad_input import bad_input
from tests.support.smtp_service import INBOUND, NAME, PASSWORD, QUEUED, SUBMISSION, USERNAME

PLAIN = base64.b64encode(f"\0{USERNAME}\0{PASSWORD}".encode()).decode()
OPEN = b"MAIL FROM:<ada@example.com>\r\nRCPT TO:<bob@example.com>\r\n"


@dataclass
class Client:
    """A client, and a service that accepts the right password and every message."""

    policy: Policy = INBOUND
    is_secure: bool = False
    can_secure: bool = False
    memory: ContentMemory = field(default_factory=lambda: ContentMemory(1 << 20, least=1 << 20))
    holder: str = ""
    replied: bytes = b""
    accepted: list[tuple[Envelope, bytes]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    handshakes: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.conversation = Conversation(
            self.policy,
            lambda address, _: ServerReply(550, "5.1.1", "Unknown.") if address.startswith("unknown") else None,
            self.memory,
            peer="192.0.2.1",
            holder=self.holder,
            is_secure=self.is_secure,
            can_secure=self.can_secure,
        )

    def send(self, data: bytes) -> list[str]:
        """The replies, without continuation lines."""
        before = len(self.replied)
        self._perform(self.conversation.receive(data))
        lines = self.replied[before:].decode().split("\r\n")
        assert lines.pop() == ""
        return [line for line in lines if line[3:4] != "-"]

    def say(self, *lines: str) -> list[str]:
        return self.send("".join(f"{line}\r\n" for line in lines).encode("latin-1"))

    def codes(self, *lines: str) -> list[str]:
        """Code and status of each reply."""
        return [" ".join(line.split(" ")[:2]) if line[4:5].isdigit() else line[:3] for line in self.say(*lines)]

    def opened(self) -> "Client":
        assert self.codes("EHLO client.example.com") == ["250"]
        if self.policy.needs_authentication:
            assert self.codes(f"AUTH PLAIN {PLAIN}") == ["235 2.7.0"]
        return self

    def _perform(self, step: Step) -> None:
        while True:
            self.replied += step.output
            match step.effect:
                case None:
                    return
                case Close():
                    self.is_closed = True
                    return
                case StartTls():
                    self.handshakes += 1
                    step = self.conversation.tls_started()
                case Authenticate(username, password):
                    self.logins.append((username, password))
                    if (username, password) == (USERNAME, PASSWORD):
                        step = self.conversation.authenticated("account")
                    else:
                        step = self.conversation.not_authenticated(ServerReply(535, "5.7.8", "Wrong."))
                case AcceptMessage() as effect:
                    self.accepted.append((effect.envelope, effect.content))
                    step = self.conversation.message_answered(QUEUED)


def opened(*, message_bytes_max: int = INBOUND.message_bytes_max) -> Client:
    return Client(replace(INBOUND, message_bytes_max=message_bytes_max)).opened()


def submitting() -> Client:
    return Client(SUBMISSION, is_secure=True)


# Sessions


def test_a_message_is_accepted() -> None:
    client = opened()
    assert client.codes("MAIL FROM:<ada@example.com> SIZE=100 BODY=8BITMIME AUTH=<>") == ["250 2.1.0"]
    assert client.codes("RCPT TO:<bob@example.com>") == ["250 2.1.5"]
    assert client.codes("DATA") == ["354"]
    assert client.say("Subject: x", "", "..dot", "ende", ".") == ["250 2.0.0 queued as em_1"]
    envelope = Envelope("ada@example.com", ("bob@example.com",), False, "192.0.2.1", "client.example.com")
    assert client.accepted == [(envelope, b"Subject: x\r\n\r\n.dot\r\nende\r\n")]
    assert client.memory.taken == 0
    assert client.codes("RCPT TO:<bob@example.com>", "DATA") == ["503 5.5.1", "503 5.5.1"]
    assert client.codes("QUIT") == ["221 2.0.0"]
    assert client.is_closed
    assert client.send(OPEN) == []


def test_all_commands_may_be_pipelined() -> None:
    client = Client()
    message = OPEN + b"DATA\r\nhi\r\n.\r\n"
    codes = [line[:3] for line in client.send(b"EHLO x\r\n" + message * 3 + b"QUIT\r\n" + message)]
    assert codes == ["250", *["250", "250", "354", "250"] * 3, "221"]
    assert [content for _, content in client.accepted] == [b"hi\r\n"] * 3


@pytest.mark.rule("SUB-03", "SUB-04")
def test_the_extensions_of_ehlo() -> None:
    def extensions(client: Client) -> set[str]:
        client.say("EHLO x")
        return {line[4:] for line in client.replied.decode().splitlines()} - {NAME}

    always = {"PIPELINING", "SIZE 10485760", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING"}
    assert extensions(Client()) == always
    assert extensions(Client(SUBMISSION, can_secure=True)) == always | {"STARTTLS"}
    assert extensions(Client(SUBMISSION, is_secure=True, can_secure=True)) == always | {"AUTH PLAIN LOGIN"}
    assert extensions(Client(is_secure=True, can_secure=True)) == always


def test_small_commands() -> None:
    client = opened()
    assert client.codes("NOOP", "noop x", "VRFY ada", "HELP", "RSET", "EXPN staff", "TURN", "DATA now", "RSET x") == [
        "250 2.0.0", "250 2.0.0", "252 2.5.0", "214 2.0.0", "250 2.0.0", "502 5.5.1", "500 5.5.1", "501 5.5.4",
        "501 5.5.4",
    ]  # fmt: skip
    assert client.codes("HELO x", "EHLO", "EHLO a b", "EHLO b\xfcro", "EHLO [192.0.2.7]") == [
        "250", "501 5.5.4", "501 5.5.4", "250", "250",
    ]  # fmt: skip
    assert client.codes("STARTTLS", "AUTH PLAIN x") == ["502 5.5.1", "502 5.5.1"]


def test_commands_out_of_order_are_refused() -> None:
    client = Client()
    assert client.codes("MAIL FROM:<a@b.example>", "RCPT TO:<a@b.example>", "DATA", "BDAT 0 LAST") == ["503 5.5.1"] * 4
    client.opened()
    assert client.codes("MAIL FROM:<>", "MAIL FROM:<>", "DATA", "RSET", "RCPT TO:<a@b.example>") == [
        "250 2.1.0", "503 5.5.1", "554 5.5.1", "250 2.0.0", "503 5.5.1",
    ]  # fmt: skip
    assert client.codes("MAIL FROM:<>", "RCPT TO:<a@b.example>", "EHLO x", "DATA")[2:] == ["250", "503 5.5.1"]
    assert client.accepted == []


# Paths and parameters


@pytest.mark.parametrize(
    ("argument", "sender"),
    [
        ("FROM:<>", ""),
        ("from:<ada@example.com>", "ada@example.com"),
        ("FROM: <ada@example.com> ", "ada@example.com"),
        ("FROM:<root>", "root"),
        ("FROM:<www-data@web_1.local>", "www-data@web_1.local"),
        ('FROM:<"a b\\" <x>"@example.com>', '"a b\\" <x>"@example.com'),
        ("FROM:<ada@[192.0.2.1]>", "ada@[192.0.2.1]"),
        ("FROM:<ada@[IPv6:2001:db8::1]>", "ada@[IPv6:2001:db8::1]"),
        ("FROM:<ada@example.com> SIZE=0  BODY=7bit", "ada@example.com"),
    ],
)
def test_accepted_senders(argument: str, sender: str) -> None:
    client = opened()
    assert client.codes(f"MAIL {argument}", "RCPT TO:<bob@example.com>", "DATA", ".")[-1] == "250 2.0.0"
    assert client.accepted[0][0].sender == sender


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("", "501 5.1.7"),
        ("FROM:", "501 5.1.7"),
        ("FROM:ada@example.com", "501 5.1.7"),
        ("TO:<ada@example.com>", "501 5.1.7"),
        ("FROM:<ada@example.com", "501 5.1.7"),
        ("FROM:<ada@example.com>x", "501 5.1.7"),
        ("FROM:<<ada@example.com>>", "501 5.1.7"),
        ("FROM:<ada@b@example.com>", "501 5.1.7"),
        ("FROM:<ada @example.com>", "501 5.1.7"),
        ("FROM:<@a.example,@b.example:c@d.example>", "553 5.1.3"),
        (f"FROM:<{'a' * 65}@example.com>", "501 5.1.7"),
        (f"FROM:<ada@{'a.' * 126}com>", "501 5.1.7"),
        ("FROM:<ad\xe4@example.com>", "553 5.6.7"),
        ("FROM:<ada@example.com> SMTPUTF8", "555 5.5.4"),
        ("FROM:<ada@example.com> FOO=1", "555 5.5.4"),
        ("FROM:<ada@example.com> SIZE=1 SIZE=1", "501 5.5.4"),
        ("FROM:<ada@example.com> SIZE=x", "501 5.5.4"),
        ("FROM:<ada@example.com> SIZE", "501 5.5.4"),
        ("FROM:<ada@example.com> BODY=BINARYMIME", "501 5.5.4"),
        ("FROM:<ada@example.com> RET=HDRS", "555 5.5.4"),
        ("FROM:<ada@example.com> ENVID=x", "555 5.5.4"),
        ("FROM:<ada@example.com> =", "501 5.5.4"),
        ("FROM:<ada@example.com> SIZE=10485761", "552 5.3.4"),
        (f"FROM:<ada@example.com> SIZE={'9' * 20}", "552 5.3.4"),
    ],
)
def test_refused_senders(argument: str, code: str) -> None:
    client = opened()
    assert client.codes(f"MAIL {argument}", "RCPT TO:<bob@example.com>") == [code, "503 5.5.1"]


@pytest.mark.rule("SUB-19")
@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("TO:<postmaster>", "250 2.1.5"),
        ("TO:<Postmaster>", "250 2.1.5"),
        ("TO:<bob>", "501 5.1.3"),
        ("TO:<>", "501 5.1.3"),
        ("TO:<@a.example:c@d.example>", "553 5.1.3"),
        ("TO:<b\xf6b@example.com>", "553 5.6.7"),
        ("TO:<unknown@example.com>", "550 5.1.1"),
        ("TO:<bob@example.com> NOTIFY=NEVER", "555 5.5.4"),
        ("TO:<bob@example.com> ORCPT=rfc822;bob@example.com", "555 5.5.4"),
        ("TO:<bob@example.com> =", "501 5.5.4"),
        ("TO:<bob@example.com> SIZE=1", "555 5.5.4"),
    ],
)
def test_recipients(argument: str, code: str) -> None:
    assert opened().codes("MAIL FROM:<>", f"RCPT {argument}")[1] == code


@pytest.mark.parametrize("byte", [b"\0", b"\t", b"\x7f", b"\x1b", b"\r", b"\n"])
def test_a_control_character_refuses_the_whole_line(byte: bytes) -> None:
    client = opened()
    for line in (b"NO" + byte + b"OP", b"MAIL FROM:<a" + byte + b"@example.com>", b"NOOP" + byte + b"MAIL FROM:<>"):
        assert [text[:9] for text in client.send(line + b"\r\n")] == ["500 5.5.2"]
    assert client.codes("RCPT TO:<bob@example.com>") == ["503 5.5.1"]


@pytest.mark.rule("SUB-21")
def test_a_bare_line_feed_is_refused_at_once_and_ends_no_line() -> None:
    client = opened()
    assert len(client.send(b"MAIL FROM:<>\n")) == 1
    assert client.send(b"RCPT TO:<bob@example.com>\nNOOP\n") == []
    assert client.codes("", "NOOP") == ["250 2.0.0"]


# Bounds


def test_recipients_over_the_limit_get_a_temporary_refusal() -> None:
    client = opened()
    client.say("MAIL FROM:<ada@example.com>")
    codes = client.codes(*[f"RCPT TO:<bob{number}@example.com>" for number in range(250)])
    assert codes == ["250 2.1.5"] * 50 + ["452 4.5.3"] * 200
    assert client.codes("DATA", "hi", ".") == ["354", "250 2.0.0"]
    assert len(client.accepted[0][0].recipients) == 50


def test_ten_thousand_recipients_end_the_session() -> None:
    client = opened()
    replies = client.say("MAIL FROM:<>", *["RCPT TO:<bob@example.com>"] * 10_000)
    assert client.is_closed
    assert replies[-1].startswith("421 4.7.0")
    assert len(replies) <= subject.COMMANDS_MAX + 1


@pytest.mark.parametrize(
    ("lines", "count_max"),
    [
        (["RCPT TO:<unknown@example.com>"] * 200, subject.RECIPIENTS_REJECTED_MAX + 1),
        (["FOO"] * 200, subject.MISTAKES_MAX + 1),
        (["NOOP"] * 2_000, subject.COMMANDS_MAX + 1),
        (["BDAT 1 LAST\r\nx"] * 2_000, subject.COMMANDS_MAX + 1),
        (["RSET", "MAIL FROM:<>"] * 2_000, subject.COMMANDS_MAX + 1),
    ],
)
def test_a_session_without_progress_is_closed(lines: list[str], count_max: int) -> None:
    client = opened()
    client.say("MAIL FROM:<>")
    replies = client.say(*lines)
    assert replies[-1].startswith("421 4.7.0")
    assert len(replies) <= count_max
    assert client.is_closed


def test_a_session_is_closed_after_a_thousand_messages() -> None:
    client = opened()
    for _ in range(subject.TRANSACTIONS_MAX):
        assert client.send(OPEN + b"DATA\r\n.\r\n")[-1][:3] == "250"
    assert client.codes("MAIL FROM:<>") == ["421 4.7.0"]


@pytest.mark.parametrize("piece", [1, 1_000, 1 << 16])
def test_an_endless_line_is_not_buffered(piece: int) -> None:
    client = opened()
    for _ in range(10_000 // min(piece, 1_000)):
        client.send(b"x" * piece)
    assert client.replied.endswith(b"end lines with CR LF.\r\n")
    assert client.replied.count(b"500 5.5.2") == 1
    assert client.conversation.waiting_bytes <= 1
    assert client.codes("", "NOOP") == ["250 2.0.0"]


def test_a_line_may_be_as_long_as_the_limit() -> None:
    client = opened()
    assert client.codes("NOOP " + "x" * (LINE_BYTES_MAX - 5)) == ["250 2.0.0"]
    assert client.codes("NOOP " + "x" * (LINE_BYTES_MAX - 4)) == ["500 5.5.2"]


def test_refused_content_is_read_up_to_a_limit() -> None:
    client = opened(message_bytes_max=1_000)
    client.send(OPEN + b"DATA\r\n")
    piece = b"x" * (1 << 20)
    for _ in range(70):
        client.send(piece)
    assert client.replied.endswith(encoded(ServerReply(421, "4.7.0", "Too much refused content.")))


@pytest.mark.parametrize("size", [999, 1_000, 1_001, 1_400, 5_000])
@pytest.mark.parametrize("line", [b".\r\n", b"x\r\n"])
def test_the_size_limit_is_without_dot_stuffing(size: int, line: bytes) -> None:
    client = opened(message_bytes_max=1_000)
    content = (line * size)[: size - 2] + b"\r\n"
    content = content.replace(b"\r\r\n", b"x\r\n")
    (reply,) = client.send(OPEN + b"DATA\r\n" + _dotted(content))[3:]
    assert reply[:9] == ("250 2.0.0" if size <= 1_000 else "552 5.3.4")
    assert [received for _, received in client.accepted] == ([content] if size <= 1_000 else [])
    assert client.memory.taken == 0
    assert client.codes("NOOP") == ["250 2.0.0"]


def test_the_reply_to_mail_does_not_depend_on_free_memory() -> None:
    memory = ContentMemory(1_500, least=1_500)
    client, other = Client(memory=memory).opened(), Client(memory=memory).opened()
    client.send(OPEN + b"DATA\r\n" + b"x" * 1_400)
    assert other.codes("MAIL FROM:<> SIZE=600", "RSET", "MAIL FROM:<> SIZE=1500") == [
        "250 2.1.0",
        "250 2.0.0",
        "250 2.1.0",
    ]


def test_content_counts_for_the_account_once_the_client_is_authenticated() -> None:
    memory = ContentMemory(10_000)
    client = Client(SUBMISSION, is_secure=True, memory=memory, holder="network").opened()
    client.send(OPEN + b"DATA\r\n" + b"x" * 1_000)
    assert (memory.held("account"), memory.held("network")) == (1_000, 0)


def test_a_holder_leaves_memory_for_others() -> None:
    memory = content_memory(10_000, 600)
    clients = [Client(memory=memory, holder="first").opened() for _ in range(20)]
    for client in clients:
        client.send(OPEN + b"DATA\r\n" + b"x" * 500)
    assert memory.held("first") == 8_000
    for number in range(3):
        other = Client(memory=memory, holder=f"other {number}").opened()
        assert other.send(OPEN + b"DATA\r\n" + b"x" * 500 + b"\r\n.\r\n")[-1][:3] == "250"
    assert clients[-1].codes("", ".") == ["452 4.3.1"]


def test_a_full_memory_is_not_full_for_a_holder_that_wants_less() -> None:
    memory = content_memory(6_000, 600)
    noisy = [Client(memory=memory, holder=f"noisy {number}").opened() for number in range(12)]
    for client in noisy:
        client.send(OPEN + b"DATA\r\n" + b"x" * 500)
    assert memory.taken == 6_000
    for number in range(3):
        other = Client(memory=memory, holder=f"other {number}").opened()
        other.send(OPEN + b"DATA\r\n" + b"x" * 200)
        assert other.codes("", ".") == ["250 2.0.0"]
    assert noisy[0].codes("", ".") == ["452 4.3.1"]


def test_a_complete_message_is_not_dropped_for_another() -> None:
    memory = ContentMemory(1_000, least=1_000)
    noisy, other = (Client(memory=memory, holder=name).opened() for name in ("noisy", "other"))
    noisy.conversation.receive(OPEN + b"DATA\r\n" + b"x" * 900 + b"\r\n.\r\n")
    other.send(OPEN + b"DATA\r\n" + b"x" * 200)
    assert other.codes("", ".") == ["452 4.3.1"]
    assert memory.held("noisy") > 900


def test_a_message_without_free_memory_gets_a_temporary_refusal() -> None:
    memory = ContentMemory(1_500, least=1_500)
    client, other = Client(memory=memory).opened(), Client(memory=memory).opened()
    client.send(OPEN + b"DATA\r\n" + b"x" * 1_000)
    assert memory.taken == 1_000
    other.send(OPEN + b"DATA\r\n" + b"x" * 600)
    assert memory.taken == 1_000
    assert other.codes("", ".") == ["452 4.3.1"]
    other.send(OPEN + b"BDAT 600 LAST\r\n" + b"x" * 600)
    assert other.replied.split(b"\r\n")[-2].startswith(b"452 4.3.1")
    client.conversation.disconnected()
    assert memory.taken == 0
    assert other.send(OPEN + b"DATA\r\n" + b"x" * 600 + b"\r\n.\r\n")[-1][:3] == "250"


# The end of data


SMUGGLED = b"MAIL FROM:<eve@example.com>\r\nRCPT TO:<victim@example.com>\r\nDATA\r\nsmuggled\r\n.\r\n"
ENDS = [
    b"\n.\n", b"\r.\r", b"\n.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r.\r\n", b"\r\n\0.\r\n", b"\r\n.\0\r\n", b"\r\n. \r\n",
    b"\r\n..\r\n", b"\r\r\n.\n", b"\n\r\n.\n", b"\r\n.\r\r\n", b"\r\n.\n\r\n", b"\n\n.\n\n", b"\r\n\r.\r\n",
    b"\x85.\x85", b"\r\n.\r\0\n", b"\x0b.\x0b", b"\x0c.\r\n", b"\n.\r", b"\r\n.\x00\n",
]  # fmt: skip


@pytest.mark.rule("SUB-21")
@pytest.mark.parametrize("end", ENDS)
def test_only_crlf_dot_crlf_ends_a_message(end: bytes) -> None:
    client = opened()
    client.send(OPEN + b"DATA\r\nfirst" + end + SMUGGLED)
    assert len(client.accepted) <= 1
    assert all(envelope.sender == "ada@example.com" for envelope, _ in client.accepted)
    stripped = end.replace(b"\r\n", b"")
    if b"\r" in stripped or b"\n" in stripped:
        assert client.accepted == []
        assert client.replied.split(b"\r\n")[-2].startswith(b"550 5.6.0")
    else:
        assert client.accepted[0][1] == (b"first" + end + SMUGGLED).replace(b"\r\n.", b"\r\n")[:-2]
    assert client.codes("NOOP") == ["250 2.0.0"]


def test_a_message_may_be_empty_or_begin_with_a_dot() -> None:
    for sent, content in [
        (b".\r\n", b""),
        (b"..\r\n.\r\n", b".\r\n"),
        (b".a\r\n.\r\n", b"a\r\n"),
        (b"\r\n.\r\n", b"\r\n"),
    ]:
        client = opened()
        client.send(OPEN + b"DATA\r\n" + sent)
        assert [received for _, received in client.accepted] == [content]


@bad_input("SMTP submission", 500)
@given(st.lists(st.sampled_from([b"\r\n", b".", b"\r", b"\n", b"a", b"\0", b"\r\n.\r\n", b"\xff"]), max_size=12))
def test_a_transaction_is_one_message_or_none(pieces: list[bytes]) -> None:
    """Any content is accepted up to its first true end, or refused."""
    sent = b"".join(pieces)
    client = opened()
    client.send(OPEN + b"DATA\r\n" + sent + b"\r\n.\r\n")
    whole = b"\r\n" + sent + b"\r\n.\r\n"
    content = whole[2 : whole.index(b"\r\n.\r\n") + 2]
    bare = content.replace(b"\r\n", b"")
    if b"\r" in bare or b"\n" in bare:
        assert client.accepted == []
    else:
        unstuffed = (b"\r\n" + content).replace(b"\r\n.", b"\r\n")[2:]
        assert [received for _, received in client.accepted] == [unstuffed]


# BDAT


@pytest.mark.rule("SUB-20")
def test_chunks_add_up_to_a_message() -> None:
    client = opened()
    sent = OPEN + b"BDAT 6\r\nab\r\n.\rBDAT 0\r\nBDAT 3\r\n\nc\rBDAT 1 last\r\n\n"
    assert [line[:3] for line in client.send(sent)] == ["250"] * 6
    assert [received for _, received in client.accepted] == [b"ab\r\n.\r\nc\r\n"]
    assert client.memory.taken == 0


@pytest.mark.rule("SUB-20")
def test_the_last_chunk_may_be_empty_and_a_line_end_is_added() -> None:
    client = opened()
    assert client.send(OPEN + b"BDAT 3\r\nabcBDAT 0 LAST\r\n")[-1][:3] == "250"
    assert [received for _, received in client.accepted] == [b"abc\r\n"]


@pytest.mark.parametrize("content", [b"a\nb", b"a\rb", b"\r", b"\n", b"a\r\n\n"])
def test_a_chunk_with_a_bare_line_end_is_refused(content: bytes) -> None:
    client = opened()
    assert client.send(OPEN + b"BDAT %d LAST\r\n%b" % (len(content), content))[-1][:9] == "550 5.6.0"
    assert client.accepted == []


def test_chunks_and_data_are_not_mixed() -> None:
    client = opened()
    client.send(OPEN + b"BDAT 3\r\nabc")
    assert client.codes("DATA", "RCPT TO:<bob@example.com>", "MAIL FROM:<>") == ["503 5.5.1"] * 3
    assert client.codes("RSET", "DATA") == ["250 2.0.0", "503 5.5.1"]
    assert client.memory.taken == 0


def test_a_refused_chunk_is_read_to_its_end() -> None:
    client = opened(message_bytes_max=100)
    hidden = b"MAIL FROM:<eve@example.com>\r\n"
    assert client.send(b"BDAT %d\r\n%bNOOP\r\n" % (len(hidden), hidden))[0][:9] == "503 5.5.1"
    replies = client.send(b"MAIL FROM:<>\r\nBDAT %d LAST\r\n%bNOOP\r\n" % (len(hidden), hidden))
    assert [line[:3] for line in replies] == ["250", "554", "250"]
    replies = client.send(
        b"RSET\r\n" + OPEN + b"BDAT 90\r\n" + b"x" * 90 + b"BDAT 11 LAST\r\n" + b"x" * 11 + b"NOOP\r\n"
    )
    assert [line[:9] for line in replies[-3:]] == ["250 2.0.0", "552 5.3.4", "250 2.0.0"]
    assert client.codes("DATA") == ["503 5.5.1"]
    assert client.accepted == []
    assert client.memory.taken == 0


@pytest.mark.parametrize("argument", ["", "x", "-1", "1 LAST x", "1 FIRST", "9" * 13, "1  LAST"])
def test_a_chunk_without_a_size_ends_the_session(argument: str) -> None:
    client = opened()
    client.send(OPEN)
    client.say(f"BDAT {argument}")
    assert client.is_closed


def test_a_chunk_that_is_far_too_large_ends_the_session() -> None:
    client = opened()
    assert client.codes("MAIL FROM:<>", "RCPT TO:<bob@example.com>", "BDAT 999999999999")[-1] == "552 5.3.4"
    assert client.is_closed


# TLS and logins


@pytest.mark.rule("SUB-03", "SUB-04")
def test_without_tls_mail_and_login_are_refused() -> None:
    client = Client(SUBMISSION, can_secure=True)
    client.say("EHLO x")
    assert client.codes(f"AUTH PLAIN {PLAIN}", "MAIL FROM:<>", "RCPT TO:<a@b.example>") == [
        "538 5.7.11", "530 5.7.0", "530 5.7.0",
    ]  # fmt: skip
    assert client.logins == []
    assert client.codes("STARTTLS x", "STARTTLS") == ["501 5.5.4", "220 2.0.0"]
    assert client.codes(f"AUTH PLAIN {PLAIN}", "STARTTLS") == ["503 5.5.1", "503 5.5.1"]
    assert client.codes("EHLO x", "MAIL FROM:<>", f"AUTH PLAIN {PLAIN}", "MAIL FROM:<>") == [
        "250", "530 5.7.0", "235 2.7.0", "250 2.1.0",
    ]  # fmt: skip


def test_starttls_resets_the_session() -> None:
    client = Client(can_secure=True).opened()
    client.send(OPEN)
    client.say("STARTTLS")
    assert client.codes("DATA", "MAIL FROM:<>") == ["503 5.5.1", "503 5.5.1"]


@pytest.mark.rule("SUB-05")
def test_cleartext_after_starttls_is_never_read() -> None:
    client = Client(SUBMISSION, can_secure=True)
    client.say("EHLO x")
    assert client.codes("STARTTLS", "EHLO injected") == ["554 5.5.1"]
    assert client.is_closed
    assert client.handshakes == 0


@pytest.mark.parametrize(
    "lines",
    [
        [f"AUTH PLAIN {PLAIN}"],
        ["AUTH plain", PLAIN],
        ["AUTH PLAIN", base64.b64encode(f"{USERNAME}\0{USERNAME}\0{PASSWORD}".encode()).decode()],
        ["AUTH LOGIN", base64.b64encode(USERNAME.encode()).decode(), base64.b64encode(PASSWORD.encode()).decode()],
        [f"AUTH login {base64.b64encode(USERNAME.encode()).decode()}", base64.b64encode(PASSWORD.encode()).decode()],
    ],
)
def test_all_forms_of_login(lines: list[str]) -> None:
    client = submitting()
    client.say("EHLO x")
    assert client.codes(*lines) == ["334"] * (len(lines) - 1) + ["235 2.7.0"]
    assert client.codes(f"AUTH PLAIN {PLAIN}") == ["503 5.5.1"]


@pytest.mark.rule("SUB-14")
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["AUTH PLAIN", "*"], "501 5.7.0"),
        (["AUTH LOGIN", "*"], "501 5.7.0"),
        (["AUTH LOGIN", "YQ==", "*"], "501 5.7.0"),
        (["AUTH PLAIN !!!"], "501 5.5.2"),
        (["AUTH PLAIN ="], "501 5.5.2"),
        (["AUTH PLAIN YQ=="], "501 5.5.2"),
        (["AUTH PLAIN /w=="], "501 5.5.2"),
        (["AUTH LOGIN", ""], "501 5.5.2"),
        (["AUTH LOGIN", "YQ==", "="], "501 5.5.2"),
        (["AUTH LOGIN", "YQo=", "YQ=="], "501 5.5.2"),
        (["AUTH CRAM-MD5"], "504 5.5.4"),
        (["AUTH"], "504 5.5.4"),
        (["AUTH PLAIN " + base64.b64encode(b"other\0a\0b").decode()], "535 5.7.8"),
        (["AUTH PLAIN " + base64.b64encode(b"\0a\0b").decode()], "535 5.7.8"),
        (["AUTH PLAIN " + "A" * 12_288], "500 5.5.2"),
        (["AUTH PLAIN", "A" * 12_289], "500 5.5.2"),
    ],
)
def test_logins_that_fail(lines: list[str], code: str) -> None:
    client = submitting()
    client.say("EHLO x")
    assert client.codes(*lines)[-1] == code
    assert client.codes("NOOP", "MAIL FROM:<>") == ["250 2.0.0", "530 5.7.0"]


def test_a_long_password_fits() -> None:
    client = submitting()
    client.say("EHLO x")
    assert client.codes("AUTH PLAIN " + base64.b64encode(b"\0a\0" + b"b" * 9_000).decode()) == ["535 5.7.8"]
    assert client.logins == [("a", "b" * 9_000)]


@pytest.mark.rule("SUB-14")
def test_the_third_wrong_password_ends_the_session() -> None:
    client = submitting()
    client.say("EHLO x")
    wrong = "AUTH PLAIN " + base64.b64encode(b"\0a\0b").decode()
    assert client.codes(wrong, wrong, wrong, wrong) == ["535 5.7.8", "535 5.7.8", "421 4.7.0"]
    assert client.is_closed
    assert len(client.logins) == 3


def test_http_requests_end_the_session() -> None:
    for line in ("POST / HTTP/1.1", "Host: mx.example.com"):
        client = Client()
        assert client.codes(line, "EHLO x") == ["421 4.7.0"]
        assert client.is_closed


def test_secrets_are_not_in_representations() -> None:
    assert PASSWORD not in repr(Authenticate(USERNAME, PASSWORD))


# Splits of the bytes

SESSIONS = [
    b"EHLO x\r\n" + OPEN + b"DATA\r\n..a\r\n.b\r\n.\r\n" + OPEN + b"DATA\r\na\nb\r\n.\r\nQUIT\r\n",
    b"EHLO x\r\n" + OPEN + b"BDAT 5\r\nab\r\n.BDAT 2 LAST\r\n\r\nNOOP\nX\r\nNO\rOP\r\nQUIT\r\n",
    b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<unknown@b.example>\r\nDATA\r\nBDAT 3\r\nabcRSET\r\n" + OPEN + b"DATA\r\n.\r\n",
    b"NOOP " + b"x" * 3_000 + b"\r\nEHLO x\r\n" + OPEN + b"DATA\r\n" + b"\r\n.x" * 50 + b"\r\n.\r\n\r\nNOOP\r\n",
]


@pytest.mark.parametrize("sent", SESSIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pieces_of_any_size_give_the_same_session(sent: bytes, size: int) -> None:
    assert _result(sent, range(size, len(sent), size)) == _result(sent, [])


PARTS = [
    b"EHLO x\r\n", b"MAIL FROM:<a@b.example>\r\n", b"RCPT TO:<c@d.example>\r\n", b"DATA\r\n", b"\r\n.\r\n", b".",
    b"\r\n", b"BDAT 4\r\n", b"BDAT 3 LAST\r\n", b"abc", b"\n", b"\r", b"RSET\r\n", b"AUTH PLAIN\r\n",
    b"AUTH LOGIN YQ==\r\n", b"YQ==\r\n", b"*\r\n", f"AUTH PLAIN {PLAIN}\r\n".encode(), b"QUIT\r\n", b"NOOP\r\n", b"\0",
    b"x" * 2_050, b"\xff",
]  # fmt: skip


@bad_input("SMTP submission", 300)
@given(st.data(), st.booleans())
def test_any_split_of_the_bytes_gives_the_same_session(data: st.DataObject, is_submission: bool) -> None:
    sent = b"".join(data.draw(st.lists(st.sampled_from(PARTS), min_size=3, max_size=25)))
    cuts = data.draw(st.lists(st.integers(1, len(sent)), max_size=20).map(sorted))
    assert _result(sent, cuts, is_submission) == _result(sent, [], is_submission)


def _result(sent: bytes, cuts: Iterable[int], is_submission: bool = False) -> object:
    """Replies, messages and logins; all memory is released."""
    client = submitting() if is_submission else Client(replace(INBOUND, message_bytes_max=5_000))
    for piece in _pieces(sent, cuts):
        client.send(piece)
    client.conversation.disconnected()
    assert client.memory.taken == 0
    return client.replied, client.accepted, client.logins, client.is_closed


def _pieces(sent: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for cut in cuts:
        yield sent[start:cut]
        start = cut
    yield sent[start:]


def _dotted(content: bytes) -> bytes:
    return (b"\r\n" + content).replace(b"\r\n.", b"\r\n..")[2:] + b".\r\n"
