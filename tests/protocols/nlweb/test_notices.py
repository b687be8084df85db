"""What was done or met besides the steps of an action: it comes with the answer, and the command line prints it."""

from __future__ import annotations

import asyncio

import pytest

from agent3.calls.outcomes import NOTICES, response
from agent3.cli.main import _answered
from agent3.cli.options import Where
from agent3.definitions import ActionType, NLWebInterface
from agent3.model import Done, Part
from agent3.protocols.nlweb.visit.visits import Visits
from tests.support.acting import step
from tests.support.sites import Site

PAGE = """<!doctype html><title>Shop</title><button id=go onclick="document.title='done'">Go</button>
<div id=didomi-host style="position:fixed;inset:0;background:#fff">We value your privacy and use cookies.
<button onclick="this.parentNode.remove()">Reject all</button></div>"""


@pytest.mark.browser
@pytest.mark.requirement("RF-013-50")
def test_a_banner_that_was_pressed_is_told_in_the_answer() -> None:
    async def story(site: Site) -> list[str]:
        steps = [step(ActionType.NAVIGATE, value="/"), step(ActionType.CLICK, "#go")]
        website = NLWebInterface(interface_id="shop", name="Shop", base_url=site.url, actions={"go": steps})
        visits = Visits()
        try:
            notices: list[str] = []
            await visits.run(website, "go", {}, principal="ann", on_notice=notices.extend)
            return notices
        finally:
            await visits.aclose()

    with Site({"/": PAGE}) as site:
        (notice,) = asyncio.run(story(site))
        assert notice.startswith(f"Pressed 'reject all' in a banner about cookies on {site.url}")


def test_notices_are_in_the_metadata_and_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    body = response(Done((Part(data=[]),), meta={NOTICES: ["Look \x1b[31mhere."]}), 0.1)
    assert body["metadata"]["notices"] == ["Look \x1b[31mhere."]
    _answered(body, "shop", Where())
    assert tuple(capsys.readouterr()) == ("[]\n", "Look  [31mhere.\n")
    assert "notices" not in response(Done((Part(data=[]),)), 0.1)["metadata"]
