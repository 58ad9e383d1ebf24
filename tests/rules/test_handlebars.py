"""The template engine `handlebars`: the same output as npm's, and an end to everything."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from posthouse.rules import handlebars, limits
from posthouse.rules.handlebars import STEPS_MAX, VariableTree
from posthouse.rules.refusal import Code, Refusal
from tests.support.bad_input import inputs
from tests.support.processor_time import processor_seconds

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("handlebars_cases.json").read_text())
OUTPUT_BYTES_MAX = limits.MIME_BYTES_MAX
HOSTILE = inputs(1_000)
# Of the processor, for one template with its variables.
# The slowest takes about 0.06; a template whose cost grows with the square of its length takes seconds.
SECONDS_MAX = 0.5


def rendered(
    source: str, variables: Mapping[str, VariableTree], *, escapes: bool = True, capacity: int = OUTPUT_BYTES_MAX
) -> str:
    parsed = handlebars.parse(source, "here")
    handlebars.check_variables(variables)
    return handlebars.Renderer(variables, capacity).render(parsed, escapes=escapes)


def refused(
    source: str, variables: Mapping[str, VariableTree] | None = None, *, capacity: int = OUTPUT_BYTES_MAX
) -> Refusal:
    with pytest.raises(Refusal) as caught:
        rendered(source, variables or {}, capacity=capacity)
    return caught.value


def test_two_thousand_templates_render_as_npms_handlebars_does() -> None:
    """Made by `tools/write_handlebars_cases`."""
    assert len(CASES) == 2_000
    outputs = [rendered(case["source"], case["variables"], escapes=case["escapes"]) for case in CASES]
    assert [case for case, output in zip(CASES, outputs, strict=True) if output != case["rendered"]] == []


@pytest.mark.parametrize(
    ("source", "variables", "output"),
    [
        ("Hi {{ name }}!", {"name": "A & <B> \"'`="}, "Hi A &amp; &lt;B&gt; &quot;&#x27;&#x60;&#x3D;!"),
        ("{{{name}}}{{name.missing.deeper}}", {"name": "<b>"}, "<b>"),
        ("{{a.b.0.c}}", {"a": {"b": [{"c": 7}]}}, "7"),
        ("{{#if a}}1{{else if b}}2{{else}}3{{/if}}", {"a": 0, "b": "x"}, "2"),
        ("{{#if a}}1{{else}}3{{/if}}", {"a": []}, "3"),
        ("{{#if a}}1{{else}}3{{/if}}", {"a": {}}, "1"),
        ("{{#unless a}}none{{/unless}}", {}, "none"),
        ("{{#each l}}{{@index}}{{this}}{{#unless @last}}, {{/unless}}{{else}}-{{/each}}", {"l": ["a", "b"]}, "0a, 1b"),
        ("{{#each l}}{{#if @first}}[{{/if}}{{a}}{{../x}}{{@root.x}}{{/each}}", {"l": [{"a": 1}], "x": "y"}, "[1yy"),
        ("{{#each l}}x{{else}}empty{{/each}}", {"l": "text"}, "empty"),
        ("a {{~ b ~}} c{{! gone }}{{!-- also }} gone --}}", {"b": "|"}, "a|c"),
        ("a\n  {{#each l}}\n  <i>{{this}}</i>\n  {{/each}}\nb", {"l": [1, 2]}, "a\n  <i>1</i>\n  <i>2</i>\nb"),
        ("{{l}} {{o}} {{t}} {{l.length}}", {"l": [1, None, "x"], "o": {}, "t": True}, "1,,x [object Object] true 3"),
        ("{{__proto__}}{{constructor}}{{a.__proto__}}{{a.constructor.name}}{{l.push}}", {"a": {}, "l": []}, ""),
        ("{{__proto__.x}}", {"__proto__": {"x": "mine"}}, "mine"),
        ("{{a}}", {"a": "{{b}}"}, "{{b}}"),
    ],
)  # fmt: skip
def test_examples(source: str, variables: dict[str, VariableTree], output: str) -> None:
    assert rendered(source, variables) == output


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x\n {{#if a}}", "line 2, character 2: {{#if}} is never closed"),
        ("{{#if a}}\n{{#if b}}{{/if}}\n\n {{#each c}}\n x", "line 4, character 2: {{#each}} is never closed"),
        ("{{#if a}}\n{{else if b}}", "line 1, character 1: {{#if}} is never closed"),
        ("{{/if}}", "closes no"),
        ("{{#if a}}{{/each}}", "closes no"),
        ("{{else}}", "outside of a block"),
        ("{{#if a}}{{else}}{{else}}{{/if}}", "already has an {{else}}"),
        ("{{#if a}}{{else}}{{else if b}}{{/if}}", "already has an {{else}}"),
        ("{{#if a}}{{else each b}}{{/if}}", "only {{else}}"),
        ("{{#with a}}{{/with}}", "one of #if, #unless and #each"),
        ("{{> partial}}", "not supported"),
        ("{{^a}}{{/a}}", "not supported"),
        ("{{&a}}", "not supported"),
        ("{{{{raw}}}}", "four braces"),
        ("\\{{a}}", "backslash"),
        ("{{helper a}}", "no helpers"),
        ("{{#each a as |b|}}{{/each}}", "no helpers"),
        ("{{lookup}}", "can't be a variable's name"),
        ("{{elsewhere}}", "begin with `else`"),
        ("{{a", "never closed"),
        ("{{!-- a }}", "comment is never closed"),
        ("{{}}", "should be a name"),
        ("{{a.}}", "something after the name"),
        ("{{1a}}", "should be a name"),
        ("{{a.this}}", "can't be names"),
        ("{{#if true}}{{/if}}", "can't be names"),
        ("{{@index.a}}", "followed by other names"),
        ("{{@key}}", "should be a name"),
        ("{{a}}" * 1_001, "at most 1000 tags"),
        ("{{#if a}}" * 33 + "{{/if}}" * 33, "32 deep"),
        ("{{#if a}}" + "{{else if a}}" * 33 + "{{/if}}", "32 deep"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_place(source: str, said: str) -> None:
    refusal = refused(source)
    assert refusal.code is Code.INVALID_REQUEST
    assert said in refusal.text
    assert refusal.text.startswith("here")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"a": "x" * 65_537}, "64 KiB"),
        ({"a": [1] * 40_000}, "64 KiB"),
        ({"a": [[]] * 5_000}, "64 KiB"),
        ({"a": {f"name{number}": None for number in range(9_000)}}, "64 KiB"),
        ({"a": [[[[[[[[]]]]]]]]}, "8 levels"),
        ({"a": ["\0"]}, "NUL"),
        ({"a": [2**1025]}, "a number that is too large"),
        ({"a": [float("inf")]}, "not finite"),
    ],
)
def test_variables_are_bounded(variables: dict[str, VariableTree], said: str) -> None:
    refusal = refused("{{a}}", variables)
    assert refusal.code is Code.INVALID_REQUEST
    assert said in refusal.text


def test_eight_levels_are_walked() -> None:
    variables: dict[str, VariableTree] = {"a": [[[[[[["x"]]]]]]]}
    assert rendered("{{a.0.0.0.0.0.0.0}}", variables) == "x"


def test_steps_and_output_are_bounded() -> None:
    many: dict[str, VariableTree] = {"l": [1] * 1_000, "long": "x" * 60_000}
    nested = "{{#each l}}{{#each ../l}}{{#each ../../l}}{{/each}}{{/each}}{{/each}}"
    assert f"{STEPS_MAX} steps" in refused(nested, many).text
    assert refused("{{#each l}}{{../long}}{{/each}}", many).code is Code.PAYLOAD_TOO_LARGE
    assert refused("{{long}}", many, capacity=59_999).code is Code.PAYLOAD_TOO_LARGE
    assert len(rendered("{{long}}", many, capacity=60_000)) == 60_000


def test_a_quick_rendering_gives_up_early() -> None:
    parsed = handlebars.parse("{{#each l}}{{this}}{{/each}}", "here")
    handlebars.Renderer({"l": [1] * 300}, OUTPUT_BYTES_MAX, is_quick=True).render(parsed, escapes=True)
    with pytest.raises(handlebars.Slow):
        handlebars.Renderer({"l": [1] * 600}, OUTPUT_BYTES_MAX, is_quick=True).render(parsed, escapes=True)
    with pytest.raises(handlebars.Slow):
        handlebars.check_variables({"l": "x" * 10_000}, is_quick=True)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1"), (-2.5, "-2.5"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
        (1.25e21, "1.25e+21"), (1e-6, "0.000001"), (1e-7, "1e-7"), (1.5e-9, "1.5e-9"), (123456789.125, "123456789.125"),
        (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"), (100, "100"), (2**60, str(2**60)),
    ],
)  # fmt: skip
def test_numbers_are_written_as_javascript_writes_them(value: float, spelled: str) -> None:
    assert rendered("{{a}}", {"a": value}) == spelled


_PIECES = (
    *(
        "{{", "{{{", "{{#if a}}", "{{#each a}}", "{{~a~}}", "{{!--", "{{!", "}}", " \n", "\r", "{{else}}",
        "{{else if a}}",
    ),
    *("{{a.b}}", "../", "\u2028", "\\{{a}}", "{{/each}}", "{{@index}}", "{{\n\n}}"),
)  # fmt: skip
_REACHED = ("__proto__", "constructor", "constructor.prototype", "a.__proto__.a", "toString", "a.length.length")
_LISTS: tuple[list[VariableTree], ...] = (
    [1] * 12_000,
    [[]] * 3_000,
    [None] * 20_000,
    ["x" * 50] * 1_000,
    [{"a": [1, 2]}] * 800,
)


def _hostile(randomness: random.Random) -> tuple[str, dict[str, VariableTree]]:
    """Templates meant to take long, to grow, or to reach what is not a variable."""
    pick, count = randomness.choice, randomness.choice((10, 300, 3_000, 30_000, 250_000))
    few, depth = min(count, 900), randomness.randint(1, 34)
    piece, reached, inner = pick(_PIECES), pick(_REACHED), pick(("", "x", "{{this}}", "{{@root.a}}"))
    makers: list[Callable[[], str]] = [
        lambda: piece * count,
        lambda: ("x" + piece + " ") * min(count, 50_000),
        lambda: "{{#each a}}" * depth + "{{this}}" + "{{/each}}" * depth,
        lambda: "{{#each a}}{{#each @root.a}}{{#each @root.a}}" + inner + "{{/each}}" * 3,
        lambda: "{{@root.a}}" * few,
        lambda: "{{{s}}}" * few,
        lambda: "{{#each a}}{{@root.s}}{{@root.s.length}}{{/each}}",
        lambda: f"{{{{{reached}}}}}{{{{#each {reached}}}}}{{{{this}}}}{{{{/each}}}}",
        lambda: "{{#if a}}" + "{{else if b}}" * (few // 10) + "{{/if}}",
        lambda: "{{#each o}}{{#each @root.o}}{{this}}{{/each}}{{/each}}",
        lambda: "{{~a~}}" + " \n" * (count // 2) + "{{~b~}}" + "\t" * (count // 2),
        lambda: "".join(randomness.choice("{}~#/!@.ab \n-eachifls") for _ in range(min(count, 30_000))),
    ]
    values: dict[str, VariableTree] = {
        "a": pick(_LISTS),
        "s": pick(("<", "\u00fc", "x")) * pick((3, 15_000)),
        "o": {str(number): number for number in range(pick((3, 4_000)))},
        "__proto__": {"a": "x"},
    }
    if randomness.random() < 0.5:
        values = {name: values[name] for name in randomness.sample(sorted(values), 1)}
    return pick(makers)()[: limits.TEMPLATE_PART_CHARACTERS_MAX], values


def _outcome(source: str, variables: dict[str, VariableTree]) -> Code | int:
    """Why it was refused, or how long the output is."""
    try:
        return len(rendered(source, variables).encode())
    except Refusal as refusal:
        return refusal.code


def _measured(source: str, variables: dict[str, VariableTree]) -> tuple[Code | int, float]:
    outcomes: list[Code | int] = []
    taken = processor_seconds(lambda: outcomes.append(_outcome(source, variables)), enough=SECONDS_MAX)
    return outcomes[0], taken


@pytest.mark.long
def test_hostile_templates_are_refused_or_end_soon() -> None:
    slow = []
    for seed in range(HOSTILE):
        source, variables = _hostile(random.Random(seed))
        outcome, taken = _measured(source, variables)
        assert outcome in (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE) or int(outcome) <= OUTPUT_BYTES_MAX, seed
        if taken > SECONDS_MAX:
            slow.append((seed, taken, source[:100]))
    assert slow == []
