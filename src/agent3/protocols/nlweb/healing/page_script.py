"""What runs in the page: reading one element, listing all that could be meant, and naming one of them by selectors.

It only looks. What a person typed is never read, and every text is cut.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LIST", "MANY", "MARKED", "PRINTS", "QUICK", "READ", "SAME", "SELECTORS"]

_LIBRARY: Final = r"""
const cut = (text, most = 120) => (text ?? '').replace(/\s+/g, ' ').trim().slice(0, most);
const BUTTONS = ['button', 'submit', 'reset', 'image'];
const DATES = ['date', 'datetime-local', 'month', 'week', 'time'];
// Roles as ARIA has them, and our own for what must never be taken for one another: password, date, file, color.
const INPUTS = {checkbox: 'checkbox', radio: 'radio', range: 'slider', number: 'spinbutton', search: 'searchbox',
  password: 'password', file: 'file', color: 'color', hidden: 'hidden'};
const TAGS = {BUTTON: 'button', SUMMARY: 'summary', TEXTAREA: 'textbox', OPTION: 'option', IMG: 'img', FORM: 'form',
  TABLE: 'table', TR: 'row', TD: 'cell', LI: 'listitem', NAV: 'navigation', LABEL: 'label', IFRAME: 'iframe',
  H1: 'heading', H2: 'heading', H3: 'heading', H4: 'heading', H5: 'heading', H6: 'heading', UL: 'list', OL: 'list'};
const role = one => {
  const said = (one.getAttribute('role') ?? '').trim().split(/\s+/)[0];
  if (said && said !== 'none' && said !== 'presentation') return said;
  if (one.tagName === 'A') return one.hasAttribute('href') ? 'link' : 'generic';
  if (one.tagName === 'SELECT') return one.multiple ? 'listbox' : 'select';
  if (one.tagName === 'INPUT')
    return BUTTONS.includes(one.type) ? 'button' : DATES.includes(one.type) ? 'date' : INPUTS[one.type] ?? 'textbox';
  if (one.isContentEditable && !one.parentElement?.isContentEditable) return 'textbox';
  return TAGS[one.tagName] ?? 'generic';
};
const control = one => ['INPUT', 'SELECT', 'TEXTAREA'].includes(one.tagName);
const pressed = one => one.tagName === 'INPUT' && BUTTONS.includes(one.type);
const MUTE = ['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'OPTION'];
const unseen = one => one.getAttribute('aria-label') ?? one.getAttribute('placeholder') ?? '';
// The text that can be seen below a node, without what scripts and options say; with labels, also what only a screen
// reader or an empty field shows.
const gather = (root, most, except = [], labels = false) => {
  let text = '';
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | (labels ? NodeFilter.SHOW_ELEMENT : 0));
  while (text.length < most && walker.nextNode()) {
    const node = walker.currentNode, one = node.nodeType === 3 ? node.parentElement : node;
    const said = (node.nodeType === 3 ? node.data : unseen(node)).trim();
    if (!said || !one || MUTE.includes(one.tagName) || except.some(each => each.contains(node))) continue;
    if (one.checkVisibility?.({visibilityProperty: true}) ?? true) text += ' ' + said;
  }
  return cut(text, most);
};
const words = one => gather(one, 120);
const refer = one => (one.getAttribute('aria-labelledby') ?? '').split(/\s+/).filter(Boolean)
  .map(id => one.getRootNode().getElementById?.(id)).filter(Boolean).map(words).join(' ');
const label = one => {
  const first = one.labels?.[0];
  if (!first) return '';
  if (!first.contains(one) || one.tagName !== 'SELECT') return words(first);
  return cut([...first.childNodes].filter(each => !each.contains(one)).map(each => each.textContent).join(' '));
};
const inner = one => words(one) || cut(one.querySelector('img[alt], svg[aria-label]')?.getAttribute('alt')
  ?? one.querySelector('[aria-label]')?.getAttribute('aria-label') ?? one.querySelector('svg title')?.textContent);
