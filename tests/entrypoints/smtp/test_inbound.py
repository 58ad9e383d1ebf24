"""The inbound service accepts only our own addresses, never relays, and replies 250 after storing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from posthouse.clock import DatabaseClock
from posthouse.entrypoints.smtp.inbound import MESSAGE_BYTES_MAX, Inbound
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.entrypoints.smtp.service import Envelope
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.inbound.reports import Reports
from posthouse.mail.envelope import MailReference, feedback_token, return_path
from posthouse.rules.refusal import Refusal
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.postgres import Database
from posthouse.wire.dns import Resolver
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.eventually import HANG_SECONDS
from tests.support.feedback_loop import FeedbackLoop, complaint_check
from tests.support.inbound_reports import VACATION, bounce, complaint
from tests.support.nameserver import Nameserver
from tools.private_postgres import free_port

HOSTNAME, DOMAIN = "mx.example.com", "bounce.example.com"
COMPLAINTS = "complaints@feedback.example.com"
KEY = b"k" * 32
ORIGIN = MailReference.of(UUID(int=1), UUID(int=2), 0)
OURS = return_path(ORIGIN, DOMAIN, KEY)
FORGED = return_path(ORIGIN, DOMAIN, b"guessed")
MAIL = b"Subject: Hello\r\n\r\nPlease stop.\r\n"
LOOP, AUTHOR = FeedbackLoop("provider.example"), "fbl@provider.example"


def inbound(database: Database, resolver: Resolver | None = None) -> Inbound:
    reports = Reports(
        context(database, DatabaseClock(), return_path=[KEY]),
        return_path_domain=DOMAIN,
        complaint_check=complaint_check(resolver, LOOP.domain),
        feedback_address=COMPLAINTS,
    )
    return Inbound(reports=reports, hostname=HOSTNAME, return_path_domain=DOMAIN, feedback_address=COMPLAINTS)


# For decisions without a database.
SERVICE = inbound(Database(None))


@pytest.mark.rule("INB-06")
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
def test_our_addresses_are_accepted_in_any_case(address: str) -> None:
    assert SERVICE.check_recipient(address, 0) is None
    assert SERVICE.check_recipient(address, 19) is None


# Forms that once made mail servers relay, and addresses that don't exist.
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
def test_nothing_is_relayed(address: str) -> None:
    reply = SERVICE.check_recipient(address, 0)
    assert reply is not None
    assert (reply.code, reply.status) == (550, FORMS[address])


async def test_there_is_no_login() -> None:
    assert not SERVICE.policy.needs_authentication
    with pytest.raises(Refusal):
        await SERVICE.authenticate("ada", "secret", "192.0.2.1")


def envelope(*recipients: str, sender: str = "") -> Envelope:
    return Envelope(sender, recipients, is_secure=False, peer="192.0.2.1", client_name="mx.example.org")


async def test_without_a_database_refusals_are_temporary() -> None:
    database = await Database.open(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    service = inbound(database)
    for recipient, mail in ((OURS, bounce("ada@example.org")), ("postmaster", MAIL)):
        reply = await service.accept(None, envelope(recipient), mail)
        assert (reply.code, reply.status) == (451, "4.3.0")
    # Mail that changes nothing needs no database.
    assert (await service.accept(None, envelope(OURS), VACATION)).code == 250
    await database.close()


@dataclass
class InboundServer:
    """The server on a real socket, and its database."""

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

    async def delivered(self, *recipients: str) -> list[ClaimedRecipient]:
        claimed = await self.steps.claimed(recipients)
        await self.steps.record(*[self.steps.outcome(claim, DeliveryResult.DELIVERED) for claim in claimed])
        return claimed

    async def suppressed(self) -> list[tuple[str, str]]:
        return await self.steps.fetch("SELECT email, reason FROM suppressions ORDER BY 1")


async def _reply(reader: asyncio.StreamReader) -> bytes:
    while True:
        line = await asyncio.wait_for(reader.readline(), HANG_SECONDS)
        assert line
        if line[3:4] != b"-":
            return line


@asynccontextmanager
async def opened(steps: DeliverySteps) -> AsyncIterator[InboundServer]:
    async with Nameserver(LOOP.zone) as nameserver:
        smtp = SmtpServer(inbound(steps.database, Resolver([nameserver.endpoint])))
        await smtp.listen([Listener("127.0.0.1", 0)])
        try:
            yield InboundServer(steps, smtp.ports[0])
        finally:
            await smtp.drain(1)


@pytest_asyncio.fixture
async def server(database_url: str) -> AsyncIterator[InboundServer]:
    async with open_delivery_steps(database_url) as steps, opened(steps) as server:
        yield server


async def test_a_bounce_is_matched_to_the_sent_mail(server: InboundServer) -> None:
    identity = Identity(hostname=HOSTNAME, return_path_domain=DOMAIN, return_path_key=KEY)
    outgoing_mail = OutgoingMail(
        database=server.steps.database, clock=server.steps.clock, signing=None, identity=identity
    )
    alone = await server.steps.claimed(["ada@example.org"])
    shared = await server.steps.claimed(["bob@example.net", "eve@example.net"])
    taken = await server.steps.claimed(["kim@example.com", "lee@example.com"])
    left = [await outgoing_mail.request(rows) for rows in (alone, shared, taken)]
    for rows, address in ((alone, "192.0.2.1"), (shared, "192.0.2.1"), (taken, "127.0.0.1")):
        outcomes = [server.steps.outcome(claim, DeliveryResult.DELIVERED, remote_ip=address) for claim in rows]
        await server.steps.record(*outcomes)
    assert (await server.send(bounce("ada@elsewhere.example"), left[0].sender)).startswith(b"250 2.0.0 ")
    assert (await server.send(bounce("eve@example.net"), left[1].sender, sender="odd@example.net")).startswith(b"250")
    assert (await server.send(bounce("lee@example.com"), left[2].sender)).startswith(b"250")
    # Eve's could be Bob's: it doesn't come from the server that took the mail.
    assert await server.suppressed() == [("ada@example.org", "bounce"), ("lee@example.com", "bounce")]
    assert await server.steps.fetch("SELECT DISTINCT status FROM recipients") == [("delivered",)]


@pytest.mark.rule("INB-03")
async def test_a_complaint_counts_with_our_token_and_the_providers_signature(server: InboundServer) -> None:
    (claimed,) = await server.delivered("ada@example.org")
    origin = MailReference.of(claimed.account_id, claimed.message_id, 0)
    forged = complaint(f"CFBL-Feedback-ID: {feedback_token(origin, b'guessed')}", recipient="ada@example.org")
    assert (await server.send(forged, COMPLAINTS, sender="fbl@provider.example")).startswith(b"250")
    assert await server.suppressed() == []
    genuine = complaint(f"CFBL-Feedback-ID: {feedback_token(origin, KEY)}", author=AUTHOR, to=COMPLAINTS)
    assert (await server.send(genuine, COMPLAINTS, sender=AUTHOR)).startswith(b"250")
    assert await server.suppressed() == []
    assert await server.steps.fetch("SELECT detail FROM reports") == [("abuse, unverified, from 127.0.0.1",)]
    assert (await server.send(LOOP.signed(genuine), COMPLAINTS, sender=AUTHOR)).startswith(b"250")
    assert await server.suppressed() == [("ada@example.org", "complaint")]


async def test_a_message_to_several_of_our_addresses_serves_all(server: InboundServer) -> None:
    first, second = await server.delivered("ada@example.org", "bob@example.org")
    paths = [
        return_path(MailReference.of(claim.account_id, claim.message_id, claim.position), DOMAIN, KEY)
        for claim in (first, second)
    ]
    reply = await server.send(bounce("x@example.org"), *paths, f"abuse@{DOMAIN}", "postmaster", sender="a@example.net")
    assert reply.startswith(b"250")
    assert len(await server.suppressed()) == 2
    kept = await server.steps.fetch("SELECT recipient, sender, peer, subject FROM postmaster_mail")
    subject = "Undelivered Mail Returned to Sender"
    assert kept == [(f"abuse@{DOMAIN}, postmaster", "a@example.net", "127.0.0.1", subject)]


async def test_a_full_mailbox_is_a_temporary_refusal(server: InboundServer) -> None:
    fill = """
        INSERT INTO postmaster_mail
        SELECT gen_random_uuid(), '', '', '', '', '', 'epoch' FROM generate_series(1, 1000)"""
    await server.steps.fetch(fill)
    assert (await server.send(MAIL, f"abuse@{HOSTNAME}")).startswith(b"452 4.3.1 ")
    (claimed,) = await server.delivered("ada@example.org")
    path = return_path(MailReference.of(claimed.account_id, claimed.message_id, 0), DOMAIN, KEY)
    assert (await server.send(bounce("ada@example.org"), path, "postmaster")).startswith(b"452")
    assert await server.suppressed() == [("ada@example.org", "bounce")]


async def test_a_fault_is_a_temporary_refusal(server: InboundServer) -> None:
    await server.steps.fetch("ALTER TABLE postmaster_mail RENAME TO outbox")
    with capture_logs() as logs:
        assert (await server.send(MAIL, "postmaster")).startswith(b"451 4.3.0 ")
    assert "inbound_failed" in [entry["event"] for entry in logs]


async def test_nothing_is_relayed_on_the_wire(server: InboundServer) -> None:
    forms = [form for form in FORMS if form.isascii() and form.isprintable()]
    written = [f"RCPT TO:<{form}>" for form in forms] + [
        f"RCPT TO:{OURS.replace(DOMAIN, 'victim.example')}",
        f"RCPT TO:<postmaster@{HOSTNAME}> <ada@victim.example>",
        f"RCPT TO:<<postmaster@{HOSTNAME}>@victim.example>",
        f"RCPT TO:<postmaster@{HOSTNAME}>,<ada@victim.example>",
    ]
    _, _, _, *replies = await server.talk(b"EHLO a", b"MAIL FROM:<>", *[line.encode() for line in written])
    refused = dict(zip(written, replies, strict=True))
    assert {line: reply for line, reply in refused.items() if not reply.startswith(b"5")} == {}


@pytest.mark.rule("INB-06")
async def test_size_and_recipients_are_limited(server: InboundServer) -> None:
    too_large = f"MAIL FROM:<> SIZE={MESSAGE_BYTES_MAX + 1}".encode()
    assert (await server.talk(b"EHLO a", too_large))[-1].startswith(b"552 5.3.4")
    rcpts = [b"RCPT TO:<postmaster>"] * 21
    replies = await server.talk(b"EHLO a", f"MAIL FROM:<> SIZE={MESSAGE_BYTES_MAX}".encode(), *rcpts)
    assert [reply[:3] for reply in replies[3:]] == [b"250"] * 20 + [b"452"]
