from __future__ import annotations

from typing import Any

import pytest

from agent3.definitions import ActionType, ExtractField, NLWebAction
from agent3.errors import ValidationError
from agent3.protocols.nlweb.steps.parameters import (
    check,
    check_parameters,
    inject,
    look_up,
    match_template,
    parameter_names,
    selector_templates,
)


def typing(value: str) -> NLWebAction:
    return NLWebAction(action_type=ActionType.TYPE, selector="#x", value=value)


def clicking(selector: str) -> NLWebAction:
    return NLWebAction(action_type=ActionType.CLICK, selector=selector)


@pytest.mark.requirement("RF-013-43")
@pytest.mark.parametrize(
    ("text", "parameters", "result"),
    [
        ("{a}", {"a": "NYC"}, "NYC"),
        ("{a}-{b} {a}", {"a": 1, "b": 2.5}, "1-2.5 1"),
        ("{{a}} is {a}", {"a": "x"}, "{a} is x"),
        ("{a}", {"a": "{b}", "b": "never"}, "{b}"),
        ("{a}", {"a": True}, "true"),
        ("{a}", {"a": ""}, ""),
        ("nothing", {}, "nothing"),
        ('{{"k": "{a}"}}', {"a": "v"}, '{"k": "v"}'),
    ],
)
def test_values_are_filled_once_and_literally(text: str, parameters: dict[str, Any], result: str) -> None:
    assert inject(typing(text), parameters).value == result


def test_the_given_step_is_left_as_it_was() -> None:
    action = typing("{a}")
    inject(action, {"a": "x"})
    assert action.value == "{a}"


@pytest.mark.requirement("RF-013-43")
def test_a_missing_parameter_is_named_with_its_step() -> None:
    with pytest.raises(ValidationError) as caught:
        inject(typing("{date}"), {"origin": "NYC"})
    assert str(caught.value) == "Missing required parameter: date (for the step type '#x')"
    assert caught.value.errors[0]["path"] == "/date"


@pytest.mark.parametrize("given", [None, [], {}, object()])
def test_what_cannot_be_typed_is_refused(given: object) -> None:
    with pytest.raises(ValidationError, match=r"Parameter 'a' is|parameter: a "):
        inject(typing("{a}"), {"a": given})


@pytest.mark.parametrize("text", ["{", "}", "{ a }", "{}", "{a b}", "a}"])
def test_a_lone_brace_is_explained(text: str) -> None:
    with pytest.raises(ValidationError, match="a single"):
        inject(typing(text), {"a": "x"})


def test_every_field_is_filled_but_the_description() -> None:
    action = NLWebAction(
        action_type=ActionType.EXTRACT,
        selector='[data-a="{a}"]',
        wait_for='[data-b="{a}"]',
        description="reads {a}",
        extract_schema={
            "plain": '[x="{a}"]',
            "rich": ExtractField(selector='[y="{a}"]', attribute="data-{a}", fields={"deep": '[z="{a}"]'}),
        },
    )
    filled = inject(action, {"a": "v"})
    assert filled.selector == '[data-a="v"]'
    assert filled.wait_for == '[data-b="v"]'
    assert filled.description == "reads {a}"
    assert filled.extract_schema == {
        "plain": '[x="v"]',
        "rich": ExtractField(selector='[y="v"]', attribute="data-v", fields={"deep": '[z="v"]'}),
    }
    assert parameter_names([action]) == {"a"}


@pytest.mark.requirement("RF-013-43")
@pytest.mark.parametrize("hostile", ['x"], button', "x'] >> button", "x\\", 'x"]:not(a', "a\nb", "x >> xpath=//*"])
def test_injected_text_never_ends_the_string_it_stands_in(hostile: str) -> None:
    filled = inject(clicking('[data-a="{a}"]'), {"a": hostile}).selector
    assert filled is not None
    inner = filled.removeprefix('[data-a="').removesuffix('"]')
    assert not set(inner) & set("\"'>]=*\n()")


@pytest.mark.parametrize(
    "selector",
    ["#day-{a}", "{a}", "text={a}", 'text="{a}"', '"{a}"', "//a[@id='{a}']", 'role=button[name="{a}"]',
     'xpath=//a[.="{a}"]', '.row >> text="{a}"', '[x="closed"] {a}', '[x="\\"{b}"] {a}'],
)  # fmt: skip
def test_a_placeholder_outside_a_css_string_is_refused(selector: str) -> None:
    with pytest.raises(ValidationError, match="outside a quoted CSS string"):
        inject(clicking(selector), {"a": "x", "b": "y"})


def test_selectors_without_placeholders_may_be_of_any_kind() -> None:
    assert inject(clicking('.row >> text="Go"'), {}).selector == '.row >> text="Go"'


