"""Kinds of things that pages are made of, and sentences in somebody's own words, on small real pages."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agent3.errors import ValidationError
from agent3.protocols.nlweb.driver import patience
from agent3.protocols.nlweb.driver.fields import is_same_amount
from agent3.protocols.nlweb.driver.pressing import Operator
from tests.support.sites import Site

NOTE = "<script>const note = text => { document.title += (document.title && '; ') + text };</script>"
ROWS = """<h1>Books</h1><table><tr><th>Book</th><th>Copies</th><th>Left</th><th></th></tr>
<tr><td>Emma</td><td contenteditable oninput="note('Emma ' + innerText)">3</td><td>yes</td>
<td><button onclick="drop(this, 'Emma')">Delete</button></td></tr>
<tr><td>Ulysses</td><td contenteditable oninput="note('Ulysses ' + innerText)">5</td><td>no</td>
<td><button onclick="drop(this, 'Ulysses')">Delete</button></td></tr>
</table><script>const drop = (node, name) => {
if (confirm('Delete it?')) { node.closest('tr').remove(); note(name + ' gone') } }</script>"""
CARDS = "<main>" + "".join(
    f"""<div class=c><h3>{name}</h3><label>Amount <input type=number min=1 max=9 value=1></label>
<label>State <select onchange="note('{name} ' + value)"><option>New</option><option>Done</option></select></label>
<button onclick="note('{name} x' + parentElement.querySelector('input').value)">Add to bag</button></div>"""
    for name in ("Red pen", "Blue pen")
) + "</main>"  # fmt: skip
HIDDEN = """<details><summary>How do I leave?</summary><button onclick="note('left')">Close account</button></details>
<span id=l>Shade</span> <button aria-haspopup=listbox aria-expanded=false aria-labelledby="l v"
 onclick="o.hidden = !o.hidden"><span id=v>Grey</span></button>
<ul id=o role=listbox hidden>
<li role=option onclick="v.textContent = 'Pink'; o.hidden = true; note('Pink')">Pink</li></ul>
<div role=tablist><button role=tab aria-controls=p onclick="p.hidden = false">Call us</button></div>
<div role=tabpanel id=p hidden><label>Phone <input oninput="note(value)"></label></div>
<input aria-label=Website style="display:none" oninput="note('trapped')">"""
STATES = """<button aria-pressed=false
 onclick="ariaPressed = ariaPressed !== 'true'; note('radio ' + ariaPressed)">Radio</button>
<label>Heat <input type=range min=10 max=30 step=5 value=10 onchange="note(value)"></label>
<label>Seats <input type=number max=4 onchange="note(value)"></label>
<label>Spices <select multiple onchange="note([...selectedOptions].map(one => one.text))">
<option selected>Salt</option><option>Mint</option></select></label>
<label><input type=checkbox onchange="b.disabled = !checked">I agree</label>
<button id=b disabled onclick="note('agreed')">Go on</button>
<label><input type=checkbox onchange="note('kept ' + checked)">Keep me posted</label>"""
DRAWN = """<h3><button aria-expanded=false onclick="z.hidden = false">Data</button></h3><div id=z hidden>
<button onclick="note('copied')">Make a copy</button></div><span>Zone</span> <div role=combobox tabindex=0 id=c
 onclick="setTimeout(show, 300)">All</div><div id=e></div>
<table><tr><th>Pet</th><th>Owner</th></tr><tr><td>Rex</td><td tabindex=0 ondblclick="edit(this)">Ann</td></tr></table>
<label>Country <select onchange="setTimeout(() => { t.add(new Option('Lima')); t.disabled = false }, 300)">
<option>None<option>Peru</select></label> <label>Town <select id=t disabled onchange="note(value)"><option>-</select>
</label><script>
const show = () => { e.innerHTML = '<div role=listbox><div role=option onclick=pick()>North</div></div>' }
const pick = () => { c.textContent = 'North'; e.innerHTML = ''; note('North') }
const edit = cell => { cell.innerHTML = '<input>'; const field = cell.firstChild;
field.onblur = () => { cell.textContent = field.value; note(field.value) }; field.focus();
field.onkeydown = event => event.key === 'Enter' && field.blur() }</script>
<ul><li>Monday 1 March, 10:00 <button onclick="note('mon')">Leave</button></li>
<li>Tuesday 2 March, 10:00 <button onclick="note('tue')">Leave</button></li></ul>"""
HIDING = """<form><label>Kids <input type=number name=children onchange="note('kids ' + value)"></label>
<input type=hidden name=id><input type=hidden name=method><input type=hidden name=action><input type=hidden name=title>
<button name=submit>Search</button></form>"""
NAMES = """<div class=m><b>Red tea</b> <input type=number aria-label=Amount value=0 onchange="note('red ' + value)">
<button onclick="note('saved red')">Keep</button></div><div class=m><b>Mint tea</b> <input type=number
 aria-label=Amount value=0 onchange="note('mint ' + value)"><button onclick="note('saved mint')">Keep</button></div>
<a href="#k" onclick="note('key')">Lost your key?</a>
<label><input type=checkbox onchange="note('quiet')">Do not disturb</label>
<label><input type=checkbox onchange="note('wrapped')">Add a ribbon</label>
<label><input type=checkbox checked onchange="note('history ' + checked)">Keep history</label>
<button onclick="note('sent')">Pack and send</button>
<table><tr><th>Rule</th><th></th></tr><tr><td>north-1</td><td><div role=switch aria-label=Enabled aria-checked=true
 onclick="ariaChecked = 'false'; note('off')">on</div></td></tr></table>
