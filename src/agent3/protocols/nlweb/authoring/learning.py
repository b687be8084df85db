"""A page as a proposed interface: its forms, tables, lists, links and WebMCP tools become actions.

The page is read in one evaluation and nothing is sent. The result is a proposal for a person to read: names and
descriptions are the page's own words. It knows no browser beyond the page.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, convert

from agent3.definitions import (
    ActionHints,
    ActionType,
    Condition,
    ExtractField,
    NLWebAction,
    NLWebActionInfo,
    NLWebInterface,
)
from agent3.errors import MalformedResponse
from agent3.protocols.nlweb.authoring.selectors import NAMING, make_unique, slugify
from agent3.protocols.nlweb.steps.parameters import escape_braces
from agent3.protocols.nlweb.steps.webmcp import Tool, list_tools
from agent3.security.sanitize import clean_text
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import Language, detect_language

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Draft", "draft_page", "learn", "read_page"]

_MOST_LINKS = 12

_LOOK = (
    "() => {"
    + NAMING
    + r"""
  // What several buttons are asked as: "Condition", not the first of them.
  const legendOf = one => {
    const around = one.closest('fieldset,[role=radiogroup],[role=group]');
    const labelled = document.getElementById(around?.getAttribute('aria-labelledby') ?? '');
    return words((around?.getAttribute('aria-label') || labelled?.innerText
      || around?.querySelector(':scope > legend')?.innerText || saying(one.name)).replace(/\s*[*:]+\s*$/, ''));
  };
  const fieldOf = one => ({
    name: one.name || one.id, label: labelOf(one), selector: selectorOf(one),
    kind: one.localName === 'select' ? 'select' : one.localName === 'textarea' ? 'text' : one.type || 'text',
    required: one.required || one.getAttribute('aria-required') === 'true'
      || /\*\s*:?$/.test(words(one.labels?.[0]?.textContent)), given: Boolean(one.value) && one.type !== 'checkbox',
    optional: /optional|opcional/i.test(`${one.labels?.[0]?.textContent ?? ''} ${one.placeholder ?? ''}`),
    pattern: one.pattern || '', least: one.min || '', most: one.max || '',
    group: one.type === 'radio' ? one.name : '', value: one.type === 'radio' ? one.value : '',
    legend: one.type === 'radio' ? legendOf(one) : '',
    // A list that begins with "Choose one" has to be chosen from.
    prompts: one.localName === 'select' && !one.value
      && /^(\W*$|\W*(please )?(choose|select|pick)\b|elige|elija|selecciona|escoge)/i
        .test(words(one.selectedOptions[0]?.text)),
    options: [...one.options ?? []].filter(each => !each.disabled).slice(0, 200)
      .map(each => [each.value, words(each.text)]),
  });
  const silent = ['hidden', 'submit', 'button', 'image', 'reset', 'file'];
  // The heading that a thing stands under: in its own section, or the last one before it.
  const headings = [...document.querySelectorAll('h1,h2,h3,h4,legend')].filter(shown);
  const headingOf = element => {
    const labelled = document.getElementById(element.getAttribute('aria-labelledby') ?? '');
    if (element.getAttribute('aria-label') || labelled)
      return words(element.getAttribute('aria-label') || labelled.innerText);
    const set = element.matches('form') && element.querySelector(':scope > fieldset');
    const asked = [...(set && element.elements) || []].filter(one => /^(input|select|textarea)$/.test(one.localName));
    const inside = (element.matches('form,section,table') && element.querySelector('h1,h2,h3,h4,caption'))
      || (set && asked.every(one => set.contains(one)) && set.querySelector(':scope > legend'));
    if (inside) return words(inside.innerText);
    const around = element.closest('section,article,fieldset,dialog,aside,main') ?? document.body;
    const before = headings.filter(one => around.contains(one) && !element.contains(one) && one.localName !== 'h1'
      && element.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_PRECEDING);
    return words(before.at(-1)?.innerText);
  };
  // A table or a list without a heading of its own is what the page is about.
  const tops = headings.filter(one => one.localName === 'h1');
  const topicOf = element => headingOf(element) || (tops.length === 1 ? words(tops[0].innerText) : '');
  const struck = one => one.closest('del,s,strike') || /line-through/.test(getComputedStyle(one).textDecorationLine);
  // Buttons that every row has: one action, with the row as its parameter. Rows that bear one name are left alone.
  const deedsOf = (rows, selector, nameOf) => {
    const named = rows.slice(0, 200).map(nameOf);
    if (named.some(one => !one) || new Set(named).size < named.length) return [];
    const counts = new Map();
    const pressed = 'button,[role=button],input[type=submit],input[type=button]';
    for (const row of rows.slice(0, 200)) for (const one of row.querySelectorAll(pressed)) {
      const text = words(one.innerText || one.value || one.getAttribute('aria-label'));
      if (text && shown(one) && row.querySelectorAll('button').length < 8)
        counts.set(text, [...counts.get(text) ?? [], one]);
    }
    return [...counts].filter(([, all]) => all.length >= Math.max(2, rows.length / 2)).slice(0, 5)
      .map(([text, all]) => ({text, attribute: !words(all[0].innerText) && all[0].value ? 'value'
        : !words(all[0].innerText) ? 'aria-label' : '', selector, example: named[0]}));
  };
  const forms = [...document.forms].filter(shown).slice(0, 20).map(form => {
    const fields = [...form.elements].filter(one => /^(input|select|textarea)$/.test(one.localName)
      && !silent.includes(one.type) && !one.disabled && shown(one)).slice(0, 60);
    const method = (form.getAttribute('method') || 'get').toLowerCase(); // form.method can be a field
    const button = [...form.elements].find(one => (one.type === 'submit' || one.type === 'image') && shown(one));
    return {
      name: saying(form.getAttribute('name')) || saying(form.getAttribute('id')), heading: headingOf(form),
      action: form.getAttribute('action') ?? '',
      here: new URL(form.getAttribute('action') || '', location.href).pathname === location.pathname,
      method, search: form.matches('[role=search]') || fields.some(one => one.type === 'search')
        || (method === 'get' && /^(search|find|buscar)$/i.test(words(button?.innerText || button?.value))),
      tool: form.getAttribute('toolname') ?? '', button: button ? words(button.innerText || button.value) : '',
      submit: button ? selectorOf(button) : '', selector: selectorOf(form), fields: fields.map(fieldOf),
    };
  }).filter(one => one.fields.length);
  const tables = [...document.querySelectorAll('table')].filter(shown).slice(0, 10).map(table => {
    const head = [...(table.tHead?.rows[0] ?? table.rows[0])?.cells ?? []].map(one => words(one.innerText));
    const rows = [...table.rows].filter(row => row.cells.length && [...row.cells].some(one => one.localName === 'td'));
    const body = rows[0]?.parentElement === table.tBodies[0] ? ' > tbody > tr:has(> td)' : ' tr:has(> td)';
    const selector = selectorOf(table) + body;
    const cells = head.map((_, at) => rows.slice(0, 6).map(row => words(row.cells[at]?.innerText)));
    const bare = at => rows.every(row => row.cells[at]?.querySelector('button,[role=button]')
      && !ownWords(row.cells[at]));
    head.forEach((_, at) => { if (bare(at)) head[at] = ''; }); // nothing but what can be done
    const first = head.findIndex(Boolean);
    return {name: topicOf(table) || saying(table.id), head, cells, rows: rows.length, selector,
            called: head[first], area: selectorOf(table),
            deeds: deedsOf(rows, selector, row => words(row.cells[first]?.innerText))};
  }).filter(one => one.rows >= 2 && one.head.length >= 2 && one.head.some(Boolean));
  // Lists: at least three elements with the same tag, classes and kind of parent, that are in no other such list.
  const parts = 'h2,h3,h4,h5,h6,b,strong,time,button,[role=button]';
  const markOf = one => one.classList.length
    ? one.localName + [...one.classList].slice(0, 2).map(each => '.' + CSS.escape(each)).join('')
    : `${selectorOf(one.parentElement)} > ${one.localName}`;
  const groups = new Map();
  for (const one of document.querySelectorAll('main *, body *')) {
    const bare = !one.classList.length;  // an item of a list needs no class, where it has a heading or a button
    if (!one.firstElementChild || (bare && !(one.matches('li,article') && one.querySelector(parts)))) continue;
    if (one.closest('table,form,nav,header,footer,select,svg')) continue;
    const mark = bare ? markOf(one)
      : one.localName + '.' + [...one.classList].slice(0, 2).map(each => CSS.escape(each)).join('.');
    const key = mark + '|' + (one.parentElement ? one.parentElement.localName + one.parentElement.className : '');
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const calledBy = one => {
    if (/[€$£¥]/.test(one.textContent) && /\d/.test(one.textContent)) return 'price';
    if (/^h[1-6]$/.test(one.localName)) return 'title';
    return {b: 'name', strong: 'name', dt: 'name', time: 'time', dd: 'value'}[one.localName] ?? 'text';
  };
  const several = [...groups.values()].filter(all => all.length >= 3 && shown(all[0])
    && words(all[0].innerText).length > 3);
  const lists = several.filter(all => !several.some(other => other !== all && other[0].contains(all[0])))
    .slice(0, 5).map(all => {
      const first = all[0];
      const fields = {};
      for (const one of first.querySelectorAll('*')) {
        const link = one.localName === 'a' && one.getAttribute('href');
        const leaf = !one.firstElementChild && words(one.textContent);
        if (!leaf && !link && one.localName !== 'img') continue;
        if (struck(one) || one.closest('button,[role=button],select,svg')) continue;
        const kind = link ? 'link' : one.localName === 'img' ? 'image' : 'text';
        const heads = one.closest('h2,h3,h4,h5,h6,b,strong');
        const plain = link && leaf && heads ? calledBy(heads) : kind !== 'text' ? kind : calledBy(one);
        const own = one.getAttribute('itemprop') || (plain === 'price' && plain)
          || (saying(one.classList[0]) && one.classList[0]) || plain;
        const name = own in fields ? `${own}_${Object.keys(fields).length + 1}` : own;
        const inside = one.classList[0] ? '.' + CSS.escape(one.classList[0]) : one.localName;
        if (Object.keys(fields).length < 12 && first.querySelector(inside) === one)
          fields[name] ??= {selector: inside, text: words(one.textContent), kind, leaf: Boolean(leaf),
            title: Boolean(heads) || /name|title/i.test(one.className)};
      }
      const mark = markOf(first);
      const title = Object.values(fields).find(one => (one.kind === 'text' || one.leaf) && one.title)
        ?? Object.values(fields).find(one => one.kind === 'text' || one.leaf);
      const called = title ? Object.keys(fields).find(each => fields[each] === title) : '';
      const nameOf = row => words(title && row.querySelector(title.selector)?.innerText);
      return {name: saying(first.classList[0]), heading: topicOf(first.parentElement), selector: mark,
              rows: all.length, fields, called, area: selectorOf(first.parentElement),
              deeds: deedsOf(all, mark, nameOf)};
    }).filter(one => Object.keys(one.fields).length);
  const repeated = new Set(several.flat());
  const inside = one => { for (let up = one; up; up = up.parentElement) if (repeated.has(up)) return true; };
  // The menu first; then the rest, without those of things that repeat themselves: they are read as a list.
  const menu = [...document.querySelectorAll('nav a[href], header a[href], [role=navigation] a[href]')];
  const others = [...document.querySelectorAll('body a[href]')]
    .filter(one => !menu.includes(one) && !inside(one) && !one.closest('table,form') && !one.download);
  const links = [...menu, ...others]
    .filter(one => shown(one) && words(one.innerText) && one.origin === location.origin
      && !one.getAttribute('href').startsWith('#'))
    .slice(0, 40).map(one => ({name: words(one.innerText).replace(/\s*\(\d+\)$/, '') || words(one.innerText),
      path: one.pathname + one.search}));
  return {language: document.documentElement.lang, words: document.body.innerText.slice(0, 2000),
          title: words(document.title), path: location.pathname + location.search,
          about: words(document.querySelector('meta[name=description]')?.content), forms, tables, lists, links};
}"""
)


class _Field(Struct):
    name: str
    label: str
    selector: str
    kind: str
    required: bool
    optional: bool = False
    prompts: bool = False
    given: bool = False
    pattern: str = ""
    least: str = ""
    most: str = ""
    group: str = ""
    value: str = ""
    legend: str = ""
    options: list[tuple[str, str]] = []


class _Form(Struct):
    name: str
    heading: str
    action: str
    method: str
    here: bool
    search: bool
    tool: str
    button: str
    submit: str
    selector: str
    fields: list[_Field]


class _Deed(Struct):
    """A button that each row has."""

    text: str
    attribute: str
    selector: str
    example: str


class _Table(Struct):
    name: str
    head: list[str]
    cells: list[list[str]]
    rows: int
    selector: str
    area: str = ""
    called: str = ""
    deeds: list[_Deed] = []


class _Cell(Struct):
    selector: str
    text: str
    kind: str
    leaf: bool
    title: bool = False


class _List(Struct):
    name: str
    heading: str
    selector: str
    rows: int
    fields: dict[str, _Cell]
    area: str = ""
    called: str = ""
    deeds: list[_Deed] = []

    @property
    def title(self) -> str:
        return self.heading or self.name.replace("-", " ").replace("_", " ") or "items"


class _Link(Struct):
    name: str
    path: str


class _PageContent(Struct):
    language: str
    words: str
    title: str
    path: str
    about: str
    forms: list[_Form]
    tables: list[_Table]
    lists: list[_List]
    links: list[_Link]


_SCHEMAS: dict[str, dict[str, Any]] = {
    "number": {"type": "number"},
    "range": {"type": "number"},
    "checkbox": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "email": {"type": "string", "format": "email"},
    "url": {"type": "string", "format": "uri"},
}
"""What the kinds of fields take; text by default."""


_GENERIC = frozenset("submit send go ok save search enviar guardar aceptar buscar ir continue continuar".split())
"""What a button says whatever its form is for."""
_NUMBER = re.compile(r"[-+]?\d[\d.,\s]*")
_PLACED = re.compile(r"([^\W\d_]+) ((?:to|from|on|al|a la|a los|del|de la|en) .+)")
"""A button whose words say what to do, and where."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{1,2} \w{3,10} \d{4}")
_VERBS: Mapping[Language, Mapping[str, str]] = {
    "en": {"list": "list {}", "show": "show me {}", "open": "open {}", "read": "Read {}",
           "lead": "Open {} and read it", "search": "search"},
    "es": {"list": "lista de {}", "show": "muestra {}", "open": "abre {}", "read": "Leer {}",
           "lead": "Abrir {} y leerlo", "search": "buscar"},
}  # fmt: skip
"""What phrases and descriptions say, in the language of the page."""


