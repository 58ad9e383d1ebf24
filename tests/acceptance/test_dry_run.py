"""Test mail is really sent, and dry runs store nothing."""

import asyncio
import base64
from typing import Any

import pytest

from posthouse.rules.credential import Scope
from tests.support.http_answer import Answer
from tests.support.nameserver import Nameserver
from tests.support.service import ABSENT, Service, StartService, Tenant

TEST = "/v1/test-email"
DRY_RUN = "/v1/emails/dry-run"
MIB = 1024 * 1024


async def dry_run(tenant: Tenant, body: object = ABSENT, **changes: object) -> dict[str, Any]:
    """A dry run that succeeds and changes nothing."""
    before = await tenant.state()
    answer = await tenant.call(
        "POST", DRY_RUN, tenant.mail(to="delivered@simulator.invalid", **changes) if body is ABSENT else body
    )
    assert answer.status == 200, answer.raw[:500]
    assert await tenant.state() == before
    return answer.body


@pytest.mark.rule("TRY-01", "TRY-02")
async def test_a_test_mail_goes_to_its_sender_with_the_usual_response(tenant: Tenant) -> None:
    email = (await tenant.call("GET", "/v1/auth/me")).body["user"]["email"]
    answer = await tenant.call("POST", TEST, {})
    assert answer.is_accepted()
    body = answer.body
    assert (body["source"], body["status"], body["to"], body["from"]) == (
        "test", "queued", [email], f"test@{tenant.domain}",
    )  # fmt: skip
    assert (body["recipient_count"], body["credits_reserved"]) == (1, 1)
    assert answer.headers["RateLimit-Limit"]
    assert await tenant.available() == 999
    message = (await tenant.get(body["id"])).body
    assert (message["source"], message["credits_reserved"]) == ("test", 1)
    # It is queued for the address's domain, not for the simulator.
    (row,) = await tenant.service.sql("SELECT destination FROM delivery_schedule WHERE account_id = $1", tenant.id)
    assert row["destination"] == email.rpartition("@")[2]
    stored = await tenant.stored(body["id"])
    assert (stored["To"], stored["Subject"]) == (email, "A test message")
    assert tenant.domain in stored.get_content()
    own = await tenant.call(
        "POST", TEST, {"from": f"Acme <hello@{tenant.domain}>", "subject": "Mine", "html": "<p>Hello</p>"}
    )
    stored = await tenant.stored(own.body["id"])
    assert (own.body["from"], stored["Subject"], stored.get_content_type()) == (
        f"Acme <hello@{tenant.domain}>", "Mine", "text/html",
    )  # fmt: skip


@pytest.mark.rule("TRY-03")
async def test_a_test_mail_is_refused_like_any_mail(service: Service, tenant: Tenant) -> None:
    answer = await tenant.call("POST", TEST, {"from": "news@elsewhere.example.com"})
    assert answer.is_refusal(403, "forbidden", "elsewhere.example.com")
    assert (await tenant.call("POST", TEST, {"subject": "x" * 501})).is_refusal(400, "invalid_request", "`subject`")
    assert (await tenant.call("POST", TEST, {"to": "ada@example.org"})).is_refusal(400, "invalid_request", "`to`")
    await service.operator.suspend(tenant.id)
    assert (await tenant.call("POST", TEST, {})).is_refusal(403, "account_suspended")
    homeless = await service.account(domain=None)
    assert (await homeless.call("POST", TEST, {})).is_refusal(403, "forbidden", "/v1/domains")
    poor = await service.account(credits=0)
    assert (await poor.call("POST", TEST, {})).is_refusal(402, "insufficient_credits")
    new = await service.account(warmup=(1,))
    assert (await new.call("POST", TEST, {})).is_accepted()
    assert (await new.call("POST", TEST, {"subject": "Another"})).is_refusal(429, "warmup_limited")
    slow = await service.account(rate=(1, 1))
    await slow.use_up_rate()
    assert (await slow.call("POST", TEST, {})).is_refusal(429, "rate_limited")


