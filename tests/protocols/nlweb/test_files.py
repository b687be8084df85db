from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent3 import schema
from agent3.definitions import ActionType, Condition, ExtractField, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import TooLarge, ValidationError
from agent3.protocols.nlweb.authoring import files

A = ActionType
PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "nlweb-interface.schema.json"

SHOP = """
interface_id: shop
name: Shop
base_url: https://shop.example
actions:
  buy:
    - {action_type: navigate, value: "/thing?id={id}"}
    - {action_type: type, selector: "#count", value: 2}
    - {action_type: type, selector: "#day", value: 2027-03-04}
    - action_type: repeat
      until: {not: {visible: .more}}
      steps: [{action_type: click, selector: .more}]
info:
  buy:
    description: Buy a thing
    input_schema: {type: object, properties: {id: {type: string}}, required: [id]}
    phrases: [buy the thing {id}]
    hints: {consequential: true}
"""


@pytest.fixture
def interface() -> NLWebInterface:
    fields: dict[str, str | ExtractField] = {"name": "b", "price": ExtractField(selector="i", type="price")}
    unless = Condition.model_validate({"not": {"text": "x"}})
    steps = [
        NLWebAction(action_type=A.NAVIGATE, value="/"),
        NLWebAction(action_type=A.EXTRACT, selector=".c", extract_schema=fields, when=unless),
    ]
    return NLWebInterface(
        interface_id="a", name="A", base_url="https://a.example", actions={"s": steps}, info={"s": NLWebActionInfo()}
    )


@pytest.mark.requirement("RF-013-41")
def test_a_file_becomes_an_interface(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(SHOP.replace("[buy the thing {id}]", '["buy the thing {id}"]'))
    shop = files.load(tmp_path / "shop.yaml")
    assert [step.value for step in shop.actions["buy"]] == ["/thing?id={id}", "2", "2027-03-04", None]
    assert shop.actions["buy"][3].until == Condition.model_validate({"not": {"visible": ".more"}})
    assert shop.info["buy"].hints.consequential


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json"])
def test_an_interface_survives_its_file(tmp_path: Path, interface: NLWebInterface, name: str) -> None:
    files.save(interface, tmp_path / name)
    assert files.load(tmp_path / name) == interface
    assert "optional" not in (tmp_path / name).read_text(), "what is usual is not written down"


@pytest.mark.requirement("RF-013-41")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("selector: .more", "value: .more"), "step 4.1 of 'buy': a click step needs a selector"),
        (("selector: .more", 'selector: "#m-{id}"'), r"step 4\.1 of 'buy' \(click .*outside a quoted CSS string"),
        (
            ('"#count"', '"#count", valeu: 3'),
            r"step 2 of 'buy' \(valeu\): unknown field; did you mean 'value'\?",
        ),
        (("base_url: https", "base_url: ftp"), "must start with https"),
        (("type: object", "type: objekt"), "input_schema of 'buy' is not a JSON Schema"),
        (("actions:", "actions: ["), "This is not YAML: .* at line [0-9]+, column [0-9]+"),
    ],
)
def test_a_fault_is_named_with_its_file_and_step(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    text = SHOP.replace("[buy the thing {id}]", "[buy]")
    assert change[0] in text
    (tmp_path / "shop.yaml").write_text(text.replace(*change))
    with pytest.raises(ValidationError, match=rf"^shop\.yaml: (?s:.*){words}"):
        files.load(tmp_path / "shop.yaml")


def test_what_is_no_such_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"Cannot read nowhere\.yaml"):
        files.load(tmp_path / "nowhere.yaml")
    (tmp_path / "shop.txt").write_text(SHOP)
    with pytest.raises(ValidationError, match=r"Call it shop\.yaml"):
        files.load(tmp_path / "shop.txt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"it is empty; it must be a mapping \(name: value\)"),
        ("[1]", r"it must be a mapping \(name: value\), not \[1\]"),
        ("name: x", "interface_id: it is missing"),
        ("interface_ids: x", "interface_ids: unknown field; did you mean 'interface_id'"),
    ],
)
def test_a_document_of_another_shape_is_told_in_plain_words(text: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        files.parse(text, "yaml")


def test_aliases_of_yaml_do_not_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    for text in ("\n".join(lines), "a: &a [*a]", "x" * 1_000_001):
        with pytest.raises(TooLarge):
            files.parse(text, "yaml")


@pytest.mark.requirement("RF-013-41")
def test_the_published_schema_is_that_of_the_files(interface: NLWebInterface) -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert published == files.schema(), "write it anew: python -m agent3.protocols.nlweb.authoring.files"
    judge = schema.compile(published)
    judge.check(json.loads(files.dump(interface, "json")))
    with pytest.raises(ValidationError):
        judge.check({"interface_id": "a", "name": "A", "base_url": "https://a.example", "actions": {"s": [{}]}})
