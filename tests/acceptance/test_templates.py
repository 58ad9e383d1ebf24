"""Templates: managing them under /v1/templates, rendering and sending them."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from posthouse.rules import limits
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, Tenant

CONTENT = {"subject": "Hello {{ name }}", "text": "Dear {{ name }},", "html": "<p>Dear {{name}},</p>"}
MIB = 1024 * 1024


def sending(tenant: Tenant, alias: str, variables: object = ABSENT, **changes: object) -> dict[str, Any]:
    fields = {"subject": ABSENT, "text": ABSENT, "template": alias, "variables": variables} | changes
    return tenant.mail(**fields)


async def preview(tenant: Tenant, alias: str, **body: object) -> Answer:
    return await tenant.call("POST", f"/v1/templates/{alias}/preview", body)


@pytest.mark.rule("TMPL-01")
async def test_creating_makes_version_1_unpublished(regular: Tenant) -> None:
    alias = regular.new_key()
    answer = await regular.call("POST", "/v1/templates", {"alias": alias, "name": "Welcome mail", **CONTENT})
    assert answer.status == 201
    template = answer.body["template"]
    assert (template["alias"], template["name"]) == (alias, "Welcome mail")
    assert (template["published_version"], template["latest_version"]) == (None, 1)
    assert datetime.fromisoformat(template["created_at"]) <= datetime.fromisoformat(template["updated_at"])
    await regular.refuses(sending(regular, alias, {"name": "Ada"}), 400, "invalid_request", alias)


@pytest.mark.rule("TMPL-01")
async def test_creating_can_publish_at_once(regular: Tenant) -> None:
    alias = regular.new_key()
    answer = await regular.call("POST", "/v1/templates", {"alias": alias, "publish": True, **CONTENT})
    assert answer.status == 201
    assert answer.body["template"]["published_version"] == 1
    await regular.accepts(sending(regular, alias, {"name": "Ada"}))


@pytest.mark.rule("TMPL-02")
@pytest.mark.parametrize("alias", ["", "-a", "_a", "A", "a b", "a/b", "ä", "a" * 65, "a.b", "a\n", None, 7, ABSENT])
async def test_invalid_aliases_are_refused(regular: Tenant, alias: object) -> None:
    body = {**CONTENT} if alias is ABSENT else {"alias": alias, **CONTENT}
    answer = await regular.call("POST", "/v1/templates", body)
    assert answer.is_refusal(400, "invalid_request", "alias")


@pytest.mark.rule("TMPL-02")
@pytest.mark.parametrize("alias", ["a", "0", "a-b_c-9", "a" * 64])
async def test_other_aliases_are_accepted(regular: Tenant, alias: str) -> None:
    await regular.template(alias, **CONTENT)
    await regular.accepts(sending(regular, alias, {"name": "Ada"}))


@pytest.mark.rule("TMPL-03", "CODE-07")
async def test_an_alias_in_use_is_a_conflict(regular: Tenant, other_tenant: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    answer = await regular.call("POST", "/v1/templates", {"alias": alias, "text": "Other"})
    assert answer.is_refusal(409, "conflict", alias)
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


@pytest.mark.rule("TMPL-04")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", ABSENT),
        ("DELETE", "", ABSENT),
        ("PUT", "", {"alias": "taken-over"}),
        ("POST", "/versions", {"text": "x"}),
        ("POST", "/publish", {"version": 1}),
        ("POST", "/preview", {"variables": {}}),
    ],
)
async def test_an_unknown_template_is_not_found_and_neither_is_another_accounts(
    regular: Tenant, other_tenant: Tenant, method: str, path: str, body: object
) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="Good morning.")
    for name in (alias, "unknown", "%00", "Not-An-Alias"):
        answer = await other_tenant.call(method, f"/v1/templates/{name}{path}", body)
        assert answer.is_refusal(404, "not_found")
    assert (await regular.call("GET", f"/v1/templates/{alias}")).body["template"]["latest_version"] == 1


@pytest.mark.rule("TMPL-05")
async def test_templates_are_listed_in_pages(tenant: Tenant, regular: Tenant) -> None:
    await regular.template(regular.new_key(), text="Another account's.")
    made = [f"t{number:02}" for number in range(53)]
    for alias in made:
        await tenant.template(alias, text="Good morning.")
    whole = await tenant.call("GET", "/v1/templates?limit=100")
    assert sorted(template["alias"] for template in whole.body["templates"]) == made
    assert whole.body["next_cursor"] is None
    default = await tenant.call("GET", "/v1/templates")
    assert len(default.body["templates"]) == 50
    found: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        page = await tenant.call("GET", f"/v1/templates?limit=20{cursor and '&cursor='}{cursor}")
        assert page.status == 200
        found += [template["alias"] for template in page.body["templates"]]
        cursor = page.body["next_cursor"]
        pages += 1
    assert (pages, found) == (3, [template["alias"] for template in whole.body["templates"]])
    template = default.body["templates"][0]
    assert set(template) >= {"alias", "name", "published_version", "latest_version", "created_at", "updated_at"}


@pytest.mark.rule("TMPL-05")
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=", "limit=1e1", "cursor=nonsense", "cursor=%00",
              "limit=99999999999999999999", "limit=٣"],
)  # fmt: skip
async def test_a_wrong_page_is_refused(regular: Tenant, query: str) -> None:
    answer = await regular.call("GET", f"/v1/templates?{query}")
    assert answer.is_refusal(400, "invalid_request", query.split("=")[0])


@pytest.mark.rule("TMPL-05")
async def test_a_new_account_has_an_empty_list(tenant: Tenant) -> None:
    answer = await tenant.call("GET", "/v1/templates")
    assert (answer.body["templates"], answer.body["next_cursor"]) == ([], None)


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


@pytest.mark.rule("TMPL-07")
@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        (2, 404, "not_found"),
        (2**31 - 1, 404, "not_found"),
        ("one", 400, "invalid_request"),
        (None, 400, "invalid_request"),
        (1.5, 400, "invalid_request"),
        ([], 400, "invalid_request"),
    ],
)
async def test_a_version_that_does_not_exist_is_not_published(
    regular: Tenant, version: object, status: int, code: str
) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="Good morning.")
    answer = await regular.call("POST", f"/v1/templates/{alias}/publish", {"version": version})
    assert answer.is_refusal(status, code, "version")
    read = await regular.call("GET", f"/v1/templates/{alias}")
    assert read.body["template"]["published_version"] == 1


@pytest.mark.rule("TMPL-07", "CODE-13")
@pytest.mark.parametrize("version", [0, -1, 2**31, 2**63, 2**70])
@pytest.mark.parametrize("act", ["publish", "preview"])
async def test_a_number_that_no_version_can_have_is_refused(regular: Tenant, act: str, version: int) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="Good morning.")
    body = {"version": version} if act == "publish" else {"version": version, "variables": {}}
    answer = await regular.call("POST", f"/v1/templates/{alias}/{act}", body)
    assert (answer.status, answer.code) in {(404, "not_found"), (400, "invalid_request")}


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


@pytest.mark.rule("TMPL-10", "CODE-04")
async def test_a_viewer_reads_and_previews_and_does_not_write(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    for method, path, body in (
        ("GET", "/v1/templates", ABSENT),
        ("GET", f"/v1/templates/{alias}", ABSENT),
        ("POST", f"/v1/templates/{alias}/preview", {"variables": {"name": "Ada"}}),
    ):
        assert (await regular.call(method, path, body, role="viewer")).status == 200
    for method, path, body in (
        ("POST", "/v1/templates", {"alias": "never-made", "text": "x"}),
        ("POST", f"/v1/templates/{alias}/versions", {"text": "x"}),
        ("POST", f"/v1/templates/{alias}/publish", {"version": 1}),
        ("DELETE", f"/v1/templates/{alias}", ABSENT),
    ):
        assert (await regular.call(method, path, body, role="viewer")).is_refusal(403, "forbidden")
    read = (await regular.call("GET", f"/v1/templates/{alias}")).body["template"]
    assert (read["latest_version"], read["published_version"]) == (1, 1)
    assert (await regular.call("GET", "/v1/templates/never-made")).status == 404


@pytest.mark.rule("TMPL-10")
@pytest.mark.parametrize("role", ["owner", "admin", "member"])
async def test_members_and_above_write(regular: Tenant, role: str) -> None:
    alias = regular.new_key()
    created = await regular.call("POST", "/v1/templates", {"alias": alias, "text": "x"}, role=role)
    assert created.status == 201
    grown = await regular.call("POST", f"/v1/templates/{alias}/versions", {"text": "x"}, role=role)
    assert grown.status == 201
    published = await regular.call("POST", f"/v1/templates/{alias}/publish", {"version": 2}, role=role)
    assert published.status == 200
    assert (await regular.call("DELETE", f"/v1/templates/{alias}", role=role)).status == 200


@pytest.mark.rule("TMPL-11")
async def test_values_are_escaped_only_in_html(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="S {{ v }}", text="T {{ v }}", html='<a title="{{ v }}">{{ v }}</a>')
    value = "<b>\"Ada\" & 'Bob'</b>"
    sent = await regular.accepts(sending(regular, alias, {"v": value}))
    assert sent["subject"] == f"S {value}"
    plain, rich = (await regular.stored(sent["id"])).iter_parts()
    assert plain.get_content().strip() == f"T {value}"
    html = rich.get_content()
    assert "<b>" not in html
    assert html.count("&lt;b&gt;") == 2
    assert html.count('"') == 2, "a value can't leave the attribute it stands in"
    assert "&amp;" in html


@pytest.mark.rule("TMPL-12")
@pytest.mark.parametrize(
    "placeholder",
    ["{{}}", "{{ }}", "{{ 1a }}", "{{ a b }}", "{{ a-b }}", "{{ a|upper }}", "{{#if a}}", "{{/if}}", "{{ a", "{{ a }",
     "{{{ a }}}", "{{ .a }}", "{{ " + "a" * 65 + " }}", "{{ ä }}", "{{ a() }}", "{{> a }}", "{{ {{ a }} }}"],
)  # fmt: skip
@pytest.mark.parametrize("field", ["subject", "text", "html"])
async def test_an_invalid_placeholder_is_refused_when_saved(regular: Tenant, field: str, placeholder: str) -> None:
    body = {"alias": regular.new_key(), "text": "x"} | {field: f"before {placeholder} after"}
    answer = await regular.call("POST", "/v1/templates", body)
    assert answer.is_refusal(400, "invalid_request", field)


@pytest.mark.rule("TMPL-12")
@pytest.mark.parametrize("name", ["a", "_", "A9_b.c", "user.first_name", "a" * 64])
@pytest.mark.parametrize("form", ["{{{{{0}}}}}", "{{{{ {0} }}}}", "{{{{   {0}}}}}"])
async def test_a_placeholder_is_a_name_in_double_braces(regular: Tenant, name: str, form: str) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="<" + form.format(name) + ">{ single } }}")
    answer = await preview(regular, alias, variables={name: "v"})
    assert answer.body["text"] == "<v>{ single } }}"


@pytest.mark.rule("TMPL-13", "CODE-01")
async def test_a_missing_variable_is_named_and_an_extra_is_ignored(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="Hello", text="{{ given }} {{ forgotten }}")
    cases = [(ABSENT, "given"), (None, "given"), ({}, "given"), ({"given": "x"}, "forgotten")]
    cases += [({"given": "x", "Forgotten": "y"}, "forgotten")]
    for variables, missing in cases:
        await regular.refuses(sending(regular, alias, variables), 400, "invalid_request", missing)
    await regular.accepts(sending(regular, alias, {"given": "x", "forgotten": "y", "extra": "z"}))


@pytest.mark.rule("TMPL-14")
async def test_values_render_as_themselves(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="[{{ v }}]")
    for value, shown in ((None, ""), ("", ""), ("x", "x"), (3, "3"), (-1.5, "-1.5"), (True, "true"), (False, "false")):
        answer = await preview(regular, alias, variables={"v": value})
        assert answer.body["text"] == f"[{shown}]"


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


@pytest.mark.rule("TMPL-16")
@pytest.mark.parametrize("value", ["a\r\nBcc: eve@example.net", "a\nb", "a\0b", "a\x7fb", "a\tb"], ids=repr)
async def test_a_value_brings_no_control_character_into_the_subject(regular: Tenant, value: str) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="Hello {{ name }}", text="Good morning.")
    answer = await regular.refuses(sending(regular, alias, {"name": value}), 400, "invalid_request")
    assert "subject" in answer.error or "variables.name" in answer.error


@pytest.mark.rule("TMPL-16", "SEND-07")
async def test_a_rendered_subject_has_at_most_500_characters(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="{{ name }}", text="Good morning.")
    await regular.accepts(sending(regular, alias, {"name": "n" * 500}))
    await regular.refuses(sending(regular, alias, {"name": "n" * 501}), 400, "invalid_request", "subject")


@pytest.mark.rule("TMPL-17", "CODE-01")
async def test_an_unknown_template_is_an_invalid_request(regular: Tenant, other_tenant: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="x", text="x")
    for name in (alias, "unknown", "Not An Alias", "../etc", "x" * 500):
        await other_tenant.refuses(sending(other_tenant, name), 400, "invalid_request", "template")
    await other_tenant.refuses(sending(other_tenant, "\0"), 400, "invalid_request", "template")


@pytest.mark.rule("TMPL-18")
async def test_a_placeholder_inside_a_value_stays(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, text="{{ a }}", html="{{ a }}")
    answer = await preview(regular, alias, variables={"a": "{{ b }} {{ a }}", "b": "never"})
    assert (answer.body["text"], answer.body["html"]) == ("{{ b }} {{ a }}", "{{ b }} {{ a }}")


@pytest.mark.rule("TMPL-19", "SIZE-03")
async def test_rendered_content_counts_against_the_size(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, subject="x", html="{{ v }}" * 1_000)
    body = sending(regular, alias, {"v": "v" * 12_000})
    await regular.refuses(body, 413, "payload_too_large")
    assert (await preview(regular, alias, variables={"v": "v" * 12_000})).is_refusal(413, "payload_too_large")
    await regular.accepts(sending(regular, alias, {"v": "v" * 10}))


@pytest.mark.rule("TMPL-20", "SEND-16")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"subject": "only"}, "text"),
        ({"text": None, "html": None}, "text"),
        ({"text": "", "html": ""}, "text"),
        ({"text": 7}, "text"),
        ({"html": ["x"]}, "html"),
        ({"text": "x", "subject": 7}, "subject"),
        ({"text": "x", "subject": "a\r\nb"}, "subject"),
        ({"text": "x", "publish": "yes"}, "publish"),
        ({"text": "x", "body": "y"}, "body"),
        ({"text": "x", "name": 7}, "name"),
        ({"text": "x", "subject": "s" * 20_000}, "subject"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["", "/{alias}/versions"])
async def test_a_template_without_content_or_with_a_wrong_field_is_refused(
    regular: Tenant, path: str, fields: dict[str, object], named: str
) -> None:
    body = dict(fields)
    if path:
        if named == "name":
            return
        alias = regular.new_key()
        await regular.template(alias, text="Good morning.")
        path = path.format(alias=alias)
    else:
        body["alias"] = regular.new_key()
    answer = await regular.call("POST", f"/v1/templates{path}", body)
    assert answer.is_refusal(400, "invalid_request", named)


@pytest.mark.rule("TMPL-17")
async def test_every_credential_of_the_account_sends_its_templates(regular: Tenant) -> None:
    alias = regular.new_key()
    await regular.template(alias, **CONTENT)
    for authorization in (regular.basic, await regular.key(), await regular.key("test"), await regular.jwt("member")):
        sent = await regular.accepts(sending(regular, alias, {"name": "Ada"}), authorization=authorization)
        assert sent["subject"] == "Hello Ada"


@pytest.mark.rule("TMPL-21")
async def test_the_hundred_and_first_version_replaces_the_oldest_unpublished(tenant: Tenant) -> None:
    await tenant.template("welcome", text="Good morning.")
    await tenant.service.sql(
        """
        INSERT INTO template_versions (account_id, alias, version, text, author, created_at)
        SELECT account_id, alias, n, text, author, created_at FROM template_versions CROSS JOIN generate_series(2, $2) n
        WHERE account_id = $1
        """,
        tenant.id, limits.TEMPLATE_VERSIONS_MAX,
    )  # fmt: skip
    await tenant.service.sql(
        "UPDATE templates SET latest_version = $2 WHERE account_id = $1", tenant.id, limits.TEMPLATE_VERSIONS_MAX
    )
    grown = await tenant.call("POST", "/v1/templates/welcome/versions", {"text": "Good evening."})
    assert (grown.status, grown.body["version"]) == (201, 101)
    assert (await preview(tenant, "welcome", version=1)).status == 200
    assert (await preview(tenant, "welcome", version=2)).is_refusal(404, "not_found")
    assert (await preview(tenant, "welcome", version=3)).status == 200


@pytest.mark.rule("TMPL-22")
async def test_more_bytes_than_an_account_may_store_are_a_conflict(tenant: Tenant) -> None:
    await tenant.template("welcome", text="Good morning.")
    full = "UPDATE templates SET size_bytes = $2 WHERE account_id = $1"
    await tenant.service.sql(full, tenant.id, limits.TEMPLATES_BYTES_MAX)
    for path, body in (("", {"alias": "other", "text": "x"}), ("/welcome/versions", {"text": "x"})):
        answer = await tenant.call("POST", f"/v1/templates{path}", body)
        assert answer.is_refusal(409, "conflict", "delete templates")
    assert (await tenant.call("DELETE", "/v1/templates/welcome")).status == 200
    await tenant.template("other", text="x")


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
@pytest.mark.parametrize(
    ("body", "naming"),
    [
        ({"text": "x", "version": 1}, "version"),
        ({"subject": "only"}, "empty"),
        ({"text": "{{ 1 }}"}, "text"),
        ({"subject": "a\nb", "text": "x"}, "subject"),
        ({"text": "x", "variables": {f"v{number}": 1 for number in range(33)}}, "variables"),
        ({"html": 7}, "html"),
    ],
)
async def test_a_wrong_draft_is_refused(regular: Tenant, body: dict[str, Any], naming: str) -> None:
    assert (await preview(regular, "draft", **body)).is_refusal(400, "invalid_request", naming)


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