async def learn(page: Page, *, name: str | None = None) -> NLWebInterface:
    """The interface that the page in front suggests; MalformedResponse where it suggests nothing at all."""
    return (await draft_page(page, name=name))[0]


async def draft_page(page: Page, *, name: str | None = None) -> tuple[NLWebInterface, dict[str, str]]:
    """As ``learn``; also where on the page each action stands, by selector, for those that stand in one place."""
    try:
        content = convert(await page.evaluate(_LOOK), _PageContent)
    except ValueError as error:  # scripts of the page may have changed what ours relies on
        raise MalformedResponse(f"The page could not be read: {error}") from None
    spanish = content.language.lower().startswith("es") or (
        not content.language and detect_language(content.words) == "es"
    )
    draft = Draft(page.url, name or content.title, "es" if spanish else "en")
    tools = await list_tools(page)
    for tool in tools:
        draft.add_tool(content.path, tool)
    offered = {tool.name for tool in tools}
    for form in content.forms:
        if form.tool not in offered:
            draft.add_form(content.path, form, max(content.lists, key=lambda cards: cards.rows, default=None))
    for table in content.tables:
        draft.add_table(content.path, table)
    for cards in content.lists:
        draft.add_list(content.path, cards)
    times = Counter(name for name, _ in {(link.name, link.path) for link in content.links})
    for link in content.links:
        if times[link.name] == 1:  # "More" leads to many places
            draft.add_link(content.path, link)
    return draft.interface(content.about), draft.places