const names = new WeakMap();
const name = one => names.get(one) ?? (names.set(one, nameOf(one)), names.get(one));
const nameOf = one => cut(refer(one)) || cut(one.getAttribute('aria-label')) || (pressed(one)
  ? cut(one.value || one.alt) : control(one) ? label(one) : inner(one)) || cut(one.getAttribute('alt'))
  || cut(one.getAttribute('title')) || cut(one.getAttribute('placeholder'));
const shown = one => {
  const box = one.getBoundingClientRect();
  const far = box.right + scrollX <= 0 || box.bottom + scrollY <= 0;
  return box.width > 1 && box.height > 1 && !far && !one.closest('[aria-hidden=true], [inert]')
    && (one.checkVisibility?.({visibilityProperty: true, opacityProperty: true}) ?? true);
};
const TESTS = ['data-testid', 'data-test-id', 'data-test', 'data-qa', 'data-cy'];
const above = one => one.parentElement ?? one.getRootNode().host ?? null;
const PARTS = 'main, section, article, aside, nav, header, footer, dialog, form, fieldset, table, [role=dialog]';
const HEADS = 'h1, h2, h3, h4, h5, h6, legend, caption, summary';
// The words around an element: of the nearest ancestor that has at least four, but not beyond its part of the page.
const near = one => {
  const own = [one, ...(one.labels ?? [])];
  let text = '';
  for (let node = above(one), level = 0; node && node !== document.documentElement && level < 5; level++) {
    text = gather(node, 600, own, true);
    if (text.split(' ').length >= 4 || (text && node.matches(PARTS) && !node.matches('form, fieldset'))) break;
    node = above(node);
  }
  return text;
};
// The words of all that an element has to itself where others are called the same: its row, whatever that is made of.
const row = one => {
  const [kind, called] = [role(one), name(one)];
  const twins = [...one.getRootNode().querySelectorAll(one.localName)].slice(0, 400)
    .filter(each => each !== one && role(each) === kind && name(each) === called);
  if (!twins.length) return '';
  let own = one;
  for (let node = above(one); node && !twins.some(each => node.contains(each)); node = above(node)) own = node;
  return own === one ? '' : gather(own, 300, [one, ...(one.labels ?? [])], true);
};
// The words of the whole part of the page that an element, or its form, stands in.
const wide = one => {
  const inner = above(one)?.closest('form, fieldset') ?? one;
  let part = above(inner)?.closest(PARTS) ?? null;
  for (let node = part ? null : inner; node && node !== document.body; node = above(node)) part = node;
  return part ? gather(part, 900, [one, ...(one.labels ?? [])], true) : '';
};
// The nearest heading before an element, on its own level or on one above it.
const heading = one => {
  for (let node = one, level = 0; node && node !== document.body && level < 10; node = above(node), level++)
    for (let before = node.previousElementSibling; before; before = before.previousElementSibling) {
      if (before.matches(HEADS)) return words(before);
      const inside = before.matches(PARTS) && !before.matches('header') ? [] : before.querySelectorAll(HEADS);
      if (inside.length && !before.querySelector(PARTS)) return words(inside[inside.length - 1]);
    }
  return '';
};
const fields = one => [...(one.closest('form')?.elements ?? [])].map(each => each.name || each.id).filter(Boolean)
  .slice(0, 30).map(each => cut(each, 60));
const path = one => {
  const tags = [];
  for (let node = one; node && tags.length < 12 && node !== document.body; node = above(node))
    tags.push(node.tagName.toLowerCase());
  return tags;
};
const place = one => {
  const box = one.getBoundingClientRect();
  const whole = document.documentElement, wide = Math.max(whole.scrollWidth, 1), high = Math.max(whole.scrollHeight, 1);
  return [(box.x + scrollX) / wide, (box.y + scrollY) / high, box.width / wide, box.height / high];
};
const plain = text => (text ?? '').normalize('NFKD').replace(/\p{M}+/gu, '').toLowerCase()
  .match(/[\p{L}\p{N}]+/gu)?.join(' ') ?? '';
