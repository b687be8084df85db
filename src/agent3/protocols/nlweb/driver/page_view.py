"""What is on a page, read in one evaluation: every element with its role, names, label, state, place and colour.

The page's text is data for matching and nothing else. What repeats the command itself, as some pages do, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

__all__ = ["Element", "Sight", "look"]

_MOST = 4_000
_LOOK = r"""
({sentence, most}) => {
  const squeeze = text => (text || "").replace(/\s+/g, " ").trim();
  const goal = squeeze(sentence).toLowerCase();
  const skipped = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK"]);
  const pressed = new Set(["A", "BUTTON", "SELECT", "TEXTAREA", "INPUT", "OPTION", "SUMMARY", "LABEL", "AREA"]);
  const roles = {A: "link", BUTTON: "button", SELECT: "list", TEXTAREA: "textarea", OPTION: "option", IMG: "image",
    SUMMARY: "button", TABLE: "table", TR: "row", TD: "cell", TH: "cell", LI: "item", P: "paragraph", H1: "heading",
    H2: "heading", H3: "heading", H4: "heading", LABEL: "label", DIALOG: "dialog", FORM: "form"};
  const inputs = {checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button",
    image: "button", range: "slider", file: "file"};
  const found = [];
  const roleOf = node => {
    const told = node.getAttribute("role");
    if (told && told !== "presentation" && told !== "none") return told === "spinbutton" ? "spinner" : told;
    if (node.tagName === "INPUT") {
      const type = (node.getAttribute("type") || "text").toLowerCase();
      return inputs[type] || (type === "hidden" ? "hidden" : "textbox");
    }
    if (node.isContentEditable && !(node.parentElement && node.parentElement.isContentEditable)) return "textarea";
    return roles[node.tagName.toUpperCase()] || "";
  };
  const textOf = node => squeeze(node.innerText === undefined ? node.textContent : node.innerText).slice(0, 600);
  const ownOf = node => squeeze([...node.childNodes].filter(one => one.nodeType === 3).map(one => one.data).join(" "));
  const shortBefore = (node, levels) => {
    let at = node;
    for (let up = 0; at && up < levels; up++, at = at.parentElement) {
      for (let one = at.previousSibling; one; one = one.previousSibling) {
        if (one.nodeType === 1 && one.querySelector && (one.matches("input,select,textarea,button") ||
            one.querySelector("input,select,textarea"))) return "";
        const text = squeeze(one.nodeType === 1 || one.nodeType === 3 ? one.textContent : "");
        if (text) return text.length < 60 ? text : "";
      }
    }
    return "";
  };
  const shortAfter = node => {
    for (let one = node.nextSibling; one; one = one.nextSibling) {
      if (one.nodeType === 1 && one.matches("input,select,textarea,button,a,form")) return "";
      const text = squeeze(one.nodeType === 1 || one.nodeType === 3 ? one.textContent : "");
      if (text) return text.length < 40 ? text : "";
    }
    return "";
  };
  const labelOf = node => {
    const by = (node.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean)
      .map(id => document.getElementById(id)).filter(Boolean).map(one => one.textContent);
    const labels = node.labels ? [...node.labels].map(one => one.textContent) : [];
    return squeeze([node.getAttribute("aria-label"), ...by, ...labels].filter(Boolean).join(" "));
  };
  const colourOf = (node, style) => {
    if (node.ownerSVGElement) return style.fill === "none" ? style.stroke : style.fill;
    const clear = style.backgroundColor === "rgba(0, 0, 0, 0)" || style.backgroundColor === "transparent";
    return clear ? "" : style.backgroundColor;
  };
  const field = node => ["INPUT", "SELECT", "TEXTAREA"].includes(node.tagName) || node.isContentEditable;
  // Whether it repeats the command, perhaps with a picture in the place of a word. What can be pressed is what the
  // command speaks of.
  const PRESSED = "a,button,input,select,textarea,label,summary,option,[role],[onclick],[tabindex]";
  const repeats = node => {
    const text = squeeze(node.textContent).toLowerCase();
    return goal.length > 8 && text.length > 0.6 * goal.length && text.length < goal.length + 8 &&
      text.split(" ").every(word => goal.includes(word)) && !node.closest(PRESSED) && !node.querySelector(PRESSED) &&
      getComputedStyle(node).cursor !== "pointer";
  };
  const add = (node, path, parent, shown) => {
    const style = getComputedStyle(node), box = node.getBoundingClientRect();
    const seen = box.width >= 2 && box.height >= 2 && style.opacity !== "0";
    const visible = shown && seen && style.visibility === "visible";
    const role = roleOf(node), text = textOf(node);
    const isField = field(node) && !["button", "submit", "reset"].includes(node.type);
    const pressable = pressed.has(node.tagName) || style.cursor === "pointer" || node.hasAttribute("onclick") ||
      ["button", "link", "tab", "menuitem", "option", "checkbox", "radio", "switch", "treeitem"].includes(role);
    found.push({
      path, parent, tag: node.tagName.toLowerCase(), role, visible, pressable, text, own: ownOf(node).slice(0, 300),
      label: labelOf(node), before: isField ? shortBefore(node, 1) || shortAfter(node) || shortBefore(node, 4) : "",
      hint: squeeze(node.getAttribute("placeholder") || ""),
      title: squeeze(node.getAttribute("title") || node.getAttribute("alt") || node.getAttribute("aria-label") || ""),
      value: isField || node.tagName === "INPUT" ? String(node.value ?? node.innerText ?? "").slice(0, 20000) : "",
      kind: node.tagName === "INPUT" ? (node.getAttribute("type") || "text").toLowerCase() : "",
      marks: [node.id, node.getAttribute("name"), node.getAttribute("data-testid"),
        typeof node.className === "string" ? node.className : node.getAttribute("class")].filter(Boolean).join(" "),
      checked: node.checked === true || node.getAttribute("aria-checked") === "true",
      selected: node.selected === true || node.getAttribute("aria-selected") === "true",
      off: node.disabled === true || node.getAttribute("aria-disabled") === "true" ||
        (style.pointerEvents === "none" && !node.ownerSVGElement),
      fixed: node.readOnly === true,
      opens: node.getAttribute("aria-expanded") === "false" ? "closed"
        : node.getAttribute("aria-haspopup") && node.getAttribute("aria-haspopup") !== "false" ? "popup" : "",
      colour: visible ? colourOf(node, style) : "", multiple: node.multiple === true,
      x: box.x, y: box.y, width: box.width, height: box.height,
      size: node.ownerSVGElement ? parseFloat(["font-size", "width", "r"].map(key => node.getAttribute(key))
        .find(Boolean) || "0") : 0,
      parts: node.querySelectorAll("*").length,
      corners: node.tagName === "polygon" ? (node.getAttribute("points") || "").trim().split(/\s+/).length : 0,
      scrolls: node.scrollHeight > node.clientHeight + 2 &&
        (node.tagName === "TEXTAREA" || /auto|scroll/.test(style.overflowY)),
    });
    return found.length - 1;
  };
  const walk = (node, path, parent, shown) => {
    if (found.length >= most || skipped.has(node.tagName.toUpperCase())) return;
    if (node !== document.body && repeats(node) && ![...node.children].some(repeats)) return;
    const style = getComputedStyle(node);
    const there = shown && style.display !== "none";
    const index = add(node, path, parent, there);
    let number = 0;
    for (const child of node.children) walk(child, `${path} > :nth-child(${++number})`, index, there);
    if (node.shadowRoot) {
      number = 0;
      const inside = `${path} >> :scope > :nth-child`;
      for (const child of node.shadowRoot.children) walk(child, `${inside}(${++number})`, index, there);
    }
  };
  if (document.body) walk(document.body, "body", -1, true);
  return found;
}
"""


@dataclass(frozen=True, slots=True)
class Element:
    """One element as it was seen. ``marks`` are its id, name and classes; ``before`` is the text beside a field."""

    index: int
    path: str
    parent: int
    tag: str
    role: str
    visible: bool
    pressable: bool
    text: str
    own: str
    label: str
    before: str
    hint: str
    title: str
    value: str
    kind: str
    marks: str
    checked: bool
    selected: bool
    off: bool
    fixed: bool
    opens: str
    colour: str
    multiple: bool
    x: float
    y: float
    width: float
    height: float
    size: float
    corners: int
    parts: int
    scrolls: bool
    frame: int = field(default=0)

    @property
    def middle(self) -> tuple[float, float]:
        """The point in its middle."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def names(self) -> list[str]:
        """What it may be called, the surest first."""
        whole = self.parts <= (12 if self.pressable else 3) and len(self.text) <= 200
        shown = [self.label, self.title, self.own, self.text if whole else "", self.hint]
        if self.role == "button" and self.value:
            shown.insert(0, self.value)
        return [one for one in dict.fromkeys(shown) if one]

    @property
    def writable(self) -> bool:
        """Whether text can be put into it."""
        return self.role in ("textbox", "textarea", "spinner", "searchbox", "combobox") and self.tag != "select"

    @property
    def words(self) -> frozenset[str]:
        """The words of its marks: for an icon without a text, the only name that it has."""
        parts = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.marks)
        return frozenset(re.findall(r"[a-z]+", parts.lower()))


