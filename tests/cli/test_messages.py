"""A message's timeline as an operator reads it: every step, in order, in words."""

import json
import re
from datetime import timedelta
from typing import Any

from posthouse.cli import output
from posthouse.cli.messages import listed, plain, timeline_lines
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.operate.monitor import Monitor, Timeline
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.reports import ReportNote
from posthouse.rules.search import SearchFilters
from posthouse.store import reports
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement, postpone
from tests.cli.conftest import Type
from tests.support.context import context
from tests.support.delivery_steps import LEASE, WAIT, DeliverySteps


def test_the_list_of_an_account_without_messages_is_empty(typed: Type) -> None:
    typed("account", "create", "Acme")
    assert "There is no such message." in typed("message", "list", "Acme", "--to", "ada@example.org").stdout
    assert json.loads(typed("message", "list", "Acme", "--status", "queued", "--json").stdout) == []
    assert "whole address" in typed("message", "list", "Acme", "--to", "ada", status=1).stderr
    assert "no account" in typed("message", "list", "Absent", status=1).stderr


def test_only_a_message_can_be_opened(typed: Type) -> None:
    assert "is not a message's id" in typed("message", "open", "em_1", "--print", status=1).stderr
    absent = "em_01jbz3qk8e0000000000000000"
    assert "No account has a message" in typed("message", "open", absent, "--json", status=1).stderr


async def timeline(steps: DeliverySteps, message_id: MessageId) -> Timeline:
    monitor = Monitor(context(steps.database, steps.clock))
    return await monitor.timeline(ids.text(ids.MESSAGE, message_id))


async def shown(steps: DeliverySteps, message_id: MessageId) -> str:
    return "\n".join(line.text for line in timeline_lines(await timeline(steps, message_id)))


async def as_json(steps: DeliverySteps, message_id: MessageId) -> Any:
    return json.loads(json.dumps(plain(await timeline(steps, message_id)), default=output._encoded))


async def test_the_heading_says_who_sent_what_and_what_it_costs(steps: DeliverySteps) -> None:
    message_id = await steps.accept(["ada@example.org", "bob@example.net"])
    text = await shown(steps, message_id)
    heading = dict(re.findall(r"^(\w+) {2,}(.+)$", text, re.MULTILINE))
    assert heading["message"] == ids.text(ids.MESSAGE, message_id)
    assert heading["status"] == "queued"
    assert heading["account"].startswith("acme (ac_")
    assert "over HTTP, request rq_" in heading["accepted"]
    assert (heading["from"], heading["subject"]) == (f"news@{steps.sender.domain}", "Hello")
    assert (heading["recipients"], heading["credits"]) == ("2", "2, reserved")
    assert "to ada@example.org: queued (rc_" in text
    assert "to bob@example.net: queued (rc_" in text


async def test_mail_of_a_test_key_is_marked(steps: DeliverySteps) -> None:
    text = await shown(steps, await steps.accept(mode=Mode.TEST))
    assert "over HTTP with a test key: no mail is sent" in text
    assert "a test key's mail costs nothing" in text


async def test_new_mail_is_due_or_on_its_way(steps: DeliverySteps) -> None:
    message_id = await steps.accept()
    assert "now: due since" in await shown(steps, message_id)
    await steps.lease()
    assert "now: on its way to a worker; if none takes it, it is due again" in await shown(steps, message_id)


async def test_attempts_are_in_order_with_their_replies_and_what_follows(steps: DeliverySteps) -> None:
    (first,) = await steps.claimed()
    assert "attempt 1 is under way" in await shown(steps, first.message_id)
    assert "now: being sent by a worker" in await shown(steps, first.message_id)

    greylisted = {"mx_host": "mx1.example.org", "stage": "rcpt", "response": "4.7.1 greylisted\nsee our site"}
    await steps.record(steps.outcome(first, DeliveryResult.DEFERRED, **greylisted))
    next_try = output.text(steps.clock.now() + WAIT)
    text = await shown(steps, first.message_id)
    assert (
        "attempt 1 to mx1.example.org [192.0.2.1] over TLSv1.3: 451 4.7.1 greylisted / see our site"
        f" — next try {next_try}" in text
    )
    reply = "451 4.7.1 greylisted / see our site"
    assert f"now: greylisted by mx1.example.org: {reply}; next try at {next_try}, after 1 attempt" in text

    steps.clock.advance(WAIT)
    (second,) = await steps.claim(await steps.lease())
    await steps.record(steps.outcome(second, DeliveryResult.DELIVERED, tls=None))
    text = await shown(steps, first.message_id)
    assert "next try" not in text
    first_attempt, second_attempt, end = (line.strip() for line in text.splitlines()[-3:])
    assert "attempt 1 to mx1.example.org" in first_attempt
    assert "attempt 2 to mx.example.org [192.0.2.1] without TLS: 250 it was delivered" in second_attempt
    assert re.search(r"delivered; its credit is settled; event ev_\w{26} \(email.delivered\)$", end)


