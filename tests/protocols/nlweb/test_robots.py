"""What sites ask of programs: read once, bounded, and kept to by those who should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.env import SeededEnv
from agent3.errors import SecurityError, Unavailable
from agent3.protocols.nlweb.authoring.workbench import learn_page
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.sandbox import Overrides
from agent3.protocols.nlweb.visit.robots import Mode, Robots, RobotsSandbox, Rules
from agent3.protocols.nlweb.visit.visits import Visits
from agent3.settings import Web
from tests.support.sites import Answer, Page, Site

TEXT = """
# a shop
User-agent: *
Disallow: /cart
Disallow: /*.pdf$
Allow: /cart/help
Crawl-delay: 2

User-agent: otherbot
User-agent: Agent3/2.0
Disallow: /private
Disallow: /caf%C3%A9
Disallow:
"""


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        (TEXT, "/cart", True),  # a group of our own stands alone
        (TEXT, "/private/x", False),
        (TEXT, "/café", False),
        (TEXT, "/caf%c3%a9?x=1", False),
        (TEXT.replace("Agent3/2.0", "third"), "/cart", False),
        (TEXT.replace("Agent3/2.0", "third"), "/cartoon", False),
        (TEXT.replace("Agent3/2.0", "third"), "/cart/help/me", True),
        (TEXT.replace("Agent3/2.0", "third"), "/a/b.pdf", False),
        (TEXT.replace("Agent3/2.0", "third"), "/a/b.pdf?page=1", True),
        ("User-agent: *\nDisallow: /\nAllow: /$", "", True),
        ("User-agent: *\nDisallow: /\nAllow: /$", "/x", False),
        ("User-agent: *\nDisallow: /x\nAllow: /x", "/x", True),
        ("User-agent: *\nDisallow: /", "/robots.txt", True),
        ("User-agent: *\nDisallow: /*a*b*c$", "/1a2b3c", False),
        ("User-agent: *\nDisallow: /*a*b*c$", "/1a2b3c4", True),
        ("User-agent: *\nDisallow: /%2A", "/x", True),  # an escaped star is a star (RFC 9309, 2.2.3)
        ("User-agent: agent\nDisallow: /\n\nUser-agent: 3\nDisallow: /", "/x", True),  # names of others
        ("\ufeffUSER-AGENT : agent3\nDisallow: /", "/x", False),
        ("User-agent: *\rDisallow: /x\rAllow: /y", "/x", False),
        ("Disallow: /", "/x", True),  # a rule without a group
        ("<html>not found</html>", "/x", True),
        ("", "/x", True),
    ],
)
def test_the_longest_rule_for_us_decides(text: str, path: str, allowed: bool) -> None:
    assert Rules.parse(text).allows(f"https://shop.example{path}") is allowed


@pytest.mark.parametrize(
    "text",
    [
        f"User-agent: *\nDisallow: /{'*a' * 200}b$",
        "".join(f"User-agent: bot{number}\n" for number in range(10_000)) + "Disallow: /x\n" * 10_000,
    ],
    ids=["stars", "names and rules"],
)
def test_a_hostile_file_is_read_in_linear_time(text: str) -> None:
    """A naive matcher would need forever for the first, and hundreds of millions of steps for the last."""
    assert Rules.parse(text).allows(f"https://shop.example/{'a' * 4_000}")


def test_a_crawl_delay_may_name_us_and_is_never_longer_than_a_minute() -> None:
    assert Rules.parse("User-agent: agent3\nCrawl-delay: 3\n\nUser-agent: *\nCrawl-delay: 30").crawl_delay == 3
    assert Rules.parse("User-agent: *\nCrawl-delay: 86400").crawl_delay == 60
    assert Rules.parse("User-agent: other\nCrawl-delay: 5").crawl_delay == 0
    assert Rules.parse("<html>not found</html>").crawl_delay == 0


def strange(site: Site, **more: Any) -> NLWebInterface:
    """A site that is not taken for this machine's own, since a pace is asked for it."""
    return NLWebInterface(
        interface_id="shop",
        name="Shop",
        base_url=site.url,
        metadata={"pace": {"seconds": 0.01}},
        actions={"read": [NLWebAction(action_type=ActionType.NAVIGATE, value="/cart")]},
        **more,
    )


def told(pages: dict[str, Page], work: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    with Site(pages) as site:
        asyncio.run(work(site))


def paths(site: Site) -> list[str]:
    return [path for _, path in site.requests]


@pytest.mark.requirement("RF-013-60")
def test_a_disallowed_page_is_refused_to_who_finds_their_own_way_and_the_file_is_read_once_a_day() -> None:
    async def work(site: Site) -> None:
        env = SeededEnv()
        keeper = Robots(env=env)
        for _ in range(3):
            with pytest.raises(SecurityError, match="asks programs not to open /cart"):
                await keeper.require(strange(site), f"{site.url}/cart?x=1")
        await keeper.require(strange(site), f"{site.url}/")
        assert paths(site) == ["/robots.txt"]
        env.advance(86_401)
        await keeper.require(strange(site), f"{site.url}/")
        assert paths(site) == ["/robots.txt", "/robots.txt"]

    told({"/robots.txt": "User-agent: *\nDisallow: /cart"}, work)


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_site_without_one_allows_everything(status: int) -> None:
    async def work(site: Site) -> None:
        await Robots().require(strange(site), f"{site.url}/cart")

    told({"/robots.txt": Answer("User-agent: *\nDisallow: /", status)}, work)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_while_it_cannot_be_read_nobody_knows_and_it_is_asked_again_soon(status: int) -> None:
    async def work(site: Site) -> None:
        env = SeededEnv()
        keeper = Robots(env=env)
        with pytest.raises(Unavailable, match=f"status {status}") as caught:
            await keeper.require(strange(site), f"{site.url}/")
        assert caught.value.retry_after == 60
        site.pages["/robots.txt"] = ""
        env.advance(61)
        await keeper.require(strange(site), f"{site.url}/")

    told({"/robots.txt": Answer("", status)}, work)


def test_a_site_that_does_not_answer_is_no_site_that_allows() -> None:
    with Site({}) as site:
        gone = strange(site)
    with pytest.raises(Unavailable, match=r"robots\.txt"):
        asyncio.run(Robots().require(gone, f"{gone.base_url}/"))


def test_redirects_are_followed_on_the_site_itself_and_nowhere_else() -> None:
    with Site({"/robots.txt": "User-agent: *\nDisallow: /"}) as other:

        async def work(site: Site) -> None:
            with pytest.raises(SecurityError, match="asks programs"):
                await Robots().require(strange(site), f"{site.url}/")
            site.pages["/robots.txt"] = Answer("", 302, {"Location": f"{other.url}/robots.txt"})
            await Robots().require(strange(site), f"{site.url}/")
            site.pages["/robots.txt"] = Answer("", 302, {"Location": "/robots.txt"})
            await Robots().require(strange(site), f"{site.url}/")

        told(
            {
                "/robots.txt": Answer("", 301, {"Location": "/r.txt"}),
                "/r.txt": "User-agent: *\nDisallow: /",
            },
            work,
        )
        assert other.connections == 0


def test_what_lies_beyond_half_a_megabyte_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        await Robots().require(strange(site), f"{site.url}/late")
        with pytest.raises(SecurityError):
            await Robots().require(strange(site), f"{site.url}/early")

    long = "User-agent: *\nDisallow: /early\n" + "#" * 600_000 + "\nDisallow: /late\n"
    told({"/robots.txt": long}, work)


def test_this_machines_own_sites_and_those_who_ignore_it_are_asked_nothing() -> None:
    async def work(site: Site) -> None:
        own = NLWebInterface(interface_id="own", name="Own", base_url=site.url)
        await Robots("obey").require(own, f"{site.url}/")
        await Robots("ignore").require(strange(site), f"{site.url}/")
        assert await Robots("ignore").crawl_delay(strange(site)) == 0
        await Robots("ignore").sandbox(strange(site))
        assert paths(site) == []

    told({"/robots.txt": "User-agent: *\nDisallow: /"}, work)


@pytest.mark.parametrize(("mode", "kept"), [("pace", False), ("obey", True)])
def test_errands_keep_to_it_only_if_the_operator_says_so_and_its_delay_counts_for_all(mode: Mode, kept: bool) -> None:
    async def work(site: Site) -> None:
        robots = Robots(mode)
        found = await robots.sandbox(strange(site))
        assert isinstance(found, RobotsSandbox) is kept
        found.require(f"{site.url}/")
        if kept:
            with pytest.raises(SecurityError, match="AGENT3_WEB_ROBOTS"):
                found.require(f"{site.url}/cart")
        else:
            found.require(f"{site.url}/cart")
        with pytest.raises(SecurityError, match="blocked"):
            found.require("https://evil.example/")
        assert [await robots.crawl_delay(strange(site)) for _ in range(2)] == [2.0, 2.0]
        assert paths(site) == ["/robots.txt"]

    told({"/robots.txt": TEXT.replace("Agent3/2.0", "third")}, work)


def test_the_default_is_the_one_of_the_settings() -> None:
    assert Robots().mode == Web().robots == "pace"


@pytest.mark.browser
@pytest.mark.requirement("RF-013-60")
def test_a_visit_that_obeys_opens_no_disallowed_page() -> None:
    async def work(site: Site) -> None:
        visits = Visits(Pool(1), robots=Robots("obey"))
        try:
            with pytest.raises(SecurityError, match="asks programs not to open /cart"):
                await visits.run(strange(site), "read", {}, principal="ann")
        finally:
            await visits.aclose()
        assert paths(site) == ["/robots.txt"]

    told({"/robots.txt": "User-agent: *\nDisallow: /cart", "/cart": "<h1>Cart"}, work)


def test_learning_a_disallowed_page_starts_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        url = f"http://shop.example:{site.port}/cart"
        monkeypatch.setenv("AGENT3_HOSTS", f"shop.example:{site.port}=127.0.0.1")
        assert Overrides.read().find("shop.example", site.port)
        with pytest.raises(SecurityError, match="asks programs not to open /cart"):
            await learn_page(url)
        assert paths(site) == ["/robots.txt"]

    told({"/robots.txt": "User-agent: *\nDisallow: /cart", "/cart": "<h1>Cart"}, work)