_FIELDS = frozenset(one.name for one in fields(Element)) - {"index", "frame"}


class Sight:
    """All elements of a page at one moment, in the order of the document."""

    def __init__(self, elements: Sequence[Element]):
        self.all = elements
        self._children: dict[int, list[Element]] = {}
        for one in elements:
            self._children.setdefault(one.parent, []).append(one)

    @property
    def shown(self) -> list[Element]:
        """The visible ones."""
        return [one for one in self.all if one.visible]

    def inside(self, element: Element) -> Iterator[Element]:
        """Everything below an element, in order."""
        for child in self._children.get(element.index, ()):
            yield child
            yield from self.inside(child)

    def children(self, element: Element) -> list[Element]:
        """What is directly below it."""
        return self._children.get(element.index, [])

    def up(self, element: Element) -> Iterator[Element]:
        """Its ancestors, the nearest first."""
        while element.parent >= 0:
            element = self.all[element.parent]
            yield element

    def having(self, test: Callable[[Element], bool]) -> list[Element]:
        """The visible ones that pass a test."""
        return [one for one in self.all if one.visible and test(one)]

    def fields(self) -> list[Element]:
        """Where text can be written, in order."""
        return self.having(lambda one: one.writable and not one.off)

    def leaf(self, element: Element) -> bool:
        """Whether no visible element with a text is below it."""
        return not any(one.visible and one.text for one in self.inside(element))

    def texts(self) -> str:
        """All that can be read."""
        return " ".join(one.own for one in self.shown if one.own)


async def look(page: Page, sentence: str = "") -> Sight:
    """See a page and its frames. A frame that goes away meanwhile is left out."""
    elements: list[Element] = []
    for number, frame in enumerate(page.frames):
        offset = len(elements)
        for one in await _seen(frame, sentence, bool(number)):
            kept: dict[str, Any] = {name: value for name, value in one.items() if name in _FIELDS}
            kept["parent"] = one["parent"] + offset if one["parent"] >= 0 else -1
            elements.append(Element(index=len(elements), frame=number, **kept))
    return Sight(elements)


async def _seen(frame: Frame, sentence: str, may_fail: bool) -> list[dict[str, Any]]:
    try:
        seen: list[dict[str, Any]] = await frame.evaluate(_LOOK, {"sentence": sentence, "most": _MOST})
    except playwright().Error:
        if may_fail:
            return []
        raise
    return seen
