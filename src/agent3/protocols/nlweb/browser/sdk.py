"""The only import of Playwright, made when the first browser is needed, and the repair of texts that come through it.

Its driver, and with that the browser, starts with the few variables that they need: what else is in our environment,
secrets above all, is none of a browser's business.

A page may cut an emoji in two, and so may our own scripts, which count as the page does. The half that stays, a lone
surrogate, is a character to JavaScript and to Playwright, and an error to UTF-8, JSON and every database. So whatever
comes from a page is made well-formed where it enters, once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from agent3.errors import MissingExtra, SetupError
from agent3.security.sanitize import rewrite_value

__all__ = ["choose_environment", "playwright", "well_formed"]

_NEEDED = frozenset(
    "PATH HOME LANG LANGUAGE LC_ALL LC_CTYPE TZ TMPDIR TEMP TMP "
    "LD_LIBRARY_PATH FONTCONFIG_FILE FONTCONFIG_PATH XDG_CACHE_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR "
    "DISPLAY WAYLAND_DISPLAY XAUTHORITY CHROME_DEVEL_SANDBOX PLAYWRIGHT_BROWSERS_PATH "
    "SYSTEMROOT WINDIR COMSPEC PATHEXT USERPROFILE APPDATA LOCALAPPDATA PROGRAMFILES PROGRAMDATA".split()
)
"""Where programs, libraries, fonts and folders are, the language, and the screen for a visible browser."""
_OF_DRIVER = ("PW_LANG_NAME", "PW_LANG_NAME_VERSION", "PW_CLI_DISPLAY_VERSION")
"""What Playwright tells its own driver."""


@cache
def playwright() -> Any:
    """Playwright's asynchronous API; MissingExtra says how to install it."""
    try:
        import playwright.async_api as api
        from playwright._impl import _driver, transport
    except ImportError:
        raise MissingExtra("A browser", "browser") from None
    # There is no public way to choose the environment of the driver. Without this one, nothing is started.
    if not hasattr(transport, "get_driver_env") or not hasattr(_driver, "get_driver_env"):
        raise SetupError(
            "This version of Playwright would pass all of agent3's environment variables to the browser. "
            "Install a supported one: pip install 'playwright<2'"
        )

    def build_driver_environment() -> dict[str, str]:
        return choose_environment(_driver.get_driver_env(), _OF_DRIVER)

    transport.get_driver_env = build_driver_environment
    return api


def choose_environment(environ: Mapping[str, str] = os.environ, more: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that a browser and its driver need, of all that there are, and ``more``."""
    return {name: value for name, value in environ.items() if name.upper() in _NEEDED or name in more}


T = TypeVar("T")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(value: T) -> T:
    """A text or any other JSON value, with U+FFFD for every half of a character; the same object if there is none."""

    def rewrite(text: str) -> str:
        is_fine = text.isascii() or _LONE_SURROGATE.search(text) is None
        return text if is_fine else _LONE_SURROGATE.sub("\ufffd", text)

    made: T = rewrite_value(value, rewrite)
    return made
