"""Many emails in one request: results in order, one key for all, all or none, the rate, limits of size."""

import asyncio
import base64
from collections import Counter
from typing import Any

import pytest

from posthouse.rules import limits
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, Service, Tenant

Email = dict[str, Any]


async def post(tenant: Tenant, body: object, key: object = None, **others: Any) -> Answer:
    headers = {"Authorization": others.pop("authorization", tenant.basic)}
    if key is not ABSENT:
        headers["Idempotency-Key"] = str(tenant.new_key() if key is None else key)
    service: Service = others.pop("service", tenant.service)
    return await service.request("POST", "/emails/batch", headers=headers, json=body)


async def results(tenant: Tenant, body: object, key: object = None, **others: Any) -> list[Email]:
    answer = await post(tenant, body, key, **others)
    assert answer.status == 200, answer.body
    found: list[Email] = answer.body["results"]
    return found


def drafts(tenant: Tenant, count: int) -> list[Email]:
    return [tenant.mail(to=f"r{number}@example.org", subject=f"No. {number}") for number in range(count)]


# Each would be refused on its own, in another way.
WRONG: list[tuple[Email, int, str]] = [
    ({"to": "nobody"}, 400, "invalid_request"),
    ({"to": []}, 400, "invalid_request"),
    ({"from": "a@unverified.example"}, 403, "forbidden"),
    ({"subject": "x" * 501}, 400, "invalid_request"),
    ({"subject": "two\nlines"}, 400, "invalid_request"),
    ({"headers": {"From": "x@example.net"}}, 400, "invalid_request"),
    ({"attachments": [{"filename": "a.txt", "content": "%"}]}, 400, "invalid_request"),
    ({"template": "unknown", "text": None}, 400, "invalid_request"),
    ({"tags": ["x" * 129]}, 400, "invalid_request"),
    ({"colour": "red"}, 400, "invalid_request"),
]