const MARKS = ['id', 'name', 'href', 'formaction', 'title', 'alt', 'aria-label'];
const CHOSEN = ['checkbox', 'radio', 'hidden', ...BUTTONS];
const marks = one => [...one.attributes].filter(({name}) => MARKS.includes(name) || name.startsWith('data-')
  || (name === 'value' && (one.tagName !== 'INPUT' || CHOSEN.includes(one.type)))).map(({value}) => cut(value, 300));
const says = (text, value) => {
  const all = plain(text);
  return all === value ? 2 : ` ${all} `.includes(` ${value} `) ? 1 : 0;
};
const ROW = 'tr, li, article, option, [role=row], [role=listitem], [role=article], [role=option]';
const CELL = 'td, th, [role=cell], [role=gridcell]';
const PRESSED = 'button, input, select, textarea, label, [role=button]';
const MONEY = ['eur', 'euro', 'euros', 'usd', 'gbp', 'chf', 'jpy', 'inr', 'sek', 'nok', 'dkk', 'pln', 'us'];
const visible = one => one.checkVisibility?.({visibilityProperty: true}) ?? true;
const held = (node, one, value) => {
  const inside = [node, ...node.querySelectorAll('*')]
    .filter(each => !one.contains(each) && !MUTE.includes(each.tagName));
  if (inside.slice(0, 300).some(each => visible(each) && says(cut(each.textContent, 300), value) === 2)) return 2;
  return says(gather(node, 900, [one]), value);
};
const otherwise = (node, one) => {
  const passed = node.closest(ROW) ? PRESSED + ', a' : PRESSED;
  return plain(gather(node, 900, [one, ...node.querySelectorAll(passed)])).split(' ')
    .some(word => word && !/^\p{N}+$/u.test(word) && !MONEY.includes(word));
};
// How a caller's words stand beside an element: 2 if something says just them, 1 if they are among others, 0 if not.
// The way up ends where another element of the same role and name comes in, for it could be meant as well, and where
// the row, the part of the page or a cell with other words ends.
const stands = (one, wanted) => {
  const value = plain(wanted);
  let best = value ? Math.max(...[name(one), ...marks(one)].map(text => says(text, value))) : 0;
  if (!value) return 0;
  for (let node = above(one), level = 0; node && node !== document.body && level < 8; node = above(node), level++) {
    if (best === 2) return best;
    const found = held(node, one, value);
    const twin = each => each !== one && role(each) === role(one) && name(each) === name(one);
    if (found && [...node.querySelectorAll('*')].some(twin)) return best;
    best = Math.max(best, found);
    if (node.matches(ROW) || node.matches(PARTS) || (!node.matches(CELL) && otherwise(node, one))) return best;
  }
  return best;
};
const read = (one, given = []) => ({
  given: given.length ? Math.min(...given.map(each => stands(one, each))) : 0,
  role: cut(role(one), 40), tag: one.tagName.toLowerCase(), kind: control(one) ? one.type : '', name: name(one),
  test: cut(TESTS.map(each => one.getAttribute(each)).find(Boolean), 80), id: cut(one.id, 80),
  field: cut(one.getAttribute('name'), 80), placeholder: cut(one.getAttribute('placeholder')),
  title: cut(one.getAttribute('title')), complete: cut(one.getAttribute('autocomplete'), 40),
  href: one.tagName === 'A' ? cut(one.pathname || one.getAttribute('href')?.split(/[?#]/)[0]) : '',
  query: one.tagName === 'A' ? cut(one.search || one.getAttribute('href')?.split('?')[1]?.split('#')[0], 500) : '',
  classes: [...one.classList].slice(0, 8).map(each => cut(each, 60)), near: near(one),
  wide: wide(one), row: row(one), heading: heading(one),
  fields: fields(one), path: path(one), box: place(one), shown: shown(one),
  landmark: one.closest('form, nav, header, footer, aside, dialog, [role=dialog], main')?.tagName.toLowerCase() ?? '',
});
"""

READ: Final = f"(element, given) => {{ {_LIBRARY} return read(element, given); }}"
"""One element, and the caller's words that it should stand beside → what a fingerprint is made of."""

QUICK: Final = f"""([selector, given]) => {{ {_LIBRARY}
  try {{ const found = document.querySelector(selector); return found && read(found, given); }} catch {{ return null; }}
}}"""
"""The same by a selector that the page itself understands, now: one message to the browser instead of several."""

MANY: Final = f"""selectors => {{ {_LIBRARY}
  const first = selector => {{ try {{ return document.querySelector(selector); }} catch {{ return null; }} }};
  return selectors.map(first).map(found => found && read(found));
}}"""
"""The same for several selectors."""

LIST: Final = f"""([roles, seen, most]) => {{ {_LIBRARY}
  const found = [];
  let budget = 20000;
  const walk = root => {{ for (const one of root.querySelectorAll('*')) {{
    if (--budget < 0) return;
    if (roles.includes(role(one)) && shown(one) === seen) found.push(one);
    if (one.shadowRoot) walk(one.shadowRoot);
  }} }};
  walk(document);
  return {{found, whole: budget >= 0 && found.length <= most && document.readyState === 'complete'}};
}}"""
"""Every element of some roles, kept in the page by a handle; ``whole`` says whether that is all of them."""

PRINTS: Final = f"""([list, most, given]) => {{ {_LIBRARY}
  return {{whole: list.whole, prints: list.found.slice(0, most).map(one => read(one, given))}};
}}"""

SELECTORS: Final = f"""([list, index]) => {{ {_LIBRARY}
  const one = list.found[index], root = one.getRootNode(), tag = one.tagName.toLowerCase();
  // Ids with long numbers or hexadecimal digits are generated, and another time they are others.
  const made = text => /\\d{{3,}}|[0-9a-f]{{8,}}|^:|^[a-z]{{0,3}}\\d+$/i.test(text);
  const by = (name, lead = '') => {{
    const value = one.getAttribute(name);
    return value && value.length < 120 ? `${{lead}}[${{name}}="${{CSS.escape(value)}}"]` : null;
  }};
  const steps = [];
  for (let node = one; node instanceof Element; node = node.parentElement) {{
    const id = node.getAttribute('id'); // "id" itself can be a field of the form
    if (node !== one && id && !made(id)) {{ steps.unshift(`#${{CSS.escape(id)}}`); break; }}
    const around = [...(node.parentElement?.querySelectorAll(':scope > *') ?? node.getRootNode().children)];
    const twins = around.filter(each => each.tagName === node.tagName);
    const nth = twins.length > 1 ? `:nth-of-type(${{twins.indexOf(node) + 1}})` : '';
    steps.unshift(node.tagName.toLowerCase() + nth);
  }}
  const ways = [...TESTS.map(each => by(each)), one.id && !made(one.id) ? `#${{CSS.escape(one.id)}}` : null,
    by('name', tag), by('aria-label', tag), by('placeholder', tag), one.tagName === 'A' ? by('href', tag) : null];
  const alone = way => {{ try {{ return root.querySelectorAll(way).length === 1; }} catch {{ return false; }} }};
  return {{stable: ways.filter(Boolean).filter(alone), path: steps.join(' > ')}};
}}"""
"""Selectors that mean one element of the list and no other, the most lasting first, and its path."""

MARKED: Final = r"""(rows, most) => {
  const within = new Set(rows.slice(0, 500).flatMap(row => [row, ...row.querySelectorAll('*')]));
  const made = text => /\d{3,}|[0-9a-f]{8,}|^:/i.test(text);
  const found = new Set();
  for (const one of [...document.querySelectorAll('[id], [class], [name], form, nav, header, main, aside, footer')]) {
    if (within.has(one) || one.closest('head')) continue;
    if (found.size >= most) break;
    const said = [one.id && `#${one.id}`, ...[...one.classList].slice(0, 8).map(each => `.${each}`),
      one.getAttribute('name') && `@${one.getAttribute('name')}`];
    for (const each of said) if (each && !made(each)) found.add(each.slice(0, 80));
    if (one.matches('form, nav, header, main, aside, footer')) found.add(one.localName);
  }
  return [...found];
}"""
"""The rows that were read → ids, classes, names and landmarks of the rest of the page."""

SAME: Final = "(element, [list, index]) => list.found[index] === element"
