"""Websites as agents, and the NLWeb protocol.

From the bottom up: ``browser`` runs Chromium behind guarded proxies, ``steps`` does on a page what an interface says,
``healing`` finds elements that moved, ``visit`` brings a caller's session, login and pace to it, ``commands`` reads
sentences for an interface and ``driver`` those for any page, ``ask`` speaks the NLWeb protocol, and ``authoring`` makes
interfaces. ``connector`` offers all this to the gateway, ``executor`` to a program of your own, and ``protocol`` is
what the gateway knows of it. The names that other rooms may use are loaded on first use, and Playwright with the first
browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox, Overrides
    from agent3.protocols.nlweb.browser.sdk import playwright
    from agent3.protocols.nlweb.commands import understand
    from agent3.protocols.nlweb.connector import NLWebConnector, agent_of, interface_of
    from agent3.protocols.nlweb.driver import Driven, drive
    from agent3.protocols.nlweb.executor import NLWebExecutor
    from agent3.protocols.nlweb.healing import ElementStore, Healer, Policy
    from agent3.protocols.nlweb.healing.review import Heals
    from agent3.protocols.nlweb.protocol import NLWeb
    from agent3.protocols.nlweb.steps.locator import SelectorFinder
    from agent3.protocols.nlweb.steps.run_context import RunContext
    from agent3.protocols.nlweb.visit.local_profile import LocalProfile, open_local_profile
    from agent3.protocols.nlweb.visit.login import Login
    from agent3.protocols.nlweb.visit.page_session import Timeouts, Tools
    from agent3.protocols.nlweb.visit.secret_grants import scope_of, variables_of
    from agent3.protocols.nlweb.visit.stored_sessions import Sessions, StoredSession
    from agent3.protocols.nlweb.visit.throttle import site_of
    from agent3.protocols.nlweb.visit.visits import Visits

__all__ = ["Driven", "ElementStore", "Healer", "Heals", "LocalProfile", "Login", "NLWeb", "NLWebConnector",
           "NLWebExecutor", "NLWebSandbox", "Overrides", "Policy", "RunContext", "SelectorFinder", "Sessions",
           "StoredSession", "Timeouts", "Tools", "Visits", "agent_of", "drive", "interface_of", "open_local_profile",
           "playwright", "scope_of", "site_of", "understand", "variables_of"]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.nlweb.protocol": ("NLWeb",),
        "agent3.protocols.nlweb.connector": (
            "NLWebConnector",
            "agent_of",
            "interface_of",
        ),
        "agent3.protocols.nlweb.executor": ("NLWebExecutor",),
        "agent3.protocols.nlweb.browser.sandbox": (
            "NLWebSandbox",
            "Overrides",
        ),
        "agent3.protocols.nlweb.browser.sdk": ("playwright",),
        "agent3.protocols.nlweb.commands": ("understand",),
        "agent3.protocols.nlweb.driver": (
            "Driven",
            "drive",
        ),
        "agent3.protocols.nlweb.healing": (
            "ElementStore",
            "Healer",
            "Policy",
        ),
        "agent3.protocols.nlweb.healing.review": ("Heals",),
        "agent3.protocols.nlweb.steps.locator": ("SelectorFinder",),
        "agent3.protocols.nlweb.steps.run_context": ("RunContext",),
        "agent3.protocols.nlweb.visit.local_profile": (
            "LocalProfile",
            "open_local_profile",
        ),
        "agent3.protocols.nlweb.visit.login": ("Login",),
        "agent3.protocols.nlweb.visit.page_session": (
            "Timeouts",
            "Tools",
        ),
        "agent3.protocols.nlweb.visit.secret_grants": (
            "scope_of",
            "variables_of",
        ),
        "agent3.protocols.nlweb.visit.stored_sessions": (
            "Sessions",
            "StoredSession",
        ),
        "agent3.protocols.nlweb.visit.throttle": ("site_of",),
        "agent3.protocols.nlweb.visit.visits": ("Visits",),
    },
)
