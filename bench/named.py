"""Lists whose rows a caller names: drawn in one layout, then in another, with the named row still there or sold out.

A step means the button or link of *one* row, by words that the caller gave. When that row is gone, every other row has
the same button, and none of them is right. Names are similar on purpose (another weight, another fare, a variant de
luxe), and the page often still speaks of what was asked for: in a heading, or as sold out.
"""

from __future__ import annotations

import html
import random
from dataclasses import dataclass

__all__ = ["LAYOUTS", "Lists", "make_lists", "page", "template"]

_NAMES = (
    ("Alpha tea", "Beta tea", "Gamma tea", "Alpha tea de luxe"),
    ("Green tea 100 g", "Green tea 250 g", "Green tea 500 g", "Black tea 100 g"),
    (
        "Economy fare Madrid Paris",
        "Business fare Madrid Paris",
        "Economy fare Madrid Lisbon",
        "First fare Madrid Paris",
    ),
    ("Assam", "Darjeeling", "Ceylon", "Assam Gold"),
    ("Reserva 4711", "Reserva 4712", "Reserva 5811", "Reserva 47"),
    ("Ana Pérez", "Ana Gómez", "Luis Pérez", "Ana"),
    ("Room 101", "Room 102", "Room 201", "Suite 101"),
)
_DEEDS = ("Add to cart", "Book", "Cancel", "View", "Reservar", "Download", "Remove")
_REMARKS = ("In stock. Free delivery.", "9.00 EUR", "From 12 May", "Only two left", "Disponible")


@dataclass(frozen=True, slots=True)
class Lists:
    """One case: the names in the list before and after, which of them is wanted, and how the page looks each time."""

    seed: int
    wanted: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    deed: str
    link: bool
    old: str
    new: str
    remark: str
    noise: str

    @property
    def gone(self) -> bool:
        """Whether nothing is the right answer."""
        return self.wanted not in self.after


def make_lists(seed: int) -> Lists:
    """The case of a seed; in half of them the named row is gone, and one to three others stay."""
    chance = random.Random(seed)
    names = chance.sample(chance.choice(_NAMES), 4)
    wanted = names[0]
    others = tuple(names[1 : chance.randint(2, 4)])
    kept = () if chance.random() < 0.5 else (wanted,)
    after = [*kept, *others]
    chance.shuffle(after)
    old, new = chance.choice(sorted(LAYOUTS)), chance.choice(sorted(LAYOUTS))
    noise = chance.choice(("", "You looked for {}", "{}", "{} is sold out.", "Results for {}"))
    deed, remark = chance.choice(_DEEDS), chance.choice(_REMARKS)
    return Lists(
        seed, wanted, (wanted, *others), tuple(after), deed, chance.random() < 0.4, old, new, remark, noise
    )  # fmt: skip


def template(case: Lists) -> str:
    """The selector of the step, as its author wrote it for the first layout."""
    row, inner = LAYOUTS[case.old][1], "a.deed" if case.link else "button.deed"
    return f'{row}:has(:text-is("{{item}}")) {inner}'


def page(case: Lists, *, now: bool) -> str:
    """The page as it was, or as it is now: other classes, another layout, ``data-truth`` on the right element."""
    names, layout = (case.after, case.new) if now else (case.before, case.old)
    drawn = []
    for name in names:
        truth = " data-truth" if now and name == case.wanted else ""
        known = "" if now else " class=deed"
        tag, address = ("a", ' href="#go"') if case.link else ("button", "")
        deed = f"<{tag}{address}{known}{truth}>{case.deed}</{tag}>"
        row = LAYOUTS[layout][0].format(name=html.escape(name), remark=html.escape(case.remark), deed=deed)
        drawn.append(row)
    around = "table" if layout == "table" else "ul" if layout == "list" else "div"
    noise = f"<p>{html.escape(case.noise.format(case.wanted))}</p>" if now and case.noise else ""
    return f"<!doctype html><title>List</title><h1>Our list</h1>{noise}<{around} class=all>{''.join(drawn)}</{around}>"


LAYOUTS = {
    "table": ("<tr><td>{name}</td><td>{remark}</td><td>{deed}</td></tr>", "tr"),
    "cards": ("<article class=card><h3>{name}</h3><p>{remark}</p>{deed}</article>", "article"),
    "tiles": ("<div class=tile><b>{name}</b> <span>{remark}</span> <div>{deed}</div></div>", "div.tile"),
    "list": ("<li>{deed} <span>{name}</span> <i>{remark}</i></li>", "li"),
}
"""How a row is drawn, and what an author would call it in a selector."""
