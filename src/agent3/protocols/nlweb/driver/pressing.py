"""Pressing what a sentence means, and answering what the page asks back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver import patience
from agent3.protocols.nlweb.driver.evidence import (
    SAID,
    SHOWN,
    TROUBLE,
    Frames,
    Sight,
    find_hedged,
    find_refusal,
    find_refusing,
    leads_on,
    may_act,
    must_report,
    new_lines,
    weigh,
)
from agent3.protocols.nlweb.driver.fields import CHECKED, CHOSEN, SELECTED, TELLS, TEXT, Confirm, Fields, letters, tell
from agent3.protocols.nlweb.driver.namesakes import (
    find_back,
    find_more,
    find_next,
    has_namesake,
    is_shut_away,
    needs_only_one,
    said_of,
)
from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, describe, plan_all
from agent3.protocols.nlweb.driver.page_view import Control, PageView, look
from agent3.protocols.nlweb.driver.sentences import Clause
from agent3.protocols.nlweb.driver.wishes import find_beginning, find_fresh, find_menu, wish
from agent3.protocols.nlweb.driver.wording import Token
from agent3.protocols.nlweb.steps.actions import inside
from agent3.sentences.consequences import has_consequences, says_more
from agent3.sentences.lexicon import detect_language, fold
from agent3.sentences.site_answers import PENDING

if TYPE_CHECKING:
    from playwright.async_api import Dialog, ElementHandle, JSHandle, Page, Response

__all__ = ["Operator", "affirms"]


class Operator(Fields):
    """The one place that acts on a page for a sentence; every act is bounded in time, and looked at afterwards."""

    def __init__(
        self, page: Page, confirm: Confirm | None, uploads: Path | None, tell: Callable[[str], None] | None = None
    ):
        super().__init__(page, confirm, uploads)
        self._tell = tell
        self.done: list[str] = []
        self.used: list[Control] = []
        self.seen: list[str] = []
        self._confirmed = ""
        self._foretold: list[str] = []
        self._refusal: Exception | None = None
        self._asked: tuple[JSHandle, Any] | None = None
        self._verdict: bool | Doubt = True
        """What the page shows of the last press, where it only seems to ask."""
        self._alerts: list[str] = []
        self._agreed = False
        self.here = False
        """Whether only the rows that the page shows now are meant."""
        self._alone: list[Clause] = []
        self.begun: tuple[PageView, Control] | None = None
        """What the page was before a clause was begun, and what was pressed to find the rest of it."""
        self._set: list[tuple[Act, ElementHandle]] = []
        self._named = False
        """Whether the sentence says to press what is pressed, not to do what it may do."""
        self._shown: Frames = ()
        self._wrong: list[str] = []
        """What the page was before the fields that were filled last, and which of them it had marked as wrong."""
        self._texts: dict[int, str] = {}
        self._told: set[int] = set()
        self._written: list[tuple[Act, ElementHandle]] = []
        self._first: Frames | None = None
        """What the page was before the press that it asks about."""
        self._pressed = False
        """Whether the act that is under way has pressed something: then it is not begun again."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer the dialogs of the page: a question of its own is a consequence like any other."""
        self._page.on("dialog", self._answer)
        try:
            yield
        finally:
            self._page.remove_listener("dialog", self._answer)

    async def _answer(self, dialog: Dialog) -> None:
        accept = dialog.type != "prompt"
        self._agreed = self._agreed or dialog.type == "confirm"
        if dialog.type in ("alert", "prompt"):
            self._alerts.append(" ".join(dialog.message[:300].split()))
        if dialog.type == "confirm" and self._confirm is not None and says_more(self._confirmed, dialog.message):
            try:
                self._confirm(f"“{dialog.message[:300]}”")
            except Exception as error:  # noqa: BLE001 - raised where the press is, once the page has its answer
                self._refusal, accept = error, False
        with suppress(playwright().Error):
            await (dialog.accept() if accept else dialog.dismiss())

    async def is_loading(self) -> bool:
        """Whether the page says so, or has nothing yet."""
        with suppress(playwright().Error):
            return bool(await self._page.evaluate(_LOADING))
        return True

    async def grows(self, view: PageView, until: float) -> bool:
        """Whether a page that was opened a moment ago shows something else meanwhile. Its own clock is only a hint."""
        with suppress(playwright().Error):
            young = patience.YOUNG_SECONDS - float(await self._page.evaluate("performance.now()")) / 1e3
            clock = asyncio.get_running_loop().time
            until = min(until, clock() + young)
            while (left := until - clock()) > 0:
                await asyncio.sleep(min(left, 0.3))
                if (await look(self._page)).controls != view.controls:
                    return True
        return False

    async def foretell(self, view: PageView, plans: Sequence[Plan]) -> None:
        """Ask about what has consequences before anything is done, with the form as it will be then.

        Where it is otherwise when its button comes to be pressed, that is asked about once more.
        """
        if self._confirm is None or any(isinstance(one, Doubt) for one in plans):
            return
        planned, marked = dict[str, object](), list[Control]()
        for act in (act for one in plans if isinstance(one, list) for act in one):
            if act.kind in ("write", "choose"):
                planned[act.control.name] = ", ".join(act.values)
            elif act.kind == "upload":
                planned[act.control.name] = act.values[0]
                self._foretold.append(self._tell_upload(act))
            elif act.kind in ("check", "clear"):
                planned[act.control.name] = act.kind == "check"
                marked += [act.control] if act.kind == "check" else []
            elif act.kind == "press" and act.control.visible:
                with suppress(playwright().Error):
                    pressed: Any = await (await view.element(act.control)).evaluate(_PRESSED, planned)
                    if _is_serious(pressed):
                        self._foretold.append(tell(act, pressed["fields"], marked))
        for told in self._foretold:
            self._confirm(told)

    async def perform(self, view: PageView, acts: Sequence[Act], clauses: Sequence[Clause]) -> Doubt | None:
        """Do all acts of the first of the clauses; a doubt where one failed, or does not show."""
        following, self._view = clauses[1:], view
        self._named = clauses[0].verb == "press"
        if self.begun is not None:
            self.done.append(describe(Act("open", self.begun[1])))
        for number, act in enumerate(acts):
            self.used.append(act.control)
            last = number == len(acts) - 1
            shows: bool | Doubt = Doubt("disabled", act.control.name)  # covered, moving, or gone
            self._pressed = False
            for _ in range(patience.TRIES):
                try:
                    shows = await self._act(act, await self._find_again(view, act.control), following if last else ())
                    break
                except playwright().Error as error:
                    if self._page.is_closed():
                        raise
                    if self._pressed or _LEAVING in error.message:
                        shows = False
                    if self._pressed or "not attached" not in error.message:
                        break  # else the page was drawn anew at that very moment, and nothing was done
            if self._refusal is not None:
                raise self._refusal
            if isinstance(shows, Doubt):
                if shows.why in ("refused", "asks", "says"):
                    self.done.append(describe(act))  # it was pressed, and did not lead to what was asked
                return shows
            self.done.append(describe(act))
            if not shows:
                return Doubt("unshown", act.control.name)
            await self.settle()
        return None

    async def linger(self) -> Doubt | None:
        """After fields that nothing was pressed for: the time in which pages save by themselves; a doubt for one that
        the page has set back by then, or turned down.
        """
        if not self._set:
            return None
        before, trouble, clock = self._shown, self._wrong, asyncio.get_running_loop().time
        until = clock() + patience.SAVING_SECONDS
        with self._watch() as events:
            while (left := until - clock()) > 0:
                await asyncio.sleep(min(left, _LOOK_SECONDS))
                if not await self._is_kept() or await self._find_against(before):
                    break
            if "request" in events:
                with suppress(playwright().Error):
                    await self._page.wait_for_load_state("networkidle", timeout=patience.ACT_MS)
        if not await self._is_kept():
            return Doubt("unshown", self._set[-1][0].control.name)
        marked, _ = await self._read_trouble()
        after = await self._read()
        self.seen = [line[:200] for line in (*self._alerts, *new_lines(before, after))[:_MOST_SEEN]]
        if wrong := [name for name in marked if name not in trouble]:
            return Doubt("refused", self.seen[0] if self.seen else wrong[0])
        against = await self._find_against(before)
        return Doubt("refused", against[0]) if against else None

    async def _find_against(self, before: Frames) -> list[str]:
        """The messages that turn down what was filled in last."""
        act, element = self._set[-1]
        said = await self._find_messages(element, new_lines(before, await self._read()), before)
        told = [*self._alerts, *(line for line, message in said if message)]
        return [line for line, *_ in find_refusing(told, act.control.name)] + find_hedged(told, act.control.name)

    async def _is_kept(self) -> bool:
        """Whether the fields that were filled last still have what they were filled with."""
        for act, element in self._set:
            with suppress(playwright().Error):  # a page that is elsewhere by now has taken it
                element = await self._renew(act.control, element)
                if act.kind in ("check", "clear"):
                    kept = await element.evaluate(CHECKED) is (act.kind == "check")
                elif act.kind == "choose":
                    kept = await element.evaluate(SELECTED, act.values)
                    kept = kept and (id(act) not in self._told or await self._tells(act, element))
                else:
                    kept = await self._still_has(act, element)
                if not kept:
                    return False
        return True

    async def _tells(self, act: Act, element: ElementHandle) -> bool:
        """Whether a list that is drawn shows by its text what was chosen."""
        with suppress(playwright().Error):
            return bool(await (await self._renew(act.control, element)).evaluate(TELLS, act.values[0]))
        return False

    async def _still_has(self, act: Act, element: ElementHandle) -> bool:
        """Whether a field has what was written, or what the page has made of that at once."""
        return letters(await element.evaluate(TEXT)) in (letters(act.values[0]), self._texts.get(id(act)))

    async def check_only_ones(self, view: PageView, plans: list[Plan], clauses: Sequence[Clause]) -> bool:
        """Put a doubt in the place of each plan that speaks of a row by a name that another row may have, which the
        page does not show yet. Whether pages were turned to see that; then the page is drawn anew.
        """
        for number, found in enumerate(plans):
            if self.here or not isinstance(found, list) or clauses[number] in self._alone:
                continue
            turned = await self._check_only_one(view, found, clauses[number])
            if isinstance(turned, Doubt):
                plans[number] = turned
                return False
            self._alone.append(clauses[number])
            if turned:
                return True
        return False

    async def _check_only_one(self, view: PageView, acts: Sequence[Act], clause: Clause) -> bool | Doubt:
        for act in acts:
            said = said_of(clause, act.control) if needs_only_one(act) else []
            if not said:
                continue
            if is_shut_away(view, act.control, said):
                return Doubt("namesake", act.control.name)
            if find_next(view, act.control) is not None:
                return await self._turn_pages(view, act.control, said)
            if find_more(view, act.control) is not None:
                return await self._unfold(view, act.control, said)
        return False

    async def _unfold(self, view: PageView, control: Control, said: Sequence[Token]) -> bool | Doubt:
        """Show more of a list, as long as there is more, until another row of that name is seen."""
        count = _count_alike(view, control, said)
        with suppress(playwright().Error):
            for _ in range(_MOST_PAGES):
                if (more := find_more(view, control)) is None:
                    return True
                await (await view.element(more)).click(timeout=patience.ACT_MS)
                view = await self._look_at_next(view)
                if _count_alike(view, control, said) > count:
                    break
        return Doubt("namesake", control.name)

    async def _turn_pages(self, view: PageView, control: Control, said: Sequence[Token]) -> bool | Doubt:
        first, turned, twin = view, 0, False
        with suppress(playwright().Error):
            while not twin and turned < _MOST_PAGES and (onward := find_next(view, control)) is not None:
                await (await view.element(onward)).click(timeout=patience.ACT_MS)
                view, turned = await self._look_at_next(view), turned + 1
                twin = has_namesake(view, control, said)
            unread = find_next(view, control) is not None
            for _ in range(turned):
                if (back := find_back(view, control)) is None:
                    break
                await (await view.element(back)).click(timeout=patience.ACT_MS)
                view = await self._look_at_next(view)
            if not twin and not unread and _rows(view) == _rows(first):
                return True
        return Doubt("namesake", control.name)

    async def _look_at_next(self, before: PageView) -> PageView:
        """The page once it shows other rows."""
        until = asyncio.get_running_loop().time() + patience.SUGGESTED_SECONDS
        while True:
            await self.settle()
            view = await look(self._page)
            if _rows(view) != _rows(before) or asyncio.get_running_loop().time() > until:
                return view
            await asyncio.sleep(patience.POLL_SECONDS)

    async def open_menu(self, view: PageView, clause: Clause) -> bool:
        """Whether the menu of the row that a clause names was opened, to look for what is not on the page without."""
        if self._menu is not None or (menu := find_menu(view, clause)) is None:
            return False
        if menu.sends or has_consequences(menu.name):
            return False  # whatever it says of a menu, it is called like something that is done
        self._menu = menu, view
        with suppress(playwright().Error):
            await (await self._find_again(view, menu)).click(timeout=patience.ACT_MS)
        await self.settle()
        return True

    def forget_menu(self) -> None:
        """What was opened has served: the next part of the sentence may need another one."""
        self._menu = None

    def tell_first(self, acts: Sequence[Act], clause: Clause) -> None:
        """Say, before anything is done, what has to be done before a clause can be looked for."""
        if self._tell is not None and not self.done and acts:
            spanish = detect_language(clause.text) == "es"
            after = "solo después se puede buscar" if spanish else "only then this can be looked for"
            self._tell(f"{describe(acts[-1], 'es' if spanish else 'en')}: {after}: “{clause.text}”")

    async def begin(self, view: PageView, clause: Clause) -> bool:
        """Whether something was opened that a clause has to begin with, to look there for the rest of it."""
        if self.begun is not None or not (acts := find_beginning(view, clause)):
            return False
        self.tell_first(acts, clause)
        try:
            for act in acts:
                await (await self._find_again(view, act.control)).click(timeout=patience.ACT_MS)
                await self.settle()
        except playwright().Error as error:
            if _LEAVING not in error.message:
                return False  # it was not pressed, and is not told as done
        self.begun = view, acts[-1].control
        return True

    async def leave(self) -> None:
        """Leave what was opened where the rest was not found in it; what opened nothing is told as done."""
        if self.begun is None:
            return
        before, opener = self.begun
        self.begun = None
        with suppress(playwright().Error):
            view = await look(self._page)
            opened = find_fresh(view, before)
            away = [one for one in opened if one.role == "button" and _backs(one)]
            if len(away) == 1:
                await (await view.element(away[0])).click(timeout=patience.ACT_MS)
            else:
                await self._page.keyboard.press("Escape")
            await self.settle()
            if any(one.is_field for one in opened):
                left = find_fresh(await look(self._page), before)
                if not any(one.is_field for one in left):
                    return
        self.done.append(describe(Act("press", opener)))

    async def close_menu(self) -> None:
        """Leave a page as it was, where the menu that was opened did not have it."""
        if self._menu is None:
            return
        with suppress(playwright().Error):
            await self._page.keyboard.press("Escape")
            view = await look(self._page)
            still = [
                one for one in view.visible
                if (one.name, one.row, one.expanded) == (self._menu[0].name, self._menu[0].row, True)
            ]  # fmt: skip
            if len(still) == 1:
                await (await view.element(still[0])).click(timeout=patience.ACT_MS)

    async def _act(self, act: Act, element: ElementHandle, following: Sequence[Clause]) -> bool | Doubt:
        """Whether the page shows that it was done, once it has come to rest."""
        fills = act.kind in ("write", "choose", "check", "clear")
        if fills and not self._set:
            self._alerts, self._shown, self._wrong = [], await self._read(), (await self._read_trouble())[0]
        self._set = [*self._set, (act, element)] if fills else []
        self._written += [(act, element)] if act.kind == "write" else []
        match act.kind:
            case "write":
                shows = await self._write(act, element)
                with suppress(playwright().Error):
                    field = await self._renew(act.control, element)
                    self._texts[id(act)] = letters(await field.evaluate(TEXT))
                return shows
            case "choose":
                self._confirm_at_once(act, act.values)
                shows = await self._choose(act, element)
                if act.control.is_drawn and await self._tells(act, element):
                    self._told.add(id(act))
                return shows
            case "check" | "clear":
                self._confirm_at_once(act, [act.control.name] if act.kind == "check" else [])
                return await self._check(act, element)
            case "upload":
                return await self._upload(act, element)
            case _:
                return await self._press(act, element, following)

    def _tell_upload(self, act: Act) -> str:
        size = inside(self._uploads, act.values[0]).stat().st_size
        return tell(act, [f"{size:,} bytes"])

    async def _upload(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Choose a file. Many pages send it at once, so it is asked about like everything that has consequences."""
        if isinstance(doubt := await self.check_values(self._view, [act]), Doubt):
            return doubt
        told = self._tell_upload(act)
        if told in self._foretold:
            self._foretold.remove(told)
        elif self._confirm is not None:
            self._confirm(told)
        shows = await self._press_and_watch(act, element)
        if isinstance(shows, Doubt):
            return shows
        name = Path(act.values[0]).name
        with suppress(playwright().Error):
            if await element.evaluate("(node, name) => [...node.files].some(one => one.name === name)", name):
                return True
        return any(name in line for line in self.seen)  # a page that has taken it may empty its field

    async def _press(self, act: Act, element: ElementHandle, following: Sequence[Clause]) -> bool | Doubt:
        pressed: Any = await element.evaluate(_PRESSED, {})
        if pressed["invalid"]:
            return Doubt("empty", pressed["invalid"])
        serious = _is_serious(pressed)
        if self._confirm is not None and serious:
            self._confirmed = tell(act, pressed["fields"], [one for one in self.used if one.role == "checkbox"])
            if self._confirmed in self._foretold:
                self._foretold.remove(self._confirmed)
            else:
                self._confirm(self._confirmed)
        try:
            acts = must_report(act.control) or leads_on(act.control) or may_act(act.control)
            careful = serious or (acts and not following)
            shows = await self._press_and_watch(act, element, careful=careful)
            if shows is not True:
                return shows
            return await self._answer_asking(act, element, following, serious=serious, careful=careful)
        finally:
            self._confirmed, self._first = "", None

    async def _find_new_field(self, element: ElementHandle) -> str:
        """What an empty field is called that a press has brought up: then there is more to say."""
        known = [(one.frame, one.name) for one in self._view.visible if one.role == "textbox"]
        with suppress(playwright().Error):
            if not await element.evaluate("node => Boolean(node.ownerDocument.defaultView)"):
                return ""  # on another page
            view = await look(self._page)
            fields = [one for one in view.visible if one.role == "textbox" and one.is_free and not one.value]
            return next((one.name for one in fields if one.name and (one.frame, one.name) not in known), "")
        return ""

    async def _answer_asking(
        self, act: Act, element: ElementHandle, following: Sequence[Clause], *, serious: bool, careful: bool
    ) -> bool | Doubt:
        """Where the page asks in a dialog, or in place, whether to go on: what the person says, and its button for it.

        A clause that comes after and names something in the dialog answers it.
        """
        asks = not following and not self._named and act.kind == "press" and await self._find_new_field(element)
        if self._asked is None:
            return Doubt("asks", asks) if asks else True
        handle, found = self._asked
        names: list[str] = found["names"]
        if following:
            planned = plan_all(await look(self._page), following[:1], self.used, otherwise=wish)[0]
            if isinstance(planned, list) and planned[0].control.name in names:
                return True
        yes = [number for number, name in enumerate(names) if affirms(name, act.control.name)]
        no = [name for name in names if _declines(name, act.control.name)]
        questions = _is_question(found["text"])
        # "Yes, submit" says what was pressed; "OK" does not.
        named = serious or any(affirms(_strip_yes(names[number]), act.control.name) for number in yes)
        if found["open"] and not following and not self._named and act.kind == "press":
            return Doubt("asks", found["text"], tuple(names[:5]))  # "share the budget": with whom is not said
        # Nothing but buttons, one of which goes back: what was pressed is not done yet.
        turns_back = not found["fields"] and len(names) > 1 and any(not _CLOSES & {*_words(name)} for name in no)
        if found["open"] or len(yes) != 1:
            unsure = questions or turns_back or (serious and (found["open"] or len(names) > 1))
            return Doubt("asks", found["text"], tuple(names[:5])) if unsure else self._verdict
        if not questions and not (no and named):
            # A message with a button to go on, unless one can go back as well.
            return Doubt("asks", found["text"], tuple(names[:5])) if turns_back else self._verdict
        if self._confirm is not None:
            self._confirm(f"“{found['text']}”")
        button = (await (await handle.get_property("buttons")).get_property(str(yes[0]))).as_element()
        assert button is not None
        shows = await self._press_and_watch(replace(act, kind="press"), button, careful=careful)
        with suppress(playwright().Error):
            if shows is True and await button.is_visible():
                return Doubt("asks", found["text"])
        return shows

    async def _press_and_watch(self, act: Act, element: ElementHandle, *, careful: bool = False) -> bool | Doubt:
        """Press, and wait for a sign of it: longer where the page has asked a server for something.

        After one that has to be ``careful``, the page is watched for what it takes back, turns down or asks late, and
        must show what was asked for. Where it asks back, that is measured from the first of the presses.
        """
        clock = asyncio.get_running_loop().time
        self._alerts, self._asked, self._agreed = [], None, False
        buttons = await self._page.evaluate(f"({_ASKING})(null)")
        item = act.control.role.startswith("menuitem")
        with self._watch() as events:
            before, trouble = await self._read(menus=not item), await self._read_trouble()
            if act.kind == "enter":
                await element.press("Enter", timeout=patience.ACT_MS)
            elif act.kind == "upload":
                await element.set_input_files(inside(self._uploads, act.values[0]), timeout=patience.ACT_MS)
            else:
                await self._click(element)
            self._pressed = True
            began, after = clock(), before
            while clock() - began < (patience.ACT_MS / 1000 if "request" in events else patience.UNANSWERED_SECONDS):
                after = await self._read(menus=not item)
                if "event" in events or self._refusal is not None or self._alerts or after != before:
                    break
                await asyncio.sleep(patience.POLL_SECONDS)
            else:
                return find_refusal(act, events, []) or False
            if self._refusal is not None:
                return True
            # "Sending …" is no answer yet.
            await self.settle()
            after = await self._read(menus=not item)
            while (
                any(PENDING.search(line) for line in new_lines(before, after))
                and clock() - began < patience.ACT_MS / 1000
            ):
                await asyncio.sleep(patience.POLL_SECONDS)
                after = await self._read(menus=not item)
            asked, news = await self._find_asking(act, buttons), _News(self._first or before, act.control.name)
            if careful and not asked and "event" not in events:
                await self._note(news, element, after)
                await self._wait_for_regret(act, news, element, events, began, buttons, menus=not item)
                if self._is_refused():
                    return True
                after, asked = await self._read(menus=not item), await self._find_asking(act, buttons)
        lines = [*dict.fromkeys((*self._alerts, *news.lines, *new_lines(before, after)))]
        self.seen = [line[:200] for line in lines[:_MOST_SEEN]]
        lines = [line for line in lines if line not in asked]  # "this cannot be undone" turns nothing down
        refusing = find_refusing(lines, act.control.name)
        said = await self._find_said(act, element, refusing[:_MOST_SEEN], before)
        if (refused := find_refusal(act, events, said)) is not None:
            return refused
        if any(PENDING.search(line) for line in new_lines(before, after)) and not act.control.opens:
            return False
        if act.control.role == "option":
            # Whether an option that was pressed is the chosen one now, or what its list belongs to shows it.
            with suppress(playwright().Error):
                return bool(await element.evaluate(CHOSEN, act.control.name))
            return False
        self._verdict = "event" in events or bool(self._alerts) or after != before
        if careful and "event" not in events:
            self._verdict = await self._weigh(act, element, news.before, after, news, trouble)
        if asked:
            self._first = news.before
            return True
        return self._verdict

    def _is_refused(self) -> bool:
        return self._refusal is not None

    async def _find_asking(self, act: Act, buttons: object) -> str:
        """What the page asks back now, with buttons that were not there before: in a dialog, or in place with a
        question, or with one button that says yes and others that say no.
        """
        self._asked, found = None, None
        with suppress(playwright().Error):  # the page may be on its way to another one
            handle = await self._page.evaluate_handle(_ASKING, buttons)
            read = "found => found && {...found, buttons: found.buttons.length}"
            found = await handle.evaluate(read)
        if found is None:
            return ""
        yes = [name for name in found["names"] if affirms(name, act.control.name)]
        no = any(_declines(name, act.control.name) for name in found["names"])
        if found["inline"] and not _is_question(found["text"]) and not (len(yes) == 1 and no):
            return ""
        self._asked = handle, found
        return str(found["text"])

    async def _wait_for_regret(
        self,
        act: Act,
        news: _News,
        element: ElementHandle,
        events: Sequence[str],
        began: float,
        buttons: object,
        *,
        menus: bool,
    ) -> None:
        """Note what a page shows in the time in which it may still take back what it has shown, or ask.

        What it has turned down, taken back or asked is certain at once. A page that another one has taken the place of
        has made up its mind; an answer of a server is waited for.
        """
        clock, quiet, document = asyncio.get_running_loop().time, 0.0, None
        with suppress(playwright().Error):
            document = await self._page.evaluate("performance.timeOrigin")
        until, latest = began + patience.REGRET_SECONDS, began + patience.ACT_MS / 1000
        while self._refusal is None:
            await self._note(news, element, await self._read(menus=menus))
            told = [line for line, message in news.lines.items() if message]
            if news.back or find_refusing(told, act.control.name) or await self._find_asking(act, buttons):
                break
            if events.count("request") > events.count("answered"):
                quiet = clock() + _AFTER_ANSWER_SECONDS
            if (left := min(max(until, quiet), latest) - clock()) <= 0:
                break
            try:
                if not await self._page.evaluate(_CHANGES, [min(left, _LOOK_SECONDS) * 1000, document]):
                    break
            except playwright().Error:
                with suppress(playwright().Error):
                    await self._page.wait_for_load_state(timeout=patience.ACT_MS)
                break

    async def _note(self, news: _News, element: ElementHandle, frames: Frames) -> None:
        there = {line for frame in frames for line in frame if not line.startswith("\x00")}
        news.back = not news.missed.isdisjoint(there)
        news.missed |= {line for frame in news.before for line in frame if not line.startswith("\x00")} - there
        fresh = [line for line in new_lines(news.before, frames) if line not in news.lines]
        name = ""
        with suppress(playwright().Error):
            name = await element.evaluate(_NAME) or ""
        for line, message in await self._find_messages(element, fresh, news.before):
            # What is said by the very button that was pressed is no message.
            own = bool(name) and name != line and name in line and line.replace(name, "") in news.rest
            news.lines[line] = message and line != name and not own

    async def _weigh(
        self, act: Act, element: ElementHandle, before: Frames, after: Frames, news: _News, trouble: Any
    ) -> bool | Doubt:
        """Whether what a page shows after a press says that it is done."""
        marked, secret = await self._read_trouble()
        if wrong := [name for name in marked if name not in trouble[0]]:
            return Doubt("refused", self.seen[0] if self.seen else wrong[0])
        if asks := [name for name in secret if name not in trouble[1]]:
            return Doubt("asks", asks[0])
        there = {line for frame in after for line in frame}
        messages = [*self._alerts, *(line for line, message in news.lines.items() if message)]
        entries = [line for line, message in news.lines.items() if not message and line in there]
        lasting = [line for line in messages if not news.back or line in there]
        name, same = None, False
        with suppress(playwright().Error):
            name = await element.evaluate(_NAME)
        if act.control.row:
            with suppress(playwright().Error):
                seen = (await look(self._page)).visible
                same = any(one.row == act.control.row and one.role == act.control.role for one in seen) or (
                    act.control.role.startswith("menuitem") and any(one.row == act.control.row for one in seen)
                )
        if leads_on(act.control):
            with suppress(playwright().Error):
                known, shown = self._view.visible, (await look(self._page)).visible
                if [(one.role, one.name) for one in known] != [(one.role, one.name) for one in shown]:
                    return True  # the next step asks for something else
        for one, filled in self._written:
            with suppress(playwright().Error):
                old, now = letters(one.control.value), letters(await filled.evaluate(TEXT))
                if old and now == old != letters(one.values[0]) and await filled.is_visible():
                    return Doubt("unshown", one.control.name)  # set back to what it was
        sight = Sight(before, after, messages, lasting, entries, name, same, self._agreed)
        return weigh(act, sight) or True

    async def _read_trouble(self) -> tuple[list[str], list[str]]:
        marked, secret = list[str](), list[str]()
        for frame in self._page.frames:
            with suppress(playwright().Error):
                found = await frame.evaluate(TROUBLE)
                marked += found[0]
                secret += found[1]
        return marked, secret

    async def _click(self, element: ElementHandle) -> None:
        """Press an element once, in its middle, or where it can be seen, if something lies over that."""
        spot = None
        try:
            await element.click(timeout=patience.COVERED_MS, trial=True)
        except playwright().TimeoutError as error:
            spot = await element.evaluate(_FREE_SPOT) if "intercepts pointer" in error.message else None
        await element.click(timeout=patience.ACT_MS, position=spot)

    async def _find_said(
        self, act: Act, element: ElementHandle, refusing: Sequence[tuple[str, str, bool]], before: Frames
    ) -> list[str]:
        """The messages by which the page speaks of what was pressed, and not of what it is about.

        After a press with consequences a heading may do so as well: "Payment declined".
        """
        serious = (act.control.sends and not act.control.searches) or has_consequences(act.control.name)
        read = await self._read_said(element, refusing, before, serious=serious)
        said, found = [text for one in read for _, text in one if text], set[str]()
        for one in read:
            found |= {line for (line, *_), (here, _) in zip(refusing, one, strict=True) if here}
        # What stands nowhere any more, or cannot be found again, was said all the same.
        return said + [line for line, _, told in refusing if line not in found and not told]

    async def _find_messages(
        self, element: ElementHandle, lines: Sequence[str], before: Frames
    ) -> list[tuple[str, bool]]:
        """Each of the lines with whether it is a message of the page; one that has gone again was one."""
        asked = [(line, line, False) for line in lines if line not in self._alerts]
        read = await self._read_said(element, asked, before, serious=True)
        there = [any(one[number][0] for one in read) for number in range(len(asked))]
        told = [any(one[number][1] for one in read) for number in range(len(asked))]
        return [(line, told[number] or not there[number]) for number, (line, *_) in enumerate(asked)]

    async def _read_said(
        self, element: ElementHandle, asked: Sequence[tuple[str, str, bool]], before: Frames, *, serious: bool
    ) -> list[list[tuple[bool, str]]]:
        """For each frame and line: whether it stands there, and the message that it is there."""
        owner, found = None, list[list[tuple[bool, str]]]()
        known = [line for frame in before for line in frame if not line.startswith("\x00")]
        with suppress(playwright().Error):
            owner = await element.owner_frame()
        for frame in self._page.frames if asked else ():
            for pressed in (element, None) if frame is owner else (None,):
                with suppress(playwright().Error):
                    found.append(await frame.evaluate(SAID, [[*asked], known, serious, pressed]))
                    break
        return found

    @contextmanager
    def _watch(self) -> Iterator[list[str]]:
        """What a press does outside of the page's content: another window, a download, a request."""
        seen: list[str] = []

        def note(_: object) -> None:
            seen.append("event")

        def note_request(_: object) -> None:
            seen.append("request")

        def note_failure(response: Response) -> None:
            asked = response.request
            if response.status >= 400 and (asked.method != "GET" or asked.is_navigation_request()):
                seen.append(f"HTTP {response.status}")

        def note_end(_: object) -> None:
            seen.append("answered")

        heard = (
            ("popup", note), ("download", note), ("request", note_request), ("response", note_failure),
            ("requestfinished", note_end), ("requestfailed", note_end),
        )  # fmt: skip
        for name, listener in heard:
            self._page.on(name, listener)  # type: ignore[call-overload]
        try:
            yield seen
        finally:
            for name, listener in heard:
                self._page.remove_listener(name, listener)

    async def _read(self, *, menus: bool = True) -> list[list[str]]:
        """What a person would see of the page: none where it is on its way to another one.

        Without ``menus`` it is what stands behind them: that a menu closes is no sign of what its item did.
        """
        read = []
        for frame in self._page.frames:
            with suppress(playwright().Error):
                read.append(await frame.evaluate(SHOWN, menus))
        return read


@dataclass(slots=True)
class _News:
    """What a page has shown since a press: its new lines, each with whether it is a message, and those that were gone
    for a while.
    """

    before: Frames
    pressed: str
    lines: dict[str, bool] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    back: bool = False
    """Whether one of them is there again."""

    @property
    def rest(self) -> list[str]:
        """The lines before the press without the name of what was pressed."""
        return [line.replace(self.pressed, "") for frame in self.before for line in frame if self.pressed in line]


_MOST_PAGES = 10


def _count_alike(view: PageView, control: Control, said: Sequence[Token]) -> int:
    return sum(has_namesake(PageView([one], ()), control, said) for one in view.visible)


def _rows(view: PageView) -> list[Sequence[str]]:
    return [one.row for one in view.visible if one.row]


def _is_serious(pressed: Mapping[str, Any]) -> bool:
    """Whether what a button says, or how its form is sent, has consequences."""
    asks = pressed["method"] == "get"
    if pressed["method"] != "post" and _words(pressed["words"])[:1] == _words(pressed["words"]) == ["apply"]:
        return len(pressed["fields"]) != 1  # a code or a filter, and not oneself for a job
    return pressed["method"] == "post" or has_consequences(pressed["words"], link=pressed["link"], asks=asks)


def _is_question(text: str) -> bool:
    return "?" in text or _SURE.search(text) is not None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", fold(text))


def _backs(control: Control) -> bool:
    """Whether a button only goes back: "Cancel", "Volver"."""
    return _words(control.name)[:1] in (["cancel"], ["cancelar"], ["back"], ["volver"], ["close"], ["cerrar"])


def _strip_yes(name: str) -> str:
    return " ".join(word for word in _words(name) if word not in _YES)


def affirms(name: str, pressed: str) -> bool:
    """Whether a button of a dialog says yes to what another one was pressed for: by its word, or by "yes"."""
    said, asked = re.findall(r"\w+", fold(name)), re.findall(r"\w+", fold(pressed))
    if said and said[0] in _YES:
        return not (_NO - {*asked}) & {*said}  # "yes, cancel" where something is cancelled
    if len(said) > 1 and {*said} == {*asked}:
        return True
    return bool(said) and not _NO & {*said} and (said[0] in asked or (len(asked) > 1 and {*asked} <= {*said}))


def _declines(name: str, pressed: str) -> bool:
    """Whether a button of a dialog says no: "Cancel", "Not now", "Conservarla"."""
    asked = re.findall(r"\w+", fold(pressed))
    return any(
        word in _NO or any(len(no) > 5 and word.startswith(no) for no in _NO)
        for word in re.findall(r"\w+", fold(name))
        if word not in asked
    )


_YES = frozenset(
    "yes ok okay confirm continue proceed sure agree accept si vale aceptar confirmar continuar seguro adelante".split()
)
_NO = frozenset(
    "no not cancel back keep close dismiss never abort stay undo cancelar volver cerrar atras conservar mantener"
    " deshacer".split()
)
_CLOSES = frozenset("close dismiss keep stay cerrar".split())
"""Words that also put away what only tells something: "Keep looking" after "In your bag"."""
_SURE = re.compile(
    r"\b(?:(?:are|is) you sure|sure|really|undone|irreversible|permanent(?:ly)?|to confirm|confirm that"
    r"|segur[oa]s?|deshacer|irreversible|permanente(?:mente)?|para confirmar)\b",
    re.IGNORECASE,
)
_AFTER_ANSWER_SECONDS, _LOOK_SECONDS = 0.3, 0.25
_CHANGES = """
([most, document_]) => new Promise(done => {
  if (document_ !== null && performance.timeOrigin !== document_) return done(false);
  const watcher = new MutationObserver(() => { watcher.disconnect(); setTimeout(() => done(true), 30); });
  watcher.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  setTimeout(() => { watcher.disconnect(); done(true); }, most);
})
"""
"""Waits for the next change of a page; tells whether it is still the same document."""
_NAME = """
node => node.isConnected && node.checkVisibility() && node.getBoundingClientRect().width >= 1
  ? String(node.ariaLabel || node.innerText || node.value || "").replace(/\\s+/g, " ").trim() || null : null
"""
_LOADING = r"""
() => {
  const busy = document.querySelector("[aria-busy=true],[role=progressbar],progress");
  if (document.readyState === "loading" || busy) return true;
  const text = document.body?.innerText ?? "";
  return /(?:^|\n)\s*(?:loading|please wait|cargando|un momento)\b.{0,20}$/im.test(text)
    || !document.querySelector("a,button,input,select,textarea,summary,[role],iframe,[contenteditable]");
}
"""
# A point of an element at which it, or a part of it, would be pressed.
_FREE_SPOT = """
node => {
  const box = node.getBoundingClientRect(), parts = [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98];
  for (const down of parts) for (const along of parts) {
    const at = node.getRootNode().elementFromPoint(box.left + box.width * along, box.top + box.height * down);
    if (at && node.contains(at)) return {x: box.width * along, y: box.height * down};
  }
  return null;
}
"""
# What asks back: the dialog on top, or buttons that were not there before; without ``known`` the names of all buttons.
_ASKING = r"""
known => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const shown = node => node.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && node.getBoundingClientRect().width >= 1;
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim();
  const all = selector => roots.flatMap(root => [...root.querySelectorAll(selector)]).filter(shown);
  const nameOf = node => squeeze(node.ariaLabel || node.innerText || node.value);
  const pressed = "button,[role=button],input[type=submit],input[type=button],a[href]";
  const left = known ? [...known] : [], usable = all(pressed).filter(node => !node.disabled);
  if (!known) return usable.map(nameOf);
  const fresh = usable.filter(node => {
    const at = left.indexOf(nameOf(node));
    if (at >= 0) left.splice(at, 1);
    return at < 0;
  });
  const dialog = all("dialog[open],[role=dialog],[role=alertdialog],[popover]:popover-open").pop();
  let holder = dialog, buttons = usable.filter(node => dialog?.contains(node));
  if (!dialog || !buttons.some(node => fresh.includes(node))) {
    if (fresh.length < 2 || fresh.length > 4) return null;
    [holder, buttons] = [fresh[0], fresh];
    while (holder && !fresh.every(node => holder.contains(node))) holder = holder.parentElement;
    if (!holder) return null;
  }
  const fields = [...holder.querySelectorAll("input,textarea,select")].filter(node => shown(node)
    && !["submit", "button", "hidden"].includes(node.type));
  const open = fields.some(node => !["checkbox", "radio"].includes(node.type) && !node.value);
  const texts = [], walker = document.createTreeWalker(holder, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (shown(parent) && !buttons.some(node => node.contains(parent))) texts.push(squeeze(walker.currentNode.data));
  }
  const text = squeeze(texts.join(" ")).slice(0, 300) || squeeze(holder.ariaLabel);
  return {text: text || buttons.map(nameOf).join(", "), names: buttons.map(nameOf), open, fields: fields.length,
    inline: holder !== dialog, buttons};
}
"""
_PRESSED = r"""
(element, planned) => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const control = element.closest("button,input,a,summary,[role=button],[role=link],[role=menuitem]") ?? element;
  const form = control.form ?? control.closest("form");
  const writes = control.localName === "input" && !["button", "submit", "image", "reset"].includes(control.type);
  const sends = Boolean(form) && (writes || ["submit", "image"].includes(control.type));
  // A form that says neither how nor where it is sent is sent by a script, which may do anything.
  const asks = sends && (form.hasAttribute("action") || form.getAttribute("role") === "search") ? "get" : "";
  const method = sends ? control.getAttribute("formmethod") || form.getAttribute("method") || asks : "";
  const caption = ["submit", "button", "image", "reset"].includes(control.type) ? control.value : "";
  // What a label says itself, as the view of the page names its field: not the options or the value of what is in it.
  const labelOf = label => {
    const copy = label?.cloneNode(true), texts = [];
    copy?.querySelectorAll("select,textarea,button,script,style,template").forEach(one => one.remove());
    const walker = copy && document.createTreeWalker(copy, NodeFilter.SHOW_TEXT);
    while (walker?.nextNode()) texts.push(squeeze(walker.currentNode.data));
    return texts.filter(Boolean).join(" ");
  };
  const nameOf = field => squeeze(labelOf(field.labels?.[0]) || field.getAttribute("aria-label") || field.placeholder
    || field.name);
  const describe = field => {
    const name = nameOf(field), box = ["checkbox", "radio"].includes(field.type);
    if (!name || (box && !(planned[name] ?? field.checked)) || !(field.checkVisibility?.() ?? true)) return "";
    const value = planned[name] ?? (field.localName === "select" ? field.selectedOptions[0]?.text : field.value);
    const needed = field.required || field.ariaRequired === "true" ? "empty, and needed" : "empty";
    return `${name}: ${box ? "yes" : !value ? needed : field.type === "password" ? "***" : squeeze(value)}`;
  };
  // Without a form, what is asked in the same dialog or section goes with the button.
  const around = sends ? form : form || control.closest("tr,li") ? null
    : control.closest("dialog,[role=dialog],[role=form],fieldset,section,[role=region]");
  const asked = sends ? [...form.elements] : [...(around?.querySelectorAll("input,select,textarea") ?? [])];
  const fields = around ? asked.filter(field => /^(input|select|textarea)$/.test(field.localName)
    && !["hidden", "submit", "button", "image", "reset"].includes(field.type)).map(describe).filter(Boolean) : [];
  const wrong = sends && !form.noValidate && !control.formNoValidate
    ? [...form.elements].find(field => field.willValidate && !field.validity.valid) : null;
  const marked = ["aria-label", "title", "alt"].map(name => control.getAttribute(name) ?? "");
  const words = writes ? "" : [control.innerText, caption, ...marked].map(squeeze).join(" ");
  return {words, method: method.toLowerCase(), link: control.localName === "a", fields: fields.slice(0, 20),
    invalid: wrong ? nameOf(wrong) || wrong.validationMessage : ""};
}
"""
_LEAVING = "scheduled navigations"
"""What the browser waited for, where an act was done and the page that it leads to did not come in time."""
_MOST_SEEN = 8