@pytest.mark.rule("TRY-04")
async def test_a_double_click_sends_one_message_and_a_key_works_as_elsewhere(tenant: Tenant) -> None:
    first, second = await tenant.call("POST", TEST, {}), await tenant.call("POST", TEST, {})
    assert (first.body["id"], second.headers["Idempotent-Replayed"]) == (second.body["id"], "true")
    other = await tenant.call("POST", TEST, {"subject": "Another"})
    assert other.is_accepted()
    assert other.body["id"] != first.body["id"]
    colleague = await tenant.call("POST", TEST, {}, role="member")
    assert colleague.is_accepted()
    assert colleague.body["to"] != first.body["to"]
    given = {"Idempotency-Key": tenant.new_key()}
    keyed = [(await tenant.call("POST", TEST, {}, **given)).body["id"] for _ in range(2)]
    assert keyed[0] == keyed[1] != first.body["id"]
    assert (await tenant.call("POST", TEST, {"subject": "x"}, **given)).is_refusal(409, "idempotency_conflict")
    # An ordinary message is no replay of a test message, and the other way round.
    token = await tenant.jwt()
    sent = await tenant.send({}, key=given["Idempotency-Key"], authorization=token)
    assert sent.status == 400
    assert (await tenant.send(key=given["Idempotency-Key"], authorization=token)).is_refusal(
        409, "idempotency_conflict"
    )
    for key in ("", "x" * 256):
        answer = await tenant.call("POST", TEST, {}, **{"Idempotency-Key": key})
        assert answer.is_refusal(400, "invalid_request", "Idempotency-Key")


@pytest.mark.rule("TRY-17")
async def test_a_key_with_the_scope_send_tries_what_it_would_send(service: Service) -> None:
    regular = await service.account(credits=0)

    async def tried(authorization: str, **changes: object) -> Answer:
        body = regular.mail(**({"to": "ada@example.org"} | changes))
        return await service.request("POST", DRY_RUN, headers={"Authorization": authorization}, json=body)

    live, test_mode = [await tried(await regular.key(mode)) for mode in ("live", "test")]
    assert [answer.status for answer in (live, test_mode)] == [200, 200]
    assert (live.body["refusal"]["code"], live.body["credits"]["needed"]) == ("insufficient_credits", 1)
    assert (test_mode.body["would_accept"], test_mode.body["credits"]["needed"]) == (True, 0)
    assert [answer.body["recipients"][0]["simulator"] for answer in (live, test_mode)] == [False, True]
    other = f"other.{regular.unique}.example.com"
    await service.operator.add_verified_domain(regular.id, other)
    bound = await regular.scoped_key(Scope.SEND, sender_domains=(other,))
    refusal = (await tried(bound)).body["refusal"]
    assert (refusal["code"], other in refusal["error"]) == ("forbidden", True)
    assert (await tried(await regular.scoped_key(Scope.MESSAGES))).is_refusal(401, "unauthorized", "`send`")


@pytest.mark.rule("TRY-10")
async def test_an_invalid_body_is_refused_as_by_sending(regular: Tenant) -> None:
    bodies: list[object] = [
        regular.mail(to=[]),
        regular.mail(to="nobody"),
        regular.mail(subject=ABSENT),
        regular.mail(replyTo="x"),
        regular.mail(headers={"From": "x"}),
        regular.mail(tags=["x" * 129]),
        regular.mail(variables={}),
        regular.mail(to=[f"r{number}@example.org" for number in range(51)]),
        regular.mail(attachments=[{"filename": "../x", "content": ""}]),
        regular.mail(text="x" * (10 * MIB + 1)),
        [],
    ]
    for body in bodies:
        sent, dry = await regular.send(body), await regular.call("POST", DRY_RUN, body)
        assert (dry.status, dry.code, dry.error) == (sent.status, sent.code, sent.error)
        assert dry.status in {400, 413}
    large = await regular.service.request(
        "POST",
        DRY_RUN,
        headers={"Authorization": await regular.jwt(), "Content-Type": "application/json"},
        data=b"{" * (17 * MIB),
    )
    assert large.is_refusal(413, "payload_too_large")