<div><label>City <input></label></div>
<div><input placeholder="Your message"><button onclick="note('said ' + previousElementSibling.value)">Send message
</button></div>
<form onsubmit="return false"><input aria-label="First name"><button>Apply</button>
<button type=button onclick="note('withdrawn')">Withdraw application</button></form>"""
ASKS_BACK = """<button onclick="d.hidden = false">Freeze this card</button><div id=d role=dialog hidden><h2>Freeze</h2>
<button onclick="d.hidden = true; note('frozen')">I know, freeze this card</button>
<button onclick="d.hidden = true">Not now</button></div>
<p id=p><button onclick="p.innerHTML = 'Sure? <button onclick=leave()>Yes</button><button>No</button>'">Leave group
</button></p><script>const leave = () => { p.textContent = 'Gone'; note('gone') }</script>
<button onclick="alert('Please enter a name first'); textContent += '…'">Join</button>
<button onclick="alert('Your number is 77')">Queue</button>
<button onclick="m.hidden = false; note('in the bag')">Take one</button>
<div id=m role=dialog hidden>In your bag. <button onclick="note('paid')">Continue to pay</button>
<button>Keep looking</button></div>
<label>Note <input oninput="note(value)"></label>"""
LATE = """<p id=a>Loading…</p>
<script>setTimeout(() => { a.outerHTML = `<button onclick="note('late')">Arrive</button>` }, 400)</script>"""
REDRAWN = """<div id=a></div><script>const on = []; const draw = () => {
a.innerHTML = ['One', 'Two'].map(name => `<label><input type=checkbox ${on.includes(name) ? 'checked' : ''}
onchange="on.push('${name}'); note('${name}'); draw()">${name}</label>`).join('')
}; draw()</script>"""
KEBAB = """<h1>Shelves</h1><ul id=l></ul><div id=d role=alertdialog hidden><p id=q></p>
<button onclick="d.hidden = true">Keep it</button><button onclick="drop()">Yes, delete</button></div><script>
let names = ['Oak-1', 'Elm-2'], shown = '', doomed = ''; const draw = () => { l.innerHTML = names.map(name => `<li>
<b>${name}</b> <button aria-haspopup=menu aria-expanded=${shown === name} onclick="shown = '${name}'; draw()">⋮</button>
${shown === name ? `<div role=menu>
<button role=menuitem onclick="shown = ''; draw(); note('kept ${name}')">Store</button>
<button role=menuitem onclick="doomed = '${name}'; shown = ''; draw(); q.textContent = 'Delete ${name} for good?';
d.hidden = false">Delete</button></div>` : ''}</li>`).join('') }
const drop = () => { names = names.filter(name => name !== doomed); d.hidden = true; draw(); note(doomed + ' gone') }
document.onkeydown = event => { if (event.key === 'Escape') { shown = ''; draw() } }; draw()</script>"""
SUGGESTS = """<label for=t>Town</label><input id=t role=combobox aria-autocomplete=list aria-controls=s>
<ul id=s role=listbox hidden></ul><script>t.oninput = () => { s.innerHTML = ['Bonn', 'Borg'].filter(name =>
name.startsWith(t.value)).map(name => `<li role=option onclick="t.value = '${name}'; s.hidden = true; note('${name}')">
${name}</li>`).join(''); s.hidden = !s.innerHTML }</script>
<span id=y>Size</span><button aria-haspopup=listbox aria-labelledby="y z" onclick="o.hidden = false" id=z>Any</button>
<ul id=o role=listbox hidden aria-labelledby=y><li role=option onclick="z.textContent = 'Big'; o.hidden = true;
note('Big')">Big</li><li role=option onclick="o.hidden = true">Small</li></ul>"""
STEPS = """<main id=a></main><script>const ask = (names, go, next) => { a.innerHTML = names.map(name =>
`<label><input type=radio name=r value=${name}>${name}</label>`).join('') + `<button>${go}</button><p id=e></p>`;
a.querySelector('button').onclick = () => { const one = a.querySelector(':checked');
if (!one) { e.textContent = 'Please choose one'; return } note(one.value); next() } }
ask(['Red', 'Blue'], 'Next', () => ask(['Cat', 'Dog'], 'Finish', () => { a.innerHTML = 'Thanks' }))</script>"""
ANSWERS = """<p>Now <span id=c>10:00</span></p><p id=m role=status></p><script>setInterval(() => {
c.textContent = '10:' + (10 + Date.now() % 50) }, 100)</script><button>Idle</button>
<button onclick="m.textContent = 'Your balance is insufficient'">Wire it</button>
<button onclick="m.textContent = 'Sending…';
setTimeout(() => { m.textContent = 'Order 4711 received' }, 300)">Go</button>
<form onsubmit="event.preventDefault(); note(n.value); n.value = ''"><input id=n placeholder="New task" required>
<button>Add</button></form><button aria-pressed=false onclick="ariaPressed = 'true'; note('followed')">Follow author
</button><label><input type=checkbox checked onchange="note('stopped')">Newsletter</label>"""
MAIL = """<h1>Mail</h1><div role=toolbar><button onclick="mark('archived')">Archive</button>
<button onclick="mark('deleted')">Delete</button></div><ul>
<li><input type=checkbox aria-label="Select letter"><b>Ann</b> Rent</li>
<li><input type=checkbox aria-label="Select letter"><b>Bob</b> Trip</li></ul><script>const mark = what => {
for (const one of document.querySelectorAll('li'))
if (one.querySelector('input').checked) { one.remove(); note(what + ' ' + one.innerText) } }</script>"""
ROOM = """<h1>Rooms</h1><form onsubmit="event.preventDefault(); note([f.value, t.value, p.value, k.value].join())">
<label>From <input type=date id=f></label><label>To <input type=date id=t></label>
<label>Persons <input type=number id=p max=4></label>
<label>Kind <select id=k><option>Twin</option><option>Attic</option></select></label><button>Book</button></form>"""
LOGIN = """<form onsubmit="event.preventDefault(); note(u.value + '/' + w.value)"><label>User <input id=u></label>
<label>Password <input id=w type=password></label><button>Sign in</button></form>"""
FIND = """<form role=search
 onsubmit="event.preventDefault(); note(q.value); r.innerHTML = '<button>Borrow</button>'">
<input id=q type=search aria-label="Search"><button>Search</button></form><div id=r onclick="note('borrowed')"></div>"""
SECRET = """<label>New password <input id=n type=password></label>
<button onclick="note('now ' + n.value)">Change password</button>"""

DIALOG = """<button onclick="d.showModal()">New meeting</button><dialog id=d><form method=dialog
 onsubmit="note([t.value, w.value, h.value].join())"><h2>New meeting</h2><label>Title <input id=t required></label>
<label>Date <input type=date id=w required></label><label>Time <input type=time id=h></label><button>Save</button>
<button type=button onclick="d.close()">Cancel</button></form></dialog>"""
PLANS = """<p role=heading aria-level=-1>Plans</p>
<section><h2>Video</h2><button onclick="ask('Video')">Cancel plan</button></section>
<section><h2>Music</h2><button onclick="ask('Music')">Cancel plan</button></section>
<dialog id=d><p>Sure? This cannot be undone.</p><button onclick="d.close()">Keep it</button>
<button onclick="d.close(); note('no more ' + what)">Yes, cancel</button></dialog>
<script>let what; const ask = name => { what = name; d.showModal() }</script>"""
CHOICES = """<label>Phone number <input onchange="note('phone ' + value)"></label>
<label>Status <select onchange="note(value)"><option>All</option><option>Open</option></select></label>
<fieldset><legend>Delivery</legend><label><input type=radio name=r onchange="note('express')"> Express (4.90 €)</label>
<label><input type=radio name=r checked> Standard (free)</label></fieldset>
<label><input type=checkbox checked onchange="note('quiet')"> Send me the newsletter</label>
<section><h2>Basket</h2><button aria-label="Increase quantity" onclick="note('more')">+</button>
<button aria-label="Decrease quantity" onclick="note('less')">-</button></section>
<button aria-haspopup=menu aria-expanded=false onclick="m.hidden = false">Export</button>
<div role=menu id=m hidden><div role=menuitem onclick="m.hidden = true; note('as CSV')">CSV</div></div>
<input aria-label="Add a tag" onkeydown="if (event.key === 'Enter') { note('tag ' + value); value = '' }">"""

LUNCH = """<h1>Lunch</h1><form onsubmit="event.preventDefault(); note([...new FormData(this).values()].join())">
<fieldset><legend>Dish</legend><label><input type=radio name=d value=soup> Soup</label>
<label><input type=radio name=d value=stew> Stew</label></fieldset>
<label>Notes for the cook <textarea name=n></textarea></label><button>Add to basket</button></form>"""
VISIT = """<h1>Visits</h1><form onsubmit="event.preventDefault(); note([...new FormData(this).values()].join())">
<label>Doctor <select name=d><option>Any</option><option>Blanco</option></select></label>
<label>Comment <input name=c></label><button>Book visit</button></form>"""
POST = """<form onsubmit="event.preventDefault(); note(w.value)"><input id=w aria-label="What is new?">
<button>Post</button></form>"""
PAGED = """<h1>{title}</h1><div id=a {live}></div><button onclick="at++; draw()">Next page</button><script>
let at = 0; const names = {names}; const draw = () => {{ a.innerHTML = `{before}` + names.slice(at * 2, at * 2 + 2)
.map(name => `{entry}`).join('') + `{after}` }}; draw()</script>"""
BUTTON = """<button onclick="note('closed ${name}')">Close</button>"""
TICKETS = ["Slow search", "Lost mail", "Wrong invoice", "Access denied"]
ENTRIES = {
    "table": ("<table>", f"<tr><td>1</td><td>${{name}}</td><td>{BUTTON}</td></tr>", "</table>"),
    "grid": ("<div role=grid>", f"<div role=row><span role=gridcell>${{name}}</span>{BUTTON}</div>", "</div>"),
    "states": ("<table>", f"<tr><td><i class=error>${{name}}</i></td><td>{BUTTON}</td></tr>", "</table>"),
    "list": ("<ul>", f"<li><p>${{name}}</p>{BUTTON}</li>", "</ul>"),
    "cards": ("<main>", f"<div class=c><h3>${{name}}</h3><p>${{name}}!</p>{BUTTON}</div>", "</main>"),
    "links": ("<main>", f"<article><a href='#'>${{name}}</a>{BUTTON}</article>", "</main>"),
    "headings": ("<main>", f"<article><h2>${{name}}</h2>{BUTTON}</article>", "</main>"),
    "boxes": ("<main>", f"<div class=c><b>${{name}}</b><span>${{name}}!</span>{BUTTON}</div>", "</main>"),
}
SAYING = {
    "alert in a cell": "<table><tr><td>Pie</td><td>{button}<b role=alert id=m></b></td></tr></table>",
    "beside the button": "<ul><li><b>Pie</b> {button}<p id=m></p></li><li>Cake</li></ul>",
    "in the button's cell": "<table><tr><td>Pie</td><td>{button}<p id=m></p></td></tr></table>",
    "list of errors": "{button}<ul class=form-errors><li id=m></li></ul>",
    "list in an alert": "{button}<div role=alert><ul><li id=m></li></ul></div>",
    "links of a summary": "{button}<div class=error-summary><h2>Oh</h2><ul><li><a href='#q' id=m></a></li></ul></div>",
    "heading of an alert": "{button}<div role=alert><h4 id=m></h4></div>",
    "row of a form": "<form onsubmit='return false'><table><tr><td><label for=q>How many</label></td>"
    "<td><input id=q></td><td id=m></td></tr></table>{button}</form>",
    "toast": "<ul><li>Pie {button}</li></ul><div class=toast id=m></div>",
    "text": "<ul><li>Pie {button}</li></ul><div><div id=m></div></div>",
    "dialog": "{button}<dialog id=d open><p>Basket</p><p id=m></p></dialog>",
    "heading of a page": "<main><h2 id=m></h2></main>{button}",
}

LOANS = """<h1>Loans report</h1><h2>Payments</h2><table>""" + "".join(
    f"""<tr><td><input type=checkbox aria-label="Select {name}" onchange="note('marked')"></td><td>{name}</td>
<td><button onclick="note('{name}')">Renew</button></td></tr>"""
    for name in ("Emma", "Dune")
) + """</table><label>Report title <input oninput="note('title ' + value)"></label>
<label>Cost centre <select onchange="note(value)"><option>Sales<option>Press</select></label>
<button onclick="d.hidden = false">File report</button><button onclick="t.hidden = false">Tidy up</button>
<div role=dialog id=d hidden>It stays as it is. <button onclick="note('filed'); d.hidden = true">Yes, file</button>
<button onclick="d.hidden = true">Back</button></div><div role=dialog id=t hidden>All lists go away.
<button onclick="note('tidied')">OK</button> <button>Back</button></div>"""  # fmt: skip
TRIP = """<h2>Rome, Oslo</h2><form onsubmit="note([a.value, b.value]); return false"><label>Origin <input id=a></label>
<label>Destination <input id=b></label><button>Search trains</button></form>
<label><input type=radio onchange="r.hidden = false">Return trip</label>
<label>Out <input type=date></label><label id=r hidden>Return date <input type=date onchange="note(value)"></label>
<div><i id=k></i><input role=combobox aria-label=Guests aria-controls=l oninput="l.hidden = false">
<div role=listbox id=l hidden><div role=option onclick="pick(this)">Ann</div></div></div><script>
const pick = one => { k.innerHTML += '<b>Ann</b>';
document.querySelector('[role=combobox]').value = ''; l.hidden = true;
note('Ann') }</script>"""

FRONT = """<h1>Trips</h1><div id=app></div><div id=portal></div><script>
const rows = ['Oslo by train', 'Rome by bus'], menu = name => { portal.innerHTML = ['Store', 'Store all'].map(item =>
`<div role=menuitem onclick="portal.innerHTML = ''; note('${item} ${name}')">${item}</div>`).join('') };
app.innerHTML = '<ul>' + rows.map(name => `<li>${name} <button aria-label="More options" onclick="menu('${name}')">⋮
</button></li>`).join('') + '</ul><div role=group aria-label=Beds><button aria-label="Fewer beds" onclick="step(-1)">-'
+ '</button><output>1</output><button aria-label="More beds" onclick="step(1)">+</button></div><button '
+ 'onclick="begin()">New trip</button><table><tr><td><input type=checkbox aria-label="Mark Bonn" '
+ 'onchange="bar.hidden = !checked"></td><td>Bonn</td></tr></table><div role=toolbar id=bar hidden><button '
+ 'onclick="note(\\'dropped\\')">Drop</button></div>';
const step = by => setTimeout(() => { const beds = app.querySelector('output');
beds.textContent = Math.min(4, Number(beds.textContent) + by); note(beds.textContent) }, 30);
const begin = () => { portal.innerHTML = `<div role=dialog aria-label="New trip"><label>Goal <input></label>
<button onclick="note('to ' + portal.querySelector('input').value); portal.innerHTML = ''">Save</button></div>` }
</script>"""
CALENDAR = """<span id=l>Arrival</span><button aria-labelledby="l v" onclick="c.hidden = false"><span id=v>Pick a date
</span></button><div id=c hidden><button aria-label="Previous month" onclick="go(-1)">&lt;</button><b id=m></b><button
 aria-label="Next month" onclick="go(1)">&gt;</button><table role=grid id=g></table></div><script>let month = 10;
const names = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October',
'November', 'December']; const go = by => { month += by; const at = new Date(2026, month, 1), all = new Date(
at.getFullYear(), at.getMonth() + 1, 0).getDate(); m.textContent = `${names[at.getMonth()]} ${at.getFullYear()}`;
g.innerHTML = '<tr>' + Array.from({length: all}, (_, day) => `<td onclick="pick(${day + 1})">
${day + 1}</td>`).join('') };
const pick = day => { v.textContent = `${m.textContent.split(' ')[0]} ${day}, ${m.textContent.split(' ')[1]}`;
c.hidden = true; note(v.textContent) }; go(0)</script>"""
PARTS = """<a-box><a-field></a-field></a-box><script>
customElements.define('a-box', class extends HTMLElement { connectedCallback() { this.attachShadow({mode: 'open'})
.innerHTML = '<section><h2>Profile</h2><slot></slot></section>' } });
customElements.define('a-field', class extends HTMLElement { connectedCallback() {
const root = this.attachShadow({mode: 'open'}); root.innerHTML = '<button>Save</button>';
root.firstChild.onclick = () => note('saved') } })</script><button onclick="note('no')">Save</button>
<iframe title=Survey
 srcdoc="<button onclick='parent.document.title = innerText = &quot;asked&quot;'>Send</button>"></iframe>
<button>Send</button>"""


def page_of(kind: str, names: list[str]) -> str:
    before, entry, after = ENTRIES[kind]
    live = "" if kind == "boxes" else "aria-live=polite"  # there they may as well be messages
    return PAGED.format(title="Tickets", names=names, before=before, entry=entry, after=after, live=live)


@pytest.fixture(scope="module")
def run(run: Any) -> Any:
    """As everywhere in this folder, on pages that take notes."""
    return lambda html, sentence, **options: run(NOTE + html, sentence, **options)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    long = (("ACT_MS", 60_000.0), ("UNANSWERED_SECONDS", 60.0), ("LOADING_SECONDS", 60.0))
    for name, value in (*long, ("SAVING_SECONDS", 0.0), ("REGRET_SECONDS", 0.0)):
        monkeypatch.setattr(patience, name, value)  # what must be done is done, however slow the machine is


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    ("html", "sentence", "title"),
    [
        (ROWS, "click Delete for Ulysses", "Ulysses gone"),
        (ROWS, "set the copies of Emma to 4", "Emma 4"),
        (ROWS, "pon 9 como Copies de Ulysses", "Ulysses 9"),
        (HIDDEN, "click Close account", "left"),
        (HIDDEN, "select Pink in Shade", "Pink"),
        (HIDDEN, "escribe 600 en Phone", "600"),
        (STATES, "turn the radio on", "radio true"),
        (STATES, "pon el deslizador Heat en 25", "25"),
        (STATES, "select Mint", "Salt,Mint"),
        (STATES, "add Mint to Spices", "Salt,Mint"),
        (STATES, "check I agree and click Go on", "agreed"),
        (DRAWN, "click Make a copy", "copied"),
        (DRAWN, "select North in Zone", "North"),
        (DRAWN, "set the owner of Rex to Bob", "Bob"),
        (DRAWN, "select Peru in Country and Lima in Town", "Lima"),
        (DRAWN, 'click Leave for "Tuesday 2 March"', "tue"),
        (ASKS_BACK, "click Freeze this card", "frozen"),
        (ASKS_BACK, "click Leave group", "gone"),
        (ASKS_BACK, "click Take one", "in the bag"),
        (ASKS_BACK, "type The Wall into Note", "The Wall"),
        (LATE, "click Arrive", "late"),
        (REDRAWN, "check One and Two", "One; Two"),
        (
            CARDS,
            "haz clic en el primer botón Add to bag y luego en el segundo botón Add to bag",
            "Red pen x1; Blue pen x1",
        ),
        (FIND, "search for maps and click the first Borrow button", "maps; borrowed"),
        (KEBAB, "click Store for Elm-2", "kept Elm-2"),
        (KEBAB, 'click Delete for Oak-1 and click "Yes, delete"', "Oak-1 gone"),
        (SUGGESTS, 'type "Bonn" into Town', "Bonn"),
        (SUGGESTS, "select Big in Size", "Big"),
        (STEPS, "select Blue, click Next, select Cat and click Finish", "Blue; Cat"),
        (NAMES, "click Lost your key?", "key"),
        (NAMES, "turn on Do not disturb", "quiet"),
        (NAMES, "check Do not disturb and Add a ribbon", "quiet; wrapped"),
        (NAMES, "press Pack and send", "sent"),
        (NAMES, "click Keep for Mint tea and set its amount to 4", "saved mint; mint 4"),
        (FRONT, "click Store for Oslo by train", "Store Oslo by train"),
        (FRONT, "set Beds to 3", "2; 3"),
        (FRONT, "click New trip, type Bern into Goal and click Save", "to Bern"),
        (FRONT, "check Mark Bonn and click Drop", "dropped"),
        (CALENDAR, "set Arrival to January 5, 2027", "January 5, 2027"),
        (PARTS, "click Save in Profile", "saved"),
        (PARTS, "click Send in Survey", "asked"),
        # In one's own words.
        (FRONT, "store the train to Oslo", "Store Oslo by train"),
        (FRONT, "we need four beds", "2; 3; 4"),
        (CALENDAR, "I arrive on October 30, 2026", "October 30, 2026"),
        (NAMES, "I'd like three mint teas", "mint 3"),
        (NAMES, "disable the rule north-1", "off"),
        (NAMES, "with a ribbon", "wrapped"),
        (NAMES, 'send the message "Hello"', "said Hello"),
        (NAMES, "withdraw my application", "withdrawn"),
        (NAMES, "I want a ribbon and stop keeping history", "wrapped; history false"),
        (KEBAB, "delete Oak-1", "Oak-1 gone"),
        (ANSWERS, 'add the task "Pay rent"', "Pay rent"),
        (ANSWERS, "follow the author", "followed"),
        (ANSWERS, "stop the newsletter", "stopped"),
        (ROWS, "delete the book Emma", "Emma gone"),
        (ROWS, "borra Emma y Ulysses", "Emma gone; Ulysses gone"),
        (CARDS, "put two red pens in my bag", "Red pen x2"),
        (CARDS, "move Blue pen to Done", "Blue pen Done"),
        (STATES, "keep me posted", "kept true"),
        (STATES, "activa la opción de noticias (Keep me posted)", "kept true"),
        (MAIL, "archive the letter from Bob", "archived Bob Trip"),
        (
            ROOM,
            "book an attic for two persons from August 20, 2027 to August 23, 2027",
            "2027-08-20,2027-08-23,2,Attic",
        ),
        (LOGIN, "log in as ann with password s3", "ann/s3"),
        (SECRET, "change my password to Luna7", "now Luna7"),
        (DIALOG, "create a new meeting titled Plans on May 9, 2027 at 18:00", "Plans,2027-05-09,18:00"),
        (PLANS, "cancel the music plan", "no more Music"),
        (CHOICES, "my phone number is 600100", "phone 600100"),
        (CHOICES, "could you show only open ones?", "Open"),
        (CHOICES, "select Express", "express"),
        (CHOICES, "I'd like express delivery", "express"),
        (CHOICES, "stop sending me the newsletter", "quiet"),
        (CHOICES, "aumenta la cantidad", "more"),
        (CHOICES, "export it as CSV", "as CSV"),
        (CHOICES, 'add the tag "blue"', "tag blue"),
        # A name in brackets is what something is called, and no value.
        (LUNCH, "añade una Soup a la cesta (basket)", "soup,"),
        (LUNCH, "add a Stew to the basket", "stew,"),
        (LUNCH, 'add a Stew to the basket with notes "no salt"', "stew,no salt"),
        (LUNCH, 'escribe "sin sal" en las notas (Notes for the cook) y pulsa Add to basket', "sin sal"),
        (VISIT, "reserva una visita (visit) con Blanco", "Blanco,"),
        (POST, 'post "Hello"', "Hello"),
        # Fields of a form hide what the form itself has under their names.
        (HIDING, "set Kids to 2", "kids 2"),
        (LOANS, "renew Emma and Dune", "Emma; Dune"),
        (LOANS, "put the report on the Press cost centre", "Press"),
        (LOANS, "file the report", "filed"),
        (TRIP, "search trains from Rome to Oslo", "Rome,Oslo"),
        (
            TRIP,
            "check Return trip, put 2027-05-12 as Out and 2027-05-16 as Return date, select Ann in Guests",
            "2027-05-16; Ann",
        ),
    ],
)
def test_each_kind_of_thing_is_used_as_a_person_would(run: Any, html: str, sentence: str, title: str) -> None:
    done, after = run(html, sentence)
    assert (after, done.left, done.question) == (title, [], None)


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize(
    ("html", "sentence"),
    [
        (ROWS, "set the copies to 4"),
        (ROWS, "delete the book"),
        (ROWS, "delete the book Emmy"),
        (ROWS, "delete Emma and tell Bob"),
        (ROWS, "delete all books"),
        (CARDS, "put a pen in my bag"),
        (CARDS, "put twelve red pens in my bag"),
        (CARDS, "move Red pen to Sold"),
        (HIDDEN, "type x into Website"),
        (HIDDEN, "select Teal in Shade"),
        (STATES, "set the heat to 12"),
        (STATES, "put 9 as seats"),
        (STATES, "click Go on"),
        (NAMES, "do not disturb"),
        (NAMES, "please, do not disturb and do not pack and send"),
        (NAMES, "set the city of Emma to Rome"),
        (NAMES, "three green teas"),
        (NAMES, "three teas"),
        (NAMES, "disable the rule north-11"),
        (NAMES, "set its amount to 4"),
        (NAMES, "I have three mint teas at home"),
        (DRAWN, "select South in Zone"),
        (DRAWN, "select Peru in Country and Rome in Village"),
        (ASKS_BACK, "type the sum of both into Note"),
        (ASKS_BACK, "escribe algo en Note"),
        (MAIL, "delete the letter from Carl"),
        (ROOM, "book an attic"),
        (ROOM, "book an attic with a view for two persons from August 20, 2027 to August 23, 2027"),
        (LOGIN, "log in as ann"),
        (FIND, "search for maps and send them to Bob"),
        (FIND, "find a present for my mother"),
        (FIND, "busca maps y cocínalo"),
        (KEBAB, "click Burn for Elm-2"),
        (SUGGESTS, 'type "Bo" into Town'),
        (DIALOG, "create a new meeting titled Plans"),
        (PLANS, "cancel the plan"),
        (PLANS, "cancel the radio plan"),
        (CHOICES, "leave the newsletter as it is"),
        (CHOICES, "call the phone number 600100"),
        (CHOICES, "export it as PDF"),
        (CHOICES, 'change the title to "Blue"'),
        # What is left over is no text for a field that nobody spoke of.
        (LUNCH, "añade una Soup a la cesta (hamper)"),
        (LUNCH, "añade una Soup (hot) a la cesta (basket)"),
        (LUNCH, 'add a "Pizza" to the basket'),
        (LUNCH, "add a cook Stew to the basket"),
        (LUNCH, "add a Stew called Pizza to the basket"),
        (LUNCH, "escribe la nota (basket) en Notes"),
        (VISIT, "reserva una visita (visit) con el doctor Blanco (morning)"),
        (VISIT, 'book a visit with Blanco "tomorrow"'),
        (FIND, "busca los mapas (maps)"),
        (LOGIN, "log in as the boss (ann) with password s3"),
        (LOANS, "renew Emma and pay the fine"),
        (LOANS, "I would renew Emma"),
        (LOANS, "maybe renew Emma"),
        (LOANS, "renovaría Emma"),
        (LOANS, "renew just about Emma"),
    ],
)
def test_one_word_that_nothing_explains_and_nothing_is_done(run: Any, html: str, sentence: str) -> None:
    done, after = run(html, sentence)
    assert (after, done.done, done.complete) == ("", [], False)
    assert done.question


def test_a_question_of_the_page_itself_is_a_consequence(run: Any) -> None:
    page = """<button onclick="if (confirm('Empty the list?')) note('empty')">Tidy up</button>"""
    asked: list[str] = []
    assert run(page, "click Tidy up", confirm=asked.append)[1] == "empty"
    assert asked == ["“Empty the list?”"]

    def refuse(what: str) -> None:
        raise ValidationError(what)

    with pytest.raises(ValidationError, match="Empty the list"):
        run(page, "click Tidy up", confirm=refuse)


@pytest.mark.parametrize(
    ("page", "sentence", "told"),
    [
        ("""<button onclick="if (confirm('Also pay 500?')) note('paid')">Send</button>""", "click Send",
         ["click button 'Send'", "“Also pay 500?”"]),
        ("""<label><input type=checkbox onchange="note('gone')">Delete my account now</label>""",
         "check Delete my account now", ["check checkbox 'Delete my account now'"]),
        ("""<button onclick="note('off')">PayNow</button>""", "click PayNow", ["click button 'PayNow'"]),
        ("""<ul><li>Baker <button onclick="note('a')">Apply</button><li>Cook <button>Apply</button></ul>""",
         "click Apply of Baker", ["click button 'Apply' of “Baker”"]),
        ("""<form onsubmit="note(1); return false"><label>Code <input></label><button>Apply</button></form>""",
         "click Apply", []),
    ],
)  # fmt: skip
def test_each_consequence_is_asked_about(run: Any, page: str, sentence: str, told: list[str]) -> None:
    asked: list[str] = []
    run(page, sentence, confirm=asked.append)
    assert asked == told


def test_what_could_not_be_opened_is_not_told_as_done(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ACT_MS", 500.0)
    page = """<div style="position:relative"><button>New folder</button>
<i style="position:absolute;inset:0;background:red"></i></div>"""
    done, _ = run(page, "create a folder called Taxes")
    assert (done.complete, done.done) == (False, [])
    assert "Nothing was done" in (done.question or "")


def test_a_form_whose_answer_takes_long_is_sent_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ACT_MS", 700.0)
    over = threading.Event()

    def answer(_: dict[str, str]) -> str:
        over.wait(60)
        return "Thank you"

    with Site({"/sent": answer}) as site:
        done, _ = run(f"<form action={site.url}/sent><button>Go</button></form>", "click Go")
        over.set()
    assert len(site.requests) == 1
    assert (done.complete, done.done) == (False, ["click button 'Go'"])
    assert "does not show the result" in (done.question or "")


def test_a_menu_that_is_called_like_a_deed_is_not_opened_to_look_into_it(run: Any) -> None:
    rows = "".join(
        f"""<tr><td>{name}</td><td><button aria-haspopup=menu onclick="note('gone')">Delete</button></td></tr>"""
        for name in ("Emma", "Ulysses")
    )
    done, title = run(f"<table><tr><th>Book</th><th></th></tr>{rows}</table>", "Archive Emma")
    assert (done.done, title) == ([], "")


def test_a_question_in_place_is_told_whatever_its_buttons_are_called(run: Any) -> None:
    page = """<div id=b><button onclick="b.innerHTML = 'Really erase invoice 7? <button>Erase</button><button>Go back'">
        Delete</button></div>"""
    done, _ = run(page, "press Delete", confirm=lambda what: None)
    assert not done.complete
    assert "Really erase invoice 7?" in done.question


def test_what_a_page_sets_back_is_not_done(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SAVING_SECONDS", 2.0)
    page = """<label><input type=checkbox onchange="setTimeout(() => { this.checked = false }, 300)">Dark</label>"""
    done, _ = run(page, "turn on Dark")
    assert not done.complete


def test_a_deed_that_we_have_no_word_for_is_done_where_something_else_than_words_shows_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "REGRET_SECONDS", 0.3)
    monkeypatch.setattr(patience, "SAVING_SECONDS", 0.5)
    page = """<p id=now>Draft</p><button onclick="s.textContent = 'Two lines have no paper'">Hand in</button>
<button onclick="if (confirm('For good?')) now.textContent = 'Accounts has a word with you'">Hand over</button>
<button onclick="now.textContent = 'With accounts'">Hand up</button><p id=s role=status></p>
<div role=combobox aria-label=Town aria-expanded=false tabindex=0 onclick="o.hidden = false">Pick</div>
<div role=listbox id=o hidden><div role=option onclick="const box = document.querySelector('[role=combobox]');
box.textContent = 'Ceuta'; o.hidden = true; setTimeout(() => { box.textContent = 'Pick' }, 150)">Ceuta</div></div>"""
    for sentence, complete in (
        ("click Hand in", False),
        ("click Hand over", False),
        ("click Hand up", True),
        ("choose Ceuta in Town", False),
    ):
        assert run(page, sentence, confirm=lambda what: None)[0].complete is complete, sentence


@pytest.mark.parametrize(
    ("shown", "written", "same"),
    [("1.500,00", "1500", True), ("€1,500", "1500", True), ("7,50", "7.5", True), ("-5", "5", False),
     ("1.500", "1.5", False), ("15.00", "1500", False), ("1.5", "1.500", False)],
)  # fmt: skip
def test_an_amount_may_be_shown_by_another_custom(shown: str, written: str, same: bool) -> None:
    assert is_same_amount(shown, written) is same


def test_done_is_said_only_where_the_page_shows_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in ("UNANSWERED_SECONDS", "REGRET_SECONDS", "SUGGESTED_SECONDS"):
        monkeypatch.setattr(patience, wait, 0.2)
    asked: list[str] = []
    for html, sentence, told in (
        (ANSWERS, "click Idle", "does not show the result"),  # though a clock goes on
        (ANSWERS, "click Wire it", "“Your balance is insufficient”"),
        (STEPS, "click Next", "“Please choose one”"),
        (ASKS_BACK, "click Join", "“Please enter a name first”"),
        (SUGGESTS, "select Small in Size", "does not show the result"),
        (
            KEBAB.replace("note('kept ${name}')", ""),
            "click Store for Elm-2",
            "does not show the result",
        ),  # the menu closed
        (LOANS, "click Tidy up", "asks first: “All lists go away.”"),
        (KEBAB.replace("Yes, delete", "Proceed?").replace("Keep it", "Continue"), "delete Oak-1", "asks first"),
    ):
        driven, after = run(html, sentence, confirm=asked.append)
        assert (after, driven.complete) == ("", False), sentence
        assert told in (driven.question or ""), (sentence, driven)
    asked.clear()
    assert run(ANSWERS, "click Go", confirm=asked.append)[0].seen == ["Order 4711 received"]
    assert run(KEBAB, "delete Elm-2", confirm=asked.append)[0].complete
    assert asked == ["click menuitem 'Delete' of “Elm-2”", "“Delete Elm-2 for good?”"]


def test_a_press_that_shows_nothing_is_told_and_does_not_stop_what_is_harmless(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "UNANSWERED_SECONDS", 0.3)
    page = """<button>Ping</button><button onclick="note('pong')">Pong</button>
<button onclick="note('gone')">Delete</button>"""
    done, after = run(page, "click Ping and click Pong")
    assert (after, done.left, done.complete) == ("pong", ["click Ping"], False)
    done, after = run(page, "click Ping and click Delete")
    assert (after, done.complete) == ("", False)


def test_what_stands_before_the_page_is_put_away_only_where_it_is_in_the_way(run: Any) -> None:
    page = """<dialog id=d open aria-modal=true><button onclick="note('fine')">Fine</button></dialog>
<button onclick="note('read')">Read</button>"""
    calls: list[str] = []

    async def unblock() -> bool:
        calls.append("asked")
        return False

    assert run(page, "click Fine", unblock=unblock)[1] == "fine"
    assert calls == []
    assert not run(page, "click Read", unblock=unblock)[0].done
    assert calls == ["asked"]


def test_what_has_consequences_is_asked_about_once_and_before_anything_is_written(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = """<form onsubmit="event.preventDefault(); note('sent')"><label>To <input name=t></label>
<label>Sum <input name=s></label><button>Send payment</button></form>"""
    order: list[str] = []
    write = Operator._write

    async def note_writing(operator: Any, act: Any, element: Any) -> Any:
        order.append("written")
        return await write(operator, act, element)

    monkeypatch.setattr(Operator, "_write", note_writing)
    done, after = run(page, "type Ann into To and click Send payment", confirm=order.append)
    assert (done.complete, after) == (True, "sent")
    assert order == ["click button 'Send payment' (To: Ann, Sum: empty)", "written"]


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize("kind", ENTRIES)
def test_what_the_entries_of_a_page_are_called_turns_nothing_down(run: Any, kind: str) -> None:
    page = page_of(kind, TICKETS)
    done, after = run(page, 'click "Next page" and click Close for "Wrong invoice"')
    assert (after, done.left, done.question) == ("closed Wrong invoice", [], None)


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize("where", SAYING)
def test_words_that_turn_a_press_down_count_where_a_page_says_such_things(run: Any, where: str) -> None:
    button = """<button type=button onclick="m.textContent = 'Pie is sold out'">Buy</button>"""
    done, _ = run(SAYING[where].format(button=button), "click Buy")
    assert not done.complete
    assert "the page answers “Pie is sold out”" in (done.question or ""), done


def test_a_word_of_the_pressed_button_does_not_turn_it_down(run: Any) -> None:
    page = """<p id=s>Open</p><button onclick="s.textContent = 'Rejected'">Reject</button>
<button onclick="s.textContent = 'Rejected'">Accept</button>"""
    assert run(page, "click Reject")[0].complete
    assert "“Rejected”" in (run(page, "click Accept")[0].question or "")


def test_the_name_of_an_entry_is_no_answer_to_a_press_in_it(run: Any) -> None:
    page = """<ul><li><p><span>Wrong invoice</span> <i id=s>open</i></p>
<button onclick="s.textContent = 'closed'">Close</button></li><li>Lost mail</li></ul>"""
    done, _ = run(page, 'click Close for "Wrong invoice"')
    assert (done.complete, done.seen) == (True, ["Wrong invoice closed"])


def test_what_a_page_that_was_just_opened_draws_a_moment_later_is_waited_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "YOUNG_SECONDS", 60.0)
    page = """<h1>Rooms</h1><script>setTimeout(() => { document.body.insertAdjacentHTML("beforeend",
"<button onclick='note(1)'>Boost</button>") }, 400)</script>"""
    assert run(page, "click Boost")[0].complete


@pytest.mark.parametrize(
    ("controls", "sentence", "value"),
    [
        ("<label>Street and number <input id=f></label><label>City <input></label>",
         'type "12 Mill Lane" into Street and number', "12 Mill Lane"),
        ("<button type=button onclick='f.value=1'>Guardar para luego</button><input id=f aria-label=Z>",
         "pulsa Guardar para luego", "1"),
        ("<label><input type=checkbox onchange='f.value=1'> Nobody at home</label><input id=f aria-label=Z>",
         "check Nobody at home", "1"),
    ],
)  # fmt: skip
def test_words_in_the_name_of_a_control_neither_split_nor_forbid(
    run: Any, controls: str, sentence: str, value: str
) -> None:
    page = f"<p id=out></p>{controls}<script>setInterval(() => document.title = f.value, 20)</script>"
    done, after = run(page, sentence)
    assert (done.complete, after) == (True, value), done


def test_a_second_quoted_text_after_then_is_for_the_same_verb(run: Any) -> None:
    page = """<select aria-label=Color onchange="note(document.querySelector('[aria-label=Size]').value + this.value)">
<option>red<option>blue</select><select aria-label=Size><option>small<option>large</select>"""
    done, after = run(page, 'choose "large" in Size and then "blue" in Color')
    assert (done.complete, after) == (True, "largeblue"), done


def test_what_there_is_to_choose_from_turns_no_press_down(run: Any) -> None:
    page = """<form onsubmit="return false"><button type=button onclick="s.innerHTML = `<label><input type=radio
disabled> Marathon (sold out)</label><label><input type=radio onchange='note(1)'> 10 km</label>`">Next</button>
<div id=s></div></form>"""
    done, after = run(page, "click Next and check 10 km")
    assert (done.complete, after) == (True, "1"), done


def test_a_sentence_of_any_length_ends_at_once_and_does_nothing(run: Any) -> None:
    done, after = run("<button onclick='note(1)'>Go</button>", "click Go" + " " * 100_000 + "but only if it rains")
    assert (done.done, after) == ([], "")
    assert "2000" in (done.question or "")


def test_what_was_pressed_is_not_pressed_again_where_the_answer_to_what_it_asks_is_drawn_anew(run: Any) -> None:
    page = """<p id=out></p><button onclick="n = (window.n || 0) + 1; document.title = n; d.hidden = false">Archive box
</button><div id=d role=dialog aria-modal=true hidden><p>Archive the box? Are you sure?</p><span id=s></span>
<button>Cancel</button></div>
<script>setInterval(() => s.innerHTML = '<button>Yes, archive box</button>', 5)</script>"""
    done, after = run(page, "click Archive box")
    assert not done.complete
    assert after == "1"


FILES = """<div role=toolbar><button onclick="ask('New folder', 'Folder name', 'Create')">New folder</button>
<button disabled id=arch onclick="note('archived ' + [...document.querySelectorAll('input:checked')].map(one =>
one.closest('tr').querySelector('b').textContent))">Archive</button></div><table>"""
FILES += "".join(
    f"""<tr><td><input type=checkbox aria-label=Select onchange="arch.disabled = false"><b>{name}</b></td><td><button
aria-label="More actions" aria-haspopup=menu aria-expanded=false onclick="nextElementSibling.hidden = false">…</button>
<div role=menu hidden><div role=menuitem onclick="ask('Rename {name}', 'New name', 'Save')">Rename</div>
<div role=menuitem onclick="ask('Share {name}', 'Their e-mail', 'Share')">Share</div></div></td></tr>"""
    for name in ("budget.xlsx", "notes.md")
)
FILES += """</table><div id=v></div><script>const ask = (title, label, button) => {
v.innerHTML = `<div role=dialog aria-modal=true aria-label="${title}"><form k="${title}" onsubmit="
note(this.getAttribute('k') + ': ' + this.querySelector('input').value); v.innerHTML = ''; return false">
<label>${label} <input required></label><button>${button}</button><button type=button onclick="v.innerHTML =
''">Cancel</button></form></div>` }</script>"""


@pytest.mark.parametrize(
    ("sentence", "after"),
    [
        ("create a folder called Taxes", "New folder: Taxes"),
        ("make a new folder named Taxes 2027", "New folder: Taxes 2027"),
        ("rename notes.md to ideas.md", "Rename notes.md: ideas.md"),
        ("cambia el nombre de notes.md a ideas.md", "Rename notes.md: ideas.md"),
        ("share notes.md with ana@example.org", "Share notes.md: ana@example.org"),
        ("archive budget.xlsx", "archived budget.xlsx"),
    ],
)
def test_what_asks_for_more_is_opened_and_filled_in(run: Any, sentence: str, after: str) -> None:
    done, title = run(FILES.replace("</script>", f"</script>{NOTE}"), sentence)
    assert (done.complete, title) == (True, after), done


@pytest.mark.parametrize("sentence", ["share notes.md", "create a folder", "rename notes.md"])
def test_what_only_asked_for_more_is_not_done(run: Any, sentence: str) -> None:
    done, title = run(FILES + NOTE, sentence)
    assert not done.complete
    assert title == ""


def test_who_says_yes_to_a_toolbar_is_told_which_rows_are_marked(run: Any) -> None:
    asked: list[str] = []
    page = FILES.replace(">Archive<", ">Delete<") + NOTE
    assert run(page, "delete notes.md", confirm=asked.append)[1] == "archived notes.md"
    assert asked == ["click button 'Delete' of “notes.md”"]


def test_a_button_called_as_the_sentence_says_stands_before_one_that_does_the_like(run: Any) -> None:
    page = """<h1>Crea tu cuenta</h1><button type=button onclick="note('added')">Añadir</button>
<form onsubmit="note('made'); return false"><label>Nombre <input required></label><button>Crear
cuenta</button></form>"""
    done, after = run(page + NOTE, "crea una cuenta")
    assert (done.done, after) == ([], "")


def test_an_empty_basket_turns_an_order_down_and_not_what_emptied_it(run: Any) -> None:
    page = """<button onclick="w.textContent = 'Your basket is empty.'">Order and pay</button>
<button onclick="w.textContent = 'Your basket is empty.'; note('gone')">Delete all</button><p id=w role=alert></p>"""
    assert not run(page + NOTE, "click Order and pay")[0].complete
    done, after = run(page + NOTE, "click Delete all")
    assert (done.complete, after) == (True, "gone")


@pytest.mark.parametrize(
    ("sentence", "after"),
    [
        ("click Helpful for Mark", "mark"),
        ("pulsa Helpful de Sam", "sam"),
        ("check 4 stars", "four"),
        ("click Helpful for Ann", ""),
        ("click Helpful for Zoe", ""),
    ],
)
def test_a_row_is_known_by_whose_it_is_and_a_box_by_the_name_of_its_label(run: Any, sentence: str, after: str) -> None:
    rows = (
        ("Review by Mark", "mark"),
        ("Sam wrote this in May", "sam"),
        ("Review by Ann Lee", "lee"),
        ("Zoe II", "zoe"),
    )
    page = "".join(
        f"<article aria-label='{label}'><p>Good</p><button onclick='note(`{who}`)'>Helpful</button></article>"
        for label, who in rows
    )
    page += "<input type=radio id=r onchange=\"note('four')\"><label for=r aria-label='4 stars'>*</label>"
    assert run(page + NOTE, sentence)[1] == after


def test_what_limits_a_search_is_no_word_to_look_for(run: Any) -> None:
    page = "<form role=search><input type=search aria-label=Town oninput='note(value)'><button>Search</button></form>"
    done, after = run(page + NOTE, "search within 40 miles")
    assert (done.done, after) == ([], "")


def test_what_was_opened_in_vain_is_left_and_what_acts_at_once_is_told(run: Any) -> None:
    done, title = run(FILES + NOTE + "<script>setInterval(() => document.title = v.children.length, 20)</script>",
                      "create a folder called Taxes for the accountant of 2027 with a lock")  # fmt: skip
    assert (done.complete, done.done, title) == (False, [], "0")
    told: list[str] = []
    done, title = run(
        f"<button onclick='note(1)'>Add item</button>{NOTE}", "add an item called Chair", tell=told.append
    )
    assert (done.complete, done.done, title) == (False, ["click button 'Add item'"], "1")
    assert "Add item" in told[0], "that the rest is looked for afterwards is said before"


ASKED = """<h1>Invoices</h1><h2>Forma de pago</h2><label>Estado <select
onchange="note(value)"><option>Todas<option>Pagadas
</select></label><label><input type=radio onchange="note('card')"> Tarjeta</label>
<label>Deliver to <input role=combobox aria-autocomplete=list oninput="note('typed')"></label>
<label>Most <input type=number aria-label="Maximum price" oninput="note('most ' + value)"></label>
<section aria-label=Kitchen><label>Light <input type=range max=100 onchange="note('kitchen ' + value)"></label>
</section>
<section aria-label=Hall><label>Light <input type=range max=100 onchange="note('hall ' + value)"></label></section>
<fieldset><legend>Quiet hours</legend><label>From <input type=time onchange="note(value)"></label>
<label>Until <input type=time onchange="note(value)"></label></fieldset>
<article aria-label="Answer by Pedro"><p>Yes</p><button onclick="note('voted')">Like</button></article>
<article aria-label="Answer by Nuria"><p>No</p><button onclick="this.after(Object.assign(
document.createElement('textarea'), {ariaLabel: 'Your answer'}))">Reply</button></article>
<form onsubmit="note('posted'); return false"><label>Write <textarea></textarea></label><button>Post</button></form>
<button onclick="w.textContent = 'Elige tantas butacas como entradas.'">Comprar</button><div id=w role=alert></div>
<div><label>City <input onchange="note(value)"></label><button onclick="note('saved')">Save changes</button></div>
<div style="position:relative"><button onclick="note('covered')">Wide button</button><i style="position:absolute;left:0;
top:0;width:60px;height:40px"></i></div>""" + NOTE  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "after"),
    [
        ("cambia la forma de pago a tarjeta", "card"),
        ("show those up to $1000", None),
        ("show a maximum price of up to $1000", None),
        ("pon el light del hall a 70", "hall 70"),
        ("my quiet hours should be from 21:00 until 06:30", "21:00; 06:30"),
        ("like the answer by Pedro", "voted"),
        ('reply to Nuria: "Which river?"', ""),
        ("pulsa Comprar", ""),
        ("set the city to Rome and save", "Rome; saved"),
        ("click Wide button", "covered"),
    ],
)
def test_what_is_said_is_told_from_what_is_like_it(run: Any, sentence: str, after: str | None) -> None:
    done, title = run(ASKED, sentence)
    if after is None:
        assert "typed" not in title, "up to is not to"
        return
    assert title == after, done
    assert done.complete is bool(after)


