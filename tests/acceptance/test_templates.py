"""Templates: managing them under /v1/templates, rendering and sending them."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, Tenant

CONTENT = {"subject": "Hello {{ name }}", "text": "Dear {{ name }},", "html": "<p>Dear {{name}},</p>"}


def sending(tenant: Tenant, alias: str, variables: object = ABSENT, **changes: object) -> dict[str, Any]:
    fields = {"subject": ABSENT, "text": ABSENT, "template": alias, "variables": variables} | changes
    return tenant.mail(**fields)


async def preview(tenant: Tenant, alias: str, **body: object) -> Answer:
    return await tenant.call("POST", f"/v1/templates/{alias}/preview", body)


@pytest.mark.rule("TMPL-01")
async def test_creating_makes_version_1_unpublished_unless_asked_to(regular: Tenant) -> None:
    alias = regular.new_key()
    answer = await regular.call("POST", "/v1/templates", {"alias": alias, "name": "Welcome mail", **CONTENT})
    assert answer.status == 201
    template = answer.body["template"]
    assert (template["alias"], template["name"]) == (alias, "Welcome mail")
    assert (template["published_version"], template["latest_version"]) == (None, 1)
    assert datetime.fromisoformat(template["created_at"]) <= datetime.fromisoformat(template["updated_at"])
    await regular.refuses(sending(regular, alias, {"name": "Ada"}), 400, "invalid_request", alias)
    another = await regular.template(regular.new_key(), **CONTENT)
    assert another.body["template"]["published_version"] == 1
    await regular.accepts(sending(regular, another.body["template"]["alias"], {"name": "Ada"}))


@pytest.mark.rule("TMPL-03", "CODE-07")
async def test_an_alias_in_use_is_a_conflict(regular: Tenant, other_tenant: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    answer = await regular.call("POST", "/v1/templates", {"alias": alias, "text": "Other"})
    assert answer.is_refusal(409, "conflict", alias)
    for wrong in (ABSENT, None, 7, "A b"):
        body = {"text": "Other"} if wrong is ABSENT else {"text": "Other", "alias": wrong}
        assert (await regular.call("POST", "/v1/templates", body)).is_refusal(400, "invalid_request", "alias")
    await other_tenant.template(alias, text="Other", subject="Other")
    kept = await preview(regular, alias, variables={"name": "Ada"})
    assert kept.body["text"] == "Dear Ada,"


@pytest.mark.rule("TMPL-04", "TMPL-06")
async def test_a_template_shows_all_its_versions(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    grown = await regular.call("POST", f"/v1/templates/{alias}/versions", {"subject": "Two", "html": "<p>2"})
    assert grown.status == 201
    assert (grown.body["version"], grown.body["template"]["latest_version"]) == (2, 2)
    assert grown.body["template"]["published_version"] == 1
    answer = await regular.call("GET", f"/v1/templates/{alias}")
    assert answer.status == 200
    versions = {version["version"]: version for version in answer.body["template"]["versions"]}
    assert set(versions) == {1, 2}
    assert {name: versions[1][name] for name in CONTENT} == CONTENT
    assert (versions[2]["subject"], versions[2]["text"], versions[2]["html"]) == ("Two", None, "<p>2")
    assert all(datetime.fromisoformat(version["created_at"]) for version in versions.values())


async def subject(tenant: Tenant, alias: str) -> object:
    """The subject of a message that is sent with this template now."""
    return (await tenant.accepts(sending(tenant, alias)))["subject"]


@pytest.mark.rule("TMPL-06", "TMPL-07")
async def test_a_new_version_is_sent_only_after_it_is_published(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="One", text="1")
    assert (await regular.accepts(sending(regular, alias)))["subject"] == "One"
    later = regular.new_key()
    await regular.template(later, subject="One", text="1")
    assert await subject(regular, later) == "One"
    for name in (alias, later):
        await regular.call("POST", f"/v1/templates/{name}/versions", {"subject": "Two", "text": "2"})
    # Once the other's new version is sent, the cache has read this template again.
    await regular.call("POST", f"/v1/templates/{later}/publish", {"version": 2})
    await eventually(lambda: subject(regular, later), lambda sent: sent == "Two")
    assert await subject(regular, alias) == "One"
    answer = await regular.call("POST", f"/v1/templates/{alias}/publish", {"version": 2})
    assert answer.status == 200
    assert answer.body["template"]["published_version"] == 2
    await eventually(lambda: subject(regular, alias), lambda sent: sent == "Two")
    back = await regular.call("POST", f"/v1/templates/{alias}/publish", {"version": 1})
    assert back.body["template"]["published_version"] == 1
    await eventually(lambda: subject(regular, alias), lambda sent: sent == "One")


@pytest.mark.rule("TMPL-06")
async def test_concurrent_versions_each_get_a_number(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="1")
    answers = await asyncio.gather(
        *[regular.call("POST", f"/v1/templates/{alias}/versions", {"text": str(number)}) for number in range(8)]
    )
    assert sorted(answer.body["version"] for answer in answers) == list(range(2, 10))


@pytest.mark.rule("TMPL-07", "CODE-13")
async def test_a_version_that_does_not_exist_is_not_published(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="Good morning.")
    cases: list[tuple[object, int]] = [(2, 404), (2**31 - 1, 404), ("one", 400), (None, 400), (1.5, 400), ([], 400)]
    for version, status in cases:
        answer = await regular.call("POST", f"/v1/templates/{alias}/publish", {"version": version})
        assert (answer.status, "version" in answer.error) == (status, True), version
    for version in (0, -1, 2**31, 2**63, 2**70):
        for act, body in (("publish", {"version": version}), ("preview", {"version": version, "variables": {}})):
            answer = await regular.call("POST", f"/v1/templates/{alias}/{act}", body)
            assert (answer.status, answer.code) in {(404, "not_found"), (400, "invalid_request")}
    read = await regular.call("GET", f"/v1/templates/{alias}")
    assert read.body["template"]["published_version"] == 1


@pytest.mark.rule("TMPL-08")
async def test_a_deleted_template_is_unknown(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="One", text="1")
    await regular.accepts(sending(regular, alias))
    answer = await regular.call("DELETE", f"/v1/templates/{alias}")
    assert (answer.status, answer.body["deleted"]) == (200, True)
    assert (await regular.call("GET", f"/v1/templates/{alias}")).is_refusal(404, "not_found")
    assert (await regular.call("DELETE", f"/v1/templates/{alias}")).is_refusal(404, "not_found")

    async def send() -> Answer:
        return await regular.send(sending(regular, alias))

    gone = await eventually(send, lambda answer: answer.status != 202)
    assert gone.is_refusal(400, "invalid_request", alias)
    await regular.template(alias, subject="Again", text="1")
    assert (await regular.accepts(sending(regular, alias)))["subject"] == "Again"


@pytest.mark.rule("TMPL-09")
async def test_preview_renders_any_version_and_sends_nothing(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    await regular.call("POST", f"/v1/templates/{alias}/versions", {"text": "Version {{ number }}"})
    before = await regular.state()
    answer = await preview(regular, alias, variables={"name": "Ada & Bob"})
    assert answer.status == 200
    assert (answer.body["subject"], answer.body["text"], answer.body["html"]) == (
        "Hello Ada & Bob",
        "Dear Ada & Bob,",
        "<p>Dear Ada &amp; Bob,</p>",
    )
    second = await preview(regular, alias, variables={"number": 2}, version=2)
    assert (second.body["subject"], second.body["text"], second.body["html"]) == (None, "Version 2", None)
    assert (await preview(regular, alias, variables={}, version=3)).is_refusal(404, "not_found")
    missing = await preview(regular, alias, variables={})
    assert missing.is_refusal(400, "invalid_request", "name")
    assert await regular.state() == before


@pytest.mark.rule("TMPL-15", "SEND-06")
async def test_the_requests_subject_wins_over_the_templates(regular: Tenant) -> None:
    with_subject, without = regular.new_key(), regular.new_key()
    await regular.template(with_subject, subject="The template's", text="x")
    await regular.template(without, text="x")
    cases = [(with_subject, ABSENT, "The template's"), (with_subject, "Mine", "Mine"), (without, "Mine", "Mine")]
    for alias, subject, expected in cases:
        sent = await regular.accepts(sending(regular, alias, subject=subject))
        assert sent["subject"] == expected
        assert str((await regular.stored(sent["id"]))["Subject"]) == expected
        assert (await regular.get(sent["id"])).body["subject"] == expected
    await regular.refuses(sending(regular, without), 400, "invalid_request", "subject")


@pytest.mark.rule("TMPL-17", "CODE-01")
async def test_an_unknown_template_is_an_invalid_request(regular: Tenant, other_tenant: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="x", text="x")
    for name in (alias, "unknown", "Not An Alias", "../etc", "x" * 500):
        await other_tenant.refuses(sending(other_tenant, name), 400, "invalid_request", "template")
    await other_tenant.refuses(sending(other_tenant, "\0"), 400, "invalid_request", "template")


WRONG: list[tuple[dict[str, object], str]] = [
    ({"subject": "only"}, "text"),
    ({"text": None, "html": None}, "text"),
    ({"text": "", "html": ""}, "text"),
    ({"text": 7}, "text"),
    ({"text": "{{ 1 }}"}, "text"),
    ({"html": ["x"]}, "html"),
    ({"text": "x", "subject": 7}, "subject"),
    ({"text": "x", "subject": "a\r\nb"}, "subject"),
    ({"text": "x", "publish": "yes"}, "publish"),
    ({"text": "x", "body": "y"}, "body"),
    ({"text": "x", "subject": "s" * 20_000}, "subject"),
]


@pytest.mark.rule("TMPL-20", "SEND-16")
async def test_a_template_without_content_or_with_a_wrong_field_is_refused(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="Good morning.")
    for fields, named in WRONG:
        for path, body in (("", {"alias": regular.new_key(), **fields}), (f"/{alias}/versions", fields)):
            answer = await regular.call("POST", f"/v1/templates{path}", body)
            assert answer.is_refusal(400, "invalid_request", named), (path, fields)


@pytest.mark.rule("TMPL-23")
async def test_a_draft_is_previewed_without_being_stored(regular: Tenant) -> None:
    alias = regular.new_key()
    draft = {"subject": "Hi {{name}}", "html": "<b>{{ name }} & {{code}}</b>"}
    for _ in range(2):
        answer = await preview(regular, alias, **draft, variables={"name": "<Ada>", "extra": 1})
        assert answer.status == 200, answer.raw
        assert (answer.body["subject"], answer.body["text"]) == ("Hi <Ada>", None)
        assert answer.body["html"] == "<b>&lt;Ada&gt; & {{code}}</b>"
        assert answer.body["missing"] == ["code"]
        assert answer.body["variables"] == [
            {"name": "name", "parts": ["subject", "html"]}, {"name": "code", "parts": ["html"]},
        ]  # fmt: skip
        await regular.template(alias, **CONTENT)
        alias = regular.new_key()
    assert (await regular.call("POST", f"/v1/templates/{alias}/preview", draft, role="viewer")).status == 200


@pytest.mark.rule("TMPL-23")
async def test_a_wrong_draft_is_refused(regular: Tenant) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"text": "x", "version": 1}, "version"),
        ({"subject": "only"}, "empty"),
        ({"text": "x", "variables": {f"v{number}": 1 for number in range(33)}}, "variables"),
        *((fields, named) for fields, named in WRONG if named in ("html", "subject") or fields == {"text": "{{ 1 }}"}),
    ]
    for body, naming in wrong:
        assert (await preview(regular, "draft", **body)).is_refusal(400, "invalid_request", naming), body


@pytest.mark.rule("TMPL-24")
async def test_a_renamed_template_keeps_its_versions(tenant: Tenant) -> None:
    await tenant.template("welcome", **CONTENT)
    await tenant.template("taken", **CONTENT)
    await tenant.call("POST", "/v1/templates/welcome/versions", {"text": "Two"})
    assert (await tenant.call("PUT", "/v1/templates/welcome", {"alias": "taken"})).is_refusal(409, "conflict", "taken")
    assert (await tenant.call("PUT", "/v1/templates/welcome", {"alias": "hello"}, role="viewer")).status == 403
    for body in ({}, {"alias": "A b"}, {"name": ""}, {"name": "x", "other": 1}):
        assert (await tenant.call("PUT", "/v1/templates/welcome", body)).is_refusal(400, "invalid_request")
    answer = await tenant.call("PUT", "/v1/templates/welcome", {"alias": "hello", "name": "Greeting"})
    assert answer.status == 200, answer.raw
    shown = (await tenant.call("GET", "/v1/templates/hello")).body["template"]
    assert (shown["name"], shown["published_version"], shown["latest_version"]) == ("Greeting", 1, 2)
    assert [version["version"] for version in shown["versions"]] == [2, 1]
    assert (await tenant.call("GET", "/v1/templates/welcome")).is_refusal(404, "not_found")
    await tenant.accepts(sending(tenant, "hello", {"name": "Ada"}))

    async def refused() -> Answer:
        return await tenant.send(sending(tenant, "welcome", {"name": "Ada"}))

    late = await eventually(refused, lambda answer: answer.status == 400)
    assert late.is_refusal(400, "invalid_request", "'hello'")
    renamed = await tenant.call("PUT", "/v1/templates/hello", {"name": "Greeting again"})
    assert (renamed.body["template"]["alias"], renamed.body["template"]["name"]) == ("hello", "Greeting again")
    # The old alias is free, and is then a template like any other.
    await tenant.template("welcome", text="New", subject="New")
    await tenant.accepts(sending(tenant, "welcome"))


@pytest.mark.rule("TMPL-25")
async def test_versions_have_their_author_and_variables(tenant: Tenant) -> None:
    await tenant.template("welcome", **CONTENT)
    await tenant.call("POST", "/v1/templates/welcome/versions", {"text": "{{ b }} {{a}} {{b}}"}, role="member")
    newest, first = (await tenant.call("GET", "/v1/templates/welcome")).body["template"]["versions"]
    assert first["variables"] == [{"name": "name", "parts": ["subject", "text", "html"]}]
    assert newest["variables"] == [{"name": "b", "parts": ["text"]}, {"name": "a", "parts": ["text"]}]
    members = {member["email"] for member in (await tenant.call("GET", "/v1/members")).body["members"]}
    assert {newest["author"], first["author"]} <= members
    assert newest["author"] != first["author"]
    shown = await preview(tenant, "welcome", version=1, variables={"name": "Ada"})
    assert (shown.body["variables"], shown.body["missing"]) == (first["variables"], [])