@pytest.mark.rule("TRY-11", "TRY-16")
async def test_the_first_refusal_is_returned_in_the_order_of_sending(service: Service) -> None:
    tenant = await service.account(credits=0, warmup=(1,))
    to = ["delivered@simulator.invalid", "delivered+2@simulator.invalid"]
    from_ = "news@elsewhere.example.com"

    async def refusal(**changes: object) -> str | None:
        result = await dry_run(tenant, tenant.mail(**{"to": to, **changes}))
        assert result["would_accept"] is (result["refusal"] is None)
        sent = await tenant.send(tenant.mail(**{"to": to, **changes}))
        if result["refusal"] is None:
            assert sent.is_accepted()
            return None
        assert (result["refusal"]["code"], result["refusal"]["error"]) == (sent.code, sent.error)
        code: str = result["refusal"]["code"]
        return code

    await service.operator.suspend(tenant.id)
    assert await refusal(from_=from_, subject=ABSENT, text=ABSENT, template="nothing") == "account_suspended"
    await service.operator.resume(tenant.id)
    assert await refusal(from_=from_, subject=ABSENT, text=ABSENT, template="nothing") == "forbidden"
    assert await refusal(subject=ABSENT, text=ABSENT, template="nothing") == "invalid_request"
    assert await refusal() == "warmup_limited"
    assert await refusal(to=to[0]) == "insufficient_credits"
    await service.operator.grant_credits(tenant.id, 10)
    assert await refusal(to=to[0]) is None
    await tenant.use_up_rate()
    result = await dry_run(tenant, tenant.mail(to=to))
    assert result["refusal"]["code"] == "rate_limited"
    # What is shown despite the refusal.
    assert result["mime"]
    assert (result["credits"], len(result["recipients"])) == ({"needed": 2, "available": 9}, 2)


@pytest.mark.rule("TRY-12")
async def test_the_message_is_shown_as_it_would_be_stored(regular: Tenant) -> None:
    alias = f"welcome-{regular.unique}"
    await regular.template(alias, subject="Welcome {{name}}", text="Hello {{name}}", html="<p>Hello {{name}}</p>")
    draft = regular.mail(
        to="delivered@simulator.invalid", subject=ABSENT, text=ABSENT, template=alias, variables={"name": "Ada"}
    )
    result = await dry_run(regular, draft)
    assert (result["would_accept"], result["template"], result["subject"]) == (True, alias, "Welcome Ada")
    assert result["size_bytes"] == len(result["mime"].encode())
    stored = await regular.stored((await regular.accepts(draft))["id"])
    shown = result["mime"]
    assert "Subject: Welcome Ada" in shown
    for part in stored.walk():
        if not part.is_multipart():
            assert part.get_content().strip() in shown
    assert "DKIM-Signature" not in shown


@pytest.mark.rule("TRY-12")
async def test_a_large_message_is_shown_and_delays_no_other_request(regular: Tenant) -> None:
    content = base64.b64encode(bytes(7 * MIB)).decode()
    draft = regular.mail(to="delivered@simulator.invalid", attachments=[{"filename": "zeros.bin", "content": content}])
    large = asyncio.create_task(dry_run(regular, draft))
    while not large.done():
        assert (await regular.service.request("GET", "/healthz")).status == 200
    result = await large
    assert result["would_accept"]
    assert result["size_bytes"] == len(result["mime"]) > 9 * MIB
    assert any("MiB" in warning for warning in result["warnings"])


