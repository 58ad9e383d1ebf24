"""Hundreds of forged bounces and complaints of ten kinds, over SMTP, change nothing; a provider's own still count.

The attacker got messages of the account: it has their tokens, and every byte of them. It has a domain with its own DKIM
key, and genuine reports that a provider signed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest_asyncio

from posthouse.entrypoints.smtp.inbound import Inbound
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.flows.inbound.reports import Reports
from posthouse.flows.inbound.reputation import Reputation, ReputationRun
from posthouse.mail.envelope import MailReference, feedback_token, return_path
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.wire.dns import Resolver
from tests.support.bad_input import new_seed
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.eventually import HANG_SECONDS
from tests.support.feedback_loop import FeedbackLoop, complaint_check
from tests.support.inbound_reports import bounce, complaint
from tests.support.nameserver import Nameserver

OF_EACH_KIND: Final = 20
CLIENTS: Final = 8
HOSTNAME, DOMAIN, COMPLAINTS = "mx.example.com", "bounce.example.com", "complaints@bounce.example.com"
KEY: Final = b"k" * 32
# Short keys: hundreds of signatures take long with longer ones.
YAHOO: Final = FeedbackLoop("arf.mail.yahoo.com", bits=1024)
VALIDITY: Final = FeedbackLoop("senderscore.net", "081107", bits=1024)
ATTACKER: Final = FeedbackLoop("attacker.example", bits=1024)
# What no forged report may touch. Reports are noted, and that is all.
TABLES: Final = (
    "accounts", "messages", "recipients", "delivery_schedule", "attempts", "events", "ledger", "suppressions",
    "removed_suppressions", "audit_log", "postmaster_mail",
)  # fmt: skip


@dataclass(frozen=True)
class ForgedReport:
    """`to` are envelope recipients."""

    mail: bytes
    to: Sequence[str]


@dataclass
class Scene:
    steps: DeliverySteps
    port: int
    reputation: Reputation
    randomness: random.Random
    alone: list[ClaimedRecipient] = field(default_factory=list)
    together: list[list[ClaimedRecipient]] = field(default_factory=list)
    neighbours: list[list[ClaimedRecipient]] = field(default_factory=list)
    genuine: list[bytes] = field(default_factory=list)

    async def delivered(self, *messages: Sequence[str], **how: Any) -> list[list[ClaimedRecipient]]:
        """Each message's recipients, in order."""
        ids = await asyncio.gather(*[self.steps.accept(recipients, **how) for recipients in messages])
        claimed = sorted(await self.steps.claim(await self.steps.lease()), key=lambda row: row.position)
        await self.steps.record(*[self.steps.outcome(row, DeliveryResult.DELIVERED) for row in claimed])
        return [[row for row in claimed if row.message_id == message_id] for message_id in ids]

    async def send(self, reports: Sequence[ForgedReport]) -> list[bytes]:
        """All of them, over a few connections; the reply to each."""
        shares = [reports[number::CLIENTS] for number in range(CLIENTS)]
        replies = await asyncio.gather(*[_send(self.port, share) for share in shares])
        return [reply for share in replies for reply in share]

    async def state(self) -> dict[str, Any]:
        return {table: await self.steps.fetch(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}

    async def counting(self) -> list[Any]:
        return await self.steps.fetch(
            "SELECT message_id, position, kind FROM reports WHERE suppressed ORDER BY 1, 2, 3"
        )


async def _send(port: int, reports: Sequence[ForgedReport]) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def say(line: bytes) -> bytes:
        writer.write(line + b"\r\n")
        return await reply()

    async def reply() -> bytes:
        while True:
            line = await asyncio.wait_for(reader.readline(), HANG_SECONDS)
            assert line
            if line[3:4] != b"-":
                return line

    await reply()
    await say(b"EHLO mail.attacker.example")
    replies = []
    for report in reports:
        await say(b"MAIL FROM:<>")
        taken = [await say(f"RCPT TO:<{address}>".encode()) for address in report.to]
        if not any(line.startswith(b"250") for line in taken):
            replies.append(taken[0])
            await say(b"RSET")
            continue
        assert (await say(b"DATA")).startswith(b"354")
        replies.append(await say(report.mail.replace(b"\r\n.", b"\r\n..") + b"\r\n."))
    writer.close()
    await writer.wait_closed()
    return replies


def origin(claimed: ClaimedRecipient, position: int | None = None) -> MailReference:
    return MailReference.of(claimed.account_id, claimed.message_id, position)


def path(claimed: ClaimedRecipient, position: int | None = None, key: bytes = KEY) -> str:
    return return_path(origin(claimed, position), DOMAIN, key)


def token(claimed: ClaimedRecipient) -> str:
    return f"CFBL-Feedback-ID: {feedback_token(origin(claimed), KEY)}"


def arf(*heads: str, author: str = f"feedback@{YAHOO.domain}", to: str = COMPLAINTS, **given: Any) -> bytes:
    return complaint(*heads, author=author, to=to, **given)


# The ten kinds.


def from_an_invented_host(scene: Scene) -> ForgedReport:
    claimed = scene.randomness.choice(scene.alone)
    to = scene.randomness.choice([COMPLAINTS, path(claimed, 0)])
    return ForgedReport(arf(token(claimed), recipient=claimed.email, to=to), [to])


def signed_by_a_wrong_domain(scene: Scene) -> ForgedReport:
    claimed = scene.randomness.choice(scene.alone)
    author = scene.randomness.choice(["fbl@attacker.example", "fbl@mail.attacker.example", f"feedback@{YAHOO.domain}"])
    return ForgedReport(ATTACKER.signed(arf(token(claimed), author=author)), [COMPLAINTS, path(claimed, 0)])


def signed_then_altered(scene: Scene) -> ForgedReport:
    mine, other = scene.randomness.sample(scene.alone, 2)
    mail = YAHOO.signed(
        arf(token(mine)), canonical=scene.randomness.choice([(b"relaxed", b"simple"), (b"simple",) * 2])
    )
    altered = scene.randomness.choice(
        [
            mail.replace(token(mine).encode(), token(other).encode()),
            mail.replace(b"--b--", f"--b\r\nContent-Type: message/rfc822\r\n\r\n{token(other)}\r\n--b--".encode()),
            mail.replace(b"Feedback-Type: abuse", b"Feedback-Type: fraud"),
            f"To: <{COMPLAINTS}>\r\n".encode() + YAHOO.signed(arf(token(mine), to="fbl@attacker.example")),
        ]
    )
    return ForgedReport(altered, [COMPLAINTS])


def signed_with_an_unaligned_author(scene: Scene) -> ForgedReport:
    """Or to another sender, who passes the provider's genuine report on to us."""
    claimed = scene.randomness.choice(scene.alone)
    mail = scene.randomness.choice(
        [
            arf(token(claimed), author="feedback@attacker.example"),
            arf(token(claimed), author=f"feedback@{YAHOO.domain}.attacker.example"),
            arf(token(claimed), to="fbl@attacker.example"),
        ]
    )
    return ForgedReport(YAHOO.signed(mail), [COMPLAINTS, path(claimed, 0)])


def a_bounce_of_a_co_recipient(scene: Scene) -> ForgedReport:
    rows = scene.randomness.choice(scene.together)
    victim = scene.randomness.choice(rows)
    to = path(rows[0])
    return ForgedReport(bounce(victim.email, to=to, original=f"Return-Path: <{to}>\n"), [to])


def a_bounce_with_a_forged_token(scene: Scene) -> ForgedReport:
    claimed = scene.randomness.choice(scene.alone)
    genuine = path(claimed, 0)
    at = scene.randomness.randrange(len("bounces+"), genuine.index("@"))
    changed = genuine[:at] + ("a" if genuine[at] != "a" else "b") + genuine[at + 1 :]
    to = scene.randomness.choice([changed, path(claimed, 0, scene.randomness.randbytes(32))])
    return ForgedReport(bounce(claimed.email, to=to), [to])


def a_bounce_with_another_accounts_ids(scene: Scene) -> ForgedReport:
    """The token of a neighbour's message, or of no message: this account's message, and the neighbour's account."""
    claimed = scene.randomness.choice(scene.alone)
    rows = scene.randomness.choice(scene.neighbours)
    mixed = MailReference.of(rows[0].account_id, claimed.message_id, 0)
    to = scene.randomness.choice([path(rows[0]), return_path(mixed, DOMAIN, KEY)])
    original = f"Return-Path: <{path(claimed, 0)}>\n{token(claimed)}\n"
    return ForgedReport(bounce(claimed.email, to=to, original=original), [to])


def a_replayed_report(scene: Scene) -> ForgedReport:
    """A provider's genuine report, once more, also to the return paths of other messages."""
    other = scene.randomness.choice(scene.alone)
    return ForgedReport(scene.randomness.choice(scene.genuine), [COMPLAINTS, path(other, 0)])


def with_thousands_of_recipients(scene: Scene) -> ForgedReport:
    rows = scene.randomness.choice(scene.together)
    others = "".join(f"Original-Rcpt-To: <r{number}@example.org>\n" for number in range(3_000))
    mail = arf(token(rows[0]), f"Return-Path: <{path(rows[0])}>", recipient=scene.randomness.choice(rows).email)
    mail = mail.replace(b"Version: 1\r\n", b"Version: 1\r\n" + others.replace("\n", "\r\n").encode())
    return ForgedReport(mail, [COMPLAINTS, path(rows[0])])


def with_malformed_parts(scene: Scene) -> ForgedReport:
    claimed = scene.randomness.choice(scene.alone)
    mail = bytearray(ATTACKER.signed(arf(token(claimed), f"Return-Path: <{path(claimed, 0)}>")))
    for _ in range(scene.randomness.randrange(1, 30)):
        at = scene.randomness.randrange(len(mail))
        mail[at : at + scene.randomness.randrange(4)] = scene.randomness.choice(
            [b"\0", b"\xff\xfe", b"--b", b"\r\n\r\n", b"--b--\r\n", b"Content-Transfer-Encoding: base64\r\n", b""]
        )
    return ForgedReport(bytes(mail), [COMPLAINTS, path(claimed, 0)])


KINDS: Final[Sequence[Callable[[Scene], ForgedReport]]] = (
    from_an_invented_host,
    signed_by_a_wrong_domain,
    signed_then_altered,
    signed_with_an_unaligned_author,
    a_bounce_of_a_co_recipient,
    a_bounce_with_a_forged_token,
    a_bounce_with_another_accounts_ids,
    a_replayed_report,
    with_thousands_of_recipients,
    with_malformed_parts,
)


@pytest_asyncio.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    zone = {**YAHOO.zone, **VALIDITY.zone, **ATTACKER.zone}
    async with open_delivery_steps(database_url) as steps, Nameserver(zone) as nameserver:
        reports = Reports(
            context(steps.database, steps.clock, return_path=[KEY]),
            return_path_domain=DOMAIN,
            complaint_check=complaint_check(Resolver([nameserver.endpoint]), YAHOO.domain, VALIDITY.domain),
            feedback_address=COMPLAINTS,
        )
        inbound = Inbound(reports=reports, hostname=HOSTNAME, return_path_domain=DOMAIN, feedback_address=COMPLAINTS)
        smtp = SmtpServer(inbound)
        await smtp.listen([Listener("127.0.0.1", 0)])
        seed = new_seed()
        reputation = Reputation(context(steps.database, steps.clock))
        scene = Scene(steps, smtp.ports[0], reputation, random.Random(seed))
        try:
            await _send_mail(scene)
            yield scene
        finally:
            await smtp.drain(1)


async def _send_mail(scene: Scene) -> None:
    """An account with 240 results, its neighbour, and a few complaints that were genuine and are removed again."""
    alone = await scene.delivered(*[[f"customer{number}@c{number % 7}.example.org"] for number in range(200)])
    scene.alone = [claimed for (claimed,) in alone]
    scene.together = await scene.delivered(
        *[[f"ada{number}@example.org", f"bob{number}@example.org"] for number in range(20)]
    )
    scene.neighbours = await scene.delivered(
        *[[f"eve{number}@example.net", f"mia{number}@example.net"] for number in range(5)],
        sender=await scene.steps.another_sender("beta"),
    )
    complained = scene.alone[:2]
    scene.genuine = [YAHOO.signed(arf(token(claimed))) for claimed in complained]
    await scene.send([ForgedReport(mail, [COMPLAINTS]) for mail in scene.genuine])
    assert len(await scene.steps.fetch("DELETE FROM suppressions RETURNING email")) == len(complained)
    scene.alone = scene.alone[2:]


async def test_hundreds_of_forged_reports_of_ten_kinds_change_nothing(scene: Scene) -> None:
    before, counting = await scene.state(), await scene.counting()
    forged = [(kind, kind(scene)) for kind in KINDS for _ in range(OF_EACH_KIND)]
    scene.randomness.shuffle(forged)
    replies = await scene.send([report for _, report in forged])
    assert len(replies) == len(KINDS) * OF_EACH_KIND
    # Only forged tokens are refused, and malformed mail with bare line ends; the rest is known only when it is read.
    assert {reply[:9] for reply in replies} == {b"250 2.0.0", b"550 5.1.1", b"550 5.6.0"}
    assert sum(reply.startswith(b"550 5.1.1") for reply in replies) == OF_EACH_KIND
    assert sum(reply.startswith(b"250") for reply in replies) >= 8 * OF_EACH_KIND
    scene.steps.clock.advance(seconds=30)
    assert await scene.reputation.run() == ReputationRun()
    after = await scene.state()
    for table in TABLES:
        assert after[table] == before[table], table
    assert await scene.counting() == counting
    noted = await scene.steps.value("SELECT count(*) FROM reports WHERE detail LIKE '%unverified, from 127.0.0.1'")
    assert noted > OF_EACH_KIND


async def test_signed_reports_of_real_feedback_loops_suppress_and_count(scene: Scene) -> None:
    await scene.send([kind(scene) for kind in KINDS for _ in range(5)])
    yahoo, validity, headers_only = scene.alone[:10], scene.alone[10:20], scene.alone[20:30]
    reports = [
        YAHOO.signed(
            arf(token(claimed), f"Return-Path: <{path(claimed, 0)}>", recipient=claimed.email),
            fields=("Date", "From", "To", "Subject", "MIME-Version", "Content-Type"),
            canonical=(b"relaxed", b"relaxed"),
        )
        for claimed in yahoo
    ]
    reports += [
        VALIDITY.signed(
            arf(
                f"Return-Path: {path(claimed, 0)}",
                author=f"feedbackloop@comcastfbl.{VALIDITY.domain}",
                recipient="ca2b45ef141c63af66829a2f346c832b@email.example",
            )
        )
        for claimed in validity
    ]
    reports += [
        YAHOO.signed(arf(token(claimed)).replace(b"message/rfc822", b"text/rfc822-headers")) for claimed in headers_only
    ]
    replies = await scene.send([ForgedReport(mail, [COMPLAINTS]) for mail in reports])
    assert {reply[:3] for reply in replies} == {b"250"}
    expected = sorted(claimed.email for claimed in (*yahoo, *validity, *headers_only))
    query = "SELECT email FROM suppressions WHERE reason = 'complaint' ORDER BY email"
    assert [email for (email,) in await scene.steps.fetch(query)] == expected
    scene.steps.clock.advance(seconds=30)
    assert await scene.reputation.run() == ReputationRun(checked=1, suspended=1)
    reasons = dict(await scene.steps.fetch("SELECT name, suspended_reason FROM accounts"))
    assert "of the latest 240 results" in (reasons["acme"] or "")
    assert reasons["beta"] is None