REGRETS = """<h1>Files</h1><ul><li id=a>Alpha <button onclick="a.hidden = true; late(() => { a.hidden = false })">Delete
</button></li></ul><p id=m role=status></p><p id=q></p>
<button aria-pressed=false onclick="textContent = 'Following'; late(() => { textContent = 'Follow' })">Follow</button>
<button onclick="m.textContent = 'Draft kept'">Publish</button><button onclick="late(() => ask())">Archive all</button>
<form onsubmit="event.preventDefault(); note('sent'); m.textContent = 'Your claim is queued for approval'">
<label>Claim <input></label><button>Submit claim</button></form>
<form onsubmit="event.preventDefault(); nick.ariaInvalid = 'true'; hint.textContent = 'Longer, please'">
<label>Nickname <input id=nick></label><p id=hint></p><button>Save nickname</button></form>
<form onsubmit="event.preventDefault(); this.innerHTML = 'Thanks, we have it.'"><label>Message <input></label>
<button>Send message</button></form><script>const late = then => setTimeout(then, 400); const ask = () => {
q.innerHTML = 'Are you sure? <button onclick="q.textContent = String()">Yes, archive</button> <button>No</button>'
}</script>"""


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("delete Alpha", "does not show the result"),
        ("follow", "does not show the result"),
        ("click Follow", "does not show the result"),
        ("click Publish", "the page says “Draft kept”"),
        ('type "Taxi" into Claim and click Submit claim', "the page says “Your claim is queued for approval”"),
        ('type "Bo" into Nickname and click Save nickname', "the page answers “Longer, please”"),
    ],
)
def test_what_the_page_takes_back_or_does_not_report_is_not_done(
    run: Any, monkeypatch: pytest.MonkeyPatch, sentence: str, told: str
) -> None:
    monkeypatch.setattr(patience, "REGRET_SECONDS", 60.0 if told.startswith("does") else 0.0)
    monkeypatch.setattr(patience, "UNANSWERED_SECONDS", 0.3)
    driven, _ = run(REGRETS, sentence)
    assert not driven.complete
    assert told in (driven.question or "")