async def test_what_a_reply_says_about_this_service_is_explained(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    blocked = {"mx_host": "outlook-com.olc.protection.outlook.com", "stage": "mail", "code": 550}
    text = "5.7.1 part of their network is on our block list (S3150)"
    await steps.record(steps.outcome(claimed, DeliveryResult.BOUNCED, **blocked, response=text))

    assert (
        "About this service: The provider accepts no mail from this service's IP address. Find the mail"
        in await shown(steps, claimed.message_id)
    )
    (recipient,) = (await as_json(steps, claimed.message_id))["recipients"]
    reply_signal = recipient["attempts"][0]["reply_signal"]
    assert reply_signal["name"] == "block:address"
    assert reply_signal["explanation"]["page"].startswith("https://go.microsoft.com/")


async def test_a_reply_only_about_the_recipient_has_no_line_about_this_service(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    await steps.record(steps.outcome(claimed, DeliveryResult.BOUNCED, stage="rcpt", code=550, response="5.1.1 unknown"))

    assert "About this service" not in await shown(steps, claimed.message_id)
    (recipient,) = (await as_json(steps, claimed.message_id))["recipients"]
    assert recipient["attempts"][0]["reply_signal"] == {"name": "mailbox", "explanation": None}


async def test_an_ambiguous_attempt_says_so(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    silence = {"code": None, "response": "the server fell silent", "is_ambiguous": True}
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED, **silence))
    text = await shown(steps, claimed.message_id)
    assert "over TLSv1.3: the server fell silent — ambiguous: it may have arrived nevertheless — next try" in text


async def test_an_attempt_that_reached_no_server_names_none(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    nowhere = {"mx_host": None, "remote_ip": None, "tls": None, "code": None, "stage": None, "response": "no answer"}
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED, **nowhere))
    assert "attempt 1: no answer — next try" in await shown(steps, claimed.message_id)