@pytest.mark.rule("TRY-13", "TRY-15")
async def test_recipients_are_shown_with_lanes_and_suppressions(start_service: StartService, tenant: Tenant) -> None:
    async with Nameserver() as nameserver:
        nameserver.records["gmail.example.net", "MX"] = ["10 gmail-smtp-in.l.google.com."]
        nameserver.records["own.example.net", "MX"] = ["10 mx.own.example.net."]
        nameserver.records["null.example.net", "MX"] = ["0 ."]
        running = await start_service(SERVICE__RESOLVERS=f'["{nameserver.endpoint[0]}:{nameserver.endpoint[1]}"]')
        assert (await tenant.call("POST", "/v1/suppressions", {"email": "bob@own.example.net"})).status == 201
        draft = tenant.mail(
            to=["Ada <Ada@gmail.example.net>", "ada@GMAIL.example.net"],
            cc="Bob@own.example.net",
            bcc=["bounced@simulator.invalid", "eve@null.example.net", "cyd@nowhere.example.net"],
        )
        answer = await running.request("POST", DRY_RUN, headers={"Authorization": await tenant.jwt()}, json=draft)
    assert answer.status == 200, answer.raw
    body = answer.body
    assert set(body["recipients"][0]) == {"email", "field", "suppressed", "lane", "simulator"}
    assert [tuple(recipient.values()) for recipient in body["recipients"]] == [
        ("Ada@gmail.example.net", "to", None, "google", False),
        ("Bob@own.example.net", "cc", "manual", "own.example.net", False),
        ("bounced@simulator.invalid", "bcc", None, "simulator.invalid", True),
        ("eve@null.example.net", "bcc", None, None, False),
        ("cyd@nowhere.example.net", "bcc", None, None, False),
    ]
    assert body["credits"] == {"needed": 5, "available": 1_000}
    assert [warning for warning in body["warnings"] if "null.example.net accepts no mail" in warning]
    assert [warning for warning in body["warnings"] if "1 of the recipients are suppressed" in warning]


@pytest.mark.rule("TRY-14")
async def test_the_senders_domain_is_shown(service: Service, tenant: Tenant) -> None:
    result = (await dry_run(tenant))["domain"]
    (row,) = await service.sql("SELECT selector FROM domains WHERE account_id = $1", tenant.id)
    assert (result["name"], result["registered"], result["verified"]) == (tenant.domain, True, True)
    assert row["selector"] in result["dkim_selectors"]
    assert (result["dkim_aligned"], result["spf_aligned"]) == (True, False)
    assert result["return_path"]
    await service.operator.add_domain(tenant.id, f"new.{tenant.domain}")
    result = await dry_run(tenant, from_=f"news@new.{tenant.domain}")
    assert (result["would_accept"], result["refusal"]["code"]) == (False, "forbidden")
    assert (result["domain"]["registered"], result["domain"]["verified"]) == (True, False)
    assert (result["domain"]["dkim_selectors"], result["domain"]["dkim_aligned"]) == ([], False)
    result = (await dry_run(tenant, from_="news@elsewhere.example.com"))["domain"]
    assert (result["registered"], result["verified"]) == (False, False)


@pytest.mark.rule("TRY-15")
async def test_warnings_name_what_could_be_better(regular: Tenant) -> None:
    assert (await dry_run(regular))["warnings"] == []
    cases: list[tuple[dict[str, object], str]] = [
        ({"text": ABSENT, "html": "<p>Hello</p>"}, "no text part"),
        ({"tags": ["newsletter"]}, "List-Unsubscribe"),
        ({"tags": ["list:news"]}, "List-Unsubscribe"),
        ({"html": "<p>" + "x" * 103 * 1024}, "Gmail"),
    ]
    for changes, named in cases:
        (warning,) = (await dry_run(regular, **changes))["warnings"]
        assert named in warning
    header = {"headers": {"List-Unsubscribe": "<https://example.com/leave>"}}
    assert (await dry_run(regular, tags=["newsletter"], **header))["warnings"] == []


@pytest.mark.rule("TRY-18")
async def test_dry_runs_are_rate_limited(tenant: Tenant) -> None:
    draft = tenant.mail(to="delivered@simulator.invalid")
    await tenant.jwt()  # the same token for all
    calls = [tenant.call("POST", DRY_RUN, draft) for _ in range(150)]
    answers = await asyncio.gather(*calls)
    refused = [answer for answer in answers if answer.status == 429]
    assert {answer.status for answer in answers} == {200, 429}
    assert all(answer.is_refusal(429, "rate_limited") for answer in refused)
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
