"""The return path's service: takes exactly what is ours, passes nothing on, and says 250 once it is stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.entrypoints.smtp.inbound import MESSAGE_BYTES_MAX, Inbound
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.entrypoints.smtp.service import Envelope
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.inbound.reports import Reports
from posthouse.mail.envelope import MailReference, feedback_token, return_path
from posthouse.rules.refusal import Refusal
from posthouse.store.delivery_claims import Claimed
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.postgres import Database
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.inbound_reports import VACATION, bounce, complaint
from tools.private_postgres import free_port

HOSTNAME, DOMAIN = "mx.example.com", "bounce.example.com"
COMPLAINTS = "complaints@feedback.example.com"
KEY = b"k" * 32
ORIGIN = MailReference.of(UUID(int=1), UUID(int=2), 0)
OURS = return_path(ORIGIN, DOMAIN, KEY)
FORGED = return_path(ORIGIN, DOMAIN, b"guessed")
LETTER = b"Subject: Hello\r\n\r\nPlease stop.\r\n"


def inbound(database: Database) -> Inbound:
    feedback = Reports(
        database=database, clock=DatabaseClock(), chance=SystemChance(), return_path_domain=DOMAIN, keys=[KEY]
    )
    return Inbound(feedback=feedback, hostname=HOSTNAME, return_path_domain=DOMAIN, feedback_address=COMPLAINTS)


# For what is decided without a database.
SERVICE = inbound(Database(None))


@pytest.mark.parametrize(
    "address",
    [
        OURS,
        OURS.upper(),
        f"postmaster@{HOSTNAME}",
        f"PostMaster@{DOMAIN}",
        f"abuse@{HOSTNAME}",
        f"abuse@{DOMAIN.upper()}",
        "postmaster",
        "POSTMASTER",
        COMPLAINTS,
        COMPLAINTS.title(),
    ],
)
def test_what_is_ours_is_taken_in_any_case(address: str) -> None:
    assert SERVICE.recipient(address, 0) is None
    assert SERVICE.recipient(address, 19) is None


# Ways in which mail servers were once talked into passing mail on, and addresses that nobody has.
FORMS = {
    "ada@victim.example": "5.7.1",
    "postmaster@victim.example": "5.7.1",
    "abuse@victim.example": "5.7.1",
    f"{OURS[:-4]}.net": "5.7.1",
    f"ada%victim.example@{HOSTNAME}": "5.7.1",
    f"ada%victim.example@{DOMAIN}": "5.7.1",
    f"postmaster%victim.example@{HOSTNAME}": "5.7.1",
    f"ada%victim.example%other.example@{DOMAIN}": "5.7.1",
    f"victim.example!ada@{HOSTNAME}": "5.7.1",
    f"{HOSTNAME}!ada@victim.example": "5.7.1",
    "victim.example!ada": "5.7.1",
    f"@{HOSTNAME}:ada@victim.example": "5.7.1",
    f"@{HOSTNAME},@{DOMAIN}:ada@victim.example": "5.7.1",
    f"ada@victim.example@{HOSTNAME}": "5.7.1",
    f"postmaster@{HOSTNAME}@victim.example": "5.7.1",
    f"ada@@{HOSTNAME}": "5.7.1",
    f'"ada@victim.example"@{HOSTNAME}': "5.7.1",
    f'"ada%victim.example"@{DOMAIN}': "5.7.1",
    '"ada@victim.example"': "5.7.1",
    f'"postmaster"@{HOSTNAME}': "5.1.1",
    "ada@[192.0.2.25]": "5.7.1",
    "postmaster@[127.0.0.1]": "5.7.1",
    f"ada@[{HOSTNAME}]": "5.7.1",
    f"postmaster@.{HOSTNAME}": "5.7.1",
    f"postmaster@{HOSTNAME}.": "5.7.1",
    f"postmaster@{HOSTNAME}..": "5.7.1",
    f"postmaster@victim.example.{HOSTNAME}": "5.7.1",
    f"postmaster@{HOSTNAME}.victim.example": "5.7.1",
    f"post..master@{HOSTNAME}": "5.1.1",
    f".postmaster@{HOSTNAME}": "5.1.1",
    f"postmaster+ada@{HOSTNAME}": "5.1.1",
    f"postmaster%00@{HOSTNAME}": "5.7.1",
    f"postmaster\0@{HOSTNAME}": "5.1.1",
    f"postmaster@{HOSTNAME}%00.victim.example": "5.7.1",
    f"postmaster@{HOSTNAME}\0.victim.example": "5.7.1",
    f"postmaster @{HOSTNAME}": "5.1.1",
    f"postmaster@{HOSTNAME} ": "5.7.1",
    f"postmaster|victim@{HOSTNAME}": "5.1.1",
    f"\u1d56ostmaster@{HOSTNAME}": "5.1.1",
    f"po\u017ftmaster@{HOSTNAME}": "5.1.1",
    FORGED: "5.1.1",
    f"{OURS.partition('@')[0]}@{HOSTNAME}": "5.1.1",
    f"{OURS.partition('@')[0]}%victim.example@{DOMAIN}": "5.7.1",
    f"bounces@{DOMAIN}": "5.1.1",
    f"bounces+@{DOMAIN}": "5.1.1",
    f"ada@{HOSTNAME}": "5.1.1",
    "ada@feedback.example.com": "5.1.1",
    "postmaster@feedback.example.com": "5.1.1",
    f"@{HOSTNAME}": "5.7.1",
    "abuse": "5.7.1",
    "ada": "5.7.1",
    "@": "5.7.1",
    "": "5.7.1",
}


@pytest.mark.parametrize("address", FORMS, ids=ascii)
def test_nothing_is_passed_on(address: str) -> None:
    reply = SERVICE.recipient(address, 0)
    assert reply is not None
    assert (reply.code, reply.status) == (550, FORMS[address])


async def test_nobody_logs_in() -> None:
    assert not SERVICE.terms.needs_authentication
    with pytest.raises(Refusal):
        await SERVICE.authenticate("ada", "secret", "192.0.2.1")


def envelope(*recipients: str, sender: str = "") -> Envelope:
    return Envelope(sender, recipients, is_secure=False, peer="192.0.2.1", client_name="mx.example.org")


async def test_while_the_database_is_away_everything_may_be_sent_again() -> None:
    database = await Database.open(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    service = inbound(database)
    for recipient, mail in ((OURS, bounce("ada@example.org")), ("postmaster", LETTER)):
        reply = await service.take(None, envelope(recipient), mail)
        assert (reply.code, reply.status) == (451, "4.3.0")
    # What changes nothing needs no database.
    assert (await service.take(None, envelope(OURS), VACATION)).code == 250
    await database.close()


@dataclass
class Door:
    """The server on a real socket, and what it leads to."""

    steps: DeliverySteps
    port: int

    async def talk(self, *commands: bytes) -> list[bytes]:
        """The last line of each reply, the greeting first."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        replies = [await _reply(reader)]
        for command in commands:
            writer.write(command + b"\r\n")
            replies.append(await _reply(reader))
        writer.close()
        await writer.wait_closed()
        return replies

    async def send(self, mail: bytes, *recipients: str, sender: str = "") -> bytes:
        rcpts = [f"RCPT TO:<{recipient}>".encode() for recipient in recipients]
        dotted = mail.replace(b"\r\n.", b"\r\n..") + b"."
        replies = await self.talk(b"EHLO mx.example.org", f"MAIL FROM:<{sender}>".encode(), *rcpts, b"DATA", dotted)
        assert [reply[:3] for reply in replies[:-1]] == [b"220", b"250", b"250", *[b"250"] * len(rcpts), b"354"]
        return replies[-1]

    async def delivered(self, *recipients: str) -> list[Claimed]:
        claimed = await self.steps.claimed(recipients)
        await self.steps.record(*[self.steps.outcome(one, DeliveryResult.DELIVERED) for one in claimed])
        return claimed

    async def suppressed(self) -> list[tuple[str, str]]:
        return await self.steps.fetch("SELECT email, reason FROM suppressions ORDER BY 1")