class Draft:
    """An interface that grows action by action."""

    def __init__(self, url: str, title: str, language: Language = "en"):
        self._say = _VERBS[language]
        self.places: dict[str, str] = {}
        parts = urlsplit(url)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._title = clean_text(title).strip()[:80] or (parts.hostname or "website")
        named = [slugify(parts.hostname or "website", "site"), str(parts.port or ""), slugify(parts.path, "")]
        self._id = "-".join(filter(None, named)).replace("_", "-")[:64]
        self._actions: dict[str, list[NLWebAction]] = {}
        self._info: dict[str, NLWebActionInfo] = {}
        self._names: set[str] = set()
        self._secrets: dict[str, str] = {}
        self._untrusted: list[str] = []
        self._paths: set[str] = set()

    def interface(self, about: str = "") -> NLWebInterface:
        """What has come together; MalformedResponse if that is nothing."""
        if not self._actions:
            raise MalformedResponse(
                f"{self._base} has no form, table, list, link or tool to make an action from. Try another "
                "page of the site, or agent3 web record."
            )
        metadata: dict[str, Any] = {}
        if self._secrets:
            metadata["secrets"] = self._secrets
        if self._untrusted:
            metadata["untrusted"] = self._untrusted
        return NLWebInterface(
            interface_id=self._id,
            name=self._title,
            base_url=self._base,
            description=clean_text(about),
            actions=self._actions,
            info=self._info,
            metadata=metadata,
        )

    def add(
        self, name: str, steps: list[NLWebAction], info: NLWebActionInfo, *, place: str = "", more: str = ""
    ) -> str:
        """One more action, under a name that is free: with the words of ``more`` before there is a number in it."""
        slug = slugify(name, "action")
        if slug in self._names and more and slugify(more) not in slug:
            slug = slugify(more if slug in slugify(more) else f"{name} {more}", "action")
        found = make_unique(slug, self._names)
        self._actions[found], self._info[found] = steps, info
        if place:
            self.places[found] = place
        return found

    def secret(self, label: str) -> str:
        """The placeholder of a secret that the operator has to give, by the environment."""
        name = slugify(label, "secret")
        variable = f"{self._id}_{name}".upper().replace("-", "_").replace(".", "_")
        self._secrets[name] = f"env:{variable}"
        return f"{{secret:{name}}}"

    def add_tool(self, path: str, tool: Tool) -> None:
        """A tool of the page's own, in the page's words. What does not say that it only reads has consequences."""
        properties: Mapping[str, Any] = tool.input_schema.get("properties") or {}
        required = list(tool.input_schema.get("required") or ())
        known = {}
        for name, schema in properties.items():
            known[name] = dict(schema) if isinstance(schema, dict) else {}
            if name not in required:
                known[name].setdefault("default", "")
        step = NLWebAction(
            action_type=ActionType.TOOL,
            value=tool.name,
            fields={name: f"{{{name}}}" for name in properties} or None,
            steps=read_page(),
        )
        info = NLWebActionInfo(
            description=tool.description or tool.name,
            input_schema=_object_schema(known, required),
            hints=ActionHints(read_only=tool.read_only, consequential=tool.consequential or not tool.read_only),
        )
        self._untrusted.append(self.add(tool.name, [_navigate(path), step], info))

    def add_form(self, path: str, form: _Form, cards: _List | None = None) -> None:
        """A form: each field a parameter, a password a secret, the rest as the form says.

        One that asks something of the very page that shows ``cards`` gives these.
        """
        steps, properties, required = [_navigate(path)], {}, []
        taken: set[str] = set()
        reads = form.method == "get" and not has_consequences(f"{form.button} {form.name} {form.heading}", asks=True)
        # A form that marks some fields as required means it of the others, too. One with consequences that marks none
        # is filled in whole, but for what says that it need not be, or has a value already.
        marks = any(field.required for field in form.fields)
        groups: dict[str, list[_Field]] = {}
        for field in form.fields:
            if field.group:
                groups.setdefault(field.group, []).append(field)
        for field in form.fields:
            if field.kind == "password":
                steps.append(_type(field, self.secret(field.label or "password")))
                continue
            group = groups.get(field.group, [])
            if group and group[0] is not field:
                continue
            name = make_unique(slugify(field.legend or field.label or field.name, "field"), taken)
            properties[name] = _field_schema(field, group)
            # A search without words finds nothing, whether the form says so or not; the same for an only field.
            is_search = len(form.fields) == 1 or (form.search and field is form.fields[0])
            is_required = field.required or (field.kind in ("text", "search") and is_search)
            if not reads and not marks and field.kind not in ("checkbox", "range"):
                is_required = not field.optional and not field.given and not group
            is_required |= field.prompts and not reads and not field.optional
            required += [name] if is_required else []
            steps += _fill_field(name, field, group, optional=not is_required)
        verify: Literal["change"] | None = None if reads else "change"
        if form.submit:
            sends = escape_braces(form.submit)
            steps.append(NLWebAction(action_type=ActionType.CLICK, selector=sends, verify=verify))
        else:
            last = escape_braces(form.fields[-1].selector)
            steps.append(NLWebAction(action_type=ActionType.PRESS, selector=last, value="Enter", verify=verify))
        if reads and cards is not None and form.here:
            steps += [_wait_for_quiet(), _extract_cards(cards)]
        elif reads:
            steps += read_page()
        name, title = self._call_form(form)
        described = f"{title}: {', '.join(properties).replace('_', ' ')}" if properties else title
        # Several values in a row say nothing of which is which: then the reader asks, or goes by their names.
        placeholders = f"{{{required[0]}}}" if len(required) == 1 and required[0] not in _said(properties) else ""
        said = self._say["search"] if form.search and reads else name.lower()
        info = NLWebActionInfo(
            description=clean_text(described)[:300],
            input_schema=_object_schema(properties, required),
            phrases=[
                clean_text(f"{escape_braces(one.lower())} {placeholders}").strip()
                for one in dict.fromkeys((said, form.heading.lower() or said))
            ],
            hints=ActionHints(read_only=reads, consequential=not reads),
        )
        self.add(name, steps, info, place=form.selector, more=form.heading or form.name)

    def _call_form(self, form: _Form) -> tuple[str, str]:
        """What a form is called, and its title: the button says what it does, the heading what it is about."""
        title = form.heading or (form.button if slugify(form.button, "") else "") or form.name or "form"
        if form.search:
            return "search", title
        button = form.button.strip()
        if button and button.lower() not in _GENERIC:
            return button, title
        path = form.action.partition("?")[0].strip("/").replace("/", " ")
        return form.heading or form.name or button or path or "form", title

    def add_list(self, path: str, cards: _List) -> None:
        """What repeats itself on a page, and the buttons that each of them has."""
        noun = clean_text(cards.title)
        phrases = [self._say[one].format(noun) for one in _LISTING]
        info = _describe_reading(phrases[0][0].upper() + phrases[0][1:], phrases)
        self.add(f"list {noun}", [_navigate(path), _extract_cards(cards)], info, place=cards.area)
        for deed in cards.deeds:
            self.add_deed(path, deed, cards.called or "name", noun, cards.area)

    def add_deed(self, path: str, deed: _Deed, called: str, noun: str, area: str) -> None:
        """A button that each row has, as one action: which row is its parameter."""
        name = slugify(called, "name") if len(slugify(called, "name")) > 2 else "name"
        text = json.dumps(deed.text, ensure_ascii=False)
        tag = f"[{deed.attribute}={text}]" if deed.attribute else f":is(button, [role=button]):has-text({text})"
        row = f'{escape_braces(deed.selector)}:has(:text-is("{{{name}}}"))'
        step = NLWebAction(action_type=ActionType.CLICK, selector=f"{row} {escape_braces(tag)}", verify="change")
        said = escape_braces(deed.text.lower())
        parted = _PLACED.fullmatch(said)  # "add the fern to cart", not "add to cart the fern"
        within = [f"{parted[1]} {{{name}}} {parted[2]}"] if parted else []
        schema = {"type": "string", "minLength": 1, "examples": [deed.example], "description": f"{called} ({noun})"}
        info = NLWebActionInfo(
            description=clean_text(f"{deed.text} ({noun})")[:300],
            input_schema=_object_schema({name: schema}, [name]),
            phrases=[f"{said} {{{name}}}", *within],
            hints=ActionHints(consequential=has_consequences(deed.text)),
        )
        self.add(deed.text, [_navigate(path), step], info, place=area, more=noun)

    def add_table(self, path: str, table: _Table) -> None:
        """The rows of a table, each with the words of its head."""
        taken: set[str] = set()
        fields: dict[str, str | ExtractField] = {}
        for number, (head, cells) in enumerate(zip(table.head, table.cells, strict=True), 1):
            if head:
                selector, kind = f"td:nth-child({number})", _type_of(cells)
                field = selector if kind == "text" else ExtractField(selector=selector, type=kind)
                fields[make_unique(slugify(head, "column"), taken)] = field
        name = table.name or "table"
        heads = ", ".join(filter(None, table.head))
        steps = [_navigate(path), _extract(table.selector, fields)]
        info = _describe_reading(
            f"{self._say['read'].format(name)}: {heads}", [self._say[one].format(name) for one in _LISTING]
        )
        self.add(f"read {name}", steps, info, place=table.area)
        for deed in table.deeds:
            self.add_deed(path, deed, table.called, name, table.area)

    def add_link(self, path: str, link: _Link) -> None:
        """A page that this one leads to."""
        if link.path == path or link.path in self._paths or len(self._paths) >= _MOST_LINKS:
            return
        self._paths.add(link.path)
        steps = [_navigate(link.path), *read_page()]
        info = _describe_reading(self._say["lead"].format(link.name), [self._say["open"].format(link.name)])
        self.add(f"open {link.name}", steps, info)


