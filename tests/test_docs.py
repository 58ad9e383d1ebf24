"""The documentation names what exists: files, decisions, and the functions in its diagrams."""

import importlib
import json
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest

from posthouse.config.settings import Settings
from posthouse.entrypoints.refusals import REPLIES
from posthouse.rules import limits
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.event import EventType
from posthouse.rules.message import RecipientStatus
from tests.support.commands import unknown_commands
from tools import api_pages, draw_diagrams, mutations, reference_pages, write_reference

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_path = re.compile(r"`((?:src|tests|bench|tools|docs|sdks)/[\w./-]+\.\w+)`")
_packages = "cli|compose|config|dev|entrypoints|flows|mail|rules|store|wire"
_module = re.compile(rf"`((?:{_packages})/(?!\S*test_)[\w/]+?)(?:\.py)?`")
_symbol = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*):([A-Za-z_][\w.]*)`")
_error_row = re.compile(r"^\| \[`(\w+)`\]\(#\1\) \| (\d{3}), (\d{3}) ([\d.]+) \|", re.MULTILINE)
_shell = re.compile(r"^ *```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# What macOS and the BSDs don't have: options, by program, and whole programs.
_gnu_options = {
    "base64": r"-w|--wrap",
    "cp": r"-t",
    "date": r"-d|-I|\S*%N",
    "echo": r"-e",
    "find": r"-printf|-\w*regextype",
    "grep": r"-\w*P|--perl-regexp",
    "head": r"-[nc] ?-|-\d+c",
    "ls": r"-\w*v",
    "mktemp": r"-p",
    "readlink": r"-[fem]",
    "sed": r"-i(?![.\w])|-r|-\w*z|--\w",
    "sort": r"-\w*[Vh]",
    "stat": r"-c",
    "touch": r"-d",
    "xargs": r"-\w*[rd]|--\w",
}
# BSD's versions of these take no option that begins with two dashes, not even `--` before a word.
_gnu_long = "chmod|cp|cut|date|echo|head|ln|ls|mkdir|mktemp|mv|readlink|rm|sort|stat|tail|tee|touch|tr|uniq|wc"
_gnu_programs = "nproc|numfmt|realpath|setsid|sha256sum|shuf|tac|timeout"
_gnu = re.compile(
    "|".join(
        [rf"\b(?:{_gnu_programs}) ", rf"(?:^|[|;&(]) *(?:{_gnu_long}) (?:[^|;&)\n]* )?--(?:\w| )"]
        + [rf"\b{program} (?:[^|;&)\n]* )?[\"']?(?:{options})" for program, options in _gnu_options.items()]
    )
)
# What a person reads from top to bottom; a screen holds some 200 words.
GUIDES = [page for page in PAGES if page.parent.name in {"howto", "tutorial"} or page.parent == ROOT / "docs"]
GUIDE_WORDS_MAX = 12 * 200
# Features that pages called missing after they were built, as those pages name them, each with one of its operations.
FEATURES = {
    "alert": "saveAlerts",
    "batch": "sendEmailBatch",
    "cancel": "cancelEmail",
    "erasure": "createErasure",
    "operators.? pages": "operatorOverview",
    "resend|sending again": "createResend",
    "schedul|send later": "moveEmail",
    "sending addresses": "operatorListAddresses",
    "several (?:endpoints|webhooks)": "createEndpoint",
    "suppression": "listSuppressions",
    "template": "listTemplates",
}
LACKING = {"docs/comparison.md": "## What Posthouse lacks\n", "docs/internals/scaling.md": "## What is not built yet\n"}
READ_THE_CODE = ROOT / "docs/internals/read-the-code.md"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert [path for path in _path.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_module_that_is_named_exists(page: Path) -> None:
    package = ROOT / "src/posthouse"
    named = [package / module for module in _module.findall(page.read_text())]
    assert [module for module in named if not module.exists() and not module.with_suffix(".py").exists()] == []


def test_modules_are_named() -> None:
    assert len(_module.findall((ROOT / "docs/internals/architecture.md").read_text())) >= 10


def _symbols() -> Iterator[tuple[str, str]]:
    yield from _symbol.findall(READ_THE_CODE.read_text())


def test_every_function_in_the_diagrams_exists() -> None:
    missing = []
    for module, name in _symbols():
        found: object = importlib.import_module(f"posthouse.{module}")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            missing.append(f"{module}:{name}")
    assert missing == []
    assert len(list(_symbols())) > 30, "the diagrams list `module:function`"


def test_the_glossary_is_that_of_the_tables() -> None:
    meanings = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE))
    schema = "".join(page.read_text() for page in (ROOT / "src/posthouse/store/migrations/baseline").glob("*.sql"))
    tables = set(re.findall(r"^CREATE TABLE (\w+)", schema, re.MULTILINE))
    named = {word.replace(" ", "_") for word, meaning in meanings.items() if meaning.startswith("the table")}
    named |= {table for meaning in meanings.values() for table in re.findall(r"table `(\w+)`", meaning)}
    assert named - tables == set()
    assert len(named) >= 4
    final = {word for word, meaning in meanings.items() if meaning.startswith("final: ")}
    assert final == {status.value for status in RecipientStatus} - {"queued", "deferred"}
    assert [word for word in final if word not in meanings["final"]] == []


