"""Bounces and complaints on a real database: believed only with our token, stored once, and changing no result."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from posthouse.flows.inbound.reports import Received, Reports
from posthouse.mail.envelope import MailReference, feedback_token, return_path
from posthouse.mail.report import Bounce, Complaint
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.refusal import Refusal
from posthouse.store import erasures, postmaster_mail
from posthouse.store import reports as store
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.wire.dns import Resolver
from tests.mail.reports import complaints
from tests.mail.reports.neither import NEITHER
from tests.mail.reports.notices import NOTICES
from tests.mail.reports.notifications import NOTIFICATIONS
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.feedback_loop import TRUSTED, FeedbackLoop, complaint_check
from tests.support.inbound_reports import VACATION, bounce, complaint
from tests.support.nameserver import SERVFAIL, Nameserver

DOMAIN = "bounce.example.com"
KEY, OLD_KEY = b"k" * 32, b"o" * 32
ADA, BOB = "Ada@example.org", "bob@example.org"
LOOP, COMPLAINTS = FeedbackLoop("fbl.provider.example"), "complaints@example.com"
AUTHOR, OTHER_PEER = "reports@fbl.provider.example", "203.0.113.9"
# Where the mail was delivered, as `tests.support.delivery_steps` records it.
TAKER = "192.0.2.1"


@dataclass
class ReportFlow:
    steps: DeliverySteps
    reports: Reports
    nameserver: Nameserver

    async def receive(self, mail: bytes, *origins: MailReference, peer: str = TRUSTED) -> Received:
        return await self.reports.receive(mail, origins, peer)

    async def delivered(self, *recipients: str, **how: Any) -> list[ClaimedRecipient]:
        claimed = await self.steps.claimed(recipients or [ADA], **how)
        await self.steps.record(*[self.steps.outcome(row, DeliveryResult.DELIVERED) for row in claimed])
        return claimed

    async def keep(self, peer: str, mime: bytes = b"Subject: a\r\n\r\n") -> bool:
        return await self.reports.keep(mime, recipient="abuse@example.com", sender="", peer=peer)

    async def lines(self) -> list[Any]:
        return await self.steps.fetch(
            "SELECT position, kind, detail, status, code, suppressed FROM reports ORDER BY 1, 2, 4, 3"
        )

    async def suppressions(self) -> list[Any]:
        return await self.steps.fetch("SELECT account_id, email, reason FROM suppressions ORDER BY email")


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[ReportFlow]:
    async with open_delivery_steps(database_url) as steps, Nameserver(LOOP.zone) as nameserver:
        reports = Reports(
            context(steps.database, steps.clock, return_path=(KEY, OLD_KEY)),
            return_path_domain=DOMAIN,
            complaint_check=complaint_check(Resolver([nameserver.endpoint]), LOOP.domain),
            feedback_address=COMPLAINTS,
        )
        yield ReportFlow(steps, reports, nameserver)


def feedback_id(claimed: ClaimedRecipient) -> str:
    return f"CFBL-Feedback-ID: {feedback_token(origin(claimed), KEY)}"


def origin(claimed: ClaimedRecipient, position: int | None = 0, account_id: UUID | None = None) -> MailReference:
    return MailReference.of(account_id or claimed.account_id, claimed.message_id, position)


def verp(claimed: ClaimedRecipient, position: int | None = 0, key: bytes = KEY) -> str:
    return return_path(origin(claimed, position), DOMAIN, key)


async def state(steps: DeliverySteps) -> list[Any]:
    """All that a late report must not touch."""
    return [
        await steps.fetch(f"SELECT * FROM {table} ORDER BY 1, 2, 3")
        for table in ("messages", "recipients", "events", "ledger", "delivery_schedule", "accounts", "attempts")
    ]


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_late_bounce_is_noted_and_suppresses_and_changes_nothing_else(
    flow: ReportFlow, is_queued: bool
) -> None:
    (claimed,) = await (flow.steps.claimed([ADA]) if is_queued else flow.delivered())
    before = await state(flow.steps)
    assert await flow.receive(bounce("ada@example.org"), origin(claimed)) == (1, 1, "")
    assert await flow.lines() == [(0, "bounce", "ada@example.org", "5.1.1", 550, True)]
    assert await flow.suppressions() == [(claimed.account_id, "ada@example.org", "bounce")]
    assert await state(flow.steps) == before
    (again,) = await flow.steps.claimed([ADA])
    assert again.is_suppressed


async def test_a_late_bounce_does_not_bring_an_erased_address_back(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    async with flow.steps.database.transaction() as tx:
        await erasures.erase_message(tx, claimed.account_id, claimed.message_id, [0], "^$")
    assert await flow.receive(bounce("ada@example.org"), origin(claimed)) == (1, 0, "")
    assert [(position, kind) for position, kind, *_ in await flow.lines()] == [(0, "bounce")]
    texts = await flow.steps.fetch("SELECT detail, response FROM reports")
    assert "ada@" not in str(texts).lower()
    assert await flow.suppressions() == []


async def test_the_same_report_twice_leaves_one_line_also_at_once(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    mail, named = bounce("ada@example.org"), origin(claimed)
    received = await asyncio.gather(*[flow.receive(mail, named) for _ in range(5)])
    assert sum(row.noted for row in received) == sum(row.suppressed for row in received) == 1
    assert await flow.receive(mail, named, named) == (0, 0, "")
    assert (await flow.receive(bounce("ada@example.org", status="5.2.1"), named)).noted == 1
    assert len(await flow.lines()) == 2


async def test_a_shared_envelopes_bounce_is_found_by_its_address(flow: ReportFlow) -> None:
    first, _ = await flow.delivered(ADA, BOB)
    mail = bounce("bob@example.org", "eve@example.org")
    assert await flow.receive(mail, origin(first, None), peer=f"::ffff:{TAKER}") == (2, 1, "")
    assert await flow.lines() == [
        (1, "bounce", "bob@example.org", "5.1.1", 550, True),
        (None, "bounce", "eve@example.org", "5.1.1", 550, False),
    ]
    assert await flow.suppressions() == [(first.account_id, "bob@example.org", "bounce")]


async def test_a_co_recipient_can_not_silence_another(flow: ReportFlow) -> None:
    first, _ = await flow.delivered(ADA, BOB)
    for peer in (OTHER_PEER, "2001:db8::1"):
        received = await flow.receive(bounce("ada@example.org"), origin(first, None), peer=peer)
        assert received.suppressed == 0
    assert await flow.lines() == [(0, "bounce", "ada@example.org", "5.1.1", 550, False)]
    assert await flow.suppressions() == []
    # The server that accepted the message is still believed.
    assert await flow.receive(bounce("ada@example.org"), origin(first, None), peer=TAKER) == (1, 1, "")


async def test_a_server_that_only_refused_the_mail_did_not_take_it(flow: ReportFlow) -> None:
    claimed = await flow.steps.claimed([ADA, BOB])
    await flow.steps.record(*[flow.steps.outcome(row, DeliveryResult.BOUNCED) for row in claimed])
    assert (await flow.receive(bounce("ada@example.org"), origin(claimed[0], None), peer=TAKER)).suppressed == 0


async def test_a_complaint_outranks_a_bounce_and_otherwise_the_older_one_stays(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    await flow.receive(bounce("ada@example.org"), origin(claimed))
    bounced_at = flow.steps.clock.now()
    flow.steps.clock.advance(hours=1)
    await flow.receive(complaint(), origin(claimed))
    complained_at = flow.steps.clock.now()
    flow.steps.clock.advance(hours=1)
    (other,) = await flow.delivered(BOB)
    await flow.steps.fetch("UPDATE recipients SET email = $1 WHERE message_id = $2", ADA, other.message_id)
    assert await flow.receive(bounce("ada@example.org"), origin(other)) == (1, 0, "")
    assert await flow.receive(complaint(), origin(other)) == (1, 0, "")
    found = await flow.steps.fetch("SELECT reason, at FROM suppressions")
    assert found == [("complaint", complained_at)]
    assert complained_at > bounced_at


@pytest.mark.rule("INB-05")
async def test_a_vacation_reply_and_anything_else_changes_nothing(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    answer = b"From: ada@example.org\r\nSubject: Re: Hello\r\n\r\nThe server said: 550 5.1.1 user unknown\r\n"
    for mail in (VACATION, answer, b"", b"\0\xff" * 5_000):
        received = await flow.receive(mail, origin(claimed))
        assert received[:2] == (0, 0)
        assert received.reason
    assert (await flow.lines(), await flow.suppressions()) == ([], [])


# The address for complaints: tokens are inside.


async def test_a_complaint_is_matched_by_the_return_path_of_the_message_that_it_contains(flow: ReportFlow) -> None:
    claimed, _ = await flow.delivered(ADA, BOB)
    # The token with a position says more than the one without.
    token = feedback_token(origin(claimed), OLD_KEY)
    mail = complaint(f"Return-Path: <{verp(claimed, 1)}>", f"CFBL-Feedback-ID: {token}", recipient="x@example.net")
    assert await flow.receive(mail) == (1, 1, "")
    assert await flow.lines() == [(1, "complaint", "abuse", None, None, True)]


async def test_a_complaint_is_matched_by_the_feedback_id(flow: ReportFlow) -> None:
    claimed, _ = await flow.delivered(ADA, BOB)
    assert await flow.receive(complaint(feedback_id(claimed))) == (1, 0, "")
    assert await flow.receive(complaint(feedback_id(claimed), recipient="BOB@example.org")) == (1, 1, "")
    assert await flow.suppressions() == [(claimed.account_id, "bob@example.org", "complaint")]


async def test_one_recipient_does_not_complain_for_all_the_others(flow: ReportFlow) -> None:
    addresses = [f"r{number}@example{number % 2}.org" for number in range(8)]
    claimed, *_ = await flow.delivered(*addresses)
    forged = [complaint(feedback_id(claimed), recipient=address) for address in addresses]
    # Only one of them can be the first.
    async with flow.steps.database.transaction() as tx:
        await store.lock(tx, claimed.message_id, origin(claimed).account_tail)
        with pytest.raises(Refusal):
            await flow.receive(forged[0])
    for mail in forged:
        await flow.receive(mail)
    # All of them are on the timeline once, and one counts.
    assert await flow.receive(forged[0]) == (0, 0, "")
    assert len(await flow.suppressions()) == 1
    assert sorted(line[-1] for line in await flow.lines()) == [False] * 7 + [True]
    assert await flow.receive(complaint(), origin(claimed, 5)) == (1, 1, "")
    assert sum(line[-1] for line in await flow.lines()) == 2


async def test_the_address_for_complaints_takes_no_bounce(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    for head in (f"Return-Path: <{verp(claimed)}>", feedback_id(claimed)):
        received = await flow.receive(bounce("ada@example.org", original=f"{head}\n"))
        assert received == (0, 0, "a bounce that didn't come to a return path")
    assert (await flow.lines(), await flow.suppressions()) == ([], [])


async def test_a_forged_token_changes_nothing(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    forged = [
        verp(claimed, key=b"guessed"),
        verp(claimed).replace(DOMAIN, "elsewhere.example"),
        "bounces+" + "a" * 48 + "@" + DOMAIN,
    ]
    for address in forged:
        assert flow.reports.origin(address) is None
        received = await flow.receive(complaint(f"Return-Path: <{address}>", recipient="ada@example.org"))
        assert received == (0, 0, "it contains none of our tokens")
    for token in (feedback_token(origin(claimed), b"guessed"), verp(claimed)[8:56], "a" * 48, "x"):
        assert (await flow.receive(complaint(f"CFBL-Feedback-ID: {token}")))[:2] == (0, 0)
    assert (await flow.receive(complaint()))[:2] == (0, 0)
    assert (await flow.lines(), await flow.suppressions()) == ([], [])


# Accounts.


async def test_another_accounts_token_never_touches_this_one(flow: ReportFlow) -> None:
    other = await flow.steps.another_sender("beta")
    (mine,) = await flow.delivered()
    (theirs,) = await flow.delivered(ADA, sender=other)
    # Signed, but for a message that the account doesn't have.
    assert await flow.receive(bounce("ada@example.org"), origin(mine, 0, other.account_id)) == (0, 0, "")
    assert await flow.receive(bounce("ada@example.org"), origin(theirs)) == (1, 1, "")
    assert await flow.suppressions() == [(other.account_id, "ada@example.org", "bounce")]
    assert await flow.steps.fetch("SELECT account_id, message_id FROM reports") == [
        (other.account_id, theirs.message_id)
    ]


async def test_accounts_whose_ids_end_alike_are_distinguished_by_the_message(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    twin = UUID(bytes=uuid4().bytes[:12] + claimed.account_id.bytes[-4:])
    insert = "INSERT INTO accounts (id, name, created_at, changed_at) VALUES ($1, 'twin', now(), now())"
    await flow.steps.fetch(insert, twin)
    await flow.receive(bounce("ada@example.org"), origin(claimed), origin(claimed, 0, twin))
    assert await flow.suppressions() == [(claimed.account_id, "ada@example.org", "bounce")]


async def test_a_message_that_is_gone_or_never_was_changes_nothing(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    for message_id in (uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
        gone = MailReference.of(claimed.account_id, message_id, 0)
        assert await flow.receive(bounce("ada@example.org"), gone) == (0, 0, "")
    assert await flow.receive(bounce("ada@example.org"), origin(claimed, 7)) == (0, 0, "")


# Bounds.


async def test_a_message_has_a_limited_number_of_lines(flow: ReportFlow) -> None:
    claimed, _ = await flow.delivered(ADA, BOB)
    for batch in range(3):
        unknown = [f"unknown{batch}x{number}@example.org" for number in range(45)]
        await flow.receive(bounce(*unknown), origin(claimed, None))
    assert len(await flow.lines()) == store.REPORTS_A_MESSAGE_MAX
    # A full list stops no complaint: a report that suppresses an address always has its line.
    assert await flow.receive(bounce("bob@example.org"), origin(claimed, 1)) == (1, 1, "")
    for number in range(3):
        noted = await flow.receive(complaint(kind=f"made-up-{number}"), origin(claimed, 1))
        assert noted == (int(number == 0), int(number == 0), "")
    assert len(await flow.lines()) == store.REPORTS_A_MESSAGE_MAX + 2
    assert await flow.receive(bounce("bob@example.org", status="5.2.2"), origin(claimed, 1)) == (0, 0, "")


async def test_mail_for_the_operator_is_stored_until_the_mailbox_is_full(flow: ReportFlow) -> None:
    mail = b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\0\r\n\r\n" + b"\xff\0" * 10
    assert [await flow.keep("192.0.2.1", mail) for _ in range(21)] == [True] * 20 + [False]
    assert [await flow.keep(f"192.0.2.{2 + number // 20}") for number in range(181)] == [True] * 180 + [False]
    flow.steps.clock.advance(days=1, seconds=1)
    assert await flow.keep("192.0.2.1", mail)
    fill = (
        "INSERT INTO postmaster_mail SELECT gen_random_uuid(), '', '', '', '', '', 'epoch' FROM generate_series(1, $1)"
    )
    await flow.steps.fetch(fill, postmaster_mail.MESSAGES_MAX - 202)
    assert await flow.keep("192.0.2.1", mail)
    assert not await flow.keep("192.0.2.1")
    assert await flow.steps.value("SELECT subject FROM postmaster_mail WHERE peer = '192.0.2.1' LIMIT 1") == "Grüße"
    assert await flow.steps.value("SELECT mime FROM postmaster_mail WHERE peer = '192.0.2.1' LIMIT 1") == mail


async def test_a_network_shares_a_share_of_the_mailbox_and_a_full_mailbox_is_logged(flow: ReportFlow) -> None:
    with capture_logs() as logs:
        assert all([await flow.keep(f"2001:db8::{number:x}") for number in range(20)])
        assert logs == []
        assert not await flow.keep("2001:db8::ffff:1")
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("postmaster_mail_has_no_capacity", "warning")]
    assert await flow.keep("2001:db8:0:1::1")


# Feedback loops.


def signed_complaint(claimed: ClaimedRecipient, **given: Any) -> bytes:
    return complaint(feedback_id(claimed), **{"author": AUTHOR, "to": COMPLAINTS, **given})


async def test_an_unsigned_complaint_is_noted_and_suppresses_nothing(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    for mail, origins in ((complaint(), [origin(claimed)]), (signed_complaint(claimed), [])):
        received = await flow.receive(mail, *origins, peer=OTHER_PEER)
        assert (received.suppressed, received.reason) == (0, "a complaint that isn't from a feedback loop")
    assert await flow.lines() == [(0, "complaint", f"abuse, unverified, from {OTHER_PEER}", None, None, False)]
    assert await flow.suppressions() == []


@pytest.mark.rule("INB-03")
async def test_a_signed_complaint_of_a_listed_provider_suppresses(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    mail = LOOP.signed(signed_complaint(claimed))
    # A forged complaint before it takes nothing from it.
    await flow.receive(signed_complaint(claimed), peer=OTHER_PEER)
    assert await flow.receive(mail, peer=OTHER_PEER) == (1, 1, "")
    assert await flow.suppressions() == [(claimed.account_id, "ada@example.org", "complaint")]
    assert await flow.receive(mail, peer=OTHER_PEER) == (0, 0, "")


async def test_a_repeated_report_does_not_suppress_a_removed_address_again(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    mail = LOOP.signed(signed_complaint(claimed))
    for report in (mail, bounce("ada@example.org")):
        await flow.receive(report, origin(claimed), peer=OTHER_PEER)
        await flow.steps.fetch("DELETE FROM suppressions")
        assert await flow.receive(report, origin(claimed), peer=OTHER_PEER) == (0, 0, "")
        assert await flow.suppressions() == []


async def test_the_envelope_of_a_signed_complaint_does_not_count(flow: ReportFlow) -> None:
    (mine,) = await flow.delivered()
    (other,) = await flow.delivered(BOB)
    # A genuine report about one message, sent to the return path of another.
    assert await flow.receive(LOOP.signed(signed_complaint(mine)), origin(other), peer=OTHER_PEER) == (1, 1, "")
    assert await flow.suppressions() == [(mine.account_id, "ada@example.org", "complaint")]


async def test_a_providers_report_to_another_sender_does_not_count(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    for to in ("fbl@another-sender.example", f"bounces@{DOMAIN}", verp(claimed, key=b"guessed")):
        mail = LOOP.signed(signed_complaint(claimed, to=to))
        assert (await flow.receive(mail, peer=OTHER_PEER)).suppressed == 0
    assert await flow.receive(LOOP.signed(signed_complaint(claimed, to=verp(claimed))), peer=OTHER_PEER) == (1, 1, "")


async def test_tokens_of_several_messages_in_a_report_suppress_nothing(flow: ReportFlow) -> None:
    (mine,) = await flow.delivered()
    (other,) = await flow.delivered(BOB)
    mail = LOOP.signed(complaint(feedback_id(mine), feedback_id(other), author=AUTHOR, to=COMPLAINTS))
    received = await flow.receive(mail, peer=OTHER_PEER)
    assert (received.noted, received.suppressed) == (2, 0)


async def test_without_an_answer_from_dns_the_complaint_must_be_sent_again(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    (name,) = LOOP.zone
    flow.nameserver.script[name] = SERVFAIL
    with pytest.raises(Refusal, match="can't be verified now"):
        await flow.receive(LOOP.signed(signed_complaint(claimed)), peer=OTHER_PEER)
    assert await flow.lines() == []


async def test_the_key_is_looked_up_once_and_only_for_listed_providers(flow: ReportFlow) -> None:
    (claimed,) = await flow.delivered()
    unlisted = FeedbackLoop("unlisted.example")
    await flow.receive(unlisted.signed(signed_complaint(claimed, author="a@unlisted.example")), peer=OTHER_PEER)
    await flow.receive(LOOP.signed(signed_complaint(claimed, author="a@unlisted.example")), peer=OTHER_PEER)
    await flow.receive(LOOP.signed(complaint(author=AUTHOR, to=COMPLAINTS)), peer=OTHER_PEER)
    assert flow.nameserver.asked == []
    for kind in ("abuse", "fraud"):
        await flow.receive(LOOP.signed(signed_complaint(claimed, kind=kind)), peer=OTHER_PEER)
    assert len(flow.nameserver.asked) == 1


async def test_each_kind_of_report_makes_the_one_event_that_it_should_and_no_other(flow: ReportFlow) -> None:
    account_id = flow.steps.sender.account_id
    await flow.steps.fetch(
        "INSERT INTO endpoints (account_id, id, url, types, enabled, secret_sealed, created_at, updated_at)"
        " VALUES ($1, gen_random_uuid(), 'https://hooks.example.com/', $2, true, '', now(), now())",
        account_id, list(FurtherType),
    )  # fmt: skip
    wrong = {}
    for sample in (NOTIFICATIONS[0], NOTICES[0], *complaints.COMPLAINTS, NEITHER[0]):
        (claimed,) = await flow.delivered()
        before = await flow.steps.fetch("SELECT id FROM events")
        await flow.receive(sample.raw.replace("\n", "\r\n").encode("utf-8", "surrogateescape"), origin(claimed))
        made = await flow.steps.fetch(
            "SELECT type FROM endpoint_events WHERE message_id = $1 ORDER BY type", claimed.message_id
        )
        assert await flow.steps.fetch("SELECT id FROM events") == before
        match sample.expected:
            case Bounce():
                expected = [("email.returned",)]
            case Complaint(kind) if kind != "not-spam":
                expected = [("email.complained",)]
            case _:
                expected = []
        if made != expected:
            wrong[sample.name] = made
        await flow.steps.fetch("DELETE FROM suppressions")
    assert wrong == {}
    sent = await flow.steps.value("SELECT count(*) FROM webhook_schedule WHERE account_id = $1", account_id)
    assert sent == await flow.steps.value("SELECT count(*) FROM endpoint_events") > 0
