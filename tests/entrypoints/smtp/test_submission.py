"""Submission with a real database: logins, recipients, and the replies to accepted and refused messages."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import aiosmtplib
import pytest

from posthouse.clock import DatabaseClock
from posthouse.compose.flows import Flows
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.entrypoints.smtp.submission import Submission
from posthouse.rules import ids
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from tests.support.certificates import Authority
from tests.support.eventually import HANG_SECONDS
from tests.support.operator_client import MadeAccount, Operator
from tests.support.service import service_settings
from tests.support.smtp_service import NAME

MAIL = "From: Ada <ada@acme.example.com>\r\nTo: bob@example.org\r\nSubject: Hello\r\n\r\nHi.\r\n"
SENDER = "bounces@acme.example.com"


@dataclass(frozen=True)
class SubmissionServer:
    port: int
    account: MadeAccount
    operator: Operator
    database: Database
    control_cache: ControlCache
    trusting: ssl.SSLContext

    def client(self, password: str | None = None) -> aiosmtplib.SMTP:
        credential = self.account.credential
        return aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=self.port,
            use_tls=True,
            tls_context=self.trusting,
            username=credential.username,
            password=credential.password if password is None else password,
            timeout=HANG_SECONDS,
        )


@pytest.fixture
async def server(database_url: str, authority: Authority, trusting: ssl.SSLContext) -> AsyncIterator[SubmissionServer]:
    trusting.check_hostname = False
    settings = service_settings(database_url)
    clock = DatabaseClock()
    async with AsyncExitStack() as stack:
        operator = await Operator.open(settings)
        stack.push_async_callback(operator.close)
        account = await operator.create_account("acme")
        await operator.grant_credits(account.id, 100)
        await operator.add_verified_domain(account.id, "acme.example.com")
        database = await Database.open(database_url, connections_max=4)
        stack.push_async_callback(database.close)
        flows = Flows(settings, database, clock, intake_database=database)
        await flows.control_cache.forget_changes()
        stack.push_async_callback(flows.intake.drain)
        smtp = SmtpServer(
            Submission(
                admission=flows.admission,
                intake=flows.intake,
                clock=clock,
                randomness=flows.context.randomness,
                hostname=NAME,
            ),
            tls=authority.files,
        )
        await smtp.listen([Listener("127.0.0.1", 0, is_secure=True)])
        stack.push_async_callback(smtp.drain, 1.0)
        yield SubmissionServer(smtp.ports[0], account, operator, database, flows.control_cache, trusting)


async def test_mail_is_queued_once_it_is_committed(server: SubmissionServer) -> None:
    recipients = ["bob@example.org", "eve@example.org", "Bob@example.org"]
    async with server.client() as client:
        _, text = await client.sendmail(SENDER, recipients, MAIL)
        large = MAIL + "x" * 70 + "\r\n" + ("y" * 70 + "\r\n") * 10_000
        assert (await client.sendmail("", ["bob@example.org"], large))[1].startswith("2.0.0 queued as em_")
    status, _, message_id = text.rpartition(" ")
    assert status == "2.0.0 queued as"
    async with server.database.connection() as connection:
        found = await connection.fetch(
            "SELECT r.email FROM recipients r WHERE r.message_id = $1 ORDER BY 1", ids.parse(ids.MESSAGE, message_id)
        )
    assert [row["email"] for row in found] == ["bob@example.org", "eve@example.org"]


@pytest.mark.rule("META-06")
async def test_fields_for_us_are_stored_and_removed(server: SubmissionServer) -> None:
    fields = "X-Service-Tag: orders\r\nX-Service-Metadata-Order: 1001\r\n"
    async with server.client() as client:
        await client.sendmail(SENDER, ["bob@example.org"], fields + MAIL)
        with pytest.raises(aiosmtplib.SMTPDataError, match="metadata"):
            await client.sendmail(SENDER, ["bob@example.org"], "X-Service-Metadata-Order: " + "x" * 600 + "\r\n" + MAIL)
    async with server.database.connection() as connection:
        found = await connection.fetch(
            "SELECT envelope_sender, sender, subject, tags, metadata FROM messages JOIN bodies ON message_id = id"
        )
        mime = await connection.fetchval("SELECT mime FROM bodies")
    assert [tuple(row) for row in found] == [
        (SENDER, "Ada <ada@acme.example.com>", "Hello", ["orders"], '{"Order":"1001"}')
    ]
    assert b"1001" not in mime


async def test_a_customers_own_unsubscribe_link_stays_the_only_one(server: SubmissionServer) -> None:
    own = "List-Unsubscribe: <https://acme.example.com/leave>\r\n"
    wanted = "X-Service-Tag: list:news\r\nX-Service-Unsubscribe: one-click\r\n" + MAIL
    async with server.client() as client:
        await client.sendmail(SENDER, ["bob@example.org"], own + wanted)
        # Links of ours need a public URL, which this installation doesn't have.
        with pytest.raises(aiosmtplib.SMTPDataError, match="no public URL"):
            await client.sendmail(SENDER, ["bob@example.org"], wanted)
    async with server.database.connection() as connection:
        found = await connection.fetch("SELECT mailing_list, one_click FROM messages")
    assert [tuple(row) for row in found] == [("news", False)]


async def test_a_wrong_password_is_refused_and_the_right_is_not(server: SubmissionServer) -> None:
    with pytest.raises(aiosmtplib.SMTPAuthenticationError) as refused:
        await server.client("wrong").connect()
    assert refused.value.code in (421, 535)
    async with server.client() as client:
        assert (await client.noop()).code == 250


async def test_a_session_does_not_outlast_its_credential(server: SubmissionServer) -> None:
    async with server.client() as client:
        await client.sendmail(SENDER, ["bob@example.org"], MAIL)
        async with server.database.transaction() as tx:
            await tx.execute("UPDATE credentials SET revoked_at = now() WHERE account_id = $1", server.account.id)
            await tx.execute("UPDATE accounts SET changed_at = now() WHERE id = $1", server.account.id)
        await server.control_cache.forget_changes()
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await client.sendmail(SENDER, ["bob@example.org"], MAIL)
    assert (refused.value.code, refused.value.message[:5]) == (535, "5.7.8")


async def test_a_session_does_not_outlast_its_password(server: SubmissionServer) -> None:
    async def replace_password(new_hash: bytes, overlap: timedelta | None) -> None:
        async with server.database.transaction() as tx:
            await tx.execute(
                "UPDATE credentials SET secret_hash = $2, previous_until = now() + $3,"
                " previous_hash = CASE WHEN $3::interval IS NULL THEN NULL ELSE secret_hash END WHERE account_id = $1",
                server.account.id, new_hash, overlap,
            )  # fmt: skip
            await tx.execute("UPDATE accounts SET changed_at = now() WHERE id = $1", server.account.id)
        await server.control_cache.forget_changes()

    async with server.database.connection() as connection:
        own_hash = await connection.fetchval(
            "SELECT secret_hash FROM credentials WHERE account_id = $1", server.account.id
        )
    async with server.client() as early, server.client() as late:
        await replace_password(b"a hash", timedelta(hours=1))
        for client in (early, late):
            await client.sendmail(SENDER, ["bob@example.org"], MAIL)
        await replace_password(b"another", None)
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await early.sendmail(SENDER, ["bob@example.org"], MAIL)
        assert (refused.value.code, refused.value.message[:5]) == (535, "5.7.8")
        # The old password also ends when the overlap ends, without any change at that time.
        await replace_password(own_hash, None)
        await late.sendmail(SENDER, ["bob@example.org"], MAIL)
        await replace_password(b"the last", timedelta())
        with pytest.raises(aiosmtplib.SMTPDataError, match="new one"):
            await late.sendmail(SENDER, ["bob@example.org"], MAIL)


@pytest.mark.rule("SUB-19")
async def test_undeliverable_recipient_addresses_are_refused(server: SubmissionServer) -> None:
    async with server.client() as client:
        await client.mail(SENDER)
        for address in ("bob@localhost", "bob@[192.0.2.1]", '"b b"@example.org', "postmaster", ".bob@example.org"):
            with pytest.raises(aiosmtplib.SMTPRecipientRefused) as refused:
                await client.rcpt(address)
            assert (refused.value.code, refused.value.message[:5]) == (553, "5.1.3"), address
        assert (await client.rcpt("bob@example.org")).code == 250


async def test_a_refusal_has_the_code_of_its_reason(server: SubmissionServer) -> None:
    refusals = [
        ("From: eve@elsewhere.example.com\r\n\r\nHi.\r\n", 550, "5.7.1"),
        ("Subject: no sender\r\n\r\nHi.\r\n", 550, "5.6.0"),
        ("Received: x\r\n" * 51 + MAIL, 554, "5.4.6"),
    ]
    async with server.client() as client:
        for content, code, status in refusals:
            with pytest.raises(aiosmtplib.SMTPDataError) as refused:
                await client.sendmail(SENDER, ["bob@example.org"], content)
            assert (refused.value.code, refused.value.message[:5]) == (code, status)
        await client.sendmail(SENDER, ["bob@example.org"], MAIL)
        # Without credits the refusal is temporary: the client keeps the message.
        recipients = [f"r{number}@example.org" for number in range(50)]
        await client.sendmail(SENDER, recipients, MAIL)
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await client.sendmail(SENDER, recipients, MAIL)
        assert (refused.value.code, refused.value.message[:5]) == (450, "4.7.1")