@pytest.mark.rule("BAT-01", "BAT-02")
async def test_450_of_500_emails_are_accepted_and_50_wrong_ones_refused_in_their_places(service: Service) -> None:
    tenant = await service.account()
    emails = drafts(tenant, 500)
    wrong = {index: WRONG[index // 10 % len(WRONG)] for index in range(0, 500, 10)}
    for index, (change, _, _) in wrong.items():
        emails[index] |= change
    # No object at all.
    wrong[490] = ({}, 400, "invalid_request")
    answers = await results(tenant, {"emails": [*emails[:490], "x", *emails[491:]]})
    assert len(answers) == 500
    for index, answer in enumerate(answers):
        if index in wrong:
            _, status, code = wrong[index]
            assert (answer["http_status"], answer["code"]) == (status, code), (index, answer)
            assert set(answer) == {"error", "code", "request_id", "http_status"}
        else:
            assert (answer["status"], answer["to"], answer["subject"]) == (
                "queued",
                [f"r{index}@example.org"],
                f"No. {index}",
            )
    assert len({answer["id"] for answer in answers if "id" in answer}) == 450
    counts = await tenant.counts()
    assert (counts["messages"], counts["delivery_schedule"], counts["reserved"]) == (450, 450, 450)
    assert await tenant.available() == 550


@pytest.mark.rule("BAT-02")
async def test_a_result_has_the_fields_of_a_single_response(tenant: Tenant) -> None:
    body = tenant.mail(cc=["bob@example.org"], reply_to="help@example.net", headers={"X-Thing": "1"}, tags=["a"])
    single = await tenant.accepts(body)
    (result,) = await results(tenant, {"emails": [body]})
    assert result | {"id": "", "request_id": ""} == single | {"id": "", "request_id": ""}


@pytest.mark.rule("BAT-01")
async def test_defaults_are_fields_of_every_email_that_lacks_them(tenant: Tenant) -> None:
    pdf = base64.b64encode(b"%PDF" * 1_000).decode()
    defaults = tenant.mail(to=ABSENT, subject="For all", attachments=[{"filename": "a.pdf", "content": pdf}])
    emails = [{"to": "ada@example.org"}, {"to": "bob@example.org", "subject": "Own", "attachments": []}]
    first, second = await results(tenant, {"defaults": defaults, "emails": emails})
    assert (first["subject"], second["subject"]) == ("For all", "Own")
    assert [item["size"] for item in first["attachments"]] == [4_000]
    assert second["attachments"] == []
    stored = await tenant.stored(first["id"])
    assert next(stored.iter_attachments()).get_content() == b"%PDF" * 1_000


@pytest.mark.rule("BAT-01")
@pytest.mark.parametrize(
    ("body", "naming"),
    [
        ({}, "emails"),
        ({"emails": []}, "1 to 500"),
        ({"emails": [{}] * 501}, "501"),
        ({"emails": [{}], "all": "yes"}, "all"),
        ({"emails": [{}], "defaults": []}, "defaults"),
        ({"emails": [{}], "others": 1}, "others"),
        ({"emails": [{}] * 500, "defaults": {"to": ["a@example.org"] * 1_000}}, "entries"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_wrong_body_is_refused_as_a_whole(regular: Tenant, body: Email, naming: str) -> None:
    answer = await post(regular, body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert naming in answer.body["error"]


@pytest.mark.rule("BAT-03", "BAT-07")
async def test_it_is_admitted_as_a_single_request_is(tenant: Tenant) -> None:
    body = {"emails": drafts(tenant, 1)}
    assert (await post(tenant, body, authorization="Bearer ph_live_wrong")).status == 401
    assert (await post(tenant, body, authorization=await tenant.jwt("viewer"))).status == 403
    (sent,) = await results(tenant, body, authorization=await tenant.key("live"))
    assert sent["credits_reserved"] == 1
    (in_test_mode,) = await results(tenant, body, authorization=await tenant.key("test"))
    assert in_test_mode["credits_reserved"] == 0
    await tenant.service.operator.suspend(tenant.id)
    assert (await post(tenant, body)).code == "account_suspended"


@pytest.mark.rule("BAT-04")
async def test_the_same_request_again_has_the_same_ids_and_tries_what_was_refused(service: Service) -> None:
    tenant = await service.account(credits=100)
    body = {"emails": drafts(tenant, 500)}
    key = tenant.new_key()
    first = await results(tenant, body, key)
    assert Counter(answer.get("code", "accepted") for answer in first) == {
        "accepted": 100,
        "insufficient_credits": 400,
    }
    assert [answer["http_status"] for answer in first if "code" in answer] == [402] * 400
    assert (await tenant.counts())["messages"] == 100
    await service.operator.grant_credits(tenant.id, 150)
    second = await results(tenant, body, key)
    assert [answer.get("id") for answer in second[:100]] == [answer.get("id") for answer in first[:100]]
    assert Counter("id" in answer for answer in second) == {True: 250, False: 250}
    assert (await tenant.counts())["messages"] == 250


@pytest.mark.rule("BAT-04")
async def test_a_replay_says_so_and_a_key_is_required(tenant: Tenant) -> None:
    body = {"emails": drafts(tenant, 3)}
    key = tenant.new_key()
    first, again = await post(tenant, body, key), await post(tenant, body, key)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert [item["id"] for item in again.body["results"]] == [item["id"] for item in first.body["results"]]
    assert (await post(tenant, body, ABSENT)).status == 400


@pytest.mark.rule("BAT-05")
async def test_a_key_is_of_one_body_be_it_single_or_of_many(tenant: Tenant) -> None:
    email = tenant.mail()
    batch_key, single_key = tenant.new_key(), tenant.new_key()
    await results(tenant, {"emails": [email]}, batch_key)
    await tenant.refuses(email, 409, "idempotency_conflict", key=batch_key)
    assert (await post(tenant, {"emails": [email, email]}, batch_key)).code == "idempotency_conflict"
    await tenant.accepts(email, key=single_key)
    assert (await post(tenant, {"emails": [email]}, single_key)).code == "idempotency_conflict"
    assert (await tenant.counts())["messages"] == 2


@pytest.mark.rule("BAT-05", "BAT-04")
async def test_64_simultaneous_equal_requests_make_one_set(service: Service, another: Service) -> None:
    tenant = await service.account()
    body = {"emails": drafts(tenant, 60)}
    key = tenant.new_key()
    answers = await asyncio.gather(
        *[post(tenant, body, key, service=(service, another)[number % 2]) for number in range(64)]
    )
    assert {answer.code for answer in answers if answer.status != 200} <= {"idempotency_in_progress"}
    last = await eventually(lambda: post(tenant, body, key), lambda answer: answer.status == 200)
    ids = [item["id"] for item in last.body["results"]]
    assert len(set(ids)) == 60
    for answer in answers:
        if answer.status == 200:
            assert [item["id"] for item in answer.body["results"]] == ids
    assert (await tenant.counts())["messages"] == 60
    assert await tenant.available() == 940


@pytest.mark.rule("BAT-06")
async def test_with_all_one_refusal_refuses_all(service: Service) -> None:
    tenant = await service.account(credits=100)
    emails = drafts(tenant, 500)
    key = tenant.new_key()
    answer = await post(tenant, {"emails": emails, "all": True}, key)
    assert (answer.status, answer.code) == (402, "insufficient_credits")
    assert "`emails[100]`" in answer.body["error"]
    emails[7] = emails[7] | {"to": "nobody"}
    answer = await post(tenant, {"emails": emails, "all": True})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "`emails[7]`" in answer.body["error"]
    assert ((await tenant.counts())["messages"], await tenant.available()) == (0, 100)
    accepted = await results(tenant, {"emails": drafts(tenant, 100), "all": True}, key)
    assert len({item["id"] for item in accepted}) == 100
    assert await tenant.available() == 0


@pytest.mark.rule("BAT-07")
async def test_25_emails_count_as_one_request_of_the_rate(service: Service) -> None:
    tenant = await service.account()
    await tenant.set(rate_per_second=1, rate_burst=3)
    answers = await results(tenant, {"emails": drafts(tenant, 100)})
    # Three requests at once; a fourth only if a second has passed meanwhile.
    accepted = sum("id" in answer for answer in answers)
    assert accepted in {75, 100}
    assert {answer["code"] for answer in answers[accepted:]} <= {"rate_limited"}
    await tenant.use_up_rate()
    refused = await post(tenant, {"emails": drafts(tenant, 2)})
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert int(refused.headers["Retry-After"]) >= 1


@pytest.mark.rule("BAT-08")
@pytest.mark.parametrize(("is_all", "mode"), [(False, "live"), (True, "test")])
async def test_a_request_has_a_limited_number_of_recipients(regular: Tenant, is_all: bool, mode: str) -> None:
    # The largest number is accepted in tests/attacks/test_recipients.py: here they would wait forever.
    emails = [email | {"cc": ["cc@example.org"]} for email in drafts(regular, 500)]
    emails[7] = emails[7] | {"bcc": "bcc@example.org"}
    refused = await post(regular, {"emails": emails, "all": is_all}, authorization=await regular.key(mode))
    assert (refused.status, refused.code) == (413, "payload_too_large")
    assert "have 1,001 recipients" in refused.body["error"]
    assert "at most 1,000" in refused.body["error"]


@pytest.mark.rule("BAT-08", "BAT-01")
async def test_a_large_attachment_for_many_is_transferred_once_and_sent_in_steps(service: Service) -> None:
    tenant = await service.account()
    content = base64.b64encode(bytes(3 * limits.MIB)).decode()
    defaults = tenant.mail(to=ABSENT, attachments=[{"filename": "a.bin", "content": content}])
    body: Email = {"defaults": defaults, "emails": [{"to": f"r{number}@example.org"} for number in range(40)]}
    key = tenant.new_key()
    first = await results(tenant, body, key)
    accepted = [answer for answer in first if "id" in answer]
    assert 25 <= len(accepted) < 40
    assert {answer["code"] for answer in first if "code" in answer} == {"payload_too_large"}
    second = await results(tenant, body, key)
    assert len({answer["id"] for answer in second}) == 40
    assert (await tenant.counts())["messages"] == 40
    refused = await post(tenant, body | {"all": True})
    assert (refused.status, refused.code) == (413, "payload_too_large")


@pytest.mark.rule("BAT-02")
async def test_an_email_that_fails_fails_no_other(service: Service) -> None:
    tenant = await service.account()
    await service.sql(
        "CREATE OR REPLACE FUNCTION refuse_poison() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'poison'; END $$"
    )
    await service.sql(
        "CREATE OR REPLACE TRIGGER poison BEFORE INSERT ON messages FOR EACH ROW"
        " WHEN (NEW.subject = 'poison') EXECUTE FUNCTION refuse_poison()"
    )
    emails = drafts(tenant, 4)
    emails[2]["subject"] = "poison"
    key = tenant.new_key()
    first = await results(tenant, {"emails": emails}, key)
    assert [answer.get("code", "accepted") for answer in first] == [
        "accepted",
        "accepted",
        "internal_error",
        "accepted",
    ]
    await service.sql("DROP TRIGGER poison ON messages")
    second = await results(tenant, {"emails": emails}, key)
    assert [answer["id"] for answer in (second[0], second[1], second[3])] == [
        answer["id"] for answer in (first[0], first[1], first[3])
    ]
    assert second[2]["status"] == "queued"
    assert (await tenant.counts())["messages"] == 4