async def _reply(reader: asyncio.StreamReader) -> bytes:
    while True:
        line = await asyncio.wait_for(reader.readline(), 10)
        assert line
        if line[3:4] != b"-":
            return line


@asynccontextmanager
async def opened(steps: DeliverySteps) -> AsyncIterator[Door]:
    server = SmtpServer(inbound(steps.database))
    await server.listen([Listener("127.0.0.1", 0)])
    try:
        yield Door(steps, server.ports[0])
    finally:
        await server.drain(1)


@pytest_asyncio.fixture
async def door(database_url: str) -> AsyncIterator[Door]:
    async with open_delivery_steps(database_url) as steps, opened(steps) as made:
        yield made


async def test_a_bounce_finds_its_way_back_to_the_mail_that_left(door: Door) -> None:
    identity = Identity(hostname=HOSTNAME, return_path_domain=DOMAIN, return_path_key=KEY)
    letters = OutgoingMail(database=door.steps.database, clock=door.steps.clock, signing=None, identity=identity)
    alone = await door.steps.claimed(["ada@example.org"])
    shared = await door.steps.claimed(["bob@example.net", "eve@example.net"])
    left = [await letters.parcel(alone), await letters.parcel(shared)]
    await door.steps.record(*[door.steps.outcome(one, DeliveryResult.DELIVERED) for one in (*alone, *shared)])
    assert (await door.send(bounce("ada@elsewhere.example"), left[0].sender)).startswith(b"250 2.0.0 ")
    assert (await door.send(bounce("eve@example.net"), left[1].sender, sender="odd@example.net")).startswith(b"250")
    assert await door.suppressed() == [("ada@example.org", "bounce"), ("eve@example.net", "bounce")]
    assert await door.steps.fetch("SELECT DISTINCT status FROM recipients") == [("delivered",)]