@pytest.mark.parametrize(
    ("value", "given", "result"),
    [
        ("https://airline.com/to/{a}", "New York/..?x#y", "https://airline.com/to/New%20York%2F..%3Fx%23y"),
        ("/to?city={a}", "a&b=c", "/to?city=a%26b%3Dc"),
        ("{a}", "https://airline.com/?q=1&r=2", "https://airline.com/?q=1&r=2"),
    ],
)
def test_in_an_address_a_parameter_stays_one_piece(value: str, given: str, result: str) -> None:
    action = NLWebAction(action_type=ActionType.NAVIGATE, value=value)
    assert inject(action, {"a": given}).value == result


# Values of earlier steps, secrets, and steps within steps


def of(**fields: Any) -> NLWebAction:
    return NLWebAction.model_validate(fields)


def test_parts_of_a_value_are_named_with_dots() -> None:
    values = {"item": {"price": {"amount": 3}, "tags": ["a", "b"]}, "a.b": "dotted"}
    assert inject(typing("{item.price.amount} {item.tags.1} {a.b}"), values).value == "3 b dotted"
    assert look_up(values, "item.tags.7") is None
    assert look_up(values, "item.price.amount.deeper") is None
    with pytest.raises(ValidationError, match=r"parameter: item\.colour"):
        inject(typing("{item.colour}"), values)
    with pytest.raises(ValidationError, match=r"Parameter 'item\.tags' is list"):
        inject(typing("{item.tags}"), values)


def test_a_secret_comes_from_whoever_keeps_it_and_is_no_parameter() -> None:
    step = typing("{secret:pass}")
    assert inject(step, {}, secrets=lambda name: f"<{name}>").value == "<pass>"
    assert parameter_names([step]) == set()
    with pytest.raises(ValidationError, match="needs the secret 'pass'"):
        inject(step, {"secret:pass": "given by a caller"})


@pytest.mark.requirement("RF-013-43")
def test_every_field_of_every_step_is_judged_over_the_whole_sequence() -> None:
    loop = of(
        action_type="repeat",
        over="rows",
        steps=[
            of(action_type="navigate", value="/x/{item.id}"),
            of(action_type="fill", selector="form", frame='[name="{where}"]', fields={"a": "{b}"}),
            of(action_type="if", when={"text": "{c}"}, steps=[typing("{d}")], otherwise=[typing("{e}")]),
            of(
                action_type="wait", until={"any": [{"visible": '[x="{f}"]'}], "not": {"variable": "g", "equals": "{h}"}}
            ),
        ],
    )
    steps = [of(action_type="extract", selector="li", save_as="rows"), loop]
    assert parameter_names(steps) == {"where", "b", "c", "d", "e", "f", "g", "h"}
    given = dict.fromkeys("bcdefgh", "x") | {"where": "x"}
    check_parameters(steps, given, "act")
    for name in ("where", "b", "c", "d", "e", "f", "h"):
        with pytest.raises(ValidationError, match=rf"parameter: {name} \(for the step 2\.\d"):
            check_parameters(steps, {key: value for key, value in given.items() if key != name}, "act")


def test_placeholders_are_judged_without_parameters() -> None:
    check([typing("{a}"), clicking('[x="{b}"]')], "act")
    with pytest.raises(ValidationError, match=r"step 1\.1 of 'act'.*outside a quoted CSS string"):
        check([of(action_type="repeat", steps=[clicking("#x-{b}")])], "act")
    with pytest.raises(ValidationError, match="a single"):
        check([typing("{")], "act")


@pytest.mark.parametrize("value", ["Alpha tea", '5 o\'clock "tea"', "a\\b", "", "teé-1_2", "\U0001f375"])
def test_what_was_put_into_a_selector_can_be_told_from_what_its_author_wrote(value: str) -> None:
    written = 'tr:has-text("{product}") button[title="{{{kind.name}}}"]'
    filled = inject(clicking(written), {"product": value, "kind": {"name": value}}).selector or ""
    assert match_template(written, filled) == (("{product}", value), ("{kind.name}", value))
    assert match_template(written, "tr button") is None
    assert match_template("tr button", "tr button") is None


def test_the_selectors_of_all_steps_are_known_as_they_were_written() -> None:
    inner = NLWebAction.model_validate(
        {"action_type": "if", "when": {"visible": '[id="{a}"]'}, "steps": [clicking('[id="{b}"]')]}
    )
    steps = [typing("{never}"), inner, clicking("#plain").model_copy(update={"wait_for": '[id="{c}"]'})]
    assert selector_templates(steps) == {"#x", '[id="{a}"]', '[id="{b}"]', "#plain", '[id="{c}"]'}
