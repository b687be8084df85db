"""The demo shop and airline after their relaunch: every action goes on, and nothing wrong is clicked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3 import bridge
from agent3.errors import CallTimeout
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.authoring.files import load
from agent3.protocols.nlweb.healing import Healer, MemoryStore, Policy
from agent3.protocols.nlweb.healing.review import Heals
from agent3.protocols.nlweb.visit.page_session import Timeouts, Tools
from agent3.testing import Website

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
pytestmark = [pytest.mark.browser, pytest.mark.requirement("RF-013-54")]

ORDER = {"name": "Ada Lovelace", "street": "Calle Mayor 1", "city": "Madrid"}
FLIGHT = {"origin": "MAD", "destination": "LIS"}
TICKET = {**FLIGHT, "flight": "DM103", "first_name": "Ada", "last_name": "Lovelace"}


class Demo:
    """A browser at a demo site that can be relaunched."""

    def __init__(self, executor: NLWebExecutor, healer: Healer, site: Website, folder: Path):
        self.executor = executor
        self.healer = healer
        self._site = site
        self._folder = folder

    def relaunch(self) -> None:
        self._site.relaunch(self._folder / "redesigned")

    def act(self, name: str, /, **parameters: Any) -> Any:
        return self.executor.execute_action(name, parameters)

    def act_with_a_person(self, name: str, /, **parameters: Any) -> int:
        """Run an action with consequences; a person accepts what is proposed. How often that was needed."""
        for asked in range(10):
            try:
                self.act(name, **parameters)
            except CallTimeout as error:
                names = [heal["id"] for heal in error.data["heals"]]
                bridge.run(Heals(self.healer.store).accept(names, "ann"))
            else:
                return asked
        raise AssertionError("accepting never ends")

    @property
    def text(self) -> str:
        return str(self.executor.page.inner_text("body"))


@contextmanager
def demo(name: str) -> Iterator[Demo]:
    folder = EXAMPLES / name
    with Website(folder / "site") as site:
        interface = load(folder / f"{name}.yaml").model_copy(update={"base_url": f"{site.url}/"})
        healer = Healer(interface, MemoryStore(), policy=Policy(grace=150))
        timeouts = Timeouts(step=40.0, extraction=1.0)
        with NLWebExecutor(interface, tools=Tools(finder=healer), timeouts=timeouts) as executor:
            yield Demo(executor, healer, site, folder)


def test_the_shop_goes_on_after_its_relaunch() -> None:
    with demo("shop") as shop:
        before = shop.act("search_products", query="mug")
        shop.act("add_to_cart", product="Blue mug", quantity=2)
        shop.act("open_cart")
        shop.act("place_order", **ORDER)
        shop.relaunch()
        after = shop.act("search_products", query="mug")
        assert [(row["name"], row["price"]) for row in after] == [(row["name"], row["price"]) for row in before]
        shop.act("add_to_cart", product="Blue mug", quantity=2)
        assert shop.executor.page.evaluate("pressed") == ["Add to basket"]
        assert len(shop.healer.uses) == 5
        shop.act("open_cart")
        assert "Total: €25.00" in shop.text
        assert shop.act_with_a_person("place_order", **ORDER) > 0
        assert "Thank you. Your order A-1001 goes to Madrid." in " ".join(shop.text.split())


def test_a_product_that_is_sold_out_is_not_bought_by_another_button() -> None:
    with demo("shop") as shop:
        shop.act("add_to_cart", product="Blue mug", quantity=1)
        shop.relaunch()
        steps = shop.executor.interface.actions["add_to_cart"]
        shop.executor.interface.actions["add_to_cart"] = [
            steps[0].model_copy(update={"value": "/item.html?id=honey-spoon"}),
            steps[5].model_copy(update={"timeout": 2.0}),
        ]
        with pytest.raises(CallTimeout, match="no other element was used"):
            shop.act("add_to_cart", product="Honey spoon")
        assert shop.executor.page.evaluate("pressed") == []


def test_the_airline_goes_on_after_its_relaunch() -> None:
    with demo("airline") as airline:
        before = airline.act("search_flights", **FLIGHT, date="2027-03-04")
        airline.act("book_flight", **TICKET)
        airline.relaunch()
        assert airline.act("search_flights", **FLIGHT, date="2027-03-04") == before
        asked = airline.act_with_a_person("book_flight", **TICKET)
        assert asked == 3  # once for each page, not once for each element
        assert "Your booking is DM103-LOV" in airline.text