# Steps


def _navigate(path: str) -> NLWebAction:
    return NLWebAction(action_type=ActionType.NAVIGATE, value=escape_braces(path))


def _extract(selector: str, fields: dict[str, str | ExtractField]) -> NLWebAction:
    return NLWebAction(action_type=ActionType.EXTRACT, selector=escape_braces(selector), extract_schema=fields)


def _extract_cards(cards: _List) -> NLWebAction:
    """What repeats itself: each part that has a text, a link or a picture."""
    fields: dict[str, str | ExtractField] = {}
    taken: set[str] = set()
    for name, cell in cards.fields.items():
        if cell.kind == "text" or (cell.kind == "link" and cell.leaf):
            is_price = any(sign in cell.text for sign in "€$£¥") and any(letter.isdigit() for letter in cell.text)
            field = ExtractField(selector=cell.selector, type="price") if is_price else cell.selector
            fields[make_unique(slugify(name, "field"), taken)] = field
        if cell.kind != "text":
            is_link = cell.kind == "link"
            how = ExtractField(selector=cell.selector, attribute="href" if is_link else "src", type="link")
            fields[make_unique("url" if is_link else "image", taken)] = how
    return _extract(cards.selector, fields)


def _wait_for_quiet() -> NLWebAction:
    return NLWebAction(action_type=ActionType.WAIT, value="network", optional=True, timeout=3.0)


