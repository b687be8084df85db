"""The web console in a real browser: what it shows, whom it asks for a key, and that words of agents stay words."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from agent3 import Context, LocalAgent
from agent3.protocols.nlweb.browser import installation
from agent3.settings import ApprovalRule, Client, Settings
from tests.support.gateway import Hosted, hosted

KEY = "console-key-0001"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    found = installation.require()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(found.path), args=["--no-sandbox"])
        one = browser.new_page()
        one.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield one
        browser.close()


def shop() -> LocalAgent:
    agent = LocalAgent("shop", description=HOSTILE)

    @agent.capability
    async def order(item: str, ctx: Context) -> str:
        """Order an item."""
        size = await ctx.ask("Which size?", Literal["small", "large"])
        return f"{size} {item} {HOSTILE}"

    return agent


def open_console(page: Page, gateway: Hosted, at: str) -> None:
    page.goto("about:blank")
    page.goto(f"{gateway.url}/console/#/{at}")


@pytest.mark.browser
def test_an_agent_is_found_called_asked_back_and_its_call_is_seen(tmp_path: Path, page: Page) -> None:
    with hosted(tmp_path, [shop()]) as gateway:
        open_console(page, gateway, "agents")
        page.get_by_role("searchbox").fill("order")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="shop").click()
        expect(page.locator("main")).to_contain_text(HOSTILE)
        page.get_by_role("link", name="Try it").click()
        page.get_by_label("In plain words").fill('{"item": "tea"}')
        page.get_by_role("button", name="Call").click()
        expect(page.locator("main section")).not_to_contain_text("Calling")
        page.get_by_label("Which size?").select_option("large")
        page.get_by_role("button", name="Answer").click()
        expect(page.locator("main section")).to_contain_text(f"large tea {HOSTILE}")
        page.get_by_role("link", name="Calls").click()
        rows = page.get_by_role("row").filter(has_text="shop")
        expect(rows).to_have_count(2)
        rows.first.get_by_role("link").first.click()
        expect(page.get_by_role("definition").filter(has_text="shop").first).to_be_visible()
        page.get_by_role("link", name="Costs").click()
        expect(page.get_by_role("table", name="By agent")).to_contain_text("shop")
        assert page.title() == "agent3", "nothing that an agent says is taken for markup"
        assert page.locator("main img, main script").count() == 0


@pytest.mark.browser
def test_a_gateway_with_clients_asks_for_a_key_and_forgets_it_on_sign_out(tmp_path: Path, page: Page) -> None:
    settings = Settings(clients=(Client("ann", f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"),))
    with hosted(tmp_path, [shop()], settings) as gateway:
        open_console(page, gateway, "agents")
        page.get_by_label("Key of a client").fill("wrong-key-00000001")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main")).to_contain_text("not valid")
        page.get_by_label("Key of a client").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="shop")).to_be_visible()
        assert KEY not in page.url
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key of a client")).to_be_visible()
        assert KEY not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")


@pytest.mark.browser
def test_a_call_that_waits_for_a_yes_is_seen_whole_and_approved(tmp_path: Path, page: Page) -> None:
    agent, paid = LocalAgent("bank"), []

    @agent.capability
    async def pay(amount: int, to: str) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    rule = ApprovalRule(agent="bank", why="Money leaves.", itself=True)
    with hosted(tmp_path, [agent], Settings(approvals=(rule,))) as gateway:
        gateway.post(
            "/v1/call", {"agentId": "bank", "capability": "pay", "input": {"amount": 4711, "to": "ann\u202eben"}}
        )
        open_console(page, gateway, "approvals")
        page.get_by_role("row").filter(has_text="Money leaves.").get_by_role("link").click()
        expect(page.locator("main")).to_contain_text("4711")
        expect(page.locator("main")).to_contain_text("ann\\u{202e}ben")  # and nothing reads backwards
        assert paid == []
        page.get_by_role("button", name="Approve").click()
        expect(page.locator("main")).to_contain_text("approved")
        deadline = time.monotonic() + 60
        while not paid and time.monotonic() < deadline:
            time.sleep(0.05)
        assert paid == [4711]


def test_its_files_hold_no_data_run_nothing_foreign_and_stand_in_no_frame(tmp_path: Path) -> None:
    with hosted(tmp_path, [shop()]) as gateway:
        assert (gateway.get("/console").status, gateway.get("/console").headers["location"]) == (308, "/console/")
        for name, kind in {"": "text/html", "console.js": "text/javascript", "console.css": "text/css"}.items():
            answer = gateway.get(f"/console/{name}")
            assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, kind)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert b"shop" not in answer.raw
        assert gateway.get("/console/../settings").status == 404
        assert "/console/" in gateway.get("/").raw.decode()
