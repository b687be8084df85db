"""What is on a page, read in one evaluation: every element with its role, names, label and state.

The page's text is data for matching and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Element", "PageView", "look"]

_MOST_ELEMENTS = 4_000
_LOOK = r"""
most => {
  const squeeze = text => (text || "").replace(/\s+/g, " ").trim();
  const skipped = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK"]);
  const pressed = new Set(["A", "BUTTON", "SELECT", "TEXTAREA", "INPUT", "OPTION", "SUMMARY", "LABEL", "AREA"]);
  const roles = {A: "link", BUTTON: "button", SELECT: "list", TEXTAREA: "textarea", OPTION: "option", IMG: "image",
    SUMMARY: "button", TABLE: "table", TR: "row", TD: "cell", TH: "cell", LI: "item", P: "paragraph", H1: "heading",
    H2: "heading", H3: "heading", H4: "heading", LABEL: "label", DIALOG: "dialog", FORM: "form"};
  const inputs = {checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button",
    image: "button", range: "slider", file: "file"};
  const found = [];
  const roleOf = node => {
    const role = node.getAttribute("role");
    if (role && role !== "presentation" && role !== "none") return role === "spinbutton" ? "spinner" : role;
    if (node.tagName === "INPUT") {
      const type = (node.getAttribute("type") || "text").toLowerCase();
      return inputs[type] || (type === "hidden" ? "hidden" : "textbox");
    }
    if (node.isContentEditable && !(node.parentElement && node.parentElement.isContentEditable)) return "textarea";
    return roles[node.tagName.toUpperCase()] || "";
  };
  const textOf = node => squeeze(node.innerText === undefined ? node.textContent : node.innerText).slice(0, 600);
  const ownOf = node => squeeze([...node.childNodes].filter(one => one.nodeType === 3).map(one => one.data).join(" "));
  // The text before a field, or before what it stands in, unless another field comes between: that one's label.
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
  const field = node => ["INPUT", "SELECT", "TEXTAREA"].includes(node.tagName) || node.isContentEditable;
  const valueOf = node => field(node) ? String(node.value ?? node.innerText ?? "").slice(0, 20000)
    : node.getAttribute("aria-valuenow") || "";
  const add = (node, path, parent, shown) => {
    const style = getComputedStyle(node), box = node.getBoundingClientRect();
    const seen = box.width >= 2 && box.height >= 2 && style.opacity !== "0";
    const role = roleOf(node);
    const isField = field(node) && !["button", "submit", "reset"].includes(node.type);
    found.push({
      path, parent, tag: node.tagName.toLowerCase(), role, visible: shown && seen && style.visibility === "visible",
      pressable: pressed.has(node.tagName) || style.cursor === "pointer" || node.hasAttribute("onclick") ||
        ["button", "link", "tab", "menuitem", "option", "checkbox", "radio", "switch", "treeitem"].includes(role),
      text: textOf(node), own: ownOf(node).slice(0, 300), label: labelOf(node),
      beside: isField ? shortBefore(node, 1) || shortAfter(node) || shortBefore(node, 4) : "",
      hint: squeeze(node.getAttribute("placeholder") || ""),
      title: squeeze(node.getAttribute("title") || node.getAttribute("alt") || node.getAttribute("aria-label") || ""),
      value: valueOf(node), kind: node.tagName === "INPUT" ? (node.getAttribute("type") || "text").toLowerCase()
        : node.tagName === "BUTTON" ? node.type : "",
      marks: [node.id, node.getAttribute("name"), node.getAttribute("data-testid"),
        typeof node.className === "string" ? node.className : node.getAttribute("class")].filter(Boolean).join(" "),
      checked: node.checked === true || node.getAttribute("aria-checked") === "true",
      selected: node.selected === true || node.getAttribute("aria-selected") === "true",
      disabled: node.disabled === true || node.getAttribute("aria-disabled") === "true" ||
        style.pointerEvents === "none",
      read_only: node.readOnly === true, multiple: node.multiple === true,
      closed: node.getAttribute("aria-expanded") === "false" ||
        ![null, "false"].includes(node.getAttribute("aria-haspopup")) ||
        (node.tagName === "SUMMARY" && !node.parentElement.open),
      parts: node.querySelectorAll("*").length,
    });
    return found.length - 1;
  };
  // Paths by position, since a page may have no ids at all; ">>" makes Playwright go on inside a shadow root.
  const walk = (node, path, parent, shown) => {
    if (found.length >= most || skipped.has(node.tagName.toUpperCase())) return;
    const there = shown && getComputedStyle(node).display !== "none";
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
    """One element as it was seen. ``marks`` are its id, name and classes; ``beside`` is the text next to a field."""

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
    beside: str
    hint: str
    title: str
    value: str
    kind: str
    marks: str
    checked: bool
    selected: bool
    disabled: bool
    read_only: bool
    multiple: bool
    closed: bool
    parts: int
    frame: int = 0

    @property
    def names(self) -> list[str]:
        """What it may be called, the surest first."""
        is_small = self.parts <= (12 if self.pressable else 3) and len(self.text) <= 200
        names = [self.label, self.title, self.own, self.text if is_small else "", self.hint]
        if self.role == "button" and self.value:
            names.insert(0, self.value)
        return [name for name in dict.fromkeys(names) if name]

    @property
    def field_name(self) -> str:
        """What a person calls a field: its label, else what stands in it or beside it."""
        return self.label or self.hint or self.beside or self.title

    @property
    def writable(self) -> bool:
        return self.role in ("textbox", "textarea", "spinner", "searchbox", "combobox") and self.tag != "select"

    @property
    def mark_words(self) -> frozenset[str]:
        """The words of its marks: for an icon without a text, the only name that it has."""
        parts = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.marks)
        return frozenset(re.findall(r"[a-z]+", parts.lower()))


_READ = frozenset(field.name for field in fields(Element)) - {"index", "parent", "frame"}


class PageView:
    """All elements of a page at one moment, in the order of the document."""

    def __init__(self, elements: Sequence[Element]):
        self.elements = elements
        self._children: dict[int, list[Element]] = {}
        for element in elements:
            self._children.setdefault(element.parent, []).append(element)

    @property
    def visible(self) -> list[Element]:
        return [element for element in self.elements if element.visible]

    def where(self, test: Callable[[Element], bool]) -> list[Element]:
        """The visible elements that pass a test."""
        return [element for element in self.elements if element.visible and test(element)]

    def fields(self) -> list[Element]:
        """Where text can be written, in order."""
        return self.where(lambda element: element.writable and not element.disabled)

    def descendants(self, element: Element) -> Iterator[Element]:
        for child in self._children.get(element.index, ()):
            yield child
            yield from self.descendants(child)

    def ancestors(self, element: Element) -> Iterator[Element]:
        while element.parent >= 0:
            element = self.elements[element.parent]
            yield element


async def look(page: Page) -> PageView:
    """Read a page and its frames. A frame that goes away meanwhile is left out."""
    elements: list[Element] = []
    for number, frame in enumerate(page.frames):
        try:
            rows: list[dict[str, Any]] = await frame.evaluate(_LOOK, _MOST_ELEMENTS)
        except playwright().Error:
            if number == 0:
                raise
            continue
        offset = len(elements)
        for row in rows:
            parent = row["parent"] + offset if row["parent"] >= 0 else -1
            # Only known fields: a page may have changed what the script relies on.
            read = {name: row[name] for name in _READ}
            elements.append(Element(index=len(elements), parent=parent, frame=number, **read))
    return PageView(elements)