async def test_a_lost_workers_attempt_is_shown_as_lost(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    steps.clock.advance(LEASE + timedelta(seconds=1))
    text = await shown(steps, claimed.message_id)
    assert "attempt 1 has no outcome: its worker was lost; the mail may have arrived" in text
    assert "now: its worker was lost; it is due again" in text
    assert await steps.reclaim() == 1
    text = await shown(steps, claimed.message_id)
    assert "attempt 1 has no outcome" in text
    assert "now: due since" in text


async def test_a_postponement_is_no_attempt(steps: DeliverySteps) -> None:
    (first,) = await steps.claimed()
    await steps.record(
        steps.outcome(first, DeliveryResult.POSTPONED, mx_host=None, remote_ip=None, code=None, response=None)
    )
    text = await shown(steps, first.message_id)
    assert "claimed, then postponed (no attempt is counted)" in text
    assert "now: postponed until" in text
    steps.clock.advance(WAIT)
    (second,) = await steps.claim(await steps.lease())
    await steps.record(steps.outcome(second, DeliveryResult.BOUNCED))
    text = await shown(steps, first.message_id)
    assert "attempt 1 to mx.example.org" in text
    assert "bounced; its credit was given back; event ev_" in text


async def test_a_suppressed_address_says_why_nothing_was_tried(steps: DeliverySteps) -> None:
    (bounced,) = await steps.claimed(["ada@example.org"])
    await steps.record(steps.outcome(bounced, DeliveryResult.BOUNCED, suppress=True, response="5.1.1 unknown"))
    (suppressed,) = await steps.claimed(["ada@example.org"])
    outcome = steps.outcome(suppressed, DeliveryResult.BOUNCED, code=None, response="the address is suppressed")
    await steps.record(outcome)
    text = await shown(steps, suppressed.message_id)
    assert "attempt" not in text
    assert "bounced: the address is suppressed; its credit was given back; event" in text
    assert "after a bounce: 550 5.1.1 unknown" in text
    assert "The address is on your suppression list, so nothing was sent. Leave it there" in text
    assert "(cause: recipient)" in text


async def test_held_mail_says_for_whom_it_waits(steps: DeliverySteps) -> None:
    message_id = await steps.accept()
    (ticket,) = await steps.lease()
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        await postpone(
            tx, [DeliveryPostponement(ticket.account_id, message_id, 0, ticket.fence, now + WAIT, True)], now
        )
    await steps.operator.suspend(steps.sender.account_id)
    text = await shown(steps, message_id)
    assert "The account is suspended since" in text
    assert f"now: held since {output.text(now)}, because the account is suspended" in text


async def test_a_recipient_that_the_calendar_lost_is_a_fault_to_report(steps: DeliverySteps) -> None:
    message_id = await steps.accept()
    await steps.fetch("DELETE FROM delivery_schedule")
    assert "Please report this as a fault." in await shown(steps, message_id)


async def test_what_outsiders_wrote_can_not_control_the_terminal(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    await steps.record(steps.outcome(claimed, DeliveryResult.BOUNCED, response="\x1b[2J\x07 gone", mx_host="mx\x1b[0m"))
    await steps.fetch("UPDATE messages SET subject = E'a\\u001b]0;title\\u0007b'")
    assert all(line.isprintable() for line in (await shown(steps, claimed.message_id)).splitlines())


async def test_programs_read_the_same(steps: DeliverySteps) -> None:
    first, _ = await steps.claimed(2)
    delivered = steps.outcome(first, DeliveryResult.DELIVERED)
    await steps.record(delivered)
    text = await as_json(steps, first.message_id)
    assert (text["id"], text["account"]) == (ids.text(ids.MESSAGE, first.message_id), "acme")
    assert (text["status"], text["credits_reserved"], text["is_shortened"]) == ("queued", 2, False)
    done, open_ = text["recipients"]
    assert delivered.event is not None
    assert done["event"]["id"] == ids.text(ids.EVENT, delivered.event.id)
    assert (done["status"], done["waiting"], done["suppression"]) == ("delivered", None, None)
    assert (done["attempts"][0]["outcome"], done["attempts"][0]["is_under_way"]) == ("delivered", False)
    assert (open_["status"], open_["event"], open_["attempt_count"]) == ("queued", None, 1)
    assert open_["attempts"][0]["is_under_way"]
    assert open_["waiting"]["because"] == "being sent by a worker"
    assert [done["explanation"]["reason"], open_["attempts"][0]["explanation"]["reason"]] == ["delivered", "sending"]


async def test_later_bounces_and_complaints_are_shown(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed(["ada@example.org"])
    await steps.record(steps.outcome(claimed, DeliveryResult.DELIVERED))
    steps.clock.advance(hours=1)
    at = output.text(steps.clock.now())
    notes = [
        ReportNote("bounce", 0, "ada@example.org", "5.1.1", 550, "5.1.1 \x1b[2J unknown", suppress=True),
        ReportNote("complaint", 0, "abuse", response="an abuse report"),
        ReportNote("bounce", None, "eve@example.net", "5.2.2"),
        ReportNote("complaint", None, "fraud"),
    ]
    async with steps.database.transaction() as tx:
        await reports.add_reports(tx, AccountId(claimed.account_id), claimed.message_id, notes, steps.clock.now())
    text = await shown(steps, claimed.message_id)
    assert "delivered; its credit is settled" in text
    assert re.search(rf"{at}  came back later: a bounce: 550 5.1.1 .* unknown", text)
    assert f"{at}  came back later: a complaint (abuse): an abuse report" in text
    assert f"{at}  came back later: a bounce of eve@example.net, which is no recipient: 5.2.2" in text
    assert f"{at}  came back later: a complaint (fraud) that names no recipient" in text
    assert all(line.isprintable() for line in text.splitlines())
    values = await as_json(steps, claimed.message_id)
    assert sorted(report["kind"] for report in values["recipients"][0]["reports"]) == ["bounce", "complaint"]
    assert len(values["reports"]) == 2


async def test_messages_of_an_account_are_listed_by_recipient(steps: DeliverySteps) -> None:
    search = MessageSearch(context(steps.database, steps.clock))
    await steps.accept(["ada@example.org"])
    wanted = await steps.accept(["bob@example.net", "eve@example.net"])
    filters = SearchFilters(recipient="bob@example.net")
    (row,) = (await search.page(AccountId(steps.sender.account_id), filters, 10, None)).items
    assert listed(row) == {
        "id": ids.text(ids.MESSAGE, wanted),
        "created_at": row.created_at,
        "status": "queued",
        "source": "api",
        "from": f"news@{steps.sender.domain}",
        "to": "bob@example.net, eve@example.net",
        "subject": "Hello",
    }
