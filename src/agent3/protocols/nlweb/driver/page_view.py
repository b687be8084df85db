"""What can be used on a page, read in one evaluation for each frame: controls with role, name, place and state.

Names are those that assistive technology would tell: labels, ``aria`` attributes, the text of a button. The page's text
is data for matching and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, JSHandle, Page

__all__ = ["DAYS", "Control", "PageView", "look"]

_MOST_CONTROLS = 4_000
DAYS = ("date", "calendar")
"""Kinds of fields that take a day: one of the browser, or one that opens a calendar drawn by the page."""
_LOOK = r"""
most => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 300);
  // What a part of a component is drawn in, which is not always where it is written.
  const up = node => node.assignedSlot ?? node.parentElement ?? node.getRootNode().host ?? null;
  const attribute = (node, name) => squeeze(node.getAttribute(name));
  const known = new Set(["button", "link", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "option", "checkbox",
    "radio", "switch", "textbox", "searchbox", "combobox", "slider", "spinbutton", "treeitem"]);
  const inputs = {checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button",
    image: "button", range: "slider", number: "spinbutton", search: "searchbox", hidden: "", file: "file"};
  const natives = {BUTTON: "button", SUMMARY: "button", SELECT: "list", TEXTAREA: "textbox"};
  const written = "input,textarea,[contenteditable=true],[contenteditable='']";
  const fields = "select," + written;
  // A list that is drawn: it shows what is chosen, and its options once it is pressed.
  const isDrawnList = node => !node.matches("select," + written) && !node.querySelector(written)
    && (node.matches("[role=combobox]") || (node.matches("button,[role=button]")
      && attribute(node, "aria-haspopup") === "listbox"));
  // A cell that takes the focus and has nothing in it to use: it becomes a field when it is pressed twice.
  const isEditedCell = node => node.matches("td[tabindex],[role=gridcell][tabindex],[role=cell][tabindex]")
    && node.getAttribute("aria-readonly") !== "true" && !node.querySelector("input,select,textarea,button,a,[role]");
  // A number between a button for less and one for more.
  const stepsOf = node => {
    const field = node.matches("input[readonly]"), text = squeeze(field ? node.value : node.textContent);
    if (!/^\d{1,4}$/.test(text) || (!field && node.childElementCount)) return null;
    if (node.closest("button,a,option,select,td[tabindex]")) return null;
    for (let at = up(node), level = 0; at && level < 3; at = up(at), level++) {
      const buttons = [...at.querySelectorAll("button,[role=button]")];
      if (buttons.length > 2 || [...at.querySelectorAll(fields)].some(one => one !== node)) return null;
      const [less, more] = [DOWN, UP].map(way => buttons.filter(one =>
        way.test(squeeze(attribute(one, "aria-label") || attribute(one, "title") || one.textContent))));
      if (buttons.length === 2 && less.length === 1 && more.length === 1 && less[0] !== more[0])
        return {box: at, less: less[0], more: more[0]};
    }
    return null;
  };
  const DOWN = new RegExp("^[-\\u2212\\u2013]|\\b(fewer|less|decrease|decrement|minus|reduce|lower|menos|disminuir"
    + "|reducir|restar|quitar|bajar)\\b", "i");
  const UP = new RegExp("^\\+|\\b(more|increase|increment|plus|add|raise|más|aumentar|incrementar|sumar|añadir|subir)"
    + "(?!\\w)", "i");
  // A button that shows a day, or asks for one, and opens a calendar.
  const DAY = /\b(date|day|dates|fecha|calendar|calendario)\b|\bd\u00eda\b/i;
  const DATED = new RegExp("\\b\\d{1,2}[ ./-](de )?([a-z]{3,}|\\d{1,2})\\.?[ ./-](de )?\\d{2,4}\\b"
    + "|\\b[a-z]{3,}\\.? \\d{1,2},? \\d{4}\\b|\\b\\d{4}-\\d\\d-\\d\\d\\b", "i");
  const isCalendar = node => {
    const field = node.matches("input[readonly]");
    if (!field && !node.matches("button,[role=button],[role=combobox]:not(input)")) return false;
    if (node.closest("td,[role=gridcell],[role=grid]")) return false;
    const text = field ? `${node.value} ${node.placeholder}` : node.textContent, label = labelOf(node);
    if (!label || label === squeeze(text)) return false;
    const asks = ["dialog", "grid"].includes(attribute(node, "aria-haspopup")) ? DAY.test(label) : false;
    return asks || DAY.test(text) || DATED.test(text);
  };
  // What a button is called beside its own text, which tells its value.
  const labelOf = node => squeeze([...labelsOf(node), ...[...(node.labels ?? [])].map(one => one.textContent)]
    .join(" "));
  const roleOf = node => {
    const role = attribute(node, "role").split(" ")[0];
    if (isCalendar(node)) return "textbox";
    if (isDrawnList(node)) return "list";
    if (stepsOf(node)) return "spinbutton";
    if (isEditedCell(node)) return "textbox";
    if (role === "combobox" && !node.matches("select," + written)) return "";
    if (node.matches("[role=combobox] " + "input:not([type=hidden])")) return "combobox";
    if (known.has(role) && node.tagName !== "SELECT") return role;
    if (node.tagName === "INPUT") return inputs[node.type] ?? "textbox";
    if (node.tagName === "A" && node.hasAttribute("href")) return "link";
    if (node.isContentEditable && !node.parentElement?.isContentEditable) return "textbox";
    return natives[node.tagName] ?? "";
  };
  // The text of a label or a row without what is in its controls; each piece by itself where pieces are asked for.
  const controls = "select,option,textarea,button,script,style,template,[role=menu]";
  const pieces = (node, fits = () => true) => {
    const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) {
      const text = squeeze(walker.currentNode.data), parent = walker.currentNode.parentElement;
      const outer = parent.closest(controls);
      if (text && fits(parent) && !(outer && outer !== node && node.contains(outer))) found.push(text);
    }
    return found;
  };
  const shown = node => node.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && node.getBoundingClientRect().width >= 1;
  const referenced = node => squeeze(attribute(node, "aria-labelledby").split(" ").filter(Boolean)
    .map(id => node.getRootNode().getElementById?.(id)?.textContent ?? "").join(" "));
  const described = node => squeeze([...node.querySelectorAll("img[alt],svg title")]
    .map(one => one.getAttribute("alt") || one.textContent).join(" "));
  const labelsOf = node => attribute(node, "aria-labelledby").split(" ").filter(Boolean)
    .map(id => node.getRootNode().getElementById?.(id)).filter(one => one && !node.contains(one))
    .map(one => squeeze(one.textContent));
  const nameOf = (node, role) => {
    const labels = [...(node.labels ?? [])].map(one => attribute(one, "aria-label") || pieces(one).join(" ")).join(" ");
    const caption = node.tagName !== "INPUT" || role !== "button" ? ""
      : node.value || node.alt || {submit: "Submit", reset: "Reset"}[node.type];
    const text = ["INPUT", "SELECT", "TEXTAREA"].includes(node.tagName) || (role === "textbox" || role === "searchbox")
      ? "" : (shown(node) ? node.innerText : node.textContent) || described(node);
    if (role === "list" && isDrawnList(node))  // its text is its value
      return squeeze(labelsOf(node).join(" ") || attribute(node, "aria-label") || labels);
    if (isEditedCell(node)) return "";
    if (isCalendar(node)) return labelOf(node);
    const steps = role === "spinbutton" ? stepsOf(node) : null;
    if (steps) {
      const group = steps.box.closest("[role=group],fieldset");
      const own = referenced(node) || attribute(node, "aria-label") || labels;
      const legend = squeeze(group?.querySelector("legend")?.textContent);
      const around = group && group.querySelectorAll("button,[role=button]").length === 2
        ? referenced(group) || attribute(group, "aria-label") || legend : "";
      const [less, more] = [steps.less, steps.more].map(one => attribute(one, "aria-label").split(" "));
      return own || around || squeeze(pieces(steps.box).filter(one => !/^[\d+\u2212\u2013-]+$/.test(one)).join(" "))
        || besideOf(steps.box) || squeeze(more.filter(word => less.includes(word)).join(" "));
    }
    const names = [referenced(node), attribute(node, "aria-label"), labels, caption, text, attribute(node, "title"),
      attribute(node, "placeholder")];
    return squeeze(names.map(squeeze).find(Boolean));
  };
  // A cell of a table is called what stands at the top of its column.
  const columnOf = node => {
    const cell = node.closest("td,[role=gridcell],[role=cell]"), row = cell?.closest("tr,[role=row]");
    const head = row && cell.closest("table,[role=grid],[role=table]")?.querySelector("tr,[role=row]");
    if (!head || head === row || [...cell.querySelectorAll(fields)].length > 1) return "";
    const top = head.children[[...row.children].indexOf(cell)];
    return top?.matches("th,[role=columnheader]") ? squeeze(top.textContent) : "";
  };
  // A field without any name of its own is called what stands before it in the same line or row.
  const besideOf = node => {
    for (let at = node, up = 0; at && up < 3; up++, at = at.parentElement) {
      for (let one = at.previousSibling; one; one = one.previousSibling) {
        if (one.nodeType === 1 && (one.matches("input,select,textarea,button") ||
            one.querySelector("input,select,textarea,button"))) return "";
        const text = one.nodeType === 1 || one.nodeType === 3 ? squeeze(one.textContent) : "";
        if (text) return text.length < 60 ? text : "";
      }
      if (at.parentElement?.matches("form,fieldset,tr,li,body")) return "";
    }
    return "";
  };
  const rows = "tr,li:not([role]),article:not([role]),[role=row],[role=listitem],[role=article]";
  const regions = "fieldset,section,form,dialog,details,table,nav,[role=group],[role=radiogroup],[role=region],"
    + "[role=dialog],[role=form],[role=listbox],[role=toolbar],[role=menu]";
  const headed = node => node.tagName === "DIV" && node.querySelector(":scope > :is(h2,h3,h4,h5,h6)");
  // Boxes side by side, each with a heading and something to press, are a list, whatever they are made of.
  const isCard = node => Boolean(headed(node) && node.querySelector("button,a,input,select,[role=button]")
    && [...node.parentElement.querySelectorAll(":scope > *")].some(one => one !== node
      && one.className === node.className && headed(one)));
  // So are boxes that have a button or a field of the same name each, and texts of their own.
  const captions = new Map();
  const captionsOf = node => {
    if (!captions.has(node)) captions.set(node, [...node.querySelectorAll("button,[role=button],input,select")]
      .map(one => squeeze(one.ariaLabel || one.labels?.[0]?.textContent || one.innerText)).filter(Boolean));
    return captions.get(node);
  };
  const isEntry = node => node.tagName === "DIV" && node.className && !node.matches("[role]")
    && captionsOf(node).length > 0
    && [...(node.parentElement?.querySelectorAll(":scope > *") ?? [])].some(one => one !== node
      && one.className === node.className && one.tagName === "DIV"
      && captionsOf(one).some(name => captionsOf(node).includes(name))
      && squeeze(one.textContent) !== squeeze(node.textContent));
  const popups = "[role=menu],[role=menubar],[role=listbox],[role=tablist],[role=tree]";
  const isRow = node => (node.matches(rows) && !node.closest(popups)) || isCard(node) || isEntry(node);
  const rowOf = node => { for (let at = node; at; at = up(at)) if (isRow(at)) return at; return null; };
  // What a row is called beside its own texts.
  const callsOf = node => [referenced(node), attribute(node, "aria-label")].filter(Boolean);
  const wholly = "td,th,[role=cell],[role=gridcell],b,strong,h1,h2,h3,h4,h5,h6,a,p,span";
  const title = "legend,h1,h2,h3,h4,h5,h6,[role=heading],summary,caption";
  // What has to be pressed before a hidden control can be seen: it does nothing but show it.
  const root = node => node.getRootNode();
  const controlOf = node => node.id ? root(node).querySelector(
    `[aria-controls~="${CSS.escape(node.id)}"],[aria-owns~="${CSS.escape(node.id)}"]`) : null;
  // Without a word of whose it is, a popup belongs to the nearest before it that has no popup of its own.
  const owns = node => ["aria-controls", "aria-owns"].some(name => root(node).getElementById?.(attribute(node, name)));
  const popupOpener = popup => controlOf(popup)
    ?? [...(popup.parentElement?.querySelectorAll(":scope > :is([aria-haspopup],[role=combobox])") ?? [])]
      .filter(node => !owns(node) && node.compareDocumentPosition(popup) & Node.DOCUMENT_POSITION_FOLLOWING).pop()
    ?? null;
  const openerOf = node => {
    const details = node.closest("details:not([open])");
    if (details && !node.closest("summary")) return details.querySelector("summary");
    const popup = node.closest("[role=listbox],[role=menu]");
    if (popup && !shown(popup)) return popupOpener(popup);
    for (let at = node; at && !shown(at); at = at.parentElement) {
      if (at.matches("[role=tabpanel]")) {
        const tab = controlOf(at) ?? root(at).getElementById?.(attribute(at, "aria-labelledby"));
        return tab?.matches("[role=tab]") ? tab : null;
      }
      if (getComputedStyle(at).display === "contents") continue;
      const id = at.id && CSS.escape(at.id), before = at.previousElementSibling;
      const opener = id && root(at).querySelector(`[popovertarget="${id}"],[aria-expanded=false]:is([href="#${id}"],`
        + `[aria-controls~="${id}"],[aria-owns~="${id}"],[data-target="#${id}"],[data-bs-target="#${id}"])`);
      // Without a word of what it shows, a closed heading shows what comes next.
      const heading = [before, ...(before?.querySelectorAll("*") ?? [])].find(one => one?.ariaExpanded === "false"
        && !one.matches("[aria-controls],[aria-owns],[aria-haspopup]"));
      if (opener || heading) return opener || heading;
    }
    return null;
  };
  // "Monday 1 March, 10:00, room 4" is known by each of its parts.
  const withParts = texts => [...new Set(texts.flatMap(text => [text,
    ...text.split(/\s*[,;·|•()]+\s+|\s*[()]\s*|\s+[-\u2013\u2014]\s+/).map(squeeze)]))].filter(Boolean);
  const placesOf = node => {
    const found = [];
    for (let at = node; at && found.length < 12; at = up(at)) {
      if (at === node) continue;
      // What stands in a row inside of a row belongs to the inner one.
      if (isRow(at)) {
        const own = one => rowOf(one) === at;
        const wholes = [...at.querySelectorAll(wholly)].filter(own).map(one => squeeze(one.textContent));
        const texts = withParts([...callsOf(at), ...pieces(at, own), ...wholes]);
        found.push(texts.filter(text => text.length <= 120).slice(0, 60));
      } else if (at.matches(regions)) {
        const heading = [...at.querySelectorAll(title)].find(one => one.closest(regions) === at);
        found.push(withParts([referenced(at), attribute(at, "aria-label"), squeeze(heading?.textContent)]));
        const opener = at.matches("[role=listbox],[role=menu]") ? popupOpener(at) : null;
        if (opener) found.push([nameOf(opener, roleOf(opener)), ...labelsOf(opener)]);
      }
      const shows = at.matches(regions) ? null : controlOf(at);  // a section is called what opens it
      if (shows?.matches("[aria-expanded],[role=tab]")) found.push([nameOf(shows, roleOf(shows))]);
    }
    return found;
  };
  const lists = [], listOf = row => {
    const list = row.closest("table,ul,ol,[role=grid],[role=table],[role=list],[role=feed]") ?? row.parentElement;
    if (!lists.includes(list)) lists.push(list);
    return lists.indexOf(list);
  };
  // The lists that what is called like the next page or the one before may turn: those beside its group, where that
  // holds nothing else, and tells that there are pages by their numbers, or by an end; -1 is any list of the page.
  const PAGER = new RegExp("^(?:(?:go to )?(?:next|previous|prev|first|last)(?: page)?|(?:página )?(?:siguiente"
    + "|anterior|primera|última|próxima)(?: página)?|(?:page |página )?\\d{1,3}"
    + "|[<>\\u2039\\u203a\\u00ab\\u00bb\\u2190\\u2192]{1,2})$", "i");
  const COUNTS = /(?<![:\d])\d+\s*(?:\/|of|de)\s*\d+(?![:\d])/i;
  const turnsOf = (node, name) => {
    if (!PAGER.test(name)) return [];
    const usable = "a,button,input,select,textarea,[role=button],[role=link],[role=tab]";
    const called = one => squeeze(one.getAttribute("aria-label") || one.textContent);
    const parts = at => [...at.querySelectorAll(usable)];
    let group = node;
    for (let at = up(node); at && at !== document.body && parts(at).every(one => PAGER.test(called(one))); at = up(at))
      group = at;
    const all = parts(group), text = squeeze(group.textContent);
    const off = one => one.matches(":disabled,[aria-disabled=true]") || one.closest(".disabled");
    const numbered = all.filter(one => /\d/.test(called(one))).length > 1 || COUNTS.test(text);
    if (all.length < 2 || /\b(step|paso)\b/i.test(text) || !(numbered || all.some(off))) return [];
    const found = numbered ? [-1] : [];
    for (let at = group, level = 0; at && at !== document.body && level < 3; at = up(at), level++)
      for (const way of ["previousElementSibling", "nextElementSibling"])
        for (let one = at[way]; one; one = one[way]) {
          const row = [one, ...one.querySelectorAll(`${rows},div`)].find(isRow);
          if (row) found.push(listOf(row));
          if (row || one.matches(usable) || parts(one).length) break;
        }
    return found;
  };
  const optionsOf = node => {
    const ids = ["aria-controls", "aria-owns"].flatMap(name => attribute(node, name).split(" ")).filter(Boolean);
    const lists = [...ids.map(id => root(node).getElementById?.(id)).filter(Boolean),
      ...[...(node.parentElement?.querySelectorAll("[role=listbox]") ?? [])].filter(one => popupOpener(one) === node)];
    return [...new Set(lists.flatMap(list => [...list.querySelectorAll("[role=option]")]))]
      .filter(one => one.ariaDisabled !== "true").map(one => squeeze(one.textContent));
  };
  // The texts of the row that a control stands in, and what stands at the top of its columns.
  const rowTexts = node => {
    const row = rowOf(node);
    if (!row) return {row: [], columns: []};
    const table = row.closest("table,[role=grid],[role=table]");
    const columns = [...(table?.querySelectorAll("th:not([scope=row]),[role=columnheader]") ?? [])];
    const texts = pieces(row, one => rowOf(one) === row), all = squeeze(texts.join(" ")).toLowerCase();
    const calls = callsOf(row).filter(text => !all.includes(text.toLowerCase()));
    return {row: [...texts, ...calls].slice(0, 60),
      columns: columns.map(one => squeeze(one.textContent)).filter(Boolean).slice(0, 40)};
  };
  const modal = [...document.querySelectorAll("dialog:modal,[aria-modal=true]")].filter(shown).pop();
  // Without a form, what stands in the same box as a button goes with it.
  const boxes = [], boxesOf = node => {
    const found = [];
    for (let at = node.parentElement; at && at !== document.body; at = at.parentElement) {
      if (!at.querySelector("button,[role=button]") || !at.querySelector(fields)) continue;
      if (!boxes.includes(at)) boxes.push(at);
      found.push(boxes.indexOf(at));
    }
    return found;
  };
  const forms = [], nodes = [], infos = [], outline = [];
  const add = (node, role) => {
    const isBox = ["checkbox", "radio"].includes(node.type);
    const inside = !modal || modal.contains(node);
    // What takes a file is often hidden behind its label, or in the box that files are dropped into.
    const seen = shown(node) || ((isBox || role === "file") && [...(node.labels ?? [])].some(shown))
      || (role === "file" && shown(node.parentElement));
    const form = node.form ?? node.closest("form");
    if (form && !forms.includes(form)) forms.push(form);
    const expanded = node.getAttribute("aria-expanded"), popup = attribute(node, "aria-haspopup");
    const own = nameOf(node, role), opener = seen ? null : openerOf(node);
    const drawn = role === "list" && node.tagName !== "SELECT", steps = role === "spinbutton" ? stepsOf(node) : null;
    const options = drawn ? optionsOf(node) : [...(node.options ?? [])].filter(one => !one.disabled)
      .map(one => squeeze(one.label || one.text));
    const label = ["radio", "option", "checkbox", "switch"].includes(role) ? node.labels?.[0] ?? node : null;
    nodes.push(node);
    infos.push({
      role, name: own || columnOf(node) || besideOf(node) || (drawn ? squeeze(node.innerText) : ""),
      lead: label && own.startsWith(pieces(label)[0]) ? pieces(label)[0] : "",
      kind: drawn ? "drawn" : isEditedCell(node) ? "cell" : isCalendar(node) ? "calendar"
        : steps ? "steps" : node.type ?? "",
      visible: seen && inside && !node.closest("[inert]"),
      steps: steps ? [steps.less, steps.more] : [],
      value: squeeze(node.tagName === "INPUT" || node.tagName === "TEXTAREA" ? node.value
        : role === "spinbutton" ? node.textContent : ""),
      checked: node.checked === true || node.getAttribute("aria-checked") === "true"
        || node.getAttribute("aria-pressed") === "true",
      toggles: node.hasAttribute("aria-pressed"), opener: opener && shown(opener) && inside ? opener : null,
      disabled: node.matches(":disabled") || node.getAttribute("aria-disabled") === "true",
      read_only: node.readOnly === true && !isCalendar(node) && !steps, multiple: node.multiple === true,
      required: node.required === true || node.getAttribute("aria-required") === "true",
      options: options.slice(0, 500),
      form: form ? forms.indexOf(form) : -1, sends: Boolean(form) && ["submit", "image"].includes(node.type),
      opens: role === "link" || role === "tab" || role === "menuitem" || node.tagName === "SUMMARY" ||
        expanded === "false" || !["", "false"].includes(popup),
      expanded: expanded === "true", menu: popup === "menu" || popup === "true",
      places: placesOf(node), under: outline.filter(Boolean), ...rowTexts(node),
      lang: String(node.closest("[lang]")?.lang || document.documentElement.lang || "").toLowerCase(),
      list: rowOf(node) ? listOf(rowOf(node)) : -1,
      turns: ["button", "link"].includes(role) ? turnsOf(node, own) : [],
      toolbar: Boolean(node.closest("[role=toolbar],menu")),
      boxes: form ? [] : boxesOf(node),
      searches: role === "searchbox" || Boolean(node.closest("search,[role=search]")),
    });
  };
  const walk = node => {
    if (nodes.length >= most) return;
    const role = roleOf(node);
    if (role) add(node, role);
    if (node.matches("h1,h2,h3,h4,h5,h6,[role=heading]") && shown(node) && !rowOf(node)) {
      // Whatever a page writes there: a length that is none would end the look at it.
      const level = Math.min(Math.max(Math.trunc(Number(node.tagName[1]) || Number(node.ariaLevel)) || 2, 1), 9);
      outline.length = level;
      outline[level - 1] = squeeze(node.textContent);
    }
    // Not "children": in a form with a field of that name it is the field.
    for (const child of node.querySelectorAll(":scope > *")) walk(child);
    for (const child of node.shadowRoot?.children ?? []) walk(child);
  };
  if (document.body) walk(document.body);
  for (const info of infos) {
    info.opener = info.opener ? nodes.indexOf(info.opener) : -1;
    info.steps = info.steps.map(node => nodes.indexOf(node));
  }
  const headings = [...document.querySelectorAll("h1,h2,h3,legend,caption")]
    .filter(one => shown(one) && !rowOf(one) && (one.tagName === "H1" || !one.closest(regions)));
  return {nodes, infos, headings: [document.title, ...headings.map(one => squeeze(one.textContent)).slice(0, 50)]};
}
"""


@dataclass(frozen=True, slots=True)
class Control:
    """Something that can be pressed, chosen or written into, as it was seen.

    ``places`` are the rows, lists and regions that it stands in, from the inside, each with the texts by which a
    person would tell it from others; ``row`` has all texts of its row or card, ``columns`` those at the top of its
    table; ``under`` are the headings before it, from the outermost. ``lead`` is what stands first in its label.
    ``opens`` says that a press shows something else and does
    nothing more; ``opener`` is the index of the control that has to be pressed before a hidden one can be seen, or -1.
    ``toggles`` is a button with two states, ``menu`` one that has a menu, and ``expanded`` says that it is open.
    ``steps`` are the buttons for less and for more of a number that stands between them.
    ``lang`` is the language that the page says it is in, as in en-gb.
    ``list`` is the list of its row, or -1; ``turns`` are the lists of which it may show another page, -1 being any.
    ``boxes`` are the boxes with a button and a field that it stands in, from the inside, where it has no form.
    """

    index: int
    frame: int
    role: str
    name: str
    lead: str
    kind: str
    visible: bool
    value: str
    checked: bool
    disabled: bool
    read_only: bool
    multiple: bool
    required: bool
    options: Sequence[str]
    form: int
    sends: bool
    opens: bool
    places: Sequence[Sequence[str]]
    searches: bool
    row: Sequence[str]
    columns: Sequence[str]
    under: Sequence[str]
    toolbar: bool
    toggles: bool
    opener: int
    expanded: bool
    menu: bool
    boxes: Sequence[int]
    steps: Sequence[int]
    lang: str
    list: int
    turns: Sequence[int]

    @property
    def is_field(self) -> bool:
        return self.role in ("textbox", "searchbox", "combobox", "slider", "spinbutton", "list")

    @property
    def is_free(self) -> bool:
        """Whether any words may be written into it."""
        return self.role in ("textbox", "searchbox") and self.kind not in ("time", "email", "tel", "number", *DAYS)

    @property
    def is_drawn(self) -> bool:
        """Whether it is a list that shows its options only once it is pressed."""
        return self.role == "list" and self.kind == "drawn"

    @property
    def is_box(self) -> bool:
        return self.role in ("checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio")


_READ = frozenset(field.name for field in fields(Control)) - {"index", "frame"}


class PageView:
    """The controls of a page at one moment, in the order of the document, with a hold on the very elements."""

    def __init__(self, controls: Sequence[Control], handles: Sequence[JSHandle], headings: Sequence[str] = ()):
        self.controls = controls
        self.headings = headings
        """The title and the headings, which say what the page is about; not those of its sections."""
        self._handles = handles

    @property
    def visible(self) -> list[Control]:
        return [control for control in self.controls if control.visible]

    @property
    def reachable(self) -> PageView:
        """As if everything that a press would show were shown: closed sections, tabs, and menus."""
        lists = {(one.frame, one.index) for one in self.controls if one.is_drawn}  # which tell their options
        shown = [
            replace(one, visible=one.visible or (one.opener >= 0 and (one.frame, one.opener) not in lists))
            for one in self.controls
        ]
        return PageView(shown, self._handles, self.headings)

    def adopt(self, menu: Control, before: PageView) -> PageView:
        """As if what a menu shows, and was not to be seen before, stood where the menu does."""
        known = {(one.role, one.name, one.form) for one in before.visible}
        found = [
            replace(one, row=menu.row, places=[*one.places, *menu.places], columns=menu.columns)
            if one.visible and not one.row and one.frame == menu.frame and (one.role, one.name, one.form) not in known
            else one
            for one in self.controls
        ]
        return PageView(found, self._handles, self.headings)

    def opener_of(self, control: Control) -> Control | None:
        """What has to be pressed before a control can be used."""
        if control.opener < 0:
            return None
        return next(one for one in self.controls if (one.frame, one.index) == (control.frame, control.opener))

    def steps_of(self, control: Control) -> list[Control]:
        """The buttons that make a number less and more, in this order."""
        found = {(one.frame, one.index): one for one in self.controls}
        return [found[control.frame, index] for index in control.steps]

    async def element(self, control: Control) -> ElementHandle:
        """The element that was seen, and no other: it is not looked for again."""
        nodes = await self._handles[control.frame].get_property("nodes")
        found = (await nodes.get_property(str(control.index))).as_element()
        assert found is not None
        return found


async def look(page: Page) -> PageView:
    """Read a page and its frames. A frame that goes away meanwhile is left out."""
    controls: list[Control] = []
    handles: list[JSHandle] = []
    headings: list[str] = []
    for frame in page.frames:
        try:
            handle = await frame.evaluate_handle(_LOOK, _MOST_CONTROLS)
            rows, texts = await handle.evaluate("found => [found.infos, found.headings]")
        except playwright().Error:
            if frame is page.main_frame:
                raise
            continue
        title = "" if frame is page.main_frame else await _title_of(frame)
        # Only known fields: a page may have changed what the script relies on.
        for index, row in enumerate(rows):
            control = Control(index, len(handles), **{name: row[name] for name in _READ})
            controls.append(replace(control, places=[*control.places, [title]]) if title else control)
        handles.append(handle)
        headings += map(str, texts)
    return PageView(controls, handles, headings)


async def _title_of(frame: Frame) -> str:
    """What a page calls one of its frames."""
    with suppress(playwright().Error):
        owner = await frame.frame_element()
        return str(await owner.evaluate("node => (node.title || node.ariaLabel || '').replace(/\\s+/g, ' ').trim()"))
    return ""
