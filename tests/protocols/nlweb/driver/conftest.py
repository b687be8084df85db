"""The browser in which sentences are tried on small pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent3.protocols.nlweb.browser.installation import require
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver import Driven, drive, patience

Run = Callable[..., tuple[Driven, str]]


@pytest.fixture(autouse=True)
def old_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is expected to come of a page that has been drawn, and so no question waits for it."""
    monkeypatch.setattr(patience, "YOUNG_SECONDS", 0.0)


@pytest.fixture(scope="package")
def run() -> Iterator[Run]:
    """Drives a new page of some HTML: (html, sentence) → (what was done, the page's title after it).

    The pages share a process of the browser, which the first of them keeps: a new one takes more of a processor than
    what most tests do.
    """
    with asyncio.Runner() as runner:

        async def start() -> tuple[Any, Any, Any]:
            driver = await playwright().async_playwright().start()
            options = {"executable_path": str(require().path), "args": ["--renderer-process-limit=1"]}
            browser = await driver.chromium.launch(**options)
            context = await browser.new_context()
            await context.new_page()
            return driver, browser, context

        driver, browser, context = runner.run(start())

        async def run_one(html: str, sentence: str, **options: Any) -> tuple[Driven, str]:
            page = await context.new_page()
            try:
                await page.set_content(f"<!doctype html><title></title>{html}")
                async with asyncio.timeout(120):
                    return await drive(page, sentence, **options), await page.title()
            finally:
                await page.close()

        yield lambda html, sentence, **options: runner.run(run_one(html, sentence, **options))
        runner.run(browser.close())
        runner.run(driver.stop())