async def test_complaints_go_to_their_address_and_name_the_mail_themselves(door: Door) -> None:
    (claimed,) = await door.delivered("ada@example.org")
    origin = MailReference.of(claimed.account_id, claimed.message_id, 0)
    forged = complaint(f"CFBL-Feedback-ID: {feedback_token(origin, b'guessed')}", recipient="ada@example.org")
    assert (await door.send(forged, COMPLAINTS, sender="fbl@provider.example")).startswith(b"250")
    assert await door.suppressed() == []
    genuine = complaint(f"CFBL-Feedback-ID: {feedback_token(origin, KEY)}")
    assert (await door.send(genuine, COMPLAINTS, sender="fbl@provider.example")).startswith(b"250")
    assert await door.suppressed() == [("ada@example.org", "complaint")]


async def test_one_mail_for_several_of_ours_does_all_of_it(door: Door) -> None:
    first, second = await door.delivered("ada@example.org", "bob@example.org")
    paths = [
        return_path(MailReference.of(one.account_id, one.message_id, one.position), DOMAIN, KEY)
        for one in (first, second)
    ]
    reply = await door.send(bounce("x@example.org"), *paths, f"abuse@{DOMAIN}", "postmaster", sender="a@example.net")
    assert reply.startswith(b"250")
    assert len(await door.suppressed()) == 2
    kept = await door.steps.fetch("SELECT recipient, sender, peer, subject FROM inbox")
    subject = "Undelivered Mail Returned to Sender"
    assert kept == [(f"abuse@{DOMAIN}, postmaster", "a@example.net", "127.0.0.1", subject)]


async def test_a_full_inbox_asks_to_come_again_later(door: Door) -> None:
    fill = "INSERT INTO inbox SELECT gen_random_uuid(), '', '', '', '', '', 'epoch' FROM generate_series(1, 1000)"
    await door.steps.fetch(fill)
    assert (await door.send(LETTER, f"abuse@{HOSTNAME}")).startswith(b"452 4.3.1 ")
    (claimed,) = await door.delivered("ada@example.org")
    path = return_path(MailReference.of(claimed.account_id, claimed.message_id, 0), DOMAIN, KEY)
    assert (await door.send(bounce("ada@example.org"), path, "postmaster")).startswith(b"452")
    assert await door.suppressed() == [("ada@example.org", "bounce")]


async def test_a_fault_of_ours_is_no_reason_to_give_the_mail_up(door: Door) -> None:
    await door.steps.fetch("ALTER TABLE inbox RENAME TO outbox")
    with capture_logs() as logs:
        assert (await door.send(LETTER, "postmaster")).startswith(b"451 4.3.0 ")
    assert "inbound_failed" in [entry["event"] for entry in logs]


async def test_on_the_wire_nothing_is_passed_on_either(door: Door) -> None:
    forms = [form for form in FORMS if form.isascii() and form.isprintable()]
    written = [f"RCPT TO:<{form}>" for form in forms] + [
        f"RCPT TO:{OURS.replace(DOMAIN, 'victim.example')}",
        f"RCPT TO:<postmaster@{HOSTNAME}> <ada@victim.example>",
        f"RCPT TO:<<postmaster@{HOSTNAME}>@victim.example>",
        f"RCPT TO:<postmaster@{HOSTNAME}>,<ada@victim.example>",
    ]
    _, _, _, *replies = await door.talk(b"EHLO a", b"MAIL FROM:<>", *[line.encode() for line in written])
    refused = dict(zip(written, replies, strict=True))
    assert {line: reply for line, reply in refused.items() if not reply.startswith(b"5")} == {}


async def test_a_report_has_its_size_and_a_mail_so_many_recipients(door: Door) -> None:
    too_large = f"MAIL FROM:<> SIZE={MESSAGE_BYTES_MAX + 1}".encode()
    assert (await door.talk(b"EHLO a", too_large))[-1].startswith(b"552 5.3.4")
    rcpts = [b"RCPT TO:<postmaster>"] * 21
    replies = await door.talk(b"EHLO a", f"MAIL FROM:<> SIZE={MESSAGE_BYTES_MAX}".encode(), *rcpts)
    assert [reply[:3] for reply in replies[3:]] == [b"250"] * 20 + [b"452"]