def test_every_decision_is_in_the_index_with_its_title_and_status() -> None:
    index = (ROOT / "docs/decisions/index.md").read_text()
    for page in sorted((ROOT / "docs/decisions").glob("0*.md")):
        record = re.match(r"# (.+)\n\nStatus: (accepted|superseded)", page.read_text())
        assert record is not None, page.name
        title, status = record.groups()
        assert len(re.findall(rf"^- {re.escape(f'[{title}]({page.name}): {status}')}\b", index, re.MULTILINE)) == 1, (
            page.name
        )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("0*.md")), ids=_name)
def test_a_decision_has_its_number_a_title_and_a_status(page: Path) -> None:
    number = page.name.partition("-")[0]
    assert re.match(rf"# {number} \w.*\n\nStatus: (accepted|superseded)[.; ]", page.read_text().replace("`", ""))


def test_the_page_of_errors_has_every_code_with_cause_and_fix() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    shown = [(code, int(http), (int(reply), status)) for code, http, reply, status in _error_row.findall(page)]
    assert shown == [(code.value, reply.http, reply.smtp) for code, reply in REPLIES.items()]
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert list(sections) == [code.value for code in REPLIES]
    assert [code for code, text in sections.items() if not ("**Cause.**" in text and "**Fix.**" in text)] == []


def test_the_page_of_limits_names_existing_limits_with_their_values() -> None:
    assert [name for rows in reference_pages.LIMITS.values() for name in rows if not hasattr(limits, name)] == []
    page = reference_pages.limits()
    assert "| Assembled message, attachments encoded | 10 MiB |" in page
    assert "| Time that a key is remembered | 1 day |" in page


OPERATIONS = [operation for family in api_pages.families().values() for operation in family]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_the_page_of_an_operation_has_a_request_and_an_answer_that_its_schema_allows(
    operation: api_pages.Operation,
) -> None:
    body, answer = operation.body_schema, operation.answer_schema
    given = [(body, api_pages.example(body))] if body else []
    given += [(answer, operation.answer_example)] if answer else []
    for schema, example in given:
        validator = jsonschema_rs.Draft202012Validator({**schema, "components": api_pages.document()["components"]})
        assert [error.message for error in validator.iter_errors(example)] == []
    page = operation.page
    assert f"`{operation.method} {operation.path}`" in page
    assert page.count("## Request") == page.count("## Response") == page.count("## Errors") == 1


def test_the_page_of_reasons_explains_each() -> None:
    page = reference_pages.reasons()
    assert [reason for reason in DeliveryReason if page.count(f"\n`{reason}`: ") != 1] == []


def test_the_page_of_an_operation_links_the_rules_about_it() -> None:
    guarantees = {
        operation.id: re.findall(r"^- \[([A-Z]+-\d+)\]", operation.page, re.MULTILINE) for operation in OPERATIONS
    }
    assert sum(map(bool, guarantees.values())) > 120
    assert {"RESP-06", "IDEM-13", "SCOPE-05"} <= set(guarantees["sendEmail"])
    assert "BAT-01" not in guarantees["sendEmail"]
    assert guarantees["operatorPauseLane"] == ["OPR-05"]


def test_a_rule_says_that_only_logins_may_call_an_operation_only_if_keys_may_not() -> None:
    found = set()
    for family, operations in api_pages.families().items():
        for_keys = [operation for operation in operations if operation.access.scopes]
        rules = [line for operation in for_keys for line in operation.page.splitlines() if line.startswith("- [")]
        page = ROOT / "docs/reference" / api_pages.RULES[family]
        if for_keys == operations and page.exists():
            rules += [" ".join(lines.split()) for _, lines in api_pages.RULE.findall(page.read_text() + "\n")]
        found |= {rule for rule in rules if re.search(r"[Aa]nything (?:but|else).* 401", rule)}
    assert len(found) >= 4
    assert {rule for rule in found if "API key" not in rule} == set()


@pytest.mark.parametrize("page", LACKING)
def test_a_feature_that_exists_is_not_called_missing(page: str) -> None:
    missing = (ROOT / page).read_text().partition(LACKING[page])[2].partition("\n## ")[0]
    assert missing
    assert set(FEATURES.values()) <= {operation.id for operation in OPERATIONS}
    assert [feature for feature in FEATURES if re.search(feature, missing, re.IGNORECASE)] == []


def test_the_comparison_names_every_event() -> None:
    (row,) = re.findall(r"^\| Posthouse \| (delivered, .*)$", (ROOT / "docs/comparison.md").read_text(), re.MULTILINE)
    named = {kind.partition(".")[2] if kind.startswith("email.") else kind.partition(".")[0] for kind in FurtherType}
    assert [name for name in named if name not in row] == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    # Inline, and at the beginnings of lines of blocks, with or without a prompt and sudo.
    text = re.sub(
        r"^ *(?:\$ )?(?:sudo )?(?:/opt/posthouse/bin/)?(?=posthouse )", "`", page.read_text(), flags=re.MULTILINE
    )
    if page.name != "cli.md":
        assert unknown_commands(text) == []


