"""Templates: plain substitution, escaped where it must be, bounded always."""

import json
import re
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.template import (
    RenderedTemplate,
    StoredVersion,
    Template,
    VariableValue,
    check,
    check_alias,
    excess_versions,
    placeholders,
    render,
)
from tests.support.bad_input import bad_input
from tests.support.processor_time import processor_seconds

OUTPUT_BYTES_MAX = limits.MIME_BYTES_MAX


def text_of(source: str, variables: dict[str, VariableValue]) -> str | None:
    return render(Template(None, source, None), variables, bytes_max=OUTPUT_BYTES_MAX).text


def refused(template: Template, variables: dict[str, VariableValue], bytes_max: int = OUTPUT_BYTES_MAX) -> Refusal:
    with pytest.raises(Refusal) as caught:
        render(template, variables, bytes_max=bytes_max)
    return caught.value


def test_each_part_gets_its_values() -> None:
    template = Template("Hello {{ name }}", "Dear {{name}},\n{{ order.id }}", "<b>{{\tname }}</b>")
    rendered = render(template, {"name": "Ada", "order.id": 7}, bytes_max=OUTPUT_BYTES_MAX)
    assert rendered == RenderedTemplate("Hello Ada", "Dear Ada,\n7", "<b>Ada</b>")
    assert render(Template(None, "x", None), {}, bytes_max=OUTPUT_BYTES_MAX) == RenderedTemplate(None, "x", None)


@pytest.mark.rule("TMPL-11")
def test_values_are_escaped_in_html_and_nowhere_else() -> None:
    template, value = Template("{{ x }}", "{{ x }}", '<a title="{{ x }}">'), "<&>\"'"
    rendered = render(template, {"x": value}, bytes_max=OUTPUT_BYTES_MAX)
    assert rendered == RenderedTemplate(value, value, '<a title="&lt;&amp;&gt;&quot;&#x27;">')


@pytest.mark.rule("TMPL-18")
@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ("", ""),
        (" as is ", " as is "),
        (None, ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-12, "-12"),
        (2**1024 - 1, str(2**1024 - 1)),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e22, "1e+22"),
        (-0.0, "-0.0"),
        ("{{ x }}", "{{ x }}"),
        ("{{ y }}", "{{ y }}"),
        ("\\1 \\g<0> %s {0}", "\\1 \\g<0> %s {0}"),
    ],
)
def test_a_value_is_not_rendered_again(value: VariableValue, spelled: str) -> None:
    assert text_of("[{{ x }}{{x}}]", {"x": value, "y": "never"}) == f"[{spelled}{spelled}]"


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), 2**1024, -(10**5_000)],
    ids=["nan", "inf", "-inf", "1025 bits", "5000 digits"],
)
def test_a_number_beyond_json_is_refused_by_name(value: VariableValue) -> None:
    refusal = refused(Template(None, "{{ amount }}", None), {"amount": value})
    assert refusal.code is Code.INVALID_REQUEST
    assert "`variables.amount`" in refusal.text
    assert "give it as a string" in refusal.text


@pytest.mark.rule("TMPL-13")
def test_all_missing_variables_are_named_in_order() -> None:
    refusal = refused(Template("{{ z }}", "{{ y }}{{ b }}{{ z }}", "{{ a }}"), {"b": 1})
    assert refusal == Refusal(Code.INVALID_REQUEST, "`variables` lacks names that the template uses: add z, y, a.")


@pytest.mark.rule("TMPL-13")
def test_an_extra_variable_is_ignored() -> None:
    assert text_of("x", {"unused": float("nan")}) == "x"


def test_no_more_variables_than_the_contract_allows() -> None:
    variables: dict[str, VariableValue] = {f"v{number}": 1 for number in range(limits.VARIABLES_MAX)}
    assert text_of("{{ v31 }}", variables) == "1"
    assert refused(Template(None, "x", None), variables | {"one_more": 1}).code is Code.INVALID_REQUEST


@pytest.mark.rule("TMPL-16")
@pytest.mark.parametrize("control", ["\r\nBcc: x@example.com", "\n", "\x00", "\t", "\x7f", "\x85", "\u2028"])
def test_a_control_character_is_refused_in_the_subject(control: str) -> None:
    refusal = refused(Template("Hello {{ name }}", "x", None), {"name": f"Ada{control}"})
    assert refusal.code is Code.INVALID_REQUEST
    assert "`variables.name`" in refusal.text


def test_a_line_break_is_allowed_in_the_bodies() -> None:
    assert text_of("{{ lines }}", {"lines": "one\r\ntwo\tthree"}) == "one\r\ntwo\tthree"


