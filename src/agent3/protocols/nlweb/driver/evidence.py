"""What a page shows after a press: whether it reports what was asked for, turns it down, or says something else.

That something changed is no proof. Done is what the page shows as done: it says so of this very thing, its row is gone
or another, the form that was sent is empty or shut, or what was pressed is in its other state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent3.protocols.nlweb.driver.page_plans import Act, Doubt
from agent3.protocols.nlweb.driver.page_view import Control
from agent3.protocols.nlweb.driver.wording import DOING, VIEWING, can_mean, is_cousin, words_in
from agent3.sentences.consequences import CONSEQUENTIAL, has_consequences
from agent3.sentences.lexicon import fold
from agent3.sentences.site_answers import HEDGED, LONGEST_MESSAGE, REPORTED, refusals_in

__all__ = [
    "SAID",
    "SHOWN",
    "TROUBLE",
    "Frames",
    "Sight",
    "find_hedged",
    "find_refusal",
    "find_refusing",
    "leads_on",
    "may_act",
    "must_report",
    "new_lines",
    "reports",
    "weigh",
]

Frames = Sequence[Sequence[str]]
"""The lines of each frame of a page; the last of each has its address, its title and the states of its fields."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was to be seen before a press and after it, and what the page has said meanwhile.

    ``messages`` are new lines that stand as messages of the page, ``entries`` those that stand in a row, a
    list, a heading and the like. Where the page has taken something back, only what still stands there is
    ``lasting``. ``name`` is what the pressed element is called now, None where it is no more to be seen. ``confirmed``
    tells of a deed: the browser was made to ask whether it shall be done.
    """

    before: Frames
    after: Frames
    messages: Sequence[str]
    lasting: Sequence[str]
    entries: Sequence[str]
    name: str | None
    same_row: bool
    confirmed: bool


def must_report(control: Control) -> bool:
    """Whether a press does something that a page reports or shows, and not just opens or leads somewhere."""
    if control.role in ("link", "tab", "option", "treeitem") or control.searches:
        return False
    if control.opens and (control.role != "menuitem" or control.name.rstrip().endswith(("\u2026", "..."))):
        return False
    first = words_in(control.name)[:1]
    does = any(line & {word} for word in first for line in DOING if word not in VIEWING)
    return control.sends or control.toggles or does or has_consequences(control.name)


def may_act(control: Control) -> bool:
    """Whether a press may do something, although its name is none of a deed that we know ("Hand in", "Apuntarme")."""
    first = words_in(control.name)[:1]
    return control.role in ("button", "menuitem") and not control.opens and not any(word in VIEWING for word in first)


def leads_on(control: Control) -> bool:
    """Whether a button says that it shows the next step of something."""
    said = re.findall(r"\w+", fold(control.name))
    return (
        bool(said)
        and (said[0] in ("next", "continue", "siguiente", "continuar") or _PAGE.fullmatch(control.name) is not None)
        and not has_consequences(control.name)
    )


_PAGE = re.compile(r"\s*(?:page|p[aá]gina)\s+\d+\s*", re.IGNORECASE)


def weigh(act: Act, sight: Sight) -> Doubt | None:
    """A doubt where nothing that is to be seen speaks for what was asked for."""
    against = find_hedged(sight.messages, act.control.name)
    if against:
        return Doubt("says", against[0])
    if sight.same_row and _removes(act.control.name):
        return Doubt("says", sight.messages[0]) if sight.messages else Doubt("unshown", act.control.name)
    if any(reports(line, act) for line in (*sight.lasting, *sight.entries)):
        return None
    if not (must_report(act.control) or leads_on(act.control) or sight.confirmed):
        # What it does is not known: something else than words is enough.
        return Doubt("says", sight.lasting[0]) if sight.lasting and _says_only(sight) else None
    if sight.name is not None and fold(sight.name) != fold(act.control.name) and not _SHORT.search(sight.name):
        return None  # "Follow" is "Following" now
    if _state(sight.before) != _state(sight.after):
        return None
    if not sight.messages and _state(sight.before, fields=True) != _state(sight.after, fields=True):
        return None  # the form is empty again
    known = {_plain(line) for frame in sight.before for line in frame}
    if sight.entries or any(_plain(line) in known for line in sight.lasting):
        return None  # a new row, another number
    there = {line for frame in sight.after for line in frame}
    gone = [line for frame in sight.before for line in frame if line not in there and not line.startswith("\0")]
    if len(gone) > len(sight.messages):
        return None
    if sight.messages:
        return Doubt("says", sight.messages[0])
    order = [[line for line in frame if not line.startswith("\0")] for frame in sight.after]
    earlier = [[line for line in frame if not line.startswith("\0")] for frame in sight.before]
    return None if order != earlier and not gone else Doubt("unshown", act.control.name)


def _says_only(sight: Sight) -> bool:
    """Whether all that a page shows now and did not before is what it says."""
    shown = {line for frame in sight.after for line in frame if not line.startswith("\0")}
    known = {line for frame in sight.before for line in frame if not line.startswith("\0")}
    same = _state(sight.before, fields=True) == _state(sight.after, fields=True)
    return same and known <= shown and shown - known <= {*sight.messages}


def find_hedged(lines: Sequence[str], pressed: str) -> list[str]:
    """The lines by which a page has not, or not yet, done something; words of what was pressed tell nothing."""
    asked = fold(pressed)
    return [
        line for line in lines if len(line) < LONGEST_MESSAGE
        and any(fold(match[0]) not in asked for match in HEDGED.finditer(line))
    ]  # fmt: skip


def reports(line: str, act: Act) -> bool:
    """Whether a line says that what was asked for is done: "Order 4711 received", and not "Draft saved" of an order."""
    if _NEGATED.search(line):
        return False
    if REPORTED.search(line):
        return True
    said = [word for word in re.findall(r"\w+", fold(line)) if not word.endswith(("ing", "ando", "iendo"))]
    # "You can pay from Monday on" is no payment: the deed is told in another form than it is asked for.
    verbs = [word for word in words_in(act.control.name) if not word.isdigit()][:1]
    return any(
        other not in (verb, f"{verb}s") and (can_mean(verb, other) or is_cousin(verb, other))
        for verb in verbs for other in said
    )  # fmt: skip


def _state(frames: Frames, *, fields: bool = False) -> list[list[str]]:
    """What tells one state of a page from another, without how far it was moved and what is unfolded; what its
    ``fields`` hold only where that is asked for.
    """
    found = []
    for frame in frames:
        lines = frame[-1].removeprefix("\0").split("\n") if frame else []
        states = [line.split("\x1f") for line in lines[4:]]
        kept = [one[:3] + one[4:] if fields else [*one[2:3], *one[4:]] for one in states]
        found.append([*lines[:2], *lines[3:4], *("\x1f".join(one) for one in kept)])
    return found


def _plain(line: str) -> str:
    return re.sub(r"[\d.,]+", "0", line)


def _removes(name: str) -> bool:
    return any(CONSEQUENTIAL.get(word) in ("delete", "discard") for word in re.findall(r"\w+", fold(name)))


def new_lines(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> list[str]:
    """What can be read now and could not before."""
    known = {line for frame in before for line in frame}
    return [line for frame in after for line in frame if line not in known and not line.startswith("\x00")]


def find_refusal(act: Act, events: Sequence[str], said: Sequence[str]) -> Doubt | None:
    """The words by which the page or the site turned a press down. What a link or a menu shows may say anything.

    ``said`` are messages that turn something down.
    """
    failed = next((event for event in events if event.startswith("HTTP ")), None)
    if act.kind != "open" and not act.control.opens:
        failed = next(iter(said), None) or failed
    return None if failed is None else Doubt("refused", failed)


def find_refusing(lines: Sequence[str], pressed: str) -> list[tuple[str, str, bool]]:
    """The lines that turn something down, each with the words for it, and whether these may as well be a hint."""
    removes = any(CONSEQUENTIAL.get(word) in _REMOVES for word in re.findall(r"\w+", fold(pressed)))
    found = [(line, said, False) for line in lines for said in refusals_in(line, pressed)]
    lacks = [line for line in lines if _INSTRUCTS.match(line) or (not removes and _EMPTY.search(line))]
    return found + [(line, line, True) for line in lacks if len(line) < LONGEST_MESSAGE]


_NEGATED = re.compile(
    r"\b(?:not|never|nothing|none|cannot|unless|until|before|instead|will (?:be|only)|must|should|sure|nada|antes|hasta"
    r"|seguro|para)\b|n['\u2019]t\b|\?",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"\.\.\.|\u2026|\b(?:again|confirm|sure|try|retry|wait|confirma\w*|segur[oa]|otra vez|reintentar)\b", re.IGNORECASE
)
"""What a button is called that has not done its work yet."""
_INSTRUCTS = re.compile(
    r"\W*(?:please )?(?:choose|select|pick|enter|fill|type|write|add|complete|tick|check|provide|elige|elija"
    r"|selecciona|escoge|introduce|escribe|rellena|indica|a[nñ]ade|completa|marca|revisa|adjunta)\b",
    re.IGNORECASE,
)
"""How a page says what it misses; a heading or a hint begins like this as well."""
_EMPTY = re.compile(r"\b(?:is|are|est[aá]n?)\s+(?:\w+\s+)?(?:empty|vac[ií][oa]s?)\b", re.IGNORECASE)
_REMOVES = frozenset(("delete", "cancel", "discard"))
"""After these nothing may be left: "Your basket is empty" turns an order down, and not them."""
SHOWN = r"""
menus => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const stateful = "input,select,textarea,details,[aria-expanded],[aria-pressed],[aria-selected],[aria-checked],"
    + "[aria-current],[aria-valuenow]";
  const counts = node => menus || !node.closest("[role=menu]");
  const holders = roots.flatMap(root => [...root.querySelectorAll(stateful)]).filter(counts);
  const states = holders.map(node => [node.value, node.checked, node.open, menus && node.ariaExpanded, node.ariaPressed,
    node.ariaSelected, node.ariaChecked, node.ariaCurrent, node.ariaValueNow]
    .map(one => String(one ?? "").replace(/\n/g, " ")).join("\x1f"));
  const shadows = roots.slice(1).flatMap(root => [...root.children]).map(node => node.innerText ?? "");
  const items = menus ? [] : roots.flatMap(root => [...root.querySelectorAll("[role=menu]")])
    .filter(node => node.checkVisibility()).flatMap(node => node.innerText.split("\n"));
  // A clock on the page is no sign of anything.
  const lines = [document.body?.innerText ?? "", ...shadows].join("\n").replace(/\b\d{1,2}:\d{2}(?::\d{2})?\b/g, "")
    .split("\n").map(line => line.replace(/\s+/g, " ").trim()).filter(Boolean);
  for (const item of items.map(line => line.replace(/\s+/g, " ").trim()))
    if (lines.includes(item)) lines.splice(lines.lastIndexOf(item), 1);
  return [...lines, "\0" + [location.href, document.title, scrollY, performance.timeOrigin, ...states].join("\n")];
}
"""
# The lines that are a message. What is an entry of the page (a row, an item, a card, a link, an option, a heading) may
# have any name, unless it stands in an alert or in a list of errors, or beside the very button that was pressed.
SAID = r"""
([refusing, known, serious, pressed]) => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const plain = text => String(text ?? "").replace(/\b\d{1,2}:\d{2}(?::\d{2})?\b/g, "").replace(/\s+/g, "")
    .toLowerCase();
  // Read once for each element: a page may have thousands of lines to look for.
  const texts = new Map();
  const textOf = node => texts.get(node) ?? (texts.set(node, plain(node.innerText)), texts.get(node));
  const has = (node, text) => textOf(node).includes(text);
  const holders = (node, text) => {
    const found = [...node.querySelectorAll(":scope > *")].filter(one => has(one, text) && one.checkVisibility?.());
    return found.length ? found.flatMap(one => holders(one, text)) : [node];
  };
  const earlier = known.map(plain);
  const old = node => earlier.some(line => line.includes(textOf(node)));
  const up = node => node.parentElement ?? node.getRootNode().host ?? null;
  const words = node => [node.getAttribute("class"), node.id].join(" ").replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase().split(/[^a-z]+/);
  const marks = new Set(["error", "errors", "errorlist", "invalid", "alert", "alerts", "toast", "toasts", "snackbar",
    "flash", "validation", "feedback"]);
  const live = "[role=alert],[role=status],[role=alertdialog],[aria-live=polite],[aria-live=assertive],output";
  const cells = "tr,td,th,[role=row],[role=cell],[role=gridcell],[role=columnheader]";
  const entries = "li,dt,dd,article,[role=listitem],[role=article],[role=treeitem],[draggable=true]";
  const names = "a[href],[role=link],option,[role=option],[role=menuitem],[role=tab],[role=radio],[role=checkbox],nav";
  const headings = "h1,h2,h3,h4,h5,h6,[role=heading]";
  const headed = node => Boolean(node.querySelector(`:scope > :is(${headings})`));
  const alike = node => [...(node.parentElement?.querySelectorAll(":scope > *") ?? [])].filter(one => one !== node
    && node.className
    && one.className === node.className);
  const called = node => words(node).some(word => ["card", "tile", "item"].includes(word));
  const isCard = node => /^(DIV|SECTION)$/.test(node.tagName) && alike(node).length > 0
    && ((headed(node) && alike(node).some(headed)) || called(node));
  // A row of a form that is laid out as a table or a list: a field with its label.
  const typed = "input:not([type=checkbox],[type=radio],[type=submit],[type=button],[type=hidden]),select,textarea";
  // So is a box beside others that offer the same.
  const offers = node => [...node.querySelectorAll("button,[role=button]")].map(one => plain(one.ariaLabel
    || one.innerText)).filter(Boolean);
  const isOffer = node => node.tagName === "DIV" && !node.closest(live) && !node.querySelector(typed)
    && alike(node).some(one => offers(one).some(name => offers(node).includes(name)));
  const asks = node => Boolean(node.closest("form") && node.querySelector("label") && node.querySelector(typed));
  const isMessage = node => {
    for (let at = node; at && at !== document.body; at = up(at)) {
      // "Marathon (sold out)", beside a box, is what there is to choose from.
      if (at.localName === "label" && ["radio", "checkbox"].includes(at.control?.type)) return inAlert(at);
      if (at.matches(live) || at.matches("form,dialog,[role=dialog],fieldset")) return true;
      if (at.ariaInvalid === "true" || (!at.matches(cells) && words(at).some(word => marks.has(word)))) {
        // The mark of a state in a row says what the row is.
        const cell = at.closest("td,th,[role=cell],[role=gridcell]");
        return !cell || Boolean(pressed && cell.contains(pressed)) || asks(cell.closest("tr,[role=row]") ?? cell);
      }
      if (at.matches(names)) return inAlert(at);
      if (at.matches(headings) && !serious) return inAlert(at);
      if (at.matches(cells) || at.matches(entries) || isCard(at) || isOffer(at)) {
        const beside = pressed && at !== node && at.contains(pressed) && !node.closest(headings) && !old(node);
        return Boolean(beside) || asks(at.closest("tr,[role=row]") ?? at) || inAlert(at);
      }
    }
    return true;
  };
  const inAlert = node => {
    for (let at = up(node); at && at !== document.body; at = up(at))
      if (at.matches("[role=alert],[role=alertdialog]") || words(at).some(word => marks.has(word))) return true;
    return false;
  };
  const tops = [document.body, ...roots.slice(1).flatMap(root => [...root.children])].filter(node => node?.innerText);
  // What only tells what to do turns something down where it is said as an answer.
  const isAnswer = node => inAlert(node) || node.closest("[role=alert],.error") || (serious && node.closest(live));
  return refusing.map(([line, word, told]) => {
    const found = tops.filter(node => has(node, plain(line))).flatMap(node => holders(node, plain(line)));
    const message = found.flatMap(node => holders(node, plain(word))).find(told ? isAnswer : isMessage);
    const text = message?.innerText.replace(/\s+/g, " ").trim();
    return [found.length > 0, !message ? "" : text && text.length < line.length ? text : line];
  });
}
"""
# The fields that a page has marked as wrong, and those for a password, which it asks for before it goes on.
TROUBLE = r"""
() => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const shown = node => node.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const nameOf = node => String(node.labels?.[0]?.innerText || node.ariaLabel || node.placeholder || node.name || "")
    .replace(/\s+/g, " ").trim();
  const all = selector => roots.flatMap(root => [...root.querySelectorAll(selector)]).filter(shown).map(nameOf);
  return [all("[aria-invalid=true]"), all("input[type=password]")];
}
"""
