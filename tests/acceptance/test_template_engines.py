"""Templates that choose and repeat, over HTTP; and templates that a build pipeline sends."""

import asyncio
import json
import os
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from posthouse.rules.credential import Scope
from tests.support import preloaded
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, Tenant

ORDER = {
    "subject": "Order {{number}}{{#if items.1}} (several){{/if}}",
    "text": "{{#each items}}{{@index}}: {{name}} & {{../number}}\n{{else}}nothing\n{{/each}}",
    "html": "<ul>{{#each items}}<li>{{name}}{{{mark}}}</li>{{/each}}</ul>{{#unless paid}}<p>Due</p>{{/unless}}",
    "engine": "handlebars",
}
ITEMS = [{"name": "Tea <fine>", "mark": "<b>!</b>"}, {"name": "Cup"}]


async def preview(tenant: Tenant, alias: str, **body: object) -> Answer:
    return await tenant.call("POST", f"/v1/templates/{alias}/preview", body)


def sending(tenant: Tenant, alias: str, variables: object = ABSENT, **changes: object) -> dict[str, Any]:
    fields = {"subject": ABSENT, "text": ABSENT, "template": alias, "variables": variables} | changes
    return tenant.mail(**fields)


async def versions(tenant: Tenant, alias: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.call("GET", f"/v1/templates/{alias}")).body["template"]["versions"]
    return found


@pytest.mark.rule("TMPL-26")
async def test_a_version_is_plain_unless_it_says_otherwise(tenant: Tenant) -> None:
    await tenant.template("order", text="Hello {{name}}")
    added = await tenant.call("POST", "/v1/templates/order/versions", {**ORDER, "publish": False})
    assert added.status == 201, added.raw
    await tenant.call("POST", "/v1/templates/order/versions", {"text": "Bye {{name}}", "engine": "plain"})
    third, second, first = await versions(tenant, "order")
    assert ("engine" in first, second["engine"], "engine" in third) == (False, "handlebars", False)
    assert [variable["name"] for variable in second["variables"]] == ["number", "items", "paid"]
    for wrong in ("mustache", "", 7, ["plain"]):
        answer = await tenant.call("POST", "/v1/templates", {"alias": "x", "text": "x", "engine": wrong})
        assert answer.is_refusal(400, "invalid_request", "engine")