@pytest.mark.parametrize("unwelcome", ["\x00", "\ud800"], ids=ascii)
def test_nul_and_surrogates_are_refused_everywhere(unwelcome: str) -> None:
    assert refused(Template(None, None, "{{ x }}"), {"x": unwelcome}).code is Code.INVALID_REQUEST
    for template in (Template(unwelcome, "x", None), Template(None, unwelcome, None)):
        with pytest.raises(Refusal):
            check(template)


@pytest.mark.rule("TMPL-16")
def test_the_rendered_subject_has_the_usual_limit() -> None:
    template = Template("{{ x }}", "x", None)
    fits = "é" * limits.SUBJECT_CHARACTERS_MAX
    assert render(template, {"x": fits}, bytes_max=OUTPUT_BYTES_MAX).subject == fits
    refusal = refused(template, {"x": fits + "!"})
    assert refusal.code is Code.INVALID_REQUEST
    assert "501 characters" in refusal.text


@pytest.mark.rule("TMPL-19")
@pytest.mark.parametrize(
    ("template", "value", "output_bytes"),
    [
        (Template(None, "{{ x }}{{ x }}", None), "ab", 4),
        (Template(None, "é{{ x }}", None), "é", 4),
        (Template(None, None, "{{ x }}"), "&", 5),
        (Template(None, None, "{{ x }}"), "<>\"'é", 4 + 4 + 6 + 6 + 2),
        (Template("{{ x }}", "{{ x }}", "{{ x }}"), "&", 1 + 1 + 5),
    ],
)
def test_the_output_may_fill_its_bytes_but_not_exceed_them(template: Template, value: str, output_bytes: int) -> None:
    render(template, {"x": value}, bytes_max=output_bytes)
    refusal = refused(template, {"x": value}, output_bytes - 1)
    assert refusal.code is Code.PAYLOAD_TOO_LARGE
    assert f"is {output_bytes} bytes" in refusal.text


def test_an_output_of_terabytes_is_refused_before_rendering() -> None:
    many = "{{x}}" * (limits.TEMPLATE_PART_CHARACTERS_MAX // 5)
    value = "&" * 10 * limits.MIB
    assert refused(Template(None, many, many), {"x": value}).code is Code.PAYLOAD_TOO_LARGE
    assert processor_seconds(lambda: refused(Template(None, many, many), {"x": value}), enough=2) < 2


@pytest.mark.parametrize(
    "source",
    [
        "{{" * 500_000, "{{ " * 300_000, "{{" + " " * 1_000_000, "{{ a" + " " * 1_000_000, "{{ " + "a" * 1_000_000,
        "{{ a }" * 150_000, "}}" * 500_000 + "{{",
    ],
    ids=lambda source: source[:9],
)  # fmt: skip
def test_a_hostile_template_is_refused_in_linear_time(source: str) -> None:
    def checked() -> None:
        with pytest.raises(Refusal):
            check(Template(None, source, None))

    assert processor_seconds(checked, enough=1) < 1


@pytest.mark.rule("TMPL-12")
@pytest.mark.parametrize(
    ("source", "place", "reason"),
    [
        ("{{ name", "line 1, character 1", "never closed"),
        ("ok {{ name }} but\n\n {{ later", "line 3, character 2", "never closed"),
        ("{{ name } }", "line 1, character 1", "never closed"),
        ("a\n{{#if x}}b{{/if}}", "line 2, character 1", "not a placeholder"),
        *[
            (f"{{{{{inside}}}}}", "line 1, character 1", "not a placeholder")
            for inside in (
                *("", " ", " two words ", " name | upper ", " 1name ", " .name ", " na-me ", " näme ", " ｎame "),
                *("\nname ", "\u00a0name ", "{ name }", " outer {{ inner }} ", " " + "n" * 65 + " "),
            )
        ],
    ],
)
def test_a_malformed_placeholder_is_refused_with_its_position(source: str, place: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        check(Template(None, None, source))
    assert caught.value.code is Code.INVALID_REQUEST
    assert f"`html`, {place}:" in caught.value.text
    assert reason in caught.value.text
    assert refused(Template(None, None, source), {"name": 1, "inner": 1}) == caught.value


@pytest.mark.rule("TMPL-12")
@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("no placeholder", ()),
        ("@media print {a{color:red}}", ()),
        ("}} { { {x} }}", ()),
        ("{{a}}{{ b }}{{\tc\t}}{{a}}", ("a", "b", "c")),
        ("{{ _ }}{{ a.b.c }}{{ A9_ }}", ("_", "a.b.c", "A9_")),
        ("{{ " + "n" * 64 + " }}", ("n" * 64,)),
        ("{{ a }}}", ("a",)),
    ],
)
def test_placeholders_are_found_and_other_braces_are_text(source: str, names: tuple[str, ...]) -> None:
    template = Template(None, source, None)
    check(template)
    assert placeholders(template) == names
    # In the order in which they appear first.
    assert placeholders(Template("{{ z }}{{ y }}", source, source)) == ("z", "y", *names)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (Template("Hello", None, None), "at least one of `text`, `html`"),
        (Template("Hello", "", ""), "at least one of `text`, `html`"),
        (Template("a\nb", "x", None), "control character"),
        (Template("a" * 501, "x", None), "at most 500"),
        (Template(None, "a" * (limits.TEMPLATE_PART_CHARACTERS_MAX + 1), None), "`text` has 262145"),
        (Template(None, None, "a" * (limits.TEMPLATE_PART_CHARACTERS_MAX + 1)), "`html` has 262145"),
        (Template(None, "".join(f"{{{{ v{n} }}}}" for n in range(33)), None), "33 variables"),
        (Template(None, None, "{{a}}" * (limits.TEMPLATE_PLACEHOLDERS_MAX + 1)), "`html` has 1001 placeholders"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_template_that_could_never_be_used_is_refused(template: Template, says: str) -> None:
    with pytest.raises(Refusal, match=f"^invalid_request: .*{re.escape(says)}"):
        check(template)


@pytest.mark.rule("TMPL-02")
@pytest.mark.parametrize("alias", ["", "-a", "_a", "Welcome", "a b", "a.b", "é", "a" * 65, "a\n", "../a"])
def test_an_alias_is_accepted_and_anything_else_is_refused(alias: str) -> None:
    for accepted in ("a", "0", "welcome", "order_paid-2", "a" * 64):
        check_alias(accepted)
    with pytest.raises(Refusal, match="invalid_request: "):
        check_alias(alias)


names = some.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,5}", fullmatch=True)
literals = some.text().filter(lambda text: "{" not in text and "\x00" not in text)
texts = some.text().filter(lambda text: "\x00" not in text)
values = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | texts
tokens = some.lists(some.tuples(literals, names, values), max_size=8)


