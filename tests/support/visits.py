"""A small shop for visits: it greets by cookie, takes orders, and asks those it does not know to log in."""

from __future__ import annotations

import html
from http.cookies import SimpleCookie
from typing import Any

from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from tests.support.sites import Answer, Page

__all__ = ["PAGES", "shop"]

A = ActionType


def step(kind: ActionType, selector: str | None = None, value: str | None = None, **more: Any) -> NLWebAction:
    """One step, short."""
    return NLWebAction(action_type=kind, selector=selector, value=value, **more)


_SEARCH = """<!doctype html><title>Shop</title>
<form action="/found"><input id="q" name="q"><button id="go">Search</button></form>"""
_LOGIN = """<!doctype html><title>Log in</title><form id="login" action="/enter">
<input id="user" name="user"><input id="password" name="password" type="password"><button>Enter</button></form>"""


def _found(query: dict[str, str]) -> str:
    word = html.escape(query.get("q", ""))
    cards = "".join(f'<li class="card"><b>{word} {number}</b><i>€ {number},50</i></li>' for number in (1, 2))
    return f"<!doctype html><title>Found</title><ul>{cards}</ul>"


def _bought(query: dict[str, str]) -> str:
    return f"<!doctype html><title>Bought</title><h1>Bought {html.escape(query.get('product', ''))}</h1>"


def _enter(query: dict[str, str]) -> Answer:
    if query.get("password") != "sesame":
        return Answer(_LOGIN, 403)
    name = query.get("user", "")
    return Answer("<h1>Welcome</h1>", headers={"Set-Cookie": f"who={name}; Max-Age=3600"})


def _account(query: dict[str, str]) -> str | Answer:
    cookies = SimpleCookie(query.get("cookie:", ""))
    if "who" not in cookies:
        return _LOGIN
    return f"<!doctype html><title>Account</title><h1>Hello {html.escape(cookies['who'].value)}</h1>"


PAGES: dict[str, Page] = {
    "/": _SEARCH,
    "/found": _found,
    "/buy": "<!doctype html><form action='/bought'><input id='product' name='product'><button id='buy'>Buy</button>",
    "/bought": _bought,
    "/login": _LOGIN,
    "/enter": _enter,
    "/account": _account,
    "/slow": "<!doctype html><title>Slow</title><h1>Slow</h1>",
}


def shop(url: str, **more: Any) -> NLWebInterface:
    """The interface of the shop."""
    login = {
        "action": "login",
        "parameters": {"user": "ann", "password": "env:SHOP_PASSWORD"},
        "asks": "form#login",
    }
    text = {"type": "string", "minLength": 1}
    return NLWebInterface(
        interface_id="shop",
        name="Shop",
        base_url=url,
        description="Sells things",
        actions={
            "search": [
                step(A.NAVIGATE, value="/"),
                step(A.TYPE, "#q", "{query}"),
                step(A.CLICK, "#go"),
                step(A.EXTRACT, ".card", extract_schema={"name": "b", "price": "i"}),
            ],
            "look": [step(A.NAVIGATE, value="/found?q={query}"), step(A.EXTRACT, ".card b")],
            "buy": [
                step(A.NAVIGATE, value="/buy"),
                step(A.TYPE, "#product", "{product}"),
                step(A.CLICK, "#buy"),
                step(A.EXTRACT, "h1"),
            ],
            "account": [step(A.NAVIGATE, value="/account"), step(A.EXTRACT, "h1")],
            "login": [
                step(A.NAVIGATE, value="/login"),
                step(A.TYPE, "#user", "{user}"),
                step(A.TYPE, "#password", "{password}"),
                step(A.CLICK, "#login button", wait_for="h1"),
            ],
        },
        info={
            "search": NLWebActionInfo(
                description="Search the shop for a product",
                input_schema={"type": "object", "properties": {"query": text}, "required": ["query"]},
                phrases=["search for {query}", "find {query}"],
                hints=ActionHints(read_only=True),
            ),
            "look": NLWebActionInfo(description="Look at one shelf", hints=ActionHints(read_only=True)),
            "buy": NLWebActionInfo(
                description="Buy a product",
                input_schema={"type": "object", "properties": {"product": text}, "required": ["product"]},
                phrases=["buy {product}", "order {product}"],
                hints=ActionHints(consequential=True),
            ),
            "account": NLWebActionInfo(description="Who the shop takes you for", hints=ActionHints(read_only=True)),
        },
        metadata=more.pop("metadata", {"login": login} if more.pop("login", False) else {}),
        **more,
    )