def test_what_the_page_reports_is_done_and_what_it_asks_late_is_asked(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(REGRETS, 'type "Hello" into Message and click Send message')[0].complete
    monkeypatch.setattr(patience, "REGRET_SECONDS", 60.0)

    def refuse(what: str) -> None:
        raise ValidationError(what)

    with pytest.raises(ValidationError, match="Are you sure"):
        run(REGRETS, "click Archive all", confirm=refuse)


GOES_ON = """<h1>Orders</h1><table><tr><th>Customer<th></tr><tbody id=b></table>
<nav aria-label=Pages><button id=p>Previous</button> <button id=n>Next</button></nav>
<details><summary>Older</summary><ul><li>Di <button>Cancel</button></ul></details><script>
const pages = [['Ann', 'Bo', 'Di'], ['Cy', 'Ann']]; let at = 0; const draw = () => { b.innerHTML = pages[at].map(name =>
`<tr><td>${name}<td><button onclick="note('${name}'); closest('tr').remove()">Cancel</button>`).join('');
p.disabled = !at; n.disabled = at === 1 }
p.onclick = () => { at--; draw() }; n.onclick = () => { at++; draw() }; draw()</script>"""


@pytest.mark.parametrize(
    ("sentence", "title"),
    [
        ("cancel Ann", ""),
        ("click Cancel for Ann", ""),
        ("cancel Di", ""),
        ("cancel Ann on this page", "Ann"),
        ("cancel Bo", "Bo"),
    ],
)
def test_a_namesake_where_a_list_goes_on_is_asked_about(run: Any, sentence: str, title: str) -> None:
    driven, after = run(GOES_ON, sentence)
    assert (after, driven.complete) == (title, bool(title))
    assert title or "the list goes on" in (driven.question or "")


def test_what_is_in_the_shut_menu_of_a_row_is_no_namesake_of_itself(run: Any) -> None:
    rows = "".join(
        f"""<tr><td>{name}<td><button aria-haspopup=menu aria-expanded=false onclick="nextSibling.hidden = false">⋮
</button><ul role=menu hidden><li role=menuitem onclick="note('{name}'); closest('tr').remove()">Delete</ul>"""
        for name in ("Ann", "Bo")
    )
    assert run(f"<table><tr><th>Name<th></tr>{rows}</table>", "delete Ann")[1] == "Ann"


PAGER = "<nav aria-label=Pages><button id=p>Previous</button> <button id=n>Next</button></nav>"
BARE = "<div><button id=p>Previous</button> <button id=n>Next</button></div>"
IN_LIST = "<ul><li><a href=#>1</a><li><a href=#>2</a><li><a id=n href=#>Next</a><li><a id=p href=#>Prev</a></ul>"
PLAYER = """<div><button>Play</button><button id=p>Previous</button><button id=n>Next</button></div>"""


@pytest.mark.parametrize(
    ("pager", "title"), [(BARE, ""), (IN_LIST, ""), (PLAYER, "Ann"), ("<p>1 / 2</p>" + PLAYER, "Ann")]
)
def test_pages_are_turned_by_what_stands_beside_the_list_and_does_nothing_else(
    run: Any, pager: str, title: str
) -> None:
    assert PAGER in GOES_ON
    assert run(GOES_ON.replace(PAGER, pager), "cancel Ann")[1] == title


@pytest.mark.parametrize("sentence", ["send the file", "send the report to Ann", "pay the report", "pay 30 euros"])
def test_a_noun_that_is_not_of_what_is_pressed_stops_it(run: Any, sentence: str) -> None:
    page = """<section aria-label="Chat with Ann"><label>Message <input value="old draft"></label>
<button onclick="note('sent')">Send</button><button>Attach file</button></section><h2>Reports</h2><p>One is ready.</p>
<h2>Order</h2><button onclick="note('paid')">Pay 25 EUR</button>"""
    assert run(page, sentence)[1] == ""
    assert run(page, "pay the order")[1] == "paid"


SET_BACK = """<label>Heat <input type=number value=19 onchange="late(() => { value = 19 })"></label>
<label>Text <input onchange="late(() => { m.textContent = 'Only owners may change it, sorry' })"></label>
<fieldset><legend>Plan</legend><label><input type=radio name=p id=r checked>Basic</label>
<label><input type=radio name=p>Big</label>
<button onclick="r.checked = true; m.textContent = 'Big opens in June'">Change plan</button></fieldset>
<ul><li>Tea <button aria-haspopup=menu onclick="u.hidden = false">More</button><div id=u role=menu hidden>
<button role=menuitem onclick="u.hidden = true; m.textContent = 'It stays where it is'">Delete</button></div></ul>
<p id=m role=status></p><script>const late = then => setTimeout(then, 300)</script>"""


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize(
    "sentence", ["set the heat to 27", 'type "New" into Text', "choose Big and press Change plan", "delete Tea"]
)
def test_what_a_page_sets_back_or_keeps_is_not_done(run: Any, monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    monkeypatch.setattr(patience, "SAVING_SECONDS", 60.0)
    assert not run(SET_BACK, sentence)[0].complete
