"""How an element is named so that it is found again: the script that makes a selector of it, and names from words.

A selector is stable before it is short: a test id, an id that was not generated, a name within its form, a label; its
path only where nothing else tells it from others. It is always the only match on its page, or the first.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["NAMING", "make_unique", "slugify"]

NAMING = r"""
const quoted = text => '"' + String(text).replace(/["\\]/g, '\\$&').replace(/\n/g, '\\a ') + '"';
// Ids and classes that frameworks and builds make up: another time they are others.
const generated = /\d{3,}|[0-9a-f]{8,}|^[:_]|^(ember|react|radix|mui|ng-|headlessui|css-)/i;
const madeUp = text => generated.test(text) || text.length > 60;
const only = (selector, element) => {
  try { const all = document.querySelectorAll(selector); return all.length === 1 && all[0] === element; }
  catch { return false; }
};
const selectorOf = element => {
  const tag = element.localName;
  const tried = [];
  for (const name of ['data-testid', 'data-test', 'data-test-id', 'data-qa'])
    if (element.getAttribute(name)) tried.push(`[${name}=${quoted(element.getAttribute(name))}]`);
  if (element.id && !madeUp(element.id)) tried.push('#' + CSS.escape(element.id));
  const form = element.closest('form');
  const own = [];
  if (element.getAttribute('name')) own.push(`${tag}[name=${quoted(element.getAttribute('name'))}]`);
  if (element.type === 'radio') own.unshift(`${own[0] ?? tag}[value=${quoted(element.value)}]`);
  for (const name of ['aria-label', 'placeholder', 'title', 'alt'])
    if (element.getAttribute(name)) own.push(`${tag}[${name}=${quoted(element.getAttribute(name))}]`);
  if (tag === 'a' && element.getAttribute('href')) own.push(`a[href=${quoted(element.getAttribute('href'))}]`);
  if (element.type === 'submit') own.push(`${tag}[type=submit]`, `${tag}:not([type=button])`);
  tried.push(...own);
  if (form && form !== element) {
    const around = form.id && !madeUp(form.id) ? 'form#' + CSS.escape(form.id)
      : form.getAttribute('name') ? `form[name=${quoted(form.getAttribute('name'))}]`
      : form.getAttribute('action') ? `form[action=${quoted(form.getAttribute('action'))}]` : 'form';
    tried.push(...own.map(one => `${around} ${one}`), `${around} ${tag}`);
  }
  for (const name of tag === 'form' ? ['name', 'action'] : [])
    if (element.getAttribute(name)) tried.push(`form[${name}=${quoted(element.getAttribute(name))}]`);
  const classes = [...element.classList].filter(one => !madeUp(one)).slice(0, 2).map(one => '.' + CSS.escape(one));
  if (classes.length) tried.push(tag + classes.join(''));
  tried.push(tag);
  const found = tried.find(one => only(one, element));
  if (found) return found;
  const parent = element.parentElement;
  if (!parent || parent === document.documentElement) return tag;
  const same = [...parent.querySelectorAll(':scope > *')].filter(one => one.localName === tag);
  const step = same.length > 1 ? `${tag}:nth-of-type(${same.indexOf(element) + 1})` : tag;
  return `${selectorOf(parent)} > ${step}`;
};
const shown = element => element.checkVisibility?.({checkOpacity: true, checkVisibilityCSS: true}) ?? true;
const words = text => String(text ?? '').replace(/\s+/g, ' ').trim().slice(0, 120);
// What a label says itself: not the options of the list inside it, nor the text of a field.
const ownWords = element => {
  if (!element) return '';
  const copy = element.cloneNode(true);
  copy.querySelectorAll('select,textarea,button,script,style,datalist,[hidden]').forEach(one => one.remove());
  copy.querySelectorAll('td,th,li,p,div,h1,h2,h3,h4,h5,h6').forEach(one => one.append(' '));
  return words(copy.textContent);
};
// Ids and names of one letter, or made up, say nothing to a person.
const saying = text => { const plain = words(text); return plain.length > 2 && !madeUp(plain) ? plain : ''; };
const beside = element => {
  const before = element.previousElementSibling;
  if (before && !before.matches('input,select,textarea,button,a')) return ownWords(before).slice(0, 60);
  const cell = element.closest('td,dd')?.previousElementSibling;
  return cell && !cell.querySelector('input,select,textarea,button') ? ownWords(cell).slice(0, 60) : '';
};
const labelOf = element => words((ownWords(element.labels?.[0]) || element.getAttribute('aria-label')
  || (element.getAttribute('aria-labelledby') ?? '').split(/\s+/).filter(Boolean)
    .map(id => ownWords(document.getElementById(id))).join(' ').trim()
  || element.placeholder || element.title || beside(element) || saying(element.name) || saying(element.id)
  || element.name || element.id || '').replace(/\s*[*:]+\s*$/, ''));
"""
"""Functions for a page: ``selectorOf``, ``labelOf``, ``shown`` and ``words``."""

_PARTS = re.compile(r"[a-z0-9]+")
_LONGEST = 40


def slugify(text: str, other: str = "value") -> str:
    """A name of small letters, digits and ``_`` from words; ``other`` where there are none."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    plain = unicodedata.normalize("NFKD", split).encode("ascii", "ignore").decode().lower()
    name = "_".join(_PARTS.findall(plain))[:_LONGEST].strip("_")
    return name if name and not name[0].isdigit() else f"{other}_{name}".strip("_")


def make_unique(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken already; from now on it is."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
