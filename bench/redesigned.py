"""Pages that are drawn twice: as they were, and by another design; a second examination for healing.

``bench/pages`` holds pages whose markup is changed in place. Here a page is content only (forms, tables with buttons in
their rows, bars, tabs, toolbars; English and Spanish), and a design makes HTML of it, so that after a redesign nothing
of the markup need be left. This module was written without knowledge of how healing judges, and it knows nothing of it.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.contents import Bar, Block, Control, Form, Page, Rows

__all__ = ["GONE", "KINDS", "draw", "targets"]

KINDS = ("reflow", "reorder", "grow", "reword", "icons", "copies", "shift", "moved", "tags")
"""What a redesign may do besides new names, which it always gives. ``gone`` and ``swapped`` take the element away."""
GONE = ("gone", "swapped")


def targets(page: Page) -> list[str]:
    """The keys of all that can be acted on: ``action~row`` for what stands in a row."""
    return [key for block in page.blocks for key in _list_keys(block)]


def _list_keys(block: Block) -> list[str]:
    if isinstance(block, Rows):
        return [_row_key(control, row) for row in block.rows for control in block.actions]
    return [control.key for control in block.controls]


def _row_key(control: Control, row: Sequence[str]) -> str:
    return f"{control.key}~{_slugify(row[0])}"


def _slugify(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def draw(page: Page, target: str = "", kinds: Iterable[str] = (), seed: int | None = None) -> str:
    """The page as it was; or, with a seed, as redesigned in these ways, ``data-truth`` on the target if it is there.

    As it was, every control has an id: its key, with ``-`` for ``~``.
    """
    pen = _Plain() if seed is None else _Redesign(page, target, frozenset(kinds), random.Random(seed))
    return pen.page(page)


class _Plain:
    """The first design: rows of labelled fields, a table, buttons that say what they do."""

    def page(self, page: Page) -> str:
        body = "".join(self.block(block) for block in page.blocks)
        style = (
            "<style>.row{margin:6px 0}.row label{display:inline-block;width:220px}nav a,.tools *{margin:0 8px}</style>"
        )
        return _document(page, f"<h1>{_escape(page.heading)}</h1><main>{body}</main>", style)

    def block(self, block: Block) -> str:
        title = f"<h2>{_escape(block.titles[0])}</h2>"
        if isinstance(block, Form):
            return f'<form class="panel">{title}{"".join(self.line(control) for control in block.controls)}</form>'
        if isinstance(block, Bar):
            tag, role = _bar_tag(block)
            drawn = "".join(self.control(control, control.key) for control in block.controls)
            return f'<{tag}{role} class="tools">{drawn}</{tag}>'
        head = "".join(f"<th>{_escape(column)}</th>" for column in block.columns)
        rows = "".join(self.row(block, row) for row in block.rows)
        return f'<section>{title}<table class="grid"><tr>{head}<th></th></tr>{rows}</table></section>'

    def row(self, block: Rows, row: Sequence[str]) -> str:
        cells = "".join(f"<td>{_escape(cell)}</td>" for cell in row)
        deeds = " ".join(self.control(control, _row_key(control, row).replace("~", "-")) for control in block.actions)
        return f'<tr class="item">{cells}<td>{deeds}</td></tr>'

    def line(self, control: Control) -> str:
        if control.kind in ("text", "select"):
            label = f'<label for="{control.key}">{_escape(control.words[0])}</label>'
            return f'<div class="row">{label} {self.control(control, control.key)}</div>'
        return f'<div class="row">{self.control(control, control.key)}</div>'

    def control(self, control: Control, name: str) -> str:
        words = _escape(control.words[0])
        known = f'id="{name}" class="{control.kind}"'
        match control.kind:
            case "button":
                return f'<button {known} type="button">{words}</button>'
            case "tab":
                return f'<button {known} type="button" role="tab">{words}</button>'
            case "link":
                return f'<a {known} href="/{name}">{words}</a>'
            case "select":
                return f'<select {known} name="{name}" aria-label="{words}">{_options(control)}</select>'
            case "text":
                return f'<input {known} name="{name}" type="text">'
        return f'<label><input {known} name="{name}" type="{control.kind}"> {words}</label>'


class _Redesign:
    """Another design. All chance comes from the seed; every page of a site keeps to one way of doing a thing."""

    def __init__(self, page: Page, target: str, kinds: frozenset[str], chance: random.Random):
        self._page = page
        self._target = target
        self._kinds = kinds
        self._chance = chance
        self._field = chance.choice(["above", "around", "inside", "table"]) if "reflow" in kinds else "beside"
        self._rows = chance.choice(["cards", "list", "table"]) if "reflow" in kinds else "table"
        self._button = chance.choice(["div", "input", "a", "button"]) if "tags" in kinds else "button"
        self._chosen: dict[object, str] = {}
        self._naming = chance.choice(["hash", "words", "none"])
        self._style = chance.choice(["padding:4px", "padding:10px 18px", "border:0", "font-size:18px"])

    def page(self, page: Page) -> str:
        blocks = list(page.blocks)
        if "reorder" in self._kinds:
            self._chance.shuffle(blocks)
        drawn = []
        for block in blocks:
            text = self._draw_block(block)
            if "moved" in self._kinds and self._target in _list_keys(block):
                places = [
                    f"<aside><div>{text}</div></aside>",
                    f"<details open><summary>More</summary>{text}</details>",
                    f'<div role="dialog" aria-label="{_escape(page.heading)}"><div><div>{text}</div></div></div>',
                ]
                text = self._chance.choice(places)
            drawn.append(text)
        if "copies" in self._kinds:
            drawn.insert(self._chance.randrange(len(drawn) + 1), self._draw_copies())
        head = (
            f"<header><b>{_escape(page.heading)}</b></header>"
            if "reflow" in self._kinds
            else f"<h1>{_escape(page.heading)}</h1>"
        )
        style = f"<style>.hide{{display:none}}main{{max-width:{self._chance.choice([700, 1000, 1180])}px}}</style>"
        return _document(page, f"{head}<main>{''.join(drawn)}</main>", style)

    def _draw_block(self, block: Block) -> str:
        title = f'<h3 class="{self._class("title")}">{_escape(self._choose_words(block.titles))}</h3>'
        if isinstance(block, Rows):
            return f'<div class="{self._class("box")}">{title}{self._draw_rows(block)}</div>'
        controls = self._keep_present(block.controls)
        if isinstance(block, Bar):
            tag, role = _bar_tag(block)
            controls += list(block.more) if "grow" in self._kinds else []
            ordered = self._reorder(controls)
            inner = "".join(f"<li>{self._draw_control(control, control.key)}</li>" for control in ordered)
            return f'<{tag}{role} class="{self._class("bar")}"><ul>{inner}</ul></{tag}>'
        fields = self._reorder([control for control in controls if control.kind not in ("button", "link")])
        buttons = self._reorder([control for control in controls if control.kind in ("button", "link")])
        if "grow" in self._kinds:
            extra = Control("extra", "text", ("Observaciones" if self._page.language == "es" else "Remarks",))
            fields.insert(self._chance.randrange(len(fields) + 1), extra)
        inner = "".join(self._draw_line(control) for control in fields)
        inner += "".join(self._draw_control(control, control.key) for control in buttons)
        return f'<form class="{self._class("panel")}">{title}{inner}</form>'

    def _keep_present(self, controls: Iterable[Control]) -> list[Control]:
        """Those that are still there; in place of a target that was swapped stands what it is not."""
        kept = []
        for control in controls:
            if control.key != self._target or not self._kinds & set(GONE):
                kept.append(control)
            elif "swapped" in self._kinds and control.instead:
                kept.append(replace(control, key="instead", words=(control.instead,)))
        return kept

    def _reorder(self, controls: list[Control]) -> list[Control]:
        if "reorder" in self._kinds:
            self._chance.shuffle(controls)
        return controls

    # Rows

    def _draw_rows(self, block: Rows) -> str:
        keys = {row: [_row_key(control, row) for control in block.actions] for row in block.rows}
        rows = [row for row in block.rows if "gone" not in self._kinds or self._target not in keys[row]]
        rows += list(block.more) if "grow" in self._kinds else []
        if "reorder" in self._kinds or "grow" in self._kinds:
            self._chance.shuffle(rows)
        drawn = [self._draw_row(block, self._shift(row)) for row in rows]
        if self._rows == "table":
            head = "".join(f"<th>{_escape(column)}</th>" for column in block.columns)
            return f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{''.join(drawn)}</tbody></table>"
        return f"<ul>{''.join(drawn)}</ul>" if self._rows == "list" else f"<div>{''.join(drawn)}</div>"

    def _shift(self, row: tuple[str, ...]) -> tuple[str, ...]:
        if "shift" not in self._kinds:
            return row
        others = [
            cell for other in self._page.blocks if isinstance(other, Rows) for line in other.rows for cell in line[1:]
        ]
        return (row[0], *(self._chance.choice(others) if self._chance.random() < 0.5 else cell for cell in row[1:]))

    def _draw_row(self, block: Rows, row: Sequence[str]) -> str:
        deeds = [self._swap(control, row) for control in block.actions]
        if "reorder" in self._kinds:
            self._chance.shuffle(deeds)
        inner = " ".join(self._draw_control(control, key) for control, key in deeds)
        if self._rows == "table":
            cells = "".join(f"<td>{_escape(cell)}</td>" for cell in row)
            return f"<tr>{cells}<td><div>{inner}</div></td></tr>"
        cells = f"<strong>{_escape(row[0])}</strong> " + " ".join(f"<span>{_escape(cell)}</span>" for cell in row[1:])
        tag = "li" if self._rows == "list" else "article"
        return f'<{tag} class="{self._class("card")}"><div>{cells}</div><div>{inner}</div></{tag}>'

    def _swap(self, control: Control, row: Sequence[str]) -> tuple[Control, str]:
        key = _row_key(control, row)
        if key == self._target and "swapped" in self._kinds:
            return replace(control, words=(control.instead or "Other",)), "instead"
        return control, key

    # Controls

    def _draw_line(self, control: Control) -> str:
        if control.kind not in ("text", "select"):
            return f"<p>{self._draw_control(control, control.key)}</p>"
        words = _escape(self._choose_words(control.words))
        name = self._name(control.key) or f"f{self._chance.randrange(10**6)}"
        inner = self._draw_field(control, control.key, name, words if self._field == "inside" else "")
        label = f'<label for="{name}">{words}</label>'
        match self._field:
            case "above":
                return f"<div><div>{label}</div><div>{inner}</div></div>"
            case "around":
                return f"<label><span>{words}</span> {inner}</label>"
            case "table":
                return f"<table><tr><td>{label}</td><td>{inner}</td></tr></table>"
            case "inside":
                return f"<div>{inner}</div>"
        return f"<div>{label} {inner}</div>"

    def _draw_field(self, control: Control, key: str, name: str, inside: str) -> str:
        known = f'id="{name}" class="{self._class("field")}" {self._mark(key)}'
        if control.kind == "select":
            return f"<select {known}{_attribute('aria-label', inside)}>{_options(control)}</select>"
        hint = _attribute(self._chance.choice(["placeholder", "aria-label"]), inside)
        return f'<input {known} type="{self._chance.choice(["text", "text", "search"])}"{hint}>'

    def _draw_control(self, control: Control, key: str) -> str:
        words = _escape(self._choose_words(control.words))
        name = self._name(key)
        known = f'class="{self._class(control.kind)}" style="{self._style}" {self._mark(key)}{_attribute("id", name)}'
        match control.kind:
            case "text" | "select":
                return self._draw_field(control, key, name or f"f{self._chance.randrange(10**6)}", words)
            case "checkbox" | "radio":
                return f'<label><input {known} type="{control.kind}"> <span>{words}</span></label>'
            case "link":
                where = f"/{self._chance.choice(['app', 'v2'])}/{_slugify(words) or 'x'}"
                return f'<a {known} href="{where}">{self._draw_caption(words)}</a>'
            case "tab":
                return f'<button {known} type="button" role="tab">{words}</button>'
        return self._draw_button(known, words)

    def _draw_button(self, known: str, words: str) -> str:
        bare = self._chosen.setdefault(f"icon {words}", self._chance.choice(["bare", "said", "said"])) == "bare"
        if bare and "icons" in self._kinds:
            return f'<button {known} type="button" aria-label="{words}"><svg width="16" height="16"></svg></button>'
        if self._button == "input":
            return f'<input {known} type="button" value="{words}">'
        if self._button == "button":
            return f'<button {known} type="button">{self._draw_caption(words)}</button>'
        where = ' href="#"' if self._button == "a" else ' tabindex="0"'
        return f'<{self._button} {known} role="button"{where}>{self._draw_caption(words)}</{self._button}>'

    def _draw_caption(self, words: str) -> str:
        faces = [f"<i>*</i> <span>{words}</span>", f"{words} <sup>new</sup>", f"<b>{words}</b>"]
        return self._chosen.setdefault(f"face {words}", self._chance.choice(faces)) if "icons" in self._kinds else words

    def _draw_copies(self) -> str:
        """What is called like the target and stands elsewhere, for another purpose; and a menu that is hidden."""
        key = self._target.split("~")[0]
        blocks = self._page.blocks
        controls = [each for block in blocks for each in (block.actions if isinstance(block, Rows) else block.controls)]
        target = next(control for control in controls if control.key == key)
        control = replace(target, key="copy", words=target.words[:1])
        title = "Otras personas miran también" if self._page.language == "es" else "Sponsored by our partners"
        is_field = control.kind in ("text", "select")
        line = self._draw_line(control) if is_field else self._draw_control(control, control.key)
        hidden = f'<div class="hide">{self._draw_control(control, "hidden")}</div>'
        return f"<footer><form><h4>{title}</h4>{line.replace(' data-truth', '')}</form></footer>{hidden}"

    def _mark(self, key: str) -> str:
        return " data-truth" if key == self._target and not self._kinds & set(GONE) else ""

    def _choose_words(self, words: tuple[str, ...]) -> str:
        """The same in every row."""
        if words not in self._chosen:
            other = "reword" in self._kinds and len(words) > 1 and self._chance.random() < 0.6
            self._chosen[words] = self._chance.choice(words[1:]) if other else words[0]
        return self._chosen[words]

    def _class(self, old: str) -> str:
        return self._chosen.setdefault(f"class {old}", self._name(old))

    def _name(self, old: str) -> str:
        if self._naming == "none":
            return ""
        if self._naming == "hash":
            return f"_{self._chance.randrange(16**6):06x}"
        return f"ui-{_slugify(old).replace('-', '')}-{self._chance.randrange(90) + 10}"


def _bar_tag(block: Bar) -> tuple[str, str]:
    kinds = {control.kind for control in block.controls}
    return ("nav", "") if "link" in kinds else ("div", ' role="tablist"' if "tab" in kinds else ' role="toolbar"')


def _options(control: Control) -> str:
    return "".join(f"<option>{_escape(option)}</option>" for option in control.options)


def _attribute(name: str, value: str) -> str:
    return f' {name}="{value}"' if value else ""


def _document(page: Page, body: str, style: str) -> str:
    head = f'<!doctype html><html lang="{page.language}"><title>{_escape(page.heading)}</title>{style}'
    return f"{head}<body>{body}</body></html>"


def _escape(text: str) -> str:
    return html.escape(text)