@pytest.mark.rule("TMPL-14")
@bad_input("Templates", 200)
@given(tokens, literals)
def test_rendering_joins_text_and_values(around: list[tuple[str, str, VariableValue]], tail: str) -> None:
    variables = {name: value for _, name, value in around}
    spelled = {
        name: value if isinstance(value, str) else "" if value is None else json.dumps(value)
        for name, value in variables.items()
    }
    source = "".join(f"{before}{{{{ {name} }}}}" for before, name, _ in around) + tail
    text = "".join(before + spelled[name] for before, name, _ in around) + tail
    html = "".join(before + escape(spelled[name]) for before, name, _ in around) + tail
    size = len(text.encode()) + len(html.encode())
    template = Template(None, source, source)
    assert placeholders(template) == tuple(dict.fromkeys(name for _, name, _ in around))
    assert render(template, variables, bytes_max=size) == RenderedTemplate(None, text, html)
    assert refused(template, variables, size - 1).code is Code.PAYLOAD_TOO_LARGE


@bad_input("Templates", 1_000)
@given(some.text("{} \n.ab", max_size=40))
def test_a_template_that_passes_the_check_renders(source: str) -> None:
    template = Template(None, source + "x", None)
    try:
        check(template)
    except Refusal:
        assert "{{" in source
    else:
        found = placeholders(template)
        rendered = render(template, dict.fromkeys(found), bytes_max=OUTPUT_BYTES_MAX).text
        assert rendered is not None
        assert len(rendered) <= len(source) + 1


@pytest.mark.parametrize(
    ("count", "used", "bytes_over", "deleted"),
    [
        (limits.TEMPLATE_VERSIONS_MAX, {1}, 0, []),
        (limits.TEMPLATE_VERSIONS_MAX + 1, {5, 101}, 0, [1]),
        (limits.TEMPLATE_VERSIONS_MAX + 2, {1, 102}, 0, [2, 3]),
        (3, {3}, 1, [1]),
        (3, {3}, 10, [1]),
        (3, {1, 3}, 11, [2]),
        (3, {3}, 1_000, [1, 2]),
    ],
)
def test_the_oldest_unused_versions_give_way(count: int, used: set[int], bytes_over: int, deleted: list[int]) -> None:
    stored = [StoredVersion(number, 10) for number in range(1, count + 1)]
    assert [row.version for row in excess_versions(stored, used, bytes_over)] == deleted


def test_the_size_of_a_template_is_in_bytes_not_characters() -> None:
    assert Template("é", None, "ab").size_bytes == 4