def read_page() -> list[NLWebAction]:
    """The text of whatever page is there, once nothing more is loaded; one that never rests is read as it is."""
    text = NLWebAction(action_type=ActionType.EXTRACT, extract_schema={"heading": "h1", "text": "body"})
    return [_wait_for_quiet(), text]


def _type(field: _Field, value: str, when: Condition | None = None) -> NLWebAction:
    return NLWebAction(action_type=ActionType.TYPE, selector=escape_braces(field.selector), value=value, when=when)


def _fill_field(name: str, field: _Field, group: list[_Field], *, optional: bool) -> list[NLWebAction]:
    """The steps that give a field its value; one that is not required only where it is given."""
    if group or field.kind == "checkbox":
        choices: list[tuple[str, str | bool]] = [
            (button.selector, said) for button, said in zip(group, _say_choices(group), strict=True)
        ]
        choices = choices or [(field.selector, True)]
        return [
            NLWebAction(
                action_type=ActionType.CHECK,
                selector=escape_braces(selector),
                when=Condition(variable=name, equals=value),
            )
            for selector, value in choices
        ]
    when = Condition(given=name) if optional else None
    if field.kind == "select":
        selector = escape_braces(field.selector)
        return [NLWebAction(action_type=ActionType.SELECT, selector=selector, value=f"{{{name}}}", when=when)]
    return [_type(field, f"{{{name}}}", when)]