def test_only_one_guide_replaces_secrets() -> None:
    written = re.compile(r"^\[secrets\]", re.MULTILINE)
    assert [page.name for page in GUIDES if written.search(page.read_text())] == ["rotate-secrets.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=_name)
def test_the_time_that_a_stop_takes_is_that_of_the_limits(page: Path) -> None:
    sentences = re.split(r"(?<=[.;|])\s", page.read_text())
    assert [each for each in sentences if "SIGTERM" in each and re.search(r"\d (?:s|seconds)\b", each)] == []


def test_the_page_of_events_has_a_body_of_each_type_that_its_schema_allows() -> None:
    bodies = api_pages.event_bodies()
    assert set(bodies) == {*EventType, *FurtherType}
    components = api_pages.document()["components"]
    schema = {**components["schemas"]["ListedEvent"], "components": components}
    known = set(components["schemas"]["ListedEventData"]["properties"])
    for kind, body in bodies.items():
        event = json.loads(body)
        assert jsonschema_rs.Draft202012Validator(schema).is_valid(event), kind
        assert (event["type"], set(event["data"]) - known) == (kind, set())


def test_links_between_runbooks_use_their_titles() -> None:
    for page in sorted((ROOT / "docs/runbooks").glob("*.md")):
        for title, name in re.findall(r"\[([^\]]+)\]\(([\w-]+\.md)\)", page.read_text()):
            assert (page.parent / name).read_text().startswith(f"# {title}\n"), (page.name, title)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_setting_that_a_page_writes_exists(page: Path) -> None:
    for block in re.findall(r"^ *```toml\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE):
        for section, values in tomllib.loads(textwrap.dedent(block)).items():
            known = Settings.model_fields[section].annotation
            assert known is not None
            assert set(values) <= set(known.model_fields), section


def test_the_site_names_every_page_once() -> None:
    named = re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(set(named)) == sorted(named)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=_name)
def test_pages_are_in_plain_words(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$|`[^`]*`", "`", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\b(?:whoever|nobody|told|somebody|everyone|everybody)\b", prose, re.IGNORECASE) == []
    assert re.findall(r"\b([a-z]+)\s+\1\b", prose) == [], "a word twice"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_shell_blocks_use_nothing_that_only_gnu_has(page: Path) -> None:
    lines = "".join(_shell.findall(page.read_text())).splitlines()
    assert [line for line in lines if not line.startswith("sudo ") and _gnu.search(line)] == []


def test_gnu_options_are_recognised() -> None:
    refused = [
        "sed -i 's|a|b|' f",
        'date -u -d "+1 hour"',
        "x | base64 -w 0",
        "grep -oP a f",
        "readlink -f .",
        "stat -c %a f",
        "mktemp -p d",
        "x | xargs -r rm",
        "x | sort -V",
        "cp -- -a b",
        "mkdir --parents d",
        "x | head -n -1",
        "nproc ",
    ]
    assert [line for line in refused if not _gnu.search(line)] == []
    portable = [
        "sed -i.old 's|a|b|' f",
        "sed -n p f",
        "date -u +%FT%TZ",
        "base64 -d f",
        "grep -o 'P' f",
        "sort -u f",
        "x | head -n 1",
        "posthouse account list --json | sort -u",
    ]
    assert [line for line in portable if _gnu.search(line)] == []


@pytest.mark.parametrize("page", GUIDES, ids=_name)
def test_a_guide_has_at_most_twelve_screens(page: Path) -> None:
    assert len(page.read_text().split()) <= GUIDE_WORDS_MAX


def test_the_pages_of_settings_commands_and_metrics_are_those_of_the_code() -> None:
    pages = {
        "settings": write_reference.settings_page(),
        "cli": write_reference.commands_page(),
        "metrics": write_reference.metrics_page(),
        "doctor": write_reference.doctor_page(),
    }
    for name, page in pages.items():
        assert (write_reference.REFERENCE / f"{name}.md").read_text() == page, "run `make reference`"


def test_every_diagram_is_drawn_from_its_source() -> None:
    sources = sorted(draw_diagrams.SOURCES.glob("*.mmd"))
    assert len(sources) > 5
    stale = [
        s.name for s in sources if draw_diagrams.drawn_hash(draw_diagrams.drawing_of(s)) != draw_diagrams.source_hash(s)
    ]
    assert stale == [], "run `make diagrams`"


def test_every_planted_fault_applies_to_the_code_and_each_area_has_five() -> None:
    assert {area: len(mutations.patches([area])) for area in mutations.AREAS} == dict.fromkeys(mutations.AREAS, 5)
    assert {patch.name: refused for patch in mutations.patches() if (refused := mutations.refusal(patch))} == {}
