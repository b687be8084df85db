"""Modules that were documented under other paths: importing one by its former path gives the module of today.

Only paths that stood in the docs are here. New code imports from ``agent3``, ``agent3.a2a``, ``agent3.mcp`` and
``agent3.nlweb``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

__all__ = ["FORMER", "install"]

FORMER = {
    "agent3.a2a.adapters": "agent3.protocols.a2a.agents.adapters",
    "agent3.a2a.authoring": "agent3.protocols.a2a.agents.authoring",
    "agent3.a2a.client": "agent3.protocols.a2a.peer.client",
    "agent3.a2a.coordination": "agent3.protocols.a2a.agents.coordination",
    "agent3.a2a.extensions": "agent3.protocols.a2a.cards.extensions",
    "agent3.a2a.push": "agent3.protocols.a2a.door.push",
    "agent3.a2a.shapes": "agent3.protocols.a2a.wire.types",
    "agent3.calls.standalone": "agent3.protocols.functions.standalone",
    "agent3.mcp.oauth": "agent3.protocols.mcp.client.oauth",
    "agent3.mcp.security": "agent3.protocols.mcp.library.security",
    "agent3.nlweb.browsers": "agent3.protocols.nlweb.browser.installation",
    "agent3.nlweb.files": "agent3.protocols.nlweb.authoring.files",
    "agent3.security.signing": "agent3.identity.signed_requests",
}


class _Alias(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what it finds under the name afterwards, so both paths give the same module.
        sys.modules[module.__name__] = import_module(FORMER[module.__name__])

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``."""
        spec = find_spec(FORMER[fullname])
        loader = spec.loader if spec is not None else None
        return loader.get_code(FORMER[fullname]) if isinstance(loader, InspectLoader) else None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in FORMER else None


def install() -> None:
    """Make the former paths importable. It is asked last, so nothing that exists is hidden by it."""
    sys.meta_path.append(_Finder())