# Descriptions


_LISTING = ("list", "show")


def _describe_reading(description: str, phrases: list[str]) -> NLWebActionInfo:
    return NLWebActionInfo(
        description=clean_text(description)[:300],
        phrases=[escape_braces(clean_text(phrase).lower()) for phrase in phrases],
        hints=ActionHints(read_only=True, idempotent=True),
    )


def _type_of(cells: list[str]) -> Literal["text", "price", "number", "date"]:
    """What the values of a column are, where all that are there agree."""
    there = [cell for cell in cells if cell]
    if len(there) < 2:
        return "text"
    if all(any(sign in cell for sign in "€$£¥") and any(map(str.isdigit, cell)) for cell in there):
        return "price"
    if all(_NUMBER.fullmatch(cell) for cell in there):
        # A year, a telephone number or an order is told by its digits: only what is written as an amount is one.
        return "number" if all(len(cell) <= 12 and not cell.startswith("0") for cell in there) else "text"
    return "date" if all(_DAY.fullmatch(cell) for cell in there) else "text"


def _object_schema(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _said(properties: Mapping[str, Any]) -> set[str]:
    """The properties that nobody says in a sentence: a box is ticked or not."""
    return {name for name, schema in properties.items() if schema.get("type") == "boolean"}


def _say_choices(group: list[_Field]) -> list[str]:
    """What each of several buttons is called; by their values where the labels do not tell them apart."""
    labels = [clean_text(button.label) for button in group]
    return labels if all(labels) and len({*labels}) == len(labels) else [button.value for button in group]


def _field_schema(field: _Field, group: list[_Field]) -> dict[str, Any]:
    schema = dict(_SCHEMAS.get(field.kind, {"type": "string"}))
    if group:
        schema["enum"] = _say_choices(group)
    elif field.options:
        texts = [text for _, text in field.options]
        as_said = all(texts) and len({*texts}) == len(texts)  # a step takes either
        schema["enum"] = [
            text if as_said else value
            for value, text in field.options
            if value or not (field.required or field.prompts)
        ]
    for name, text in (("minimum", field.least), ("maximum", field.most)):
        if schema["type"] == "number":
            with suppress(ValueError):
                schema[name] = float(text)
    schema["description"] = clean_text(field.legend or field.label) or field.name
    return schema
