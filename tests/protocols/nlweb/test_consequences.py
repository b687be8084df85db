"""Words that speak of consequences, on buttons and on links."""

from __future__ import annotations

import pytest

from agent3.sentences.lexicon import has_consequences


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
