"""Words that speak of consequences, on buttons and on links."""

from __future__ import annotations

import pytest

from agent3.protocols.nlweb.healing.fingerprints import Fingerprint
from agent3.protocols.nlweb.healing.scoring import find_objection
from agent3.sentences.consequences import CONSEQUENTIAL, DECEPTIVE, GRAVE, find_new, has_consequences


@pytest.mark.parametrize(
    ("text", "button", "asking", "link"),
    [
        ("Order now", True, True, False),
        ("Send", True, False, False),
        ("Delete my account", True, True, True),
        ("Confirmar la compra de todo lo que hay en el carrito", True, True, True),
        ("Orders", False, False, False),
        ("Contact us", False, False, False),
    ],
)
def test_a_button_a_question_and_a_link_say_different_things(text: str, button: bool, asking: bool, link: bool) -> None:
    assert has_consequences(text) is button
    assert has_consequences(text, asks=True) is asking
    assert has_consequences(text, link=True) is link


def test_all_who_look_for_grave_words_have_one_list() -> None:
    for word in ("pay", "pagar", "buy", "comprar", "delete", "borrar", "cancel", "anular", "transfer", "donate"):
        assert has_consequences(word, link=True)
        assert word in GRAVE
        assert word in CONSEQUENTIAL
        assert word in DECEPTIVE
        known = Fingerprint(role="button", tag="button", name="Show order")
        now = Fingerprint(role="button", tag="button", name=f"{word} order")
        assert find_objection(known, now, named=True, strict=False)
    assert not find_new(GRAVE, ["remove"], ["delete"])
