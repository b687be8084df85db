"""An executor on a site of the test's own, for tests of what steps do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb import RunContext, Timeouts, Tools
from tests.support.sites import Page, Site

__all__ = ["PATIENT", "Stage", "stage", "step"]

PATIENT = Timeouts(step=30.0, navigation=60.0, extraction=30.0, optional=0.2, sequence=120.0)
"""For steps that must succeed, however slow the machine is; what must fail says itself how soon."""


def step(kind: ActionType, selector: str | None = None, value: str | None = None, **more: Any) -> NLWebAction:
    """A step; its other fields by their names, conditions as dicts."""
    return NLWebAction.model_validate({"action_type": kind, "selector": selector, "value": value, **more})


class Stage:
    """A browser on a site. Every action begins as the test writes it, mostly by navigating."""

    def __init__(self, executor: NLWebExecutor, site: Site):
        self.executor = executor
        self.site = site

    @property
    def page(self) -> Any:
        return self.executor.page

    @property
    def ctx(self) -> RunContext:
        return self.executor._get_session().ctx

    def act(self, *steps: NLWebAction, **parameters: Any) -> Any:
        """Run the steps as an action."""
        self.executor.interface = self.executor.interface.model_copy(update={"actions": {"act": list(steps)}})
        return self.executor.execute_action("act", parameters)

    def sent(self, path: str) -> list[str]:
        """The requests for a path, in their order, with their queries."""
        return [one for _, one in self.site.requests if one.split("?")[0] == path]


@contextmanager
def stage(
    pages: Mapping[str, Page], tools: Tools | None = None, timeouts: Timeouts | None = None, **interface: Any
) -> Iterator[Stage]:
    """A stage with these pages."""
    timeouts = timeouts or Timeouts(step=2.0, extraction=0.5, optional=0.2)
    with Site(pages) as site:
        website = NLWebInterface(interface_id="test", name="Test", base_url=site.url, **interface)
        with NLWebExecutor(website, tools=tools, timeouts=timeouts) as executor:
            yield Stage(executor, site)
