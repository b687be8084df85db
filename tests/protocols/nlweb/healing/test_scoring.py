"""Which of many elements is meant: what speaks for one, what against it, and when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from agent3.protocols.nlweb.healing.fingerprints import Fingerprint, digest_words, parse_fingerprint
from agent3.protocols.nlweb.healing.scoring import judge, name_similarity, score

AROUND = digest_words("Blue mug stoneware three hundred millilitres")
BUTTON = Fingerprint(
    role="button", tag="button", name="Add to cart", id="add", classes=("btn", "primary"), near=AROUND,
    heading=digest_words("Blue mug"), fields=("count",), path=("button", "form", "main"), landmark="form",
)  # fmt: skip


def like(**changes: Any) -> Fingerprint:
    """The button after a redesign: another id, other classes, other wrappers, and these changes."""
    looks = {"id": "c8f1", "classes": ("c-btn",), "path": ("button", "span", "div", "form")}
    return Fingerprint(**{**{key: getattr(BUTTON, key) for key in Fingerprint.__struct_fields__}, **looks, **changes})


def test_a_redesigned_element_is_recognised_among_others() -> None:
    others = [like(name="Save for later"), like(), like(name="Share")]
    verdict = judge(BUTTON, others)
    assert verdict.chosen is not None
    assert verdict.chosen.index == 1
    assert verdict.margin > 0.12


@pytest.mark.parametrize("name", ["Add to basket", "Add to bag", "Add to your cart"])
def test_a_name_that_says_the_same_in_other_words_is_the_same(name: str) -> None:
    assert name_similarity("Add to cart", name) == 1.0
    assert judge(BUTTON, [like(name=name)]).chosen is not None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Remove from cart", "it says 'remove'"),
        ("Get premium", "premium"),
        ("Tell me when it is back", "another name"),
        ("Add to cart help", "neither its name nor any attribute"),
    ],
)
def test_a_decoy_in_the_same_place_is_not_taken(name: str, reason: str) -> None:
    decoy = like(name=name, classes=BUTTON.classes, path=BUTTON.path)
    verdict = judge(BUTTON, [decoy], threshold=0.0)
    assert verdict.chosen is None
    assert reason in verdict.reason


def test_a_button_that_became_a_link_is_taken_only_where_everything_else_agrees() -> None:
    link = like(role="link", tag="a")
    chosen = judge(BUTTON, [link, like(name="Share")]).chosen
    assert chosen is not None
    assert chosen.index == 0
    assert judge(BUTTON, [like(role="link", tag="a", name="Add to basket now")]).chosen is not None, "the same in words"
    for changes in (
        {"name": "Add to cart help"},
        {"landmark": "footer"},
        {"near": digest_words("customers also bought a kettle")},
        {"role": "checkbox"},
    ):
        assert judge(BUTTON, [like(**{"role": "link", "tag": "a", **changes})]).chosen is None, changes


def test_a_button_of_a_row_is_told_from_the_others_by_its_row() -> None:
    rows = [digest_words(text) for text in ("Ana Pérez admin May", "Luis Gómez guest June", "Eva Ruiz admin July")]
    known = like(near=rows[0])
    wide = tuple(word for row in rows for word in row)
    there = [like(near=row, wide=wide) for row in rows]
    chosen = judge(known, there[::-1]).chosen
    assert chosen is not None
    assert chosen.index == 2
    assert judge(known, there[1:]).chosen is None, "its own row is gone"
    assert judge(known, [*there, there[0]]).chosen is None, "two rows are the same"


def test_what_all_rows_have_tells_none_of_them_and_what_a_row_begins_with_does() -> None:
    rows = [digest_words(f"Court {number} indoor {price} euros free") for number, price in ((1, 20), (2, 25), (3, 20))]
    known = like(row=rows[0])
    there = [like(row=row) for row in rows]
    chosen = judge(known, there[::-1]).chosen
    assert chosen is not None
    assert chosen.index == 2
    dearer = like(row=digest_words("Court 1 outdoor 30 euros taken"))
    assert judge(known, [there[2], dearer]).chosen is None, "the first word alone is too little"
    assert judge(known, there[1:]).chosen is None, "its own row is gone"


def test_the_same_name_among_other_things_is_not_taken() -> None:
    stranger = like(
        near=digest_words("Our letter once a month"), heading=digest_words("Newsletter"), fields=("letter",)
    )
    assert judge(BUTTON, [stranger], threshold=0.0).reason == "it has other neighbours"


def test_of_two_that_are_alike_none_is_taken() -> None:
    assert judge(BUTTON, [like(), like()]).reason == "several elements are similar"


def test_another_number_is_another_thing() -> None:
    known = Fingerprint(role="link", tag="a", name="Open 2041", near=AROUND)
    assert judge(known, [Fingerprint(role="link", tag="a", name="Open 2042", near=AROUND)]).chosen is None
    assert name_similarity("Open 2041", "Open 2042") == 0.0


def test_from_and_to_are_never_taken_for_each_other() -> None:
    known = Fingerprint(
        role="textbox", tag="input", name="From", id="a", placeholder="Airport", near=AROUND, fields=("a", "b")
    )
    other = Fingerprint(
        role="textbox", tag="input", name="To", id="a", placeholder="Airport", near=AROUND, fields=("a", "b")
    )
    assert judge(known, [other], threshold=0.0).reason == "it says the opposite"


def test_a_mark_of_the_site_outweighs_another_name_only_with_its_surroundings() -> None:
    known = Fingerprint(role="textbox", tag="input", name="Cabin", field="cabin", near=AROUND)
    same_place = Fingerprint(role="textbox", tag="input", name="Class of travel", field="cabin", near=AROUND)
    elsewhere = Fingerprint(
        role="textbox", tag="input", name="Class of travel", field="cabin", near=digest_words("quite other words")
    )
    assert judge(known, [same_place], threshold=0.0).chosen is not None
    assert judge(known, [elsewhere], threshold=0.0).chosen is None


def test_a_changed_id_counts_less_than_a_changed_name() -> None:
    assert score(BUTTON, like()) > score(BUTTON, like(id=BUTTON.id, name="Show the details"))


def test_words_around_an_element_are_kept_as_digests_only() -> None:
    seen = {
        "role": "button",
        "tag": "button",
        "name": "Pay",
        "near": "Hello Ada Lovelace",
        "heading": "",
        "box": [0, 0, 0, 0],
    }
    made = parse_fingerprint(seen)
    assert "ada" not in repr(made).lower()
    assert set(made.near) == set(digest_words("lovelace hello ada"))