@pytest.mark.rule("TMPL-27", "TMPL-30")
async def test_a_template_chooses_and_repeats(tenant: Tenant) -> None:
    await tenant.template("order", **ORDER)
    sent = await tenant.accepts(sending(tenant, "order", {"number": 7, "items": ITEMS}))
    assert sent["subject"] == "Order 7 (several)"
    stored = await tenant.stored(sent["id"])
    text, html = (stored.get_body((kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert html is not None
    assert text.get_content().splitlines() == ["0: Tea <fine> & 7", "1: Cup & 7"]
    assert html.get_content().strip() == "<ul><li>Tea &lt;fine&gt;<b>!</b></li><li>Cup</li></ul><p>Due</p>"
    shown = await preview(tenant, "order", variables={"number": 7, "items": [], "paid": True})
    assert (shown.body["subject"], shown.body["text"], shown.body["html"]) == ("Order 7", "nothing\n", "<ul></ul>")


@pytest.mark.rule("TMPL-28")
async def test_only_handlebars_takes_lists_and_objects(tenant: Tenant) -> None:
    await tenant.template("plain", text="Hello {{name}}", subject="x")
    await tenant.template("order", **ORDER)
    for value in ([], {}, ["x"], {"a": 1}):
        await tenant.refuses(
            sending(tenant, "plain", {"name": "x", "other": value}), 400, "invalid_request", "variables.other"
        )
        assert (await preview(tenant, "plain", variables={"name": value})).is_refusal(
            400, "invalid_request", "variables"
        )
    deep: Any = "x"
    for _ in range(8):
        deep = [deep]
    for variables, named in (
        ({"items": ["x" * 70_000]}, "64 KiB"),
        ({"items": deep}, "8 levels"),
        ({"items": ["a\0b"]}, "NUL"),
        ({f"v{number}": [] for number in range(33)}, "32"),
    ):
        await tenant.refuses(sending(tenant, "order", variables), 400, "invalid_request", "variables", named)
    assert (await tenant.accepts(sending(tenant, "order")))["subject"] == "Order "


@pytest.mark.rule("TMPL-29")
async def test_rendering_is_bounded(tenant: Tenant) -> None:
    nested = "{{#each a}}{{#each @root.a}}{{#each @root.a}}x{{/each}}{{/each}}{{/each}}"
    await tenant.template("rounds", subject="x", text=nested, engine="handlebars")
    await tenant.template("growth", subject="x", text="{{#each a}}{{@root.b}}{{/each}}", engine="handlebars")
    many = [1] * 3_000
    await tenant.refuses(sending(tenant, "rounds", {"a": many}), 400, "invalid_request", "steps")
    body = sending(tenant, "growth", {"a": many, "b": "x" * 20_000})
    await tenant.refuses(body, 413, "payload_too_large")
    # More than is rendered between other requests.
    sent = await tenant.accepts(sending(tenant, "growth", {"a": many, "b": "xy "}))
    assert len(await tenant.mime(sent["id"])) > 9_000


@pytest.mark.rule("TMPL-30")
async def test_a_rendered_subject_has_no_control_characters(tenant: Tenant) -> None:
    await tenant.template("line", subject="{{#each a}}{{this}}{{/each}}", text="x", engine="handlebars")
    for value in ("a\nb", "\r\nBcc: eve@example.net", "\x07", "\u2028"):
        await tenant.refuses(sending(tenant, "line", {"a": ["x", value]}), 400, "invalid_request", "subject")
    await tenant.refuses(sending(tenant, "line", {"a": ["x" * 300] * 2}), 400, "invalid_request", "subject", "600")


@pytest.mark.rule("TMPL-26")
async def test_a_draft_is_rendered_by_its_engine(regular: Tenant) -> None:
    answer = await preview(
        regular, "none-yet", html="{{#if a}}{{a}}{{/if}}{{b}}", engine="handlebars", variables={"a": "x=1"}
    )
    assert (answer.body["html"], answer.body["missing"]) == ("x&#x3D;1", ["b"])
    empty = await preview(regular, "none-yet", engine="handlebars", variables={})
    assert empty.is_refusal(404, "not_found")


def _run(tenant: Tenant, key: str, directory: Path, *options: str) -> "CompletedProcess[str]":
    words = ("template", "push", str(directory), "--json", *options)
    given = {**os.environ, "POSTHOUSE_URL": tenant.service.url, "POSTHOUSE_KEY": key}
    return preloaded.run(*words, environment=given, directory=directory.parent)


async def pushed(tenant: Tenant, key: str, directory: Path, *options: str) -> list[dict[str, Any]]:
    done = await asyncio.to_thread(_run, tenant, key, directory, *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


MJML = "<mjml><mj-body><mj-section><mj-column><mj-text>{{name}}</mj-text></mj-column></mj-section></mj-body></mjml>"


@pytest.mark.rule("TMPL-31")
async def test_files_become_versions_if_they_have_changed(tenant: Tenant, tmp_path: Path) -> None:
    key = (await tenant.scoped_key(Scope.TEMPLATES)).removeprefix("Bearer ")
    (tmp_path / "welcome.html").write_text("<p>{{name}}</p>")
    (tmp_path / "welcome.txt").write_text("{{#if name}}Hello {{name}}{{/if}}")
    (tmp_path / "welcome.subject").write_text("Welcome\n")
    (tmp_path / "bye.mjml").write_text(MJML)
    (tmp_path / "notes.md").write_text("no template")
    as_handlebars = ("--engine", "handlebars")

    def state(alias: str, version: int, state: str, published: bool) -> dict[str, Any]:
        return {"alias": alias, "version": version, "state": state, "published": published}

    first = await pushed(tenant, key, tmp_path, *as_handlebars)
    assert first == [state("bye", 1, "created", False), state("welcome", 1, "created", False)]
    (version,) = await versions(tenant, "welcome")
    assert (version["subject"], version["html"], version["engine"]) == ("Welcome", "<p>{{name}}</p>", "handlebars")
    (compiled,) = await versions(tenant, "bye")
    assert "{{name}}" in compiled["html"]
    assert "<mj-" not in compiled["html"]
    assert [row["state"] for row in await pushed(tenant, key, tmp_path, *as_handlebars)] == ["unchanged"] * 2
    published = await pushed(tenant, key, tmp_path, *as_handlebars, "--publish")
    assert published == [state("bye", 1, "published", True), state("welcome", 1, "published", True)]
    (tmp_path / "welcome.subject").write_text("Hello")
    changed = await pushed(tenant, key, tmp_path, *as_handlebars, "--publish")
    assert changed == [state("bye", 1, "unchanged", True), state("welcome", 2, "changed", True)]


@pytest.mark.rule("TMPL-31")
async def test_what_can_not_be_pushed_is_named(tenant: Tenant, tmp_path: Path) -> None:
    key = (await tenant.scoped_key(Scope.EVENTS)).removeprefix("Bearer ")
    faults = {
        "empty": ({}, "holds no templates"),
        "wrong": ({"a.txt": "{{#if a}}", "b.txt": "fine"}, "a: The template's `text`"),
        "two": ({"a.html": "x", "a.mjml": "x"}, "two files"),
        "alias": ({"Upper Case.txt": "x"}, "Upper Case: `alias`"),
        "mjml": ({"a.mjml": "<mjml><x"}, "no valid MJML"),
        "scope": ({"a.txt": "x"}, "scope `templates`"),
    }
    for name, (files, said) in faults.items():
        directory = tmp_path / name
        directory.mkdir()
        for file, content in files.items():
            (directory / file).write_text(content)
        done = await asyncio.to_thread(_run, tenant, key, directory, "--engine", "handlebars")
        assert done.returncode == 1, name
        assert said in done.stderr, done.stderr
    assert (await tenant.call("GET", "/v1/templates")).body["templates"] == []
